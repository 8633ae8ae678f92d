//! The state directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Diagnosis;
use super::install::{LITTLE, has_own_file_system, is_read_only};
use super::node::Node;

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let path = node.config.state_dir.display().to_string();
    let there = node.state_dir();
    run(node, diagnosis);
    if there.ancestors().find(|path| path.is_dir()).is_some_and(is_read_only) {
        let what = format!("the file system of {path} is read-only: no container gets a share");
        let mend = format!("mount -o remount,rw $(findmnt -n -o TARGET -T {path})");
        diagnosis.error("state-dir-read-only", what, &[&mend]);
    }
    let Ok(metadata) = fs::metadata(&there) else {
        let what = format!("{path} is not there; the first container makes it");
        if !there.parent().is_some_and(Path::exists) {
            diagnosis.error(
                "state-dir-missing",
                format!("{what}, but not the directory around it"),
                &[&format!("mkdir -p {path}")],
            );
        }
        return;
    };
    if let Some(what) = full(&there, 0) {
        let look = format!("du -ah --inodes {path} | sort -h | tail; df {path}; df -i {path}");
        diagnosis.error(
            "state-dir-full",
            format!("the file system of {path} {what}: no container gets a share"),
            &["fgpu gc", &look],
        );
    }
    if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 {
        diagnosis.error(
            "state-dir-writable",
            format!("{path} can be written by others than root, who could take and free any share"),
            &[&format!("chown root:root {path} && chmod 0755 {path}"), &own(&path)],
        );
    } else if metadata.mode() & 0o055 != 0o055 {
        diagnosis.warn(
            "state-dir-unreadable",
            format!(
                "{path} has mode {:04o}: only root can look with `fgpu status`",
                metadata.mode() & 0o7777
            ),
            &[&format!("chmod 0755 {path}")],
        );
    }
    owners(&path, &there, diagnosis);
}

/// The file system of /run, where engines keep what they cannot do without.
fn run(node: &Node, diagnosis: &mut Diagnosis) {
    let there = node.place("/run");
    if node.state_dir().starts_with(&there) && !has_own_file_system(&node.state_dir()) {
        return;
    }
    if let Some(what) = full(&there, LITTLE) {
        let what = format!("the file system of /run {what}: engines start no container");
        diagnosis.error("run-full", what, &["du -axh --inodes /run | sort -h | tail; df /run; df -i /run"]);
    }
}

/// What a file system lacks that has no more than `least` bytes left.
fn full(path: &Path, least: u64) -> Option<&'static str> {
    let space = rustix::fs::statvfs(path).ok()?;
    if space.f_bavail * space.f_frsize <= least {
        return Some("is full");
    }
    // Some file systems have no limit, and no number.
    (space.f_files > 0 && space.f_ffree == 0).then_some("has no inodes left")
}

fn own(path: &str) -> String {
    format!("find {path} -xdev ! -user root -exec chown -h root:root {{}} +")
}

/// Files that are written by root alone, and belong to another user or let another user write. What
/// containers write is their own.
fn owners(path: &str, there: &Path, diagnosis: &mut Diagnosis) {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let top = entries(there);
    let grants = entries(&there.join("containers"));
    let limits = grants.iter().map(|grant| grant.join("limits"));
    let all: Vec<PathBuf> = top.iter().cloned().chain(grants.iter().cloned()).chain(limits).collect();
    let look = |path: &PathBuf| fs::symlink_metadata(path).ok();
    let others = all.iter().filter(|path| look(path).is_some_and(|file| file.uid() != 0)).count();
    if others > 0 {
        let what =
            format!("{others} file(s) below {path} belong to others than root, who could change any share");
        diagnosis.error("state-owner", what, &[&own(path)]);
    }
    let open = |path: &&PathBuf| {
        let mask = if path.ends_with("lock") { 0o077 } else { 0o022 };
        look(path).is_some_and(|file| !file.is_symlink() && file.mode() & mask != 0)
    };
    let open: Vec<String> =
        top.iter().filter(open).filter_map(|path| Some(format!("{}", path.file_name()?.display()))).collect();
    if !open.is_empty() {
        let what = format!(
            "others than root can write or hold {} in {path}: they could stop every create",
            open.join(", ")
        );
        let mend = format!("chmod go-w {path}/* && chmod 0600 {path}/lock");
        diagnosis.error("state-mode", what, &[&mend]);
    }
}
