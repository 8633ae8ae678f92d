//! The part of /proc that the NVIDIA kernel modules make.

use sim_node::config::{Gpu, Node};
use sim_node::instances::capability_minor;

/// Major number of `/dev/nvidia*`, assigned for good (Documentation/admin-guide/devices.txt).
pub(crate) const NVIDIA_MAJOR: u64 = 195;
/// Minor of `/dev/nvidiactl`.
pub(crate) const CONTROL_MINOR: u64 = 255;
/// Major of `/dev/nvidia-uvm`: any that is free for dynamic use; the kernel hands these out from 511 down.
pub(crate) const UVM_MAJOR: u64 = 508;
/// Major of the MIG capabilities' nodes.
pub(crate) const CAPS_MAJOR: u64 = 507;

/// The files, by their path below the root, and what they hold.
pub(crate) fn files(node: &Node) -> Vec<(String, String)> {
    let version = node.driver_version.as_str();
    let mut files = vec![
        (
            "proc/driver/nvidia/version".into(),
            format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Simulated\n"),
        ),
        ("proc/driver/nvidia/params".into(), PARAMS.into()),
        ("proc/devices".into(), devices()),
        ("proc/driver/nvidia-caps/mig-minors".into(), mig_minors(node)),
    ];
    files.extend(node.gpus().iter().map(|gpu| (information_path(gpu), information(gpu, version))));
    files
}

/// What matters of the modules' parameters: that nodes may be made by whoever needs them, with mode 0666.
const PARAMS: &str = "DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nModifyDeviceFiles: 1\n";

/// The minors of all MIG instances that there could ever be.
fn mig_minors(node: &Node) -> String {
    let mut text = "config 1\nmonitor 2\n".to_owned();
    for gpu in node.gpus() {
        let minor = gpu.minor;
        for instance in 0..15 {
            let own = capability_minor(minor, instance, None);
            text += &format!("gpu{minor}/gi{instance}/access {own}\n");
            for compute in 0..8 {
                let own = capability_minor(minor, instance, Some(compute));
                text += &format!("gpu{minor}/gi{instance}/ci{compute}/access {own}\n");
            }
        }
    }
    text
}

fn devices() -> String {
    format!(
        "Character devices:\n  1 mem\n{NVIDIA_MAJOR} nvidia\n{NVIDIA_MAJOR} nvidia-modeset\n\
         {NVIDIA_MAJOR} nvidiactl\n{CAPS_MAJOR} nvidia-caps\n{UVM_MAJOR} nvidia-uvm\n\nBlock devices:\n"
    )
}

fn address(gpu: &Gpu) -> String {
    format!("{:04x}:{:02x}:{:02x}.0", gpu.pci_domain, gpu.pci_bus, gpu.pci_device)
}

fn information_path(gpu: &Gpu) -> String {
    format!("proc/driver/nvidia/gpus/{}/information", address(gpu))
}

fn information(gpu: &Gpu, version: &str) -> String {
    format!(
        "Model: \t\t {}\nIRQ:   \t\t 0\nGPU UUID: \t {}\nVideo BIOS: \t 00.00.00.00.00\nBus Type: \t PCIe\n\
         DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {}\nDevice Minor: \t {}\n\
         GPU Firmware: \t {version}\nGPU Excluded:\t No\n",
        gpu.name.as_str(),
        gpu.uuid.as_str(),
        address(gpu),
        gpu.minor,
    )
}
