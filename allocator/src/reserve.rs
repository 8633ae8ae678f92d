//! Taking a share: one look at the leases and the queue with the lock held, and a new lease or a refusal in
//! words.

use fgpu_spec::{Compute, Grant, Inventory, Nonce, Request, Tier};

use crate::capacity::{self, Holder, Sums};
use crate::decision::{Decision, Placement, Refusal};
use crate::image::{self, Damage, Draft, Image};
use crate::liveness::Life;
use crate::pool::Side;
use crate::refusal::Case;
use crate::store::{end_of, new_nonce};
use crate::{
    Anchor, Applicant, Change, Error, Lease, Rules, Slot, State, Store, Ticket, Waiter, host, queue, refusal,
};

/// What a request would get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The tier that would serve it, or the last one that was tried.
    pub tier: Tier,
    /// How each GPU stands to it, in the inventory's order, and the placement or the refusal.
    pub decision: Decision,
    /// The holders of each GPU and what they hold, in the inventory's order.
    pub holders: Vec<Vec<Holder>>,
    /// The error that [`Store::reserve`] would return.
    pub error: Option<fgpu_spec::Error>,
}

/// A request and what decides it.
pub(crate) struct Ask<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) rules: &'a Rules,
    pub(crate) request: &'a Request,
    /// Those that may serve it, the strongest first.
    pub(crate) tiers: &'a [Tier],
    /// What lies on each GPU that no lease made.
    pub(crate) foreign: Vec<Vec<Slot>>,
}

impl Ask<'_> {
    fn sums(&self, image: &Image, key: Option<&Vec<u8>>, side: Side) -> Result<Sums, Damage> {
        let counts = |line: &&[u8]| !side.may_use(line);
        let lines = image.lines().filter(counts);
        let sums = capacity::sum(lines, self.inventory, self.rules, None, key.map(Vec::as_slice))?;
        Ok(sums.with(&self.foreign))
    }
}

/// The result of one attempt with the lock held.
pub(crate) enum Attempt {
    Done(Box<Lease>),
    Refused(Refused),
    /// Leases of the same container are there: a former life of it, most likely.
    SameKey,
    /// The ticket has no place in the queue: the file was made anew.
    NoPlace,
}

/// A refusal in words, and what can be done about it.
pub(crate) struct Refused {
    pub(crate) error: fgpu_spec::Error,
    /// Whether it may go away when the leases of the dead are freed.
    pub(crate) may_pass: bool,
    /// Whether it is worth waiting.
    pub(crate) is_passing: bool,
    /// The waiters ahead that would lose.
    pub(crate) behind: Option<Box<Waiter>>,
    /// Its place in the queue, from 1, and how many wait in all.
    pub(crate) place: Option<(usize, usize)>,
}

/// How a reservation stands to the queue.
pub(crate) enum Stand<'a> {
    /// It does not wait itself. It is behind all that wait, unless another scheduler has decided it.
    Aside,
    /// It waits, or would like to; it takes a place if it has none and is refused.
    Waits(&'a mut Ticket),
}

impl Stand<'_> {
    fn ticket(&self) -> Option<Nonce> {
        match self {
            Self::Waits(Ticket { place: Some(place), .. }) => Some(place.nonce),
            _ => None,
        }
    }
}

impl Store {
    /// Gives `applicant` what `request` asks, in the first of `tiers` that has room for it, or says why not.
    ///
    /// If there is no room, the leases of the dead are freed and it is tried once more. Dead leases of the
    /// same container are freed in any case: a restarted container has one lease. An applicant with an anchor
    /// gets the lease that is there.
    ///
    /// # Errors
    /// With the codes of [`crate::Refusal::code`]; `state-corrupt` and `internal` as [`Error`] says. Then
    /// there is no lease.
    pub fn reserve(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        tiers: &[Tier],
        applicant: &Applicant,
    ) -> Result<Lease, fgpu_spec::Error> {
        let nonce = new_nonce()?;
        let ask = self.ask(inventory, rules, request, tiers)?;
        let key = image::key_head(&applicant.key);
        let (mut swept_key, mut swept_all) = (false, false);
        loop {
            let same_key = (!swept_key || applicant.anchor.is_some()).then_some(&key);
            match self.attempt(&ask, applicant, nonce, same_key, Stand::Aside)? {
                Attempt::Done(lease) => {
                    self.tell(Change::Granted(&lease));
                    return Ok(*lease);
                }
                Attempt::SameKey => {
                    self.sweep(Some(&key))?;
                    swept_key = true;
                    if let Some(lease) = self.anchored(applicant)? {
                        return Ok(lease);
                    }
                }
                Attempt::Refused(Refused { may_pass: true, .. }) if !swept_all => {
                    self.reconcile()?;
                    (swept_key, swept_all) = (true, true);
                }
                Attempt::Refused(Refused { error, .. }) => return Err(error),
                Attempt::NoPlace => {}
            }
        }
    }

