//! Memory of handles that lives on because it is bound somewhere: in a multicast object, or in a sparse array.
//!
//! A binding holds its block as a mapping does ([`vmm`](crate::vmm)). A multicast object has no memory of its own,
//! and gives back what is bound in it when it is unbound or the object ends. What is mapped into a sparse array is
//! held until the array ends, though the driver may let go of it sooner: the same tiles can be mapped over, in
//! parts and in stream order, which nobody can follow from outside.

use core::ffi::{c_uint, c_ulonglong};

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::driver::{ArrayMapping, Device, Handle, MAP, Pointer, Result, SUCCESS, Stream};
use crate::vmm;
use crate::wrapped::real;

/// A key for a place: mixed, so that two places of one object have different ones.
fn key(owner: u64, device: u64, offset: u64) -> u64 {
    let mix = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    mix(mix(mix(0, owner), device), offset)
}

/// The block behind a handle, or under an address.
enum Of {
    Handle(Handle),
    Address(Pointer),
}

/// Holds a block for a place in `owner`.
fn bind(result: Result, owner: u64, device: u64, offset: u64, of: Of) -> Result {
    let Some(process) = Process::registered().filter(|_| result == SUCCESS) else { return result };
    let mut table = process.allocations.lock();
    let block = match of {
        Of::Handle(handle) => table.get_mut(Kind::Handle, handle).map(|entry| entry.link),
        Of::Address(address) => vmm::block_at(&table, address),
    };
    let key = key(owner, device, offset);
    let Some(block) = block.filter(|_| table.get_mut(Kind::Binding, key).is_none()) else { return result };
    if let Some(entry) = table.get_mut(Kind::Block, block) {
        entry.link = entry.link.wrapping_add(vmm::MAPPING);
        let gpu = entry.gpu;
        table.insert(Entry { key, kind: Kind::Binding, gpu, bytes: 0, link: block, owner });
    }
    result
}

/// Lets go of all that is bound in `owner`, which has ended.
pub(crate) fn end(owner: u64) {
    let Some(process) = Process::registered() else { return };
    loop {
        let mut table = process.allocations.lock();
        let Some(binding) = table.find(Kind::Binding, |entry| entry.owner == owner) else { break };
        table.remove(Kind::Binding, binding.key);
        drop(table);
        vmm::drop_from(process, binding.link, vmm::MAPPING);
    }
}

/// Before CUDA 13.1 a binding says no device: the memory's.
const ITS_OWN: u64 = u64::MAX;

/// # Safety
/// As `cuMulticastBindMem`.
pub(crate) unsafe fn memory(
    object: Handle,
    offset: usize,
    handle: Handle,
    from: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMulticastBindMem(object, offset, handle, from, bytes, flags) };
    bind(result, object, ITS_OWN, offset as u64, Of::Handle(handle))
}

/// # Safety
/// As `cuMulticastBindMem_v2`.
pub(crate) unsafe fn memory_v2(
    object: Handle,
    device: Device,
    offset: usize,
    handle: Handle,
    from: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMulticastBindMem_v2(object, device, offset, handle, from, bytes, flags) };
    bind(result, object, device as u64, offset as u64, Of::Handle(handle))
}

/// # Safety
/// As `cuMulticastBindAddr`.
pub(crate) unsafe fn address(
    object: Handle,
    offset: usize,
    pointer: Pointer,
    bytes: usize,
    flags: c_ulonglong,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMulticastBindAddr(object, offset, pointer, bytes, flags) };
    bind(result, object, ITS_OWN, offset as u64, Of::Address(pointer))
}

/// # Safety
/// As `cuMulticastBindAddr_v2`.
pub(crate) unsafe fn address_v2(
    object: Handle,
    device: Device,
    offset: usize,
    pointer: Pointer,
    bytes: usize,
    flags: c_ulonglong,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMulticastBindAddr_v2(object, device, offset, pointer, bytes, flags) };
    bind(result, object, device as u64, offset as u64, Of::Address(pointer))
}

/// # Safety
/// As `cuMulticastUnbind`.
pub(crate) unsafe fn unbind(object: Handle, device: Device, offset: usize, bytes: usize) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMulticastUnbind(object, device, offset, bytes) };
    let Some(process) = Process::registered().filter(|_| result == SUCCESS) else { return result };
    for device in [device as u64, ITS_OWN] {
        let binding = process.allocations.lock().remove(Kind::Binding, key(object, device, offset as u64));
        if let Some(binding) = binding {
            vmm::drop_from(process, binding.link, vmm::MAPPING);
            break;
        }
    }
    result
}

/// # Safety
/// As `cuMemMapArrayAsync`.
pub(crate) unsafe fn tiles(list: *mut ArrayMapping, count: c_uint, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    unsafe { mapped(real::cuMemMapArrayAsync(list, count, stream), list, count) }
}

/// # Safety
/// As `cuMemMapArrayAsync_ptsz`.
pub(crate) unsafe fn tiles_ptsz(list: *mut ArrayMapping, count: c_uint, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    unsafe { mapped(real::cuMemMapArrayAsync_ptsz(list, count, stream), list, count) }
}

/// # Safety
/// If `result` is success, `list` has `count` entries.
unsafe fn mapped(result: Result, list: *mut ArrayMapping, count: c_uint) -> Result {
    if result != SUCCESS || list.is_null() {
        return result;
    }
    // SAFETY: the caller's promise.
    for mapping in unsafe { core::slice::from_raw_parts(list, count as usize) } {
        if mapping.operation == MAP {
            bind(result, mapping.resource, ITS_OWN, mapping.handle, Of::Handle(mapping.handle));
        }
    }
    result
}
