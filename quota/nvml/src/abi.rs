//! Types and numbers of NVML (nvml.h).

use core::ffi::{c_int, c_void};

/// `nvmlReturn_t`.
pub(crate) type Result = c_int;
pub(crate) const SUCCESS: Result = 0;
pub(crate) const INVALID_ARGUMENT: Result = 2;
pub(crate) const NOT_SUPPORTED: Result = 3;
pub(crate) const NO_PERMISSION: Result = 4;
pub(crate) const NOT_FOUND: Result = 6;
pub(crate) const INSUFFICIENT_SIZE: Result = 7;
/// Our answer where the real library has no such function.
pub(crate) const FUNCTION_NOT_FOUND: Result = 13;
pub(crate) const ARGUMENT_VERSION_MISMATCH: Result = 25;

/// `nvmlDevice_t`.
pub(crate) type Device = *mut c_void;

/// Room for a UUID in text, `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
pub(crate) const UUID_TEXT: usize = 96;

/// `NVML_STRUCT_VERSION`: what the first field of a versioned struct must hold.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// `nvmlMemory_t`, and `nvmlBAR1Memory_t`, which is laid out like it; all in bytes.
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

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
pub(crate) struct Detail {
    pub(crate) pid: u32,
    pub(crate) used: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
    pub(crate) protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
pub(crate) struct DetailList {
    pub(crate) version: u32,
    /// Which processes: those that compute, draw, or compute through MPS.
    pub(crate) mode: u32,
    pub(crate) count: u32,
    pub(crate) entries: *mut Detail,
}

/// `nvmlUtilization_t`, percent.
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
}

/// `nvmlProcessUtilizationSample_t`: percent, and microseconds since 1970.
#[repr(C)]
pub(crate) struct Sample {
    pub(crate) pid: u32,
    pub(crate) time: u64,
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
pub(crate) struct UtilizationInfo {
    pub(crate) time: u64,
    pub(crate) pid: u32,
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
    pub(crate) jpeg: u32,
    pub(crate) optical_flow: u32,
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
pub(crate) struct UtilizationList {
    pub(crate) version: u32,
    pub(crate) count: u32,
    pub(crate) since: u64,
    pub(crate) entries: *mut UtilizationInfo,
}

/// `nvmlGpmSupport_t`.
#[repr(C)]
pub(crate) struct GpmSupport {
    pub(crate) version: u32,
    pub(crate) supported: u32,
}

const _: () = assert!(size_of::<PrivateProcess>() == 4128 && size_of::<ProcessV2>() == 24);
const _: () = assert!(size_of::<Detail>() == 32 && size_of::<DetailList>() == 24);
const _: () = assert!(size_of::<Sample>() == 32 && size_of::<UtilizationInfo>() == 40);
const _: () = assert!(size_of::<UtilizationList>() == 24);

/// In an instance id: not a MIG device.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;
