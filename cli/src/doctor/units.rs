//! The units of systemd.

use std::fs;
use std::path::Path;

use fgpu_hook::config::PATH;

use super::Diagnosis;
use super::install::has_own_file_system;
use super::node::Node;

/// What runs by itself.
const SERVICES: [&str; 3] = ["fgpu-gc.service", "fgpu-inventory.service", "fgpu-watch.service"];

/// What systemd says of a unit's last run, where that was not as it should be (systemctl(1), `Result=`).
fn failures(node: &Node, diagnosis: &mut Diagnosis) {
    let result = |unit: &str| node.say("systemctl", &["show", "--property=Result", "--value", unit]);
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
