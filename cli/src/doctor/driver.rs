//! The NVIDIA driver: the kernel's part, its libraries, its device nodes, and what fgpu knows of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use fgpu_driver::{CharacterDevices, parse_version};
use fgpu_spec::Inventory;
use nix::sys::stat::{major, minor};

use super::Diagnosis;
use super::node::Node;

/// The minor of /dev/nvidiactl (facts of the driver's nvidia-modprobe).
const CONTROL: u64 = 255;

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let loaded = node.text(&placed(node, "/proc/driver/nvidia/version"));
    let Some(version) = loaded.as_deref().and_then(parse_version) else {
        let nouveau = node
            .text("/proc/modules")
            .is_some_and(|modules| modules.lines().any(|line| line.starts_with("nouveau ")));
        if nouveau {
            diagnosis.error(
                "nouveau",
                "the kernel drives the GPUs with nouveau, which knows no CUDA",
                &[
                    "apt-get install nvidia-driver",
                    "echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf && update-initramfs -u && reboot",
                ],
            );
        } else {
            diagnosis.error(
                "driver-not-loaded",
                "no NVIDIA driver is loaded (/proc/driver/nvidia/version is not there)",
                &["modprobe nvidia", "if there is none: apt-get install nvidia-driver"],
            );
        }
        return;
    };
    diagnosis.fine(format!("NVIDIA driver {version} is loaded"));
    libraries(node, diagnosis, version);
    nodes(node, diagnosis);
    inventory(node, diagnosis, version);
}

/// A path of the driver: below the driver root if it is there, else the node's own.
pub(super) fn placed(node: &Node, path: &str) -> String {
    let below = node.config.driver_root.join(path.trim_start_matches('/')).display().to_string();
    if node.has(&below) { below } else { path.to_owned() }
}

/// The versions of a driver library that are installed.
fn installed(node: &Node, name: &str) -> BTreeSet<String> {
    let triplet = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = ["/usr/lib64".to_owned(), "/usr/lib".to_owned(), triplet.clone()];
    let nested = folders
        .iter()
        .flat_map(|folder| ["nvidia", "nvidia/current"].map(|below| format!("{folder}/{below}")));
    let root = &node.config.driver_root;
    let prefix = format!("{name}.so.");
    let all = folders.iter().cloned().chain(nested);
    let files = all.flat_map(|folder| node.names(root.join(folder.trim_start_matches('/'))));
    // `libcuda.so.1` is the link.
    files
        .filter_map(|file| Some(file.strip_prefix(&prefix)?.to_owned()))
        .filter(|version| version.contains('.'))
        .collect()
}

fn libraries(node: &Node, diagnosis: &mut Diagnosis, version: &str) {
    for name in ["libcuda", "libnvidia-ml"] {
        let found = installed(node, name);
        if found.contains(version) {
            continue;
        }
        if found.is_empty() {
            let what = format!("the driver's {name}.so.{version} is not installed");
            let package = if name == "libcuda" { "libcuda1" } else { "libnvidia-ml1" };
            let install = format!("apt-get install {package}");
            diagnosis.error("driver-library-missing", what, &[&install]);
        } else {
            let others = found.into_iter().collect::<Vec<_>>().join(", ");
            let what = format!(
                "the kernel runs driver {version} and {name} is of {others}: the driver was upgraded and not loaded anew"
            );
            diagnosis.error("driver-library-mismatch", what, &["reboot"]);
            return;
        }
    }
}

fn nodes(node: &Node, diagnosis: &mut Diagnosis) {
    let devices = CharacterDevices::parse(&node.text(&placed(node, "/proc/devices")).unwrap_or_default());
    let gpu = devices.majors(&["nvidia", "nvidia-frontend"]);
    let uvm = devices.majors(&["nvidia-uvm"]);
    if uvm.is_empty() {
        diagnosis.error(
            "uvm-not-loaded",
            "the kernel module nvidia-uvm is not loaded: CUDA finds no device",
            &["nvidia-modprobe -u -c 0", "echo nvidia-uvm > /etc/modules-load.d/nvidia-uvm.conf"],
        );
    }
    let mut wanted = vec![("nvidiactl".to_owned(), gpu.clone(), CONTROL)];
    wanted.extend(minors(node).into_iter().map(|minor| (format!("nvidia{minor}"), gpu.clone(), minor)));
    if !uvm.is_empty() {
        wanted.push(("nvidia-uvm".to_owned(), uvm, 0));
    }
    for (name, majors, number) in wanted {
        device(node, diagnosis, &name, &majors, number);
    }
}

