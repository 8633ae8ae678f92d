//! Refusals in words: the request, the reason with its numbers, and what to do next, in one line.

use std::fmt::Write;

use fgpu_spec::{Error, Gpu, Inventory, MemoryAsk, Policy, Request};

use crate::Rules;
use crate::capacity::Holder;
use crate::decision::{Decision, GpuReport, Refusal, Verdict};
use crate::names::called;
use crate::place;
use crate::words::{decimal, list, mib, percent};

mod case;
mod slices;

pub(crate) use case::Case;

/// The error that a front end prints.
pub(crate) fn error(refusal: &Refusal, case: &Case<'_>) -> Error {
    let Case { decision, request, rules, inventory, holders, .. } = *case;
    let asks = asks(decision, request);
    let message = match refusal {
        Refusal::NoGpu => no_gpu(decision, request, inventory),
        Refusal::NoMigGpu
        | Refusal::NoMigProfile
        | Refusal::NoMigPlacement { .. }
        | Refusal::TooManySlices { .. } => slices::refusal(refusal, case),
        Refusal::Nothing => format!("{asks}, less than 1 MiB of any GPU; ask for more"),
        Refusal::Unhealthy => format!(
            "{asks}; {}; reset it or reboot the node, and see `dmesg`; what was seen of the GPUs is looked at anew with every create, \
             and by fgpu inventory --refresh",
            unhealthy(decision, inventory, rules)
        ),
        Refusal::TooLarge { suitable } => too_large(&asks, *suitable, decision, request, inventory),
        Refusal::OwnerCap { cap_ppm, held_ppm, asked_ppm } => format!(
            "{asks}: {} GPU(s) worth for owner {}, who holds {} and may hold {}; end one of the owner's containers, \
             or ask the administrator for a higher max-gpus",
            decimal(*asked_ppm),
            request.owner.as_deref().unwrap_or_default(),
            decimal(*held_ppm),
            decimal(*cap_ppm),
        ),
        Refusal::Short { fragmented, largest } => {
            let mut text = format!("{asks}; {}", gpus_in_words(decision, inventory, holders));
            text += &foreign(decision, inventory, rules);
            if *fragmented {
                text += match request.policy {
                    Policy::Exclusive => "; the total free would do, but not enough GPUs are empty",
                    _ => "; the total free would do, but not on single GPUs",
                };
            }
            if let Some((ppm, at)) = largest.filter(|_| request.policy != Policy::Exclusive) {
                let gpu = &decision.gpus[at];
                let _ = write!(
                    text,
                    "; the largest that fits{} is {} ({} and {} free on GPU {})",
                    if request.count > 1 { format!(" {} GPUs", request.count) } else { String::new() },
                    decimal(u64::from(ppm)),
                    mib(gpu.free_memory),
                    percent(gpu.free_cores_ppm),
                    inventory.gpus[at].index,
                );
            }
            text + "; wait for one to end, or see fgpu status"
        }
        Refusal::Behind(waiter) => format!(
            "{asks}; there is room, but {} has waited for {} before it and would lose by it; ask with fgpu/wait to \
             queue up, or see fgpu status",
            called(&waiter.key, None),
            waiter.request.text,
        ),
    };
    Error::new(refusal.code(), message)
}

/// The reason alone, in a few words, for a table.
pub(crate) fn brief(refusal: &Refusal, request: &Request) -> String {
    match refusal {
        Refusal::Behind(waiter) => format!("after {}", called(&waiter.key, None)),
        Refusal::OwnerCap { cap_ppm, held_ppm, .. } => format!(
            "{} holds {} of {} GPU(s)",
            request.owner.as_deref().unwrap_or_default(),
            decimal(*held_ppm),
            decimal(*cap_ppm)
        ),
        Refusal::Short { .. } if request.policy == Policy::Exclusive => "too few empty GPUs".into(),
        Refusal::Short { largest: Some((ppm, _)), .. } => {
            format!("no room: {} is the largest that fits", decimal(u64::from(*ppm)))
        }
        Refusal::Short { .. } => "no room".into(),
        other => other.code().to_string(),
    }
}

/// `fgpu/fraction=0.25 asks 20320 MiB and 25% of the SMs`
fn asks(decision: &Decision, request: &Request) -> String {
    let open = decision.gpus.iter().filter(|gpu| !rules_out(gpu.verdict));
    let mut memory: Vec<_> = open.map(|gpu| gpu.asked_memory).collect();
    memory.dedup();
    let memory = match (memory.as_slice(), request.memory) {
        (&[bytes], _) | (_, MemoryAsk::Bytes(bytes)) => mib(bytes),
        (_, MemoryAsk::Ppm(ppm)) => format!("{} of the memory", percent(ppm)),
        (_, MemoryAsk::PpmAtMost(ppm, most)) => {
            format!("{} of the memory, {} at most", percent(ppm), mib(most))
        }
    };
    let cores = match place::cores(request) {
        0 => String::new(),
        ppm => format!(" and {} of the SMs", percent(ppm)),
    };
    let each = if request.count > 1 { format!(" on each of {} GPUs", request.count) } else { String::new() };
    let alone = if request.policy == Policy::Exclusive { ", alone on the GPU" } else { "" };
    format!("{} asks {memory}{cores}{each}{alone}", request.text)
}

