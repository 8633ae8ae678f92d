//! Types and numbers of the CUDA driver API (cuda.h).

use core::ffi::{c_int, c_void};

/// `CUresult`.
pub(crate) type Result = c_int;
pub(crate) const SUCCESS: Result = 0;
pub(crate) const OUT_OF_MEMORY: Result = 2;
pub(crate) const NOT_INITIALIZED: Result = 3;
/// What we say where the real library has no such function.
pub(crate) const NOT_SUPPORTED: Result = 801;

/// `CUdeviceptr` since CUDA 3.2; before, and still in the functions without `_v2`, 32 bits wide.
pub(crate) type Pointer = u64;
/// `CUdevice`: an ordinal.
pub(crate) type Device = c_int;
/// `CUcontext`.
pub(crate) type Context = *mut c_void;
/// `CUstream`.
pub(crate) type Stream = *mut c_void;
/// `CUmemoryPool`.
pub(crate) type Pool = *mut c_void;
/// `CUmemGenericAllocationHandle`.
pub(crate) type Handle = u64;
/// `CUuuid`.
pub(crate) type Uuid = [u8; 16];
/// What `cuGetProcAddress` gives.
pub(crate) type Address = *mut c_void;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`: streams that belong to the current context.
pub(crate) const LAST_SPECIAL_STREAM: usize = 2;

/// `CU_GET_PROC_ADDRESS_SUCCESS`, and what is said of a name that is not there.
pub(crate) const FOUND: c_int = 0;
pub(crate) const SYMBOL_NOT_FOUND: c_int = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) win32: *mut c_void,
    pub(crate) flags: [u8; 8],
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`; the others are the host's memory.
pub(crate) const ON_DEVICE: c_int = 1;
