//! NVIDIA's own runtime library (libcudart), 12.9 and 13.5, shared, static and with a default stream for each
//! thread, in a share: the program of tests/driver/cudart uses each of its calls that takes memory.

use std::collections::BTreeMap;

use fgpu_lab::calls;
use fgpu_lab::command::{Output, run};
use fgpu_lab::docker::{self, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

use crate::run::fgpu_run;

pub(crate) const TESTS: &[Test] = &[
    Test::both("cudart::every_call_that_takes_memory_ends_at_the_limit", every_call_ends_at_the_limit),
    Test::once("cudart::a_run_is_limited_too", a_run_is_limited_too),
    Test::once("cudart::memory_of_another_process_counts_once", memory_of_another_process_counts_once),
    Test::once("cudart::processes_share_what_is_granted", processes_share_what_is_granted),
    Test::once("cudart::each_gpu_has_its_own_limit", each_gpu_has_its_own_limit),
    Test::once(
        "cudart::properties_are_the_gpus_but_for_its_memory",
        properties_are_the_gpus_but_for_its_memory,
    ),
    Test::once(
        "cudart::a_share_without_room_for_a_context_says_so",
        a_share_without_room_for_a_context_says_so,
    ),
    Test::once("cudart::every_call_is_simulated", every_call_is_simulated),
];

const VERSIONS: [&str; 6] =
    ["12.9", "12.9-static", "12.9-per-thread", "13.5", "13.5-static", "13.5-per-thread"];
/// A node with a driver for both versions, and what its contexts take.
const NODE: &str = "h100-80-x2-cuda13.toml";
const CONTEXT: u64 = 500 << 20;
const SHARE: &str = "4Gi";
const GRANTED: u64 = 4 << 30;
/// What the program asks for at a time.
const PIECE: u64 = 64 << 20;

fn share(image: &str, front_end: FrontEnd) -> Run {
    docker::container(image).under(front_end).annotation("fgpu/memory", SHARE).annotation("fgpu/device", "0")
}

fn program(version: &str) -> String {
    format!("/opt/programs/cudart-{version}")
}

/// The number behind `key=` in a line.
#[track_caller]
fn number(line: &str, key: &str) -> u64 {
    let words: BTreeMap<_, _> = line.split(' ').filter_map(|word| word.split_once('=')).collect();
    words.get(key).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} in {line:?}"))
}

/// The line that begins so.
#[track_caller]
fn line<'a>(output: &'a str, begin: &str) -> &'a str {
    output.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("no {begin} in {output}"))
}

/// Checks `info fill work info`: our numbers, the runtime's error at the limit, and life after it.
#[track_caller]
fn assert_limited(output: &Output, granted: u64) {
    let text = output.ok();
    let info = line(text, "info ");
    assert_eq!((number(info, "total"), number(info, "properties")), (granted, granted), "{text}");
    assert_eq!(number(info, "free"), granted - CONTEXT, "{text}");
    let fills: Vec<_> = text.lines().filter(|line| line.starts_with("fill ")).collect();
    assert_eq!(fills.len(), 11, "{text}");
    for fill in fills {
        assert!(fill.ends_with("error=cudaErrorMemoryAllocation"), "{fill}");
        assert_eq!(number(fill, "before"), granted - CONTEXT, "{fill}");
        assert_eq!(number(fill, "after"), granted - CONTEXT, "{fill}");
        assert!(number(fill, "full") < 2 * PIECE, "{fill}");
        assert!(number(fill, "pieces") <= (granted - CONTEXT) / PIECE + 1, "{fill}");
    }
    assert_eq!(number(line(text, "pinned "), "cost"), 0, "the host's memory, while the GPU is full: {text}");
    let limits = line(text, "limits ");
    assert_eq!((number(limits, "cost"), number(limits, "left")), (64 << 20, 0), "{text}");
    assert!(text.contains("work done\n"), "{text}");
    // The program's code stays.
    let last = text.lines().last().unwrap_or_default();
    assert_eq!(number(last, "free"), granted - CONTEXT - number(line(text, "code "), "cost"), "{text}");
}

const ALL: [&str; 4] = ["info", "fill", "work", "info"];

/// What a driver that counts for itself says of GPU 0.
fn outside() -> u64 {
    let status = run(["/opt/fgpu-sim.dist/fgpu-sim", "status", "--json", "--root", "/opt/fgpu-sim"]);
    let status: serde_json::Value = serde_json::from_str(status.ok()).expect("JSON");
    status[0]["memory_used"].as_u64().expect("bytes")
}

fn every_call_ends_at_the_limit(front_end: FrontEnd) {
    let _node = node::simulated(NODE);
    node::gpus();
    for image in ["debian13", "debian11"] {
        let container = share(image, front_end).command(["sleep", "1000"]).start();
        for version in VERSIONS {
            let program = program(version);
            assert_limited(&container.exec([&[program.as_str()][..], &ALL].concat()), GRANTED);
        }
        assert_eq!(outside(), 0, "all is free at the end");
        container.remove();
    }
}

fn a_run_is_limited_too() {
    let _node = node::simulated(NODE);
    node::gpus();
    for version in VERSIONS {
        let program = program(version);
        let command = [&[program.as_str()][..], &ALL].concat();
        assert_limited(&fgpu_run(&["-m", SHARE, "-a", "device=0"], &command), GRANTED);
    }
    node::wait_until_free();
}

