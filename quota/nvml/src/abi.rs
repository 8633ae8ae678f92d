//! Types and numbers of NVML (nvml.h).

use core::ffi::{c_int, c_void};

/// `nvmlReturn_t`.
pub(crate) type Result = c_int;
pub(crate) const SUCCESS: Result = 0;
pub(crate) const INVALID_ARGUMENT: Result = 2;
pub(crate) const NO_PERMISSION: Result = 4;
pub(crate) const NOT_FOUND: Result = 6;
pub(crate) const INSUFFICIENT_SIZE: Result = 7;
/// What we say where the real library has no such function.
pub(crate) const FUNCTION_NOT_FOUND: Result = 13;

/// `nvmlDevice_t`.
pub(crate) type Device = *mut c_void;

/// Room for a UUID in text, `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
pub(crate) const UUID_TEXT: usize = 96;

/// `nvmlMemory_t`; all in bytes.
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`; all but the version in bytes.
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
pub(crate) struct ProcessV1 {
    pub(crate) pid: u32,
    pub(crate) used: u64,
}

/// `nvmlProcessInfo_v2_t`, which is also what the functions with `_v3` fill.
#[repr(C)]
pub(crate) struct ProcessV2 {
    pub(crate) pid: u32,
    pub(crate) used: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

/// An entry of the private process lists, as nvidia-smi 550 to 580 read them.
#[repr(C)]
pub(crate) struct PrivateProcess {
    pub(crate) pid: u32,
    pub(crate) used: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
    pub(crate) protected: u64,
    pub(crate) name: [u8; 4096],
}

const _: () = assert!(size_of::<PrivateProcess>() == 4128 && size_of::<ProcessV2>() == 24);

/// Of an instance id: not a MIG device.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;
