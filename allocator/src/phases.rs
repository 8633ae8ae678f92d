//! The part of a lease that the driver has: made after the lease is written, undone before the lease goes.
//!
//! ```text
//! reserve ─ reserving ─ set-up by the driver ─ activate ─ active ─ release ─ releasing ─ undone by the driver ─ finish
//!             │ planned ─ creating ─ made                              │                                          │
//!             └─ killed: the sweep finds its maker dead ───────────────┘        kept ◄─ keep ─────────────────────┤
//!                                                                                └─ taken by a later reserve      gone
//! ```
//!
//! The driver is called with no lock of the store held, by a program of its own. Whatever is killed in
//! between, what the lease says is enough to finish: a slice that is `creating`, `made` or `destroying` may
//! have an instance that fgpu made; any other has not.

use fgpu_spec::{MigInstance, MigStage, Nonce, Tier};

use crate::image::{self, Edit, Image};
use crate::store::{Ends, end_of};
use crate::{Error, Lease, State, Store, host};

impl Lease {
    /// Whether the driver may hold something for it that must be undone before it goes.
    pub fn has_driver_part(&self) -> bool {
        match self.grant.tier {
            Tier::Mig => {
                self.grant.gpus.iter().filter_map(|gpu| gpu.mig.as_ref()).any(|mig| mig.stage.is_ours())
            }
            // Set in its cgroup, if it has got one.
            Tier::Driver => self.cgroup.is_some(),
            Tier::Quota | Tier::None => false,
        }
    }

    /// The lease as its container's end leaves it: [`State::Releasing`] if the driver has a part in it.
    /// `None` if it goes.
    pub(crate) fn ended(&self) -> Option<Self> {
        let releasing = || Self { state: State::Releasing, owner: None, exclusive: false, ..self.clone() };
        self.has_driver_part().then(releasing)
    }
}

/// What the driver holds for leases: how far it has come, and what becomes of it.
#[derive(Debug, Clone, Copy)]
pub struct DriverPart<'a> {
    store: &'a Store,
}

impl Store {
    /// The driver's part of the leases.
    pub fn driver_part(&self) -> DriverPart<'_> {
        DriverPart { store: self }
    }
}

