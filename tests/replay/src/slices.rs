//! MIG slices of the GPUs of one node, for [`churn`](crate::churn).
//!
//! The profiles are those that an H100 with 80 GB reports (spec/testdata), without media extensions;
//! placement has no table of its own.

use std::sync::LazyLock;

use fastrand::Rng;
use fgpu_allocator::{Held, Rules, Slot, SlotHolder, place_slices};
use fgpu_spec::{Inventory, MigPlacement, MigProfile, Policy, Request};

use crate::churn::Server;
use crate::node;

/// The smallest first.
static H100: LazyLock<Vec<MigProfile>> = LazyLock::new(|| {
    let profiles = include_str!("../../../spec/testdata/mig-h100-80gb.json");
    let mut profiles: Vec<MigProfile> = serde_json::from_str(profiles).expect("it is a list of profiles");
    profiles.retain(|profile| !profile.name.contains('+'));
    profiles.sort_by_key(|profile| (profile.slices, profile.memory));
    profiles
});

/// Compute slices of a whole GPU.
const WHOLE: u32 = 7;

/// A node whose GPUs are cut into slices.
pub struct Slices {
    inventory: Inventory,
    rules: Rules,
    slots: Vec<Vec<Slot>>,
}

/// A slice that was given.
pub struct Slice {
    gpu: usize,
    placement: MigPlacement,
}

impl Slices {
    /// So many GPUs on which nothing lies.
    pub fn new(gpus: u32) -> Self {
        let mut inventory = node::inventory(gpus, "H100");
        for gpu in &mut inventory.gpus {
            gpu.mig_enabled = true;
            gpu.mig_profiles = H100.clone();
        }
        Self { inventory, rules: Rules::default(), slots: vec![Vec::new(); gpus as usize] }
    }

    /// Whether nothing lies on any GPU.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Vec::is_empty)
    }
}

/// One of the profiles, each as often.
pub fn draw(policy: Policy, rng: &mut Rng) -> Request {
    let profile = &H100[rng.usize(..H100.len())];
    Request { mig: Some(profile.name.clone()), ..node::request(1, node::WHOLE, &[], policy) }
}

/// Compute slices that a request asks for in the mean, in GPUs.
pub fn mean() -> f64 {
    let all: u32 = H100.iter().map(|profile| profile.slices).sum();
    f64::from(all) / H100.len() as f64 / f64::from(WHOLE)
}

impl Server for Slices {
    type Ask = Request;
    type Held = Slice;

    fn capacity(&self) -> f64 {
        self.inventory.gpus.len() as f64
    }

    fn size(ask: &Request) -> f64 {
        let asked = H100.iter().find(|profile| ask.mig.as_ref() == Some(&profile.name));
        asked.map_or(0.0, |profile| f64::from(profile.slices) / f64::from(WHOLE))
    }

    fn take(&mut self, ask: &Request) -> Option<Slice> {
        let held: Vec<_> = self
            .slots
            .iter()
            .map(|slots| Held { leases: u32::try_from(slots.len()).unwrap_or(u32::MAX), ..Held::default() })
            .collect();
        let decision = place_slices(&self.inventory, &self.rules, ask, &held, &self.slots, 0);
        let share = decision.outcome.ok()?.gpus.pop()?;
        let slice = share.mig.expect("a slice is what was asked for");
        let gpu = self.inventory.gpus.iter().position(|gpu| gpu.uuid == share.uuid);
        let gpu = gpu.expect("placement grants GPUs of the inventory");
        let (placement, profile) = (slice.placement, slice.profile);
        let overlaps = |slot: &Slot| slot.placement.overlaps(placement);
        assert!(!self.slots[gpu].iter().any(overlaps), "GPU {gpu} is given twice at {placement:?}");
        self.slots[gpu].push(Slot { placement, profile, holder: SlotHolder::Lease });
        Some(Slice { gpu, placement })
    }

    fn give_back(&mut self, held: Slice) {
        self.slots[held.gpu].retain(|slot| slot.placement != held.placement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::churn::churn;

    #[test]
    fn slices_are_accepted_as_often_as_the_figure_says() {
        let mut server = Slices::new(8);
        let outcome =
            churn(&mut server, |rng| draw(Policy::Pack, rng), mean(), 0.85, 4_000, &mut Rng::with_seed(42));
        // Fewer requests than for BENCHMARKS.md, hence less exact.
        assert!(outcome.accepted >= 0.86 && outcome.served >= 0.73, "{outcome:?}");
    }

    #[test]
    fn a_gpu_holds_seven_small_slices_or_one_large_one() {
        let mut server = Slices::new(1);
        let ask = |name: &str| Request {
            mig: Some(name.into()),
            ..node::request(1, node::WHOLE, &[], Policy::Pack)
        };
        let held: Vec<_> = (0..8).filter_map(|_| server.take(&ask("1g.10gb"))).collect();
        assert_eq!(held.len(), 7);
        assert!(server.take(&ask("7g.80gb")).is_none());
        held.into_iter().for_each(|slice| server.give_back(slice));
        assert!(server.is_empty() && server.take(&ask("7g.80gb")).is_some());
    }
}
