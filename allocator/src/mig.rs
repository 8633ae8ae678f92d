//! MIG placement: which slice of which GPU a request gets. A function of its arguments.
//!
//! What counts is what the driver reports (profiles, where each may lie, how many of it there can be), never
//! a table:
//!
//! - Two instances may not share a memory slice, their compute slices may not sum to more than the largest
//!   profile has, and of a profile there may be no more than the driver says.
//! - An instance that exists and is free comes first: one that fgpu kept (`[mig] keep`), or the
//!   administrator's (`[mig] use-existing`). Else one is made, where it takes the fewest placements from
//!   later requests ([`Board::best`]).
//! - `auto` makes the smallest profile that has what is asked. An amount in bytes must be there to the byte.
//!   A ratio is a ratio of what MIG divides: memory slices and compute slices, or memory and multiprocessors
//!   if that is more. (A quarter of an H100 is 2 of 8 memory slices, though that is 24.8% of the bytes.)
//! - `count` counts slices. Several may be of one GPU.

use fgpu_spec::{
    Gpu, GrantedGpu, Inventory, MemoryAsk, MigInstance, MigPlacement, MigProfile, MigSlice, MigStage, Policy,
    Request,
};

use crate::Rules;
use crate::capacity::{Held, worth};
use crate::decision::{Decision, GpuReport, Placement, Refusal, Verdict};
use crate::place::{exact, filtered};
use crate::ratio::{WHOLE, ppm};

mod board;
pub(crate) mod seen;
mod words;

use board::size;
pub use board::{Board, Slot, SlotHolder};
pub(crate) use board::{cores_ppm, most_on, whole};

/// The profiles that serve a request, the smallest first.
pub(crate) fn serving<'a>(gpu: &'a Gpu, request: &Request, usable: u64) -> Vec<&'a MigProfile> {
    let profiles = &gpu.mig_profiles;
    if let Some(name) = request.mig.as_deref().filter(|name| *name != "auto") {
        return profiles.iter().filter(|profile| profile.name == name).collect();
    }
    let Some(whole) = whole(profiles) else { return Vec::new() };
    let enough_memory = |profile: &MigProfile| match request.memory {
        MemoryAsk::Bytes(bytes) => profile.memory >= bytes,
        MemoryAsk::Ppm(asked) => {
            profile.memory >= exact(usable, asked).0 || ppm(size(profile).into(), size(whole).into()) >= asked
        }
        MemoryAsk::PpmAtMost(asked, most) => {
            profile.memory >= exact(usable, asked).0.min(most)
                || ppm(size(profile).into(), size(whole).into()) >= asked
        }
    };
    let enough_cores = |profile: &MigProfile| {
        cores_ppm(profiles, profile) >= request.cores_ppm
            || ppm(profile.slices.into(), whole.slices.into()) >= request.cores_ppm
    };
    // Profiles with attributes (`+me`: media engines) are only for requests that name them.
    let plain = |profile: &&MigProfile| !profile.name.contains(['+', '-']);
    let mut serving: Vec<_> = profiles
        .iter()
        .filter(plain)
        .filter(|profile| enough_memory(profile) && enough_cores(profile))
        .collect();
    serving.sort_by_key(|profile| (size(profile), profile.slices, profile.multiprocessors));
    serving
}

/// Decides a request for slices, given what lies on each GPU (in the inventory's order) and what the
/// request's owner holds in all (ppm of whole GPUs).
pub fn place(
    inventory: &Inventory,
    rules: &Rules,
    request: &Request,
    held: &[Held],
    slots: &[Vec<Slot>],
    owner_ppm: u64,
) -> Decision {
    debug_assert_eq!(inventory.gpus.len(), slots.len());
    let boards = inventory.gpus.iter().zip(slots);
    let boards = boards.map(|(gpu, slots)| Board::new(&gpu.mig_profiles, slots.clone())).collect();
    let mut table = Table {
        inventory,
        rules,
        request,
        held,
        serving: inventory
            .gpus
            .iter()
            .map(|gpu| serving(gpu, request, gpu.usable_memory(rules.reserve_memory)))
            .collect(),
        boards,
    };
    let gpus: Vec<_> = (0..inventory.gpus.len()).map(|at| table.report(at)).collect();
    let outcome = decide(&mut table, &gpus, owner_ppm);
    Decision { gpus, outcome }
}

struct Table<'a> {
    inventory: &'a Inventory,
    rules: &'a Rules,
    request: &'a Request,
    held: &'a [Held],
    /// Per GPU, what would serve the request, the smallest first.
    serving: Vec<Vec<&'a MigProfile>>,
    boards: Vec<Board<'a>>,
}

