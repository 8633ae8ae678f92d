//! A process, named so that a reused pid is not taken for it.

use std::io;
use std::path::Path;

use procfs::process::Stat;
use serde::{Deserialize, Serialize};

use crate::{Error, proc};

/// A process: its pid and when it started. The pair names it for the whole boot; the pid alone does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The pid in the pid namespace of `/proc`.
    pub pid: i32,
    /// Start time in clock ticks since boot: field 22 of `/proc/<pid>/stat` (proc_pid_stat(5)).
    pub start: u64,
}

impl Process {
    /// The calling process.
    ///
    /// # Errors
    /// [`Error::Io`] when `/proc` is not mounted.
    pub fn current() -> Result<Self, Error> {
        let own = Path::new(proc::PROC).join("self/stat");
        look(Path::new(proc::PROC), "self")
            .and_then(|process| process.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(|source| Error::io("read", &own, source))
    }

    /// The process that has this pid now; `None` when there is none, it is a zombie, or it cannot be looked
    /// at.
    pub fn of(pid: i32) -> Option<Self> {
        look(Path::new(proc::PROC), &pid.to_string()).ok().flatten()
    }

    /// Whether this very process still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }
}

impl From<&Stat> for Process {
    fn from(stat: &Stat) -> Self {
        Self { pid: stat.pid, start: stat.starttime }
    }
}

/// The running process below `proc/name`; `None` when it is gone or a zombie.
///
/// # Errors
/// When it cannot be told, for want of memory or descriptors.
pub(crate) fn look(proc: &Path, name: &str) -> io::Result<Option<Process>> {
    Ok(proc::stat(proc, name)?.filter(proc::runs).map(|stat| Process::from(&stat)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_alive_and_a_child_dies() {
        let me = Process::current().unwrap();
        assert!(me.is_alive());
        assert_eq!(Process::of(me.pid), Some(me));
        assert!(!Process { start: me.start + 1, ..me }.is_alive());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        child.kill().unwrap();
        // Until it is waited for it is a zombie: wait for the state without reaping.
        let id = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(process.pid));
        nix::sys::wait::waitid(
            id,
            nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
        )
        .unwrap();
        assert!(!process.is_alive());
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
