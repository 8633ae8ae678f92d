//! The refusals of requests for MIG slices, in words.

use fgpu_spec::{Gpu, MigPlacement};

use super::case::Case;
use crate::capacity::Holder;
use crate::decision::{Refusal, Verdict};
use crate::mig::most_on;
use crate::words::{list, mib};
use crate::{Board, Slot, SlotHolder, State};

/// `2-3`, or `6`: memory slices.
fn memory_slices(placement: MigPlacement) -> String {
    match placement.size {
        0 | 1 => placement.start.to_string(),
        size => format!("{}-{}", placement.start, placement.start.saturating_add(size - 1)),
    }
}

/// The error of a request that gets no slice: the holders, what they hold, and what would fit.
pub(super) fn refusal(refusal: &Refusal, case: &Case<'_>) -> String {
    let Case { decision, request, inventory, holders, slots, .. } = *case;
    let text = &request.text;
    let gpus = || inventory.gpus.iter().zip(&decision.gpus);
    match refusal {
        Refusal::NoMigProfile => {
            let open = gpus().filter(|(_, report)| report.verdict == Verdict::NoProfile);
            let has = open.map(|(gpu, _)| {
                let names = gpu.mig_profiles.iter().map(|profile| {
                    format!("{} ({}, {} SMs)", profile.name, mib(profile.memory), profile.multiprocessors)
                });
                format!("GPU {} ({}) has {}", gpu.index, gpu.model, names.collect::<Vec<_>>().join(", "))
            });
            format!("{text}: no GPU in MIG mode has a slice like that, even when empty: {}", list(has))
        }
        Refusal::TooManySlices { most } => {
            let has =
                gpus().filter(|(_, report)| report.verdict.is_suitable()).filter_map(|(gpu, report)| {
                    let profile = report.profile.and_then(|at| gpu.mig_profiles.get(at))?;
                    Some(format!("{} of {} on GPU {}", most_on(gpu, profile), profile.name, gpu.index))
                });
            let count = request.count;
            format!(
                "{text} asks {count} slices, and this node has {most} even when empty: {}; ask for {} fewer",
                list(has),
                count - most
            )
        }
        Refusal::NoMigPlacement { found } => {
            let count = match (request.count, found) {
                (0 | 1, _) => String::new(),
                (count, found) => format!(" for {} of {count} slices", count.saturating_sub(*found)),
            };
            let full = gpus().enumerate().filter(|(_, (_, report))| report.verdict.is_suitable());
            let full = full.map(|(at, (gpu, report))| {
                let profile = report.profile.and_then(|place| gpu.mig_profiles.get(place));
                let name = profile.map_or("a slice", |profile| &profile.name);
                gpu_in_words(gpu, name, &slots[at], &holders[at])
            });
            format!(
                "{text}: no free placement{count}: {}; wait for one to end, or see fgpu status",
                list(full)
            )
        }
        _ => {
            let why = gpus().map(|(gpu, report)| {
                let why = match report.verdict {
                    Verdict::OtherDevice => "is not in fgpu/device",
                    Verdict::OtherModel => "is not in fgpu/model",
                    _ => "is not in MIG mode",
                };
                format!("GPU {} ({}) {why}", gpu.index, gpu.model)
            });
            format!(
                "{text}: no GPU that matches is in MIG mode ({}); fgpu never switches the mode: nvidia-smi -i GPU -mig 1 \
                 does, on an idle GPU, then fgpu inventory --refresh. Or ask for a fraction",
                list(why)
            )
        }
    }
}

/// `GPU 0 has no place for 3g.40gb: 1g.10gb at 0 by moby/3f2a19bc44d0, 2g.20gb at 2-3 not made by fgpu; free
/// there: 1g.10gb`
fn gpu_in_words(gpu: &Gpu, wanted: &str, slots: &[Slot], holders: &[Holder]) -> String {
    let name = |slot: &Slot| {
        let profile = gpu.mig_profiles.iter().find(|profile| profile.id == slot.profile);
        profile.map_or_else(|| format!("profile {}", slot.profile), |profile| profile.name.clone())
    };
    let mut sorted: Vec<_> = slots.iter().collect();
    sorted.sort_by_key(|slot| slot.placement.start);
    let held: Vec<_> = sorted
        .iter()
        .map(|slot| {
            let holder = holders
                .iter()
                .find(|holder| holder.mig.as_ref().is_some_and(|mig| mig.placement == slot.placement));
            format!("{} at {} {}", name(slot), memory_slices(slot.placement), holder_in_words(slot, holder))
        })
        .collect();
    let mut free: Vec<_> = Vec::new();
    for (profile, _) in Board::new(&gpu.mig_profiles, slots.to_vec()).open() {
        if !profile.name.contains(['+', '-']) && !free.contains(&profile.name) {
            free.push(profile.name.clone());
        }
    }
    let free = if free.is_empty() { "nothing".to_owned() } else { free.join(", ") };
    let held = if held.is_empty() { "it is empty".to_owned() } else { held.join(", ") };
    format!("GPU {} has no place for {wanted}: {held}; free there: {free}", gpu.index)
}

fn holder_in_words(slot: &Slot, holder: Option<&Holder>) -> String {
    match (&slot.holder, holder) {
        (SlotHolder::Lease | SlotHolder::Kept, Some(holder)) => match (holder.state, &holder.trouble) {
            (State::Releasing, Some(trouble)) => format!("left by {} ({trouble})", holder.called()),
            (State::Releasing, None) => format!("left by {}, being destroyed", holder.called()),
            (State::Kept, _) => "kept for reuse".to_owned(),
            _ => format!("by {}", holder.called()),
        },
        (SlotHolder::Lease | SlotHolder::Kept, None) => "by a lease".to_owned(),
        (SlotHolder::Idle(_), _) => {
            "made by the administrator ([mig] use-existing lets fgpu use it)".to_owned()
        }
        (SlotHolder::Other, _) => "made by the administrator".to_owned(),
    }
}
