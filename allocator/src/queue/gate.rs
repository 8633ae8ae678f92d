//! Which waiter may go before which. A function of its arguments.
//!
//! A request may be granted before one that waits ahead of it if it cannot delay it, in whatever order the
//! containers that run now may end. For each GPU on which it would get a share, one of these must hold:
//!
//! 1. The one ahead could not use the GPU, even if it were empty.
//! 2. The one ahead would fit there now, with the share granted. (It wants several GPUs and lacks others.)
//! 3. The one ahead does not fit there now, but with the share granted the end of *any single* container on
//!    the GPU makes room for it. So whichever ends first, it does not miss it.
//!
//! On a GPU in MIG mode room is a place, so there it is asked of each place that the one ahead could get,
//! whether it or another one is left whichever of the other slices are gone by then ([`slices`]).
//!
//! More ends only make more room, so these hold for ever after; and since every GPU is as good for the one
//! ahead as before, so are several. 2 and 3 are counted, and after [`PASSES`] of them the GPU is kept free
//! for the one ahead all the same: if the reasoning has a hole, still no waiter starves.
//!
//! A request that waits only for its owner's cap has no claim on room: the others would lose that room. It
//! has a claim on the cap: a later request of the same owner may not take what is left of it.

use fgpu_spec::{Inventory, Policy, Request, Tier};

use crate::Rules;
use crate::capacity::{Held, worth};
use crate::decision::{Placement, Verdict};
use crate::mig::{self, Slot, SlotHolder};
use crate::place::{cores, filtered, report};
use crate::ratio::WHOLE;

mod slices;

/// How often a request may be passed on GPUs that it could use.
pub(crate) const PASSES: u32 = 100;

/// What a grant does to a request that waits ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It takes nothing that the other could use.
    None,
    /// It takes some of this GPU (a place in the inventory), which the other could use, and cannot delay it.
    Passes(usize),
    /// It may delay it, by what it takes of this GPU; of none if it is by what it takes of the owner's cap.
    Delays(Option<usize>),
}

/// What would be granted.
#[derive(Debug)]
pub(crate) struct Candidate<'a> {
    /// Per GPU: its place in the inventory, what is held of it now, what would be added, and one [`Held`] per
    /// lease that holds a part of it.
    pub(crate) parts: Vec<Part<'a>>,
    pub(crate) owner: Option<&'a str>,
    /// In ppm of whole GPUs.
    pub(crate) worth_ppm: u64,
}

/// See [`Candidate`].
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) gpu: usize,
    pub(crate) held: Held,
    pub(crate) added: Held,
    pub(crate) leases: Vec<Held>,
    /// What lies on it now, and would, if it is in MIG mode.
    pub(crate) slots: &'a [Slot],
    pub(crate) added_slots: Vec<Slot>,
}

/// A waiter ahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead<'a> {
    pub(crate) request: &'a Request,
    pub(crate) tiers: &'a [Tier],
}

impl Ahead<'_> {
    /// Whether GPUs in MIG mode, or those that are not, are of any use to it.
    fn may_use(&self, mig: bool) -> bool {
        self.tiers.iter().any(|&tier| (tier == Tier::Mig) == mig)
    }
}

/// What granting `candidate` does to `ahead`, whose owner holds `owner_ppm` in all if it has a cap.
pub(crate) fn effect(
    inventory: &Inventory,
    rules: &Rules,
    ahead: Ahead<'_>,
    owner_ppm: Option<u64>,
    candidate: &Candidate<'_>,
) -> Effect {
    let owner = &ahead.request.owner;
    let cap = owner.as_ref().and_then(|owner| rules.owner_max_gpus.get(owner));
    if let (Some(&cap), Some(held_ppm)) = (cap, owner_ppm) {
        let cap_ppm = u64::from(cap) * u64::from(WHOLE);
        let (least, most) = worths(inventory, rules, ahead);
        if owner.as_deref() == candidate.owner {
            if held_ppm + candidate.worth_ppm + most > cap_ppm {
                return Effect::Delays(None);
            }
        } else if held_ppm + least > cap_ppm {
            return Effect::None;
        }
    }
    let mut worst = Effect::None;
    for part in &candidate.parts {
        match on_gpu(inventory, rules, ahead, part) {
            Effect::None => {}
            passes @ Effect::Passes(_) => worst = passes,
            delays @ Effect::Delays(_) => return delays,
        }
    }
    worst
}

