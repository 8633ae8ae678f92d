//! `fgpu status`: who holds what, and who waits.

use fgpu_allocator::{Lease, State, Store};
use fgpu_spec::{Error, Inventory, Nonce, Tier};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::node::Node;
use crate::output::{Output, json, word};
use crate::quantity::{bytes, duration, percent};
use crate::queue::{self, WaitingStatus};
use crate::table::Table;

/// Shows every GPU with what of it is granted, and every lease. With a broken driver the leases are still shown.
///
/// # Errors
/// What [`Store::leases`] says; `internal` if the answer cannot be encoded.
pub(crate) fn run(node: &Node, as_json: bool) -> Result<Output, Error> {
    // Somebody who may not make the directory may still ask.
    let store = node.config.state_dir.exists().then(|| Store::open(&node.config.state_dir)).transpose()?;
    let leases = store.as_ref().map_or(Ok(Vec::new()), Store::leases)?;
    let inventory = node.inventory();
    let (known, now) = (inventory.as_ref().ok(), now());
    let mut status = status(known, node.config.reserve_memory, &leases, now);
    if let Some(store) = &store {
        status.queue = queue::waiting(node, store, known, now)?;
    }
    let text = if as_json { json(&status)? } else { text(&status) };
    Ok(Output { text, warnings: Vec::new(), failure: inventory.err() })
}

/// CLOCK_BOOTTIME in ns: it counts suspend and no administrator sets it.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Time since boot is never negative.
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The answer of `fgpu status --json`. Amounts are bytes, ppm of a GPU and seconds.
#[derive(Debug, Serialize)]
struct Status {
    gpus: Vec<GpuStatus>,
    leases: Vec<LeaseStatus>,
    queue: Vec<WaitingStatus>,
}

#[derive(Debug, Serialize)]
struct GpuStatus {
    index: u32,
    uuid: String,
    model: String,
    /// Serves no fractions.
    mig_enabled: bool,
    /// What can be granted of an empty GPU.
    usable_memory: u64,
    granted_memory: u64,
    granted_cores_ppm: u64,
    /// Whether one container has it for itself.
    exclusive: bool,
    leases: usize,
}

#[derive(Debug, Serialize)]
struct LeaseStatus {
    /// For the table; JSON has the namespace and the id in full.
    #[serde(skip)]
    name: String,
    namespace: String,
    container: String,
    grant: Nonce,
    state: State,
    tier: Tier,
    owner: Option<String>,
    request: String,
    exclusive: bool,
    held_seconds: u64,
    init_pid: Option<i32>,
    gpus: Vec<ShareStatus>,
}

#[derive(Debug, Serialize)]
struct ShareStatus {
    /// Unknown when the GPU is gone from the inventory.
    index: Option<u32>,
    uuid: String,
    memory: u64,
    cores_ppm: u32,
}

fn status(inventory: Option<&Inventory>, reserve: u64, leases: &[Lease], now: u64) -> Status {
    let gpus = inventory.map(|inventory| inventory.gpus.as_slice()).unwrap_or_default();
    let index = |uuid: &str| gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.index);
    Status {
        gpus: gpus
            .iter()
            .map(|gpu| {
                let held = || {
                    let shares =
                        |lease: &Lease| lease.grant.gpus.iter().find(|share| share.uuid == gpu.uuid).cloned();
                    leases.iter().filter_map(move |lease| Some((lease, shares(lease)?)))
                };
                GpuStatus {
                    index: gpu.index,
                    uuid: gpu.uuid.clone(),
                    model: gpu.model.clone(),
                    mig_enabled: gpu.mig_enabled,
                    usable_memory: if gpu.mig_enabled { 0 } else { gpu.usable_memory(reserve) },
                    granted_memory: held().map(|(_, share)| share.memory).sum(),
                    granted_cores_ppm: held().map(|(_, share)| u64::from(share.cores_ppm)).sum(),
                    exclusive: held().any(|(lease, _)| lease.exclusive),
                    leases: held().count(),
                }
            })
            .collect(),
        leases: leases
            .iter()
            .map(|lease| LeaseStatus {
                name: lease.key.short(),
                namespace: lease.key.namespace.clone(),
                container: lease.key.id.clone(),
                grant: lease.grant.nonce,
                state: lease.state,
                tier: lease.grant.tier,
                owner: lease.owner.clone(),
                request: lease.request.clone(),
                exclusive: lease.exclusive,
                held_seconds: now.saturating_sub(lease.created) / 1_000_000_000,
                init_pid: lease.init.map(|init| init.pid),
                gpus: lease
                    .grant
                    .gpus
                    .iter()
                    .map(|share| ShareStatus {
                        index: index(&share.uuid),
                        uuid: share.uuid.clone(),
                        memory: share.memory,
                        cores_ppm: share.cores_ppm,
                    })
                    .collect(),
            })
            .collect(),
        queue: Vec::new(),
    }
}

