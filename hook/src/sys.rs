//! The few calls that neither rustix nor nix has, and those that the type system cannot vouch for.
#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Attributes of a mount: `MOUNT_ATTR_*` of linux/mount.h.
pub(crate) const RDONLY: u64 = 0x1;
pub(crate) const NOSUID: u64 = 0x2;
pub(crate) const NODEV: u64 = 0x4;
pub(crate) const NOEXEC: u64 = 0x8;

/// `struct mount_attr` of linux/mount.h, in its first version.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets and clears attributes of a detached mount and all below it, and makes it private (Linux 5.12).
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, set: u64, clear: u64) -> Result<()> {
    let attr = MountAttr { set, clear, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is a NUL-terminated string, the size is that of the structure, which outlives the
    // call; the kernel writes to neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Lets no descriptor above standard error live on in a program that we start (Linux 5.11).
pub(crate) fn close_others_on_exec() -> Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: it takes three numbers; no descriptor in use is closed.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Forgets the environment.
pub(crate) fn clear_environment() {
    // SAFETY: this process has one thread, and no pointer into the environment is held yet. It fails for want
    // of memory alone, of which it takes none with glibc and musl.
    let _ = unsafe { nix::env::clearenv() };
}

/// What [`out_of_time`] writes, and the status with which it ends the process.
static LAST_WORDS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static STATUS: AtomicUsize = AtomicUsize::new(1);

/// Ends this process on SIGALRM with these words on stderr and this exit status.
pub(crate) fn on_alarm(words: &'static str, status: u8) -> Result<()> {
    LAST_WORDS.store(words.as_ptr().cast_mut(), Ordering::Relaxed);
    LENGTH.store(words.len(), Ordering::Relaxed);
    STATUS.store(usize::from(status), Ordering::Relaxed);
    let action = SigAction::new(SigHandler::Handler(out_of_time), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler makes two system calls that are allowed in one (signal-safety(7)) and does not
    // return.
    unsafe { sigaction(Signal::SIGALRM, &action) }?;
    Ok(())
}

extern "C" fn out_of_time(_: libc::c_int) {
    let (words, length) = (LAST_WORDS.load(Ordering::Relaxed), LENGTH.load(Ordering::Relaxed));
    let status = i32::try_from(STATUS.load(Ordering::Relaxed)).unwrap_or(1);
    // SAFETY: pointer and length are those of a string that lives for ever; write(2) and _exit(2) may be
    // called here.
    unsafe {
        libc::write(libc::STDERR_FILENO, words.cast(), length);
        libc::_exit(status)
    }
}

/// Gives a signal back the action that it has in a new process.
pub(crate) fn default_action(signal: Signal) -> Result<()> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: it takes away what a parent may have left; no handler of ours is set for it.
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}
