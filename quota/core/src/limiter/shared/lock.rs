//! The lock of a lane's state. It names its holder.
//!
//! It also keeps our questions to the driver and the beginning of a capture apart: each side announces
//! itself, then looks for the other. A holder that sees a capture beginning announces that it
//! [waits](Held::may_ask). A thread that begins a capture waits for all holders that do not.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::limiter::constants::{CAPTURE_WAIT, LOCK_NAP, MIN_NAP, PATIENCE};
use crate::limiter::environment::{Events, Host};

/// In the lock, beside its holder: the holder waits for a capture that begins and asks nothing. No thread's
/// address is odd.
const WAITS: usize = 1;

/// A value that one thread at a time has. All zeros is a free lock.
pub(crate) struct Lock<T> {
    /// The thread that holds the value; 0: none.
    holder: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached through `Held` only, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value, while the lock is held.
pub(crate) struct Held<'a, T>(&'a Lock<T>);

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.holder.store(0, Ordering::Release);
    }
}

impl<T> Held<'_, T> {
    pub(crate) fn value(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this borrows the only `Held`.
        unsafe { &mut *self.0.value.get() }
    }

    /// Whether the holder may ask the driver what would break a capture, from now on until it drops the lock.
    /// It waits for captures that are beginning; not for long, since one may be this thread's own, in a
    /// callback of the driver.
    pub(crate) fn may_ask(&self, host: &impl Host, events: &impl Events) -> bool {
        !events.is_capture_beginning() || self.wait(host, events)
    }

    #[cold]
    fn wait(&self, host: &impl Host, events: &impl Events) -> bool {
        let until = host.now().saturating_add(CAPTURE_WAIT);
        let holder = self.0.holder.load(Ordering::Relaxed);
        loop {
            self.0.holder.store(holder | WAITS, Ordering::SeqCst);
            while events.is_capture_beginning() && host.now() < until {
                host.sleep(LOCK_NAP);
            }
            self.0.holder.store(holder, Ordering::SeqCst);
            if !events.is_capture_beginning() {
                return true;
            }
            if host.now() >= until {
                return false;
            }
        }
    }
}

