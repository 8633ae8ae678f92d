//! Which waiter may go before which on a GPU in MIG mode. The places of slices matter there, not how much is
//! left.
//!
//! A place that the one ahead could get is free once the slices that lie on it are gone. The most that can
//! lie elsewhere by then is all the others. If there is a place for the one ahead then, with the new slices
//! there as well, there is one whichever of the others are gone, too: fewer slices only leave more room. So
//! one look for each place tells of every order of ends.

use fgpu_spec::{Gpu, Policy, Request};

use super::{Effect, Part};
use crate::Rules;
use crate::mig::{Board, Slot, SlotHolder, serving};

/// What the slices of `part` do to `ahead`, which could use slices of that GPU.
pub(super) fn effect(gpu: &Gpu, rules: &Rules, ahead: &Request, part: &Part<'_>) -> Effect {
    let (passes, delays) = (Effect::Passes(part.gpu), Effect::Delays(Some(part.gpu)));
    let serving = serving(gpu, ahead, gpu.usable_memory(rules.reserve_memory));
    let Some(&wanted) = serving.first() else { return Effect::None };
    // Several slices, a GPU for itself, the administrator's instances: more is asked there than one free
    // place.
    let is_simple = ahead.count <= 1 && ahead.policy != Policy::Exclusive && !rules.mig_use_existing;
    if !is_simple || part.added.exclusive {
        return delays;
    }
    // A kept instance goes as soon as a request needs its place; the administrator's instances stay.
    let slots = part.slots.iter().filter(|slot| slot.holder != SlotHolder::Kept);
    let (leases, others): (Vec<_>, Vec<_>) = slots.partition(|slot| slot.holder == SlotHolder::Lease);
    let mut worst = Effect::None;
    for &place in &wanted.placements {
        let is_there = |slot: &&&Slot| slot.placement.overlaps(place);
        if others.iter().any(|slot| is_there(&slot)) {
            worst = passes;
            continue;
        }
        let elsewhere = leases.iter().filter(|slot| !is_there(slot));
        let slots = elsewhere.chain(&others).copied().chain(&part.added_slots).cloned().collect();
        let board = Board::new(&gpu.mig_profiles, slots);
        if board.has_room(wanted, place) {
            continue;
        }
        if !wanted.placements.iter().any(|&other| board.has_room(wanted, other)) {
            return delays;
        }
        worst = passes;
    }
    worst
}
