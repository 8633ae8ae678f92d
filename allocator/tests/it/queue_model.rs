//! The queue against a model: whoever is granted something, the test looks by brute force whether anybody
//! ahead could lose by it.
//!
//! Processes and wake-ups are played: a waiter does nothing until somebody has written into its pipe. So
//! whatever the store forgets to wake is seen to wait in vain.

use std::time::Duration;

use fgpu_allocator::{Applicant, Held, Lease, Process, Rules, Slot, SlotHolder, Ticket, Turn, place_slices};
use fgpu_spec::{Code, Filter, Gpu, GrantedGpu, Inventory, Isolation, MemoryAsk, Policy, Request, Tier};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proptest::prelude::*;

use crate::node::{
    Dice, GIB, Node, applicant, assert_no_overcommit, fraction, inventory, mig_inventory, slice, tiers,
    unforked,
};

mod crowd;

const WHOLE: u64 = 80 * GIB;
/// What `alice` may hold.
const CAP: u32 = 2;

struct Waiter {
    ticket: Ticket,
    process: Process,
    applicant: Applicant,
    request: Request,
}

struct Model {
    node: Node,
    inventory: Inventory,
    rules: Rules,
    /// In the order in which they came.
    queue: Vec<Waiter>,
    leases: Vec<Lease>,
    arrived: usize,
    grants: usize,
    served: Vec<usize>,
}

/// The least share that is asked for, so that the leases of a GPU can be tried in every combination.
const LEAST: u32 = 100_000;

impl Model {
    fn new(inventory: Inventory) -> Self {
        let rules = Rules { owner_max_gpus: [("alice".to_owned(), CAP)].into(), ..Rules::default() };
        let (queue, leases, served) = (vec![], vec![], vec![]);
        Self { node: Node::new(), inventory, rules, queue, leases, arrived: 0, grants: 0, served }
    }

    fn turn(&self, waiter: &mut Waiter) -> Result<Turn, fgpu_spec::Error> {
        let Waiter { ticket, applicant, request, .. } = waiter;
        self.node.store.reserve_or_wait(
            &self.inventory,
            &self.rules,
            request,
            tiers(request),
            applicant,
            ticket,
        )
    }

    /// Somebody comes who is ready to wait.
    fn arrive(&mut self, request: Request) {
        self.arrived += 1;
        let (process, id) = (self.node.spawn(), self.arrived.to_string());
        let applicant = applicant(&id, process);
        let mut waiter = Waiter { ticket: Ticket::new(process), process, applicant, request };
        match self.turn(&mut waiter) {
            Ok(Turn::Granted(lease)) => self.granted(&waiter.request, *lease, self.queue.len()),
            Ok(Turn::Waiting { position, of, .. }) => {
                assert!(position == of && position > self.queue.len(), "{position} of {of}");
                self.queue.push(waiter);
            }
            Err(error) => {
                let never = [Code::TooLarge, Code::Denied, Code::NoGpu];
                assert!(never.contains(&error.code), "{error}");
                self.node.kill(process);
            }
        }
        self.settle();
    }

    /// Somebody comes who does not wait.
    fn barge(&mut self, request: &Request) {
        self.arrived += 1;
        let process = self.node.spawn();
        let applicant = applicant(&self.arrived.to_string(), process);
        let reserved =
            self.node.store.reserve(&self.inventory, &self.rules, request, tiers(request), &applicant);
        match reserved {
            Ok(lease) => self.granted(request, lease, self.queue.len()),
            Err(_) => self.node.kill(process),
        }
        self.settle();
    }

