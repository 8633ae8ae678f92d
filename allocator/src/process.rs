//! A process, named so that a reused pid is not taken for it.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::{Error, Host};

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
        let proc = Host::default().proc;
        look(&proc, "self")
            .and_then(|process| process.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(|source| Error::io("read", &proc.join("self/stat"), source))
    }

    /// The process that has this pid now; `None` when there is none, it is a zombie, or it cannot be looked
    /// at.
    pub fn of(pid: i32) -> Option<Self> {
        Host::default().process(pid).ok().flatten()
    }

    /// Whether this very process still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }
}

/// The running process below `proc/name`; `None` when it is gone or a zombie.
///
/// # Errors
/// When it cannot be told, for want of memory or descriptors.
pub(crate) fn look(proc: &Path, name: &str) -> io::Result<Option<Process>> {
    Ok(stat(proc, name)?.filter(|stat| stat.runs).map(|stat| stat.process))
}

/// What `/proc/<pid>/stat` says of the process below `proc/name`; `None` when it is gone.
///
/// # Errors
/// As [`look`].
pub(crate) fn stat(proc: &Path, name: &str) -> io::Result<Option<Stat>> {
    let path = proc.join(name).join("stat");
    match fs::read(&path) {
        Ok(stat) => parse(&stat),
        // ESRCH: the process ended between open and read.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A process and its state.
#[derive(Debug)]
pub(crate) struct Stat {
    pub(crate) process: Process,
    /// Whether it is no zombie.
    pub(crate) runs: bool,
    /// Whether job control has stopped it. A debugger's stop is another state.
    pub(crate) stopped: bool,
}

/// Reads a `/proc/<pid>/stat`. The command name (field 2) may hold anything, parentheses and spaces included,
/// so fields are counted from its last closing parenthesis.
fn parse(stat: &[u8]) -> io::Result<Option<Stat>> {
    if stat.is_empty() {
        return Ok(None);
    }
    let fields = || {
        let text = str::from_utf8(&stat[memchr::memrchr(b')', stat)? + 1..]).ok()?;
        let pid = str::from_utf8(&stat[..memchr::memchr(b' ', stat)?]).ok()?.parse().ok()?;
        let mut fields = text.split_ascii_whitespace();
        let state = fields.next()?;
        let threads: i64 = fields.nth(16)?.parse().ok()?;
        let start = fields.nth(1)?.parse().ok()?;
        // A process whose main thread has ended shows as a zombie while its other threads run on. A real
        // zombie counts one thread, itself.
        let runs = match state {
            "Z" => threads > 1,
            "X" | "x" => false,
            _ => true,
        };
        Some(Stat { process: Process { pid, start }, runs, stopped: state == "T" })
    };
    fields().map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a /proc/<pid>/stat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(state: &str, threads: u32) -> Vec<u8> {
        format!("42 (a) b (c) {state} 1 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 98765 0 0 0")
            .into()
    }

    #[test]
    fn reads_the_start_behind_an_evil_name() {
        let stat = parse(&stat("S", 1)).unwrap().unwrap();
        assert_eq!(stat.process, Process { pid: 42, start: 98765 });
        assert!(stat.runs);
    }

    #[test]
    fn a_zombie_is_dead_unless_its_other_threads_run() {
        assert!(!parse(&stat("Z", 1)).unwrap().unwrap().runs);
        assert!(parse(&stat("Z", 2)).unwrap().unwrap().runs);
        assert!(!parse(&stat("X", 1)).unwrap().unwrap().runs);
    }

    #[test]
    fn job_control_stops_a_process_and_a_debugger_does_not() {
        for (state, stopped) in [("T", true), ("t", false), ("S", false), ("D", false)] {
            let stat = parse(&stat(state, 1)).unwrap().unwrap();
            assert_eq!((stat.runs, stat.stopped), (true, stopped), "{state}");
        }
    }

    #[test]
    fn garbage_is_an_error_and_not_a_death() {
        assert!(parse(b"42 (a").is_err());
        assert!(parse(b"42 (a) S 1 2").is_err());
    }

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
