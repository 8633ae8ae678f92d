//! Leases of claims: no process holds them, and the DRA driver alone gives them back.

use fgpu_allocator::{Anchor, Joined, Lease, Pool, ResourceClaim, Rules, State, Store, Ticket, Turn};
use fgpu_spec::{Code, Error, Filter, MemoryAsk, MigPlace, Request, Tier};

use crate::node::{
    GIB, Node, applicant, assert_no_overcommit, fraction, inventory, mig_inventory, reserve, slice,
};

fn claim(uid: &str, pods: &[&str]) -> ResourceClaim {
    ResourceClaim {
        uid: uid.into(),
        namespace: "default".into(),
        name: "training".into(),
        request: "gpu".into(),
        pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
    }
}

/// That much of GPU 1.
fn ask(memory: u64) -> Request {
    let any = vec![inventory(2).gpus[1].uuid.clone()];
    Request {
        memory: MemoryAsk::Bytes(memory),
        cores_ppm: 400_000,
        device: Filter { any, not: Vec::new() },
        text: format!("{memory} bytes"),
        ..fraction(0)
    }
}

fn prepare(store: &Store, memory: u64, claim: &ResourceClaim) -> Result<Lease, Error> {
    store.reserve_claim(&inventory(2), &Rules::default(), &ask(memory), &[Tier::Quota], claim)
}

#[test]
fn a_claim_has_its_lease_until_it_is_given_back() {
    let node = Node::new();
    let first = claim("1", &["a"]);
    // The process that asks is no process of this made-up node: it counts as dead from the beginning.
    let lease = prepare(&node.store, 32 * GIB, &first).unwrap();
    assert_eq!((lease.state, lease.key.clone()), (State::Claimed, first.key()));
    assert_eq!(lease.grant.gpus[0].uuid, inventory(2).gpus[1].uuid, "pack would have taken GPU 0");
    assert_eq!(prepare(&node.store, 32 * GIB, &first).unwrap(), lease, "asked again");
    assert_eq!(node.store.leases().unwrap(), [lease.clone()]);

    let nonce = lease.grant.nonce;
    // What its containers' front ends do.
    let init = node.spawn();
    for cgroup in ["/pod/1", "/pod/2", "/pod/2"] {
        assert!(node.store.activate(&nonce, Some(init), Some(cgroup.into())).unwrap());
    }
    let joined = Lease { joined: vec![Joined { init, cgroup: "/pod/2".into() }], ..lease.clone() };
    assert_eq!(node.store.leases().unwrap(), [joined.clone()], "nothing runs in the first one any more");
    assert_eq!(node.store.release(&nonce).unwrap(), None);
    assert_eq!(node.store.release_dead(&lease.key).unwrap(), []);
    assert_eq!(node.store.release_deleted(&lease.key).unwrap(), []);
    assert_eq!(node.store.reconcile().unwrap(), []);
    assert!(node.store.is_in_use(&lease).unwrap());
    assert_eq!(node.store.leases().unwrap(), [joined], "and it is as it was");

    let Error { code, message, .. } = prepare(&node.store, 16 * GIB, &first).unwrap_err();
    assert_eq!(code, Code::Conflict);
    let has = "claim default/training, request gpu: a container runs with 34359738368 bytes";
    assert!(message.starts_with(has), "{message}");
    assert_eq!(node.store.release_claim("1").unwrap(), [], "its container runs");
    assert_eq!(node.store.release_unused(&nonce).unwrap(), None);
    node.kill(init);

    let released = node.store.release_claim("1").unwrap();
    assert_eq!(released.iter().map(|lease| lease.grant.nonce).collect::<Vec<_>>(), [nonce]);
    assert_eq!(node.store.release_claim("1").unwrap(), []);
    assert!(!node.store.container_dir(&nonce).exists());
}

