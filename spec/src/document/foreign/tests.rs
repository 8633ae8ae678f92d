use serde_json::{Value, json};

use super::*;
use crate::{GRANT_ANNOTATION, Mount, Plan};

const DOCKER: &str = include_str!("../../../testdata/config-docker.json");
const PRIVILEGED: &str = include_str!("../../../testdata/config-docker-privileged.json");
const CRI: &str = include_str!("../../../testdata/config-containerd-cri.json");
const PODMAN: &str = include_str!("../../../testdata/config-podman.json");
const RUNC: &str = include_str!("../../../testdata/config-runc-spec.json");
const ALL: [&str; 5] = [DOCKER, PRIVILEGED, CRI, PODMAN, RUNC];

const LIB: &str = "/usr/lib/x86_64-linux-gnu";

/// What of a driver is in the spec, as the message has it. The folder `/srv/driver` holds a libcuda.
fn found(spec: &Value) -> Option<String> {
    let holds =
        |source: &Path| (source == Path::new("/srv/driver")).then(|| "/srv/driver/libcuda.so.1".into());
    let document = Document::parse(&spec.to_string()).unwrap();
    let found = document.foreign_driver(&["/opt/extra"], holds).unwrap()?;
    let error = found.refusal("fgpu/fraction=0.5");
    assert_eq!(error.code, Code::Conflict);
    assert!(error.message.starts_with("fgpu/fraction=0.5: "), "{error}");
    Some(error.message)
}

fn with(base: &str, edit: impl FnOnce(&mut Value)) -> Value {
    let mut spec = serde_json::from_str(base).unwrap();
    edit(&mut spec);
    spec
}

fn push(list: &mut Value, entry: Value) {
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().unwrap().push(entry);
}

fn with_mount(base: &str, kind: &str, source: &str, destination: &str, options: &[&str]) -> Value {
    let mount = json!({"type": kind, "source": source, "destination": destination, "options": options});
    with(base, |spec| push(&mut spec["mounts"], mount))
}

fn with_hook(base: &str, stage: &str, path: &str, args: &[&str], env: &[&str]) -> Value {
    with(base, |spec| {
        push(&mut spec["hooks"][stage], json!({"path": path, "args": args}));
        let environment = spec["process"]["env"].as_array_mut().unwrap();
        environment.retain(|entry| !entry.as_str().unwrap().starts_with("NVIDIA_"));
        environment.retain(|entry| !entry.as_str().unwrap().starts_with("CUDA_"));
        environment.extend(env.iter().map(|entry| json!(entry)));
    })
}

#[test]
fn specs_without_a_driver_pass() {
    for base in ALL {
        assert_eq!(found(&serde_json::from_str(base).unwrap()), None);
    }
    // Every image of CUDA's has it.
    let cuda = with(DOCKER, |spec| push(&mut spec["process"]["env"], json!("NVIDIA_VISIBLE_DEVICES=all")));
    assert_eq!(found(&cuda), None);
    assert_eq!(Document::parse("{}").unwrap().foreign_driver(&[""; 0], |_| None).unwrap(), None);
}

#[test]
fn mounts_of_a_driver_are_found() {
    // As docker, podman, nvidia-ctk (1.13 and 1.17) and people write them.
    let docker = ["rbind", "rprivate"];
    let cdi = ["ro", "nosuid", "nodev", "bind"];
    let cdi_now = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
    let lib = |name: &str| format!("{LIB}/{name}");
    for (source, destination, options) in [
        (lib("libcuda.so.550.163.01"), lib("libcuda.so.550.163.01"), &cdi[..]),
        (lib("libcuda.so.550.163.01"), lib("libcuda.so.550.163.01"), &cdi_now),
        (lib("libcuda.so.1"), "/opt/real/data.bin".into(), &docker),
        ("/srv/renamed".into(), "/usr/lib64/libcuda.so.1".into(), &docker),
        (lib("libnvidia-ml.so.1"), lib("libnvidia-ml.so.1"), &docker),
        (lib("libnvidia-ptxjitcompiler.so.550.163.01"), "/x".into(), &cdi_now),
        (lib("libcudadebugger.so.1"), "/x".into(), &docker),
        ("/usr/bin/nvidia-smi".into(), "/usr/bin/nvidia-smi".into(), &cdi_now),
        ("/usr/bin/nvidia-cuda-mps-control".into(), "/usr/bin/nvidia-cuda-mps-control".into(), &cdi),
        (
            "/run/nvidia-persistenced/socket".into(),
            "/run/nvidia-persistenced/socket".into(),
            &["noexec", "bind"],
        ),
        ("/run/nvidia-persistenced".into(), "/run/nvidia-persistenced".into(), &docker),
        ("/run/nvidia-fabricmanager/socket".into(), "/fm".into(), &docker),
        ("/srv/driver".into(), "/mnt".into(), &docker),
        ("/srv/driver".into(), "/usr/local/nvidia".into(), &["rbind", "rslave", "ro"]),
    ] {
        for base in ALL {
            let message = found(&with_mount(base, "bind", &source, &destination, options)).unwrap();
            assert!(message.contains(&destination) && message.contains("--volume"), "{message}");
            // Podman and nerdctl leave the type out, or say `none`.
            let kinds = ["", "none"].map(|kind| with_mount(base, kind, &source, &destination, options));
            assert!(kinds.iter().all(|spec| found(spec).is_some()), "{source}");
        }
    }
    for options in [["lowerdir=/srv/other:/srv/driver"], ["upperdir=/srv/driver"]] {
        assert!(found(&with_mount(PODMAN, "overlay", "overlay", "/mnt", &options)).is_some());
    }
}

