//! Types and numbers of the CUDA driver API (cuda.h).

use core::ffi::{c_int, c_uint, c_void};

/// `CUresult`.
pub(crate) type Result = c_int;
pub(crate) const SUCCESS: Result = 0;
pub(crate) const OUT_OF_MEMORY: Result = 2;
pub(crate) const NOT_INITIALIZED: Result = 3;
pub(crate) const NOT_READY: Result = 600;
/// Our answer where the real library has no such function.
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
/// A function's address, from `cuGetProcAddress`.
pub(crate) type Address = *mut c_void;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`: streams that belong to the current context.
pub(crate) const LEGACY_STREAM: usize = 1;
pub(crate) const PER_THREAD_STREAM: usize = 2;

/// Which stream a function means by 0: each thread's own in the functions that end in `_ptsz` or `_ptds`.
#[derive(Clone, Copy)]
pub(crate) enum DefaultStream {
    Legacy,
    PerThread,
}

/// `CU_GET_PROC_ADDRESS_SUCCESS` and `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
pub(crate) const FOUND: c_int = 0;
pub(crate) const SYMBOL_NOT_FOUND: c_int = 1;

/// Any handle that we only pass on and remember: module, library, kernel, function, graph, array.
pub(crate) type Object = *mut c_void;

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct AllocationProperties {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED` or [`MANAGED`].
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

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`: a part of a device, whose ordinal is the lowest byte.
const IN_DOMAIN: c_int = 6;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
pub(crate) const MANAGED: c_int = 2;

impl Location {
    /// The device, if this is a device's memory. All other kinds are the host's.
    pub(crate) fn device(self) -> Option<Device> {
        match self.kind {
            ON_DEVICE => Some(self.id),
            IN_DOMAIN => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// `CUmemPoolProps`, the beginning.
#[repr(C)]
pub(crate) struct PoolProperties {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED` or [`MANAGED`].
    pub(crate) kind: c_int,
    handle_types: c_int,
    pub(crate) location: Location,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct AllocNode {
    pub(crate) pool: PoolProperties,
    /// The rest of `CUmemPoolProps`, and which devices may reach the memory.
    rest: [u64; 11],
    pub(crate) bytes: usize,
    pointer: Pointer,
}

/// `CUgraphNodeParams`, of an allocation.
#[repr(C)]
pub(crate) struct NodeParameters {
    pub(crate) kind: c_int,
    reserved: [c_int; 3],
    pub(crate) alloc: AllocNode,
}

/// `CU_GRAPH_NODE_TYPE_GRAPH` and `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
pub(crate) const CHILD_GRAPH: c_int = 4;
pub(crate) const ALLOC_NODE: c_int = 10;

/// `CUDA_ARRAY_DESCRIPTOR`, of pointer-wide or (before CUDA 3.2) 32-bit sizes.
#[repr(C)]
pub(crate) struct ArrayDescriptor<T> {
    pub(crate) width: T,
    pub(crate) height: T,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`, with sizes as in [`ArrayDescriptor`].
#[repr(C)]
pub(crate) struct Array3dDescriptor<T> {
    pub(crate) width: T,
    pub(crate) height: T,
    pub(crate) depth: T,
    pub(crate) format: c_uint,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// `CUarrayMapInfo`.
#[repr(C)]
pub(crate) struct ArrayMapping {
    resource_kind: c_uint,
    pub(crate) resource: u64,
    place: [u64; 5],
    /// [`MAP`], or `CU_MEM_OPERATION_TYPE_UNMAP`.
    pub(crate) operation: c_uint,
    handle_kind: c_uint,
    pub(crate) handle: Handle,
    rest: [u64; 3],
}

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
pub(crate) struct LaunchParameters {
    function: Object,
    sizes: [c_uint; 7],
    pub(crate) stream: Stream,
    parameters: *mut *mut c_void,
}

const _: () =
    assert!(size_of::<LaunchParameters>() == 56 && core::mem::offset_of!(LaunchParameters, stream) == 40);

/// `CU_MEM_OPERATION_TYPE_MAP`.
pub(crate) const MAP: c_uint = 1;

const _: () = assert!(size_of::<AllocNode>() == 120 && core::mem::offset_of!(AllocNode, bytes) == 104);
const _: () = assert!(core::mem::offset_of!(NodeParameters, alloc) == 16);
const _: () =
    assert!(size_of::<ArrayMapping>() == 96 && core::mem::offset_of!(ArrayMapping, operation) == 56);
const _: () = assert!(size_of::<AllocationProperties>() == 32);
const _: () =
    assert!(size_of::<ArrayDescriptor<usize>>() == 24 && size_of::<Array3dDescriptor<usize>>() == 40);

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `…_MAX_THREADS_PER_MULTIPROCESSOR`.
pub(crate) const MULTIPROCESSORS: c_int = 16;
pub(crate) const THREADS_PER_MULTIPROCESSOR: c_int = 39;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
pub(crate) const LOCAL_BYTES: c_int = 3;
/// `CU_LIMIT_STACK_SIZE`, `CU_LIMIT_PRINTF_FIFO_SIZE`, `CU_LIMIT_MALLOC_HEAP_SIZE`.
pub(crate) const STACK: c_int = 0;
pub(crate) const PRINTF: c_int = 1;
pub(crate) const HEAP: c_int = 2;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
pub(crate) const POOL_RESERVED: c_int = 5;
/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` and `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
pub(crate) const GRAPHS_USED: c_int = 0;
pub(crate) const GRAPHS_RESERVED: c_int = 2;
