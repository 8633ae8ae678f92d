//! Freeing the leases of the dead: the promise behind every release that did not happen.

use crate::image::{self, Summary};
use crate::liveness::Life;
use crate::store::{Ends, end_of};
use crate::{Change, Error, Lease, State, Store};

impl Store {
    /// Frees the leases of the dead and of earlier boots, learns the inits of containers whose maker died,
    /// takes the dead out of the queue, and removes container folders without a lease. Returns what was
    /// freed.
    ///
    /// # Errors
    /// As [`Error`] says. A lease stays if it cannot be told whether it is held; that is no error.
    pub fn reconcile(&self) -> Result<Vec<Lease>, Error> {
        // In this order: a folder is made after its lease, so one that was there before the leases were read
        // and has none belongs to a lease that ended.
        let folders = self.files.folders()?;
        let freed = self.sweep(None)?;
        if !folders.is_empty() {
            let image = self.read()?;
            folders
                .iter()
                .filter(|nonce| image.find(nonce).is_none())
                .for_each(|nonce| self.remove_folder(nonce));
        }
        self.queue().sweep()?;
        self.files.remove_leftovers(&self.files.lock(&self.host)?)?;
        Ok(freed)
    }

    /// The leases that [`Store::reconcile`] would free. Nothing is changed.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn stale(&self) -> Result<Vec<Lease>, Error> {
        self.host.check_proc()?;
        let mut leases = self.leases()?;
        leases.retain(|lease| lease.state.is_held() && matches!(self.judge(lease), Ok(Life::Dead)));
        Ok(leases)
    }

    /// Whether this lease is held, or it cannot be told that it is not.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn is_in_use(&self, lease: &Lease) -> Result<bool, Error> {
        self.host.check_proc()?;
        Ok(lease.state.is_held() && !matches!(self.judge(lease), Ok(Life::Dead)))
    }

    /// The leases that stay because it cannot be told whether they are held, and why it cannot.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn undetermined(&self) -> Result<Vec<(Lease, std::io::Error)>, Error> {
        let held = self.leases()?.into_iter().filter(|lease| lease.state.is_held());
        Ok(held.filter_map(|lease| self.judge(&lease).err().map(|error| (lease, error))).collect())
    }

    /// Frees the dead among all leases, or among those of one container.
    pub(crate) fn sweep(&self, key: Option<&[u8]>) -> Result<Vec<Lease>, Error> {
        self.host.check_proc()?;
        // Judge without the lock: it takes long.
        let image = self.read()?;
        let mut dead: Vec<&[u8]> = Vec::new();
        let mut learnt: Vec<(&[u8], Vec<u8>)> = Vec::new();
        for line in image.lines() {
            let of_key = |key| Summary::scan(line).is_ok_and(|summary| summary.rest.starts_with(key));
            if key.is_some_and(|key| !of_key(key)) {
                continue;
            }
            let mut lease = image::lease(line).map_err(|damage| self.damage(damage, None))?;
            // What is kept or being undone has no holder.
            if !lease.state.is_held() {
                continue;
            }
            match self.judge(&lease) {
                Ok(Life::Dead) => dead.push(line),
                Ok(Life::Init(init)) => {
                    lease.init = Some(init);
                    lease.state = State::Active;
                    learnt.push((line, image::line(&lease, &self.boot)?));
                }
                Ok(Life::Alive) | Err(_) => {}
            }
        }
        if dead.is_empty() && learnt.is_empty() && image.void_lines().next().is_none() {
            return Ok(Vec::new());
        }
        // Apply it to lines that are still the same, byte for byte.
        let mut freed = Vec::new();
        {
            let lock = self.files.lock(&self.host)?;
            let image = self.read_locked(&lock)?;
            let lease = |line| image::lease(line).map_err(|damage| self.damaged(&lock, damage));
            let mut ends: Ends<'_> = Vec::new();
            for line in image.lines().filter(|line| dead.contains(line)) {
                freed.push(self.end(line, lease(line)?, &mut ends)?);
            }
            for line in image.void_lines() {
                freed.push(lease(line)?);
            }
            ends.extend(learnt.into_iter().map(|(old, new)| (old, Some(new))));
            self.files.replace(&lock, &image.rewrite(&self.boot, |line| end_of(&ends, line), None))?;
            drop(lock);
            if !freed.is_empty() {
                self.queue().wake_first(&image, None);
            }
        }
        self.remove_folders(&freed);
        freed.iter().for_each(|lease| self.tell(Change::Reconciled(lease)));
        Ok(freed)
    }
}