#[test]
fn other_mounts_are_let_through() {
    for (kind, source, destination, options) in [
        ("bind", "/srv/data", "/data", &["rbind"][..]),
        ("bind", "/usr/lib/x86_64-linux-gnu/libcudart.so.12", "/usr/lib64/libcudart.so.12", &["rbind"]),
        ("bind", "/x/libcuda.sock", "/x/libcuda.sock", &["rbind"]),
        ("bind", "/x/libnvidia-encode.so.1", "/x/libnvidia-encode.so.1", &["rbind"]),
        ("bind", "/srv/nvidia-smi.log", "/var/log/nvidia-smi.log", &["rbind"]),
        ("tmpfs", "/srv/driver", "/tmp", &["mode=1777"]),
        ("overlay", "overlay", "/mnt", &["lowerdir=/srv/data"]),
        // Of the administrator's `[driver] extra`.
        ("bind", "/srv/driver", "/opt/extra", &["rbind"]),
    ] {
        assert_eq!(found(&with_mount(DOCKER, kind, source, destination, options)), None, "{source}");
    }
}

#[test]
fn hooks_of_nvidias_tools_are_found() {
    let all = &["NVIDIA_VISIBLE_DEVICES=all"][..];
    let ctk = "/usr/bin/nvidia-ctk";
    for (stage, path, args, env, remedy) in [
        // docker --gpus all
        (
            "prestart",
            "/usr/bin/nvidia-container-runtime-hook",
            &["nvidia-container-runtime-hook", "prestart"][..],
            all,
            "--gpus",
        ),
        // its older name, and what the GPU operator wraps
        (
            "prestart",
            "/usr/bin/nvidia-container-toolkit",
            &["nvidia-container-toolkit", "prestart"],
            all,
            "--gpus",
        ),
        ("prestart", "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook.real", &["x"], all, "hooks.d"),
        (
            "createRuntime",
            "/usr/bin/nvidia-container-runtime-hook",
            &["x"],
            &["NVIDIA_VISIBLE_DEVICES=0"],
            "void",
        ),
        // The driver without a GPU.
        (
            "prestart",
            "/usr/bin/nvidia-container-runtime-hook",
            &["x"],
            &["NVIDIA_VISIBLE_DEVICES=none"],
            "void",
        ),
        (
            "prestart",
            "/usr/bin/nvidia-container-runtime-hook",
            &["x"],
            &["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=GPU-1"],
            "void",
        ),
        // An image of CUDA 8.
        ("prestart", "/usr/bin/nvidia-container-runtime-hook", &["x"], &["CUDA_VERSION=8.0.61"], "void"),
        (
            "prestart",
            "/usr/bin/nvidia-container-runtime-hook",
            &["x"],
            &["DOCKER_RESOURCE_GPU=GPU-1"],
            "void",
        ),
        // CDI
        (
            "createContainer",
            "/usr/bin/nvidia-cdi-hook",
            &["nvidia-cdi-hook", "create-symlinks"],
            &[],
            "nvidia.com/gpu=",
        ),
        (
            "createContainer",
            "/usr/bin/nvidia-cdi-hook",
            &["nvidia-cdi-hook", "update-ldcache"],
            &["NVIDIA_VISIBLE_DEVICES=void"],
            "nvidia.com/gpu=",
        ),
        ("createContainer", ctk, &["nvidia-ctk", "hook", "update-ldcache"], &[], "nvidia.com/gpu="),
        (
            "startContainer",
            "/opt/toolkit/nvidia-ctk",
            &["nvidia-ctk", "hook", "chmod"],
            &[],
            "nvidia.com/gpu=",
        ),
        // behind something else
        (
            "createRuntime",
            "/usr/bin/env",
            &["env", "nvidia-cdi-hook", "update-ldcache"],
            &[],
            "nvidia.com/gpu=",
        ),
        (
            "createRuntime",
            "/bin/sh",
            &["sh", "-c", "exec '/usr/bin/nvidia-ctk' hook x"],
            &[],
            "nvidia.com/gpu=",
        ),
    ] {
        for base in ALL {
            let message = found(&with_hook(base, stage, path, args, env)).unwrap();
            assert!(message.contains(&format!("the {stage} hook {path}")), "{message}");
            assert!(message.contains(remedy), "{message}");
        }
    }
    let mounted = with_mount(DOCKER, "bind", "/dev/null", "/var/run/nvidia-container-devices/all", &["bind"]);
    let hook = "/usr/bin/nvidia-container-runtime-hook";
    assert!(found(&with_hook(&mounted.to_string(), "prestart", hook, &["x"], &[])).is_some());
}

