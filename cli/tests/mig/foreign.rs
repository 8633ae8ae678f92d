//! Instances that fgpu did not make.

use fgpu_hook::driver_step::PLACE_TAKEN;
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
    assert_eq!(output.status.code(), Some(PLACE_TAKEN), "{}", stderr(&output));
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
    assert_eq!(node.set_up(&lease.grant.nonce).status.code(), Some(PLACE_TAKEN));
    node.store.release(&lease.grant.nonce).unwrap();
    let lease = node.reserve("one", &[("mig", "4g.24gb")]).unwrap();
    assert_eq!(lease.grant.gpus[0].mig.as_ref().unwrap().stage, MigStage::Planned);
}
