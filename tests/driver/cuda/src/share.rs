//! Memory that exists already, under another name: opened, imported, bound. Only within a process, and its
//! content is not shared: it is there to see that nobody counts it twice.

use alloc::collections::btree_map::BTreeMap;
use alloc::vec::Vec;

use sim_node::sys;

use crate::abi::{Address, Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::driver::Driver;
use crate::memory;
use crate::pool;

/// Multicast objects and imported memory of the process.
#[derive(Default)]
pub(crate) struct Shared {
    /// By object: what is bound in it, by offset.
    pub(crate) multicast: BTreeMap<Handle, BTreeMap<usize, Handle>>,
    external: BTreeMap<Handle, ()>,
    /// By sparse array: what was mapped into it. It stays until the array ends.
    tiles: BTreeMap<Handle, Vec<Handle>>,
}

impl Shared {
    /// What was mapped into an array that has ended.
    pub(crate) fn take_tiles(&mut self, array: Handle) -> Vec<Handle> {
        self.tiles.remove(&array).unwrap_or_default()
    }
}

/// `CUarrayMapInfo`.
#[repr(C)]
struct ArrayMapping {
    resource_kind: u32,
    array: Handle,
    place: [u64; 5],
    operation: u32,
    handle_kind: u32,
    memory: Handle,
    rest: [u64; 3],
}

const _: () = assert!(size_of::<ArrayMapping>() == 96);

/// `CU_MEM_OPERATION_TYPE_MAP`.
const MAP: u32 = 1;

unsafe fn map_tiles(list: *const ArrayMapping, count: u32) -> Answer {
    let mut objects = Driver::get()?.objects();
    for place in 0..count as usize {
        // SAFETY: handed on from the caller: there are so many.
        let mapping = unsafe { get(list.wrapping_add(place)) }?;
        if mapping.operation == MAP {
            objects.vmm.hold(mapping.memory)?;
            objects.shared.tiles.entry(mapping.array).or_default().push(mapping.memory);
        }
    }
    Ok(())
}

/// `CUipcMemHandle`: here, address and size.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle([u64; 8]);

unsafe fn ipc_handle(out: *mut IpcHandle, address: Address) -> Answer {
    let objects = Driver::get()?.objects();
    let (start, allocation) = objects.allocations.find(address).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, IpcHandle([start, allocation.size as u64, 0, 0, 0, 0, 0, 0])) }
}

unsafe fn alias(out: *mut Address, size: usize) -> Answer {
    let current = Current::get()?;
    if size == 0 {
        return Err(Failure::INVALID_VALUE);
    }
    let address = current.driver.objects().allocations.map_uncharged(size, &current)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, address) }
}

/// `CUmemPoolPtrExportData`: here, address and size.
type Exported = [u64; 8];

/// A pool in a form that can be given away: a file with the number of its GPU on the node.
unsafe fn export_pool(out: *mut i32, pool: Handle, kind: u32) -> Answer {
    /// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
    const DESCRIPTOR: u32 = 1;
    let driver = Driver::get()?;
    let ordinal = pool::shareable(&driver.objects(), pool)?;
    if kind != DESCRIPTOR {
        return Err(Failure::NOT_SUPPORTED);
    }
    let file = sys::memory_file(c"sim-cuda pool", &[driver.gpu(ordinal)?.0 as u8])
        .map_err(|_| Failure::OUT_OF_MEMORY)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, file) }
}

unsafe fn import_pool(out: *mut Handle, file: i32) -> Answer {
    let mut number = [0];
    if sys::read_at(file, &mut number) != Ok(1) {
        return Err(Failure::INVALID_VALUE);
    }
    let gpus = &Driver::get()?.gpus;
    let ordinal =
        gpus.iter().position(|&(own, _)| own == usize::from(number[0])).ok_or(Failure::INVALID_DEVICE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, pool::import(ordinal as i32)?) }
}

unsafe fn export_pointer(out: *mut Exported, address: Address) -> Answer {
    let objects = Driver::get()?.objects();
    let (start, allocation) = objects.allocations.find(address).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, [start, allocation.size as u64, 0, 0, 0, 0, 0, 0]) }
}

