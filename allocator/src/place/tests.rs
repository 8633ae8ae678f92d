use fgpu_spec::{Code, Error, Isolation, Nonce, Outsider, Seen, Tier};

use super::*;
use crate::Key;
use crate::capacity::Holder;
use crate::refusal;

mod filters;

mod seen;

mod links;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn gpu(index: u32, memory: u64) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}"),
        index,
        minor: index,
        model: "NVIDIA H100 80GB HBM3".into(),
        pci: String::new(),
        numa: None,
        total_memory: memory,
        reserved_memory: 0,
        mig_enabled: false,
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
    }
}

fn node(memories: &[u64]) -> Inventory {
    Inventory {
        version: 1,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: String::new(),
        cuda_version: 0,
        gpus: memories.iter().zip(0..).map(|(&memory, index)| gpu(index, memory)).collect(),
        driver_limits: false,
        topology: fgpu_spec::Topology::default(),
        files: vec![],
    }
}

fn only(device: &str) -> Filter {
    Filter { any: vec![device.into()], not: vec![] }
}

fn fraction(ppm: u32) -> Request {
    Request {
        count: 1,
        memory: MemoryAsk::Ppm(ppm),
        cores_ppm: ppm,
        compute: Compute::Cap,
        mig: None,
        places: Vec::new(),
        isolation: Isolation::Auto,
        device: Filter::default(),
        model: Filter::default(),
        policy: Policy::Pack,
        wait: std::time::Duration::ZERO,
        owner: None,
        text: format!("fgpu/fraction={}", f64::from(ppm) / 1e6),
        notes: vec![],
    }
}

/// A node on which shares are placed one after the other.
struct Table {
    inventory: Inventory,
    rules: Rules,
    held: Vec<Held>,
    owner_ppm: u64,
}

impl Table {
    fn new(memories: &[u64]) -> Self {
        let held = vec![Held::default(); memories.len()];
        Self { inventory: node(memories), rules: Rules::default(), held, owner_ppm: 0 }
    }

    fn decide(&self, request: &Request) -> Decision {
        place(&self.inventory, &self.rules, request, &self.held, self.owner_ppm)
    }

    /// Places it and returns the indices of its GPUs.
    fn put(&mut self, request: &Request) -> Result<Vec<usize>, Refusal> {
        let placement = self.decide(request).outcome?;
        let mut places = Vec::new();
        for share in &placement.gpus {
            let at = self.inventory.gpus.iter().position(|gpu| gpu.uuid == share.uuid).unwrap();
            let gpu = &self.inventory.gpus[at];
            self.owner_ppm += worth(gpu, &self.rules, share.memory, share.cores_ppm, placement.exclusive);
            let held = &mut self.held[at];
            held.memory += share.memory;
            held.cores_ppm += share.cores_ppm;
            held.leases += 1;
            held.exclusive |= placement.exclusive;
            places.push(at);
        }
        Ok(places)
    }

    fn error(&self, request: &Request) -> Error {
        let decision = self.decide(request);
        let refusal = decision.outcome.clone().unwrap_err();
        let holder = |held: &Held| Holder {
            key: Key { namespace: "moby".into(), id: "3f2a19bc44d0aabbccdd".into() },
            name: None,
            bundle: "/nowhere".into(),
            memory: held.memory,
            cores_ppm: held.cores_ppm,
            exclusive: held.exclusive,
            mig: None,
            state: crate::State::Active,
            trouble: None,
        };
        let holders: Vec<_> = self
            .held
            .iter()
            .map(|held| (held.leases > 0).then(|| holder(held)).into_iter().collect())
            .collect();
        let inventory = &self.inventory;
        let case = refusal::Case {
            decision: &decision,
            request,
            rules: &self.rules,
            inventory,
            holders: &holders,
            slots: &[],
        };
        refusal::error(&refusal, &case)
    }
}

fn code(result: Result<Vec<usize>, Refusal>) -> Code {
    result.unwrap_err().code()
}

#[test]
fn four_quarters_fit_and_the_fifth_does_not() {
    let mut table = Table::new(&[80 * GIB]);
    for _ in 0..4 {
        assert_eq!(table.put(&fraction(250_000)).unwrap(), [0]);
    }
    assert_eq!(table.held[0].memory, 80 * GIB);
    assert_eq!(code(table.put(&fraction(250_000))), Code::NoCapacity);
}

