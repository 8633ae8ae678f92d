//! The topology: a GPU's neighbours, those of the grant only.

use core::ffi::{c_uint, c_void};

use crate::abi::{Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, Result, SUCCESS};
use crate::devices::{Whose, whose};
use crate::real;

/// The most GPUs that a node has.
const MOST: usize = 64;

/// Lists those GPUs of `call`'s list that are in the grant, as NVML does: a `count` of 0 asks how many there
/// are.
///
/// # Safety
/// `count` is null or valid, `list` null or with room for `*count`; `call` writes at most as many handles as
/// its first argument says, and how many.
unsafe fn granted(
    count: *mut c_uint,
    list: *mut Device,
    call: impl FnOnce(*mut c_uint, *mut Device) -> Result,
) -> Result {
    // SAFETY: the caller's promise.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    if *count != 0 && list.is_null() {
        return INVALID_ARGUMENT;
    }
    let mut all = [core::ptr::null_mut(); MOST];
    let mut listed = MOST as c_uint;
    let result = call(&raw mut listed, all.as_mut_ptr());
    if result != SUCCESS {
        return result;
    }
    let room = *count as usize;
    let mut found = 0;
    for device in all.into_iter().take(listed as usize) {
        // SAFETY: a handle that NVML returned just now.
        match unsafe { whose(device) } {
            Ok(Whose::Granted(_) | Whose::Mig) => {}
            Ok(Whose::Foreign) => continue,
            Err(error) => return error,
        }
        if found < room {
            // SAFETY: the caller's list has room for `room` handles.
            unsafe { list.add(found).write(device) };
        }
        found += 1;
    }
    *count = found as c_uint;
    if room != 0 && found > room { INSUFFICIENT_SIZE } else { SUCCESS }
}

/// # Safety
/// As `nvmlDeviceGetTopologyNearestGpus`.
pub(crate) unsafe fn nearest(device: Device, level: c_uint, count: *mut c_uint, list: *mut Device) -> Result {
    // SAFETY: the caller's promise; the library gets an array of ours.
    unsafe {
        granted(count, list, |count, list| real::nvmlDeviceGetTopologyNearestGpus(device, level, count, list))
    }
}

/// # Safety
/// As `nvmlSystemGetTopologyGpuSet`.
pub(crate) unsafe fn near_processor(processor: c_uint, count: *mut c_uint, list: *mut Device) -> Result {
    // SAFETY: the caller's promise; the library gets an array of ours.
    unsafe { granted(count, list, |count, list| real::nvmlSystemGetTopologyGpuSet(processor, count, list)) }
}

/// # Safety
/// As `nvmlUnitGetDevices`.
pub(crate) unsafe fn of_unit(unit: *mut c_void, count: *mut c_uint, list: *mut Device) -> Result {
    // SAFETY: the caller's promise; the library gets an array of ours.
    unsafe { granted(count, list, |count, list| real::nvmlUnitGetDevices(unit, count, list)) }
}

/// No container has GPUs that the driver excludes.
///
/// # Safety
/// As `nvmlGetExcludedDeviceCount`.
pub(crate) unsafe fn excluded_count(count: *mut c_uint) -> Result {
    // SAFETY: the caller's promise.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    *count = 0;
    SUCCESS
}

/// # Safety
/// As `nvmlGetExcludedDeviceInfoByIndex`; nothing is written.
pub(crate) unsafe fn excluded(_index: c_uint, _info: *mut c_void) -> Result {
    INVALID_ARGUMENT
}