    /// Checks that nobody of the first `ahead` can lose by this grant, in whatever order the leases end.
    fn granted(&mut self, request: &Request, lease: Lease, ahead: usize) {
        self.grants += 1;
        self.served.push(lease.key.id.parse().unwrap());
        for gpu in &self.inventory.gpus {
            let of = |lease: &Lease| -> Vec<(GrantedGpu, bool)> {
                let shares = lease.grant.gpus.iter().filter(|share| share.uuid == gpu.uuid);
                shares.map(|share| (share.clone(), lease.exclusive)).collect()
            };
            let added = of(&lease);
            let on: Vec<_> = self.leases.iter().map(of).filter(|shares| !shares.is_empty()).collect();
            if added.is_empty() {
                continue;
            }
            assert!(on.len() <= 12, "too many to try them all");
            let mut tried: Vec<&Request> = vec![];
            for waiter in &self.queue[..ahead] {
                let other = &waiter.request;
                if self.is_capped(other) || tried.contains(&other) {
                    continue;
                }
                tried.push(other);
                for left in 0..1_u32 << on.len() {
                    let stay = on.iter().enumerate().filter(|(at, _)| left & 1 << at != 0);
                    let mut stay: Vec<_> = stay.flat_map(|(_, shares)| shares.clone()).collect();
                    let without = fits(other, gpu, &stay);
                    stay.extend(added.iter().cloned());
                    let with = fits(other, gpu, &stay);
                    assert!(
                        with >= without,
                        "{} ({}) delays {} ({}) once only {} others are left on the GPU",
                        lease.key.id,
                        request.text,
                        waiter.applicant.key.id,
                        other.text,
                        stay.len() - added.len()
                    );
                }
            }
        }
        self.leases.push(lease);
        assert_no_overcommit(&self.leases, &self.inventory, &self.rules);
    }

    /// Whether its owner holds too much for it now.
    fn is_capped(&self, request: &Request) -> bool {
        let mine = self.leases.iter().filter(|lease| lease.owner.is_some());
        let held: u64 = mine
            .flat_map(|lease| lease.grant.gpus.iter().map(move |gpu| (gpu, lease.exclusive)))
            .map(|(gpu, exclusive)| if exclusive { 1_000_000 } else { worth(gpu.memory, gpu.cores_ppm) })
            .sum();
        let one = match request.policy {
            Policy::Exclusive => 1_000_000,
            _ => worth(asks(request).0, asks(request).1),
        };
        request.owner.is_some() && held + one * u64::from(request.count) > u64::from(CAP) * 1_000_000
    }

    /// Everybody who was woken looks, until nobody is.
    fn settle(&mut self) {
        let (grants, mut wakes) = (self.grants, 0);
        while let Some(at) = self.queue.iter().position(|waiter| is_woken(&waiter.ticket)) {
            wakes += 1;
            self.look(at);
        }
        // The first, then whom it chooses, then the first again.
        assert!(wakes <= 2 + 2 * (self.grants - grants), "{wakes} for {}", self.grants - grants);
    }

    fn look(&mut self, at: usize) {
        let mut waiter = self.queue.remove(at);
        waiter.ticket.wait(Duration::ZERO).unwrap();
        match self.turn(&mut waiter).unwrap() {
            Turn::Granted(lease) => self.granted(&waiter.request, *lease, at),
            Turn::Waiting { of, .. } => {
                assert!(of > self.queue.len(), "the living are all there");
                self.queue.insert(at, waiter);
            }
        }
    }

    /// A container ends.
    fn end(&mut self, which: usize) {
        if !self.leases.is_empty() {
            let lease = self.leases.remove(which % self.leases.len());
            self.node.store.release(&lease.grant.nonce).unwrap().unwrap();
            self.settle();
        }
    }

    /// A container ends and nobody says so; the first that waits finds it when it looks by itself.
    fn end_silently(&mut self, which: usize) {
        if !self.leases.is_empty() {
            let lease = self.leases.remove(which % self.leases.len());
            self.node.kill(lease.maker);
            self.tick();
        }
    }

    fn tick(&mut self) {
        if !self.queue.is_empty() {
            self.look(0);
            self.settle();
        }
    }

