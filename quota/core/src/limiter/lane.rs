//! One context of this process on a GPU: what of it is in flight, and what the limiter knows about its
//! kernels.
//!
//! - [`calls`]: how many launches there were, and how many are in the driver's call;
//! - [`streams`]: the streams whose launches have no mark yet;
//! - [`span`]: one time at work, its marks, and what of it is charged;
//! - [`lengths`]: how long kernels were recently.

mod calls;
mod lengths;
pub(super) mod span;
pub(super) mod streams;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fgpu_wire::ledger::CREDIT;

use self::calls::Calls;
use self::span::Span;
use self::streams::Unmarked;
use super::environment::Host;
use super::shared::grant::Grant;
use super::shared::lock::Lock;

/// A context's work on its GPU. All zeros is an idle lane.
pub struct Lane {
    /// Launches go without another look until this time, and up to this launch.
    pub(crate) go_until: AtomicU64,
    pub(crate) go_below: AtomicU64,
    at_work: AtomicU32,
    pub(crate) calls: Calls,
    pub(crate) launched_at: AtomicU64,
    /// Launches before the last marks.
    pub(crate) covered: AtomicU64,
    pub(crate) marked_at: AtomicU64,
    /// So many of the next launches get a mark each.
    pub(crate) mark_each: AtomicU32,
    /// Launches that were seen to end.
    pub(crate) retired: AtomicU64,
    /// The average length of a kernel, nanoseconds; 0: unknown.
    pub(crate) average: AtomicU64,
    /// The length of the longest recent kernels, nanoseconds; 0: unknown.
    pub(crate) longest: AtomicU64,
    /// Since when it has launched without a pause.
    pub(crate) since: AtomicU64,
    /// 1: a launch yielded to other containers, and the container has not caught up on that yet.
    pub(crate) yielded: AtomicU32,
    /// Launches that went unpaid since one was paid for.
    pub(crate) unpaid: AtomicU32,
    pub(crate) unmarked: Unmarked,
    pub(crate) span: Lock<Span>,
}

impl Lane {
    pub(crate) fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Acquire) != 0
    }

    pub(crate) fn set_at_work(&self, is_at_work: bool) {
        self.at_work.store(is_at_work.into(), Ordering::Release);
    }

    pub(crate) fn average(&self) -> u64 {
        self.average.load(Ordering::Relaxed)
    }

    pub(crate) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    /// Launches that were not seen to end.
    pub(crate) fn in_flight(&self) -> u64 {
        self.calls.count().launched.saturating_sub(self.retired())
    }

    /// How long ago the last launch was, nanoseconds.
    pub(crate) fn since_launch(&self, now: u64) -> u64 {
        now.saturating_sub(self.launched_at.load(Ordering::Relaxed))
    }

    /// Unused time that is not lost, nanoseconds on the clock: what the container yielded to others, and what
    /// a sleep ended too late. Idle time is lost.
    pub(crate) fn credit(&self, grant: &Grant<'_>, is_late: bool) -> u64 {
        let late = if is_late { CREDIT } else { 0 };
        if self.yielded.load(Ordering::Relaxed) == 0 { late } else { late + grant.max_yield() }
    }

    /// Waits until no other thread that has the state asks the driver; until `until` at most.
    pub(crate) fn wait_for_holder(&self, until: u64, host: &impl Host) {
        self.span.wait_for_holder(until, host);
    }
}
