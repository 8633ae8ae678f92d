//! The `driver` tier: a driver that limits memory by cgroup (r615) holds whoever leaves our libraries out.

use std::path::Path;

use fgpu_lab::command::{run, wait_until};
use fgpu_lab::docker::{self, Container};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd, Simulated};
use fgpu_lab::process;
use serde_json::Value;

use crate::limit::assert_filled;
use crate::run::fgpu_run;

pub(crate) const TESTS: &[Test] = &[
    Test::both("driver_tier::limit_holds_without_our_libraries", limit_holds_without_our_libraries),
    Test::once("driver_tier::a_run_is_limited_too", a_run_is_limited_too),
    Test::once("driver_tier::killed_on_the_way_nothing_stays", killed_on_the_way_nothing_stays),
    Test::once(
        "driver_tier::a_driver_that_refuses_leaves_the_quota_tier",
        a_driver_that_refuses_leaves_the_quota_tier,
    ),
    Test::once("driver_tier::there_is_none_without_the_driver", there_is_none_without_the_driver),
];

/// `alloc` with the real library, which a process of the container finds when it looks for it.
fn around(words: &str) -> [String; 3] {
    ["sh".into(), "-c".into(), format!("exec /opt/programs/alloc --lib /run/fgpu/driver-*/cuda {words}")]
}

/// A node with such a driver; `None` in an environment of cgroup v1, which the driver does not serve.
fn simulated() -> Option<Simulated> {
    let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    is_v2.then(|| node::simulated("h100-80-x2-limits.toml"))
}

/// What the driver keeps of GPU 0: soft and hard limit of each cgroup.
fn limits() -> Vec<(u64, u64)> {
    let status = run(["/opt/fgpu-sim.dist/fgpu-sim", "status", "--json", "--root", "/opt/fgpu-sim"]);
    let status: Value = serde_json::from_str(status.ok()).expect("JSON");
    let limits = status[0]["memory_limits"].as_array().expect("a list");
    let number = |value: &Value| value.as_u64().expect("bytes");
    limits.iter().map(|limit| (number(&limit["soft"]), number(&limit["hard"]))).collect()
}

fn tiers() -> Vec<String> {
    let status: Value = serde_json::from_str(run(["fgpu", "status", "--json"]).ok()).expect("JSON");
    let leases = status["leases"].as_array().expect("a list");
    leases.iter().map(|lease| lease["tier"].as_str().unwrap_or_default().to_owned()).collect()
}

fn quarter(front_end: FrontEnd, isolation: &str) -> Container {
    docker::container("debian13")
        .under(front_end)
        .annotation("fgpu/fraction", "0.25")
        .annotation("fgpu/device", "0")
        .annotation("fgpu/isolation", isolation)
        .command(["sleep", "1000"])
        .start()
}

fn granted(ppm: u64) -> u64 {
    node::gpus()[0].share(ppm)
}

fn limit_holds_without_our_libraries(front_end: FrontEnd) {
    let Some(_node) = simulated() else { return };
    let container = quarter(front_end, "auto");
    assert_eq!((tiers(), limits()), (vec!["driver".to_owned()], vec![(0, granted(250_000))]));
    assert_filled(container.exec(["alloc", "fill"]).ok(), granted(250_000));
    assert_filled(container.exec(around("fill")).ok(), granted(250_000));
    // Several processes have one limit, and it moves with the share.
    assert_filled(container.exec(around("race 4 kill-all fill")).ok(), granted(250_000));
    run(["fgpu", "resize", &container.id, "--fraction", "0.5"]).ok();
    assert_filled(container.exec(around("fill")).ok(), granted(500_000));
    // A neighbour has his own.
    let neighbour = quarter(front_end, "driver");
    assert_filled(neighbour.exec(around("fill")).ok(), granted(250_000));
    assert_eq!(limits().len(), 2);
    neighbour.remove();
    container.remove();
    node::wait_until_free();
    assert_eq!(limits(), []);
}

fn a_run_is_limited_too() {
    let Some(_node) = simulated() else { return };
    let ask = ["-p", "0.25", "-a", "device=0", "-a", "isolation=driver"];
    let output = fgpu_run(&ask, &around("fill").each_ref().map(String::as_str));
    assert_filled(output.ok(), granted(250_000));
    node::wait_until_free();
    assert_eq!(limits(), []);
}

/// Whatever ends a container, the driver has forgotten it before its lease is gone.
fn killed_on_the_way_nothing_stays() {
    let Some(_node) = simulated() else { return };
    let [ours, stock] = ["/usr/bin/containerd-shim-fgpu-v2", "/usr/bin/containerd-shim-runc-v2"];
    for front_end in [FrontEnd::Shim, FrontEnd::Runtime] {
        for victims in [&[ours][..], &[ours, stock]] {
            let container = quarter(front_end, "driver");
            let init = container.pid();
            let shims: Vec<_> =
                victims.iter().flat_map(|program| process::running(program, &container.id)).collect();
            // A relay's job is over soon, and with one of them may go what is left of another.
            for shim in shims {
                process::kill(shim.pid);
            }
            process::kill(init);
            wait_until("the end of the lease", || {
                run(["fgpu", "gc"]).ok();
                let free = node::leases().is_empty();
                assert!(
                    !free || limits().is_empty(),
                    "the lease is gone before the driver's limit: {:?}",
                    limits()
                );
                free
            });
            container.remove();
        }
    }
}

fn a_driver_that_refuses_leaves_the_quota_tier() {
    let Some(_node) = simulated() else { return };
    run(["fgpu", "inventory", "--refresh"]).ok();
    // NVML answers to nobody from now on; CUDA works.
    let fault = |code: &str| {
        let set = ["/opt/fgpu-sim.dist/fgpu-sim", "set", "--root", "/opt/fgpu-sim", "--gpu", "0"];
        run([&set[..], &[&format!("nvml-device={code}")]].concat()).ok();
    };
    fault("999");
    let container = quarter(FrontEnd::Shim, "auto");
    assert_eq!(tiers(), ["quota"]);
    assert_filled(container.exec(["alloc", "fill"]).ok(), granted(250_000));
    let note = std::fs::read_to_string("/run/fgpu/allocations.json").expect("it is there");
    assert!(note.contains("the quota libraries alone hold the memory limit"), "{note}");
    container.remove();
    node::wait_until_free();
    let refused = docker::container("debian13")
        .under(FrontEnd::Shim)
        .annotation("fgpu/fraction", "0.25")
        .annotation("fgpu/device", "0")
        .annotation("fgpu/isolation", "driver")
        .command(["true"])
        .run();
    assert!(refused.refused().contains("driver-error"), "{}", refused.story());
    node::wait_until_free();
    fault("0");
    assert_eq!(limits(), []);
}

fn there_is_none_without_the_driver() {
    let run = docker::container("busybox").under(FrontEnd::Shim).annotation("fgpu/fraction", "0.25");
    let output = run.annotation("fgpu/isolation", "driver").command(["true"]).run();
    let said = output.refused();
    assert!(said.contains("denied") && said.contains("r615"), "{}", output.story());
}