unsafe fn import_external(out: *mut Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    let handle = objects.new_handle();
    objects.shared.external.insert(handle, ());
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`, the beginning.
#[repr(C)]
struct Buffer {
    offset: u64,
    size: u64,
}

unsafe fn external_buffer(out: *mut Address, memory: Handle, wanted: *const Buffer) -> Answer {
    Driver::get()?.objects().shared.external.get(&memory).ok_or(Failure::INVALID_HANDLE)?;
    // SAFETY: handed on from the caller.
    unsafe { alias(out, get(wanted)?.size as usize) }
}

fn destroy_external(memory: Handle) -> Answer {
    Driver::get()?.objects().shared.external.remove(&memory).ok_or(Failure::INVALID_HANDLE)
}

unsafe fn create_multicast(out: *mut Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    let handle = objects.new_handle();
    objects.shared.multicast.insert(handle, BTreeMap::new());
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

pub(crate) fn bind(object: Handle, offset: usize, memory: Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    let bound = objects.shared.multicast.get_mut(&object).ok_or(Failure::INVALID_VALUE)?;
    if bound.insert(offset, memory).is_some() {
        return Err(Failure::INVALID_VALUE);
    }
    objects.vmm.hold(memory)
}

pub(crate) fn bind_address(object: Handle, offset: usize, address: Address) -> Answer {
    let memory = Driver::get()?.objects().vmm.handle_at(address).ok_or(Failure::INVALID_VALUE)?;
    bind(object, offset, memory)
}

fn unbind(object: Handle, offset: usize) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    let bound = objects.shared.multicast.get_mut(&object).ok_or(Failure::INVALID_VALUE)?;
    let memory = bound.remove(&offset).ok_or(Failure::INVALID_VALUE)?;
    objects.vmm.let_go(memory, driver);
    Ok(())
}

type Out = *mut Handle;

api! {
    cuIpcGetMemHandle(out: *mut IpcHandle, address: Address) => ipc_handle(out, address);
    cuIpcOpenMemHandle(out: *mut Address, handle: IpcHandle, _flags: u32) => alias(out, handle.0[1] as usize);
    cuIpcOpenMemHandle_v2(out: *mut Address, handle: IpcHandle, _flags: u32) => alias(out, handle.0[1] as usize);
    cuIpcCloseMemHandle(address: Address) => memory::free_device(address);
    cuMemPoolExportToShareableHandle(out: *mut i32, pool: Handle, kind: u32, _flags: u64) =>
        export_pool(out, pool, kind);
    cuMemPoolImportFromShareableHandle(out: Out, file: i32, _kind: u32, _flags: u64) => import_pool(out, file);
    cuMemPoolExportPointer(out: *mut Exported, address: Address) => export_pointer(out, address);
    cuMemPoolImportPointer(out: *mut Address, _pool: Handle, exported: *const Exported) =>
        alias(out, get(exported)?[1] as usize);
    cuImportExternalMemory(out: Out, _wanted: usize) => import_external(out);
    cuExternalMemoryGetMappedBuffer(out: *mut Address, memory: Handle, wanted: *const Buffer) =>
        external_buffer(out, memory, wanted);
    cuDestroyExternalMemory(memory: Handle) => destroy_external(memory);
    cuMemMapArrayAsync(list: *const ArrayMapping, count: u32, _stream: Handle) => map_tiles(list, count);
    cuMemMapArrayAsync_ptsz(list: *const ArrayMapping, count: u32, _stream: Handle) => map_tiles(list, count);
    cuMulticastCreate(out: Out, _wanted: usize) => create_multicast(out);
    cuMulticastAddDevice(object: Handle, _ordinal: i32) =>
        Driver::get()?.objects().shared.multicast.get(&object).map(drop).ok_or(Failure::INVALID_VALUE);
    cuMulticastBindMem(object: Handle, offset: usize, memory: Handle, _from: usize, _size: usize, _flags: u64) =>
        bind(object, offset, memory);
    cuMulticastBindAddr(object: Handle, offset: usize, address: Address, _size: usize, _flags: u64) =>
        bind_address(object, offset, address);
    cuMulticastUnbind(object: Handle, _ordinal: i32, offset: usize, _size: usize) => unbind(object, offset);
}
