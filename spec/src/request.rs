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
//! | `memory`, perhaps `cores` | that memory; 100% of the cores unless `cores` says otherwise |
//! | `mig=PROFILE` | that slice |
//! | `mig=auto` or `isolation=mig`, and `fraction`, `units`, `memory` and/or `cores` | the smallest slice that has it; what is not asked for is 0 |
//! | `count` alone | whole GPUs |
//!
//! Nothing of it is `invalid-request`; `cores` alone is too, because it leaves the memory open.
//!
//! **Contradictions** are `conflict`:
//! `fraction`, `units` and `memory`/`cores` exclude each other; a named MIG profile excludes all of them;
//! `mig` excludes an `isolation` other than `auto` and `mig`, and `compute=share` and `off`, since a slice has its
//! cores to itself; `isolation=none` excludes `compute=cap` and `share`; `units` for several whole GPUs exclude
//! `count`; a list that wants and excludes the same entry, or that wants fewer devices than `count`.
//!
//! `compute=off` does not exclude `cores`: the share is still taken from what others can get.
//!
//! **Pods.** `CONTAINER.fgpu/KEY` stands for `fgpu/KEY` in the container of that name. An override that says how
//! much takes the place of those keys of the pod that it would contradict. `CONTAINER.fgpu/count=0` leaves that
//! container without a GPU. Where only overrides say how much, the other containers get none. Overrides for
//! other containers are not looked at: the container that they name will report them.
//!
//! **Rounding** is told in [`Request::notes`]: a ratio floored to a millionth, a size to a byte, a wait to the
//! node's longest.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Code, Compute, Error};

mod key;
mod number;
mod word;

use key::{Asked, Key};
pub use key::{annotations_from_env, container_name, is_sandbox};
use number::WHOLE;

/// Most GPUs that one container can ask for.
const MOST_GPUS: u32 = 64;

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
    /// Number of distinct GPUs, 1 to 64.
    pub count: u32,
    /// Memory of each. Of a named MIG profile it is the whole slice; under `mig=auto` it is what the slice
    /// must have at least, 0 if the request is silent.
    pub memory: MemoryAsk,
    /// SM time of each in ppm, under MIG as for `memory`.
    pub cores_ppm: u32,
    /// How `cores_ppm` is meant.
    pub compute: Compute,
    /// The MIG profile asked for (`auto` or a profile name); always there when `isolation` is
    /// [`Isolation::Mig`], and only then.
    pub mig: Option<String>,
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

/// How much of each GPU, before it is known whether a slice or a share is meant.
struct Amount {
    count: u32,
    memory: Option<MemoryAsk>,
    cores_ppm: Option<u32>,
}

impl Request {
    /// Reads the request for one container out of its annotations. `container` is its name in a pod (see
    /// [`container_name`]), `None` outside of one. The sandbox of a pod must not come here: see
    /// [`is_sandbox`].
    ///
    /// `None` means that the container asks for no GPU and must run as it would without fgpu.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] for a key or value that is wrong by itself or a request that does not say
    /// how much, [`Code::Conflict`] for two that contradict each other, [`Code::Denied`] for what `defaults`
    /// forbid. The message is one line and names the annotation, the reason and what would be right.
    pub fn parse(
        annotations: &BTreeMap<String, String>,
        container: Option<&str>,
        defaults: &Defaults,
    ) -> Result<Option<Self>, Error> {
        let asked = Asked::of(annotations, container)?;
        if asked.is_empty() || asked.opts_out()? {
            return Ok(None);
        }
        let mut notes = Vec::new();
        let amount = amount(&asked, defaults, &mut notes)?;
        let (isolation, mig) = isolation(&asked, defaults)?;
        let compute = compute(&asked, isolation, defaults)?;
        let device = filter(&asked, Key::Device, word::device)?;
        let model = filter(&asked, Key::Model, word::model)?;
        let policy = value(&asked, Key::Policy, word::choice)?.unwrap_or(defaults.policy);
        let owner = value(&asked, Key::Owner, word::owner)?;
        let wait = wait(&asked, defaults, &mut notes)?;

        let (memory, cores_ppm) = match (mig.as_deref(), amount.memory, amount.cores_ppm) {
            (Some("auto"), None, None) => {
                return missing(
                    &asked,
                    "how big a slice it needs",
                    "fgpu/memory, fgpu/cores or fgpu/fraction",
                );
            }
            (Some("auto"), memory, cores) => (memory.unwrap_or(MemoryAsk::Bytes(0)), cores.unwrap_or(0)),
            (Some(_), _, _) => (MemoryAsk::Ppm(WHOLE), WHOLE),
            (None, Some(memory), cores) => (memory, cores.unwrap_or(WHOLE)),
            (None, None, Some(_)) => {
                return missing(
                    &asked,
                    "how much memory goes with the cores",
                    "fgpu/memory, or use fgpu/fraction for both",
                );
            }
            (None, None, None) if asked.has(Key::Count) => (MemoryAsk::Ppm(WHOLE), WHOLE),
            (None, None, None) => {
                return missing(&asked, "how much it asks for", "fgpu/fraction, fgpu/memory or fgpu/count");
            }
        };
        if !device.any.is_empty() && device.any.len() < amount.count as usize {
            let count = if asked.has(Key::Count) { Key::Count } else { Key::Units };
            return Err(asked.conflict(
                count,
                Key::Device,
                &format!(
                    "{} distinct GPUs cannot be found among {}; name more devices or ask for fewer",
                    amount.count,
                    device.any.len()
                ),
            ));
        }
        Ok(Some(Self {
            count: amount.count,
            memory,
            cores_ppm,
            compute,
            mig,
            isolation,
            device,
            model,
            policy,
            wait,
            owner,
            text: asked.text(),
            notes,
        }))
    }
}

