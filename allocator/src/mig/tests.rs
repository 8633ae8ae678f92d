use std::collections::{BTreeMap, BinaryHeap};

use fgpu_spec::{Compute, Filter, Isolation, Policy};

use super::*;
use crate::refusal;

const GIB: u64 = 1 << 30;

/// What an H100 80GB reports.
fn profiles() -> Vec<MigProfile> {
    serde_json::from_str(include_str!("../../../spec/testdata/mig-h100-80gb.json")).unwrap()
}

fn inventory(gpus: u32, plain: u32) -> Inventory {
    let gpu = |index: u32| Gpu {
        uuid: format!("GPU-{index}"),
        index,
        minor: index,
        model: "NVIDIA H100 80GB HBM3".into(),
        pci: String::new(),
        numa: None,
        total_memory: 81_559 << 20,
        reserved_memory: 551 << 20,
        mig_enabled: index < gpus,
        mig_profiles: if index < gpus { profiles() } else { Vec::new() },
        context_memory: None,
        compute_capability: None,
    };
    Inventory {
        version: 2,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: "550.163.01".into(),
        cuda_version: 12040,
        gpus: (0..gpus + plain).map(gpu).collect(),
        driver_limits: false,
        topology: Default::default(),
        files: Vec::new(),
    }
}

fn request(mig: Option<&str>, memory: MemoryAsk, cores_ppm: u32) -> Request {
    Request {
        count: 1,
        memory,
        cores_ppm,
        compute: Compute::Cap,
        mig: mig.map(str::to_owned),
        places: Vec::new(),
        isolation: if mig.is_some() { Isolation::Mig } else { Isolation::Auto },
        device: Filter::default(),
        model: Filter::default(),
        policy: Policy::Pack,
        wait: std::time::Duration::ZERO,
        owner: None,
        text: "asked".into(),
        notes: Vec::new(),
    }
}

fn named(name: &str) -> Request {
    request(Some(name), MemoryAsk::Ppm(WHOLE), WHOLE)
}

/// A node on which slices are placed one after the other.
struct Table {
    inventory: Inventory,
    rules: Rules,
    slots: Vec<Vec<Slot>>,
}

impl Table {
    fn new(gpus: u32) -> Self {
        let inventory = inventory(gpus, 0);
        let slots = vec![Vec::new(); inventory.gpus.len()];
        Self { inventory, rules: Rules::default(), slots }
    }

    fn decide(&self, request: &Request) -> Decision {
        let held = vec![Held::default(); self.slots.len()];
        place(&self.inventory, &self.rules, request, &held, &self.slots, 0)
    }

    /// Places it and gives for each slice the GPU, the profile and the first memory slice.
    fn put(&mut self, request: &Request) -> Result<Vec<(usize, String, u32)>, Refusal> {
        let placement = self.decide(request).outcome?;
        let mut put = Vec::new();
        for share in placement.gpus {
            let at = self.inventory.gpus.iter().position(|gpu| gpu.uuid == share.uuid).unwrap();
            let mig = share.mig.unwrap();
            self.slots[at].retain(|slot| slot.placement != mig.placement);
            let slot = Slot { placement: mig.placement, profile: mig.profile, holder: SlotHolder::Lease };
            self.slots[at].push(slot);
            put.push((at, mig.name, mig.placement.start));
        }
        Ok(put)
    }

    fn error(&self, request: &Request) -> fgpu_spec::Error {
        let decision = self.decide(request);
        let refused = decision.outcome.as_ref().unwrap_err();
        let holders = vec![Vec::new(); self.slots.len()];
        let (inventory, slots) = (&self.inventory, &self.slots);
        let case = refusal::Case {
            decision: &decision,
            request,
            rules: &self.rules,
            inventory,
            holders: &holders,
            slots,
        };
        refusal::error(refused, &case)
    }
}

#[test]
fn auto_makes_the_smallest_that_has_what_is_asked() {
    let table = Table::new(1);
    let chosen = |memory, cores| {
        let placement = table.decide(&request(Some("auto"), memory, cores)).outcome;
        placement.map(|placement| placement.gpus[0].mig.clone().unwrap().name)
    };
    let bytes = |gib: u64| MemoryAsk::Bytes(gib * GIB);
    for (memory, cores, name) in [
        (bytes(0), 100_000, "1g.10gb"),
        (bytes(9), 0, "1g.10gb"),
        (bytes(10), 0, "1g.20gb"),
        (bytes(10), 250_000, "2g.20gb"),
        (bytes(20), 0, "3g.40gb"),
        (bytes(20), 500_000, "4g.40gb"),
        (bytes(40), 0, "7g.80gb"),
        // Ratios are of what MIG divides: eight memory slices, seven compute slices or 132 SMs.
        (MemoryAsk::Ppm(125_000), 125_000, "1g.10gb"),
        (MemoryAsk::Ppm(250_000), 250_000, "2g.20gb"),
        (MemoryAsk::Ppm(250_000), 0, "1g.20gb"),
        (MemoryAsk::Ppm(333_333), 333_333, "3g.40gb"),
        (MemoryAsk::Ppm(500_000), 500_000, "4g.40gb"),
        (MemoryAsk::Ppm(500_001), 0, "7g.80gb"),
        (MemoryAsk::Ppm(WHOLE), WHOLE, "7g.80gb"),
    ] {
        assert_eq!(chosen(memory, cores).as_deref(), Ok(name), "{memory:?} {cores}");
    }
    assert_eq!(chosen(bytes(80), 0), Err(Refusal::NoMigProfile));
}

