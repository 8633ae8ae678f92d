//! The recent utilisation of a GPU, in one word that any process may read at any time.
//!
//! ```text
//! bits 40..64  number of the current window: monotonic time divided by its length, the lowest bits
//!      20..40  microseconds at work in it
//!       0..20  microseconds at work in the window before
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

/// Length of a window, nanoseconds; about what NVIDIA's driver samples.
const WINDOW: u64 = 500_000_000;
const MICROSECOND: u64 = 1000;
/// Masks of a number of microseconds, and of the number of a window.
const TIME: u64 = (1 << 20) - 1;
const NUMBER: u64 = (1 << 24) - 1;
/// Work that is reported so many windows late still counts; a word that is further ahead is an old one.
const LATE: u64 = 4;

const _: () = assert!(WINDOW / MICROSECOND <= TIME);

/// Time at work in the current window and in the one before. Zeros are none.
#[repr(transparent)]
pub struct Busy(AtomicU64);

/// A decoded word; times in microseconds.
#[derive(Clone, Copy)]
struct Windows {
    number: u64,
    current: u64,
    before: u64,
}

impl Windows {
    /// A word at a time (CLOCK_MONOTONIC, nanoseconds).
    fn at(word: u64, now: u64) -> Self {
        let said = Self { number: word >> 40, current: word >> 20 & TIME, before: word & TIME };
        let number = (now / WINDOW) & NUMBER;
        match number.wrapping_sub(said.number) & NUMBER {
            0 => said,
            1 => Self { number, current: 0, before: said.current },
            ahead if ahead > NUMBER - LATE && word != 0 => said,
            _ => Self { number, current: 0, before: 0 },
        }
    }

    fn word(self) -> u64 {
        self.number << 40 | self.current.min(TIME) << 20 | self.before.min(TIME)
    }
}

impl Busy {
    pub(crate) const fn new() -> Self {
        Self::of(0)
    }

    /// A copy of a word in a file.
    pub(super) const fn of(word: u64) -> Self {
        Self(AtomicU64::new(word))
    }

    /// Adds `length` nanoseconds of work that ended at `end` (CLOCK_MONOTONIC, nanoseconds).
    pub fn add(&self, end: u64, length: u64) {
        let in_current = length.min(end % WINDOW);
        let in_before = (length - in_current).min(WINDOW);
        let rounded = |time: u64| (time + MICROSECOND / 2) / MICROSECOND;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let said = Windows::at(word, end);
            let (current, before) = (said.current + rounded(in_current), said.before + rounded(in_before));
            Some(Windows { current, before, ..said }.word())
        });
    }

    /// The part of the GPU's time in the last half second before `now`, ppm. The rest of the current window
    /// is taken from the one before. A burst that is not over does not count yet.
    pub fn ppm(&self, now: u64) -> u32 {
        let Windows { current, before, .. } = Windows::at(self.0.load(Ordering::Acquire), now);
        let left = WINDOW - now % WINDOW;
        let used = current * MICROSECOND + before * MICROSECOND * left / WINDOW;
        (used.min(WINDOW) * 1_000_000 / WINDOW) as u32
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn every_reader_gets_the_recent_use() {
        // Whenever the machine was started.
        for start in [0, 7, NUMBER - 1, NUMBER, NUMBER + 1, 5 * NUMBER].map(|number| number * WINDOW) {
            let busy = Busy::new();
            assert_eq!(busy.ppm(start + 77 * MS), 0);
            // 30 of every 100 ms, for two seconds.
            for round in 10..30 {
                busy.add(start + (round * 100 + 30) * MS, 30 * MS);
            }
            for late in [0, 20, 60] {
                let ppm = busy.ppm(start + (2930 + late) * MS);
                assert!((280_000..=350_000).contains(&ppm), "{start} {late}: {ppm}");
            }
            // Then less and less, and nothing.
            let later = [3050, 3200, 3600, 60_000].map(|at| busy.ppm(start + at * MS));
            assert!(later[0] > later[1] && later[1] > 0 && later[2..] == [0, 0], "{later:?}");
        }
    }

    #[test]
    fn it_is_never_more_than_a_whole_gpu() {
        let busy = Busy::new();
        busy.add(10_000 * MS, 900 * MS);
        assert_eq!(busy.ppm(10_000 * MS), 1_000_000);
        for _ in 0..5000 {
            busy.add(10_400 * MS, u64::MAX);
        }
        assert_eq!(busy.ppm(10_400 * MS), 1_000_000);
    }

    #[test]
    fn a_late_sample_replaces_no_newer_one() {
        let busy = Busy::new();
        busy.add(20_100 * MS, 50 * MS);
        busy.add(19_900 * MS, 50 * MS);
        assert_eq!(busy.ppm(20_100 * MS), 200_000);
    }

    #[test]
    fn any_word_has_a_meaning() {
        for word in [u64::MAX, NUMBER << 40, TIME, TIME << 20, 1 << 63] {
            for now in [0, 1, WINDOW - 1, WINDOW, NUMBER * WINDOW, u64::MAX] {
                let busy = Busy(AtomicU64::new(word));
                assert!(busy.ppm(now) <= 1_000_000);
                busy.add(now, u64::MAX);
                assert!(busy.ppm(now) <= 1_000_000);
            }
        }
    }
}
