//! What this program was started with and hands on to the program that it becomes or runs: standard streams
//! that are closed, and whether SIGPIPE is ignored.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use rustix::fs::{Mode, OFlags, open};

/// Whether SIGPIPE is to be ignored in other programs.
static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// Notes it, for a program that has no standard start. Whatever is closed is taken until the next program
/// begins: else the first file that is opened would become standard output.
#[allow(unsafe_code, reason = "a disposition cannot be set safely")]
pub fn keep() {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    while let Ok(stream) = open("/dev/null", flags, Mode::empty()) {
        use std::os::fd::{AsRawFd, IntoRawFd};
        if stream.as_raw_fd() > 2 {
            break;
        }
        let _ = stream.into_raw_fd();
    }
    // SAFETY: ignoring replaces no handler of ours.
    let before = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
    IGNORES_SIGPIPE.store(matches!(before, Ok(SigHandler::SigIgn)), Ordering::Relaxed);
}

/// Makes SIGPIPE what it was, before another program begins.
///
/// # Errors
/// It cannot be set.
#[allow(unsafe_code, reason = "a disposition cannot be set safely")]
pub fn restore() -> Result<(), Errno> {
    if !IGNORES_SIGPIPE.load(Ordering::Relaxed) {
        // SAFETY: the default action replaces no handler of ours; the standard library ignores SIGPIPE.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
    }
    Ok(())
}
