//! Podman with nothing but the package's files in hooks.d, over plain runc and plain crun.

use fgpu_lab::bundle::runtimes;
use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::podman::{container, podman, remove, start, start_by};
use fgpu_lab::{hooks, node, process};

use crate::hook::{assert_has_quarter_of_first, assert_nothing_is_left};

pub(crate) const TESTS: &[Test] = &[
    Test::once("hook_podman::container_gets_its_share", container_gets_its_share),
    Test::once(
        "hook_podman::container_without_annotation_has_no_hook",
        container_without_annotation_has_no_hook,
    ),
    Test::once("hook_podman::a_volume_over_run_needs_a_folder", a_volume_over_run_needs_a_folder),
    Test::once("hook_podman::refusals_are_told", refusals_are_told),
    Test::once("hook_podman::lease_ends_with_the_container", lease_ends_with_the_container),
    Test::once("hook_podman::container_without_a_cgroup_gives_back", container_without_a_cgroup_gives_back),
    Test::once("hook_podman::restart_holds_exactly_one_lease", restart_holds_exactly_one_lease),
    Test::once("hook_podman::beside_our_runtime_there_is_one_grant", beside_our_runtime_there_is_one_grant),
    Test::once("hook_podman::precreate_does_it_too", precreate_does_it_too),
];

const QUARTER: [&str; 4] = ["--annotation", "fgpu/fraction=0.25", "--annotation", "fgpu/device=0"];

fn container_gets_its_share() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        let options = [&["--rm", "--cap-add", "MKNOD"], &QUARTER[..]].concat();
        assert_has_quarter_of_first(|script| container("debian13", runtime, &options, &["sh", "-c", script]));
        node::wait_until_free();
        assert_nothing_is_left();
    }
}

fn container_without_annotation_has_no_hook() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        // A hook that ran would fail now.
        let _broken = node::configure("no-such-key = 1");
        let script = "ls -d /run/fgpu /dev/nvidia* /usr/bin/nvidia-smi 2>/dev/null";
        let options = ["--rm", "--annotation", "org.example/fgpu=1", "--annotation", "notfgpu/fraction=1"];
        let output = container("debian13", runtime, &options, &["sh", "-c", script]);
        assert_eq!((output.status, output.stdout.as_str()), (2, ""), "{}", output.story());
        // And this is how that looks.
        let options = [&["--rm"], &QUARTER[..]].concat();
        let refused = container("busybox", runtime, &options, &["true"]);
        assert!(refused.refused().contains("no-such-key"), "{}", refused.story());
    }
    assert_nothing_is_left();
}

/// The hook makes nothing in a volume and says what is to be made; the runtime makes it itself.
fn a_volume_over_run_needs_a_folder() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        let volume = "/tmp/over-run";
        shell(&format!("rm -rf {volume} && mkdir {volume}")).ok();
        let bind = format!("{volume}:/run");
        let options = [&["--rm", "--cap-add", "MKNOD", "-v", &*bind], &QUARTER[..]].concat();
        let refused = container("debian13", runtime, &options, &["true"]);
        assert!(refused.refused().contains("fgpu: denied: /run/"), "{}", refused.story());
        assert!(refused.stderr.contains("make an empty folder of that name"), "{}", refused.story());
        assert_nothing_is_left();
        // The simulated driver is in a folder of its own.
        run(["mkdir", "/tmp/over-run/fgpu", "/tmp/over-run/nvidia-sim"]).ok();
        assert_has_quarter_of_first(|script| container("debian13", runtime, &options, &["sh", "-c", script]));
        node::wait_until_free();
        shell("rm -rf /tmp/over-run/*").ok();
        let ours = container("debian13", "/usr/bin/fgpu-runtime", &options, &["nvidia-smi", "-L"]);
        assert!(ours.ok().starts_with("GPU 0: "), "{}", ours.story());
        node::wait_until_free();
    }
}

fn refusals_are_told() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        for (annotation, code, word) in [
            ("fgpu/fraction=2", "invalid-request", "fgpu/fraction"),
            ("fgpu/fracton=0.5", "invalid-request", "fgpu/fraction"),
            ("fgpu/fraction=", "invalid-request", "empty"),
            ("fgpu/memory=81Gi", "too-large", "fgpu/memory"),
        ] {
            let output = container("busybox", runtime, &["--rm", "--annotation", annotation], &["true"]);
            let said = output.refused();
            assert!(said.contains(&format!("fgpu: {code}: ")) && said.contains(word), "{}", output.story());
        }
        let most = ["--detach", "--annotation", "fgpu/fraction=0.6"];
        for _ in 0..2 {
            container("busybox", runtime, &most, &["sleep", "1000"]).ok();
        }
        let output = container("busybox", runtime, &most, &["true"]);
        assert!(output.refused().contains("fgpu: fragmented: "), "{}", output.story());
        podman(&["rm", "--all", "--force", "--time", "0"]).ok();
        node::wait_until_free();
    }
    assert_nothing_is_left();
}

