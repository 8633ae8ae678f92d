//! Destroys the MIG devices of a lease that has come to its end, and drops the lease.
//!
//! ```text
//! lock the GPU ─ lease still so? ─ find the instance ─ compute instance ─ GPU instance ─ lease: planned ─ … ─ no lease
//! ```
//!
//! What is destroyed must be the lease's: in its place, of its profile, and with the UUID that was written down. Ids would
//! not do, the driver gives them out again.

use std::time::Duration;

use fgpu_allocator::{Lease, State};
use fgpu_driver::nvml::{self, mig::GpuInstance, mig::MigGpu, mig::Refused};
use fgpu_spec::{Code, Error, Gpu, MigSlice, MigStage, Nonce, Tier};

use super::limit;
use super::{Node, is, list};

/// How often, and how long apart, an instance that is in use is tried again: the container's last process may still be
/// on its way out of the driver.
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
            node.store.tell_trouble(nonce, Some(error.message.clone()))?;
            return Err(error);
        }
    } else if lease.has_driver_part() {
        let nvml = nvml::open(node.root)?;
        let mut first = Ok(());
        for (at, share) in lease.grant.gpus.iter().enumerate() {
            let Some(gpu) = node.inventory.gpus.iter().find(|gpu| gpu.uuid == share.uuid) else {
                // A GPU that has left the node has taken its instances along.
                node.store.progress(nonce, at, MigStage::Planned, None)?;
                continue;
            };
            let undone =
                MigGpu::open(&nvml, gpu).map_err(Error::from).and_then(|mig| one(node, nonce, at, gpu, &mig));
            first = first.and(undone);
        }
        if let Err(error) = first {
            node.store.tell_trouble(nonce, Some(error.message.clone()))?;
            return Err(error);
        }
    }
    node.store.finish(nonce)?;
    Ok(())
}

/// Destroys the device of the slice with that place in the grant.
fn one(node: &Node<'_>, nonce: &Nonce, at: usize, gpu: &Gpu, mig: &MigGpu<'_>) -> Result<(), Error> {
    let lock = node.store.lock_driver(gpu)?;
    // Another process may have done it while we waited.
    let lease = node.lease(nonce)?.filter(|lease| lease.state == State::Releasing);
    let Some(slice) = lease.as_ref().and_then(|lease| lease.grant.gpus.get(at)?.mig.as_ref()) else {
        return Ok(());
    };
    if slice.stage.is_ours() {
        destroy(gpu, slice, mig)?;
        node.store.progress(nonce, at, MigStage::Planned, None)?;
    }
    drop(lock);
    Ok(())
}

fn destroy(gpu: &Gpu, slice: &MigSlice, mig: &MigGpu<'_>) -> Result<(), Error> {
    let mut tries = TRIES;
    loop {
        // Looked for each time: handles of what was destroyed meanwhile are stale.
        let found = list(mig)?.into_iter().find(|instance| is(instance, slice) && is_ours(instance, slice));
        let Some(instance) = found else { return Ok(()) };
        tries -= 1;
        match attempt(mig, &instance) {
            Ok(()) => return Ok(()),
            Err((refused, _)) if refused.is_not_found() && tries > 0 => {}
            Err((refused, _)) if refused.is_in_use() && tries > 0 => std::thread::sleep(PAUSE),
            Err((refused, bare)) => return Err(held(gpu, slice, &instance, refused, bare)),
        }
    }
}

/// Whether an instance in the slice's place is the lease's. One without a compute instance is: it was killed half-way, or
/// half destroyed. Else the UUID tells.
fn is_ours(instance: &GpuInstance, slice: &MigSlice) -> bool {
    match (&slice.instance, slice.stage) {
        (Some(made), MigStage::Made) => instance.compute.iter().all(|compute| compute.uuid == made.uuid),
        _ => true,
    }
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
