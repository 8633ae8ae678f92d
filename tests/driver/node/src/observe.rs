//! The node's use as an onlooker sees it: without a slot, without a lock, without writing.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::account::Identity;
use crate::config::Text;
use crate::sm::{self, WINDOW_NS};
use crate::state::{Mapped, NAME_WORDS};
use crate::sys;

/// A process that uses a GPU.
pub struct User {
    /// Its pid as the onlooker sees it; 0 if it is not visible in the onlooker's pid namespace.
    pub pid: u32,
    /// Its pid in its own namespace.
    pub own_pid: u32,
    /// Its first argument.
    pub name: Text<{ NAME_WORDS * 8 }>,
    /// Device memory in bytes.
    pub used: u64,
    /// Contexts.
    pub contexts: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Nanoseconds of kernels launched.
    pub submitted: u64,
    /// Nanoseconds of them that had run when somebody last looked.
    pub served: u64,
}

/// Looks at the state of a node.
pub struct Onlooker {
    mapped: Mapped,
    own: Identity,
}

impl Onlooker {
    /// An onlooker at a mapped state.
    pub fn new(mapped: Mapped) -> Self {
        Self { mapped, own: Identity::own() }
    }

    /// The state itself.
    pub fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    /// The living processes that have memory or a context on a GPU.
    pub fn users(&self, gpu: usize) -> Vec<User> {
        let state = &self.mapped.state.gpus[gpu];
        let mut users = Vec::new();
        for slot in 0..self.mapped.slots() {
            let used = state.used[slot].load(Ordering::Acquire);
            let contexts = state.contexts[slot].load(Ordering::Acquire);
            if used == 0 && contexts == 0 {
                continue;
            }
            let Some(pid) = self.pid_of(slot) else { continue };
            let process = &self.mapped.state.processes[slot];
            users.push(User {
                pid,
                own_pid: process.pid.load(Ordering::Relaxed),
                name: process.name(),
                used,
                contexts,
                launches: state.launches[slot].load(Ordering::Acquire),
                submitted: state.submitted[slot].load(Ordering::Acquire),
                served: state.served[slot].load(Ordering::Acquire),
            });
        }
        users
    }

    /// Bytes of a GPU's memory that living processes use.
    pub fn used(&self, gpu: usize) -> u64 {
        self.users(gpu).iter().map(|user| user.used).sum()
    }

    /// Percent of the time for which a GPU was busy, over the last whole window or the one that is just
    /// ending.
    pub fn utilization(&self, gpu: usize) -> u64 {
        let state = &self.mapped.state.gpus[gpu];
        let now = sys::now();
        let mut left: Vec<u64> = (0..self.mapped.slots())
            .map(|slot| sm::pending(state, slot))
            .enumerate()
            .map(|(slot, pending)| if pending > 0 && self.pid_of(slot).is_some() { pending } else { 0 })
            .collect();
        let since = now.saturating_sub(state.advanced_at.load(Ordering::Relaxed));
        let busy = state.busy.load(Ordering::Relaxed) + sm::share(&mut left, since, |_, _| ());
        let window = now.saturating_sub(state.window_at.load(Ordering::Relaxed));
        if window < WINDOW_NS {
            return state.utilization.load(Ordering::Relaxed);
        }
        let in_window = busy.saturating_sub(state.window_busy.load(Ordering::Relaxed));
        (in_window * 100 / window).min(100)
    }

    /// The pid of a slot's process as the onlooker sees it. A process's own lock does not stand in its own
    /// way, so the onlooker's process is known by what it wrote about itself.
    fn pid_of(&self, slot: usize) -> Option<u32> {
        if let Some(pid) = self.mapped.holder(slot) {
            return Some(pid);
        }
        let process = &self.mapped.state.processes[slot];
        let is_own = process.is(self.own.pid, self.own.namespace, self.own.started);
        is_own.then_some(self.own.pid)
    }
}
