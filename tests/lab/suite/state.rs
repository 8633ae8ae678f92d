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

/// Bytes and inodes that are free on the state's file system.
fn free() -> String {
    shell("stat --file-system --format '%a %d' /run/fgpu").ok().to_owned()
}

/// What a container's root can write is made as large as it can be, and given attributes.
fn a_container_that_fills_it_stops_nobody(front_end: FrontEnd) {
    let quarter = node::gpus()[0].share(250_000);
    let of_first = |command: &[&str]| {
        let run = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
        run.annotation("fgpu/device", "0").command(command.iter().copied())
    };
    // What is made once is there.
    of_first(&["true"]).run().ok();
    node::wait_until_free();
    let before = free();
    let greedy = of_first(&["sleep", "1000"]).start();
    node::wait_until_recorded();
    let with_one = free();
    for file in ["ledger", "turns/0-*"] {
        let fill = format!(
            "for file in /run/fgpu/{file}; do dd if=/dev/zero of=$file bs=4k count=100000 conv=notrunc 2>&1; done"
        );
        let said = greedy.exec(["sh", "-c", &fill]);
        assert!(said.stdout.contains("No space left"), "{}", said.story());
        assert_eq!(free(), with_one, "{file}");
        assert_filled(of_first(&["alloc", "fill"]).run().ok(), quarter);
    }
    // Its own place alone is writable.
    let touch = "for place in /run/fgpu/turns/0-*; do : >>$place && echo wrote; done 2>/dev/null";
    assert_eq!(greedy.exec(["sh", "-c", touch]).stdout.matches("wrote").count(), 1);
    greedy.remove();
    node::wait_until_free();
    assert_eq!(free(), before);
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
