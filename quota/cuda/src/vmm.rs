//! The virtual memory management: memory behind handles.
//!
//! The memory that `cuMemCreate` makes lives as long as its handle has references *or* any of it is mapped;
//! frameworks release the handle right after mapping it. So the memory has an entry of its own, a block, with
//! two counts, and is given back when both are 0:
//!
//! ```text
//!   Handle h  ──link──▶ Block b { references: 1, mappings: 2 } ◀──link── Mapping at p
//!                                                              ◀──link── Mapping at q
//! ```
//!
//! What we have no entry for (an imported handle, say) passes through: who created it counts it, as long as it
//! lives and has the handle or a mapping. What it gave to another process and let go of itself is counted nowhere.

use core::ffi::{c_int, c_ulonglong, c_void};

use fgpu_quota_core::allocations::{Entry, Kind, Table};
use fgpu_quota_core::process::Process;

use crate::driver::{Address, AllocationProperties, Handle, MANAGED, Pointer, Result, SUCCESS};
use crate::place;
use crate::reserve::Reserved;
use crate::wrapped::real;

/// In a block's `link`: the handle's references in the low half, mappings and [bindings](crate::bind) in the high one.
const REFERENCE: u64 = 1;
pub(crate) const MAPPING: u64 = 1 << 32;

/// # Safety
/// As `cuMemCreate`.
pub(crate) unsafe fn create(
    handle: *mut Handle,
    bytes: usize,
    properties: *const AllocationProperties,
    flags: c_ulonglong,
) -> Result {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::cuMemCreate(handle, bytes, properties, flags) };
    // SAFETY: null, or the application's structure, whose location is where it has always been.
    let properties = unsafe { properties.as_ref() };
    let device = properties.and_then(|properties| properties.location.device());
    let is_managed = properties.is_some_and(|properties| properties.kind == MANAGED);
    if bytes == 0 || handle.is_null() || (device.is_none() && !is_managed) {
        return call();
    }
    let place = |process: &Process| match device {
        Some(device) => place::of_device(process, device),
        None => place::of_context(process),
    };
    let reserved = match Reserved::new(bytes as u64, place) {
        Ok(reserved) => reserved,
        Err(error) => return error,
    };
    let result = call();
    if result != SUCCESS {
        reserved.give_back();
        return result;
    }
    // SAFETY: written by the driver, which succeeded.
    let handle = unsafe { *handle };
    let mut table = reserved.process.allocations.lock();
    let block = table.new_block();
    let gpu = reserved.gpu as u32;
    // If there is no memory for the entries, the allocation counts until the process ends.
    let entry =
        Entry { key: block, kind: Kind::Block, gpu, bytes: reserved.bytes, link: REFERENCE, owner: 0 };
    if table.insert(entry) {
        point(&mut table, handle, block);
    }
    result
}

/// # Safety
/// As `cuMemRelease`.
pub(crate) unsafe fn release(handle: Handle) -> Result {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::cuMemRelease(handle) };
    let Some(process) = Process::registered() else { return call() };
    // A last reference's handle is forgotten first: once the driver has released it, another thread may be
    // given the same. The block keeps the reference until the driver has agreed.
    let block = {
        let mut table = process.allocations.lock();
        let block = table.get_mut(Kind::Handle, handle).map(|entry| entry.link);
        let is_last = |block| table.get_mut(Kind::Block, block).is_some_and(|entry| entry.link as u32 == 1);
        if block.is_some_and(is_last) {
            table.remove(Kind::Handle, handle);
        }
        block
    };
    let result = call();
    if let Some(block) = block {
        if result == SUCCESS {
            drop_from(process, block, REFERENCE);
        } else {
            point(&mut process.allocations.lock(), handle, block);
        }
    } else if result == SUCCESS {
        // A multicast object, perhaps; one that another reference keeps alive is asked about no more.
        crate::bind::end(handle);
    }
    result
}

/// The block that is mapped at an address, anywhere in the mapping.
pub(crate) fn block_at(table: &Table, address: Pointer) -> Option<u64> {
    let around = |entry: &Entry| address.wrapping_sub(entry.key) < entry.bytes;
    table.find(Kind::Mapping, around).map(|entry| entry.link)
}

