//! Leases of claims: what the node's DRA driver does to them.

use fgpu_spec::{Code, Inventory, Nonce, Request, Tier};

use crate::reserve::{Attempt, Refused, Stand};
use crate::store::new_nonce;
use crate::{Anchor, Applicant, Change, Error, Lease, Process, ResourceClaim, Rules, State, Store};

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
        let maker = Process::current()?;
        let applicant = Applicant { key: claim.key(), bundle: "/".into(), maker, pid_file: None };
        let key = crate::image::key_head(&applicant.key);
        let anchor = Anchor::Claim(claim.clone());
        let mut swept = false;
        loop {
            match self.attempt(&ask, &applicant, nonce, Some(&key), Stand::Decided(&anchor))? {
                Attempt::Done(lease) => {
                    self.tell(Change::Granted(&lease));
                    return Ok(*lease);
                }
                Attempt::SameKey => {
                    if let Some(lease) = self.claimed(&applicant.key)? {
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
        if lease.request != request.text {
            let claim = Anchor::Claim(claim.clone()).words();
            return Err(fgpu_spec::Error::new(
                Code::Conflict,
                format!(
                    "{claim} has {} and asks for {} now: delete its pods first",
                    lease.request, request.text
                ),
            ));
        }
        self.set_pods(&claim.uid, &claim.pods)?;
        lease.anchor = Some(Anchor::Claim(claim.clone()));
        Ok(lease)
    }

    fn claimed(&self, key: &crate::Key) -> Result<Option<Lease>, Error> {
        Ok(self.leases()?.into_iter().find(|lease| lease.key == *key && lease.state == State::Claimed))
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
                None => false,
            })?;
        }
        Ok(())
    }

    /// The leases of the claim with this uid.
    fn of_claim(&self, uid: &str) -> Result<Vec<Nonce>, Error> {
        let is_its = |lease: &Lease| match &lease.anchor {
            Some(Anchor::Claim(claim)) => lease.state == State::Claimed && claim.uid == uid,
            None => false,
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
}
