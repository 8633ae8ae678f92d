//! What a request comes to: a placement or a refusal, and how each GPU stands to it.

use fgpu_spec::{Code, GrantedGpu};

use crate::Waiter;

/// What a request gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// One share per GPU, by index.
    pub gpus: Vec<GrantedGpu>,
    /// Whether no other lease may be placed on them.
    pub exclusive: bool,
    /// What was rounded, in words, the request's own notes first.
    pub notes: Vec<String>,
    /// Why these GPUs and not others, in words.
    pub why: String,
}

/// How one GPU stands to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It could serve it now.
    Fits,
    /// `fgpu/device` rules it out.
    OtherDevice,
    /// `fgpu/model` rules it out.
    OtherModel,
    /// It is in MIG mode.
    Mig,
    /// It is not in MIG mode, and the request wants a slice.
    NotMig,
    /// It has no MIG profile like that.
    NoProfile,
    /// It has no free place for a slice like that.
    NoPlacement,
    /// It is too small even when empty.
    TooSmall,
    /// The driver has lost it, or it must be reset.
    Unhealthy,
    /// Another container has it for itself.
    Exclusive,
    /// The request wants an empty GPU.
    Occupied,
    /// It lacks room now: of memory, of SM time, or of both.
    Short {
        /// Whether memory falls short.
        memory: bool,
        /// Whether SM time falls short.
        cores: bool,
    },
}

impl Verdict {
    /// Whether the GPU could serve the request if it were empty.
    pub(crate) fn is_suitable(self) -> bool {
        !matches!(
            self,
            Self::OtherDevice
                | Self::OtherModel
                | Self::Mig
                | Self::NotMig
                | Self::NoProfile
                | Self::TooSmall
                | Self::Unhealthy
        )
    }
}

/// One GPU as the request sees it, in the inventory's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuReport {
    /// Memory that may be granted, in bytes.
    pub usable: u64,
    /// Memory that is free, in bytes: what neither leases nor others hold.
    pub free_memory: u64,
    /// Memory that others hold, outside of all leases, in bytes.
    pub foreign: u64,
    /// SM time that is free, in ppm.
    pub free_cores_ppm: u32,
    /// Memory that the request asks of it, in bytes.
    pub asked_memory: u64,
    /// Whether it can serve it, or why not.
    pub verdict: Verdict,
    /// The MIG profile that would serve it, as a place in [`Gpu::mig_profiles`].
    pub profile: Option<usize>,
}

/// Why a request gets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no GPU that matches, or all that match are in MIG mode.
    NoGpu,
    /// It asks for a MIG device, and no GPU that matches is in MIG mode.
    NoMigGpu,
    /// No GPU in MIG mode has a profile like that.
    NoMigProfile,
    /// There is no free place for the slices now.
    NoMigPlacement {
        /// For how many of them there is one.
        found: u32,
    },
    /// The node has too few places for the slices, even when empty.
    TooManySlices {
        /// For how many of them it has one.
        most: u32,
    },
    /// The GPUs that could serve it are lost or must be reset.
    Unhealthy,
    /// Its fraction is less than 1 MiB.
    Nothing,
    /// The node has too few GPUs of that size, even when empty.
    TooLarge {
        /// How many there are.
        suitable: u32,
    },
    /// Its owner would hold too much.
    OwnerCap {
        /// What the owner may hold, in ppm of whole GPUs.
        cap_ppm: u64,
        /// What it holds.
        held_ppm: u64,
        /// What this request would add.
        asked_ppm: u64,
    },
    /// There is no room now.
    Short {
        /// Whether the total free would do.
        fragmented: bool,
        /// The largest fraction that fits on `count` GPUs now, in ppm, and the GPU (a place in the inventory)
        /// that sets it.
        largest: Option<(u32, usize)>,
    },
    /// There is room, but a request that waits ahead of it would lose by it.
    Behind(Box<Waiter>),
}

impl Refusal {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::NoGpu | Self::NoMigGpu => Code::NoGpu,
            Self::NoMigPlacement { .. } => Code::NoMigPlacement,
            Self::Unhealthy => Code::GpuUnhealthy,
            Self::Nothing => Code::InvalidRequest,
            Self::NoMigProfile | Self::TooManySlices { .. } | Self::TooLarge { .. } => Code::TooLarge,
            Self::OwnerCap { .. } => Code::Denied,
            Self::Short { fragmented: true, .. } => Code::Fragmented,
            Self::Short { fragmented: false, .. } | Self::Behind(_) => Code::NoCapacity,
        }
    }

    /// Whether it is worth waiting: a request that is above its owner's cap by itself is refused for ever.
    pub(crate) fn is_passing(&self) -> bool {
        self.may_pass() && !matches!(self, Self::OwnerCap { cap_ppm, asked_ppm, .. } if asked_ppm > cap_ppm)
    }

    /// Whether it may go away when leases end.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::OwnerCap { .. } | Self::Short { .. } | Self::NoMigPlacement { .. } | Self::Behind(_)
        )
    }
}

/// A placement or a refusal, and how each GPU stands to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Per GPU, in the inventory's order.
    pub gpus: Vec<GpuReport>,
    /// What comes of it.
    pub outcome: Result<Placement, Refusal>,
}
