//! `fgpu status` and `fgpu top`: the holders and the waiters.

mod text;
mod watch;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use fgpu_allocator::{Anchor, Lease, State, Store};
use fgpu_engine::config::Foreign;
use fgpu_spec::{Compute, Error, Gpu, Health, Inventory, Nonce, Outsider, Tier};
use rustix::time::ClockId;
use serde::Serialize;

use crate::exceeded::{self, Mark};
use crate::node::Node;
use crate::output::{Output, json};
use crate::queue::{self, WaitingStatus};
use crate::screen::Look;
use crate::used::{Used, nanoseconds};
use fgpu_allocator::names::Catalogue;

pub(crate) use watch::{interval, watch};

/// In which order leases are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they were made.
    Age,
    /// What uses most memory first.
    Use,
}

/// Shows every GPU with what of it is granted, and every lease. With a broken driver the leases are still
/// shown.
///
/// # Errors
/// What [`Store::leases`] says; `internal` if the answer cannot be encoded.
pub(crate) fn run(node: &Node, as_json: bool) -> Result<Output, Error> {
    let (status, failure) = look(node, node.inventory(), &mut BTreeMap::new())?;
    let text = if as_json { json(&status)? } else { text::text(&status, Order::Age, &Look::of_stdout()) };
    let limited = status.leases.iter().any(|lease| lease.tier.is_interposed());
    // The table says so itself.
    let hidden = as_json && limited && status.is_blind;
    let warnings = hidden.then(|| "only root can read what containers have in use".to_owned());
    Ok(Output { text, failure, warnings: warnings.into_iter().collect(), ..Output::default() })
}

/// The node's status now with the GPUs of `inventory`, and why they are not known, if they are not. What was
/// used of the SM time is told since the look `before`, which becomes this one. Without an earlier look it is the
/// recent average.
///
/// # Errors
/// What [`Store::leases`] says.
pub(crate) fn look(
    node: &Node,
    inventory: Result<Inventory, Error>,
    before: &mut BTreeMap<Nonce, Used>,
) -> Result<(Status, Option<Error>), Error> {
    let mut catalogue = Catalogue::default();
    let mut seen = BTreeMap::new();
    // A user who may not make the directory may still ask.
    let mut marks = exceeded::marks(&node.config.state_dir);
    let store = node.config.state_dir.exists().then(|| Store::open(&node.config.state_dir)).transpose()?;
    let gpus = inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
    let held = match &store {
        None => Vec::new(),
        Some(store) => {
            let held = |lease: Lease| {
                // A reader that cannot tell takes it for a holder.
                let gone = lease.state.is_held() && store.is_in_use(&lease).is_ok_and(|used| !used);
                let nonce = lease.grant.nonce;
                let mut used = Used::read(&store.container_dir(&nonce), &lease, gpus);
                if let Some(now) = &mut used {
                    seen.insert(nonce, now.clone());
                    if let Some(before) = before.get(&nonce) {
                        *now = std::mem::take(now).since(before);
                    }
                }
                Row { names: catalogue.of(&lease), used, mark: marks.remove(&nonce), gone, lease }
            };
            store.leases()?.into_iter().map(held).collect()
        }
    };
    *before = seen;
    // It counts suspend, as the stamps of leases do.
    let (known, now) = (inventory.as_ref().ok(), nanoseconds(ClockId::Boottime));
    let mut status = Status::of(known, node.config.reserve_memory, &held, now);
    if let Some(health) = fgpu_driver::health::read(&node.config.state_dir) {
        status.see(&health, node.config.foreign);
    }
    status.is_blind = !rustix::process::geteuid().is_root();
    if let Some(store) = &store {
        status.queue = queue::waiting(node, store, known, now)?;
    }
    Ok((status, inventory.err()))
}

/// A lease with what is known of its container besides.
#[derive(Debug)]
struct Row {
    lease: Lease,
    names: fgpu_allocator::names::Names,
    used: Option<Used>,
    /// Whether the watcher has seen it above its share.
    mark: Option<Mark>,
    /// Whether its processes are gone, so that a request that needs its room gets it.
    gone: bool,
}