    pub(crate) fn ask<'a>(
        &self,
        inventory: &'a Inventory,
        rules: &'a Rules,
        request: &'a Request,
        tiers: &'a [Tier],
    ) -> Result<Ask<'a>, Error> {
        let foreign =
            if tiers.contains(&Tier::Mig) { self.slices().foreign_slots(inventory)? } else { Vec::new() };
        Ok(Ask { inventory, rules, request, tiers, foreign })
    }

    pub(crate) fn attempt(
        &self,
        ask: &Ask<'_>,
        applicant: &Applicant,
        nonce: Nonce,
        same_key: Option<&Vec<u8>>,
        mut stand: Stand<'_>,
    ) -> Result<Attempt, Error> {
        let lock = self.files.lock(&self.host)?;
        let image = self.read_locked(&lock)?;
        let damaged = |damage| self.damaged(&lock, damage);
        let ticket = stand.ticket();
        let mut place = ticket.and_then(|ticket| image.place_of(&ticket));
        if ticket.is_some() && place.is_none() {
            return Ok(Attempt::NoPlace);
        }
        let side = Side::of(applicant.anchor.as_ref());
        let sums = ask.sums(&image, same_key, side).map_err(damaged)?;
        if sums.same_key {
            return Ok(Attempt::SameKey);
        }
        // What another scheduler has given out is ahead of all that wait here.
        let ahead = if side == Side::Node { place } else { Some(0) };
        let (tier, decision, passed) = queue::decide(ask, &image, &sums, ahead).map_err(damaged)?;
        match &decision.outcome {
            Ok(placement) => {
                let mut lease = lease(ask, applicant, nonce, tier, placement.clone());
                lease.pid_namespace = self.pid_namespace;
                let taken = self.driver_part().take_kept(&image, &mut lease)?;
                let line = image::line(&lease, &self.boot)?;
                let passed = queue::count_passes(&image, &passed, &self.boot).map_err(damaged)?;
                let edit = queue::served(place, &passed);
                let draft =
                    image.rewrite_all(&self.boot, |line| end_of(&taken, line), Some(&line), edit, None);
                self.files.replace(&lock, &draft)?;
                match stand {
                    Stand::Waits(ticket) => self.queue().left(lock, &image, ticket),
                    Stand::Aside => {
                        drop(lock);
                        self.queue().wake_first(&image, None);
                    }
                }
                Ok(Attempt::Done(Box::new(lease)))
            }
            Err(refusal) => {
                if let Stand::Waits(ticket) = &mut stand
                    && ticket.place.is_none()
                    && refusal.is_passing()
                {
                    self.queue().join(&lock, &image, ask, applicant, ticket)?;
                    place = Some(image.waiters().count());
                }
                // Nothing else is written: the words can be made without the lock.
                drop(lock);
                let holders = capacity::holders(&self.parse_all(&image)?, ask.inventory);
                let error = refusal::error(
                    refusal,
                    &Case {
                        decision: &decision,
                        request: ask.request,
                        rules: ask.rules,
                        inventory: ask.inventory,
                        holders: &holders,
                        slots: &sums.slots,
                    },
                );
                let waiting = image.waiters().count();
                Ok(Attempt::Refused(Refused {
                    error,
                    may_pass: refusal.may_pass(),
                    is_passing: refusal.is_passing(),
                    behind: match refusal {
                        Refusal::Behind(waiter) => Some(waiter.clone()),
                        _ => None,
                    },
                    place: place.map(|place| (place + 1, waiting.max(place + 1))),
                }))
            }
        }
    }

    /// What [`Store::reserve`] would answer now. Takes nothing and frees nothing; leases of the dead do not
    /// count.
    ///
    /// # Errors
    /// As [`Store::leases`].
    pub fn explain(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        tiers: &[Tier],
    ) -> Result<Explanation, Error> {
        self.host.check_proc()?;
        let now = self.read()?;
        let mut leases = self.parse_all(&now)?;
        let dead = |lease: &Lease| matches!(self.judge(lease), Ok(Life::Dead));
        // A dead container's instances are destroyed before a request is refused.
        leases.retain(|lease| match lease.state {
            State::Reserving | State::Active | State::Claimed => !dead(lease),
            State::Releasing => lease.trouble.is_some(),
            State::Kept => true,
        });
        let lines =
            leases.iter().map(|lease| image::line(lease, &self.boot)).collect::<Result<Vec<_>, _>>()?;
        let waiters = now.waiters().filter(|line| self.queue().waits(line));
        let draft = Draft::with_queue(&self.boot, lines.iter().map(Vec::as_slice), waiters);
        let damaged = |damage| self.damage(damage, None);
        let image = Image::parse(draft.concat(), &self.boot).map_err(damaged)?;
        let ask = self.ask(inventory, rules, request, tiers)?;
        let sums = ask.sums(&image, None, Side::Node).map_err(damaged)?;
        let (tier, decision, _) = queue::decide(&ask, &image, &sums, None).map_err(damaged)?;
        let holders = capacity::holders(&leases, inventory);
        let refusal = decision.outcome.as_ref().err();
        let case =
            Case { decision: &decision, request, rules, inventory, holders: &holders, slots: &sums.slots };
        let error = refusal.map(|refusal| refusal::error(refusal, &case));
        Ok(Explanation { tier, decision, holders, error })
    }
}

fn lease(ask: &Ask<'_>, applicant: &Applicant, nonce: Nonce, tier: Tier, placement: Placement) -> Lease {
    let Placement { gpus, exclusive, notes, why: _ } = placement;
    // A slice has its SMs to itself, whether or not they were asked for.
    let compute = if tier == Tier::Mig { Compute::Cap } else { ask.request.compute };
    // The driver limits a cgroup, and a pod has one.
    let cgroup = match &applicant.anchor {
        Some(Anchor::Pod(pod)) if tier == Tier::Driver => Some(pod.cgroup.clone()),
        _ => None,
    };
    Lease {
        key: applicant.key.clone(),
        grant: Grant { nonce, tier, compute, gpus, notes },
        state: if applicant.anchor.is_some() { State::Claimed } else { State::Reserving },
        owner: ask.request.owner.clone(),
        exclusive,
        bundle: applicant.bundle.clone(),
        maker: applicant.maker,
        pid_namespace: None,
        pid_file: applicant.pid_file.clone(),
        init: None,
        cgroup,
        created: host::boottime(),
        wall: host::wall(),
        request: ask.request.text.clone(),
        trouble: None,
        kept: None,
        anchor: applicant.anchor.clone(),
        joined: Vec::new(),
    }
}
