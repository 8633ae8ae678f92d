//! Green contexts: parts of a device's multiprocessors. What a green context takes is
//! [measured](crate::measure). Memory allocated in it belongs to the primary context.

use fgpu_quota_core::process::Process;

use crate::context::{book, book_in_green, end, ended_green, ending_green};
use crate::driver::{Context, Device, Object, Result, SUCCESS};
use crate::primary::known;
use crate::{measure, place, real, reserve};

/// Makes a green context.
///
/// # Safety
/// If `call` succeeds, it has written `context`.
pub(crate) unsafe fn create(context: *mut Object, device: Device, call: impl FnOnce() -> Result) -> Result {
    if context.is_null() {
        return call();
    }
    let (process, gpu) = match reserve::account_on(device) {
        Ok(account) => account,
        Err(error) => return error,
    };
    let (result, taken) = measure::around(call);
    if result != SUCCESS {
        return result;
    }
    // SAFETY: the caller's promise.
    let green = unsafe { *context };
    match reserve::exactly(process, gpu, taken) {
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

/// The end of a green context.
pub(crate) fn destroy(context: Object, call: impl FnOnce() -> Result) -> Result {
    ending_green(context as u64);
    let result = end(context as u64, call, || true);
    if result == SUCCESS {
        ended_green(context as u64);
    }
    result
}

/// Notes the context by which a green one is used.
///
/// # Safety
/// If `call` succeeds, it has written `context`.
pub(crate) unsafe fn note_context(
    context: *mut Context,
    green: Object,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    if result != SUCCESS {
        return result;
    }
    let Some(process) = Process::registered() else { return result };
    // SAFETY: the caller's promise.
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
