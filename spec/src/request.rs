//! What the annotations ask for.
//!
//! The keys and their values are those of the README's table; these are the rules between them.
//!
//! **How much.** A request says how much of a GPU it wants in exactly one of these ways:
//!
//! | keys | gives |
//! |---|---|
//! | `fraction` | that share of memory and cores |
//! | `units` | that share of both, or whole GPUs |
//! | `memory`, perhaps `cores` | that memory; no cores are booked unless `cores` says how many |
//! | `mig=PROFILE` | that slice |
//! | `mig=auto` or `isolation=mig`, and `fraction`, `units`, `memory` and/or `cores` | the smallest slice that has it; what is not asked for is 0 |
//! | `count` alone | whole GPUs |
//!
//! Nothing of it is `invalid-request`; `cores` alone is too, because it leaves the memory open.
//!
//! **Contradictions** are `conflict`: `fraction`, `units` and `memory`/`cores` exclude each other; a named
//! MIG profile excludes all of them; `mig` excludes an `isolation` other than `auto` and `mig`, and
//! `compute=share` and `off`, since a slice has its cores to itself; `isolation=none` excludes `compute=cap`
//! and `share`; `memory` without `cores` excludes `compute=cap`; `units` for several whole GPUs exclude
//! `count`; a list that wants and excludes the same entry, or that wants fewer devices than `count`.
//!
//! `compute=off` does not exclude `cores`: the share is still taken from what others can get.
//!
//! **Memory alone** books no cores. It is `compute=share` with 0 of them: the container has, weighted by its
//! memory, what others leave ([`Request::is_unbooked`]). Where the node's default is `off` it is `off`.
//!
//! **Pods.** `CONTAINER.fgpu/KEY` stands for `fgpu/KEY` in the container of that name. An override that says
//! how much takes the place of those keys of the pod that it would contradict. `CONTAINER.fgpu/count=0`
//! leaves that container without a GPU. Where only overrides say how much, the other containers get none.
//! Overrides for other containers are not looked at: the container that they name will report them.
//!
//! **Other systems' words** count where the node's configuration says so; the table is that of `alias.rs`.
//!
//! **Rounding** is told in [`Request::notes`]: a ratio floored to a millionth, a size to a byte, a wait to
//! the node's longest.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Compute, MigPlace};

mod alias;
mod asked;
mod cdi;
mod key;
mod number;
mod pod;
mod reference;
mod rules;
mod word;

pub use alias::{ALIAS_MARKS, Vocabulary};
pub use cdi::{CDI_KIND, CLAIM_KIND, cdi_names};
pub use key::{annotations_from_env, opts_out};
pub use pod::{container_name, is_pod_wide, is_sandbox};
pub use reference::{KeyReference, key_reference};

/// How GPUs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Best fit: the GPU that is left with the least.
    #[default]
    Pack,
    /// The emptiest GPU.
    Spread,
    /// A GPU that no other container uses, for this container alone.
    Exclusive,
}

/// The tier the user insists on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryAsk {
    /// Bytes.
    Bytes(u64),
    /// Parts per million of a GPU's usable memory, floored to 1 MiB.
    Ppm(u32),
    /// As `Ppm`, and no more than so many bytes.
    PpmAtMost(u32, u64),
}

impl MemoryAsk {
    /// The same, and no more than `most` bytes.
    #[must_use]
    pub fn at_most(self, most: u64) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.min(most)),
            Self::Ppm(ppm) => Self::PpmAtMost(ppm, most),
            Self::PpmAtMost(ppm, bytes) => Self::PpmAtMost(ppm, bytes.min(most)),
        }
    }
}

/// `fgpu/device` or `fgpu/model`: a GPU passes if it matches one of `any` (or `any` is empty) and none of
/// `not`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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
    /// `wait-default`: `fgpu/wait` of a request that is silent. No longer than `wait-max`.
    pub wait_default: Duration,
    /// `wait-max`: the longest `fgpu/wait`.
    pub wait_max: Duration,
    /// `allow-none`.
    pub allow_none: bool,
    /// `aliases`: other systems whose words count.
    pub aliases: Vec<Vocabulary>,
}

/// A valid request. One that waits is written down as it is, so that others can tell what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Number of distinct GPUs, 1 to 64.
    pub count: u32,
    /// Memory of each. Of a named MIG profile it is the whole slice; under `mig=auto` it is what the slice
    /// must have at least, 0 if the request is silent.
    pub memory: MemoryAsk,
    /// SM time of each in ppm, under MIG as for `memory`; 0 where none is booked.
    pub cores_ppm: u32,
    /// How `cores_ppm` is meant.
    pub compute: Compute,
    /// The MIG profile asked for (`auto` or a profile name); always there when `isolation` is
    /// [`Isolation::Mig`], and only then.
    pub mig: Option<String>,
    /// Where its slices lie, one of these places each, if somebody else has decided that; no annotation says
    /// it. Empty: where they take the least room from others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<MigPlace>,
    /// The tier asked for.
    pub isolation: Isolation,
    /// `fgpu/device`: whole UUIDs (`GPU-` and lower-case hex digits) or indices in decimal.
    pub device: Filter,
    /// `fgpu/model`: lower-case substrings.
    pub model: Filter,
    /// How GPUs are chosen.
    pub policy: Policy,
    /// How long to wait for room, at most the node's `wait-max`.
    pub wait: Duration,
    /// Whom it counts against.
    pub owner: Option<String>,
    /// The `fgpu/` keys and values of the request in words, for messages: `fgpu/fraction=0.25`.
    pub text: String,
    /// What was rounded, in words; empty when the request is to the letter. Belongs into the grant's notes.
    pub notes: Vec<String>,
}

impl Request {
    /// Whether it takes what others leave of the SM time and books none of it.
    pub fn is_unbooked(&self) -> bool {
        self.compute == Compute::Share && self.cores_ppm == 0
    }
}

/// Parses a size of the node's configuration with the grammar of `fgpu/memory`; `0` is allowed here. In
/// bytes.
///
/// # Errors
/// Why the text is no size, as the rest of a sentence about it.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { number::memory(text).map(|(bytes, _)| bytes) }
}

/// Parses a duration of the node's configuration with the grammar of `fgpu/wait`.
///
/// # Errors
/// Why the text is no duration, as the rest of a sentence about it.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    word::wait(text)
}

#[cfg(test)]
mod tests;
