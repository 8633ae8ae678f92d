//! MIG instances: which there are, making and destroying them, and the MIG devices that a process may use.
//!
//! A process that may open `/dev/nvidia-caps/nvidia-cap1` (`config`) may make, destroy and list instances;
//! any other process sees the devices of which it can open both nodes.

use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;

use sim_node::config::MAX_GPUS;
use sim_node::devices;
use sim_node::fault::Fault;
use sim_node::instances::{self, Instance, MOST, Refusal, capability_minor};
use sim_node::mig::Geometry;
use sim_node::sys;

use crate::abi::{Answer, Failure, Handle, code, put, put_list, values};
use crate::mig::{Placement, enabled_geometry, geometry, profile_by_id};
use crate::session::{Device, Session};

mod compute;

/// Minor of the capability to change instances.
const CONFIG: u32 = 1;
/// Major of the capabilities' nodes, as `fgpu-sim install` has it in /proc/devices.
const CAPS_MAJOR: u32 = 507;
/// How often a call that takes long looks whether it still shall, in microseconds.
const STEP: u64 = 10_000;
/// Readable for everybody.
const CAP_MODE: u32 = 0o444;

/// Handles are the addresses of these bytes.
type Table = [[u8; MOST]; MAX_GPUS];
static GPU_INSTANCES: Table = [[0; MOST]; MAX_GPUS];
static COMPUTE_INSTANCES: Table = [[0; MOST]; MAX_GPUS];
static MIG_DEVICES: Table = [[0; MOST]; MAX_GPUS];

fn handle_in(table: &'static Table, gpu: usize, cell: usize) -> Handle {
    &raw const table[gpu][cell] as usize
}

/// The GPU and the cell of a handle.
fn place_in(table: &'static Table, handle: Handle) -> Option<(usize, usize)> {
    let offset = handle.checked_sub(&raw const *table as usize)?;
    (offset < MAX_GPUS * MOST).then_some((offset / MOST, offset % MOST))
}

/// The MIG device behind a handle.
pub(crate) fn device(handle: Handle) -> Result<Device, Failure> {
    let (number, cell) = place_in(&MIG_DEVICES, handle).ok_or(Failure::INVALID_ARGUMENT)?;
    let device = Session::current()?.find(|device| device.number == number)?;
    let instance = instances::instance(device.state(), geometry(&device)?, cell).ok_or(Failure::NOT_FOUND)?;
    Ok(Device { mig: Some(instance), ..device })
}

/// A GPU instance behind a handle; injected faults strike here.
fn gpu_instance(handle: Handle) -> Result<(Device, Instance), Failure> {
    of_handle(&GPU_INSTANCES, handle)
}

/// The GPU instance of the compute instance behind a handle.
fn compute_instance(handle: Handle) -> Result<(Device, Instance), Failure> {
    let (device, instance) = of_handle(&COMPUTE_INSTANCES, handle)?;
    instance.compute.ok_or(Failure::NOT_FOUND)?;
    Ok((device, instance))
}

fn of_handle(table: &'static Table, handle: Handle) -> Result<(Device, Instance), Failure> {
    let (number, cell) = place_in(table, handle).ok_or(Failure::INVALID_ARGUMENT)?;
    let device = Session::current()?.find(|device| device.number == number)?;
    device.session.strike(number)?;
    let instance = instances::instance(device.state(), geometry(&device)?, cell).ok_or(Failure::NOT_FOUND)?;
    Ok((device, instance))
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid => Self::INVALID_ARGUMENT,
            Refusal::Full => Self::INSUFFICIENT_RESOURCES,
            Refusal::InUse => Self::IN_USE,
            Refusal::Gone => Self::NOT_FOUND,
            Refusal::Unknown => Self::UNKNOWN,
        }
    }
}

/// Before an instance is made or destroyed: the right to, and injected faults.
fn change(device: &Device, fault: Fault) -> Answer {
    if !devices::capability_visible(device.session.root, CONFIG) {
        return Err(Failure::NO_PERMISSION);
    }
    let mut slept = 0;
    while slept < device.state().fault(Fault::MigDelay) {
        sys::sleep(STEP * 1000);
        slept += STEP;
    }
    match device.state().fault(fault) {
        0 => Ok(()),
        code => Err(Failure(code as u32)),
    }
}

/// Whether this process may use a MIG device.
fn is_visible(device: &Device, instance: &Instance) -> bool {
    let opens = |compute| {
        let minor = capability_minor(device.gpu.minor, instance.id, compute);
        devices::capability_visible(device.session.root, minor)
    };
    instance.compute.is_some() && opens(None) && opens(Some(0))
}

fn all(device: &Device, geometry: Geometry) -> Vec<Instance> {
    instances::instances(device.state(), geometry).collect()
}

/// The MIG devices that this process may use, in the order of their GPU instances' ids.
fn visible(device: &Device) -> Result<Vec<Instance>, Failure> {
    let mut found = all(device, enabled_geometry(device)?);
    found.retain(|instance| is_visible(device, instance));
    found.sort_by_key(|instance| instance.id);
    Ok(found)
}

