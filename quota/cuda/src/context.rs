//! Contexts: what they take, and what ends with them.
//!
//! A context takes device memory of its own, some hundred MiB, before anything is allocated in it. The driver does
//! not say how much. So:
//!
//! - where the grant says what a context takes on the GPU ([`Page::context`](fgpu_wire::limits::Page::context)), that
//!   is reserved before the driver is asked;
//! - else what can be computed is counted: the local memory, which is the stack of every thread that the GPU can run
//!   at a time;
//! - what `cuCtxSetLimit` adds to stack, heap and printf buffer is reserved before it is set.
//!
//! A green context is measured around its creation, since another context is there to ask through
//! ([`measure`]). When a context ends, so does all that was allocated in it, and its code. Memory of handles and of
//! pools belongs to no context.

use core::ffi::{c_int, c_uint, c_void};

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;
use fgpu_wire::MAX_GPUS;

use crate::driver::{
    Context, Device, HEAP, MULTIPROCESSORS, OUT_OF_MEMORY, Object, PRINTF, Result, STACK, SUCCESS,
    THREADS_PER_MULTIPROCESSOR,
};
use crate::measure;
use crate::reserve::{self, Placed};
use crate::wrapped::real;
use crate::{meter, place};

/// Of a context's `link`: how often it was attached, besides its creation.
const ATTACHED: u64 = 1;
/// Of an owner: what it names is about to end. No address has this bit.
const ENDING: u64 = 1 << 63;

/// Bytes of local memory on a device for stacks of `stack` bytes.
pub(crate) fn stacks(device: Device, stack: u64) -> u64 {
    let attribute = |which| {
        let mut value: c_int = 0;
        // SAFETY: the driver writes the number.
        let result = unsafe { real::cuDeviceGetAttribute(&raw mut value, which, device) };
        if result == SUCCESS { u64::try_from(value).unwrap_or(0) } else { 0 }
    };
    attribute(MULTIPROCESSORS).saturating_mul(attribute(THREADS_PER_MULTIPROCESSOR)).saturating_mul(stack)
}

/// A limit of the current context.
fn limit(which: c_int) -> Option<u64> {
    let mut value = 0usize;
    // SAFETY: the driver writes the number.
    (unsafe { real::cuCtxGetLimit(&raw mut value, which) } == SUCCESS).then_some(value as u64)
}

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
    let computed = || place::in_context(context, || stacks(device, limit(STACK).unwrap_or(0)));
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

fn account(device: Device) -> Placed<(&'static Process, usize)> {
    let process = reserve::account()?;
    Ok((process, place::of_device(process, device)?))
}

/// Reserves exactly so many bytes.
fn take(process: &Process, gpu: usize, bytes: u64) -> Placed<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let reserved = process.reserve_between(gpu, bytes, bytes).or_else(|| {
        if meter::give_up_spare(process, gpu) { process.reserve_between(gpu, bytes, bytes) } else { None }
    });
    reserved.ok_or(OUT_OF_MEMORY)
}

/// Books a context, which ends with `owner`.
fn book(process: &Process, gpu: usize, context: u64, owner: u64, bytes: u64) {
    let entry = Entry { key: context, kind: Kind::Context, gpu: gpu as u32, bytes, link: 0, owner };
    process.allocations.lock().insert(entry);
}

/// Ends a context: `call` may refuse, or leave it alive.
fn end(context: u64, call: impl FnOnce() -> Result, is_gone: impl FnOnce() -> bool) -> Result {
    let Some(process) = Process::registered().filter(|_| context != 0) else { return call() };
    // Marked first: once the driver has ended it, another thread may be given one with the same name.
    relabel(process, context, context | ENDING);
    let result = call();
    if result == SUCCESS && is_gone() {
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
fn known(device: Device) -> Option<u64> {
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
    let context = known(device);
    let result = call();
    let (Some(process), Some(context)) = (Process::registered(), context) else { return result };
    if result == SUCCESS {
        let stays = is_active(device);
        give_back(process, |entry| entry.owner == context && !(stays && entry.key == context));
    }
    result
}

/// # Safety
/// As `cuGreenCtxCreate`.
pub(crate) unsafe fn create_green(
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
pub(crate) unsafe fn destroy_green(context: Object) -> Result {
    // SAFETY: the caller's promise.
    end(context as u64, || unsafe { real::cuGreenCtxDestroy(context) }, || true)
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
    // What is allocated in it is the primary context's, and ends with that.
    if let Ok(device) = place::in_context(context, place::device)
        && let Some(primary) = known(device)
        && let Ok(gpu) = place::of_device(process, device)
        && context as u64 != green as u64
    {
        book(process, gpu, context as u64, primary, 0);
    }
    result
}

/// # Safety
/// As `cuCtxSetLimit`.
pub(crate) unsafe fn set_limit(which: c_int, value: usize) -> Result {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::cuCtxSetLimit(which, value) };
    if !matches!(which, STACK | PRINTF | HEAP) {
        return call();
    }
    let (Ok(device), Some(before)) = (place::device(), limit(which)) else { return call() };
    let (process, gpu) = match account(device) {
        Ok(account) => account,
        Err(error) => return error,
    };
    let of = |value: u64| if which == STACK { stacks(device, value) } else { value };
    let more = of(value as u64).saturating_sub(of(before));
    let taken = match take(process, gpu, more) {
        Ok(taken) => taken,
        Err(error) => return error,
    };
    let result = call();
    // The driver rounds.
    let now = if result == SUCCESS { limit(which).unwrap_or(value as u64) } else { before };
    let (before, now) = (of(before), of(now));
    let context = place::current();
    let mut table = process.allocations.lock();
    let owner = reserve::root(&mut table, context);
    let mut freed = 0;
    if let Some(entry) = table.get_mut(Kind::Context, owner) {
        freed = before.saturating_sub(now).min(entry.bytes);
        entry.bytes = entry.bytes - freed + now.saturating_sub(before).min(taken);
    } else {
        let bytes = now.saturating_sub(before).min(taken);
        table.insert(Entry { key: owner, kind: Kind::Context, gpu: gpu as u32, bytes, link: 0, owner });
    }
    drop(table);
    process.release(gpu, taken.saturating_sub(now.saturating_sub(before)) + freed);
    result
}