/// The answer of `fgpu status --json`. Amounts are bytes, ppm of a GPU and seconds. docs/json.md describes
/// it.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    driver_version: Option<String>,
    pub(crate) gpus: Vec<GpuStatus>,
    pub(crate) leases: Vec<LeaseStatus>,
    /// The waiters, the next one first.
    pub(crate) queue: Vec<WaitingStatus>,
    /// Whether the asker may not see what containers use: their ledgers are root's.
    #[serde(skip)]
    is_blind: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct GpuStatus {
    pub(crate) index: u32,
    pub(crate) uuid: String,
    pub(crate) model: String,
    /// Serves no fractions.
    pub(crate) mig_enabled: bool,
    /// What can be granted of an empty GPU.
    pub(crate) usable_memory: u64,
    pub(crate) granted_memory: u64,
    /// What containers with a limit have in use; none if there are some and it is not known of any.
    pub(crate) used_memory: Option<u64>,
    pub(crate) granted_cores_ppm: u64,
    /// What containers used recently; none as above.
    used_cores_ppm: Option<u64>,
    /// Why nothing can be granted of it; none if it can.
    pub(crate) unhealthy: Option<String>,
    /// What processes outside of all leases hold, as it was last seen; none if it was not looked at.
    pub(crate) foreign_memory: Option<u64>,
    /// What of that is not free.
    #[serde(skip)]
    avoided: u64,
    /// Those processes.
    foreign_processes: Vec<Outsider>,
    /// Whether one container has it for itself.
    exclusive: bool,
    /// The node of a cluster for whose claims alone it is, if it is.
    for_claims_of: Option<String>,
    /// The node of Slurm for whose jobs alone it is, if it is.
    for_jobs_of: Option<String>,
    pub(crate) leases: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct LeaseStatus {
    /// For the table; JSON has the namespace and the id in full.
    #[serde(skip)]
    pub(crate) short: String,
    pub(crate) namespace: String,
    container: String,
    pub(crate) name: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) grant: Nonce,
    state: State,
    pub(crate) tier: Tier,
    /// How its cores are meant; `share` with 0 of them: what others leave.
    compute: Compute,
    pub(crate) owner: Option<String>,
    request: String,
    exclusive: bool,
    /// RFC 3339, UTC.
    since: String,
    /// The same in seconds since 1970.
    #[serde(skip)]
    pub(crate) made: f64,
    held_seconds: u64,
    init_pid: Option<i32>,
    /// Its processes have ended and its share was not given back yet; the next request that needs the room
    /// gives it back.
    pub(crate) gone: bool,
    /// That it uses more than its share, as the driver counts; known only while the watcher runs.
    pub(crate) exceeded: Option<Mark>,
    pub(crate) gpus: Vec<ShareStatus>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ShareStatus {
    /// Unknown when the GPU is gone from the inventory.
    pub(crate) index: Option<u32>,
    pub(crate) uuid: String,
    /// The profile of a hardware slice.
    mig: Option<String>,
    pub(crate) memory: u64,
    /// Unknown where nothing is limited.
    pub(crate) used_memory: Option<u64>,
    pub(crate) cores_ppm: u32,
    /// The part of the GPU's SM time that was used recently, or since the look before; unknown where it is
    /// not limited.
    used_cores_ppm: Option<u32>,
    /// Nanoseconds of SM time, ever; unknown as above.
    pub(crate) used_cores_ns: Option<u64>,
}

/// Who gives out a GPU that the node does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheduler {
    Kubernetes,
    Slurm,
}

