//! `fgpu setup` below a root directory that stands for a node: what it makes of the configurations it may
//! find.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

mod containerd;
mod crio;
mod docker;
mod hooks;
mod node;
mod slurm;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use node::{DOCKER, Node, PODMAN, is_root, text};

#[test]
fn mode_owner_and_links_stay() {
    let node = Node::with("srv/daemon.json", "{}\n");
    let real = node.path("srv/daemon.json");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o440)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&real, Some(1234), Some(4321)).unwrap();
    }
    let before = fs::metadata(&real).unwrap();
    fs::create_dir_all(node.path("etc/docker")).unwrap();
    symlink("../../srv/daemon.json", node.path(DOCKER)).unwrap();
    node.good(&["docker"]);
    assert!(node.path(DOCKER).is_symlink());
    let after = fs::metadata(&real).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert!(node.text("srv/daemon.json").contains("fgpu.v2"));
    assert_eq!(fs::read_dir(node.path("srv")).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_link_that_leads_nowhere_or_out_of_the_root_is_refused() {
    let node = Node::new();
    fs::create_dir_all(node.path("etc/docker")).unwrap();
    symlink("nowhere", node.path(DOCKER)).unwrap();
    assert!(node.refused(&["docker"]).contains("a link to nothing"));

    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("daemon.json");
    fs::write(&target, "{}").unwrap();
    fs::remove_file(node.path(DOCKER)).unwrap();
    symlink(&target, node.path(DOCKER)).unwrap();
    let output = node.run(&["docker"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("outside of"), "{output:?}");
    assert_eq!(fs::read_to_string(target).unwrap(), "{}");
}

#[test]
fn programs_that_are_not_there_are_a_warning() {
    let node = Node::new();
    fs::remove_file(node.path("usr/bin/fgpu-hook")).unwrap();
    let output = node.run(&["crio"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).ends_with("usr/bin/fgpu-hook is not there\n"), "{output:?}");
}

#[test]
fn a_user_may_look_and_not_write() {
    if !is_root() {
        return; // only root can become somebody else
    }
    let node = Node::with(DOCKER, "{}");
    let program = node.path("fgpu");
    // Copied by another process: a file that this one has open for writing while another test forks cannot be
    // executed (ETXTBSY).
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_fgpu")).arg(&program).status().unwrap().success());
    let before = node.everything();
    for (engine, path) in [("docker", DOCKER), ("crio", "etc/containers")] {
        let nobody =
            |arguments: &[&str]| node.command(&program, arguments).uid(65534).gid(65534).output().unwrap();
        assert_eq!(nobody(&[engine, "--dry-run"]).status.code(), Some(0));
        let output = nobody(&[engine]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains("fgpu: internal: cannot ") && stderr.contains("Permission denied"),
            "{stderr}"
        );
        assert!(stderr.contains(path), "{stderr}");
    }
    assert_eq!(node.everything(), before);
}

#[test]
fn a_read_only_file_system_is_an_error_that_names_the_file() {
    if !is_root() {
        return; // only root can mount
    }
    let node = Node::with(DOCKER, "{}");
    let output = node.run_with_read_only("etc", &["docker"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(DOCKER) && stderr.contains("Read-only file system"), "{stderr}");
    assert!(!text(&output.stdout).contains("wrote"), "{output:?}");
    assert_eq!(node.text(DOCKER), "{}");
    assert_eq!(fs::read_dir(node.path("etc/docker")).unwrap().count(), 1);
}

#[test]
fn files_written_before_a_failure_are_named_and_the_next_run_continues() {
    if !is_root() {
        return; // only root can mount
    }
    let written = |stdout: &str| stdout.lines().filter(|line| line.starts_with("wrote ")).count();
    let node = Node::new();
    fs::create_dir_all(node.path("etc/containers/containers.conf.d")).unwrap();
    // The hooks come before the drop-in that names their directory.
    let output = node.run_with_read_only("etc/containers/containers.conf.d", &["podman"]);
    assert_eq!((output.status.code(), written(&text(&output.stdout))), (Some(1), 2), "{output:?}");
    assert!(text(&output.stderr).contains(PODMAN), "{output:?}");
    assert_eq!(written(&node.good(&["podman"])), 1);
}

#[test]
fn wrong_usage() {
    let node = Node::new();
    for arguments in [&[][..], &["lxc"], &["docker", "--undo", "--runtime"]] {
        assert_eq!(node.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_fgpu")).args(["setup", "docker", "--root", "/nonexistent"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent"));
    let help = node.run(&["--help"]);
    assert!(text(&help.stdout).contains("setup docker --dry-run"));
}
