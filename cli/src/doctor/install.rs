//! fgpu itself: its programs, libraries, configuration, directories and timers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fgpu_engine::config::{PATH, RUNTIME_FOLDERS};
use fgpu_spec::Inventory;
use fgpu_wire::Seal;

use super::Diagnosis;
use super::node::Node;

/// Programs of ours that others call.
const PROGRAMS: [&str; 3] = ["fgpu-runtime", "fgpu-hook", "containerd-shim-fgpu-v2"];
/// What is put in place of the driver's libraries.
const LIBRARIES: [&str; 2] = ["libfgpu-cuda.so", "libfgpu-nvml.so"];
/// Less than this is left on a disk that is full, bytes.
pub(super) const LITTLE: u64 = 1 << 20;

/// How what is missing or damaged of fgpu comes back: no repository of apt's or dnf's has the package.
pub(super) fn reinstall(node: &Node) -> &'static str {
    // Of the packages only the .deb has this file; no other program may use dpkg's own database (lintian).
    if node.has("/usr/share/doc/fgpu/copyright") {
        "dpkg -i ./fgpu_*.deb   # the file that it was installed from"
    } else if node.has("/usr/lib/sysimage/rpm") || node.has("/var/lib/rpm") {
        "rpm -U --replacepkgs ./fgpu-*.rpm   # the file that it was installed from"
    } else {
        "make install   # in the sources that it was installed from"
    }
}

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    programs(node, diagnosis);
    config(node, diagnosis);
    runtimes(node, diagnosis);
    log_dir(node, diagnosis);
    library_dir(node, diagnosis);
    overlays(node, diagnosis);
}

fn programs(node: &Node, diagnosis: &mut Diagnosis) {
    let mut missing = Vec::new();
    for name in PROGRAMS {
        let path = node.system.program(name);
        match fs::metadata(node.place(&path)) {
            Err(_) => missing.push(path),
            Ok(metadata) if metadata.mode() & 0o111 == 0 => {
                let what = format!(
                    "{path} has mode {:04o} and cannot be executed: containers with a share do not start",
                    metadata.mode() & 0o7777
                );
                diagnosis.error("program-not-executable", what, &[&format!("chmod 0755 {path}")]);
            }
            Ok(_) => {}
        }
    }
    let programs = node.system.program("");
    let folder = Path::new(&programs).join("../lib/fgpu");
    for name in LIBRARIES {
        let path = folder.join(name);
        let shown = format!("{}/../lib/fgpu/{name}", programs.trim_end_matches('/'));
        let is_whole = |mut bytes: Vec<u8>| !is_cut(&bytes) && Seal::default().apply(&mut bytes).is_ok();
        match fs::read(node.place(&path)).map(is_whole) {
            Err(_) => missing.push(shown),
            Ok(false) => {
                let what = format!("{shown} is damaged: every container with a share is refused");
                diagnosis.error("library-damaged", what, &[reinstall(node)]);
            }
            Ok(true) => {
                let mode = fs::metadata(node.place(&path)).map_or(0o644, |metadata| metadata.mode() & 0o7777);
                if mode & 0o444 != 0o444 {
                    let what =
                        format!("{shown} has mode {mode:04o}: only root can make containers with a share");
                    diagnosis.warn("library-mode", what, &[&format!("chmod 0644 {shown}")]);
                }
            }
        }
    }
    match missing.is_empty() {
        true => diagnosis.fine("all programs and libraries of fgpu are there"),
        false => {
            let what = format!("missing: {}", missing.join(", "));
            diagnosis.error("installation-incomplete", what, &[reinstall(node)]);
        }
    }
}

