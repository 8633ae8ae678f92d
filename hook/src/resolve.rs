//! Paths in a root that another process may write to while we look.
//!
//! The kernel resolves every path below a descriptor of the root (openat2(2), `RESOLVE_IN_ROOT`): a link,
//! `..` or a rename leads nowhere else, and magic links of procfs are not followed at all. What is opened is
//! then judged by its descriptor; no path is looked up a second time to act on what the first look-up saw.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use fgpu_spec::{Code, Error};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fchmod, mkdirat, readlinkat, unlinkat};
use rustix::io::Errno;

use crate::file_system;
use crate::mounts::{FileId, Mounts, place};
use fgpu_engine::openat2::openat2;

/// As many links are followed as the kernel follows (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// One component below a directory, and nothing but that.
const ONE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// Opens what is at `path` below `root`.
pub(crate) fn open(root: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // "/" is what the root itself is called in it.
    let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
    openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

/// Why nothing is made or mounted in procfs and its like.
pub(crate) const KERNELS: &str = "it leads to a file system of the kernel's own";

/// What a missing destination is made as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placeholder {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
}

/// Something that we made in the container's root.
#[derive(Debug)]
struct Made {
    parent: OwnedFd,
    name: String,
    file: FileId,
    directory: bool,
}

/// What was made, to be taken away again if the container is refused.
#[derive(Debug, Default)]
pub(crate) struct Creations(Vec<Made>);

impl Creations {
    /// Removes what was made, the last first, as far as it is still there and empty.
    pub(crate) fn remove(&mut self) {
        while let Some(made) = self.0.pop() {
            let flags = PATH_ONLY | OFlags::NOFOLLOW;
            let still = openat2(&made.parent, &*made.name, flags, Mode::empty(), ONE)
                .is_ok_and(|found| place(found).is_ok_and(|found| found.file == made.file));
            if still {
                let flags = if made.directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                // An empty file that stays in the root of a container that was refused does no harm.
                let _ = unlinkat(&made.parent, &*made.name, flags);
            }
        }
    }
}

/// A root in which destinations are found or made.
pub(crate) struct Root<'a> {
    /// Its descriptor.
    pub(crate) root: &'a OwnedFd,
    /// The mount table of its namespace.
    pub(crate) mounts: &'a mut Mounts,
    /// The mount table of our own namespace.
    pub(crate) host: &'a Mounts,
    /// What was made so far.
    pub(crate) made: &'a mut Creations,
}

/// How far making a destination came.
enum Step {
    Made(OwnedFd),
    /// Something on the way is a link to what does not exist: go on with this path.
    Elsewhere(String),
    /// It was made in the meantime.
    Again,
}

impl Root<'_> {
    /// Opens the destination of a mount (`O_PATH`). Where nothing is, a placeholder is made, with its missing
    /// parents; where a link leads to nothing, at the link's end, inside the root, as runc and crun do.
    ///
    /// # Errors
    /// [`Code::Denied`] where the root is made so that the place cannot be had; [`Code::Internal`] where the
    /// file system refuses.
    pub(crate) fn destination(&mut self, path: &str, kind: Placeholder) -> Result<OwnedFd, Error> {
        let mut current = path.to_owned();
        for _ in 0..MOST_LINKS {
            match open(self.root, Path::new(&current), PATH_ONLY) {
                Ok(found) => return Ok(found),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(refusal(path, errno)),
            }
            match self.make(path, &current, kind)? {
                Step::Made(found) => return Ok(found),
                Step::Elsewhere(target) => current = target,
                Step::Again => {}
            }
        }
        Err(denied(path, "it leads through links without end, or somebody changes it all the time"))
    }

    /// The folder of what is at `path` and the name in it, if it is one in which something may be made and
    /// removed.
    ///
    /// # Errors
    /// The path cannot be resolved.
    pub(crate) fn own_folder<'p>(&mut self, path: &'p str) -> Result<Option<(OwnedFd, &'p str)>, Error> {
        let Some((folder, name)) = path.rsplit_once('/') else { return Ok(None) };
        match open(self.root, Path::new(folder), PATH_ONLY | OFlags::DIRECTORY) {
            Ok(folder) => {
                Ok(self.may_make_in(path, &folder, Placeholder::File).is_ok().then_some((folder, name)))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(refusal(path, errno)),
        }
    }

    fn make(&mut self, path: &str, current: &str, kind: Placeholder) -> Result<Step, Error> {
        let parts: Vec<&str> = current.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        let (mut directory, depth) = self.deepest(path, &parts)?;
        for (index, &name) in parts.iter().enumerate().skip(depth) {
            if name == ".." {
                return Err(denied(path, "it goes up from a directory that does not exist"));
            }
            self.may_make_in(path, &directory, kind)?;
            let last = index + 1 == parts.len();
            let made = if last && kind == Placeholder::File {
                make_file(&directory, name)
            } else {
                make_directory(&directory, name)
            };
            let made = match made {
                Ok(made) => made,
                Err(Errno::EXIST) => return follow(path, &directory, &parts, index),
                Err(errno) => return Err(refusal(path, errno)),
            };
            let file = place(&made).map_err(|error| Error::io("look at", Path::new(path), &error))?.file;
            let directory_made = !(last && kind == Placeholder::File);
            let parent = std::mem::replace(&mut directory, made);
            self.made.0.push(Made { parent, name: name.into(), file, directory: directory_made });
        }
        Ok(Step::Made(directory))
    }

    /// The deepest parent that exists, and how many components lead to it.
    fn deepest(&self, path: &str, parts: &[&str]) -> Result<(OwnedFd, usize), Error> {
        for depth in (0..parts.len()).rev() {
            match open(self.root, Path::new(&parts[..depth].join("/")), PATH_ONLY | OFlags::DIRECTORY) {
                Ok(directory) => return Ok((directory, depth)),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(refusal(path, errno)),
            }
        }
        Err(denied(path, "it is the root itself"))
    }

    /// Something is made only in the container's own root and on file systems that it alone has, such as its
    /// /dev: a directory of the host that is bound into the container (a volume) is not written to.
    fn may_make_in(&mut self, path: &str, directory: &OwnedFd, kind: Placeholder) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::io("find the mount of", Path::new(path), &error);
        let here = place(directory).map_err(failed)?;
        if here.mount == place(self.root).map_err(failed)?.mount {
            return Ok(());
        }
        if file_system::is_kernels(directory).map_err(|errno| refusal(path, errno))? {
            return Err(denied(path, KERNELS));
        }
        let mount = self.mounts.get(here.mount).map_err(failed)?;
        if self.host.has_device(&mount.device) {
            let what = if kind == Placeholder::File { "file" } else { "folder" };
            let reason = format!(
                "it does not exist and lies in a volume, in which the hook makes nothing; make an empty {what} of that \
                 name in the volume, or use the runtime (fgpu-runtime), which has the engine's runtime make it"
            );
            return Err(denied(path, &reason));
        }
        Ok(())
    }
}

