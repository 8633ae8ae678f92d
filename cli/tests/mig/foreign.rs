//! Instances that fgpu did not make.

use fgpu_engine::driver_step::PLACE_TAKEN;
use fgpu_spec::{Code, MigPlacement, MigStage};

use crate::node::{Node, stderr};

/// Makes an instance as the administrator would; one without a device if `bare`.
fn make(node: &Node, name: &str, place: MigPlacement, bare: bool) {
    let profile = node.inventory.gpus[0].mig_profiles.iter().find(|profile| profile.name == name).unwrap();
    node.with_gpu(0, |gpu| {
        let made = gpu.create(profile.id, place).unwrap();
        if !bare {
            gpu.create_compute(&made, profile.slices).unwrap();
        }
    });
}

#[test]
fn a_place_that_somebody_took_is_noticed_and_not_destroyed() {
    let node = Node::new("a30", 1, "");
    let first = node.reserve("one", &[("mig", "2g.12gb")]).unwrap();
    let taken = first.grant.gpus[0].mig.as_ref().unwrap().placement;
    make(&node, "2g.12gb", taken, true);
    let output = node.set_up(&first.grant.nonce);
    assert_eq!(output.status.code(), Some(PLACE_TAKEN.into()), "{}", stderr(&output));
    node.store.release(&first.grant.nonce).unwrap();
    let second = node.reserve("one", &[("mig", "2g.12gb")]).unwrap();
    assert_ne!(second.grant.gpus[0].mig.as_ref().unwrap().placement, taken);
    assert!(node.set_up(&second.grant.nonce).status.success());
    let error = node.reserve("two", &[("mig", "2g.12gb")]).unwrap_err();
    assert_eq!(error.code, Code::NoMigPlacement);
    assert!(error.message.contains("made by the administrator"), "{error}");
    node.store.release(&second.grant.nonce).unwrap();
    assert!(node.fgpu(&["gc"]).status.success());
    let left = node.instances();
    assert_eq!(left.iter().map(|instance| instance.placement).collect::<Vec<_>>(), [taken]);
}

#[test]
fn the_administrators_serve_if_the_configuration_says_so() {
    let node = Node::new("a30", 1, "[mig]\nuse-existing = true");
    let place = MigPlacement { start: 0, size: 4 };
    make(&node, "4g.24gb", place, false);
    assert!(node.step(&["look"]).status().unwrap().success());
    let lease = node.reserve("one", &[("mig", "auto"), ("memory", "4Gi")]).unwrap();
    let slice = lease.grant.gpus[0].mig.clone().unwrap();
    assert_eq!((slice.placement, slice.stage), (place, MigStage::Borrowed));
    assert!(node.set_up(&lease.grant.nonce).status.success());
    assert_eq!(node.reserve("two", &[("mig", "1g.6gb")]).unwrap_err().code, Code::NoMigPlacement);
    node.store.release(&lease.grant.nonce).unwrap();
    assert_eq!(node.store.leases().unwrap(), [], "nothing is to be undone");
    assert!(node.fgpu(&["gc"]).status.success());
    assert_eq!(node.instances().len(), 1, "it is the administrator's");

    // Taken away between the reservation and the set-up.
    let lease = node.reserve("one", &[("mig", "4g.24gb")]).unwrap();
    node.with_gpu(0, |gpu| {
        let instance = &gpu.instances().unwrap()[0];
        gpu.destroy_compute(&instance.compute[0]).unwrap();
        gpu.destroy(instance).unwrap();
    });
    assert_eq!(node.set_up(&lease.grant.nonce).status.code(), Some(PLACE_TAKEN.into()));
    node.store.release(&lease.grant.nonce).unwrap();
    let lease = node.reserve("one", &[("mig", "4g.24gb")]).unwrap();
    assert_eq!(lease.grant.gpus[0].mig.as_ref().unwrap().stage, MigStage::Planned);
}

/// Destroys everything on the GPU, as the administrator can.
fn destroy_all(node: &Node) {
    node.with_gpu(0, |gpu| {
        for instance in gpu.instances().unwrap() {
            instance.compute.iter().for_each(|compute| gpu.destroy_compute(compute).unwrap());
            gpu.destroy(&instance).unwrap();
        }
    });
}

/// Ours is destroyed by hand, and another one of the same kind made in its place: it has the same ids.
#[test]
fn a_foreign_instance_in_our_place_is_not_destroyed() {
    for bare in [false, true] {
        let node = Node::new("a30", 1, "");
        let lease = node.reserve("one", &[("mig", "2g.12gb")]).unwrap();
        assert!(node.set_up(&lease.grant.nonce).status.success());
        let ours = node.lease(&lease.grant.nonce).unwrap().grant.gpus[0].mig.clone().unwrap();
        destroy_all(&node);
        make(&node, "2g.12gb", ours.placement, bare);
        assert_eq!(node.instances()[0].id, ours.instance.unwrap().gpu_instance);
        node.store.release(&lease.grant.nonce).unwrap();
        let output = node.tear_down(&lease.grant.nonce);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(node.store.leases().unwrap(), []);
        assert!(node.fgpu(&["gc"]).status.success());
        assert_eq!(node.instances().len(), 1, "bare: {bare}");
    }
}

/// The nodes of a device are found by its ids, and a container that has them open keeps them.
#[test]
fn ids_that_another_container_has_open_are_not_given_out() {
    let node = Node::new("a30", 1, "[mig]\nuse-existing = true");
    let first = node.reserve("first", &[("mig", "1g.6gb")]).unwrap();
    assert!(node.set_up(&first.grant.nonce).status.success());
    let place = node.lease(&first.grant.nonce).unwrap().grant.gpus[0].mig.clone().unwrap().placement;
    destroy_all(&node);
    let second = node.reserve("second", &[("mig", "1g.6gb")]).unwrap();
    let output = node.set_up(&second.grant.nonce);
    assert!(stderr(&output).contains("which test/first still has open"), "{}", stderr(&output));
    assert_eq!(node.instances(), [], "nothing is left of the attempt");
    node.store.release(&second.grant.nonce).unwrap();

    // The same with an instance of the administrator's.
    let free = if place.start < 2 { 2 } else { 0 };
    make(&node, "2g.12gb", MigPlacement { start: free, size: 2 }, false);
    assert!(node.step(&["look"]).status().unwrap().success());
    let second = node.reserve("second", &[("mig", "2g.12gb")]).unwrap();
    assert_eq!(second.grant.gpus[0].mig.as_ref().unwrap().stage, MigStage::Borrowed);
    let output = node.set_up(&second.grant.nonce);
    assert!(stderr(&output).contains("which test/first still has open"), "{}", stderr(&output));

    node.store.release(&first.grant.nonce).unwrap();
    assert!(node.tear_down(&first.grant.nonce).status.success());
    assert!(node.set_up(&second.grant.nonce).status.success(), "the first container has ended");
}
