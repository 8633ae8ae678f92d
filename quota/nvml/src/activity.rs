//! How busy the GPU is: with the container's own work, out of the time that it is granted.
//!
//! What the real library says is of all who use the GPU, so nothing of it is handed on. Where nobody can tell the
//! container's part the answer is "not supported", which tools know from MIG devices.

use core::ffi::c_uint;

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, Device, GpmSupport, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED,
    Result, SUCCESS, Sample, Utilization, UtilizationList, version,
};
use crate::devices::{Whose, whose};

/// Percent of its share of GPU number `gpu` that the container used of late; `None`: nobody knows.
fn percent(_gpu: usize) -> Option<u32> {
    None
}

/// # Safety
/// A handle that NVML gave.
unsafe fn granted(device: Device) -> core::result::Result<usize, Result> {
    // SAFETY: the caller's promise.
    match unsafe { whose(device) }? {
        Whose::Granted(gpu) => Ok(gpu),
        Whose::Mig => Err(NOT_SUPPORTED),
        Whose::Foreign => Err(NO_PERMISSION),
    }
}

/// # Safety
/// As `nvmlDeviceGetUtilizationRates`.
pub(crate) unsafe fn rates(device: Device, rates: *mut Utilization) -> Result {
    // SAFETY: the caller's promise.
    let Some(rates) = (unsafe { rates.as_mut() }) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's promise.
    match unsafe { granted(device) }.map(percent) {
        Ok(Some(gpu)) => {
            // How busy the memory's bus is with it is known to nobody.
            *rates = Utilization { gpu, memory: 0 };
            SUCCESS
        }
        Ok(None) => NOT_SUPPORTED,
        Err(error) => error,
    }
}

/// No process had a sample of late.
///
/// # Safety
/// As `nvmlDeviceGetProcessUtilization`.
pub(crate) unsafe fn of_processes(
    device: Device,
    _samples: *mut Sample,
    count: *mut c_uint,
    _since: u64,
) -> Result {
    // SAFETY: the caller's promise.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's promise.
    match unsafe { granted(device) } {
        Ok(_) => {
            *count = 0;
            NOT_FOUND
        }
        Err(error) => error,
    }
}

/// Likewise.
///
/// # Safety
/// As `nvmlDeviceGetProcessesUtilizationInfo`.
pub(crate) unsafe fn of_processes_info(device: Device, list: *mut UtilizationList) -> Result {
    // SAFETY: the caller's promise.
    let Some(list) = (unsafe { list.as_mut() }) else { return INVALID_ARGUMENT };
    if list.version != version::<UtilizationList>(1) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    // SAFETY: the caller's promise.
    match unsafe { granted(device) } {
        Ok(_) => {
            list.count = 0;
            NOT_FOUND
        }
        Err(error) => error,
    }
}

/// Engines for video and pictures, counters of the multiprocessors, samples of all of it: of the whole GPU.
///
/// # Safety
/// None: the arguments, of which there may be more, are not looked at.
pub(crate) unsafe fn of_the_gpu(_device: Device) -> Result {
    NOT_SUPPORTED
}

/// # Safety
/// As `nvmlGpmQueryDeviceSupport`.
pub(crate) unsafe fn counters(_device: Device, support: *mut GpmSupport) -> Result {
    // SAFETY: the caller's promise.
    let Some(support) = (unsafe { support.as_mut() }) else { return INVALID_ARGUMENT };
    // The one struct whose version is a plain number (NVML_GPM_SUPPORT_VERSION).
    if support.version != 1 {
        return ARGUMENT_VERSION_MISMATCH;
    }
    support.supported = 0;
    SUCCESS
}
