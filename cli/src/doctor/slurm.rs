//! Slurm: whether the shards that it gives out are a limit, and who can go around it (docs/slurm.md).

use super::Diagnosis;
use super::node::Node;
use crate::setup::slurm_has;

const SLURM: &str = "/etc/slurm/slurm.conf";
const CGROUP: &str = "/etc/slurm/cgroup.conf";
const PLUGIN: &str = "slurm/fgpu.so";
const RESTART: &str = "systemctl restart slurmd";

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let Some(slurm) = node.text(SLURM) else { return };
    if !slurm_has(&slurm, "GresTypes", |types| types.split(',').any(|name| name == "shard")) {
        return;
    }
    if !has_plugin(node) {
        diagnosis.warn(
            "slurm-not-set-up",
            "Slurm gives out shards of GPUs, and nothing limits the jobs that have them",
            &["fgpu setup slurm", RESTART],
        );
        return;
    }
    let before = diagnosis.findings.len();
    if slurm_has(&slurm, "ProctrackType", |value| value != "proctrack/cgroup") {
        diagnosis.error(
            "slurm-proctrack",
            "Slurm makes no cgroup for a job, by which fgpu knows its end: jobs with shards are refused",
            &["set ProctrackType=proctrack/cgroup in slurm.conf of the cluster", RESTART],
        );
    }
    let is_confined = slurm_has(&slurm, "TaskPlugin", |value| value.contains("task/cgroup"))
        && slurm_has(&node.text(CGROUP).unwrap_or_default(), "ConstrainDevices", |value| {
            value.eq_ignore_ascii_case("yes")
        });
    if !is_confined {
        diagnosis.error(
            "slurm-devices",
            "Slurm does not confine a job to its GPU: a job without shards, or with --gres=none in a step, opens every GPU whole",
            &[
                "set TaskPlugin=task/cgroup in slurm.conf of the cluster, and ConstrainDevices=yes in cgroup.conf",
                RESTART,
            ],
        );
    }
    let daemon = node.has("/usr/sbin/sshd");
    if daemon && !node.text("/etc/pam.d/sshd").unwrap_or_default().contains("pam_slurm_adopt.so") {
        diagnosis.warn(
            "slurm-ssh",
            "who logs in by ssh is in no job and opens every GPU whole",
            &[
                "apt-get install libpam-slurm-adopt",
                "add to /etc/pam.d/sshd: account required pam_slurm_adopt.so (it needs PrologFlags=Contain)",
            ],
        );
    }
    if diagnosis.findings.len() == before {
        diagnosis.fine("Slurm's shards are limits");
    }
}

/// Whether plugstack.conf, or a file that it may include, names the plugin.
fn has_plugin(node: &Node) -> bool {
    const FOLDER: &str = "/etc/slurm/plugstack.conf.d";
    let included = node.names(FOLDER).into_iter().map(|name| format!("{FOLDER}/{name}"));
    std::iter::once("/etc/slurm/plugstack.conf".to_owned()).chain(included).any(|path| {
        let text = node.text(&path).unwrap_or_default();
        text.lines().any(|line| !line.trim_start().starts_with('#') && line.contains(PLUGIN))
    })
}
