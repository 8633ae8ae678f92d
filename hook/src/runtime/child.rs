//! Runs the real runtime as if we were not there: its descriptors are ours, signals sent to us reach it, and its
//! end is ours.

use std::process::Command;

use fgpu_spec::{Code, Error};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How the real runtime ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With an exit status.
    Exited(i32),
    /// By a signal.
    Killed(Signal),
}

impl Ended {
    pub(super) fn success(self) -> bool {
        self == Ended::Exited(0)
    }

    /// Ends this process in the same way.
    pub fn relay(self) -> ! {
        if let Ended::Killed(signal) = self {
            let mut set = SigSet::empty();
            set.add(signal);
            // Should either fail, the exit status that a shell would show says the same.
            let _ = set.thread_unblock();
            let _ = raise(signal);
            std::process::exit(128 + signal as i32);
        }
        let Ended::Exited(status) = self else { unreachable!("matched above") };
        std::process::exit(status)
    }
}

/// Signals of job control and of faults stay what they are; all others are held for [`forward`].
fn held() -> SigSet {
    let mut set = SigSet::all();
    for signal in [
        Signal::SIGTSTP,
        Signal::SIGTTIN,
        Signal::SIGTTOU,
        Signal::SIGCONT,
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGABRT,
        Signal::SIGTRAP,
        Signal::SIGSYS,
    ] {
        set.remove(signal);
    }
    set
}

/// Runs `command` to its end.
///
/// # Errors
/// It cannot be started or waited for.
pub(super) fn run(command: &mut Command) -> Result<Ended, Error> {
    let failed = |doing: &str, errno: Errno| Error::new(Code::Internal, format!("cannot {doing}: {errno}"));
    let held = held();
    held.thread_block().map_err(|errno| failed("hold signals", errno))?;
    let signals = SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC)
        .map_err(|errno| failed("receive signals", errno))?;
    // The standard library starts the child with an empty signal mask.
    let child = command
        .spawn()
        .map_err(|error| Error::io("run", std::path::Path::new(command.get_program()), &error))?;
    let child =
        Pid::from_raw(i32::try_from(child.id()).map_err(|_| failed("run the runtime", Errno::ERANGE))?);
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, status)) => return Ok(Ended::Exited(status)),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Ended::Killed(signal)),
            Ok(_) => {}
            Err(errno) => return Err(failed("wait for the runtime", errno)),
        }
        match signals.read_signal() {
            Ok(Some(received)) => forward(child, received.ssi_signo, received.ssi_code),
            Ok(None) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed("receive signals", errno)),
        }
    }
}

/// Hands a signal on, unless the kernel made it: what a terminal sends, it sends to the whole process group, the
/// runtime included, and `SIGCHLD` is for us.
fn forward(child: Pid, number: u32, code: i32) {
    let from_a_process = code <= 0;
    if let Ok(signal) = Signal::try_from(number as i32)
        && signal != Signal::SIGCHLD
        && from_a_process
    {
        // The child may have ended in between; then there is nobody to tell.
        let _ = kill(child, signal);
    }
}
