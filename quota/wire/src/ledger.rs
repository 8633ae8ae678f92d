//! The ledger: where a container's processes account for their device memory and GPU time.
//!
//! ```text
//!     0  header, 4 KiB
//!          0  magic        8  "fgpuled1"
//!          8  version      4  1
//!         12  high         4  number of slots ever used: no reader looks past it
//!         16  nonce       16  the grant's
//!         32  lock         8  generation << 32 | slot + 1 of the holder; 0: free
//!         64  total[64]    8  bytes in use per GPU: the sum over the slots
//!        576  reserved
//!  4096  per GPU, 64 × 256: GPU time ([`Compute`])
//! 20480  slot[1024], 2 KiB each
//!          0  generation   4  how often the slot was taken
//!          4  state        4  0 free, 1 live
//!          8  pid          4  as the process itself sees it; 0 while it registers
//!         16  namespace    8  inode of its pid namespace
//!         64  used[64]     8  bytes in use per GPU
//!        576  busy[64]     8  recent GPU time ([`Busy`])
//!       1088  reserved
//! ```
//!
//! Rules, from which the rest follows:
//!
//! 1. **A process owns slot *n* while it holds a record lock on byte *n* of the file.** The lock belongs to
//!    the address space (see the quota libraries), so the kernel drops it however the process ends: exit,
//!    SIGKILL, exec. The process that locks the byte next owns the slot. It first raises the generation, so
//!    (slot, generation) names one registration forever.
//! 2. `used` and `total` change only under `lock`. `total` can be computed from `used` at any time.
//! 3. The lock's holder can die at any instruction. A process that finds the lock held by a dead one takes it
//!    over by compare-and-swap and sums `total` anew. That is the whole recovery.
//! 4. No time-out decides anything; a process is dead if the kernel says so. So a holder that is stopped
//!    (SIGSTOP, a debugger) within the tens of nanoseconds of a hold makes the others wait until it continues
//!    or is killed.
//! 5. Memory is reserved before the driver's call, and the lock is never held across one.

mod busy;
mod compute;
mod lock;
mod slots;
#[cfg(test)]
mod tests;
mod usage;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::MAX_GPUS;
pub use busy::Busy;
pub use compute::{CREDIT, Compute, Span, at_share};
pub use usage::{Process, Usage, usage, used_size};

/// Size of the file, bytes. All but the header is zeros at first: make it a sparse file.
pub const SIZE: usize = SLOTS_AT + MAX_SLOTS * SLOT;
/// The most processes with device memory at a time.
pub const MAX_SLOTS: usize = 1024;
/// Length of what [`encode`] returns.
pub const HEADER: usize = 64;

const MAGIC: u64 = u64::from_ne_bytes(*b"fgpuled1");
const VERSION: u32 = 1;
const TOTALS_AT: usize = 64;
/// Where the accounts of GPU time are in the file, and how large one is, bytes.
pub const COMPUTE_AT: usize = 4096;
/// Size of a GPU's account of time, bytes.
pub const COMPUTE: usize = 256;
const SLOTS_AT: usize = 20480;
/// Size of a slot in the file, bytes.
pub const SLOT: usize = 2048;
const USED_AT: usize = 64;

const FREE: u32 = 0;
const LIVE: u32 = 1;

/// The first bytes of a new ledger; the rest, up to [`SIZE`], is zeros.
pub fn encode(nonce: &[u8; 16]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    header[16..32].copy_from_slice(nonce);
    header
}

/// Where slot number `slot` is in the file.
pub const fn slot_at(slot: usize) -> usize {
    SLOTS_AT + slot * SLOT
}

/// What the ledger asks of the operating system, about other processes.
pub trait Kernel {
    /// Whether byte `slot` of the ledger file is locked; `None`: unknown.
    fn locked(&self, slot: usize) -> Option<bool>;
    /// Inode of the caller's pid namespace; 0 when unknown.
    fn namespace(&self) -> u64;
    /// Whether it is certain that no process has this pid in the caller's pid namespace.
    fn gone(&self, pid: u32) -> bool;
    /// Lets others run; `round` counts the calls of one wait, from 0.
    fn pause(&self, round: u32);
}

/// One registration of a process: the slot that it owns, and the slot's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Index of the slot, and of the byte of the file that the process holds locked.
    pub slot: usize,
    /// The slot's generation since this registration.
    pub generation: u32,
}

/// The file as mapped memory.
#[repr(C)]
pub struct Ledger {
    magic: AtomicU64,
    version: AtomicU32,
    high: AtomicU32,
    nonce: [AtomicU64; 2],
    lock: AtomicU64,
    reserved: [AtomicU64; 3],
    totals: [AtomicU64; MAX_GPUS],
    header_tail: [AtomicU64; 440],
    compute: [Compute; MAX_GPUS],
    slots: [Slot; MAX_SLOTS],
}

