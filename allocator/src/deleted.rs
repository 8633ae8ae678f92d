//! The end of a container that its runtime has deleted.

use crate::{Error, Key, Lease, Store};

impl Store {
    /// Ends the leases of a container that its runtime has deleted, and its wait for one. One that a process
    /// is known to live on stays: the runtime's state directory, by which containers are named, may have been
    /// taken for another.
    ///
    /// # Errors
    /// As [`Error`] says; then the leases are still there.
    pub fn release_deleted(&self, container: &Key) -> Result<Vec<Lease>, Error> {
        let mut released = self.release_dead(container)?;
        // That it is deleted tells what could not be told before.
        for lease in self.leases()?.iter().filter(|lease| lease.key == *container && lease.state.is_held()) {
            if !self.is_elsewhere(lease) && self.judge(lease).is_err() {
                released.extend(self.release(&lease.grant.nonce)?);
            }
        }
        if self.read()?.waiters().next().is_some() {
            // The leases are gone either way, and every reconcile tries again.
            let _ = self.queue().cancel_key(container).and_then(|()| self.queue().sweep());
        }
        Ok(released)
    }
}
