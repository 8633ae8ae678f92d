//! Placement: which GPUs a request gets. A function of its arguments.
//!
//! What counts:
//! - Memory counts as granted in every tier, `none` included: there it is a promise among neighbours.
//! - SM time counts as asked for `cap` and `share` (both promise it). `off` promises none, and memory alone
//!   asks for none: both take none, and their grants say 0 ppm. Containers that ask only for memory share a
//!   GPU as long as its memory lasts.
//! - Memory that is held outside of all leases is not free, and a GPU that is lost or must be reset serves
//!   nothing ([`Rules::seen`]).
//! - An exclusive lease takes the GPU, whatever it leaves over. It must be the first and stays the only one.
//! - A GPU in MIG mode serves no fractions; slices of it are placed in `mig.rs`.

use fgpu_spec::{Compute, Filter, Gpu, GrantedGpu, Inventory, MemoryAsk, Policy, Request};

use crate::capacity::{Held, worth};
use crate::choose::{Candidate, choose};
use crate::decision::{Decision, GpuReport, Placement, Refusal, Verdict};
use crate::ratio::{WHOLE, ppm};
use crate::{Rules, reason, words};

/// Decides a request for a fraction, given what is `held` of each GPU (in the inventory's order) and what the
/// request's owner holds in all (ppm of whole GPUs).
pub fn place(
    inventory: &Inventory,
    rules: &Rules,
    request: &Request,
    held: &[Held],
    owner_ppm: u64,
) -> Decision {
    debug_assert_eq!(inventory.gpus.len(), held.len());
    let cores_ppm = cores(request);
    let pairs = inventory.gpus.iter().zip(held);
    let gpus: Vec<_> = pairs.map(|(gpu, held)| report(gpu, held, rules, request, cores_ppm)).collect();
    let outcome = decide(inventory, rules, request, &gpus, cores_ppm, owner_ppm);
    Decision { gpus, outcome }
}

/// SM time that counts against a GPU, in ppm.
pub(crate) fn cores(request: &Request) -> u32 {
    if request.compute == Compute::Off { 0 } else { request.cores_ppm }
}

/// How a GPU of which that much is held stands to a request that takes `cores_ppm`.
pub(crate) fn report(gpu: &Gpu, held: &Held, rules: &Rules, request: &Request, cores_ppm: u32) -> GpuReport {
    let usable = gpu.usable_memory(rules.reserve_memory);
    let foreign = rules.foreign(&gpu.uuid);
    let free_memory = usable.saturating_sub(held.memory).saturating_sub(foreign);
    let free_cores_ppm = WHOLE.saturating_sub(held.cores_ppm);
    let asked_memory = in_bytes(request.memory, usable);
    let (memory, cores) = (asked_memory > free_memory, cores_ppm > free_cores_ppm);
    let verdict = if let Some(verdict) = filtered(gpu, request) {
        verdict
    } else if gpu.mig_enabled {
        Verdict::Mig
    } else if asked_memory > usable || cores_ppm > WHOLE {
        Verdict::TooSmall
    } else if rules.is_unhealthy(&gpu.uuid) {
        Verdict::Unhealthy
    } else if held.exclusive {
        Verdict::Exclusive
    } else if request.policy == Policy::Exclusive && (held.leases > 0 || foreign > 0) {
        Verdict::Occupied
    } else if memory || cores {
        Verdict::Short { memory, cores }
    } else {
        Verdict::Fits
    };
    GpuReport { usable, free_memory, foreign, free_cores_ppm, asked_memory, verdict, profile: None }
}

/// Whether the request's own words rule the GPU out.
pub(crate) fn filtered(gpu: &Gpu, request: &Request) -> Option<Verdict> {
    if !passes(&request.device, |entry| is_device(entry, gpu)) {
        return Some(Verdict::OtherDevice);
    }
    (!passes(&request.model, |entry| is_model(entry, gpu))).then_some(Verdict::OtherModel)
}

