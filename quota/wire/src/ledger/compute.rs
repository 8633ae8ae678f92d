//! The account of GPU time: what a container has used of one GPU's multiprocessors, and until when that is
//! paid for.
//!
//! ```text
//!  0  charged  8  nanoseconds for which the container's kernels were at work, in total
//!  8  paid     8  CLOCK_MONOTONIC nanoseconds: used time divided by the share reaches up to here
//! 16  share    8  ppm by which `paid` is computed; 0: not read yet
//! 24  busy     8  the recent utilisation ([`Busy`])
//! 32  reserved
//! 48  turn    80  what the container publishes for the others on the GPU ([`Own`])
//! 128 reserved
//! ```
//!
//! Every word changes by one compare-and-swap and has a meaning by itself, so there is no lock here. A
//! process that dies between two words leaves at most one of its bursts unpaid, or a kernel paid for in vain.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Busy;
use crate::turns::Own;

/// Unused time that is saved up, nanoseconds on the clock; the rest is lost. A sleep always ends late, so
/// without this a container that sleeps until it has paid could never catch up.
pub const CREDIT: u64 = 10_000_000;

const WHOLE: u64 = 1_000_000;

/// One GPU's account.
#[repr(C)]
pub struct Compute {
    charged: AtomicU64,
    paid: AtomicU64,
    share: AtomicU64,
    busy: Busy,
    reserved: [AtomicU64; 2],
    own: Own,
    tail: [AtomicU64; 16],
}

/// Where [`Busy`] is in an account, bytes.
pub(super) const BUSY_AT: usize = core::mem::offset_of!(Compute, busy);

/// A time for which kernels of one process were at work, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// When it began (CLOCK_MONOTONIC).
    pub from: u64,
    /// How long it was.
    pub length: u64,
    /// [`Compute::charged`] when it began.
    pub before: u64,
}

/// `time` of a GPU as time on the clock at a share of `ppm`, nanoseconds.
pub const fn at_share(time: u64, ppm: u32) -> u64 {
    let ppm = if ppm == 0 { 1 } else { ppm as u64 };
    match time.checked_mul(WHOLE) {
        Some(0) => 0,
        Some(product) => product / ppm,
        None => (time / ppm).saturating_mul(WHOLE).saturating_add(time % ppm * WHOLE / ppm),
    }
}

impl Default for Compute {
    fn default() -> Self {
        Self::new()
    }
}

impl Compute {
    /// All zeros: an account of which nothing is used.
    pub const fn new() -> Self {
        Self {
            charged: AtomicU64::new(0),
            paid: AtomicU64::new(0),
            share: AtomicU64::new(0),
            busy: Busy::new(),
            reserved: [const { AtomicU64::new(0) }; 2],
            own: Own::new(),
            tail: [const { AtomicU64::new(0) }; 16],
        }
    }

