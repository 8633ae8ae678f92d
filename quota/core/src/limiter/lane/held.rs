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
        let free = self.lock.compare_exchange(0, host.thread(), Ordering::Acquire, Ordering::Relaxed);
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
}

#[cfg(test)]
mod tests {
    use super::Lane;
    use crate::limiter::Host;

    struct Thread(usize);

    impl Host for Thread {
        fn now(&self) -> u64 {
            0
        }

        fn sleep(&self, _: u64) {}

        fn thread(&self) -> usize {
            self.0
        }

        fn lives(&self, _: usize) -> bool {
            true
        }
    }

    #[test]
    fn who_finds_the_state_held_does_not_give_it_back() {
        // SAFETY: zeros are the beginning of a lane.
        let lane = unsafe { Box::<Lane>::new_zeroed().assume_init() };
        let held = lane.hold(&Thread(8)).expect("free");
        assert!(lane.hold(&Thread(16)).is_none() && lane.hold(&Thread(24)).is_none());
        drop(held);
        assert!(lane.hold(&Thread(16)).is_some());
    }
}
