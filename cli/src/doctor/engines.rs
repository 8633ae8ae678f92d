//! The container engines: are they wired to fgpu, and are their versions known to have faults with us?

use fgpu_spec::Error;

use super::node::Node;
use super::versions::Version;
use super::{Diagnosis, running};
use crate::setup::{Name, is_done};

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
        if engine.word == "docker" {
            docker(node, diagnosis, version);
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
        }
        Ok(false) => {
            let setup = format!("fgpu setup {}", engine.word);
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
    let Some(version) = version.filter(|version| *version < Version(24, 0, 0)) else { return };
    let text = node.text("/etc/docker/daemon.json").unwrap_or_default();
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
            &["echo 'accept-env = true' | cat - /etc/fgpu/config.toml > /run/c && mv /run/c /etc/fgpu/config.toml", "docker run --runtime=fgpu -e FGPU_FRACTION=0.25 …"],
        );
    }
}

/// runc 1.1.3 to 1.1.6 leave a device out of systemd's list when it has no link in /dev/char (runc issues 3671, 3708).
fn runc(node: &Node, diagnosis: &mut Diagnosis) {
    let Some(version) = node.version_line("runc").as_deref().and_then(Version::find) else { return };
    let faulty = (Version(1, 1, 3)..Version(1, 1, 7)).contains(&version);
    if faulty && node.has_systemd() && node.has("/dev/nvidiactl") && !node.has("/dev/char/195:255") {
        diagnosis.error(
            "runc-forgets-devices",
            format!("runc {version} loses the GPUs of a container at `systemctl daemon-reload`, because /dev/char has no links to them"),
            &[
                "apt-get install runc   # 1.1.7 or newer",
                "or for now: ln -s ../nvidiactl /dev/char/195:255; ln -s ../nvidia0 /dev/char/195:0",
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
                    &["apt-get install --reinstall fgpu", &format!("or: rm {path}")],
                );
            }
        }
    }
}
