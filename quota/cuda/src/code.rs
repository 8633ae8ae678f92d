//! Code: modules, libraries, and what is loaded late.
//!
//! Code and the variables in it take device memory, and no call says how much: it is [measured](crate::measure).
//! Since CUDA 11.7 a driver may load a function when it is first asked for or first launched; that is measured too,
//! once per function, and counts with the context. A launch cannot be undone: what it turned out to take counts
//! even above the limit, and the next allocation is refused for it. A load is undone.

#![expect(clippy::too_many_arguments, reason = "the driver's functions have so many")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::driver::{OUT_OF_MEMORY, Object, Pointer, Result, SUCCESS};
use crate::measure::{self, PIECE};
use crate::wrapped::real;
use crate::{place, reserve};

/// More than code mostly takes. So much is believed when it was seen twice: it may be a neighbour's.
const MUCH: u64 = 32 << 20;

/// # Safety
/// If `call` succeeds, it has written `out`.
unsafe fn load(out: *mut Object, call: impl Fn() -> Result, undo: unsafe fn(Object) -> Result) -> Result {
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

fn unload(code: Object, call: impl FnOnce() -> Result) -> Result {
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
    // What was loaded late went with it.
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

/// A call that asks for something in code that may not be loaded yet, by something that was not seen before.
fn first(what: u64, call: impl FnOnce() -> Result) -> Result {
    match Process::registered() {
        Some(process) if !process.see(what | 1) => late(|| PIECE, call),
        _ => call(),
    }
}

/// # Safety
/// As `cuModuleLoad`.
pub(crate) unsafe fn module_load(module: *mut Object, path: *const c_char) -> Result {
    // SAFETY: the driver writes the module if it succeeds.
    unsafe { load(module, || real::cuModuleLoad(module, path), real::cuModuleUnload) }
}

/// # Safety
/// As `cuModuleLoadData`.
pub(crate) unsafe fn module_load_data(module: *mut Object, image: *const c_void) -> Result {
    // SAFETY: the driver writes the module if it succeeds.
    unsafe { load(module, || real::cuModuleLoadData(module, image), real::cuModuleUnload) }
}

/// # Safety
/// As `cuModuleLoadDataEx`.
pub(crate) unsafe fn module_load_data_ex(
    module: *mut Object,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Result {
    // SAFETY: the driver writes the module if it succeeds.
    unsafe {
        load(module, || real::cuModuleLoadDataEx(module, image, count, options, values), real::cuModuleUnload)
    }
}

/// # Safety
/// As `cuModuleLoadFatBinary`.
pub(crate) unsafe fn module_load_fat(module: *mut Object, image: *const c_void) -> Result {
    // SAFETY: the driver writes the module if it succeeds.
    unsafe { load(module, || real::cuModuleLoadFatBinary(module, image), real::cuModuleUnload) }
}

/// # Safety
/// As `cuModuleUnload`.
pub(crate) unsafe fn module_unload(module: Object) -> Result {
    // SAFETY: the caller's promise.
    unload(module, || unsafe { real::cuModuleUnload(module) })
}

/// # Safety
/// As `cuModuleGetFunction`.
pub(crate) unsafe fn module_function(function: *mut Object, module: Object, name: *const c_char) -> Result {
    // Every name may be another function, and many are asked for but once.
    // SAFETY: the caller's promise.
    first((module as u64).rotate_left(20) ^ name as u64, || unsafe {
        real::cuModuleGetFunction(function, module, name)
    })
}

/// # Safety
/// As `cuModuleGetGlobal_v2`.
pub(crate) unsafe fn module_global(
    pointer: *mut Pointer,
    bytes: *mut usize,
    module: Object,
    name: *const c_char,
) -> Result {
    // SAFETY: the caller's promise.
    first(module as u64, || unsafe { real::cuModuleGetGlobal_v2(pointer, bytes, module, name) })
}

/// # Safety
/// As `cuLibraryLoadData`.
pub(crate) unsafe fn library_load_data(
    library: *mut Object,
    code: *const c_void,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    library_options: *mut c_int,
    library_values: *mut *mut c_void,
    library_count: c_uint,
) -> Result {
    // SAFETY: the driver writes the library if it succeeds.
    unsafe {
        load(
            library,
            || {
                real::cuLibraryLoadData(
                    library,
                    code,
                    options,
                    values,
                    count,
                    library_options,
                    library_values,
                    library_count,
                )
            },
            real::cuLibraryUnload,
        )
    }
}

/// # Safety
/// As `cuLibraryLoadFromFile`.
pub(crate) unsafe fn library_load_file(
    library: *mut Object,
    path: *const c_char,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    library_options: *mut c_int,
    library_values: *mut *mut c_void,
    library_count: c_uint,
) -> Result {
    // SAFETY: the driver writes the library if it succeeds.
    unsafe {
        load(
            library,
            || {
                real::cuLibraryLoadFromFile(
                    library,
                    path,
                    options,
                    values,
                    count,
                    library_options,
                    library_values,
                    library_count,
                )
            },
            real::cuLibraryUnload,
        )
    }
}

/// # Safety
/// As `cuLibraryUnload`.
pub(crate) unsafe fn library_unload(library: Object) -> Result {
    // SAFETY: the caller's promise.
    unload(library, || unsafe { real::cuLibraryUnload(library) })
}

/// # Safety
/// As `cuLibraryGetModule`.
pub(crate) unsafe fn library_module(module: *mut Object, library: Object) -> Result {
    // SAFETY: the caller's promise.
    first(library as u64, || unsafe { real::cuLibraryGetModule(module, library) })
}

/// # Safety
/// As `cuLibraryGetGlobal`.
pub(crate) unsafe fn library_global(
    pointer: *mut Pointer,
    bytes: *mut usize,
    library: Object,
    name: *const c_char,
) -> Result {
    // SAFETY: the caller's promise.
    first(library as u64, || unsafe { real::cuLibraryGetGlobal(pointer, bytes, library, name) })
}

/// # Safety
/// As `cuLibraryGetManaged`.
pub(crate) unsafe fn library_managed(
    pointer: *mut Pointer,
    bytes: *mut usize,
    library: Object,
    name: *const c_char,
) -> Result {
    // SAFETY: the caller's promise.
    first(library as u64, || unsafe { real::cuLibraryGetManaged(pointer, bytes, library, name) })
}

/// # Safety
/// As `cuKernelGetFunction`.
pub(crate) unsafe fn kernel_function(function: *mut Object, kernel: Object) -> Result {
    // SAFETY: the caller's promise.
    first(kernel as u64, || unsafe { real::cuKernelGetFunction(function, kernel) })
}

/// # Safety
/// As `cuFuncLoad`.
pub(crate) unsafe fn function_load(function: Object) -> Result {
    // SAFETY: the caller's promise.
    first(function as u64, || unsafe { real::cuFuncLoad(function) })
}

/// # Safety
/// As `cuLinkComplete`.
pub(crate) unsafe fn link(state: Object, image: *mut *mut c_void, bytes: *mut usize) -> Result {
    // What it makes is in the host's memory until it is loaded; a linker that does otherwise is seen.
    // SAFETY: the caller's promise.
    late(|| PIECE, || unsafe { real::cuLinkComplete(state, image, bytes) })
}