fn text(status: &Status) -> String {
    let mut gpus = Table::new(&["GPU", "MODEL", "MEMORY", "GRANTED", "FREE", "SM GRANTED", "CONTAINERS"]);
    for gpu in &status.gpus {
        let start = [gpu.index.to_string(), gpu.model.clone()];
        if gpu.mig_enabled {
            gpus.row(start.into_iter().chain(["MIG is on: serves no fractions".into()]));
            continue;
        }
        let free = match gpu.exclusive {
            true => "exclusive".into(),
            false => bytes(gpu.usable_memory.saturating_sub(gpu.granted_memory)),
        };
        gpus.row(start.into_iter().chain([
            bytes(gpu.usable_memory),
            bytes(gpu.granted_memory),
            free,
            percent(gpu.granted_cores_ppm),
            gpu.leases.to_string(),
        ]));
    }
    let mut text = if status.gpus.is_empty() { String::new() } else { gpus.render() + "\n" };
    if status.leases.is_empty() {
        return text + "No container holds a share.\n" + &queue::text(&status.queue);
    }
    let mut leases = Table::new(&["CONTAINER", "GPU", "MEMORY", "SM", "TIER", "OWNER", "SINCE", "STATE"]);
    for lease in &status.leases {
        for (place, share) in lease.gpus.iter().enumerate() {
            // The container's other GPUs go below the first, without repeating whose they are.
            let name = if place == 0 { lease.name.clone() } else { String::new() };
            let gpu = share.index.map_or_else(|| share.uuid.clone(), |index| index.to_string());
            let share = [name, gpu, bytes(share.memory), percent(share.cores_ppm.into())];
            let rest = [
                word(&lease.tier),
                lease.owner.clone().unwrap_or("-".into()),
                duration(lease.held_seconds),
                word(&lease.state),
            ];
            leases.row(share.into_iter().chain(rest.into_iter().filter(|_| place == 0)));
        }
    }
    text.push_str(&leases.render());
    text.push_str(&queue::text(&status.queue));
    text
}

#[cfg(test)]
mod tests {
    use fgpu_allocator::{Key, Process};
    use fgpu_spec::{Compute, Gpu, Grant, GrantedGpu};

    use super::*;

    fn gpu(index: u32) -> Gpu {
        Gpu {
            uuid: format!("GPU-{index}"),
            index,
            minor: index,
            model: "Simulated A100".into(),
            pci: String::new(),
            numa: None,
            total_memory: 40 << 30,
            reserved_memory: 0,
            mig_enabled: index == 2,
            context_memory: None,
            mig_profiles: Vec::new(),
        }
    }

    fn inventory() -> Inventory {
        Inventory {
            version: 1,
            boot_id: String::new(),
            root: "/".into(),
            driver_version: "550.163.01".into(),
            cuda_version: 12040,
            gpus: (0..3).map(gpu).collect(),
            topology: fgpu_spec::Topology::default(),
            files: Vec::new(),
        }
    }

