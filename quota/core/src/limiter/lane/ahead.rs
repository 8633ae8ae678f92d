//! How much may be under way: what is launched cannot be taken back, and how long it is, is known of what came before it.

use core::sync::atomic::Ordering;

use fgpu_wire::limits::COMPUTE_CAP;

use super::Lane;
use crate::limiter::{AHEAD, Grant, WHOLE};

/// Launches that may go before the lane is looked at again.
const MOST: u64 = 128;
/// Launches that may be under way before any has been measured. A first kernel may be a long one.
const UNKNOWN: u64 = 1;
/// By how much a second of a capped container may hold more than its share because kernels turn out longer than those before
/// them, nanoseconds. With what [`CREDIT`](fgpu_wire::ledger::CREDIT) allows for, within 3 points.
const ABOVE: u64 = 20_000_000;
/// The next kernels may be as long, though none was of late, nanoseconds.
const SUDDEN: u64 = 500_000;
/// How long it takes to sleep for a moment and look: as much of the share must be under way, nanoseconds.
const MEANWHILE: u64 = 160_000;
/// For how long it is remembered how long kernels were, nanoseconds; at most for twice as long.
const REMEMBERED: u64 = 10_000_000_000;
/// Launches that say by themselves how long kernels are. Fewer may be a kernel that the driver had to load, or a long one among
/// many short ones.
const SEVERAL: u64 = 4;

/// How long kernels were of late: the longest of what was measured together, each by itself or some on average. All zeros: not known.
pub(super) struct Lengths {
    /// Since `from`, and in the time before that.
    longest: [u64; 2],
    from: u64,
    last: u64,
}

impl Lengths {
    /// So many launches that had ended `at` took `each`. Gives the longest of late.
    pub(super) fn add(&mut self, launches: u64, each: u64, at: u64) -> u64 {
        let age = at.saturating_sub(self.from);
        if age >= REMEMBERED {
            let before = if age < 2 * REMEMBERED { self.longest[0] } else { 0 };
            (self.longest, self.from) = ([0, before], at);
        }
        let length = if launches >= SEVERAL { each } else { each.min(self.last) };
        self.last = each;
        self.longest[0] = self.longest[0].max(length);
        self.longest[0].max(self.longest[1])
    }
}

impl Lane {
    pub(in crate::limiter) fn under_way(&self) -> u64 {
        self.calls.count().launched.saturating_sub(self.retired())
    }

    /// How many launches may be under way.
    pub(in crate::limiter) fn window(&self, grant: &Grant<'_>) -> u64 {
        match self.average() {
            0 => UNKNOWN,
            average if average > AHEAD / 2 => 1,
            average => (AHEAD / average).min(self.most(grant, average)),
        }
    }

    /// How many though each may be as long as the longest of late. Of a second that begins with `u` of them the share comes on top for
    /// what is left of it: it holds `u (1 - share)` too much.
    fn most(&self, grant: &Grant<'_>, average: u64) -> u64 {
        let (mode, ppm) = grant.share();
        if mode != COMPUTE_CAP || ppm >= WHOLE {
            return MOST;
        }
        let whole = u64::from(WHOLE);
        let longest = self.longest.load(Ordering::Relaxed).max(SUDDEN);
        let long = ABOVE * whole / u64::from(WHOLE - ppm).saturating_mul(longest);
        // Where long kernels are rare, fewer would take the short ones' share.
        let short = MEANWHILE * u64::from(ppm) / (whole * average);
        long.max(short).clamp(1, MOST)
    }
}
