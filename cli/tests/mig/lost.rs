//! A driver that is no longer as it was, and leases that are lost.

use std::fs;

use crate::node::{Node, stderr};

const SLICE: [(&str, &str); 1] = [("mig", "2g.12gb")];

/// MIG mode switched off, a GPU that has left the node, a driver that was changed: the instances went with
/// it.
#[test]
fn a_lease_ends_though_its_gpu_is_no_longer_what_it_was() {
    for fault in ["mig-off", "gpu-gone", "driver-changed"] {
        let node = Node::new("a30", 1, "");
        let lease = node.reserve("one", &SLICE).unwrap();
        assert!(node.set_up(&lease.grant.nonce).status.success());
        match fault {
            "mig-off" => node.fault(0, "mig-off", 1),
            "gpu-gone" => {
                node.install("[[gpu]]\npreset = \"a30\"\nmig = true\nuuid = \"GPU-00000000-0000-0000-0000-00000000000a\"\n");
            }
            _ => {
                // As if it had been read under the driver before.
                let path = node.path("state/inventory.json");
                let text = fs::read_to_string(&path).unwrap();
                fs::write(&path, text.replacen("\"driver_version\": \"5", "\"driver_version\": \"4", 1))
                    .unwrap();
            }
        }
        node.store.release(&lease.grant.nonce).unwrap();
        let output = node.fgpu(&["gc"]);
        assert!(output.status.success(), "{fault}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{fault}");
        assert_eq!(node.store.leases().unwrap(), [], "{fault}");
        node.fault(0, "mig-off", 0);
    }
}

/// The allocator file is lost, and with it who holds what; the instances are still told from an
/// administrator's.
#[test]
fn instances_whose_leases_are_lost_are_found_and_destroyed() {
    let node = Node::new("a30", 1, "");
    let lease = node.reserve("one", &SLICE).unwrap();
    assert!(node.set_up(&lease.grant.nonce).status.success());
    assert_eq!(node.store.slices().orphans(&node.inventory).unwrap(), []);
    assert_eq!(node.findings(), [""; 0]);

    fs::remove_file(node.path("state/allocations.json")).unwrap();
    assert_eq!(node.store.slices().orphans(&node.inventory).unwrap().len(), 1);
    assert_eq!(node.findings(), ["mig-orphan"]);
    // The driver does not let go of it at first.
    node.fault(0, "mig-destroy", 19);
    let output = node.fgpu(&["gc"]);
    assert!(stderr(&output).contains("DCGM"), "{}", stderr(&output));
    assert_eq!(node.findings(), ["driver-part-stuck"]);
    node.fault(0, "mig-destroy", 0);
    let output = node.fgpu(&["gc"]);
    assert!(output.status.success(), "{}", stderr(&output));
    node.assert_clean("after the reconciler");
    assert_eq!(node.findings(), [""; 0]);
    assert_eq!(node.store.slices().orphans(&node.inventory).unwrap(), []);
}
