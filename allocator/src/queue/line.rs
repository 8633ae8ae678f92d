//! The queue of a file, read for a request behind it or to find the waiter that may go next.

use std::collections::HashMap;

use fgpu_spec::{Inventory, Request, Tier};

use super::gate::{Ahead, Candidate, Effect, PASSES, Part, effect, shares};
use crate::capacity::{self, Sums, worth};
use crate::decision::{Decision, Placement, Refusal};
use crate::image::{self, Damage, Image, WaiterHead};
use crate::{Rules, Slot, SlotHolder, Waiter, tiers};

/// One that waits.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) line: &'a [u8],
    pub(super) ticket: &'a str,
    passed: u32,
    /// What it asks, as a place in [`Queue::asks`].
    pub(super) ask: usize,
}

/// The waiters, in their order. Requests that are equal are parsed and judged once.
#[derive(Debug)]
pub(super) struct Queue<'a> {
    pub(super) entries: Vec<Entry<'a>>,
    asks: Vec<(Vec<Tier>, Request)>,
}

impl<'a> Queue<'a> {
    /// Reads the first `until`.
    pub(super) fn read(image: &'a Image, until: usize) -> Result<Self, Damage> {
        let (mut entries, mut asks, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for line in image.waiters().take(until) {
            let head = WaiterHead::scan(line)?;
            let ask = match known.get(head.ask) {
                Some(&ask) => ask,
                None => {
                    let Waiter { tiers, request, .. } = image::waiter(line)?;
                    asks.push((tiers, request));
                    known.insert(head.ask, asks.len() - 1);
                    asks.len() - 1
                }
            };
            let ticket = str::from_utf8(head.ticket).map_err(|_| Damage::Unknown)?;
            entries.push(Entry { line, ticket, passed: head.passed, ask });
        }
        Ok(Self { entries, asks })
    }

    /// What one asks for.
    pub(super) fn ask(&self, entry: &Entry<'_>) -> (&[Tier], &Request) {
        let (tiers, request) = &self.asks[entry.ask];
        (tiers, request)
    }
}

/// The node at one moment, and what is known of it so far.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) image: &'a Image,
    pub(super) inventory: &'a Inventory,
    pub(super) rules: &'a Rules,
    /// What is held of it.
    pub(super) sums: &'a Sums,
}

/// Whether a grant may go before the waiters ahead of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// It may, and passes these.
    Open(Vec<usize>),
    /// It would delay the one at this place, by what it takes of this GPU, or of the owner's cap.
    Shut(usize, Option<usize>),
}

