//! `fgpu doctor` finds every fault that is planted below a root directory that stands for a node, names it,
//! and says what mends it; and finds nothing on the node without it.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

mod engines;
mod faults;
mod mend;
mod node;

use std::fs;
use std::process::Command;

use serde_json::Value;

use node::{DOCKER, Node, VERSION, is_root};

#[test]
fn a_sound_node_has_nothing_to_mend() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
    let text = String::from_utf8(node.doctor(&[]).stdout).unwrap();
    assert!(text.ends_with("\nNothing is wrong.\n"), "{text}");
    for word in [VERSION, "Docker 26.1.5 is wired", "Podman 5.4.2 is wired", "1 container holds a share"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_driver_that_a_container_brings_is_looked_for_below_its_root() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.put("etc/fgpu/config.toml", "[driver]\nroot = \"/run/nvidia/driver\"\n");
    for folder in ["proc/driver", "dev", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"] {
        if node.path(folder).exists() {
            let below = node.path("run/nvidia/driver").join(folder);
            fs::create_dir_all(below.parent().unwrap()).unwrap();
            fs::rename(node.path(folder), below).unwrap();
        }
    }
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
    node.remove("run/nvidia/driver/dev/nvidia1");
    assert_eq!(node.findings().0[0]["what"], "/run/nvidia/driver/dev/nvidia1 is not there");
}

#[test]
fn file_systems_that_are_full_or_read_only() {
    if !is_root() {
        return;
    }
    // What is in the directory stays in it.
    let full = "cp -a \"$0\" \"$0.was\" && mount -t tmpfs -o size=64k full \"$0\" && cp -a \"$0.was/.\" \"$0\" && \
                { head -c 65536 /dev/zero > \"$0/x\"; exec \"$@\"; }";
    let read_only = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let no_programs = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,noexec \"$0\" && exec \"$@\"";
    let no_inodes = "cp -a \"$0\" \"$0.was\" && mount -t tmpfs -o nr_inodes=64 none \"$0\" && \
                     cp -a \"$0.was/.\" \"$0\" && { i=0; mkdir \"$0/x\"; while touch \"$0/x/$i\"; do i=$((i + 1)); done; exec \"$@\"; }";
    let run_full = "cdi=$(cat \"$0/cdi/fgpu.json\") && \
                    mount --bind \"$0/fgpu\" /mnt && mount -t tmpfs -o size=64k full \"$0\" && \
                    mkdir -p \"$0/fgpu\" \"$0/systemd/system\" \"$0/cdi\" && mount --bind /mnt \"$0/fgpu\" && \
                    echo \"$cdi\" >\"$0/cdi/fgpu.json\" && \
                    { head -c 65536 /dev/zero > \"$0/x\"; exec \"$@\"; }";
    for (script, directory, check) in [
        (full, "var/log/fgpu", "log-disk-full"),
        (read_only, "var/log/fgpu", "log-disk-full"),
        (full, "run/fgpu", "state-dir-full"),
        (read_only, "run/fgpu", "state-dir-read-only"),
        (read_only, "var/lib/fgpu", "library-dir-unusable"),
        (no_programs, "var/lib/fgpu", "library-dir-noexec"),
        (no_inodes, "run/fgpu", "state-dir-full"),
        (run_full, "run", "run-full"),
    ] {
        let node = Node::new();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(node.path(directory));
        command.args([env!("CARGO_BIN_EXE_fgpu"), "doctor", "--json", "--root"]).arg(node.root.path());
        let answer: Value = serde_json::from_slice(&command.output().unwrap().stdout).expect(check);
        assert_eq!(answer["findings"][0]["check"], check);
        assert_eq!(answer["findings"].as_array().unwrap().len(), 1, "{answer:#}");
    }
}

#[test]
fn a_docker_that_knows_the_runtime_is_no_fault() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.docker("{\"fgpu\":{\"runtimeType\":\"io.containerd.fgpu.v2\"},\"runc\":{\"path\":\"runc\"}}");
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
}

