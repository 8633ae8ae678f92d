//! Without fgpu's annotations nothing changes: what runc sees, byte for byte, and what an engine can do.

use std::fs;

use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::{ctr, daemons, docker};

pub(crate) const TESTS: &[Test] = &[
    Test::once("same::config_of_ctr_container", config_of_ctr_container),
    Test::once("same::config_of_docker_container", config_of_docker_container),
    Test::docker("same::engine_commands_work", engine_commands_work),
    Test::docker("same::a_committed_image_has_empty_places_and_no_driver", committed),
];

/// The bundles of containerd's tasks.
const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task";

fn bytes(namespace: &str, id: &str) -> String {
    let path = format!("{TASKS}/{namespace}/{id}/config.json");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn assert_same(expected: &str, found: &str) {
    let differ = expected.bytes().zip(found.bytes()).position(|(a, b)| a != b);
    let at = differ.unwrap_or(expected.len().min(found.len()));
    let around = |text: &str| {
        let part = &text.as_bytes()[at.saturating_sub(60).min(text.len())..(at + 60).min(text.len())];
        String::from_utf8_lossy(part).into_owned()
    };
    assert!(expected == found, "they part at byte {at}:\n  {}\n  {}", around(expected), around(found));
}

/// One container after the other with the same name and options: runc's stock shim, our shim, our runtime.
fn config_of_ctr_container() {
    let ways: [&[&str]; 3] = [
        &["--runtime", "io.containerd.runc.v2"],
        &["--runtime", "io.containerd.fgpu.v2"],
        &["--runtime", "io.containerd.runc.v2", "--runc-binary", "/usr/bin/fgpu-runtime"],
    ];
    let options = [
        "--detach",
        "--annotation",
        "a/b=c",
        // Other systems' words, which this node does not understand.
        "--annotation",
        "gpu-fraction=0.5",
        "--annotation",
        "nvidia.com/gpumem=3000",
        "--env",
        "K=v",
        "--cap-add",
        "CAP_SYS_PTRACE",
        "--hostname",
        "h",
    ];
    let configs = ways.map(|way| {
        let options: Vec<_> = way.iter().chain(&options).copied().collect();
        ctr::container_plainly("busybox", "same", &options, &["sleep", "1000"]).ok();
        let config = bytes("default", "same");
        ctr::ctr(&["tasks", "kill", "--signal", "9", "same"]).ok();
        wait_until("the end of a task", || ctr::ctr(&["tasks", "list"]).ok().contains("STOPPED"));
        ctr::ctr(&["tasks", "delete", "same"]);
        ctr::ctr(&["containers", "delete", "same"]).ok();
        config
    });
    assert!(configs[0].contains("a/b"), "{}", configs[0]);
    assert_same(&configs[0], &configs[1]);
    assert_same(&configs[0], &configs[2]);
}

/// One and the same Docker container, whose runtime is exchanged while dockerd is down.
fn config_of_docker_container() {
    let run = docker::container("busybox").annotation("a/b", "c").options([
        "--hostname",
        "h",
        "--network",
        "host",
        "--env",
        "K=v",
        "--cap-drop",
        "NET_RAW",
        "--tmpfs",
        "/t",
        "--init",
        "--device",
        "/dev/null:/dev/nothing",
        "--label",
        "l=m",
        "--runtime",
        "runc",
    ]);
    let container = run.command(["sleep", "1000"]).create();
    let path = format!("/var/lib/docker/containers/{}/hostconfig.json", container.id);
    let mut runtime = "runc";
    let mut configs = Vec::new();
    for next in ["runc", FrontEnd::Shim.docker_runtime(), FrontEnd::Runtime.docker_runtime()] {
        fgpu_lab::command::run(["/lab/daemons", "stop"]).ok();
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let [old, new] = [runtime, next].map(|name| format!(r#""Runtime":"{name}""#));
        assert!(text.contains(&old), "{text}");
        fs::write(&path, text.replace(&old, &new)).unwrap_or_else(|error| panic!("{path}: {error}"));
        runtime = next;
        daemons::start();
        container.docker(&["start"]).ok();
        assert_eq!(container.inspect("{{.HostConfig.Runtime}}"), next);
        configs.push(bytes("moby", &container.id));
        container.docker(&["kill"]).ok();
        container.wait_for_end();
    }
    assert!(configs[0].contains("a/b"), "{}", configs[0]);
    assert_same(&configs[0], &configs[1]);
    assert_same(&configs[0], &configs[2]);
}

/// What else people do with containers, with a GPU share.
fn engine_commands_work(front_end: FrontEnd) {
    let share = |image| docker::container(image).under(front_end).annotation("fgpu/fraction", "0.25");
    let container = share("debian13").command(["sleep", "1000"]).start();
    let id = container.id.as_str();

    assert_eq!(container.exec(["sh", "-c", "exit 42"]).status, 42);
    shell(&format!("echo in | docker exec -i {id} sh -c 'sed s/in/out/ >/tmp/out'")).ok();
    assert_eq!(container.exec(["cat", "/tmp/out"]).ok(), "out");
    container.docker(&["pause"]).ok();
    assert_eq!(container.inspect("{{.State.Status}}"), "paused");
    container.docker(&["unpause"]).ok();
    assert!(container.docker(&["top"]).ok().contains("sleep 1000"));
    container.docker(&["stats", "--no-stream"]).ok();
    let lease = node::only_lease();
    container.docker(&["update", "--restart", "no"]).ok();
    assert_eq!(node::only_lease(), lease);
    shell(&format!("echo copied >/run/lab/copied && docker cp /run/lab/copied {id}:/tmp/copied")).ok();
    assert_eq!(container.exec(["cat", "/tmp/copied"]).ok(), "copied");
    assert!(container.docker(&["diff"]).ok().contains("/tmp/copied"));
    container.docker(&["kill", "--signal", "TERM"]).ok();
    assert_eq!(
        run(["docker", "inspect", "--format", "{{.State.Status}}", id]).ok(),
        "running",
        "init ignores TERM"
    );
    container.docker(&["stop", "--time", "0"]).ok();
    assert_eq!(container.inspect("{{.State.ExitCode}}"), "137");
    node::wait_until_free();

    // A signal reaches the program, and its exit status comes back.
    let trap = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let trapping = share("busybox").command(["sh", "-c", trap]).start();
    trapping.wait_for_log("ready");
    trapping.docker(&["kill", "--signal", "TERM"]).ok();
    assert_eq!(trapping.docker(&["wait"]).ok(), "9");

    // Standard input and a terminal.
    let options = match front_end {
        FrontEnd::Cdi => front_end.asks("0.25"),
        _ => format!("--runtime {} --annotation {}", front_end.docker_runtime(), front_end.asks("0.25")),
    };
    let cat = format!(
        "echo in | docker run --rm -i {options} busybox sh -c 'nvidia-smi -L; cat >/dev/null; exit 5'"
    );
    assert_eq!(shell(&cat).status, 5);
    let tty =
        share("busybox").options(["--tty"]).command(["sh", "-c", "test -t 1 && stty size"]).run_and_keep();
    assert_eq!(tty.status, 0, "{}", tty.story());
}

/// Issue 13, line 15: what `docker commit` of a container with a share takes along is the empty places of the
/// mounts. They are in nobody's way, and the command of docs/troubleshooting.md removes them.
fn committed(front_end: FrontEnd) {
    let [with, without] = ["committed:with", "committed:without"];
    let share = |image| docker::container_of(image).under(front_end).annotation("fgpu/fraction", "0.25");
    let commit = |id: &str, name| run(["docker", "commit", id, name]).ok().to_owned();
    // Files and folders that an image has and its base has not.
    let added = |image: &str| {
        let list = |image: &str| {
            let find = "find / -xdev \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o -printf '%p %y %s\\n'";
            let list = docker::container_of(image).options(["--runtime", "runc", "--network", "none"]);
            list.command(["sh", "-c", find]).run_plainly().ok().to_owned()
        };
        let base = list("debian13");
        let base: Vec<_> = base.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        let found = list(image);
        let new = found.lines().filter(|line| !base.contains(&line.split(' ').next().unwrap_or_default()));
        new.map(str::to_owned).collect::<Vec<_>>()
    };
    docker::load("debian13");
    let container = share("debian13").command(["sleep", "1000"]).start();
    commit(&container.id, with);
    container.docker(&["rm", "--force"]).ok();
    let left = added(with);
    let is_empty = |line: &&String| line.ends_with(" f 0") || line.contains(" d ");
    assert!(left.iter().any(|line| line.ends_with("/nvidia-smi f 0")), "{left:?}");
    assert!(left.iter().all(|line| is_empty(&line)), "the driver was committed: {left:?}");
    // With a share they are covered as before.
    assert!(share(with).command(["nvidia-smi", "-L"]).run().ok().starts_with("GPU 0"));
    let tidy = docker::container_of(with).options(["--runtime", "runc"]).command(["sh", "-c", TIDY]).create();
    tidy.docker(&["start", "--attach"]).ok();
    commit(&tidy.id, without);
    let left = added(without);
    assert!(!left.iter().any(|line| line.ends_with(" f 0")), "{left:?}");
    assert!(share(without).command(["nvidia-smi", "-L"]).run().ok().starts_with("GPU 0"));
    docker::remove_all();
    run(["docker", "image", "rm", with, without]).ok();
}

/// As docs/troubleshooting.md has it.
const TIDY: &str = r"find /usr /run \( -name 'lib*.so*' -o -name 'nvidia*' -o -name fgpu \) -empty -delete";
