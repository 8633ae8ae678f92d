//! The GPUs of a node that only claims of Kubernetes may use.
//!
//! kube-scheduler knows what claims take and nothing else, so what it may give out must not go to anybody
//! else. The node's DRA driver holds the GPUs that it offers by one lease, before it offers them. The lease is
//! exclusive and takes neither memory nor SM time: claims are added up as ever, and every other request finds
//! those GPUs taken whole. What was there before stays until it ends; the driver offers a GPU when it has.

use fgpu_spec::{Compute, Grant, GrantedGpu, Tier};

use crate::image::{self, Edit, Summary};
use crate::store::new_nonce;
use crate::{Anchor, Change, Error, Lease, Pool, Process, State, Store, host};

/// What [`Summary::rest`] begins with in the line of a pool.
const HEAD: &[u8] = br#""key":{"namespace":"kubernetes","#;

impl Pool {
    /// Whether a line of the allocator file is a pool's.
    pub(crate) fn has(line: &[u8]) -> bool {
        Summary::scan(line).is_ok_and(|summary| summary.rest.starts_with(HEAD))
    }
}

impl Store {
    /// Holds these GPUs (UUIDs) and no others for the claims of `pool`; none at all if there are none.
    /// Idempotent. Returns those of them on which something else than claims is still.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn hold_for_claims(&self, pool: &Pool, gpus: &[String]) -> Result<Vec<String>, Error> {
        let key = image::key_head(&pool.key());
        let nonce = new_nonce()?;
        let change = {
            let lock = self.files.lock(&self.host)?;
            let image = self.read_locked(&lock)?;
            let mut old = None;
            for line in image.lines() {
                if self.summary(&lock, line)?.rest.starts_with(&key) {
                    old = Some((line, image::lease(line).map_err(|damage| self.damaged(&lock, damage))?));
                }
            }
            let before: Vec<_> = old.iter().flat_map(|(_, lease)| lease.grant.gpus.clone()).collect();
            let wanted: Vec<_> = gpus.iter().map(|uuid| nothing_of(uuid)).collect();
            if before == wanted {
                None
            } else {
                let lease = match &old {
                    Some((_, lease)) => {
                        Lease { grant: Grant { gpus: wanted, ..lease.grant.clone() }, ..lease.clone() }
                    }
                    None => self.pool_lease(pool, nonce, wanted)?,
                };
                let line = image::line(&lease, &self.boot)?;
                let replaced = if gpus.is_empty() { Edit::Drop } else { Edit::Replace(&line) };
                let edit = |other| match &old {
                    Some((line, _)) if *line == other => replaced,
                    _ => Edit::Keep,
                };
                let more = old.is_none().then_some(&*line);
                self.files.replace(&lock, &image.rewrite(&self.boot, edit, more))?;
                drop(lock);
                // Others may have room now.
                self.queue().wake_first(&image, None);
                Some(lease)
            }
        };
        match &change {
            Some(lease) if gpus.is_empty() => self.tell(Change::Released(lease)),
            Some(lease) => self.tell(Change::Granted(lease)),
            None => {}
        }
        self.still_used(gpus)
    }

    fn pool_lease(
        &self,
        pool: &Pool,
        nonce: fgpu_spec::Nonce,
        gpus: Vec<GrantedGpu>,
    ) -> Result<Lease, Error> {
        let anchor = Anchor::Pool(pool.clone());
        Ok(Lease {
            key: pool.key(),
            grant: Grant { nonce, tier: Tier::None, compute: Compute::Off, gpus, notes: Vec::new() },
            state: State::Claimed,
            owner: None,
            exclusive: true,
            bundle: "/".into(),
            maker: Process::current()?,
            pid_namespace: self.pid_namespace,
            pid_file: None,
            init: None,
            cgroup: None,
            created: host::boottime(),
            wall: host::wall(),
            request: anchor.words(),
            trouble: None,
            kept: None,
            anchor: Some(anchor),
            joined: Vec::new(),
        })
    }

    /// Those of the GPUs on which there is more than claims.
    fn still_used(&self, gpus: &[String]) -> Result<Vec<String>, Error> {
        let others = |lease: &Lease| {
            !matches!(lease.anchor, Some(Anchor::Claim(_) | Anchor::Pool(_))) && lease.state != State::Kept
        };
        let leases = self.leases()?;
        let shares = leases.iter().filter(|lease| others(lease)).flat_map(|lease| &lease.grant.gpus);
        let used: Vec<_> = shares.map(|share| &share.uuid).collect();
        Ok(gpus.iter().filter(|uuid| used.contains(uuid)).cloned().collect())
    }
}

fn nothing_of(uuid: &str) -> GrantedGpu {
    GrantedGpu { uuid: uuid.to_owned(), memory: 0, cores_ppm: 0, mig: None }
}