    fn give_up(&mut self, which: usize) {
        if !self.queue.is_empty() {
            let mut waiter = self.queue.remove(which % self.queue.len());
            self.node.store.queue().leave(&mut waiter.ticket).unwrap();
            self.node.kill(waiter.process);
            self.settle();
        }
    }

    fn die(&mut self, which: usize) {
        if !self.queue.is_empty() {
            let waiter = self.queue.remove(which % self.queue.len());
            self.node.kill(waiter.process);
            // That nobody has its pipe open tells that it is gone.
            let _unforked = unforked();
            drop(waiter);
            self.tick();
        }
    }

    /// Nobody waits who could go, and everybody is told why.
    fn check(&self) {
        let waiting = self.node.store.queue().waiting(&self.inventory, &self.rules).unwrap();
        let ids: Vec<_> = waiting.iter().map(|waiting| &waiting.waiter.key.id).collect();
        assert_eq!(ids, self.queue.iter().map(|waiter| &waiter.applicant.key.id).collect::<Vec<_>>());
        for waiting in waiting {
            assert!(waiting.reason.is_some(), "{} waits in vain", waiting.waiter.key.id);
        }
    }

    /// Everything ends, one by one: whoever waits is served.
    fn drain(mut self) -> Vec<usize> {
        while !self.leases.is_empty() {
            self.end(0);
            self.check();
        }
        assert_eq!(self.queue.len(), 0, "somebody starves on an empty node");
        self.node.store.reconcile().unwrap();
        let pipes = std::fs::read_dir(self.node.path("state/queue")).map_or(0, Iterator::count);
        assert_eq!(pipes, 0);
        self.served
    }
}

fn is_woken(ticket: &Ticket) -> bool {
    let Some(fd) = ticket.fd() else { return false };
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
}

/// What a request takes of one GPU: bytes and ppm.
fn asks(request: &Request) -> (u64, u32) {
    let memory = match request.memory {
        MemoryAsk::Bytes(bytes) => bytes,
        MemoryAsk::Ppm(ppm) => ((WHOLE * u64::from(ppm) / 1_000_000) >> 20) << 20,
        MemoryAsk::PpmAtMost(..) => unreachable!("no request of the model has it"),
    };
    (memory, request.cores_ppm)
}

fn worth(memory: u64, cores_ppm: u32) -> u64 {
    (memory * 1_000_000 / WHOLE).max(cores_ppm.into())
}

/// How many shares or slices a request could get of a GPU on which these are.
fn fits(request: &Request, gpu: &Gpu, on: &[(GrantedGpu, bool)]) -> u32 {
    let tier = if gpu.mig_enabled { Tier::Mig } else { Tier::Quota };
    if !tiers(request).contains(&tier) {
        return 0;
    }
    if gpu.mig_enabled {
        return slices(request, gpu, on);
    }
    let (memory, cores) = asks(request);
    let fits = (request.device.any.is_empty() || request.device.any.contains(&gpu.index.to_string()))
        && !on.iter().any(|(_, exclusive)| *exclusive)
        && (request.policy != Policy::Exclusive || on.is_empty())
        && on.iter().map(|(gpu, _)| gpu.memory).sum::<u64>() + memory <= WHOLE
        && on.iter().map(|(gpu, _)| gpu.cores_ppm).sum::<u32>() + cores <= 1_000_000;
    u32::from(fits)
}

fn slices(request: &Request, gpu: &Gpu, on: &[(GrantedGpu, bool)]) -> u32 {
    let node = Inventory { gpus: vec![gpu.clone()], ..inventory(0) };
    let exclusive = on.iter().any(|(_, exclusive)| *exclusive);
    let held = Held { leases: on.len() as u32, exclusive, ..Held::default() };
    let slots: Vec<_> = on
        .iter()
        .map(|(share, _)| share.mig.as_ref().unwrap())
        .map(|mig| Slot { placement: mig.placement, profile: mig.profile, holder: SlotHolder::Lease })
        .collect();
    let can = |count: &u32| {
        let request = Request { count: *count, ..request.clone() };
        place_slices(&node, &Rules::default(), &request, &[held], &[slots.clone()], 0).outcome.is_ok()
    };
    (1..=request.count).rev().find(can).unwrap_or(0)
}

