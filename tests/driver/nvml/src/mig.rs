//! MIG: the mode, the profiles and their placements. The instances are in `instances.rs`.

use alloc::vec::Vec;

use sim_node::fault::Fault;
use sim_node::mig::{Geometry, Profile};

use crate::abi::{Answer, Failure, Handle, code, padded, put, put_list, values};
use crate::session::Device;

pub(crate) fn geometry(device: &Device) -> Result<Geometry, Failure> {
    Geometry::from_number(device.gpu.mig_geometry).ok_or(Failure::NOT_SUPPORTED)
}

/// Whether an administrator has put the GPU into MIG mode.
fn is_enabled(device: &Device) -> bool {
    device.gpu.mig_enabled == 1 && device.state().fault(Fault::MigOff) == 0
}

/// The geometry of a GPU in MIG mode.
pub(crate) fn enabled_geometry(device: &Device) -> Result<Geometry, Failure> {
    if is_enabled(device) { geometry(device) } else { Err(Failure::NOT_SUPPORTED) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(device: Handle, current: *mut u32, pending: *mut u32) -> u32 {
    code(Device::of(device).and_then(|device| {
        geometry(&device)?;
        // SAFETY: the pointers are null or valid, as nvml.h demands of the caller.
        unsafe {
            put(current, is_enabled(&device).into())?;
            put(pending, is_enabled(&device).into())
        }
    }))
}

values! {
    nvmlDeviceGetMaxMigDeviceCount(u32) => |device| Ok(geometry(device).map_or(0, Geometry::most_devices));
}

fn profile(device: Handle, number: u32) -> Result<&'static Profile, Failure> {
    geometry(&Device::of(device)?)?.profile(number).ok_or(Failure::NOT_SUPPORTED)
}

/// A profile by the id that instances are created by.
pub(crate) fn profile_by_id(device: Handle, id: u32) -> Result<&'static Profile, Failure> {
    let profiles = enabled_geometry(&Device::of(device)?)?.profiles();
    profiles.iter().find(|profile| profile.id == id).ok_or(Failure::INVALID_ARGUMENT)
}

/// The numbers that every version of the struct holds.
#[repr(C)]
struct Counts {
    slices: u32,
    instances: u32,
    multiprocessors: u32,
    copy_engines: u32,
    decoders: u32,
    encoders: u32,
    jpeg: u32,
    ofa: u32,
}

impl Counts {
    fn of(profile: &Profile) -> Self {
        Self {
            slices: profile.slices,
            instances: profile.most,
            multiprocessors: profile.sms,
            copy_engines: profile.copy_engines,
            decoders: profile.decoders,
            encoders: 0,
            jpeg: profile.jpeg,
            ofa: profile.ofa,
        }
    }
}

/// `nvmlGpuInstanceProfileInfo_t`.
#[repr(C)]
struct ProfileInfo {
    id: u32,
    p2p: u32,
    counts: Counts,
    memory_mib: u64,
}

/// `nvmlGpuInstanceProfileInfo_v2_t`.
#[repr(C)]
struct ProfileInfoV2 {
    version: u32,
    id: u32,
    p2p: u32,
    counts: Counts,
    memory_mib: u64,
    name: [u8; 96],
}

/// `nvmlGpuInstanceProfileInfo_v3_t`.
#[repr(C)]
struct ProfileInfoV3 {
    version: u32,
    id: u32,
    counts: Counts,
    memory_mib: u64,
    name: [u8; 96],
    capabilities: u32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: Handle,
    number: u32,
    out: *mut ProfileInfo,
) -> u32 {
    code(profile(device, number).and_then(|profile| {
        let info = ProfileInfo {
            id: profile.id,
            p2p: 0,
            counts: Counts::of(profile),
            memory_mib: profile.memory_mib,
        };
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, info) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(device: Handle, number: u32, out: *mut u32) -> u32 {
    // SAFETY: `out` is null or valid for the struct that its version says, as nvml.h demands of the caller.
    code(profile(device, number).and_then(|profile| unsafe { put_profile(profile, out) }))
}

/// # Safety
/// `out` must be null or valid for the struct that its first field says.
unsafe fn put_profile(profile: &Profile, out: *mut u32) -> Answer {
    const V2: u32 = size_of::<ProfileInfoV2>() as u32 | 2 << 24;
    const V3: u32 = size_of::<ProfileInfoV3>() as u32 | 3 << 24;
    if out.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // The driver writes `MIG 1g.10gb`.
    let name = alloc::format!("MIG {}", profile.name);
    let name = padded(name.as_bytes());
    let (id, counts, memory_mib) = (profile.id, Counts::of(profile), profile.memory_mib);
    // SAFETY: not null; every version of the struct begins with its version.
    let version = unsafe { out.read() };
    match version {
        // SAFETY: the caller's struct is of this version.
        V2 => unsafe { put(out.cast(), ProfileInfoV2 { version, id, p2p: 0, counts, memory_mib, name }) },
        // SAFETY: the caller's struct is of this version.
        V3 => unsafe {
            put(out.cast(), ProfileInfoV3 { version, id, counts, memory_mib, name, capabilities: 0 })
        },
        _ => Err(Failure::ARGUMENT_VERSION_MISMATCH),
    }
}

/// `nvmlGpuInstancePlacement_t`, in memory slices.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Placement {
    pub(crate) start: u32,
    pub(crate) size: u32,
}

unsafe fn placements(device: Handle, id: u32, out: *mut Placement, count: *mut u32) -> Answer {
    let profile = profile_by_id(device, id)?;
    let all: Vec<_> = profile.starts.iter().map(|&start| Placement { start, size: profile.size }).collect();
    if out.is_null() {
        // SAFETY: handed on from the caller: without an array only the count is asked.
        return unsafe { put(count, all.len() as u32) };
    }
    // SAFETY: handed on from the caller.
    unsafe { put_list(count, out, &all) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements(
    device: Handle,
    id: u32,
    out: *mut Placement,
    count: *mut u32,
) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { placements(device, id, out, count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: Handle,
    id: u32,
    out: *mut Placement,
    count: *mut u32,
) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { placements(device, id, out, count) })
}
