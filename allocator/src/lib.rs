//! The allocator: the shares of the GPUs and their holders, in one small file.
//!
//! A [`Store`] is a directory (`/run/fgpu`) with a lock and a file of [`Lease`]s. [`Store::reserve`] places a
//! request and writes a lease, [`Store::activate`] records whose processes keep it alive, [`Store::resize`]
//! changes its share, [`Store::release`] ends it, and [`Store::reconcile`] ends those whose processes are
//! gone. Free capacity is never stored: it is what the leases leave over. [`Store::reserve_or_wait`] queues
//! for it.
//!
//! # Invariants
//!
//! - The lock is held for microseconds: never across a look at another process, a cgroup, a driver or a
//!   container's folder. What was judged outside the lock is applied inside it only to lines that have not
//!   changed by a byte.
//! - A commit is one rename. Before it nothing has happened; after it nothing can fail.
//! - A lease ends by a release with its own nonce, by the end of the boot, or because the processes that hold
//!   it are proven gone. No age, no time-out, no wall clock ends it. When it cannot be told, it stays.
//! - A file that fails its check is never overwritten and never taken for empty ([`Store::rebuild`]).
//!
//! Leases name their holders by pid, so each says in which PID namespace that is. Whether a lease that was
//! made in another one is held is known only where all processes can be seen; elsewhere it stays.

#![forbid(unsafe_code)]

mod anchor;
mod capacity;
mod choose;
mod claimed;
mod decision;
mod deleted;
mod elsewhere;
mod error;
mod file;

mod holding;
mod host;
mod image;
mod lease;
mod liveness;
mod lock;
mod look;
mod mig;
pub mod names;
mod observe;
mod phases;
mod place;
mod pool;
pub mod proc;
mod process;
mod queue;
mod ratio;
mod reason;
mod rebuild;
mod reconcile;
mod refusal;
mod reserve;
mod resize;
mod store;
mod tiers;
mod waiter;
mod words;

pub use anchor::{Anchor, Job, Joined, Pod, Pool, ResourceClaim, Shards};
pub use capacity::{Held, Holder};
pub use decision::{Decision, GpuReport, Placement, Refusal, Verdict};
pub use error::Error;
pub use file::OWN;
pub use holding::Holding;
pub use host::Host;
pub use lease::{Applicant, Key, Lease, Rules, State};
pub use lock::holder;
pub use look::may_hold;
pub use mig::seen::{DriverLock, Foreign, Slices};
pub use mig::{Board, Slot, SlotHolder, place as place_slices};
pub use observe::{Change, Observer};
pub use phases::DriverPart;
pub use place::place;
pub use process::Process;
pub use queue::{Ticket, Turn, WaitQueue, Waiting, look_again};
pub use rebuild::Rebuilt;
pub use reserve::Explanation;
pub use store::Store;
pub use waiter::Waiter;
