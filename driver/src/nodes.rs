//! The device nodes of a grant, looked up at every create.
//!
//! Majors of `nvidia-uvm` and of the capabilities are given out when the module loads and nodes are made by
//! `nvidia-modprobe` or udev at any time, so nothing about them is remembered.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, DeviceNode, Error, Gpu, Majors};

use crate::capabilities::{CapNode, Capability};
use crate::procfs::CharacterDevices;
use crate::rooted::under;

/// Names under which the GPUs' driver registers its major: `nvidia-frontend` up to 550.39, `nvidia` since.
const GPU_DRIVER: &[&str] = &["nvidia", "nvidia-frontend", "nvidiactl"];
const UVM_DRIVER: &[&str] = &["nvidia-uvm"];
const CAPS_DRIVER: &[&str] = &["nvidia-caps"];

/// Minor of `/dev/nvidiactl` (`NV_CONTROL_DEVICE_MINOR` of the open kernel module).
const CONTROL_MINOR: u32 = 255;
const UVM_MINOR: u32 = 0;
const UVM_TOOLS_MINOR: u32 = 1;

/// The device nodes that a container with `gpus` needs, as they are now: `/dev/nvidiactl`, one
/// `/dev/nvidia<minor>` per GPU in the order given, and `/dev/nvidia-uvm` and `/dev/nvidia-uvm-tools` when
/// they exist. They are looked up below `<root>/dev` if that has a `nvidiactl`, else below `/dev`. For each
/// MIG device in `slices` the two nodes of its capabilities follow.
///
/// # Errors
/// `driver-error` if a node is missing, is no character device, or has another number than the driver has
/// now: a node left over from another boot could lead to another device.
pub fn nodes(root: &Path, gpus: &[&Gpu], slices: &[Capability]) -> Result<Vec<DeviceNode>, Error> {
    let look = Look { dev: device_folder(root), devices: CharacterDevices::read(root) };

    let mut nodes = vec![look.required("nvidiactl", GPU_DRIVER, CONTROL_MINOR)?];
    for gpu in gpus {
        nodes.push(look.required(&format!("nvidia{}", gpu.minor), GPU_DRIVER, gpu.minor)?);
    }
    nodes.extend(look.optional("nvidia-uvm", UVM_DRIVER, UVM_MINOR)?);
    nodes.extend(look.optional("nvidia-uvm-tools", UVM_DRIVER, UVM_TOOLS_MINOR)?);
    for slice in slices {
        for node in slice.nodes(root)? {
            nodes.push(look.capability(node)?);
        }
    }
    Ok(nodes)
}

/// The majors by which a GPU's or a capability's node is known, whatever its name, and those of all other
/// drivers, as they are now.
pub fn majors(root: &Path) -> Majors {
    let devices = CharacterDevices::read(root);
    let kernels = CharacterDevices::read(Path::new("/"));
    let all = devices.all().chain(kernels.all());
    Majors::new(devices.majors(GPU_DRIVER), devices.majors(CAPS_DRIVER), all)
}

fn device_folder(root: &Path) -> PathBuf {
    let inside = under(root, "/dev");
    if inside.join("nvidiactl").symlink_metadata().is_ok() { inside } else { "/dev".into() }
}

struct Look {
    dev: PathBuf,
    devices: CharacterDevices,
}

impl Look {
    fn required(&self, name: &str, driver: &[&str], minor: u32) -> Result<DeviceNode, Error> {
        self.optional(name, driver, minor)?.ok_or_else(|| {
            Error::new(
                Code::DriverError,
                format!(
                    "{} does not exist; `{}` makes it",
                    self.dev.join(name).display(),
                    maker(driver, minor)
                ),
            )
        })
    }

    /// The node of a capability. Nothing but a program that uses NVML as root makes it on the host, and a
    /// container's runtime makes its own: it need not be there.
    fn capability(&self, node: CapNode) -> Result<DeviceNode, Error> {
        let name = format!("nvidia-caps/nvidia-cap{}", node.minor);
        if let Some(node) = self.optional(&name, CAPS_DRIVER, node.minor)? {
            return Ok(node);
        }
        let majors = self.devices.majors(CAPS_DRIVER);
        let &major = majors.first().ok_or_else(|| {
            Error::new(
                Code::DriverError,
                "the kernel has no device nvidia-caps; is the nvidia module loaded?",
            )
        })?;
        let path = format!("/dev/{name}");
        let host = PathBuf::from(&path);
        Ok(DeviceNode { path, host, major, minor: node.minor, mode: node.mode, uid: 0, gid: 0 })
    }

    fn optional(&self, name: &str, driver: &[&str], minor: u32) -> Result<Option<DeviceNode>, Error> {
        let path = self.dev.join(name);
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("look at", &path, &error)),
        };
        let wrong = |what: String| {
            let (path, maker) = (path.display(), maker(driver, minor));
            Error::new(Code::DriverError, format!("{path} {what}; remove it and run `{maker}`"))
        };
        if !found.file_type().is_char_device() {
            return Err(wrong("is no character device".into()));
        }
        let (major, actual) = (rdev_major(found.rdev()), rdev_minor(found.rdev()));
        let known = self.devices.majors(driver);
        // A table without this driver says nothing about its numbers.
        if !known.is_empty() && (!known.contains(&major) || actual != minor) {
            return Err(wrong(format!(
                "is device {major}:{actual}, but the driver's is {}:{minor}",
                known[0]
            )));
        }
        Ok(Some(DeviceNode {
            path: format!("/dev/{name}"),
            host: path,
            major,
            minor: actual,
            mode: found.mode() & 0o7777,
            uid: found.uid(),
            gid: found.gid(),
        }))
    }
}

