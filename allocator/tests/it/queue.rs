//! The queue, step by step: grants, wake-ups and messages.

use std::io::Write;
use std::sync::RwLockReadGuard;
use std::time::Duration;

use fgpu_allocator::{Applicant, Lease, Process, Rules, Ticket, Turn};
use fgpu_spec::{Code, Error, Filter, Policy, Request, Tier};

use crate::node::{Node, applicant, fraction, inventory, key, reserve, unforked};

mod lost_file;

/// A request that waits, with its process.
struct Waiter {
    ticket: Ticket,
    process: Process,
    applicant: Applicant,
    request: Request,
}

/// A node with some GPUs and nobody's caps.
struct Bench {
    /// That nobody has a pipe open tells that its waiter is gone.
    _unforked: RwLockReadGuard<'static, ()>,
    node: Node,
    gpus: u32,
    rules: Rules,
}

impl Bench {
    fn new(gpus: u32) -> Self {
        Self { _unforked: unforked(), node: Node::new(), gpus, rules: Rules::default() }
    }

    /// Somebody who holds a share.
    fn holds(&self, id: &str, ppm: u32) -> Lease {
        reserve(&self.node.store, self.gpus, ppm, &applicant(id, self.node.spawn())).unwrap()
    }

    fn queue(&self, id: &str, request: Request) -> Waiter {
        let process = self.node.spawn();
        let mut waiter =
            Waiter { ticket: Ticket::new(process), process, applicant: applicant(id, process), request };
        let turn = self.turn(&mut waiter);
        assert!(matches!(turn, Ok(Turn::Waiting { .. })), "{id}: {turn:?}");
        waiter
    }

    fn turn(&self, waiter: &mut Waiter) -> Result<Turn, Error> {
        let Waiter { ticket, applicant, request, .. } = waiter;
        let inventory = inventory(self.gpus);
        self.node.store.reserve_or_wait(&inventory, &self.rules, request, &[Tier::Quota], applicant, ticket)
    }

    fn granted(&self, waiter: &mut Waiter) -> bool {
        matches!(self.turn(waiter).unwrap(), Turn::Granted(_))
    }

    fn release(&self, lease: &Lease) {
        self.node.store.release(&lease.grant.nonce).unwrap().unwrap();
    }

    fn order(&self) -> Vec<String> {
        self.node.store.queue().waiters().unwrap().into_iter().map(|waiter| waiter.key.id).collect()
    }

    fn pipes(&self) -> usize {
        std::fs::read_dir(self.node.path("state/queue")).map_or(0, Iterator::count)
    }
}

/// Whether somebody has written into its pipe since the last time.
fn woken(waiter: &Waiter) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let fd = waiter.ticket.fd().expect("it has a place");
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
}

/// Takes the wake-up, as a waiter does before it looks.
fn wakes(waiter: &mut Waiter) -> bool {
    let was = woken(waiter);
    waiter.ticket.wait(Duration::ZERO).unwrap();
    was
}

fn on(device: &str, ppm: u32) -> Request {
    let device = Filter { any: vec![device.to_owned()], not: vec![] };
    Request { device, ..fraction(ppm) }
}

#[test]
fn two_run_one_waits_one_ends_the_third_starts() {
    let bench = Bench::new(1);
    let (first, _second) = (bench.holds("first", 500_000), bench.holds("second", 500_000));
    let mut third = bench.queue("third", fraction(500_000));
    assert_eq!((bench.order(), bench.pipes()), (vec!["third".to_owned()], 1));
    assert!(!woken(&third));
    bench.release(&first);
    assert!(wakes(&mut third));
    assert!(bench.granted(&mut third));
    assert_eq!((bench.order(), bench.pipes()), (vec![], 0));
    let ids: Vec<_> = bench.node.store.leases().unwrap().into_iter().map(|lease| lease.key.id).collect();
    assert_eq!(ids, ["second", "third"]);
}