#[test]
fn three_thirds_fit() {
    let mut table = Table::new(&[81089 * MIB + 12345]);
    for _ in 0..3 {
        table.put(&fraction(333_333)).unwrap();
    }
    assert_eq!(code(table.put(&fraction(333_333))), Code::NoCapacity);
    assert_eq!(table.held[0].memory % MIB, 0);
}

#[test]
fn a_floored_amount_is_noted() {
    let table = Table::new(&[81089 * MIB]);
    let placement = table.decide(&fraction(250_000)).outcome.unwrap();
    assert_eq!(placement.gpus[0].memory, 20272 * MIB);
    assert_eq!(placement.notes, ["memory of GPU 0 is 25% of 81089 MiB, floored to 20272 MiB"]);
    let whole = table.decide(&fraction(1_000_000)).outcome.unwrap();
    assert_eq!((whole.gpus[0].memory, whole.notes.len()), (81089 * MIB, 0));
    let exact =
        Request { memory: MemoryAsk::Bytes(1_000_000_007), notes: vec!["said before".into()], ..fraction(1) };
    let placement = table.decide(&exact).outcome.unwrap();
    assert_eq!((placement.gpus[0].memory, placement.notes), (1_000_000_007, vec!["said before".to_owned()]));
}

#[test]
fn a_share_of_no_more_than_some_bytes_keeps_its_cores() {
    let table = Table::new(&[80 * GIB]);
    let at_most = |most| Request { memory: MemoryAsk::Ppm(250_000).at_most(most), ..fraction(250_000) };
    let lowered = table.decide(&at_most(4 * GIB)).outcome.unwrap();
    assert_eq!((lowered.gpus[0].memory, lowered.gpus[0].cores_ppm), (4 * GIB, 250_000));
    assert_eq!(lowered.notes, ["memory of GPU 0 is 25% of 81920 MiB, lowered to 4096 MiB"]);
    let enough = table.decide(&at_most(30 * GIB)).outcome.unwrap();
    assert_eq!((enough.gpus[0].memory, enough.notes.len()), (20 * GIB, 0));
    // What it is refused for is what it would have got.
    let mut full = Table::new(&[80 * GIB]);
    full.put(&Request { memory: MemoryAsk::Bytes(77 * GIB), cores_ppm: 0, ..fraction(1) }).unwrap();
    let error = full.error(&at_most(4 * GIB));
    assert!(error.message.contains("asks 4096 MiB"), "{error}");
    assert_eq!(full.put(&at_most(3 * GIB)).unwrap(), [0]);
}

#[test]
fn six_tenths_twice_take_two_gpus_and_a_third_is_fragmented() {
    let mut table = Table::new(&[80 * GIB, 80 * GIB]);
    assert_eq!(table.put(&fraction(600_000)).unwrap(), [0]);
    assert_eq!(table.put(&fraction(600_000)).unwrap(), [1]);
    let refusal = table.put(&fraction(600_000)).unwrap_err();
    assert_eq!(refusal, Refusal::Short { fragmented: true, largest: Some((400_000, 0)) });
    assert_eq!(
        table.error(&fraction(600_000)).to_string(),
        "fgpu: fragmented: fgpu/fraction=0.6 asks 49152 MiB and 60% of the SMs; GPU 0 has 32768 MiB and 40% free \
         (short of memory and SMs), held by moby/3f2a19bc44d0 (49152 MiB, 60%), GPU 1 has 32768 MiB and 40% free \
         (short of memory and SMs), held by moby/3f2a19bc44d0 (49152 MiB, 60%); the total free would do, but not on \
         single GPUs; the largest that fits is 0.4 (32768 MiB and 40% free on GPU 0); wait for one to end, or see \
         fgpu status"
    );
    // What the message promises is true.
    assert_eq!(table.put(&fraction(400_000)).unwrap(), [0]);
}

#[test]
fn no_capacity_says_what_is_missing() {
    let mut table = Table::new(&[80 * GIB]);
    table.put(&Request { memory: MemoryAsk::Bytes(GIB), ..fraction(900_000) }).unwrap();
    assert_eq!(
        table.error(&fraction(250_000)).to_string(),
        "fgpu: no-capacity: fgpu/fraction=0.25 asks 20480 MiB and 25% of the SMs; GPU 0 has 80896 MiB and 10% free \
         (short of SMs), held by moby/3f2a19bc44d0 (1024 MiB, 90%); the largest that fits is 0.1 (80896 MiB and 10% \
         free on GPU 0); wait for one to end, or see fgpu status"
    );
    let big = Request { memory: MemoryAsk::Bytes(80 * GIB), ..fraction(50_000) };
    assert_eq!(table.decide(&big).gpus[0].verdict, Verdict::Short { memory: true, cores: false });
    assert_eq!(table.error(&big).code, Code::NoCapacity);
    let both = fraction(1_000_000);
    assert_eq!(table.decide(&both).gpus[0].verdict, Verdict::Short { memory: true, cores: true });
}

