//! What processes do on a GPU: samples of their use, and accounts. As the real driver's they are of the whole
//! GPU.

use alloc::vec::Vec;
use core::ffi::c_void;

use crate::abi::{Answer, Failure, Handle, check_version, code, put, put_list};
use crate::session::Device;

/// A process that has kernels on a GPU, and percent of the GPU's time that are its.
struct Busy {
    pid: u32,
    percent: u32,
}

/// The GPU is time-sliced evenly among those that have something to do.
fn busy(device: &Device) -> Vec<Busy> {
    let users = device.session.onlooker.users(device.number);
    let working = users.iter().filter(|user| user.submitted > user.served && user.pid != 0);
    let working: Vec<u32> = working.map(|user| user.pid).collect();
    let percent = 100 / working.len().max(1) as u32;
    working.into_iter().map(|pid| Busy { pid, percent }).collect()
}

fn microseconds() -> u64 {
    sim_node::sys::now() / 1000
}

/// `nvmlProcessUtilizationSample_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sample {
    pid: u32,
    time: u64,
    sm: u32,
    memory: u32,
    encoder: u32,
    decoder: u32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: Handle,
    out: *mut Sample,
    count: *mut u32,
    _since: u64,
) -> u32 {
    code(Device::of(device).and_then(|device| {
        let entry = |it: &Busy| Sample {
            pid: it.pid,
            time: microseconds(),
            sm: it.percent,
            memory: it.percent / 2,
            encoder: 0,
            decoder: 0,
        };
        let samples: Vec<_> = busy(&device).iter().map(entry).collect();
        if samples.is_empty() {
            return Err(Failure::NOT_FOUND);
        }
        // SAFETY: `out` is null or has room for `count`, as nvml.h demands of the caller.
        unsafe { put_list(count, out, &samples) }
    }))
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Info {
    time: u64,
    pid: u32,
    percents: [u32; 6],
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
struct InfoList {
    version: u32,
    count: u32,
    since: u64,
    entries: *mut Info,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetProcessesUtilizationInfo(device: Handle, out: *mut InfoList) -> u32 {
    code(Device::of(device).and_then(|device| {
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        let list = unsafe {
            check_version(out, 1)?;
            &mut *out
        };
        let entry = |it: &Busy| Info {
            time: microseconds(),
            pid: it.pid,
            percents: [it.percent, it.percent / 2, 0, 0, 0, 0],
        };
        let entries: Vec<_> = busy(&device).iter().map(entry).collect();
        if entries.is_empty() {
            return Err(Failure::NOT_FOUND);
        }
        // SAFETY: the list's array has room for its count, as nvml.h demands of the caller.
        unsafe { put_list(&mut list.count, list.entries, &entries) }
    }))
}

unsafe fn accounted(device: Handle, count: *mut u32, out: *mut u32) -> Answer {
    let device = Device::of(device)?;
    let users = device.session.onlooker.users(device.number);
    let pids: Vec<u32> = users.iter().map(|user| user.pid).filter(|&pid| pid != 0).collect();
    // SAFETY: handed on from the caller.
    unsafe { put_list(count, out, &pids) }
}

/// Accounts are kept of the living alone.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetAccountingPids(device: Handle, count: *mut u32, out: *mut u32) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { accounted(device, count, out) })
}

/// `nvmlAccountingStats_t`.
#[repr(C)]
struct Stats {
    gpu: u32,
    memory: u32,
    most: u64,
    time: u64,
    start: u64,
    is_running: u32,
    reserved: [u32; 5],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetAccountingStats(device: Handle, pid: u32, out: *mut Stats) -> u32 {
    code(Device::of(device).and_then(|device| {
        let users = device.session.onlooker.users(device.number);
        let user = users.iter().find(|user| user.pid == pid).ok_or(Failure::NOT_FOUND)?;
        let stats =
            Stats { gpu: 1, memory: 1, most: user.used, time: 0, start: 0, is_running: 1, reserved: [0; 5] };
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, stats) }
    }))
}

/// No samples are kept.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSamples(
    device: Handle,
    _kind: u32,
    _since: u64,
    _type: *mut u32,
    _count: *mut u32,
    _out: *mut c_void,
) -> u32 {
    code(Device::of(device).and(Err(Failure::NOT_FOUND)))
}
