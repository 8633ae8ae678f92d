//! Contexts: what they take, and what ends with them.
//!
//! A context takes device memory of its own, some hundred MiB, before anything is allocated in it. The driver
//! does not say how much. So:
//!
//! - where the grant says what a context takes on the GPU
//!   ([`Page::context`](fgpu_wire::limits::Page::context)), that is reserved before the driver is asked;
//! - else what can be computed is counted: the local memory, which is the stack of every thread that the GPU
//!   can run at a time;
//! - what `cuCtxSetLimit` adds to stack, heap and printf buffer is reserved before it is set ([`limits`]).
//!
//! When a context ends, so does all that was allocated in it, and its code. Memory of handles and of
//! pools belongs to no context.

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;
use fgpu_wire::MAX_GPUS;

use crate::driver::{Context, Device, Result, STACK, SUCCESS};
use crate::{compute, limits, meter, place, real, reserve};

/// In a context's `link`: counts how often it was attached after its creation.
const ATTACHED: u64 = 1;
/// In an `owner`: it is about to end. No address has this bit.
const ENDING: u64 = 1 << 63;

/// Calls the driver for a context, which `made` returns.
pub(crate) fn make(
    device: Device,
    call: impl FnOnce() -> Result,
    made: impl Fn() -> Context,
    undo: impl FnOnce(),
) -> Result {
    let (process, gpu) = match reserve::account_on(device) {
        Ok(account) => account,
        Err(error) => return error,
    };
    let said = process.limits().context(gpu);
    let before = match reserve::exactly(process, gpu, said) {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    let result = call();
    if result != SUCCESS {
        process.release(gpu, before);
        return result;
    }
    let context = made();
    // A primary context that existed already.
    if process.allocations.lock().get_mut(Kind::Context, context as u64).is_some() {
        process.release(gpu, before);
        return result;
    }
    let computed =
        || place::in_context(context, || limits::stacks(device, limits::limit(STACK).unwrap_or(0)));
    match reserve::exactly(process, gpu, if said == 0 { computed() } else { 0 }) {
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

/// Books a context, which ends with `owner`.
pub(crate) fn book(process: &Process, gpu: usize, context: u64, owner: u64, bytes: u64) {
    let entry = Entry { key: context, kind: Kind::Context, gpu: gpu as u32, bytes, link: 0, owner };
    process.allocations.lock().insert(entry);
}

/// Books the context by which a green one is used. Memory allocated in it belongs to the primary context. The
/// context itself takes nothing, and ends with the green one.
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

/// A green context has ended, together with the contexts by which it was used.
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
    // Marked first: once the driver has ended it, another thread may get a context at the same address.
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

/// Removes the entries that fit, and gives their memory back.
pub(crate) fn give_back(process: &Process, fits: impl Fn(&Entry) -> bool) {
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

/// Makes a context.
///
/// # Safety
/// If `call` succeeds, it has written `context`, which then is current.
pub(crate) unsafe fn create(context: *mut Context, device: Device, call: impl FnOnce() -> Result) -> Result {
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

/// The end of a context.
pub(crate) fn destroy(context: Context, call: impl FnOnce() -> Result) -> Result {
    end(context as u64, call, || true)
}

/// One more holder of a context.
///
/// # Safety
/// If `call` succeeds, it has written `context`.
pub(crate) unsafe fn attach(context: *mut Context, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        // SAFETY: the caller's promise.
        let context = unsafe { *context } as u64;
        if let Some(entry) = process.allocations.lock().get_mut(Kind::Context, context) {
            entry.link = entry.link.wrapping_add(ATTACHED);
        }
    }
    result
}

/// One holder less; the last one ends the context.
pub(crate) fn detach(context: Context, call: impl FnOnce() -> Result) -> Result {
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
    end(context as u64, call, is_last)
}
