//! `fgpu-sim status`: what goes on on a node.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use sim_node::config::Node;
use sim_node::observe::{Onlooker, User};
use sim_node::state::{GpuState, Mapped};

/// A node that was installed.
pub(crate) struct Installed {
    pub(crate) node: &'static Node,
    pub(crate) mapped: Mapped,
}

impl Installed {
    /// Maps the files of the node below `root`.
    pub(crate) fn open(root: &Path, write: bool) -> Result<Self> {
        let folder = root.join(sim_node::locate::FOLDER);
        let path = |name: &str| CString::new(folder.join(name).as_os_str().as_bytes());
        let node = Node::map(&path("config")?)
            .with_context(|| format!("{} has no simulated driver of this version", root.display()))?;
        let mapped = Mapped::open(&path("state")?, write)
            .map_err(|errno| anyhow!(std::io::Error::from_raw_os_error(errno.0)))
            .with_context(|| format!("cannot map {}", folder.join("state").display()))?;
        Ok(Self { node, mapped })
    }
}

#[derive(Serialize)]
struct GpuStatus {
    index: usize,
    name: &'static str,
    uuid: &'static str,
    memory_total: u64,
    memory_used: u64,
    utilization_percent: u64,
    /// By cgroup.
    memory_limits: Vec<LimitStatus>,
    processes: Vec<ProcessStatus>,
}

#[derive(Serialize)]
struct LimitStatus {
    /// Inode of the cgroup's directory.
    cgroup: u64,
    soft: u64,
    hard: u64,
}

#[derive(Serialize)]
struct ProcessStatus {
    pid: u32,
    own_pid: u32,
    name: String,
    memory_used: u64,
    contexts: u64,
    kernels: u64,
    kernel_ns_submitted: u64,
    kernel_ns_served: u64,
}

impl From<User> for ProcessStatus {
    fn from(user: User) -> Self {
        Self {
            pid: user.pid,
            own_pid: user.own_pid,
            name: user.name.as_str().to_owned(),
            memory_used: user.used,
            contexts: user.contexts,
            kernels: user.launches,
            kernel_ns_submitted: user.submitted,
            kernel_ns_served: user.served,
        }
    }
}

/// Prints the node's use.
pub(crate) fn show(root: &Path, json: bool) -> Result<()> {
    let Installed { node, mapped } = Installed::open(root, false)?;
    let onlooker = Onlooker::new(mapped);
    let gpus: Vec<GpuStatus> = node
        .gpus()
        .iter()
        .enumerate()
        .map(|(index, gpu)| {
            let processes: Vec<ProcessStatus> = onlooker.users(index).into_iter().map(Into::into).collect();
            GpuStatus {
                index,
                name: gpu.name.as_str(),
                uuid: gpu.uuid.as_str(),
                memory_total: gpu.memory_total,
                memory_used: processes.iter().map(|process| process.memory_used).sum(),
                utilization_percent: onlooker.utilization(index),
                memory_limits: limits(&mapped.state.gpus[index]),
                processes,
            }
        })
        .collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&gpus)?);
    } else {
        print(&gpus);
    }
    Ok(())
}

fn limits(gpu: &GpuState) -> Vec<LimitStatus> {
    let number = |word: &AtomicU64| word.load(Ordering::Acquire);
    let all = gpu.limits.iter().filter(|limit| !limit.is_gone()).map(|limit| LimitStatus {
        cgroup: number(&limit.cgroup),
        soft: number(&limit.soft),
        hard: number(&limit.hard),
    });
    all.collect()
}

fn print(gpus: &[GpuStatus]) {
    let mib = |bytes: u64| bytes >> 20;
    for gpu in gpus {
        println!(
            "GPU {} {} {}: {} of {} MiB, {}% busy",
            gpu.index,
            gpu.name,
            gpu.uuid,
            mib(gpu.memory_used),
            mib(gpu.memory_total),
            gpu.utilization_percent
        );
        for process in &gpu.processes {
            println!(
                "  pid {} (in its namespace {}) {}: {} MiB, {} contexts, {} kernels, {} of {} ms served",
                process.pid,
                process.own_pid,
                process.name,
                mib(process.memory_used),
                process.contexts,
                process.kernels,
                process.kernel_ns_served / 1_000_000,
                process.kernel_ns_submitted / 1_000_000,
            );
        }
    }
}
