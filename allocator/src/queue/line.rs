//! The queue of a file, read for those who are behind or look who may go next.

use std::collections::HashMap;

use fgpu_spec::{Inventory, Request, Tier};

use super::gate::{Candidate, Effect, PASSES, Part, effect, shares};
use crate::capacity::{self, Sums, worth};
use crate::image::{self, Damage, Image, WaiterHead};
use crate::place::Placement;
use crate::{Process, Rules, Waiter};

/// One that waits.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) line: &'a [u8],
    pub(super) ticket: &'a str,
    pub(super) process: Process,
    passed: u32,
    /// What it asks, as a place in [`Queue::asks`].
    pub(super) ask: usize,
}

/// Those that wait, in their order. Requests that are equal are parsed and judged once.
#[derive(Debug)]
pub(super) struct Queue<'a> {
    pub(super) entries: Vec<Entry<'a>>,
    pub(super) asks: Vec<(Vec<Tier>, Request)>,
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
            let ticket = str::from_utf8(head.ticket).map_err(|_| Damage::Torn)?;
            entries.push(Entry { line, ticket, process: head.process, passed: head.passed, ask });
        }
        Ok(Self { entries, asks })
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

/// Whether a grant may go before those that wait ahead of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// It may, and passes these.
    Open(Vec<usize>),
    /// It would delay this one.
    Shut(usize),
}

impl Scene<'_> {
    /// Judges a grant of `placement` to `owner` that `queue` waits ahead of.
    pub(super) fn gate(
        &self,
        queue: &Queue<'_>,
        owner: Option<&str>,
        placement: &Placement,
    ) -> Result<Gate, Damage> {
        if queue.entries.is_empty() {
            return Ok(Gate::Open(Vec::new()));
        }
        let mut candidate = Candidate { parts: Vec::new(), owner, worth_ppm: 0 };
        for (gpu, added) in shares(self.inventory, placement) {
            let leases = capacity::leases_on(self.image, &self.inventory.gpus[gpu].uuid)?;
            let of = &self.inventory.gpus[gpu];
            candidate.worth_ppm += worth(of, self.rules, added.memory, added.cores_ppm, added.exclusive);
            candidate.parts.push(Part { gpu, held: self.sums.held[gpu], added, leases });
        }
        let mut effects = vec![None; queue.asks.len()];
        let mut passed = Vec::new();
        for (at, entry) in queue.entries.iter().enumerate() {
            let effect = match effects[entry.ask] {
                Some(effect) => effect,
                None => {
                    let (_, ahead) = &queue.asks[entry.ask];
                    let owner_ppm = self.owner_ppm(ahead.owner.as_deref())?;
                    *effects[entry.ask].insert(effect(
                        self.inventory,
                        self.rules,
                        ahead,
                        owner_ppm,
                        &candidate,
                    ))
                }
            };
            match effect {
                Effect::None => {}
                Effect::Passes if entry.passed < PASSES => passed.push(at),
                Effect::Passes | Effect::Delays => return Ok(Gate::Shut(at)),
            }
        }
        Ok(Gate::Open(passed))
    }

    /// What an owner holds; `None` if it has no cap.
    pub(super) fn owner_ppm(&self, owner: Option<&str>) -> Result<Option<u64>, Damage> {
        match owner.filter(|owner| self.rules.owner_max_gpus.contains_key(*owner)) {
            None => Ok(None),
            owner => capacity::sum(self.image, self.inventory, self.rules, owner, None)
                .map(|sums| Some(sums.owner_ppm)),
        }
    }
}
