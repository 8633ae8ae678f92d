//! `fgpu slurm`: what the SPANK plugin (packaging/slurm) runs on a node.
//!
//! A job of Slurm has one lease on a node, which its batch script and all its steps have together. The plugin
//! is in the process of a task when it calls us, before that gives up root: it waits for the answer, enters
//! our mount namespace and goes on.

mod task;
mod view;

use std::time::Duration;

use fgpu_allocator::{Anchor, Job, Shards};
use fgpu_engine::config::Config;
use fgpu_engine::{driver_step, store};
use fgpu_spec::{Code, Error, Gpu, Inventory};

use crate::node::Node;
use crate::output::Output;
use crate::run::end_all;

/// How long an epilog waits for the end of processes that it has killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make or find the share of a job and the mount namespace in which its task, our parent, shall run
    Task(task::Task),

    /// Give back the share of a job that has ended
    End {
        /// SLURM_JOB_ID
        job: u32,
    },

    /// Keep all but jobs of Slurm off its GPUs
    Hold {
        /// Let go of them again
        #[arg(long)]
        undo: bool,
    },
}

pub(crate) fn run(node: &Node, arguments: &Arguments) -> Result<Output, Error> {
    let config = &node.config;
    match &arguments.what {
        What::Task(task) => {
            let inventory = node.inventory()?;
            hold(config, &gpus(config, &inventory)?)?;
            task::run(config, &inventory, task)
        }
        What::End { job } => end(config, *job),
        What::Hold { undo: true } => hold(config, &[]),
        What::Hold { undo: false } => hold(config, &gpus(config, &node.inventory()?)?),
    }
}

/// Slurm's GPUs, in the order of its numbers.
fn gpus<'a>(config: &Config, inventory: &'a Inventory) -> Result<Vec<&'a Gpu>, Error> {
    let path = |gpu: &Gpu| std::path::PathBuf::from(format!("/dev/nvidia{}", gpu.minor));
    if config.slurm.gpus.is_empty() {
        let mut all: Vec<_> = inventory.gpus.iter().collect();
        all.sort_by_key(|gpu| gpu.minor);
        return Ok(all);
    }
    let find = |wanted: &std::path::PathBuf| {
        inventory.gpus.iter().find(|gpu| path(gpu) == *wanted).ok_or_else(|| {
            let message =
                format!("[slurm] gpus of the configuration: no GPU of this node is {}", wanted.display());
            Error::new(Code::NoGpu, message)
        })
    };
    config.slurm.gpus.iter().map(find).collect()
}

/// Keeps all but jobs off these GPUs. A lease that is on them already stays until it ends.
fn hold(config: &Config, gpus: &[&Gpu]) -> Result<Output, Error> {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let uuids: Vec<_> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    store(config)?.hold_for_jobs(&Shards { node }, &uuids)?;
    Ok(Output::default())
}

/// Frees the lease of a job that is over for Slurm. Processes that a killed slurmstepd has left are ended: the
/// job's shards are another job's now. A process that cannot be ended keeps the lease, and the reconciler
/// finds its end.
fn end(config: &Config, job: u32) -> Result<Output, Error> {
    let store = store(config)?;
    let lease = store.leases()?.into_iter().find(|lease| lease.key == Job::key_of(job));
    if let Some(Anchor::Job(job)) = lease.and_then(|lease| lease.anchor) {
        end_all(&job.cgroup, PATIENCE);
    }
    let released = store.release_dead(&Job::key_of(job))?;
    released.iter().try_for_each(|lease| driver_step::ended(config, &store, lease))?;
    Ok(Output::default())
}
