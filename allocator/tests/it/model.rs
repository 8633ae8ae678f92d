//! Random histories against a model of who is alive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use fgpu_allocator::{Applicant, Error, Lease, Process, Rules};
use fgpu_spec::{Code, Compute, MemoryAsk, Nonce, Policy, Request, Tier};
use proptest::prelude::*;

use crate::node::{GIB, Node, applicant, assert_no_overcommit, fraction, inventory, key};

const GPUS: u32 = 3;

#[derive(Debug, Clone)]
enum Step {
    Reserve {
        id: u8,
        ppm: u32,
        memory: Option<u64>,
        count: u32,
        policy: Policy,
        compute: Compute,
        owner: bool,
    },
    /// The runtime starts the init of a container and writes its pid down.
    Start {
        which: usize,
    },
    Activate {
        which: usize,
        cgroup: bool,
    },
    Resize {
        which: usize,
        ppm: u32,
    },
    Release {
        which: usize,
    },
    ReleaseKey {
        id: u8,
    },
    KillMaker {
        which: usize,
    },
    KillInit {
        which: usize,
    },
    EmptyCgroup {
        which: usize,
    },
    /// Another process gets the pid of a dead init or maker.
    ReusePid {
        which: usize,
    },
    Reconcile,
    Reboot,
    /// A bit of the file flips; an administrator rebuilds.
    Damage {
        at: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let policy =
        prop_oneof![6 => Just(Policy::Pack), 2 => Just(Policy::Spread), 1 => Just(Policy::Exclusive)];
    let compute = prop_oneof![4 => Just(Compute::Cap), 1 => Just(Compute::Share), 1 => Just(Compute::Off)];
    let ppm = prop_oneof![Just(250_000), Just(333_333), Just(1_000_000), 1u32..=1_000_000];
    let memory = prop_oneof![3 => Just(None), 1 => (1..=90 * GIB).prop_map(Some)];
    let reserve = (0u8..6, ppm, memory, 1u32..=4, policy, compute, any::<bool>()).prop_map(
        |(id, ppm, memory, count, policy, compute, owner)| Step::Reserve {
            id,
            ppm,
            memory,
            count: count.saturating_sub(1).max(1),
            policy,
            compute,
            owner,
        },
    );
    let which = 0usize..12;
    let resized = prop_oneof![Just(100_000), Just(500_000), 1u32..=1_000_000];
    prop_oneof![
        10 => reserve,
        4 => which.clone().prop_map(|which| Step::Start { which }),
        4 => (which.clone(), any::<bool>()).prop_map(|(which, cgroup)| Step::Activate { which, cgroup }),
        4 => (which.clone(), resized).prop_map(|(which, ppm)| Step::Resize { which, ppm }),
        3 => which.clone().prop_map(|which| Step::Release { which }),
        1 => (0u8..6).prop_map(|id| Step::ReleaseKey { id }),
        4 => which.clone().prop_map(|which| Step::KillMaker { which }),
        3 => which.clone().prop_map(|which| Step::KillInit { which }),
        2 => which.clone().prop_map(|which| Step::EmptyCgroup { which }),
        2 => which.prop_map(|which| Step::ReusePid { which }),
        3 => Just(Step::Reconcile),
        1 => Just(Step::Reboot),
        1 => any::<usize>().prop_map(|at| Step::Damage { at }),
    ]
}

/// What the model knows of a lease that was granted and not released.
struct Held {
    lease: Lease,
    /// The init that the runtime started, whether or not the store knows.
    started: Option<Process>,
    known_init: Option<Process>,
    cgroup: bool,
}

struct Model {
    node: Node,
    rules: Rules,
    held: BTreeMap<Nonce, Held>,
    order: Vec<Nonce>,
    alive: BTreeSet<i32>,
    populated: BTreeSet<Nonce>,
    boots: u32,
}

impl Model {
    fn new() -> Self {
        let rules = Rules {
            reserve_memory: GIB / 2,
            owner_max_gpus: [("alice".to_owned(), 2)].into(),
            ..Rules::default()
        };
        Self {
            node: Node::new(),
            rules,
            held: BTreeMap::new(),
            order: vec![],
            alive: BTreeSet::new(),
            populated: BTreeSet::new(),
            boots: 1,
        }
    }

    fn which(&self, which: usize) -> Option<Nonce> {
        (!self.order.is_empty()).then(|| self.order[which % self.order.len()])
    }

    fn spawn(&mut self) -> Process {
        let process = self.node.spawn();
        self.alive.insert(process.pid);
        process
    }

    fn kill(&mut self, process: Process) {
        self.node.kill(process);
        self.alive.remove(&process.pid);
    }

    fn runs(&self, process: Process) -> bool {
        self.alive.contains(&process.pid)
    }

    /// Whether somebody holds it, by the rules of the design and not by the store's code.
    fn lives(&self, nonce: &Nonce) -> bool {
        let held = &self.held[nonce];
        let cgroup = held.cgroup && self.populated.contains(nonce);
        match held.known_init {
            Some(init) => self.runs(init) || cgroup,
            None => self.runs(held.lease.maker) || held.started.is_some_and(|init| self.runs(init)) || cgroup,
        }
    }

