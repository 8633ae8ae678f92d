//! Changing what a lease holds of its GPUs while its container runs.

use fgpu_spec::{Compute, Error, Filter, Grant, GrantedGpu, Inventory, Nonce, Policy, Request};

use crate::capacity;
use crate::decision::Refusal;
use crate::image::{self, Edit, Image};
use crate::place::place;
use crate::pool::Side;
use crate::refusal::Case;
use crate::{Change, Lease, Rules, Store, queue, refusal};

/// The result of one attempt with the lock held.
enum Attempt {
    /// The lease before and now.
    Done(Option<Box<[Lease; 2]>>),
    Refused(Error, bool),
}

impl Store {
    /// Gives the holder of `nonce` what `request` asks, of the GPUs that it has. `None` if there is no such
    /// lease (any more).
    ///
    /// `enforce` is told what is to be enforced from now on, once before and once after the lease is written:
    /// at no moment, and at no crash in between, more than the lease says. It is called with the lock held,
    /// so it must not wait for anything and cannot fail.
    ///
    /// # Errors
    /// As [`Store::reserve`]; nothing has changed then.
    pub fn resize(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        nonce: &Nonce,
        mut enforce: impl FnMut(&[GrantedGpu], Compute),
    ) -> Result<Option<Lease>, Error> {
        let mut reconciled = false;
        loop {
            match self.try_resize(inventory, rules, request, nonce, &mut enforce)? {
                Attempt::Done(None) => return Ok(None),
                Attempt::Done(Some(leases)) => {
                    let [before, after] = *leases;
                    self.tell(Change::Resized { before: &before, after: &after });
                    return Ok(Some(after));
                }
                Attempt::Refused(_, true) if !reconciled => {
                    self.reconcile()?;
                    reconciled = true;
                }
                Attempt::Refused(error, _) => return Err(error),
            }
        }
    }

    fn try_resize(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        nonce: &Nonce,
        enforce: &mut impl FnMut(&[GrantedGpu], Compute),
    ) -> Result<Attempt, crate::Error> {
        let lock = self.files.lock(&self.host)?;
        let image = self.read_locked(&lock)?;
        let Some(line) = image.find(nonce) else { return Ok(Attempt::Done(None)) };
        let old = image::lease(line).map_err(|damage| self.damaged(&lock, damage))?;
        // A lease that the driver still has to undo cannot be changed.
        if !old.state.is_held() {
            return Ok(Attempt::Done(None));
        }
        let ask = of_the_same_gpus(request, &old);
        // As if it were asked for anew by a container without a lease.
        let without =
            image.rewrite(&self.boot, |other| if other == line { Edit::Drop } else { Edit::Keep }, None);
        let others =
            Image::parse(without.concat(), &self.boot).map_err(|damage| self.damaged(&lock, damage))?;
        let side = Side::of(old.anchor.as_ref());
        let lines = others.lines().filter(|other| !side.may_use(other));
        let sums = capacity::sum(lines, inventory, rules, ask.owner.as_deref(), None)
            .map_err(|damage| self.damaged(&lock, damage))?;
        let mut decision = place(inventory, rules, &ask, &sums.held, sums.owner_ppm);
        // What another scheduler has given out is ahead of all that wait here.
        if side == Side::Node
            && let Ok(placement) = &decision.outcome
        {
            let delayed = queue::delayed_by_growth(&others, &sums, inventory, rules, &old, placement);
            if let Some(waiter) = delayed.map_err(|damage| self.damaged(&lock, damage))? {
                decision.outcome = Err(Refusal::Behind(Box::new(waiter)));
            }
        }
        let placement = match &decision.outcome {
            Ok(placement) => placement.clone(),
            Err(reason) => {
                drop(lock);
                let leases = others.lines().map(image::lease).collect::<Result<Vec<_>, _>>();
                let leases = leases.map_err(|damage| self.damage(damage, None))?;
                let holders = capacity::holders(&leases, inventory);
                let (decision, slots) = (&decision, &sums.slots);
                let case = Case { decision, request: &ask, rules, inventory, holders: &holders, slots };
                let error = refusal::error(reason, &case);
                return Ok(Attempt::Refused(error, reason.may_pass()));
            }
        };
        let new = Lease {
            grant: Grant {
                compute: ask.compute,
                gpus: placement.gpus,
                notes: placement.notes,
                ..old.grant.clone()
            },
            request: ask.text.clone(),
            ..old.clone()
        };
        let bytes = image::line(&new, &self.boot)?;
        enforce(&lower(&old.grant.gpus, &new.grant.gpus), new.grant.compute);
        let edit = |other| if other == line { Edit::Replace(&bytes) } else { Edit::Keep };
        if let Err(error) = self.files.replace(&lock, &image.rewrite(&self.boot, edit, None)) {
            enforce(&old.grant.gpus, old.grant.compute);
            return Err(error);
        }
        enforce(&new.grant.gpus, new.grant.compute);
        drop(lock);
        self.queue().wake_first(&image, None);
        Ok(Attempt::Done(Some(Box::new([old, new]))))
    }
}

/// The request for exactly the GPUs of a lease, by its owner.
fn of_the_same_gpus(request: &Request, lease: &Lease) -> Request {
    let uuids: Vec<String> = lease.grant.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    Request {
        count: u32::try_from(uuids.len()).unwrap_or(u32::MAX),
        device: Filter { any: uuids, not: Vec::new() },
        model: Filter::default(),
        policy: if lease.exclusive { Policy::Exclusive } else { Policy::Pack },
        owner: lease.owner.clone(),
        ..request.clone()
    }
}

/// What both allow.
fn lower(old: &[GrantedGpu], new: &[GrantedGpu]) -> Vec<GrantedGpu> {
    let both = |new: &GrantedGpu| match old.iter().find(|old| old.uuid == new.uuid) {
        Some(old) => GrantedGpu {
            memory: old.memory.min(new.memory),
            cores_ppm: old.cores_ppm.min(new.cores_ppm),
            ..new.clone()
        },
        None => new.clone(),
    };
    new.iter().map(both).collect()
}
