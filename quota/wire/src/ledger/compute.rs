//! GPU time: what a container has used of one GPU's multiprocessors, and until when that is paid for.
//!
//! ```text
//!  0  charged  8  nanoseconds for which the container's kernels were at work, ever
//!  8  paid     8  CLOCK_MONOTONIC nanoseconds: used time divided by the share reaches up to here
//! 16  share    8  ppm at which `paid` is reckoned; 0: nobody has looked yet
//! 24  window  24  when the current window of [`Compute::busy`] began, `charged` then, and the part of the one before (ppm)
//! 48  turn    56  what the container says of itself to the others on the GPU ([`Own`])
//! 104 reserved
//! ```
//!
//! Every word changes by one compare-and-swap and says something by itself, so there is no lock here, and a process that
//! dies between two of them leaves at most one of its bursts unpaid.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::turns::Own;

/// Time that a container left unused is not saved up, but for so much of it (nanoseconds on the clock): else whoever
/// starts his kernels a little late, as a sleep always ends late, could never catch up.
pub const CREDIT: u64 = 10_000_000;

const WHOLE: u64 = 1_000_000;

/// Over how long it is told how busy a container is, nanoseconds; about what NVIDIA's driver samples.
const WINDOW: u64 = 500_000_000;

/// One GPU's account.
#[repr(C)]
pub struct Compute {
    charged: AtomicU64,
    paid: AtomicU64,
    share: AtomicU64,
    window: [AtomicU64; 3],
    own: Own,
    reserved: [AtomicU64; 19],
}

/// A time for which kernels of one process were at work, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// When it began (CLOCK_MONOTONIC).
    pub from: u64,
    /// How long it was.
    pub length: u64,
    /// What [`Compute::charged`] said when it began.
    pub before: u64,
}

/// `time` of a GPU as time on the clock at a share of `ppm`, nanoseconds.
pub const fn at_share(time: u64, ppm: u32) -> u64 {
    let ppm = if ppm == 0 { 1 } else { ppm as u64 };
    (time / ppm).saturating_mul(WHOLE).saturating_add(time % ppm * WHOLE / ppm)
}

/// `used` of `passed` nanoseconds in ppm, at most all of it.
const fn part_of(used: u64, passed: u64) -> u64 {
    let ppm = used as u128 * WHOLE as u128 / if passed == 0 { 1 } else { passed as u128 };
    if ppm > WHOLE as u128 { WHOLE } else { ppm as u64 }
}

impl Default for Compute {
    fn default() -> Self {
        Self::new()
    }
}

impl Compute {
    /// An account of which nothing is used, as zeros are.
    pub const fn new() -> Self {
        Self {
            charged: AtomicU64::new(0),
            paid: AtomicU64::new(0),
            share: AtomicU64::new(0),
            window: [const { AtomicU64::new(0) }; 3],
            own: Own::new(),
            reserved: [const { AtomicU64::new(0) }; 19],
        }
    }

