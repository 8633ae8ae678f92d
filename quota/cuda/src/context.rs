//! Contexts: what they take, and what ends with them.
//!
//! A context takes device memory of its own, some hundred MiB, before anything is allocated in it. The driver does
//! not say how much. So:
//!
//! - where the grant says what a context takes on the GPU ([`Page::context`](fgpu_wire::limits::Page::context)), that
//!   is reserved before the driver is asked;
//! - else what can be computed is counted: the local memory, which is the stack of every thread that the GPU can run
//!   at a time;
//! - what `cuCtxSetLimit` adds to stack, heap and printf buffer is reserved before it is set ([`limits`]).
//!
//! When a context ends, so does all that was allocated in it, and its code. Memory of handles and of
//! pools belongs to no context.

use core::ffi::{c_int, c_uint, c_void};

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;
use fgpu_wire::MAX_GPUS;

use crate::driver::{Context, Device, OUT_OF_MEMORY, Result, STACK, SUCCESS};
use crate::reserve::{self, Placed};
use crate::wrapped::real;
use crate::{compute, limits, meter, place};

/// Of a context's `link`: how often it was attached, besides its creation.
const ATTACHED: u64 = 1;
/// Of an owner: what it names is about to end. No address has this bit.
const ENDING: u64 = 1 << 63;

/// Makes a context; `call` gives it.
fn make(
    device: Device,
    call: impl FnOnce() -> Result,
    made: impl Fn() -> Context,
    undo: impl FnOnce(),
) -> Result {
    let (process, gpu) = match account(device) {
        Ok(account) => account,
        Err(error) => return error,
    };
    let said = process.limits().context(gpu);
    let before = match take(process, gpu, said) {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    let result = call();
    if result != SUCCESS {
        process.release(gpu, before);
        return result;
    }
    let context = made();
    // A primary context that was there already.
    if process.allocations.lock().get_mut(Kind::Context, context as u64).is_some() {
        process.release(gpu, before);
        return result;
    }
    let computed =
        || place::in_context(context, || limits::stacks(device, limits::limit(STACK).unwrap_or(0)));
    match take(process, gpu, if said == 0 { computed() } else { 0 }) {
        Ok(bytes) => {
            book(process, gpu, context as u64, context as u64, before + bytes);
            result
        }
        Err(error) => {
            process.release(gpu, before);
            undo();
            error
        }
    }
}

pub(crate) fn account(device: Device) -> Placed<(&'static Process, usize)> {
    let process = reserve::account()?;
    Ok((process, place::of_device(process, device)?))
}

/// Reserves exactly so many bytes.
pub(crate) fn take(process: &Process, gpu: usize, bytes: u64) -> Placed<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let reserved = process.reserve_between(gpu, bytes, bytes).or_else(|| {
        if meter::give_up_spare(process, gpu) { process.reserve_between(gpu, bytes, bytes) } else { None }
    });
    reserved.ok_or(OUT_OF_MEMORY)
}

/// Books a context, which ends with `owner`.
pub(crate) fn book(process: &Process, gpu: usize, context: u64, owner: u64, bytes: u64) {
    let entry = Entry { key: context, kind: Kind::Context, gpu: gpu as u32, bytes, link: 0, owner };
    process.allocations.lock().insert(entry);
}

/// Books the context by which a green one is used. What is allocated in it is the primary's and ends with that; it takes nothing
/// itself and ends with the green one.
pub(crate) fn book_in_green(process: &Process, gpu: usize, context: u64, primary: u64, green: u64) {
    let entry =
        Entry { key: context, kind: Kind::Context, gpu: gpu as u32, bytes: 0, link: green, owner: primary };
    process.allocations.lock().insert(entry);
}

/// A green context is about to end.
pub(crate) fn ending_green(green: u64) {
    let Some(process) = Process::registered() else { return };
    let is_its = |entry: &Entry| entry.link == green && entry.key != green;
    let context = process.allocations.lock().find(Kind::Context, is_its);
    if let Some(context) = context {
        compute::ending(process, context.key);
    }
}

/// A green context has ended, and its lane and that of the context by which it was used.
pub(crate) fn ended_green(green: u64) {
    let Some(process) = Process::registered() else { return };
    let is_its = |entry: &Entry| entry.link == green && entry.key != green;
    loop {
        let Some(context) = process.allocations.lock().find(Kind::Context, is_its) else { break };
        process.allocations.lock().remove(Kind::Context, context.key);
        compute::ended(process, context.key);
    }
}