#[test]
fn pack_takes_the_tightest_and_spread_the_emptiest() {
    let mut table = Table::new(&[80 * GIB; 3]);
    let on = |device: &str, ppm| Request { device: only(device), ..fraction(ppm) };
    table.put(&on("1", 500_000)).unwrap();
    table.put(&on("2", 700_000)).unwrap();
    assert_eq!(table.decide(&fraction(200_000)).outcome.unwrap().gpus[0].uuid, "GPU-2");
    assert_eq!(table.decide(&fraction(400_000)).outcome.unwrap().gpus[0].uuid, "GPU-1");
    let spread = Request { policy: Policy::Spread, ..fraction(200_000) };
    assert_eq!(table.put(&spread).unwrap(), [0]);
    assert_eq!(table.put(&spread).unwrap(), [0], "0.6 left on it, 0.5 on the next");
}

#[test]
fn equal_gpus_are_taken_by_index_and_not_by_their_place_in_the_list() {
    let mut table = Table::new(&[80 * GIB; 3]);
    table.inventory.gpus.reverse();
    for policy in [Policy::Pack, Policy::Spread, Policy::Exclusive] {
        let request = Request { policy, count: 2, ..fraction(100_000) };
        let placement = table.decide(&request).outcome.unwrap();
        let uuids: Vec<_> = placement.gpus.iter().map(|share| &*share.uuid).collect();
        assert_eq!(uuids, ["GPU-0", "GPU-1"], "{policy:?}");
    }
}

#[test]
fn exclusive_wants_an_empty_gpu_and_keeps_others_out() {
    let mut table = Table::new(&[80 * GIB; 2]);
    let alone = Request { policy: Policy::Exclusive, ..fraction(100_000) };
    assert_eq!(table.put(&fraction(10_000)).unwrap(), [0]);
    assert_eq!(table.put(&alone).unwrap(), [1]);
    let decision = table.decide(&alone);
    assert_eq!(decision.gpus[0].verdict, Verdict::Occupied);
    assert_eq!(decision.gpus[1].verdict, Verdict::Exclusive);
    assert_eq!(table.error(&alone).code, Code::NoCapacity);
    assert_eq!(table.put(&fraction(900_000)).unwrap(), [0]);
    assert_eq!(code(table.put(&fraction(200_000))), Code::NoCapacity, "GPU 1 is free but not for others");
    let mut table = Table::new(&[80 * GIB; 2]);
    for device in ["0", "1"] {
        table.put(&Request { device: only(device), ..fraction(100_000) }).unwrap();
    }
    let error = table.error(&alone);
    assert_eq!(error.code, Code::Fragmented);
    assert!(error.message.contains("not enough GPUs are empty"), "{error}");
}

#[test]
fn several_gpus_are_distinct_and_never_split() {
    let mut table = Table::new(&[80 * GIB; 3]);
    let two = Request { count: 2, ..fraction(500_000) };
    assert_eq!(table.put(&two).unwrap(), [0, 1]);
    assert_eq!(table.put(&two).unwrap(), [0, 1]);
    let error = table.error(&two);
    assert_eq!(error.code, Code::Fragmented, "{error}");
    assert!(!error.message.contains("the largest that fits"), "nothing fits on two GPUs: {error}");
    assert_eq!(table.put(&fraction(1_000_000)).unwrap(), [2]);
    assert_eq!(code(table.put(&two)), Code::NoCapacity);
    let four = table.error(&Request { count: 4, ..fraction(1) });
    assert_eq!(four.code, Code::TooLarge);
    assert!(four.message.contains("only 3 GPU(s)") && four.message.contains("1 fewer"), "{four}");
}