fn memory_of_another_process_counts_once() {
    let _node = node::simulated(NODE);
    node::gpus();
    let container = share("debian13", FrontEnd::Shim).command(["sleep", "1000"]).start();
    for version in VERSIONS {
        let output = container.exec([program(version), "share".to_owned()]);
        let text = output.ok();
        assert_eq!(
            number(line(text, "shared "), "context"),
            CONTEXT,
            "the other one has only its context: {text}"
        );
        let share = line(text, "share ");
        assert_eq!(number(share, "before"), number(share, "after"), "{text}");
    }
}

/// Eight programs that fill the share at the same time stay within it, by the driver's own books, and each
/// runs on.
fn processes_share_what_is_granted() {
    let _node = node::simulated(NODE);
    node::gpus();
    let container = docker::container("debian13")
        .under(FrontEnd::Shim)
        .annotation("fgpu/memory", "16Gi")
        .annotation("fgpu/device", "0")
        .command(["sleep", "1000"])
        .start();
    // All have a context before the first one fills.
    let script = "for i in 1 2 3 4; do for version in 12.9 13.5-static; do \
            /opt/programs/cudart-$version info until /tmp/go fill info >>/tmp/out & \
        done; done; \
        until [ \"$(grep -c ^info /tmp/out)\" = 8 ]; do sleep 0.05; done; touch /tmp/go; wait; cat /tmp/out";
    let output = container.exec(["sh", "-c", script]);
    let text = output.ok();
    let ends = text.lines().filter(|line| line.starts_with("fill "));
    assert!(ends.clone().all(|line| line.ends_with("error=cudaErrorMemoryAllocation")), "{text}");
    assert_eq!(ends.count(), 8 * 11, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("info ")).count(), 16, "each runs on: {text}");
    let after = container.exec([program("12.9"), "info".to_owned()]);
    assert_eq!(number(after.ok(), "free"), (16 << 30) - CONTEXT, "nothing of theirs is left");
}

fn each_gpu_has_its_own_limit() {
    let _node = node::simulated(NODE);
    node::gpus();
    let container = docker::container("debian13")
        .under(FrontEnd::Shim)
        .annotation("fgpu/memory", SHARE)
        .annotation("fgpu/count", "2")
        .command(["sleep", "1000"])
        .start();
    for version in VERSIONS {
        let output =
            container.exec([&program(version), "0", "info", "fill", "1", "info", "fill", "0", "info"]);
        let text = output.ok();
        let infos: Vec<_> = text.lines().filter(|line| line.starts_with("info ")).collect();
        assert_eq!(infos.len(), 3, "{text}");
        for info in infos {
            assert_eq!((number(info, "devices"), number(info, "total")), (2, GRANTED), "{text}");
            assert_eq!(number(info, "free"), GRANTED - CONTEXT, "{text}");
        }
        let fills: Vec<_> = text.lines().filter(|line| line.starts_with("fill ")).collect();
        assert_eq!(fills.len(), 22, "{text}");
        assert!(fills.iter().all(|fill| number(fill, "before") == number(fill, "after")), "{text}");
    }
}

fn properties_are_the_gpus_but_for_its_memory() {
    for (file, versions, of_gpu) in [
        (
            NODE,
            &VERSIONS[..],
            "multiProcessorCount=132 major=9 l2CacheSize=52428800 sharedMemPerMultiprocessor=233472",
        ),
        (
            "a100-40.toml",
            &VERSIONS[..3],
            "multiProcessorCount=108 major=8 l2CacheSize=41943040 sharedMemPerBlockOptin=166912",
        ),
    ] {
        let _node = node::simulated(file);
        node::gpus();
        let container = share("debian13", FrontEnd::Shim).command(["sleep", "1000"]).start();
        for version in versions {
            let output = container.exec([program(version), "properties".to_owned()]);
            let expected = format!("totalGlobalMem={GRANTED} {of_gpu}");
            for property in expected.split(' ') {
                assert!(output.ok().lines().any(|line| line == property), "{property}: {}", output.story());
            }
        }
        container.remove();
    }
}

fn a_share_without_room_for_a_context_says_so() {
    let _node = node::simulated(NODE);
    node::gpus();
    for version in VERSIONS {
        let output = docker::container("debian13")
            .under(FrontEnd::Shim)
            .annotation("fgpu/memory", "400Mi")
            .annotation("fgpu/device", "0")
            .command([program(version), "info".to_owned()])
            .run();
        assert_eq!(output.status, 1, "{}", output.story());
        assert!(output.stdout.contains("cudaErrorMemoryAllocation"), "{}", output.story());
    }
}

/// The simulated driver has every function that the runtime calls: what it lacks is named in its log.
fn every_call_is_simulated() {
    let _node = node::simulated(NODE);
    node::gpus();
    calls::start();
    let container = share("debian13", FrontEnd::Shim).command(["sleep", "1000"]).start();
    for version in VERSIONS {
        let program = program(version);
        container.exec([program.as_str(), "info", "properties", "fill", "work", "share", "reset"]).ok();
    }
    let log = calls::assert_known();
    assert!(log.iter().any(|line| line.starts_with("call cuMemAllocManaged ")), "{log:?}");
}
