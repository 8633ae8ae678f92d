//! Modules, libraries and functions. What a kernel does is decided by its name alone (see `launch`).
//!
//! A real image, i.e. a fat binary, a cubin or PTX, has the kernels and variables that it says, and takes
//! device memory for its data when it is loaded and for its code when the first of its kernels is launched
//! ([`image`](crate::image)), in pieces of 2 MiB. Any other is accepted, has every function by every name,
//! and takes none; but one that begins with [`MAGIC`] and two 64-bit numbers takes as many bytes as the first
//! one says when it is loaded, and as many as the second one late.

use alloc::collections::btree_map::BTreeMap;
use alloc::ffi::CString;
use core::ffi::{CStr, c_char};

use sim_node::sys;

use crate::abi::{Address, Answer, Failure, Handle, api, get, put, put_if_asked};
use crate::context::Current;
use crate::device;
use crate::driver::{Driver, Objects};
use crate::image::{self, Code, Kernel, Names};
use crate::memory;

/// A module or library.
pub(crate) struct Module {
    charged: u64,
    /// Bytes of its data that are not loaded yet.
    early: u64,
    /// Bytes of its code that are not loaded yet.
    late: u64,
    context: Handle,
    /// The GPU's number in the node.
    number: usize,
    names: Option<Names>,
    is_hidden: bool,
    /// Addresses of its variables, once somebody has asked.
    places: BTreeMap<CString, Address>,
    /// What `early` and `late` are before it is loaded.
    sizes: (u64, u64),
    is_library: bool,
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

/// Unloads what was loaded in a context. A library is of no context: it can be loaded into the next one.
pub(crate) fn unload_all_of(driver: &Driver, objects: &mut Objects, context: Handle) {
    objects.modules.retain(|_, module| {
        if module.context != context {
            return true;
        }
        driver.account.refund(module.number, module.charged);
        (module.charged, module.context) = (0, 0);
        (module.early, module.late) = module.sizes;
        module.places.clear();
        module.is_library
    });
}

/// Loads what is left of a module.
pub(crate) fn load_late(current: &Current, objects: &mut Objects, module: Handle) -> Answer {
    let Some(module) = objects.modules.get_mut(&module) else { return Ok(()) };
    module.move_in(current)?;
    if module.late == 0 {
        return Ok(());
    }
    module.charged += memory::charge(current, module.late as usize)?;
    module.late = 0;
    Ok(())
}

/// A function of a module or kernel of a library.
pub(crate) struct Function {
    pub(crate) name: CString,
    pub(crate) module: Handle,
    kernel: Kernel,
}

/// Code is loaded in pieces of so many bytes.
const PIECE: u64 = 2 << 20;

/// Bytes of a variable in code that nobody can read.
const HIDDEN: u64 = 1 << 20;

/// What is in an image. What it takes is in pieces.
unsafe fn examine(image: *const u8, capability: u32) -> Code {
    // SAFETY: handed on from the caller.
    let (size, late) = unsafe { sizes(image) };
    if size != 0 || late != 0 {
        return Code { data: size as u64, text: late as u64, ..Code::default() };
    }
    // SAFETY: handed on from the caller.
    let code = unsafe { image::read(image, capability) }.unwrap_or_default();
    Code { data: code.data.next_multiple_of(PIECE), text: code.text.next_multiple_of(PIECE), ..code }
}

/// Without a context it is loaded nowhere yet: into the first one that needs something of it.
unsafe fn load(out: *mut Handle, image: *const u8, is_library: bool) -> Answer {
    let driver = Driver::get()?;
    // SAFETY: handed on from the caller.
    unsafe { get(image) }?;
    let current = Current::get().ok();
    let gpu = current.as_ref().map_or(driver.gpu(0)?.1, |current| current.gpu);
    let capability = gpu.capability_major * 10 + gpu.capability_minor;
    // SAFETY: handed on from the caller.
    let Code { data, text, names, is_hidden } = unsafe { examine(image, capability) };
    let mut module = Module {
        charged: 0,
        early: data,
        late: text,
        context: 0,
        number: 0,
        names,
        is_hidden,
        places: BTreeMap::new(),
        sizes: (data, text),
        is_library,
    };
    if let Some(current) = current {
        module.move_in(&current)?;
    }
    let mut objects = driver.objects();
    let handle = objects.new_handle();
    objects.modules.insert(handle, module);
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

impl Module {
    /// Takes memory for its data in a context, if it has none yet.
    fn move_in(&mut self, current: &Current) -> Answer {
        if self.context == 0 {
            let early = core::mem::take(&mut self.early);
            self.charged += if early == 0 { 0 } else { memory::charge(current, early as usize)? };
            (self.context, self.number) = (current.handle, current.number);
        }
        Ok(())
    }
}

/// A module needs a context, a library does not.
pub(crate) unsafe fn load_module(out: *mut Handle, image: *const u8) -> Answer {
    Current::get()?;
    // SAFETY: handed on from the caller.
    unsafe { load(out, image, false) }
}

unsafe fn load_file(out: *mut Handle, path: *const c_char, is_library: bool) -> Answer {
    // SAFETY: handed on from the caller: null or NUL-terminated.
    let path = unsafe { get(path).map(|_| CStr::from_ptr(path)) }?;
    // What cannot be read, or is too short for a size, is taken for an image of which nothing is known.
    let mut image =
        sys::read_file(path).ok().filter(|image| image.len() >= 24).unwrap_or_else(|| alloc::vec![0; 24]);
    image.push(0);
    // SAFETY: long enough for all that is read of it.
    unsafe { load(out, image.as_ptr(), is_library) }
}

pub(crate) fn unload(handle: Handle) -> Answer {
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
    let kernel = match &objects.modules.get(&module).ok_or(Failure::INVALID_HANDLE)?.names {
        Some(names) => *names.kernels.get(name).ok_or(Failure::NOT_FOUND)?,
        None => Kernel { shared: 0, constant: 0, registers: 32 },
    };
    let same = |function: &Function| function.module == module && function.name.as_c_str() == name;
    let known = objects.functions.iter().find(|(_, function)| same(function)).map(|(&handle, _)| handle);
    let handle = known.unwrap_or_else(|| {
        let handle = objects.new_handle();
        objects.functions.insert(handle, Function { name: name.into(), module, kernel });
        handle
    });
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

/// A variable's address and size.
unsafe fn variable(out: *mut Address, size: *mut usize, module: Handle, name: *const c_char) -> Answer {
    // SAFETY: handed on from the caller: null or NUL-terminated.
    let name = unsafe { get(name).map(|_| CStr::from_ptr(name)) }?;
    let current = Current::get()?;
    let mut objects = current.driver.objects();
    let Objects { modules, allocations, .. } = &mut *objects;
    let module = modules.get_mut(&module).ok_or(Failure::INVALID_HANDLE)?;
    let known = match &module.names {
        Some(names) => names.variables.get(name).copied(),
        None => module.is_hidden.then_some(HIDDEN),
    };
    let length = known.ok_or(Failure::NOT_FOUND)? as usize;
    module.move_in(&current)?;
    let address = match module.places.get(name) {
        Some(&address) => address,
        None => allocations.map_uncharged(length, &current)?,
    };
    module.places.insert(name.into(), address);
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe {
        put_if_asked(out, address);
        put_if_asked(size, length);
    }
    Ok(())
}

fn of_function<T>(handle: Handle, of: impl FnOnce(&Function) -> T) -> Result<T, Failure> {
    Driver::get()?.objects().functions.get(&handle).map(of).ok_or(Failure::INVALID_HANDLE)
}

/// A name that lives as long as the function.
unsafe fn name(out: *mut *const c_char, function: Handle) -> Answer {
    let name = of_function(function, |function| function.name.as_ptr())?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, name) }
}

fn load_function(handle: Handle) -> Answer {
    let current = Current::get()?;
    let module = of_function(handle, |function| function.module)?;
    load_late(&current, &mut current.driver.objects(), module)
}

fn is_loaded(handle: Handle) -> Result<bool, Failure> {
    let module = of_function(handle, |function| function.module)?;
    Ok(Driver::get()?.objects().modules.get(&module).is_some_and(|module| module.late == 0))
}

fn check_function(handle: Handle) -> Answer {
    Driver::get()?.objects().functions.get(&handle).map(drop).ok_or(Failure::INVALID_HANDLE)
}

pub(crate) unsafe fn module_of(out: *mut Handle, function: Handle) -> Answer {
    let objects = Driver::get()?.objects();
    let module = objects.functions.get(&function).ok_or(Failure::INVALID_HANDLE)?.module;
    // SAFETY: handed on from the caller.
    unsafe { put(out, module) }
}

/// `CUfunction_attribute`: threads per block, shared, constant and local bytes, registers, PTX and binary
/// version.
fn attribute(which: i32, function: Handle) -> Result<i32, Failure> {
    let kernel = of_function(function, |function| function.kernel)?;
    let gpu =
        Current::get().map_or_else(|_| Driver::get()?.gpu(0).map(|gpu| gpu.1), |current| Ok(current.gpu))?;
    Ok(match which {
        0 => 1024,
        1 => kernel.shared as i32,
        2 => kernel.constant as i32,
        4 => kernel.registers as i32,
        5 | 6 => (gpu.capability_major * 10 + gpu.capability_minor) as i32,
        // What it may have of dynamic shared memory unless it asks for more.
        8 => (48 << 10) - kernel.shared as i32,
        3 | 7 | 9..=20 => 0,
        _ => return Err(Failure::INVALID_VALUE),
    })
}

/// What limits the blocks of a function on a multiprocessor: its bytes of shared memory, and all that there
/// are.
fn shared_memory(function: Handle) -> Result<(usize, usize), Failure> {
    let own = of_function(function, |function| function.kernel.shared)? as usize;
    let gpu =
        Current::get().map_or_else(|_| Driver::get()?.gpu(0).map(|gpu| gpu.1), |current| Ok(current.gpu))?;
    Ok((own + device::RESERVED_SHARED as usize, device::generation(gpu).shared as usize))
}

unsafe fn occupancy(out: *mut i32, function: Handle, threads: i32, dynamic: usize) -> Answer {
    let (own, all) = shared_memory(function)?;
    let threads = u64::try_from(threads).ok().filter(|&n| n > 0).ok_or(Failure::INVALID_VALUE)?;
    let blocks = crate::launch::blocks_per_sm(threads).min((all / own.saturating_add(dynamic)) as u64);
    // SAFETY: handed on from the caller.
    unsafe { put(out, blocks as i32) }
}

/// Dynamic shared memory for so many blocks on a multiprocessor.
unsafe fn available(out: *mut usize, function: Handle, blocks: i32) -> Answer {
    let (own, all) = shared_memory(function)?;
    let blocks = usize::try_from(blocks).ok().filter(|&n| n > 0).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, (all / blocks).saturating_sub(own)) }
}

