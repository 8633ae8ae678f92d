//! The container engines: are they wired to fgpu, and are their versions known to have faults with us?

use fgpu_engine::config::PATH;
use fgpu_spec::{Error, escape_for_display};

use super::node::Node;
use super::{Diagnosis, cdi, kubelet, running};
use crate::setup::{Name, is_done};
use crate::version::{DOCKER_WITH_SHIMS, Version};

const DAEMON_JSON: &str = "/etc/docker/daemon.json";

/// An engine.
struct Engine {
    name: Name,
    /// The argument of `fgpu setup`.
    word: &'static str,
    title: &'static str,
    /// A program of it that says its version.
    program: &'static str,
    /// The oldest that fgpu was tried with.
    tried: Version,
    restart: &'static str,
}

const ENGINES: [Engine; 4] = [
    Engine {
        name: Name::Docker,
        word: "docker",
        title: "Docker",
        program: "dockerd",
        tried: Version(20, 10, 0),
        restart: "systemctl reload docker",
    },
    Engine {
        name: Name::Containerd,
        word: "containerd",
        title: "containerd",
        program: "containerd",
        tried: Version(1, 6, 0),
        restart: "systemctl restart containerd",
    },
    Engine {
        name: Name::Podman,
        word: "podman",
        title: "Podman",
        program: "podman",
        tried: Version(4, 3, 0),
        restart: "",
    },
    Engine {
        name: Name::Crio,
        word: "crio",
        title: "CRI-O",
        program: "crio",
        tried: Version(1, 20, 0),
        restart: "systemctl restart crio",
    },
];

/// The first Podman that gives a container none of its image's annotations (Podman 4.6.0, release notes).
const FIRST_WITHOUT_IMAGES: Version = Version(4, 6, 0);

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let mut any = false;
    for engine in &ENGINES {
        let Some(line) = node.version_line(engine.program) else { continue };
        any = true;
        let version = Version::find(&line);
        if let Some(version) = version.filter(|version| *version < engine.tried) {
            let what = format!("{} {version} is older than any that fgpu was tried with", engine.title);
            diagnosis.warn(
                "engine-too-old",
                what,
                &[&format!("apt-get install {}", package(engine.program))],
            );
        }
        match (engine.word, version) {
            ("docker", _) => {
                docker(node, diagnosis, version);
                programs(node, diagnosis);
            }
            ("podman", Some(version)) if (engine.tried..FIRST_WITHOUT_IMAGES).contains(&version) => {
                diagnosis.warn(
                    "podman-image-annotations",
                    format!("Podman {version} takes annotations from images: an image can give itself a share"),
                    &["run only images that you trust, or install Podman 4.6 or newer (Debian 13, Ubuntu 24.04, RHEL 9.3)"],
                );
            }
            _ => {}
        }
        // Docker brings a containerd that no Kubernetes uses.
        if engine.word == "containerd" && !node.has("/var/lib/kubelet") {
            continue;
        }
        wiring(node, diagnosis, engine, version);
    }
    if !any {
        diagnosis.warn(
            "no-engine",
            "there is neither Docker nor containerd, Podman or CRI-O; `fgpu run` works without",
            &["apt-get install podman", "fgpu setup podman"],
        );
    }
    runc(node, diagnosis);
    hooks(node, diagnosis);
}

/// The programs that daemon.json names.
fn programs(node: &Node, diagnosis: &mut Diagnosis) {
    let text = node.text(DAEMON_JSON).unwrap_or_default();
    let docker = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
    for (name, runtime) in docker["runtimes"].as_object().into_iter().flatten() {
        let Some(program) = runtime["path"].as_str() else { continue };
        let there = match program.contains('/') {
            true => node.has(program),
            false => node.program(program).is_some(),
        };
        if there {
            continue;
        }
        let what = format!(
            "{DAEMON_JSON} names {} for the runtime {}, which is not there: its containers do not start",
            escape_for_display(program),
            escape_for_display(name)
        );
        if name == "fgpu" && program.ends_with("/fgpu-runtime") {
            let runtime = if node.has_old_docker() { " --runtime" } else { "" };
            let again = format!("fgpu setup docker{runtime}");
            let mend = ["fgpu setup docker --undo", &again, "systemctl reload docker"];
            diagnosis.error("runtime-program-missing", what, &mend);
        } else {
            let mend =
                format!("install it, or take runtimes.{} out of {DAEMON_JSON}", escape_for_display(name));
            diagnosis.warn("runtime-program-missing", what, &[&mend]);
        }
    }
}

fn package(program: &str) -> &str {
    match program {
        "dockerd" => "docker.io",
        "crio" => "cri-o",
        other => other,
    }
}