fn rules_out(verdict: Verdict) -> bool {
    matches!(
        verdict,
        Verdict::OtherDevice | Verdict::OtherModel | Verdict::Mig | Verdict::NotMig | Verdict::NoProfile
    )
}

fn no_gpu(decision: &Decision, request: &Request, inventory: &Inventory) -> String {
    let text = &request.text;
    if inventory.gpus.is_empty() {
        return format!("{text}: this node has no GPU; see fgpu doctor");
    }
    if decision.gpus.iter().any(|gpu| gpu.verdict == Verdict::Mig) {
        return format!(
            "{text}: every GPU that matches is in MIG mode and serves no fractions: {}; turn MIG mode off on one",
            why_not(decision, inventory)
        );
    }
    format!("{text}: no GPU matches: {}; see fgpu inventory", why_not(decision, inventory))
}

fn why_not(decision: &Decision, inventory: &Inventory) -> String {
    let one = |(gpu, report): (&Gpu, &GpuReport)| {
        let why = match report.verdict {
            Verdict::OtherDevice => "is not in fgpu/device",
            Verdict::OtherModel => "is not in fgpu/model",
            Verdict::Mig => "is in MIG mode",
            Verdict::Unhealthy => "is unhealthy",
            _ => "is too small",
        };
        format!("GPU {} ({}, {}) {why}", gpu.index, gpu.model, gpu.uuid)
    };
    list(inventory.gpus.iter().zip(&decision.gpus).map(one))
}

fn too_large(
    asks: &str,
    suitable: u32,
    decision: &Decision,
    request: &Request,
    inventory: &Inventory,
) -> String {
    let open = || inventory.gpus.iter().zip(&decision.gpus).filter(|(_, report)| !rules_out(report.verdict));
    let largest = open().max_by_key(|(gpu, report)| (report.usable, std::cmp::Reverse(gpu.index)));
    let (index, usable) = largest.map_or((0, 0), |(gpu, report)| (gpu.index, report.usable));
    if suitable == 0 {
        format!(
            "{asks}; the largest GPU it may have is GPU {index} with {} usable; ask for less",
            mib(usable)
        )
    } else {
        format!(
            "{asks}; only {suitable} GPU(s) of this node can serve that even when empty; ask for {} fewer",
            request.count - suitable
        )
    }
}

/// `GPU 0 cannot be used: it must be reset`
fn unhealthy(decision: &Decision, inventory: &Inventory, rules: &Rules) -> String {
    let pairs = inventory.gpus.iter().zip(&decision.gpus);
    list(pairs.filter(|(_, report)| report.verdict == Verdict::Unhealthy).map(|(gpu, _)| {
        let why = rules.seen.get(&gpu.uuid).and_then(|seen| seen.unhealthy.as_deref());
        format!("GPU {} cannot be used: {}", gpu.index, why.unwrap_or("it is unhealthy"))
    }))
}

/// `; 8192 MiB of GPU 0 is held by processes outside fgpu: pid 123 python`
fn foreign(decision: &Decision, inventory: &Inventory, rules: &Rules) -> String {
    let pairs = inventory.gpus.iter().zip(&decision.gpus);
    let held = pairs.filter(|(_, report)| !rules_out(report.verdict) && report.foreign > 0);
    held.fold(String::new(), |mut text, (gpu, report)| {
        let outsiders = rules.seen.get(&gpu.uuid).map_or(&[][..], |seen| &seen.outsiders);
        // A process chooses its name.
        let who = list(
            outsiders
                .iter()
                .map(|one| format!("pid {} {}", one.pid, fgpu_spec::escape_for_display(&one.name))),
        );
        let who = if who.is_empty() { "the driver does not say which".to_owned() } else { who };
        let memory = mib(report.foreign.next_multiple_of(1 << 20));
        let _ = write!(text, "; {memory} of GPU {} is held by processes outside fgpu: {who}", gpu.index);
        text
    })
}

/// `GPU 0 has 0 MiB and 0% free (short of memory and SMs), held by moby/3f2a19bc44d0 (20320 MiB, 25%)`
fn gpus_in_words(decision: &Decision, inventory: &Inventory, holders: &[Vec<Holder>]) -> String {
    let open = (0..decision.gpus.len()).filter(|&at| !rules_out(decision.gpus[at].verdict));
    list(open.map(|at| {
        let gpu = &decision.gpus[at];
        let why = match gpu.verdict {
            Verdict::Short { memory: true, cores: true } => " (short of memory and SMs)",
            Verdict::Short { memory: true, .. } => " (short of memory)",
            Verdict::Short { .. } => " (short of SMs)",
            Verdict::TooSmall => " (too small)",
            Verdict::Occupied => " (not empty)",
            Verdict::Unhealthy => " (unhealthy)",
            Verdict::Exclusive => " (taken whole)",
            Verdict::NoPlacement => " (no free MIG placement)",
            _ => "",
        };
        let mut text = format!(
            "GPU {} has {} and {} free{why}",
            inventory.gpus[at].index,
            mib(gpu.free_memory),
            percent(gpu.free_cores_ppm)
        );
        if let Some(holders) = holders.get(at).filter(|holders| !holders.is_empty()) {
            text += ", held by ";
            text += &list(holders.iter().map(|holder| {
                let whole = if holder.exclusive { ", exclusive" } else { "" };
                let (memory, cores) = (mib(holder.memory), percent(holder.cores_ppm));
                format!("{} ({memory}, {cores}{whole})", holder.called())
            }));
        }
        text
    }))
}
