//! The host's own root with a share in place of the driver's libraries, in a mount namespace of this process.
//!
//! The destinations of the plan are the host's own files here, so nothing has to be made: what the driver
//! installed is covered where it lies. Only a driver below another root (a driver container) has no files in
//! the host's directories; then an overlay lends those directories the names, and the host keeps its own.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, DeviceNode, Error, Mount, Plan};
use fgpu_wire::{FOLDER_PATH, LIMITS_PATH, TURNS_PATH};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{major, minor};

use fgpu_engine::config::Config;

const NONE: Option<&str> = None;
const DEVICES: &str = "/dev";
/// Where the plan's own files go, `/run/fgpu`: they may be made there on the host.
pub(super) const OURS: &str = "/run/fgpu/";

/// Gives this process a mount namespace of its own in which the plan is carried out. `stage` is a folder for
/// this alone; it goes with the lease.
///
/// # Errors
/// [`Code::NoGpu`] if the host lacks a directory or a device node, [`Code::Internal`] if the kernel refuses.
/// This process is in a half-made namespace then, which no other process is in.
pub(super) fn enter(config: &Config, plan: &Plan, stage: &Path) -> Result<(), Error> {
    plan.nodes.iter().try_for_each(is_there)?;
    let hidden = other_nodes(Path::new(DEVICES), &plan.nodes)?;
    let lend = config.driver_root != Path::new("/");
    let mut lent: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    let mut binds: Vec<(&Mount, PathBuf)> = Vec::new();
    let mounts: Vec<Mount> = plan.mounts.iter().map(without_folder).collect();
    for mount in &mounts {
        let Some(place) = place(mount, lend)? else { continue };
        if let Target::Lent(parent, name) = &place {
            lent.entry(parent.clone()).or_default().push(name.clone());
        }
        let target = place.path();
        if !binds.iter().any(|(_, known)| *known == target) {
            binds.push((mount, target));
        }
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| failed("take a mount namespace at", "/", errno))?;
    // What is mounted on the host later appears here, and what we mount does not appear there.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)
        .map_err(|errno| failed("keep apart the mounts of", "/", errno))?;
    for (number, (directory, names)) in lent.iter().enumerate() {
        lend_names(directory, names, &stage.join(number.to_string()))?;
    }
    for (mount, target) in &binds {
        bind(&mount.source, target, if mount.writable { MsFlags::empty() } else { MsFlags::MS_RDONLY })?;
    }
    // A node on a mount without devices cannot be opened (EACCES), by root neither.
    hidden.iter().try_for_each(|node| bind(node, node, MsFlags::empty()))
}

/// On the host `/run/fgpu` is the state directory, which this process still needs. So of the grant's folder
/// the limits alone are mounted there, and the places of the rest are made on the host.
fn without_folder(mount: &Mount) -> Mount {
    if mount.destination != FOLDER_PATH {
        return mount.clone();
    }
    Mount { source: mount.source.join("limits"), destination: LIMITS_PATH.into(), ..mount.clone() }
}

/// Where a mount goes.
enum Target {
    /// Over this file.
    Found(PathBuf),
    /// Over a name that this directory lacks.
    Lent(PathBuf, String),
}

impl Target {
    fn path(&self) -> PathBuf {
        match self {
            Self::Found(path) => path.clone(),
            Self::Lent(directory, name) => directory.join(name),
        }
    }
}

/// Finds the place of a mount. `None` if there is nothing to do: the file is there already, or the host does
/// without that name of its own driver's file.
fn place(mount: &Mount, lend: bool) -> Result<Option<Target>, Error> {
    let path = Path::new(&mount.destination);
    if path.parent() == Some(Path::new(TURNS_PATH)) {
        // In the folder that is mounted there by then.
        return Ok(Some(Target::Found(path.into())));
    }
    if mount.destination.starts_with(OURS) {
        return make(path, mount.source.is_dir()).map(|()| Some(Target::Found(path.into())));
    }
    let source = fs::canonicalize(&mount.source).map_err(|error| Error::io("find", &mount.source, &error))?;
    if let Ok(found) = fs::canonicalize(path) {
        return Ok((found != source).then_some(Target::Found(found)));
    }
    if !lend {
        return Ok(None);
    }
    let lacking = || Error::new(Code::NoGpu, format!("this host has no place for {}", path.display()));
    let parent = path.parent().and_then(|parent| fs::canonicalize(parent).ok()).ok_or_else(lacking)?;
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(lacking)?;
    if source.is_dir() {
        return Err(lacking());
    }
    Ok(Some(Target::Lent(parent, name.into())))
}

/// Makes an empty file or folder below [`OURS`], which stays for the next run. It is made with the leftovers'
/// lock held.
fn make(path: &Path, is_folder: bool) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(parent);
    made.map_err(|error| Error::io("create", parent, &error))?;
    if is_folder {
        if path.is_file() {
            // A file of that name is a former version's.
            let _ = fs::remove_file(path);
        }
        return builder.create(path).map_err(|error| Error::io("create", path, &error));
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o644).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io("create", path, &error))
        }
        _ => Ok(()),
    }
}

/// Removes the files that [`make`] made in `ours`, and a directory in it that is empty then.
pub(super) fn remove_placeholders(ours: &Path) {
    let entries =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_drivers = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("driver-"))
            && !path.is_symlink()
    };
    let drivers: Vec<_> = entries(ours).filter(is_drivers).collect();
    let files = drivers.iter().flat_map(|driver| entries(driver));
    for file in files.chain(["limits", "ledger", "turns"].map(|name| ours.join(name))) {
        // Nothing else of that name is empty, and what is not ours stays.
        if fs::symlink_metadata(&file).is_ok_and(|file| file.is_file() && file.len() == 0) {
            let _ = fs::remove_file(&file);
        }
    }
    for folder in drivers.into_iter().chain([ours.join("turns")]) {
        // One that is not empty stays.
        let _ = fs::remove_dir(folder);
    }
}

