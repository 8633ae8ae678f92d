//! The GPUs of one node, on which fgpu's own placement decides.

use std::time::{Duration, Instant};

use fgpu_allocator::{Held, Placement, Refusal, Rules, place};
use fgpu_spec::{
    Compute, Filter, Gpu, GrantedGpu, Inventory, Isolation, MemoryAsk, Policy, Request, Topology,
};

/// Memory of each GPU in MiB. A task of the trace says what it needs of a GPU and not how much memory that
/// is, so what the GPUs have makes no difference.
const MEMORY_MIB: u64 = 16 << 10;

/// A whole GPU in parts per million.
pub const WHOLE: u32 = 1_000_000;

/// GPUs of one model, what is held of them, and how long decisions took.
#[derive(Debug, Clone)]
pub struct Node {
    inventory: Inventory,
    rules: Rules,
    held: Vec<Held>,
    /// Nanoseconds of each decision.
    pub decisions: Vec<u32>,
}

/// A share that a node has given: what there is of each GPU, by place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    parts: Vec<(usize, u64, u32)>,
}

impl Share {
    /// Parts per million of GPUs in all.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|&(_, _, ppm)| u64::from(ppm)).sum()
    }
}

/// `count` GPUs, `ppm` of the memory and SM time of each, of one of `models` if there are any.
pub fn request(count: u32, ppm: u32, models: &[&str], policy: Policy) -> Request {
    Request {
        count,
        memory: MemoryAsk::Ppm(ppm),
        cores_ppm: ppm,
        compute: Compute::Cap,
        mig: None,
        places: Vec::new(),
        isolation: Isolation::Auto,
        device: Filter::default(),
        model: Filter { any: models.iter().map(|model| bracketed(model)).collect(), not: Vec::new() },
        policy,
        wait: Duration::ZERO,
        owner: None,
        text: String::new(),
        notes: Vec::new(),
    }
}

/// `fgpu/model` looks for parts of names, the trace means whole ones: A10 is no A100.
fn bracketed(model: &str) -> String {
    format!("<{}>", model.to_lowercase())
}

/// A node with so many alike GPUs, and nothing else that placement looks at.
pub(crate) fn inventory(gpus: u32, model: &str) -> Inventory {
    let gpu = |index| Gpu {
        uuid: format!("GPU-{index}"),
        index,
        minor: index,
        model: bracketed(model),
        pci: String::new(),
        numa: None,
        total_memory: MEMORY_MIB << 20,
        reserved_memory: 0,
        mig_enabled: false,
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
    };
    Inventory {
        version: 0,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: String::new(),
        cuda_version: 0,
        gpus: (0..gpus).map(gpu).collect(),
        driver_limits: false,
        topology: Topology::default(),
        files: Vec::new(),
    }
}

impl Node {
    /// A node with so many empty GPUs.
    pub fn new(gpus: u32, model: &str) -> Self {
        let inventory = inventory(gpus, model);
        let held = vec![Held::default(); gpus as usize];
        Self { inventory, rules: Rules::default(), held, decisions: Vec::new() }
    }

    /// How much of each GPU is free, in ppm of its SM time. The trace's tasks never ask for less of its
    /// memory.
    pub fn free(&self) -> impl Iterator<Item = u32> + '_ {
        self.held.iter().map(|held| WHOLE - held.cores_ppm)
    }

    /// Gives a share, if placement finds room for it.
    pub fn take(&mut self, request: &Request) -> Option<Share> {
        let placement = self.decide(request).ok()?;
        let part = |gpu: &GrantedGpu| (self.find(&gpu.uuid), gpu.memory, gpu.cores_ppm);
        let parts: Vec<_> = placement.gpus.iter().map(part).collect();
        for &(at, memory, cores_ppm) in &parts {
            let held = &mut self.held[at];
            held.memory += memory;
            held.cores_ppm += cores_ppm;
            held.leases += 1;
            assert!(held.memory <= MEMORY_MIB << 20 && held.cores_ppm <= WHOLE, "GPU {at} is given twice");
        }
        Some(Share { parts })
    }

    fn decide(&mut self, request: &Request) -> Result<Placement, Refusal> {
        let start = Instant::now();
        let decision = place(&self.inventory, &self.rules, request, &self.held, 0);
        self.decisions.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        decision.outcome
    }

    fn find(&self, uuid: &str) -> usize {
        let found = self.inventory.gpus.iter().position(|gpu| gpu.uuid == uuid);
        found.expect("placement grants GPUs of the inventory")
    }

    /// Takes a share back.
    pub fn give_back(&mut self, share: &Share) {
        for &(at, memory, cores_ppm) in &share.parts {
            let held = &mut self.held[at];
            held.memory -= memory;
            held.cores_ppm -= cores_ppm;
            held.leases -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_room_can_be_granted_again() {
        let mut node = Node::new(2, "T4");
        let half = request(2, 500_000, &["t4"], Policy::Pack);
        let shares = [node.take(&half).unwrap(), node.take(&half).unwrap()];
        assert_eq!((node.take(&half), shares[0].size()), (None, 1_000_000));
        node.give_back(&shares[0]);
        assert_eq!(node.free().collect::<Vec<_>>(), [500_000, 500_000]);
        assert!(node.take(&half).is_some());
        assert_eq!(node.decisions.len(), 4);
    }

    #[test]
    fn models_are_whole_names() {
        let mut node = Node::new(1, "A100");
        assert_eq!(node.take(&request(1, 1000, &["A10"], Policy::Pack)), None);
        assert!(node.take(&request(1, 1000, &["A10", "A100"], Policy::Pack)).is_some());
    }
}
