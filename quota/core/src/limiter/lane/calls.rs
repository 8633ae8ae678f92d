//! How many launches there were, and how many threads are in the driver's call for one.

use core::sync::atomic::{AtomicU64, Ordering};

/// Bits of the number of calls. More calls than that at once read as one launch too many until they are fewer
/// again.
const CALLS: u32 = 16;
const LAUNCH: u64 = 1 << CALLS;

/// Both numbers in one word, so that they belong to the same moment and a launch is one atomic change. All
/// zeros: none yet. The launches have 48 bits: one each microsecond for nine years.
#[derive(Default)]
pub(crate) struct Calls(AtomicU64);

/// What [`Calls`] said at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    /// Launches that the driver took.
    pub(crate) launched: u64,
    /// Launches that the gate has admitted, while the driver's call has not returned.
    pub(crate) calling: u64,
}

impl Count {
    fn of(word: u64) -> Self {
        Self { launched: word >> CALLS, calling: word % LAUNCH }
    }

    /// Launches that the gate has admitted.
    pub(crate) fn admitted(self) -> u64 {
        self.launched + self.calling
    }
}

impl Calls {
    pub(crate) fn count(&self) -> Count {
        Count::of(self.0.load(Ordering::Acquire))
    }

    /// A thread is about to call the driver. Returns the count before.
    pub(crate) fn enter(&self) -> Count {
        Count::of(self.0.fetch_add(1, Ordering::AcqRel))
    }

    /// The thread does not call, or the driver refused.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// The driver took the launch. Returns the number of launches, this one included.
    pub(crate) fn launched(&self) -> u64 {
        Count::of(self.0.fetch_add(LAUNCH - 1, Ordering::AcqRel)).launched + 1
    }
}

#[cfg(test)]
mod tests {
    use super::{CALLS, Calls, Count};

    #[test]
    fn a_launch_is_a_call_first() {
        let calls = Calls::default();
        assert_eq!(calls.enter(), Count { launched: 0, calling: 0 });
        assert_eq!(calls.enter(), Count { launched: 0, calling: 1 });
        assert_eq!(calls.launched(), 1);
        assert_eq!(calls.count(), Count { launched: 1, calling: 1 });
        calls.leave();
        assert_eq!((calls.count(), calls.count().admitted()), (Count { launched: 1, calling: 0 }, 1));
    }

    #[test]
    fn too_many_calls_at_once_are_counted_correctly_later() {
        let (calls, many) = (Calls::default(), (1 << CALLS) + 3);
        for _ in 0..many {
            calls.enter();
        }
        for launch in 0..many - 1 {
            calls.launched();
            assert!(
                launch < 3 || calls.count() == Count { launched: launch + 1, calling: many - launch - 1 }
            );
        }
        calls.leave();
        assert_eq!(calls.count(), Count { launched: many - 1, calling: 0 });
    }
}