#[test]
fn the_first_is_served_first_and_one_process_is_woken_per_grant() {
    let bench = Bench::new(1);
    let holders: Vec<_> = (0..4).map(|n| bench.holds(&format!("holder-{n}"), 250_000)).collect();
    let mut waiters: Vec<_> = (0..4).map(|n| bench.queue(&format!("w{n}"), fraction(250_000))).collect();
    for (n, holder) in holders.iter().enumerate() {
        bench.release(holder);
        // Nobody else may take what came free, whoever comes first.
        let error =
            reserve(&bench.node.store, 1, 250_000, &applicant("late", bench.node.spawn())).unwrap_err();
        assert_eq!(error.code, Code::NoCapacity);
        let who = format!("moby/w{n} has waited for fgpu/fraction=0.25 before it");
        assert!(error.message.contains(&who), "{error}");
        assert_eq!(
            waiters.iter().map(woken).collect::<Vec<_>>(),
            (0..4 - n).map(|m| m == 0).collect::<Vec<_>>()
        );
        let mut first = waiters.remove(0);
        assert!(waiters.iter_mut().all(|other| !bench.granted(other)), "no later one gets it");
        assert!(wakes(&mut first) && bench.granted(&mut first));
        // A waiter that is granted something wakes the next one, which finds nothing.
        assert!(waiters.first_mut().is_none_or(|next| wakes(next) && !bench.granted(next)));
    }
}

#[test]
fn room_for_several_goes_down_the_queue() {
    let bench = Bench::new(1);
    let whole = bench.holds("whole", 1_000_000);
    let mut waiters: Vec<_> = (0..5).map(|n| bench.queue(&format!("w{n}"), fraction(250_000))).collect();
    bench.release(&whole);
    for n in 0..4 {
        assert!(wakes(&mut waiters[n]), "{n}");
        assert!(waiters[n + 1..].iter().all(|other| !woken(other)));
        assert!(bench.granted(&mut waiters[n]));
    }
    assert!(wakes(&mut waiters[4]) && !bench.granted(&mut waiters[4]));
    assert_eq!(bench.order(), ["w4"]);
}

#[test]
fn a_later_one_passes_only_where_it_cannot_delay() {
    let bench = Bench::new(2);
    // GPU 0: 0.75 and 0.25 free. GPU 1: twice 0.4 and 0.2 free.
    let large = bench.holds("large", 750_000);
    let node = &bench.node;
    for id in ["small-1", "small-2"] {
        let request = on("1", 400_000);
        let applicant = applicant(id, node.spawn());
        node.store.reserve(&inventory(2), &bench.rules, &request, &[Tier::Quota], &applicant).unwrap();
    }
    let mut head = bench.queue("head", fraction(500_000));
    // On GPU 1 the end of either 0.4 would make room for the head, and not with this one there.
    let mut delays = bench.queue("delays", on("1", 150_000));
    // On GPU 0 the end of the 0.75 makes room for both.
    let passes = applicant("passes", node.spawn());
    node.store.reserve(&inventory(2), &bench.rules, &on("0", 250_000), &[Tier::Quota], &passes).unwrap();
    assert_eq!(node.store.queue().waiters().unwrap()[0].passed, 1, "it was counted");
    assert_eq!(node.store.queue().waiters().unwrap()[1].passed, 0, "it cannot use GPU 0");
    let waiting = node.store.queue().waiting(&inventory(2), &bench.rules).unwrap();
    assert_eq!(waiting[0].brief, "no room: 0.2 is the largest that fits");
    assert_eq!(waiting[1].brief, "after moby/head");
    assert_eq!(waiting[1].reason.as_ref().unwrap().code, Code::NoCapacity);
    bench.release(&large);
    assert!(wakes(&mut head) && bench.granted(&mut head));
    // The one behind the head is free to go now.
    assert!(wakes(&mut delays) && bench.granted(&mut delays));
}

