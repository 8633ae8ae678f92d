//! A step that is killed, or fails, at each of the driver's calls.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use fgpu_engine::driver_step::PLACE_TAKEN;

use crate::node::Node;

const SLICE: [(&str, &str); 1] = [("mig", "1g.6gb")];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    SetUp,
    TearDown,
}

/// Does a step with a fault at one of its calls, and shows that the next tear-down finishes what is left.
fn struck(node: &Node, step: Step, fault: &str, call: u64) -> Output {
    let nonce = node.reserve("one", &SLICE).unwrap().grant.nonce;
    if step == Step::TearDown {
        assert!(node.set_up(&nonce).status.success());
        node.store.release(&nonce).unwrap();
    }
    node.fault(0, fault, call);
    let output = if step == Step::SetUp { node.set_up(&nonce) } else { node.tear_down(&nonce) };
    node.fault(0, fault, 0);
    node.store.release(&nonce).unwrap();
    let undone = node.tear_down(&nonce);
    assert!(undone.status.success(), "{fault} at call {call}: {undone:?}");
    node.assert_clean(&format!("{fault} at call {call}"));
    output
}

/// Kills a step before each of its calls; returns how many it has.
fn killed(node: &Node, step: Step) -> u64 {
    for call in 1.. {
        let output = struck(node, step, "nvml-kill", call);
        if output.status.signal() != Some(9) {
            assert!(output.status.success(), "call {call}: {output:?}");
            return call - 1;
        }
    }
    unreachable!("a step comes to its end")
}

fn at_every_call(step: Step) {
    let node = Node::new("a30", 1, "");
    let calls = killed(&node, step);
    assert!(calls > 20, "only {calls} calls");
    for call in 1..=calls {
        let output = struck(&node, step, "nvml-fail", call);
        assert_ne!(
            output.status.code(),
            Some(PLACE_TAKEN.into()),
            "call {call}: what is there is its own: {output:?}"
        );
    }
}

#[test]
fn a_set_up_that_dies_or_fails_at_any_call_is_finished_by_the_next() {
    at_every_call(Step::SetUp);
}

#[test]
fn a_tear_down_that_dies_or_fails_at_any_call_is_finished_by_the_next() {
    at_every_call(Step::TearDown);
}

/// The maker of the lease dies with the set-up: nobody releases, the reconciler finds it.
#[test]
fn an_instance_of_a_dead_maker_is_reclaimed() {
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
