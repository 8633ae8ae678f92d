//! Memory limits by cgroup, which drivers have from r615 on (`nvmlDeviceSetMemoryLimits_v1`).
//!
//! A limit is kept by the inode of the cgroup's directory on the v2 hierarchy, by which the cgroup is known
//! in whatever cgroup namespace somebody looks. It holds for the cgroup's processes and for those of cgroups
//! below it. As with the real driver a hard limit goes with the cgroup, and a soft one is a reservation that
//! nothing but another setting ends.

use alloc::ffi::CString;
use alloc::string::String;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::state::{GpuState, Process, State};
use crate::sys;

/// Cgroups of a GPU that can have limits.
pub const LIMITS: usize = 128;
/// How many cgroups above a process are looked at, its own included.
pub const DEPTH: usize = 8;
/// No limit (`NVML_DEVICE_MEMORY_LIMIT_MAX`).
pub const MAX: u64 = u64::MAX;

const HIERARCHY: &str = "/sys/fs/cgroup";

/// One cgroup's limits of one GPU, in bytes.
#[repr(C)]
pub struct Limit {
    /// Inode of the cgroup's directory; 0: not in use.
    pub cgroup: AtomicU64,
    /// What is reserved for it.
    pub soft: AtomicU64,
    /// What it may have.
    pub hard: AtomicU64,
    /// The directory's path as whoever set the limits named it, NUL-padded.
    path: [AtomicU64; PATH_WORDS],
}

/// Length of a path in 8-byte words.
const PATH_WORDS: usize = 32;

impl Limit {
    /// Whether there is nothing of it: it was never used, or its cgroup is gone and reserved nothing. To be
    /// asked by somebody who sees cgroups as whoever set the limits did.
    pub fn is_gone(&self) -> bool {
        let cgroup = self.cgroup.load(Ordering::Acquire);
        let mut path = [0; PATH_WORDS * 8];
        for (word, chunk) in self.path.iter().zip(path.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
        let there = core::str::from_utf8(&path[..end]).ok().and_then(inode);
        cgroup == 0 || (self.soft.load(Ordering::Acquire) == 0 && there != Some(cgroup))
    }

    fn name(&self, path: &str) {
        let mut bytes = [0; PATH_WORDS * 8];
        let length = path.len().min(bytes.len() - 1);
        bytes[..length].copy_from_slice(&path.as_bytes()[..length]);
        for (word, chunk) in self.path.iter().zip(bytes.chunks_exact(8)) {
            let mut value = [0; 8];
            value.copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(value), Ordering::Release);
        }
    }
}

/// The inode of a directory.
pub fn inode(path: &str) -> Option<u64> {
    let fd = sys::open(&CString::new(path).ok()?, sys::O_RDONLY).ok()?;
    let inode = sys::inode(fd).ok();
    sys::close(fd);
    inode
}

/// The calling process's cgroup and those above it, as far as its cgroup namespace reaches; zeros where there
/// is no v2 hierarchy at its place.
pub fn own_cgroups() -> [u64; DEPTH] {
    let mut found = [0; DEPTH];
    let text = sys::read_file(c"/proc/self/cgroup").unwrap_or_default();
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"));
    let is_there = sys::exists(c"/sys/fs/cgroup/cgroup.controllers");
    let Some(path) = line.and_then(|path| core::str::from_utf8(path).ok()).filter(|_| is_there) else {
        return found;
    };
    let mut path = path.trim_end_matches('/');
    for place in &mut found {
        *place = inode(&(String::from(HIERARCHY) + path)).unwrap_or(0);
        match path.rsplit_once('/') {
            Some((parent, _)) => path = parent,
            None => break,
        }
    }
    found
}

impl GpuState {
    /// The limits of a cgroup.
    pub fn limit(&self, cgroup: u64) -> Option<&Limit> {
        let is_it = |limit: &&Limit| limit.cgroup.load(Ordering::Acquire) == cgroup;
        if cgroup == 0 { None } else { self.limits.iter().find(is_it) }
    }

    /// Sets the limits of the cgroup with this inode and path; no reservation and no limit are no entry.
    /// `false` if there is no room.
    pub fn set_limit(&self, cgroup: u64, path: &str, soft: u64, hard: u64) -> bool {
        let free = || {
            self.limits.iter().find(|limit| {
                let now = limit.cgroup.load(Ordering::Acquire);
                limit.is_gone()
                    && limit.cgroup.compare_exchange(now, cgroup, Ordering::AcqRel, Ordering::Acquire).is_ok()
            })
        };
        let Some(limit) = self.limit(cgroup).or_else(free) else { return false };
        limit.name(path);
        limit.soft.store(soft, Ordering::Release);
        limit.hard.store(hard, Ordering::Release);
        if (soft, hard) == (0, MAX) {
            limit.cgroup.store(0, Ordering::Release);
        }
        true
    }

    /// Bytes that processes in and below a cgroup use.
    pub fn used_in(&self, state: &State, cgroup: u64, slots: usize) -> u64 {
        let in_it = |process: &Process| process.cgroups.iter().any(|it| it.load(Ordering::Acquire) == cgroup);
        let slots = state.processes.iter().zip(&self.used).take(slots);
        slots.filter(|(process, _)| in_it(process)).map(|(_, used)| used.load(Ordering::Acquire)).sum()
    }

    /// What a process that is in these cgroups may have in all, and what is used of that, by the tightest of
    /// their limits; `None`: there is none.
    pub fn tightest(&self, state: &State, cgroups: &[AtomicU64; DEPTH], slots: usize) -> Option<(u64, u64)> {
        let limits = cgroups.iter().filter_map(|cgroup| {
            let cgroup = cgroup.load(Ordering::Acquire);
            let hard = self.limit(cgroup)?.hard.load(Ordering::Acquire);
            (hard != MAX).then(|| (hard, self.used_in(state, cgroup, slots)))
        });
        limits.min_by_key(|(hard, used)| hard.saturating_sub(*used))
    }
}
