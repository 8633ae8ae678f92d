//! Code: modules, libraries, and functions that are loaded late.
//!
//! Code and its variables take device memory, and no call says how much, so it is [measured](crate::measure).
//! Since CUDA 11.7 a driver may load a function at its first lookup or launch; that is measured too, once per
//! function, and counts with the context. A load that exceeds the limit is undone. A launch cannot be undone:
//! its code counts even above the limit, and the next allocation is refused.

use core::ffi::c_char;

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::driver::{OUT_OF_MEMORY, Object, Result, SUCCESS};
use crate::measure::{self, PIECE};
use crate::{place, reserve};

/// More than most code takes. It is believed only if it was measured twice: it may be a neighbour's.
const MUCH: u64 = 32 << 20;

/// Loads code, which `undo` unloads.
///
/// # Safety
/// If `call` succeeds, it has written `out`.
pub(crate) unsafe fn load(
    out: *mut Object,
    undo: unsafe fn(Object) -> Result,
    call: impl Fn() -> Result,
) -> Result {
    let (mut result, mut taken) = measure::around(&call);
    if result == SUCCESS && taken > MUCH && !out.is_null() {
        // SAFETY: the application has not seen it.
        unsafe { undo(*out) };
        let again = measure::around(&call);
        (result, taken) = (again.0, taken.min(again.1));
    }
    if result != SUCCESS || taken == 0 || out.is_null() {
        return result;
    }
    let Some((process, gpu)) = measure::here() else { return result };
    // SAFETY: the caller's promise.
    let loaded = unsafe { *out };
    let Some(bytes) = process.reserve_between(gpu, taken, taken) else {
        // SAFETY: the application has not seen it.
        unsafe { undo(loaded) };
        return OUT_OF_MEMORY;
    };
    let context = place::current();
    let mut table = process.allocations.lock();
    let owner = reserve::root(&mut table, context);
    let entry = Entry { key: loaded as u64, kind: Kind::Code, gpu: gpu as u32, bytes, link: 0, owner };
    table.insert(entry);
    result
}

/// Unloads code.
pub(crate) fn unload(code: Object, call: impl FnOnce() -> Result) -> Result {
    let Some(process) = Process::registered() else { return call() };
    let entry = process.allocations.lock().remove(Kind::Code, code as u64);
    let (result, freed) = measure::given_back(call);
    if result != SUCCESS {
        if let Some(entry) = entry {
            process.allocations.lock().insert(entry);
        }
        return result;
    }
    process.forget_seen();
    let known = entry.map_or(0, |entry| entry.bytes);
    if let Some(entry) = entry {
        process.release(entry.gpu as usize, entry.bytes);
    }
    // Code that was loaded late is gone with it.
    let context = place::current();
    let mut table = process.allocations.lock();
    let owner = reserve::root(&mut table, context);
    if let Some(entry) = table.get_mut(Kind::Code, owner) {
        let late = freed.saturating_sub(known).min(entry.bytes);
        entry.bytes -= late;
        let gpu = entry.gpu as usize;
        drop(table);
        process.release(gpu, late);
    }
    result
}

/// Measures a call that may load code, and counts up to `most` for the current context.
pub(crate) fn late(most: impl FnOnce() -> u64, call: impl FnOnce() -> Result) -> Result {
    let (result, taken) = measure::around(call);
    if taken == 0 {
        return result;
    }
    let Some((process, gpu)) = measure::here() else { return result };
    let bytes = taken.min(most());
    if process.reserve_between(gpu, bytes, bytes).is_none() {
        process.force(gpu, bytes);
    }
    let context = place::current();
    let mut table = process.allocations.lock();
    let owner = reserve::root(&mut table, context);
    if let Some(entry) = table.get_mut(Kind::Code, owner) {
        entry.bytes = entry.bytes.saturating_add(bytes);
    } else {
        table.insert(Entry { key: owner, kind: Kind::Code, gpu: gpu as u32, bytes, link: 0, owner });
    }
    result
}

/// A call that asks for something in code, which the driver may load at the first such call. `what` names the
/// code.
pub(crate) fn first_use(what: u64, call: impl FnOnce() -> Result) -> Result {
    match Process::registered() {
        Some(process) if !process.see(what | 1) => late(|| PIECE, call),
        _ => call(),
    }
}

/// The key for [`first_use`] of a function's name. Every name may be another function, and most are looked up
/// only once.
pub(crate) fn function_key(module: Object, name: *const c_char) -> u64 {
    (module as u64).rotate_left(20) ^ name as u64
}
