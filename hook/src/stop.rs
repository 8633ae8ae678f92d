//! The time that a hook has.

use std::time::{Duration, Instant};

use fgpu_engine::signals::ENDING;
use fgpu_spec::{Code, Error};
use nix::sys::signal::{SigSet, Signal};

use crate::sys;

/// What is kept of the hook's time for the work after a wait for room.
pub(crate) const WORK: Duration = Duration::from_secs(5);

/// When the hook must be done. It counts from the start of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// Ends the process `after` that time with `words` and `status`, unless signals are
    /// [held](fgpu_engine::signals::HeldSignals).
    ///
    /// # Errors
    /// The kernel does not let us.
    pub(crate) fn set(after: Duration, words: &'static str, status: u8) -> Result<Self, Error> {
        let failed = |error: std::io::Error| {
            Error::new(Code::Internal, format!("cannot limit the time of the hook: {error}"))
        };
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            sys::default_action(signal).map_err(failed)?;
        }
        sys::on_alarm(words, status).map_err(failed)?;
        SigSet::from_iter(ENDING).thread_unblock().map_err(|errno| failed(errno.into()))?;
        let seconds = u32::try_from(after.as_secs()).unwrap_or(u32::MAX).max(1);
        nix::unistd::alarm::set(seconds);
        Ok(Self(Instant::now() + after))
    }

    /// What is left for waiting, when `work` is kept for what comes after it.
    pub(crate) fn left(&self, work: Duration) -> Duration {
        self.0.saturating_duration_since(Instant::now()).saturating_sub(work)
    }
}