/// The answer to a request that leaves something open.
fn missing(asked: &Asked<'_>, what: &str, add: &str) -> Result<Option<Request>, Error> {
    if asked.amount_elsewhere && !asked.says_how_much() {
        // The pod's keys are defaults for the containers whose overrides say how much.
        return Ok(None);
    }
    Err(Error::new(Code::InvalidRequest, format!("{} does not say {what}; add {add}", asked.text())))
}

/// The value of a key, or `None` if the key is absent.
fn value<T>(
    asked: &Asked<'_>,
    key: Key,
    read: impl Fn(&str) -> Result<T, number::Reason>,
) -> Result<Option<T>, Error> {
    asked.get(key).map(|text| read(text).map_err(|reason| asked.wrong(key, &reason))).transpose()
}

fn amount(asked: &Asked<'_>, defaults: &Defaults, notes: &mut Vec<String>) -> Result<Amount, Error> {
    let fraction = value(asked, Key::Fraction, number::fraction)?;
    let memory = value(asked, Key::Memory, number::memory)?;
    let cores = value(asked, Key::Cores, number::cores)?;
    let count = value(asked, Key::Count, |text| number::count(text, MOST_GPUS))?;
    let units = units(asked, defaults)?;
    let mig = value(asked, Key::Mig, word::mig)?;

    const ONE_AMOUNT: &str = "each says how much by itself; keep one of them";
    let shares = [Key::Fraction, Key::Units, Key::Memory, Key::Cores].map(|key| (key, asked.has(key)));
    let given: Vec<Key> = shares.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
    if let (Some("auto") | None, [first @ (Key::Fraction | Key::Units), second, ..]) =
        (mig.as_deref(), &*given)
    {
        return Err(asked.conflict(*first, *second, ONE_AMOUNT));
    }
    if let (Some(profile), [first, ..]) = (mig.as_deref(), &*given)
        && profile != "auto"
    {
        return Err(asked.conflict(
            Key::Mig,
            *first,
            "a profile has its own memory and cores; keep one of them, or ask for fgpu/mig=auto",
        ));
    }
    if units.as_ref().is_some_and(|units| units.count > 1) && count.is_some() {
        return Err(asked.conflict(
            Key::Units,
            Key::Count,
            "the units ask for several whole GPUs by themselves; keep one of them",
        ));
    }

    let mut note = |key: Key, exact: bool, got: String| {
        if !exact {
            notes.push(format!("{} was rounded down to {got}", asked.shown(key)));
        }
    };
    let millionths = |ppm: u32| format!("{ppm} millionths of a GPU");
    if let Some((ppm, exact)) = fraction {
        note(Key::Fraction, exact, millionths(ppm));
    }
    if let Some((bytes, exact)) = memory {
        note(Key::Memory, exact, format!("{bytes} bytes"));
    }
    if let Some((ppm, exact)) = cores {
        note(Key::Cores, exact, millionths(ppm));
    }
    if let Some(units) = &units {
        note(Key::Units, units.exact, millionths(units.ppm));
    }

    let share = fraction.map(|(ppm, _)| ppm).or(units.as_ref().map(|units| units.ppm));
    Ok(Amount {
        count: count.or(units.map(|units| units.count)).unwrap_or(1),
        memory: share.map(MemoryAsk::Ppm).or(memory.map(|(bytes, _)| MemoryAsk::Bytes(bytes))),
        cores_ppm: share.or(cores.map(|(ppm, _)| ppm)),
    })
}

