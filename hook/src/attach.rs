//! Attaches mounts in the container's mount namespace, and takes them away again.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use caps::CapSet;
use fgpu_spec::{Code, Error};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::{FileType, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::file_system;
use crate::mounts::{Mounts, place};
use crate::resolve::{self, Creations, Root, denied, refusal};
use crate::source::Source;
use crate::target::Target;
use crate::ungranted::Device;
use fgpu_engine::signals::HeldSignals;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// What was attached in a container.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    mounts: Vec<Source>,
    made: Creations,
}

/// The way back, and what is needed on the other side. This process has one thread: what is changed here is
/// changed for all of it.
struct Ways {
    namespace: OwnedFd,
    root: OwnedFd,
    descriptors: OwnedFd,
}

impl Ways {
    fn open() -> Result<Self, Error> {
        let look = |path: &'static str, flags| {
            open(path, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| Error::io("open", Path::new(path), &errno.into()))
        };
        Ok(Self {
            namespace: look("/proc/self/ns/mnt", OFlags::RDONLY)?,
            root: look("/", OFlags::PATH | OFlags::DIRECTORY)?,
            descriptors: look("/proc/self/fd", OFlags::PATH | OFlags::DIRECTORY)?,
        })
    }

    /// Does `work` in the container's mount namespace, as an id that its file systems know: a file in the
    /// /dev of a container with a user namespace cannot belong to the host's root (EOVERFLOW).
    fn inside<T>(
        &self,
        target: &mut Target,
        work: impl FnOnce(&mut Target) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let failed = |doing: &str, error: std::io::Error| {
            Error::new(Code::Internal, format!("cannot {doing}: {error}"))
        };
        let enter = |namespace: &OwnedFd| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        };
        enter(&target.mount_namespace)
            .map_err(|errno| failed("enter the container's mount namespace", errno.into()))?;
        let done = become_owner(target.owner)
            .map_err(|error| failed("act as the container's root", error))
            .and_then(|()| work(target));
        let back = || -> std::io::Result<()> {
            become_owner((0, 0))?;
            enter(&self.namespace)?;
            rustix::process::fchdir(&self.root)?;
            Ok(rustix::process::chroot(".")?)
        };
        match back() {
            Ok(()) => done,
            Err(error) => Err(failed("come back from the container's mount namespace", error)),
        }
    }
}

/// Makes files of this process belong to these ids. The kernel takes capabilities over files from a process
/// that turns from root into another user (capabilities(7)); they are taken back.
fn become_owner((user, group): (u32, u32)) -> std::io::Result<()> {
    setfsuid(Uid::from_raw(user));
    setfsgid(Gid::from_raw(group));
    let take_back = || caps::set(None, CapSet::Effective, &caps::read(None, CapSet::Permitted)?);
    take_back().map_err(std::io::Error::other)
}

impl Attached {
    /// Attaches all of `sources`, or none, and then removes the `ungranted` devices.
    ///
    /// # Errors
    /// [`Code::Denied`] where the container's root is made so that a place cannot be had, [`Code::Internal`]
    /// where the file system or the kernel refuses; what was attached and made is gone again.
    pub(crate) fn attach(
        target: &mut Target,
        sources: Vec<Source>,
        ungranted: &[Device],
        held: &HeldSignals,
    ) -> Result<Self, Error> {
        let ways = Ways::open()?;
        let own = File::open("/proc/self/mountinfo")
            .and_then(Mounts::new)
            .map_err(|error| Error::io("read", Path::new("/proc/self/mountinfo"), &error))?;
        let mut attached = Self::default();
        ways.inside(target, |target| {
            attached
                .fill(target, &own, sources, held)
                .and_then(|()| remove(ungranted, target, &own, &ways))
                .inspect_err(|_| attached.take_away(&ways))
        })?;
        Ok(attached)
    }

    /// Takes away what was attached and made.
    ///
    /// # Errors
    /// The container's namespace cannot be entered. It ends with the container that is refused, and its
    /// mounts with it.
    pub(crate) fn undo(mut self, target: &mut Target) -> Result<(), Error> {
        let ways = Ways::open()?;
        ways.inside(target, |_| {
            self.take_away(&ways);
            Ok(())
        })
    }

