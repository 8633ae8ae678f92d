//! Leases that are tied to something else than a process, and what the node's DRA driver does to those of
//! claims.

use fgpu_spec::{Code, Inventory, Nonce, Request, Tier};

use crate::reserve::{Attempt, Refused, Stand};
use crate::store::new_nonce;
use crate::{Anchor, Applicant, Change, Error, Lease, Process, ResourceClaim, Rules, State, Store, image};

impl Store {
    /// Gives `claim` what `request` asks, and nothing else: the scheduler of the cluster has decided which
    /// GPUs, so it is ahead of all that wait on this node. Idempotent: the lease that the claim has already is
    /// returned if its request has the same text, with the pods that may use it as they are in `claim`. A lease
    /// for another request is one that the claim had before it was allocated anew: it ends if no container may
    /// use it.
    ///
    /// # Errors
    /// As [`Store::reserve`]; `conflict` if a container may use the share that the claim had before.
    pub fn reserve_claim(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        tiers: &[Tier],
        claim: &ResourceClaim,
    ) -> Result<Lease, fgpu_spec::Error> {
        let nonce = new_nonce()?;
        let ask = self.ask(inventory, rules, request, tiers)?;
        let anchor = Some(Anchor::Claim(claim.clone()));
        let maker = Process::current()?;
        let applicant = Applicant { key: claim.key(), bundle: "/".into(), maker, pid_file: None, anchor };
        let key = image::key_head(&applicant.key);
        let mut swept = false;
        loop {
            match self.attempt(&ask, &applicant, nonce, Some(&key), Stand::Aside)? {
                Attempt::Done(lease) => {
                    self.tell(Change::Granted(&lease));
                    return Ok(*lease);
                }
                Attempt::SameKey => {
                    if let Some(lease) = self.anchored(&applicant)?
                        && let Some(lease) = self.same_share(lease, request, claim)?
                    {
                        return Ok(lease);
                    }
                }
                Attempt::Refused(Refused { may_pass: true, .. }) if !swept => {
                    self.reconcile()?;
                    swept = true;
                }
                Attempt::Refused(Refused { error, .. }) => return Err(error),
                Attempt::NoPlace => {}
            }
        }
    }

    /// The lease that a claim has, if it is for what `request` asks. Another one is ended.
    fn same_share(
        &self,
        mut lease: Lease,
        request: &Request,
        claim: &ResourceClaim,
    ) -> Result<Option<Lease>, fgpu_spec::Error> {
        if lease.request == request.text {
            self.set_pods(&claim.uid, &claim.pods)?;
            lease.anchor = Some(Anchor::Claim(claim.clone()));
            return Ok(Some(lease));
        }
        if self.release_unused(&lease.grant.nonce)?.is_some() || !self.is_held(&lease.grant.nonce)? {
            return Ok(None);
        }
        let words = Anchor::Claim(claim.clone()).words();
        Err(fgpu_spec::Error::new(
            Code::Conflict,
            format!(
                "{words}: a container runs with {} and the claim is for {} now: delete its pods first",
                lease.request, request.text
            ),
        ))
    }

    fn is_held(&self, nonce: &Nonce) -> Result<bool, Error> {
        Ok(self.leases()?.iter().any(|lease| lease.grant.nonce == *nonce && lease.state.is_held()))
    }

    /// The lease that is there for all that have the applicant's key, if it is tied to something.
    pub(crate) fn anchored(&self, applicant: &Applicant) -> Result<Option<Lease>, Error> {
        if applicant.anchor.is_none() {
            return Ok(None);
        }
        let leases = self.leases()?;
        Ok(leases.into_iter().find(|lease| lease.key == applicant.key && lease.state == State::Claimed))
    }

    /// Sets which pods may use the leases of the claim with this uid.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn set_pods(&self, uid: &str, pods: &[String]) -> Result<(), Error> {
        for nonce in self.of_claim(uid)? {
            self.change(&nonce, |lease| match &mut lease.anchor {
                Some(Anchor::Claim(claim)) => {
                    pods.clone_into(&mut claim.pods);
                    true
                }
                _ => false,
            })?;
        }
        Ok(())
    }

    /// The leases of the claim with this uid.
    fn of_claim(&self, uid: &str) -> Result<Vec<Nonce>, Error> {
        let is_its = |lease: &Lease| match &lease.anchor {
            Some(Anchor::Claim(claim)) => lease.state == State::Claimed && claim.uid == uid,
            _ => false,
        };
        Ok(self.leases()?.iter().filter(|lease| is_its(lease)).map(|lease| lease.grant.nonce).collect())
    }

    /// Ends those leases of the claim with this uid that no container may use any more, and returns them.
    /// Idempotent.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn release_claim(&self, uid: &str) -> Result<Vec<Lease>, Error> {
        let mut released = Vec::new();
        for nonce in self.of_claim(uid)? {
            released.extend(self.release_unused(&nonce)?);
        }
        Ok(released)
    }

    /// Ends a lease with an anchor. `None` if there is none, or if one of the containers that have joined it may
    /// run: what the node's own engines know goes before what anybody else says of the anchor.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn release_unused(&self, nonce: &Nonce) -> Result<Option<Lease>, Error> {
        self.release_if(nonce, |lease| lease.anchor.is_some() && !self.may_be_used(lease))
    }

    /// Whether one of the containers that have joined a lease runs, or it cannot be told.
    fn may_be_used(&self, lease: &Lease) -> bool {
        lease.joined.iter().any(|one| {
            self.host.is_alive(one.init).unwrap_or(true)
                || self.host.cgroup_has_process(&one.cgroup).unwrap_or(true)
        })
    }

    /// Ends a lease with an anchor that no container has joined: its first one could not be made.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn release_unjoined(&self, nonce: &Nonce) -> Result<Option<Lease>, Error> {
        self.release_if(nonce, |lease| lease.anchor.is_some() && lease.joined.is_empty())
    }
}
