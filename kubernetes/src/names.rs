//! The names by which the cluster knows what this driver serves.

/// The driver (`spec.driver` of a ResourceSlice, `device.driver` in CEL).
pub const DRIVER: &str = "gpu.fgpu.dev";
/// Capacity of a GPU by bytes: device memory.
pub const MEMORY: &str = "memory";
/// Capacity of a GPU by bytes: SM time in percent. 0 books none.
pub const CORES: &str = "cores";
/// Capacity of a GPU by shares: percent of its memory and of its SM time.
pub const SHARE: &str = "share";
/// Ends the name of the device that is a GPU by shares.
pub const SHARE_DEVICE: &str = "-share";

/// The device that is the GPU with this minor number by bytes. The one by shares has [`SHARE_DEVICE`] behind.
pub fn device(minor: u32) -> String {
    format!("gpu-{minor}")
}