/// The name of a GPU or of a MIG device.
pub(crate) fn name(device: &Device) -> CString {
    let name = device.gpu.name.as_str();
    let text = match &device.mig {
        None => name.into(),
        Some(instance) => format!("{name} MIG {}", instance.profile.name),
    };
    CString::new(text).unwrap_or_default()
}

/// The UUID of a GPU or of a MIG device. The latter says which making it is of: made again, it is another
/// one.
pub(crate) fn uuid(device: &Device) -> CString {
    let Some(instance) = &device.mig else { return device.gpu.uuid.as_cstr().into() };
    let serial = instance.compute.map_or(0, |compute| compute.serial);
    let mut bytes = device.gpu.uuid_bytes;
    bytes[4] ^= instance.id as u8;
    for (byte, of_serial) in bytes[8..].iter_mut().zip(serial.to_be_bytes()) {
        *byte ^= of_serial;
    }
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<alloc::string::String>();
    let parts = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex);
    CString::new(format!("MIG-{}", parts.join("-"))).unwrap_or_default()
}

/// The handle of the MIG device with that UUID, if this process may use it: `nvmlDeviceGetHandleByUUID` knows
/// these, too.
pub(crate) fn handle_by_uuid(text: &str) -> Result<Handle, Failure> {
    let has_it = |device: Device| {
        let of = |instance: &Instance| Device { mig: Some(*instance), ..device };
        let found = visible(&device)
            .ok()?
            .into_iter()
            .find(|instance| uuid(&of(instance)).to_bytes() == text.as_bytes())?;
        Some(handle_in(&MIG_DEVICES, device.number, found.cell))
    };
    Session::current()?.devices().find_map(has_it).ok_or(Failure::NOT_FOUND)
}

/// The index of a GPU in this process, or of a MIG device on its GPU.
pub(crate) fn index(device: &Device) -> u32 {
    let Some(instance) = &device.mig else { return device.index };
    let place = visible(device).ok().and_then(|all| all.iter().position(|other| other.cell == instance.cell));
    place.unwrap_or(0) as u32
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Handle,
    index: u32,
    out: *mut Handle,
) -> u32 {
    code(Device::of(device).and_then(|device| {
        // "Not supported" is of a GPU that has no MIG at all. NVIDIA's own go-nvlib asks each GPU that has
        // it, whatever its mode is, and goes on after "not found" only.
        geometry(&device)?;
        let found = visible(&device).unwrap_or_default();
        let instance = found.get(index as usize).ok_or(Failure::NOT_FOUND)?;
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, handle_in(&MIG_DEVICES, device.number, instance.cell)) }
    }))
}

fn mig(device: &Device) -> Result<Instance, Failure> {
    device.mig.ok_or(Failure::INVALID_ARGUMENT)
}

values! {
    nvmlDeviceGetGpuInstanceId(u32) => |device| Ok(mig(device)?.id);
    nvmlDeviceGetComputeInstanceId(u32) => |device| mig(device).map(|_| 0);
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle) => |device| mig(device).map(|_| device.handle());
    nvmlDeviceGetAttributes(Attributes) => attributes;
    nvmlDeviceGetAttributes_v2(Attributes) => attributes;
}

/// `nvmlDeviceAttributes_t`.
#[repr(C)]
struct Attributes {
    multiprocessors: u32,
    copy_engines: u32,
    decoders: u32,
    encoders: u32,
    jpeg: u32,
    ofa: u32,
    gpu_slices: u32,
    compute_slices: u32,
    memory_mib: u64,
}

