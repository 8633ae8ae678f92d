//! The GPUs of a node that only another scheduler gives out: to claims of Kubernetes, or to jobs of Slurm.
//!
//! Such a scheduler knows what its own take and nothing else, so what it may give out must not go to anybody
//! else. One lease of the node's holds these GPUs: the DRA driver makes it before it offers them, the plugin
//! for Slurm when slurmd starts. The lease is exclusive and takes neither memory nor SM time: claims and jobs
//! are added up as ever, and every other request finds those GPUs taken whole. A lease that is there before
//! stays until it ends; the DRA driver offers a GPU when it has.

use fgpu_spec::{Compute, Grant, GrantedGpu, Tier};

use crate::image::{self, Edit, Summary};
use crate::store::new_nonce;
use crate::{Anchor, Change, Error, Lease, Pool, Process, Shards, State, Store, host};

/// What [`Summary::rest`] begins with in the line of a pool of claims, and in that of one of jobs.
const CLAIMS: &[u8] = br#""key":{"namespace":"kubernetes","#;
const JOBS: &[u8] = br#""key":{"namespace":"slurm","id":"node/"#;

/// Who has decided that a request is for this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The node itself.
    Node,
    /// Kubernetes' scheduler.
    Claims,
    /// Slurm.
    Jobs,
}

impl Side {
    /// That of an applicant with this anchor.
    pub(crate) fn of(anchor: Option<&Anchor>) -> Self {
        match anchor {
            Some(Anchor::Claim(_) | Anchor::Pool(_)) => Self::Claims,
            Some(Anchor::Job(_) | Anchor::Shards(_)) => Self::Jobs,
            Some(Anchor::Pod(_)) | None => Self::Node,
        }
    }

    /// Whether a line of the allocator file is that of a pool whose GPUs it may use.
    pub(crate) fn may_use(self, line: &[u8]) -> bool {
        let head = match self {
            Self::Node => return false,
            Self::Claims => CLAIMS,
            Self::Jobs => JOBS,
        };
        Summary::scan(line).is_ok_and(|summary| summary.rest.starts_with(head))
    }
}

impl Store {
    /// Holds these GPUs (UUIDs) and no others for the claims of `pool`; none at all if there are none.
    /// Idempotent. Returns those of them on which something else than claims is still.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn hold_for_claims(&self, pool: &Pool, gpus: &[String]) -> Result<Vec<String>, Error> {
        self.hold(&Anchor::Pool(pool.clone()), gpus)
    }

    /// Holds these GPUs (UUIDs) and no others for the jobs of `shards`; none at all if there are none.
    /// Idempotent. Returns those of them on which something else than jobs is still.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn hold_for_jobs(&self, shards: &Shards, gpus: &[String]) -> Result<Vec<String>, Error> {
        self.hold(&Anchor::Shards(shards.clone()), gpus)
    }

    fn hold(&self, anchor: &Anchor, gpus: &[String]) -> Result<Vec<String>, Error> {
        let side = Side::of(Some(anchor));
        // Each task of a job asks: without the lock.
        let leases = self.leases()?;
        let now = leases.iter().find(|lease| lease.anchor.as_ref() == Some(anchor));
        let uuids = |lease: &Lease| lease.grant.gpus.iter().map(|gpu| gpu.uuid.clone()).collect::<Vec<_>>();
        if !gpus.is_empty() && now.is_some_and(|lease| uuids(lease) == gpus) {
            return Ok(still_used(&leases, side, gpus));
        }
        let key = image::key_head(&anchor.key());
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
            let is_same = old.iter().all(|(_, lease)| lease.anchor.as_ref() == Some(anchor));
            if before == wanted && is_same {
                None
            } else {
                let lease = match &old {
                    Some((_, lease)) => {
                        let grant = Grant { gpus: wanted, ..lease.grant.clone() };
                        Lease { grant, anchor: Some(anchor.clone()), ..lease.clone() }
                    }
                    None => self.pool_lease(anchor.clone(), nonce, wanted)?,
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
        Ok(still_used(&self.leases()?, side, gpus))
    }

    fn pool_lease(
        &self,
        anchor: Anchor,
        nonce: fgpu_spec::Nonce,
        gpus: Vec<GrantedGpu>,
    ) -> Result<Lease, Error> {
        Ok(Lease {
            key: anchor.key(),
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
}

/// Those of the GPUs on which there is more than what this side has sent.
fn still_used(leases: &[Lease], side: Side, gpus: &[String]) -> Vec<String> {
    let others = |lease: &&Lease| Side::of(lease.anchor.as_ref()) != side && lease.state != State::Kept;
    let shares = leases.iter().filter(others).flat_map(|lease| &lease.grant.gpus);
    let used: Vec<_> = shares.map(|share| &share.uuid).collect();
    gpus.iter().filter(|uuid| used.contains(uuid)).cloned().collect()
}

fn nothing_of(uuid: &str) -> GrantedGpu {
    GrantedGpu { uuid: uuid.to_owned(), memory: 0, cores_ppm: 0, mig: None }
}