api! {
    cuModuleLoad(out: *mut Handle, path: *const c_char) => load_file(out, path, false);
    cuModuleLoadData(out: *mut Handle, image: *const u8) => load_module(out, image);
    cuModuleLoadDataEx(out: *mut Handle, image: *const u8, _count: u32, _options: usize, _values: usize) =>
        load_module(out, image);
    cuModuleLoadFatBinary(out: *mut Handle, image: *const u8) => load_module(out, image);
    cuModuleUnload(module: Handle) => unload(module);
    cuModuleGetFunction(out: *mut Handle, module: Handle, called: *const c_char) => function(out, module, called);
    cuModuleGetGlobal_v2(out: *mut Address, size: *mut usize, module: Handle, called: *const c_char) =>
        variable(out, size, module, called);
    // CU_MODULE_LAZY_LOADING.
    cuModuleGetLoadingMode(out: *mut i32) => put(out, 2);
    cuLibraryLoadData(
        out: *mut Handle, image: *const u8, _jit: usize, _jit_values: usize, _jit_count: u32, _options: usize,
        _values: usize, _count: u32,
    ) => load(out, image, true);
    cuLibraryLoadFromFile(
        out: *mut Handle, path: *const c_char, _jit: usize, _jit_values: usize, _jit_count: u32, _options: usize,
        _values: usize, _count: u32,
    ) => load_file(out, path, true);
    cuLibraryUnload(library: Handle) => unload(library);
    cuLibraryGetKernel(out: *mut Handle, library: Handle, called: *const c_char) => function(out, library, called);
    cuLibraryGetModule(out: *mut Handle, library: Handle) => put(out, library);
    cuLibraryGetGlobal(out: *mut Address, size: *mut usize, library: Handle, called: *const c_char) =>
        variable(out, size, library, called);
    cuLibraryGetManaged(out: *mut Address, size: *mut usize, library: Handle, called: *const c_char) =>
        variable(out, size, library, called);
    // A kernel and the function that it is in a context are one thing here.
    cuKernelGetFunction(out: *mut Handle, kernel: Handle) =>
        check_function(kernel).and_then(|()| put(out, kernel));
    cuKernelGetAttribute(out: *mut i32, which: i32, kernel: Handle, _ordinal: i32) =>
        put(out, attribute(which, kernel)?);
    cuKernelSetAttribute(which: i32, _value: i32, kernel: Handle, _ordinal: i32) =>
        attribute(which, kernel).map(drop);
    cuKernelSetCacheConfig(kernel: Handle, _config: i32, _ordinal: i32) => check_function(kernel);
    cuKernelGetName(out: *mut *const c_char, kernel: Handle) => name(out, kernel);
    cuFuncGetName(out: *mut *const c_char, function: Handle) => name(out, function);
    cuFuncLoad(function: Handle) => load_function(function);
    // CU_FUNCTION_LOADING_STATE_LOADED or _UNLOADED.
    cuFuncIsLoaded(out: *mut i32, function: Handle) => put(out, is_loaded(function)?.into());
    cuFuncGetModule(out: *mut Handle, function: Handle) => module_of(out, function);
    cuFuncGetAttribute(out: *mut i32, which: i32, function: Handle) => put(out, attribute(which, function)?);
    cuFuncSetAttribute(function: Handle, which: i32, _value: i32) => attribute(which, function).map(drop);
    cuFuncSetCacheConfig(function: Handle, _config: i32) => check_function(function);
    cuFuncSetSharedMemConfig(function: Handle, _config: i32) => check_function(function);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(out: *mut i32, function: Handle, threads: i32, bytes: usize) =>
        occupancy(out, function, threads, bytes);
    cuOccupancyAvailableDynamicSMemPerBlock(out: *mut usize, function: Handle, blocks: i32, _threads: i32) =>
        available(out, function, blocks);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: *mut i32, function: Handle, threads: i32, bytes: usize, _flags: u32,
    ) => occupancy(out, function, threads, bytes);
}
