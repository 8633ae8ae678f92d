//! Makes the MIG devices of a lease.
//!
//! ```text
//! lock the GPU ─ list instances ─ place taken? ─ lease: creating ─ GPU instance ─ compute instance ─ lease: made
//! ```
//!
//! Killed before `creating`, there is nothing of ours; killed after it, whatever of the slice's profile is in
//! its place is.

use fgpu_driver::nvml::{self, mig::MigGpu};
use fgpu_engine::driver_step::PLACE_TAKEN;
use fgpu_spec::{Code, Error, Gpu, GrantedGpu, MigInstance, MigSlice, MigStage, Nonce, Tier};

use super::limit;
use super::{Node, is, list, profile};
use crate::output::Output;

/// What came of one slice.
enum Made {
    Yes,
    PlaceTaken,
}

/// Makes what is not made yet.
///
/// # Errors
/// What the driver answers. The slices that were made stay, and go with the lease.
pub(super) fn run(node: &Node<'_>, nonce: &Nonce) -> Result<Output, Error> {
    let lease = node.lease(nonce)?.filter(|lease| lease.state.is_held()).ok_or_else(|| ended(nonce))?;
    if lease.grant.tier == Tier::Driver {
        return limit::set(node, &lease).map(|()| Output::default());
    }
    let nvml = nvml::open(node.root)?;
    for (at, share) in lease.grant.gpus.iter().enumerate() {
        let gpu = node.gpu(&share.uuid)?;
        let mig = MigGpu::open(&nvml, gpu)?;
        if let Made::PlaceTaken = one(node, nonce, at, gpu, &mig)? {
            return Ok(Output { code: Some(PLACE_TAKEN), ..Output::default() });
        }
    }
    Ok(Output::default())
}

fn ended(nonce: &Nonce) -> Error {
    Error::new(Code::Internal, format!("the lease {nonce} was released while its MIG device was being made"))
}

fn one(node: &Node<'_>, nonce: &Nonce, at: usize, gpu: &Gpu, mig: &MigGpu<'_>) -> Result<Made, Error> {
    let lock = node.store.slices().lock_driver(gpu)?;
    // As it is now: another process may have been at it while we waited.
    let lease = node.lease(nonce)?.filter(|lease| lease.state.is_held()).ok_or_else(|| ended(nonce))?;
    let Some(share) = lease.grant.gpus.get(at) else { return Err(ended(nonce)) };
    let Some(slice) = &share.mig else { return Ok(Made::Yes) };
    let instances = list(mig)?;
    node.write_down(&lock, gpu, &instances)?;
    let slices = profile(gpu, slice.profile).map_or(0, |profile| profile.slices);
    let there = instances.iter().find(|instance| is(instance, slice)).and_then(|found| found.device(slices));
    let is_there = there.is_some() && there == slice.instance;
    if slice.stage == MigStage::Borrowed {
        // It is there as it was, or the administrator took it away.
        if let Some(device) = there.filter(|_| is_there) {
            node.no_other_has(nonce, at, gpu, device.gpu_instance)?;
            return Ok(Made::Yes);
        }
        return Ok(Made::PlaceTaken);
    }
    if slice.stage == MigStage::Made && is_there {
        return Ok(Made::Yes);
    }
    // Also where a kept instance was destroyed outside fgpu: the place is ours.
    if instances.iter().any(|instance| instance.placement.overlaps(slice.placement)) {
        if slice.stage == MigStage::Made {
            // Another one than ours is there: ours is gone.
            node.store.driver_part().progress(nonce, at, MigStage::Planned, None)?;
            node.write_down(&lock, gpu, &instances)?;
        }
        return Ok(Made::PlaceTaken);
    }
    if !node.store.driver_part().progress(nonce, at, MigStage::Creating, None)? {
        return Err(ended(nonce));
    }
    let made = make(mig, gpu, slice, slices, |id| node.no_other_has(nonce, at, gpu, id));
    let (stage, instance, result) = match made {
        Ok(instance) => {
            // Before the lease says so: if the lease is lost, this is what is left.
            node.store.slices().made(&lock, gpu, made_share(share, &instance))?;
            (MigStage::Made, Some(instance), Ok(Made::Yes))
        }
        // The lease stays as it is: what is left of the GPU instance is its own.
        Err(Failed { error, left: true }) => return Err(error),
        Err(Failed { error, left: false }) => (MigStage::Planned, None, Err(error)),
    };
    node.store.driver_part().progress(nonce, at, stage, instance)?;
    if result.is_err() && list(mig)?.iter().any(|instance| instance.placement.overlaps(slice.placement)) {
        // Another process was faster, between our look and our call.
        node.write_down(&lock, gpu, &list(mig)?)?;
        return Ok(Made::PlaceTaken);
    }
    result
}

/// A share as it will be.
fn made_share(share: &GrantedGpu, instance: &MigInstance) -> GrantedGpu {
    let mut share = share.clone();
    if let Some(slice) = &mut share.mig {
        slice.stage = MigStage::Made;
        slice.instance = Some(instance.clone());
    }
    share
}

/// Why there is no device, and whether its GPU instance is still there.
struct Failed {
    error: Error,
    left: bool,
}

/// Makes the device, if its GPU instance's id `may_be`.
fn make(
    mig: &MigGpu<'_>,
    gpu: &Gpu,
    slice: &MigSlice,
    slices: u32,
    may_be: impl FnOnce(u32) -> Result<(), Error>,
) -> Result<MigInstance, Failed> {
    let place = || format!("GPU {}, MIG {} at memory slice {}", gpu.index, slice.name, slice.placement.start);
    let instance = mig.create(slice.profile, slice.placement).map_err(|refused| {
        let full = refused.is_full();
        let mut error = Error::from(refused);
        if full {
            error.message.push_str(
                ", though no instance is listed in that place: something that is not listed holds it; \
                 nvidia-smi mig -lgi shows what the driver knows",
            );
        }
        error.message.insert_str(0, &format!("{}: ", place()));
        // It may have been made, and only not looked at. If the place was full, what is in it is not ours.
        let is_there = || mig.instances().map_or(true, |all| all.iter().any(|one| is(one, slice)));
        Failed { error, left: !full && is_there() }
    })?;
    let device = may_be(instance.id).and_then(|()| Ok(mig.create_compute(&instance, slices)?));
    device.map_err(|mut error| {
        error.message.insert_str(0, &format!("{}: ", place()));
        Failed { error, left: mig.destroy(&instance).is_err() }
    })
}
