//! How much memory there is: the grant's, not the GPU's.

use core::ffi::c_uint;

use fgpu_quota_core::files;
use fgpu_quota_core::process::Process;

use crate::driver::{Device, NOT_INITIALIZED, Result, SUCCESS};
use crate::wrapped::real;
use crate::{meter, place};

/// Free and total memory as the container should see them, from what the driver says: total is the limit,
/// free is what is left of it, but neither is ever more than the driver says.
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

/// # Safety
/// As `cuMemGetInfo_v2`.
pub(crate) unsafe fn memory(free: *mut usize, total: *mut usize) -> Result {
    // SAFETY: the driver writes both if it succeeds.
    unsafe { info(free, total, real::cuMemGetInfo_v2) }
}

/// # Safety
/// As `cuMemGetInfo`.
pub(crate) unsafe fn memory_32(free: *mut c_uint, total: *mut c_uint) -> Result {
    // SAFETY: the driver writes both if it succeeds.
    unsafe { info(free, total, real::cuMemGetInfo) }
}

/// # Safety
/// `call` writes its arguments if it succeeds, and takes what the application gave.
unsafe fn info<T: Copy + TryInto<u64> + TryFrom<u64> + Max>(
    free: *mut T,
    total: *mut T,
    call: unsafe fn(*mut T, *mut T) -> Result,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { call(free, total) };
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

/// # Safety
/// As `cuDeviceTotalMem_v2`.
pub(crate) unsafe fn total(bytes: *mut usize, device: Device) -> Result {
    // SAFETY: the driver writes the size if it succeeds.
    unsafe { device_total(bytes, device, real::cuDeviceTotalMem_v2) }
}

/// # Safety
/// As `cuDeviceTotalMem`.
pub(crate) unsafe fn total_32(bytes: *mut c_uint, device: Device) -> Result {
    // SAFETY: the driver writes the size if it succeeds.
    unsafe { device_total(bytes, device, real::cuDeviceTotalMem) }
}

/// # Safety
/// `call` writes its first argument if it succeeds, and takes what the application gave.
unsafe fn device_total<T: Copy + TryInto<u64> + TryFrom<u64> + Max>(
    bytes: *mut T,
    device: Device,
    call: unsafe fn(*mut T, Device) -> Result,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { call(bytes, device) };
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

/// The largest value: what a 32-bit size says of more than it can.
trait Max {
    const MAX: Self;
}

impl Max for usize {
    const MAX: Self = Self::MAX;
}

impl Max for c_uint {
    const MAX: Self = Self::MAX;
}
