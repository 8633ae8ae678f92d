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
mod tests;
