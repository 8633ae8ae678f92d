//! The containers with a grant that this relay has seen created, and the watch over them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use fgpu_spec::Nonce;

use crate::job::Work;
use crate::{log, sys};

use super::Relay;
use super::job::{Job, Purpose};

/// How soon, and at last how often, a cgroup is looked at again that outlived its init.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LATER_LOOK: Duration = Duration::from_secs(1);
/// How long a container must live before its init is recorded. While the relay lives it is the lease's maker
/// and knows the init itself, so there is no haste; and a container that is over by then, or still starting,
/// is spared a process that would run beside `runc start`.
const SETTLED: Duration = Duration::from_millis(50);

/// The container's first process.
#[derive(Debug)]
pub(super) struct Init {
    pub(super) pidfd: OwnedFd,
    cgroup: Option<String>,
    pub(super) ended: bool,
    pub(super) look_at: Option<Instant>,
    pause: Duration,
}

/// A grant of ours.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// `None` while it is being reserved.
    pub(super) nonce: Option<Nonce>,
    /// `None` until it is created, or if it cannot be watched; then `Delete` and the reconciler are left.
    pub(super) init: Option<Init>,
    /// What is to be done next; one job at a time, so that an activation never comes after the release.
    queue: VecDeque<Step>,
    /// When which init is to be recorded.
    activation: Option<(Instant, i32)>,
    busy: bool,
    releasing: bool,
}

#[derive(Debug)]
enum Step {
    Activate(i32),
    /// For the call with this key, which is answered then.
    Reopen(u64),
    Release,
}

impl Relay {
    /// The container has a first process: record it and watch it.
    pub(super) fn created(&mut self, id: &str, pid: i32) {
        let Some(lease) = self.leases.get_mut(id) else { return };
        match sys::pidfd_open(pid) {
            Ok(pidfd) => {
                let (cgroup, pause) = ((self.setup.cgroups.of)(pid), FIRST_LOOK);
                lease.init = Some(Init { pidfd, cgroup, ended: false, look_at: None, pause });
            }
            Err(error) => log::warn(&self.setup.bundle, id, format!("cannot watch process {pid}: {error}")),
        }
        lease.activation = Some((Instant::now() + SETTLED, pid));
    }

    /// When something is to be done for a lease that no descriptor tells.
    pub(super) fn lease_times(&self) -> impl Iterator<Item = Instant> {
        self.leases.values().flat_map(|lease| {
            let look = lease.init.as_ref().and_then(|init| init.look_at);
            [look, lease.activation.map(|(time, _)| time)].into_iter().flatten()
        })
    }

    /// Does for the leases what is due.
    pub(super) fn keep_leases(&mut self, now: Instant) {
        for id in self.leases.keys().cloned().collect::<Vec<_>>() {
            let Some(lease) = self.leases.get_mut(&id) else { continue };
            if let Some((_, pid)) = lease.activation.take_if(|(time, _)| *time <= now) {
                lease.queue.push_back(Step::Activate(pid));
                self.advance(&id);
            }
            let looks = |lease: &Lease| lease.init.as_ref()?.look_at;
            if self.leases.get(&id).and_then(looks).is_some_and(|time| time <= now) {
                self.look_after(&id, now);
            }
        }
    }

    /// Whether this relay has a grant, or reserves one, for this container.
    pub(super) fn has_lease(&self, id: &str) -> bool {
        self.leases.contains_key(id)
    }

    /// Looks whether the container's last process has ended, after its first has; then its share is free.
    pub(super) fn look_after(&mut self, id: &str, now: Instant) {
        let Some(init) = self.leases.get_mut(id).and_then(|lease| lease.init.as_mut()) else { return };
        init.ended = true;
        if init.cgroup.as_deref().is_none_or(self.setup.cgroups.is_empty) {
            init.look_at = None;
            self.release(id);
        } else {
            init.look_at = Some(now + init.pause);
            init.pause = (init.pause * 2).min(LATER_LOOK);
        }
    }

    /// Opens what an update has closed, for a call. The lease must name the init for that, so it learns it
    /// now. Returns whether anything is done: a lease that ends needs nothing.
    pub(super) fn reopen(&mut self, id: &str, call: u64) -> bool {
        let Some(lease) = self.leases.get_mut(id).filter(|lease| !lease.releasing) else { return false };
        let activation = lease.activation.take().map(|(_, pid)| Step::Activate(pid));
        lease.queue.extend(activation.into_iter().chain([Step::Reopen(call)]));
        self.advance(id);
        true
    }

    /// Gives the grant back, after whatever is being done for it.
    pub(super) fn release(&mut self, id: &str) {
        let Some(lease) = self.leases.get_mut(id) else { return };
        if !lease.releasing {
            lease.releasing = true;
            lease.activation = None;
            let dropped = std::mem::take(&mut lease.queue);
            lease.queue.push_back(Step::Release);
            self.advance(id);
            for step in dropped {
                if let Step::Reopen(call) = step {
                    self.reopened(call);
                }
            }
        }
    }

    /// Takes the next step for a lease, unless one is under way.
    fn advance(&mut self, id: &str) {
        let Some(lease) = self.leases.get_mut(id).filter(|lease| !lease.busy) else { return };
        let Some(step) = lease.queue.pop_front() else { return };
        let (namespace, own) = (self.setup.namespace.clone(), id.to_owned());
        let released = matches!(step, Step::Release);
        let (purpose, work) = match (step, lease.nonce) {
            (Step::Activate(pid), Some(nonce)) => (Purpose::Activate(own), Work::Activate { nonce, pid }),
            // What has not been reserved is not activated.
            (Step::Activate(_), None) => return,
            (Step::Reopen(call), _) => {
                (Purpose::Reopen(own.clone(), call), Work::Reopen { namespace, id: own })
            }
            (Step::Release, Some(nonce)) => (Purpose::Release(own), Work::Release { nonce }),
            (Step::Release, None) => {
                (Purpose::Release(own.clone()), Work::ReleaseContainer { namespace, id: own })
            }
        };
        let call = match purpose {
            Purpose::Reopen(_, call) => Some(call),
            _ => None,
        };
        lease.busy = true;
        let name = work.name();
        match Job::start(&self.setup, purpose, work) {
            Ok(job) => {
                let key = self.key();
                self.jobs.insert(key, job);
            }
            Err(error) => {
                log::warn(
                    &self.setup.bundle,
                    id,
                    format!("cannot start {}: {error}", name.to_string_lossy()),
                );
                call.into_iter().for_each(|call| self.reopened(call));
                self.stepped(id, released);
            }
        }
    }

    /// A step for a lease is done, well or badly: what went wrong is in the log and left to the reconciler.
    pub(super) fn stepped(&mut self, id: &str, released: bool) {
        if released {
            self.leases.remove(id);
            self.released(id);
        } else if let Some(lease) = self.leases.get_mut(id) {
            lease.busy = false;
            self.advance(id);
        }
    }
}
