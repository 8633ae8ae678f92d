//! Other systems' words for the same things, translated into ours where the node's configuration opts in.
//!
//! | vocabulary | annotation | unit | becomes |
//! |---|---|---|---|
//! | `kai` | `gpu-fraction` | above 0, below 1 | `fraction` |
//! | | `gpu-memory` | MiB | `memory`, no share of the cores |
//! | | `gpu-sm-percentage` | 1 to 100 | `cores`; `gpu-fraction` is of the memory alone then |
//! | | `gpu-fraction-num-devices` | GPUs | `count`; not without one of the first two |
//! | | `gpu-fraction-container-name` | name | the others are that container's |
//! | | `nvidia.com/container.NAME.gpu-memory.limit`, else `….request` | quantity | `memory` of that container |
//! | | `nvidia.com/container.NAME.gpu-compute.mode` | `time-slicing`, `sm-sharing` | nothing: neither promises SM time |
//! | `hami`, `volcano` | `nvidia.com/gpu`, `volcano.sh/vgpu-number` | GPUs | `count` |
//! | | `nvidia.com/gpumem`, `volcano.sh/vgpu-memory` | MiB | `memory` of each |
//! | | `…/gpumem-percentage`, `…/vgpu-memory-percentage` | 1 to 100 | share of each one's memory; all of it if nothing is said |
//! | | `…/gpucores`, `…/vgpu-cores` | 0 to 100 | `cores`; 0 or nothing: no share of them; 100: the GPU alone |
//! | | `…/vgpu-mode` | `hami-core`, `mig`; in HAMi's both, with a comma between | `isolation` |
//! | | `nvidia.com/use-gputype`, `nouse-gputype` | models | `model` |
//! | `hami` | `nvidia.com/use-gpuuuid`, `nouse-gpuuuid` | UUIDs | `device` |
//! | `volcano` | `volcano.sh/vgpu-use-gpuuuid`, `vgpu-nouse-gpuuuid` | UUIDs | `device` |
//! | `hami` | `hami.io/gpu-scheduler-policy` | `binpack`, `spread`, `topology-aware`, `numa`, `mutex`, with commas between | `policy` |
//! | `backend.ai` | `cuda.shares` | `units-per-gpu`, else GPUs | `units` |
//! | | `cuda.device` | GPUs | `count` |
//! | `nvidia` | the variable `NVIDIA_GPU_MEMORY_LIMIT` of the environment | MiB | no more than that of each GPU |
//!
//! *No share of the cores* is what our own `memory` is without `cores`: none is booked, and the container has
//! what others leave. Those systems neither limit nor count compute there, either. Where a number of GPUs may
//! be 0 in the other system it is 0 here, and the container gets none.
//!
//! What is translated counts like a key of the pod: a container's own `CONTAINER.fgpu/KEY` goes before it,
//! and beside `fgpu/KEY` of the same meaning, or the same in another vocabulary, it is a conflict. A filter
//! or policy without an amount asks for nothing: in Kubernetes HAMi's and Volcano's amounts are resource
//! limits, which no runtime sees.
//!
//! Sources: KAI-Scheduler `pkg/common/constants` and its GPU request validator; HAMi `docs/config.md` and
//! `pkg/device/nvidia` and `pkg/scheduler/policy` of August 2026; Volcano
//! `pkg/scheduler/api/devices/nvidia/vgpu` of the same month; Backend.AI "Resource Management";
//! kai-gpu-fractioning `fractiond/internal/injection`, which writes the variable that NVIDIA's toolkit reads.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::key::Key;
use super::number::{self, Reason, WHOLE};
use crate::{Code, Error, escape_for_display};

mod backend_ai;
mod hami;
mod kai;
mod nvidia;

/// Another system whose words a node can understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vocabulary {
    /// KAI Scheduler and Run:ai.
    Kai,
    /// HAMi.
    Hami,
    /// Volcano's vGPU.
    Volcano,
    /// Backend.AI.
    BackendAi,
    /// NVIDIA's Container Toolkit, which reads a variable of the environment.
    Nvidia,
}

