//! The container that is being created, by the process that will be its init.
//!
//! At createRuntime and prestart that process waits for the hook: its mount namespace is made, the
//! container's mounts are in it below the root's path on the host, and pivot_root(2) is still to come (seen
//! with runc 1.1.15 and 1.3.6, crun 1.21 and 1.28). A runtime that has pivoted already is told by the
//! process' root.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use fgpu_allocator::Process;
use fgpu_spec::{Code, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::mounts::{FileLocation, Mounts, place};
use crate::resolve;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// The container's init and what must not be looked up twice about it.
#[derive(Debug)]
pub(crate) struct Target {
    /// Its pid with its start time.
    pub(crate) init: Process,
    /// Its mount namespace.
    pub(crate) mount_namespace: OwnedFd,
    /// The container's root directory, in that namespace.
    pub(crate) root: OwnedFd,
    /// The mount table of that namespace.
    pub(crate) mounts: Mounts,
    /// The ids on the host of the container's root user and group.
    pub(crate) owner: (u32, u32),
    pidfd: OwnedFd,
}

impl Target {
    /// Opens all of it. `rootfs` is the root's path on the host.
    ///
    /// # Errors
    /// [`Code::Denied`] if the process is not one of a container with that root; [`Code::Internal`] if it is
    /// gone or cannot be looked at.
    pub(crate) fn open(pid: i32, rootfs: &Path) -> Result<Self, Error> {
        let subject = Subject { pid, rootfs };
        let number = (pid > 0).then(|| Pid::from_raw(pid)).flatten().ok_or_else(|| {
            Error::new(Code::Internal, format!("the container's state names no process (pid {pid})"))
        })?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| subject.io("open", errno))?;
        let init = Process::of(pid).ok_or_else(|| subject.gone())?;
        // A descriptor of /proc/<pid> stays with its process: with the pid reused it only fails.
        let process = open(format!("/proc/{pid}"), PATH_ONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(|errno| subject.io("open", errno))?;
        let within = |name: &str, flags| {
            openat(&process, name, flags, Mode::empty())
                .map_err(|errno| subject.io(&format!("open {name} of"), errno))
        };
        let mount_namespace = within("ns/mnt", READ)?;
        let own_namespace = open("/proc/self/ns/mnt", READ, Mode::empty())
            .map_err(|errno| subject.io("tell apart from us", errno))?;
        if subject.look(&mount_namespace)?.file == subject.look(&own_namespace)?.file {
            return Err(subject.denied("it has no mount namespace of its own"));
        }
        let process_root = within("root", PATH_ONLY | OFlags::DIRECTORY)?;
        let root = subject.root(process_root)?;
        let mounts = Mounts::new(File::from(within("mountinfo", READ)?))
            .map_err(|error| subject.failed("read the mounts of", &error))?;
        let owner = (mapped_root(within("uid_map", READ)?), mapped_root(within("gid_map", READ)?));
        let target = Self { init, mount_namespace, root, mounts, owner, pidfd };
        target.check()?;
        Ok(target)
    }

    /// Makes sure that the process is still there: then everything that was looked up by its pid since
    /// [`Target::open`] was its own.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut ended, Some(&now)) == Ok(0) && Process::of(self.init.pid) == Some(self.init) {
            return Ok(());
        }
        Err(Subject { pid: self.init.pid, rootfs: Path::new("") }.gone())
    }
}

/// What errors are about.
struct Subject<'a> {
    pid: i32,
    rootfs: &'a Path,
}

impl Subject<'_> {
    /// The container's root: the process' own if it has pivoted, else what is at the root's path in its
    /// namespace. Both must be the directory that the bundle names on the host, and the root of a mount.
    fn root(&self, process_root: OwnedFd) -> Result<OwnedFd, Error> {
        let open_here = |path: &Path| {
            open(path, PATH_ONLY | OFlags::DIRECTORY, Mode::empty())
                .map_err(|errno| Error::io("open", path, &errno.into()))
        };
        let wanted = self.look(&open_here(self.rootfs)?)?;
        if wanted.file == self.look(&open_here(Path::new("/"))?)?.file {
            return Err(self.denied("its root is the host's"));
        }
        if self.look(&process_root)?.file == wanted.file {
            return Ok(process_root);
        }
        let root = resolve::open(process_root.as_fd(), self.rootfs, PATH_ONLY | OFlags::DIRECTORY)
            .map_err(|errno| self.io("open the root of", errno))?;
        let found = self.look(&root)?;
        if found.file != wanted.file {
            return Err(self.denied("its root is another directory than the bundle's"));
        }
        if !found.is_mount_root {
            return Err(self.denied("its root is not mounted"));
        }
        Ok(root)
    }

    fn look(&self, fd: impl AsFd) -> Result<FileLocation, Error> {
        place(fd).map_err(|error| self.failed("look at", &error))
    }

    fn failed(&self, doing: &str, error: &std::io::Error) -> Error {
        Error::new(Code::Internal, format!("cannot {doing} the container's process {}: {error}", self.pid))
    }

    fn io(&self, doing: &str, errno: rustix::io::Errno) -> Error {
        self.failed(doing, &errno.into())
    }

    fn gone(&self) -> Error {
        Error::new(Code::Internal, format!("the container's process {} has ended", self.pid))
    }

    fn denied(&self, why: &str) -> Error {
        Error::new(
            Code::Denied,
            format!(
                "process {} is not one of a new container with root {}: {why}",
                self.pid,
                self.rootfs.display()
            ),
        )
    }
}

/// The outer id of id 0 in a `uid_map` or `gid_map` (user_namespaces(7)), or of the first that is mapped.
fn mapped_root(map: OwnedFd) -> u32 {
    let mut text = String::new();
    // Without a map no user owns anything: 0 is refused by the kernel wherever it would be wrong.
    let _ = std::io::Read::read_to_string(&mut File::from(map), &mut text);
    parse_map(&text)
}

fn parse_map(text: &str) -> u32 {
    let lines = || {
        text.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u32>().ok());
            Some((fields.next()??, fields.next()??))
        })
    };
    lines().find(|(inner, _)| *inner == 0).or_else(|| lines().next()).map_or(0, |(_, outer)| outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_the_containers_root() {
        assert_eq!(parse_map("         0          0 4294967295\n"), 0);
        assert_eq!(parse_map("0 100000 65536\n"), 100000);
        assert_eq!(parse_map("1 7 1\n0 5 1\n"), 5);
        assert_eq!(parse_map("10 3000 5\n"), 3000);
        assert_eq!(parse_map(""), 0);
    }

    #[test]
    fn a_process_without_a_mount_namespace_of_its_own_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let own = std::process::id() as i32;
        let error = Target::open(own, root.path()).unwrap_err();
        assert_eq!(error.code, Code::Denied, "{error}");
        assert!(error.message.contains("no mount namespace of its own"), "{error}");
    }

    #[test]
    fn a_pid_of_nobody_is_refused() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        for pid in [0, -1, child.id() as i32] {
            assert_eq!(Target::open(pid, Path::new("/")).unwrap_err().code, Code::Internal);
        }
    }
}
