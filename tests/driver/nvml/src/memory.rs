//! Device memory and who uses it.

use alloc::vec::Vec;

use crate::abi::{Answer, Failure, Handle, check_version, code, put, put_list, values};
use crate::session::Device;

/// `nvmlMemory_t` and `nvmlBAR1Memory_t`, in bytes.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// What the two versions are computed from: total, reserved, used by processes, free.
fn memory(device: &Device) -> MemoryV2 {
    if let Some(instance) = &device.mig {
        let total = instance.profile.memory_mib << 20;
        return MemoryV2 { version: 0, total, reserved: 0, free: total, used: 0 };
    }
    let (total, reserved) = (device.gpu.memory_total, device.gpu.memory_reserved);
    let used = device.session.onlooker.used(device.number);
    MemoryV2 { version: 0, total, reserved, free: device.gpu.usable().saturating_sub(used), used }
}

values! {
    // Version 1 has no field for what the driver reserves and counts it as used.
    nvmlDeviceGetMemoryInfo(Memory) => |device| {
        let MemoryV2 { total, reserved, free, used, .. } = memory(device);
        Ok(Memory { total, free, used: used + reserved })
    };
    // The window is as large as the memory, rounded up to a power of two, and all that is in use is mapped in
    // it.
    nvmlDeviceGetBAR1MemoryInfo(Memory) => |device| {
        let total = device.gpu.memory_total.next_power_of_two();
        let used = memory(device).used + (1 << 20);
        Ok(Memory { total, free: total - used, used })
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Handle, out: *mut MemoryV2) -> u32 {
    code(Device::of(device).and_then(|device| {
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe {
            check_version(out, 2)?;
            put(out, MemoryV2 { version: (*out).version, ..memory(&device) })
        }
    }))
}

/// No GPU or compute instance.
const NO_INSTANCE: u32 = u32::MAX;

/// `nvmlProcessInfo_v1_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ProcessV1 {
    pid: u32,
    used: u64,
}

/// `nvmlProcessInfo_v2_t` and `_v3`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Process {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// A process that computes on a GPU.
pub(crate) struct ComputeProcess {
    pub(crate) pid: u32,
    /// Bytes.
    pub(crate) used: u64,
    pub(crate) name: alloc::ffi::CString,
}

/// The processes on a GPU that the caller can see: as with the real driver, one in a pid namespace that the
/// caller's does not contain is left out.
pub(crate) fn compute_processes(device: &Device) -> Vec<ComputeProcess> {
    let users = device.session.onlooker.users(device.number).into_iter();
    users
        .filter(|user| user.pid != 0)
        .map(|user| ComputeProcess { pid: user.pid, used: user.used, name: user.name.as_cstr().into() })
        .collect()
}

unsafe fn list_v1(device: Handle, count: *mut u32, out: *mut ProcessV1) -> Answer {
    let processes = compute_processes(&Device::of(device)?);
    let entries: Vec<_> = processes.iter().map(|p| ProcessV1 { pid: p.pid, used: p.used }).collect();
    // SAFETY: handed on from the caller.
    unsafe { put_list(count, out, &entries) }
}

unsafe fn list(device: Handle, count: *mut u32, out: *mut Process) -> Answer {
    let processes = compute_processes(&Device::of(device)?);
    let entry = |p: &ComputeProcess| Process {
        pid: p.pid,
        used: p.used,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    };
    // SAFETY: handed on from the caller.
    unsafe { put_list(count, out, &processes.iter().map(entry).collect::<Vec<_>>()) }
}

unsafe fn no_processes(device: Handle, count: *mut u32) -> Answer {
    Device::of(device)?;
    // SAFETY: handed on from the caller.
    unsafe { put_list::<u8>(count, core::ptr::null_mut(), &[]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: Handle,
    count: *mut u32,
    out: *mut ProcessV1,
) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { list_v1(device, count, out) })
}

/// Defines one function per name, for names that share a signature.
macro_rules! compute_lists {
    ($($name:ident(list) => compute;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Handle, count: *mut u32, out: *mut Process) -> u32 {
            // SAFETY: the pointers are as nvml.h demands of the caller.
            code(unsafe { list(device, count, out) })
        }
    )* };
}

/// Nothing draws on a simulated GPU and no MPS server runs there.
macro_rules! empty_lists {
    ($($name:ident(list) => empty;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Handle, count: *mut u32, _out: *mut u8) -> u32 {
            // SAFETY: the pointers are as nvml.h demands of the caller.
            code(unsafe { no_processes(device, count) })
        }
    )* };
}

compute_lists! {
    nvmlDeviceGetComputeRunningProcesses_v2(list) => compute;
    nvmlDeviceGetComputeRunningProcesses_v3(list) => compute;
}

empty_lists! {
    nvmlDeviceGetGraphicsRunningProcesses(list) => empty;
    nvmlDeviceGetGraphicsRunningProcesses_v2(list) => empty;
    nvmlDeviceGetGraphicsRunningProcesses_v3(list) => empty;
    nvmlDeviceGetMPSComputeRunningProcesses(list) => empty;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(list) => empty;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(list) => empty;
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
struct DetailList {
    version: u32,
    mode: u32,
    count: u32,
    entries: *mut Detail,
}

/// `nvmlProcessDetail_v1_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Detail {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
    protected: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRunningProcessDetailList(device: Handle, out: *mut DetailList) -> u32 {
    /// Mode of the list: compute, graphics, MPS.
    const COMPUTE: u32 = 0;
    const MODES: u32 = 3;
    code(Device::of(device).and_then(|device| {
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        let list = unsafe {
            check_version(out, 1)?;
            &mut *out
        };
        let processes = match list.mode {
            COMPUTE => compute_processes(&device),
            mode if mode < MODES => Vec::new(),
            _ => return Err(Failure::INVALID_ARGUMENT),
        };
        let entry = |p: &ComputeProcess| Detail {
            pid: p.pid,
            used: p.used,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            protected: 0,
        };
        // SAFETY: the list's array has room for its count, as nvml.h demands of the caller.
        unsafe { put_list(&mut list.count, list.entries, &processes.iter().map(entry).collect::<Vec<_>>()) }
    }))
}