fn units(asked: &Asked<'_>, defaults: &Defaults) -> Result<Option<number::Units>, Error> {
    if !asked.has(Key::Units) {
        return Ok(None);
    }
    let Some(per_gpu) = defaults.units_per_gpu.filter(|per_gpu| *per_gpu > 0) else {
        return Err(Error::new(
            Code::Denied,
            format!(
                "{} is not possible here: this node's configuration sets no units-per-gpu; use fgpu/fraction",
                asked.shown(Key::Units)
            ),
        ));
    };
    value(asked, Key::Units, |text| number::units(text, per_gpu, MOST_GPUS))
}

/// The tier and the slice, each of which implies the other.
fn isolation(asked: &Asked<'_>, defaults: &Defaults) -> Result<(Isolation, Option<String>), Error> {
    let isolation = value(asked, Key::Isolation, word::choice)?.unwrap_or_default();
    let mig = value(asked, Key::Mig, word::mig)?;
    match (isolation, &mig) {
        (Isolation::Auto | Isolation::Mig, Some(_)) => Ok((Isolation::Mig, mig)),
        (Isolation::Mig, None) => Ok((Isolation::Mig, Some("auto".to_owned()))),
        (_, Some(_)) => {
            Err(asked.conflict(Key::Mig, Key::Isolation, "a slice is of the mig tier; remove one of them"))
        }
        (Isolation::None, None) if !defaults.allow_none => Err(Error::new(
            Code::Denied,
            format!(
                "{} is forbidden: this node's configuration does not say allow-none = true; use auto or quota",
                asked.shown(Key::Isolation)
            ),
        )),
        (isolation, None) => Ok((isolation, None)),
    }
}

/// How the cores are meant. The node's default gives way where the tier leaves no choice.
fn compute(asked: &Asked<'_>, isolation: Isolation, defaults: &Defaults) -> Result<Compute, Error> {
    let compute = value(asked, Key::Compute, word::choice)?;
    let tier = if asked.has(Key::Mig) { Key::Mig } else { Key::Isolation };
    match (isolation, compute) {
        (Isolation::Mig, None | Some(Compute::Cap)) => Ok(Compute::Cap),
        (Isolation::Mig, Some(_)) => Err(asked.conflict(
            Key::Compute,
            tier,
            "a slice has its cores to itself, neither more nor less; remove one of them",
        )),
        (Isolation::None, None | Some(Compute::Off)) => Ok(Compute::Off),
        (Isolation::None, Some(_)) => Err(asked.conflict(
            Key::Compute,
            tier,
            "without isolation nothing limits the cores; remove one of them",
        )),
        (_, compute) => Ok(compute.unwrap_or(defaults.compute)),
    }
}

fn filter(
    asked: &Asked<'_>,
    key: Key,
    read: impl Fn(&str) -> Result<Filter, number::Reason>,
) -> Result<Filter, Error> {
    let filter = value(asked, key, read)?.unwrap_or_default();
    match word::torn(&filter) {
        None => Ok(filter),
        Some(entry) => Err(Error::new(
            Code::Conflict,
            format!("{} both wants and excludes {}; keep one of them", asked.shown(key), crate::shown(entry)),
        )),
    }
}

fn wait(asked: &Asked<'_>, defaults: &Defaults, notes: &mut Vec<String>) -> Result<Duration, Error> {
    let wait = value(asked, Key::Wait, word::wait)?.unwrap_or_default();
    if wait <= defaults.wait_max {
        return Ok(wait);
    }
    notes.push(format!(
        "{} was cut to {} s, the longest that this node allows (wait-max)",
        asked.shown(Key::Wait),
        defaults.wait_max.as_secs()
    ));
    Ok(defaults.wait_max)
}

/// Parses a size of the node's configuration with the grammar of `fgpu/memory`; `0` is allowed here. In bytes.
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