    fn lease(id: &str, gpus: &[u32], exclusive: bool) -> Lease {
        let share = |index: &u32| GrantedGpu {
            uuid: format!("GPU-{index}"),
            memory: 10 << 30,
            cores_ppm: 250_000,
            mig: None,
        };
        Lease {
            key: Key { namespace: "moby".into(), id: id.into() },
            grant: Grant {
                nonce: Nonce([7; 16]),
                tier: Tier::Quota,
                compute: Compute::Cap,
                gpus: gpus.iter().map(share).collect(),
                notes: Vec::new(),
            },
            state: State::Active,
            owner: Some("team-a".into()),
            exclusive,
            bundle: "/bundle".into(),
            maker: Process { pid: 1, start: 1 },
            pid_file: None,
            init: Some(Process { pid: 4711, start: 2 }),
            cgroup: None,
            created: 1_000_000_000,
            wall: 0,
            request: "fgpu/fraction=0.25".into(),
            trouble: None,
            kept: None,
        }
    }

    #[test]
    fn the_tables() {
        let long = "3f1c0a9b2d11".to_owned() + &"0".repeat(52);
        let leases = [lease(&long, &[0], false), lease("web", &[0, 1], true)];
        let status = status(Some(&inventory()), 1 << 30, &leases, 193_999_999_999);
        assert_eq!(
            text(&status),
            "\
GPU  MODEL           MEMORY                          GRANTED   FREE       SM GRANTED  CONTAINERS
0    Simulated A100  39.0 GiB                        20.0 GiB  exclusive  50%         2
1    Simulated A100  39.0 GiB                        10.0 GiB  exclusive  25%         1
2    Simulated A100  MIG is on: serves no fractions

CONTAINER          GPU  MEMORY    SM   TIER   OWNER   SINCE  STATE
moby/3f1c0a9b2d11  0    10.0 GiB  25%  quota  team-a  3m12s  active
moby/web           0    10.0 GiB  25%  quota  team-a  3m12s  active
                   1    10.0 GiB  25%
"
        );
    }

    #[test]
    fn a_lease_of_the_hook_is_readable_and_its_bundle_is_in_the_json() {
        let id = "3f1c0a9b2d11".to_owned() + &"0".repeat(52);
        let bundle = format!("/var/lib/containers/storage/overlay-containers/{id}/userdata");
        let mut lease = lease(&id, &[0], false);
        lease.key.namespace = bundle.clone();
        let status = status(Some(&inventory()), 0, &[lease], 0);
        let text = text(&status);
        assert!(text.contains("\n3f1c0a9b2d11  0    10.0 GiB"), "{text}");
        assert!(text.lines().all(|line| line.len() < 100), "{text}");
        let value = serde_json::to_value(&status).unwrap();
        assert_eq!(value["leases"][0]["namespace"], bundle);
        assert_eq!(value["leases"][0]["container"], id);
        assert!(value["leases"][0].get("name").is_none());
    }

    #[test]
    fn an_empty_node() {
        let status = status(Some(&inventory()), 0, &[], 0);
        assert!(text(&status).ends_with("\n\nNo container holds a share.\n"));
    }

    #[test]
    fn leases_are_shown_when_the_driver_is_gone() {
        let text = text(&status(None, 0, &[lease("web", &[0], false)], 0));
        assert!(text.starts_with("CONTAINER"), "{text}");
        assert!(text.contains("moby/web   GPU-0"), "{text}");
    }

    #[test]
    fn the_json_has_exact_amounts() {
        let status = status(Some(&inventory()), 0, &[lease("web", &[1], false)], 61_000_000_000);
        let value = serde_json::to_value(&status).unwrap();
        assert_eq!(value["gpus"][1]["granted_memory"], 10_u64 << 30);
        assert_eq!(value["gpus"][1]["granted_cores_ppm"], 250_000);
        assert_eq!(value["gpus"][2]["usable_memory"], 0);
        let lease = &value["leases"][0];
        assert_eq!((&lease["namespace"], &lease["container"]), (&"moby".into(), &"web".into()));
        assert_eq!(lease["grant"], "07".repeat(16));
        assert_eq!((&lease["tier"], &lease["state"]), (&"quota".into(), &"active".into()));
        assert_eq!((&lease["held_seconds"], &lease["init_pid"]), (&60.into(), &4711.into()));
        assert_eq!(lease["gpus"][0]["index"], 1);
    }
}
