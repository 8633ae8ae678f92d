//! A container opens the GPUs of its grant and no other, whatever device rules it brings and whatever nodes
//! it makes.

use fgpu_lab::bundle::{Bundle, bundle, runtimes};
use fgpu_lab::command::{Output, run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::podman::container;
use fgpu_lab::{docker, hooks};
use serde_json::{Value, json};

use crate::hook::{assert_nothing_is_left, number};

pub(crate) const TESTS: &[Test] = &[
    Test::both("devices::docker_opens_no_other_gpu", docker_opens_no_other_gpu),
    Test::once("devices::podman_opens_no_other_gpu", podman_opens_no_other_gpu),
    Test::once("devices::hooks_open_no_other_gpu", hooks_open_no_other_gpu),
];

/// Rules of `--device-cgroup-rule` that reach another GPU.
const RULES: [&str; 6] = ["c 195:* rwm", "c 195:1 rw", "c *:* rwm", "c *:1 rw", "a *:* rwm", "c 195:* r"];

/// Opens nodes of the second GPU and of the first, made by itself, and one of a driver that a wildcard allows
/// besides.
fn script() -> String {
    format!("nodes -m {} {} 10:229", number("/dev/nvidia1"), number("/dev/nvidia0"))
}

/// `others`: whether the rule was for every device.
#[track_caller]
fn assert_only_the_first(output: &Output, others: bool) {
    let lines: Vec<_> = output.ok().lines().collect();
    assert_eq!(lines[0], format!("{} EPERM", number("/dev/nvidia1")), "{}", output.story());
    assert_eq!(lines[1], format!("{} ENXIO", number("/dev/nvidia0")), "{}", output.story());
    assert_eq!(lines[2] != "10:229 EPERM", others, "{}", output.story());
}

fn is_for_all(rule: &str) -> bool {
    rule.ends_with("*:* rwm")
}

fn docker_opens_no_other_gpu(front_end: FrontEnd) {
    let script = script();
    let quarter = || {
        docker::container("debian13")
            .under(front_end)
            .annotation("fgpu/fraction", "0.25")
            .annotation("fgpu/device", "0")
            .command(["sh", "-c", &script])
    };
    for rule in RULES {
        let output = quarter().options(["--device-cgroup-rule", rule]).run();
        assert_only_the_first(&output, is_for_all(rule));
    }
    // Another GPU under the name of the granted one, and under one of its own.
    for name in ["/dev/nvidia0", "/dev/nvidia1", "/dev/fuse7"] {
        let output = quarter().options(["--device", &format!("/opt/fgpu-sim/dev/nvidia1:{name}")]).run();
        assert_only_the_first(&output, false);
    }
    node::wait_until_free();
}

fn podman_opens_no_other_gpu() {
    let script = script();
    let quarter =
        ["--rm", "--cap-add", "MKNOD", "--annotation", "fgpu/fraction=0.25", "--annotation", "fgpu/device=0"];
    let check = |runtime: &str| {
        for rule in RULES {
            // Podman refuses what is no type, major and minor.
            let options = [&quarter[..], &["--device-cgroup-rule", rule]].concat();
            let output = container("debian13", runtime, &options, &["sh", "-c", &script]);
            assert_taken_or_refused(&output, is_for_all(rule));
        }
    };
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [\"{runtime}\"]"));
        check("/usr/bin/fgpu-runtime");
    }
    let _installed = hooks::install();
    runtimes().iter().for_each(|runtime| check(runtime));
    node::wait_until_free();
    assert_nothing_is_left();
}

/// A hook may also refuse what it cannot take back: with systemd's scopes on v1, or where all is allowed
/// there.
#[track_caller]
fn assert_taken_or_refused(output: &Output, others: bool) {
    if output.status == 0 {
        assert_only_the_first(output, others);
    } else {
        assert!(output.stderr.contains("conflict") || output.status == 126, "{}", output.story());
    }
}

fn hooks_open_no_other_gpu() {
    let script = script();
    let numbers = number("/dev/nvidia1");
    let (major, minor) = numbers.split_once(':').expect("two numbers");
    let [major, minor] = [major, minor].map(|number| number.parse::<i64>().expect("a number"));
    let rule = |rule: Value| {
        move |bundle: Bundle| {
            bundle.edit(|spec| {
                let rules = &mut spec["linux"]["resources"]["devices"];
                if rules.is_null() {
                    *rules = json!([]);
                }
                rules.as_array_mut().expect("a list").push(rule.clone());
            })
        }
    };
    for runtime in runtimes() {
        for (beyond, others) in [
            (json!({"allow": true, "type": "c", "major": major, "access": "rw"}), false),
            (json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"}), false),
            (json!({"allow": true, "type": "c", "access": "rwm"}), true),
        ] {
            let add = rule(beyond.clone());
            let quarter = || {
                let bundle = add(bundle(runtime, "debian13"));
                bundle.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0")
            };
            // Without a share it opens the other GPU: the rule does what it says.
            let plain = add(bundle(runtime, "debian13")).run(&["nodes", "-m", &numbers]);
            assert_eq!(plain.ok(), format!("{numbers} ENXIO"));
            let output = quarter().fgpu("createRuntime").run(&["sh", "-c", &script]);
            assert_only_the_first(&output, others);
            assert_nothing_is_left();
        }
        // All that there is: the spec's own first rule forbids it.
        let add = rule(json!({"allow": true, "access": "rwm"}));
        let all = add(bundle(runtime, "debian13")).annotation("fgpu/fraction", "0.25");
        let output = all.annotation("fgpu/device", "0").fgpu("createRuntime").run(&["sh", "-c", &script]);
        assert_taken_or_refused(&output, true);
        assert_nothing_is_left();
    }
    run(["fgpu", "gc"]).ok();
}
