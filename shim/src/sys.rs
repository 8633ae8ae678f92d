//! The system calls that need `unsafe`. The rest of the crate has none.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, Pid};
use rustix::process;

/// A descriptor that becomes readable when the process ends, pidfd_open(2), which nix does not have.
pub(crate) fn pidfd_open(pid: i32) -> Result<OwnedFd> {
    let pid = (pid > 0).then_some(pid).and_then(process::Pid::from_raw).ok_or(ErrorKind::InvalidInput)?;
    Ok(process::pidfd_open(pid, process::PidfdFlags::empty())?)
}

/// Sends SIGKILL to the process behind a pidfd, whatever became of its number.
pub(crate) fn pidfd_kill(pidfd: BorrowedFd<'_>) -> Result<()> {
    Ok(process::pidfd_send_signal(pidfd, process::Signal::KILL)?)
}

/// Takes over a descriptor whose number stands on our command line.
///
/// The caller must be the process that was started with it, and call this once per number.
pub(crate) fn inherited(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: fcntl(2) with F_GETFD takes any number and fails if it is no open descriptor.
    if number <= libc::STDERR_FILENO || unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open (seen above), and it was opened for us: the process that started us put its number
    // on our command line, and this program calls this once per number before it opens anything else.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// The signals that people and service managers send to shims. SIGUSR1 has a stock shim print its stacks
/// (containerd, pkg/shim/shim_unix.go `setupDumpStacks`), and `pkill -USR1 containerd-shim` means all of
/// them.
const OUTLIVED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Lets these signals do nothing, without letting our children inherit that (a signal that is
/// ignored stays ignored over execve(2), a handler does not).
pub(crate) fn outlive_signals() -> Result<()> {
    handle_signals(SigHandler::Handler(nothing))
}

fn handle_signals(handler: SigHandler) -> Result<()> {
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    for signal in OUTLIVED {
        // SAFETY: the handler is the default or does nothing, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Runs `work` in a fork of this process, which has to be single-threaded: the child goes on in Rust.
///
/// The child has `writer`, standard input and output as they are, `log` as its standard error, and no other
/// descriptor: a connection that it held would not end when the relay closes it. It ends with `work`, and an
/// error of it is printed.
pub(crate) fn fork(
    writer: &File,
    log: Option<&File>,
    work: impl FnOnce(File) -> anyhow::Result<()>,
) -> Result<Pid> {
    // SAFETY: no other thread holds a lock that the child would wait for; the relay has one thread. (The unit
    // tests have more: there the child calls execve(2) next, and of the locks on its way glibc's malloc, the
    // one that matters, takes care of itself in fork(3).)
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            // In a build that unwinds, no panic may reach the caller's frames, which are the relay's.
            let result = catch_unwind(AssertUnwindSafe(|| {
                let writer = only(writer, log)?;
                handle_signals(SigHandler::SigDfl)?;
                work(writer)
            }));
            let status = match result {
                Ok(Ok(())) => 0,
                Ok(Err(error)) => {
                    fgpu_engine::say(format_args!(
                        "containerd-shim-fgpu-v2: {}",
                        fgpu_spec::chain(error.as_ref())
                    ));
                    1
                }
                Err(_) => 101,
            };
            // SAFETY: ends the process without the exit handlers, which are the relay's.
            unsafe { libc::_exit(status) }
        }
    }
}

/// Closes every descriptor but the standard ones and `writer`, of which it returns the only handle to be
/// used.
fn only(writer: &File, log: Option<&File>) -> Result<File> {
    if let Some(log) = log {
        nix::unistd::dup2_stderr(log)?;
    }
    let kept = writer.as_raw_fd();
    let first = libc::STDERR_FILENO + 1;
    let ranges = [(first, kept - 1), (first.max(kept + 1), RawFd::MAX)];
    for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
        // SAFETY: the owners of these descriptors are in the relay's memory, which the child does not use: it
        // ends in `fork` without dropping anything of it.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
            close_one_by_one(kept)?;
            break;
        }
    }
    // SAFETY: open, and it has no other owner: see above.
    Ok(unsafe { File::from_raw_fd(kept) })
}

/// For kernels before 5.9, which have no close_range(2).
fn close_one_by_one(kept: RawFd) -> Result<()> {
    let open = std::fs::read_dir("/proc/self/fd")?.flatten();
    let numbers: Vec<RawFd> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|&number| number > libc::STDERR_FILENO && number != kept) {
        // SAFETY: as for close_range(2). The directory's own descriptor is closed already, and EBADF.
        unsafe { libc::close(number) };
    }
    Ok(())
}
