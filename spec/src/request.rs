//! What the annotations ask for.

use std::time::Duration;

use crate::Compute;

/// How GPUs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Best fit: the GPU that is left with the least.
    #[default]
    Pack,
    /// The emptiest GPU.
    Spread,
    /// A GPU that nobody else uses, for this container alone.
    Exclusive,
}

/// The tier the user insists on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// The strongest that the node can give.
    #[default]
    Auto,
    /// A MIG device.
    Mig,
    /// The driver's own memory limit.
    Driver,
    /// The quota libraries.
    Quota,
    /// No limit.
    None,
}

/// How much device memory per GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryAsk {
    /// Bytes.
    Bytes(u64),
    /// Parts per million of a GPU's usable memory, floored to 1 MiB.
    Ppm(u32),
}

/// `fgpu/device` or `fgpu/model`: a GPU passes if it matches one of `any` (or `any` is empty) and none of
/// `not`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// At least one of these must match.
    pub any: Vec<String>,
    /// None of these may match.
    pub not: Vec<String>,
}

/// What the node's configuration says where a request is silent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Defaults {
    /// `policy`.
    pub policy: Policy,
    /// `[quota] compute`.
    pub compute: Compute,
    /// `units-per-gpu`; `fgpu/units` is `denied` without it.
    pub units_per_gpu: Option<u32>,
    /// `wait-max`: the longest `fgpu/wait`.
    pub wait_max: Duration,
    /// `allow-none`.
    pub allow_none: bool,
}

/// A valid request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Number of distinct GPUs.
    pub count: u32,
    /// Memory of each.
    pub memory: MemoryAsk,
    /// SM time of each, ppm.
    pub cores_ppm: u32,
    /// How `cores_ppm` is meant.
    pub compute: Compute,
    /// The MIG profile asked for (`auto` or a profile name).
    pub mig: Option<String>,
    /// The tier asked for.
    pub isolation: Isolation,
    /// `fgpu/device`: UUIDs or indices.
    pub device: Filter,
    /// `fgpu/model`: lower-case substrings.
    pub model: Filter,
    /// How GPUs are chosen.
    pub policy: Policy,
    /// How long to wait for room.
    pub wait: Duration,
    /// Whom it counts against.
    pub owner: Option<String>,
    /// The `fgpu/` keys and values of the request in words, for messages: `fgpu/fraction=0.25`.
    pub text: String,
}
