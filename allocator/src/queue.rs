//! The queue: requests that wait for room, in the order in which they came.
//!
//! It is a part of the allocator file, so that a grant and the end of its wait are one commit.
//!
//! - **Order.** Every request is behind those that wait already, one that does not wait itself included. It
//!   is granted if it fits and cannot delay any of those ahead of it ([`gate`]): it is not known when a
//!   container ends, so it must not delay them in whatever order the containers end.
//! - **Waking.** A process that makes room wakes the first live waiter in the queue, after the commit, by a
//!   byte in that waiter's pipe ([`ticket`]). The first waiter takes the room. If it cannot, it looks which
//!   waiter behind it can, and wakes that one. A process that got a grant wakes the first again. So a release
//!   wakes one process, and one more for each grant that comes of it.
//! - **Nothing is lost.** Each waiter looks by itself as well, the first once a second and those behind it
//!   less often: a waker that was killed between its commit and its byte costs that much time and nothing
//!   else.
//! - **Death.** A waiter is a process with its start time, as the holder of a lease is. A dead waiter is
//!   taken out by a process that finds it in its way, and by every reconcile. So are the stopped (Ctrl-Z) and
//!   the frozen (`systemctl freeze`): they could take nothing and would hold up all others. They queue up
//!   anew when they go on. No age takes a waiter out: it goes when its own time is up.
//! - **Other PID namespaces.** A waiter's process cannot be seen from there, but its open pipe can.
//! - **Cancelling.** Another process may end a wait ([`WaitQueue::cancel`]). The waiter is told through its
//!   pipe before its line goes. So it knows a cancelled line from one that was lost with a damaged file, and
//!   does not come back.

use std::time::Duration;

use fgpu_spec::Error;

use crate::Lease;
use crate::waiter::Waiter;

mod gate;
mod line;
mod operations;
mod ticket;
mod turn;
mod wake;

pub use operations::WaitQueue;
pub(crate) use operations::{count_passes, decide, delayed_by_growth, served};
pub use ticket::Ticket;

/// How often the first in the queue looks without having been woken.
const LOOK: Duration = Duration::from_secs(1);

/// A waiting request as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its place, 1 being the first.
    pub position: usize,
    /// The waiters and what they wait for.
    pub waiter: Waiter,
    /// Why it waits; `None` if it could go, and will as soon as its process looks.
    pub reason: Option<Error>,
    /// The same in a few words.
    pub brief: String,
}

/// What came of a look.
#[derive(Debug)]
pub enum Turn {
    /// It is granted, and out of the queue.
    Granted(Box<Lease>),
    /// It waits.
    Waiting {
        /// Its place, 1 being the first.
        position: usize,
        /// How many wait in all.
        of: usize,
        /// Why.
        reason: Error,
    },
}

/// How long a waiter at `position` (from 1) sleeps at most. Waiters far behind look more rarely, so that a
/// thousand of them are no load: together they look some forty times a second.
pub fn look_again(position: usize) -> Duration {
    LOOK + LOOK / 8 * u32::try_from(position.saturating_sub(1)).unwrap_or(u32::MAX).min(1 << 16)
}
