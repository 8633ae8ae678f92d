//! A container's resources changed while it runs (`docker update`, `podman update`, a pod's resize in place,
//! `runc update`): its GPU stays open and others closed. Engines hand on the device rules of the spec, which
//! a hook could not change; runc leaves them out, crun does not. The front ends open the GPU again at once;
//! where there is only the hook `fgpu gc` does, and its timer every minute.
//!
//! The lab's cgroup v2 has neither cpu nor memory controller, so what sets these is tried on v1; on v2 the
//! runtime is given the device rules alone. systemd's reloads are in `hook_systemd.rs`.

use std::fs;

use fgpu_lab::bundle::{Bundle, bundle, runtimes};
use fgpu_lab::command::{Output, run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::FrontEnd;
use fgpu_lab::{cri, docker, hooks, podman, systemd};
use serde_json::{Value, json};

use crate::hook::assert_has_quarter_of_first;

pub(crate) const TESTS: &[Test] = &[
    Test::once("updates::runtime_with_the_devices_of_the_spec", runtime_with_the_devices_of_the_spec),
    Test::once("updates::runtime_below_systemd", runtime_below_systemd),
    Test::once("updates::the_timer_opens_it_again", the_timer_opens_it_again),
    Test::once("updates::fgpu_runtime", fgpu_runtime),
    Test::both("updates::docker", docker_update),
    Test::once("updates::podman", podman_update),
    Test::both("updates::pod_is_resized_in_place", pod_is_resized_in_place),
    Test::both("updates::pod_over_crun_is_resized_in_place", pod_over_crun_is_resized_in_place),
];

const SHARE: [(&str, &str); 2] = [("fgpu/fraction", "0.25"), ("fgpu/device", "0")];

fn is_v1() -> bool {
    std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it").ends_with("-v1")
}

/// Device rules that know nothing of a GPU.
fn of_an_engine() -> Value {
    json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "access": "m"}])
}

/// What engines hand to `update`: nothing; the rules of the spec; and where there is a controller, a limit
/// with them.
fn resources(container: &Bundle) -> Vec<Value> {
    let devices = of_an_engine();
    let of_spec = &container.spec["linux"]["resources"]["devices"];
    let devices = if of_spec.is_array() { of_spec.clone() } else { devices };
    let mut all = vec![json!({}), json!({"devices": devices})];
    if is_v1() {
        all.push(json!({"devices": devices, "cpu": {"shares": 512}}));
    }
    all
}

#[track_caller]
fn assert_survives_updates(container: &Bundle, gc: impl Fn() -> Output) {
    let mut print = |script: &str| container.exec(&["sh", "-c", script]);
    assert_has_quarter_of_first(&mut print);
    for resources in resources(container) {
        let file = container.path.join("update.json");
        fs::write(&file, resources.to_string()).expect("the bundle is ours");
        let output = container.runtime(&["update", "--resources", &file.to_string_lossy()]);
        // crun 1.28 below systemd takes no rules, with fgpu or without.
        if output.stderr.contains("updating device access list not supported") {
            continue;
        }
        assert_eq!(output.status, 0, "{resources}: {}", output.story());
        assert_opens_again(&mut print, &gc);
    }
}

/// crun replaces its device rules by those that it is given; `fgpu gc` adds the grant's again. Nothing is to
/// be done after runc.
#[track_caller]
fn assert_opens_again(mut print: impl FnMut(&str) -> Output, gc: impl Fn() -> Output) {
    let gpu = format!("/dev/nvidia{}", fgpu_lab::node::gpus()[0].minor);
    let closed = print(&format!("nodes {gpu}")).ok().ends_with(" EPERM");
    let said = gc().ok().to_owned();
    assert_eq!(said.contains("opened the GPU of "), closed, "{said}");
    assert_has_quarter_of_first(&mut print);
    assert_eq!(gc().ok(), "nothing to release");
}

fn runtime_with_the_devices_of_the_spec() {
    for runtime in runtimes() {
        for stage in ["createRuntime", "prestart"] {
            let container =
                SHARE.iter().fold(bundle(runtime, "debian13").fgpu(stage), |made, (key, value)| {
                    made.annotation(key, value)
                });
            let container = container.start();
            assert_survives_updates(&container, || run(["fgpu", "gc"]));
            container.delete();
        }
    }
}

fn runtime_below_systemd() {
    // See hook_systemd.rs.
    let environment = std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it");
    if environment == "forky-v1" {
        return;
    }
    let systemd = systemd::start();
    for runtime in if is_v1() { &["runc"][..] } else { runtimes() } {
        let container = bundle(runtime, "debian13").below(&systemd).fgpu("createRuntime");
        let container = container.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0").start();
        assert_survives_updates(&container, || systemd.run(&["fgpu", "gc"]));
        // And then systemd's own turn.
        systemd.run(&["systemctl", "daemon-reload"]).ok();
        assert_has_quarter_of_first(|script| container.exec(&["sh", "-c", script]));
        container.delete();
    }
}

