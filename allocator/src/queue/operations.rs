//! Places in the queue: taking one, leaving it, cancelling it, and dropping those of the dead.

use std::collections::HashSet;

use fgpu_spec::{Inventory, Nonce, Tier};

use super::Waiting;
use super::gate::{Candidate, Part, shares};
use super::line::{Gate, Queue, Scene};
use super::ticket::{self, Ticket, WakePipe};
use crate::capacity::{self, Held, Sums, worth};
use crate::decision::{Decision, Placement};
use crate::file::Lock;
use crate::image::{self, Boot, Damage, Edit, Image, WaiterHead};
use crate::refusal::Case;
use crate::reserve::Ask;
use crate::store::new_nonce;
use crate::waiter::Waiter;
use crate::{Applicant, Error, Key, Lease, Process, Rules, Store, host, refusal};

/// Decides a request that is behind the first `place` waiters of the queue, or behind all of them. Returns
/// the waiters that it passes, if it is granted.
pub(crate) fn decide(
    ask: &Ask<'_>,
    image: &Image,
    sums: &Sums,
    place: Option<usize>,
) -> Result<(Tier, Decision, Vec<usize>), Damage> {
    let queue = Queue::read(image, place.unwrap_or(usize::MAX))?;
    let scene = Scene { image, inventory: ask.inventory, rules: ask.rules, sums };
    scene.decide(&queue, ask.request, ask.tiers)
}

/// The waiters that could be delayed if a lease grew from `old` to `new`. Its growth stands behind all that
/// wait; `others` are the leases without it, and `sums` their sum.
pub(crate) fn delayed_by_growth(
    others: &Image,
    sums: &Sums,
    inventory: &Inventory,
    rules: &Rules,
    old: &Lease,
    new: &Placement,
) -> Result<Option<Waiter>, Damage> {
    let mut candidate = Candidate { parts: Vec::new(), owner: old.owner.as_deref(), worth_ppm: 0 };
    for (gpu, new, _) in shares(inventory, new) {
        let of = &inventory.gpus[gpu];
        let Some(old) = old.grant.gpus.iter().find(|old| old.uuid == of.uuid) else { continue };
        let old = Held { memory: old.memory, cores_ppm: old.cores_ppm, ..new };
        if new.memory <= old.memory && new.cores_ppm <= old.cores_ppm {
            continue;
        }
        let worth = |held: Held| worth(of, rules, held.memory, held.cores_ppm, held.exclusive);
        candidate.worth_ppm += worth(new).saturating_sub(worth(old));
        let mut leases = capacity::leases_on(others, &of.uuid)?;
        leases.push(new);
        let added = Held { leases: 0, exclusive: false, ..new - old };
        let (slots, added_slots) = (&sums.slots[gpu], Vec::new());
        candidate.parts.push(Part { gpu, held: sums.held[gpu] + old, added, leases, slots, added_slots });
    }
    let queue = Queue::read(others, usize::MAX)?;
    let scene = Scene { image: others, inventory, rules, sums };
    match scene.judge(&queue, &candidate)? {
        Gate::Shut(by, _) if !candidate.parts.is_empty() => image::waiter(queue.entries[by].line).map(Some),
        _ => Ok(None),
    }
}

/// The lines of the waiters that are passed, each with its count one higher.
pub(crate) fn count_passes(
    image: &Image,
    passed: &[usize],
    boot: &Boot,
) -> Result<Vec<(usize, Vec<u8>)>, Damage> {
    let mut wanted = passed.iter().copied().peekable();
    let lines = image.waiters().enumerate().filter(|(at, _)| wanted.next_if_eq(at).is_some());
    lines.map(|(at, line)| Ok((at, image::passed_once_more(line, boot)?))).collect()
}

/// What becomes of the queue's lines when the one at `place` is served.
pub(crate) fn served<'a>(
    place: Option<usize>,
    passed: &'a [(usize, Vec<u8>)],
) -> impl FnMut(&'a [u8]) -> Edit<'a> {
    let (mut at, mut passed) = (0, passed.iter().peekable());
    move |_| {
        let here = at;
        at += 1;
        match passed.next_if(|(at, _)| *at == here) {
            Some((_, line)) => Edit::Replace(line),
            None if place == Some(here) => Edit::Drop,
            None => Edit::Keep,
        }
    }
}

/// The requests that wait, in the order of the queue.
#[derive(Debug, Clone, Copy)]
pub struct WaitQueue<'a> {
    pub(super) store: &'a Store,
}

impl Store {
    /// The requests that wait.
    pub fn queue(&self) -> WaitQueue<'_> {
        WaitQueue { store: self }
    }
}