/// Takes one reference or mapping off a block, and gives its memory back if it was the last.
pub(crate) fn drop_from(process: &Process, block: u64, what: u64) {
    let mut table = process.allocations.lock();
    let Some(entry) = table.get_mut(Kind::Block, block) else { return };
    entry.link = entry.link.wrapping_sub(what);
    if entry.link == 0
        && let Some(entry) = table.remove(Kind::Block, block)
    {
        drop(table);
        process.release(entry.gpu as usize, entry.bytes);
    }
}

/// Notes that `handle` leads to `block`. If there is no memory for the entry, a reference is never seen to
/// end, and the block counts until the process ends.
fn point(table: &mut Table, handle: Handle, block: u64) {
    table.insert(Entry { key: handle, kind: Kind::Handle, link: block, ..Entry::default() });
}

/// # Safety
/// As `cuMemRetainAllocationHandle`.
pub(crate) unsafe fn retain(handle: *mut Handle, address: Address) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMemRetainAllocationHandle(handle, address) };
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        // SAFETY: written by the driver, which succeeded.
        let handle = unsafe { *handle };
        let address = address as u64;
        let mut table = process.allocations.lock();
        // The address may be anywhere in a mapping, and its handle may have been released long ago.
        let block = match table.get_mut(Kind::Handle, handle) {
            Some(entry) => Some(entry.link),
            None => block_at(&table, address),
        };
        if let Some(block) = block
            && let Some(entry) = table.get_mut(Kind::Block, block)
        {
            entry.link = entry.link.wrapping_add(REFERENCE);
            point(&mut table, handle, block);
        }
    }
    result
}

/// # Safety
/// As `cuMemImportFromShareableHandle`.
pub(crate) unsafe fn import(handle: *mut Handle, shared: *mut c_void, kind: c_int) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMemImportFromShareableHandle(handle, shared, kind) };
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        // SAFETY: written by the driver, which succeeded.
        let handle = unsafe { *handle };
        let mut table = process.allocations.lock();
        // Our own, come back under its old name: one more reference.
        let block = table.get_mut(Kind::Handle, handle).map(|entry| entry.link);
        if let Some(block) = block
            && let Some(entry) = table.get_mut(Kind::Block, block)
        {
            entry.link = entry.link.wrapping_add(REFERENCE);
        }
    }
    result
}

/// # Safety
/// As `cuMemMap`.
pub(crate) unsafe fn map(
    pointer: Pointer,
    bytes: usize,
    offset: usize,
    handle: Handle,
    flags: c_ulonglong,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMemMap(pointer, bytes, offset, handle, flags) };
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        let mut table = process.allocations.lock();
        let block = table.get_mut(Kind::Handle, handle).map(|entry| entry.link);
        if let Some(block) = block
            && let Some(entry) = table.get_mut(Kind::Block, block)
        {
            entry.link = entry.link.wrapping_add(MAPPING);
            let gpu = entry.gpu;
            let bytes = bytes as u64;
            table.insert(Entry { key: pointer, kind: Kind::Mapping, gpu, bytes, link: block, owner: 0 });
        }
    }
    result
}

/// # Safety
/// As `cuMemUnmap`.
pub(crate) unsafe fn unmap(pointer: Pointer, bytes: usize) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuMemUnmap(pointer, bytes) };
    if result != SUCCESS {
        return result;
    }
    let Some(process) = Process::registered() else { return result };
    // Several mappings side by side can be unmapped at once, but none in part. The addresses stay reserved to
    // the application, so no other thread is given them meanwhile.
    let end = pointer.saturating_add(bytes as u64);
    let mut at = pointer;
    while at < end {
        let mut table = process.allocations.lock();
        let Some(mapping) = table.remove(Kind::Mapping, at) else {
            // Handles of which we know nothing may be mapped among ours.
            match table.lowest_key(Kind::Mapping, at..end) {
                Some(next) => at = next,
                None => break,
            }
            continue;
        };
        drop(table);
        drop_from(process, mapping.link, MAPPING);
        at = at.saturating_add(mapping.bytes.max(1));
    }
    result
}
