//! A lock between the threads of one process.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may be asleep.
const AWAITED: u32 = 2;

/// A mutex on a futex. All zeros is a free one. It lies in memory that a fork wipes, so a child never finds
/// it held by a thread that it does not have.
#[derive(Default)]
pub struct Mutex(AtomicU32);

/// Holds the mutex until dropped.
pub struct Guard<'a>(&'a Mutex);

impl Mutex {
    /// Takes it, sleeping as long as another thread has it.
    pub fn lock(&self) -> Guard<'_> {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.0, AWAITED);
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == AWAITED {
            sys::futex_wake(&self.0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::Mutex;

    #[test]
    fn one_at_a_time() {
        let mutex = Mutex::default();
        let count = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let _held = mutex.lock();
                        count.store(count.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Relaxed), 200_000);
    }
}