impl WaitQueue<'_> {
    /// Takes a place at the end of the queue. With the lock held, so that the next to make room sees it.
    pub(crate) fn join(
        &self,
        lock: &Lock,
        image: &Image,
        ask: &Ask<'_>,
        applicant: &Applicant,
        ticket: &mut Ticket,
    ) -> Result<(), Error> {
        let place = WakePipe::make(&self.store.files.queue, new_nonce()?)?;
        let waiter = Waiter {
            ticket: place.nonce,
            process: ticket.process,
            since: host::boottime(),
            passed: 0,
            key: applicant.key.clone(),
            tiers: ask.tiers.to_vec(),
            request: ask.request.clone(),
            pid_namespace: self.store.pid_namespace,
        };
        let line = image::line(&waiter, &self.store.boot)?;
        let draft = image.rewrite_all(&self.store.boot, |_| Edit::Keep, None, |_| Edit::Keep, Some(&line));
        if let Err(error) = self.store.files.replace(lock, &draft) {
            ticket::remove(&self.store.files.queue, &place.nonce.to_string());
            return Err(error);
        }
        ticket.place = Some(place);
        Ok(())
    }

    /// What follows when a ticket's line is gone, if it had one: its pipe goes, and the first in the queue
    /// looks.
    pub(crate) fn left(&self, lock: Lock, image: &Image, ticket: &mut Ticket) {
        let place = ticket.place.take();
        if let Some(place) = &place {
            ticket::remove(&self.store.files.queue, &place.nonce.to_string());
        }
        drop(lock);
        self.wake_first(image, place.as_ref().map(|place| &place.nonce));
    }

    /// Gives a place in the queue back. Does nothing without one.
    ///
    /// # Errors
    /// As [`Error`] says; then it ends with the process.
    pub fn leave(&self, ticket: &mut Ticket) -> Result<(), Error> {
        let Some(nonce) = ticket.place.as_ref().map(|place| place.nonce) else { return Ok(()) };
        let lock = self.store.files.lock(&self.store.host)?;
        let image = self.store.read_locked(&lock)?;
        let place = image.place_of(&nonce);
        if place.is_some() {
            let edit = served(place, &[]);
            self.store
                .files
                .replace(&lock, &image.rewrite_all(&self.store.boot, |_| Edit::Keep, None, edit, None))?;
        }
        self.left(lock, &image, ticket);
        Ok(())
    }

    /// Takes a request of another process out of the queue: its wait ends with
    /// [`fgpu_spec::Code::Cancelled`]. `false` if it does not wait (any more): it may have been granted.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn cancel(&self, waiter: &Nonce) -> Result<bool, Error> {
        let lock = self.store.files.lock(&self.store.host)?;
        let image = self.store.read_locked(&lock)?;
        let Some(place) = image.place_of(waiter) else { return Ok(false) };
        let ticket = waiter.to_string();
        ticket::cancel(&self.store.files.queue, &ticket);
        let edit = served(Some(place), &[]);
        self.store
            .files
            .replace(&lock, &image.rewrite_all(&self.store.boot, |_| Edit::Keep, None, edit, None))?;
        ticket::remove(&self.store.files.queue, &ticket);
        drop(lock);
        self.wake_first(&image, Some(waiter));
        Ok(true)
    }

    /// Ends every wait of a container.
    pub(crate) fn cancel_key(&self, key: &Key) -> Result<(), Error> {
        let image = self.store.read()?;
        for line in image.waiters() {
            let waiter = image::waiter(line).map_err(|damage| self.store.damage(damage, None))?;
            if waiter.key == *key {
                self.cancel(&waiter.ticket)?;
            }
        }
        Ok(())
    }

    /// The waiters in the order of the queue, without dead ones. Takes no lock unless the file changes all
    /// the time.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn waiters(&self) -> Result<Vec<Waiter>, Error> {
        let image = self.store.read()?;
        let living = image.waiters().filter(|line| self.waits(line));
        living.map(image::waiter).collect::<Result<_, _>>().map_err(|damage| self.store.damage(damage, None))
    }

    /// The waiters and why they wait, in the order of the queue, without dead ones.
    ///
    /// # Errors
    /// As [`WaitQueue::waiters`].
    pub fn waiting(&self, inventory: &Inventory, rules: &Rules) -> Result<Vec<Waiting>, Error> {
        let image = self.store.read()?;
        let damaged = |damage| self.store.damage(damage, None);
        let holders = capacity::holders(&self.store.parse_all(&image)?, inventory);
        let foreign = self.store.slices().foreign_slots(inventory)?;
        let sums =
            capacity::sum(image.lines(), inventory, rules, None, None).map_err(damaged)?.with(&foreign);
        let scene = Scene { image: &image, inventory, rules, sums: &sums };
        let mut waiting = Vec::new();
        let mut queue = Queue::read(&image, usize::MAX).map_err(damaged)?;
        queue.entries.retain(|entry| self.waits(entry.line));
        let mut behind = std::mem::take(&mut queue.entries).into_iter();
        let mut next = behind.next();
        while let Some(entry) = next {
            let waiter = image::waiter(entry.line).map_err(damaged)?;
            let request = &waiter.request;
            let (_, decision, _) = scene.decide(&queue, request, &waiter.tiers).map_err(damaged)?;
            let refused = decision.outcome.as_ref().err();
            waiting.push(Waiting {
                position: waiting.len() + 1,
                reason: refused.map(|refused| {
                    let (holders, slots) = (&holders, &sums.slots);
                    refusal::error(
                        refused,
                        &Case { decision: &decision, request, rules, inventory, holders, slots },
                    )
                }),
                brief: refused
                    .map_or_else(|| "about to start".into(), |refused| refusal::brief(refused, request)),
                waiter,
            });
            queue.entries.push(entry);
            next = behind.next();
        }
        Ok(waiting)
    }

    /// Whether the process of this line waits. If that is undetermined, it is treated as waiting.
    pub(crate) fn waits(&self, line: &[u8]) -> bool {
        WaiterHead::scan(line).is_ok_and(|head| self.has_waiter(&head))
    }

    fn has_waiter(&self, head: &WaiterHead<'_>) -> bool {
        let ticket = str::from_utf8(head.ticket).unwrap_or_default();
        self.is_there(head.process, head.pid_namespace, ticket)
    }

    pub(super) fn waits_still(&self, waiter: &Waiter) -> bool {
        self.is_there(waiter.process, waiter.pid_namespace, &waiter.ticket.to_string())
    }

    fn is_there(&self, process: Process, pid_namespace: Option<u64>, ticket: &str) -> bool {
        match (pid_namespace, self.store.pid_namespace) {
            // Whether it is stopped cannot be told from here.
            (Some(there), Some(here)) if there != here => ticket::is_open(&self.store.files.queue, ticket),
            _ => !matches!(self.store.host.can_act(process), Ok(false)),
        }
    }

    /// Takes the dead out of the queue, and removes pipes that have no waiter.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        let folder = &self.store.files.queue;
        let pipes = ticket::pipes(folder).map_err(|source| Error::io("list", folder, source))?;
        let image = self.store.read()?;
        if pipes.is_empty() && image.waiters().next().is_none() {
            return Ok(());
        }
        self.store.host.check_proc()?;
        let damaged = |damage| self.store.damage(damage, None);
        let heads = heads(&image).map_err(damaged)?;
        let tickets: HashSet<&[u8]> = heads.iter().map(|head| head.ticket).collect();
        let dead: HashSet<&[u8]> =
            heads.iter().filter(|head| !self.has_waiter(head)).map(|head| head.ticket).collect();
        if dead.is_empty() && pipes.iter().all(|pipe| tickets.contains(pipe.as_bytes())) {
            return Ok(());
        }
        let lock = self.store.files.lock(&self.store.host)?;
        let image = self.store.read_locked(&lock)?;
        let is_dead = |line| WaiterHead::scan(line).is_ok_and(|head| dead.contains(head.ticket));
        let freed = image.waiters().any(is_dead);
        if freed {
            let edit = |line| if is_dead(line) { Edit::Drop } else { Edit::Keep };
            self.store
                .files
                .replace(&lock, &image.rewrite_all(&self.store.boot, |_| Edit::Keep, None, edit, None))?;
        }
        let heads = self::heads(&image).map_err(|damage| self.store.damaged(&lock, damage))?;
        let tickets: HashSet<&[u8]> =
            heads.iter().map(|head| head.ticket).filter(|ticket| !dead.contains(ticket)).collect();
        // A pipe is made with the lock held and before its line: one that has none now has no waiter.
        let unheld = pipes.iter().filter(|pipe| !tickets.contains(pipe.as_bytes()));
        unheld.for_each(|pipe| ticket::remove(folder, pipe));
        drop(lock);
        if freed {
            self.wake_first(&image, None);
        }
        Ok(())
    }
}

fn heads(image: &Image) -> Result<Vec<WaiterHead<'_>>, Damage> {
    image.waiters().map(WaiterHead::scan).collect()
}
