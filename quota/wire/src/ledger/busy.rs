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
mod tests;