/// Makes an empty file; the descriptor is of that very file.
fn make_file(directory: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY;
    let made = openat2(directory, name, flags, Mode::from_raw_mode(0o644), ONE)?;
    // A default ACL of the directory may say something else.
    fchmod(&made, Mode::from_raw_mode(0o644))?;
    Ok(made)
}

/// Makes a directory and opens it. Between the two another process can put another one in its place, but only
/// one of the same root.
fn make_directory(directory: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    mkdirat(directory, name, Mode::from_raw_mode(0o755))?;
    let flags = PATH_ONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    openat2(directory, name, flags, Mode::empty(), ONE).inspect_err(|_| {
        // Only what is empty goes. The caller does not take note of it.
        let _ = unlinkat(directory, name, AtFlags::REMOVEDIR);
    })
}

/// What is at a component that could not be opened and cannot be made: a link to nothing.
fn follow(path: &str, directory: &OwnedFd, parts: &[&str], index: usize) -> Result<Step, Error> {
    let target = match readlinkat(directory, parts[index], Vec::new()) {
        Ok(target) => target,
        // No link, or gone again: another process works here.
        Err(Errno::INVAL | Errno::NOENT) => return Ok(Step::Again),
        Err(errno) => return Err(refusal(path, errno)),
    };
    if file_system::is_kernels(directory).unwrap_or(true) {
        return Err(denied(path, "it leads through a link of procfs or sysfs"));
    }
    let Ok(target) = str::from_utf8(target.to_bytes()) else {
        return Err(denied(path, "it leads through a link that is not UTF-8"));
    };
    let before = if target.starts_with('/') { &[][..] } else { &parts[..index] };
    let whole: Vec<&str> = before.iter().chain(&[target]).chain(&parts[index + 1..]).copied().collect();
    Ok(Step::Elsewhere(whole.join("/")))
}

/// Why a destination cannot be had, in words.
pub(crate) fn refusal(path: &str, errno: Errno) -> Error {
    match errno {
        Errno::LOOP => denied(path, "it leads through a loop of links, or through a link of procfs"),
        Errno::NOTDIR => denied(path, "it leads through something that is no directory"),
        Errno::AGAIN => denied(path, "somebody renames what leads to it all the time"),
        Errno::NAMETOOLONG => denied(path, "it leads through a name that is too long"),
        errno => Error::new(
            Code::Internal,
            format!("cannot make a place for {path} in the container: {}", std::io::Error::from(errno)),
        ),
    }
}

/// The container's root is at fault.
pub(crate) fn denied(path: &str, why: &str) -> Error {
    Error::new(Code::Denied, format!("{path} in the container cannot be given its file: {why}"))
}
