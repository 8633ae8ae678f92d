//! Which waiter is woken when there is room.

use std::collections::HashSet;

use fgpu_spec::{Inventory, Nonce};

use super::WaitQueue;
use super::line::{Queue, Scene};
use super::ticket::{self, Ticket};
use crate::decision::Refusal;
use crate::image::{Damage, Image, WaiterHead};
use crate::{Error, Rules, Slot, capacity};

impl WaitQueue<'_> {
    /// Wakes the first in the queue that lives, after a commit that made room. `except` has left it.
    pub(crate) fn wake_first(&self, image: &Image, except: Option<&Nonce>) {
        let except = except.map(Nonce::to_string);
        let tickets = image.waiters().filter_map(|line| WaiterHead::scan(line).ok());
        let _ = tickets
            .filter_map(|head| str::from_utf8(head.ticket).ok())
            .filter(|ticket| Some(*ticket) != except.as_deref())
            .any(|ticket| ticket::wake(&self.store.files.queue, ticket));
    }

    /// Whether all waiters ahead are dead.
    pub(super) fn leads(&self, ticket: &Ticket) -> Result<bool, Error> {
        let Some(place) = &ticket.place else { return Ok(false) };
        let image = self.store.read()?;
        let ahead = image.waiters().take(image.place_of(&place.nonce).unwrap_or(0));
        Ok(!ahead.into_iter().any(|line| self.waits(line)))
    }

    /// Wakes the first behind the leader that can be granted what it asks.
    pub(super) fn dispatch(&self, inventory: &Inventory, rules: &Rules) -> Result<(), Error> {
        let foreign = self.store.slices().foreign_slots(inventory)?;
        loop {
            let image = self.store.read()?;
            if image.waiters().nth(1).is_none() {
                return Ok(());
            }
            match self
                .next(&image, inventory, rules, &foreign)
                .map_err(|damage| self.store.damage(damage, None))?
            {
                Next::Nobody => return Ok(()),
                Next::Dead => self.sweep()?,
            }
        }
    }

    /// One pass over the queue.
    fn next(
        &self,
        image: &Image,
        inventory: &Inventory,
        rules: &Rules,
        foreign: &[Vec<Slot>],
    ) -> Result<Next, Damage> {
        let sums = capacity::sum(image.lines(), inventory, rules, None, None)?.with(foreign);
        let scene = Scene { image, inventory, rules, sums: &sums };
        let mut queue = Queue::read(image, usize::MAX)?;
        // Of equal requests a later one has more ahead of it: what the first cannot have, it cannot.
        let mut refused = HashSet::new();
        for entry in std::mem::take(&mut queue.entries) {
            let (tiers, request) = queue.ask(&entry);
            if !refused.contains(&entry.ask) {
                match scene.decide(&queue, request, tiers)?.1.outcome {
                    // One that has died between is no reason to stop.
                    Ok(_) => {
                        if ticket::wake(&self.store.files.queue, entry.ticket) {
                            return Ok(Next::Nobody);
                        }
                    }
                    Err(Refusal::Behind(other)) if !self.waits_still(&other) => return Ok(Next::Dead),
                    Err(_) => drop(refused.insert(entry.ask)),
                }
            }
            queue.entries.push(entry);
        }
        Ok(Next::Nobody)
    }
}

/// What a pass over the queue came to.
enum Next {
    /// No other waiter can go, or the next one has been told.
    Nobody,
    /// A dead waiter is in the way.
    Dead,
}