    /// What the container says of itself to the others on the GPU.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// Nanoseconds of GPU time that the container has used, ever.
    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::Acquire)
    }

    /// Until when what was used is paid for, CLOCK_MONOTONIC nanoseconds.
    pub fn paid(&self) -> u64 {
        self.paid.load(Ordering::Acquire)
    }

    /// Charges the part of a span that no other process of the container was charged for meanwhile: kernels of several
    /// processes take turns on a GPU, so the container has used their union and not their sum. Gives what was charged.
    ///
    /// With a share of `ppm`, `paid` moves on by that time divided by the share, from at most `credit` before the span's
    /// beginning, and not further than `ahead` beyond its end (nanoseconds).
    pub fn charge(&self, span: Span, ppm: u32, credit: u64, ahead: u64) -> u64 {
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
            let next = paid.max(span.from.saturating_sub(credit)).saturating_add(at_share(time, ppm));
            Some(next.min(end.max(paid)))
        };
        let _ = self.paid.fetch_update(Ordering::AcqRel, Ordering::Acquire, pay);
        self.open_window(span.from.saturating_add(span.length));
        time
    }

    /// Begins another window if the current one is over.
    fn open_window(&self, now: u64) {
        let [began, before, part] = &self.window;
        let last = began.load(Ordering::Acquire);
        let over = now.saturating_sub(last) >= WINDOW;
        // Of several that find it over one goes on.
        if over && began.compare_exchange(last, now, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let charged = self.charged();
            let used = charged.wrapping_sub(before.swap(charged, Ordering::AcqRel));
            part.store(part_of(used, now.saturating_sub(last)), Ordering::Release);
        }
    }

    /// The part of the GPU's time that the container used of late, in ppm, at CLOCK_MONOTONIC nanoseconds `now`. Who only
    /// looks changes nothing; a burst that is not over does not count yet.
    pub fn busy(&self, now: u64) -> u32 {
        let [began, before, part] = &self.window;
        let began = began.load(Ordering::Acquire);
        if began == 0 {
            return 0;
        }
        let passed = now.saturating_sub(began);
        let used = self.charged().wrapping_sub(before.load(Ordering::Acquire));
        if passed >= WINDOW {
            return part_of(used, passed) as u32;
        }
        // What is missing of a whole window is taken from the one before.
        let earlier = part.load(Ordering::Acquire).min(WHOLE) * (WINDOW - passed) / WHOLE;
        part_of(used.saturating_add(earlier), WINDOW) as u32
    }

    /// How long from `now` on the container has to do nothing until what it used is paid for, at a share of `ppm`. What is
    /// owed is GPU time: a new share changes how long that takes.
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
        assert_eq!(account.charge(span, 250_000, CREDIT, u64::MAX), 100 * MS);
        assert_eq!(account.owed(1100 * MS, 250_000), 300 * MS - CREDIT);
        assert_eq!(account.owed(1400 * MS, 250_000), 0);
    }

    #[test]
    fn whoever_looks_is_told_how_busy_it_was() {
        let account = Compute::new();
        assert_eq!(account.busy(77 * MS), 0);
        // 30 of every 100 ms, for two seconds.
        for round in 10..30 {
            let span = Span { from: round * 100 * MS, length: 30 * MS, before: account.charged() };
            account.charge(span, 300_000, CREDIT, u64::MAX);
        }
        for late in [0, 20, 60] {
            let busy = account.busy((2930 + late) * MS);
            assert!((250_000..=360_000).contains(&busy), "{late}: {busy}");
        }
        // Then nothing.
        let later: [u32; 3] = [4000, 6000, 60_000].map(|at| account.busy(at * MS));
        assert!(later[0] < 100_000 && later[1] < later[0] && later[2] < 5000, "{later:?}");
        // And all of it: never more than a whole GPU.
        let span = Span { from: 60_000 * MS, length: 900 * MS, before: account.charged() };
        account.charge(span, 1_000_000, CREDIT, u64::MAX);
        assert!(account.busy(60_900 * MS) <= 1_000_000);
    }

    #[test]
    fn spans_of_several_processes_count_once() {
        let account = Compute::new();
        // Both from 0 to 100; a third worked in the middle of it.
        let whole = Span { from: 0, length: 100, before: account.charged() };
        assert_eq!(account.charge(Span { from: 40, length: 20, before: 0 }, 500_000, CREDIT, u64::MAX), 20);
        assert_eq!(account.charge(whole, 500_000, CREDIT, u64::MAX), 80);
        assert_eq!(account.charge(whole, 500_000, CREDIT, u64::MAX), 0);
        assert_eq!(account.charged(), 100);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let account = Compute::new();
        account.charge(Span { from: 0, length: MS, before: 0 }, 100_000, CREDIT, u64::MAX);
        let late = Span { from: 60_000 * MS, length: 10 * MS, before: account.charged() };
        account.charge(late, 100_000, CREDIT, u64::MAX);
        assert_eq!(account.owed(60_010 * MS, 100_000), 90 * MS - CREDIT);
    }

    #[test]
    fn a_new_share_changes_how_long_the_debt_takes() {
        let account = Compute::new();
        assert_eq!(account.owed(MS, 100_000), 0);
        account.charge(Span { from: 1000 * MS, length: 101 * MS, before: 0 }, 100_000, CREDIT, u64::MAX);
        assert_eq!(account.owed(1100 * MS, 100_000), 900 * MS);
        assert_eq!(account.owed(1100 * MS, 1_000_000), 90 * MS);
        assert_eq!(account.owed(1100 * MS, 500_000), 180 * MS);
    }

    #[test]
    fn who_uses_idle_time_does_not_pay_for_it_later() {
        let account = Compute::new();
        account.charge(Span { from: 0, length: 10_000 * MS, before: 0 }, 100_000, CREDIT, 100 * MS);
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
