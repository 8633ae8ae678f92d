//! What a CUDA context takes of a GPU's memory.
//!
//! Some hundred MiB that the driver takes for itself before a program has allocated anything; how many
//! depends on the GPU and the driver, and nothing in CUDA or NVML says it beforehand. So it is measured: a
//! process of its own makes a context and keeps it until its standard input ends ([`hold()`]), while this one
//! asks NVML.
//!
//! ```text
//! NVML: used = before ─ start the holder ─ it says "ready" ─ NVML: used = with, the holder's own ─ end it ─ NVML: after
//! ```
//!
//! Two meters tell: what NVML says that the holder uses, and the difference of what is in use of the whole
//! GPU. The larger counts, as the driver books some of a context to no process. The difference only counts if
//! as much was in use after as before. Programs that run meanwhile, which are common on a node whose
//! inventory is refreshed by hand, leave the first meter, and a difference that two rounds agree on.
//!
//! Nothing is measured on a GPU in an exclusive or prohibited compute mode: there the holder would be the one
//! process that may compute, and another program's start would fail.

mod hold;

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use hold::hold;

/// What a holder prints when its context stands.
pub(crate) const READY: &str = "ready\n";

/// How long a holder may take for its context, and for its end. A first context of a boot may wait for the
/// GPU's firmware; longer takes none, and a boot waits for this.
const LONGEST: Duration = Duration::from_secs(15);
/// How often is measured until two rounds agree.
const ROUNDS: usize = 3;

/// Makes the command that runs [`hold()`] with the libcuda of this path.
pub type Holder<'a> = &'a dyn Fn(&Path) -> Command;

/// One round, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Round {
    /// In use of the GPU before there was a context, while there was, and afterwards.
    before: u64,
    with: u64,
    after: u64,
    /// What NVML says of the holder.
    own: Option<u64>,
    /// Whether another process has a context on the GPU.
    shared: bool,
}

impl Round {
    /// What the whole GPU's meter says, if no other process has visibly moved it.
    fn difference(&self) -> Option<u64> {
        (self.before == self.after).then(|| self.with.checked_sub(self.before)).flatten()
    }
}

/// What these rounds say a context takes; `None` if another round is needed.
fn settle(rounds: &[Round]) -> Option<u64> {
    let (last, earlier) = rounds.split_last()?;
    let difference = last
        .difference()
        .filter(|bytes| !last.shared || earlier.iter().any(|round| round.difference() == Some(*bytes)));
    match (difference, last.own) {
        (Some(difference), own) => Some(difference.max(own.unwrap_or(0))),
        // A GPU on which others work all the time: what is booked to the holder is nearly all.
        (None, Some(_)) if rounds.len() == ROUNDS => rounds.iter().filter_map(|round| round.own).max(),
        (None, _) => None,
    }
}

/// Bytes that a context takes of this GPU. `used` asks NVML how much of it is in use; `start` gives the
/// command of a holder.
///
/// # Errors
/// Why that cannot be told, in words that complete "because".
pub(crate) fn measure(
    device: &Device<'_>,
    used: &dyn Fn() -> Result<u64, NvmlError>,
    uuid: &str,
    start: &dyn Fn() -> Option<Command>,
) -> Result<u64, String> {
    match device.compute_mode() {
        Ok(ComputeMode::Default) | Err(NvmlError::NotSupported) => {}
        Ok(mode) => return Err(format!("its compute mode is {mode:?}")),
        Err(error) => return Err(format!("no compute mode: {error}")),
    }
    let mut rounds = Vec::new();
    while rounds.len() < ROUNDS {
        let holder = start().ok_or("the driver has no libcuda.so.1")?;
        rounds.push(round(device, used, uuid, holder)?);
        if let Some(bytes) = settle(&rounds) {
            return Ok(bytes);
        }
    }
    Err("what is in use of it changed in every round".into())
}

fn round(
    device: &Device<'_>,
    used: &dyn Fn() -> Result<u64, NvmlError>,
    uuid: &str,
    holder: Command,
) -> Result<Round, String> {
    let used = || used().map_err(|error| format!("no memory size: {error}"));
    let before = used()?;
    let held = ContextHolder::start(holder, uuid)?;
    let with = used()?;
    let listed = device.running_compute_processes();
    let draws = device.running_graphics_processes_count();
    // A process that cannot be listed may be there.
    let unknown = listed.is_err() || !matches!(draws, Ok(0) | Err(NvmlError::NotSupported));
    let processes = listed.unwrap_or_default();
    let (own, others): (Vec<_>, Vec<_>) = processes.iter().partition(|process| process.pid == held.0.id());
    let own = own.first().and_then(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    });
    let shared = unknown || !others.is_empty();
    held.end()?;
    Ok(Round { before, with, after: used()?, own, shared })
}

