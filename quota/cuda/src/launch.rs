//! Launches of single functions; those of graphs are in [`graph`](crate::graph).
//!
//! The first launch of a function may load its code, and may make the stacks of its context larger: what that
//! takes is [measured](crate::measure). Every other launch costs a look at one word, and what the [limiter of
//! SM time](crate::compute) takes.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

use fgpu_quota_core::process::Process;

use crate::driver::{DefaultStream, LOCAL_BYTES, LaunchParameters, Object, Result, SUCCESS, Stream};
use crate::measure::PIECE;
use crate::{code, compute, limits, place, pool, real};

/// A launch of `function`.
#[inline]
pub(crate) fn kernel(
    function: Object,
    stream: Stream,
    default: DefaultStream,
    call: impl FnOnce() -> Result,
) -> Result {
    compute::launch(compute::stream(stream, default), || match Process::registered() {
        Some(process) if !process.see(function as u64) => first_launch(function, stream, call),
        _ => call(),
    })
}

/// The stream in a `CUlaunchConfig`, which comes after seven numbers.
///
/// # Safety
/// `configuration` is null, or such a structure.
#[inline]
pub(crate) unsafe fn stream_of(configuration: *const c_void) -> Stream {
    if configuration.is_null() {
        return null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { configuration.cast::<Stream>().add(4).read() }
}

/// Besides its code, a function may want larger stacks than the context has.
#[cold]
fn first_launch(function: Object, stream: Stream, call: impl FnOnce() -> Result) -> Result {
    // The driver may reject questions while it captures, so nothing is measured then.
    if pool::is_captured(stream, real::cuStreamIsCapturing) {
        return call();
    }
    let most = || {
        let mut local: c_int = 0;
        // SAFETY: the function was launched; the driver writes the number.
        let result = unsafe { real::cuFuncGetAttribute(&raw mut local, LOCAL_BYTES, function) };
        let local = if result == SUCCESS { u64::try_from(local).unwrap_or(0) } else { 0 };
        place::device().map_or(PIECE, |device| limits::stacks(device, local).saturating_add(PIECE))
    };
    code::late(most, call)
}

/// A cooperative launch on several devices.
///
/// # Safety
/// `list` is null or has `count` entries.
pub(crate) unsafe fn on_several_devices(
    list: *mut LaunchParameters,
    count: c_uint,
    call: impl FnOnce() -> Result,
) -> Result {
    if list.is_null() {
        return call();
    }
    // SAFETY: the caller's promise.
    compute::launch_many(count as usize, |entry| unsafe { (*list.add(entry)).stream }, call)
}
