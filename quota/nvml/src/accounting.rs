//! The driver's accounts of ended processes cover the whole GPU and have the host's pids. A container sees
//! accounting as disabled.

use core::ffi::{c_uint, c_void};

use crate::abi::{Device, INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED, Result, SUCCESS};
use crate::devices::{Whose, whose};

/// # Safety
/// As `nvmlDeviceGetAccountingMode`.
pub(crate) unsafe fn mode(device: Device, mode: *mut c_uint) -> Result {
    // SAFETY: the caller's promise.
    match (unsafe { whose(device) }, unsafe { mode.as_mut() }) {
        (Ok(Whose::Granted(_) | Whose::Mig), Some(mode)) => {
            *mode = 0;
            SUCCESS
        }
        (Ok(Whose::Foreign), _) => NO_PERMISSION,
        (Ok(_), None) => INVALID_ARGUMENT,
        (Err(error), _) => error,
    }
}

/// The library's answer where accounting is off.
///
/// # Safety
/// As `nvmlDeviceGetAccountingPids`; nothing is written.
pub(crate) unsafe fn pids(_device: Device, _count: *mut c_uint, _pids: *mut c_uint) -> Result {
    NOT_SUPPORTED
}

/// # Safety
/// As `nvmlDeviceGetAccountingStats`; nothing is written.
pub(crate) unsafe fn stats(_device: Device, _pid: c_uint, _stats: *mut c_void) -> Result {
    NOT_SUPPORTED
}

/// # Safety
/// As `nvmlDeviceGetAccountingStats_v2`; nothing is written.
pub(crate) unsafe fn stats_v2(_device: Device, _stats: *mut c_void) -> Result {
    NOT_SUPPORTED
}
