//! Which lease a process belongs to, and how a process is ended.

use std::fs;
use std::os::fd::OwnedFd;

use fgpu_allocator::proc::{Membership, cgroups};
use fgpu_allocator::{Lease, Process};
use fgpu_spec::Nonce;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::judge::Use;

/// The leases by their cgroups.
pub(super) struct Owners<'a> {
    leases: Vec<(&'a Lease, &'a str)>,
}

impl<'a> Owners<'a> {
    /// Of these leases. Of two in one cgroup it cannot be told which one a process belongs to.
    pub(super) fn of(leases: &'a [Lease]) -> Self {
        let mut named: Vec<(&Lease, &str)> = leases
            .iter()
            .flat_map(|lease| lease.cgroups().map(move |cgroup| (lease, cgroup.trim_matches('/'))))
            .filter(|(_, cgroup)| !cgroup.is_empty())
            .collect();
        let all = named.clone();
        named.retain(|(_, cgroup)| all.iter().filter(|(_, other)| is_within(other, cgroup)).count() == 1);
        Self { leases: named }
    }

    /// The lease of a process.
    pub(super) fn find(&self, pid: u32) -> Option<Nonce> {
        let cgroups = cgroups(&pid.to_string()).ok()?;
        let (lease, _) =
            self.leases.iter().find(|(lease, cgroup)| is_in(&cgroups, cgroup) && is_inside(lease, pid))?;
        Some(lease.grant.nonce)
    }
}

/// Whether one of a process's cgroups is this one or below it.
fn is_in(cgroups: &[Membership], cgroup: &str) -> bool {
    cgroups.iter().any(|line| is_within(line.path.trim_start_matches('/'), cgroup))
}

fn is_within(path: &str, cgroup: &str) -> bool {
    path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A container without a cgroup of its own is in one with other processes. Then its PID namespace tells them
/// apart: a process in our namespace is not in the container.
fn is_inside(lease: &Lease, pid: u32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(init) = &lease.init else { return true };
    let (own, of_init) = (namespace("self"), namespace(&init.pid.to_string()));
    of_init.is_none() || of_init == own || namespace(&pid.to_string()) != own
}

/// Kills the processes that use the GPUs and the container's init, with which the kernel ends all of its PID
/// namespace. Says whether there was one to kill.
pub(super) fn stop(lease: &Lease, uses: &[Use]) -> bool {
    let users = uses.iter().filter(|one| one.lease == lease.grant.nonce);
    let users: Vec<Process> = users.filter_map(|one| Process::of(i32::try_from(one.pid).ok()?)).collect();
    let mut stopped = false;
    for process in users.into_iter().chain(lease.init) {
        let is_its_own = || {
            let pid = u32::try_from(process.pid).ok();
            Some(process) == lease.init
                || pid.and_then(|pid| Owners::of(std::slice::from_ref(lease)).find(pid)).is_some()
        };
        // The descriptor first: what is then found of the pid is found of this process.
        let Some(handle) = open(process.pid) else { continue };
        if process.is_alive() && is_its_own() {
            stopped |= pidfd_send_signal(&handle, Signal::KILL).is_ok();
        }
    }
    stopped
}

fn open(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use fgpu_allocator::proc::parse_cgroups;

    use super::*;

    #[test]
    fn a_process_is_in_its_cgroup_and_those_below() {
        let v2 = "0::/system.slice/docker-1.scope/inner\n";
        let v1 = "5:devices:/docker/1\n4:cpu,cpuacct:/docker/1\n0::/\n";
        for (text, cgroup, is) in [
            (v2, "system.slice/docker-1.scope", true),
            (v2, "system.slice/docker-1.scope/inner", true),
            (v2, "system.slice", true),
            (v2, "system.slice/docker-1", false),
            (v2, "system.slice/docker-2.scope", false),
            (v1, "docker/1", true),
            (v1, "docker/10", false),
            (v1, "docker/1/x", false),
            ("", "docker/1", false),
        ] {
            assert_eq!(is_in(&parse_cgroups(text.as_bytes()), cgroup), is, "{text} {cgroup}");
        }
    }
}
