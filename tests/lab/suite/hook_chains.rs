//! Hooks beside ours that fail, are missing, or kill the runtime or conmon: at most one reconcile later
//! nothing of a grant is left.

use std::fs;

use fgpu_lab::bundle::{HOOK, runtimes};
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::podman::{container, podman, start};
use fgpu_lab::{hooks, node, process};
use serde_json::json;

use crate::hook::assert_nothing_is_left;
use crate::hook_faults::{assert_cleared, half};

pub(crate) const TESTS: &[Test] = &[
    Test::once("hook_chains::failures_around_the_hook", failures_around_the_hook),
    Test::once("hook_chains::runtime_and_conmon_killed_under_podman", runtime_and_conmon_killed_under_podman),
];

/// Hooks before and after ours that fail, are missing, or kill the runtime, at every stage.
fn failures_around_the_hook() {
    let fail = ["/bin/false"];
    let missing = ["/no/such/program"];
    let kill = ["/bin/sh", "-c", "kill -9 $PPID; sleep 0.1"];
    for runtime in runtimes() {
        for bad in [&fail[..], &missing] {
            for (before, stage) in
                [(true, "createRuntime"), (false, "createRuntime"), (false, "createContainer")]
            {
                let container = half(runtime);
                let container = if before { container.hook(stage, bad) } else { container };
                let container = container.fgpu("createRuntime");
                let container = if before { container } else { container.hook(stage, bad) };
                container.create().refused();
                assert_cleared(&container, &format!("{runtime}, {bad:?} at {stage}, before ours: {before}"));
            }
            // In the container, at its start: it is created, and then there is no way but to delete it.
            let container = half(runtime).fgpu("createRuntime").hook("startContainer", bad);
            container.create().ok();
            node::only_lease();
            container.runtime(&["start"]);
            assert_cleared(&container, &format!("{runtime}, {bad:?} at startContainer"));
            // A runtime need not run poststop after a poststart hook that failed (runc issue 5182, crun issue
            // 2047). runc up to 1.2 runs it at create already.
            let container = half(runtime).fgpu("createRuntime").hook("poststart", bad);
            if container.create().status == 0 {
                container.runtime(&["start"]);
            }
            assert_cleared(&container, &format!("{runtime}, {bad:?} at poststart"));
        }
        // A poststop hook before ours keeps ours from running.
        for bad in [&fail[..], &missing, &kill] {
            let container = half(runtime).hook("poststop", bad).fgpu("createRuntime");
            container.create().ok();
            container.runtime(&["delete", "--force"]);
            assert_cleared(&container, &format!("{runtime}, {bad:?} before our poststop"));
        }
        // A container that cannot be made, or not started, with nothing wrong about hooks.
        for wrong in ["mount", "profile", "program"] {
            let container = half(runtime).fgpu("createRuntime").edit(|spec| match wrong {
                "mount" => {
                    let mount = json!({"destination": "/x", "source": "/no/such", "options": ["bind"]});
                    spec["mounts"].as_array_mut().expect("mounts").push(mount);
                }
                "profile" => spec["process"]["apparmorProfile"] = "no-such-profile".into(),
                _ => spec["process"]["args"] = json!(["/no/such/program"]),
            });
            if container.create().status == 0 {
                container.runtime(&["start"]);
            }
            assert_cleared(&container, &format!("{runtime}, a wrong {wrong}"));
        }
    }
}

const HALF: [&str; 2] = ["--annotation", "fgpu/fraction=0.5"];

/// Another hook of Podman's, beside the package's, for every container.
struct Beside(&'static str);

impl Beside {
    /// `name` decides whether it comes before fgpu.json; `script` is shell.
    fn install(name: &'static str, script: &str) -> Self {
        let hook = json!({
            "version": "1.0.0", "when": {"always": true}, "stages": ["createRuntime"],
            "hook": {"path": "/bin/sh", "args": ["sh", "-c", script], "env": [fgpu_lab::bundle::PATH]},
        });
        let path = format!("/usr/share/containers/oci/hooks.d/{name}");
        fs::write(&path, hook.to_string()).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self(name)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_file(format!("/usr/share/containers/oci/hooks.d/{}", self.0));
    }
}

/// Podman runs conmon, conmon runs the runtime, the runtime runs hooks.
fn runtime_and_conmon_killed_under_podman() {
    let _installed = hooks::install();
    let runtime_dies = "kill -9 $PPID; sleep 0.1";
    let conmon_dies = "kill -9 $(ps -o ppid= -p $PPID); sleep 0.1";
    for runtime in runtimes() {
        for script in [runtime_dies, conmon_dies] {
            for name in ["aaa.json", "zzz.json"] {
                let beside = Beside::install(name, script);
                let options = [&["--detach", "--name", "hit"], &HALF[..]].concat();
                // Whether Podman takes it for running is its affair.
                container("busybox", runtime, &options, &["sleep", "1000"]);
                drop(beside);
                // Where conmon was hit, the runtime goes on to the hooks that come next.
                let id = podman(&["inspect", "--format", "{{.Id}}", "hit"]).stdout.trim().to_owned();
                remove_hit();
                wait_until("the end of the runtime", || id.is_empty() || process::serving(&id).is_empty());
                wait_until("the end of hooks", || process::running(HOOK, "").is_empty());
                let inits = node::inits();
                wait_until("the end of inits", || !inits.iter().any(|init| process::lives(*init)));
                run(["fgpu", "gc"]).ok();
                assert_eq!(node::leases(), [], "{runtime}, {name}: {script}");
                assert_nothing_is_left();
            }
        }
        // conmon of a container that runs: nobody is left to clean up after it but the reconciler.
        let hit = start("busybox", runtime, "hit", &HALF);
        let [init, conmon] = ["{{.State.Pid}}", "{{.State.ConmonPid}}"]
            .map(|field| hit.inspect(field).parse::<i32>().expect("a process id"));
        assert!(process::kill(conmon));
        node::only_lease();
        assert!(process::kill(init));
        wait_until("the end of a container", || !process::lives(init));
        run(["fgpu", "gc"]).ok();
        assert_nothing_is_left();
        remove_hit();
    }
}

/// Podman may need to be asked twice when conmon is gone.
fn remove_hit() {
    wait_until("podman to remove what was hit", || {
        podman(&["rm", "--force", "--ignore", "--time", "0", "hit"]).status == 0
    });
}
