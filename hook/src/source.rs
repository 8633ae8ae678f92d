//! What is brought into a container: mounts made on the host, attached nowhere yet.
//!
//! They are made before the container's mount namespace is entered, so that nothing in the container has a
//! say in what is mounted.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, DeviceNode, Error, Mount, Plan};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::mounts::{FileLocation, place};
use crate::resolve::Placeholder;
use crate::sys::{self, NODEV, NOEXEC, NOSUID, RDONLY};

/// The kernel module's parameters as the driver's libraries read them.
pub(crate) const PARAMETERS: &str = "/proc/driver/nvidia/params";

/// A detached mount and where it belongs.
#[derive(Debug)]
pub(crate) struct Source {
    /// Absolute path in the container.
    pub(crate) destination: String,
    /// The mount.
    pub(crate) mount: OwnedFd,
    /// Its root.
    pub(crate) place: FileLocation,
    /// Whether it lies over a file of procfs. Such a destination is not made, and without it there is nothing
    /// to do.
    pub(crate) on_proc: bool,
}

impl Source {
    fn open(path: &Path, destination: &str, attributes: u64, links: OFlags) -> Result<Self, Error> {
        let failed = |doing: &str, error: std::io::Error| Error::io(doing, path, &error);
        let flags = OFlags::PATH | OFlags::CLOEXEC | links;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed("open", e.into()))?;
        let mut flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        if FileType::from_raw_mode(place(&file).map_err(|e| failed("look at", e))?.mode)
            == FileType::Directory
        {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let mount = open_tree(&file, c"", flags).map_err(|e| failed("make a mount of", e.into()))?;
        let all = RDONLY | NOSUID | NODEV | NOEXEC;
        // A flag of the host's mount that is not ours stays (`noexec` on /run, say), but for two: device
        // nodes must open, and libraries be mapped.
        let clear = all & !attributes & (NODEV | NOEXEC);
        sys::mount_setattr(mount.as_fd(), attributes, clear)
            .map_err(|e| failed("set the flags of a mount of", e))?;
        let place = place(&mount).map_err(|e| failed("look at", e))?;
        Ok(Self { destination: destination.into(), mount, place, on_proc: false })
    }

    /// A bind mount of the plan's.
    fn of_mount(mount: &Mount) -> Result<Self, Error> {
        let mut attributes = NOSUID | NODEV;
        if !mount.writable {
            attributes |= RDONLY;
        }
        if fgpu_wire::is_data(&mount.destination) {
            attributes |= NOEXEC;
        }
        Self::open(&mount.source, &mount.destination, attributes, OFlags::empty())
    }

    /// A device node of the plan's: the host's node, if it still is the device that the plan looked up.
    fn of_node(node: &DeviceNode) -> Result<Self, Error> {
        let source = Self::open(&node.host, &node.path, NOSUID | NOEXEC, OFlags::NOFOLLOW)?;
        let kind = FileType::from_raw_mode(source.place.mode);
        if kind != FileType::CharacterDevice || source.place.device != (node.major, node.minor) {
            let host = node.host.display();
            let message = format!("{host} is not character device {}:{} any more", node.major, node.minor);
            return Err(Error::new(Code::DriverError, message));
        }
        Ok(source)
    }

    /// What kind of file this is.
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.place.mode)
    }

    /// What stands in for it where nothing is.
    pub(crate) fn placeholder(&self) -> Placeholder {
        match self.kind() {
            FileType::Directory => Placeholder::Directory,
            _ => Placeholder::File,
        }
    }

    /// Whether it may be mounted over a file like this: one of its own kind, or an empty stand-in for it. A
    /// link has been followed by now, so what is there may be anything.
    pub(crate) fn fits(&self, there: &FileLocation) -> bool {
        match (self.kind(), FileType::from_raw_mode(there.mode)) {
            (FileType::Directory, FileType::Directory) => true,
            (FileType::Directory, _) => false,
            (FileType::CharacterDevice, FileType::CharacterDevice) => self.place.device == there.device,
            (FileType::Socket, FileType::Socket) => true,
            (_, kind) => kind == FileType::RegularFile,
        }
    }
}

/// Opens everything that the plan brings in. `parameters` is a file to lie over [`PARAMETERS`].
///
/// # Errors
/// Something is not there, or is not what the plan says.
pub(crate) fn open_all(plan: &Plan, parameters: Option<PathBuf>) -> Result<Vec<Source>, Error> {
    let nodes = plan.nodes.iter().map(Source::of_node);
    let mounts = plan.mounts.iter().map(Source::of_mount);
    let parameters = parameters.map(|path| {
        let source = Source::open(&path, PARAMETERS, RDONLY | NOSUID | NODEV | NOEXEC, OFlags::NOFOLLOW)?;
        Ok(Source { on_proc: true, ..source })
    });
    nodes.chain(mounts).chain(parameters).collect()
}
