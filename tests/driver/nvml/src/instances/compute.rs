//! Compute instances: at most one in each GPU instance.

use alloc::format;

use sim_node::fault::Fault;
use sim_node::instances::{self, Instance, capability_minor};

use super::{
    COMPUTE_INSTANCES, GPU_INSTANCES, MIG_DEVICES, capability_folder, change, compute_instance, gpu_instance,
    handle_in, hide, show,
};
use crate::abi::{Answer, Failure, Handle, check_version, code, padded, put, put_list};
use crate::mig::Placement;

/// The kinds of compute instances: number, which is the id as well, and slices.
const COMPUTE_PROFILES: [(u32, u32); 5] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7)];

fn compute_slices(instance: &Instance, number: u32) -> Result<u32, Failure> {
    let known = COMPUTE_PROFILES.iter().find(|(known, _)| *known == number);
    let &(_, slices) = known.ok_or(Failure::INVALID_ARGUMENT)?;
    if slices <= instance.profile.slices { Ok(slices) } else { Err(Failure::NOT_SUPPORTED) }
}

/// `nvmlComputeInstanceProfileInfo_t`.
#[repr(C)]
struct ComputeProfileInfo {
    id: u32,
    slices: u32,
    instances: u32,
    multiprocessors: u32,
    engines: [u32; 5],
}

fn compute_profile(instance: &Instance, number: u32) -> Result<ComputeProfileInfo, Failure> {
    let profile = instance.profile;
    let slices = compute_slices(instance, number)?;
    Ok(ComputeProfileInfo {
        id: number,
        slices,
        instances: profile.slices / slices,
        multiprocessors: profile.sms * slices / profile.slices,
        engines: [profile.copy_engines, profile.decoders, 0, profile.jpeg, profile.ofa],
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance: Handle,
    number: u32,
    engines: u32,
    out: *mut ComputeProfileInfo,
) -> u32 {
    code(gpu_instance(instance).and_then(|(_, instance)| {
        if engines != 0 {
            return Err(Failure::INVALID_ARGUMENT);
        }
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, compute_profile(&instance, number)?) }
    }))
}

/// `nvmlComputeInstanceProfileInfo_v2_t`.
#[repr(C)]
struct ComputeProfileInfoV2 {
    version: u32,
    info: ComputeProfileInfo,
    name: [u8; 96],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    instance: Handle,
    number: u32,
    engines: u32,
    out: *mut ComputeProfileInfoV2,
) -> u32 {
    code(gpu_instance(instance).and_then(|(_, instance)| {
        if engines != 0 {
            return Err(Failure::INVALID_ARGUMENT);
        }
        let info = compute_profile(&instance, number)?;
        let name = match info.slices == instance.profile.slices {
            true => format!("MIG {}", instance.profile.name),
            false => format!("MIG {}c.{}", info.slices, instance.profile.name),
        };
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe {
            check_version(out, 2)?;
            put(out, ComputeProfileInfoV2 { version: (*out).version, info, name: padded(name.as_bytes()) })
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstances(
    instance: Handle,
    number: u32,
    out: *mut Handle,
    count: *mut u32,
) -> u32 {
    code(gpu_instance(instance).and_then(|(device, instance)| {
        let slices = compute_slices(&instance, number)?;
        let there = instance.compute.is_some_and(|compute| compute.slices == slices);
        let handle = handle_in(&COMPUTE_INSTANCES, device.number, instance.cell);
        // SAFETY: the pointers are as nvml.h demands of the caller.
        unsafe { put_list(count, out, if there { core::slice::from_ref(&handle) } else { &[] }) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceById(
    instance: Handle,
    id: u32,
    out: *mut Handle,
) -> u32 {
    code(gpu_instance(instance).and_then(|(device, instance)| {
        instance.compute.filter(|_| id == 0).ok_or(Failure::NOT_FOUND)?;
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, handle_in(&COMPUTE_INSTANCES, device.number, instance.cell)) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    instance: Handle,
    number: u32,
    out: *mut Handle,
) -> u32 {
    code(gpu_instance(instance).and_then(|(device, instance)| {
        let slices = compute_slices(&instance, number)?;
        change(&device, Fault::MigCreateCompute)?;
        instances::create_compute(&device.session.writer()?, device.number, instance.cell, slices)?;
        let folder = format!("{}/ci0", capability_folder(&device, &instance));
        show(&device, &folder, capability_minor(device.gpu.minor, instance.id, Some(0)));
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, handle_in(&COMPUTE_INSTANCES, device.number, instance.cell)) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlComputeInstanceDestroy(compute: Handle) -> u32 {
    code(compute_instance(compute).and_then(|(device, instance)| {
        change(&device, Fault::MigDestroyCompute)?;
        instances::destroy_compute(&device.session.writer()?, device.number, instance.cell)?;
        hide(&device, &format!("{}/ci0", capability_folder(&device, &instance)));
        Ok(())
    }))
}

/// `nvmlComputeInstanceInfo_t`. Its device is the MIG device.
#[repr(C)]
struct ComputeInstanceInfo {
    device: Handle,
    gpu_instance: Handle,
    id: u32,
    profile: u32,
    placement: Placement,
}

unsafe fn compute_info(compute: Handle, out: *mut ComputeInstanceInfo) -> Answer {
    let (device, instance) = compute_instance(compute)?;
    let slices = instance.compute.map_or(0, |compute| compute.slices);
    let number = COMPUTE_PROFILES.iter().find(|(_, known)| *known == slices).map_or(0, |(number, _)| *number);
    let info = ComputeInstanceInfo {
        device: handle_in(&MIG_DEVICES, device.number, instance.cell),
        gpu_instance: handle_in(&GPU_INSTANCES, device.number, instance.cell),
        id: 0,
        profile: number,
        placement: Placement { start: 0, size: slices },
    };
    // SAFETY: handed on from the caller.
    unsafe { put(out, info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlComputeInstanceGetInfo(compute: Handle, out: *mut ComputeInstanceInfo) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { compute_info(compute, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlComputeInstanceGetInfo_v2(compute: Handle, out: *mut ComputeInstanceInfo) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { compute_info(compute, out) })
}
