//! What is under way in one context, and how long it took.

mod ahead;
mod calls;
mod held;
mod marks;
mod work;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use fgpu_wire::ledger::CREDIT;
use fgpu_wire::limits::COMPUTE_CAP;

use self::calls::Calls;
use self::marks::Notes;
use self::work::State;
use super::{AHEAD, BEFOREHAND, Grant, LOOK, PAUSE, Wait};

/// Where something is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// A stream by its handle; up to 2 that is the legacy default stream.
    Shared(usize),
    /// The default stream of the thread that launches. No other thread can name it.
    OwnThread,
}

/// A context's work on its GPU. All zeros is an idle one.
pub struct Lane {
    /// Until when launches go without another look, and up to which one.
    go_until: AtomicU64,
    go_below: AtomicU64,
    at_work: AtomicU32,
    /// The thread that holds `state`; 0: nobody.
    lock: AtomicUsize,
    calls: Calls,
    launched_at: AtomicU64,
    /// Launches before the last marks.
    covered: AtomicU64,
    marked_at: AtomicU64,
    /// So many of the next launches are marked one by one.
    closely: AtomicU32,
    retired: AtomicU64,
    /// Nanoseconds of a launch; 0: not known.
    average: AtomicU64,
    /// Of the longest of late, on average over what was measured together; 0: not known.
    longest: AtomicU64,
    since: AtomicU64,
    /// 1: a launch had to wait for its container's turn, and what was missed meanwhile is not made up for yet.
    waited: AtomicU32,
    /// Launches that went unpaid since one was paid for.
    unpaid: AtomicU32,
    notes: Notes,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is reached under `lock` only.
unsafe impl Sync for Lane {}

impl Lane {
    /// Whether a launch may go without another look. It is under way from then on.
    #[inline]
    pub(super) fn may_go(&self, now: u64) -> bool {
        if now >= self.go_until.load(Ordering::Relaxed) || !self.is_at_work() {
            return false;
        }
        // Before it is asked once more, so that nobody takes the lane for idle in between.
        let before = self.calls.enter();
        let may = self.is_at_work() && before.begun() < self.go_below.load(Ordering::Relaxed);
        if !may {
            self.calls.leave();
        }
        may
    }

    /// After a look that let a launch go: whether no other thread's took the room at the same time. It does not matter to one
    /// that has waited for long enough (`is_stuck`): the other may be itself, in a callback of the driver's.
    pub(super) fn enter(&self, window: u64, is_stuck: bool) -> bool {
        let others = self.calls.enter().calling;
        let has_room = others == 0 || is_stuck || self.under_way() + others < window;
        if !has_room {
            self.calls.leave();
        }
        has_room
    }

    /// A launch that was let go failed.
    #[cold]
    pub fn failed(&self) {
        self.calls.leave();
    }

    pub(super) fn unpaid(&self) -> u32 {
        self.unpaid.load(Ordering::Relaxed)
    }

    /// A launch goes, paid or not.
    pub(super) fn note_unpaid(&self, is_unpaid: bool) {
        let next = if is_unpaid { self.unpaid().saturating_add(1) } else { 0 };
        self.unpaid.store(next, Ordering::Relaxed);
    }

    /// Lets launches go until the next look, as many as `window` allows for.
    pub(super) fn let_go(&self, now: u64, grant: &Grant<'_>, window: u64, waited: bool) {
        if waited {
            self.waited.store(1, Ordering::Relaxed);
        } else if grant.share().0 != COMPUTE_CAP || grant.account.paid() >= now {
            self.waited.store(0, Ordering::Relaxed);
        }
        // The one that is let go now is among those that have begun.
        let room = window.saturating_sub(self.under_way()).saturating_sub(1);
        self.go_below.store(self.calls.count().begun() + room, Ordering::Relaxed);
        self.go_until.store(now + LOOK, Ordering::Relaxed);
    }

    /// A launch comes to the gate. After a pause the lane's time counts anew: what it did not want it has not missed.
    pub(super) fn arrive(&self, now: u64) {
        if now.saturating_sub(self.launched_at.load(Ordering::Relaxed)) > PAUSE {
            self.since.store(now, Ordering::Relaxed);
            self.waited.store(0, Ordering::Relaxed);
        }
    }

    /// Since when it has launched without a pause.
    pub(super) fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Acquire) != 0
    }

    pub(super) fn average(&self) -> u64 {
        self.average.load(Ordering::Relaxed)
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    /// Time that the container had to leave to others is not lost to it as idle time is, nor what a sleep ended late.
    pub(super) fn credit(&self, grant: &Grant<'_>, is_late: bool) -> u64 {
        let late = if is_late { CREDIT } else { 0 };
        if self.waited.load(Ordering::Relaxed) == 0 { late } else { late + grant.entitled() }
    }

    /// Pays for a kernel in advance, if the lane is idle: several processes that wait until nothing is owed would go all at once.
    /// Gives the GPU time, nanoseconds; `None`: another process was faster.
    pub(super) fn prepay(&self, now: u64, grant: &Grant<'_>, wait: &Wait) -> Option<u64> {
        let (mode, ppm) = grant.share();
        if mode != COMPUTE_CAP || self.is_at_work() {
            return Some(0);
        }
        if wait.turn {
            self.waited.store(1, Ordering::Relaxed);
        }
        let (time, credit) = match self.average() {
            // Of which nobody knows the length, one goes after the other.
            0 => (AHEAD, 0),
            average => (average.min(BEFOREHAND), self.credit(grant, wait.owed)),
        };
        grant.account.prepay(now, time, ppm, credit).then_some(time)
    }
}
