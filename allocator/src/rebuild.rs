//! Getting a node with a damaged allocator file to work again.
//!
//! A damaged file is not taken for an empty one: containers run on what it held, and would share their GPUs
//! with the containers that come next. So every operation answers `state-corrupt` until an administrator
//! rebuilds. That keeps each line that proves by its seal to be whole and of this boot, from the damaged file
//! and from the one before it, and drops those of the dead. It does not forget silently either: a container
//! folder whose lease cannot be recovered stops it, unless the administrator accepts the loss.

use fgpu_spec::Nonce;
use std::path::PathBuf;

use crate::image::{self, Damage, Draft, Image, salvage};
use crate::liveness::Life;
use crate::{Change, Error, Lease, State, Store};

/// What a rebuild did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rebuilt {
    /// The leases that hold.
    pub kept: Vec<Lease>,
    /// The leases whose containers are gone.
    pub freed: Vec<Lease>,
    /// How many lines were damaged.
    pub damaged: usize,
    /// Grants that have a container folder and no lease, given up with `force`.
    pub lost: Vec<Nonce>,
    /// The name under which the damaged file is kept; `None` if there was none to keep.
    pub aside: Option<PathBuf>,
}

impl Store {
    /// Rebuilds a damaged or missing file from what can be proven. With an undamaged one it only reconciles.
    ///
    /// # Errors
    /// [`Error::Unaccounted`] when a container may hold a grant that is lost, and [`Error::Unknown`] when a
    /// newer version wrote its lease, unless `force`. [`Error::Version`] for a file of another version. Then
    /// nothing has changed, and it may be called again.
    pub fn rebuild(&self, force: bool) -> Result<Rebuilt, Error> {
        self.host.check_proc()?;
        loop {
            match self.read() {
                Ok(_) => {
                    let freed = self.reconcile()?;
                    return Ok(Rebuilt { kept: self.leases()?, freed, ..Rebuilt::default() });
                }
                Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
            if let Some(rebuilt) = self.rebuild_damaged(force)? {
                return Ok(rebuilt);
            }
        }
    }

    /// `None` if the file has changed meanwhile: another process rebuilt it.
    fn rebuild_damaged(&self, force: bool) -> Result<Option<Rebuilt>, Error> {
        let folders = self.files.folders()?;
        let damaged_file = self.files.read()?;
        let spare = self.files.read_spare()?.unwrap_or_default();
        let (main_lines, damaged) = salvage(damaged_file.as_deref().unwrap_or_default(), &self.boot);
        let (spare_lines, _) = salvage(&spare, &self.boot);
        let mut rebuilt = Rebuilt { damaged, ..Rebuilt::default() };
        let mut lines = Vec::new();
        // Of the damaged file only: a waiter in the one before it may have been served since. A waiter that
        // loses its place queues up anew.
        let waiters: Vec<_> = main_lines.iter().copied().filter(|line| self.queue().waits(line)).collect();
        let whole = main_lines.into_iter().map(|line| (line, true));
        for (line, latest) in whole.chain(spare_lines.into_iter().map(|line| (line, false))) {
            let mut lease = match image::lease(line) {
                Ok(lease) => lease,
                // A lease that only a newer version can read, whose container may run.
                Err(_) if latest && !force && image::is_lease(line) => {
                    return Err(Error::Unknown { path: self.files.main.clone() });
                }
                Err(_) => continue,
            };
            let same = |other: &&Lease| other.grant.nonce == lease.grant.nonce;
            if rebuilt.kept.iter().chain(&rebuilt.freed).any(|other| same(&other)) {
                continue;
            }
            let life = if lease.state.is_held() { self.judge(&lease) } else { Ok(Life::Alive) };
            match life {
                // The lost line may have known of an init that lives: only a container that has not even a
                // folder is certain to be gone.
                Ok(Life::Dead) if !latest && folders.contains(&lease.grant.nonce) => continue,
                Ok(Life::Dead) => match lease.ended() {
                    Some(rest) => lease = rest,
                    None => {
                        rebuilt.freed.push(lease);
                        continue;
                    }
                },
                Ok(Life::Init(init)) => {
                    lease.init = Some(init);
                    lease.state = State::Active;
                }
                Ok(Life::Alive) | Err(_) => {}
            }
            lines.push(image::line(&lease, &self.boot)?);
            rebuilt.kept.push(lease);
        }
        let known = |nonce: &Nonce| {
            rebuilt.kept.iter().chain(&rebuilt.freed).any(|lease| lease.grant.nonce == *nonce)
        };
        rebuilt.lost = folders.into_iter().filter(|nonce| !known(nonce)).collect();
        if !rebuilt.lost.is_empty() && !force {
            return Err(Error::Unaccounted {
                path: self.files.main.clone(),
                folder: self.files.containers.clone(),
                lost: rebuilt.lost,
            });
        }
        {
            let lock = self.files.lock(&self.host)?;
            let now = self.files.read()?;
            let sound =
                now.clone().is_some_and(|bytes| Image::parse(bytes, &self.boot).err() != Some(Damage::Torn));
            if now != damaged_file || sound {
                return Ok(None);
            }
            rebuilt.aside = self.files.set_aside(&lock);
            if damaged_file.is_some() && rebuilt.aside.is_none() {
                let unkept = std::io::Error::other("neither a link nor a copy of it can be made");
                return Err(Error::io("keep aside", &self.files.main, unkept));
            }
            let draft = Draft::with_queue(&self.boot, lines.iter().map(Vec::as_slice), waiters);
            self.files.replace_damaged(&lock, &draft)?;
        }
        let gone = rebuilt.freed.iter().map(|lease| &lease.grant.nonce).chain(&rebuilt.lost);
        gone.for_each(|nonce| self.remove_folder(nonce));
        rebuilt.freed.iter().for_each(|lease| self.tell(Change::Reconciled(lease)));
        rebuilt.lost.iter().for_each(|nonce| self.tell(Change::Lost(*nonce)));
        Ok(Some(rebuilt))
    }
}
