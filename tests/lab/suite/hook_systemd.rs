//! Containers whose cgroup is a scope of systemd's, which keeps a device list of its own: it applies that
//! anew on `daemon-reload`, and what a hook had allowed behind its back would be gone ("Failed to initialize
//! NVML: Unknown Error", nvidia-container-toolkit issue 48).
//!
//! Not in forky on cgroup v1, which its systemd knows no more; and on v1 not with crun, which refuses the
//! hierarchies that systemd mounts there.

use fgpu_lab::bundle::{bundle, runtimes};
use fgpu_lab::command::{Output, wait_until};
use fgpu_lab::hooks;
use fgpu_lab::inside::Test;
use fgpu_lab::podman::start_by;
use fgpu_lab::systemd::{self, Systemd};

use crate::hook::{assert_has_quarter_of_first, number};

pub(crate) const TESTS: &[Test] = &[
    Test::once("hook_systemd::device_opens_after_daemon_reload", device_opens_after_daemon_reload),
    Test::once("hook_systemd::podman_keeps_its_device", podman_keeps_its_device),
];

/// A systemd and the runtimes that run below it, if there are any.
fn systemd() -> Option<(Systemd, &'static [&'static str])> {
    let environment = std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it");
    let runtimes = if environment.ends_with("-v1") { &["runc"] } else { runtimes() };
    (environment != "forky-v1").then(|| (systemd::start(), runtimes))
}

/// Leases and their files, in systemd's own /run.
#[track_caller]
fn assert_nothing_is_left(systemd: &Systemd) {
    wait_until("the end of all leases and of their files", || {
        let left =
            systemd.run(&["sh", "-c", "grep -c nonce /run/fgpu/allocations.json; ls /run/fgpu/containers"]);
        left.stdout.trim() == "0"
    });
}

/// Reloads systemd in every way, and checks each time that the container has what it had.
#[track_caller]
fn assert_survives(systemd: &Systemd, scope: &str, mut print: impl FnMut(&str) -> Output) {
    assert_has_quarter_of_first(&mut print);
    let show = systemd.run(&["systemctl", "show", "--property", "DevicePolicy,DeviceAllow", scope]);
    let node = format!("DeviceAllow=/dev/char/{} rw", number("/dev/nvidia0"));
    // crun 1.28 limits devices in a cgroup below the scope, which systemd does not know; the scope itself is
    // open.
    let open = show.ok() == "DevicePolicy=auto" && scope_has_child(systemd, scope);
    assert!(open || show.ok().lines().any(|line| line == node), "no {node}: {}", show.story());
    for change in [
        &["systemctl", "daemon-reload"][..],
        &["systemctl", "daemon-reexec"],
        &["systemctl", "set-property", "--runtime", scope, "TasksAccounting=yes"],
        &["systemctl", "daemon-reload"],
    ] {
        systemd.run(change).ok();
        // Answered once it is done with what came before.
        systemd.run(&["systemctl", "show", "--property", "ActiveState", scope]).ok();
        assert_has_quarter_of_first(&mut print);
    }
}

fn scope_has_child(systemd: &Systemd, scope: &str) -> bool {
    let found = systemd.run(&["find", "/sys/fs/cgroup", "-path", &format!("*/{scope}/*"), "-type", "d"]);
    !found.ok().is_empty()
}

fn device_opens_after_daemon_reload() {
    let Some((systemd, runtimes)) = systemd() else { return };
    for runtime in runtimes {
        for stage in ["createRuntime", "prestart"] {
            let container = bundle(runtime, "debian13").below(&systemd).fgpu(stage);
            let container =
                container.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0").start();
            let scope = format!("lab-{}.scope", container.id);
            assert_survives(&systemd, &scope, |script| container.exec(&["sh", "-c", script]));
            container.delete();
            assert_nothing_is_left(&systemd);
        }
        // One that is refused leaves no rule at the unit either, and the unit is gone.
        let refused =
            bundle(runtime, "busybox").below(&systemd).fgpu("createRuntime").annotation("fgpu/fraction", "2");
        refused.create().refused();
        // systemd forgets it when it has seen that its cgroup is empty.
        wait_until("the end of the unit", || {
            systemd.run(&["systemctl", "list-units", "--all", "--no-legend", "lab-*.scope"]).ok().is_empty()
        });
    }
}

fn podman_keeps_its_device() {
    let Some((systemd, runtimes)) = systemd() else { return };
    let _installed = hooks::install();
    for runtime in runtimes {
        let podman = ["podman", "--cgroup-manager", "systemd", "--runtime", runtime].map(str::to_owned);
        let engine = [systemd.enter(), podman.to_vec()].concat();
        let options =
            ["--cap-add", "MKNOD", "--annotation", "fgpu/fraction=0.25", "--annotation", "fgpu/device=0"];
        let unit = start_by(&engine, "debian13", "unit", &options);
        let scope = format!("libpod-{}.scope", unit.inspect("{{.Id}}"));
        assert_survives(&systemd, &scope, |script| unit.exec(&["sh", "-c", script]));
        unit.remove();
        assert_nothing_is_left(&systemd);
    }
}