#[test]
fn a_waiter_that_cannot_use_a_gpu_does_not_hold_it_up() {
    let bench = Bench::new(2);
    let on_0 = bench.holds("on-0", 1_000_000);
    let on_1 = bench.holds("on-1", 1_000_000);
    let mut first = bench.queue("first", on("0", 1_000_000));
    let mut second = bench.queue("second", on("1", 1_000_000));
    bench.release(&on_1);
    // The first is woken, cannot use it, and wakes the one who can.
    assert!(!woken(&second));
    assert!(wakes(&mut first) && !bench.granted(&mut first));
    assert!(wakes(&mut second) && bench.granted(&mut second));
    bench.release(&on_0);
    assert!(wakes(&mut first) && bench.granted(&mut first));
}

#[test]
fn the_dead_leave_the_queue() {
    let bench = Bench::new(1);
    let whole = bench.holds("whole", 1_000_000);
    let dead: Vec<_> = (0..3).map(|n| bench.queue(&format!("dead{n}"), fraction(1_000_000))).collect();
    let mut living = bench.queue("living", fraction(250_000));
    for waiter in dead {
        bench.node.kill(waiter.process);
        // The kernel closes what it had open.
        drop(waiter);
    }
    assert_eq!(bench.order(), ["living"], "only waiters are listed");
    bench.release(&whole);
    assert!(wakes(&mut living), "the first that lives is woken");
    assert!(bench.granted(&mut living));
    bench.node.store.reconcile().unwrap();
    assert_eq!(bench.pipes(), 0);
    // Nobody waits any more: whoever comes is served.
    bench.holds("new", 750_000);
}

#[test]
fn a_waiter_that_gives_up_lets_the_next_go() {
    let bench = Bench::new(1);
    bench.holds("half", 500_000);
    let mut whole = bench.queue("whole", fraction(1_000_000));
    let mut half = bench.queue("half-too", fraction(500_000));
    assert!(!bench.granted(&mut half), "it would delay the first");
    bench.node.store.queue().leave(&mut whole.ticket).unwrap();
    bench.node.store.queue().leave(&mut whole.ticket).unwrap();
    assert_eq!((bench.order(), bench.pipes()), (vec!["half-too".to_owned()], 1));
    assert!(wakes(&mut half) && bench.granted(&mut half));
}

#[test]
fn a_killed_container_frees_its_place_by_name() {
    let bench = Bench::new(1);
    bench.holds("half", 500_000);
    let gone = bench.queue("gone", fraction(1_000_000));
    let mut next = bench.queue("next", fraction(500_000));
    bench.node.kill(gone.process);
    drop(gone);
    bench.node.store.release_key(&key("gone")).unwrap();
    assert!(wakes(&mut next) && bench.granted(&mut next));
}

#[test]
fn a_cancelled_waiter_is_told_and_lets_the_next_go() {
    let bench = Bench::new(1);
    bench.holds("half", 500_000);
    let mut whole = bench.queue("whole", fraction(1_000_000));
    let mut half = bench.queue("half-too", fraction(500_000));
    let ticket = bench.node.store.queue().waiters().unwrap()[0].ticket;
    assert!(bench.node.store.queue().cancel(&ticket).unwrap());
    assert!(!bench.node.store.queue().cancel(&ticket).unwrap(), "once");
    assert_eq!((bench.order(), bench.pipes()), (vec!["half-too".to_owned()], 1));
    assert!(wakes(&mut whole), "it need not wait for its next look");
    let error = bench.turn(&mut whole).unwrap_err();
    assert_eq!(error.code, Code::Cancelled);
    assert!(error.message.starts_with("fgpu/fraction=1 was taken out of the queue"), "{error}");
    assert!(wakes(&mut half) && bench.granted(&mut half));
}

/// It is in the middle of a look when it is cancelled: its pipe says so, though it has not read it yet.
#[test]
fn a_waiter_whose_place_is_gone_looks_why() {
    let bench = Bench::new(1);
    let whole = bench.holds("whole", 1_000_000);
    let mut waiter = bench.queue("waiter", fraction(500_000));
    let ticket = bench.node.store.queue().waiters().unwrap()[0].ticket;
    bench.node.store.queue().cancel(&ticket).unwrap();
    bench.release(&whole);
    assert_eq!(bench.turn(&mut waiter).unwrap_err().code, Code::Cancelled);
    assert!(bench.order().is_empty() && bench.node.store.leases().unwrap().is_empty());
}

