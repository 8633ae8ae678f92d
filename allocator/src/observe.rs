//! The observer that is told what became of a lease.
//!
//! Every grant and every end of one passes through the store, whichever front end asked for it, and even
//! without such a request (a reserve that falls short frees the dead first). So an observer that keeps a
//! record listens here.

use std::fmt::Debug;

use fgpu_spec::Nonce;

use crate::Lease;

/// What has happened to a lease. It is told after it is written down and without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// It was made.
    Granted(&'a Lease),
    /// It has another share.
    Resized {
        /// The lease before.
        before: &'a Lease,
        /// The lease now.
        after: &'a Lease,
    },
    /// It was given back, by its nonce or its container's name.
    Released(&'a Lease),
    /// Its holders were found gone, or the boot in which it was made has ended.
    Reconciled(&'a Lease),
    /// A rebuild could not recover it, and an administrator gave it up.
    Lost(Nonce),
}

/// Keeps a record of changes.
///
/// It is called between a container's create and its answer, so it must not wait for anything, and it cannot
/// report that it failed.
pub trait Observer: Debug + Send + Sync {
    /// Takes note of a change.
    fn observe(&self, change: Change<'_>);
}
