//! Writes down what changes of the GPUs while the driver stays loaded: which are lost, and what processes
//! outside fgpu hold.
//!
//! A process is inside fgpu if it is in the cgroup of a lease or below it, or descends from its init, or is
//! in that init's PID namespace. What the others hold is what is in use, less the driver's reserve, less what
//! those inside have; nothing if there are no others, so that what the driver takes for itself keeps no share
//! from a GPU without other users.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use fgpu_allocator::proc::{cgroups, parent};
use fgpu_allocator::{Lease, Store};
use fgpu_driver::health::{self, FORMAT};
use fgpu_driver::nvml::{
    self, Nvml,
    health::{InUse, Trouble},
};
use fgpu_spec::{Error, Gpu, Health, Inventory, Outsider, Seen};

use crate::used::Used;

/// The lock file: one process at a time asks the driver for the GPUs' health.
const LOCK: &str = "health.lock";

/// Takes the health lock, held until dropped. None: another process holds it. It may hang in a broken driver,
/// so this does not wait.
///
/// # Errors
/// The lock cannot be made.
pub(crate) fn lock(state_dir: &Path) -> Result<Option<File>, Error> {
    let path = state_dir.join(LOCK);
    // A process that can open it can keep it.
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|error| Error::io("open", &path, &error))?;
    Ok(file.try_lock().is_ok().then_some(file))
}

/// Looks at every GPU of the inventory. A GPU that does not say how it is counts as it did before.
///
/// # Errors
/// The leases cannot be read, or the file cannot be written.
pub(crate) fn look(
    _: &File,
    store: &Store,
    inventory: &Inventory,
    nvml: &Nvml,
    state_dir: &Path,
) -> Result<Vec<Seen>, Error> {
    let before = health::read(state_dir).map(|health| health.gpus).unwrap_or_default();
    let leases = Leases::of(store)?;
    let see = |gpu: &Gpu| match nvml::health::look(nvml, gpu) {
        Ok(_) if gpu.mig_enabled => Seen { uuid: gpu.uuid.clone(), ..Seen::default() },
        Ok(in_use) => leases.seen(gpu, &in_use),
        Err(Trouble::Unhealthy(why)) => {
            Seen { uuid: gpu.uuid.clone(), unhealthy: Some(why), ..Seen::default() }
        }
        Err(Trouble::Unknown(_)) => {
            let known = before.iter().find(|seen| seen.uuid == gpu.uuid);
            known.cloned().unwrap_or_else(|| Seen { uuid: gpu.uuid.clone(), ..Seen::default() })
        }
    };
    let gpus: Vec<_> = inventory.gpus.iter().map(see).collect();
    let health = Health { version: FORMAT, boot_id: inventory.boot_id.clone(), gpus };
    health::store(state_dir, &health)?;
    Ok(health.gpus)
}

/// A lease whose processes can be told.
struct Inside {
    cgroups: Vec<String>,
    /// Its init, and the PID namespace of that, if it is another one than ours.
    init: Option<i32>,
    namespace: Option<u64>,
    lease: Lease,
}

struct Leases<'a> {
    store: &'a Store,
    inside: Vec<Inside>,
}

impl<'a> Leases<'a> {
    fn of(store: &'a Store) -> Result<Self, Error> {
        let ours = pid_namespace("self");
        let known = |lease: Lease| {
            // Pids of another namespace say nothing here.
            let is_here = lease.pid_namespace.is_none() || lease.pid_namespace == ours;
            let init = lease.init.filter(|_| is_here).map(|init| init.pid);
            let namespace = init.and_then(|init| pid_namespace(&init.to_string()));
            let mut cgroups: Vec<String> = lease.cgroups().map(str::to_owned).collect();
            if cgroups.is_empty() {
                cgroups.extend(init.and_then(fgpu_engine::cgroup_of));
            }
            Inside { cgroups, init, namespace: namespace.filter(|_| namespace != ours), lease }
        };
        Ok(Self { store, inside: store.leases()?.into_iter().map(known).collect() })
    }