/// A slice that can be had.
struct Choice<'a> {
    gpu: usize,
    profile: &'a MigProfile,
    placement: MigPlacement,
    stage: MigStage,
    instance: Option<MigInstance>,
    /// How many placements it takes from later requests.
    lost: usize,
}

impl<'a> Table<'a> {
    fn report(&self, at: usize) -> GpuReport {
        let (gpu, board) = (&self.inventory.gpus[at], &self.boards[at]);
        let usable = whole(&gpu.mig_profiles).map_or(0, |whole| whole.memory);
        let held: u64 = board
            .slots()
            .iter()
            .filter(|slot| !slot.holder.is_free(self.rules))
            .filter_map(|slot| gpu.mig_profiles.iter().find(|profile| profile.id == slot.profile))
            .map(|profile| profile.memory)
            .sum();
        let smallest = self.serving[at].first();
        let verdict = filtered(gpu, self.request).unwrap_or_else(|| {
            if !gpu.mig_enabled {
                Verdict::NotMig
            } else if smallest.is_none() {
                Verdict::NoProfile
            } else if self.rules.is_unhealthy(&gpu.uuid) {
                Verdict::Unhealthy
            } else if self.held[at].exclusive {
                Verdict::Exclusive
            } else if self.request.policy == Policy::Exclusive && !self.is_empty(at) {
                Verdict::Occupied
            } else if self.option(at).is_none() {
                Verdict::NoPlacement
            } else {
                Verdict::Fits
            }
        });
        let profile = smallest.and_then(|smallest| gpu.mig_profiles.iter().position(|p| p == *smallest));
        GpuReport {
            usable,
            free_memory: usable.saturating_sub(held),
            foreign: 0,
            free_cores_ppm: ppm(board.slices_left().into(), slices(gpu).into()),
            asked_memory: smallest.map_or(0, |profile| profile.memory),
            verdict,
            profile,
        }
    }

    /// Whether a GPU is empty: no lease is on it, and no instance but kept ones.
    fn is_empty(&self, at: usize) -> bool {
        self.held[at].leases == 0
            && self.boards[at].slots().iter().all(|slot| slot.holder == SlotHolder::Kept)
    }

    /// Whether a slice of the request may lie there.
    fn may_lie(&self, at: usize, placement: MigPlacement) -> bool {
        let places = &self.request.places;
        let gpu = &self.inventory.gpus[at].uuid;
        places.is_empty() || places.iter().any(|place| place.gpu == *gpu && place.placement == placement)
    }

    /// The best slice of a GPU, and how it compares with those of others: less is better.
    fn option(&self, at: usize) -> Option<(impl Ord + use<'a>, Choice<'a>)> {
        let board = &self.boards[at];
        let existing = |rank: usize, profile: &'a MigProfile| {
            let free = |slot: &&Slot| {
                slot.profile == profile.id
                    && slot.holder.is_free(self.rules)
                    && self.may_lie(at, slot.placement)
            };
            let slot = board.slots().iter().filter(free).min_by_key(|slot| slot.placement.start)?;
            let (stage, instance) = match &slot.holder {
                SlotHolder::Idle(instance) => (MigStage::Borrowed, Some(instance.clone())),
                _ => (MigStage::Made, None),
            };
            let choice = Choice { gpu: at, profile, placement: slot.placement, stage, instance, lost: 0 };
            // An instance that exists takes no room from other requests.
            Some((rank, 0, choice))
        };
        let (&smallest, larger) = self.serving[at].split_first()?;
        let (rank, lost, choice) = existing(0, smallest)
            .or_else(|| {
                let (placement, lost) = board.best(smallest, |placement| self.may_lie(at, placement))?;
                let stage = MigStage::Planned;
                Some((1, lost, Choice { gpu: at, profile: smallest, placement, stage, instance: None, lost }))
            })
            .or_else(|| larger.iter().find_map(|&profile| existing(2, profile)))?;
        let crowd = match self.request.policy {
            Policy::Spread => board.taken(),
            Policy::Pack | Policy::Exclusive => 0,
        };
        // A profile of another model may be larger.
        Some(((rank, size(choice.profile), crowd, lost, self.inventory.gpus[at].index), choice))
    }
}

fn slices(gpu: &Gpu) -> u32 {
    whole(&gpu.mig_profiles).map_or(0, |whole| whole.slices)
}

