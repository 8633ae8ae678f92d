//! Green contexts: parts of a device's multiprocessors. What one takes is [measured](crate::measure); what is allocated in
//! it is the primary context's, and ends with that.

use core::ffi::{c_uint, c_void};

use fgpu_quota_core::process::Process;

use crate::context::{account, book, book_in_green, end, ended_green, ending_green, known, take};
use crate::driver::{Context, Device, Object, Result, SUCCESS};
use crate::wrapped::real;
use crate::{measure, place};

/// # Safety
/// As `cuGreenCtxCreate`.
pub(crate) unsafe fn create(
    context: *mut Object,
    resources: *mut c_void,
    device: Device,
    flags: c_uint,
) -> Result {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::cuGreenCtxCreate(context, resources, device, flags) };
    if context.is_null() {
        return call();
    }
    let (process, gpu) = match account(device) {
        Ok(account) => account,
        Err(error) => return error,
    };
    let (result, taken) = measure::around(call);
    if result != SUCCESS {
        return result;
    }
    // SAFETY: written by the driver, which succeeded.
    let green = unsafe { *context };
    match take(process, gpu, taken) {
        Ok(bytes) => {
            book(process, gpu, green as u64, green as u64, bytes);
            result
        }
        Err(error) => {
            // SAFETY: the application has not seen it.
            unsafe { real::cuGreenCtxDestroy(green) };
            error
        }
    }
}

/// # Safety
/// As `cuGreenCtxDestroy`.
pub(crate) unsafe fn destroy(context: Object) -> Result {
    ending_green(context as u64);
    // SAFETY: the caller's promise.
    let result = end(context as u64, || unsafe { real::cuGreenCtxDestroy(context) }, || true);
    if result == SUCCESS {
        ended_green(context as u64);
    }
    result
}

/// # Safety
/// As `cuCtxFromGreenCtx`.
pub(crate) unsafe fn from_green(context: *mut Context, green: Object) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuCtxFromGreenCtx(context, green) };
    if result != SUCCESS {
        return result;
    }
    let Some(process) = Process::registered() else { return result };
    // SAFETY: written by the driver, which succeeded.
    let context = unsafe { *context };
    if let Ok(device) = place::in_context(context, place::device)
        && let Some(primary) = known(device)
        && let Ok(gpu) = place::of_device(process, device)
        && context as u64 != green as u64
    {
        book_in_green(process, gpu, context as u64, primary, green as u64);
    }
    result
}
