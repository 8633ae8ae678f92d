//! Which GPUs there are and what they are like.

use alloc::ffi::CString;
use alloc::format;
use core::ffi::{CStr, c_char};

use sim_node::config::Gpu;

use crate::abi::{Answer, Failure, api, get, put, put_text};
use crate::driver::Driver;

fn gpu(ordinal: i32) -> Result<&'static Gpu, Failure> {
    Driver::get()?.gpu(ordinal).map(|(_, gpu)| gpu)
}

fn pci_address(gpu: &Gpu) -> CString {
    let address = format!("{:04X}:{:02X}:{:02X}.0", gpu.pci_domain, gpu.pci_bus, gpu.pci_device);
    CString::new(address).unwrap_or_default()
}

unsafe fn by_pci_address(out: *mut i32, address: *const c_char) -> Answer {
    // SAFETY: handed on from the caller: null or NUL-terminated.
    let wanted = unsafe { get(address).map(|_| CStr::from_ptr(address)) }?.to_bytes();
    let gpus = &Driver::get()?.gpus;
    let ordinal = gpus.iter().position(|(_, gpu)| {
        let own = pci_address(gpu);
        // The domain may be left out.
        own.to_bytes().eq_ignore_ascii_case(wanted) || own.to_bytes()[5..].eq_ignore_ascii_case(wanted)
    });
    // SAFETY: handed on from the caller.
    unsafe { put(out, ordinal.ok_or(Failure::INVALID_DEVICE)? as i32) }
}

/// What differs between generations.
pub(crate) struct Generation {
    /// Bytes of shared memory of a multiprocessor.
    pub(crate) shared: i32,
    /// Blocks launched together as a cluster, and the tensor memory accelerator.
    has_clusters: bool,
    /// Bytes of the level-2 cache that may be set aside, of so many in all.
    persisting: (i64, i64),
}

/// By compute capability, as NVIDIA's documents and `deviceQuery` on such GPUs say.
pub(crate) fn generation(gpu: &Gpu) -> Generation {
    match gpu.capability_major {
        ..=8 => Generation { shared: 164 << 10, has_clusters: false, persisting: (3, 4) },
        _ => Generation { shared: 228 << 10, has_clusters: true, persisting: (5, 8) },
    }
}

/// Bytes of shared memory in each block that are the driver's.
pub(crate) const RESERVED_SHARED: i32 = 1 << 10;

/// `CUdevice_attribute`: what an A100 and an H100 say. Those that are not listed are 0: not supported.
fn attribute(gpu: &Gpu, attribute: i32) -> Result<i32, Failure> {
    /// One more than the highest attribute that any version knows, that of CUDA 13.5.
    const END: i32 = 162;
    let generation = generation(gpu);
    Ok(match attribute {
        // Threads per block, block dimensions.
        1..=3 => 1024,
        4 => 64,
        // Grid dimensions.
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Shared memory per block, constant memory, warp size, pitch, registers per block.
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 64 << 10,
        // Clocks are in kHz.
        13 => gpu.sm_clock as i32 * 1000,
        36 => gpu.memory_clock as i32 * 1000,
        // Alignment of textures and surfaces, and of pitched textures.
        14 | 30 => 512,
        51 => 32,
        16 => gpu.sm_count as i32,
        // Overlapping copies, mapped host memory, concurrent kernels, ECC, unified addresses, gathers.
        15 | 19 | 31 | 32 | 41 | 44 => 1,
        33 => gpu.pci_bus as i32,
        34 => gpu.pci_device as i32,
        50 => gpu.pci_domain as i32,
        37 => gpu.bus_width as i32,
        38 => gpu.l2_cache as i32,
        39 => THREADS_PER_SM as i32,
        // Copy engines.
        40 => 3,
        // Textures and surfaces: of one dimension, of two, of three, layers, cubes.
        21 | 22 | 56 | 70 => 128 << 10,
        23 | 57 => 64 << 10,
        24..=26 | 58..=60 => 16 << 10,
        27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => 32 << 10,
        29 | 43 | 62 | 65 => 2048,
        47 | 48 => 8192,
        54 | 68 => 2046,
        69 => 1 << 28,
        71 => 65_000,
        72 => 2_097_120,
        75 => gpu.capability_major as i32,
        76 => gpu.capability_minor as i32,
        // Stream priorities, caching, managed memory and its concurrent use, preemption, host pointers of
        // registered memory, cooperative launches of one and several, host registration, virtual memory
        // management and its descriptors, compression, GPUDirect of it, sparse arrays, read-only
        // registration, timeline semaphores, memory pools, GPUDirect and its flushes, pools in descriptors,
        // deferred mappings, 64-bit stream operations, dma_buf, events between processes, unified function
        // pointers.
        78..=80 | 83 | 89..=91 | 95 | 96 | 99 | 102 | 103 | 107 | 110 | 112..=117 | 119 | 121..=125 | 129 => {
            1
        }
        // Single to double precision.
        87 => 2,
        // Shared memory per multiprocessor and, opted in, per block.
        81 => generation.shared,
        97 => generation.shared - RESERVED_SHARED,
        106 => BLOCKS_PER_SM as i32,
        108 => {
            let (part, whole) = generation.persisting;
            (i64::from(gpu.l2_cache) * part / whole) as i32
        }
        // Bytes of the largest access policy window.
        109 => 134_213_632,
        111 => RESERVED_SHARED,
        // Order of GPUDirect's writes: the owner's.
        118 => 100,
        120 | 127 => generation.has_clusters.into(),
        126 => {
            if generation.has_clusters {
                4
            } else {
                1
            }
        }
        // NUMA nodes of its own memory, and of the host's beside it.
        131 => -1,
        134 => gpu.numa_node,
        139 => gpu.pci_id as i32,
        140 => gpu.pci_subsystem_id as i32,
        _ if (1..END).contains(&attribute) => 0,
        _ => return Err(Failure::INVALID_VALUE),
    })
}

