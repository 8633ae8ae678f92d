//! Runs the real runtime as if we were not there: its descriptors are ours, signals sent to us reach it, and its
//! end is ours.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fgpu_spec::{Code, Error};
use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
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

/// Runs a program with our environment and descriptors to its end.
///
/// # Errors
/// It cannot be started or waited for.
pub(super) fn run(program: &Path, words: &[OsString]) -> Result<Ended, Error> {
    let failed = |doing: &str, errno: Errno| Error::new(Code::Internal, format!("cannot {doing}: {errno}"));
    let held = held();
    let before = SigSet::thread_get_mask().map_err(|errno| failed("read the signal mask", errno))?;
    held.thread_block().map_err(|errno| failed("hold signals", errno))?;
    let signals = SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC)
        .map_err(|errno| failed("receive signals", errno))?;
    let child = spawn(program, words, &before).map_err(|error| Error::io("run", program, &error))?;
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

/// Starts the program with the signal mask that *we* were started with, which is why this is not the standard
/// library's `Command`: its children inherit the mask of the moment, and a container would inherit that from the
/// runtime.
fn spawn(program: &Path, words: &[OsString], mask: &SigSet) -> std::io::Result<Pid> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(std::io::Error::from);
    let arguments = std::iter::once(program.as_os_str()).chain(words.iter().map(OsString::as_os_str));
    let arguments = arguments.map(|word| text(word.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let environment = std::env::vars_os()
        .map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    attributes.set_sigmask(mask)?;
    // The standard library ignores SIGPIPE in its own process; the runtime shall not inherit that.
    let mut default = SigSet::empty();
    default.add(Signal::SIGPIPE);
    attributes.set_sigdefault(&default)?;
    let actions = PosixSpawnFileActions::init()?;
    Ok(posix_spawn(program, &actions, &attributes, &arguments, &environment)?)
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