#[test]
fn a_hook_that_does_nothing_here_is_let_through() {
    let hook = "/usr/bin/nvidia-container-runtime-hook";
    for env in [
        &[][..],
        &["NVIDIA_VISIBLE_DEVICES=void"],
        &["NVIDIA_VISIBLE_DEVICES="],
        &["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"],
        &["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"],
    ] {
        assert_eq!(found(&with_hook(PODMAN, "prestart", hook, &["x", "prestart"], env)), None, "{env:?}");
    }
    let other = with_hook(PODMAN, "prestart", "/usr/bin/oci-systemd-hook", &["oci-systemd-hook"], &[]);
    assert_eq!(found(&other), None);
}

#[test]
fn annotations_of_cdi_are_found() {
    for (key, value, is_foreign) in [
        ("cdi.k8s.io/gpu", "nvidia.com/gpu=all", true),
        ("cdi.k8s.io/nvidia-device-plugin_5f", "nvidia.com/gpu=GPU-955ef018", true),
        ("cdi.k8s.io/x", "vendor.com/net=0,runtime.nvidia.com/gpu=0", true),
        ("cdi.k8s.io/x", "management.nvidia.com/gpu=all", true),
        ("cdi.k8s.io/x", "nvidia.com/mig-1g.10gb=0:1", true),
        ("cdi.k8s.io/x", "vendor.com/net=0", false),
        ("cdi.k8s.io/x", "notnvidia.com/gpu=0", false),
        ("example.com/cdi.k8s.io", "nvidia.com/gpu=0", false),
        ("nvidia.com/gpumem", "3000", false),
    ] {
        for base in ALL {
            let spec = with(base, |spec| spec["annotations"][key] = json!(value));
            let message = found(&spec);
            assert_eq!(message.is_some(), is_foreign, "{key}={value}");
            assert!(message.is_none_or(|message| message.contains(key)));
        }
    }
}

#[test]
fn a_former_edit_is_not_foreign() {
    let mount = |source: &str, destination: &str, writable| Mount {
        source: source.into(),
        destination: destination.into(),
        writable,
        inherits: false,
    };
    let plan = Plan {
        annotations: vec![(GRANT_ANNOTATION.into(), "00112233445566778899aabbccddeeff".into())],
        mounts: vec![
            mount(&format!("{LIB}/libcuda.so.550.163.01"), "/run/fgpu/driver/libcuda.so.1", false),
            mount("/usr/lib/fgpu/libfgpu-cuda.so", "/usr/lib64/libcuda.so.1", false),
            mount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", false),
            mount("/run/nvidia-persistenced", "/run/nvidia-persistenced", true),
            mount("/run/fgpu/containers/x/limits", "/run/fgpu/limits", false),
        ],
        ..Plan::default()
    };
    for base in ALL {
        let mut document = Document::parse(base).unwrap();
        document.apply(&plan).unwrap();
        assert_eq!(found(&serde_json::from_str(&document.to_string()).unwrap()), None);
        // And what somebody adds to it is.
        let more = with_mount(&document.to_string(), "bind", "/x/libcuda.so.1", "/x", &["rbind"]);
        assert!(found(&more).is_some());
    }
}

#[test]
fn a_value_from_a_stranger_stays_on_one_line() {
    let spec = with_mount(DOCKER, "bind", "/a\nfgpu: b/libcuda.so.1", "/x\u{1b}[2J", &["rbind"]);
    let message = found(&spec).unwrap();
    assert!(!message.contains(['\n', '\u{1b}']), "{message:?}");
}
