//! Signals that end a hook: let through while there is nothing to undo, held while there is.

use std::time::{Duration, Instant};

use fgpu_spec::{Code, Error};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::sys;

/// A runtime that gives up on its hook sends SIGKILL; the others are a person's, a service manager's and our own.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGALRM];

/// When the hook must be done. It counts from the start of the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    /// Ends the process `after` that time with `words` and `status`, unless signals are [held](Held).
    ///
    /// # Errors
    /// The kernel does not let us.
    pub(super) fn set(after: Duration, words: &'static str, status: u8) -> Result<Self, Error> {
        let failed = |error: std::io::Error| {
            Error::new(Code::Internal, format!("cannot limit the time of the hook: {error}"))
        };
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            sys::default_action(signal).map_err(failed)?;
        }
        sys::on_alarm(words, status).map_err(failed)?;
        ending().thread_unblock().map_err(|errno| failed(errno.into()))?;
        let seconds = u32::try_from(after.as_secs()).unwrap_or(u32::MAX).max(1);
        nix::unistd::alarm::set(seconds);
        Ok(Self(Instant::now() + after))
    }

    /// What is left for waiting, when `work` is kept for what comes after it.
    pub(super) fn left(&self, work: Duration) -> Duration {
        self.0.saturating_duration_since(Instant::now()).saturating_sub(work)
    }
}

fn ending() -> SigSet {
    ENDING.into_iter().collect()
}

/// While it lives no ending signal is delivered. Dropped with one pending, the process ends.
#[derive(Debug)]
pub(super) struct Held(SignalFd);

impl Held {
    /// # Errors
    /// The kernel does not let us.
    pub(super) fn new() -> Result<Self, Error> {
        let failed =
            |errno: nix::errno::Errno| Error::new(Code::Internal, format!("cannot hold signals: {errno}"));
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&ending(), flags).map_err(failed)?;
        ending().thread_block().map_err(failed)?;
        Ok(Self(signals))
    }

    /// Looks whether a signal has come.
    ///
    /// # Errors
    /// [`Code::TimedOut`] for our own alarm, else [`Code::Internal`].
    pub(super) fn check(&self) -> Result<(), Error> {
        let Ok(Some(signal)) = self.0.read_signal() else { return Ok(()) };
        if signal.ssi_signo == Signal::SIGALRM as u32 {
            return Err(Error::new(Code::TimedOut, "the hook's own time limit passed; try again"));
        }
        let name = Signal::try_from(signal.ssi_signo as i32).map_or("a signal", Signal::as_str);
        Err(Error::new(Code::Internal, format!("{name} ended the hook before the container had its share")))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It cannot fail with a set of our own; were it to, the signals stay held and the runtime's SIGKILL ends us.
        let _ = ending().thread_unblock();
    }
}
