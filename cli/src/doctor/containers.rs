//! The leases, and whom they belong to.

use fgpu_allocator::{Host, Store};
use fgpu_spec::Code;

use super::Diagnosis;
use super::node::Node;

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let directory = node.state_dir();
    if !directory.is_dir() {
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
            let mend = "apt-get install the version of fgpu that wrote it, or reboot";
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
    // The reconciler tries again and again; somebody has to know why it does not succeed.
    for lease in leases.iter().filter(|lease| lease.trouble.is_some()) {
        let trouble = lease.trouble.as_deref().unwrap_or_default();
        let what = format!("{}: the driver's part of its share: {trouble}", lease.key.short());
        diagnosis.error("driver-part-stuck", what, &["fgpu gc", "nvidia-smi mig -lgi"]);
    }
}