#[test]
fn a_grant_says_what_it_is_beside_what_was_asked() {
    let table = Table::new(1);
    let placement = table.decide(&request(Some("auto"), MemoryAsk::Bytes(16 * GIB), 0)).outcome.unwrap();
    assert_eq!(
        placement.notes,
        ["MIG 1g.20gb of GPU 0 is 20096 MiB and 26 of 132 SMs (19.6%); memory: 3712 MiB more, \
          SMs: 19.6% more than asked"]
    );
    assert_eq!((placement.gpus[0].memory, placement.gpus[0].cores_ppm), (20096 << 20, 196_969));
    let at_most = MemoryAsk::Ppm(500_000).at_most(8 * GIB);
    let placement = table.decide(&request(Some("auto"), at_most, 0)).outcome.unwrap();
    assert!(placement.notes[0].contains("MIG 1g.10gb of GPU 0"), "{:?}", placement.notes);
    let placement = table.decide(&named("1g.10gb+me")).outcome.unwrap();
    assert_eq!(placement.notes, ["MIG 1g.10gb+me of GPU 0 is 9984 MiB and 16 of 132 SMs (12.1%)"]);
}

#[test]
fn a_place_is_where_it_costs_later_requests_the_least() {
    let mut table = Table::new(2);
    // Slice 6 is of no use to a 2g and of the least use to a 3g.
    assert_eq!(table.put(&named("1g.10gb")).unwrap(), [(0, "1g.10gb".into(), 6)]);
    // The half that is broken already.
    assert_eq!(table.put(&named("2g.20gb")).unwrap(), [(0, "2g.20gb".into(), 4)]);
    assert_eq!(table.put(&named("4g.40gb")).unwrap(), [(0, "4g.40gb".into(), 0)]);
    assert_eq!(table.put(&named("7g.80gb")).unwrap(), [(1, "7g.80gb".into(), 0)]);
    let error = table.error(&named("1g.10gb"));
    assert_eq!(error.code, fgpu_spec::Code::NoMigPlacement);
    assert!(
        error.message.contains("GPU 0 has no place for 1g.10gb: 4g.40gb at 0-3 by a lease, 2g.20gb at 4-5"),
        "{error}"
    );
    assert!(error.message.contains("GPU 1 has no place for 1g.10gb: 7g.80gb at 0-7"), "{error}");
}

#[test]
fn slices_of_one_request_may_share_a_gpu() {
    let mut table = Table::new(1);
    let seven = Request { count: 7, ..named("1g.10gb") };
    let mut starts: Vec<_> = table.put(&seven).unwrap().into_iter().map(|(_, _, start)| start).collect();
    starts.sort_unstable();
    assert_eq!(starts, [0, 1, 2, 3, 4, 5, 6]);
    let table = Table::new(1);
    let eight = Request { count: 8, ..named("1g.10gb") };
    assert_eq!(table.decide(&eight).outcome, Err(Refusal::TooManySlices { most: 7 }), "even when empty");
    let error = table.error(&eight);
    assert_eq!(error.code, fgpu_spec::Code::TooLarge);
    assert_eq!(
        error.message,
        "asked asks 8 slices, and this node has 7 even when empty: 7 of 1g.10gb on GPU 0; ask for 1 fewer"
    );
    let two = Request { count: 2, ..named("1g.10gb+me") };
    assert_eq!(table.decide(&two).outcome, Err(Refusal::TooManySlices { most: 1 }), "as the driver says");
}

