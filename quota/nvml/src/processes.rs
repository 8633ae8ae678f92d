//! The container's own processes, with their pids in the container. The real library knows the host's pids.

use core::ffi::{c_uint, c_void};

use fgpu_quota_core::{files, kernel};

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, Detail, DetailList, Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NO_INSTANCE,
    NO_PERMISSION, ProcessV1, ProcessV2, Result, SUCCESS, version,
};
use crate::devices::{Whose, whose};

/// Calls `with` for every process that has memory on the device: its place in the list, pid and bytes.
/// Returns how many there are.
///
/// # Safety
/// A handle from NVML.
pub(crate) unsafe fn on(
    device: Device,
    mut with: impl FnMut(usize, u32, u64),
) -> core::result::Result<usize, Result> {
    // SAFETY: the caller's promise.
    let gpu = match unsafe { whose(device) }? {
        Whose::Granted(gpu) => gpu,
        Whose::Mig => return Ok(0),
        Whose::Foreign => return Err(NO_PERMISSION),
    };
    let ledger = files::ledger_view().map_err(|refusal| {
        refusal.say();
        NO_PERMISSION
    })?;
    let mut count = 0;
    let kernel = kernel::System::new(kernel::namespace());
    ledger.for_each_living(&kernel, |process| {
        let used = process.used.get(gpu).copied().unwrap_or(0);
        if used > 0 {
            with(count, process.pid, used);
            count += 1;
        }
    });
    Ok(count)
}

/// Fills an application's list as NVML does: `count` is the room and becomes the number. Too little room is
/// an error that says how much is needed; an empty list may be used to ask.
///
/// # Safety
/// A handle from NVML, a `count` that is null or valid, a `list` that is null or has room for `*count`.
unsafe fn fill<T>(device: Device, count: *mut c_uint, list: *mut T, entry: impl Fn(u32, u64) -> T) -> Result {
    // SAFETY: the caller's promise.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    let room = if list.is_null() { 0 } else { *count as usize };
    // SAFETY: the caller's promise: there is room at every place that is written.
    let found = unsafe {
        on(device, |place, pid, used| {
            if place < room {
                list.add(place).write(entry(pid, used));
            }
        })
    };
    match found {
        Ok(found) => {
            *count = found as c_uint;
            if found > room { INSUFFICIENT_SIZE } else { SUCCESS }
        }
        Err(error) => error,
    }
}

/// # Safety
/// As `nvmlDeviceGetComputeRunningProcesses`.
pub(crate) unsafe fn compute_v1(device: Device, count: *mut c_uint, list: *mut ProcessV1) -> Result {
    // SAFETY: the caller's promise.
    unsafe { fill(device, count, list, |pid, used| ProcessV1 { pid, used }) }
}

/// # Safety
/// As `nvmlDeviceGetComputeRunningProcesses_v3`.
pub(crate) unsafe fn compute_v2(device: Device, count: *mut c_uint, list: *mut ProcessV2) -> Result {
    let entry = |pid, used| ProcessV2 { pid, used, gpu_instance: NO_INSTANCE, compute_instance: NO_INSTANCE };
    // SAFETY: the caller's promise.
    unsafe { fill(device, count, list, entry) }
}

/// # Safety
/// As `nvmlDeviceGetRunningProcessDetailList`.
pub(crate) unsafe fn details(device: Device, list: *mut DetailList) -> Result {
    /// Modes: compute, and the last one, MPS.
    const COMPUTE: u32 = 0;
    const LAST: u32 = 2;
    // SAFETY: the caller's promise.
    let Some(list) = (unsafe { list.as_mut() }) else { return INVALID_ARGUMENT };
    if list.version != version::<DetailList>(1) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    let entry = |pid, used| Detail {
        pid,
        used,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
        protected: 0,
    };
    match list.mode {
        // SAFETY: the caller's promise: the entries have room for the count.
        COMPUTE => unsafe { fill(device, &raw mut list.count, list.entries, entry) },
        // SAFETY: the caller's promise; nothing is written into the list.
        1..=LAST => unsafe { none(device, &raw mut list.count, core::ptr::null_mut()) },
        _ => INVALID_ARGUMENT,
    }
}

/// The other lists: graphics and MPS, and the sessions of encoders and of frame buffer capture. The real
/// library may name processes there that are not the container's.
///
/// # Safety
/// As `nvmlDeviceGetGraphicsRunningProcesses_v3`.
pub(crate) unsafe fn none(device: Device, count: *mut c_uint, _list: *mut c_void) -> Result {
    // SAFETY: the caller's promise.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's promise.
    match unsafe { whose(device) } {
        Ok(Whose::Granted(_) | Whose::Mig) => {
            *count = 0;
            SUCCESS
        }
        Ok(Whose::Foreign) => NO_PERMISSION,
        Err(error) => error,
    }
}
