//! Takes a slot, finds out which processes are dead, and clears their slots.

use core::sync::atomic::Ordering;

use super::{FREE, Kernel, LIVE, Ledger, MAX_SLOTS, Owner, Process, Slot};
use crate::MAX_GPUS;

/// How many slots are looked at for the dead at a time.
const GROUP: usize = 64;

impl Ledger {
    /// Registers the calling process, which holds byte `slot` of the file locked and so owns the slot. What
    /// the former owner left in it is cleared. `None` if there is no such slot.
    pub fn register(&self, slot: usize, pid: u32, kernel: &impl Kernel) -> Option<Owner> {
        let entry = self.slots.get(slot)?;
        // First the pid becomes unknown, so that the former owner's death is not taken for ours; then the
        // generation says that the former owner is gone; then comes our pid.
        entry.pid.store(0, Ordering::Release);
        entry.namespace.store(kernel.namespace(), Ordering::Release);
        let generation = entry.generation.load(Ordering::Relaxed).wrapping_add(1);
        entry.generation.store(generation, Ordering::Release);
        entry.pid.store(pid, Ordering::Release);
        self.high.fetch_max(slot as u32 + 1, Ordering::AcqRel);

        let owner = Owner { slot, generation };
        let _held = self.lock(owner, kernel);
        entry.clear();
        self.sum_anew();
        entry.state.store(LIVE, Ordering::Release);
        Some(owner)
    }

    /// Whether a registration still has its slot. It has not if others took its owner for dead: a process
    /// that was checkpointed and restored lives, but the kernel's locks are not in the image.
    #[inline]
    pub fn is_registered(&self, owner: Owner) -> bool {
        self.slots.get(owner.slot).is_some_and(|entry| {
            entry.generation.load(Ordering::Acquire) == owner.generation
                && entry.state.load(Ordering::Acquire) == LIVE
        })
    }

    /// Clears the slots of dead processes, so that [`total`](Self::total) counts living processes only;
    /// returns how many there were. `owner` is the caller's registration.
    pub fn reap(&self, owner: Owner, kernel: &impl Kernel) -> usize {
        let mut reaped = 0;
        let mut slot = 0;
        // In groups, to need little stack: this runs on an application's thread.
        while slot < self.used_slots().end {
            reaped += self.reap_group(slot, owner, kernel);
            slot += GROUP;
        }
        reaped
    }

    fn reap_group(&self, first: usize, owner: Owner, kernel: &impl Kernel) -> usize {
        // Without the lock, system calls find out which are dead. Under the lock the generation shows that
        // the slot was not taken since.
        let mut dead = [None; GROUP];
        let last = self.used_slots().end.min(first + GROUP);
        for (slot, dead) in (first..last).zip(&mut dead) {
            let entry = &self.slots[slot];
            let generation = entry.generation.load(Ordering::Acquire);
            if slot != owner.slot
                && entry.state.load(Ordering::Acquire) == LIVE
                && self.is_dead(slot, generation, kernel)
            {
                *dead = Some(generation);
            }
        }
        if dead.iter().all(Option::is_none) {
            return 0;
        }
        let _held = self.lock(owner, kernel);
        let mut reaped = 0;
        for (entry, generation) in self.slots[first..last].iter().zip(dead) {
            let Some(generation) = generation else { continue };
            if entry.generation.load(Ordering::Acquire) == generation
                && entry.state.load(Ordering::Relaxed) == LIVE
            {
                entry.clear();
                reaped += 1;
            }
        }
        self.sum_anew();
        reaped
    }

    /// Calls `with` for every living process that has a slot; for readers that own none.
    pub fn for_each_living(&self, kernel: &impl Kernel, mut with: impl FnMut(Process)) {
        for slot in self.used_slots() {
            let entry = &self.slots[slot];
            let generation = entry.generation.load(Ordering::Acquire);
            if entry.state.load(Ordering::Acquire) != LIVE || self.is_dead(slot, generation, kernel) {
                continue;
            }
            let mut used = [0; MAX_GPUS];
            for (used, word) in used.iter_mut().zip(&entry.used) {
                *used = word.load(Ordering::Relaxed);
            }
            with(Process {
                slot,
                pid: entry.pid.load(Ordering::Relaxed),
                namespace: entry.namespace.load(Ordering::Relaxed),
                used,
            });
        }
    }

    /// Whether it is certain that the process that registered as (`slot`, `generation`) is dead. Its lock on
    /// the byte proves that it lives. In one case the lock outlives the process: a thread forked while the
    /// file was open for registering, and the child, which never execs, holds a copy of the descriptor. So in
    /// the same pid namespace a missing pid decides, too.
    pub(super) fn is_dead(&self, slot: usize, generation: u32, kernel: &impl Kernel) -> bool {
        let Some(entry) = self.slots.get(slot) else { return true };
        if entry.generation.load(Ordering::Acquire) != generation || kernel.locked(slot) == Some(false) {
            return true;
        }
        let pid = entry.pid.load(Ordering::Acquire);
        let namespace = entry.namespace.load(Ordering::Acquire);
        let decidable = pid != 0 && namespace != 0 && namespace == kernel.namespace();
        decidable
            && kernel.gone(pid)
            && entry.generation.load(Ordering::Acquire) == generation
            && entry.pid.load(Ordering::Acquire) == pid
    }

    /// Sums the totals from the slots. Under the lock only. Dying in here is harmless: the lock's next holder
    /// does it again.
    pub(super) fn sum_anew(&self) {
        let mut sums = [0u64; MAX_GPUS];
        for slot in self.used_slots() {
            let entry = &self.slots[slot];
            if entry.state.load(Ordering::Relaxed) != LIVE {
                continue;
            }
            for (sum, used) in sums.iter_mut().zip(&entry.used) {
                *sum = sum.saturating_add(used.load(Ordering::Relaxed));
            }
        }
        for (total, sum) in self.totals.iter().zip(sums) {
            total.store(sum, Ordering::Relaxed);
        }
    }

    fn used_slots(&self) -> core::ops::Range<usize> {
        0..(self.high.load(Ordering::Acquire) as usize).min(MAX_SLOTS)
    }
}

impl Slot {
    fn clear(&self) {
        self.state.store(FREE, Ordering::Relaxed);
        for used in &self.used {
            used.store(0, Ordering::Relaxed);
        }
        self.busy.iter().for_each(super::Busy::clear);
    }
}
