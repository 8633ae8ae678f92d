//! Modules, libraries and functions. Any image is accepted, and has every function by every name: what a kernel does is
//! decided by its name alone (see `launch`).
//!
//! An image that begins with [`MAGIC`] and two 64-bit numbers takes as many bytes of device memory as the first one
//! says when it is loaded, and as many as the second one when the first of its functions is launched. Any other takes
//! none.

use alloc::ffi::CString;
use core::ffi::{CStr, c_char};

use sim_node::sys;

use crate::abi::{Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::driver::{Driver, Objects};
use crate::memory;

/// A module or library.
pub(crate) struct Module {
    charged: u64,
    /// Bytes that are not loaded yet.
    late: u64,
    context: Handle,
    /// The GPU's number in the node.
    number: usize,
}

/// How an image begins that takes memory.
const MAGIC: &[u8; 8] = b"simcode\0";

/// The two numbers of an image.
unsafe fn sizes(image: *const u8) -> (usize, usize) {
    for (place, &byte) in MAGIC.iter().enumerate() {
        // SAFETY: the bytes before this one were the magic's, none of them the last of an image.
        if unsafe { *image.add(place) } != byte {
            return (0, 0);
        }
    }
    let numbers = image.wrapping_add(MAGIC.len()).cast::<u64>();
    // SAFETY: the magic is followed by two numbers.
    unsafe { (numbers.read_unaligned() as usize, numbers.add(1).read_unaligned() as usize) }
}

/// Unloads what was loaded in a context.
pub(crate) fn unload_all_of(driver: &Driver, objects: &mut Objects, context: Handle) {
    for (_, module) in objects.modules.extract_if(.., |_, module| module.context == context) {
        driver.account.refund(module.number, module.charged);
    }
}

/// Loads what is left of a module.
pub(crate) fn load_late(current: &Current, objects: &mut Objects, module: Handle) -> Answer {
    let Some(module) = objects.modules.get_mut(&module).filter(|module| module.late != 0) else {
        return Ok(());
    };
    module.charged += memory::charge(current, module.late as usize)?;
    module.late = 0;
    Ok(())
}

/// A function of a module or kernel of a library.
pub(crate) struct Function {
    pub(crate) name: CString,
    pub(crate) module: Handle,
}

/// Without a context it is loaded nowhere yet.
unsafe fn load(out: *mut Handle, image: *const u8) -> Answer {
    let driver = Driver::get()?;
    // SAFETY: handed on from the caller.
    unsafe { get(image) }?;
    // SAFETY: handed on from the caller.
    let (size, late) = unsafe { sizes(image) };
    let mut module = Module { charged: 0, late: late as u64, context: 0, number: 0 };
    if let Ok(current) = Current::get() {
        module.context = current.handle;
        module.number = current.number;
        module.charged = if size == 0 { 0 } else { memory::charge(&current, size)? };
    }
    let mut objects = driver.objects();
    let handle = objects.new_handle();
    objects.modules.insert(handle, module);
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

/// A module needs a context, a library does not.
unsafe fn load_module(out: *mut Handle, image: *const u8) -> Answer {
    Current::get()?;
    // SAFETY: handed on from the caller.
    unsafe { load(out, image) }
}

unsafe fn load_file(out: *mut Handle, path: *const c_char) -> Answer {
    // SAFETY: handed on from the caller: null or NUL-terminated.
    let path = unsafe { get(path).map(|_| CStr::from_ptr(path)) }?;
    // What cannot be read, or is too short for a size, is taken for an image of which nothing is known.
    let image =
        sys::read_file(path).ok().filter(|image| image.len() >= 24).unwrap_or_else(|| alloc::vec![0; 24]);
    // SAFETY: long enough for all that is read of it.
    unsafe { load(out, image.as_ptr()) }
}

fn unload(handle: Handle) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    let module = objects.modules.remove(&handle).ok_or(Failure::INVALID_HANDLE)?;
    driver.account.refund(module.number, module.charged);
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
    cuModuleLoad(out: *mut Handle, path: *const c_char) => load_file(out, path);
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
    cuLibraryLoadFromFile(
        out: *mut Handle, path: *const c_char, _jit: usize, _jit_values: usize, _jit_count: u32, _options: usize,
        _values: usize, _count: u32,
    ) => load_file(out, path);
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
