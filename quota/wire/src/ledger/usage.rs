//! The host's view of a ledger: bytes read from the file, no mapping, no lock.

use super::compute::BUSY_AT;
use super::{Busy, COMPUTE, COMPUTE_AT, FREE, MAGIC, MAX_SLOTS, USED_AT, VERSION, slot_at};
use crate::MAX_GPUS;

/// One process with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its slot. The process lives if and only if byte `slot` of the file is locked (`F_OFD_GETLK`); a dead
    /// process stays listed until the container needs its memory.
    pub slot: usize,
    /// Its pid in its own namespace.
    pub pid: u32,
    /// Inode of that pid namespace; 0: unknown.
    pub namespace: u64,
    /// Bytes in use per GPU, in the order of the limits.
    pub used: [u64; MAX_GPUS],
}

/// A ledger's content.
#[derive(Debug, Clone, Copy)]
pub struct Usage<'a>(&'a [u8]);

/// How many bytes of a ledger were ever used, by its first bytes, up to the first slot. The rest is zeros,
/// and most of the file.
pub fn used_size(header: &[u8]) -> usize {
    let high = header.get(12..16).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes);
    slot_at((high as usize).min(MAX_SLOTS))
}

/// Reads a ledger, or as much of one as [`used_size`] says. `None` if `bytes` is not that.
pub fn usage(bytes: &[u8]) -> Option<Usage<'_>> {
    let usage = Usage(bytes);
    let is_whole = bytes.len() >= slot_at(0).max(used_size(bytes));
    (is_whole && usage.long(0) == MAGIC && usage.short(8) == VERSION).then_some(usage)
}

impl<'a> Usage<'a> {
    /// The grant's nonce.
    pub fn nonce(&self) -> [u8; 16] {
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&self.0[16..32]);
        nonce
    }

    /// Bytes of GPU number `gpu` that the listed processes have in use.
    pub fn total(&self, gpu: usize) -> u64 {
        self.processes()
            .fold(0, |sum, process| sum.saturating_add(process.used.get(gpu).copied().unwrap_or(0)))
    }

    /// Nanoseconds of GPU number `gpu` that the container has used in total.
    pub fn compute(&self, gpu: usize) -> u64 {
        if gpu < MAX_GPUS { self.long(COMPUTE_AT + gpu * COMPUTE) } else { 0 }
    }

    /// The part of GPU number `gpu`'s time that the container used recently ([`Busy::ppm`]), ppm.
    pub fn busy(&self, gpu: usize, now: u64) -> u32 {
        let word = if gpu < MAX_GPUS { self.long(COMPUTE_AT + gpu * COMPUTE + BUSY_AT) } else { 0 };
        Busy::of(word).ppm(now)
    }

    /// The processes that have a slot, in the order of their slots.
    pub fn processes(self) -> impl Iterator<Item = Process> + use<'a> {
        let high = (self.short(12) as usize).min(MAX_SLOTS);
        (0..high).filter_map(move |slot| {
            let at = slot_at(slot);
            if self.short(at + 4) == FREE {
                return None;
            }
            let mut used = [0; MAX_GPUS];
            for (gpu, used) in used.iter_mut().enumerate() {
                *used = self.long(at + USED_AT + gpu * 8);
            }
            Some(Process { slot, pid: self.short(at + 8), namespace: self.long(at + 16), used })
        })
    }

    fn short(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.0[at..at + 4]);
        u32::from_ne_bytes(word)
    }

    fn long(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[at..at + 8]);
        u64::from_ne_bytes(word)
    }
}
