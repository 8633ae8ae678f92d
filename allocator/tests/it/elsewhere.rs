//! Leases that were made in another PID namespace.

use fgpu_allocator::{Host, Lease, Store};
use fgpu_spec::Code;
use nix::unistd::chroot;

use crate::node::{Node, applicant, forked, reserve, status};

/// The initial one's inode (linux/nsfs.h).
const INITIAL: u64 = 0xeffffffc;
const POD: u64 = 4_026_532_000;
const OTHER_POD: u64 = 4_026_532_001;

/// A node on which somebody in this namespace made a lease and is not to be seen any more.
fn made_in(namespace: u64) -> (Node, Lease) {
    let node = Node::new();
    node.set_pid_namespace("self", namespace);
    let maker = node.spawn();
    let lease = reserve(&node.again(), 1, 600_000, &applicant("a", maker)).unwrap();
    assert_eq!(lease.pid_namespace, Some(namespace));
    node.kill(maker);
    (node, lease)
}

#[track_caller]
fn assert_stays(store: &Store) {
    assert_eq!((store.stale().unwrap(), store.reconcile().unwrap()), (vec![], vec![]));
    let error = reserve(store, 1, 600_000, &applicant("b", fgpu_allocator::Process { pid: 1, start: 1 }))
        .unwrap_err();
    assert_eq!(error.code, Code::NoCapacity);
    let undetermined = store.undetermined().unwrap();
    assert_eq!(undetermined.len(), 1);
    assert!(undetermined[0].1.to_string().contains("in another PID namespace"), "{}", undetermined[0].1);
    assert!(store.is_elsewhere(&undetermined[0].0));
}

#[track_caller]
fn assert_goes(store: &Store, lease: &Lease) {
    assert_eq!(store.stale().unwrap(), [lease.clone()]);
    assert_eq!(store.reconcile().unwrap(), [lease.clone()]);
    assert!(store.undetermined().unwrap().is_empty());
}

/// `fgpu gc` in a pod that has the node's state directory and not its PID namespace.
#[test]
fn a_pod_frees_nothing_of_the_nodes() {
    let (node, lease) = made_in(INITIAL);
    node.set_pid_namespace("self", POD);
    assert_stays(&node.again());
    node.set_pid_namespace("self", INITIAL);
    assert_goes(&node.again(), &lease);
}

#[test]
fn the_node_frees_what_a_pod_left_when_the_pod_is_gone() {
    let (node, lease) = made_in(POD);
    node.set_pid_namespace("self", INITIAL);
    let pause = node.spawn();
    node.set_pid_namespace(&pause.pid.to_string(), POD);
    assert_stays(&node.again());
    node.kill(pause);
    assert_goes(&node.again(), &lease);
}

#[test]
fn two_pods_free_nothing_of_each_other() {
    let (node, lease) = made_in(POD);
    node.set_pid_namespace("self", OTHER_POD);
    assert_stays(&node.again());
    node.set_pid_namespace("self", POD);
    assert_goes(&node.again(), &lease);
}

/// Docker in Docker that was killed and started again, with the state directory in its own root.
#[test]
fn a_container_frees_what_its_former_life_left() {
    let (node, lease) = made_in(POD);
    node.set_pid_namespace("self", OTHER_POD);
    let root = node.path("");
    let freed = forked(|| {
        chroot(&root).unwrap();
        let host = Host { proc: "/proc".into(), cgroup: "/cgroup".into() };
        let freed = Store::open_on("/state".as_ref(), host).unwrap().reconcile().unwrap();
        i32::from(freed != [lease])
    });
    assert_eq!(status(freed), 0);
}
