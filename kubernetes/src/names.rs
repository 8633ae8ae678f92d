//! The names by which the cluster knows what this driver serves.

use fgpu_spec::{MigPlacement, MigProfile};

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

/// Counter of a GPU in MIG mode: compute slices.
pub const SLICES: &str = "slices";

/// The device that is this place for a slice of a profile. A name of a device has no `.` and no `+`.
pub fn slice(minor: u32, profile: &MigProfile, placement: MigPlacement) -> String {
    format!("{}-mig-{}-{}", device(minor), label(&profile.name), placement.start)
}

/// The name of a MIG profile as a part of other names: `1g.10gb+me` is `1g-10gb-me`.
pub fn label(profile: &str) -> String {
    profile.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-").to_ascii_lowercase()
}

/// The device that is the GPU with this minor number by bytes. The one by shares has [`SHARE_DEVICE`] behind.
pub fn device(minor: u32) -> String {
    format!("gpu-{minor}")
}