impl DriverPart<'_> {
    /// Writes down how far the slice with that place in the grant has come. `false` if there is no such lease
    /// (any more), or it has come to its end and the slice was only planned: then nothing may be made.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn progress(
        &self,
        nonce: &Nonce,
        slice: usize,
        stage: MigStage,
        instance: Option<MigInstance>,
    ) -> Result<bool, Error> {
        self.store.change(nonce, |lease| {
            let held = lease.state.is_held();
            let mig = lease.grant.gpus.get_mut(slice).and_then(|gpu| gpu.mig.as_mut());
            match mig {
                Some(mig) if held || stage != MigStage::Creating => {
                    mig.stage = stage;
                    mig.instance = instance;
                    true
                }
                _ => false,
            }
        })
    }

    /// Writes down why the driver's part of a lease cannot be undone yet.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn tell_trouble(&self, nonce: &Nonce, trouble: Option<String>) -> Result<bool, Error> {
        self.store.change(nonce, |lease| {
            lease.trouble = trouble;
            true
        })
    }

    /// Keeps what the driver made for a lease that has ended, for the next request. `false` if it has not
    /// ended, or not everything was made.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn keep(&self, nonce: &Nonce) -> Result<bool, Error> {
        self.store.change(nonce, |lease| {
            let mut slices = lease.grant.gpus.iter().map(|gpu| gpu.mig.as_ref().map(|mig| mig.stage));
            if lease.state != State::Releasing || !slices.all(|stage| stage == Some(MigStage::Made)) {
                return false;
            }
            lease.state = State::Kept;
            lease.kept = Some(host::boottime());
            true
        })
    }

    /// Ends the keeping of everything that has been kept for `longest` (ns) or longer. Returns how many
    /// leases that are.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn end_keeping(&self, longest: u64) -> Result<usize, Error> {
        let now = host::boottime();
        let due = |lease: &Lease| {
            lease.state == State::Kept && lease.kept.is_none_or(|since| now.saturating_sub(since) >= longest)
        };
        if !self.store.leases()?.iter().any(due) {
            return Ok(0);
        }
        let lock = self.store.files.lock(&self.store.host)?;
        let image = self.store.read_locked(&lock)?;
        let mut ended: Ends<'_> = Vec::new();
        for line in image.lines() {
            let lease = image::lease(line).map_err(|damage| self.store.damaged(&lock, damage))?;
            if due(&lease) {
                let lease = Lease { state: State::Releasing, kept: None, ..lease };
                ended.push((line, Some(image::line(&lease, &self.store.boot)?)));
            }
        }
        self.store
            .files
            .replace(&lock, &image.rewrite(&self.store.boot, |line| end_of(&ended, line), None))?;
        Ok(ended.len())
    }

    /// The leases that have come to their end, but for the driver's part.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn releasing(&self) -> Result<Vec<Lease>, Error> {
        let mut leases = self.store.leases()?;
        leases.retain(|lease| lease.state == State::Releasing);
        Ok(leases)
    }

    /// Drops a lease that has come to its end and whose driver's part is undone. `false` if there is none, or
    /// it is not.
    ///
    /// # Errors
    /// As [`Error`] says; then the lease is still there.
    pub fn finish(&self, nonce: &Nonce) -> Result<bool, Error> {
        {
            let lock = self.store.files.lock(&self.store.host)?;
            let image = self.store.read_locked(&lock)?;
            let Some(old) = image.find(nonce) else { return Ok(false) };
            let lease = image::lease(old).map_err(|damage| self.store.damaged(&lock, damage))?;
            let undone = lease.grant.tier != Tier::Mig || !lease.has_driver_part();
            if lease.state != State::Releasing || !undone {
                return Ok(false);
            }
            let edit = |line| if line == old { Edit::Drop } else { Edit::Keep };
            self.store.files.replace(&lock, &image.rewrite(&self.store.boot, edit, None))?;
            drop(lock);
            self.store.queue().wake_first(&image, None);
        }
        self.store.remove_folder(nonce);
        Ok(true)
    }

    /// Makes a lease of the `driver` tier one of the `quota` tier, which says why.
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn downgrade_to_quota(&self, nonce: &Nonce, note: &str) -> Result<bool, Error> {
        self.store.change(nonce, |lease| {
            let is_driver = lease.grant.tier == Tier::Driver && lease.state.is_held();
            if is_driver {
                lease.grant.tier = Tier::Quota;
                lease.grant.notes.push(note.to_owned());
            }
            is_driver
        })
    }

    /// Gives a new lease the instances that are kept in its places.
    pub(crate) fn take_kept<'a>(&self, image: &'a Image, lease: &mut Lease) -> Result<Ends<'a>, Error> {
        let mut taken: Ends<'a> = Vec::new();
        let wanted = |lease: &Lease| {
            lease.grant.gpus.iter().any(|gpu| gpu.mig.as_ref().is_some_and(|mig| mig.stage == MigStage::Made))
        };
        if !wanted(lease) {
            return Ok(taken);
        }
        for line in image.lines() {
            let mut kept = image::lease(line).map_err(|damage| self.store.damage(damage, None))?;
            if kept.state != State::Kept {
                continue;
            }
            let before = kept.grant.gpus.len();
            for share in &mut lease.grant.gpus {
                let Some(mig) = share.mig.as_mut().filter(|mig| mig.stage == MigStage::Made) else {
                    continue;
                };
                kept.grant.gpus.retain(|other| {
                    let same = other.uuid == share.uuid
                        && other.mig.as_ref().is_some_and(|other| other.placement == mig.placement);
                    if same {
                        mig.instance = other.mig.as_ref().and_then(|other| other.instance.clone());
                    }
                    !same
                });
            }
            if kept.grant.gpus.len() < before {
                let rest = (!kept.grant.gpus.is_empty())
                    .then(|| image::line(&kept, &self.store.boot))
                    .transpose()?;
                taken.push((line, rest));
            }
        }
        Ok(taken)
    }
}
