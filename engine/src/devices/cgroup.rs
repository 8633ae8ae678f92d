//! The cgroups that a process is in, by descriptor, and which of them are its container's own.
//!
//! The path is read once and every directory on it is opened once; after that a cgroup that is renamed,
//! removed or made anew under the same name is not mistaken for this one.
//!
//! **Own or shared.** What is changed for one container must not change another's. At the time of a hook a
//! container is one process, so a cgroup is its own if it has no process but that one and its descendants,
//! the cgroups below it included. For a parent that is not enough, for it may be empty only for now
//! (`/docker` with a first container): it is the container's own if it is a systemd scope besides, which is
//! made for one thing and never used again. That is crun's layout (`libpod-….scope/container`). A slice, a
//! service, a `--cgroup-parent` and the root are shared.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fgpu_allocator::proc;
use fgpu_spec::{Code, Error};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};

/// Where cgroup hierarchies are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// How many parents of a process are looked at before it counts as no descendant.
const MOST_PARENTS: usize = 64;

/// One cgroup.
#[derive(Debug)]
pub(super) struct Cgroup {
    directory: OwnedFd,
    /// For messages only.
    path: PathBuf,
}

/// The cgroups from the root of a hierarchy down to that of the process.
#[derive(Debug)]
pub(super) struct Branch {
    /// Not the container's own: to be read, never to be changed. The root is always one of them.
    pub(super) shared: Vec<Cgroup>,
    /// The container's own, the outermost first.
    pub(super) own: Vec<Cgroup>,
}

/// Where a process is.
#[derive(Debug)]
pub(super) struct ProcessCgroups {
    /// In the v1 hierarchy of the devices controller.
    pub(super) v1: Option<Branch>,
    /// In the v2 hierarchy; on a machine with both, device programs count there as well.
    pub(super) v2: Option<Branch>,
}

impl ProcessCgroups {
    /// The cgroups of a process.
    ///
    /// # Errors
    /// They cannot be read, or are not to be seen from here: a path that leaves the cgroup namespace.
    pub(super) fn of(pid: i32) -> Result<Self, Error> {
        let lines = proc::cgroups(&pid.to_string())
            .map_err(|error| Error::io("read", &PathBuf::from(format!("/proc/{pid}/cgroup")), &error))?;
        let path =
            |controller: &str| lines.iter().find(|line| line.is_of(controller)).map(|line| &*line.path);
        let branch = |mounts: &[&str], magic, path: Option<&str>| {
            let Some(path) = path else { return Ok(None) };
            for mount in mounts {
                let mount = Path::new(ROOT).join(mount);
                if let Some(root) = hierarchy(&mount, magic)? {
                    return Branch::open(root, mount, path, pid).map(Some);
                }
            }
            Ok(None)
        };
        Ok(Self {
            v1: branch(&["devices"], CGROUP_SUPER_MAGIC, path("devices"))?,
            v2: branch(&["", "unified"], CGROUP2_SUPER_MAGIC, path(""))?,
        })
    }

    /// The container's systemd scope, by its cgroup: name and path in the hierarchy. What systemd made of it
    /// is the same in all hierarchies.
    pub(super) fn scope(&self) -> Option<(String, String)> {
        [&self.v1, &self.v2].into_iter().flatten().find_map(Branch::scope)
    }
}

impl Branch {
    /// The innermost own cgroup that is a scope's: the unit's name, and its path in the hierarchy.
    fn scope(&self) -> Option<(String, String)> {
        let root = &self.shared.first()?.path;
        let scope = self.own.iter().rev().find(|cgroup| cgroup.is_scope())?;
        let path = scope.path.strip_prefix(root).ok()?;
        Some((scope.name().to_owned(), format!("/{}", path.to_str()?)))
    }
}

