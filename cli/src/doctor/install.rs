//! fgpu itself: its programs, libraries, configuration, directories and timers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fgpu_hook::config::PATH;
use fgpu_wire::Seal;

use super::Diagnosis;
use super::node::Node;

/// Programs of ours that others call.
const PROGRAMS: [&str; 3] = ["fgpu-runtime", "fgpu-hook", "containerd-shim-fgpu-v2"];
/// What is put in place of the driver's libraries.
const LIBRARIES: [&str; 2] = ["libfgpu-cuda.so", "libfgpu-nvml.so"];
/// Less than this is left on a disk that is full, bytes.
const LITTLE: u64 = 1 << 20;
const REINSTALL: &str = "apt-get install --reinstall fgpu";

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    programs(node, diagnosis);
    config(node, diagnosis);
    runtimes(node, diagnosis);
    state_dir(node, diagnosis);
    log_dir(node, diagnosis);
    library_dir(node, diagnosis);
    units(node, diagnosis);
}

fn programs(node: &Node, diagnosis: &mut Diagnosis) {
    let mut missing = Vec::new();
    for name in PROGRAMS {
        let path = node.system.program(name);
        if !node.has(&path) {
            missing.push(path);
        }
    }
    let programs = node.system.program("");
    let folder = Path::new(&programs).join("../lib/fgpu");
    for name in LIBRARIES {
        let path = folder.join(name);
        let shown = format!("{}/../lib/fgpu/{name}", programs.trim_end_matches('/'));
        let can_be_sealed = |mut bytes: Vec<u8>| Seal::default().apply(&mut bytes).is_ok();
        match fs::read(node.place(&path)).map(can_be_sealed) {
            Err(_) => missing.push(shown),
            Ok(false) => {
                let what = format!("{shown} is damaged: every container with a share is refused");
                diagnosis.error("library-damaged", what, &[REINSTALL]);
            }
            Ok(true) => {}
        }
    }
    match missing.is_empty() {
        true => diagnosis.fine("all programs and libraries of fgpu are there"),
        false => {
            diagnosis.error(
                "installation-incomplete",
                format!("missing: {}", missing.join(", ")),
                &[REINSTALL],
            );
        }
    }
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
    if node.config.accept_env {
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
        false => node.program(&name.to_string_lossy()).is_some(),
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
    }
    let shim = "containerd-shim-runc-v2";
    if node.program("containerd").is_some() && node.program(shim).is_none() {
        let what = format!("{shim} is not there, which containerd-shim-fgpu-v2 stands in front of");
        diagnosis.error("stock-shim-missing", what, &["apt-get install --reinstall containerd"]);
    }
}

fn state_dir(node: &Node, diagnosis: &mut Diagnosis) {
    let path = node.config.state_dir.display().to_string();
    let there = node.state_dir();
    if there.ancestors().find(|path| path.is_dir()).is_some_and(is_read_only) {
        let what = format!("the file system of {path} is read-only: no container gets a share");
        let mend = format!("mount -o remount,rw $(findmnt -n -o TARGET -T {path})");
        diagnosis.error("state-dir-read-only", what, &[&mend]);
    }
    let Ok(metadata) = fs::metadata(node.state_dir()) else {
        let what = format!("{path} is not there; the first container makes it");
        if !node.state_dir().parent().is_some_and(Path::exists) {
            diagnosis.error(
                "state-dir-missing",
                format!("{what}, but not the directory around it"),
                &[&format!("mkdir -p {path}")],
            );
        }
        return;
    };
    if let Ok(space) = rustix::fs::statvfs(node.state_dir())
        && space.f_bavail == 0
    {
        let what = format!("the file system of {path} is full: no container gets a share");
        let look = format!("du -ah {path} | sort -h | tail; df {path}");
        diagnosis.error("state-dir-full", what, &["fgpu gc", &look]);
    }
    if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 {
        diagnosis.error(
            "state-dir-writable",
            format!("{path} can be written by others than root, who could take and free any share"),
            &[&format!("chown root:root {path} && chmod 0755 {path}")],
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
}

/// Whether a directory is where a file system is mounted.
fn has_own_file_system(path: &Path) -> bool {
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

fn is_read_only(directory: &Path) -> bool {
    let read_only = rustix::fs::StatVfsMountFlags::RDONLY;
    rustix::fs::statvfs(directory).is_ok_and(|space| space.f_flag.contains(read_only))
}

fn units(node: &Node, diagnosis: &mut Diagnosis) {
    if !node.has_systemd() {
        return;
    }
    let wanted = "/etc/systemd/system/timers.target.wants/fgpu-gc.timer";
    if fs::symlink_metadata(node.place(wanted)).is_err() {
        diagnosis.warn(
            "gc-timer-off",
            "fgpu-gc.timer is not enabled: what a runtime fails to give back stays granted until somebody needs the room",
            &["systemctl enable --now fgpu-gc.timer"],
        );
    }
    let mounted = "/etc/systemd/system/local-fs.target.wants/run-fgpu.mount";
    if node.config.state_dir == Path::new("/run/fgpu")
        && !has_own_file_system(&node.state_dir())
        && fs::symlink_metadata(node.place(mounted)).is_err()
    {
        diagnosis.warn(
            "state-dir-shared",
            "/run/fgpu is on the file system of /run, which a container without a memory limit can fill: it can write its ledger",
            &["systemctl enable run-fgpu.mount   # it begins with the next boot"],
        );
    }
    let custom = |path: &Path, usual: &str| path != Path::new(usual);
    let dropins = node.names("/etc/systemd/system/fgpu-gc.service.d");
    if (custom(&node.config.state_dir, "/run/fgpu") || custom(&node.config.log_dir, "/var/log/fgpu"))
        && dropins.is_empty()
    {
        let paths = format!("{} {}", node.config.state_dir.display(), node.config.log_dir.display());
        diagnosis.error(
            "gc-cannot-write",
            format!("fgpu-gc.service may not write {paths}, which {PATH} names"),
            &[&format!("systemctl edit fgpu-gc.service   # [Service] ReadWritePaths={paths}")],
        );
    }
}
