//! The file `state`: what goes on on the node. Mapped shared by every process that uses a simulated GPU.
//!
//! ```text
//! header      magic, layout, faults of the node
//! gpus[8]     per GPU: faults, the clock of its multiprocessors, and one cell per process slot for
//!             bytes used, contexts, nanoseconds of kernels submitted and served
//! processes   per slot: who it is
//! ```
//!
//! A slot belongs to the process that holds the POSIX lock of byte `SLOT_LOCKS + slot` of the file. The
//! kernel drops the lock when the process ends, however it ends, so a slot without a lock is dead and whoever
//! next sums up ignores it; there is no total that could drift. Locks also work across pid namespaces, where
//! a recorded pid means nothing, and the kernel tells each asker the holder's pid *as the asker sees it*.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::config::{MAX_GPUS, Text};
use crate::fault::{FAULTS, Fault};
use crate::instances::{Cell, MOST};
use crate::partition::{DEPTH, LIMITS, Limit, own_cgroups};
use crate::sys::{self, Errno};

/// First eight bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"simgpust");
/// Changes with every change of the structs below.
pub const LAYOUT: u32 = 3;
/// Most processes that can use the node's GPUs at the same time.
pub const SLOTS: usize = 1024;

/// Byte (past the end of the file) whose lock is slot 0's owner's; the following are those of the other
/// slots.
pub const SLOT_LOCKS: u64 = 1 << 40;

/// The whole file.
#[repr(C)]
pub struct State {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// One more than the highest slot ever taken.
    pub high: AtomicU32,
    /// The process that changes what must be seen as a whole (see [`crate::account`]).
    pub lock: AtomicU32,
    reserved: u32,
    /// Injected faults of the node, by [`Fault`].
    pub faults: [AtomicU64; FAULTS],
    /// By the node's GPU index.
    pub gpus: [GpuState; MAX_GPUS],
    /// By slot.
    pub processes: [Process; SLOTS],
}

/// What goes on on one GPU.
#[repr(C)]
pub struct GpuState {
    /// Injected faults, by [`Fault`].
    pub faults: [AtomicU64; FAULTS],
    /// Its MIG instances (see [`crate::instances`]).
    pub mig: [Cell; MOST],
    /// How many compute instances it has had.
    pub mig_serial: AtomicU64,
    /// Monotonic nanoseconds up to which kernels have been served (see [`crate::sm`]).
    pub advanced_at: AtomicU64,
    /// Nanoseconds for which the GPU has run kernels, ever.
    pub busy: AtomicU64,
    /// When the current window of the utilisation began.
    pub window_at: AtomicU64,
    /// `busy` at that time.
    pub window_busy: AtomicU64,
    /// Percent busy in the window before.
    pub utilization: AtomicU64,
    /// Memory limits by cgroup (see [`crate::partition`]).
    pub limits: [Limit; LIMITS],
    /// Device memory in bytes.
    pub used: [AtomicU64; SLOTS],
    /// Contexts.
    pub contexts: [AtomicU64; SLOTS],
    /// Kernels launched.
    pub launches: [AtomicU64; SLOTS],
    /// Nanoseconds of kernels launched.
    pub submitted: [AtomicU64; SLOTS],
    /// Nanoseconds of them that have run.
    pub served: [AtomicU64; SLOTS],
    /// When the last of them ended (monotonic nanoseconds).
    pub drained_at: [AtomicU64; SLOTS],
    /// How many pieces of the course below there were, ever.
    pub pieces: [AtomicU64; SLOTS],
    /// How `served` went on: pieces during which it grew evenly, the last [`PIECES`] of them in a ring.
    pub course: [[Piece; PIECES]; SLOTS],
}

/// Pieces that are kept.
pub const PIECES: usize = 32;

/// From and to: monotonic nanoseconds, and nanoseconds served.
#[repr(C)]
pub struct Piece {
    /// When it began.
    pub from: AtomicU64,
    /// When it ended.
    pub to: AtomicU64,
    /// What had been served at the beginning.
    pub served_from: AtomicU64,
    /// And at the end.
    pub served_to: AtomicU64,
}

/// The process that has a slot.
#[repr(C)]
pub struct Process {
    /// Its pid in its own pid namespace.
    pub pid: AtomicU32,
    /// Changes (odd while `name` is written).
    pub sequence: AtomicU32,
    /// Inode of its pid namespace.
    pub namespace: AtomicU64,
    /// Its start time, clock ticks since the boot.
    pub started: AtomicU64,
    /// Its cgroup and those above it (see [`crate::partition`]).
    pub cgroups: [AtomicU64; DEPTH],
    /// Its first argument. Bytes are written while nobody reads (see `sequence`).
    pub name: [AtomicU64; NAME_WORDS],
}

