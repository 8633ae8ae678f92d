//! The rules between the keys, as the page above this module has them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::asked::Asked;
use super::key::Key;
use super::number::{self, WHOLE};
use super::{Defaults, Filter, Isolation, MemoryAsk, Policy, Request, word};
use crate::{Code, Compute, Error};

/// Most GPUs that one container can ask for.
pub(super) const MOST_GPUS: u32 = 64;

/// How much of each GPU, before it is known whether a slice or a share is meant.
struct Amount {
    count: u32,
    memory: Option<MemoryAsk>,
    cores_ppm: Option<u32>,
}

impl Request {
    /// Reads the request for one container out of its annotations. `container` is its name in a pod (see
    /// [`container_name`](crate::container_name)), `None` outside of one. The sandbox of a pod must not come
    /// here: see [`is_sandbox`](crate::is_sandbox).
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
        Self::with_devices(annotations, &[], container, defaults)
    }

    /// As [`Request::parse`], for a container that has these CDI devices of ours, too, by their names
    /// ([`CDI_KIND`](crate::CDI_KIND)). Annotations refine what a device asks for.
    ///
    /// # Errors
    /// As [`Request::parse`].
    pub fn with_devices(
        annotations: &BTreeMap<String, String>,
        devices: &[String],
        container: Option<&str>,
        defaults: &Defaults,
    ) -> Result<Option<Self>, Error> {
        let asked = Asked::of(annotations, devices, container, &defaults.aliases)?;
        if asked.is_empty() || asked.opts_out()? {
            return Ok(None);
        }
        let mut notes = Vec::new();
        let amount = amount(&asked, defaults, &mut notes)?;
        let (isolation, mig) = isolation(&asked, defaults)?;
        // Whole GPUs in other systems' words come with all of their cores.
        let is_memory_alone = amount.memory.is_some() && amount.cores_ppm.is_none() && !asked.alone;
        let compute = compute(&asked, isolation, is_memory_alone, defaults)?;
        let device = filter(&asked, Key::Device, word::device)?;
        let model = filter(&asked, Key::Model, word::model)?;
        let silent = if asked.alone { Policy::Exclusive } else { defaults.policy };
        let policy = value(&asked, Key::Policy, word::choice)?.unwrap_or(silent);
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
            (None, Some(memory), None) if is_memory_alone => (memory, 0),
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
        // Several slices may be of one GPU.
        if mig.is_none() && !device.any.is_empty() && device.any.len() < amount.count as usize {
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
            places: Vec::new(),
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
    let memory_share = value(asked, Key::MemoryShare, number::fraction)?;
    let cores = value(asked, Key::Cores, number::cores)?;
    let count = value(asked, Key::Count, |text| number::count(text, MOST_GPUS))?;
    let units = units(asked, defaults)?;
    let mig = value(asked, Key::Mig, word::mig)?;

    const ONE_AMOUNT: &str = "each says how much by itself; keep one of them";
    let shares = [Key::Fraction, Key::Units, Key::MemoryShare, Key::Memory, Key::Cores]
        .map(|key| (key, asked.has(key)));
    let given: Vec<Key> = shares.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
    if let (Some("auto") | None, [first @ (Key::Fraction | Key::Units), second, ..]) =
        (mig.as_deref(), &*given)
    {
        return Err(asked.conflict(*first, *second, ONE_AMOUNT));
    }
    if memory_share.is_some() && memory.is_some() {
        return Err(asked.conflict(Key::MemoryShare, Key::Memory, ONE_AMOUNT));
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
            notes.push(format!("{} was rounded down to {got}", asked.escape_for_display(key)));
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
        memory: share
            .or(memory_share.map(|(ppm, _)| ppm))
            .map(MemoryAsk::Ppm)
            .or(memory.map(|(bytes, _)| MemoryAsk::Bytes(bytes))),
        cores_ppm: share.or(cores.map(|(ppm, _)| ppm)),
    })
}

fn units(asked: &Asked<'_>, defaults: &Defaults) -> Result<Option<number::Units>, Error> {
    if !asked.has(Key::Units) {
        return Ok(None);
    }
    // Backend.AI's unit is a GPU unless the administrator has another one.
    let alone = asked.is_translated(Key::Units).then_some(1);
    let Some(per_gpu) = defaults.units_per_gpu.filter(|per_gpu| *per_gpu > 0).or(alone) else {
        return Err(Error::new(
            Code::Denied,
            format!(
                "{} is not possible here: this node's configuration sets no units-per-gpu; use fgpu/fraction",
                asked.escape_for_display(Key::Units)
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
                asked.escape_for_display(Key::Isolation)
            ),
        )),
        (isolation, None) => Ok((isolation, None)),
    }
}

/// How the cores are meant. The node's default gives way where the tier leaves no choice, and a cap where no
/// share is booked.
fn compute(
    asked: &Asked<'_>,
    isolation: Isolation,
    is_memory_alone: bool,
    defaults: &Defaults,
) -> Result<Compute, Error> {
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
        (_, Some(Compute::Cap)) if is_memory_alone => {
            let memory = if asked.has(Key::Memory) { Key::Memory } else { Key::MemoryShare };
            Err(asked.conflict(
                Key::Compute,
                memory,
                "memory alone books no SM time that a cap could hold it to; add fgpu/cores, or remove fgpu/compute",
            ))
        }
        (_, None) if is_memory_alone && defaults.compute == Compute::Cap => Ok(Compute::Share),
        (_, compute) => Ok(compute.unwrap_or(defaults.compute)),
    }
}

fn filter(
    asked: &Asked<'_>,
    key: Key,
    read: impl Fn(&str) -> Result<Filter, number::Reason>,
) -> Result<Filter, Error> {
    let filter = value(asked, key, read)?.unwrap_or_default();
    match word::contradictory(&filter) {
        None => Ok(filter),
        Some(entry) => Err(Error::new(
            Code::Conflict,
            format!(
                "{} both wants and excludes {}; keep one of them",
                asked.escape_for_display(key),
                crate::escape_for_display(entry)
            ),
        )),
    }
}

fn wait(asked: &Asked<'_>, defaults: &Defaults, notes: &mut Vec<String>) -> Result<Duration, Error> {
    let Some(wait) = value(asked, Key::Wait, word::wait)? else {
        return Ok(defaults.wait_default.min(defaults.wait_max));
    };
    if wait <= defaults.wait_max {
        return Ok(wait);
    }
    notes.push(format!(
        "{} was cut to {} s, the longest that this node allows (wait-max)",
        asked.escape_for_display(Key::Wait),
        defaults.wait_max.as_secs()
    ));
    Ok(defaults.wait_max)
}
