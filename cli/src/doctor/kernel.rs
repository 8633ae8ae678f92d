//! The kernel and its file systems.

use super::Diagnosis;
use super::node::Node;
use crate::version::Version;

/// The first kernel with what every front end needs (`clone3`'s pidfd), and what the hook needs
/// (`mount_setattr`).
const FIRST: Version = Version(5, 3, 0);
const FIRST_FOR_HOOK: Version = Version(5, 12, 0);

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    version(node, diagnosis);
    cgroups(node, diagnosis);
    proc(node, diagnosis);
    selinux(node, diagnosis);
}

fn version(node: &Node, diagnosis: &mut Diagnosis) {
    let release = node.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let Some(version) = Version::find(&release) else { return };
    let upgrade = "upgrade the kernel, for example: apt-get install linux-image-amd64 && reboot";
    if version < FIRST {
        let what = format!("Linux {} is too old, fgpu needs {FIRST}", release.trim());
        diagnosis.error("kernel-too-old", what, &[upgrade]);
    } else if version < FIRST_FOR_HOOK {
        let what = format!(
            "Linux {} is too old for fgpu-hook, which needs {FIRST_FOR_HOOK}; Docker and containerd work",
            release.trim()
        );
        diagnosis.warn("kernel-too-old-for-hook", what, &[upgrade]);
    } else {
        diagnosis.fine(format!("Linux {}", release.trim()));
    }
}

fn cgroups(node: &Node, diagnosis: &mut Diagnosis) {
    let unified = node.has("/sys/fs/cgroup/cgroup.controllers");
    let devices = node.has("/sys/fs/cgroup/devices/cgroup.procs");
    match (unified, devices) {
        (true, _) => diagnosis.fine("cgroup v2"),
        (false, true) => {
            diagnosis.fine("cgroup v1 with the devices controller");
            let crun_only = node.program("crun").is_some() && node.program("runc").is_none();
            if crun_only && node.has("/sys/fs/cgroup/unified/cgroup.controllers") {
                diagnosis.error(
                    "crun-on-hybrid-cgroups",
                    "cgroups are hybrid (v1 with a v2 tree beside it), which crun refuses, and there is no runc",
                    &["apt-get install runc", "or boot with systemd.unified_cgroup_hierarchy=1"],
                );
            }
        }
        (false, false) => diagnosis.error(
            "cgroups-missing",
            "neither cgroup v2 nor the devices controller of v1 is mounted at /sys/fs/cgroup, so devices that were not \
             granted cannot be kept from a container",
            &["mount -t cgroup2 cgroup2 /sys/fs/cgroup"],
        ),
    }
}

fn proc(node: &Node, diagnosis: &mut Diagnosis) {
    let mounts = node.text("/proc/self/mounts").or_else(|| node.text("/proc/mounts")).unwrap_or_default();
    let hides = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).any(|fields| {
        let options = fields.get(3).copied().unwrap_or_default();
        fields.get(1) == Some(&"/proc")
            && options.split(',').any(|option| {
                option.strip_prefix("hidepid=").is_some_and(|value| !["0", "off"].contains(&value))
            })
    });
    if hides {
        diagnosis.warn(
            "hidepid",
            "/proc hides other users' processes (hidepid): `fgpu gc` without CAP_SYS_PTRACE cannot tell who lives, and keeps \
             every share",
            &["mount -o remount,hidepid=0 /proc"],
        );
    }
}

fn selinux(node: &Node, diagnosis: &mut Diagnosis) {
    let enforces = node.text("/sys/fs/selinux/enforce").is_some_and(|text| text.trim() == "1");
    let devices = node.text("/sys/fs/selinux/booleans/container_use_devices");
    if enforces && devices.is_some_and(|text| text.starts_with('0')) {
        diagnosis.error(
            "selinux-devices",
            "SELinux keeps containers from every device that is not its own (container_use_devices is off)",
            &["setsebool -P container_use_devices on"],
        );
    }
}