impl Scene<'_> {
    /// What a request gets while `queue` waits ahead of it, and which waiters it passes. A GPU on which it
    /// would delay a waiter does not count.
    pub(super) fn decide(
        &self,
        queue: &Queue<'_>,
        request: &Request,
        tiers: &[Tier],
    ) -> Result<(Tier, Decision, Vec<usize>), Damage> {
        let owner_ppm = self.owner_ppm(request.owner.as_deref())?.unwrap_or(0);
        let decide = |sums: &Sums| tiers::decide(tiers, self.inventory, self.rules, request, sums, owner_ppm);
        let (mut tier, mut decision) = decide(self.sums);
        let (mut outcome, mut open, mut shut_by) = (decision.outcome.clone(), None, None);
        while let Ok(placement) = &outcome {
            match self.gate(queue, request.owner.as_deref(), placement)? {
                Gate::Open(passed) => {
                    decision.outcome = outcome;
                    return Ok((tier, decision, passed));
                }
                Gate::Shut(by, gpu) => {
                    shut_by.get_or_insert(by);
                    let Some(gpu) = gpu else { break };
                    let open = open.get_or_insert_with(|| self.sums.clone());
                    let taken = shares(self.inventory, placement).into_iter().filter(|share| share.0 == gpu);
                    let slots: Vec<_> = taken.filter_map(|(_, _, slot)| slot).collect();
                    if slots.is_empty() {
                        if std::mem::replace(&mut open.held[gpu].exclusive, true) {
                            break;
                        }
                    } else {
                        // Another place on the same GPU may do.
                        close(&mut open.slots[gpu], &slots);
                    }
                    let (next_tier, next) = decide(open);
                    (tier, outcome) = (next_tier, next.outcome);
                }
            }
        }
        if let Some(by) = shut_by {
            let waiter = image::waiter(queue.entries[by].line)?;
            decision.outcome = Err(Refusal::Behind(Box::new(waiter)));
        }
        Ok((tier, decision, Vec::new()))
    }

    /// Judges a grant of `placement` to `owner` that `queue` waits ahead of.
    fn gate(&self, queue: &Queue<'_>, owner: Option<&str>, placement: &Placement) -> Result<Gate, Damage> {
        if queue.entries.is_empty() {
            return Ok(Gate::Open(Vec::new()));
        }
        let mut candidate = Candidate { parts: Vec::<Part<'_>>::new(), owner, worth_ppm: 0 };
        for (gpu, added, slot) in shares(self.inventory, placement) {
            let of = &self.inventory.gpus[gpu];
            candidate.worth_ppm += worth(of, self.rules, added.memory, added.cores_ppm, added.exclusive);
            if let Some(part) = candidate.parts.iter_mut().find(|part| part.gpu == gpu) {
                part.added = part.added + added;
                part.added_slots.extend(slot);
                continue;
            }
            let leases = capacity::leases_on(self.image, &self.inventory.gpus[gpu].uuid)?;
            let slots = &self.sums.slots[gpu];
            let added_slots = slot.into_iter().collect();
            candidate.parts.push(Part { gpu, held: self.sums.held[gpu], added, leases, slots, added_slots });
        }
        self.judge(queue, &candidate)
    }

    /// Judges what would be granted if `queue` waits ahead of it.
    pub(super) fn judge(&self, queue: &Queue<'_>, candidate: &Candidate<'_>) -> Result<Gate, Damage> {
        let mut effects = vec![None; queue.asks.len()];
        let mut passed = Vec::new();
        for (at, entry) in queue.entries.iter().enumerate() {
            let effect = match effects[entry.ask] {
                Some(effect) => effect,
                None => {
                    let (tiers, request) = &queue.asks[entry.ask];
                    let ahead = Ahead { request, tiers };
                    let owner_ppm = self.owner_ppm(request.owner.as_deref())?;
                    *effects[entry.ask].insert(effect(
                        self.inventory,
                        self.rules,
                        ahead,
                        owner_ppm,
                        candidate,
                    ))
                }
            };
            match effect {
                Effect::None => {}
                Effect::Passes(_) if entry.passed < PASSES => passed.push(at),
                Effect::Passes(gpu) => return Ok(Gate::Shut(at, Some(gpu))),
                Effect::Delays(gpu) => return Ok(Gate::Shut(at, gpu)),
            }
        }
        Ok(Gate::Open(passed))
    }

    /// What an owner holds; `None` if it has no cap.
    fn owner_ppm(&self, owner: Option<&str>) -> Result<Option<u64>, Damage> {
        match owner.filter(|owner| self.rules.owner_max_gpus.contains_key(*owner)) {
            None => Ok(None),
            owner => capacity::sum(self.image.lines(), self.inventory, self.rules, owner, None)
                .map(|sums| Some(sums.owner_ppm)),
        }
    }
}

/// Takes places out of what can be had of a GPU in MIG mode. Nothing lies there: it takes no compute slices
/// from other places.
fn close(slots: &mut Vec<Slot>, places: &[Slot]) {
    let nothing = |place: &Slot| Slot { profile: u32::MAX, holder: SlotHolder::Other, ..place.clone() };
    // What is kept or idle there must not be had, either.
    slots.retain(|slot| !places.iter().any(|place| place.placement.overlaps(slot.placement)));
    slots.extend(places.iter().map(nothing));
}