impl Vocabulary {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kai, Self::Hami, Self::Volcano, Self::BackendAi, Self::Nvidia];

    /// The annotations that it knows, in full.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Kai => kai::KEYS,
            Self::Hami => hami::HAMI.keys,
            Self::Volcano => hami::VOLCANO.keys,
            Self::BackendAi => backend_ai::KEYS,
            Self::Nvidia => &[],
        }
    }

    /// The variables of the environment that it knows.
    pub fn variables(self) -> &'static [&'static str] {
        if self == Self::Nvidia { &[nvidia::LIMIT] } else { &[] }
    }
}

impl Vocabulary {
    /// What its other annotations begin with: those that have a container's name in them.
    pub fn heads(self) -> impl Iterator<Item = &'static str> {
        let all: &[(&str, &str)] = if self == Self::Kai { &kai::OF_CONTAINER } else { &[] };
        all.iter().map(|(head, _)| *head)
    }

    /// What its words mean, for the reference.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Kai => {
                "`gpu-fraction`: above 0 and below 1, of the memory and the SM time; beside `gpu-sm-percentage` (1 to 100) of \
                 the memory alone. `gpu-memory`: MiB, and no share of the SM time. `gpu-fraction-num-devices`: GPUs. \
                 `gpu-fraction-container-name`: the container that is meant; else all of a pod. \
                 `nvidia.com/container.NAME.gpu-memory.limit`, or `.request` without one: a quantity (`4Gi`), for the container of \
                 that name, and no share of the SM time, whatever its `.gpu-compute.mode`."
            }
            Self::Hami => {
                "`gpu`: GPUs. `gpumem`: MiB of each; `gpumem-percentage`: 1 to 100; neither: all of it. `gpucores`: percent of \
                 the SM time; 0 or nothing: no share of it; 100, or whole GPUs: for this container alone. `vgpu-mode`: \
                 `hami-core` is the quota tier, `mig` a MIG device, both either. `use-` and `nouse-`: what may serve it and what \
                 not. `gpu-scheduler-policy`: `mutex` (exclusive), or the first of `binpack` (pack) and `spread`; \
                 `topology-aware` and `numa` are what fgpu does in any case. `nvidia.com/priority` and `nvidia.com/numa-bind` \
                 are not understood."
            }
            Self::Volcano => "As HAMi's: `vgpu-number` is its `gpu`.",
            Self::BackendAi => {
                "`cuda.shares`: units of `units-per-gpu`, or GPUs where the node has no unit. `cuda.device`: whole GPUs."
            }
            Self::Nvidia => {
                "`NVIDIA_GPU_MEMORY_LIMIT`, a variable of the environment, also of the image's: MiB. Of each GPU the container gets \
                 no more memory than that. It lowers what the container asks for in fgpu's or another system's words and asks \
                 for nothing by itself; it changes neither a MIG profile that is named, nor a share that a pod's containers \
                 have together, nor a claim."
            }
        }
    }
}

impl fmt::Display for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kai => "kai",
            Self::Hami => "hami",
            Self::Volcano => "volcano",
            Self::BackendAi => "backend.ai",
            Self::Nvidia => "nvidia",
        })
    }
}

impl FromStr for Vocabulary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|vocabulary| vocabulary.to_string() == text).ok_or_else(|| {
            let all = Self::ALL.map(|vocabulary| vocabulary.to_string());
            format!("{} is no vocabulary; there are {}", escape_for_display(text), all.join(", "))
        })
    }
}

/// Whether an annotation speaks for this container of a pod alone.
pub(super) fn names_container(key: &str, container: &str, vocabularies: &[Vocabulary]) -> bool {
    vocabularies.contains(&Vocabulary::Kai) && kai::names(key, container)
}

/// Each key of each vocabulary has one of these in it. Without any of them there is nothing to translate.
pub const ALIAS_MARKS: [&str; 2] = ["gpu", "cuda."];

