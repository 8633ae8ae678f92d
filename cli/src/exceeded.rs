//! `fgpu watch-exceeded`: what the driver says that a container uses, against what it was granted.
//!
//! The quota libraries count what goes through them. A program that goes around them is seen here, from
//! outside: NVML lists the processes of each GPU by their pids on the host, and a process's cgroup names its
//! lease.
//!
//! ```text
//! every second:  leases ─ GPUs of quota and driver leases ─ NVML: pid, bytes
//!                                                              │ owners: pid ─ cgroup ─ lease
//!                judge: three samples in a row above grant + contexts + margin
//!                   ├ marks: <state-dir>/exceeded.json, for status and doctor
//!                   ├ an event `exceeded`
//!                   └ act = "stop": SIGKILL
//! ```
//!
//! It keeps NVML open while a lease can be exceeded, and ends when no container has files of a grant any
//! more: its unit is started by that very folder (fgpu-watch.path). MIG is a boundary by itself, and behind
//! an MPS server it cannot be told whose memory it is: neither is judged.

mod judge;
mod marks;
mod owners;

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use fgpu_allocator::{Lease, Store};
use fgpu_driver::nvml;
use fgpu_engine::config::Exceeded;
use fgpu_engine::events::Events;
use fgpu_spec::{Error, Nonce, Tier};

use crate::node::Node;
use crate::output::Output;
use judge::{Judge, Limit, Use};
pub(crate) use marks::{Mark, read as marks};
use owners::Owners;

const INTERVAL: Duration = Duration::from_secs(1);

/// Watches until no container has files of a grant.
///
/// # Errors
/// The leases cannot be read, or the driver cannot be asked.
pub(crate) fn watch(node: &Node) -> Result<Output, Error> {
    let config = &node.config;
    let store = fgpu_engine::store(config)?;
    let events = Events::of(config);
    let mut judge = Judge::default();
    let mut open = None;
    let mut shown = BTreeMap::new();
    marks::write(&config.state_dir, &shown)?;
    while is_used(&config.state_dir) {
        let leases = judged(&store)?;
        if leases.is_empty() {
            open = None;
        } else {
            if open.is_none() {
                open = Some(nvml::open(&config.driver_root)?);
            }
            let limits = limits(node, &leases)?;
            let uses = open.as_ref().map(|nvml| uses(nvml, &leases)).unwrap_or_default();
            let verdict = judge.sample(&limits, &uses);
            for nonce in &verdict.above {
                let Some(lease) = leases.iter().find(|lease| lease.grant.nonce == *nonce) else { continue };
                // Again, if it is still there.
                let stopped = config.exceeded == Exceeded::Stop && owners::stop(lease, &uses);
                if !verdict.new.contains(nonce) {
                    continue;
                }
                let used: Vec<u64> =
                    lease.grant.gpus.iter().map(|gpu| sum(&uses, nonce, &gpu.uuid)).collect();
                events.exceeded(lease, &used, stopped);
                shown.insert(*nonce, Mark::new(used, stopped));
            }
            // A container that has ended, or is within its limit, has no mark.
            let before = shown.len();
            shown.retain(|nonce, _| verdict.above.contains(nonce));
            if before != shown.len() || !verdict.new.is_empty() {
                marks::write(&config.state_dir, &shown)?;
            }
        }
        sleep(INTERVAL);
    }
    marks::remove(&config.state_dir);
    Ok(Output::default())
}

/// Whether some container has files of a grant: what fgpu-watch.path looks at, so that this is not started
/// again at once.
fn is_used(state_dir: &std::path::Path) -> bool {
    fs::read_dir(state_dir.join("containers")).is_ok_and(|mut entries| entries.next().is_some())
}

/// The leases whose memory is limited by libraries.
fn judged(store: &Store) -> Result<Vec<Lease>, Error> {
    let mut leases = store.leases()?;
    leases.retain(|lease| lease.state.is_held() && matches!(lease.grant.tier, Tier::Quota | Tier::Driver));
    Ok(leases)
}

fn limits(node: &Node, leases: &[Lease]) -> Result<Vec<Limit>, Error> {
    let inventory = node.inventory()?;
    let context = |uuid: &str| {
        let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == uuid);
        gpu.and_then(|gpu| gpu.context_memory)
    };
    let of = |lease: &Lease| {
        let nonce = lease.grant.nonce;
        let limit = |gpu: &fgpu_spec::GrantedGpu| Limit {
            lease: nonce,
            gpu: gpu.uuid.clone(),
            granted: gpu.memory,
            context: context(&gpu.uuid),
        };
        lease.grant.gpus.iter().map(limit).collect::<Vec<_>>()
    };
    Ok(leases.iter().flat_map(of).collect())
}

/// The processes on the GPUs of these leases. A driver that has no answer for a GPU now may have one in a
/// second.
fn uses(nvml: &nvml::Nvml, leases: &[Lease]) -> Vec<Use> {
    let owners = Owners::of(leases);
    let mut gpus: Vec<&str> =
        leases.iter().flat_map(|lease| &lease.grant.gpus).map(|gpu| &*gpu.uuid).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let on = |gpu: &str| {
        let processes = nvml::processes(nvml, gpu).ok().flatten().unwrap_or_default();
        let one = |(pid, bytes)| Some(Use { lease: owners.find(pid)?, gpu: gpu.to_owned(), pid, bytes });
        processes.into_iter().filter_map(one).collect::<Vec<_>>()
    };
    gpus.into_iter().flat_map(on).collect()
}

fn sum(uses: &[Use], lease: &Nonce, gpu: &str) -> u64 {
    uses.iter().filter(|one| one.lease == *lease && one.gpu == gpu).map(|one| one.bytes).sum()
}