impl<T> Lock<T> {
    /// Takes the lock if it is free. No thread's address is 0.
    pub(crate) fn hold(&self, host: &impl Host) -> Option<Held<'_, T>> {
        // Sequentially consistent with what `may_ask` reads next.
        let free = self.holder.compare_exchange(0, host.thread(), Ordering::SeqCst, Ordering::Relaxed);
        // Not `then_some`: a `Held` that is made in vain would free another thread's lock.
        free.is_ok().then(|| Held(self))
    }

    /// Takes the lock for work that no other thread can do: a holder asks the driver a few things and lets
    /// go. It does not wait for the calling thread itself (a driver's callback, a signal handler), nor longer
    /// than [`PATIENCE`] after `now`.
    pub(crate) fn hold_soon(&self, now: u64, host: &impl Host) -> Option<Held<'_, T>> {
        let mut nap = LOCK_NAP;
        loop {
            if let Some(held) = self.hold(host) {
                return Some(held);
            }
            let is_ours = self.holder.load(Ordering::Relaxed) & !WAITS == host.thread();
            if is_ours || host.now().saturating_sub(now) >= PATIENCE {
                return None;
            }
            host.sleep(nap);
            nap = (nap * 2).min(MIN_NAP);
        }
    }

    /// Waits until no other thread holds the lock and asks the driver. It ends at `until`: the holder may be
    /// stopped.
    pub(crate) fn wait_for_holder(&self, until: u64, host: &impl Host) {
        let mut nap = LOCK_NAP;
        loop {
            let holder = self.holder.load(Ordering::SeqCst);
            let asks = holder != 0 && holder & WAITS == 0 && holder != host.thread();
            if !asks || host.now() >= until {
                return;
            }
            host.sleep(nap);
            nap = (nap * 2).min(MIN_NAP);
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.holder.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};

    use core::cell::UnsafeCell;
    use core::sync::atomic::AtomicUsize;

    use super::{Held, Lock};
    use crate::limiter::constants::CAPTURE_WAIT;
    use crate::limiter::environment::{Elapsed, Events, Host, Stream};

    /// A thread; `meanwhile` runs another thread while it sleeps.
    struct Thread<'a> {
        address: usize,
        meanwhile: RefCell<Box<dyn FnMut() + 'a>>,
        now: Cell<u64>,
        /// How much too late it wakes up.
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

    /// A driver in which so many captures are about to begin.
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

    fn lock() -> Lock<()> {
        Lock { holder: AtomicUsize::new(0), value: UnsafeCell::new(()) }
    }

    #[test]
    fn a_failed_attempt_does_not_free_the_lock() {
        let lock = lock();
        let held = lock.hold(&Thread::new(8)).expect("free");
        assert!(lock.hold(&Thread::new(16)).is_none() && lock.hold(&Thread::new(24)).is_none());
        drop(held);
        assert!(lock.hold(&Thread::new(16)).is_some());
    }

    #[test]
    fn a_capture_waits_for_the_holder_but_not_forever_and_not_for_its_own_thread() {
        let lock = lock();
        let mut other: Option<Held<'_, ()>> = lock.hold(&Thread::new(16));
        let beginning = Thread::beside(8, || drop(other.take()));
        lock.wait_for_holder(1_000_000, &beginning);
        assert!((1..1_000_000).contains(&beginning.now()));

        let beginning = Thread::new(8);
        let stopped = lock.hold(&Thread::new(16));
        lock.wait_for_holder(1_000_000, &beginning);
        assert!(stopped.is_some() && beginning.now() >= 1_000_000);

        drop(stopped);
        let beginning = Thread::new(8);
        let own = lock.hold(&beginning);
        lock.wait_for_holder(1_000_000, &beginning);
        assert!(own.is_some() && beginning.now() == 0);
    }

    #[test]
    fn a_holder_lets_captures_begin_before_it_asks() {
        let (lock, captures) = (lock(), Captures::default());
        let alone = Thread::new(16);
        assert!(lock.hold(&alone).expect("free").may_ask(&alone, &captures));
        assert_eq!(alone.now(), 0);

        // Two captures begin while the holder sleeps. Each sees at once that the holder asks nothing.
        captures.0.set(2);
        let holder = Thread::beside(16, || {
            let beginning = Thread::new(8);
            lock.wait_for_holder(1_000_000, &beginning);
            assert_eq!(beginning.now(), 0);
            assert!(lock.hold(&beginning).is_none(), "it still holds the lock");
            captures.0.set(captures.0.get() - 1);
        });
        let held = lock.hold(&holder).expect("free");
        assert!(held.may_ask(&holder, &captures) && captures.0.get() == 0);
        // Now a capture waits for it.
        let beginning = Thread::new(8);
        lock.wait_for_holder(1_000_000, &beginning);
        assert!(beginning.now() >= 1_000_000);
        drop(held);
        assert!(lock.hold(&beginning).is_some());
    }

    #[test]
    fn a_holder_does_not_wait_for_a_capture_that_never_begins() {
        let (lock, captures) = (lock(), Captures::default());
        captures.0.set(1);
        let holder = Thread::new(16);
        let held = lock.hold(&holder).expect("free");
        assert!(
            !held.may_ask(&holder, &captures) && (CAPTURE_WAIT..2 * CAPTURE_WAIT).contains(&holder.now())
        );
    }

    #[test]
    fn a_holder_that_overslept_may_ask_if_no_capture_is_beginning() {
        let (lock, captures) = (lock(), Captures::default());
        captures.0.set(1);
        let holder = Thread { late: 2 * CAPTURE_WAIT, ..Thread::beside(16, || captures.0.set(0)) };
        assert!(lock.hold(&holder).expect("free").may_ask(&holder, &captures));
    }
}
