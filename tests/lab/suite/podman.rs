//! Podman with `fgpu-runtime`, over runc and over crun.

use fgpu_lab::inside::Test;
use fgpu_lab::node;
use fgpu_lab::podman::{container, podman, remove};

pub(crate) const TESTS: &[Test] = &[
    Test::baseline("podman::runs_without_fgpu", runs_without_fgpu),
    Test::once("podman::container_gets_its_share", container_gets_its_share),
    Test::once("podman::refusal_is_its_error", refusal_is_its_error),
    Test::once("podman::lease_ends_with_the_container", lease_ends_with_the_container),
];

const OURS: &str = "/usr/bin/fgpu-runtime";
const QUARTER: [&str; 2] = ["--annotation", "fgpu/fraction=0.25"];

/// Runs something with each real runtime below ours.
fn below_ours(check: fn()) {
    for runtime in ["runc", "crun"] {
        let _configured = node::configure(&format!("runtimes = [\"{runtime}\"]"));
        check();
        node::wait_until_free();
    }
}

fn runs_without_fgpu() {
    for runtime in ["runc", "crun"] {
        assert_eq!(container("busybox", runtime, &["--rm"], &["echo", "hello"]).ok(), "hello");
    }
}

fn container_gets_its_share() {
    below_ours(|| {
        let granted = node::gpus()[0].share(250_000);
        let options = [&["--rm"], &QUARTER[..]].concat();
        let query =
            "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; alloc fill; nodes -m 195:1";
        let output = container(
            "debian13",
            OURS,
            &[&options[..], &["--annotation", "fgpu/device=0"]].concat(),
            &["sh", "-c", query],
        );
        let lines: Vec<_> = output.ok().lines().collect();
        assert_eq!(lines[0], (granted >> 20).to_string());
        crate::limit::assert_filled(lines[1], granted);
        assert_eq!(lines[2], "195:1 mknod:EPERM", "Podman gives no CAP_MKNOD");
    });
}

fn refusal_is_its_error() {
    below_ours(|| {
        let output = container("busybox", OURS, &["--rm", "--annotation", "fgpu/fraction=2"], &["true"]);
        assert!(output.refused().contains("fgpu: invalid-request: "), "{}", output.story());
    });
}

fn lease_ends_with_the_container() {
    below_ours(|| {
        for end in
            [&["kill", "one"][..], &["rm", "--force", "--time", "0", "one"], &["stop", "--time", "0", "one"]]
        {
            let options = [&["--detach", "--name", "one"], &QUARTER[..]].concat();
            container("busybox", OURS, &options, &["sleep", "1000"]).ok();
            let lease = node::only_lease();
            assert_eq!(podman(&["inspect", "--format", "{{.Id}}", "one"]).ok(), lease.id);
            assert_eq!(podman(&["exec", "one", "echo", "in"]).status, 0);
            podman(end).ok();
            node::wait_until_free();
            remove("one");
        }
    });
}
