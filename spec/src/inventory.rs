//! What the node has. Written by `fgpu inventory --refresh`, read by everybody else.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::MigProfile;
use crate::Topology;

/// One physical GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's UUID, `GPU-…`.
    pub uuid: String,
    /// NVML's index on the host.
    pub index: u32,
    /// The minor number of `/dev/nvidia<minor>`.
    pub minor: u32,
    /// The model, as NVML names it.
    pub model: String,
    /// PCI bus id, for example `00000000:3B:00.0`.
    pub pci: String,
    /// NUMA node, if the kernel knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Total memory in bytes (`nvmlMemory_v2_t.total`).
    pub total_memory: u64,
    /// What the driver keeps for itself in bytes (`nvmlMemory_v2_t.reserved`).
    pub reserved_memory: u64,
    /// Whether MIG mode is on: such a GPU serves no fractions.
    pub mig_enabled: bool,
    /// Bytes of it that a CUDA context takes, if that could be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_memory: Option<u64>,
    /// CUDA compute capability, `9.0` (`nvmlDeviceGetCudaComputeCapability`), if the driver tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    /// The slices that it can be cut into, in the driver's order; none if MIG mode is off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_profiles: Vec<MigProfile>,
}

impl Gpu {
    /// Memory that may be granted, in bytes: the total less the driver's reserve less the administrator's
    /// `reserve-memory`, floored to 1 MiB.
    pub fn usable_memory(&self, reserve: u64) -> u64 {
        let free = self.total_memory.saturating_sub(self.reserved_memory).saturating_sub(reserve);
        free & !((1 << 20) - 1)
    }
}

/// What kind of driver file it is, which decides where it goes in the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A shared library; `name` is its SONAME, or its file name when it has none.
    Library,
    /// A program, to be placed in `/usr/bin`.
    Program,
    /// Anything else (a socket, firmware, a directory): placed at the same path.
    Other,
}

/// One user-space file of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFile {
    /// What it is.
    pub kind: FileKind,
    /// SONAME of a library, file name of a program, absolute path (without the driver root) of another.
    pub name: String,
    /// The real file on the host, links resolved, the driver root included.
    pub host: PathBuf,
}

/// Everything that does not change while the driver stays loaded. Device majors and nodes are *not* here:
/// they are looked up live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Version of this format.
    pub version: u32,
    /// `/proc/sys/kernel/random/boot_id` at the time of the probe.
    pub boot_id: String,
    /// The driver root that was probed (`/` or a driver container's root).
    pub root: PathBuf,
    /// The driver's version, for example `550.163.01`.
    pub driver_version: String,
    /// Highest CUDA version of the driver, as `cuDriverGetVersion` encodes it (12040 is 12.4).
    pub cuda_version: u32,
    /// The GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// Whether the driver limits memory by cgroup (r615), and cgroups are where it looks for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub driver_limits: bool,
    /// How the GPUs are connected.
    #[serde(default, skip_serializing_if = "Topology::is_empty")]
    pub topology: Topology,
    /// The driver's user-space files.
    pub files: Vec<DriverFile>,
}