    /// Compares the store with the model. `swept`: the dead must be gone.
    fn check(&mut self, swept: bool) {
        let leases = self.node.store.leases().unwrap();
        assert_no_overcommit(&leases, &inventory(GPUS), &self.rules);
        let present: BTreeMap<_, _> = leases.iter().map(|lease| (lease.grant.nonce, lease)).collect();
        for (nonce, lease) in &present {
            let held = self.held.get_mut(nonce).unwrap_or_else(|| panic!("{nonce} was released"));
            assert_eq!(lease.grant, held.lease.grant);
            if lease.init != held.known_init {
                // It can only have learnt what the runtime wrote down.
                assert_eq!((lease.init, held.known_init), (held.started, None));
                held.known_init = lease.init;
            }
        }
        let all: Vec<_> = self.held.keys().copied().collect();
        for nonce in all {
            let lives = self.lives(&nonce);
            if present.contains_key(&nonce) {
                assert!(lives || !swept, "{nonce} is dead and still there");
            } else {
                assert!(!lives, "{nonce} was taken from a living container");
                self.forget(&nonce);
            }
        }
    }

    fn forget(&mut self, nonce: &Nonce) {
        self.held.remove(nonce);
        self.order.retain(|other| other != nonce);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Reserve { id, ppm, memory, count, policy, compute, owner } => {
                let owner = owner.then(|| "alice".to_owned());
                let memory = memory.map_or(MemoryAsk::Ppm(ppm), MemoryAsk::Bytes);
                self.reserve(id, &Request { memory, count, policy, compute, owner, ..fraction(ppm) });
            }
            Step::Start { which } => {
                let Some(nonce) = self.which(which) else { return };
                if self.held[&nonce].started.is_none() && self.runs(self.held[&nonce].lease.maker) {
                    let init = self.spawn();
                    let held = self.held.get_mut(&nonce).unwrap();
                    held.started = Some(init);
                    fs::write(held.lease.pid_file.as_ref().unwrap(), format!("{}\n", init.pid)).unwrap();
                    self.node.populate(&nonce.to_string(), true);
                    self.populated.insert(nonce);
                }
            }
            Step::Activate { which, cgroup } => {
                let Some(nonce) = self.which(which) else { return };
                let held = self.held.get_mut(&nonce).unwrap();
                if held.started.is_some() {
                    let path = cgroup.then(|| format!("/{nonce}"));
                    if self.node.store.activate(&nonce, held.started, path).unwrap() {
                        held.known_init = held.started;
                        held.cgroup |= cgroup;
                    }
                }
            }
            Step::Resize { which, ppm } => self.resize(which, ppm),
            Step::Release { which } => {
                let Some(nonce) = self.which(which) else { return };
                let there = self.node.store.release(&nonce).unwrap().is_some();
                assert!(there || !self.lives(&nonce));
                assert_eq!(self.node.store.release(&nonce).unwrap(), None);
                self.forget(&nonce);
            }
            Step::ReleaseKey { id } => {
                let key = key(&id.to_string());
                self.node.store.release_key(&key).unwrap();
                let of_key = self.held.values().filter(|held| held.lease.key == key);
                for nonce in of_key.map(|held| held.lease.grant.nonce).collect::<Vec<_>>() {
                    self.forget(&nonce);
                }
            }
            Step::KillMaker { which } => {
                let Some(nonce) = self.which(which) else { return };
                self.kill(self.held[&nonce].lease.maker);
            }
            Step::KillInit { which } => {
                let Some(nonce) = self.which(which) else { return };
                if let Some(init) = self.held[&nonce].started {
                    self.kill(init);
                }
            }
            Step::EmptyCgroup { which } => {
                let Some(nonce) = self.which(which) else { return };
                self.node.populate(&nonce.to_string(), false);
                self.populated.remove(&nonce);
            }
            Step::ReusePid { which } => {
                let Some(nonce) = self.which(which) else { return };
                let held = &self.held[&nonce];
                for process in held.started.into_iter().chain([held.lease.maker]) {
                    if !self.runs(process) {
                        // Nobody whom the model knows; long after the pid was written down.
                        self.node.spawn_as(process.pid, 100);
                    }
                }
            }
            Step::Reconcile => {
                self.node.store.reconcile().unwrap();
                self.check(true);
                let folders: BTreeSet<_> = self.node.folders().into_iter().collect();
                let held: BTreeSet<_> = self.held.keys().map(Nonce::to_string).collect();
                assert_eq!(folders, held);
            }
            Step::Reboot => {
                self.boots += 1;
                self.node.reboot(self.boots);
                self.alive.clear();
                self.populated.clear();
            }
            Step::Damage { at } => self.damage(at),
        }
        self.check(false);
    }

