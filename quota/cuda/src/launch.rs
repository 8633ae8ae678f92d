//! Launches of single functions; those of graphs are in [`graph`](crate::graph).
//!
//! The first launch of a function may load its code, and may make the stacks of its context larger: what that takes is
//! [measured](crate::measure). Every other launch costs a look at one word, and what the [limiter of SM time](crate::compute) takes.

#![expect(clippy::too_many_arguments, reason = "the driver's functions have so many")]

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

use fgpu_quota_core::process::Process;

use crate::driver::{LOCAL_BYTES, Object, Result, SUCCESS, Stream};
use crate::measure::PIECE;
use crate::wrapped::real;
use crate::{code, compute, limits, place, pool};

/// A launch of `function`; `own` says that the default stream is the thread's (`_ptsz`).
#[inline]
fn launch(function: Object, stream: Stream, own: bool, call: impl FnOnce() -> Result) -> Result {
    compute::launch(compute::stream(stream, own), || match Process::registered() {
        Some(process) if !process.see(function as u64) => first_launch(function, stream, call),
        _ => call(),
    })
}

/// The stream in a `CUlaunchConfig`, which comes after seven numbers.
fn stream_of(configuration: *const c_void) -> Stream {
    if configuration.is_null() {
        return null_mut();
    }
    // SAFETY: the application's structure, which the driver is about to read.
    unsafe { configuration.cast::<Stream>().add(4).read() }
}

/// Besides its code, a function may want larger stacks than the context has.
#[cold]
fn first_launch(function: Object, stream: Stream, call: impl FnOnce() -> Result) -> Result {
    // Nothing is asked of a driver that captures which it might not like to be asked then.
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

/// # Safety
/// As `cuLaunchKernel`.
pub(crate) unsafe fn kernel(
    function: Object,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Stream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller's promise.
    launch(function, stream, false, || unsafe {
        real::cuLaunchKernel(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra,
        )
    })
}

/// # Safety
/// As `cuLaunchKernel_ptsz`.
pub(crate) unsafe fn kernel_ptsz(
    function: Object,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Stream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller's promise.
    launch(function, stream, true, || unsafe {
        real::cuLaunchKernel_ptsz(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra,
        )
    })
}

/// # Safety
/// As `cuLaunchKernelEx`.
pub(crate) unsafe fn kernel_ex(
    configuration: *const c_void,
    function: Object,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller's promise.
    launch(function, stream_of(configuration), false, || unsafe {
        real::cuLaunchKernelEx(configuration, function, parameters, extra)
    })
}

/// # Safety
/// As `cuLaunchKernelEx_ptsz`.
pub(crate) unsafe fn kernel_ex_ptsz(
    configuration: *const c_void,
    function: Object,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller's promise.
    launch(function, stream_of(configuration), true, || unsafe {
        real::cuLaunchKernelEx_ptsz(configuration, function, parameters, extra)
    })
}

/// # Safety
/// As `cuLaunchCooperativeKernel`.
pub(crate) unsafe fn cooperative(
    function: Object,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Stream,
    parameters: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller's promise.
    launch(function, stream, false, || unsafe {
        real::cuLaunchCooperativeKernel(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,
        )
    })
}

/// # Safety
/// As `cuLaunchCooperativeKernel_ptsz`.
pub(crate) unsafe fn cooperative_ptsz(
    function: Object,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Stream,
    parameters: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller's promise.
    launch(function, stream, true, || unsafe {
        real::cuLaunchCooperativeKernel_ptsz(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,
        )
    })
}

/// # Safety
/// As `cuLaunch`.
pub(crate) unsafe fn plain(function: Object) -> Result {
    // SAFETY: the caller's promise.
    launch(function, null_mut(), false, || unsafe { real::cuLaunch(function) })
}

/// # Safety
/// As `cuLaunchGrid`.
pub(crate) unsafe fn grid(function: Object, width: c_int, height: c_int) -> Result {
    // SAFETY: the caller's promise.
    launch(function, null_mut(), false, || unsafe { real::cuLaunchGrid(function, width, height) })
}

/// # Safety
/// As `cuLaunchGridAsync`.
pub(crate) unsafe fn grid_async(function: Object, width: c_int, height: c_int, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    launch(function, stream, false, || unsafe { real::cuLaunchGridAsync(function, width, height, stream) })
}

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
pub(crate) struct OfSeveral {
    function: Object,
    sizes: [c_uint; 7],
    stream: Stream,
    parameters: *mut *mut c_void,
}

const _: () = assert!(size_of::<OfSeveral>() == 56 && core::mem::offset_of!(OfSeveral, stream) == 40);

/// # Safety
/// As `cuLaunchCooperativeKernelMultiDevice`.
pub(crate) unsafe fn cooperative_of_several(list: *mut OfSeveral, count: c_uint, flags: c_uint) -> Result {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::cuLaunchCooperativeKernelMultiDevice(list, count, flags) };
    if list.is_null() {
        return call();
    }
    // SAFETY: the caller's promise: a list of `count`.
    compute::launch_many(count as usize, |entry| unsafe { (*list.add(entry)).stream }, call)
}
