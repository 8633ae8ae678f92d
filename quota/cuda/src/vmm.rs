//! The virtual memory management: memory behind handles.
//!
//! What holds the memory of a handle is counted in its [block](crate::block).
//!
//! A handle without an entry (an imported one, for example) passes through: the process that created it
//! counts it, as long as it lives and has the handle or a mapping. Memory that it gave to another process and
//! released is counted nowhere.

use fgpu_quota_core::allocations::{Entry, Kind, Table};
use fgpu_quota_core::process::Process;

use crate::block::{MAPPING, REFERENCE};
use crate::driver::{Address, AllocationProperties, Handle, MANAGED, Pointer, Result, SUCCESS};
use crate::reserve::Reserved;
use crate::{bind, block, place};

/// Makes memory, and the first reference to it.
///
/// # Safety
/// `properties` is null or valid. If `call` succeeds, it has written `handle`.
pub(crate) unsafe fn create(
    handle: *mut Handle,
    bytes: usize,
    properties: *const AllocationProperties,
    call: impl FnOnce() -> Result,
) -> Result {
    // SAFETY: the caller's promise.
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

/// The end of a reference.
pub(crate) fn release(handle: Handle, call: impl FnOnce() -> Result) -> Result {
    let Some(process) = Process::registered() else { return call() };
    // The handle of a last reference is forgotten first: once the driver has released it, another thread may
    // get the same one. The block keeps the reference until the driver has agreed.
    let block = {
        let mut table = process.allocations.lock();
        let block = block::of_handle(&mut table, handle);
        let is_last = |block| table.get_mut(Kind::Block, block).is_some_and(|entry| entry.link as u32 == 1);
        if block.is_some_and(is_last) {
            table.remove(Kind::Handle, handle);
        }
        block
    };
    let result = call();
    if let Some(block) = block {
        if result == SUCCESS {
            block::drop_from(process, block, REFERENCE);
        } else {
            point(&mut process.allocations.lock(), handle, block);
        }
    } else if result == SUCCESS {
        // Perhaps a multicast object. Another reference may keep it alive; its bindings are no longer tracked
        // then.
        bind::end(handle);
    }
    result
}

/// Notes that `handle` leads to `block`. If there is no memory for the entry, a reference is never seen to
/// end, and the block counts until the process ends.
fn point(table: &mut Table, handle: Handle, block: u64) {
    table.insert(Entry { key: handle, kind: Kind::Handle, link: block, ..Entry::default() });
}

/// One more reference to what is mapped at an address.
///
/// # Safety
/// If `call` succeeds, it has written `handle`.
pub(crate) unsafe fn retain(handle: *mut Handle, address: Address, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        // SAFETY: the caller's promise.
        let handle = unsafe { *handle };
        let mut table = process.allocations.lock();
        // The address may be anywhere in a mapping, and its handle may have been released long ago.
        let block = block::of_handle(&mut table, handle).or_else(|| block::block_at(&table, address as u64));
        if let Some(block) = block
            && block::hold(&mut table, block, REFERENCE).is_some()
        {
            point(&mut table, handle, block);
        }
    }
    result
}

/// A handle from another process, or one of ours that comes back under its old name: one more reference.
///
/// # Safety
/// If `call` succeeds, it has written `handle`.
pub(crate) unsafe fn import(handle: *mut Handle, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        // SAFETY: the caller's promise.
        let handle = unsafe { *handle };
        let mut table = process.allocations.lock();
        if let Some(block) = block::of_handle(&mut table, handle) {
            block::hold(&mut table, block, REFERENCE);
        }
    }
    result
}

/// Maps a handle.
pub(crate) fn map(pointer: Pointer, bytes: usize, handle: Handle, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        let mut table = process.allocations.lock();
        if let Some(block) = block::of_handle(&mut table, handle)
            && let Some(gpu) = block::hold(&mut table, block, MAPPING)
        {
            let bytes = bytes as u64;
            table.insert(Entry { key: pointer, kind: Kind::Mapping, gpu, bytes, link: block, owner: 0 });
        }
    }
    result
}

/// Takes off all mappings in a range.
pub(crate) fn unmap(pointer: Pointer, bytes: usize, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result != SUCCESS {
        return result;
    }
    let Some(process) = Process::registered() else { return result };
    // One call can unmap several adjacent mappings, but none in part. The addresses stay reserved to the
    // application, so no other thread gets them meanwhile.
    let end = pointer.saturating_add(bytes as u64);
    let mut at = pointer;
    while at < end {
        let mut table = process.allocations.lock();
        let Some(mapping) = table.remove(Kind::Mapping, at) else {
            // Unknown handles may be mapped between ours.
            match table.lowest_key(Kind::Mapping, at..end) {
                Some(next) => at = next,
                None => break,
            }
            continue;
        };
        drop(table);
        block::drop_from(process, mapping.link, MAPPING);
        at = at.saturating_add(mapping.bytes.max(1));
    }
    result
}
