//! MIG instances: those of ours that no lease holds, those that leases name and that are gone, and those that
//! no container can use.
//!
//! What there is comes from /proc, where the kernel's part of the driver lists instances by their ids.

use fgpu_allocator::{Host, Lease, Store};
use fgpu_spec::{Gpu, GrantedGpu, Inventory, MigSlice, MigStage};

use super::Diagnosis;
use super::driver::placed;
use super::node::Node;

/// Where the kernel lists the instances that there are.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let directory = node.state_dir();
    let inventory = std::fs::read(directory.join(fgpu_driver::FILE)).unwrap_or_default();
    let Ok(inventory) = serde_json::from_slice::<Inventory>(&inventory) else { return };
    if !inventory.gpus.iter().any(|gpu| gpu.mig_enabled) || !node.has(&placed(node, CAPABILITIES)) {
        return;
    }
    let host = Host { proc: node.place("/proc"), cgroup: node.place("/sys/fs/cgroup") };
    let Ok(store) = Store::open_on(&directory, host) else { return };
    let gpus = inventory.gpus.iter().filter(|gpu| gpu.mig_enabled);
    let looked: Vec<_> = gpus.map(|gpu| (gpu, instances(node, gpu))).collect();
    // What keeps them from being read is another check's.
    let (Ok(leases), Ok(orphans)) = (store.leases(), store.slices().orphans(&inventory)) else { return };
    let before = diagnosis.findings.len();
    for (gpu, earlier) in looked {
        let there = instances(node, gpu);
        orphaned(gpu, &orphans, &there, diagnosis);
        gone(gpu, &leases, &there, diagnosis);
        bare(gpu, &leases, &earlier, &there, diagnosis);
    }
    if diagnosis.findings.len() == before {
        diagnosis.fine("every MIG instance of fgpu has its lease");
    }
}

/// A GPU instance that there is.
struct Instance {
    id: u32,
    /// Whether it has a compute instance; without one it cannot be used.
    has_compute: bool,
}

fn instances(node: &Node, gpu: &Gpu) -> Vec<Instance> {
    let folder = format!("{}/gpu{}/mig", placed(node, CAPABILITIES), gpu.minor);
    let one = |name: String| {
        let id = name.strip_prefix("gi")?.parse().ok()?;
        let parts = node.names(format!("{folder}/{name}"));
        Some(Instance { id, has_compute: parts.iter().any(|part| part.starts_with("ci")) })
    };
    node.names(&folder).into_iter().filter_map(one).collect()
}

/// The slices of leases on a GPU.
fn slices<'a>(leases: &'a [Lease], gpu: &'a Gpu) -> impl Iterator<Item = (&'a Lease, &'a MigSlice)> {
    let of = |lease: &'a Lease| {
        let shares = lease.grant.gpus.iter().filter(|share| share.uuid == gpu.uuid);
        shares.filter_map(move |share| Some((lease, share.mig.as_ref()?)))
    };
    leases.iter().flat_map(of)
}

fn orphaned(gpu: &Gpu, orphans: &[GrantedGpu], there: &[Instance], diagnosis: &mut Diagnosis) {
    for slice in orphans.iter().filter(|share| share.uuid == gpu.uuid).filter_map(|share| share.mig.as_ref())
    {
        let Some(id) = slice.instance.as_ref().map(|instance| instance.gpu_instance) else { continue };
        if there.iter().any(|instance| instance.id == id) {
            let what = format!(
                "fgpu made MIG {} of GPU {} (GPU instance {id}), and the lease of it is lost: it takes room and serves nobody",
                slice.name, gpu.index
            );
            diagnosis.warn("mig-orphan", what, &["fgpu gc"]);
        }
    }
}

fn gone(gpu: &Gpu, leases: &[Lease], there: &[Instance], diagnosis: &mut Diagnosis) {
    for (lease, slice) in slices(leases, gpu).filter(|(lease, _)| lease.state.is_held()) {
        let Some(device) = &slice.instance else { continue };
        if !there.iter().any(|instance| instance.id == device.gpu_instance && instance.has_compute) {
            let name = lease.key.short();
            let what = format!(
                "{name} has MIG {} of GPU {}, and somebody has destroyed it (GPU instance {})",
                slice.name, gpu.index, device.gpu_instance
            );
            diagnosis.error("mig-instance-gone", what, &[&format!("end {name} and start it again")]);
        }
    }
}

/// One that was bare before the leases were read and is after it.
fn bare(gpu: &Gpu, leases: &[Lease], earlier: &[Instance], there: &[Instance], diagnosis: &mut Diagnosis) {
    let is_changing = |slice: &MigSlice| matches!(slice.stage, MigStage::Creating | MigStage::Destroying);
    if slices(leases, gpu).any(|(_, slice)| is_changing(slice)) {
        return;
    }
    let is_bare = |all: &[Instance], id| all.iter().any(|one| one.id == id && !one.has_compute);
    for Instance { id, .. } in there.iter().filter(|one| is_bare(earlier, one.id) && is_bare(there, one.id)) {
        let what = format!(
            "GPU instance {id} of GPU {} has no compute instance and is of no lease: it takes room and serves nobody",
            gpu.index
        );
        let destroy = format!("if nobody is about to use it: nvidia-smi mig -dgi -i {} -gi {id}", gpu.index);
        diagnosis.warn("mig-bare-instance", what, &["nvidia-smi mig -lgi", &destroy]);
    }
}