    fn reserve(&mut self, id: u8, request: &Request) {
        let maker = self.spawn();
        let id = id.to_string();
        let pid_file = Some(self.node.pid_file(&format!("{id}-{}", maker.pid)));
        let applicant = Applicant { pid_file, ..applicant(&id, maker) };
        let reserved =
            self.node.store.reserve(&inventory(GPUS), &self.rules, request, &[Tier::Quota], &applicant);
        match reserved {
            Ok(lease) => {
                assert_eq!(lease.grant.gpus.len(), request.count as usize);
                self.node.make_folder(&lease);
                let nonce = lease.grant.nonce;
                self.order.push(nonce);
                let held = Held { lease, started: None, known_init: None, cgroup: false };
                assert!(self.held.insert(nonce, held).is_none());
                // The same container has no dead leases left.
                let key = key(&id);
                let leases = self.node.store.leases().unwrap();
                self.check(false);
                for lease in leases.iter().filter(|lease| lease.key == key) {
                    assert!(self.lives(&lease.grant.nonce));
                }
            }
            Err(error) => {
                self.kill(maker);
                let falls_short = matches!(error.code, Code::NoCapacity | Code::Fragmented | Code::Denied);
                assert!(
                    falls_short || matches!(error.code, Code::TooLarge | Code::InvalidRequest),
                    "unexpected: {error}"
                );
                assert!(!error.message.contains('\n'), "{error}");
                self.check(falls_short);
            }
        }
    }

    fn resize(&mut self, which: usize, ppm: u32) {
        let Some(nonce) = self.which(which) else { return };
        let request = fraction(ppm);
        let resized = self
            .node
            .store
            .resize(&inventory(GPUS), &self.rules, &request, &nonce, |_, _| {})
            .map_err(|e| e.code);
        match resized {
            Ok(Some(lease)) => {
                let held = self.held.get_mut(&nonce).unwrap();
                let uuids = |lease: &Lease| -> Vec<String> {
                    lease.grant.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
                };
                assert_eq!(uuids(&lease), uuids(&held.lease), "they are the same GPUs");
                assert!(lease.grant.gpus.iter().all(|gpu| gpu.cores_ppm == ppm));
                held.lease.grant = lease.grant;
            }
            Ok(None) => assert!(!self.lives(&nonce)),
            Err(code) => assert!(
                matches!(code, Code::NoCapacity | Code::Fragmented | Code::Denied | Code::InvalidRequest),
                "unexpected: {code}"
            ),
        }
    }

    fn damage(&mut self, at: usize) {
        let Ok(mut bytes) = fs::read(self.node.file()) else { return };
        let at = at % bytes.len();
        bytes[at] ^= 1;
        fs::write(self.node.file(), &bytes).unwrap();
        let Err(error) = self.node.store.leases() else { panic!("bit flip at {at} unnoticed") };
        match error {
            Error::Corrupt { .. } => {}
            Error::Version { .. } => {
                bytes[at] ^= 1;
                fs::write(self.node.file(), &bytes).unwrap();
                return;
            }
            other => panic!("{other}"),
        }
        let lost = match self.node.store.rebuild(false) {
            Ok(_) => vec![],
            Err(Error::Unaccounted { lost, .. }) => {
                assert_eq!(self.node.store.rebuild(true).unwrap().lost.len(), lost.len());
                lost
            }
            Err(other) => panic!("{other}"),
        };
        // What a rebuild cannot recover it has named.
        let living: Vec<_> = self.held.keys().copied().filter(|nonce| self.lives(nonce)).collect();
        let leases = self.node.store.leases().unwrap();
        let kept: BTreeSet<_> = leases.iter().map(|lease| lease.grant.nonce).collect();
        for nonce in living {
            if !kept.contains(&nonce) {
                assert!(lost.contains(&nonce), "{nonce} was lost in silence");
                self.forget(&nonce);
            }
        }
        // A line from the file before the last change may not know what that change recorded.
        for lease in &leases {
            if let Some(held) = self.held.get_mut(&lease.grant.nonce) {
                (held.known_init, held.cgroup) = (lease.init, lease.cgroup.is_some());
                held.lease.grant = lease.grant.clone();
            }
        }
        // A rebuild may bring back what the file before the last change had, if somebody holds it still. The
        // model has forgotten those that were released.
        for nonce in kept.iter().filter(|nonce| !self.held.contains_key(*nonce)) {
            self.node.store.release(nonce).unwrap();
        }
    }

    /// Everybody dies.
    fn end(mut self) {
        self.alive.clear();
        for entry in fs::read_dir(self.node.path("proc")).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_str().unwrap().parse::<i32>().is_ok() {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
        for nonce in std::mem::take(&mut self.populated) {
            self.node.populate(&nonce.to_string(), false);
        }
        self.node.store.reconcile().unwrap();
        assert_eq!(self.node.store.leases().unwrap(), []);
        assert_eq!(self.node.folders(), [""; 0]);
        let whole = Request { count: GPUS, ..fraction(1_000_000) };
        let applicant = applicant("last", Process { pid: 1, start: 1 });
        self.node.store.reserve(&inventory(GPUS), &self.rules, &whole, &[Tier::Quota], &applicant).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_overcommits_takes_from_the_living_or_leaks(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.end();
    }
}
