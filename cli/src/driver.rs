//! `fgpu driver`: the driver's part of a grant. Not for people: the front ends start these, because this
//! program is the only one that loads NVML, and a crash or a hang in the driver shall be its own.
//!
//! All of it is found in the lease and written back there, step by step, so that a process killed between any
//! two calls leaves what the next one needs to go on. No other process of ours makes or destroys instances of
//! a GPU meanwhile ([`fgpu_allocator::Slices::lock_driver`]); the lease is read again below that lock.

use std::path::PathBuf;

use clap::Subcommand;
use fgpu_allocator::{DriverLock, Foreign, Lease, Store};
use fgpu_driver::nvml::mig::{GpuInstance, MigGpu};
use fgpu_spec::{Code, Error, Gpu, Inventory, MigProfile, MigSlice, Nonce};

use crate::inventory::holder;
use crate::output::Output;

pub(crate) mod health;
mod limit;
mod look;
mod set_up;
mod tear_down;

/// The steps and where they work.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The state directory
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,

    /// The driver root
    #[arg(long, value_name = "DIR")]
    root: PathBuf,

    #[command(subcommand)]
    step: Step,
}

#[derive(Debug, Subcommand)]
enum Step {
    /// Make what a lease is for
    SetUp {
        /// The grant
        #[arg(value_parser = grant)]
        nonce: Nonce,
    },
    /// Undo what was made for a lease that has come to its end, and drop it
    TearDown {
        /// The grant
        #[arg(value_parser = grant)]
        nonce: Nonce,
    },
    /// Write down which MIG instances are not ours
    Look,
    /// Write down which GPUs are lost, and what of them is held outside of all leases
    Health,
}

fn grant(text: &str) -> Result<Nonce, String> {
    text.parse().map_err(|()| "a grant is 32 lower-case hex digits".to_owned())
}

/// Does a step.
///
/// # Errors
/// What the driver answers, or what of the node cannot be read.
pub(crate) fn run(arguments: &Arguments) -> Result<Output, Error> {
    let store = Store::open(&arguments.state_dir)?;
    let inventory = match fgpu_driver::cached(&arguments.root, &arguments.state_dir)? {
        Some(inventory) => inventory,
        // A refresh looks at that, too.
        None if matches!(arguments.step, Step::Health) => return Ok(Output::default()),
        // The driver was changed meanwhile. It may be long until another process looks at the GPUs, and what
        // is left to undo stays until then.
        None => fgpu_driver::refresh(&arguments.root, &arguments.state_dir, &holder)?.inventory,
    };
    let node = Node { store, inventory, root: &arguments.root };
    match arguments.step {
        Step::SetUp { nonce } => set_up::run(&node, &nonce),
        Step::TearDown { nonce } => tear_down::run(&node, &nonce).map(|()| Output::default()),
        Step::Look => look::run(&node).map(|()| Output::default()),
        Step::Health => {
            // Before the driver is asked for anything: where it hangs, one hangs and no more.
            if let Some(lock) = health::lock(&arguments.state_dir)? {
                let nvml = fgpu_driver::nvml::open(node.root)?;
                health::look(&lock, &node.store, &node.inventory, &nvml, &arguments.state_dir)?;
            }
            Ok(Output::default())
        }
    }
}

/// What a step works on.
struct Node<'a> {
    store: Store,
    inventory: Inventory,
    root: &'a std::path::Path,
}

impl Node<'_> {
    fn lease(&self, nonce: &Nonce) -> Result<Option<Lease>, Error> {
        Ok(self.store.leases()?.into_iter().find(|lease| lease.grant.nonce == *nonce))
    }

    fn gpu(&self, uuid: &str) -> Result<&Gpu, Error> {
        self.inventory.gpus.iter().find(|gpu| gpu.uuid == uuid).ok_or_else(|| {
            Error::new(Code::GpuUnhealthy, format!("GPU {uuid} is not in the inventory (any more)"))
        })
    }

    /// That no other container holds the nodes of the GPU instance with that id. One does if its own instance
    /// was destroyed outside fgpu: ids are given out again, and the nodes are found by the id.
    fn no_other_has(&self, nonce: &Nonce, at: usize, gpu: &Gpu, id: u32) -> Result<(), Error> {
        for lease in self.store.leases()?.iter().filter(|lease| lease.state.is_held()) {
            let shares = lease.grant.gpus.iter().enumerate().filter(|(_, share)| share.uuid == gpu.uuid);
            let others = shares.filter(|(other, _)| lease.grant.nonce != *nonce || *other != at);
            let mut instances = others.filter_map(|(_, share)| share.mig.as_ref()?.instance.as_ref());
            if instances.any(|instance| instance.gpu_instance == id) {
                return Err(Error::new(
                    Code::DriverError,
                    format!(
                        "the driver gives it the nodes of GPU instance {id}, which {} still has open, though its own \
                         instance was destroyed by somebody; end that container",
                        lease.key.short()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Writes down which of a GPU's `instances` are not ours. A lease's are those that may have been made in
    /// its place.
    fn write_down(
        &self,
        lock: &DriverLock,
        gpu: &Gpu,
        instances: &[GpuInstance],
    ) -> Result<Vec<Foreign>, Error> {
        let leases = self.store.leases()?;
        let ours = |instance: &&GpuInstance| {
            let shares = leases.iter().flat_map(|lease| &lease.grant.gpus);
            let mut slices =
                shares.filter(|share| share.uuid == gpu.uuid).filter_map(|share| share.mig.as_ref());
            slices.any(|slice| slice.stage.is_ours() && is(instance, slice))
        };
        let foreign: Vec<_> = instances
            .iter()
            .filter(|instance| !ours(instance))
            .map(|instance| Foreign {
                gpu_instance: instance.id,
                profile: instance.profile,
                placement: instance.placement,
                device: profile(gpu, instance.profile).and_then(|profile| instance.device(profile.slices)),
            })
            .collect();
        self.store.slices().record_foreign(lock, gpu, &foreign)?;
        Ok(foreign)
    }
}

/// The profile with that id.
fn profile(gpu: &Gpu, id: u32) -> Option<&MigProfile> {
    gpu.mig_profiles.iter().find(|profile| profile.id == id)
}

/// Whether an instance is where and what a slice is to be.
fn is(instance: &GpuInstance, slice: &MigSlice) -> bool {
    instance.placement == slice.placement && instance.profile == slice.profile
}

/// The GPU's instances.
fn list(mig: &MigGpu<'_>) -> Result<Vec<GpuInstance>, Error> {
    Ok(mig.instances()?)
}