/// The kubelet or the plugin was not there when the claim was given back and given out anew.
#[test]
fn a_claim_that_was_allocated_anew_has_its_new_share() {
    let node = Node::new();
    let old = prepare(&node.store, 16 * GIB, &claim("1", &[])).unwrap();
    let init = node.spawn();
    assert!(node.store.activate(&old.grant.nonce, Some(init), Some("/pod/1".into())).unwrap());
    assert_eq!(prepare(&node.store, 48 * GIB, &claim("1", &[])).unwrap_err().code, Code::Conflict);
    node.kill(init);
    let new = prepare(&node.store, 48 * GIB, &claim("1", &[])).unwrap();
    assert_eq!((new.grant.gpus[0].memory, node.store.leases().unwrap().len()), (48 * GIB, 1));
    assert_eq!(node.store.release_unused(&old.grant.nonce).unwrap(), None);
    assert_eq!(node.store.leases().unwrap(), [new]);
}

#[test]
fn claims_and_containers_never_have_more_than_there_is() {
    let node = Node::new();
    let (a, b, c) = (claim("1", &[]), claim("2", &[]), claim("3", &[]));
    prepare(&node.store, 32 * GIB, &a).unwrap();
    prepare(&node.store, 32 * GIB, &b).unwrap();
    assert_eq!(prepare(&node.store, 32 * GIB, &c).unwrap_err().code, Code::NoCapacity);
    let docker = [applicant("x", node.spawn()), applicant("y", node.spawn())];
    reserve(&node.store, 2, 900_000, &docker[0]).unwrap();
    assert_eq!(reserve(&node.store, 2, 300_000, &docker[1]).unwrap_err().code, Code::Fragmented);
    assert_no_overcommit(&node.store.leases().unwrap(), &inventory(2), &Rules::default());
    node.store.release_claim("2").unwrap();
    prepare(&node.store, 32 * GIB, &c).unwrap();
}

/// What kube-scheduler gives out is there: nothing else is put on a GPU that is held for claims.
#[test]
fn gpus_that_are_held_for_claims_serve_nobody_else() {
    let node = Node::new();
    let uuids: Vec<_> = inventory(2).gpus.into_iter().map(|gpu| gpu.uuid).collect();
    let hold = |gpus: &[String]| node.store.hold_for_claims(&Pool { name: "node1".into() }, gpus).unwrap();
    let before = applicant("before", node.spawn());
    reserve(&node.store, 2, 250_000, &before).unwrap();
    assert_eq!(hold(&uuids), [uuids[0].clone()], "there is a container on it");
    assert_eq!(hold(&uuids[1..]), [""; 0]);
    let pool = || node.store.leases().unwrap().into_iter().filter(|lease| lease.exclusive).count();
    assert_eq!(pool(), 1);
    let whole = applicant("whole", node.spawn());
    assert_eq!(reserve(&node.store, 2, 1_000_000, &whole).unwrap_err().code, Code::NoCapacity);
    reserve(&node.store, 2, 500_000, &applicant("beside", node.spawn())).unwrap();
    for uid in ["1", "2"] {
        prepare(&node.store, 32 * GIB, &claim(uid, &[])).unwrap();
    }
    assert_eq!(prepare(&node.store, 32 * GIB, &claim("3", &[])).unwrap_err().code, Code::NoCapacity);
    assert_eq!(node.store.reconcile().unwrap(), []);
    assert_eq!(node.again().leases().unwrap().len(), 5, "and it stays");
    node.store.release_claim("1").unwrap();
    node.store.release_claim("2").unwrap();
    let refused = reserve(&node.store, 2, 1_000_000, &whole).unwrap_err();
    assert!(refused.message.contains("held by kubernetes/node1 (0 MiB, 0%, exclusive)"), "{refused}");
    assert_eq!(hold(&[]), [""; 0]);
    assert_eq!(hold(&[]), [""; 0], "again");
    assert_eq!(pool(), 0);
    reserve(&node.store, 2, 1_000_000, &whole).unwrap();
}

