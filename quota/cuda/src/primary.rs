//! Primary contexts: one for each device, which the driver keeps as long as it is retained.

use core::ffi::{c_int, c_uint};

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::context::{end, give_back, make};
use crate::driver::{Context, Device, Result, SUCCESS};
use crate::{compute, real};

/// Retains the primary context of a device.
///
/// # Safety
/// If `call` succeeds, it has written `context`.
pub(crate) unsafe fn retain(context: *mut Context, device: Device, call: impl FnOnce() -> Result) -> Result {
    // A context that is active takes nothing.
    let takes_nothing = || Process::registered().is_some() && is_active(device) && known(device).is_some();
    if context.is_null() || takes_nothing() {
        return call();
    }
    // SAFETY: the caller's promise.
    let made = || unsafe { *context };
    let result = make(device, call, made, || unsafe {
        // SAFETY: gives back what `call` took.
        real::cuDevicePrimaryCtxRelease_v2(device);
    });
    if result == SUCCESS
        && let Some(process) = Process::registered()
        && let Some(entry) = process.allocations.lock().get_mut(Kind::Context, made() as u64)
    {
        entry.link = link(device);
    }
    result
}

/// The `link` of a device's primary context, which is not counted by attachments.
fn link(device: Device) -> u64 {
    1 << 32 | device as u64
}

fn is_active(device: Device) -> bool {
    let (mut flags, mut active): (c_uint, c_int) = (0, 0);
    // SAFETY: the driver writes both.
    let result = unsafe { real::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    result == SUCCESS && active != 0
}

/// The device's primary context, if it was seen to be retained.
pub(crate) fn known(device: Device) -> Option<u64> {
    let is_it = |entry: &Entry| entry.link == link(device);
    Process::registered()?.allocations.lock().find(Kind::Context, is_it).map(|entry| entry.key)
}

/// Releases the primary context of a device.
pub(crate) fn release(device: Device, call: impl FnOnce() -> Result) -> Result {
    end(known(device).unwrap_or(0), call, || !is_active(device))
}

/// A reset frees what was allocated in the context, whether the context itself goes or stays.
pub(crate) fn reset(device: Device, call: impl FnOnce() -> Result) -> Result {
    let (Some(process), Some(context)) = (Process::registered(), known(device)) else { return call() };
    compute::ending(process, context);
    let result = call();
    if result == SUCCESS {
        let stays = is_active(device);
        compute::ended(process, context);
        // Code that was loaded late has the name of its context, and goes.
        let is_it = |entry: &Entry| entry.kind == Kind::Context && entry.key == context;
        give_back(process, |entry| entry.owner == context && !(stays && is_it(entry)));
    }
    result
}
