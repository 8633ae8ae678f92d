//! Freeing the leases of the dead: the promise behind every release that did not happen.

use crate::image::{self, Edit, Summary};
use crate::liveness::{Life, judge};
use crate::{Change, Error, Lease, State, Store};

impl Store {
    /// Frees the leases of the dead and of earlier boots, learns the inits of containers whose maker died, takes
    /// the dead out of the queue, and removes container folders without a lease. Returns what was freed.
    ///
    /// # Errors
    /// As [`Error`] says. A lease of which it cannot be told whether somebody holds it stays, and is no error.
    pub fn reconcile(&self) -> Result<Vec<Lease>, Error> {
        // In this order: a folder is made after its lease, so one that was there before the leases were read and
        // has none belongs to a lease that ended.
        let folders = self.files.folders()?;
        let freed = self.sweep(None)?;
        if !folders.is_empty() {
            let image = self.read()?;
            folders
                .iter()
                .filter(|nonce| image.find(nonce).is_none())
                .for_each(|nonce| self.remove_folder(nonce));
        }
        self.sweep_queue()?;
        self.files.remove_leftovers(&self.files.lock()?)?;
        Ok(freed)
    }

    /// The leases that [`Store::reconcile`] would free, for somebody who only looks: nothing is changed.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn stale(&self) -> Result<Vec<Lease>, Error> {
        self.host.check_proc()?;
        let mut leases = self.leases()?;
        leases.retain(|lease| matches!(judge(&self.host, lease), Ok(Life::Dead)));
        Ok(leases)
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
            match judge(&self.host, &lease) {
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
            let lock = self.files.lock()?;
            let image = self.read_locked(&lock)?;
            let gone = image.lines().filter(|line| dead.contains(line)).chain(image.void_lines());
            for line in gone {
                freed.push(image::lease(line).map_err(|damage| self.damaged(&lock, damage))?);
            }
            let edit = |line| match learnt.iter().find(|(old, _)| *old == line) {
                Some((_, new)) => Edit::Replace(new),
                None if dead.contains(&line) => Edit::Drop,
                None => Edit::Keep,
            };
            self.files.replace(&lock, &image.rewrite(&self.boot, edit, None))?;
            drop(lock);
            if !freed.is_empty() {
                self.wake_first(&image, None);
            }
        }
        for lease in &freed {
            self.remove_folder(&lease.grant.nonce);
            self.tell(Change::Reconciled(lease));
        }
        Ok(freed)
    }
}