/// A process that holds a context.
struct ContextHolder(Child);

impl ContextHolder {
    /// Starts it and waits for its context.
    fn start(mut command: Command, uuid: &str) -> Result<Self, String> {
        // Nothing of our environment may change what a context takes; the MPS server's contexts are others.
        command.env_clear().env("CUDA_VISIBLE_DEVICES", uuid).env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
        let program = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir(OsStr::new("/"));
        let child = command.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
        let mut held = Self(child);
        let mut said = String::new();
        let read = held.0.stdout.as_mut().map_or(Ok(()), |stdout| read_line(stdout, &mut said));
        match read {
            Ok(()) if said == READY => Ok(held),
            Ok(()) if said.is_empty() => Err("the process that makes a context crashed; see `dmesg`".into()),
            Ok(()) => Err(said.trim_end().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(format!("the driver made no context within {} s", LONGEST.as_secs()))
            }
            Err(error) => Err(format!("cannot read what {program} says: {error}")),
        }
    }

    /// Ends it and waits until its memory is free again.
    fn end(mut self) -> Result<(), String> {
        drop(self.0.stdin.take());
        if self.wait(LONGEST) { Ok(()) } else { Err("the process that made a context does not end".into()) }
    }

    /// Whether it has ended within this time.
    fn wait(&mut self, longest: Duration) -> bool {
        let ended = Pid::from_raw(self.0.id() as i32)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .is_some_and(|pidfd| readable(&pidfd, longest).is_ok());
        ended && self.0.wait().is_ok()
    }
}

impl Drop for ContextHolder {
    fn drop(&mut self) {
        // One that hangs in the driver cannot be killed; it is not waited for.
        if matches!(self.0.try_wait(), Ok(None)) && self.0.kill().is_ok() {
            self.wait(Duration::from_secs(2));
        }
    }
}

/// Reads until a line is whole or the other end is closed.
fn read_line(from: &mut ChildStdout, line: &mut String) -> io::Result<()> {
    let end = Instant::now() + LONGEST;
    let mut bytes = [0; 256];
    while !line.ends_with('\n') {
        readable(&*from, end.saturating_duration_since(Instant::now()))?;
        let length = from.read(&mut bytes)?;
        if length == 0 {
            break;
        }
        line.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    Ok(())
}

/// Waits until there is something to read.
fn readable(from: impl std::os::fd::AsFd, longest: Duration) -> io::Result<()> {
    let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let from = from.as_fd();
    match poll(&mut [PollFd::from_borrowed_fd(from, PollFlags::IN)], Some(&longest))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// So many MiB before, with and after, and of the holder itself.
    fn round(before: u64, with: u64, after: u64, own: Option<u64>, shared: bool) -> Round {
        let own = own.map(|mib| mib * MIB);
        Round { before: before * MIB, with: with * MIB, after: after * MIB, own, shared }
    }

    #[test]
    fn alone_on_the_gpu_one_round_is_enough() {
        assert_eq!(settle(&[round(0, 520, 0, Some(514), false)]), Some(520 * MIB));
        assert_eq!(settle(&[round(0, 520, 0, None, false)]), Some(520 * MIB));
        assert_eq!(settle(&[round(0, 500, 0, Some(514), false)]), Some(514 * MIB));
        assert_eq!(settle(&[round(7, 7, 7, None, false)]), Some(0), "a simulated GPU's contexts are free");
    }

    #[test]
    fn a_meter_that_others_move_is_not_believed() {
        let moved = round(100, 700, 300, None, true);
        assert_eq!(settle(&[moved]), None);
        assert_eq!(settle(&[moved, moved, moved]), None);
        // Not even if it happens to come back.
        let back = round(100, 700, 100, None, true);
        assert_eq!(settle(&[back]), None);
        assert_eq!(settle(&[back, moved, round(100, 620, 100, None, true)]), None);
        assert_eq!(settle(&[back, moved, back]), Some(600 * MIB));
        // One that falls is no size.
        assert_eq!(settle(&[round(700, 100, 700, None, false)]), None);
    }

    #[test]
    fn with_others_the_holders_own_is_taken_in_the_end() {
        let busy = |own| round(100, 900, 400, Some(own), true);
        assert_eq!(settle(&[busy(514)]), None);
        assert_eq!(settle(&[busy(514), busy(516), busy(510)]), Some(516 * MIB));
        let quiet = round(100, 620, 100, Some(514), true);
        assert_eq!(settle(&[quiet, quiet]), Some(520 * MIB));
    }
}
