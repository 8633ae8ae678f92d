//! A hook that waits for room when its container, its runtime or its engine is ended; and what is left when
//! nobody starts a container that has its share.

use std::fs;
use std::process::{Child, Command, Stdio};

use fgpu_lab::bundle::{Bundle, bundle, runtimes};
use fgpu_lab::command::{run, shell, wait_for, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::{hooks, node, podman, process};

use crate::hook::assert_nothing_is_left;

pub(crate) const TESTS: &[Test] = &[
    Test::once("hook_wait::the_end_of_the_init_ends_the_wait", the_end_of_the_init_ends_the_wait),
    Test::once("hook_wait::the_end_of_the_runtime_ends_the_wait", the_end_of_the_runtime_ends_the_wait),
    Test::once("hook_wait::the_end_of_the_engine_ends_the_wait", the_end_of_the_engine_ends_the_wait),
    Test::once("hook_wait::the_end_of_conmon_ends_the_wait", the_end_of_conmon_ends_the_wait),
    Test::once("hook_wait::who_is_created_and_never_started_is_named", created_and_never_started_is_named),
];

/// A container of the hook that asks for all of GPU 0.
fn whole(runtime: &str, wait: &str) -> Bundle {
    bundle(runtime, "busybox")
        .annotation("fgpu/fraction", "1")
        .annotation("fgpu/device", "0")
        .annotation("fgpu/wait", wait)
        .fgpu("createRuntime")
}

/// Creates a container that waits.
fn waiting(runtime: &str) -> (Bundle, Child) {
    let container = whole(runtime, "90s");
    let line = container.create_line();
    let mut create = Command::new(&line[0]);
    create.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = create.spawn().expect("the runtime is there");
    wait_until("somebody in the queue", || node::waiting() == 1);
    (container, child)
}

fn pid_of(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a pid")
}

/// The processes that another one has started and that are no hooks.
fn inits_of(runtime: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("/proc is mounted");
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_hook =
        |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("fgpu-hook"));
    pids.filter(|pid| process::parent(*pid) == Some(runtime) && !is_hook(*pid)).collect()
}

/// The wait has ended because nobody wanted it any more, and not because its time was up.
#[track_caller]
fn assert_cancelled(about: &str) {
    let refused = || {
        let text = fs::read_to_string("/var/log/fgpu/events.jsonl").unwrap_or_default();
        text.lines().rfind(|line| line.contains("\"refused\"")).map(str::to_owned)
    };
    let last = wait_for("a refusal in the record", refused);
    let last: serde_json::Value = serde_json::from_str(&last).expect("it is JSON");
    assert_eq!(last["code"], "cancelled", "{about}: {last}");
}

fn hooks_that_run() -> usize {
    process::running("/usr/bin/fgpu-hook", "createRuntime").len()
}

fn the_end_of_the_init_ends_the_wait() {
    for runtime in runtimes() {
        let first = whole(runtime, "0").start();
        let (second, mut create) = waiting(runtime);
        let inits = inits_of(pid_of(&create));
        assert!(!inits.is_empty(), "{runtime}");
        for init in inits {
            process::kill(init);
        }
        let status = wait_for("the end of a create", || create.try_wait().expect("it is our child"));
        assert!(!status.success(), "{runtime}: {status}");
        assert_eq!((node::waiting(), node::leases().len()), (0, 1), "{runtime}");
        assert_cancelled(runtime);
        shell(&format!("{runtime} delete --force {}", second.id));
        first.delete();
        assert_nothing_is_left();
    }
}

fn the_end_of_the_runtime_ends_the_wait() {
    for runtime in runtimes() {
        let first = whole(runtime, "0").start();
        let (second, mut create) = waiting(runtime);
        let inits = inits_of(pid_of(&create));
        create.kill().expect("it is our child");
        create.wait().expect("it is our child");
        wait_until("the end of the hook", || hooks_that_run() == 0);
        assert_eq!((node::waiting(), node::leases().len()), (0, 1), "{runtime}");
        assert_cancelled(runtime);
        // crun leaves its half of the container.
        for init in inits {
            process::kill(init);
        }
        shell(&format!("{runtime} delete --force {}", second.id));
        first.delete();
        assert_nothing_is_left();
    }
}

