//! Whether a process is left that holds a lease.
//!
//! | known | the lease lives while |
//! |---|---|
//! | init | init runs, or its cgroup has a process |
//! | it is a claim's, or a pool's | always: the node's DRA driver, or slurmd, gives it back |
//! | it is a pod's | the pod's cgroup is there |
//! | it is a job's | its cgroup has a process, or the task for which it was made runs |
//! | only the maker | the maker runs, or a pid file names a process that can be the container's init, or the cgroup has a process |
//!
//! Pid files are the grant's own ([`crate::Store::pid_file`]), and the one that the lease names. A process is
//! a pid with its start time. Where `pid_file` gives only a pid, it may have been reused since; the process
//! that has it now is the init unless it started before the lease was made, or after the file was last
//! written. Start times are CLOCK_BOOTTIME and file times CLOCK_REALTIME, so the latter comparison is made
//! only if the wall clock was not set since the lease was made. What cannot be told keeps the lease.

use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::Deserialize;

use crate::{Anchor, Host, Lease, Process, host};

/// Largest state file that is read, in bytes; runc's holds the container's whole configuration.
const STATE_FILE_MAX: u64 = 16 << 20;
/// By how much REALTIME − BOOTTIME may seem to differ although the clock was not set: the two are read one
/// after the other. Slewing (NTP) moves both alike. In ns.
const CLOCK_JITTER: i128 = 100_000_000;

/// The judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// A process holds it.
    Alive,
    /// Its maker died, but this process is the container's init.
    Init(Process),
    /// No process is left.
    Dead,
}

/// Judges a lease of this boot.
///
/// # Errors
/// When it cannot be told; the lease must stay.
pub(crate) fn judge(host: &Host, lease: &Lease, own: &Path) -> io::Result<Life> {
    match &lease.anchor {
        Some(Anchor::Claim(_) | Anchor::Pool(_) | Anchor::Shards(_)) => return Ok(Life::Alive),
        Some(Anchor::Job(job)) => {
            let runs = host.cgroup_has_process(&job.cgroup)? || host.is_alive(lease.maker)?;
            return Ok(if runs { Life::Alive } else { Life::Dead });
        }
        Some(Anchor::Pod(pod)) => {
            return Ok(if host.has_cgroup(&pod.cgroup)? { Life::Alive } else { Life::Dead });
        }
        None => {}
    }
    match lease.init {
        Some(init) if host.is_alive(init)? => return Ok(Life::Alive),
        Some(_) => {}
        None if host.is_alive(lease.maker)? => return Ok(Life::Alive),
        None => {
            if let Some(init) = recorded_init(host, lease, own)? {
                return Ok(Life::Init(init));
            }
        }
    }
    match &lease.cgroup {
        Some(cgroup) if host.cgroup_has_process(cgroup)? => Ok(Life::Alive),
        _ => Ok(Life::Dead),
    }
}

/// The init that the runtime wrote down, if it runs. `own` is the grant's own pid file.
pub(crate) fn recorded_init(host: &Host, lease: &Lease, own: &Path) -> io::Result<Option<Process>> {
    let in_own = match read_record(own)? {
        // Its writer is asked for nothing but a pid. An empty one was not finished.
        None if own.metadata().is_ok_and(|file| file.len() > 0) => {
            return Err(io::Error::other(
                "its runtime made the container and does not say which process it is; end it with the runtime's delete, or \
                 give the share back with fgpu release --force",
            ));
        }
        record => record,
    };
    if let Some(init) = init_of(host, lease, in_own)? {
        return Ok(Some(init));
    }
    match &lease.pid_file {
        Some(path) => init_of(host, lease, read_record(path)?),
        None => Ok(None),
    }
}

fn init_of(host: &Host, lease: &Lease, record: Option<(Record, i128)>) -> io::Result<Option<Process>> {
    let Some((record, written)) = record else { return Ok(None) };
    let Some(process) = host.process(record.pid)? else { return Ok(None) };
    let is_init = match record.start {
        Some(start) => process.start == start,
        None => process.start >= ticks(lease.created) && !started_after(process, written, lease),
    };
    Ok(is_init.then_some(process))
}

/// Whether the process certainly started after `written` (CLOCK_REALTIME, ns).
fn started_after(process: Process, written: i128, lease: &Lease) -> bool {
    let then = i128::from(lease.wall) - i128::from(lease.created);
    let now = i128::from(host::wall()) - i128::from(host::boottime());
    let start = i128::from(process.start) * 1_000_000_000 / i128::from(ticks_per_second());
    (now - then).abs() < CLOCK_JITTER && start > written - now + 2 * CLOCK_JITTER
}

/// CLOCK_BOOTTIME nanoseconds as clock ticks, floored as the kernel floors start times.
fn ticks(nanoseconds: u64) -> u64 {
    let ticks = u128::from(nanoseconds) * u128::from(ticks_per_second()) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

#[derive(Debug, PartialEq, Eq)]
struct Record {
    pid: i32,
    start: Option<u64>,
}

/// What runc's `state.json` (`init_process_*`) and crun's `status` (`pid`, `process-start-time`) say of the
/// init.
#[derive(Deserialize)]
struct RuntimeState {
    #[serde(alias = "init_process_pid")]
    pid: i32,
    #[serde(alias = "init_process_start", rename = "process-start-time")]
    start: Option<Start>,
}

/// Old versions of runc write the start as a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Start {
    Number(u64),
    Text(String),
}

/// The record and when it was written (CLOCK_REALTIME, ns); `None` when there is none yet, or nothing
/// sensible.
fn read_record(path: &Path) -> io::Result<Option<(Record, i128)>> {
    let mut options = std::fs::OpenOptions::new();
    // Not to hang on a FIFO.
    options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(STATE_FILE_MAX).read_to_end(&mut text)?;
    let written = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Ok(parse_record(&text).map(|record| (record, written)))
}

fn parse_record(text: &[u8]) -> Option<Record> {
    if let Ok(pid) = str::from_utf8(text.trim_ascii()).ok()?.parse() {
        return Some(Record { pid, start: None });
    }
    let state: RuntimeState = serde_json::from_slice(text).ok()?;
    let start = match state.start {
        None => None,
        Some(Start::Number(start)) => Some(start),
        Some(Start::Text(start)) => Some(start.parse().ok()?),
    };
    // Both write zeros while there is no process.
    (state.pid > 0).then_some(Record { pid: state.pid, start: start.filter(|&start| start > 0) })
}

#[cfg(test)]
mod tests;
