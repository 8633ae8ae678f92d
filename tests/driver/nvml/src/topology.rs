//! How the GPUs, the processors and the memory of the node hang together.

use alloc::vec::Vec;

use crate::abi::{Answer, Failure, Handle, code, put, put_list};
use crate::nvlink;
use crate::session::{Device, Session};

/// `nvmlGpuTopologyLevel_t`.
const INTERNAL: u32 = 0;
const NODE: u32 = 40;
const SYSTEM: u32 = 50;

/// GPUs of a NUMA node share its host bridges; the others are reached across the processors.
fn level(first: &Device, second: &Device) -> u32 {
    match () {
        () if first.number == second.number => INTERNAL,
        () if first.gpu.numa_node == second.gpu.numa_node => NODE,
        () => SYSTEM,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    first: Handle,
    second: Handle,
    out: *mut u32,
) -> u32 {
    code(Device::of(first).and_then(|first| {
        let second = Device::of(second)?;
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, level(&first, &second)) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyNearestGpus(
    device: Handle,
    wanted: u32,
    count: *mut u32,
    out: *mut Handle,
) -> u32 {
    code(Device::of(device).and_then(|device| {
        let others = device.session.devices().filter(|other| other.number != device.number);
        let near: Vec<Handle> =
            others.filter(|other| level(&device, other) == wanted).map(|other| other.handle()).collect();
        // SAFETY: the pointers are as nvml.h demands of the caller.
        unsafe { put_list(count, out, &near) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetTopologyGpuSet(_cpu: u32, count: *mut u32, out: *mut Handle) -> u32 {
    code(Session::current().and_then(|session| {
        let all: Vec<Handle> = session.devices().map(|device| device.handle()).collect();
        // SAFETY: the pointers are as nvml.h demands of the caller.
        unsafe { put_list(count, out, &all) }
    }))
}

/// GPUs of one node reach each other's memory, over NVLink if they have it in common.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetP2PStatus(first: Handle, second: Handle, index: u32, out: *mut u32) -> u32 {
    const NVLINK: u32 = 2;
    const OK: u32 = 0;
    const NOT_SUPPORTED: u32 = 5;
    code(Device::of(first).and_then(|first| {
        let second = Device::of(second)?;
        let linked = first.number != second.number && nvlink::linked(first.gpu, second.gpu);
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, if index == NVLINK && !linked { NOT_SUPPORTED } else { OK }) }
    }))
}

/// Writes a bit set of 64-bit words, padded with zeros.
///
/// # Safety
/// `out` must be null or valid for `words` words.
unsafe fn put_bits(words: u32, out: *mut u64, bits: &[u64]) -> Answer {
    if out.is_null() || words == 0 {
        return Err(Failure::INVALID_ARGUMENT);
    }
    for word in 0..words as usize {
        // SAFETY: below the number of words.
        unsafe { out.add(word).write(bits.get(word).copied().unwrap_or(0)) };
    }
    Ok(())
}

/// Every processor that this process may run on is as near as any other.
unsafe fn cpu_affinity(device: Handle, words: u32, out: *mut u64) -> Answer {
    Device::of(device)?;
    // SAFETY: handed on from the caller.
    unsafe { put_bits(words, out, &sim_node::sys::allowed_cpus()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCpuAffinity(device: Handle, words: u32, out: *mut u64) -> u32 {
    // SAFETY: `out` is valid for `words` words, as nvml.h demands of the caller.
    code(unsafe { cpu_affinity(device, words, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCpuAffinityWithinScope(
    device: Handle,
    words: u32,
    out: *mut u64,
    _scope: u32,
) -> u32 {
    // SAFETY: `out` is valid for `words` words, as nvml.h demands of the caller.
    code(unsafe { cpu_affinity(device, words, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: Handle,
    words: u32,
    out: *mut u64,
    _scope: u32,
) -> u32 {
    code(Device::of(device).and_then(|device| {
        let node = u32::try_from(device.gpu.numa_node).map_err(|_| Failure::NOT_SUPPORTED)?;
        let mut bits = [0; 4];
        *bits.get_mut(node as usize / 64).ok_or(Failure::NOT_SUPPORTED)? = 1 << (node % 64);
        // SAFETY: `out` is valid for `words` words, as nvml.h demands of the caller.
        unsafe { put_bits(words, out, &bits) }
    }))
}
