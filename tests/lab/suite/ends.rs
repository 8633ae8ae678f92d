//! However a container ends, and whatever is killed on the way, its lease ends with it and not before.

use std::thread;
use std::time::Duration;

use fgpu_lab::command::{run, wait_for, wait_until};
use fgpu_lab::docker::{self, Container, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::process::{self, Process};
use fgpu_lab::{daemons, shuffle};

pub(crate) const TESTS: &[Test] = &[
    Test::docker("ends::normal_end", normal_end),
    Test::docker("ends::docker_kill", docker_kill),
    Test::docker("ends::docker_rm_force", docker_rm_force),
    Test::docker("ends::docker_stop", docker_stop),
    Test::docker("ends::missing_command", missing_command),
    Test::docker("ends::failing_entrypoint", failing_entrypoint),
    Test::docker("ends::init_killed", init_killed),
    Test::docker("ends::restart_holds_exactly_one_lease", restart_holds_exactly_one_lease),
    Test::docker("ends::created_but_never_started", created_but_never_started),
    Test::once("ends::our_shim_killed", our_shim_killed),
    Test::docker("ends::stock_shim_killed", stock_shim_killed),
    Test::docker("ends::containerd_killed", containerd_killed),
    Test::docker("ends::dockerd_killed", dockerd_killed),
    Test::docker("ends::both_daemons_killed", both_daemons_killed),
    Test::once("ends::runtime_killed_at_any_moment", runtime_killed_at_any_moment),
    Test::once("ends::runtime_killed_under_docker", runtime_killed_under_docker),
    Test::once("ends::shim_killed_at_any_moment", shim_killed_at_any_moment),
];

fn half(front_end: FrontEnd) -> Run {
    docker::container("busybox").under(front_end).annotation("fgpu/fraction", "0.5")
}

/// A running container with half a GPU, and its init.
fn running(front_end: FrontEnd) -> (Container, i32) {
    let container = half(front_end).command(["sleep", "1000"]).start();
    let init = container.pid();
    assert_eq!(node::only_lease().id, container.id);
    (container, init)
}

/// Waits until the lease is gone, and holds that the container was gone before.
#[track_caller]
fn assert_ends(init: i32) {
    wait_until("the end of a lease", || {
        let free = node::leases().is_empty();
        // In this order: without a lease there is no process either.
        assert!(!free || !process::lives(init), "the share is given back and the container lives on");
        free
    });
}

fn normal_end(front_end: FrontEnd) {
    for status in [0, 3] {
        let output = half(front_end).command(["sh", "-c", &format!("exit {status}")]).run_and_keep();
        assert_eq!(output.status, status, "{}", output.story());
        node::wait_until_free();
    }
}

fn docker_kill(front_end: FrontEnd) {
    let (container, init) = running(front_end);
    container.docker(&["kill"]).ok();
    assert_ends(init);
}

fn docker_rm_force(front_end: FrontEnd) {
    let (container, init) = running(front_end);
    container.remove();
    // It is gone when the command is done, unless dockerd had no more patience: it gives a delete two
    // seconds.
    assert_ends(init);
}

fn docker_stop(front_end: FrontEnd) {
    let (container, init) = running(front_end);
    container.docker(&["stop", "--time", "1"]).ok();
    assert_ends(init);
}

fn missing_command(front_end: FrontEnd) {
    let output = half(front_end).command(["no-such-program"]).run_and_keep();
    assert_eq!(output.status, 127, "{}", output.story());
    assert!(output.stderr.contains("no-such-program"), "the reason is runc's: {}", output.story());
    node::wait_until_free();
}

fn failing_entrypoint(front_end: FrontEnd) {
    for (entrypoint, status) in [("false", 1), ("/etc/passwd", 126)] {
        let output = half(front_end).options(["--entrypoint", entrypoint]).run_and_keep();
        assert_eq!(output.status, status, "{}", output.story());
        node::wait_until_free();
    }
}

fn init_killed(front_end: FrontEnd) {
    let (container, init) = running(front_end);
    assert!(process::kill(init));
    assert_ends(init);
    container.wait_for_end();
}

fn restart_holds_exactly_one_lease(front_end: FrontEnd) {
    let run = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.75");
    let container = run.annotation("fgpu/device", "0").command(["sleep", "1000"]).start();
    let mut nonces = vec![node::only_lease().nonce];
    for _ in 0..3 {
        container.docker(&["restart", "--time", "0"]).ok();
        let lease = node::only_lease();
        assert_eq!(lease.id, container.id);
        assert!(!nonces.contains(&lease.nonce), "each life has a grant of its own");
        nonces.push(lease.nonce);
        crate::limit::assert_filled(container.exec(["alloc", "fill"]).ok(), lease.shares[0].1);
    }
    container.docker(&["stop", "--time", "0"]).ok();
    node::wait_until_free();
    container.docker(&["start"]).ok();
    assert_eq!(node::only_lease().id, container.id);
}

fn created_but_never_started(front_end: FrontEnd) {
    let container = half(front_end).command(["sleep", "1000"]).create();
    assert_eq!(node::leases(), [], "docker create reserves nothing");
    container.remove();
    assert_eq!(node::leases(), []);
}

/// The one process of a shim that serves a container.
#[track_caller]
fn shim(program: &str, container: &Container) -> Process {
    wait_for(program, || {
        let mut found = process::running(program, &container.id);
        // Its jobs are forks.
        let all: Vec<i32> = found.iter().map(|process| process.pid).collect();
        found.retain(|process| !process::parent(process.pid).is_some_and(|parent| all.contains(&parent)));
        assert!(found.len() <= 1, "more than one process serves {}: {found:?}", container.id);
        found.pop()
    })
}

/// Waits until Docker knows that a container has ended whose shim was killed, and containerd has forgotten
/// it: it tells Docker first (runtime/v2, `cleanupAfterDeadShim`), and until then there can be no other of
/// this name.
#[track_caller]
fn wait_until_forgotten(container: &Container) {
    container.wait_for_end();
    wait_until("containerd to forget a dead shim", || {
        !run(["ctr", "--namespace", "moby", "tasks", "list", "--quiet"]).ok().contains(&container.id)
    });
}

fn our_shim_killed() {
    let (container, init) = running(FrontEnd::Shim);
    assert!(process::kill(shim("/usr/bin/containerd-shim-fgpu-v2", &container).pid));
    assert_ends(init);
    wait_until_forgotten(&container);
    // Nothing of it is left in the way of a next life.
    container.docker(&["start"]).ok();
    assert_eq!(node::only_lease().id, container.id);
}

fn stock_shim_killed(front_end: FrontEnd) {
    let (container, init) = running(front_end);
    assert!(process::kill(shim("/usr/bin/containerd-shim-runc-v2", &container).pid));
    assert_ends(init);
    wait_until_forgotten(&container);
    container.docker(&["start"]).ok();
    assert_eq!(node::only_lease().id, container.id);
}

fn containerd_killed(front_end: FrontEnd) {
    let (container, init) = running(front_end);
    let lease = node::only_lease();
    daemons::kill(&["containerd"]);
    assert_eq!(node::only_lease(), lease, "the container runs on");
    assert!(process::lives(init));
    daemons::start();
    assert_eq!(node::only_lease(), lease);
    // containerd found the container again, through us.
    wait_until("docker exec after a restart of containerd", || {
        run(["docker", "exec", &container.id, "true"]).status == 0
    });
    container.remove();
    assert_ends(init);
}

fn dockerd_killed(front_end: FrontEnd) {
    let (_container, init) = running(front_end);
    daemons::kill(&["dockerd"]);
    assert!(process::lives(init) && node::leases().len() == 1, "the container runs on");
    // Without live-restore a starting dockerd ends what runs.
    daemons::start();
    assert_ends(init);
}

fn both_daemons_killed(front_end: FrontEnd) {
    let (_container, init) = running(front_end);
    daemons::kill(&["dockerd", "containerd"]);
    assert!(process::lives(init) && node::leases().len() == 1, "the container runs on");
    daemons::start();
    assert_ends(init);
}

/// Ends what a killed runtime left, as a container engine does, and holds that one reconcile clears it.
#[track_caller]
fn assert_one_reconcile_clears(what: &str) {
    run(["fgpu", "gc"]).ok();
    assert_eq!(node::leases(), [], "after one reconcile: {what}");
}

/// `fgpu-runtime run`, create and delete, killed after ever different times.
fn runtime_killed_at_any_moment() {
    let bundle = "/run/lab/bundle-killed";
    run(["mkdir", "-p", bundle]).ok();
    let spec = format!(
        "cd {bundle} && mkdir -p rootfs && tar -C rootfs -xf /opt/images/busybox.tar && rm -f config.json && runc spec && \
         jq '.annotations={{\"fgpu/fraction\":\"0.5\"}} | .process.terminal=false | .process.args=[\"sleep\",\"1000\"]' \
         config.json >config.new && mv config.new config.original"
    );
    fgpu_lab::command::shell(&spec).ok();
    let mut random = shuffle::Random::new(2);
    let mut held = 0;
    for round in 0..60 {
        run(["cp", &format!("{bundle}/config.original"), &format!("{bundle}/config.json")]).ok();
        let id = format!("killed-{round}");
        let create = ["fgpu-runtime", "create", "--bundle", bundle, &id];
        if round % 3 == 2 {
            fgpu_lab::command::shell(&format!("{} >/dev/null 2>&1", create.join(" "))).ok();
            kill_after(&["fgpu-runtime", "delete", "--force", &id], random.below(30_000));
        } else {
            kill_after(&create, random.below(60_000));
        }
        // The runtime dies with ours, which the kernel sees to a moment later.
        wait_until("the end of a runtime", || process::serving(&id).is_empty());
        held += node::leases().len();
        // What containerd and Podman do with a container that they gave up: its processes end, and the
        // runtime that they know is asked to delete it. A stuck half of runc may be left, which is no concern
        // of the lease.
        run(["fgpu-runtime", "delete", "--force", &id]);
        run(["runc", "delete", "--force", &id]);
        assert_one_reconcile_clears(&id);
    }
    assert!(held > 0, "some were killed while they held a lease");
}

/// Starts a command and sends it SIGKILL after so many microseconds.
fn kill_after(words: &[&str], microseconds: u64) {
    let mut child = std::process::Command::new(words[0])
        .args(&words[1..])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{words:?}: {error}"));
    thread::sleep(Duration::from_micros(microseconds));
    // It may have ended; then there is nothing to kill.
    let _ = child.kill();
    child.wait().unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Runs containers and meanwhile kills every process of a program that is found, at random moments.
fn under_fire(program: &str, front_end: FrontEnd) -> usize {
    let mut random = shuffle::Random::new(3);
    let mut hits = 0;
    for _ in 0..12 {
        let client = thread::spawn(move || half(front_end).command(["sleep", "0.2"]).try_start());
        while !client.is_finished() {
            thread::sleep(Duration::from_micros(random.below(40_000)));
            for process in process::running(program, "") {
                hits += usize::from(random.below(3) == 0 && process::kill(process.pid));
            }
        }
        // Whether it came up or not is a matter of luck.
        let _ = client.join().expect("the client ends");
    }
    docker::remove_all();
    // What the engine ran to clean up may have been hit as well; then a container that it gave up still
    // lives, and holds.
    wait_until("the end of the containers that were given up", || {
        run(["fgpu", "gc"]).ok();
        !node::inits().into_iter().any(process::kill)
    });
    hits
}

fn runtime_killed_under_docker() {
    let hits = under_fire("/usr/bin/fgpu-runtime", FrontEnd::Runtime);
    assert!(hits > 0, "some were hit");
    assert_one_reconcile_clears("runtimes killed under docker");
}

fn shim_killed_at_any_moment() {
    let hits = under_fire("/usr/bin/containerd-shim-fgpu-v2", FrontEnd::Shim);
    assert!(hits > 0, "some were hit");
    assert_one_reconcile_clears("shims killed under docker");
}