impl Status {
    fn of(inventory: Option<&Inventory>, reserve: u64, held: &[Row], now: u64) -> Self {
        let gpus = inventory.map(|inventory| inventory.gpus.as_slice()).unwrap_or_default();
        // A pool is no container's: it is how its GPUs are.
        let pool = |lease: &Lease| match &lease.anchor {
            Some(Anchor::Pool(pool)) => Some((Scheduler::Kubernetes, pool.name.clone())),
            Some(Anchor::Shards(shards)) => Some((Scheduler::Slurm, shards.node.clone())),
            _ => None,
        };
        let containers = held.iter().filter(|held| pool(&held.lease).is_none());
        let leases: Vec<_> = containers.map(|held| LeaseStatus::of(held, gpus, now)).collect();
        let held_for = |scheduler: Scheduler, uuid: &str| {
            held.iter().find_map(|held| {
                let is_its = held.lease.grant.gpus.iter().any(|share| share.uuid == uuid);
                pool(&held.lease).filter(|(whose, _)| is_its && *whose == scheduler).map(|(_, node)| node)
            })
        };
        let holders = || leases.iter().filter(|lease| !lease.gone);
        let gpu = |gpu: &Gpu| {
            let on = || {
                // Several slices of one grant may be of one GPU.
                let shares = holders().flat_map(|lease| lease.gpus.iter().map(move |share| (lease, share)));
                shares.filter(|(_, share)| share.uuid == gpu.uuid)
            };
            GpuStatus {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                model: gpu.model.clone(),
                mig_enabled: gpu.mig_enabled,
                usable_memory: if gpu.mig_enabled { 0 } else { gpu.usable_memory(reserve) },
                granted_memory: on().map(|(_, share)| share.memory).sum(),
                used_memory: known_sum(on().map(|(_, share)| share.used_memory))
                    .map(|sum| sum.min(gpu.total_memory)),
                granted_cores_ppm: on().map(|(_, share)| u64::from(share.cores_ppm)).sum(),
                used_cores_ppm: known_sum(on().map(|(_, share)| share.used_cores_ppm.map(u64::from))),
                unhealthy: None,
                foreign_memory: None,
                avoided: 0,
                foreign_processes: Vec::new(),
                exclusive: on().any(|(lease, _)| lease.exclusive),
                for_claims_of: held_for(Scheduler::Kubernetes, &gpu.uuid),
                for_jobs_of: held_for(Scheduler::Slurm, &gpu.uuid),
                leases: holders()
                    .filter(|lease| lease.gpus.iter().any(|share| share.uuid == gpu.uuid))
                    .count(),
            }
        };
        Self {
            driver_version: inventory.map(|inventory| inventory.driver_version.clone()),
            gpus: gpus.iter().map(gpu).collect(),
            leases,
            queue: Vec::new(),
            is_blind: false,
        }
    }
}

impl Status {
    /// Adds what was last seen of the GPUs.
    fn see(&mut self, health: &Health, foreign: Foreign) {
        for gpu in &mut self.gpus {
            if let Some(seen) = health.gpus.iter().find(|seen| seen.uuid == gpu.uuid) {
                gpu.unhealthy.clone_from(&seen.unhealthy);
                gpu.foreign_memory = Some(seen.foreign);
                gpu.avoided = if foreign == Foreign::Avoid { seen.foreign } else { 0 };
                gpu.foreign_processes.clone_from(&seen.outsiders);
            }
        }
    }
}

/// The sum of what is known; none if there is something and nothing of it is known.
fn known_sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    let parts: Vec<_> = parts.collect();
    let known: Vec<_> = parts.iter().copied().flatten().collect();
    (parts.is_empty() || !known.is_empty()).then(|| known.into_iter().fold(0, u64::saturating_add))
}

impl LeaseStatus {
    fn of(held: &Row, gpus: &[Gpu], now: u64) -> Self {
        let Row { lease, names, used, mark, gone } = held;
        // Launches are counted only where they are limited.
        let timed = used.as_ref().filter(|_| lease.grant.compute != Compute::Off);
        let share = |(number, share): (usize, &fgpu_spec::GrantedGpu)| ShareStatus {
            index: gpus.iter().find(|gpu| gpu.uuid == share.uuid).map(|gpu| gpu.index),
            uuid: share.uuid.clone(),
            mig: share.mig.as_ref().map(|slice| slice.name.clone()),
            memory: share.memory,
            used_memory: used.as_ref().map(|used| used.memory(number)),
            cores_ppm: share.cores_ppm,
            used_cores_ppm: timed.map(|used| used.busy(number)),
            used_cores_ns: timed.map(|used| used.time(number)),
        };
        let made = SystemTime::UNIX_EPOCH + Duration::from_nanos(lease.wall);
        Self {
            short: lease.key.short(),
            namespace: lease.key.namespace.clone(),
            container: lease.key.id.clone(),
            name: names.name.clone(),
            image: names.image.clone(),
            grant: lease.grant.nonce,
            state: lease.state,
            tier: lease.grant.tier,
            compute: lease.grant.compute,
            owner: lease.owner.clone(),
            request: lease.request.clone(),
            exclusive: lease.exclusive,
            made: Duration::from_nanos(lease.wall).as_secs_f64(),
            since: humantime::format_rfc3339_seconds(made).to_string(),
            held_seconds: now.saturating_sub(lease.created) / 1_000_000_000,
            init_pid: lease.init.map(|init| init.pid),
            gone: *gone,
            exceeded: mark.clone(),
            gpus: lease.grant.gpus.iter().enumerate().map(share).collect(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
