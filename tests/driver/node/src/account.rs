//! A process's account with the node: the slot in which its memory, contexts and kernels are counted.
//!
//! What must be seen as a whole is done under the node's lock: a word in the shared state that holds the
//! owner's slot. If a waiter finds that the owner is dead it takes the lock over. Nothing needs repair then:
//! everything under the lock is a single change of a cell of the owner's, or the clearing of cells of the
//! dead.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::state::{GpuState, Mapped, SLOT_LOCKS, SLOTS};
use crate::sys::{self, Errno};

/// A process's slot. It is given back by the kernel when the process ends.
pub struct Account {
    mapped: Mapped,
    slot: usize,
}

/// While it lives, nobody else on the node charges, launches or clears up.
pub struct NodeLock<'a> {
    account: &'a Account,
}

/// The lock's word: 0, or the owner's slot + 1, and this if somebody waits.
const WAITED_FOR: u32 = 1 << 31;
/// How long a waiter sleeps before it looks whether the owner lives, nanoseconds.
const PATIENCE_NS: u64 = 5_000_000;

impl Drop for NodeLock<'_> {
    fn drop(&mut self) {
        let word = &self.account.mapped.state.lock;
        if word.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            sys::shared_futex_wake(word);
        }
    }
}

impl Account {
    /// Takes a free slot of the state.
    ///
    /// # Errors
    /// `EAGAIN` if all are taken; what the kernel answers to the locks otherwise.
    pub fn open(mapped: Mapped) -> Result<Self, Errno> {
        for slot in 0..SLOTS {
            if !sys::try_lock_byte(mapped.fd, SLOT_LOCKS + slot as u64)? {
                continue;
            }
            let account = Self { mapped, slot };
            account.move_in();
            return Ok(account);
        }
        Err(Errno::EAGAIN)
    }

    fn move_in(&self) {
        let who = Identity::own();
        let process = &self.mapped.state.processes[self.slot];
        let lock = &self.mapped.state.lock;
        // A second copy of the library in one process gets the slot of the first: a process's locks do not
        // keep itself out. What the first has counted stays.
        let is_second = process.is(who.pid, who.namespace, who.started);
        let left_behind = lock.load(Ordering::Acquire) & !WAITED_FOR == self.slot as u32 + 1;
        // The slot's last owner died under the lock: nobody else takes it over while the slot has an owner.
        let _lock = if left_behind && !is_second { NodeLock { account: self } } else { self.lock() };
        if !is_second {
            for gpu in &self.mapped.state.gpus {
                clear(gpu, self.slot);
            }
            process.describe(who.pid, who.namespace, who.started, &who.name);
        }
        self.mapped.state.high.fetch_max(self.slot as u32 + 1, Ordering::AcqRel);
    }

