//! The lock that names its holder: whoever has the state of a lane.
//!
//! It also keeps what we ask of the driver and the beginning of a capture apart: each side says that it comes and then looks for the other.
//! A holder that finds a capture beginning says that it [waits](Held::may_ask); who begins one waits for all holders that do not.

use core::sync::atomic::Ordering;

use super::Lane;
use super::work::State;
use crate::limiter::{Events, Host, PATIENCE, SHORT};

/// The first sleep while another thread has the state, nanoseconds.
pub(super) const BRIEF: u64 = 1000;
/// How long a holder waits for captures that begin, nanoseconds: many times what the driver takes for it.
const BEGINNING: u64 = 5_000_000;
/// In the lock, beside its holder: it waits for a capture that begins and asks nothing. No thread's address is odd.
const WAITS: usize = 1;

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

    /// Whether the holder may ask the driver what would break a capture that begins, from now on until it gives the state back. Waits for
    /// those that are beginning; not for long, since one may be this thread's own, in a callback of the driver's.
    pub(super) fn may_ask(&self, host: &impl Host, events: &impl Events) -> bool {
        !events.is_capture_beginning() || self.wait(host, events)
    }

    #[cold]
    fn wait(&self, host: &impl Host, events: &impl Events) -> bool {
        let until = host.now().saturating_add(BEGINNING);
        let holder = self.0.lock.load(Ordering::Relaxed);
        loop {
            self.0.lock.store(holder | WAITS, Ordering::SeqCst);
            while events.is_capture_beginning() && host.now() < until {
                host.sleep(BRIEF);
            }
            self.0.lock.store(holder, Ordering::SeqCst);
            if !events.is_capture_beginning() {
                return true;
            }
            if host.now() >= until {
                return false;
            }
        }
    }
}

impl Lane {
    /// The state, unless somebody has it. No thread's address is 0.
    pub(in crate::limiter) fn hold(&self, host: &impl Host) -> Option<Held<'_>> {
        // In one order with what `may_ask` looks at next.
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
            let is_ours = self.lock.load(Ordering::Relaxed) & !WAITS == host.thread();
            if is_ours || host.now().saturating_sub(now) >= PATIENCE {
                return None;
            }
            host.sleep(nap);
            nap = (nap * 2).min(SHORT);
        }
    }

    /// Waits until nobody has the state and asks with it, but for this thread; until `until` at most, for one that was stopped with it.
    pub(in crate::limiter) fn wait_for_holder(&self, until: u64, host: &impl Host) {
        let mut nap = BRIEF;
        loop {
            let holder = self.lock.load(Ordering::SeqCst);
            let asks = holder != 0 && holder & WAITS == 0 && holder != host.thread();
            if !asks || host.now() >= until {
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

    use super::{BEGINNING, Held, Lane};
    use crate::limiter::{Elapsed, Events, Host, Stream};

    /// A thread in whose sleeps another one does something.
    struct Thread<'a> {
        address: usize,
        meanwhile: RefCell<Box<dyn FnMut() + 'a>>,
        now: Cell<u64>,
        /// So much later than it wants does it wake up.
        late: u64,
    }

    impl<'a> Thread<'a> {
        fn new(address: usize) -> Self {
            Self::beside(address, || {})
        }

        fn beside(address: usize, other: impl FnMut() + 'a) -> Self {
            Self { address, meanwhile: RefCell::new(Box::new(other)), now: Cell::new(0), late: 0 }
        }
    }

    impl Host for Thread<'_> {
        fn now(&self) -> u64 {
            self.now.get()
        }

        fn sleep(&self, nanoseconds: u64) {
            (self.meanwhile.borrow_mut())();
            self.now.set(self.now.get() + nanoseconds + self.late);
        }

        fn thread(&self) -> usize {
            self.address
        }
    }

    /// A driver with so many captures about to begin.
    #[derive(Default)]
    struct Captures(Cell<u32>);

    impl Events for Captures {
        fn create(&self) -> Option<usize> {
            None
        }

        fn record(&self, _: usize, _: Stream) -> bool {
            false
        }

        fn is_done(&self, _: usize) -> bool {
            true
        }

        fn elapsed(&self, _: usize, _: usize) -> Elapsed {
            Elapsed::Unknown
        }

        fn is_idle(&self, _: Stream) -> bool {
            false
        }

        fn is_captured(&self, _: Stream) -> bool {
            false
        }

        fn is_capture_beginning(&self) -> bool {
            self.0.get() != 0
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
    fn a_capture_begins_after_the_holder_but_does_not_wait_for_ever_nor_for_itself() {
        let lane = lane();
        let mut other: Option<Held<'_>> = lane.hold(&Thread::new(16));
        let beginning = Thread::beside(8, || drop(other.take()));
        lane.wait_for_holder(1_000_000, &beginning);
        assert!((1..1_000_000).contains(&beginning.now()));

        let beginning = Thread::new(8);
        let stopped = lane.hold(&Thread::new(16));
        lane.wait_for_holder(1_000_000, &beginning);
        assert!(stopped.is_some() && beginning.now() >= 1_000_000);

        drop(stopped);
        let beginning = Thread::new(8);
        let own = lane.hold(&beginning);
        lane.wait_for_holder(1_000_000, &beginning);
        assert!(own.is_some() && beginning.now() == 0);
    }

    #[test]
    fn the_holder_lets_captures_begin_before_it_asks() {
        let (lane, captures) = (lane(), Captures::default());
        let alone = Thread::new(16);
        assert!(lane.hold(&alone).expect("free").may_ask(&alone, &captures));
        assert_eq!(alone.now(), 0);

        // Of two that begin while the holder sleeps each finds at once that it does not ask.
        captures.0.set(2);
        let holder = Thread::beside(16, || {
            let beginning = Thread::new(8);
            lane.wait_for_holder(1_000_000, &beginning);
            assert_eq!(beginning.now(), 0);
            assert!(lane.hold(&beginning).is_none(), "it has the state all the same");
            captures.0.set(captures.0.get() - 1);
        });
        let held = lane.hold(&holder).expect("free");
        assert!(held.may_ask(&holder, &captures) && captures.0.get() == 0);
        // And now it is waited for.
        let beginning = Thread::new(8);
        lane.wait_for_holder(1_000_000, &beginning);
        assert!(beginning.now() >= 1_000_000);
        drop(held);
        assert!(lane.hold(&beginning).is_some());
    }

    #[test]
    fn a_capture_that_never_comes_to_begin_is_not_waited_for() {
        let (lane, captures) = (lane(), Captures::default());
        captures.0.set(1);
        let holder = Thread::new(16);
        let held = lane.hold(&holder).expect("free");
        assert!(!held.may_ask(&holder, &captures) && (BEGINNING..2 * BEGINNING).contains(&holder.now()));
    }

    #[test]
    fn who_slept_for_too_long_may_ask_if_no_capture_begins_any_more() {
        let (lane, captures) = (lane(), Captures::default());
        captures.0.set(1);
        let holder = Thread { late: 2 * BEGINNING, ..Thread::beside(16, || captures.0.set(0)) };
        assert!(lane.hold(&holder).expect("free").may_ask(&holder, &captures));
    }
}
