//! What was last seen of the GPUs that changes while the driver stays loaded: their health, and which
//! processes outside fgpu use them.

use serde::{Deserialize, Serialize};

/// A process outside of all leases that has memory on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outsider {
    /// Its pid where the driver was asked.
    pub pid: u32,
    /// What the kernel calls it (`/proc/<pid>/comm`).
    pub name: String,
}

/// One GPU, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Seen {
    /// NVML's UUID.
    pub uuid: String,
    /// Why nothing can be granted of it: it is lost, or must be reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<String>,
    /// Memory in bytes that processes outside of all leases hold.
    #[serde(default)]
    pub foreign: u64,
    /// Those processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outsiders: Vec<Outsider>,
}

/// The GPUs, as the driver showed them when it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Version of this format.
    pub version: u32,
    /// `/proc/sys/kernel/random/boot_id` at that time.
    pub boot_id: String,
    /// What was seen.
    pub gpus: Vec<Seen>,
}
