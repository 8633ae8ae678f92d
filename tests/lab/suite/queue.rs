//! Waiting for room: who starts when, who is told what, and who leaves the queue.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use fgpu_lab::command::{Output, run, wait_for, wait_until};
use fgpu_lab::cri;
use fgpu_lab::docker::{self, Container, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[
    Test::docker("queue::two_run_one_waits_one_ends_the_third_starts", two_run_one_waits),
    Test::docker("queue::the_first_starts_first", the_first_starts_first),
    Test::docker("queue::a_killed_waiter_leaves_the_queue", a_killed_waiter_leaves_the_queue),
    Test::docker("queue::a_release_ends_a_wait", a_release_ends_a_wait),
    Test::both("queue::a_pod_that_gives_up_leaves_the_queue", a_pod_that_gives_up_leaves_the_queue),
    Test::once("queue::a_stopped_run_holds_up_nobody", a_stopped_run_holds_up_nobody),
    Test::once("queue::a_frozen_run_holds_up_nobody", a_frozen_run_holds_up_nobody),
    Test::once("queue::a_signal_ends_the_wait_of_a_run", a_signal_ends_the_wait_of_a_run),
    Test::once("queue::fgpu_wait_returns_when_there_is_room", fgpu_wait_returns_when_there_is_room),
];

fn asking(front_end: FrontEnd, fraction: &str, wait: &str) -> Run {
    docker::container("busybox")
        .under(front_end)
        .annotation("fgpu/fraction", fraction)
        .annotation("fgpu/device", "0")
        .annotation("fgpu/wait", wait)
        .command(["sleep", "1000"])
}

/// A client of Docker that waits.
type Waiting = std::thread::JoinHandle<Result<Container, Output>>;

fn waiting(front_end: FrontEnd, fraction: &'static str) -> Waiting {
    wait_as(asking(front_end, fraction, "5m"))
}

fn wait_as(asking: Run) -> Waiting {
    let before = queue().len();
    let client = std::thread::spawn(move || asking.try_start());
    wait_until("one more in the queue", || queue().len() == before + 1);
    client
}

/// `queue` of `fgpu status --json`.
fn queue() -> Vec<Value> {
    let status: Value = serde_json::from_str(run(["fgpu", "status", "--json"]).ok()).expect("it is JSON");
    status["queue"].as_array().expect("there is a queue").clone()
}

fn started(client: Waiting) -> Container {
    let result = client.join().expect("the waiting client ends");
    result.unwrap_or_else(|output| panic!("{}", output.story()))
}

/// Backend.AI's demonstration.
fn two_run_one_waits(front_end: FrontEnd) {
    let (first, second) = (asking(front_end, "0.5", "0").start(), asking(front_end, "0.5", "0").start());
    let client = wait_as(asking(front_end, "0.5", "5m").options(["--name", "the-third"]));
    let entry = queue().remove(0);
    assert_eq!((&entry["position"], &entry["reason"]["code"]), (&1.into(), &"no-capacity".into()), "{entry}");
    let message = entry["reason"]["message"].as_str().expect("a reason");
    for holder in [&first, &second] {
        let name = holder.inspect("{{.Name}}");
        assert!(message.contains(name.trim_start_matches('/')), "{name}: {message}");
    }
    let table = run(["fgpu", "status"]);
    assert!(table.ok().contains("no room") && table.stdout.contains("the-third"), "{}", table.story());
    assert_eq!(node::leases().len(), 2);
    let events = run(["fgpu", "events"]);
    for holder in [&first, &second] {
        let name = holder.inspect("{{.Name}}");
        assert!(events.ok().contains(name.trim_start_matches('/')), "{name}: {}", events.story());
    }
    first.remove();
    let third = started(client);
    assert_eq!(third.inspect("{{.State.Running}}"), "true");
    let ids: Vec<_> = node::leases().into_iter().map(|lease| lease.id).collect();
    assert_eq!(ids, [second.id, third.id]);
    assert_eq!(queue(), [Value::Null; 0]);
}

fn the_first_starts_first(front_end: FrontEnd) {
    let whole = asking(front_end, "1", "0").start();
    let large = waiting(front_end, "0.75");
    let second = waiting(front_end, "1");
    // A request that does not wait may not pass those that do.
    whole.remove();
    let large = started(large);
    let error = asking(front_end, "0.25", "0").try_start().expect_err("it would delay the one that waits");
    assert!(
        error.refused().contains(&format!("has waited for {}", front_end.asks("1"))),
        "{}",
        error.story()
    );
    large.remove();
    started(second);
}

fn a_killed_waiter_leaves_the_queue(front_end: FrontEnd) {
    let whole = asking(front_end, "1", "0").start();
    let killed = waiting(front_end, "1");
    let next = waiting(front_end, "1");
    let pid = queue()[0]["pid"].as_i64().expect("a pid");
    run(["kill", "-9", &pid.to_string()]).ok();
    killed.join().expect("the client ends").expect_err("its container cannot be made");
    wait_until("the end of its wait", || queue().len() == 1);
    whole.remove();
    started(next);
}

/// Docker itself does not let go of a container that it is creating: `docker rm`, `stop` and `kill` wait for
/// it.
fn a_release_ends_a_wait(front_end: FrontEnd) {
    let whole = asking(front_end, "1", "0").start();
    let (first, second) = (waiting(front_end, "1"), waiting(front_end, "0.5"));
    let entries = queue();
    let text = |at: usize, field: &str| entries[at][field].as_str().expect("it is a text").to_owned();
    // By the beginning of its id, and by its ticket.
    for (client, what) in [(first, text(0, "container")[..12].to_owned()), (second, text(1, "ticket"))] {
        let said = run(["fgpu", "release", &what]);
        assert!(said.ok().ends_with("waits no longer"), "{}", said.story());
        let told = client.join().expect("the client ends").expect_err("its container is not made");
        assert!(told.refused().contains("fgpu: cancelled: "), "{}", told.story());
    }
    assert_eq!((queue().len(), node::leases().len()), (0, 1));
    run(["docker", "rm", &text(0, "container")]).ok();
    whole.remove();
}

/// A kubelet gives a call up when its pod is deleted: nobody is granted anything for it then. Below the stock
/// shim the runtime is not told. But containerd tries to delete the container, for five seconds
/// (`cleanupTimeout`), and then closes its connection, and the shim kills the runtime of a connection that is
/// gone (ttrpc, server.go `run`).
fn a_pod_that_gives_up_leaves_the_queue(front_end: FrontEnd) {
    let whole = asking(FrontEnd::Shim, "1", "0").start();
    let asked = [("fgpu/fraction", "1"), ("fgpu/device", "0"), ("fgpu/wait", "5m")];
    let pod = cri::Pod::start("waits", front_end.docker_runtime(), &asked);
    let container = pod.create("one", "busybox", &["sleep", "1000"]);
    let mut kubelet = container.starting();
    wait_until("the pod's container in the queue", || queue().len() == 1);
    kubelet.kill().expect("it is our child");
    kubelet.wait().expect("it is our child");
    wait_until("the end of its wait", || queue().is_empty());
    whole.remove();
    node::wait_until_free();
    assert_ne!(container.status(), "running");
    pod.remove();
}

fn a_stopped_run_holds_up_nobody() {
    assert_holds_up_nobody("kill -STOP $1", "kill -CONT $1");
}

/// `systemctl freeze`, by a cgroup of its own.
fn a_frozen_run_holds_up_nobody() {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        let freeze =
            "d=/sys/fs/cgroup/cold; mkdir $d && echo $1 >$d/cgroup.procs && echo 1 >$d/cgroup.freeze";
        assert_holds_up_nobody(freeze, "echo 0 >/sys/fs/cgroup/cold/cgroup.freeze");
        run(["rmdir", "/sys/fs/cgroup/cold"]).ok();
    } else {
        let freeze = "d=/sys/fs/cgroup/freezer/cold; mkdir $d && echo $1 >$d/cgroup.procs && echo FROZEN >$d/freezer.state";
        assert_holds_up_nobody(freeze, "echo THAWED >/sys/fs/cgroup/freezer/cold/freezer.state");
        run(["rmdir", "/sys/fs/cgroup/freezer/cold"]).ok();
    }
}