fn wiring(node: &Node, diagnosis: &mut Diagnosis, engine: &Engine, version: Option<Version>) {
    // A setup asks the configuration which annotations there are; that it is wrong has been said.
    if node.config_error.is_some() {
        return;
    }
    let shown = version.map_or_else(String::new, |version| format!(" {version}"));
    match is_done(&node.system, engine.name) {
        Ok(true) => {
            diagnosis.fine(format!("{}{shown} is wired to fgpu", engine.title));
            match engine.word {
                "docker" => running::docker(node, diagnosis),
                "containerd" => running::containerd(node, diagnosis),
                // They look for hooks each time.
                _ => {}
            }
            if engine.word != "podman" {
                running::stopped(node, diagnosis, engine.title, engine.program);
            }
        }
        Ok(false) if engine.word == "docker" && cdi::serves_docker(node) => {
            diagnosis.fine(format!("{}{shown} knows shares as CDI devices", engine.title));
            running::stopped(node, diagnosis, engine.title, engine.program);
        }
        // Its pods have claims.
        Ok(false) if matches!(engine.word, "containerd" | "crio") && kubelet::serves_claims(node) => {
            diagnosis.fine(format!("{}{shown} gets CDI devices of claims from fgpu-dra", engine.title));
            running::stopped(node, diagnosis, engine.title, engine.program);
        }
        Ok(false) => {
            let old = engine.word == "docker" && version.is_some_and(|version| version < DOCKER_WITH_SHIMS);
            let setup = format!("fgpu setup {}{}", engine.word, if old { " --runtime" } else { "" });
            let mend: Vec<&str> =
                [setup.as_str(), engine.restart].into_iter().filter(|line| !line.is_empty()).collect();
            let what = format!("{}{shown} is not wired to fgpu", engine.title);
            diagnosis.error("engine-not-wired", what, &mend);
        }
        Err(error) => refused(diagnosis, engine, &error),
    }
}

/// A configuration that `fgpu setup` does not touch.
fn refused(diagnosis: &mut Diagnosis, engine: &Engine, error: &Error) {
    let what = error.message.trim_end_matches("; nothing was changed");
    let mend: &[&str] = match engine.word {
        "containerd" if what.contains("version 1") => &[
            "containerd config migrate > /etc/containerd/config.toml.new",
            "mv /etc/containerd/config.toml.new /etc/containerd/config.toml && fgpu setup containerd",
        ],
        _ => &["correct the file that is named, then run fgpu doctor again"],
    };
    diagnosis.error("engine-config", format!("{}: {what}", engine.title), mend);
}

/// Docker learnt `runtimeType` in daemon.json, and `--annotation`, with 24.0.
fn docker(node: &Node, diagnosis: &mut Diagnosis, version: Option<Version>) {
    let Some(version) = version.filter(|version| *version < DOCKER_WITH_SHIMS) else { return };
    let text = node.text(DAEMON_JSON).unwrap_or_default();
    if text.contains("io.containerd.fgpu.v2") {
        diagnosis.error(
            "docker-too-old-for-shim",
            format!("Docker {version} does not start with runtimeType in /etc/docker/daemon.json, which 24 is the first to know"),
            &["fgpu setup docker --undo", "fgpu setup docker --runtime", "systemctl restart docker"],
        );
    } else if !node.config.accept_env {
        diagnosis.error(
            "docker-without-annotations",
            format!("Docker {version} has no --annotation; a request can only be made with variables, which accept-env allows"),
            &[
                &format!("{{ echo accept-env = true; sed /^accept-env/d {PATH}; }} > {PATH}.new; mv {PATH}.new {PATH}"),
                "docker run --runtime=fgpu -e FGPU_FRACTION=0.25 …",
            ],
        );
    }
}

/// runc 1.1.3 to 1.1.6 leave a device out of systemd's list when it has no link in /dev/char (runc issues
/// 3671, 3708).
fn runc(node: &Node, diagnosis: &mut Diagnosis) {
    let Some(version) = node.version_line("runc").as_deref().and_then(Version::find) else { return };
    let faulty = (Version(1, 1, 3)..Version(1, 1, 7)).contains(&version);
    if faulty && node.has_systemd() && node.has("/dev/nvidiactl") && !node.has("/dev/char/195:255") {
        diagnosis.error(
            "runc-forgets-devices",
            format!("runc {version} loses the GPUs of a container at `systemctl daemon-reload`, because /dev/char has no links to them"),
            &[
                "apt-get install runc   # 1.1.7 or newer",
                "or for now: mkdir -p /dev/char; for name in $(cd /dev && ls -d nvidia*); do test -c /dev/$name && \
                 ln -sf ../$name /dev/char/$(printf '%d:%d' $(stat -c '0x%t 0x%T' /dev/$name)); done",
            ],
        );
    } else {
        diagnosis.fine(format!("runc {version}"));
    }
}

/// The hook files, which CRI-O and Podman read.
fn hooks(node: &Node, diagnosis: &mut Diagnosis) {
    for folder in ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"] {
        for name in node.names(folder).into_iter().filter(|name| name.ends_with(".json")) {
            let path = format!("{folder}/{name}");
            let Some(text) = node.text(&path) else { continue };
            let Ok(hook) = serde_json::from_str::<serde_json::Value>(&text) else {
                let what = format!("{path} is no JSON: CRI-O refuses the whole directory and does not start");
                diagnosis.error("hook-invalid", what, &[&format!("rm {path}")]);
                continue;
            };
            let stages = hook["stages"].as_array().cloned().unwrap_or_default();
            if stages.iter().any(|stage| stage == "precreate") {
                let what = format!(
                    "{path} has the stage precreate, which only Podman knows: CRI-O refuses the whole directory and does not start"
                );
                diagnosis.error("hook-precreate", what, &[&format!("rm {path}")]);
            }
            let program = hook["hook"]["path"].as_str().unwrap_or_default();
            if program.ends_with("/fgpu-hook") && !node.has(program) {
                let what = format!(
                    "{path} names {program}, which is not there: containers run without their GPU, and without a word"
                );
                diagnosis.error(
                    "hook-program-missing",
                    what,
                    &[super::install::reinstall(node), &format!("or: rm {path}")],
                );
            }
        }
    }
}
