//! SIGKILL before each of the driver's calls.

use std::os::unix::process::ExitStatusExt;

use crate::node::Node;

const SLICE: [(&str, &str); 1] = [("mig", "1g.6gb")];

#[test]
fn a_set_up_killed_before_any_call_is_finished_by_the_next() {
    let node = Node::new("a30", 1, "");
    let mut killed = 0;
    for call in 1.. {
        let lease = node.reserve("one", &SLICE).unwrap();
        node.fault(0, "nvml-kill", call);
        let output = node.set_up(&lease.grant.nonce);
        let died = output.status.signal() == Some(9);
        assert!(died || output.status.success(), "call {call}: {output:?}");
        if !died {
            node.fault(0, "nvml-kill", 0);
        }
        node.store.release(&lease.grant.nonce).unwrap();
        let undone = node.tear_down(&lease.grant.nonce);
        assert!(undone.status.success(), "call {call}: {undone:?}");
        node.assert_clean(&format!("killed before call {call}"));
        if !died {
            break;
        }
        killed += 1;
    }
    assert!(killed > 20, "only {killed} calls");
}

#[test]
fn a_tear_down_killed_before_any_call_is_finished_by_the_next() {
    let node = Node::new("a30", 1, "");
    let mut killed = 0;
    for call in 1.. {
        let lease = node.reserve("one", &SLICE).unwrap();
        assert!(node.set_up(&lease.grant.nonce).status.success());
        node.store.release(&lease.grant.nonce).unwrap();
        node.fault(0, "nvml-kill", call);
        let output = node.tear_down(&lease.grant.nonce);
        let died = output.status.signal() == Some(9);
        assert!(died || output.status.success(), "call {call}: {output:?}");
        if !died {
            node.fault(0, "nvml-kill", 0);
        }
        let undone = node.tear_down(&lease.grant.nonce);
        assert!(undone.status.success(), "call {call}: {undone:?}");
        node.assert_clean(&format!("killed before call {call}"));
        if !died {
            break;
        }
        killed += 1;
    }
    assert!(killed > 20, "only {killed} calls");
}

/// The maker of the lease dies with the set-up: nobody releases, the reconciler finds it.
#[test]
fn nobody_has_to_release_what_a_dead_maker_began() {
    let node = Node::new("a30", 1, "");
    let mut makers = 0;
    for call in [1, 10, 20, 30, 40] {
        let mut maker = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let lease = node.reserve_for("one", &SLICE, i32::try_from(maker.id()).unwrap()).unwrap();
        node.fault(0, "nvml-kill", call);
        let output = node.set_up(&lease.grant.nonce);
        node.fault(0, "nvml-kill", 0);
        makers += i32::from(output.status.signal() == Some(9));
        maker.kill().unwrap();
        maker.wait().unwrap();
        assert!(node.fgpu(&["gc"]).status.success());
        node.assert_clean(&format!("its maker died, and the set-up before call {call}"));
    }
    assert!(makers > 0);
}
