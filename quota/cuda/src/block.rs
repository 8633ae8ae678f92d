//! The memory behind a handle.
//!
//! The memory that `cuMemCreate` makes lives as long as its handle has references *or* any of it is mapped or
//! bound; frameworks release the handle right after mapping it. So the memory has an entry of its own, a
//! block, with two counts, and is given back when both are 0:
//!
//! ```text
//!   Handle h  ──link──▶ Block b { references: 1, mappings: 2 } ◀──link── Mapping at p
//!                                                              ◀──link── Mapping at q
//! ```

use fgpu_quota_core::allocations::{Entry, Kind, Table};
use fgpu_quota_core::process::Process;

use crate::driver::{Handle, Pointer};

/// In a block's `link`: the handle's references in the low half, mappings and [bindings](crate::bind) in the
/// high one.
pub(crate) const REFERENCE: u64 = 1;
pub(crate) const MAPPING: u64 = 1 << 32;

/// The block to which a handle leads.
pub(crate) fn of_handle(table: &mut Table, handle: Handle) -> Option<u64> {
    table.get_mut(Kind::Handle, handle).map(|entry| entry.link)
}

/// The block that is mapped at an address, anywhere in the mapping.
pub(crate) fn block_at(table: &Table, address: Pointer) -> Option<u64> {
    let around = |entry: &Entry| address.wrapping_sub(entry.key) < entry.bytes;
    table.find(Kind::Mapping, around).map(|entry| entry.link)
}

/// Adds one reference or mapping to a block, and gives the number of its GPU; `None` if there is no such
/// block.
pub(crate) fn hold(table: &mut Table, block: u64, what: u64) -> Option<u32> {
    let entry = table.get_mut(Kind::Block, block)?;
    entry.link = entry.link.wrapping_add(what);
    Some(entry.gpu)
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
