//! MIG slices of the GPUs of one node, for [`churn`](crate::churn).
//!
//! The profiles are those that an H100 with 80 GB reports, without media extensions; placement has no table of its own.

use fastrand::Rng;
use fgpu_allocator::{Held, Rules, Slot, SlotHolder, place_slices};
use fgpu_spec::{Inventory, MigPlacement, MigProfile, Policy, Request};

use crate::churn::Server;
use crate::node;

/// Name, compute slices, multiprocessors, memory in MiB, memory slices, and where it may start.
type Row = (&'static str, u32, u32, u64, u32, &'static [u32]);

const H100: [Row; 6] = [
    ("1g.10gb", 1, 16, 9984, 1, &[0, 1, 2, 3, 4, 5, 6]),
    ("1g.20gb", 1, 26, 20_096, 2, &[0, 2, 4, 6]),
    ("2g.20gb", 2, 32, 20_096, 2, &[0, 2, 4]),
    ("3g.40gb", 3, 60, 40_448, 4, &[0, 4]),
    ("4g.40gb", 4, 64, 40_448, 4, &[0]),
    ("7g.80gb", 7, 132, 81_152, 8, &[0]),
];

/// Compute slices of a whole GPU.
const WHOLE: u32 = 7;

fn profiles() -> Vec<MigProfile> {
    let profile = |(id, &(name, slices, multiprocessors, mib, size, starts)): (u32, &Row)| MigProfile {
        name: name.into(),
        id,
        slices,
        multiprocessors,
        memory: mib << 20,
        most: u32::try_from(starts.len()).unwrap_or(u32::MAX),
        placements: starts.iter().map(|&start| MigPlacement { start, size }).collect(),
    };
    (0..).zip(&H100).map(profile).collect()
}

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
            gpu.mig_profiles = profiles();
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
    let (name, ..) = H100[rng.usize(..H100.len())];
    Request { mig: Some(name.into()), ..node::request(1, node::WHOLE, &[], policy) }
}

/// Compute slices that a request asks for in the mean, in GPUs.
pub fn mean() -> f64 {
    let all: u32 = H100.iter().map(|&(_, slices, ..)| slices).sum();
    f64::from(all) / H100.len() as f64 / f64::from(WHOLE)
}

impl Server for Slices {
    type Ask = Request;
    type Held = Slice;

    fn capacity(&self) -> f64 {
        self.inventory.gpus.len() as f64
    }

    fn size(ask: &Request) -> f64 {
        let row = H100.iter().find(|(name, ..)| ask.mig.as_deref() == Some(*name));
        row.map_or(0.0, |&(_, slices, ..)| f64::from(slices) / f64::from(WHOLE))
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
        let overlaps = |slot: &Slot| {
            slot.placement.start < placement.start + placement.size
                && placement.start < slot.placement.start + slot.placement.size
        };
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