/// Length of a process's name in 8-byte words.
pub const NAME_WORDS: usize = 32;

/// A mapped state file. It stays open and mapped for the life of the process: closing *any* descriptor of the
/// file would make the kernel drop the process's locks on it.
#[derive(Clone, Copy)]
pub struct Mapped {
    /// The file's content.
    pub state: &'static State,
    /// The open file.
    pub fd: i32,
}

impl Mapped {
    /// Opens and maps the file, for reading only unless `write`.
    pub fn open(path: &CStr, write: bool) -> Result<Self, Errno> {
        let (mode, protection) =
            if write { (sys::O_RDWR, sys::PROT_READ_WRITE) } else { (sys::O_RDONLY, sys::PROT_READ) };
        let fd = sys::open(path, mode)?;
        if sys::file_length(fd)? < size_of::<State>() as u64 {
            return Err(Errno::ENODEV);
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { sys::mmap(0, size_of::<State>(), protection, sys::MAP_SHARED, fd) }?;
        // SAFETY: as long as the struct, page-aligned, never unmapped; what others change is atomic. A
        // mapping without write permission is only read: every writer needs an `Account` or the tool's
        // `--root`.
        let state: &'static State = unsafe { &*(address as *const State) };
        if state.magic != MAGIC || state.layout != LAYOUT {
            return Err(Errno::ENODEV);
        }
        Ok(Self { state, fd })
    }

    /// The slots that have ever been taken.
    pub fn slots(&self) -> usize {
        (self.state.high.load(Ordering::Acquire) as usize).min(SLOTS)
    }

    /// The process, other than this one, that has `slot`: its pid as this process sees it (0: not visible in
    /// its pid namespace). `None` if the slot is free or its process is dead.
    pub fn holder(&self, slot: usize) -> Option<u32> {
        sys::byte_holder(self.fd, SLOT_LOCKS + slot as u64).ok().flatten()
    }
}

impl State {
    /// An injected fault of the node, 0 for none.
    pub fn node_fault(&self, fault: Fault) -> u64 {
        self.faults[fault as usize].load(Ordering::Relaxed)
    }
}

impl GpuState {
    /// An injected fault of the GPU, 0 for none.
    pub fn fault(&self, fault: Fault) -> u64 {
        self.faults[fault as usize].load(Ordering::Relaxed)
    }
}

impl Process {
    /// Whether the slot is, or was, that process's.
    pub fn is(&self, pid: u32, namespace: u64, started: u64) -> bool {
        self.pid.load(Ordering::Relaxed) == pid
            && self.namespace.load(Ordering::Relaxed) == namespace
            && self.started.load(Ordering::Relaxed) == started
    }

    /// Writes who has the slot. Only the slot's owner may call it.
    pub(crate) fn describe(&self, pid: u32, namespace: u64, started: u64, name: &[u8]) {
        for (place, cgroup) in self.cgroups.iter().zip(own_cgroups()) {
            place.store(cgroup, Ordering::Release);
        }
        self.sequence.fetch_add(1, Ordering::AcqRel);
        self.pid.store(pid, Ordering::Relaxed);
        self.namespace.store(namespace, Ordering::Relaxed);
        self.started.store(started, Ordering::Relaxed);
        let mut bytes = [0; NAME_WORDS * 8];
        let n = name.len().min(bytes.len() - 1);
        bytes[..n].copy_from_slice(&name[..n]);
        for (word, chunk) in self.name.iter().zip(bytes.chunks_exact(8)) {
            let mut value = [0; 8];
            value.copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
        self.sequence.fetch_add(1, Ordering::AcqRel);
    }

    /// The process's name; empty while it is being written.
    pub fn name(&self) -> Text<{ NAME_WORDS * 8 }> {
        let before = self.sequence.load(Ordering::Acquire);
        let mut bytes = [0; NAME_WORDS * 8];
        for (word, chunk) in self.name.iter().zip(bytes.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        if before % 2 == 1 || self.sequence.load(Ordering::Acquire) != before {
            return Text::new("");
        }
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(0);
        Text::new(core::str::from_utf8(&bytes[..end]).unwrap_or(""))
    }
}
