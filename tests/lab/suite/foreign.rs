//! A driver that comes with the container by other ways than its share: CDI, NVIDIA's hook, a volume.

use std::fs;
use std::path::Path;

use fgpu_lab::bundle::{bundle, runtimes};
use fgpu_lab::command::{Output, shell};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::podman::{container, podman};
use fgpu_lab::{docker, hooks};
use serde_json::json;

use crate::hook::{assert_nothing_is_left, number};

pub(crate) const TESTS: &[Test] = &[
    Test::both("foreign::docker_refuses_cdi", docker_refuses_cdi),
    Test::both("foreign::docker_refuses_a_volume_with_a_driver", docker_refuses_a_volume_with_a_driver),
    Test::once("foreign::podman_refuses_all_of_them", podman_refuses_all_of_them),
    Test::once("foreign::precreate_refuses_all_of_them", precreate_refuses_all_of_them),
    Test::once("foreign::hooks_of_nvidia_are_refused_in_any_order", hooks_of_nvidia_are_refused_in_any_order),
    Test::once("foreign::a_bundle_is_prepared_again", a_bundle_is_prepared_again),
];

const CDI_FILE: &str = "/etc/cdi/nvidia.json";
const CDI_HOOK: &str = "/usr/bin/nvidia-cdi-hook";
const LEGACY_HOOK: &str = "/usr/bin/nvidia-container-runtime-hook";
const HOOKS_D: &str = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json";

/// What NVIDIA's Container Toolkit puts on a node, as far as engines read it. Its programs do nothing here.
struct Toolkit(());

impl Toolkit {
    #[track_caller]
    fn install() -> Self {
        let library = library();
        let inside = Path::new(&library).file_name().expect("it has a name").to_string_lossy().into_owned();
        let destination = format!("/usr/lib/nvidia-cdi/{inside}");
        let options = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
        let hook = |name: &str| json!({"hookName": "createContainer", "path": CDI_HOOK, "args": ["nvidia-cdi-hook", name]});
        let node = |path: &str| json!({"path": path, "hostPath": format!("/opt/fgpu-sim{path}")});
        let cdi = json!({
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": "all", "containerEdits": {"deviceNodes": [node("/dev/nvidia0"), node("/dev/nvidia1")]}}],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [node("/dev/nvidiactl")],
                "hooks": [hook("create-symlinks"), hook("update-ldcache")],
                "mounts": [{"hostPath": library, "containerPath": destination, "options": options}],
            },
        });
        fs::create_dir_all("/etc/cdi").expect("/etc is writable");
        fs::write(CDI_FILE, cdi.to_string()).expect("/etc is writable");
        for hook in [CDI_HOOK, LEGACY_HOOK] {
            // It reads its input, as a hook has to: crun dies of a pipe that nobody reads.
            shell(&format!("printf '#!/bin/sh\\ncat >/dev/null\\n' >{hook} && chmod 755 {hook}")).ok();
        }
        Self(())
    }

    /// As the toolkit's package did it for Podman until 1.12.
    #[track_caller]
    fn install_hooks_d() -> Self {
        let this = Self::install();
        let text = json!({
            "version": "1.0.0",
            "hook": {"path": LEGACY_HOOK, "args": ["nvidia-container-runtime-hook", "prestart"]},
            "when": {"always": true, "commands": [".*"]},
            "stages": ["prestart"],
        });
        fs::create_dir_all("/usr/share/containers/oci/hooks.d").expect("/usr is writable");
        fs::write(HOOKS_D, text.to_string()).expect("/usr is writable");
        this
    }
}

impl Drop for Toolkit {
    fn drop(&mut self) {
        for file in [CDI_FILE, CDI_HOOK, LEGACY_HOOK, HOOKS_D] {
            let _ = fs::remove_file(file);
        }
    }
}

/// The simulated libcuda, with its version.
#[track_caller]
fn library() -> String {
    let found = shell("find /opt/fgpu-sim/ -name 'libcuda.so.[0-9]*.*' | head -n 1");
    assert!(found.ok().starts_with('/'), "{}", found.story());
    found.ok().to_owned()
}

const DEVICE: &str = "--device=nvidia.com/gpu=all";

#[track_caller]
fn assert_conflict(output: &Output, words: &[&str]) {
    let said = output.refused();
    assert!(said.contains("fgpu: conflict: fgpu/fraction=0.25"), "{}", output.story());
    for word in words {
        assert!(said.contains(word), "no {word:?} in {}", output.story());
    }
    assert_eq!(node::leases(), []);
}

fn docker_refuses_cdi(front_end: FrontEnd) {
    let _toolkit = Toolkit::install();
    // And this is how it is without a share.
    let plain = docker::container("debian13").options([DEVICE]).under(front_end);
    plain.command(["sh", "-c", "ls /usr/lib/nvidia-cdi/"]).run().ok();
    let share = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
    assert_conflict(&share.clone().options([DEVICE]).run(), &["nvidia-cdi-hook", "--device nvidia.com/gpu="]);
    share.command(["alloc", "info"]).run().ok();
    node::wait_until_free();
}