/// `podman run` of a container that waits, below plain runtimes with the hook, and below `fgpu-runtime`.
fn each_podman(check: impl Fn(&str, &mut Child)) {
    podman::load("busybox");
    for front_end in ["hook", "fgpu-runtime"] {
        let _installed = (front_end == "hook").then(hooks::install);
        for runtime in runtimes() {
            let _configured = node::configure(&format!("runtimes = [{runtime:?}]"));
            let first = whole(runtime, "0").start();
            let name = if front_end == "hook" { runtime } else { "/usr/bin/fgpu-runtime" };
            let mut engine = Command::new("podman")
                .args(["--runtime", name, "run", "--name", "waits", "--annotation", "fgpu/fraction=1"])
                .args(["--annotation", "fgpu/device=0", "--annotation", "fgpu/wait=90s"])
                .args(["localhost/busybox", "sleep", "1000"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("podman is there");
            wait_until("somebody in the queue", || node::waiting() == 1);
            check(&format!("{front_end}, {runtime}"), &mut engine);
            first.delete();
            podman::remove("waits");
            run(["fgpu", "gc"]).ok();
            assert_nothing_is_left();
        }
    }
}

/// It is Podman here, and CRI-O elsewhere: conmon tells both in the same way.
fn the_end_of_the_engine_ends_the_wait() {
    each_podman(|about, engine| {
        engine.kill().expect("it is our child");
        engine.wait().expect("it is our child");
        wait_until("the end of its wait", || node::waiting() == 0);
        wait_until("the end of conmon", || process::running("/usr/bin/conmon", "").is_empty());
        assert_eq!(node::leases().len(), 1, "{about}");
        assert_cancelled(about);
    });
}

fn the_end_of_conmon_ends_the_wait() {
    each_podman(|about, engine| {
        for monitor in process::running("/usr/bin/conmon", "") {
            process::kill(monitor.pid);
        }
        wait_until("the end of its wait", || node::waiting() == 0);
        let status = wait_for("the end of podman run", || engine.try_wait().expect("it is our child"));
        assert!(!status.success(), "{about}: {status}");
        assert_eq!(node::leases().len(), 1, "{about}");
        assert_cancelled(about);
    });
}

/// What an engine leaves that is killed between a create and a start.
fn created_and_never_started_is_named() {
    for runtime in runtimes() {
        let container = whole(runtime, "0");
        container.create().ok();
        let doctor = run(["fgpu", "doctor", "--json"]);
        let answer: serde_json::Value = serde_json::from_str(&doctor.stdout).expect("it is JSON");
        let findings = answer["findings"].as_array().expect("findings");
        let of = |check: &str| findings.iter().find(|finding| finding["check"] == check);
        let finding = of("never-started").unwrap_or_else(|| panic!("{runtime}: {answer:#}"));
        let pid = container.pid();
        assert!(finding["what"].as_str().is_some_and(|what| what.contains(&container.id)), "{finding}");
        assert_eq!(finding["mend"][0], format!("kill -KILL {pid} && fgpu gc"), "{runtime}");
        // As long as it may be started it keeps its share.
        run(["fgpu", "gc"]).ok();
        assert_eq!(node::only_lease().id, container.id);
        shell(finding["mend"][0].as_str().expect("a command")).ok();
        wait_until("the end of the share", || {
            run(["fgpu", "gc"]).ok();
            node::leases().is_empty()
        });
        container.delete();
        // One that was started is no finding.
        let started = whole(runtime, "0").start();
        let doctor = run(["fgpu", "doctor", "--json"]);
        assert!(!doctor.stdout.contains("never-started"), "{}", doctor.story());
        started.delete();
        assert_nothing_is_left();
    }
}
