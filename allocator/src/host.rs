//! What the kernel says about processes, cgroups and the boot.

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use rustix::time::{ClockId, clock_gettime};

use crate::{Error, Process, proc, process};

/// Depth at which the walk below a cgroup ends; systemd in a container makes five levels.
const CGROUP_DEPTH: usize = 32;

/// Below the folder of a process.
const PID_NAMESPACE: &str = "ns/pid";

/// Where the kernel's file systems are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// procfs of the pid namespace in which leases are made; default `/proc`.
    pub proc: PathBuf,
    /// cgroupfs: the unified tree (v2), or the folder of the controllers' trees (v1, hybrid); default
    /// `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { proc: proc::PROC.into(), cgroup: "/sys/fs/cgroup".into() }
    }
}

impl Host {
    /// The id of this boot, a UUID.
    pub(crate) fn boot_id(&self) -> Result<String, Error> {
        let path = self.proc.join("sys/kernel/random/boot_id");
        let id = fs::read_to_string(&path).map_err(|source| Error::io("read", &path, source))?;
        Ok(id.trim().to_owned())
    }

    /// Makes sure that an absent process means a dead one: an unmounted procfs shows no process.
    pub(crate) fn check_proc(&self) -> Result<(), Error> {
        match process::look(&self.proc, "self") {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Error::NoProc(self.proc.clone())),
            Err(source) => Err(Error::io("read", &self.proc.join("self/stat"), source)),
        }
    }

    /// The PID namespace of this process; `None` where the kernel has none.
    pub(crate) fn pid_namespace(&self) -> Result<Option<u64>, Error> {
        let own = self.proc.join("self");
        pid_namespace(&own).map_err(|source| Error::io("read", &own.join(PID_NAMESPACE), source))
    }

    /// Whether a process of this PID namespace can be seen.
    ///
    /// # Errors
    /// None is found, and there are some that cannot be looked at.
    pub(crate) fn sees_pid_namespace(&self, namespace: u64) -> io::Result<bool> {
        let mut found = Ok(false);
        for entry in fs::read_dir(&self.proc)? {
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            match pid_namespace(&entry.path()) {
                Ok(of) if of == Some(namespace) => return Ok(true),
                Ok(_) => {}
                // Of one with capabilities that we lack, or of another user.
                Err(error) => found = Err(error),
            }
        }
        found
    }

    /// The process that has this pid now.
    pub(crate) fn process(&self, pid: i32) -> io::Result<Option<Process>> {
        if pid <= 0 {
            return Ok(None);
        }
        process::look(&self.proc, &pid.to_string())
    }

    /// Whether this very process still runs.
    pub(crate) fn is_alive(&self, process: Process) -> io::Result<bool> {
        Ok(self.process(process.pid)? == Some(process))
    }

    /// Whether this very process still runs and is not stopped, by SIGSTOP, a terminal's Ctrl-Z or a cgroup's
    /// freezer.
    pub(crate) fn can_act(&self, process: Process) -> io::Result<bool> {
        let stat = proc::stat(&self.proc, &process.pid.to_string())?;
        // `T` is job control's stop; a debugger's is `t` (proc_pid_stat(5)).
        let runs = stat
            .is_some_and(|stat| Process::from(&stat) == process && proc::runs(&stat) && stat.state != 'T');
        Ok(runs && !self.is_frozen(process.pid)?)
    }

    /// Whether the freezer has stopped the cgroup of a process, or one above it: `frozen` in `cgroup.events`
    /// of v2 (cgroup-v2.rst), `freezer.state` of v1 (freezer-subsystem.rst). Both count what is above.
    fn is_frozen(&self, pid: i32) -> io::Result<bool> {
        let Some(cgroups) = read_if_there(&self.proc.join(pid.to_string()).join("cgroup"))? else {
            return Ok(false);
        };
        for line in proc::parse_cgroups(cgroups.as_bytes()) {
            let path = Path::new(line.path.trim_start_matches('/'));
            let (trees, file, frozen): (&[&str], _, _) = if line.is_of("") {
                (&["", "unified"], "cgroup.events", "frozen 1")
            } else if line.is_of("freezer") {
                (&["freezer"], "freezer.state", "FROZEN")
            } else {
                continue;
            };
            // One outside of our cgroup namespace cannot be looked at.
            if !path.components().all(|part| matches!(part, Component::Normal(_))) {
                continue;
            }
            for tree in trees {
                let state = read_if_there(&self.cgroup.join(tree).join(path).join(file))?;
                if state.is_some_and(|state| state.lines().any(|line| line == frozen)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether there is a cgroup of this path, in v1 in any controller's tree.
    ///
    /// # Errors
    /// When it cannot be told.
    pub fn has_cgroup(&self, path: &str) -> io::Result<bool> {
        let path = Path::new(path.trim_start_matches('/'));
        if path.as_os_str().is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_)))
        {
            return Ok(false);
        }
        for tree in self.trees()? {
            if tree.join(path).try_exists()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The folders that a cgroup's path counts from: the mount itself, and in v1 each controller's.
    fn trees(&self) -> io::Result<Vec<PathBuf>> {
        let mut trees = vec![self.cgroup.clone()];
        if self.cgroup.join("cgroup.controllers").exists() {
            return Ok(trees);
        }
        let entries = match fs::read_dir(&self.cgroup) {
            Err(error) if is_gone(&error) => return Ok(trees),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            // Combined controllers (cpu → cpu,cpuacct) are links to a tree that is there anyway.
            if entry.file_type()?.is_dir() {
                trees.push(entry.path());
            }
        }
        Ok(trees)
    }

    /// Whether a process is left in the cgroup or below it. In v1 every controller has a tree of its own, and
    /// any of them counts. A cgroup that does not exist is empty.
    ///
    /// # Errors
    /// When it cannot be told.
    pub fn cgroup_has_process(&self, path: &str) -> io::Result<bool> {
        let path = Path::new(path.trim_start_matches('/'));
        // The root of the tree always has processes and is no container's: it would keep a lease for ever.
        if path.as_os_str().is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_)))
        {
            return Ok(false);
        }
        for tree in self.trees()? {
            if populated(&tree.join(path), CGROUP_DEPTH)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether there is a process in this one cgroup folder or below it.
fn populated(folder: &Path, depth: usize) -> io::Result<bool> {
    // v2 says it for the whole subtree at once.
    if let Some(events) = read_if_there(&folder.join("cgroup.events"))?
        && let Some(populated) = events.lines().find_map(|line| line.strip_prefix("populated "))
    {
        return Ok(populated.trim() != "0");
    }
    if read_if_there(&folder.join("cgroup.procs"))?.is_some_and(|procs| !procs.trim().is_empty()) {
        return Ok(true);
    }
    if depth == 0 {
        return Err(io::Error::other("cgroup nested too deep"));
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        if entry.file_type()?.is_dir() && populated(&entry.path(), depth - 1)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A cgroup that is removed while it is read answers ENODEV.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

/// The PID namespace of a process, whose folder in procfs this is; `None` when it is gone.
fn pid_namespace(process: &Path) -> io::Result<Option<u64>> {
    let link = match fs::read_link(process.join(PID_NAMESPACE)) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let inode = || link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok();
    inode().map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a PID namespace"))
}

fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// CLOCK_BOOTTIME in ns: goes on while the machine sleeps, never jumps.
pub(crate) fn boottime() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// CLOCK_REALTIME in ns: jumps when the clock is set.
pub(crate) fn wall() -> u64 {
    nanoseconds(ClockId::Realtime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanoseconds.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host { proc: root.path().join("proc"), cgroup: root.path().to_owned() };
        (root, host)
    }

    #[test]
    fn v2_is_asked_for_the_whole_subtree() {
        let (_root, host) = host(&[
            ("cgroup.controllers", ""),
            ("full/cgroup.events", "populated 1\nfrozen 0\n"),
            ("empty/cgroup.events", "populated 0\nfrozen 0\n"),
        ]);
        assert!(host.cgroup_has_process("/full").unwrap());
        assert!(!host.cgroup_has_process("empty").unwrap());
        assert!(!host.cgroup_has_process("/gone/too").unwrap());
    }

    /// A file beside the folders, as v2 has many at its root, is no reason not to know it.
    #[test]
    fn a_cgroup_is_there_or_not() {
        for files in [
            &[
                ("cgroup.controllers", "cpu"),
                ("cpu.stat", ""),
                ("kubepods.slice/pod1.slice/cgroup.procs", ""),
            ][..],
            &[("a file", ""), ("memory/kubepods.slice/pod1.slice/cgroup.procs", "")],
        ] {
            let (_root, host) = host(files);
            assert!(host.has_cgroup("/kubepods.slice/pod1.slice").unwrap(), "{files:?}");
            assert!(!host.has_cgroup("/kubepods.slice/pod2.slice").unwrap(), "{files:?}");
            assert!(!host.has_cgroup("/").unwrap() && !host.has_cgroup("../kubepods.slice").unwrap());
        }
    }

    #[test]
    fn v1_counts_any_controller_and_any_depth() {
        let (_root, host) = host(&[
            ("cpu/docker/a/cgroup.procs", ""),
            ("devices/docker/a/cgroup.procs", ""),
            ("devices/docker/a/inner/deep/cgroup.procs", "7\n"),
            ("devices/docker/b/cgroup.procs", ""),
        ]);
        assert!(host.cgroup_has_process("docker/a").unwrap());
        assert!(!host.cgroup_has_process("docker/b").unwrap());
    }

    #[test]
    fn a_frozen_process_cannot_act() {
        let stat = |pid| format!("{pid} (x) S {}1 0 7 {}", "0 ".repeat(16), "0 ".repeat(32));
        let (_root, host) = host(&[
            ("proc/1/stat", &stat(1)),
            ("proc/1/cgroup", "0::/a:b\n"),
            ("a:b/cgroup.events", "populated 1\nfrozen 1\n"),
            ("proc/2/stat", &stat(2)),
            ("proc/2/cgroup", "0::/c\n"),
            ("c/cgroup.events", "populated 1\nfrozen 0\n"),
            ("proc/3/stat", &stat(3)),
            ("proc/3/cgroup", "5:cpu:/v1\n4:freezer:/v1\n0::/\n"),
            ("freezer/v1/freezer.state", "FROZEN\n"),
            ("proc/4/stat", &stat(4)),
            ("proc/4/cgroup", "4:freezer:/\n0::/hybrid\n"),
            ("unified/hybrid/cgroup.events", "populated 1\nfrozen 1\n"),
            ("proc/5/stat", &stat(5)),
            ("proc/5/cgroup", "4:freezer:/v1/thawed\n0::/../c\n"),
            ("freezer/v1/thawed/freezer.state", "FREEZING\n"),
            ("proc/6/stat", &stat(6)),
        ]);
        let acts = |pid| host.can_act(Process { pid, start: 7 }).unwrap();
        assert_eq!([1, 2, 3, 4, 5, 6].map(acts), [false, true, false, false, true, true]);
    }

    #[test]
    fn the_root_and_paths_that_climb_are_not_a_containers_cgroup() {
        let (_root, host) = host(&[("cgroup.procs", "1\n")]);
        for path in ["", "/", "..", "/a/../..", "."] {
            assert!(!host.cgroup_has_process(path).unwrap(), "{path}");
        }
    }

    #[test]
    fn this_kernel_shows_us_and_pid_1_lives_in_some_cgroup() {
        let host = Host::default();
        host.check_proc().unwrap();
        let own = host.pid_namespace().unwrap().expect("this kernel has PID namespaces");
        assert!(host.sees_pid_namespace(own).unwrap());
        assert!(!matches!(host.sees_pid_namespace(1), Ok(true)), "no namespace has this inode");
        assert_eq!(host.boot_id().unwrap().len(), 36);
        assert_eq!(host.process(0).unwrap(), None);
        assert!(host.process(1).unwrap().is_some());
        assert!(matches!(Host { proc: "/dev".into(), ..host }.check_proc(), Err(Error::NoProc(_))));
    }
}
