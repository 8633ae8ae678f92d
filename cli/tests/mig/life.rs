//! From a reservation to a lease that is gone, and what a driver that fails or is slow makes of it.

use fgpu_allocator::State;
use fgpu_spec::{Code, MigStage};

use crate::node::{Node, stderr};

#[test]
fn an_instance_is_made_and_destroyed() {
    let node = Node::new("h100-80", 1, "");
    let lease = node.reserve("one", &[("mig", "2g.20gb"), ("count", "2")]).unwrap();
    let nonce = lease.grant.nonce;
    assert_eq!(node.instances(), [], "a reservation does not touch the driver");
    let output = node.set_up(&nonce);
    assert!(output.status.success(), "{}", stderr(&output));
    let lease = node.lease(&nonce).unwrap();
    let instances = node.instances();
    assert_eq!(instances.len(), 2);
    for share in &lease.grant.gpus {
        let slice = share.mig.as_ref().unwrap();
        let made = slice.instance.as_ref().unwrap();
        let there = instances.iter().find(|instance| instance.id == made.gpu_instance).unwrap();
        assert_eq!((slice.stage, there.placement), (MigStage::Made, slice.placement));
        assert_eq!(there.compute[0].uuid, made.uuid);
        assert!(made.uuid.starts_with("MIG-"), "{made:?}");
    }
    assert!(node.set_up(&nonce).status.success(), "a second set-up has nothing to do");
    assert_eq!(node.instances(), instances);

    let released = node.store.release(&nonce).unwrap().unwrap();
    assert_eq!(released.state, State::Releasing);
    assert_eq!(node.store.release(&nonce).unwrap(), None, "it has been released");
    assert!(node.tear_down(&nonce).status.success());
    node.assert_clean("after the tear-down");
}

#[test]
fn an_instance_that_cannot_be_made_leaves_nothing() {
    let node = Node::new("a30", 1, "");
    for (fault, code) in [("mig-create", 23), ("mig-create", 999), ("mig-create-compute", 23)] {
        node.fault(0, fault, code);
        let lease = node.reserve("one", &[("mig", "1g.6gb")]).unwrap();
        let output = node.set_up(&lease.grant.nonce);
        assert_eq!(output.status.code(), Some(1), "{fault}={code}");
        assert!(
            stderr(&output).starts_with("fgpu: driver-error: GPU 0, MIG 1g.6gb at memory slice "),
            "{output:?}"
        );
        node.fault(0, fault, 0);
        let released = node.store.release(&lease.grant.nonce).unwrap().unwrap();
        assert_ne!(released.state, State::Releasing, "{fault}={code}: nothing is left to undo");
        node.assert_clean(fault);
    }
}

#[test]
fn an_instance_that_somebody_holds_is_named_until_it_goes() {
    let node = Node::new("a30", 1, "");
    let whole = [("mig", "4g.24gb")];
    // A process that still computes, and a monitor that holds the GPU instance alone.
    for (fault, words) in [("mig-destroy-compute", "a process still uses"), ("mig-destroy", "DCGM")] {
        let lease = node.reserve("one", &whole).unwrap();
        assert!(node.set_up(&lease.grant.nonce).status.success());
        node.fault(0, fault, 19);
        node.store.release(&lease.grant.nonce).unwrap();
        let output = node.tear_down(&lease.grant.nonce);
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        let left = node.lease(&lease.grant.nonce).unwrap();
        assert_eq!(left.state, State::Releasing);
        assert!(left.trouble.unwrap().contains(words));
        let error = node.reserve("two", &whole).unwrap_err();
        assert_eq!(error.code, Code::NoMigPlacement);
        assert!(error.message.contains("left by test/one (MIG 4g.24gb of GPU 0"), "{error}");
        assert!(error.message.contains(words), "{error}");
        node.fault(0, fault, 0);
        let output = node.fgpu(&["gc"]);
        assert!(output.status.success(), "{}", stderr(&output));
        node.assert_clean(fault);
    }
}

/// The store's lock is free while the driver takes its time; so is the other GPU.
#[test]
fn a_slow_driver_holds_up_nobody_else() {
    let node = Node::new("a30", 2, "");
    let slow = node.reserve("slow", &[("mig", "4g.24gb"), ("device", "0")]).unwrap();
    node.fault(0, "mig-delay-us", 3_600_000_000);
    let mut making = node.step(&["set-up", &slow.grant.nonce.to_string()]).spawn().unwrap();
    let stage = || node.lease(&slow.grant.nonce).unwrap().grant.gpus[0].mig.as_ref().unwrap().stage;
    while stage() != MigStage::Creating {
        std::thread::yield_now();
    }
    let quick = node.reserve("quick", &[("mig", "4g.24gb")]).unwrap();
    assert!(node.set_up(&quick.grant.nonce).status.success());
    node.store.release(&quick.grant.nonce).unwrap();
    assert!(node.tear_down(&quick.grant.nonce).status.success());
    assert_eq!(making.try_wait().unwrap(), None, "all of that took less than one call of the slow GPU");
    node.fault(0, "mig-delay-us", 0);
    assert!(making.wait().unwrap().success());
    node.store.release(&slow.grant.nonce).unwrap();
    assert!(node.fgpu(&["gc"]).status.success());
    node.assert_clean("after the slow one");
}

#[test]
fn a_kept_instance_serves_the_next_request_and_yields_to_others() {
    let node = Node::new("a30", 1, "[mig]\nkeep = \"1h\"");
    let lease = node.reserve("one", &[("mig", "2g.12gb")]).unwrap();
    assert!(node.set_up(&lease.grant.nonce).status.success());
    let made = node.lease(&lease.grant.nonce).unwrap().grant.gpus;
    node.store.release(&lease.grant.nonce).unwrap();
    assert!(node.store.driver_part().keep(&lease.grant.nonce).unwrap());
    assert!(node.fgpu(&["gc"]).status.success());
    assert_eq!(node.instances().len(), 1, "an hour has not passed");

    let next = node.reserve("two", &[("mig", "2g.12gb")]).unwrap();
    assert_eq!(next.grant.gpus, made, "the same device");
    assert_eq!(node.store.leases().unwrap().len(), 1);
    assert!(node.set_up(&next.grant.nonce).status.success());
    node.store.release(&next.grant.nonce).unwrap();
    assert!(node.store.driver_part().keep(&next.grant.nonce).unwrap());

    assert_eq!(node.reserve("three", &[("mig", "4g.24gb")]).unwrap_err().code, Code::NoMigPlacement);
    assert_eq!(node.store.driver_part().end_keeping(0).unwrap(), 1);
    assert!(node.tear_down(&next.grant.nonce).status.success());
    node.assert_clean("after the keeping has ended");
}

#[test]
fn a_kept_instance_expires() {
    let node = Node::new("a30", 1, "[mig]\nkeep = \"1s\"");
    let lease = node.reserve("one", &[("mig", "2g.12gb")]).unwrap();
    assert!(node.set_up(&lease.grant.nonce).status.success());
    node.store.release(&lease.grant.nonce).unwrap();
    assert!(node.store.driver_part().keep(&lease.grant.nonce).unwrap());
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(node.fgpu(&["gc"]).status.success());
    node.assert_clean("a second later");
}
