//! Which GPU of the grant a call is about.

use core::ptr::null_mut;

use fgpu_quota_core::message::Refusal;
use fgpu_quota_core::process::Process;
use fgpu_wire::limits::Page;

use crate::driver::{Context, Device, OUT_OF_MEMORY, PER_THREAD_STREAM, Result, SUCCESS, Stream};
use crate::real;

/// The grant's number of the current context's device. The error is the driver's own: without a context the
/// wrapped call would fail with the same.
pub(crate) fn of_context(process: &Process) -> core::result::Result<usize, Result> {
    of_device(process, device()?)
}

/// The current context, with which an allocation ends; 0: none.
pub(crate) fn current() -> u64 {
    let mut context = null_mut();
    // SAFETY: the driver writes the context.
    match unsafe { real::cuCtxGetCurrent(&raw mut context) } {
        SUCCESS => context as u64,
        _ => 0,
    }
}

/// The device of the current context.
pub(crate) fn device() -> core::result::Result<Device, Result> {
    let mut device = 0;
    // SAFETY: the driver writes the device.
    match unsafe { real::cuCtxGetDevice(&raw mut device) } {
        SUCCESS => Ok(device),
        error => Err(error),
    }
}

/// The grant's number of a device, remembered after the first time.
pub(crate) fn of_device(process: &Process, device: Device) -> core::result::Result<usize, Result> {
    if let Some(gpu) = process.device(device) {
        return Ok(gpu);
    }
    let gpu = in_grant(process.limits(), device)?;
    process.remember_device(device, gpu);
    Ok(gpu)
}

/// The grant's number of a device, by its UUID. A GPU that is not in the grant has no memory.
pub(crate) fn in_grant(limits: &Page, device: Device) -> core::result::Result<usize, Result> {
    let mut uuid = [0; 16];
    // SAFETY: the driver writes 16 bytes.
    match unsafe { real::cuDeviceGetUuid(&raw mut uuid, device) } {
        SUCCESS => limits.find(&uuid).ok_or_else(|| {
            Refusal::Foreign.say();
            OUT_OF_MEMORY
        }),
        error => Err(error),
    }
}

/// The device of a stream. Stream-ordered memory comes from it, whatever the current context.
pub(crate) fn device_of_stream(stream: Stream) -> core::result::Result<Device, Result> {
    if stream as usize <= PER_THREAD_STREAM {
        return device();
    }
    let (mut context, mut current) = (null_mut(), null_mut());
    // SAFETY: the stream is the application's argument for the driver; the driver writes the contexts.
    let known = unsafe {
        real::cuStreamGetCtx(stream, &raw mut context) == SUCCESS
            && real::cuCtxGetCurrent(&raw mut current) == SUCCESS
    };
    if !known || context == current { device() } else { in_context(context, device) }
}

/// Calls `ask` while `context` is current, or as it is if the context cannot be made current.
pub(crate) fn in_context<T>(mut context: Context, ask: impl FnOnce() -> T) -> T {
    // SAFETY: the driver gave the context; it is popped again below.
    let pushed = unsafe { real::cuCtxPushCurrent_v2(context) } == SUCCESS;
    let answer = ask();
    if pushed {
        // SAFETY: pops what was pushed.
        unsafe { real::cuCtxPopCurrent_v2(&raw mut context) };
    }
    answer
}