/// A scheduler that counts placements has said where the slice lies.
#[test]
fn a_claim_has_its_slice_where_it_was_given_out() {
    let node = Node::new();
    let inventory = mig_inventory(1, 0);
    let gpu = inventory.gpus[0].uuid.clone();
    let profile = inventory.gpus[0].mig_profiles.iter().find(|profile| profile.name == "1g.10gb").unwrap();
    let reserve = |uid: &str, at: &[usize]| {
        let place = |&at: &usize| MigPlace { gpu: gpu.clone(), placement: profile.placements[at] };
        let request = Request {
            count: u32::try_from(at.len()).unwrap(),
            places: at.iter().map(place).collect(),
            ..slice("1g.10gb")
        };
        node.store.reserve_claim(&inventory, &Rules::default(), &request, &[Tier::Mig], &claim(uid, &[]))
    };
    let places = |lease: &Lease| -> Vec<u32> {
        lease.grant.gpus.iter().map(|gpu| gpu.mig.as_ref().unwrap().placement.start).collect()
    };
    assert_eq!(places(&reserve("1", &[3]).unwrap()), [profile.placements[3].start]);
    assert_eq!(reserve("2", &[3]).unwrap_err().code, Code::NoMigPlacement);
    let two = [profile.placements[1].start, profile.placements[5].start];
    assert_eq!(places(&reserve("2", &[5, 1]).unwrap()), two);
    assert_no_overcommit(&node.store.leases().unwrap(), &inventory, &Rules::default());
}

/// The cluster has promised the room, so the node's queue cannot have it.
#[test]
fn a_claim_goes_before_those_that_wait() {
    let node = Node::new();
    let whole = applicant("whole", node.spawn());
    let mut ticket = Ticket::new(whole.maker);
    let both = Request { count: 2, ..fraction(1_000_000) };
    reserve(&node.store, 2, 100_000, &applicant("small", node.spawn())).unwrap();
    let turn = node.store.reserve_or_wait(
        &inventory(2),
        &Rules::default(),
        &both,
        &[Tier::Quota],
        &whole,
        &mut ticket,
    );
    assert!(matches!(turn.unwrap(), Turn::Waiting { position: 1, .. }));
    prepare(&node.store, 32 * GIB, &claim("1", &[])).unwrap();
    assert_eq!(node.store.queue().waiters().unwrap().len(), 1, "it waits on");
}

#[test]
fn the_pods_of_a_claim_change() {
    let node = Node::new();
    let lease = prepare(&node.store, GIB, &claim("1", &["a"])).unwrap();
    prepare(&node.store, GIB, &claim("2", &["z"])).unwrap();
    node.store.set_pods("1", &["a".into(), "b".into()]).unwrap();
    let pods = |uid: &str| -> Vec<String> {
        let leases = node.store.leases().unwrap();
        let of = leases.into_iter().filter_map(|lease| lease.anchor);
        let of = of.filter_map(|anchor| match anchor {
            Anchor::Claim(claim) if claim.uid == uid => Some(claim.pods),
            _ => None,
        });
        of.flatten().collect()
    };
    assert_eq!((pods("1"), pods("2")), (vec!["a".to_owned(), "b".into()], vec!["z".to_owned()]));
    let again = prepare(&node.store, GIB, &claim("1", &["c"])).unwrap();
    assert_eq!((again.grant.nonce, pods("1")), (lease.grant.nonce, vec!["c".to_owned()]));
}

/// Two calls of the kubelet at once, and a node that starts again.
#[test]
fn there_is_one_lease_whoever_asks() {
    let node = Node::new();
    let store = &node.store;
    let nonces: Vec<_> = std::thread::scope(|scope| {
        let ask = || prepare(store, GIB, &claim("1", &[])).unwrap().grant.nonce;
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(nonces.iter().all(|nonce| *nonce == nonces[0]), "{nonces:?}");
    assert_eq!(node.store.leases().unwrap().len(), 1);
    let text = std::fs::read_to_string(node.file()).unwrap();
    assert!(text.contains(r#""state":"claimed""#), "a version without claims refuses it: {text}");
}

/// Refusals name what people know: the claim, and the pod that waits.
#[test]
fn claims_and_pods_are_called_by_their_names() {
    let node = Node::new();
    prepare(&node.store, 64 * GIB, &claim("1", &[])).unwrap();
    reserve(&node.store, 2, 1_000_000, &applicant("first", node.spawn())).unwrap();
    let refused = reserve(&node.store, 2, 1_000_000, &applicant("second", node.spawn())).unwrap_err();
    assert!(refused.message.contains("held by default/training/gpu (65536 MiB, 40%)"), "{refused}");
    let pod = fgpu_allocator::Pod {
        uid: "1f-2e".into(),
        namespace: "default".into(),
        name: "trainer".into(),
        cgroup: String::new(),
    };
    assert_eq!(fgpu_allocator::names::called(&pod.key(), None), "pod default/trainer");
}