/// One of our values in other words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Translated {
    /// In our grammar.
    pub(super) value: String,
    /// As it was written, `KEY=VALUE`, for messages.
    pub(super) written: String,
}

/// What a container's annotations say in the vocabularies of the node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translation {
    pub(super) values: BTreeMap<Key, Translated>,
    /// It has its GPUs for itself unless `fgpu/policy` says otherwise.
    pub(super) alone: bool,
}

impl Translation {
    /// Reads the annotations that speak for `container`.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] for a value that is out of its own grammar, [`Code::Conflict`] for two that
    /// contradict each other.
    pub(super) fn of(
        annotations: &BTreeMap<String, String>,
        container: Option<&str>,
        vocabularies: &[Vocabulary],
    ) -> Result<Self, Error> {
        let mut translation = Self::default();
        let words = Words { annotations };
        for vocabulary in Vocabulary::ALL.iter().filter(|vocabulary| vocabularies.contains(vocabulary)) {
            match vocabulary {
                Vocabulary::Kai => kai::translate(&words, container, &mut translation)?,
                Vocabulary::Hami => hami::translate(&words, &hami::HAMI, &mut translation)?,
                Vocabulary::Volcano => hami::translate(&words, &hami::VOLCANO, &mut translation)?,
                Vocabulary::BackendAi => backend_ai::translate(&words, &mut translation)?,
                Vocabulary::Nvidia => {}
            }
        }
        Ok(translation)
    }

    /// Takes a value of ours for what was written.
    fn put(&mut self, key: Key, value: String, written: &str) -> Result<(), Error> {
        let new = Translated { value, written: written.to_owned() };
        match self.values.get(&key) {
            // Two vocabularies have the same annotation.
            Some(old) if *old == new => Ok(()),
            Some(old) => Err(conflict(&old.written, written)),
            None => {
                self.values.insert(key, new);
                Ok(())
            }
        }
    }
}

/// The error for two that say the same thing.
pub(super) fn conflict(one: &str, other: &str) -> Error {
    let message =
        format!("{one} and {other} contradict each other: both say the same thing; keep one of them");
    Error::new(Code::Conflict, message)
}

/// The annotations by their names.
struct Words<'a> {
    annotations: &'a BTreeMap<String, String>,
}

impl Words<'_> {
    /// The value of an annotation as `read` understands it, and the annotation as it was written.
    fn get<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Reason>,
    ) -> Result<Option<(T, String)>, Error> {
        let Some(text) = self.annotations.get(key) else { return Ok(None) };
        let written = format!("{key}={}", escape_for_display(text));
        match read(text) {
            Ok(value) => Ok(Some((value, written))),
            Err(reason) => Err(Error::new(Code::InvalidRequest, format!("{written} {reason}"))),
        }
    }
}

/// A whole number of `least` to `most`.
fn whole(text: &str, least: u64, most: u64, what: &str) -> Result<u64, Reason> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && (least..=most).contains(number)).ok_or_else(|| {
        if most == u64::MAX {
            format!("is not {what}; write a whole number of at least {least}")
        } else {
            format!("is not {what}; write a whole number of {least} to {most}")
        }
    })
}

/// A number of MiB as a size of ours.
fn mebibytes(text: &str, least: u64) -> Result<u64, Reason> {
    whole(text, least, u64::MAX >> 20, "a number of MiB")
}

/// A number of GPUs. More than we can give is told later, in our words.
fn gpus(text: &str, least: u64) -> Result<u64, Reason> {
    whole(text, least, u64::MAX, "a number of GPUs")
}

/// A decimal above 0 and below 1.
fn fraction(text: &str) -> Result<String, Reason> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match number::fraction(text) {
        Ok((ppm, _)) if plain && ppm < WHOLE => Ok(text.to_owned()),
        _ => Err(
            "is not a fraction; write a decimal above 0 and below 1 with at most 6 digits after the point"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests;
