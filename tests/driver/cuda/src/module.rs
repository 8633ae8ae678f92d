//! Modules, libraries and functions. Any image is accepted unread, and has every function by every name: what a
//! kernel does is decided by its name alone (see `launch`).

use alloc::ffi::CString;
use core::ffi::{CStr, c_char};

use crate::abi::{Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::driver::Driver;

/// A module or library.
pub(crate) struct Module;

/// A function of a module or kernel of a library.
pub(crate) struct Function {
    pub(crate) name: CString,
    module: Handle,
}

unsafe fn load(out: *mut Handle, image: *const u8) -> Answer {
    let driver = Driver::get()?;
    // SAFETY: handed on from the caller.
    unsafe { get(image) }?;
    let mut objects = driver.objects();
    let handle = objects.new_handle();
    objects.modules.insert(handle, Module);
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

/// A module needs a context, a library does not.
unsafe fn load_module(out: *mut Handle, image: *const u8) -> Answer {
    Current::get()?;
    // SAFETY: handed on from the caller.
    unsafe { load(out, image) }
}

fn unload(handle: Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    objects.modules.remove(&handle).ok_or(Failure::INVALID_HANDLE)?;
    objects.functions.retain(|_, function| function.module != handle);
    Ok(())
}

unsafe fn function(out: *mut Handle, module: Handle, name: *const c_char) -> Answer {
    // SAFETY: handed on from the caller: null or NUL-terminated.
    let name = unsafe { get(name).map(|_| CStr::from_ptr(name)) }?;
    let mut objects = Driver::get()?.objects();
    objects.modules.get(&module).ok_or(Failure::INVALID_HANDLE)?;
    let same = |function: &Function| function.module == module && function.name.as_c_str() == name;
    let known = objects.functions.iter().find(|(_, function)| same(function)).map(|(&handle, _)| handle);
    let handle = known.unwrap_or_else(|| {
        let handle = objects.new_handle();
        objects.functions.insert(handle, Function { name: name.into(), module });
        handle
    });
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

fn check_function(handle: Handle) -> Answer {
    Driver::get()?.objects().functions.get(&handle).map(drop).ok_or(Failure::INVALID_HANDLE)
}

unsafe fn module_of(out: *mut Handle, function: Handle) -> Answer {
    let objects = Driver::get()?.objects();
    let module = objects.functions.get(&function).ok_or(Failure::INVALID_HANDLE)?.module;
    // SAFETY: handed on from the caller.
    unsafe { put(out, module) }
}

/// `CUfunction_attribute`: threads per block, shared, constant and local bytes, registers, PTX and binary version.
fn attribute(which: i32, function: Handle) -> Result<i32, Failure> {
    check_function(function)?;
    Ok(match which {
        0 => 1024,
        4 => 32,
        5 | 6 => 90,
        1..=3 | 7..=15 => 0,
        _ => return Err(Failure::INVALID_VALUE),
    })
}

unsafe fn occupancy(out: *mut i32, function: Handle, threads: i32) -> Answer {
    check_function(function)?;
    let threads = u64::try_from(threads).ok().filter(|&n| n > 0).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, crate::launch::blocks_per_sm(threads) as i32) }
}

api! {
    cuModuleLoad(out: *mut Handle, path: *const u8) => load_module(out, path);
    cuModuleLoadData(out: *mut Handle, image: *const u8) => load_module(out, image);
    cuModuleLoadDataEx(out: *mut Handle, image: *const u8, _count: u32, _options: usize, _values: usize) =>
        load_module(out, image);
    cuModuleLoadFatBinary(out: *mut Handle, image: *const u8) => load_module(out, image);
    cuModuleUnload(module: Handle) => unload(module);
    cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const c_char) => function(out, module, name);
    cuModuleGetGlobal_v2(_out: usize, _size: usize, _module: Handle, _name: *const c_char) =>
        Err(Failure::NOT_FOUND);
    // CU_MODULE_LAZY_LOADING.
    cuModuleGetLoadingMode(out: *mut i32) => put(out, 2);
    cuLibraryLoadData(
        out: *mut Handle, image: *const u8, _jit: usize, _jit_values: usize, _jit_count: u32, _options: usize,
        _values: usize, _count: u32,
    ) => load(out, image);
    cuLibraryUnload(library: Handle) => unload(library);
    cuLibraryGetKernel(out: *mut Handle, library: Handle, name: *const c_char) => function(out, library, name);
    cuLibraryGetModule(out: *mut Handle, library: Handle) => put(out, library);
    cuLibraryGetGlobal(_out: usize, _size: usize, _library: Handle, _name: *const c_char) =>
        Err(Failure::NOT_FOUND);
    cuLibraryGetManaged(_out: usize, _size: usize, _library: Handle, _name: *const c_char) =>
        Err(Failure::NOT_FOUND);
    // A kernel and the function that it is in a context are one thing here.
    cuKernelGetFunction(out: *mut Handle, kernel: Handle) =>
        check_function(kernel).and_then(|()| put(out, kernel));
    cuKernelGetAttribute(out: *mut i32, which: i32, kernel: Handle, _ordinal: i32) =>
        put(out, attribute(which, kernel)?);
    cuKernelSetAttribute(which: i32, _value: i32, kernel: Handle, _ordinal: i32) =>
        attribute(which, kernel).map(drop);
    cuKernelSetCacheConfig(kernel: Handle, _config: i32, _ordinal: i32) => check_function(kernel);
    cuFuncGetModule(out: *mut Handle, function: Handle) => module_of(out, function);
    cuFuncGetAttribute(out: *mut i32, which: i32, function: Handle) => put(out, attribute(which, function)?);
    cuFuncSetAttribute(function: Handle, which: i32, _value: i32) => attribute(which, function).map(drop);
    cuFuncSetCacheConfig(function: Handle, _config: i32) => check_function(function);
    cuFuncSetSharedMemConfig(function: Handle, _config: i32) => check_function(function);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(out: *mut i32, function: Handle, threads: i32, _bytes: usize) =>
        occupancy(out, function, threads);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: *mut i32, function: Handle, threads: i32, _bytes: usize, _flags: u32,
    ) => occupancy(out, function, threads);
}
