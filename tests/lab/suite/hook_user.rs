//! Containers with a user namespace, and an engine that is in one itself.

use std::fs;
use std::path::Path;

use fgpu_lab::bundle::{Bundle, bundle, runtimes};
use fgpu_lab::command::{Output, run, shell};
use fgpu_lab::inside::Test;
use fgpu_lab::{hooks, node, podman};
use serde_json::json;

use crate::hook::assert_nothing_is_left;

pub(crate) const TESTS: &[Test] = &[
    Test::once("hook_user::bundle_with_user_namespace_works", bundle_with_user_namespace_works),
    Test::once("hook_user::podman_with_user_namespace_works", podman_with_user_namespace_works),
    Test::once("hook_user::the_runtime_works_in_a_user_namespace", the_runtime_works_in_a_user_namespace),
    Test::once("hook_user::rootless_podman_is_told_what_to_do", rootless_podman_is_told_what_to_do),
];

const QUARTER: [&str; 4] = ["--annotation", "fgpu/fraction=0.25", "--annotation", "fgpu/device=0"];
const LOOK: &str = "alloc count info fill; nodes /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia1; nvidia-smi -L; \
    tr -s ' ' </proc/self/uid_map";

/// As a container's root that is nobody special on the host, which cannot make nodes.
#[track_caller]
fn assert_has_quarter(output: &Output, outer: &str) {
    let granted = node::gpus()[0].share(250_000);
    let lines: Vec<_> = output.ok().lines().collect();
    assert_eq!(lines[0], "count devices=1");
    assert!(lines[1].ends_with(&format!(" total={granted} device={granted}")), "{}", output.story());
    crate::limit::assert_filled(lines[2], granted);
    let nodes =
        ["/dev/nvidia0 ENXIO", "/dev/nvidiactl ENXIO", "/dev/nvidia-uvm ENXIO", "/dev/nvidia1 ENOENT"];
    assert_eq!(lines[3..7], nodes, "{}", output.story());
    assert!(lines[7].starts_with("GPU 0: "), "{}", output.story());
    assert!(
        lines[8].trim().starts_with(&format!("0 {outer}")),
        "not in a user namespace: {}",
        output.story()
    );
}

fn in_user_namespace(container: Bundle) -> Bundle {
    container.edit(|spec| {
        let linux = &mut spec["linux"];
        linux["namespaces"].as_array_mut().expect("namespaces").push(json!({"type": "user"}));
        let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    })
}

fn bundle_with_user_namespace_works() {
    for runtime in runtimes() {
        for stage in ["createRuntime", "prestart"] {
            let container = in_user_namespace(bundle(runtime, "debian13").fgpu(stage));
            let container =
                container.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0").start();
            assert_has_quarter(&container.exec(&["sh", "-c", LOOK]), "100000");
            container.delete();
            assert_nothing_is_left();
        }
    }
}

fn podman_with_user_namespace_works() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        assert_works_in_user_namespaces(runtime, &QUARTER);
    }
}

/// A runtime that may make no node mounts what the host has at its path; the driver's are below a root of
/// their own here.
fn the_runtime_works_in_a_user_namespace() {
    assert!(!Path::new("/dev/nvidiactl").exists(), "the host's /dev has none");
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [\"{runtime}\"]"));
        assert_works_in_user_namespaces("/usr/bin/fgpu-runtime", &QUARTER);
    }
}

#[track_caller]
pub(crate) fn assert_works_in_user_namespaces(runtime: &str, asking: &[&str]) {
    // Whose ids `auto` takes.
    shell("id containers 2>/dev/null || useradd --system containers").ok();
    fs::write("/etc/subuid", "containers:200000:131072\n").expect("/etc is writable");
    fs::write("/etc/subgid", "containers:200000:131072\n").expect("/etc is writable");
    for (mapping, outer) in [("--userns=auto", "2"), ("--uidmap=0:100000:65536", "100000")] {
        let options = [&["--rm", mapping], asking].concat();
        let output = podman::container("debian13", runtime, &options, &["sh", "-c", LOOK]);
        assert_has_quarter(&output, outer);
        node::wait_until_free();
        assert_nothing_is_left();
    }
}

/// Its containers' leases would be its own, and the node's GPUs are shared by all.
fn rootless_podman_is_told_what_to_do() {
    let _installed = hooks::install();
    shell(
        "id lab 2>/dev/null || useradd --create-home --uid 1000 lab; echo lab:300000:65536 >/etc/subuid; \
         cp /etc/subuid /etc/subgid; mkdir -p /run/user/1000 /var/lib/containers/rootless; \
         chown lab /run/user/1000 /var/lib/containers/rootless; chmod u+s /usr/bin/newuidmap /usr/bin/newgidmap",
    )
    .ok();
    for runtime in runtimes() {
        let rootless = |words: &[&str]| {
            let user =
                ["setpriv", "--reuid", "1000", "--regid", "1000", "--init-groups", "--reset-env", "env"];
            let environment =
                ["XDG_RUNTIME_DIR=/run/user/1000", "PODMAN_IGNORE_CGROUPSV1_WARNING=1", "PATH=/usr/bin:/bin"];
            let engine = [
                "podman",
                "--root",
                "/var/lib/containers/rootless",
                "--hooks-dir",
                "/usr/share/containers/oci/hooks.d",
                "--runtime",
                runtime,
                "--cgroup-manager",
                "cgroupfs",
            ];
            run([&user[..], &environment, &engine, words].concat())
        };
        rootless(&["import", "/opt/images/busybox.tar", "bb"]).ok();
        let run = ["run", "--rm", "--network", "none"];
        // It works without us.
        rootless(&[&run[..], &["localhost/bb", "true"]].concat()).ok();
        let annotation = ["--annotation", "fgpu/fraction=0.25"];
        let output = rootless(&[&run[..], &annotation, &["localhost/bb", "true"]].concat());
        let said = output.refused();
        for word in ["fgpu: denied: ", "fgpu/fraction=0.25", "rootless", "sudo podman run"] {
            assert!(said.contains(word), "no {word:?} in: {said}");
        }
    }
    assert_nothing_is_left();
}
