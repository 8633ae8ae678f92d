//! The grant's GPUs only, numbered as in the limits.

use core::ffi::{CStr, c_uint};
use core::ptr::null_mut;

use fgpu_quota_core::files;
use fgpu_wire::limits::Page;
use fgpu_wire::parse_uuid;

use crate::abi::{Device, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, Result, SUCCESS, UUID_TEXT};
use crate::real;

/// Whether a device is in the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The grant's, with this number.
    Granted(usize),
    /// A MIG device: a hardware slice, shown as it is.
    Mig,
    /// Not in the grant.
    Foreign,
}

/// The grant. Without one nothing is shown.
pub(crate) fn limits() -> core::result::Result<&'static Page, Result> {
    files::limits().map_err(|refusal| {
        refusal.say();
        NO_PERMISSION
    })
}

/// Whether the device is in the grant, by its UUID.
///
/// # Safety
/// As `nvmlDeviceGetUUID`: a handle from NVML.
pub(crate) unsafe fn whose(device: Device) -> core::result::Result<Whose, Result> {
    let limits = limits()?;
    let mut text = [0u8; UUID_TEXT];
    // SAFETY: the caller's promise; the library writes into the buffer and not past it.
    let result = unsafe { real::nvmlDeviceGetUUID(device, text.as_mut_ptr().cast(), UUID_TEXT as c_uint) };
    if result != SUCCESS {
        return Err(result);
    }
    let text = CStr::from_bytes_until_nul(&text).ok().and_then(|text| text.to_str().ok()).unwrap_or_default();
    if text.starts_with("MIG-") {
        return Ok(Whose::Mig);
    }
    let number = parse_uuid(text).and_then(|uuid| limits.find(&uuid));
    Ok(number.map_or(Whose::Foreign, Whose::Granted))
}

/// How many GPUs there are.
///
/// # Safety
/// `count` is null or can be written.
pub(crate) unsafe fn count(count: *mut c_uint, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result != SUCCESS || count.is_null() {
        return result;
    }
    match limits() {
        Ok(limits) => {
            // SAFETY: the caller's promise.
            unsafe { *count = limits.gpus() as c_uint };
            SUCCESS
        }
        Err(error) => error,
    }
}

/// # Safety
/// As `nvmlDeviceGetHandleByIndex_v2`.
pub(crate) unsafe fn by_index(index: c_uint, device: *mut Device) -> Result {
    let uuid = match limits() {
        Ok(limits) => limits.uuid(index as usize),
        Err(error) => return error,
    };
    // The library's own answer to an unknown number.
    let Some(uuid) = uuid else { return INVALID_ARGUMENT };
    let text = spell(&uuid);
    // SAFETY: NUL-terminated; the device is the caller's.
    unsafe { real::nvmlDeviceGetHandleByUUID(text.as_ptr().cast(), device) }
}

/// NVML's spelling of a UUID, NUL-terminated.
fn spell(uuid: &[u8; 16]) -> [u8; 41] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = *b"GPU-________-____-____-____-____________\0";
    let halves = uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    for (place, half) in text.iter_mut().filter(|place| **place == b'_').zip(halves) {
        *place = DIGITS[usize::from(half)];
    }
    text
}

/// Asks the real library for a handle, and withholds it if its GPU is not in the grant.
///
/// # Safety
/// `device` is null or can be written; `call` writes it if it succeeds.
pub(crate) unsafe fn if_granted(device: *mut Device, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result != SUCCESS || device.is_null() {
        return result;
    }
    // SAFETY: a handle that NVML returned just now.
    let error = match unsafe { whose(*device) } {
        Ok(Whose::Granted(_) | Whose::Mig) => return SUCCESS,
        Ok(Whose::Foreign) => NOT_FOUND,
        Err(error) => error,
    };
    // SAFETY: the caller's promise.
    unsafe { *device = null_mut() };
    error
}

/// The number of a GPU.
///
/// # Safety
/// `index` is null or can be written.
pub(crate) unsafe fn index(device: Device, index: *mut c_uint, call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result != SUCCESS || index.is_null() {
        return result;
    }
    // SAFETY: a handle that NVML knows, since it just answered.
    match unsafe { whose(device) } {
        Ok(Whose::Granted(number)) => {
            // SAFETY: the caller's promise.
            unsafe { *index = number as c_uint };
            SUCCESS
        }
        Ok(Whose::Mig) => SUCCESS,
        Ok(Whose::Foreign) => NOT_FOUND,
        Err(error) => error,
    }
}