#[test]
fn two_faults_are_both_found_and_the_text_has_their_mends() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.remove("dev/nvidiactl");
    node.mode("run/fgpu", 0o700);
    let output = node.doctor(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("/dev/nvidiactl is not there  [device-node-missing]\n    nvidia-modprobe -c 255\n"),
        "{text}"
    );
    assert!(text.contains("\nErrors: 1, warnings: 1. What mends each is below it.\n"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_report_tells_nothing_about_anybody() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.put("etc/fgpu/config.toml", "[owner.\"secret-team\"]\nmax-gpus = 1\n");
    node.put(
        "etc/docker/daemon.json",
        &DOCKER.replacen('{', "{ \"http-proxy\": \"http://me:secret-password@proxy\",", 1),
    );
    node.lease("secret-container", 100);
    node.put(
        "var/log/fgpu/events.jsonl",
        "{\"schema\":1,\"time\":\"T\",\"event\":\"refused\",\"container\":\"secret-x\",\"code\":\"no-capacity\",\
         \"message\":\"secret-y\"}\nsecret garbage\n",
    );
    let output = node.doctor(&["--report"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for word in [
        "550.163.01",
        "Simulated H100",
        "runc version 1.1.15",
        "T refused no-capacity",
        "owners with a cap: 1",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for word in ["secret", "GPU-0000", &node.root.path().display().to_string()] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

#[test]
fn the_locks_holder_is_named_and_the_mend_frees_it() {
    if !is_root() {
        return;
    }
    // Where the kernel's list of locks has the number of the file system that stat(2) has, as it has for
    // tmpfs.
    let node = Node::on("/dev/shm");
    node.real_locks();
    let lock = node.path("run/fgpu/lock");
    let mut holder = Command::new("flock").arg(&lock).args(["sleep", "1000"]).spawn().unwrap();
    let holds =
        || Command::new("flock").arg("--nonblock").arg(&lock).arg("true").status().unwrap().code() == Some(1);
    while !holds() {
        std::thread::yield_now();
    }
    node.real_process(holder.id());
    let findings = node.findings().0;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!((&findings[0]["check"], &findings[0]["severity"]), (&"lock-held".into(), &"error".into()));
    let what = findings[0]["what"].as_str().unwrap();
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", holder.id())).unwrap();
    let cgroup = cgroup.lines().last().unwrap().splitn(3, ':').nth(2).unwrap();
    assert!(what.contains(&format!("process {} (flock, in the cgroup ", holder.id())), "{what}");
    assert!(what.contains(cgroup), "{cgroup}: {what}");
    let mend = findings[0]["mend"][0].as_str().unwrap();
    // flock's child has the lock, too, while it runs.
    let children = format!("/proc/{0}/task/{0}/children", holder.id());
    let child = fs::read_to_string(children).unwrap();
    assert!(Command::new("sh").args(["-c", mend]).status().unwrap().success());
    holder.wait().unwrap();
    assert!(Command::new("kill").args(["-KILL", child.trim()]).status().unwrap().success());
    while holds() {
        std::thread::yield_now();
    }
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
}

/// A package that no repository has is installed again from its file, as the mend says.
#[test]
fn the_mend_of_a_missing_file_brings_it_back() {
    if !is_root() || Command::new("dpkg-deb").arg("--version").output().is_err() {
        return;
    }
    let node = Node::new();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join("tree").join(name);
    fs::create_dir_all(at("DEBIAN")).unwrap();
    fs::create_dir_all(at("usr/bin")).unwrap();
    fs::copy(node.path("usr/bin/fgpu-runtime"), at("usr/bin/fgpu-runtime")).unwrap();
    let control = "Package: fgpu\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: x\n";
    fs::write(at("DEBIAN/control"), control).unwrap();
    for path in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"] {
        fs::create_dir_all(node.path(path)).unwrap();
    }
    node.put("var/lib/dpkg/status", "");
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(folder.path()).env("DPKG_ROOT", node.root.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    };
    shell("dpkg-deb --root-owner-group --build tree fgpu_1_all.deb && dpkg -i ./fgpu_1_all.deb");
    node.remove("usr/bin/fgpu-runtime");
    let finding = &node.findings().0[0];
    assert_eq!(finding["check"], "installation-incomplete");
    shell(finding["mend"][0].as_str().unwrap());
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
}
