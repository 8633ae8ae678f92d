//! Memory limits by cgroup: functions of r615. A node has them if its description says so.

use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering;

use sim_node::partition::{MAX, inode};
use sim_node::state::Mapped;
use sim_node::sys;

use crate::abi::{Answer, Failure, Handle, code};
use crate::session::Device;

/// `nvmlSetMemoryLimits_v1_t`; bytes.
#[repr(C)]
struct Set {
    cgroup: *const c_char,
    soft: u64,
    hard: u64,
}

/// `nvmlGetMemoryLimits_v1_t`; bytes.
#[repr(C)]
struct Get {
    cgroup: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

/// The GPU, and the cgroup's path and inode.
///
/// # Safety
/// `cgroup` must be null or NUL-terminated, and outlive what is returned.
unsafe fn named<'a>(device: Handle, cgroup: *const c_char) -> Result<(Device, &'a str, u64), Failure> {
    let device = Device::of(device)?;
    if device.session.node.memory_limits == 0 || device.gpu.mig_enabled != 0 {
        return Err(Failure::NOT_SUPPORTED);
    }
    if cgroup.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so NUL-terminated as the caller promises.
    let path = unsafe { CStr::from_ptr(cgroup) }.to_str().map_err(|_| Failure::INVALID_ARGUMENT)?;
    Ok((device, path, inode(path).ok_or(Failure::OPERATING_SYSTEM)?))
}

unsafe fn set(device: Handle, limits: *const Set) -> Answer {
    // SAFETY: handed on from the caller: null or valid.
    let Set { cgroup, soft, hard } = unsafe { limits.as_ref() }.ok_or(Failure::INVALID_ARGUMENT)?;
    // SAFETY: as above.
    let (device, name, cgroup) = unsafe { named(device, *cgroup) }?;
    if !sys::is_root() {
        return Err(Failure::NO_PERMISSION);
    }
    if soft > hard || (*hard != MAX && *hard > device.gpu.memory_total) {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // Only to look at a node the state is mapped without write permission.
    let path = device.session.root.join("run/nvidia-sim/state");
    let mapped = Mapped::open(&path, true).map_err(|_| Failure::NO_PERMISSION)?;
    let done = mapped.state.gpus[device.number].set_limit(cgroup, name, *soft, *hard);
    if done { Ok(()) } else { Err(Failure::INSUFFICIENT_RESOURCES) }
}

unsafe fn get(device: Handle, limits: *mut Get) -> Answer {
    // SAFETY: handed on from the caller: null or valid.
    let limits = unsafe { limits.as_mut() }.ok_or(Failure::INVALID_ARGUMENT)?;
    // SAFETY: as above.
    let (device, _, cgroup) = unsafe { named(device, limits.cgroup) }?;
    let mapped = device.session.onlooker.mapped();
    let gpu = &mapped.state.gpus[device.number];
    let limit = gpu.limit(cgroup);
    limits.soft = limit.map_or(0, |limit| limit.soft.load(Ordering::Acquire));
    limits.hard = limit.map_or(MAX, |limit| limit.hard.load(Ordering::Acquire));
    limits.used = gpu.used_in(mapped.state, cgroup, mapped.slots());
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetMemoryLimits_v1(device: Handle, limits: *const Set) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { set(device, limits) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryLimits_v1(device: Handle, limits: *mut Get) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { get(device, limits) })
}
