//! The state directory as something that containers share.

use fgpu_lab::command::{run, shell};
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

use crate::limit::assert_filled;

pub(crate) const TESTS: &[Test] = &[
    Test::both("state::a_container_that_fills_it_stops_nobody", a_container_that_fills_it_stops_nobody),
    Test::once("state::another_pid_namespace_frees_nothing", another_pid_namespace_frees_nothing),
];

/// The state directory with as much room as was said, until dropped.
struct Small(());

impl Small {
    #[track_caller]
    fn new() -> Self {
        run(["mount", "-o", "remount,size=8m", "/run/fgpu"]).ok();
        Self(())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        run(["mount", "-o", "remount,size=512m", "/run/fgpu"]);
    }
}

/// Both files that a container can write are made longer than they are, until nothing is left for leases.
fn a_container_that_fills_it_stops_nobody(front_end: FrontEnd) {
    let quarter = node::gpus()[0].share(250_000);
    let of_first = |command: &[&str]| {
        let run = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
        run.annotation("fgpu/device", "0").command(command.iter().copied())
    };
    let _small = Small::new();
    let greedy = of_first(&["sleep", "1000"]).start();
    // Whoever finds it full makes room, the relay as well, which records the init a moment after the start.
    node::wait_until_recorded();
    for file in ["ledger", "turns"] {
        let fill = format!("dd if=/dev/zero of=/run/fgpu/{file} bs=4k seek=600 2>&1");
        let said = greedy.exec(["sh", "-c", &fill]);
        assert!(said.stdout.contains("No space left"), "{}", said.story());
        assert_eq!(shell("df --output=avail /run/fgpu | tail -n 1").ok(), "0");
        assert_filled(of_first(&["alloc", "fill"]).run().ok(), quarter);
    }
    // And its own end is not held up.
    greedy.exec(["sh", "-c", "dd if=/dev/zero of=/run/fgpu/ledger bs=4k seek=600 2>&1"]);
    greedy.remove();
    node::wait_until_free();
}

/// `fgpu gc` in a container that has the node's state directory and sees none of its processes.
fn another_pid_namespace_frees_nothing() {
    let holder = docker::container("busybox").under(FrontEnd::Shim).annotation("fgpu/fraction", "0.25");
    let holder = holder.command(["sleep", "1000"]).start();
    let elsewhere =
        |words: &[&str]| run([&["unshare", "--pid", "--fork", "--mount-proc", "fgpu"], words].concat());
    let gc = elsewhere(&["gc"]);
    assert_eq!(gc.ok(), "nothing to release");
    assert!(gc.stderr.contains(&holder.id) && gc.stderr.contains("another PID namespace"), "{}", gc.story());
    let release = elsewhere(&["release", &holder.id]);
    assert!(release.refused().starts_with("fgpu: denied: "), "{}", release.story());
    assert_eq!(node::only_lease().id, holder.id);
    holder.remove();
    node::wait_until_free();
}
