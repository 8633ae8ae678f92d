//! What a bug report needs, and nothing that identifies a person or a node: no names of containers, images,
//! owners or hosts, no UUIDs, no environment.

use std::fmt::Write;

use fgpu_allocator::{Host, Store};
use fgpu_spec::Inventory;

use super::node::Node;
use super::{Diagnosis, Severity};
use crate::output::word;
use crate::table::plain;

/// How many of the last events are told.
const EVENTS: usize = 20;
const PROGRAMS: [&str; 7] = ["dockerd", "containerd", "crio", "podman", "runc", "crun", "systemctl"];

pub(super) fn text(node: &Node, diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let mut line = |line: String| {
        let _ = writeln!(text, "{}", plain(&line));
    };
    line("## fgpu doctor".into());
    line(format!("fgpu: {}, {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH));
    line(format!("kernel: {}", node.text("/proc/sys/kernel/osrelease").unwrap_or_default().trim()));
    let release = node.text("/etc/os-release").unwrap_or_default();
    let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    line(format!("system: {}", system.trim_matches('"')));
    for program in PROGRAMS {
        if let Some(version) = node.version_line(program) {
            line(format!("{program}: {version}"));
        }
    }
    line(String::new());
    line("## findings".into());
    for finding in &diagnosis.findings {
        let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
        line(format!("{severity}: {}", finding.check));
    }
    for fine in &diagnosis.fine {
        line(format!("fine: {fine}"));
    }
    line(String::new());
    line("## configuration".into());
    for setting in configuration(node) {
        line(setting);
    }
    line(String::new());
    line("## GPUs".into());
    let inventory = std::fs::read(node.state_dir().join(fgpu_driver::FILE)).unwrap_or_default();
    let inventory = serde_json::from_slice::<Inventory>(&inventory).ok();
    for gpu in inventory.iter().flat_map(|inventory| &inventory.gpus) {
        let mig = if gpu.mig_enabled { ", MIG" } else { "" };
        line(format!("{}: {}, {} bytes{mig}", gpu.index, gpu.model, gpu.total_memory));
    }
    line(String::new());
    line("## leases".into());
    leases(node, inventory.as_ref()).into_iter().for_each(&mut line);
    line(String::new());
    line("## last events".into());
    events(node).into_iter().for_each(&mut line);
    text
}

/// The values of settings that identify nothing; of the others, only that they are there.
fn configuration(node: &Node) -> Vec<String> {
    let config = &node.config;
    vec![
        format!("policy = {:?}, compute = {:?}", config.policy, config.compute),
        format!("accept-env = {}, allow-none = {}", config.accept_env, config.allow_none),
        format!("units-per-gpu = {:?}, reserve-memory = {}", config.units_per_gpu, config.reserve_memory),
        format!("wait-default = {:?}", config.wait_default),
        format!("wait-max = {:?}", config.wait_max),
        format!("state-dir = {:?}, driver root = {:?}", config.state_dir, config.driver_root),
        format!("runtimes = {:?}", config.runtimes),
        format!("owners with a cap: {}", config.owner_max_gpus.len()),
    ]
}

fn leases(node: &Node, inventory: Option<&Inventory>) -> Vec<String> {
    let host = Host { proc: node.place("/proc"), cgroup: node.place("/sys/fs/cgroup") };
    let leases = match node.state_dir().is_dir().then(|| Store::open_on(&node.state_dir(), host)?.leases()) {
        None => return Vec::new(),
        Some(Err(error)) => return vec![format!("{:?}", fgpu_spec::Error::from(error).code)],
        Some(Ok(leases)) => leases,
    };
    let index = |uuid: &str| {
        let known = inventory.and_then(|inventory| inventory.gpus.iter().find(|gpu| gpu.uuid == uuid));
        known.map_or_else(|| "?".to_owned(), |gpu| gpu.index.to_string())
    };
    let line = |lease: &fgpu_allocator::Lease| {
        let shares = lease.grant.gpus.iter();
        let shares: Vec<_> = shares
            .map(|share| {
                format!("GPU {}: {} bytes, {} ppm", index(&share.uuid), share.memory, share.cores_ppm)
            })
            .collect();
        format!("{} {}: {}", word(&lease.state), word(&lease.grant.tier), shares.join("; "))
    };
    leases.iter().map(line).collect()
}

/// Of each event its time, kind, program and code.
fn events(node: &Node) -> Vec<String> {
    let path = node.place(node.config.log_dir.join(fgpu_engine::events::FILE));
    let text =
        std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let events = text.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut lines: Vec<_> = events
        .take(EVENTS)
        .map(|event| {
            let field = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            let fields = [field("time"), field("event"), field("program"), field("tier"), field("code")];
            fields.into_iter().filter(|field| !field.is_empty()).collect::<Vec<_>>().join(" ")
        })
        .collect();
    lines.reverse();
    lines
}
