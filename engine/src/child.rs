//! Runs a program as if we were not there: its descriptors are ours, signals sent to us reach it, and its end
//! is ours.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

use fgpu_spec::{Code, Error};
use nix::errno::Errno;
use nix::sched::{CloneFlags, clone};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, execv, execvp, execvpe, getpid, getppid};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::inherited;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With an exit status.
    Exited(i32),
    /// By a signal.
    Killed(Signal),
}

impl Ended {
    /// Whether it ended with exit status 0.
    pub fn success(self) -> bool {
        self == Ended::Exited(0)
    }

    /// Ends this process in the same way.
    #[allow(unsafe_code, reason = "a disposition cannot be reset safely")]
    pub fn relay(self) -> ! {
        if let Ended::Killed(signal) = self {
            // SAFETY: the default action replaces no handler of ours; the standard library ignores SIGPIPE.
            let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
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

/// What ties a program to us.
#[derive(Debug, Default)]
pub struct Bond<'a> {
    /// It gets SIGKILL when we end.
    pub dies_with_us: bool,
    /// It becomes a member of the cgroup whose open `cgroup.procs` this is, before it runs.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// Sees to it that the kernel tells us how our children end: where SIGCHLD is ignored it does not (wait(2)),
/// and the program that started us may have ignored it. Whether a program inherits that at all is left open
/// by POSIX (exec).
#[allow(unsafe_code, reason = "a disposition cannot be reset safely")]
pub fn notice_ends() {
    // SAFETY: the default action replaces no handler of ours. It cannot fail for this signal.
    let _ = unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) };
}

/// Runs a command with our environment and descriptors to its end; its program is looked for in `PATH`.
/// `started` is told its pid.
///
/// # Errors
/// It cannot be started or waited for.
pub fn run(
    command: &[impl AsRef<OsStr>],
    bond: &Bond<'_>,
    started: impl FnOnce(i32),
) -> Result<Ended, Error> {
    let name = Path::new(command.first().map_or(OsStr::new(""), AsRef::as_ref));
    try_run(command, bond, started)?.map_err(|error| Error::io("run", name, &error))
}

/// As [`run`]; the inner error is why the program could not be executed.
///
/// # Errors
/// It cannot be waited for.
pub fn try_run(
    command: &[impl AsRef<OsStr>],
    bond: &Bond<'_>,
    started: impl FnOnce(i32),
) -> Result<std::io::Result<Ended>, Error> {
    let failed = |doing: &str, errno: Errno| Error::new(Code::Internal, format!("cannot {doing}: {errno}"));
    notice_ends();
    let held = held();
    let before = SigSet::thread_get_mask().map_err(|errno| failed("read the signal mask", errno))?;
    held.thread_block().map_err(|errno| failed("hold signals", errno))?;
    let signals = SignalFd::with_flags(&held, SfdFlags::SFD_CLOEXEC)
        .map_err(|errno| failed("receive signals", errno))?;
    let child = match spawn(command, bond, before) {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    started(child.as_raw());
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, status)) => return Ok(Ok(Ended::Exited(status))),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Ok(Ended::Killed(signal))),
            Ok(_) => {}
            Err(errno) => return Err(failed("wait for the program", errno)),
        }
        match signals.read_signal() {
            Ok(Some(received)) => forward(child, received.ssi_signo, received.ssi_code),
            Ok(None) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed("receive signals", errno)),
        }
    }
}

/// Replaces this process by a program, which inherits what we inherited; comes back only with the reason why
/// it could not.
pub fn become_this(path: &Path, words: &[OsString]) -> std::io::Error {
    let words = std::iter::once(path.as_os_str()).chain(words.iter().map(OsString::as_os_str));
    let words: Result<Vec<_>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let failed = |words: Vec<CString>| -> Result<Infallible, Errno> {
        inherited::restore()?;
        execv(words.first().ok_or(Errno::ENOENT)?, &words)
    };
    match words.map(failed) {
        Ok(Err(errno)) => errno.into(),
        Err(error) => error.into(),
    }
}

/// The child's stack, bytes, beyond the words' addresses: `execvp` has those there, and a path.
const STACK: usize = 64 << 10;

