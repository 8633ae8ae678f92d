//! How busy the GPU is: with the container's own work, out of the time that it is granted.
//!
//! What the real library says is of all who use the GPU, so nothing of it is handed on. Where nobody can tell the
//! container's part the answer is "not supported", which tools know from MIG devices.

use core::ffi::c_uint;

use fgpu_quota_core::{clock, files, kernel, sys};
use fgpu_wire::limits::COMPUTE_OFF;

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, Device, GpmSupport, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NO_PERMISSION,
    NOT_FOUND, NOT_SUPPORTED, Result, SUCCESS, Sample, Utilization, UtilizationInfo, UtilizationList,
    version,
};
use crate::devices::{Whose, limits, whose};

/// Percent of its share of GPU number `gpu` that the container used of late; `None`: nobody knows, as its time is not
/// limited and so not measured. A container that may use idle time can use more than its share: that is 100, too.
fn percent(gpu: usize) -> Option<u32> {
    let (mode, share) = limits().ok()?.compute(gpu);
    let account = files::ledger_view().ok()?.compute(gpu).filter(|_| mode != COMPUTE_OFF)?;
    let busy = u64::from(account.busy(clock::now()));
    Some((busy * 100 / u64::from(share.max(1))).min(100) as u32)
}

/// The process that has memory on GPU number `gpu`, if there is one alone: what the container used of the time was its.
fn only_process(gpu: usize) -> Option<u32> {
    let ledger = files::ledger_view().ok()?;
    let (mut pid, mut count) = (0, 0);
    ledger.for_each_living(&kernel::System::new(kernel::namespace()), |process| {
        if process.used.get(gpu).is_some_and(|&used| used > 0) {
            (pid, count) = (process.pid, count + 1);
        }
    });
    (count == 1).then_some(pid)
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

/// Of one process: of several nobody knows which used how much.
///
/// # Safety
/// As `nvmlDeviceGetProcessUtilization`.
pub(crate) unsafe fn of_processes(
    device: Device,
    samples: *mut Sample,
    count: *mut c_uint,
    _since: u64,
) -> Result {
    // SAFETY: the caller's promise.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's promise.
    match unsafe { granted(device) }.map(sample) {
        Ok(Some((pid, sm))) => {
            let room = *count;
            *count = 1;
            if samples.is_null() || room == 0 {
                return INSUFFICIENT_SIZE;
            }
            let sample = Sample { pid, time: sys::wall() / 1000, sm, memory: 0, encoder: 0, decoder: 0 };
            // SAFETY: the caller's list has room for one.
            unsafe { samples.write(sample) };
            SUCCESS
        }
        Ok(None) => {
            *count = 0;
            NOT_FOUND
        }
        Err(error) => error,
    }
}

/// The one process of which something is known, and the percent of its container's share that it used.
fn sample(gpu: usize) -> Option<(u32, u32)> {
    Some((only_process(gpu)?, percent(gpu)?))
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
    match unsafe { granted(device) }.map(sample) {
        Ok(Some((pid, sm))) => {
            let room = list.count;
            list.count = 1;
            if list.entries.is_null() || room == 0 {
                return INSUFFICIENT_SIZE;
            }
            let time = sys::wall() / 1000;
            let info = UtilizationInfo {
                time,
                pid,
                sm,
                memory: 0,
                encoder: 0,
                decoder: 0,
                jpeg: 0,
                optical_flow: 0,
            };
            // SAFETY: the caller's list has room for one.
            unsafe { list.entries.write(info) };
            SUCCESS
        }
        Ok(None) => {
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