    /// What the container publishes for the others on the GPU.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// Nanoseconds of GPU time that the container has used in total.
    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::Acquire)
    }

    /// Until when the used time is paid for, CLOCK_MONOTONIC nanoseconds.
    pub fn paid(&self) -> u64 {
        self.paid.load(Ordering::Acquire)
    }

    /// Charges the part of a span that no other process of the container was charged for meanwhile: kernels
    /// of several processes take turns on a GPU, so the container has used their union and not their sum.
    /// Returns what was charged.
    ///
    /// With a share of `ppm`, `paid` moves on by that time less `prepaid` divided by the share, from at most
    /// `credit` before the span's beginning, and not further than `ahead` beyond its end (nanoseconds).
    pub fn charge(&self, span: Span, ppm: u32, credit: u64, ahead: u64, prepaid: u64) -> u64 {
        let mut charged = self.charged();
        let time = loop {
            let time = span.length.saturating_sub(charged.wrapping_sub(span.before));
            let next = charged.wrapping_add(time);
            match self.charged.compare_exchange_weak(charged, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break time,
                Err(now) => charged = now,
            }
        };
        let end = span.from.saturating_add(span.length).saturating_add(ahead);
        let pay = |paid: u64| {
            let owed = at_share(time.saturating_sub(prepaid), ppm);
            let next = paid.max(span.from.saturating_sub(credit)).saturating_add(owed).min(end.max(paid));
            (next != paid).then_some(next)
        };
        let _ = self.paid.fetch_update(Ordering::AcqRel, Ordering::Acquire, pay);
        time
    }

    /// Reports to readers of [`busy`](Self::busy) that `time` was charged for work that ended at `end`
    /// (nanoseconds).
    pub fn report(&self, end: u64, time: u64) {
        self.busy.add(end, time);
    }

    /// Pays for `time` in advance, from at most `credit` before `now` on, if nothing is owed (nanoseconds).
    /// `false`: something is owed; of several processes that wait for this moment, one goes.
    pub fn prepay(&self, now: u64, time: u64, ppm: u32, credit: u64) -> bool {
        let paid = self.paid();
        let next = paid.max(now.saturating_sub(credit)).saturating_add(at_share(time, ppm));
        paid <= now && self.paid.compare_exchange(paid, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives back what was paid in advance and not used.
    pub fn refund(&self, time: u64, ppm: u32) {
        let less = |paid: u64| Some(paid.saturating_sub(at_share(time, ppm)));
        let _ = self.paid.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// The part of the GPU's time that the container used recently, ppm, at CLOCK_MONOTONIC nanoseconds
    /// `now`.
    pub fn busy(&self, now: u64) -> u32 {
        self.busy.ppm(now)
    }

    /// How long after `now` the container has paid for what it used, at a share of `ppm`, if it uses nothing
    /// more. It owes GPU time, so a new share changes how long that takes.
    pub fn owed(&self, now: u64, ppm: u32) -> u64 {
        let old = self.share.load(Ordering::Acquire);
        let new = u64::from(ppm.max(1));
        if old != new
            && self.share.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
            && old != 0
        {
            let rescale = |paid: u64| {
                let owed = paid.checked_sub(now)?;
                Some(now.saturating_add((u128::from(owed) * u128::from(old) / u128::from(new)) as u64))
            };
            let _ = self.paid.fetch_update(Ordering::AcqRel, Ordering::Acquire, rescale);
        }
        self.paid().saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_quarter_waits_three_times_as_long_as_it_worked() {
        let account = Compute::new();
        let span = Span { from: 1000 * MS, length: 100 * MS, before: 0 };
        assert_eq!(account.charge(span, 250_000, CREDIT, u64::MAX, 0), 100 * MS);
        assert_eq!(account.owed(1100 * MS, 250_000), 300 * MS - CREDIT);
        assert_eq!(account.owed(1400 * MS, 250_000), 0);
    }

    #[test]
    fn a_time_at_a_share_is_exact_however_long() {
        for ppm in [1, 3, 250_000, 333_333, 1_000_000] {
            for time in [0, 1, 7, 999_999, MS, u64::MAX / WHOLE, u64::MAX / WHOLE + 1, u64::MAX] {
                let exact = u128::from(time) * u128::from(WHOLE) / u128::from(ppm);
                assert_eq!(u128::from(at_share(time, ppm)), exact.min(u64::MAX.into()), "{time} {ppm}");
            }
        }
        assert_eq!(at_share(5, 0), 5 * WHOLE);
    }

    #[test]
    fn spans_of_several_processes_count_once() {
        let account = Compute::new();
        // Both from 0 to 100; a third worked in the middle of it.
        let whole = Span { from: 0, length: 100, before: account.charged() };
        assert_eq!(
            account.charge(Span { from: 40, length: 20, before: 0 }, 500_000, CREDIT, u64::MAX, 0),
            20
        );
        assert_eq!(account.charge(whole, 500_000, CREDIT, u64::MAX, 0), 80);
        assert_eq!(account.charge(whole, 500_000, CREDIT, u64::MAX, 0), 0);
        assert_eq!(account.charged(), 100);
    }

    #[test]
    fn charged_time_is_reported_as_busy() {
        let account = Compute::new();
        let span = Span { from: 1000 * MS, length: 100 * MS, before: 0 };
        let time = account.charge(span, 250_000, CREDIT, u64::MAX, 0);
        account.report(1100 * MS, time);
        assert_eq!((account.busy(1100 * MS), account.busy(1499 * MS)), (200_000, 200_000));
    }

    #[test]
    fn one_of_several_waiting_processes_goes() {
        let account = Compute::new();
        assert!(account.prepay(1000 * MS, 10 * MS, 500_000, 0));
        assert_eq!(account.owed(1000 * MS, 500_000), 20 * MS);
        assert!(!account.prepay(1000 * MS, 10 * MS, 500_000, 0));
        // It was longer than that, and all of it is paid for.
        account.charge(Span { from: 1000 * MS, length: 15 * MS, before: 0 }, 500_000, 0, u64::MAX, 10 * MS);
        assert_eq!(account.owed(1000 * MS, 500_000), 30 * MS);
        account.refund(5 * MS, 500_000);
        assert_eq!(account.owed(1000 * MS, 500_000), 20 * MS);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let account = Compute::new();
        account.charge(Span { from: 0, length: MS, before: 0 }, 100_000, CREDIT, u64::MAX, 0);
        let late = Span { from: 60_000 * MS, length: 10 * MS, before: account.charged() };
        account.charge(late, 100_000, CREDIT, u64::MAX, 0);
        assert_eq!(account.owed(60_010 * MS, 100_000), 90 * MS - CREDIT);
    }

    #[test]
    fn a_new_share_changes_how_long_the_debt_takes() {
        let account = Compute::new();
        assert_eq!(account.owed(MS, 100_000), 0);
        account.charge(Span { from: 1000 * MS, length: 101 * MS, before: 0 }, 100_000, CREDIT, u64::MAX, 0);
        assert_eq!(account.owed(1100 * MS, 100_000), 900 * MS);
        assert_eq!(account.owed(1100 * MS, 1_000_000), 90 * MS);
        assert_eq!(account.owed(1100 * MS, 500_000), 180 * MS);
    }

    #[test]
    fn use_of_idle_time_is_not_paid_for_later() {
        let account = Compute::new();
        account.charge(Span { from: 0, length: 10_000 * MS, before: 0 }, 100_000, CREDIT, 100 * MS, 0);
        assert_eq!(account.owed(10_000 * MS, 100_000), 100 * MS);
    }

    #[test]
    fn shares_are_divided_by_without_overflow() {
        assert_eq!(at_share(1 << 50, 1_000_000), 1 << 50);
        assert_eq!(at_share(3, 333_333), 9);
        assert_eq!(at_share(u64::MAX, 1), u64::MAX);
        assert_eq!(at_share(5, 0), 5_000_000);
    }
}
