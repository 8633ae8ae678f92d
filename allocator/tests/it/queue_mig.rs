//! The queue on a node with GPUs in MIG mode: a waiter for slices holds up no request that takes none of
//! them.

use std::time::Duration;

use fgpu_allocator::{Foreign, Lease, Rules, Ticket, Turn};
use fgpu_spec::{Error, Isolation, MigPlacement, Request};

use crate::node::{Node, applicant, fraction, mig_inventory, slice, tiers};

struct Bench {
    node: Node,
    mig: u32,
    plain: u32,
    rules: Rules,
}

struct Waiter {
    ticket: Ticket,
    id: &'static str,
    request: Request,
}

impl Bench {
    fn new(mig: u32, plain: u32) -> Self {
        Self { node: Node::new(), mig, plain, rules: Rules::default() }
    }

    fn take(&self, id: &str, request: &Request) -> Result<Lease, Error> {
        let inventory = mig_inventory(self.mig, self.plain);
        let applicant = applicant(id, self.node.spawn());
        self.node.store.reserve(&inventory, &self.rules, request, tiers(request), &applicant)
    }

    fn queue(&self, id: &'static str, request: Request) -> Waiter {
        let mut waiter = Waiter { ticket: Ticket::new(self.node.spawn()), id, request };
        assert!(!self.granted(&mut waiter), "{id}");
        waiter
    }

    fn granted(&self, waiter: &mut Waiter) -> bool {
        let Waiter { ticket, id, request } = waiter;
        ticket.wait(Duration::ZERO).unwrap();
        let inventory = mig_inventory(self.mig, self.plain);
        let applicant = applicant(id, self.node.spawn());
        let turn = self.node.store.reserve_or_wait(
            &inventory,
            &self.rules,
            request,
            tiers(request),
            &applicant,
            ticket,
        );
        matches!(turn.unwrap(), Turn::Granted(_))
    }

    fn release(&self, lease: &Lease) {
        self.node.store.release(&lease.grant.nonce).unwrap().unwrap();
    }
}

/// Where the slice of a lease lies.
fn start(lease: &Lease) -> u32 {
    lease.grant.gpus[0].mig.as_ref().unwrap().placement.start
}

fn share(ppm: u32) -> Request {
    Request { isolation: Isolation::Quota, ..fraction(ppm) }
}

#[test]
fn a_request_that_only_slices_can_serve_waits_for_them() {
    let bench = Bench::new(1, 1);
    let whole = bench.take("whole", &slice("7g.80gb")).unwrap();
    let mut both = bench.queue("both", Request { count: 2, ..fraction(250_000) });
    bench.release(&whole);
    assert!(bench.granted(&mut both));
}

#[test]
fn a_waiter_for_a_slice_leaves_the_other_gpus_alone() {
    let bench = Bench::new(1, 1);
    bench.take("slice", &slice("1g.10gb")).unwrap();
    bench.queue("whole", slice("7g.80gb"));
    bench.take("share", &share(500_000)).expect("it is on the GPU that serves no slices");
}

#[test]
fn a_waiter_for_a_share_leaves_slices_alone() {
    let bench = Bench::new(1, 1);
    bench.take("share", &share(500_000)).unwrap();
    bench.queue("whole", share(1_000_000));
    bench.take("slice", &slice("1g.10gb")).expect("it is on the GPU that serves no shares");
}

#[test]
fn a_slice_that_lies_where_nobody_ahead_could_passes() {
    let bench = Bench::new(1, 0);
    let first = bench.take("first", &slice("4g.40gb")).unwrap();
    assert_eq!(start(&first), 0);
    // It can lie at 0 only.
    let mut waits = bench.queue("waits", slice("4g.40gb"));
    let other = bench.take("other", &slice("3g.40gb")).expect("nothing at 4 is of any use to it");
    assert_eq!(start(&other), 4);
    assert_eq!(bench.node.store.queue().waiters().unwrap()[0].passed, 0);
    bench.release(&first);
    let late = bench.take("late", &slice("1g.10gb")).unwrap_err();
    assert!(late.message.contains("moby/waits"), "{late}");
    assert!(bench.granted(&mut waits));
}

#[test]
fn a_slice_is_put_where_it_delays_nobody_ahead() {
    let bench = Bench::new(1, 0);
    // 4g at 0 and 1g.20gb at 6: what is left is 4 and 5.
    let first = bench.take("first", &slice("4g.40gb")).unwrap();
    let second = bench.take("second", &slice("1g.20gb")).unwrap();
    assert_eq!((start(&first), start(&second)), (0, 6));
    bench.take("third", &slice("1g.10gb")).unwrap();
    bench.queue("waits", slice("4g.40gb"));
    bench.release(&first);
    // The places from 0 to 3 are for the waiter, which takes them in a moment.
    let passes = bench.take("passes", &slice("1g.10gb")).expect("there is a place that is not");
    assert!((4..6).contains(&start(&passes)), "{passes:?}");
    assert!(bench.take("delays", &slice("1g.10gb")).is_err());
}

/// With its own cap reached by slices, an owner's request has no claim on room, and with what is left of it
/// on the cap.
#[test]
fn a_cap_counts_slices_that_are_waited_for() {
    let mut bench = Bench::new(2, 0);
    bench.rules.owner_max_gpus = [("alice".to_owned(), 1)].into();
    let alice = |profile| Request { owner: Some("alice".to_owned()), ..slice(profile) };
    let held = bench.take("held", &alice("4g.40gb")).unwrap();
    let mut waits = bench.queue("waits", alice("7g.80gb"));
    let small = bench.take("small", &alice("1g.10gb")).unwrap_err();
    assert!(small.message.contains("moby/waits"), "she could never have the rest: {small}");
    bench.take("bobs", &slice("7g.80gb")).expect("he is not held up by her cap");
    bench.release(&held);
    assert!(bench.granted(&mut waits));
}

/// An instance of the administrator's may go any moment, or never: a waiter for its place is passed, but not
/// for ever.
#[test]
fn a_place_below_the_administrators_instance_is_kept_free_only_for_so_long() {
    let bench = Bench::new(1, 0);
    let gpu = &mig_inventory(1, 0).gpus[0];
    let lock = bench.node.store.slices().lock_driver(gpu).unwrap();
    let placement = MigPlacement { start: 0, size: 1 };
    let foreign = Foreign { gpu_instance: 7, profile: 19, placement, device: None };
    bench.node.store.slices().record_foreign(&lock, gpu, &[foreign]).unwrap();
    bench.queue("waits", slice("7g.80gb"));
    for n in 0..100 {
        bench.release(&bench.take(&format!("small-{n}"), &slice("1g.10gb")).unwrap());
    }
    assert_eq!(bench.node.store.queue().waiters().unwrap()[0].passed, 100);
    let error = bench.take("one-too-many", &slice("1g.10gb")).unwrap_err();
    assert!(error.message.contains("moby/waits"), "{error}");
}
