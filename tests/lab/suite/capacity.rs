//! What fits on a node and what does not, and how a user is told.

use fgpu_lab::command::wait_until;
use fgpu_lab::docker::{self, Container, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

pub(crate) const TESTS: &[Test] = &[
    Test::docker("capacity::four_quarters_fit_and_a_fifth_does_not", four_quarters_fit_and_a_fifth_does_not),
    Test::docker("capacity::six_tenths_twice_need_two_gpus", six_tenths_twice_need_two_gpus),
    Test::docker("capacity::three_thirds_fit_one_gpu", three_thirds_fit_one_gpu),
    Test::docker("capacity::waiting_gets_the_room_that_comes", waiting_gets_the_room_that_comes),
    Test::once("capacity::both_front_ends_count_together", both_front_ends_count_together),
    Test::once("capacity::more_than_the_node_is_too_large", more_than_the_node_is_too_large),
];

fn asking(front_end: FrontEnd, annotations: &[(&str, &str)]) -> Run {
    let run = docker::container("busybox").under(front_end).command(["sleep", "1000"]);
    annotations.iter().fold(run, |run, (key, value)| run.annotation(key, value))
}

/// Starts that many containers of the same request.
fn fill(count: usize, front_end: FrontEnd, annotations: &[(&str, &str)]) -> Vec<Container> {
    (0..count).map(|_| asking(front_end, annotations).start()).collect()
}

/// Docker's own error message for a request that must be refused; checks that no lease came of it.
#[track_caller]
fn refusal(front_end: FrontEnd, annotations: &[(&str, &str)]) -> String {
    let before = node::leases();
    let output = asking(front_end, annotations).try_start().expect_err("the request should be refused");
    assert_eq!(node::leases(), before, "a refused request leaves nothing");
    output.refused().to_owned()
}

#[track_caller]
fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

fn four_quarters_fit_and_a_fifth_does_not(front_end: FrontEnd) {
    let quarter = [("fgpu/fraction", "0.25"), ("fgpu/device", "0")];
    let mut four = fill(4, front_end, &quarter);
    node::assert_not_overcommitted(&node::gpus(), &node::leases());

    let message = refusal(front_end, &quarter);
    assert_says(
        &message,
        &["fgpu: no-capacity: ", &front_end.asks("0.25"), "0 MiB and 0% free", "wait for one to end"],
    );

    four.remove(0).remove();
    wait_until("the room of a container that ended", || node::leases().len() == 3);
    let fifth = asking(front_end, &quarter).start();
    assert!(node::leases().iter().any(|lease| lease.id == fifth.id));
    // The GPU is full again.
    refusal(front_end, &quarter);
}

fn six_tenths_twice_need_two_gpus(front_end: FrontEnd) {
    let most = [("fgpu/fraction", "0.6")];
    let _two = fill(2, front_end, &most);
    let leases = node::leases();
    assert_ne!(leases[0].shares[0].0, leases[1].shares[0].0, "each has a GPU of its own");

    let message = refusal(front_end, &most);
    let fits = "the largest that fits is 0.4 ";
    assert_says(&message, &["fgpu: fragmented: ", &front_end.asks("0.6"), fits]);
    // What the message says is so.
    asking(front_end, &[("fgpu/fraction", "0.4")]).start();
}

fn three_thirds_fit_one_gpu(front_end: FrontEnd) {
    let third = [("fgpu/fraction", "1/3"), ("fgpu/device", "1")];
    let _three = fill(3, front_end, &third);
    let gpus = node::gpus();
    for lease in node::leases() {
        assert_eq!(lease.shares, [(gpus[1].uuid.clone(), gpus[1].share(333_333), 333_333)]);
    }
    assert_says(&refusal(front_end, &third), &["fgpu: no-capacity: "]);
}

fn waiting_gets_the_room_that_comes(front_end: FrontEnd) {
    let whole = [("fgpu/fraction", "1"), ("fgpu/device", "0")];
    let first = asking(front_end, &whole).start();
    let waiting = std::thread::spawn(move || {
        asking(front_end, &[("fgpu/fraction", "1"), ("fgpu/device", "0"), ("fgpu/wait", "5m")]).try_start()
    });
    wait_until("one that waits", || node::waiting() == 1);
    first.remove();
    let second = waiting
        .join()
        .expect("the waiting client ends")
        .unwrap_or_else(|output| panic!("{}", output.story()));
    assert_eq!(node::only_lease().id, second.id);

    let message = refusal(front_end, &[("fgpu/fraction", "1"), ("fgpu/device", "0"), ("fgpu/wait", "1s")]);
    assert_says(&message, &["fgpu: timed-out: "]);
}

fn both_front_ends_count_together() {
    let half = [("fgpu/fraction", "0.5")];
    for front_end in [FrontEnd::Shim, FrontEnd::Runtime, FrontEnd::Shim, FrontEnd::Runtime] {
        asking(front_end, &half).start();
    }
    node::assert_not_overcommitted(&node::gpus(), &node::leases());
    for front_end in [FrontEnd::Shim, FrontEnd::Runtime] {
        assert_says(&refusal(front_end, &half), &["fgpu: no-capacity: "]);
    }
}

fn more_than_the_node_is_too_large() {
    assert_says(&refusal(FrontEnd::Shim, &[("fgpu/memory", "81Gi")]), &["fgpu: too-large: "]);
    assert_says(
        &refusal(FrontEnd::Runtime, &[("fgpu/fraction", "0.5"), ("fgpu/count", "3")]),
        &["fgpu: too-large: "],
    );
    assert_says(
        &refusal(FrontEnd::Shim, &[("fgpu/fraction", "0.5"), ("fgpu/model", "b300")]),
        &["fgpu: no-gpu: "],
    );
}
