//! A GPU's memory as the container should see it: total is the limit, used is the container's own use.

use fgpu_quota_core::{files, kernel};
use fgpu_wire::limits::UNLIMITED;

use crate::abi::{Device, Memory, MemoryV2, NO_PERMISSION, Result, SUCCESS};
use crate::devices::{Whose, limits, whose};

/// Bytes of GPU number `gpu` that the container's living processes use.
fn used(gpu: usize) -> core::result::Result<u64, Result> {
    let ledger = files::ledger_view().map_err(|refusal| {
        refusal.say();
        NO_PERMISSION
    })?;
    let mut used = 0u64;
    let kernel = kernel::System::new(kernel::namespace());
    ledger.for_each_living(&kernel, |process| {
        used = used.saturating_add(process.used.get(gpu).copied().unwrap_or(0));
    });
    Ok(used)
}

/// Total, free and used memory of the device, from the library's numbers; `None`: the library's numbers are
/// right.
///
/// # Safety
/// A handle from NVML.
unsafe fn limited(
    device: Device,
    total: u64,
    free: u64,
) -> core::result::Result<Option<(u64, u64, u64)>, Result> {
    // SAFETY: the caller's promise.
    let gpu = match unsafe { whose(device) }? {
        Whose::Granted(gpu) => gpu,
        Whose::Mig => return Ok(None),
        Whose::Foreign => return Err(NO_PERMISSION),
    };
    let (limit, used) = (limits()?.memory(gpu), used(gpu)?);
    if limit == UNLIMITED {
        return Ok(None);
    }
    let total = limit.min(total);
    // Use may be above the limit by the last piece, or after a resize; tools expect at most the total.
    let used = used.min(total);
    Ok(Some((total, (total - used).min(free), used)))
}

/// Replaces the GPU's memory by the container's.
///
/// # Safety
/// `memory` is null, or `call` has written it if it succeeds.
pub(crate) unsafe fn info(device: Device, memory: *mut Memory, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    // SAFETY: the caller's promise.
    let Some(memory) = (unsafe { memory.as_mut() }).filter(|_| result == SUCCESS) else { return result };
    // SAFETY: a handle that NVML knows, since it just answered.
    match unsafe { limited(device, memory.total, memory.free) } {
        Ok(None) => SUCCESS,
        Ok(Some((total, free, used))) => {
            (memory.total, memory.free, memory.used) = (total, free, used);
            SUCCESS
        }
        Err(error) => error,
    }
}

/// The window through which the processor reaches the memory. Its size is the GPU's. Its use is at most the
/// container's own memory, so it shows nothing of others.
///
/// # Safety
/// `window` is null, or `call` has written it if it succeeds.
pub(crate) unsafe fn bar1(device: Device, window: *mut Memory, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    // SAFETY: the caller's promise.
    let Some(window) = (unsafe { window.as_mut() }).filter(|_| result == SUCCESS) else { return result };
    // SAFETY: a handle that NVML knows, since it just answered.
    let own = match unsafe { whose(device) } {
        Ok(Whose::Granted(gpu)) => used(gpu),
        Ok(Whose::Mig) => return SUCCESS,
        Ok(Whose::Foreign) => return NO_PERMISSION,
        Err(error) => return error,
    };
    match own {
        Ok(own) => {
            window.used = window.used.min(own);
            window.free = window.total.saturating_sub(window.used);
            SUCCESS
        }
        Err(error) => error,
    }
}

/// [`info`] of the second version.
///
/// # Safety
/// `memory` is null, or `call` has written it if it succeeds.
pub(crate) unsafe fn info_v2(device: Device, memory: *mut MemoryV2, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    // SAFETY: the caller's promise.
    let Some(memory) = (unsafe { memory.as_mut() }).filter(|_| result == SUCCESS) else { return result };
    // SAFETY: a handle that NVML knows, since it just answered.
    match unsafe { limited(device, memory.total, memory.free) } {
        Ok(None) => SUCCESS,
        Ok(Some((total, free, used))) => {
            // The driver's reserve is not part of a grant.
            (memory.total, memory.reserved, memory.free, memory.used) = (total, 0, free, used);
            SUCCESS
        }
        Err(error) => error,
    }
}