/// Whether an ELF file of 64 bits ends before its section headers do, which linkers write last (elf(5)).
fn is_cut(bytes: &[u8]) -> bool {
    let number = |at: usize, length: usize| {
        let bytes = bytes.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let end = || {
        let (start, size, count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
        start.checked_add(size * count)
    };
    !bytes.starts_with(b"\x7fELF") || end().is_none_or(|end| end > bytes.len() as u64)
}

fn config(node: &Node, diagnosis: &mut Diagnosis) {
    if let Some(error) = &node.config_error {
        let what = format!("every container with an annotation is refused: {}", error.message);
        diagnosis.error("config-invalid", what, &[&format!("$EDITOR {PATH}"), "fgpu doctor"]);
        return;
    }
    if let Ok(metadata) = fs::metadata(node.place(PATH))
        && (metadata.uid() != 0 || metadata.mode() & 0o022 != 0)
    {
        let what = format!("{PATH} can be written by others than root, who could give themselves any GPU");
        diagnosis.error("config-writable", what, &[&format!("chown root:root {PATH} && chmod 0644 {PATH}")]);
    }
    if node.config.accept_env && node.has_old_docker() {
        diagnosis.fine("accept-env is on, which this Docker needs");
    } else if node.config.accept_env {
        diagnosis.warn(
            "accept-env",
            "accept-env is on: an image can grant itself a GPU with its FGPU_ variables; only Docker before 24 needs it",
            &[&format!("sed -i 's/^accept-env.*/accept-env = false/' {PATH}")],
        );
    }
}

fn runtimes(node: &Node, diagnosis: &mut Diagnosis) {
    let found = |name: &Path| match name.is_absolute() {
        true => node.place(name).exists(),
        // As fgpu-runtime looks for it.
        false => {
            let beside = RUNTIME_FOLDERS.map(|folder| node.place(Path::new(folder).join(name)));
            node.program(&name.to_string_lossy()).is_some() || beside.iter().any(|path| path.exists())
        }
    };
    if !node.config.runtimes.iter().any(|name| found(name)) {
        let names: Vec<_> = node.config.runtimes.iter().map(|name| name.display().to_string()).collect();
        let what = format!(
            "none of the real runtimes ({}) is there, so fgpu-runtime starts nothing",
            names.join(", ")
        );
        diagnosis.error(
            "no-runtime",
            what,
            &["apt-get install runc", &format!("or name yours: runtimes = [\"/path\"] in {PATH}")],
        );
    } else if node.program("runc").is_none()
        && let Some(engine) = ["dockerd", "containerd"].iter().find(|name| node.program(name).is_some())
        // That says the same.
        && !diagnosis.findings.iter().any(|finding| finding.check == "crun-on-hybrid-cgroups")
    {
        let what =
            format!("runc is not there, with which {engine} starts containers unless it is told otherwise");
        diagnosis.error("runc-missing", what, &["apt-get install runc"]);
    }
    let shim = "containerd-shim-runc-v2";
    if node.program("containerd").is_some() && node.program(shim).is_none() {
        let what = format!("{shim} is not there, which containerd-shim-fgpu-v2 stands in front of");
        diagnosis.error("stock-shim-missing", what, &["apt-get install --reinstall containerd"]);
    }
}

/// Whether a directory is where a file system is mounted.
pub(super) fn has_own_file_system(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
    device(path).is_some() && device(path) != path.parent().and_then(device)
}

fn log_dir(node: &Node, diagnosis: &mut Diagnosis) {
    let path = node.config.log_dir.display().to_string();
    let there = node.place(&node.config.log_dir);
    let nearest = there.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !nearest.is_dir() {
        let what = format!("{path} is no directory: who held which GPU is not recorded");
        diagnosis.warn("log-dir-unusable", what, &[&format!("rm {path}")]);
        return;
    }
    let is_full = |space: rustix::fs::StatVfs| space.f_bavail * space.f_frsize < LITTLE;
    if is_read_only(nearest) || rustix::fs::statvfs(nearest).is_ok_and(is_full) {
        let what = format!("the disk of {path} is full or read-only: who held which GPU is not recorded");
        diagnosis.warn("log-disk-full", what, &[&format!("df {path}; journalctl --vacuum-size=100M")]);
    }
}

/// Where this boot's copies of the quota libraries are made.
fn library_dir(node: &Node, diagnosis: &mut Diagnosis) {
    let path = node.config.library_dir.display().to_string();
    let there = node.place(&node.config.library_dir);
    let nearest = there.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let no_programs = rustix::fs::StatVfsMountFlags::NOEXEC;
    if !nearest.is_dir() || is_read_only(nearest) {
        let what =
            format!("{path} cannot be written: no copy of the quota libraries can be made for a container");
        diagnosis.error("library-dir-unusable", what, &[&format!("$EDITOR {PATH}   # library-dir")]);
    } else if rustix::fs::statvfs(nearest).is_ok_and(|space| space.f_flag.contains(no_programs)) {
        let what = format!(
            "{path} is mounted noexec: a container with a user namespace cannot load the quota libraries"
        );
        diagnosis.error("library-dir-noexec", what, &[&format!("$EDITOR {PATH}   # library-dir")]);
    }
}

/// Files of the node are shown to containers on overlays (engine/src/own.rs). What is tried is what a
/// container gets.
pub(super) fn overlays(node: &Node, diagnosis: &mut Diagnosis) {
    let inventory = fs::read(node.state_dir().join(fgpu_driver::FILE)).unwrap_or_default();
    let Ok(inventory) = serde_json::from_slice::<Inventory>(&inventory) else { return };
    let files = inventory.files.iter().map(|file| node.place(&file.host)).filter(|path| path.is_file());
    if let Some(error) = fgpu_engine::cannot_show(files.collect(), node.state_dir()) {
        let what = format!("containers that may change mounts get no share: {}", error.message);
        let elsewhere =
            format!("or have the driver's files on another file system: root below [driver] in {PATH}");
        diagnosis.warn("no-overlay", what, &["modprobe overlay", &elsewhere]);
    }
}

pub(super) fn is_read_only(directory: &Path) -> bool {
    let read_only = rustix::fs::StatVfsMountFlags::RDONLY;
    rustix::fs::statvfs(directory).is_ok_and(|space| space.f_flag.contains(read_only))
}
