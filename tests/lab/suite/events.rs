//! The record of who held which GPU: every front end keeps it.

use std::fs;
use std::path::Path;

use fgpu_lab::command::{run, wait_until};
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[
    Test::both("events::a_container_leaves_its_grant_and_its_end", a_container_leaves_its_grant_and_its_end),
    Test::both("events::a_full_disk_stops_no_container", a_full_disk_stops_no_container),
    Test::once(
        "events::the_shim_tells_each_step_in_containerds_log",
        the_shim_tells_each_step_in_containerds_log,
    ),
];

const FOLDER: &str = "/var/log/fgpu";

/// The events of a container, in their order.
fn of(container: &str) -> Vec<Value> {
    let text = fs::read_to_string(Path::new(FOLDER).join("events.jsonl")).unwrap_or_default();
    // One that is being written has no end yet. Writers that met in the moment leave an empty line
    // (engine/src/events/file.rs), and the lab's are many.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().filter(|line| !line.is_empty());
    let events = lines.map(|line| serde_json::from_str::<Value>(line).expect(line));
    events.filter(|event| event["container"] == container).collect()
}

fn words(container: &str) -> Vec<String> {
    of(container).iter().map(|event| event["event"].as_str().unwrap_or_default().to_owned()).collect()
}

fn a_container_leaves_its_grant_and_its_end(front_end: FrontEnd) {
    let asking = |fraction| {
        docker::container("busybox")
            .under(front_end)
            .command(["sleep", "1000"])
            .annotation("fgpu/fraction", fraction)
            .annotation("fgpu/owner", "team-a")
    };
    let container = asking("0.25").start();
    let lease = node::only_lease();
    let [granted] = &of(&container.id)[..] else { panic!("{:?}", of(&container.id)) };
    assert_eq!((&granted["event"], &granted["owner"]), (&"granted".into(), &"team-a".into()));
    assert_eq!(granted["request"], "fgpu/fraction=0.25 fgpu/owner=team-a");
    assert_eq!(granted["gpus"][0]["memory"], lease.shares[0].1);
    let id = container.id.clone();
    container.remove();
    wait_until("the record of its end", || words(&id) == ["granted", "released"]);

    asking("2").try_start().expect_err("more than a GPU");
    let text = fs::read_to_string(Path::new(FOLDER).join("events.jsonl")).expect("it is there");
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).expect("a line of JSON");
    assert_eq!((&last["event"], &last["code"]), (&"refused".into(), &"invalid-request".into()));
}

fn the_shim_tells_each_step_in_containerds_log() {
    let log = || fs::read_to_string("/var/log/lab/containerd.log").unwrap_or_default();
    let steps = |id: &str| {
        let name = format!("prepare(container=moby/{}): deliver: close", &id[..12]);
        log().lines().filter(|line| line.contains(&name)).count()
    };
    let start = || {
        let container = docker::container("busybox").under(FrontEnd::Shim).command(["sleep", "1000"]);
        container.annotation("fgpu/fraction", "0.25").start()
    };
    let quiet = start();
    let _configured = node::configure("log-level = \"debug\"");
    let container = start();
    wait_until("the step in the log", || steps(&container.id) == 1);
    assert_eq!(steps(&quiet.id), 0, "without log-level nothing is told");
}

fn a_full_disk_stops_no_container(front_end: FrontEnd) {
    fs::create_dir_all(FOLDER).expect("the lab's root can be written");
    run(["mount", "-t", "tmpfs", "-o", "size=4k", "fgpu-full", FOLDER]).ok();
    fs::write(Path::new(FOLDER).join("filler"), [0; 4096]).expect("it fits");
    let container = docker::container("busybox")
        .under(front_end)
        .command(["sleep", "1000"])
        .annotation("fgpu/fraction", "0.25")
        .start();
    assert_eq!(node::only_lease().id, container.id);
    container.remove();
    node::wait_until_free();
    // The program that gave the share back tries to tell it, a moment later.
    wait_until("the end of the last writer", || run(["umount", FOLDER]).status == 0);
}