#[test]
fn the_largest_that_fits_counts_for_as_many_gpus_as_are_asked() {
    let mut table = Table::new(&[80 * GIB; 3]);
    for (device, ppm) in [("0", 900_000), ("1", 700_000), ("2", 500_000)] {
        table.put(&Request { device: only(device), ..fraction(ppm) }).unwrap();
    }
    let refusal = table.put(&Request { count: 2, ..fraction(400_000) }).unwrap_err();
    assert_eq!(refusal, Refusal::Short { fragmented: true, largest: Some((300_000, 1)) });
    assert_eq!(table.put(&Request { count: 2, ..fraction(300_000) }).unwrap(), [1, 2]);
}

#[test]
fn too_large_names_the_largest_gpu() {
    let table = Table::new(&[40 * GIB, 80 * GIB]);
    let error = table.error(&Request { memory: MemoryAsk::Bytes(81 * GIB), ..fraction(1) });
    assert_eq!(error.code, Code::TooLarge);
    assert!(error.message.contains("GPU 1 with 81920 MiB usable"), "{error}");
    // The one that is large enough serves it.
    let big = Request { memory: MemoryAsk::Bytes(60 * GIB), ..fraction(1) };
    assert_eq!(table.decide(&big).gpus[0].verdict, Verdict::TooSmall);
    assert_eq!(table.decide(&big).outcome.unwrap().gpus[0].uuid, "GPU-1");
}

#[test]
fn the_administrators_and_the_drivers_reserve_are_never_granted() {
    let mut table = Table::new(&[80 * GIB]);
    table.rules.reserve_memory = GIB;
    table.inventory.gpus[0].reserved_memory = 2 * GIB + 1;
    let whole = table.decide(&fraction(1_000_000)).outcome.unwrap();
    assert_eq!(whole.gpus[0].memory, 77 * GIB - MIB);
    let error = table.error(&Request { memory: MemoryAsk::Bytes(77 * GIB), ..fraction(1) });
    assert_eq!(error.code, Code::TooLarge);
    // The reserve is raised while all is granted: nothing underflows.
    table.put(&fraction(1_000_000)).unwrap();
    table.rules.reserve_memory = 10 * GIB;
    assert_eq!(table.decide(&fraction(1_000)).gpus[0].free_memory, 0);
}

#[test]
fn no_gpu_at_all() {
    let error = Table::new(&[]).error(&fraction(250_000));
    assert_eq!(error.to_string(), "fgpu: no-gpu: fgpu/fraction=0.25: this node has no GPU; see fgpu doctor");
}

#[test]
fn mig_gpus_serve_no_fractions() {
    let mut table = Table::new(&[80 * GIB; 2]);
    table.inventory.gpus[0].mig_enabled = true;
    assert_eq!(table.put(&fraction(1_000)).unwrap(), [1]);
    table.inventory.gpus[1].mig_enabled = true;
    let error = table.error(&fraction(1_000));
    assert_eq!(error.code, Code::NoGpu);
    assert!(error.message.contains("MIG mode"), "{error}");
}

#[test]
fn compute_off_takes_no_sm_time() {
    let mut table = Table::new(&[80 * GIB]);
    let off = Request {
        compute: Compute::Off,
        memory: MemoryAsk::Bytes(20 * GIB),
        cores_ppm: 1_000_000,
        ..fraction(1)
    };
    for _ in 0..4 {
        table.put(&off).unwrap();
    }
    assert_eq!(table.held[0], Held { memory: 80 * GIB, cores_ppm: 0, leases: 4, exclusive: false });
    let error = table.error(&off);
    assert_eq!(error.code, Code::NoCapacity);
    assert!(error.message.contains("asks 20480 MiB; GPU 0 has 0 MiB"), "{error}");
    let share = Request { compute: Compute::Share, ..fraction(600_000) };
    let mut table = Table::new(&[80 * GIB]);
    table.put(&share).unwrap();
    assert_eq!(table.held[0].cores_ppm, 600_000, "what is promised counts");
}