/// The root of a hierarchy, if one of this kind is mounted there.
fn hierarchy(mount: &Path, magic: nix::sys::statfs::FsType) -> Result<Option<OwnedFd>, Error> {
    let failed = |errno: Errno| Error::io("open", mount, &errno.into());
    let root = match nix::fcntl::open(mount, directory_flags(), Mode::empty()) {
        Ok(root) => root,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let found = fstatfs(&root).map_err(failed)?.filesystem_type();
    Ok((found == magic).then_some(root))
}

fn directory_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC
}

impl Branch {
    fn open(root: OwnedFd, mount: PathBuf, path: &str, pid: i32) -> Result<Self, Error> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        if !path.starts_with('/') || names.iter().any(|name| matches!(*name, "." | "..")) {
            let message = format!(
                "the cgroup {path} of process {pid} is outside of what can be seen from here; run the hook in the \
                 host's cgroup namespace"
            );
            return Err(Error::new(Code::Internal, message));
        }
        let mut branch = vec![Cgroup { directory: root, path: mount }];
        for name in names {
            // The root is in it, so the last is always there.
            if let Some(parent) = branch.last() {
                let child = parent.child(name)?;
                branch.push(child);
            }
        }
        let own = own(&branch, pid)?;
        let own = branch.split_off(branch.len() - own);
        Ok(Self { shared: branch, own })
    }
}

/// How many at the end of a branch are the container's own.
fn own(branch: &[Cgroup], pid: i32) -> Result<usize, Error> {
    let below_root = branch.get(1..).unwrap_or_default();
    if let Some(innermost) = below_root.last()
        && !innermost.holds(pid)?
    {
        let path = innermost.path.display();
        let message = format!(
            "process {pid} is not in the cgroup {path}: it has ended, or /proc and {ROOT} show different machines' \
             cgroups; run the hook where the container engine runs"
        );
        return Err(Error::new(Code::Internal, message));
    }
    let mut count = 0;
    for cgroup in below_root.iter().rev() {
        if count > 0 && !cgroup.is_scope() || !cgroup.only_holds(pid)? {
            break;
        }
        count += 1;
    }
    Ok(count)
}

impl Cgroup {
    fn child(&self, name: &str) -> Result<Self, Error> {
        let path = self.path.join(name);
        let how = OpenHow::new().flags(directory_flags()).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
        match openat2(&self.directory, name, how) {
            Ok(directory) => Ok(Self { directory, path }),
            Err(errno) => Err(Error::io("open the cgroup", &path, &errno.into())),
        }
    }

    /// The directory, to be held as long as it is worked in.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Where it was when it was opened; for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Whether it is called as systemd calls those of scopes: groups of processes that systemd did not start.
    fn is_scope(&self) -> bool {
        self.name().ends_with(".scope")
    }

    /// Reads one of its files.
    pub(super) fn read(&self, file: &str) -> Result<String, Errno> {
        let mut text = String::new();
        let mut file = std::fs::File::from(self.file(file, OFlag::O_RDONLY)?);
        match std::io::Read::read_to_string(&mut file, &mut text) {
            Ok(_) => Ok(text),
            Err(error) => Err(error.raw_os_error().map_or(Errno::EILSEQ, Errno::from_raw)),
        }
    }

    /// Writes to one of its files, in one go.
    pub(super) fn write(&self, file: &str, text: &str) -> Result<(), Errno> {
        let file = self.file(file, OFlag::O_WRONLY)?;
        nix::unistd::write(&file, text.as_bytes()).map(drop)
    }

    fn file(&self, name: &str, mode: OFlag) -> Result<OwnedFd, Errno> {
        let flags = mode | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        nix::fcntl::openat(&self.directory, name, flags, Mode::empty())
    }