/// Ends a context: `call` may refuse, or leave it alive.
pub(crate) fn end(context: u64, call: impl FnOnce() -> Result, is_gone: impl FnOnce() -> bool) -> Result {
    let Some(process) = Process::registered().filter(|_| context != 0) else { return call() };
    compute::ending(process, context);
    // Marked first: once the driver has ended it, another thread may be given one with the same name.
    relabel(process, context, context | ENDING);
    let result = call();
    if result == SUCCESS && is_gone() {
        compute::ended(process, context);
        give_back(process, |entry| entry.owner == context | ENDING);
    } else {
        relabel(process, context | ENDING, context);
    }
    result
}

fn relabel(process: &Process, from: u64, to: u64) {
    process.allocations.lock().change(|entry| {
        if entry.owner == from {
            entry.owner = to;
        }
    });
}

/// Takes out what fits and gives its memory back.
fn give_back(process: &Process, fits: impl Fn(&Entry) -> bool) {
    let mut sums = [0u64; MAX_GPUS];
    process.allocations.lock().drain(fits, |entry| {
        if let Some(sum) = sums.get_mut(entry.gpu as usize) {
            *sum = sum.saturating_add(entry.bytes);
        }
    });
    for (gpu, &bytes) in sums.iter().enumerate().filter(|&(_, &bytes)| bytes != 0) {
        process.release(gpu, bytes);
    }
    process.forget_seen();
    meter::settle_all(process);
}

/// # Safety
/// `context` is where `call` writes the context, if it succeeds; it then is current.
unsafe fn create(context: *mut Context, device: Device, call: impl FnOnce() -> Result) -> Result {
    if context.is_null() {
        return call();
    }
    // SAFETY: the caller's promise.
    let made = || unsafe { *context };
    // SAFETY: the application has not seen the context.
    make(device, call, made, || unsafe {
        real::cuCtxDestroy_v2(*context);
    })
}

/// # Safety
/// As `cuCtxCreate`.
pub(crate) unsafe fn create_v1(context: *mut Context, flags: c_uint, device: Device) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe { create(context, device, || real::cuCtxCreate(context, flags, device)) }
}

/// # Safety
/// As `cuCtxCreate_v2`.
pub(crate) unsafe fn create_v2(context: *mut Context, flags: c_uint, device: Device) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe { create(context, device, || real::cuCtxCreate_v2(context, flags, device)) }
}

/// # Safety
/// As `cuCtxCreate_v3`.
pub(crate) unsafe fn create_v3(
    context: *mut Context,
    affinities: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: Device,
) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe { create(context, device, || real::cuCtxCreate_v3(context, affinities, count, flags, device)) }
}

/// # Safety
/// As `cuCtxCreate_v4`.
pub(crate) unsafe fn create_v4(
    context: *mut Context,
    parameters: *mut c_void,
    flags: c_uint,
    device: Device,
) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe { create(context, device, || real::cuCtxCreate_v4(context, parameters, flags, device)) }
}

/// # Safety
/// As `cuGLCtxCreate`.
pub(crate) unsafe fn create_gl(context: *mut Context, flags: c_uint, device: Device) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe { create(context, device, || real::cuGLCtxCreate(context, flags, device)) }
}

/// # Safety
/// As `cuGLCtxCreate_v2`.
pub(crate) unsafe fn create_gl_v2(context: *mut Context, flags: c_uint, device: Device) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe { create(context, device, || real::cuGLCtxCreate_v2(context, flags, device)) }
}

/// # Safety
/// As `cuVDPAUCtxCreate`.
pub(crate) unsafe fn create_vdpau(
    context: *mut Context,
    flags: c_uint,
    device: Device,
    display: c_uint,
    functions: *mut c_void,
) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe { create(context, device, || real::cuVDPAUCtxCreate(context, flags, device, display, functions)) }
}

/// # Safety
/// As `cuVDPAUCtxCreate_v2`.
pub(crate) unsafe fn create_vdpau_v2(
    context: *mut Context,
    flags: c_uint,
    device: Device,
    display: c_uint,
    functions: *mut c_void,
) -> Result {
    // SAFETY: the driver writes the context if it succeeds.
    unsafe {
        create(context, device, || real::cuVDPAUCtxCreate_v2(context, flags, device, display, functions))
    }
}

