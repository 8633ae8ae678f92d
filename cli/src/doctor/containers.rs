//! The leases, and the containers that hold them.

use std::time::Duration;

use fgpu_allocator::proc::{parse_stat, runs};
use fgpu_allocator::{Host, Lease, Process, Store};
use fgpu_spec::Code;

use super::Diagnosis;
use super::node::Node;

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let directory = node.state_dir();
    if !directory.is_dir() {
        overlooked(node, &[], diagnosis);
        return;
    }
    let host = Host { proc: node.place("/proc"), cgroup: node.place("/sys/fs/cgroup") };
    let aside: Vec<_> = node
        .names(&node.config.state_dir)
        .into_iter()
        .filter(|name| name.starts_with("allocations.json.corrupt-"))
        .collect();
    if !aside.is_empty() {
        let path = node.config.state_dir.join("allocations.json.corrupt-*").display().to_string();
        let what = format!("{} damaged allocator file(s) were kept for somebody to look at", aside.len());
        diagnosis.warn(
            "allocator-damaged-once",
            what,
            &[&format!("fgpu doctor --report > report.txt; rm {path}")],
        );
    }
    let store = match Store::open_on(&directory, host) {
        Ok(store) => store,
        Err(error) => {
            diagnosis.error("state-unreadable", error.to_string(), &["fgpu status"]);
            return;
        }
    };
    let leases = match store.leases().map_err(fgpu_spec::Error::from) {
        Ok(leases) => leases,
        Err(error) if error.code == Code::StateCorrupt && error.message.contains("format version") => {
            let mend = "install the package of the version of fgpu that wrote it, or reboot";
            diagnosis.error("allocator-other-version", error.message, &[mend]);
            return;
        }
        Err(error) if error.code == Code::StateCorrupt => {
            diagnosis.error("allocator-corrupt", error.message, &["fgpu gc --rebuild"]);
            return;
        }
        Err(error) => {
            diagnosis.error("state-unreadable", error.message, &["sudo fgpu doctor"]);
            return;
        }
    };
    match store.stale() {
        Ok(stale) if stale.is_empty() => match leases.len() {
            1 => diagnosis.fine("1 container holds a share"),
            number => diagnosis.fine(format!("{number} containers hold a share")),
        },
        Ok(stale) => {
            let names: Vec<_> = stale.iter().map(|lease| lease.key.short()).collect();
            let what = format!(
                "{} share(s) are held by containers that are gone: {}",
                stale.len(),
                names.join(", ")
            );
            diagnosis.warn("stale-leases", what, &["fgpu gc"]);
        }
        Err(error) => diagnosis.warn("leases-unknown", error.to_string(), &["mount -t proc proc /proc"]),
    }
    let marks = crate::exceeded::marks(&directory);
    for lease in leases.iter().filter(|lease| marks.contains_key(&lease.grant.nonce)) {
        let what = format!("{} uses more GPU memory than its share, as the driver counts", lease.key.short());
        diagnosis.error("share-exceeded", what, &["fgpu events --event exceeded", "docker stop CONTAINER"]);
    }
    never_started(node, &leases, diagnosis);
    overlooked(node, &leases, diagnosis);
    // The reconciler tries again and again; the administrator must learn why it does not succeed.
    for lease in leases.iter().filter(|lease| lease.trouble.is_some()) {
        let trouble = lease.trouble.as_deref().unwrap_or_default();
        let what = format!("{}: the driver's part of its share: {trouble}", lease.key.short());
        diagnosis.error("driver-part-stuck", what, &["fgpu gc", "nvidia-smi mig -lgi"]);
    }
}

/// Containers that ask in vain, and were told nothing.
fn overlooked(node: &Node, leases: &[Lease], diagnosis: &mut Diagnosis) {
    let place = |path: &str| node.place(path);
    for one in crate::overlooked::all(&place, leases, node.config.accept_env) {
        let what = format!("{} has no share: {}", one.container, one.why);
        diagnosis.warn("request-overlooked", what, &[&one.mend]);
    }
}

/// A container that is being created is started a moment later.
const MOMENT: Duration = Duration::from_secs(1);

/// Containers that were created and wait for their start, which may never come: their engine was killed, or
/// gave up. Of a container that is just being started each look finds another.
fn never_started(node: &Node, leases: &[Lease], diagnosis: &mut Diagnosis) {
    let mut waiting: Vec<_> = leases
        .iter()
        .filter_map(|lease| Some((lease, lease.init?)))
        .filter(|(_, init)| waits(node, *init))
        .collect();
    if waiting.is_empty() {
        return;
    }
    std::thread::sleep(MOMENT);
    waiting.retain(|(_, init)| waits(node, *init));
    for (lease, Process { pid, .. }) in waiting {
        let what = format!(
            "{} holds its share and was created, but never started: its init, process {pid}, waits for a start",
            lease.key.short()
        );
        let mend = [
            &*format!("kill -KILL {pid} && fgpu gc"),
            "or, where an engine knows it, start or remove it: crictl ps -a, podman ps -a, docker ps -a",
        ];
        diagnosis.warn("never-started", what, &mend);
    }
}

/// Whether an init is still its runtime's own: forked from it, and no program executed since
/// (`PF_FORKNOEXEC`, linux/sched.h; field 9 of proc_pid_stat(5)). So it is with runc, crun and youki.
fn waits(node: &Node, init: Process) -> bool {
    const FORKED_ONLY: u32 = 0x40;
    let stat = node.text(&format!("/proc/{}/stat", init.pid)).and_then(|text| parse_stat(text.as_bytes()));
    stat.is_some_and(|stat| Process::from(&stat) == init && runs(&stat) && stat.flags & FORKED_ONLY != 0)
}