    /// The processes in it, not those below it. One that this PID namespace cannot see is 0.
    fn processes(&self) -> Result<Vec<i32>, Error> {
        match self.read("cgroup.procs") {
            Ok(processes) => Ok(processes.lines().map(|process| process.parse().unwrap_or(0)).collect()),
            // Gone in the meantime, and with it its processes.
            Err(Errno::ENOENT | Errno::ENODEV) => Ok(Vec::new()),
            Err(errno) => Err(Error::io("list the processes of the cgroup", &self.path, &errno.into())),
        }
    }

    fn holds(&self, pid: i32) -> Result<bool, Error> {
        Ok(self.processes()?.contains(&pid))
    }

    /// Whether no process but this one and its descendants is in it or below it.
    fn only_holds(&self, pid: i32) -> Result<bool, Error> {
        if self.processes()?.into_iter().any(|process| !is_or_descends_from(process, pid)) {
            return Ok(false);
        }
        let failed = |errno: Errno| Error::io("look through the cgroup", &self.path, &errno.into());
        let children = match self.children() {
            Err(Errno::ENOENT | Errno::ENODEV) => return Ok(true),
            children => children.map_err(failed)?,
        };
        for name in children {
            match self.child(&name) {
                Ok(child) if !child.only_holds(pid)? => return Ok(false),
                Ok(_) => {}
                // It was removed after it had been listed; whatever else it is, it cannot be called empty.
                Err(_) if !self.has(&name) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn has(&self, name: &str) -> bool {
        nix::sys::stat::fstatat(&self.directory, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    fn children(&self) -> Result<Vec<String>, Errno> {
        let mut listing = Dir::openat(&self.directory, c".", directory_flags(), Mode::empty())?;
        let mut names = Vec::new();
        for entry in listing.iter() {
            let entry = entry?;
            let name = CString::from(entry.file_name()).into_string().map_err(|_| Errno::EILSEQ)?;
            let is_directory = entry.file_type() == Some(nix::dir::Type::Directory);
            if is_directory && name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// Whether a process is another or has it among its parents. One that has ended does not matter.
fn is_or_descends_from(process: i32, ancestor: i32) -> bool {
    let mut process = process;
    for _ in 0..MOST_PARENTS {
        if process == ancestor {
            return true;
        }
        if process <= 1 {
            return false;
        }
        match proc::parent(process) {
            Ok(Some(parent)) => process = parent,
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine::{Group, Tenant, Version, with};
    use super::*;

    /// As when `/proc` is one machine's and the cgroups are another's.
    #[test]
    fn a_path_that_leads_to_another_cgroup_is_refused() {
        for version in [Version::V1, Version::V2] {
            with(version, || {
                let (mine, other) = (Group::new(version), Group::new(version));
                let tenant = Tenant::new(mine.path());
                let mount = Group::root(version);
                let open = |group: &Group| {
                    let root = nix::fcntl::open(&mount, directory_flags(), Mode::empty()).unwrap();
                    let path = format!("/{}", group.path().strip_prefix(&mount).unwrap().display());
                    Branch::open(root, mount.clone(), &path, tenant.pid())
                };
                assert_eq!(open(&mine).unwrap().own.len(), 1);
                let error = open(&other).unwrap_err();
                assert!(error.message.contains("is not in the cgroup"), "{error}");
            });
        }
    }

    #[test]
    fn a_process_is_its_own_and_its_parents_descendant() {
        let me = nix::unistd::getpid().as_raw();
        let above = nix::unistd::getppid().as_raw();
        assert!(is_or_descends_from(me, me));
        assert!(is_or_descends_from(me, above));
        assert!(!is_or_descends_from(above, me));
        assert!(!is_or_descends_from(0, me));
    }

    #[test]
    fn a_path_out_of_the_namespace_is_refused() {
        for path in ["/../x", "/a/../b", "/..", "relative"] {
            let root = nix::fcntl::open("/", directory_flags(), Mode::empty()).unwrap();
            let error = Branch::open(root, "/".into(), path, 1).unwrap_err();
            assert!(error.message.contains("cgroup namespace"), "{path}: {error}");
        }
    }
}
