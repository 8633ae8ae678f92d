//! Signals that end a process: let through while there is nothing to undo, held while there is.

use std::os::fd::{AsFd, BorrowedFd};

use fgpu_spec::{Code, Error};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Those that are held. A runtime that gives up on its hook sends SIGKILL; these are a person's, a service
/// manager's and the hook's own.
pub const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGALRM];

/// While it lives no ending signal is delivered. Dropped with one pending, the process ends.
#[derive(Debug)]
pub struct HeldSignals {
    signals: SignalFd,
    before: SigSet,
}

impl HeldSignals {
    /// Signals that would not end this process, because it was started with them ignored (nohup) or blocked,
    /// stay as they are.
    ///
    /// # Errors
    /// The kernel does not let us.
    pub fn new() -> Result<Self, Error> {
        let failed =
            |errno: nix::errno::Errno| Error::new(Code::Internal, format!("cannot hold signals: {errno}"));
        let before = SigSet::thread_get_mask().map_err(failed)?;
        let ignored = ignored();
        let ends = |signal: &Signal| !before.contains(*signal) && ignored & (1 << (*signal as u32 - 1)) == 0;
        let held: SigSet = ENDING.into_iter().filter(ends).collect();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&held, flags).map_err(failed)?;
        held.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(failed)?;
        Ok(Self { signals, before })
    }

    /// Looks whether a signal has come.
    ///
    /// # Errors
    /// [`Code::TimedOut`] for our own alarm, else [`Code::Internal`].
    pub fn check(&self) -> Result<(), Error> {
        let Ok(Some(signal)) = self.signals.read_signal() else { return Ok(()) };
        if signal.ssi_signo == Signal::SIGALRM as u32 {
            return Err(Error::new(Code::TimedOut, "the hook's own time limit passed; try again"));
        }
        let name = Signal::try_from(signal.ssi_signo as i32).map_or("a signal", Signal::as_str);
        Err(Error::new(Code::Internal, format!("{name} ended the hook before the container had its share")))
    }
}

impl AsFd for HeldSignals {
    /// Becomes readable when a signal has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // It cannot fail with a set of our own; were it to, the signals stay held and SIGKILL ends us.
        let _ = self.before.thread_set_mask();
    }
}

/// The signals that this process ignores, a bit for each: `SigIgn` of proc_pid_status(5).
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
