//! The lock that names its holder: whoever has the state of a lane.

use core::sync::atomic::Ordering;

use super::Lane;
use super::work::State;
use crate::limiter::{Host, PATIENCE, SHORT};

/// The first sleep while another thread has the state, nanoseconds.
pub(super) const BRIEF: u64 = 1000;

/// The state, while the lock is held.
pub(in crate::limiter) struct Held<'a>(&'a Lane);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}

impl Held<'_> {
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it the only one")]
    pub(super) fn state(&self) -> &mut State {
        // SAFETY: the lock is held, by this thread and once (it is only tried for), and each function takes the state
        // one time.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Lane {
    /// The state, unless somebody has it. No thread's address is 0.
    pub(in crate::limiter) fn hold(&self, host: &impl Host) -> Option<Held<'_>> {
        // In the order of all such operations: what the holder looks at next, in the driver's half, another thread changed before it looked here.
        let free = self.lock.compare_exchange(0, host.thread(), Ordering::SeqCst, Ordering::Relaxed);
        // Not `then_some`: one that was made in vain would give back what another thread holds.
        free.is_ok().then(|| Held(self))
    }

    /// Likewise for what no other thread can do: who has the state asks the driver a few things and lets it go. Not waited
    /// for is the calling thread itself, in a callback of the driver's or a signal handler, nor anybody for longer than [`PATIENCE`].
    pub(super) fn hold_soon(&self, now: u64, host: &impl Host) -> Option<Held<'_>> {
        let mut nap = BRIEF;
        loop {
            if let Some(held) = self.hold(host) {
                return Some(held);
            }
            let is_ours = self.lock.load(Ordering::Relaxed) == host.thread();
            if is_ours || host.now().saturating_sub(now) >= PATIENCE {
                return None;
            }
            host.sleep(nap);
            nap = (nap * 2).min(SHORT);
        }
    }

    /// Waits until nobody has the state, but for this thread; until `until` at most, for one that was stopped with it.
    pub(in crate::limiter) fn wait_for_holder(&self, until: u64, host: &impl Host) {
        let mut nap = BRIEF;
        loop {
            let holder = self.lock.load(Ordering::SeqCst);
            if holder == 0 || holder == host.thread() || host.now() >= until {
                return;
            }
            host.sleep(nap);
            nap = (nap * 2).min(SHORT);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};

    use super::{Held, Lane};
    use crate::limiter::Host;

    /// A thread in whose sleeps another one gives back what it holds.
    struct Thread<'a> {
        address: usize,
        other: RefCell<Option<Held<'a>>>,
        now: Cell<u64>,
    }

    impl Thread<'_> {
        fn new(address: usize) -> Self {
            Self { address, other: RefCell::new(None), now: Cell::new(0) }
        }
    }

    impl Host for Thread<'_> {
        fn now(&self) -> u64 {
            self.now.get()
        }

        fn sleep(&self, nanoseconds: u64) {
            self.other.take();
            self.now.set(self.now.get() + nanoseconds);
        }

        fn thread(&self) -> usize {
            self.address
        }

        fn lives(&self, _: usize) -> bool {
            true
        }
    }

    fn lane() -> Box<Lane> {
        // SAFETY: zeros are the beginning of a lane.
        unsafe { Box::new_zeroed().assume_init() }
    }

    #[test]
    fn who_finds_the_state_held_does_not_give_it_back() {
        let lane = lane();
        let held = lane.hold(&Thread::new(8)).expect("free");
        assert!(lane.hold(&Thread::new(16)).is_none() && lane.hold(&Thread::new(24)).is_none());
        drop(held);
        assert!(lane.hold(&Thread::new(16)).is_some());
    }

    #[test]
    fn the_holder_is_waited_for_but_not_for_ever_and_nobody_waits_for_itself() {
        let lane = lane();
        let waiting = Thread::new(8);
        waiting.other.replace(lane.hold(&Thread::new(16)));
        lane.wait_for_holder(1_000_000, &waiting);
        assert!(waiting.other.borrow().is_none() && (1..1_000_000).contains(&waiting.now()));

        let waiting = Thread::new(8);
        let stopped = lane.hold(&Thread::new(16));
        lane.wait_for_holder(1_000_000, &waiting);
        assert!(stopped.is_some() && waiting.now() >= 1_000_000);

        drop(stopped);
        let waiting = Thread::new(8);
        let own = lane.hold(&waiting);
        lane.wait_for_holder(1_000_000, &waiting);
        assert!(own.is_some() && waiting.now() == 0);
    }
}
