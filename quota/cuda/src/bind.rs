//! Memory of handles that lives on because it is bound in a multicast object or in a sparse array.
//!
//! A binding holds its block as a mapping does ([`block`]). A multicast object has no memory of its own; it
//! holds what is bound in it until that is unbound or the object ends. What is mapped into a sparse array
//! counts until the array ends. The driver may release it sooner: the same tiles can be mapped again, in
//! parts and in stream order, which is not visible from outside.

use core::ffi::c_uint;

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::block::{self, MAPPING};
use crate::driver::{ArrayMapping, Device, Handle, MAP, Pointer, Result, SUCCESS};

/// The key of a place: a hash, so that two places of one object have different keys.
fn key(owner: u64, device: u64, offset: u64) -> u64 {
    let mix = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    mix(mix(mix(0, owner), device), offset)
}

/// Where the memory that is bound comes from.
pub(crate) enum Source {
    Handle(Handle),
    Address(Pointer),
}

/// In place of a device: before CUDA 13.1 a binding names none, and the memory's device is meant.
const ITS_OWN: u64 = u64::MAX;

/// Holds a block for a place in `owner`.
fn bind(process: &Process, owner: u64, device: u64, offset: u64, source: Source) {
    let mut table = process.allocations.lock();
    let block = match source {
        Source::Handle(handle) => block::of_handle(&mut table, handle),
        Source::Address(address) => block::block_at(&table, address),
    };
    let key = key(owner, device, offset);
    if let Some(block) = block.filter(|_| table.get_mut(Kind::Binding, key).is_none())
        && let Some(gpu) = block::hold(&mut table, block, MAPPING)
    {
        table.insert(Entry { key, kind: Kind::Binding, gpu, bytes: 0, link: block, owner });
    }
}

/// Releases everything that is bound in `owner`, which has ended.
pub(crate) fn end(owner: u64) {
    let Some(process) = Process::registered() else { return };
    loop {
        let mut table = process.allocations.lock();
        let Some(binding) = table.find(Kind::Binding, |entry| entry.owner == owner) else { break };
        table.remove(Kind::Binding, binding.key);
        drop(table);
        block::drop_from(process, binding.link, MAPPING);
    }
}

/// Binds memory in a multicast object.
pub(crate) fn multicast(
    object: Handle,
    device: Option<Device>,
    offset: usize,
    source: Source,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    if let Some(process) = Process::registered().filter(|_| result == SUCCESS) {
        bind(process, object, device.map_or(ITS_OWN, |device| device as u64), offset as u64, source);
    }
    result
}

/// Unbinds memory from a multicast object.
pub(crate) fn unbind(object: Handle, device: Device, offset: usize, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    let Some(process) = Process::registered().filter(|_| result == SUCCESS) else { return result };
    for device in [device as u64, ITS_OWN] {
        let binding = process.allocations.lock().remove(Kind::Binding, key(object, device, offset as u64));
        if let Some(binding) = binding {
            block::drop_from(process, binding.link, MAPPING);
            break;
        }
    }
    result
}

/// Maps memory into sparse arrays.
///
/// # Safety
/// If `call` succeeds, `list` is null or has `count` entries.
pub(crate) unsafe fn tiles(
    list: *const ArrayMapping,
    count: c_uint,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    let Some(process) = Process::registered().filter(|_| result == SUCCESS && !list.is_null()) else {
        return result;
    };
    // SAFETY: the caller's promise.
    for mapping in unsafe { core::slice::from_raw_parts(list, count as usize) } {
        if mapping.operation == MAP {
            bind(process, mapping.resource, ITS_OWN, mapping.handle, Source::Handle(mapping.handle));
        }
    }
    result
}