fn lease_ends_with_the_container() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        let options = [&["--detach", "--name", "one"], &QUARTER[..]].concat();
        for end in
            [&["kill", "one"][..], &["rm", "--force", "--time", "0", "one"], &["stop", "--time", "0", "one"]]
        {
            container("busybox", runtime, &options, &["sleep", "1000"]).ok();
            assert_eq!(podman(&["inspect", "--format", "{{.Id}}", "one"]).ok(), node::only_lease().id);
            podman(end).ok();
            node::wait_until_free();
            remove("one");
        }
        for (command, status) in [(&["sh", "-c", "exit 3"][..], 3), (&["no-such-program"], 127)] {
            let options = [&["--rm"], &QUARTER[..]].concat();
            assert_eq!(container("busybox", runtime, &options, command).status, status);
            node::wait_until_free();
        }
        // Its init is killed: conmon sees it and cleans up.
        container("busybox", runtime, &options, &["sleep", "1000"]).ok();
        let init = podman(&["inspect", "--format", "{{.State.Pid}}", "one"]).ok().parse().expect("a pid");
        assert!(process::kill(init));
        node::wait_until_free();
        remove("one");
        assert_nothing_is_left();
    }
}

/// It stays in Podman's own cgroup, where somebody lives after its end. runc knows no such containers.
fn container_without_a_cgroup_gives_back() {
    let _installed = hooks::install();
    let options = [&["--cgroups=disabled"], &QUARTER[..]].concat();
    let open = start("busybox", "crun", "open", &options);
    assert_eq!(open.inspect("{{.Id}}"), node::only_lease().id);
    run(["fgpu", "gc"]).ok();
    node::only_lease();
    open.remove();
    node::wait_until_free();
    // And without its poststop.
    let open = start("busybox", "crun", "open", &options);
    let init = open.inspect("{{.State.Pid}}").parse().expect("a pid");
    let conmon = open.inspect("{{.State.ConmonPid}}").parse().expect("a pid");
    assert!(process::kill(conmon) && process::kill(init));
    wait_until("the end of a container", || !process::lives(init));
    run(["fgpu", "gc"]).ok();
    assert_nothing_is_left();
}

fn restart_holds_exactly_one_lease() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        let again = start("debian13", runtime, "again", &QUARTER);
        let mut nonces = vec![node::only_lease().nonce];
        let granted = node::gpus()[0].share(250_000);
        for _ in 0..2 {
            podman(&["restart", "--time", "0", "again"]).ok();
            let lease = node::only_lease();
            assert!(!nonces.contains(&lease.nonce), "each life has a grant of its own");
            nonces.push(lease.nonce);
            crate::limit::assert_filled(again.exec(&["alloc", "fill"]).ok(), granted);
        }
        podman(&["stop", "--time", "0", "again"]).ok();
        node::wait_until_free();
        podman(&["start", "again"]).ok();
        assert_eq!(again.inspect("{{.Id}}"), node::only_lease().id);
        crate::limit::assert_filled(again.exec(&["alloc", "fill"]).ok(), granted);
        again.remove();
        node::wait_until_free();
        assert_nothing_is_left();
    }
}

/// A node may have both: the hook then finds what the runtime has granted.
fn beside_our_runtime_there_is_one_grant() {
    let _installed = hooks::install();
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [\"{runtime}\"]"));
        let options = [&["--cap-add", "MKNOD"], &QUARTER[..]].concat();
        let both = start("debian13", "/usr/bin/fgpu-runtime", "both", &options);
        assert_eq!(both.inspect("{{.Id}}"), node::only_lease().id);
        assert_has_quarter_of_first(|script| both.exec(&["sh", "-c", script]));
        both.remove();
        node::wait_until_free();
        assert_nothing_is_left();
    }
}

/// Podman's own stage, in which the spec can still be changed.
fn precreate_does_it_too() {
    shell("mkdir -p /run/lab/precreate").ok();
    let text = include_str!("../../../packaging/hooks.d/precreate/fgpu.json");
    std::fs::write("/run/lab/precreate/fgpu.json", text).expect("/run is writable");
    for runtime in runtimes() {
        let engine = ["podman", "--runtime", runtime, "--hooks-dir", "/run/lab/precreate"].map(str::to_owned);
        let options = [&["--cap-add", "MKNOD"], &QUARTER[..]].concat();
        let pre = start_by(&engine, "debian13", "pre", &options);
        assert_eq!(pre.inspect("{{.Id}}"), node::only_lease().id);
        assert_has_quarter_of_first(|script| pre.exec(&["sh", "-c", script]));
        pre.remove();
        node::wait_until_free();
        assert_nothing_is_left();
    }
}