/// Lays an overlay over a directory that has empty files of these names, besides its own.
fn lend_names(directory: &Path, names: &[String], stage: &Path) -> Result<(), Error> {
    fs::create_dir_all(stage).map_err(|error| Error::io("create", stage, &error))?;
    for name in names {
        let path = stage.join(name);
        fs::write(&path, "").map_err(|error| Error::io("create", &path, &error))?;
    }
    // overlayfs.rst: with no upper directory it is read-only; a colon would separate, a backslash escape.
    let escape = |path: &Path| path.display().to_string().replace('\\', "\\\\").replace(':', "\\:");
    let options = format!("lowerdir={}:{}", escape(stage), escape(directory));
    mount(Some("fgpu"), directory, Some("overlay"), MsFlags::MS_NOSUID, Some(options.as_str()))
        .map_err(|errno| failed("lay an overlay over", directory, errno))
}

fn bind(source: &Path, target: &Path, read_only: MsFlags) -> Result<(), Error> {
    let on = |errno| failed("mount on", target, errno);
    mount(Some(source), target, NONE, MsFlags::MS_BIND, NONE).map_err(on)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | read_only;
    mount(NONE, target, NONE, flags, NONE).map_err(on)
}

/// Makes sure that the host has a node that was granted: a run sees the host's own.
fn is_there(node: &DeviceNode) -> Result<(), Error> {
    let found = fs::metadata(&node.path).map_err(|error| {
        Error::new(Code::NoGpu, format!("{} is not in this host's /dev ({error})", node.path))
    })?;
    let number = (major(found.rdev()) as u32, minor(found.rdev()) as u32);
    if found.file_type().is_char_device() && number == (node.major, node.minor) {
        return Ok(());
    }
    let (major, minor) = (node.major, node.minor);
    Err(Error::new(Code::DriverError, format!("{} is not character device {major}:{minor}", node.path)))
}

/// The nodes of GPUs (`nvidia<minor>`) and of MIG capabilities that were not granted.
fn other_nodes(devices: &Path, granted: &[DeviceNode]) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(devices).map_err(|error| Error::io("list", devices, &error))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_gpu = |name: &String| {
        name.strip_prefix("nvidia")
            .is_some_and(|minor| !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit()))
    };
    // Most nodes have none of these.
    let capabilities = fs::read_dir(devices.join("nvidia-caps")).into_iter().flatten().flatten();
    let paths = names.filter(is_gpu).map(|name| devices.join(name));
    let paths = paths.chain(capabilities.map(|entry| entry.path()));
    Ok(paths.filter(|path| granted.iter().all(|node| Path::new(&node.path) != path)).collect())
}

fn failed(doing: &str, path: impl AsRef<Path>, errno: nix::errno::Errno) -> Error {
    Error::io(doing, path.as_ref(), &errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(path: &str) -> DeviceNode {
        DeviceNode { path: path.into(), host: path.into(), major: 195, minor: 0, mode: 0o666, uid: 0, gid: 0 }
    }

    #[test]
    fn only_nodes_of_other_gpus_are_hidden() {
        let devices = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia", "null"] {
            fs::write(devices.path().join(name), "").unwrap();
        }
        fs::create_dir(devices.path().join("nvidia-caps")).unwrap();
        fs::write(devices.path().join("nvidia-caps/nvidia-cap12"), "").unwrap();
        let granted = node(devices.path().join("nvidia1").to_str().unwrap());
        let mut hidden = other_nodes(devices.path(), &[granted]).unwrap();
        hidden.sort();
        assert_eq!(
            hidden,
            ["nvidia-caps/nvidia-cap12", "nvidia0", "nvidia10"].map(|name| devices.path().join(name))
        );
    }

    #[test]
    fn only_empty_files_of_ours_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        make(&at("driver-00/cuda"), false).unwrap();
        make(&at("limits"), false).unwrap();
        fs::write(at("turns"), "").unwrap();
        make(&at("turns"), true).unwrap();
        make(&at("lock"), false).unwrap();
        fs::write(at("ledger"), "somebody's").unwrap();
        remove_placeholders(folder.path());
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ledger", "lock"]);
    }

    #[test]
    fn a_node_that_is_another_device_is_refused() {
        assert_eq!(is_there(&node("/dev/null")).unwrap_err().code, Code::DriverError);
        assert_eq!(is_there(&node("/dev/no-such-node")).unwrap_err().code, Code::NoGpu);
        assert_eq!(is_there(&DeviceNode { major: 1, minor: 3, ..node("/dev/null") }), Ok(()));
    }

    #[test]
    fn a_file_that_is_its_own_source_needs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("real"), "").unwrap();
        fs::write(at("other"), "").unwrap();
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        let mount = |destination: &str| Mount {
            source: at("real"),
            destination: at(destination).to_str().unwrap().into(),
            writable: false,
            inherits: false,
        };
        assert!(place(&mount("link"), true).unwrap().is_none());
        assert_eq!(
            place(&mount("other"), true).unwrap().unwrap().path(),
            at("other").canonicalize().unwrap()
        );
        assert!(place(&mount("missing"), false).unwrap().is_none());
        assert_eq!(place(&mount("missing"), true).unwrap().unwrap().path(), at("missing"));
        assert_eq!(place(&mount("no/missing"), true).err().unwrap().code, Code::NoGpu);
    }
}
