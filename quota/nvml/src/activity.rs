//! How busy the GPU is with the container's own work, relative to the time that it is granted.
//!
//! The real library's numbers cover all users of the GPU, so none of them is passed on. Where the container's
//! part is unknown, the answer is "not supported", which tools know from MIG devices.

use core::ffi::c_uint;

use fgpu_quota_core::{clock, files, kernel, sys};
use fgpu_wire::limits::{COMPUTE_OFF, COMPUTE_REST};

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, Device, GpmSupport, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NO_PERMISSION,
    NOT_FOUND, NOT_SUPPORTED, Result, SUCCESS, Sample, Utilization, UtilizationInfo, UtilizationList,
    version,
};
use crate::devices::{Whose, limits, whose};

/// How SM time of GPU number `gpu` is limited, and the share that counts as 100 %, ppm: the whole GPU if no
/// share is booked.
fn share(gpu: usize) -> Option<(u8, u32)> {
    Some(match limits().ok()?.compute(gpu) {
        (COMPUTE_REST, _) => (COMPUTE_REST, 1_000_000),
        share => share,
    })
}

/// The percentage of its share of GPU number `gpu` that the container used recently. `None`: unknown, since
/// its time is not limited and so not measured. A container that may use idle time can use more than its
/// share; that is 100, too.
fn percent(gpu: usize) -> Option<u32> {
    let (mode, share) = share(gpu)?;
    let account = files::ledger_view().ok()?.compute(gpu).filter(|_| mode != COMPUTE_OFF)?;
    let busy = u64::from(account.busy(clock::now()));
    Some((busy * 100 / u64::from(share.max(1))).min(100) as u32)
}

/// Calls `with` for every process that has memory on GPU number `gpu`: its place in the list, its pid, and
/// the percentage of the container's share that it used recently. Returns how many there are; `None` if the
/// time is not measured.
fn each_process(gpu: usize, mut with: impl FnMut(usize, u32, u32)) -> Option<usize> {
    let (mode, share) = share(gpu)?;
    if mode == COMPUTE_OFF {
        return None;
    }
    let (ledger, now) = (files::ledger_view().ok()?, clock::now());
    // If idle time was used, too, the sum is limited to 100.
    let whole = u64::from(ledger.compute(gpu)?.busy(now).max(share).max(1));
    let mut count = 0;
    ledger.for_each_living(&kernel::System::new(kernel::namespace()), |process| {
        if process.used.get(gpu).is_some_and(|&used| used > 0) {
            let part = ledger.busy(process.slot, gpu).map_or(0, |busy| busy.ppm(now));
            with(count, process.pid, (u64::from(part) * 100 / whole).min(100) as u32);
            count += 1;
        }
    });
    Some(count)
}

/// Fills an application's list as NVML does, with what `entry` makes of the time (microseconds since
/// 1970), a pid and percent.
///
/// # Safety
/// A handle from NVML, and a `list` that is null or has room for `count`.
unsafe fn fill<T>(
    device: Device,
    count: &mut u32,
    list: *mut T,
    entry: impl Fn(u64, u32, u32) -> T,
) -> Result {
    let room = if list.is_null() { 0 } else { *count as usize };
    // SAFETY: the caller's promise.
    let gpu = match unsafe { granted(device) } {
        Ok(gpu) => gpu,
        Err(error) => return error,
    };
    let time = sys::wall() / 1000;
    let found = each_process(gpu, |place, pid, sm| {
        if place < room {
            // SAFETY: the caller's promise: there is room at every place that is written.
            unsafe { list.add(place).write(entry(time, pid, sm)) };
        }
    });
    let found = found.unwrap_or(0);
    *count = found as u32;
    match found {
        0 => NOT_FOUND,
        _ if found > room => INSUFFICIENT_SIZE,
        _ => SUCCESS,
    }
}

/// # Safety
/// A handle from NVML.
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
            // The container's part of the memory bus is unknown.
            *rates = Utilization { gpu, memory: 0 };
            SUCCESS
        }
        Ok(None) => NOT_SUPPORTED,
        Err(error) => error,
    }
}

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
    let sample = |time, pid, sm| Sample { pid, time, sm, memory: 0, encoder: 0, decoder: 0 };
    // SAFETY: the caller's promise.
    unsafe { fill(device, count, samples, sample) }
}

/// # Safety
/// As `nvmlDeviceGetProcessesUtilizationInfo`.
pub(crate) unsafe fn of_processes_info(device: Device, list: *mut UtilizationList) -> Result {
    // SAFETY: the caller's promise.
    let Some(list) = (unsafe { list.as_mut() }) else { return INVALID_ARGUMENT };
    if list.version != version::<UtilizationList>(1) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    let info = |time, pid, sm| UtilizationInfo {
        time,
        pid,
        sm,
        memory: 0,
        encoder: 0,
        decoder: 0,
        jpeg: 0,
        optical_flow: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { fill(device, &mut list.count, list.entries, info) }
}

/// Video and image engines, counters of the multiprocessors, and samples of these cover the whole GPU.
///
/// # Safety
/// None: the arguments are not read. The real function may have more of them.
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
