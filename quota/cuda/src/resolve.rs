//! `cuGetProcAddress`: the real library finds the function, and if it is one that we wrap, ours is given.
//!
//! Looked up by the address that the real library answers, never by name: which variant a name, a CUDA
//! version and flags mean is for the real library to say, and it changes with every release.

use core::ffi::{c_char, c_int, c_ulonglong};

use crate::driver::{Address, FOUND, Result, SUCCESS, SYMBOL_NOT_FOUND};
use crate::wrapped::{LIBRARY, real};

/// # Safety
/// As `cuGetProcAddress`.
pub(crate) unsafe fn proc_address(
    name: *const c_char,
    address: *mut Address,
    version: c_int,
    flags: c_ulonglong,
) -> Result {
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuGetProcAddress(name, address, version, flags) };
    // SAFETY: null, or the application's variable, written by the driver if it succeeded.
    unsafe { replace(result, address) };
    result
}

/// # Safety
/// As `cuGetProcAddress_v2`.
pub(crate) unsafe fn proc_address_v2(
    name: *const c_char,
    address: *mut Address,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> Result {
    if !LIBRARY.has("cuGetProcAddress_v2") {
        // A driver of CUDA 11: who asks us for v2, which that driver would not have had, gets v1's answer.
        // SAFETY: the caller's promise.
        let result = unsafe { proc_address(name, address, version, flags) };
        // SAFETY: null, or the application's variable.
        if let Some(status) = unsafe { status.as_mut() } {
            *status = if result == SUCCESS { FOUND } else { SYMBOL_NOT_FOUND };
        }
        return result;
    }
    // SAFETY: the caller's promise.
    let result = unsafe { real::cuGetProcAddress_v2(name, address, version, flags, status) };
    // SAFETY: null, or the application's variable, written by the driver if it succeeded.
    unsafe { replace(result, address) };
    result
}

/// # Safety
/// `address` is null, or was written by the driver if `result` is success.
unsafe fn replace(result: Result, address: *mut Address) {
    if result != SUCCESS {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(address) = (unsafe { address.as_mut() }) else { return };
    if let Some(twin) = LIBRARY.twin_of(*address as usize) {
        *address = twin as Address;
    }
}
