//! `cuGetProcAddress`: the real library finds the function, and the application gets ours if we wrap it.
//!
//! Ours is looked up by the address that the real library answers, never by name. Which variant a name, a
//! CUDA version and flags mean is for the real library to say, and it changes with every release.

use core::ffi::c_int;

use fgpu_quota_core::symbols::Function;

use crate::driver::{Address, FOUND, Result, SUCCESS, SYMBOL_NOT_FOUND};
use crate::real::LIBRARY;

/// # Safety
/// `address` is null, or can be written; if `call` succeeds, it has written it.
pub(crate) unsafe fn proc_address(
    exports: &[Function],
    address: *mut Address,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    // SAFETY: the caller's promise.
    if let Some(address) = unsafe { address.as_mut() }.filter(|_| result == SUCCESS)
        && let Some(ours) = LIBRARY.export_of(*address as usize, exports)
    {
        *address = ours as Address;
    }
    result
}

/// `first` calls the first version. A driver of CUDA 11 has no other, and an application that asks ours for
/// the second one gets its answer.
///
/// # Safety
/// As [`proc_address`]; `status` is null, or can be written.
pub(crate) unsafe fn proc_address_v2(
    exports: &[Function],
    address: *mut Address,
    status: *mut c_int,
    first: impl FnOnce() -> Result,
    call: impl FnOnce() -> Result,
) -> Result {
    if LIBRARY.has("cuGetProcAddress_v2") {
        // SAFETY: the caller's promise.
        return unsafe { proc_address(exports, address, call) };
    }
    // SAFETY: the caller's promise.
    let result = unsafe { proc_address(exports, address, first) };
    // SAFETY: the caller's promise.
    if let Some(status) = unsafe { status.as_mut() } {
        *status = if result == SUCCESS { FOUND } else { SYMBOL_NOT_FOUND };
    }
    result
}
