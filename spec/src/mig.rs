//! MIG, Multi-Instance GPU: the slices that a GPU can be cut into, and the slice of a grant.
//!
//! Names follow NVML: a *GPU instance* is a part of the memory with its engines and multiprocessors, a
//! *compute instance* the part of a GPU instance that a program computes on. fgpu makes one compute instance
//! that fills its GPU instance; the two together are a *MIG device* with a UUID of its own, `MIG-…`.

use serde::{Deserialize, Serialize};

/// Where a GPU instance lies, in memory slices (`nvmlGpuInstancePlacement_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MigPlacement {
    /// The first slice.
    pub start: u32,
    /// How many slices.
    pub size: u32,
}

impl MigPlacement {
    /// Whether the two share a slice.
    pub fn overlaps(self, other: Self) -> bool {
        u64::from(self.start) < u64::from(other.start) + u64::from(other.size)
            && u64::from(other.start) < u64::from(self.start) + u64::from(self.size)
    }
}

/// A kind of GPU instance, as the driver reports it (`nvmlGpuInstanceProfileInfo_t`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigProfile {
    /// Its name, for example `1g.10gb+me`.
    pub name: String,
    /// The id by which instances are created (`nvmlGpuInstanceProfileInfo_t.id`).
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Most instances of it that a GPU can have at a time.
    pub most: u32,
    /// Every placement that there is, whether it is free or not.
    pub placements: Vec<MigPlacement>,
}

/// A place for a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigPlace {
    /// The GPU's UUID.
    pub gpu: String,
    /// Where on it.
    #[serde(flatten)]
    pub placement: MigPlacement,
}

/// A slice in a grant: first a place that is reserved, then an instance that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigSlice {
    /// Where it lies.
    #[serde(flatten)]
    pub placement: MigPlacement,
    /// The profile's id.
    pub profile: u32,
    /// What of it exists.
    pub stage: MigStage,
    /// The profile's name.
    pub name: String,
    /// The instance, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<MigInstance>,
}

/// How far a slice has come. What may have to be destroyed is told by this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigStage {
    /// The place is reserved and nothing was made there.
    Planned,
    /// The place was seen empty, and an instance is about to be made there: whatever instance of this profile
    /// is there from now on is the grant's.
    Creating,
    /// The grant's own instance exists.
    Made,
    /// The grant's own instance is being destroyed: the GPU instance may be there without its compute
    /// instance.
    Destroying,
    /// The instance is the administrator's: used, and never destroyed.
    Borrowed,
}

impl MigStage {
    /// Whether there may be something to destroy.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Creating | Self::Made | Self::Destroying)
    }
}

/// A GPU instance with the one compute instance that fills it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// The GPU instance's id; ids are used again.
    pub gpu_instance: u32,
    /// The compute instance's id in it.
    pub compute_instance: u32,
    /// The MIG device's UUID, `MIG-…`; a device that is made again has another one.
    pub uuid: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_overlap_where_they_share_one() {
        let at = |start, size| MigPlacement { start, size };
        assert!(at(0, 4).overlaps(at(3, 1)) && at(3, 1).overlaps(at(0, 4)) && at(2, 2).overlaps(at(2, 2)));
        assert!(!at(0, 4).overlaps(at(4, 4)) && !at(4, 4).overlaps(at(0, 4)));
        assert!(!at(u32::MAX, u32::MAX).overlaps(at(0, 8)), "no overflow");
    }
}
