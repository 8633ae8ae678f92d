//! How much memory there is: the grant's, not the GPU's.

use core::ffi::c_uint;

use fgpu_quota_core::files;
use fgpu_quota_core::process::Process;

use crate::driver::{Device, NOT_INITIALIZED, Result, SUCCESS};
use crate::{meter, place};

/// Free and total memory as the container should see them: total is the limit, free is what is left of it,
/// and neither is more than the driver says.
fn limited(free: u64, total: u64) -> core::result::Result<(u64, u64), Result> {
    let process = Process::current().map_err(|refusal| {
        refusal.say();
        NOT_INITIALIZED
    })?;
    let gpu = place::of_context(process)?;
    meter::settle_all(process);
    let memory = process.memory(gpu);
    Ok(match memory.free() {
        Some(left) => (left.min(free), memory.limit.min(total)),
        None => (free, total),
    })
}

/// Free and total memory of the current context's device.
///
/// # Safety
/// If `call` succeeds, it has written both.
pub(crate) unsafe fn memory<T: Copy + TryInto<u64> + TryFrom<u64> + Max>(
    free: *mut T,
    total: *mut T,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    if result != SUCCESS || free.is_null() || total.is_null() {
        return result;
    }
    let wide = |value: T| value.try_into().unwrap_or(u64::MAX);
    // SAFETY: written by the driver, which succeeded.
    match limited(wide(unsafe { *free }), wide(unsafe { *total })) {
        Ok((left, limit)) => {
            // SAFETY: the driver has written there.
            unsafe {
                *free = left.try_into().unwrap_or(T::MAX);
                *total = limit.try_into().unwrap_or(T::MAX);
            }
            SUCCESS
        }
        Err(error) => error,
    }
}

/// Total memory of a device.
///
/// # Safety
/// If `call` succeeds, it has written `bytes`.
pub(crate) unsafe fn device_total<T: Copy + TryInto<u64> + TryFrom<u64> + Max>(
    bytes: *mut T,
    device: Device,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    if result != SUCCESS || bytes.is_null() {
        return result;
    }
    let Ok(limits) = files::limits().inspect_err(|refusal| refusal.say()) else { return NOT_INITIALIZED };
    match place::in_grant(limits, device) {
        Ok(gpu) => {
            // SAFETY: written by the driver, which succeeded.
            unsafe {
                let limit = limits.memory(gpu).min((*bytes).try_into().unwrap_or(u64::MAX));
                *bytes = limit.try_into().unwrap_or(T::MAX);
            }
            SUCCESS
        }
        Err(error) => error,
    }
}

/// The largest value, which stands for all larger ones in a 32-bit size.
pub(crate) trait Max {
    const MAX: Self;
}

impl Max for usize {
    const MAX: Self = Self::MAX;
}

impl Max for c_uint {
    const MAX: Self = Self::MAX;
}