/// # Safety
/// As `cuCtxDestroy_v2`.
pub(crate) unsafe fn destroy(context: Context) -> Result {
    // SAFETY: the caller's promise.
    end(context as u64, || unsafe { real::cuCtxDestroy_v2(context) }, || true)
}

/// # Safety
/// As `cuCtxDestroy`.
pub(crate) unsafe fn destroy_v1(context: Context) -> Result {
    // SAFETY: the caller's promise.
    end(context as u64, || unsafe { real::cuCtxDestroy(context) }, || true)
}

/// # Safety
/// As `cuCtxAttach`.
pub(crate) unsafe fn attach(context: *mut Context, flags: c_uint) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuCtxAttach(context, flags) };
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        // SAFETY: written by the driver, which succeeded.
        let context = unsafe { *context } as u64;
        if let Some(entry) = process.allocations.lock().get_mut(Kind::Context, context) {
            entry.link = entry.link.wrapping_add(ATTACHED);
        }
    }
    result
}

/// # Safety
/// As `cuCtxDetach`.
pub(crate) unsafe fn detach(context: Context) -> Result {
    let is_last = || {
        let Some(process) = Process::registered() else { return false };
        let mut table = process.allocations.lock();
        let Some(entry) = table.get_mut(Kind::Context, context as u64) else { return false };
        match entry.link.checked_sub(ATTACHED) {
            Some(left) => {
                entry.link = left;
                false
            }
            None => true,
        }
    };
    // SAFETY: the caller's promise.
    end(context as u64, || unsafe { real::cuCtxDetach(context) }, is_last)
}

/// # Safety
/// As `cuDevicePrimaryCtxRetain`.
pub(crate) unsafe fn retain(context: *mut Context, device: Device) -> Result {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::cuDevicePrimaryCtxRetain(context, device) };
    // One that is active takes nothing.
    if context.is_null() || (Process::registered().is_some() && is_active(device) && is_known(device)) {
        return call();
    }
    // SAFETY: written by the driver, which succeeded.
    let made = || unsafe { *context };
    let result = make(device, call, made, || unsafe {
        // SAFETY: gives back what `call` took.
        real::cuDevicePrimaryCtxRelease_v2(device);
    });
    if result == SUCCESS
        && let Some(process) = Process::registered()
        && let Some(entry) = process.allocations.lock().get_mut(Kind::Context, made() as u64)
    {
        entry.link = primary(device);
    }
    result
}

/// The `link` of a device's primary context, which is not counted by attachments.
fn primary(device: Device) -> u64 {
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
    let is_it = |entry: &Entry| entry.link == primary(device);
    Process::registered()?.allocations.lock().find(Kind::Context, is_it).map(|entry| entry.key)
}

fn is_known(device: Device) -> bool {
    known(device).is_some()
}

/// # Safety
/// As `cuDevicePrimaryCtxRelease_v2`.
pub(crate) unsafe fn release(device: Device) -> Result {
    // SAFETY: the caller's promise.
    released(device, || unsafe { real::cuDevicePrimaryCtxRelease_v2(device) })
}

/// # Safety
/// As `cuDevicePrimaryCtxRelease`.
pub(crate) unsafe fn release_v1(device: Device) -> Result {
    // SAFETY: the caller's promise.
    released(device, || unsafe { real::cuDevicePrimaryCtxRelease(device) })
}

fn released(device: Device, call: impl FnOnce() -> Result) -> Result {
    end(known(device).unwrap_or(0), call, || !is_active(device))
}

/// # Safety
/// As `cuDevicePrimaryCtxReset_v2`.
pub(crate) unsafe fn reset(device: Device) -> Result {
    // SAFETY: the caller's promise.
    resetted(device, || unsafe { real::cuDevicePrimaryCtxReset_v2(device) })
}

/// # Safety
/// As `cuDevicePrimaryCtxReset`.
pub(crate) unsafe fn reset_v1(device: Device) -> Result {
    // SAFETY: the caller's promise.
    resetted(device, || unsafe { real::cuDevicePrimaryCtxReset(device) })
}

/// A reset frees what was allocated in the context, whether the context itself goes or stays.
fn resetted(device: Device, call: impl FnOnce() -> Result) -> Result {
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