fn attributes(device: &Device) -> Result<Attributes, Failure> {
    let instance = mig(device)?;
    let profile = instance.profile;
    Ok(Attributes {
        multiprocessors: profile.sms,
        copy_engines: profile.copy_engines,
        decoders: profile.decoders,
        encoders: 0,
        jpeg: profile.jpeg,
        ofa: profile.ofa,
        gpu_slices: profile.slices,
        compute_slices: instance.compute.map_or(0, |compute| compute.slices),
        memory_mib: profile.memory_mib,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    device: Handle,
    id: u32,
    out: *mut u32,
) -> u32 {
    code(profile_by_id(device, id).and_then(|profile| {
        let device = Device::of(device)?;
        let geometry = enabled_geometry(&device)?;
        let there = all(&device, geometry);
        let same = there.iter().filter(|other| other.profile.number == profile.number).count() as u32;
        let slices: u32 = there.iter().map(|other| other.profile.slices).sum();
        let free = profile.starts.iter().filter(|&&start| {
            there
                .iter()
                .all(|other| start >= other.start + other.profile.size || other.start >= start + profile.size)
        });
        let by_slices = geometry.slices().saturating_sub(slices) / profile.slices;
        let count = (free.count() as u32).min(profile.most.saturating_sub(same)).min(by_slices);
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, count) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    device: Handle,
    id: u32,
    out: *mut Handle,
    count: *mut u32,
) -> u32 {
    code(profile_by_id(device, id).and_then(|profile| {
        let device = Device::of(device)?;
        let mut found = all(&device, enabled_geometry(&device)?);
        let lists = devices::capability_visible(device.session.root, CONFIG);
        found.retain(|instance| {
            instance.profile.number == profile.number && (lists || is_visible(&device, instance))
        });
        let handles: Vec<_> =
            found.iter().map(|instance| handle_in(&GPU_INSTANCES, device.number, instance.cell)).collect();
        // SAFETY: the pointers are as nvml.h demands of the caller.
        unsafe { put_list(count, out, &handles) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceById(device: Handle, id: u32, out: *mut Handle) -> u32 {
    code(Device::of(device).and_then(|device| {
        let found = all(&device, enabled_geometry(&device)?);
        let instance = found.iter().find(|instance| instance.id == id).ok_or(Failure::NOT_FOUND)?;
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, handle_in(&GPU_INSTANCES, device.number, instance.cell)) }
    }))
}

/// `nvmlGpuInstanceInfo_t`.
#[repr(C)]
struct GpuInstanceInfo {
    device: Handle,
    id: u32,
    profile: u32,
    placement: Placement,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlGpuInstanceGetInfo(instance: Handle, out: *mut GpuInstanceInfo) -> u32 {
    code(gpu_instance(instance).and_then(|(device, instance)| {
        let info = GpuInstanceInfo {
            device: device.handle(),
            id: instance.id,
            profile: instance.profile.id,
            placement: Placement { start: instance.start, size: instance.profile.size },
        };
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, info) }
    }))
}

fn capability_folder(device: &Device, instance: &Instance) -> alloc::string::String {
    format!("proc/driver/nvidia/capabilities/gpu{}/mig/gi{}", device.gpu.minor, instance.id)
}

/// What the kernel module shows of a capability in /proc, and the node that NVML makes when root makes an
/// instance.
fn show(device: &Device, folder: &str, minor: u32) {
    let root = device.session.root;
    let mut path = alloc::string::String::new();
    for part in folder.split('/') {
        path = if path.is_empty() { part.into() } else { format!("{path}/{part}") };
        sys::make_folder(&root.join(&path));
    }
    let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: {CAP_MODE}\nDeviceFileModify: 1\n");
    // Without it the instance is there and nobody finds its minor; a test would notice.
    let _ = sys::write_file(&root.join(&format!("{folder}/access")), text.as_bytes(), CAP_MODE);
    let node = devices::path(root, &format!("nvidia-caps/nvidia-cap{minor}"));
    sys::make_node(&node, CAP_MODE, CAPS_MAJOR, minor);
}

fn hide(device: &Device, folder: &str) {
    let root = device.session.root;
    sys::remove(&root.join(&format!("{folder}/access")));
    sys::remove(&root.join(folder));
}

unsafe fn create(device: Handle, id: u32, place: Option<Placement>, out: *mut Handle) -> Answer {
    let profile = profile_by_id(device, id)?;
    let device = Device::of(device)?;
    let geometry = enabled_geometry(&device)?;
    change(&device, Fault::MigCreate)?;
    let mapped = device.session.writer()?;
    let wanted = place.filter(|place| place.size == profile.size);
    let starts = match (place, wanted) {
        (Some(_), None) => return Err(Failure::INVALID_ARGUMENT),
        (_, Some(place)) => alloc::vec![place.start],
        (None, None) => profile.starts.to_vec(),
    };
    let mut answer = Err(Refusal::Full);
    for start in starts {
        answer = instances::create(&mapped, device.number, geometry, profile, start);
        if answer.is_ok() {
            break;
        }
    }
    let cell = answer?;
    let instance = instances::instance(device.state(), geometry, cell).ok_or(Failure::NOT_FOUND)?;
    let minor = capability_minor(device.gpu.minor, instance.id, None);
    show(&device, &capability_folder(&device, &instance), minor);
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle_in(&GPU_INSTANCES, device.number, cell)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceCreateGpuInstance(device: Handle, id: u32, out: *mut Handle) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { create(device, id, None, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: Handle,
    id: u32,
    place: *const Placement,
    out: *mut Handle,
) -> u32 {
    // SAFETY: the pointers are null or valid, as nvml.h demands of the caller.
    code(unsafe {
        match place.as_ref() {
            None => Err(Failure::INVALID_ARGUMENT),
            Some(place) => create(device, id, Some(*place), out),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceDestroy(instance: Handle) -> u32 {
    code(gpu_instance(instance).and_then(|(device, instance)| {
        change(&device, Fault::MigDestroy)?;
        instances::destroy(&device.session.writer()?, device.number, instance.cell)?;
        hide(&device, &capability_folder(&device, &instance));
        Ok(())
    }))
}