fn on_gpu(inventory: &Inventory, rules: &Rules, ahead: Ahead<'_>, part: &Part<'_>) -> Effect {
    let gpu = &inventory.gpus[part.gpu];
    if !ahead.may_use(gpu.mig_enabled) || filtered(gpu, ahead.request).is_some() {
        return Effect::None;
    }
    if gpu.mig_enabled {
        return slices::effect(gpu, rules, ahead.request, part);
    }
    let (passes, delays) = (Effect::Passes(part.gpu), Effect::Delays(Some(part.gpu)));
    let on = |held: Held| report(gpu, &held, rules, ahead.request, cores(ahead.request)).verdict;
    if on(Held::default()) != Verdict::Fits {
        return Effect::None;
    }
    let with = part.held + part.added;
    if on(with) == Verdict::Fits {
        return passes;
    }
    let fits_without = |lease: &Held| on(with - *lease) == Verdict::Fits;
    let fits_now = on(part.held) == Verdict::Fits;
    let any_end_will_do = !part.leases.is_empty() && part.leases.iter().all(fits_without);
    if any_end_will_do && !fits_now { passes } else { delays }
}

/// The least and the most that a request can be worth on this node, in ppm of whole GPUs.
fn worths(inventory: &Inventory, rules: &Rules, ahead: Ahead<'_>) -> (u64, u64) {
    let request = ahead.request;
    let exclusive = request.policy == Policy::Exclusive;
    let gpus =
        |mig: bool| inventory.gpus.iter().filter(move |gpu| gpu.mig_enabled == mig && ahead.may_use(mig));
    let shares = gpus(false).filter_map(|gpu| {
        let empty = report(gpu, &Held::default(), rules, request, cores(request));
        let worth = worth(gpu, rules, empty.asked_memory, cores(request), exclusive);
        (empty.verdict == Verdict::Fits).then_some(worth)
    });
    let slices = gpus(true).filter(|gpu| filtered(gpu, request).is_none()).flat_map(|gpu| {
        let serving = mig::serving(gpu, request, gpu.usable_memory(rules.reserve_memory));
        let cores = |profile| mig::cores_ppm(&gpu.mig_profiles, profile);
        serving.into_iter().map(move |profile| worth(gpu, rules, profile.memory, cores(profile), exclusive))
    });
    let (least, most) =
        shares.chain(slices).fold((u64::MAX, 0), |(least, most), one| (one.min(least), one.max(most)));
    let count = u64::from(request.count.max(1));
    (least.min(most) * count, most * count)
}

/// The shares of a placement by their places in the inventory, each as one [`Held`], and as a slice if it is
/// one.
pub(crate) fn shares(inventory: &Inventory, placement: &Placement) -> Vec<(usize, Held, Option<Slot>)> {
    let place = |uuid: &str| inventory.gpus.iter().position(|gpu| gpu.uuid == uuid);
    let share = |gpu: &fgpu_spec::GrantedGpu| {
        let held =
            Held { memory: gpu.memory, cores_ppm: gpu.cores_ppm, leases: 1, exclusive: placement.exclusive };
        let slot = gpu.mig.as_ref().map(|mig| Slot {
            placement: mig.placement,
            profile: mig.profile,
            holder: SlotHolder::Lease,
        });
        Some((place(&gpu.uuid)?, held, slot))
    };
    placement.gpus.iter().filter_map(share).collect()
}