/// The one who cancels is killed between its two steps: the waiter was told, and leaves by itself.
#[test]
fn half_a_cancel_is_a_cancel() {
    let bench = Bench::new(1);
    bench.holds("whole", 1_000_000);
    let mut waiter = bench.queue("waiter", fraction(500_000));
    let pipe = bench.node.path("state/queue").read_dir().unwrap().next().unwrap().unwrap().path();
    std::fs::OpenOptions::new().write(true).open(pipe).unwrap().write_all(b"!x!").unwrap();
    assert!(wakes(&mut waiter));
    assert_eq!(bench.turn(&mut waiter).unwrap_err().code, Code::Cancelled);
    assert_eq!((bench.order().len(), bench.pipes()), (0, 0));
}

#[test]
fn the_wait_of_a_container_ends_when_it_is_deleted() {
    let bench = Bench::new(1);
    bench.holds("half", 500_000);
    let mut gone = bench.queue("gone", fraction(1_000_000));
    let mut next = bench.queue("next", fraction(500_000));
    bench.node.store.release_key(&key("gone")).unwrap();
    assert_eq!(bench.order(), ["next"]);
    assert_eq!(bench.turn(&mut gone).unwrap_err().code, Code::Cancelled);
    assert!(wakes(&mut next) && bench.granted(&mut next));
}

/// Ctrl-Z: it could take nothing, its own time does not run out, and everybody behind it would wait for it.
#[test]
fn a_stopped_waiter_holds_up_nobody() {
    assert_holds_up_nobody(Node::stop);
}

/// `systemctl freeze`.
#[test]
fn a_frozen_waiter_holds_up_nobody() {
    assert_holds_up_nobody(Node::freeze);
}

/// `stop` keeps a process from running, or lets it go on.
fn assert_holds_up_nobody(stop: fn(&Node, Process, bool)) {
    let bench = Bench::new(1);
    let half = bench.holds("half", 500_000);
    let mut stopped = bench.queue("stopped", fraction(1_000_000));
    let mut next = bench.queue("next", fraction(500_000));
    assert!(!bench.granted(&mut next), "it would delay the first");
    stop(&bench.node, stopped.process, true);
    assert_eq!(bench.order(), ["next"]);
    assert!(bench.granted(&mut next));
    // It goes on: its place is gone, and it queues up anew.
    stop(&bench.node, stopped.process, false);
    assert!(!bench.granted(&mut stopped));
    assert_eq!((bench.order(), bench.pipes()), (vec!["stopped".to_owned()], 1));
    for lease in bench.node.store.leases().unwrap() {
        bench.release(&lease);
    }
    assert!(wakes(&mut stopped) && bench.granted(&mut stopped));
    drop(half);
}

/// `fgpu gc` in a pod that has the node's state directory and not its PID namespace.
#[test]
fn a_pod_takes_nobody_of_the_node_out_of_the_queue() {
    let _unforked = unforked();
    let node = Node::new();
    node.set_pid_namespace("self", 4_026_531_836);
    let store = node.again();
    reserve(&store, 1, 1_000_000, &applicant("holds", node.spawn())).unwrap();
    let process = node.spawn();
    let mut ticket = Ticket::new(process);
    let (gpus, rules, half) = (inventory(1), Rules::default(), fraction(500_000));
    let turn = store.reserve_or_wait(
        &gpus,
        &rules,
        &half,
        &[Tier::Quota],
        &applicant("waits", process),
        &mut ticket,
    );
    assert!(matches!(turn, Ok(Turn::Waiting { .. })), "{turn:?}");
    // Where it has another pid.
    node.kill(process);
    node.set_pid_namespace("self", 4_026_532_000);
    let pod = node.again();
    let waits = || {
        pod.reconcile().unwrap();
        pod.queue().waiters().unwrap().into_iter().map(|waiter| waiter.key.id).collect::<Vec<_>>()
    };
    assert_eq!(waits(), ["waits"]);
    drop(ticket);
    assert_eq!(waits(), [""; 0], "nobody has its pipe any more");
}

