//! The system calls that need `unsafe`. The rest of the crate has none.

#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// A descriptor that becomes readable when the process ends, pidfd_open(2).
pub(crate) fn pidfd_open(pid: i32) -> Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Sends SIGKILL to the process behind a pidfd, whatever became of its number.
pub(crate) fn pidfd_kill(pidfd: BorrowedFd<'_>) -> Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is what the call takes for "as kill(2) would send it"; no other memory is passed.
    let result =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, none, 0) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Takes over a descriptor whose number stands on our command line.
///
/// The caller must be the process that was started with it, and call this once per number.
pub(crate) fn inherited(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: fcntl(2) with F_GETFD takes any number and fails if it is no open descriptor.
    if number <= libc::STDERR_FILENO || unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open (seen above), and it was opened for us: the process that started us put its number on
    // our command line, and this program calls this once per number before it opens anything else.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Lets SIGTERM, SIGINT and SIGHUP do nothing, without letting our children inherit that (a signal that is
/// ignored stays ignored over execve(2), a handler does not).
pub(crate) fn outlive_signals() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler does nothing, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}