/// The timer's service is in a sandbox of systemd's, in which it may do what it takes on v2. (On v1 crun
/// refuses the hierarchies that systemd mounts.)
fn the_timer_opens_it_again() {
    if is_v1() {
        return;
    }
    let systemd = systemd::start();
    for has_scope in [true, false] {
        let bundle = bundle("crun", "debian13").fgpu("createRuntime");
        let bundle = if has_scope { bundle.below(&systemd) } else { bundle.beside(&systemd) };
        let container = SHARE.iter().fold(bundle, |made, (key, value)| made.annotation(key, value)).start();
        let mut print = |script: &str| container.exec(&["sh", "-c", script]);
        assert_has_quarter_of_first(&mut print);
        let file = container.path.join("update.json");
        fs::write(&file, json!({"devices": of_an_engine()}).to_string()).expect("the bundle is ours");
        let output = container.runtime(&["update", "--resources", &file.to_string_lossy()]);
        // crun 1.28 below systemd takes no rules, with fgpu or without.
        if !output.stderr.contains("updating device access list not supported") {
            assert_eq!(output.status, 0, "{}", output.story());
            let gpu = format!("/dev/nvidia{}", fgpu_lab::node::gpus()[0].minor);
            let closed = print(&format!("nodes {gpu}"));
            assert!(closed.ok().ends_with(" EPERM"), "{}", closed.story());
            systemd.run(&["systemctl", "start", "fgpu-gc.service"]).ok();
            assert_has_quarter_of_first(&mut print);
        }
        container.delete();
    }
}

/// After `update` the GPU is open, and its output is the real runtime's.
fn fgpu_runtime() {
    for runtime in runtimes() {
        let _configured = fgpu_lab::node::configure(&format!("runtimes = [\"{runtime}\"]"));
        let mut container = bundle("fgpu-runtime", "debian13");
        for (key, value) in SHARE {
            container = container.annotation(key, value);
        }
        let container = container.start();
        let plain = bundle(runtime, "debian13").start();
        let mut print = |script: &str| container.exec(&["sh", "-c", script]);
        assert_has_quarter_of_first(&mut print);
        let file = container.path.join("update.json");
        for resources in [json!({}), json!({"devices": of_an_engine()}), json!({"pids": {"limit": "none"}})] {
            fs::write(&file, resources.to_string()).expect("the bundle is ours");
            let words = ["update", "--resources", &file.to_string_lossy()];
            let [ours, theirs] = [&container, &plain].map(|one| one.runtime(&words));
            let said = |output: &Output| (output.status, output.stdout.clone(), output.stderr.clone());
            assert_eq!(said(&ours), said(&theirs), "{runtime} {resources}");
            assert_has_quarter_of_first(&mut print);
            assert_eq!(run(["fgpu", "gc"]).ok(), "nothing to release", "{runtime} {resources}");
        }
        plain.delete();
        container.delete();
    }
}

fn docker_update(front_end: FrontEnd) {
    let share = SHARE.iter().fold(docker::container("debian13").under(front_end), |made, (key, value)| {
        made.annotation(key, value)
    });
    let container = share.options(["--cap-add", "MKNOD"]).command(["sleep", "1000"]).start();
    let print = |script: &str| container.exec(["sh", "-c", script]);
    let mut updates = vec![vec!["--restart", "no"]];
    if is_v1() {
        updates.push(vec!["--cpu-shares", "512"]);
        updates.push(vec!["--memory", "512m", "--memory-swap", "1g"]);
    }
    for options in updates {
        container.docker(&[&["update"][..], &options].concat()).ok();
        assert_has_quarter_of_first(print);
    }
}

fn podman_update() {
    if !is_v1() {
        return; // every option of its wants a controller
    }
    let _installed = hooks::install();
    let options =
        ["--cap-add", "MKNOD", "--annotation", "fgpu/fraction=0.25", "--annotation", "fgpu/device=0"];
    for runtime in runtimes() {
        let unit = podman::start("debian13", runtime, "unit", &options);
        let mut print = |script: &str| -> Output { unit.exec(&["sh", "-c", script]) };
        assert_has_quarter_of_first(&mut print);
        let words = ["podman", "--runtime", runtime, "update", "--cpu-shares", "512", "unit"];
        let output = run(words);
        assert_eq!(output.status, 0, "{}", output.story());
        assert_opens_again(&mut print, || run(["fgpu", "gc"]));
        unit.remove();
    }
}

fn pod_is_resized_in_place(front_end: FrontEnd) {
    resize_a_pod(match front_end {
        FrontEnd::Shim => "fgpu",
        other => other.docker_runtime(),
    });
}

/// containerd hands on the device rules of the spec that it knows, and crun applies them.
fn pod_over_crun_is_resized_in_place(front_end: FrontEnd) {
    let _configured = fgpu_lab::node::configure("runtimes = [\"crun\"]");
    resize_a_pod(match front_end {
        FrontEnd::Shim => "fgpu-crun",
        other => other.docker_runtime(),
    });
}

/// Only v1 has the controllers for it.
fn resize_a_pod(handler: &str) {
    if !is_v1() {
        return;
    }
    let pod = cri::Pod::start("resized", handler, &SHARE);
    let container = pod.create("main", "debian13", &["sleep", "1000"]);
    container.start().ok();
    assert_keeps(&container);
    container.resize(512).ok();
    assert_keeps(&container);
    pod.remove();
}

/// CRI's containers may make no node of their own.
#[track_caller]
fn assert_keeps(container: &cri::Container) {
    let gpus = fgpu_lab::node::gpus();
    let granted = format!("/dev/nvidia{}", gpus[0].minor);
    let output = container.exec(&["nodes", &granted, "/dev/nvidiactl", "/dev/nvidia-uvm"]);
    assert!(output.ok().lines().all(|line| line.ends_with(" ENXIO")), "{}", output.story());
}
