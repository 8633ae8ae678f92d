//! The processes that a container that waits for room belongs to. When one of them has ended, the wait ends
//! and its place in the queue is free.
//!
//! | process | is gone when | known by |
//! |---|---|---|
//! | the container's init | it has ended: its engine, its cgroup or a person killed it | its pidfd |
//! | the runtime that runs the hook | it has ended | its pidfd |
//! | conmon, above the runtime | it has ended | its pidfd |
//! | CRI-O or Podman, above conmon | it has ended, or has no patience any more | the other end of `_OCI_SYNCPIPE`, on which conmon is to report |

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Duration;

use fgpu_allocator::{Process, proc};
use fgpu_spec::{Code, Error};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// conmon's variable (conmon, conmon.c and CRI-O, runtime_oci.go).
const SYNC_PIPE: &[u8] = b"_OCI_SYNCPIPE=";

/// How long a request may wait for room, and the processes that the wait is for.
#[derive(Debug, Default)]
pub struct Patience {
    /// The longest wait; `fgpu/wait` may say less.
    pub longest: Duration,
    /// Those whose end ends the wait.
    pub watch: Watch,
}

/// The processes without which nothing is worth waiting for.
#[derive(Debug, Default)]
pub struct Watch {
    others: Vec<Other>,
    /// A process that had ended before it could be watched.
    missed: Option<&'static str>,
}

#[derive(Debug)]
struct Other {
    who: &'static str,
    fd: OwnedFd,
    /// A pidfd becomes readable; the end of a pipe or socket is told without being asked for.
    events: PollFlags,
}

impl Watch {
    /// Watches a process. On a kernel without pidfds no process is watched.
    pub fn process(mut self, process: Process, who: &'static str) -> Self {
        let fd = Pid::from_raw(process.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The descriptor is the process's if it still has its pid.
        if !process.is_alive() {
            self.missed = Some(who);
        } else if let Some(fd) = fd {
            self.others.push(Other { who, fd, events: PollFlags::POLLIN });
        }
        self
    }

    /// Watches the process that started this one, and its parent if that is conmon.
    pub fn runtime(self) -> Self {
        let Some(runtime) = own_parent().and_then(Process::of) else { return self };
        let monitor = parent_of(runtime.pid);
        self.process(runtime, "the runtime").monitor(monitor)
    }

    /// Watches the process that started this one if it is conmon, and the engine above it.
    pub fn engine(self) -> Self {
        self.monitor(own_parent())
    }

    fn monitor(mut self, monitor: Option<i32>) -> Self {
        let Some(monitor) = monitor.and_then(Process::of) else { return self };
        let Some(pipe) = sync_pipe(monitor) else { return self };
        self.others.push(Other { who: "the engine", fd: pipe, events: PollFlags::empty() });
        self.process(monitor, "conmon")
    }

    /// For poll(2).
    pub fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.others.iter().map(|other| PollFd::new(other.fd.as_fd(), other.events))
    }

    /// Looks whether one of them is gone.
    ///
    /// # Errors
    /// `cancelled`, with the name of the process.
    pub fn check(&self) -> Result<(), Error> {
        let mut fds: Vec<_> = self.fds().collect();
        // One that cannot be looked at is not known to be gone.
        let _ = poll(&mut fds, PollTimeout::ZERO);
        let ended = fds.iter().position(|fd| fd.any().unwrap_or(false)).map(|at| self.others[at].who);
        match self.missed.or(ended) {
            None => Ok(()),
            Some(who) => {
                let message =
                    format!("{who} has ended, or gave the container up, before there was a share for it");
                Err(Error::new(Code::Cancelled, message))
            }
        }
    }
}

/// The descriptor on which conmon tells its engine what became of the container.
fn sync_pipe(monitor: Process) -> Option<OwnedFd> {
    let environment = std::fs::read(format!("/proc/{}/environ", monitor.pid)).ok()?;
    let number = environment.split(|byte| *byte == 0).find_map(|word| word.strip_prefix(SYNC_PIPE))?;
    let number: RawFd = str::from_utf8(number).ok()?.parse().ok().filter(|number| *number >= 0)?;
    let process = pidfd_open(Pid::from_raw(monitor.pid)?, PidfdFlags::empty()).ok()?;
    let pipe = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
    let kind = FileType::from_raw_mode(fstat(&pipe).ok()?.st_mode);
    (matches!(kind, FileType::Socket | FileType::Fifo) && monitor.is_alive()).then_some(pipe)
}

/// The process that started one, unless that is the system's init.
fn parent_of(pid: i32) -> Option<i32> {
    proc::parent(pid).ok().flatten().filter(|parent| *parent > 1)
}

/// The process that started this one.
fn own_parent() -> Option<i32> {
    rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()).filter(|parent| *parent > 1)
}

#[cfg(test)]
mod tests;