#[test]
fn a_request_that_never_fits_does_not_wait() {
    let bench = Bench::new(1);
    let process = bench.node.spawn();
    let refused = |request: Request| {
        let mut ticket = Ticket::new(process);
        let rules = Rules { owner_max_gpus: [("alice".to_owned(), 1)].into(), ..Rules::default() };
        let (store, applicant) = (&bench.node.store, applicant("a", process));
        let turn =
            store.reserve_or_wait(&inventory(2), &rules, &request, &[Tier::Quota], &applicant, &mut ticket);
        turn.unwrap_err().code
    };
    assert_eq!(refused(Request { count: 3, ..fraction(500_000) }), Code::TooLarge);
    assert_eq!(refused(on("7", 500_000)), Code::NoGpu);
    let alice = Some("alice".to_owned());
    assert_eq!(refused(Request { count: 2, owner: alice, ..fraction(600_000) }), Code::Denied);
    assert_eq!(bench.order(), [""; 0]);
}

#[test]
fn an_owner_at_the_cap_holds_up_only_the_owners_own() {
    let mut bench = Bench::new(2);
    bench.rules.owner_max_gpus = [("alice".to_owned(), 1)].into();
    let alice = |ppm| Request { owner: Some("alice".to_owned()), ..fraction(ppm) };
    let take = |id: &str, request: &Request| {
        let applicant = applicant(id, bench.node.spawn());
        bench.node.store.reserve(&inventory(2), &bench.rules, request, &[Tier::Quota], &applicant)
    };
    let held = take("held", &alice(600_000)).unwrap();
    let mut waits = bench.queue("waits", alice(1_000_000));
    assert!(take("small", &alice(300_000)).unwrap_err().message.contains("moby/waits"));
    let waiting = bench.node.store.queue().waiting(&inventory(2), &bench.rules).unwrap();
    assert_eq!(waiting[0].brief, "alice holds 0.6 of 1 GPU(s)");
    take("other", &fraction(1_000_000)).unwrap();
    bench.release(&held);
    assert!(wakes(&mut waits) && bench.granted(&mut waits));
}

#[test]
fn a_share_grows_only_where_it_delays_nobody() {
    let bench = Bench::new(1);
    let (half, _other) = (bench.holds("half", 500_000), bench.holds("other", 400_000));
    let resize = |ppm| {
        let nonce = &half.grant.nonce;
        bench.node.store.resize(&inventory(1), &bench.rules, &fraction(ppm), nonce, |_, _| {})
    };
    let mut waits = bench.queue("waits", fraction(500_000));
    let error = resize(600_000).unwrap_err();
    assert!(error.message.contains("moby/waits has waited for fgpu/fraction=0.5"), "{error}");
    // A smaller share makes room.
    resize(400_000).unwrap().unwrap();
    assert!(wakes(&mut waits) && !bench.granted(&mut waits));
    resize(100_000).unwrap().unwrap();
    assert!(wakes(&mut waits) && bench.granted(&mut waits));
}

#[test]
fn an_exclusive_request_waits_for_an_empty_gpu() {
    let bench = Bench::new(1);
    let small = bench.holds("small", 100_000);
    let alone = Request { policy: Policy::Exclusive, ..fraction(500_000) };
    let mut alone = bench.queue("alone", alone);
    let mut later = bench.queue("later", fraction(100_000));
    assert!(!bench.granted(&mut later), "the GPU would never be empty");
    bench.release(&small);
    assert!(wakes(&mut alone) && bench.granted(&mut alone));
    assert!(!bench.granted(&mut later));
}