/// `stop` and `go_on` are scripts for a process.
fn assert_holds_up_nobody(stop: &str, go_on: &str) {
    let whole = asking(FrontEnd::Shim, "1", "0").start();
    let mut stopped = run_waiting();
    let next = waiting(FrontEnd::Shim, "1");
    let pid = stopped.id().to_string();
    run(["sh", "-c", stop, "sh", &pid]).ok();
    wait_until("the end of its wait", || queue().len() == 1);
    whole.remove();
    let next = started(next);
    run(["sh", "-c", go_on, "sh", &pid]).ok();
    wait_until("the run in the queue", || queue().len() == 1);
    next.remove();
    let status = wait_for("the end of the run", || stopped.try_wait().expect("it is our child"));
    assert!(status.success(), "{status}");
}

fn run_waiting() -> Child {
    // Each of them becomes the next, so the pid stays.
    let child = Command::new("unshare")
        .args(["-m", "sh", "-c", crate::run::WITH_NODES, "sh"])
        .args(["fgpu", "run", "-p", "1", "-a", "device=0", "--wait", "5m", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("fgpu is there");
    wait_until("the run in the queue", || queue().iter().any(|entry| entry["pid"] == child.id()));
    child
}

fn a_signal_ends_the_wait_of_a_run() {
    let whole = asking(FrontEnd::Shim, "1", "0").start();
    let mut child = run_waiting();
    run(["kill", "-TERM", &child.id().to_string()]).ok();
    let status = wait_for("the end of the run", || child.try_wait().expect("it is our child"));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    assert_eq!(run(["ls", "-A", "/run/fgpu/queue"]).ok(), "", "it has left before it ended");
    let mut child = run_waiting();
    whole.remove();
    let status = wait_for("the end of the run", || child.try_wait().expect("it is our child"));
    assert!(status.success(), "{status}");
}

/// Whether a process has an inotify(7) descriptor.
fn is_watching(pid: u32) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|file| file.as_os_str() == "anon_inode:inotify")
}

fn fgpu_wait_returns_when_there_is_room() {
    let whole = asking(FrontEnd::Shim, "1", "0").start();
    let late = run(["fgpu", "wait", "--timeout", "1s", "fraction=0.5", "device=0"]);
    assert!(late.refused().starts_with("fgpu: timed-out: fgpu/"), "{}", late.story());
    let never = run(["fgpu", "wait", "memory=900Gi"]);
    assert!(never.refused().starts_with("fgpu: too-large: "), "{}", never.story());
    let id = whole.id.clone();
    let waits = [vec!["fraction=0.5", "device=0"], vec![id.as_str()]].map(|words| {
        let mut wait = Command::new("fgpu");
        wait.arg("wait").args(words).stdin(Stdio::null()).stdout(Stdio::null());
        let child = wait.spawn().expect("fgpu is there");
        // By then it has found what it waits for.
        wait_until("fgpu wait, which watches the state directory", || is_watching(child.id()));
        child
    });
    whole.remove();
    for mut child in waits {
        let status = wait_for("the end of fgpu wait", || child.try_wait().expect("it is our child"));
        assert!(status.success(), "{status}");
    }
}