fn docker_refuses_a_volume_with_a_driver(front_end: FrontEnd) {
    let library = library();
    let folder = Path::new(&library).parent().expect("it is in a folder").display().to_string();
    let share = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
    for (volume, word) in [
        (format!("{library}:/opt/data.bin:ro"), "data.bin"),
        (format!("{folder}:/mnt:ro"), "libcuda.so"),
        ("/opt/fgpu-sim:/driver".to_owned(), "/driver"),
        ("/opt:/host/opt:ro".to_owned(), "/host/opt"),
    ] {
        let output = share.clone().options(["--volume".to_owned(), volume]).run();
        assert_conflict(&output, &[word, "--volume"]);
    }
    // An image of CUDA's has the variable, and nothing that reads it.
    let image = share.options(["--env", "NVIDIA_VISIBLE_DEVICES=all", "--volume", "/usr/share:/host:ro"]);
    image.command(["alloc", "info"]).run().ok();
    node::wait_until_free();
}

/// `call` runs a container of Podman's with these options, and `check` judges a refusal by the words that it
/// is to have.
fn all_of_them(call: impl Fn(&[&str], &[&str]) -> Output, check: impl Fn(&Output, &[&str])) {
    let quarter = ["--rm", "--annotation", "fgpu/fraction=0.25"];
    let refused = |options: &[&str], words: &[&str]| {
        check(&call(&[&quarter[..], options].concat(), &["true"]), words);
    };
    {
        let _toolkit = Toolkit::install();
        refused(&[DEVICE], &["nvidia"]);
        let library = library();
        refused(&["--volume", &format!("{library}:/opt/data.bin:ro")], &["data.bin"]);
        refused(&["--volume", "/opt/fgpu-sim:/driver:O"], &["/driver"]);
        call(&quarter, &["alloc", "info"]).ok();
    }
    let _toolkit = Toolkit::install_hooks_d();
    refused(&["--env", "NVIDIA_VISIBLE_DEVICES=all"], &["nvidia-container-runtime-hook", "hooks.d", "=void"]);
    call(&quarter, &["alloc", "info"]).ok();
    call(&[&quarter[..], &["--env", "NVIDIA_VISIBLE_DEVICES=void"]].concat(), &["alloc", "info"]).ok();
    node::wait_until_free();
}

fn podman_refuses_all_of_them() {
    {
        let _installed = hooks::install();
        for runtime in runtimes() {
            let call = |options: &[&str], command: &[&str]| container("debian13", runtime, options, command);
            all_of_them(call, assert_conflict);
        }
        assert_nothing_is_left();
    }
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [\"{runtime}\"]"));
        let call = |options: &[&str], command: &[&str]| {
            container("debian13", "/usr/bin/fgpu-runtime", options, command)
        };
        all_of_them(call, assert_conflict);
    }
    assert_nothing_is_left();
}

fn precreate_refuses_all_of_them() {
    shell("mkdir -p /run/lab/precreate").ok();
    let text = include_str!("../../../packaging/hooks.d/precreate/fgpu.json");
    fs::write("/run/lab/precreate/fgpu.json", text).expect("/run is writable");
    fgpu_lab::podman::load("debian13");
    let hooks = ["--hooks-dir", "/run/lab/precreate", "--hooks-dir", "/usr/share/containers/oci/hooks.d"];
    let call = |options: &[&str], command: &[&str]| {
        podman(&[&hooks[..], &["run"], options, &["localhost/debian13"], command].concat())
    };
    // Podman says of this stage only that it failed.
    let check = |output: &Output, _words: &[&str]| {
        assert!(output.refused().contains("precreate"), "{}", output.story());
        assert_eq!(node::leases(), []);
    };
    all_of_them(call, check);
    assert_nothing_is_left();
}

fn hooks_of_nvidia_are_refused_in_any_order() {
    let _toolkit = Toolkit::install();
    let numbers = number("/dev/nvidia1");
    for runtime in runtimes() {
        let share = || bundle(runtime, "debian13").annotation("fgpu/fraction", "0.25");
        let legacy = [LEGACY_HOOK, "prestart"];
        for hooked in [
            share().hook("prestart", &legacy).fgpu("createRuntime"),
            share().fgpu("prestart").hook("prestart", &legacy),
            share().fgpu("createRuntime").hook("createContainer", &[CDI_HOOK, "update-ldcache"]),
        ] {
            let asked = hooked.edit(|spec| {
                let env = spec["process"]["env"].as_array_mut().expect("a list");
                env.push("NVIDIA_VISIBLE_DEVICES=all".into());
            });
            assert_conflict(&asked.create(), &["nvidia"]);
            assert_eq!(asked.status(), "", "there is no container");
        }
        // Without the variable the old hook does nothing.
        let plain = share().fgpu("createRuntime").hook("prestart", &legacy);
        plain.run(&["sh", "-c", &format!("alloc info && nodes -m {numbers}")]).ok();
        assert_nothing_is_left();
    }
}

/// What fgpu-runtime wrote into a bundle is not taken for somebody else's.
fn a_bundle_is_prepared_again() {
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [\"{runtime}\"]"));
        let again = bundle("/usr/bin/fgpu-runtime", "debian13").annotation("fgpu/fraction", "0.25");
        again.create().ok();
        again.delete();
        node::wait_until_free();
        let path = again.path.to_string_lossy().into_owned();
        for _ in 0..2 {
            // The init has the output of its create until it is started.
            shell(&format!("/usr/bin/fgpu-runtime create --bundle {path} {} >/dev/null 2>&1", again.id)).ok();
            node::only_lease();
            again.delete();
            node::wait_until_free();
        }
        assert_nothing_is_left();
    }
}
