//! What `/proc` says of processes (proc_pid_stat(5), cgroups(7)), read by the procfs crate. All crates of the host read it here: a
//! process chooses its name, and the names of cgroups that are delegated to it.

use std::path::Path;
use std::{fs, io};

use procfs::FromBufRead as _;
use procfs::FromRead as _;
use procfs::process::Stat;
use procfs::{ProcessCGroup, ProcessCGroups};
use rustix::io::Errno;

/// Where procfs is mounted.
pub(crate) const PROC: &str = "/proc";

/// The text of a `/proc/<pid>/stat`. `None` if it is none: then nothing is known of the process.
pub fn parse_stat(text: &[u8]) -> Option<Stat> {
    Stat::from_read(text).ok()
}

/// The stat of the process below `proc/name`; `None` when it is gone.
///
/// # Errors
/// When it cannot be told, for want of memory or descriptors, or what is there is no stat.
pub fn stat(proc: &Path, name: &str) -> io::Result<Option<Stat>> {
    match fs::read(proc.join(name).join("stat")) {
        // It ended between open and read.
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => parse_stat(&text)
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a /proc/<pid>/stat")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a process of this stat runs. One whose main thread has ended shows as a zombie while its other threads
/// run on. A real zombie counts one thread, itself.
pub fn runs(stat: &Stat) -> bool {
    match stat.state {
        'Z' => stat.num_threads > 1,
        'X' | 'x' => false,
        _ => true,
    }
}

/// The process that started one; `None` when it is gone.
///
/// # Errors
/// As [`stat`].
pub fn parent(pid: i32) -> io::Result<Option<i32>> {
    Ok(stat(Path::new(PROC), &pid.to_string())?.map(|stat| stat.ppid))
}

/// A line of a `/proc/<pid>/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The controllers of a v1 hierarchy; none for v2.
    pub controllers: Vec<String>,
    /// The path in the hierarchy.
    pub path: String,
}

impl Membership {
    /// Whether the hierarchy has this controller; v2's is nameless.
    pub fn is_of(&self, controller: &str) -> bool {
        match controller {
            "" => self.controllers.is_empty(),
            name => self.controllers.iter().any(|known| known == name),
        }
    }
}

/// The text of a `/proc/<pid>/cgroup`. Nothing for what is none.
pub fn parse_cgroups(text: &[u8]) -> Vec<Membership> {
    let text = String::from_utf8_lossy(text);
    let lines = ProcessCGroups::from_buf_read(text.as_bytes()).map(|cgroups| cgroups.0).unwrap_or_default();
    let of = |line: ProcessCGroup| Membership {
        // v2's line has an empty list, which is read as one nameless controller.
        controllers: line.controllers.into_iter().filter(|name| !name.is_empty()).collect(),
        path: line.pathname,
    };
    lines.into_iter().map(of).collect()
}

/// The cgroups of a process.
///
/// # Errors
/// It is gone, or they cannot be read.
pub fn cgroups(pid: &str) -> io::Result<Vec<Membership>> {
    fs::read(Path::new(PROC).join(pid).join("cgroup")).map(|text| parse_cgroups(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, state: &str, threads: u32) -> Vec<u8> {
        let zeros = "0 ".repeat(32);
        format!("42 ({name}) {state} 7 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 98765 {zeros}\n")
            .into()
    }

    #[test]
    fn a_hostile_name_moves_no_field() {
        for name in ["a) b (c", ") Z 1 1 1 (", "\u{1b}[2J\n", "", "((", "))"] {
            let stat = parse_stat(&line(name, "S", 3)).unwrap_or_else(|| panic!("{name:?}"));
            assert_eq!((stat.pid, stat.ppid, stat.starttime, stat.state), (42, 7, 98765, 'S'), "{name:?}");
        }
        let mut bytes = line("XY", "S", 1);
        bytes.splice(4..6, [0xff, 0xfe]);
        assert_eq!(parse_stat(&bytes).map(|stat| stat.starttime), Some(98765), "a name that is not UTF-8");
        for text in ["", "42 (a", "42 (a) S 1 2", "nonsense"] {
            assert!(parse_stat(text.as_bytes()).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_zombie_is_dead_unless_its_other_threads_run() {
        for (state, threads, alive) in [("Z", 1, false), ("Z", 2, true), ("X", 1, false), ("T", 1, true)] {
            assert_eq!(runs(&parse_stat(&line("a", state, threads)).unwrap()), alive, "{state} {threads}");
        }
    }

    #[test]
    fn a_cgroups_path_may_hold_colons_and_what_is_not_utf8() {
        let text = b"12:pids:/a\n3:cpu,devices:/docker/1:2\n1:name=systemd:/x\n0::/unified\xff\n";
        let lines = parse_cgroups(text);
        let path =
            |controller: &str| lines.iter().find(|line| line.is_of(controller)).map(|line| &*line.path);
        assert_eq!(path("devices"), Some("/docker/1:2"));
        assert_eq!(path(""), Some("/unified\u{fffd}"));
        assert_eq!(path("memory"), None);
        assert_eq!(parse_cgroups(b""), []);
    }
}
