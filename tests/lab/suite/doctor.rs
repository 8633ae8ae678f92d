//! `fgpu doctor` on a node with real engines: nothing is wrong, then faults are planted, and the mend that it
//! names mends each.

use std::fs;

use fgpu_lab::bundle::bundle;
use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::{docker, hooks, node, process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[
    Test::once("doctor::sound_node_has_nothing_to_mend", sound_node_has_nothing_to_mend),
    Test::once("doctor::engines_that_do_not_know_us", engines_that_do_not_know_us),
    Test::once("doctor::requests_that_nobody_saw", requests_that_nobody_saw),
    Test::once("doctor::leases_that_are_not_right", leases_that_are_not_right),
];

/// What is found: its name and its first mend.
#[track_caller]
fn findings() -> Vec<(String, String)> {
    let output = run(["fgpu", "doctor", "--json"]);
    let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{}", output.story()));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = answer["findings"].as_array().unwrap_or_else(|| panic!("{}", output.story()));
    let found: Vec<_> =
        findings.iter().map(|finding| (text(&finding["check"]), text(&finding["mend"][0]))).collect();
    assert_eq!(output.status == 0, found.is_empty(), "{}", output.story());
    found
}

#[track_caller]
fn assert_sound() {
    assert_eq!(findings(), [], "{}", run(["fgpu", "doctor"]).stdout);
}

/// One fault is found, and is mended by what it says.
#[track_caller]
fn assert_mended(check: &str, mend: &str) {
    let found = findings();
    assert_eq!(found, [(check.to_owned(), mend.to_owned())]);
    match mend {
        // The lab has no systemd.
        "systemctl reload docker" => reload_docker(),
        mend => drop(shell(mend).ok()),
    }
}

/// What `systemctl reload docker` does (docker.service, ExecReload).
#[track_caller]
fn reload_docker() {
    let pid = Pid::from_raw(fgpu_lab::daemons::pid("dockerd"));
    kill(pid, Signal::SIGHUP).expect("dockerd runs");
}

#[track_caller]
fn docker_knows_fgpu() -> bool {
    run(["docker", "info", "--format", "{{json .Runtimes}}"]).ok().contains("\"fgpu\":")
}

/// The inventory is there, and the hook files, as on a node on which the package is installed.
#[track_caller]
fn sound_node() -> hooks::Installed {
    run(["fgpu", "inventory"]).ok();
    let installed = hooks::install();
    assert_sound();
    installed
}

fn sound_node_has_nothing_to_mend() {
    let _installed = sound_node();
    let container = docker::container("busybox")
        .under(node::FrontEnd::Shim)
        .annotation("fgpu/fraction", "0.25")
        .command(["sleep", "1000"])
        .start();
    let said = run(["fgpu", "doctor"]).ok().to_owned();
    for words in ["NVIDIA driver", "Docker", "Podman", "1 container holds a share", "Nothing is wrong."] {
        assert!(said.contains(words), "{words}: {said}");
    }
    container.remove();
}

fn engines_that_do_not_know_us() {
    let installed = sound_node();
    const FILE: &str = "/etc/docker/daemon.json";
    let usual = node::keep(FILE);
    let text = fs::read_to_string(FILE).expect("the lab configures Docker");
    let mut without: Value = serde_json::from_str(&text).expect("it is JSON");
    without["runtimes"].as_object_mut().expect("runtimes").remove("fgpu");
    fs::write(FILE, without.to_string()).expect("it can be written");
    reload_docker();
    wait_until("a Docker without fgpu", || !docker_knows_fgpu());
    // It knows CDI devices.
    assert_sound();
    without["features"]["cdi"] = Value::Bool(false);
    fs::write(FILE, without.to_string()).expect("it can be written");
    assert_mended("engine-not-wired", "fgpu setup docker");
    assert_mended("engine-not-restarted", "systemctl reload docker");
    wait_until("a Docker with fgpu", docker_knows_fgpu);
    assert_sound();
    drop(usual);

    drop(installed);
    assert_mended("engine-not-wired", "fgpu setup podman");
    assert_sound();
    run(["fgpu", "setup", "podman", "--undo"]).ok();
}

fn leases_that_are_not_right() {
    let _installed = sound_node();
    // Killed, and nobody deletes it: the hook that would give its share back has not run.
    let container =
        bundle("runc", "busybox").fgpu("createRuntime").annotation("fgpu/fraction", "0.25").start();
    let init = container.pid();
    assert!(process::kill(init));
    wait_until("the end of an init", || !process::lives(init));
    assert_mended("stale-leases", "fgpu gc");
    assert_sound();
    container.delete();

    let container = docker::container("busybox")
        .under(node::FrontEnd::Shim)
        .annotation("fgpu/fraction", "0.25")
        .command(["sleep", "1000"])
        .start();
    // The relay records the init a moment after the start; it would come upon the damage and keep the file
    // aside first.
    wait_until("the record of an init", || !node::inits().is_empty());
    const FILE: &str = "/run/fgpu/allocations.json";
    let mut bytes = fs::read(FILE).expect("there is a lease");
    let end = bytes.len() - 2;
    bytes[end] ^= 1;
    fs::write(FILE, bytes).expect("it can be written");
    assert_mended("allocator-corrupt", "fgpu gc --rebuild");
    assert_eq!(node::only_lease().id, container.id, "it runs, so it keeps its share");
    let found = findings();
    assert_eq!(found.iter().map(|found| found.0.as_str()).collect::<Vec<_>>(), ["allocator-damaged-once"]);
    shell("rm /run/fgpu/allocations.json.corrupt-*").ok();
    assert_sound();
    container.remove();
}

fn requests_that_nobody_saw() {
    let _installed = sound_node();
    docker::load("busybox");
    for (option, value, why, mend) in [
        ("--annotation", "fgpu/fraction=0.25", "was started without fgpu", "start it with --runtime=fgpu"),
        ("--annotation", "fgpu.fraction=0.25", "fgpu.fraction is none of fgpu's", "write fgpu/fraction=0.25"),
        ("--annotation", "FGPU/fraction=0.25", "FGPU/fraction is none of fgpu's", "write fgpu/fraction=0.25"),
        (
            "--label",
            "fgpu/fraction=0.25",
            "is a label",
            "docker run --runtime=fgpu --annotation fgpu/fraction=0.25 …",
        ),
    ] {
        run(["docker", "run", "-d", "--name", "web", option, value, "busybox", "sleep", "1000"]).ok();
        assert_eq!(findings(), [("request-overlooked".to_owned(), mend.to_owned())], "{option} {value}");
        let told = run(["fgpu", "explain", "--container", "web"]);
        assert_eq!(told.status, 1, "{}", told.story());
        assert!(told.stderr.starts_with("fgpu: invalid-request: web: "), "{}", told.story());
        assert!(told.stderr.contains(why) && told.stderr.contains(mend), "{}", told.story());
        run(["docker", "rm", "-f", "web"]).ok();
        assert_sound();
    }
    let container = docker::container("busybox")
        .under(node::FrontEnd::Shim)
        .annotation("fgpu/fraction", "0.25")
        .command(["sleep", "1000"])
        .start();
    let told = run(["fgpu", "explain", "--container", &container.id]);
    assert!(told.ok().contains(" holds what it asked for: fgpu/fraction=0.25"), "{}", told.story());
    // A refusal calls it by the name that Docker gave it.
    let name = run(["docker", "inspect", "--format", "{{.Name}}", &container.id]).ok().trim().to_owned();
    let refused = run(["fgpu", "explain", "count=2", "fraction=0.9"]);
    let held = format!("held by {} (", name.trim_start_matches('/'));
    assert!(refused.stderr.contains(&held), "{held}: {}", refused.story());
    container.remove();
}