/// The command that makes a node.
fn maker(driver: &[&str], minor: u32) -> String {
    if driver == UVM_DRIVER {
        "nvidia-modprobe -u -c 0".into()
    } else if driver == CAPS_DRIVER {
        "nvidia-smi mig -lgi".into()
    } else {
        format!("nvidia-modprobe -c {minor}")
    }
}

/// The major in a `dev_t` as Linux's C libraries encode it (`gnu_dev_major`).
fn rdev_major(dev: u64) -> u32 {
    ((dev >> 8) & 0xfff | (dev >> 32) & 0xffff_f000) as u32
}

/// The minor in a `dev_t` (`gnu_dev_minor`).
fn rdev_minor(dev: u64) -> u32 {
    (dev & 0xff | (dev >> 12) & 0xffff_ff00) as u32
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;
    use crate::fake::{Root, gpu};

    const DEVICES: &str = "Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n";

    /// Makes a node, or says that this machine does not let us (mknod needs CAP_MKNOD).
    fn make(root: &Root, name: &str, major: u64, minor: u64) -> bool {
        root.directory("dev");
        let path = root.path().join("dev").join(name);
        let made = mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor));
        if made == Err(nix::Error::EPERM) {
            eprintln!("skipped: mknod is not permitted here");
            return false;
        }
        made.unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        true
    }

    #[test]
    fn device_numbers_are_taken_apart() {
        for (major, minor) in [(195, 255), (511, 1), (0xfff, 0xfffff), (1, 256)] {
            let dev = makedev(major, minor);
            assert_eq!((u64::from(rdev_major(dev)), u64::from(rdev_minor(dev))), (major, minor));
        }
    }

    #[test]
    fn control_gpus_in_order_and_uvm_when_there() {
        let root = Root::new();
        root.write("proc/devices", DEVICES.as_bytes());
        if !make(&root, "nvidiactl", 195, 255) {
            return;
        }
        make(&root, "nvidia0", 195, 0);
        make(&root, "nvidia3", 195, 3);
        let hosts = |nodes: &[DeviceNode]| nodes.iter().map(|node| node.host.clone()).collect::<Vec<_>>();
        let names = |nodes: Vec<DeviceNode>| nodes.into_iter().map(|node| node.path).collect::<Vec<_>>();
        let (first, third) = (gpu(0), gpu(3));
        let found = nodes(root.path(), &[&third, &first], &[]).unwrap();
        assert_eq!(
            hosts(&found),
            ["nvidiactl", "nvidia3", "nvidia0"].map(|name| root.path().join("dev").join(name))
        );
        assert_eq!(names(found), ["/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia0"]);

        make(&root, "nvidia-uvm", 511, 0);
        make(&root, "nvidia-uvm-tools", 511, 1);
        let found = nodes(root.path(), &[&third], &[]).unwrap();
        let numbers: Vec<_> = found.iter().map(|node| (node.major, node.minor, node.mode)).collect();
        assert_eq!(numbers, [(195, 255, 0o666), (195, 3, 0o666), (511, 0, 0o666), (511, 1, 0o666)]);
        assert_eq!(names(found)[2..], ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]);
    }

    #[test]
    fn a_node_of_another_boot_is_refused() {
        let root = Root::new();
        root.write("proc/devices", DEVICES.as_bytes());
        if !make(&root, "nvidiactl", 195, 255) {
            return;
        }
        make(&root, "nvidia0", 195, 0);
        make(&root, "nvidia-uvm", 510, 0);
        let error = nodes(root.path(), &[&gpu(0)], &[]).unwrap_err();
        assert_eq!(error.code, Code::DriverError);
        assert!(error.message.contains("is device 510:0, but the driver's is 511:0"), "{error}");

        fs::remove_file(root.path().join("dev/nvidia-uvm")).unwrap();
        make(&root, "nvidia1", 195, 0);
        let error = nodes(root.path(), &[&gpu(1)], &[]).unwrap_err();
        assert!(error.message.contains("is device 195:0, but the driver's is 195:1"), "{error}");
    }

    #[test]
    fn a_table_without_the_driver_does_not_speak_for_it() {
        let root = Root::new();
        root.write("proc/devices", b"Character devices:\n  1 mem\n");
        if !make(&root, "nvidiactl", 240, 255) {
            return;
        }
        make(&root, "nvidia0", 240, 0);
        assert_eq!(nodes(root.path(), &[&gpu(0)], &[]).unwrap()[1].major, 240);
    }

    #[test]
    fn a_missing_node_or_another_file_is_named() {
        let root = Root::new();
        root.write("dev/nvidiactl", b"");
        let error = nodes(root.path(), &[&gpu(0)], &[]).unwrap_err();
        assert!(error.message.contains("dev/nvidiactl is no character device"), "{error}");
        assert_eq!(error.code, Code::DriverError);

        fs::remove_file(root.path().join("dev/nvidiactl")).unwrap();
        symlink("/dev/null", root.path().join("dev/nvidiactl")).unwrap();
        let error = nodes(root.path(), &[&gpu(0)], &[]).unwrap_err();
        assert!(error.message.contains("is no character device"), "a link is not followed: {error}");

        fs::remove_file(root.path().join("dev/nvidiactl")).unwrap();
        if !make(&root, "nvidiactl", 195, 255) {
            return;
        }
        let error = nodes(root.path(), &[&gpu(7)], &[]).unwrap_err();
        assert!(error.message.contains("dev/nvidia7 does not exist"), "{error}");
    }
}