fn request(gpus: u32) -> impl Strategy<Value = Request> {
    let ppm = prop_oneof![
        Just(250_000),
        Just(500_000),
        Just(1_000_000),
        (LEAST / 10_000..=100).prop_map(|percent| percent * 10_000)
    ];
    let device = prop_oneof![3 => Just(None), 1 => (0..gpus).prop_map(Some)];
    let policy =
        prop_oneof![6 => Just(Policy::Pack), 2 => Just(Policy::Spread), 1 => Just(Policy::Exclusive)];
    let cores = prop_oneof![3 => Just(None), 1 => (LEAST..=1_000_000).prop_map(Some)];
    let count = prop_oneof![4 => Just(1_u32), 1 => Just(2)];
    (ppm, device, policy, cores, count, prop::bool::weighted(0.2)).prop_map(
        |(ppm, device, policy, cores, count, owner)| {
            let any = device.filter(|_| count == 1).map(|device| device.to_string());
            let device = Filter { any: any.into_iter().collect(), not: vec![] };
            let owner = owner.then(|| "alice".to_owned());
            let cores_ppm = cores.unwrap_or(ppm);
            let text =
                format!("{ppm} ppm, {cores_ppm} ppm of the SMs, {count}, {policy:?}, {:?}", device.any);
            let isolation = Isolation::Quota;
            Request { device, policy, count, owner, cores_ppm, text, isolation, ..fraction(ppm) }
        },
    )
}

/// Shares, slices, and what is either.
fn any_request(gpus: u32) -> impl Strategy<Value = Request> {
    let profiles = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
    let exclusive = prop_oneof![8 => Just(Policy::Pack), 1 => Just(Policy::Exclusive)];
    let count = prop_oneof![5 => Just(1_u32), 1 => Just(2)];
    let named =
        (prop::sample::select(profiles.to_vec()), exclusive, count).prop_map(|(profile, policy, count)| {
            let text = format!("{profile}, {count}, {policy:?}");
            Request { policy, count, text, ..slice(profile) }
        });
    let either =
        request(gpus).prop_map(|request| Request { owner: None, isolation: Isolation::Auto, ..request });
    prop_oneof![request(gpus), named, either]
}

#[derive(Debug, Clone)]
enum Step {
    Arrive(Request),
    Barge(Request),
    End(usize),
    EndSilently(usize),
    GiveUp(usize),
    Die(usize),
}

fn step(request: impl Strategy<Value = Request> + Clone + 'static) -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => request.clone().prop_map(Step::Arrive),
        4 => request.prop_map(Step::Barge),
        6 => any::<usize>().prop_map(Step::End),
        2 => any::<usize>().prop_map(Step::EndSilently),
        1 => any::<usize>().prop_map(Step::GiveUp),
        2 => any::<usize>().prop_map(Step::Die),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_later_request_delays_an_earlier_one_and_nobody_waits_in_vain(
        steps in prop::collection::vec(step(request(3).boxed()), 1..80)
    ) {
        play(inventory(3), steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nor_does_it_on_gpus_in_mig_mode(
        steps in prop::collection::vec(step(any_request(3).boxed()), 1..80)
    ) {
        play(mig_inventory(2, 1), steps);
    }
}

fn play(inventory: Inventory, steps: Vec<Step>) {
    let mut model = Model::new(inventory);
    for step in steps {
        match step {
            Step::Arrive(request) => model.arrive(request),
            Step::Barge(request) => model.barge(&request),
            Step::End(which) => model.end(which),
            Step::EndSilently(which) => model.end_silently(which),
            Step::GiveUp(which) => model.give_up(which),
            Step::Die(which) => model.die(which),
        }
        model.check();
    }
    model.drain();
}