#[test]
fn existing_instances_come_first_if_they_may_be_used() {
    let mut table = Table::new(1);
    let device = MigInstance { gpu_instance: 3, compute_instance: 0, uuid: "MIG-x".into() };
    let at = |start, size| MigPlacement { start, size };
    table.slots[0] = vec![
        Slot { placement: at(0, 2), profile: 14, holder: SlotHolder::Idle(device.clone()) },
        Slot { placement: at(2, 1), profile: 19, holder: SlotHolder::Kept },
        Slot { placement: at(4, 4), profile: 9, holder: SlotHolder::Other },
    ];
    let mig = |table: &Table, request: &Request| {
        table.decide(request).outcome.map(|placement| placement.gpus[0].mig.clone().unwrap())
    };
    let kept = mig(&table, &named("1g.10gb")).unwrap();
    assert_eq!((kept.placement, kept.stage), (at(2, 1), MigStage::Made));
    assert!(mig(&table, &named("2g.20gb")).is_err(), "the administrator's are his own");
    table.rules.mig_use_existing = true;
    let idle = mig(&table, &named("2g.20gb")).unwrap();
    assert_eq!((idle.placement, idle.stage, idle.instance), (at(0, 2), MigStage::Borrowed, Some(device)));
    // A larger one that is there serves where the smallest cannot be made.
    let memory = request(Some("auto"), MemoryAsk::Bytes(15 * GIB), 0);
    assert_eq!(mig(&table, &memory).unwrap().name, "2g.20gb");
    assert!(mig(&table, &named("3g.40gb")).is_err(), "one that has no device cannot be used");
}

#[test]
fn auto_takes_a_plain_gpu_where_there_is_no_slice() {
    use fgpu_spec::Tier;
    let inventory = inventory(1, 1);
    let sums = |slots| crate::capacity::Sums {
        held: vec![Held::default(); 2],
        slots,
        owner_ppm: 0,
        same_key: false,
    };
    let tiers = [Tier::Mig, Tier::Quota];
    let quarter = request(None, MemoryAsk::Ppm(250_000), 250_000);
    let empty = sums(vec![Vec::new(), Vec::new()]);
    let (tier, decision) = crate::tiers::decide(&tiers, &inventory, &Rules::default(), &quarter, &empty, 0);
    assert_eq!((tier, decision.outcome.unwrap().gpus[0].uuid.as_str()), (Tier::Mig, "GPU-0"));
    let all = Slot { placement: MigPlacement { start: 0, size: 8 }, profile: 0, holder: SlotHolder::Lease };
    let full = sums(vec![vec![all], Vec::new()]);
    let (tier, decision) = crate::tiers::decide(&tiers, &inventory, &Rules::default(), &quarter, &full, 0);
    assert_eq!(decision.gpus[0].verdict, Verdict::NoPlacement);
    assert_eq!((tier, decision.outcome.unwrap().gpus[0].uuid.as_str()), (Tier::Quota, "GPU-1"));
}

/// A small generator (SplitMix64), so that the simulation is the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Exponentially distributed with this mean, in millionths.
    fn exponential(&mut self, mean: f64) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - uniform).ln() * mean * 1e6) as u64
    }
}

/// Eight H100s, requests for each of the six profiles alike, lives exponential, as many arrivals as would
/// take 85% of the compute slices. Returns how many of them were accepted.
fn churn(seed: u64, requests: u32) -> u32 {
    const NAMES: [&str; 6] = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
    const MEAN_SLICES: f64 = (1 + 1 + 2 + 3 + 4 + 7) as f64 / 6.0;
    let between = MEAN_SLICES / (0.85 * 8.0 * 7.0);
    let mut random = Random(seed);
    let mut table = Table::new(8);
    let mut ends: BinaryHeap<(std::cmp::Reverse<u64>, usize, u32)> = BinaryHeap::new();
    let asked: BTreeMap<&str, Request> = NAMES.iter().map(|name| (*name, named(name))).collect();
    let (mut now, mut accepted) = (0, 0);
    for _ in 0..requests {
        now += random.exponential(between);
        while ends.peek().is_some_and(|(end, ..)| end.0 <= now) {
            let (_, gpu, start) = ends.pop().unwrap();
            table.slots[gpu].retain(|slot| slot.placement.start != start);
        }
        let name = NAMES[(random.next() % 6) as usize];
        let life = random.exponential(1.0);
        if let Ok(put) = table.put(&asked[name]) {
            accepted += 1;
            ends.push((std::cmp::Reverse(now + life), put[0].0, put[0].2));
        }
    }
    accepted
}

/// The published rule's figure is 88.4% (random 83.3%, lowest start 86.4%, highest start 87.6%).
#[test]
fn churn_at_a_load_of_85_percent_accepts_88_percent() {
    const REQUESTS: u32 = 5_000;
    let accepted: u32 = (1..=3).map(|seed| churn(seed, REQUESTS)).sum();
    let percent = f64::from(accepted) * 100.0 / f64::from(3 * REQUESTS);
    println!("accepted {percent:.2}%");
    assert!(percent >= 88.0, "{percent}");
}