fn device(node: &Node, diagnosis: &mut Diagnosis, name: &str, majors: &[u32], number: u64) {
    let path = match placed(node, "/dev/nvidiactl").strip_suffix("nvidiactl") {
        Some(folder) => format!("{folder}{name}"),
        None => format!("/dev/{name}"),
    };
    let make = match name {
        "nvidia-uvm" => "nvidia-modprobe -u -c 0".to_owned(),
        _ => format!("nvidia-modprobe -c {number}"),
    };
    let Ok(found) = fs::metadata(node.place(&path)) else {
        diagnosis.error("device-node-missing", format!("{path} is not there"), &[&make]);
        return;
    };
    let right = found.file_type().is_char_device()
        && minor(found.rdev()) == number
        && u32::try_from(major(found.rdev())).is_ok_and(|major| majors.contains(&major));
    if !right {
        let remake = format!("rm {path} && {make}");
        let what = format!(
            "{path} is not the device that the driver has registered: it was made by hand or by another boot"
        );
        diagnosis.error("device-node-wrong", what, &[&remake]);
    } else if found.mode() & 0o666 != 0o666 {
        let what = format!(
            "{path} has mode {:04o}: users other than root cannot use a GPU, in containers neither",
            found.mode() & 0o7777
        );
        diagnosis.warn(
            "device-node-mode",
            what,
            &[&format!("chmod 0666 {path}"), "and NVreg_DeviceFileMode=0666 in /etc/modprobe.d/nvidia.conf"],
        );
    }
}

/// The minors of the GPUs that the kernel's part of the driver has.
fn minors(node: &Node) -> Vec<u64> {
    let folder = placed(node, "/proc/driver/nvidia/gpus");
    let texts =
        node.names(&folder).into_iter().filter_map(|gpu| node.text(&format!("{folder}/{gpu}/information")));
    let minor = |text: String| {
        text.lines().find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse::<u64>().ok())
    };
    texts.filter_map(minor).collect()
}

fn inventory(node: &Node, diagnosis: &mut Diagnosis, version: &str) {
    let path = node.state_dir().join(fgpu_driver::FILE);
    let refresh = ["fgpu inventory --refresh", "systemctl enable --now fgpu-inventory.service"];
    let Ok(text) = fs::read(&path) else {
        let what = "nobody has looked at the GPUs since the boot: the first container will wait for it";
        diagnosis.warn("inventory-missing", what, &refresh);
        return;
    };
    let Ok(inventory) = serde_json::from_slice::<Inventory>(&text) else {
        let what = format!("{} is none of this version of fgpu", path.display());
        diagnosis.warn("inventory-unreadable", what, &refresh[..1]);
        return;
    };
    let boot = node.text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if inventory.driver_version != version || inventory.boot_id != boot.trim() {
        let what = format!(
            "the inventory is of driver {} and of {} boot: the next container will wait for a new one",
            inventory.driver_version,
            if inventory.boot_id == boot.trim() { "this" } else { "another" }
        );
        diagnosis.warn("inventory-stale", what, &refresh[..1]);
        return;
    }
    let known: BTreeSet<u64> = inventory.gpus.iter().map(|gpu| gpu.minor.into()).collect();
    let missing: Vec<_> = minors(node).into_iter().filter(|minor| !known.contains(minor)).collect();
    for minor in &missing {
        let what = format!("the GPU of /dev/nvidia{minor} is in error or new: it serves nobody");
        diagnosis.error("gpu-left-out", what, &["nvidia-smi; dmesg | grep NVRM", "fgpu inventory --refresh"]);
    }
    if missing.is_empty() {
        diagnosis.fine(format!("{} GPUs in the inventory", inventory.gpus.len()));
    }
}
