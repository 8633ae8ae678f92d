//! The units of systemd.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fgpu_engine::config::PATH;

use super::Diagnosis;
use super::install::has_own_file_system;
use super::node::Node;

/// What runs by itself.
const SERVICES: [&str; 4] =
    ["fgpu-gc.service", "fgpu-cdi.service", "fgpu-inventory.service", "fgpu-watch.service"];

/// What systemd says of a unit's last run, where that was not as it should be (systemctl(1), `Result=`).
fn failures(node: &Node, diagnosis: &mut Diagnosis) {
    let result = |unit: &str| node.system.say("systemctl", &["show", "--property=Result", "--value", unit]);
    let failed = SERVICES.iter().filter_map(|unit| Some((*unit, result(unit)?)));
    let failed: Vec<_> = failed.filter(|(_, result)| !["", "success"].contains(&result.as_str())).collect();
    let Some((unit, _)) = failed.first() else { return };
    let all: Vec<_> = failed.iter().map(|(unit, result)| format!("{unit} ({result})")).collect();
    let what = format!("the last run failed of {}", all.join(", "));
    let mend = [
        format!("journalctl -u {unit} -n 20"),
        format!("systemctl start {unit}   # once its cause is mended"),
    ];
    diagnosis.error("unit-failed", what, &[&mend[0], &mend[1]]);
}

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    if !node.has_systemd() {
        return;
    }
    failures(node, diagnosis);
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
    // What the unit itself names needs no drop-in.
    let mut others = Vec::new();
    if !node.config.state_dir.starts_with("/run") {
        others.push(file_system(&|path| node.place(path), &node.config.state_dir));
    }
    if node.config.log_dir != Path::new("/var/log/fgpu") {
        others.push(node.config.log_dir.clone());
    }
    if !others.is_empty() && node.names("/etc/systemd/system/fgpu-gc.service.d").is_empty() {
        let paths: Vec<_> = others.iter().map(|path| path.display().to_string()).collect();
        let paths = paths.join(" ");
        diagnosis.error(
            "gc-cannot-write",
            format!("fgpu-gc.service may not write to {paths}, where {PATH} has its folders"),
            &[&format!("systemctl edit fgpu-gc.service   # [Service] ReadWritePaths={paths}")],
        );
    }
}

/// The mount point that a folder is on; the folder itself where that is `/`, which shall not be writable.
/// systemd binds a folder that is no mount point over itself, and the mounts in it could not be removed
/// there.
fn file_system(place: &dyn Fn(&Path) -> PathBuf, folder: &Path) -> PathBuf {
    let device = |path: &Path| fs::metadata(place(path)).map(|stat| stat.dev()).ok();
    let Some(own) = device(folder) else { return folder.to_owned() };
    let root = folder.ancestors().take_while(|above| device(above) == Some(own)).last();
    root.filter(|root| *root != Path::new("/")).unwrap_or(folder).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_by_its_mount_point() {
        for (folder, named) in
            [("/proc/self/fd", "/proc"), ("/proc", "/proc"), ("/etc", "/etc"), ("/none/x", "/none/x")]
        {
            assert_eq!(file_system(&Path::to_owned, Path::new(folder)), Path::new(named));
        }
    }
}
