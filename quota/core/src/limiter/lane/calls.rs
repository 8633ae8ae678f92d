//! How many launches there were, and how many threads are in the driver's call for one.

use core::sync::atomic::{AtomicU64, Ordering};

/// Bits of the number of calls. Should more be under way at once, they read as one launch too many until they are fewer again.
const CALLS: u32 = 16;
const LAUNCH: u64 = 1 << CALLS;

/// Both in one word, so that they are of the same moment and a launch is one change. All zeros: none so far. The launches have 48 bits:
/// one each microsecond for nine years.
#[derive(Default)]
pub(super) struct Calls(AtomicU64);

/// What [`Calls`] said at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Launches that the driver took.
    pub(super) launched: u64,
    /// Launches that were let go and of which the driver has said nothing yet.
    pub(super) calling: u64,
}

impl Count {
    fn of(word: u64) -> Self {
        Self { launched: word >> CALLS, calling: word % LAUNCH }
    }

    /// Launches that were let go.
    pub(super) fn begun(self) -> u64 {
        self.launched + self.calling
    }
}

impl Calls {
    pub(super) fn count(&self) -> Count {
        Count::of(self.0.load(Ordering::Acquire))
    }

    /// A thread is about to call the driver. Gives what was before.
    pub(super) fn enter(&self) -> Count {
        Count::of(self.0.fetch_add(1, Ordering::AcqRel))
    }

    /// It does not, or the driver refused.
    pub(super) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// The driver took its launch. Gives the number of launches with this one.
    pub(super) fn launched(&self) -> u64 {
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
        assert_eq!((calls.count(), calls.count().begun()), (Count { launched: 1, calling: 0 }, 1));
    }

    #[test]
    fn too_many_calls_at_once_are_counted_right_once_they_are_fewer() {
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