#[repr(C)]
struct Slot {
    generation: AtomicU32,
    state: AtomicU32,
    pid: AtomicU32,
    reserved: AtomicU32,
    namespace: AtomicU64,
    reserved2: [AtomicU64; 5],
    used: [AtomicU64; MAX_GPUS],
    busy: [Busy; MAX_GPUS],
    tail: [AtomicU64; 120],
}

const _: () = assert!(size_of::<Ledger>() == SIZE && size_of::<Slot>() == SLOT);
const _: () =
    assert!(size_of::<Compute>() == COMPUTE && core::mem::offset_of!(Ledger, compute) == COMPUTE_AT);
const _: () = assert!(core::mem::offset_of!(Ledger, totals) == TOTALS_AT);
const _: () = assert!(core::mem::offset_of!(Ledger, slots) == SLOTS_AT);
const _: () = assert!(core::mem::offset_of!(Slot, used) == USED_AT);

impl Ledger {
    /// Whether this is a ledger of this version, and belongs to the grant `nonce`.
    pub fn is_valid(&self, nonce: &[u8; 16]) -> bool {
        let mine = [&nonce[..8], &nonce[8..]];
        self.magic.load(Ordering::Relaxed) == MAGIC
            && self.version.load(Ordering::Relaxed) == VERSION
            && self
                .nonce
                .iter()
                .zip(mine)
                .all(|(word, half)| word.load(Ordering::Relaxed).to_ne_bytes() == half)
    }

    /// The account of time on GPU number `gpu`.
    pub fn compute(&self, gpu: usize) -> Option<&Compute> {
        self.compute.get(gpu)
    }

    /// The recent use of GPU number `gpu`'s time by the process in a slot.
    pub fn busy(&self, slot: usize, gpu: usize) -> Option<&Busy> {
        self.slots.get(slot)?.busy.get(gpu)
    }

    /// Bytes of GPU number `gpu` in use by the whole container, dead processes included that were not reaped
    /// yet.
    pub fn total(&self, gpu: usize) -> u64 {
        self.totals.get(gpu).map_or(0, |total| total.load(Ordering::Relaxed))
    }

    /// Reserves memory of GPU number `gpu` for an allocation that needs `least` and takes `most`, if the
    /// container stays within `limit` with `least` (all in bytes). `most` counts in full, so the total may
    /// exceed the limit by the difference of the last allocation, and nothing more is granted until as much
    /// is given back. Returns what was reserved. The caller then calls the driver, and [gives
    /// back](Self::release) if the driver refuses. `None`: out of memory, after dead processes were reaped.
    pub fn reserve(
        &self,
        owner: Owner,
        gpu: usize,
        least: u64,
        most: u64,
        limit: u64,
        kernel: &impl Kernel,
    ) -> Option<u64> {
        loop {
            if let Some(bytes) = self.try_reserve(owner, gpu, least, most, limit, kernel) {
                return Some(bytes);
            }
            if self.reap(owner, kernel) == 0 {
                // Another process may have reaped between our attempt and our look.
                return self.try_reserve(owner, gpu, least, most, limit, kernel);
            }
        }
    }

    fn try_reserve(
        &self,
        owner: Owner,
        gpu: usize,
        least: u64,
        most: u64,
        limit: u64,
        kernel: &impl Kernel,
    ) -> Option<u64> {
        let total = self.totals.get(gpu)?;
        let slot = self.slots.get(owner.slot)?;
        let _held = self.lock(owner, kernel);
        let before = total.load(Ordering::Relaxed);
        let room = limit.checked_sub(before)?;
        if least > room {
            return None;
        }
        let bytes = most.max(least);
        // The slot first: a death between the two leaves the total too small, which no reader sees, since the
        // next holder sums it again.
        slot.used[gpu].store(slot.used[gpu].load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
        slot.state.store(LIVE, Ordering::Relaxed);
        total.store(before.saturating_add(bytes), Ordering::Relaxed);
        Some(bytes)
    }

    /// Gives back `bytes` of GPU number `gpu`, never more than the owner has.
    pub fn release(&self, owner: Owner, gpu: usize, bytes: u64, kernel: &impl Kernel) {
        let (Some(total), Some(slot)) = (self.totals.get(gpu), self.slots.get(owner.slot)) else { return };
        let _held = self.lock(owner, kernel);
        let used = slot.used[gpu].load(Ordering::Relaxed);
        let bytes = bytes.min(used);
        slot.used[gpu].store(used - bytes, Ordering::Relaxed);
        total.store(total.load(Ordering::Relaxed).saturating_sub(bytes), Ordering::Relaxed);
    }
}
