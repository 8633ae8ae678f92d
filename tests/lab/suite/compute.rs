//! The share of SM time holds.

use fgpu_lab::command::run;
use fgpu_lab::docker::{self, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

use crate::limit::number;

pub(crate) const TESTS: &[Test] = &[
    Test::both(
        "compute::a_quarter_of_the_sms_is_a_quarter_of_the_time",
        a_quarter_of_the_sms_is_a_quarter_of_the_time,
    ),
    Test::once("compute::two_containers_have_their_own_shares", two_containers_have_their_own_shares),
    Test::both("compute::memory_alone_takes_what_others_leave", memory_alone_takes_what_others_leave),
];

/// Nanoseconds of kernels.
const ALL: u64 = 400_000_000;

fn share(front_end: FrontEnd, cores: &str, compute: &str) -> Run {
    docker::container("debian13")
        .under(front_end)
        .annotation("fgpu/memory", "1Gi")
        .annotation("fgpu/cores", cores)
        .annotation("fgpu/compute", compute)
        .annotation("fgpu/device", "0")
}

/// Percent of the passed time in which a container's kernels ran. A busy machine makes it less, and never
/// more.
#[track_caller]
fn percent(line: &str) -> u64 {
    assert!(line.starts_with("spin "), "{line}");
    assert!(number(line, "kernels=") >= ALL, "{line}");
    number(line, "kernels=") * 100 / number(line, "passed=")
}

fn a_quarter_of_the_sms_is_a_quarter_of_the_time(front_end: FrontEnd) {
    let all = ALL.to_string();
    for (kernel, streams) in [("10000000", "1"), ("200000", "16")] {
        let output = share(front_end, "25", "cap").command(["spin", &all, kernel, streams]).run();
        let got = percent(output.ok().trim());
        assert!(got <= 28, "{got}% with kernels of {kernel} ns");
    }
}

fn two_containers_have_their_own_shares() {
    let tenants = ["30", "70"].map(|cores| {
        // It stays: of what a container prints at its end, engines lose some (fgpu_lab, src/capture.rs).
        let script = format!("spin {ALL} 1000000; exec sleep 1000");
        let container = share(FrontEnd::Shim, cores, "cap").command(["sh", "-c", &script]).start();
        (cores.parse::<u64>().expect("a number"), container)
    });
    for (cores, container) in tenants {
        let got = percent(container.wait_for_log("spin ").trim());
        assert!(got <= cores + 5, "{got}% instead of {cores}%");
    }
}

/// Some of them and a share of all SM time have room on one GPU: those take none of it, and none of them
/// stands still.
fn memory_alone_takes_what_others_leave(front_end: FrontEnd) {
    let script = format!("spin {ALL} 1000000; exec sleep 1000");
    let alone = |memory: &str| {
        let run = docker::container("debian13").under(front_end).annotation("fgpu/memory", memory);
        run.annotation("fgpu/device", "0").command(["sh", "-c", &script]).start()
    };
    let first = ["8Gi", "8192Mi"].map(alone);
    let booked = share(front_end, "100", "cap").command(["sh", "-c", &script]).start();
    let last = alone("1G");
    assert_eq!(node::leases().len(), 4);
    for container in first.iter().chain([&booked, &last]) {
        assert!(number(container.wait_for_log("spin ").trim(), "kernels=") >= ALL);
    }
    let status = run(["fgpu", "status"]).ok().to_owned();
    assert_eq!(status.lines().filter(|line| line.contains(" share ")).count(), 3, "{status}");

    // Another share while it runs, and back; what is not named stays.
    let id = &first[0].id[..12];
    let resize = |words: &[&str]| run([&["fgpu", "resize", id], words].concat());
    assert!(resize(&["--memory", "4Gi"]).ok().contains("share → share of the SMs"));
    assert!(resize(&["--compute", "cap"]).refused().starts_with("fgpu: conflict: "));
    assert!(resize(&["--cores", "1%"]).refused().starts_with("fgpu: no-capacity: "));
    assert!(
        run(["fgpu", "resize", &booked.id[..12], "--cores", "30%"]).ok().contains("100% → 30% of the SMs")
    );
    assert!(resize(&["--cores", "20%"]).ok().contains("share → 20% of the SMs"));
}
