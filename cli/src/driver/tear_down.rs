//! Destroys the MIG devices of a lease that has come to its end, and drops the lease.
//!
//! ```text
//! lock the GPU ─ lease still so? ─ find the instance ─ lease: destroying ─ compute instance ─ GPU instance ─ lease: planned ─ … ─ no lease
//! ```
//!
//! What is destroyed must be the lease's: in its place, of its profile, and with the UUID that was written
//! down. Ids would not do, the driver gives them out again. Only one that is `destroying` may have lost its
//! compute instance, and its UUID with it; a bare one in the place of any other is not ours.

use std::time::Duration;

use fgpu_allocator::{Lease, State};
use fgpu_driver::nvml::{self, mig::GpuInstance, mig::MigGpu, mig::Refused};
use fgpu_spec::{Code, Error, Gpu, MigSlice, MigStage, Nonce, Tier};

use super::limit;
use super::{Node, is, list};

/// How often, and how long apart, an instance that is in use is tried again: the container's last process may
/// still be on its way out of the driver.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(300);

/// Undoes everything and drops the lease. Does nothing if there is none that has come to its end.
///
/// # Errors
/// What the driver answers first; it is in the lease, too. What could be destroyed is.
pub(super) fn run(node: &Node<'_>, nonce: &Nonce) -> Result<(), Error> {
    let ended = |lease: &Lease| lease.state == State::Releasing;
    let Some(lease) = node.lease(nonce)?.filter(ended) else { return Ok(()) };
    if lease.grant.tier == Tier::Driver {
        if let Err(error) = limit::clear(node, &lease) {
            node.store.driver_part().tell_trouble(nonce, Some(error.message.clone()))?;
            return Err(error);
        }
    } else if lease.has_driver_part() {
        let nvml = nvml::open(node.root)?;
        let mut first = Ok(());
        for (at, share) in lease.grant.gpus.iter().enumerate() {
            let gpu = node.inventory.gpus.iter().find(|gpu| gpu.uuid == share.uuid);
            let undone = match gpu.map(|gpu| (gpu, MigGpu::open(&nvml, gpu))) {
                Some((gpu, Ok(mig))) => one(node, nonce, at, gpu, &mig),
                Some((_, Err(refused))) if !refused.is_not_found() => Err(refused.into()),
                // A GPU that has left the node has taken its instances along.
                _ => node
                    .store
                    .driver_part()
                    .progress(nonce, at, MigStage::Planned, None)
                    .map(drop)
                    .map_err(Error::from),
            };
            first = first.and(undone);
        }
        if let Err(error) = first {
            node.store.driver_part().tell_trouble(nonce, Some(error.message.clone()))?;
            return Err(error);
        }
    }
    node.store.driver_part().finish(nonce)?;
    Ok(())
}

/// Destroys the device of the slice with that place in the grant.
fn one(node: &Node<'_>, nonce: &Nonce, at: usize, gpu: &Gpu, mig: &MigGpu<'_>) -> Result<(), Error> {
    let lock = node.store.slices().lock_driver(gpu)?;
    // Another process may have done it while we waited.
    let lease = node.lease(nonce)?.filter(|lease| lease.state == State::Releasing);
    let Some(share) = lease.as_ref().and_then(|lease| lease.grant.gpus.get(at)) else { return Ok(()) };
    let Some(slice) = share.mig.clone().filter(|slice| slice.stage.is_ours()) else { return Ok(()) };
    destroy(node, nonce, at, gpu, slice, mig)?;
    // In this order: what is on the list and has no lease is taken for an orphan.
    node.store.slices().unmade(&lock, gpu, share)?;
    node.store.driver_part().progress(nonce, at, MigStage::Planned, None)?;
    Ok(())
}

fn destroy(
    node: &Node<'_>,
    nonce: &Nonce,
    at: usize,
    gpu: &Gpu,
    mut slice: MigSlice,
    mig: &MigGpu<'_>,
) -> Result<(), Error> {
    let mut tries = TRIES;
    loop {
        // Looked for each time: handles of what was destroyed meanwhile are stale.
        let found = list(mig)?.into_iter().find(|instance| is(instance, &slice) && is_ours(instance, &slice));
        let Some(instance) = found else { return Ok(()) };
        if slice.stage == MigStage::Made {
            slice.stage = MigStage::Destroying;
            node.store.driver_part().progress(nonce, at, slice.stage, slice.instance.clone())?;
        }
        tries -= 1;
        match attempt(mig, &instance) {
            Ok(()) => return Ok(()),
            Err((refused, _)) if refused.is_not_found() && tries > 0 => {}
            Err((refused, _)) if refused.is_in_use() && tries > 0 => std::thread::sleep(PAUSE),
            Err((refused, bare)) => return Err(held(gpu, &slice, &instance, refused, bare)),
        }
    }
}

/// Whether an instance in the slice's place, of its profile, is the lease's.
fn is_ours(instance: &GpuInstance, slice: &MigSlice) -> bool {
    let Some(made) = &slice.instance else {
        // Killed while it was made: the place had been seen empty.
        return slice.stage == MigStage::Creating;
    };
    let is_bare = instance.compute.is_empty() && slice.stage == MigStage::Destroying;
    let is_whole = matches!(instance.compute.as_slice(), [compute] if compute.uuid == made.uuid);
    instance.id == made.gpu_instance && (is_whole || is_bare)
}

/// The call that failed, and whether there was no compute instance (any more).
fn attempt(mig: &MigGpu<'_>, instance: &GpuInstance) -> Result<(), (Refused, bool)> {
    for compute in &instance.compute {
        mig.destroy_compute(compute).map_err(|refused| (refused, false))?;
    }
    mig.destroy(instance).map_err(|refused| (refused, true))
}

fn held(gpu: &Gpu, slice: &MigSlice, instance: &GpuInstance, refused: Refused, bare: bool) -> Error {
    let what = format!(
        "MIG {} of GPU {} (GPU instance {}) cannot be destroyed: ",
        slice.name, gpu.index, instance.id
    );
    if !refused.is_in_use() {
        let mut error = Error::from(refused);
        error.message.insert_str(0, &what);
        return error;
    }
    let why = match bare {
        true => {
            "its compute instance is gone, but a client that nvidia-smi does not list holds the GPU instance: a monitor \
             such as DCGM (nv-hostengine, dcgm-exporter) does; restart it, then run fgpu gc"
        }
        false => {
            "a process still uses its compute instance: nvidia-smi lists it, unless it is a monitor such as DCGM \
             (nv-hostengine, dcgm-exporter); end it, then run fgpu gc"
        }
    };
    Error::new(Code::DriverError, format!("{what}{why}"))
}