/// What is asked of a GPU that has `usable` bytes.
pub(crate) fn in_bytes(asked: MemoryAsk, usable: u64) -> u64 {
    let part = |ppm| exact(usable, ppm).0 & !((1 << 20) - 1);
    match asked {
        MemoryAsk::Bytes(bytes) => bytes,
        MemoryAsk::Ppm(ppm) => part(ppm),
        MemoryAsk::PpmAtMost(ppm, most) => part(ppm).min(most),
    }
}

/// A part of `usable` in bytes, and whether nothing was cut off.
pub(crate) fn exact(usable: u64, ppm: u32) -> (u64, bool) {
    let product = u128::from(usable) * u128::from(ppm);
    let bytes = product / u128::from(WHOLE);
    (u64::try_from(bytes).unwrap_or(u64::MAX), product.is_multiple_of(u128::from(WHOLE)))
}

fn passes(filter: &Filter, matches: impl Fn(&str) -> bool) -> bool {
    let any = filter.any.is_empty() || filter.any.iter().any(|entry| matches(entry));
    any && !filter.not.iter().any(|entry| matches(entry))
}

/// An index or a UUID.
fn is_device(entry: &str, gpu: &Gpu) -> bool {
    entry.parse() == Ok(gpu.index) || gpu.uuid.eq_ignore_ascii_case(entry)
}

fn is_model(entry: &str, gpu: &Gpu) -> bool {
    gpu.model.to_lowercase().contains(&entry.to_lowercase())
}

fn decide(
    inventory: &Inventory,
    rules: &Rules,
    request: &Request,
    gpus: &[GpuReport],
    cores_ppm: u32,
    owner_ppm: u64,
) -> Result<Placement, Refusal> {
    let eligible = |report: &GpuReport| {
        report.verdict.is_suitable() || matches!(report.verdict, Verdict::TooSmall | Verdict::Unhealthy)
    };
    if !gpus.iter().any(eligible) {
        return Err(Refusal::NoGpu);
    }
    let count = request.count.max(1) as usize;
    let suitable: Vec<_> = (0..gpus.len()).filter(|&at| gpus[at].verdict.is_suitable()).collect();
    let unhealthy = gpus.iter().filter(|gpu| gpu.verdict == Verdict::Unhealthy).count();
    if suitable.len() < count && suitable.len() + unhealthy >= count {
        return Err(Refusal::Unhealthy);
    }
    if suitable.len() < count {
        return Err(Refusal::TooLarge { suitable: u32::try_from(suitable.len()).unwrap_or(u32::MAX) });
    }
    if suitable.iter().all(|&at| gpus[at].asked_memory == 0) {
        return Err(Refusal::Nothing);
    }
    let fits = |at: &usize| gpus[*at].verdict == Verdict::Fits && gpus[*at].asked_memory > 0;
    // Best fit and its opposite.
    let cost = |at: usize| match request.policy {
        Policy::Pack => u64::from(left(&gpus[at], cores_ppm)),
        Policy::Spread => u64::MAX - u64::from(left(&gpus[at], cores_ppm)),
        Policy::Exclusive => gpus[at].usable,
    };
    let candidate = |at| Candidate { at, index: inventory.gpus[at].index, cost: cost(at) };
    let candidates: Vec<_> = suitable.iter().copied().filter(fits).map(candidate).collect();
    let fitting = candidates.len();
    if fitting < count {
        return Err(short(request, gpus, &suitable, cores_ppm, count));
    }
    let keep_links = request.policy != Policy::Spread;
    let picked = choose(candidates, count, &inventory.topology, keep_links);
    let chosen = &picked.places;

    let exclusive = request.policy == Policy::Exclusive;
    let cap = request.owner.as_ref().and_then(|owner| rules.owner_max_gpus.get(owner));
    if let Some(&cap) = cap {
        let cap_ppm = u64::from(cap) * u64::from(WHOLE);
        let one =
            |&at: &usize| worth(&inventory.gpus[at], rules, gpus[at].asked_memory, cores_ppm, exclusive);
        let asked_ppm = chosen.iter().map(one).sum();
        if owner_ppm.saturating_add(asked_ppm) > cap_ppm {
            return Err(Refusal::OwnerCap { cap_ppm, held_ppm: owner_ppm, asked_ppm });
        }
    }
    let share = |&at: &usize| GrantedGpu {
        uuid: inventory.gpus[at].uuid.clone(),
        memory: gpus[at].asked_memory,
        cores_ppm,
        mig: None,
    };
    let floored = chosen.iter().filter_map(|&at| note(&inventory.gpus[at], &gpus[at], request.memory));
    let notes = request.notes.iter().cloned().chain(floored).collect();
    let why = reason::why(request.policy, fitting, &picked, &inventory.topology);
    Ok(Placement { gpus: chosen.iter().map(share).collect(), exclusive, notes, why })
}