#[test]
fn memory_alone_is_short_of_memory_only() {
    let alone = |gib: u64| Request {
        compute: Compute::Share,
        memory: MemoryAsk::Bytes(gib * GIB),
        cores_ppm: 0,
        text: format!("fgpu/memory={gib}Gi"),
        ..fraction(1)
    };
    for policy in [Policy::Pack, Policy::Spread] {
        let mut table = Table::new(&[80 * GIB]);
        // Beside shares that book all of the SM time, before and after them.
        table.put(&Request { policy, ..alone(8) }).unwrap();
        table.put(&Request { memory: MemoryAsk::Bytes(40 * GIB), ..fraction(1_000_000) }).unwrap();
        for _ in 0..4 {
            table.put(&Request { policy, ..alone(8) }).unwrap();
        }
        assert_eq!(
            table.held[0],
            Held { memory: 80 * GIB, cores_ppm: 1_000_000, leases: 6, exclusive: false }
        );
        let error = table.error(&alone(8));
        assert_eq!(error.code, Code::NoCapacity);
        assert!(error.message.starts_with("fgpu/memory=8Gi asks 8192 MiB; GPU 0 has 0 MiB"), "{error}");
    }
}

#[test]
fn an_owner_is_capped_by_the_worth_of_the_shares() {
    let mut table = Table::new(&[80 * GIB; 4]);
    table.rules.owner_max_gpus.insert("alice".into(), 1);
    let alice = |request| Request { owner: Some("alice".into()), ..request };
    for _ in 0..3 {
        table.put(&alice(fraction(333_333))).unwrap();
    }
    let error = table.error(&alice(fraction(10_000)));
    assert_eq!(
        error.to_string(),
        "fgpu: denied: fgpu/fraction=0.01 asks 819 MiB and 1% of the SMs: 0.01 GPU(s) worth for owner alice, who \
         holds 0.999999 and may hold 1; end one of the owner's containers, or ask the administrator for a higher \
         max-gpus"
    );
    assert!(table.decide(&alice(fraction(10_000))).outcome.unwrap_err().may_pass());
    table.owner_ppm = 0;
    let exclusive = alice(Request { policy: Policy::Exclusive, ..fraction(10_000) });
    table.put(&exclusive).unwrap();
    assert_eq!(table.owner_ppm, 1_000_000, "a GPU to oneself is a whole one");
    let memory = alice(Request { memory: MemoryAsk::Bytes(60 * GIB), ..fraction(10_000) });
    table.owner_ppm = 250_000;
    table.put(&memory).unwrap();
    assert_eq!(table.owner_ppm, 1_000_000, "the larger part counts");
    let bob = Request { owner: Some("bob".into()), ..fraction(10_000) };
    table.put(&bob).unwrap();
    table.put(&fraction(10_000)).unwrap();
}

#[test]
fn less_than_a_mebibyte_is_nothing() {
    let table = Table::new(&[GIB]);
    assert_eq!(table.error(&fraction(1)).code, Code::InvalidRequest);
    // On a mixed node it is placed where it is something.
    let mut table = Table::new(&[GIB, 1 << 40]);
    assert_eq!(table.put(&fraction(1)).unwrap(), [1]);
}

#[test]
fn a_lost_gpus_leases_take_nothing_of_the_others() {
    let lease = |uuid: &str| crate::Lease {
        key: Key { namespace: "a".into(), id: "b".into() },
        grant: fgpu_spec::Grant {
            nonce: Nonce([3; 16]),
            tier: Tier::Quota,
            compute: Compute::Cap,
            gpus: vec![GrantedGpu { uuid: uuid.into(), memory: 5 * MIB, cores_ppm: 7, mig: None }],
            notes: vec![],
        },
        state: crate::State::Active,
        owner: Some("alice".into()),
        exclusive: false,
        bundle: "/b".into(),
        maker: crate::Process { pid: 1, start: 1 },
        pid_namespace: None,
        pid_file: None,
        init: None,
        cgroup: None,
        created: 1,
        wall: 1,
        request: String::new(),
        trouble: None,
        kept: None,
        anchor: None,
        joined: Vec::new(),
    };
    use crate::image::{Boot, Draft, Image, line};
    let boot = Boot::new("b".repeat(36));
    let lines: Vec<_> = ["GPU-9", "GPU-1"].map(|uuid| line(&lease(uuid), &boot).unwrap()).into();
    let image = Image::parse(Draft::new(&boot, lines.iter().map(Vec::as_slice)).concat(), &boot).unwrap();
    let sums = crate::capacity::sum(image.lines(), &node(&[GIB; 2]), &Rules::default(), Some("alice"), None)
        .unwrap();
    assert_eq!(sums.held[0], Held::default());
    assert_eq!(sums.held[1], Held { memory: 5 * MIB, cores_ppm: 7, leases: 1, exclusive: false });
    assert_eq!(sums.owner_ppm, 5 * MIB * 1_000_000 / GIB);
}