/// Threads that a multiprocessor holds.
pub(crate) const THREADS_PER_SM: u64 = 2048;
/// Blocks that a multiprocessor holds.
pub(crate) const BLOCKS_PER_SM: u64 = 32;

unsafe fn compute_capability(major: *mut i32, minor: *mut i32, ordinal: i32) -> Answer {
    let gpu = gpu(ordinal)?;
    // SAFETY: handed on from the caller.
    unsafe {
        put(major, gpu.capability_major as i32)?;
        put(minor, gpu.capability_minor as i32)
    }
}

api! {
    cuDeviceGetCount(out: *mut i32) => put(out, Driver::get()?.gpus.len() as i32);
    cuDeviceGet(out: *mut i32, ordinal: i32) => gpu(ordinal).and_then(|_| put(out, ordinal));
    cuDeviceGetName(out: *mut c_char, length: i32, ordinal: i32) =>
        put_text(out, length, gpu(ordinal)?.name.as_cstr());
    cuDeviceGetUuid(out: *mut [u8; 16], ordinal: i32) => put(out, gpu(ordinal)?.uuid_bytes);
    cuDeviceGetUuid_v2(out: *mut [u8; 16], ordinal: i32) => put(out, gpu(ordinal)?.uuid_bytes);
    cuDeviceTotalMem_v2(out: *mut usize, ordinal: i32) => put(out, gpu(ordinal)?.usable() as usize);
    cuDeviceTotalMem(out: *mut u32, ordinal: i32) =>
        put(out, u32::try_from(gpu(ordinal)?.usable()).unwrap_or(u32::MAX));
    cuDeviceGetAttribute(out: *mut i32, wanted: i32, ordinal: i32) =>
        put(out, attribute(gpu(ordinal)?, wanted)?);
    cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, ordinal: i32) =>
        compute_capability(major, minor, ordinal);
    cuDeviceGetPCIBusId(out: *mut c_char, length: i32, ordinal: i32) =>
        put_text(out, length, &pci_address(gpu(ordinal)?));
    cuDeviceGetByPCIBusId(out: *mut i32, address: *const c_char) => by_pci_address(out, address);
    cuDeviceCanAccessPeer(out: *mut i32, one: i32, other: i32) =>
        gpu(one).and_then(|_| gpu(other)).and_then(|_| put(out, 0));
    cuDeviceGetP2PAttribute(out: *mut i32, _attribute: i32, one: i32, other: i32) =>
        gpu(one).and_then(|_| gpu(other)).and_then(|_| put(out, 0));
    cuDeviceGetExecAffinitySupport(out: *mut i32, _kind: i32, ordinal: i32) =>
        gpu(ordinal).and_then(|_| put(out, 0));
    cuCtxEnablePeerAccess(_context: usize, _flags: u32) => Err(Failure::PEER_ACCESS_UNSUPPORTED);
}
