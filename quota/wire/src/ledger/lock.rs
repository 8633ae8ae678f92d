//! The lock in the ledger's header, which can be taken over from a dead process.

use core::sync::atomic::Ordering;

use super::{Kernel, Ledger, Owner};

/// Attempts before a waiter asks whether the holder is alive. A holder needs some tens of nanoseconds unless
/// it was descheduled.
const SPINS: u32 = 100;

impl Owner {
    fn word(self) -> u64 {
        u64::from(self.generation) << 32 | (self.slot as u64 + 1)
    }

    fn from_word(word: u64) -> Option<Self> {
        let slot = (word as u32).checked_sub(1)? as usize;
        Some(Self { slot, generation: (word >> 32) as u32 })
    }
}

/// Holds the lock until it is dropped.
pub(super) struct Held<'a>(&'a Ledger);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}

impl Ledger {
    /// Takes the lock for one of the owner's threads. Waits as long as the holder lives and holds it.
    #[inline]
    pub(super) fn lock(&self, owner: Owner, kernel: &impl Kernel) -> Held<'_> {
        if self.lock.compare_exchange(0, owner.word(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.wait(owner, kernel);
        }
        Held(self)
    }

    #[cold]
    fn wait(&self, owner: Owner, kernel: &impl Kernel) {
        let mine = owner.word();
        let mut round = 0;
        loop {
            let held = match self.lock.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(held) => held,
            };
            if round < SPINS {
                round += 1;
                core::hint::spin_loop();
                continue;
            }
            // A thread of this process holds it, so the holder lives. A word that names no slot is garbage.
            let dead = held != mine
                && Owner::from_word(held)
                    .is_none_or(|holder| self.is_dead(holder.slot, holder.generation, kernel));
            if dead && self.lock.compare_exchange(held, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // The word names one registration, which has ended, so it cannot be a later hold.
                self.sum_anew();
                return;
            }
            kernel.pause(round - SPINS);
            round = round.saturating_add(1);
        }
    }
}
