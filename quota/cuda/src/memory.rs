//! Allocations by pointer, and their frees.
//!
//! Managed memory counts in full, on the current device, though it may be in the host's memory. Memory that
//! another process shares with this one (`cuIpcOpenMemHandle`, imported pools and external memory) is not in
//! the table, so it counts where it was allocated and nowhere else.

use fgpu_quota_core::allocations::Kind;
use fgpu_quota_core::process::Process;

use crate::driver::{OUT_OF_MEMORY, Pointer, Result, SUCCESS};
use crate::reserve::{self, Reserved};
use crate::{meter, place, pool, real};

/// The alignment of texture pitch on known GPUs. Only the estimate before the driver's answer uses it.
const PITCH: u64 = 512;

/// Allocates `bytes`.
///
/// # Safety
/// If `call` succeeds, it has written `pointer`.
pub(crate) unsafe fn allocate<P: Copy + Into<u64>>(
    pointer: *mut P,
    bytes: u64,
    call: impl FnOnce() -> Result,
) -> Result {
    // SAFETY: the caller's promise.
    unsafe { reserve::allocate(pointer, bytes, Kind::Pointer, P::into, place::of_context, call) }
}

/// Frees memory that may be a pool's.
pub(crate) fn free(pointer: Pointer, call: impl FnOnce() -> Result) -> Result {
    let Some(process) = Process::registered() else { return call() };
    if pool::may_be_in_one(process) && pool::has(process, pointer) {
        return pool::free(process, pointer, call);
    }
    let (result, entry) = reserve::give_back(Kind::Pointer, pointer, call);
    if result == SUCCESS && entry.is_none() {
        // It may belong to a graph.
        meter::settle_all(process);
    }
    result
}

/// A pitched allocation is `pitch × height` bytes, and the pitch is known only afterwards. So it is estimated
/// first. If the driver's pitch is larger, the rest is reserved then, or the memory is freed again.
///
/// # Safety
/// If `call` succeeds, it has written `pointer` and `pitch`.
pub(crate) unsafe fn allocate_pitch<P: Copy + Into<u64>, S: Copy + TryInto<u64>>(
    pointer: *mut P,
    pitch: *mut S,
    width: u64,
    height: u64,
    call: impl FnOnce() -> Result,
) -> Result {
    if width == 0 || height == 0 || pointer.is_null() || pitch.is_null() {
        return call();
    }
    let guess = width.checked_next_multiple_of(PITCH).unwrap_or(u64::MAX).saturating_mul(height);
    let mut reserved = match Reserved::new(guess, place::of_context) {
        Ok(reserved) => reserved,
        Err(error) => return error,
    };
    let result = call();
    if result != SUCCESS {
        reserved.give_back();
        return result;
    }
    // SAFETY: the caller's promise.
    let (pointer, pitch) = unsafe { ((*pointer).into(), (*pitch).try_into().unwrap_or(u64::MAX)) };
    let missing = pitch.saturating_mul(height).saturating_sub(reserved.bytes);
    if missing > 0 {
        match reserved.process.reserve(reserved.gpu, missing) {
            Some(more) => reserved.bytes += more,
            None => {
                // SAFETY: the application has not seen the pointer.
                unsafe { real::cuMemFree_v2(pointer) };
                reserved.give_back();
                return OUT_OF_MEMORY;
            }
        }
    }
    reserved.book(Kind::Pointer, pointer);
    result
}