/// Starts the program with the signal mask that *we* were started with: a container would inherit ours from
/// its runtime.
///
/// Until the program runs, the child works in our memory and we stand still (`CLONE_VM | CLONE_VFORK`,
/// clone(2)): a copy of our page tables, and of each page that either of us touches then, takes longer than
/// the rest of the start.
#[allow(unsafe_code, reason = "what happens between clone and exec cannot be said safely")]
fn spawn(command: &[impl AsRef<OsStr>], bond: &Bond<'_>, mask: SigSet) -> std::io::Result<Pid> {
    let words = command.iter().map(|word| CString::new(word.as_ref().as_bytes()));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let parent = getpid();
    let mut activated = activated_environment(std::env::vars_os(), parent);
    let failed = AtomicI32::new(0);
    let child = || {
        let Err(errno) = become_program(&words, bond, parent, &mask, activated.as_mut());
        failed.store(errno as i32, Ordering::Relaxed);
        127
    };
    // Of a mapping only the pages that the child uses are ever touched; an allocator would fill all of it
    // with zeros.
    let size = STACK + size_of_val(&*words);
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping, wherever there is room, lies over nothing of ours.
    let mapping = unsafe { mmap_anonymous(null_mut(), size, access, kind) }?;
    // SAFETY: the mapping is readable, writable, zeros, that long, and ours alone. It stays until our end:
    // there is one per program that we run, and its pages went with the child.
    let stack = unsafe { std::slice::from_raw_parts_mut(mapping.cast(), size) };
    // SAFETY: the child has a stack of its own, and this thread waits until the child has left our memory: to
    // the memory the child is this thread. No handler of ours runs in it: there is none but the standard
    // library's for faults.
    let pid = unsafe {
        clone(
            Box::new(child),
            stack,
            CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK,
            Some(Signal::SIGCHLD as i32),
        )
    }?;
    match failed.load(Ordering::Relaxed) {
        0 => Ok(pid),
        errno => {
            let _ = waitpid(pid, None);
            Err(std::io::Error::from_raw_os_error(errno))
        }
    }
}

/// The child's part of [`spawn`].
fn become_program(
    words: &[CString],
    bond: &Bond<'_>,
    parent: Pid,
    mask: &SigSet,
    activated: Option<&mut Vec<CString>>,
) -> Result<Infallible, Errno> {
    if bond.dies_with_us {
        set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != parent {
            return Err(Errno::ESRCH); // we were killed before the kernel knew of the wish
        }
    }
    if let Some(members) = bond.cgroup {
        nix::unistd::write(members, b"0")?;
    }
    inherited::restore()?;
    mask.thread_set_mask()?;
    let program = words.first().ok_or(Errno::ENOENT)?;
    match activated {
        Some(environment) => {
            let own = CString::new(format!("{LISTEN_PID}={}", getpid())).map_err(|_| Errno::EINVAL)?;
            environment.push(own);
            execvpe(program, words, environment)
        }
        None => execvp(program, words),
    }
}

/// The process that sockets were opened for (sd_listen_fds(3)).
const LISTEN_PID: &str = "LISTEN_PID";
/// The same by another number, which a pid does not tell; it may be left out.
const LISTEN_PIDFDID: &str = "LISTEN_PIDFDID";

/// Our environment without `LISTEN_PID`, if that is our pid: the sockets are for the program, which has
/// another.
fn activated_environment(
    environment: impl Iterator<Item = (OsString, OsString)>,
    own: Pid,
) -> Option<Vec<CString>> {
    let mut activated = false;
    let mut entries = Vec::new();
    for (name, value) in environment {
        if name == LISTEN_PID && value.to_str().and_then(|pid| pid.parse().ok()) == Some(own.as_raw()) {
            activated = true;
        } else if name != LISTEN_PIDFDID {
            let entry = [name.into_vec(), b"=".to_vec(), value.into_vec()].concat();
            // What the kernel gave us has no zero in it.
            entries.extend(CString::new(entry));
        }
    }
    activated.then_some(entries)
}

/// Hands a signal on, unless the kernel made it: what a terminal sends, it sends to the whole process group,
/// the runtime included, and `SIGCHLD` is for us.
fn forward(child: Pid, number: u32, code: i32) {
    let from_a_process = code <= 0;
    if let Ok(signal) = Signal::try_from(number as i32)
        && signal != Signal::SIGCHLD
        && from_a_process
    {
        // The child may have ended in between; then there is no process to tell.
        let _ = kill(child, signal);
    }
}