    /// The lease that a process is in.
    fn holder(&self, pid: u32) -> Option<&Inside> {
        let cgroups = cgroups(&pid.to_string()).ok()?;
        let namespace = pid_namespace(&pid.to_string());
        let line = ancestors(pid);
        self.inside.iter().find(|inside| {
            inside.cgroups.iter().any(|cgroup| cgroups.iter().any(|line| is_below(&line.path, cgroup)))
                || inside.namespace.is_some() && inside.namespace == namespace
                || inside.init.is_some_and(|init| line.contains(&init))
        })
    }

    fn seen(&self, gpu: &Gpu, in_use: &InUse) -> Seen {
        let mut inside = 0u64;
        let mut outsiders = Vec::new();
        let mut by_ledger = BTreeSet::new();
        for (&pid, &memory) in &in_use.processes {
            match (self.holder(pid), memory) {
                (Some(_), Some(memory)) => inside = inside.saturating_add(memory),
                // The driver does not say; its ledger says it of all of its processes.
                (Some(holder), None) => {
                    if by_ledger.insert(holder.lease.grant.nonce) {
                        inside = inside.saturating_add(self.in_ledger(holder, gpu));
                    }
                }
                // It has just ended, or is one of ours that measures what a context takes.
                (None, _) if !Path::new(&format!("/proc/{pid}")).exists() || is_ours(pid) => {}
                (None, _) => outsiders.push(Outsider { pid, name: name(pid) }),
            }
        }
        let rest = in_use.memory.saturating_sub(inside);
        let foreign = if outsiders.is_empty() { 0 } else { rest };
        Seen { uuid: gpu.uuid.clone(), unhealthy: None, foreign, outsiders }
    }

    fn in_ledger(&self, inside: &Inside, gpu: &Gpu) -> u64 {
        let gpus = &inside.lease.grant.gpus;
        let folder = self.store.container_dir(&inside.lease.grant.nonce);
        let used = Used::read(&folder, &inside.lease, std::slice::from_ref(gpu));
        let number = gpus.iter().position(|share| share.uuid == gpu.uuid);
        used.zip(number).map_or(0, |(used, number)| used.memory(number))
    }
}

/// Whether a cgroup is another one or below it. The root is no lease's.
fn is_below(path: &str, cgroup: &str) -> bool {
    let (path, cgroup) = (path.trim_matches('/'), cgroup.trim_matches('/'));
    !cgroup.is_empty()
        && path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The inode behind `/proc/<pid>/ns/pid` (namespaces(7)).
fn pid_namespace(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|namespace| namespace.ino())
}

/// A process and those that it descends from.
fn ancestors(pid: u32) -> Vec<i32> {
    let mut line = Vec::new();
    let mut next = i32::try_from(pid).ok();
    while let Some(pid) = next.filter(|pid| *pid > 1 && !line.contains(pid)) {
        line.push(pid);
        next = parent(pid).ok().flatten();
    }
    line
}

/// Whether a process runs this program.
fn is_ours(pid: u32) -> bool {
    let program = |process: &str| fs::read_link(format!("/proc/{process}/exe")).ok();
    program(&pid.to_string()).is_some_and(|theirs| Some(theirs) == program("self"))
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::is_below;

    #[test]
    fn a_cgroup_is_below_itself_and_those_above() {
        for (path, cgroup) in
            [("/docker/a", "/docker/a"), ("/docker/a/b", "docker/a/"), ("/a.scope/x", "/a.scope")]
        {
            assert!(is_below(path, cgroup), "{path} {cgroup}");
        }
        for (path, cgroup) in
            [("/docker/ab", "/docker/a"), ("/docker", "/docker/a"), ("/", "/"), ("/a", "/"), ("/a", "")]
        {
            assert!(!is_below(path, cgroup), "{path} {cgroup}");
        }
    }
}