    fn fill(
        &mut self,
        target: &mut Target,
        own: &Mounts,
        sources: Vec<Source>,
        held: &HeldSignals,
    ) -> Result<(), Error> {
        for source in sources {
            held.check()?;
            let mut root =
                Root { root: &target.root, mounts: &mut target.mounts, host: own, made: &mut self.made };
            let found = if source.on_proc {
                match on_proc(&target.root, &source.destination)? {
                    Some(found) => found,
                    None => continue,
                }
            } else {
                root.destination(&source.destination, source.placeholder())?
            };
            judge(&source, &found, &mut target.mounts)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&source.mount, c"", &found, c"", flags)
                .map_err(|e| refusal(&source.destination, e))?;
            self.mounts.push(source);
        }
        // If a parent of a destination is renamed after it was opened, the mount is elsewhere in the root.
        self.mounts.iter().try_for_each(|source| verify(&target.root, source))
    }

    fn take_away(&mut self, ways: &Ways) {
        // The mount by its descriptor and not by a path, which may lead to another by now.
        if rustix::process::fchdir(&ways.descriptors).is_ok() {
            while let Some(source) = self.mounts.pop() {
                // What stays ends with the mount namespace of the container that is refused.
                let _ = unmount(source.mount.as_raw_fd().to_string(), UnmountFlags::DETACH);
            }
        }
        self.made.remove();
    }
}

/// Removes what the grant does not give. It is last, because it alone is not undone: a container that is
/// refused is not used.
fn remove(ungranted: &[Device], target: &mut Target, own: &Mounts, ways: &Ways) -> Result<(), Error> {
    let made = &mut Creations::default();
    let mut root = Root { root: &target.root, mounts: &mut target.mounts, host: own, made };
    for device in ungranted {
        // In a folder of the host's own (`--volume /dev:/dev`) nothing is removed.
        let Some((folder, name)) = root.own_folder(&device.path)? else { continue };
        device.remove(&folder, name, || {
            let mount = openat(&folder, name, PATH_ONLY | OFlags::NOFOLLOW, Mode::empty())?;
            rustix::process::fchdir(&ways.descriptors)?;
            unmount(mount.as_raw_fd().to_string(), UnmountFlags::DETACH)
        })?;
    }
    Ok(())
}

/// The file of procfs that a file of ours shall lie over, if this container has it.
fn on_proc(root: &OwnedFd, path: &str) -> Result<Option<OwnedFd>, Error> {
    match resolve::open(root, Path::new(path), PATH_ONLY | OFlags::NOFOLLOW) {
        Ok(found) if file_system::is_proc(&found).map_err(|errno| refusal(path, errno))? => Ok(Some(found)),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(refusal(path, errno)),
    }
}

/// Whether a mount may lie over what was found.
fn judge(source: &Source, found: &OwnedFd, mounts: &mut Mounts) -> Result<(), Error> {
    let path = &source.destination;
    let failed = |error: std::io::Error| Error::io("look at", Path::new(path), &error);
    let there = place(found).map_err(failed)?;
    if !source.fits(&there) {
        let kind = match FileType::from_raw_mode(there.mode) {
            FileType::RegularFile => "a file",
            FileType::Directory => "a directory",
            FileType::Symlink => "a link",
            FileType::Fifo => "a FIFO",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "another device",
            FileType::Unknown => "something unknown",
        };
        return Err(denied(path, &format!("{kind} is in its place")));
    }
    if !source.on_proc && file_system::is_kernels(found).map_err(|errno| refusal(path, errno))? {
        return Err(denied(path, resolve::KERNELS));
    }
    if mounts.get(there.mount).map_err(failed)?.shared {
        return Err(denied(
            path,
            "it lies in a mount that is shared with the host, where the file would appear too; use a private or \
             slave mount",
        ));
    }
    Ok(())
}

/// Whether the container finds at its destination what was attached there.
fn verify(root: &OwnedFd, source: &Source) -> Result<(), Error> {
    let path = &source.destination;
    let found = resolve::open(root, Path::new(path), PATH_ONLY).map_err(|errno| refusal(path, errno))?;
    let there = place(&found).map_err(|error| Error::io("look at", Path::new(path), &error))?;
    if there.file == source.place.file && there.is_mount_root {
        return Ok(());
    }
    Err(denied(path, "somebody replaced what leads to it in the meantime"))
}
