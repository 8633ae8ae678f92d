//! Memory that exists already, under another name: opened, imported, bound. Only within a process, and its content is
//! not shared: it is there to see that nobody counts it twice.

use alloc::collections::btree_map::BTreeMap;
use alloc::vec::Vec;

use crate::abi::{Address, Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::driver::Driver;
use crate::memory;

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