fn decide(table: &mut Table<'_>, gpus: &[GpuReport], owner_ppm: u64) -> Result<Placement, Refusal> {
    let (inventory, request) = (table.inventory, table.request);
    if !gpus
        .iter()
        .any(|gpu| !matches!(gpu.verdict, Verdict::OtherDevice | Verdict::OtherModel | Verdict::NotMig))
    {
        return Err(Refusal::NoMigGpu);
    }
    let suitable: Vec<_> = (0..gpus.len()).filter(|&at| gpus[at].verdict.is_suitable()).collect();
    if suitable.is_empty() && gpus.iter().any(|gpu| gpu.verdict == Verdict::Unhealthy) {
        return Err(Refusal::Unhealthy);
    }
    if suitable.is_empty() {
        return Err(Refusal::NoMigProfile);
    }
    let count = request.count.max(1) as usize;
    let mut chosen: Vec<(Choice<'_>, u32)> = Vec::new();
    for _ in 0..count {
        let usable = |at: &&usize| gpus[**at].verdict == Verdict::Fits;
        let options = suitable.iter().filter(usable).filter_map(|&at| table.option(at));
        let Some((_, choice)) = options.min_by(|(one, _), (other, _)| one.cmp(other)) else {
            let most = most_when_empty(inventory, request, &suitable, table);
            if most < count {
                return Err(Refusal::TooManySlices { most: u32::try_from(most).unwrap_or(u32::MAX) });
            }
            return Err(Refusal::NoMigPlacement { found: u32::try_from(chosen.len()).unwrap_or(u32::MAX) });
        };
        let board = &mut table.boards[choice.gpu];
        board.take(choice.placement);
        board.put(Slot {
            placement: choice.placement,
            profile: choice.profile.id,
            holder: SlotHolder::Lease,
        });
        let index = inventory.gpus[choice.gpu].index;
        chosen.push((choice, index));
    }
    chosen.sort_by_key(|(choice, index)| (*index, choice.placement.start));
    let exclusive = request.policy == Policy::Exclusive;
    let shares: Vec<_> = chosen.iter().map(|(choice, _)| share(inventory, choice)).collect();
    if let Some(&cap) = request.owner.as_ref().and_then(|owner| table.rules.owner_max_gpus.get(owner)) {
        let cap_ppm = u64::from(cap) * u64::from(WHOLE);
        let one = |(share, (choice, _)): (&GrantedGpu, &(Choice<'_>, u32))| {
            let gpu = &inventory.gpus[choice.gpu];
            worth(gpu, table.rules, share.memory, share.cores_ppm, exclusive)
        };
        let asked_ppm = shares.iter().zip(&chosen).map(one).sum();
        if owner_ppm.saturating_add(asked_ppm) > cap_ppm {
            return Err(Refusal::OwnerCap { cap_ppm, held_ppm: owner_ppm, asked_ppm });
        }
    }
    let told = chosen.iter().map(|(choice, _)| {
        let gpu = &inventory.gpus[choice.gpu];
        let usable = gpu.usable_memory(table.rules.reserve_memory);
        words::note(gpu, choice.profile, choice.stage, request, usable)
    });
    let mut notes: Vec<_> = request.notes.iter().cloned().chain(told).collect();
    notes.dedup();
    let mut why: Vec<_> = chosen.iter().map(|(choice, _)| words::why(choice.stage, choice.lost)).collect();
    why.dedup();
    Ok(Placement { gpus: shares, exclusive, notes, why: why.join("; ") })
}

/// How many slices an empty node has, up to what is asked.
fn most_when_empty(inventory: &Inventory, request: &Request, suitable: &[usize], table: &Table<'_>) -> usize {
    let one = |&at: &usize| {
        let smallest = table.serving[at].first();
        smallest.map_or(0, |smallest| most_on(&inventory.gpus[at], smallest))
    };
    suitable.iter().map(one).sum::<usize>().min(request.count.max(1) as usize)
}

fn share(inventory: &Inventory, choice: &Choice<'_>) -> GrantedGpu {
    let gpu = &inventory.gpus[choice.gpu];
    GrantedGpu {
        uuid: gpu.uuid.clone(),
        memory: choice.profile.memory,
        cores_ppm: cores_ppm(&gpu.mig_profiles, choice.profile),
        mig: Some(MigSlice {
            placement: choice.placement,
            profile: choice.profile.id,
            stage: choice.stage,
            name: choice.profile.name.clone(),
            instance: choice.instance.clone(),
        }),
    }
}

#[cfg(test)]
mod tests;
