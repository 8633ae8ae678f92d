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

/// `CUdevice_attribute`. Those that are not listed are 0: not supported.
fn attribute(gpu: &Gpu, attribute: i32) -> Result<i32, Failure> {
    /// One more than the highest attribute that the version knows.
    const END: i32 = 135;
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
        14 => 512,
        16 => gpu.sm_count as i32,
        // Overlapping copies, mapped host memory, concurrent kernels, ECC, unified addresses.
        15 | 19 | 31 | 32 | 41 => 1,
        33 => gpu.pci_bus as i32,
        34 => gpu.pci_device as i32,
        50 => gpu.pci_domain as i32,
        37 => gpu.bus_width as i32,
        38 => gpu.l2_cache as i32,
        39 => THREADS_PER_SM as i32,
        // Copy engines.
        40 => 3,
        75 => gpu.capability_major as i32,
        76 => gpu.capability_minor as i32,
        // Stream priorities, caching, managed memory and its concurrent use, preemption, host pointers of
        // registered memory, cooperative launches, virtual memory management, memory pools.
        78..=80 | 83 | 89..=91 | 95 | 102 | 115 => 1,
        // Shared memory per multiprocessor and, opted in, per block.
        81 => 228 << 10,
        97 => 227 << 10,
        106 => BLOCKS_PER_SM as i32,
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
