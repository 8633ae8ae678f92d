//! Leases that are tied to something else than a process, and what the node's DRA driver does to those of
//! claims.

use fgpu_spec::{Code, Inventory, Nonce, Request, Tier};

use crate::reserve::{Attempt, Refused, Stand};
use crate::store::new_nonce;
use crate::{Anchor, Applicant, Change, Error, Lease, Process, ResourceClaim, Rules, State, Store, image};

impl Store {
    /// Gives `claim` what `request` asks, and nothing else: the scheduler of the cluster has decided which
    /// GPUs, so it is ahead of all that wait on this node. Idempotent: the lease that the claim has already is
    /// returned, with the pods that may use it as they are in `claim`.
    ///
    /// # Errors
    /// As [`Store::reserve`]; `conflict` if the claim has another share.
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
            match self.attempt(&ask, &applicant, nonce, Some(&key), Stand::Decided)? {
                Attempt::Done(lease) => {
                    self.tell(Change::Granted(&lease));
                    return Ok(*lease);
                }
                Attempt::SameKey => {
                    if let Some(lease) = self.anchored(&applicant)? {
                        return self.same_share(lease, request, claim);
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

    /// The lease that a claim has, if it is for what `request` asks.
    fn same_share(
        &self,
        mut lease: Lease,
        request: &Request,
        claim: &ResourceClaim,
    ) -> Result<Lease, fgpu_spec::Error> {
        let anchor = Anchor::Claim(claim.clone());
        if lease.request != request.text {
            let words = anchor.words();
            return Err(fgpu_spec::Error::new(
                Code::Conflict,
                format!(
                    "{words} has {} and asks for {} now: delete its pods first",
                    lease.request, request.text
                ),
            ));
        }
        self.set_pods(&claim.uid, &claim.pods)?;
        lease.anchor = Some(anchor);
        Ok(lease)
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

    /// Ends the leases of the claim with this uid, and returns them. Idempotent.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn release_claim(&self, uid: &str) -> Result<Vec<Lease>, Error> {
        let mut released = Vec::new();
        for nonce in self.of_claim(uid)? {
            released.extend(self.release_held(&nonce)?);
        }
        Ok(released)
    }

    /// Ends a lease with an anchor that no container has joined: its first one could not be made.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn release_unjoined(&self, nonce: &Nonce) -> Result<Option<Lease>, Error> {
        self.release_if(nonce, |lease| lease.anchor.is_some() && lease.joined.is_empty())
    }
}