    /// The state of a GPU.
    pub fn gpu(&self, gpu: usize) -> &'static GpuState {
        &self.mapped.state.gpus[gpu]
    }

    /// The whole state.
    pub fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    /// The process's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Waits for the node's lock.
    pub fn lock(&self) -> NodeLock<'_> {
        let word = &self.mapped.state.lock;
        let own = self.slot as u32 + 1;
        // A process that has waited does not know whether others still do, and says that they may.
        let mut mine = own;
        loop {
            let seen = match word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return NodeLock { account: self },
                Err(seen) => seen,
            };
            mine = own | WAITED_FOR;
            let marked = seen | WAITED_FOR;
            if seen != marked
                && word.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            sys::shared_futex_wait(word, marked, PATIENCE_NS);
            let owner = (marked & !WAITED_FOR) as usize - 1;
            if word.load(Ordering::Relaxed) == marked
                && !self.is_alive(owner)
                && word.compare_exchange(marked, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return NodeLock { account: self };
            }
        }
    }

    /// Counts `bytes` of the GPU's memory for the process, unless the sum of all processes would exceed
    /// `limit`.
    pub fn charge(&self, gpu: usize, bytes: u64, limit: u64) -> bool {
        let _lock = self.lock();
        let state = self.gpu(gpu);
        let fits = |used: u64, limit: u64| used.checked_add(bytes).is_some_and(|sum| sum <= limit);
        let room =
            || fits(self.sum(gpu), limit) && self.partition(gpu).is_none_or(|(hard, used)| fits(used, hard));
        // The dead are only looked for when their memory is needed.
        let enough = room() || {
            self.reap();
            room()
        };
        if enough {
            state.used[self.slot].fetch_add(bytes, Ordering::AcqRel);
        }
        enough
    }

    /// The tightest memory limit of the process's cgroups and what is used of it, in bytes.
    pub fn partition(&self, gpu: usize) -> Option<(u64, u64)> {
        let cgroups = &self.mapped.state.processes[self.slot].cgroups;
        self.gpu(gpu).tightest(self.mapped.state, cgroups, self.mapped.slots())
    }

    /// Takes back what [`Self::charge`] counted.
    pub fn refund(&self, gpu: usize, bytes: u64) {
        self.gpu(gpu).used[self.slot].fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Bytes of the GPU's memory that living processes use.
    pub fn used(&self, gpu: usize) -> u64 {
        let _lock = self.lock();
        self.reap();
        self.sum(gpu)
    }

    fn sum(&self, gpu: usize) -> u64 {
        let used = &self.gpu(gpu).used[..self.mapped.slots()];
        used.iter().map(|cell| cell.load(Ordering::Acquire)).sum()
    }

    /// Clears the cells of dead processes. The node's lock must be held.
    fn reap(&self) {
        for slot in 0..self.mapped.slots() {
            let in_use =
                self.mapped.state.gpus.iter().any(|gpu| cells(gpu).iter().any(|cells| is_set(cells, slot)));
            if in_use && slot != self.slot && self.mapped.holder(slot).is_none() {
                for gpu in &self.mapped.state.gpus {
                    clear(gpu, slot);
                }
            }
        }
    }

    /// Whether the process of `slot` lives.
    pub(crate) fn is_alive(&self, slot: usize) -> bool {
        slot == self.slot || self.mapped.holder(slot).is_some()
    }
}

fn cells(gpu: &GpuState) -> [&[AtomicU64; SLOTS]; 7] {
    [&gpu.used, &gpu.contexts, &gpu.launches, &gpu.submitted, &gpu.served, &gpu.drained_at, &gpu.pieces]
}

fn is_set(cells: &[AtomicU64; SLOTS], slot: usize) -> bool {
    cells[slot].load(Ordering::Acquire) != 0
}

fn clear(gpu: &GpuState, slot: usize) {
    for cells in cells(gpu) {
        cells[slot].store(0, Ordering::Release);
    }
}

/// How a process is told from others: the pid in its namespace, the namespace and the start time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Pid in the process's own namespace.
    pub pid: u32,
    /// Inode of the pid namespace.
    pub namespace: u64,
    /// Start time in clock ticks since the boot.
    pub started: u64,
    /// First argument.
    pub name: Vec<u8>,
}

impl Identity {
    /// The calling process. A value that /proc does not have is 0 or empty.
    pub fn own() -> Self {
        let mut link = [0; 64];
        let namespace = sys::readlink(c"/proc/self/ns/pid", &mut link).ok().and_then(number_in_brackets);
        let stat = sys::read_file(c"/proc/self/stat").unwrap_or_default();
        let mut name = sys::read_file(c"/proc/self/cmdline").unwrap_or_default();
        name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
        Self {
            pid: sys::pid(),
            namespace: namespace.unwrap_or(0),
            started: start_time(&stat).unwrap_or(0),
            name,
        }
    }
}

/// `pid:[4026531836]` → 4026531836.
fn number_in_brackets(link: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(link).ok()?;
    text.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

/// Field 22 of /proc/self/stat; the command in field 2 may hold spaces and brackets.
fn start_time(stat: &[u8]) -> Option<u64> {
    let after_command = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
    core::str::from_utf8(after_command).ok()?.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_survives_an_odd_command() {
        let stat = b"7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 424242 1 2";
        assert_eq!(start_time(stat), Some(424_242));
    }

    #[test]
    fn a_namespace_link_has_a_number() {
        assert_eq!(number_in_brackets(b"pid:[4026531836]"), Some(4_026_531_836));
        assert_eq!(number_in_brackets(b"pid"), None);
    }
}
