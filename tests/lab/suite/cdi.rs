//! A share as a CDI device: what each engine makes of the file, and what stands beside a device.
//!
//! What `docker run` does with a share runs over this way, too: see the cases `::cdi` of the other files.

use std::fs;
use std::path::Path;

use fgpu_lab::bundle::runtimes;
use fgpu_lab::command::{Output, run, shell};
use fgpu_lab::docker::{self, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::{cri, hooks, podman};
use serde_json::{Value, json};

use crate::hook::{assert_has_quarter_of_first, assert_nothing_is_left};

pub(crate) const TESTS: &[Test] = &[
    Test::once("cdi::every_engine_knows_every_name", every_engine_knows_every_name),
    Test::once("cdi::without_a_device_nothing_changes", without_a_device_nothing_changes),
    Test::once("cdi::without_a_driver_the_reason_is_told", without_a_driver_the_reason_is_told),
    Test::once("cdi::podman_gives_a_share", podman_gives_a_share),
    Test::once("cdi::podman_gives_a_share_in_user_namespaces", podman_gives_a_share_in_user_namespaces),
    Test::once("cdi::annotations_of_an_image_are_not_heard", annotations_of_an_image_are_not_heard),
    Test::once("cdi::containerd_gives_a_pod_a_share", containerd_gives_a_pod_a_share),
    Test::once("cdi::malformed_names_are_refused", malformed_names_are_refused),
    Test::once("cdi::one_name_twice_is_one_share", one_name_twice_is_one_share),
    Test::once("cdi::two_names_contradict_each_other", two_names_contradict_each_other),
    Test::once(
        "cdi::beside_another_front_end_there_is_one_grant",
        beside_another_front_end_there_is_one_grant,
    ),
    Test::once("cdi::nvidias_devices_are_refused", nvidias_devices_are_refused),
    Test::once("cdi::options_of_docker_run", options_of_docker_run),
];

/// UUID, total MiB of each GPU.
pub(crate) const QUERY: &str = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits";
const FIRST: [&str; 2] = ["--annotation", "fgpu/device=0"];
/// The node's devices.
const FILE: &str = "/run/cdi/fgpu.json";
/// Where tests put devices of their own.
const MORE: &str = "/etc/cdi/lab.json";

fn device(name: &str) -> [String; 2] {
    ["--device".to_owned(), format!("fgpu.dev/gpu={name}")]
}

pub(crate) fn with(image: &str, names: &[&str]) -> Run {
    docker::container(image).options(names.iter().flat_map(|name| device(name)))
}

/// The names that the node's file has.
fn names() -> Vec<String> {
    let file = fs::read_to_string(FILE).expect("the node has its file");
    let file: Value = serde_json::from_str(&file).expect("it is JSON");
    let devices = file["devices"].as_array().expect("it has devices");
    devices.iter().map(|device| device["name"].as_str().expect("a device has a name").to_owned()).collect()
}

/// A CDI file of this kind and these devices, by name and edits.
fn file(kind: &str, devices: impl IntoIterator<Item = (String, Value)>) -> String {
    let devices: Vec<_> =
        devices.into_iter().map(|(name, edits)| json!({"name": name, "containerEdits": edits})).collect();
    json!({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}).to_string()
}

/// The edits of the device `name` in our own file, with `other` for its name.
fn edits_of(name: &str, other: &str) -> Value {
    let file: Value = serde_json::from_str(run(["fgpu", "cdi"]).ok()).expect("it is JSON");
    let devices = file["devices"].as_array().expect("it has devices");
    let device = devices.iter().find(|device| device["name"] == name).expect("it has that name");
    let quoted = |name: &str| json!(name).to_string();
    let text = device["containerEdits"].to_string().replace(&quoted(name), &quoted(other));
    serde_json::from_str(&text).expect("it is JSON")
}

/// Removes a CDI file of a test.
struct Written(&'static str);

fn write(path: &'static str, text: &str) -> Written {
    fs::create_dir_all("/etc/cdi").and_then(|()| fs::write(path, text)).expect("/etc can be written");
    Written(path)
}

impl Drop for Written {
    fn drop(&mut self) {
        // Another test's names are not this one's concern.
        let _ = fs::remove_file(self.0);
    }
}

/// A container with all of them asks for contradictory amounts: an engine that could not read one name says
/// that it does not know it, and our hook is not run.
fn every_engine_knows_every_name() {
    let all = names();
    assert!(all.len() > 30, "{all:?}");
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let contradict = |output: &Output| {
        let said = output.refused();
        assert!(said.contains("fgpu: conflict: --device fgpu.dev/gpu="), "{}", output.story());
    };
    contradict(&with("busybox", &all).run_plainly());
    let options: Vec<String> =
        ["--rm".to_owned()].into_iter().chain(all.iter().flat_map(|name| device(name))).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    contradict(&podman::container("busybox", "crun", &options, &["true"]));
    let pod = cri::Pod::start("names", "runc", &[]);
    contradict(&pod.create_with("one", "busybox", &["true"], &all).start());
    pod.remove();
    // Each by itself is what Docker lists; before 28.3 it lists none.
    let listed: Value =
        serde_json::from_str(run(["docker", "info", "--format", "{{json .}}"]).ok()).expect("it is JSON");
    if let Some(listed) = listed["DiscoveredDevices"].as_array() {
        let listed = |name: &&&str| listed.iter().any(|known| known["ID"] == format!("fgpu.dev/gpu={name}"));
        let missing: Vec<_> = all.iter().filter(|name| !listed(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// One Docker container, with the file and without.
fn without_a_device_nothing_changes() {
    let container =
        docker::container("busybox").options(["--hostname", "h"]).command(["sleep", "1000"]).create();
    let config = || {
        container.docker(&["start"]).ok();
        let path = format!("/run/containerd/io.containerd.runtime.v2.task/moby/{}/config.json", container.id);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        container.docker(&["kill"]).ok();
        container.wait_for_end();
        text
    };
    let with = config();
    let kept = node::keep(FILE);
    fs::remove_file(FILE).expect("it is there");
    let without = config();
    drop(kept);
    // The sandbox of its network has a number of its own each time.
    let plain = |text: &str| -> Value {
        let mut spec: Value = serde_json::from_str(text).expect("it is JSON");
        for namespace in spec["linux"]["namespaces"].as_array_mut().into_iter().flatten() {
            namespace["path"].take();
        }
        spec
    };
    assert!(!with.contains("fgpu"), "{with}");
    assert_eq!(plain(&with), plain(&without));
    assert_eq!(with.len(), without.len());
}

/// The file is there all the same, so that the hook can say it.
fn without_a_driver_the_reason_is_told() {
    let _configured = node::configure("");
    fs::write("/etc/fgpu/config.toml", "[driver]\nroot = \"/nowhere\"\n").expect("/etc can be written");
    let _kept = node::keep(FILE);
    run(["fgpu", "cdi", "--write"]).ok();
    let output = with("busybox", &["0.25"]).run_plainly();
    assert!(output.refused().contains("fgpu: no-gpu: "), "{}", output.story());
    assert_nothing_is_left();
}

fn assert_podman_gives_a_quarter(runtime: &str) {
    let device = device("0.25");
    let options = [&["--rm", "--cap-add", "MKNOD", &*device[0], &*device[1]], &FIRST[..]].concat();
    assert_has_quarter_of_first(|script| {
        podman::container("debian13", runtime, &options, &["sh", "-c", script])
    });
    node::wait_until_free();
}

fn podman_gives_a_share() {
    for runtime in runtimes() {
        assert_podman_gives_a_quarter(runtime);
        let device = device("0.25");
        let options = ["--detach", "--name", "one", &*device[0], &*device[1]];
        for end in [&["kill", "one"][..], &["rm", "--force", "--time", "0", "one"]] {
            podman::container("busybox", runtime, &options, &["sleep", "1000"]).ok();
            assert_eq!(
                podman::podman(&["inspect", "--format", "{{.Id}}", "one"]).ok(),
                node::only_lease().id
            );
            podman::podman(end).ok();
            node::wait_until_free();
            podman::remove("one");
        }
        assert_nothing_is_left();
    }
}

fn podman_gives_a_share_in_user_namespaces() {
    let device = device("0.25");
    for runtime in runtimes() {
        let options = [&[&*device[0], &*device[1]], &FIRST[..]].concat();
        crate::hook_user::assert_works_in_user_namespaces(runtime, &options);
    }
}

/// A Podman that says that it is of before 4.6, which hands on what an image says.
fn annotations_of_an_image_are_not_heard() {
    const OLD: &str = "/usr/local/sbin/podman";
    let look = || {
        let device = device("0.25");
        let options =
            [&["--rm", &*device[0], &*device[1]], &["--annotation", "fgpu/compute=nonsense"][..]].concat();
        podman::container("busybox", "crun", &options, &["nvidia-smi", "-L"])
    };
    assert!(look().refused().contains("fgpu: invalid-request: "), "{}", look().story());
    // The hook looks for it first there, and the lab's own client does not.
    let script = format!("printf '#!/bin/sh\\necho podman version 4.3.1\\n' >{OLD} && chmod 755 {OLD}");
    shell(&script).ok();
    // Past the stand-in: this PATH is ours, too.
    let path = "PATH=/usr/bin:/usr/sbin:/bin:/sbin";
    let old = run([
        "env",
        path,
        "podman",
        "--runtime",
        "crun",
        "run",
        "--rm",
        "--device",
        "fgpu.dev/gpu=0.25",
        "--annotation",
        "fgpu/compute=nonsense",
        "localhost/busybox",
        "true",
    ]);
    run(["rm", OLD]).ok();
    old.ok();
    node::wait_until_free();
}

fn containerd_gives_a_pod_a_share() {
    let granted = node::gpus()[0].share(250_000);
    for front_end in [FrontEnd::Cdi, FrontEnd::Shim, FrontEnd::Runtime] {
        let pod = cri::Pod::start("cdi", front_end.docker_runtime(), &[]);
        let container = pod.create_with("one", "debian13", &["sleep", "1000"], &["0.25"]);
        container.start().ok();
        assert_eq!(node::only_lease().id, container.id);
        let output = container.exec(&["sh", "-c", &format!("{QUERY}; alloc fill")]);
        let lines: Vec<_> = output.ok().lines().collect();
        assert_eq!(lines[0], (granted >> 20).to_string());
        crate::limit::assert_filled(lines[1], granted);
        pod.remove();
        node::wait_until_free();
        assert_nothing_is_left();
    }
}

fn malformed_names_are_refused() {
    let rows = [
        ("1-0", "invalid-request"),
        ("2", "invalid-request"),
        ("0", "invalid-request"),
        ("1-3-4", "invalid-request"),
        ("4Xi", "invalid-request"),
        ("0x1", "invalid-request"),
        ("units-0", "denied"),
        ("9999Gi", "too-large"),
        ("9x1", "too-large"),
        ("mig-1g.10gb", "no-gpu"),
        ("mig-auto", "invalid-request"),
    ];
    let own = names();
    let more = rows.iter().filter(|(name, _)| !own.iter().any(|known| known == name));
    let more = more.map(|(name, _)| ((*name).to_owned(), edits_of("0.25", name)));
    let _written = write(MORE, &file("fgpu.dev/gpu", more));
    for (name, code) in rows {
        let output = with("busybox", &[name]).run_plainly();
        let said = output.refused();
        assert!(said.contains(&format!("fgpu: {code}: ")), "{name}: {}", output.story());
        assert!(said.contains(&format!("--device fgpu.dev/gpu={name}")), "{name}: {}", output.story());
    }
    // And what a name and an annotation say together.
    for annotation in ["fgpu/fraction=0.25", "fgpu/memory=1Gi", "fgpu/mig=1g.10gb"] {
        let output = with("busybox", &["0.25"]).options(["--annotation", annotation]).run_plainly();
        assert!(output.refused().contains("fgpu: conflict: "), "{}", output.story());
    }
    assert_nothing_is_left();
}

fn one_name_twice_is_one_share() {
    let run = || with("debian13", &["0.25", "0.25"]).options(FIRST);
    assert_has_quarter_of_first(|script| run().command(["sh", "-c", script]).run());
    node::wait_until_free();
    let device = device("0.25");
    let options = ["--rm", "--detach", &*device[0], &*device[1], &*device[0], &*device[1]];
    podman::container("busybox", "crun", &options, &["sleep", "1000"]).ok();
    node::only_lease();
}

fn two_names_contradict_each_other() {
    for names in [["0.25", "0.5"], ["0.25", "1-4"], ["1Gi", "2x1"]] {
        let output = with("busybox", &names).run_plainly();
        let said = output.refused();
        for word in ["fgpu: conflict: ", names[0], names[1], "2x0.5"] {
            assert!(said.contains(word), "no {word:?} in {}", output.story());
        }
    }
    assert_nothing_is_left();
}

fn beside_another_front_end_there_is_one_grant() {
    for front_end in [FrontEnd::Shim, FrontEnd::Runtime] {
        let container =
            with("debian13", &["0.25"]).under(front_end).options(FIRST).command(["sleep", "1000"]).start();
        assert_eq!(node::only_lease().id, container.id);
        assert_has_quarter_of_first(|script| container.exec(["sh", "-c", script]));
        container.docker(&["restart", "--time", "0"]).ok();
        assert_eq!(node::only_lease().id, container.id);
        container.remove();
        node::wait_until_free();
        let two = with("busybox", &["0.25"]).under(front_end).options(["--annotation", "fgpu/fraction=0.5"]);
        let refused = two.run_plainly();
        assert!(refused.refused().contains("fgpu: conflict: "), "{}", refused.story());
    }
    let _installed = hooks::install();
    runtimes().iter().copied().for_each(assert_podman_gives_a_quarter);
    assert_nothing_is_left();
}

/// NVIDIA's file has a hook, and both orders of the two on the command line are tried.
fn nvidias_devices_are_refused() {
    const TOOL: &str = "/usr/local/bin/nvidia-cdi-hook";
    std::os::unix::fs::symlink("/bin/true", TOOL).expect("/usr can be written");
    let hook =
        json!({"hookName": "createContainer", "path": TOOL, "args": ["nvidia-cdi-hook", "update-ldcache"]});
    let edits = json!({"hooks": [hook]});
    let devices = ["0", "all"].map(|name| (name.to_owned(), edits.clone()));
    let written = write("/etc/cdi/nvidia.json", &file("nvidia.com/gpu", devices));
    let theirs = ["--device".to_owned(), "nvidia.com/gpu=0".to_owned()];
    for options in [[device("0.25"), theirs.clone()].concat(), [theirs.clone(), device("0.25")].concat()] {
        let output = docker::container("busybox").options(options).command(["true"]).run_plainly();
        let said = output.refused();
        assert!(said.contains("fgpu: conflict: ") && said.contains("nvidia.com/gpu"), "{}", output.story());
    }
    // Alone it is none of our business.
    docker::container("busybox").options(theirs).command(["true"]).run_plainly().ok();
    let all = with("busybox", &["0.25"]).options(["--gpus", "all"]).command(["true"]).run_plainly();
    all.refused();
    drop(written);
    fs::remove_file(TOOL).expect("it is there");
    assert_nothing_is_left();
}

fn options_of_docker_run() {
    let gpus = node::gpus();
    let granted = gpus[0].share(250_000);
    let other = crate::hook::number(&format!("/dev/nvidia{}", gpus[1].minor));
    for options in [
        &["--privileged"][..],
        &["--read-only"],
        &["--user", "1000:1000"],
        &["--userns", "host"],
        &["--cap-drop", "ALL"],
        &["--security-opt", "no-new-privileges"],
        &["--network", "host", "--pid", "host", "--ipc", "host"],
        &["--init", "--tmpfs", "/run"],
        &["--cgroupns", "host"],
    ] {
        let container = with("debian13", &["0.25"])
            .options(FIRST)
            .options(options.iter().copied())
            .command(["sleep", "1000"]);
        // cgroup v1 cannot forbid a device where all are allowed.
        if options == ["--privileged"] && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            let refused = container.try_start().expect_err("the other GPU could be opened");
            assert!(refused.refused().contains("fgpu: conflict: "), "{}", refused.story());
            continue;
        }
        let container = container.start();
        let output = container.exec(["sh", "-c", &format!("{QUERY}; alloc fill")]);
        let lines: Vec<_> = output.ok().lines().collect();
        assert_eq!(lines[0], (granted >> 20).to_string(), "{options:?}");
        crate::limit::assert_filled(lines[1], granted);
        let opened = container.exec(["sh", "-c", &format!("cd /tmp 2>/dev/null; nodes -m {other}")]);
        assert!(
            !opened.stdout.contains("ENXIO") && !opened.stdout.contains(" open"),
            "{options:?}: {}",
            opened.story()
        );
        container.remove();
        node::wait_until_free();
    }
    assert_nothing_is_left();
}