/// What the GPU has left with the share placed on it: ppm of memory plus ppm of SM time.
fn left(gpu: &GpuReport, cores_ppm: u32) -> u32 {
    let memory = ppm(gpu.free_memory - gpu.asked_memory, gpu.usable);
    memory.saturating_add(gpu.free_cores_ppm - cores_ppm)
}

fn note(gpu: &Gpu, report: &GpuReport, asked: MemoryAsk) -> Option<String> {
    let (MemoryAsk::Ppm(ppm) | MemoryAsk::PpmAtMost(ppm, _)) = asked else { return None };
    if exact(report.usable, ppm) == (report.asked_memory, true) {
        return None;
    }
    let is_floored = in_bytes(MemoryAsk::Ppm(ppm), report.usable) == report.asked_memory;
    Some(format!(
        "memory of GPU {} is {} of {} MiB, {} to {} MiB",
        gpu.index,
        words::percent(ppm),
        report.usable >> 20,
        if is_floored { "floored" } else { "lowered" },
        report.asked_memory >> 20
    ))
}

/// Why there is no room on `count` GPUs, and what there is room for.
fn short(request: &Request, gpus: &[GpuReport], suitable: &[usize], cores_ppm: u32, count: usize) -> Refusal {
    let whole = request.policy == Policy::Exclusive;
    let open =
        || suitable.iter().map(|&at| (at, &gpus[at])).filter(|(_, gpu)| gpu.verdict != Verdict::Exclusive);
    // The least that the request needs of any GPU, in all.
    let needs = suitable.iter().map(|&at| if whole { gpus[at].usable } else { gpus[at].asked_memory });
    let need_memory = u128::from(needs.min().unwrap_or(0)) * count as u128;
    let need_cores = if whole { WHOLE } else { cores_ppm } as usize * count;
    let free_memory: u128 = open().map(|(_, gpu)| u128::from(gpu.free_memory)).sum();
    let free_cores: usize = open().map(|(_, gpu)| gpu.free_cores_ppm as usize).sum();
    // The fraction that each GPU has left; the count-th largest is what fits on so many at once.
    let mut fractions: Vec<_> = open()
        .filter(|(_, gpu)| gpu.verdict != Verdict::Occupied)
        .map(|(at, gpu)| {
            let memory = ppm(gpu.free_memory, gpu.usable);
            (if cores_ppm == 0 { memory } else { memory.min(gpu.free_cores_ppm) }, at)
        })
        .filter(|&(fraction, _)| fraction > 0)
        .collect();
    fractions.sort_by_key(|&(fraction, at)| (std::cmp::Reverse(fraction), at));
    Refusal::Short {
        fragmented: free_memory >= need_memory && free_cores >= need_cores,
        largest: fractions.get(count - 1).copied(),
    }
}

#[cfg(test)]
mod tests;
