//! Which GPUs there are and who they are.

use alloc::ffi::CString;
use alloc::format;
use core::ffi::{CStr, c_char, c_int};

use sim_node::config::Gpu;

use crate::abi::{Answer, Failure, Handle, check_version, code, padded, put, texts, values};
use crate::instances;
use crate::session::{Device, Session};

/// `NVML_BRAND_NVIDIA`: what data-centre GPUs have been since Ampere.
const BRAND_NVIDIA: u32 = 14;
/// `NVML_BUS_TYPE_PCIE`.
const BUS_TYPE_PCIE: u32 = 2;

unsafe fn count(out: *mut u32) -> Answer {
    // SAFETY: handed on from the caller.
    Session::current().and_then(|session| unsafe { put(out, session.devices().count() as u32) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount(out: *mut u32) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { count(out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut u32) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { count(out) })
}

/// Writes the handle of the GPU with that index.
///
/// # Safety
/// `out` must be null or valid.
pub(crate) unsafe fn handle_by_index(index: u32, out: *mut Handle) -> Answer {
    let found = Session::current()?.find(|device| device.index == index);
    let device = found.map_err(|_| Failure::INVALID_ARGUMENT)?;
    // SAFETY: as the caller promises.
    unsafe { put(out, device.handle()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex(index: u32, out: *mut Handle) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { handle_by_index(index, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: *mut Handle) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { handle_by_index(index, out) })
}

/// What a caller's text says.
///
/// # Safety
/// `text` must be null or NUL-terminated, and outlive what is returned.
unsafe fn text_of<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so NUL-terminated as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::INVALID_ARGUMENT)
}

/// Finds a GPU by a text that it is known by.
///
/// # Safety
/// `text` must be null or NUL-terminated, `out` null or valid.
unsafe fn handle_by(text: *const c_char, out: *mut Handle, fits: fn(&Gpu, &str) -> bool) -> Answer {
    // SAFETY: as the caller promises.
    let text = unsafe { text_of(text) }?;
    let device = Session::current()?.find(|device| fits(device.gpu, text))?;
    // SAFETY: as the caller promises.
    unsafe { put(out, device.handle()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut Handle) -> u32 {
    // SAFETY: as nvml.h demands of the caller.
    code(unsafe {
        handle_by(uuid, out, |gpu, text| gpu.uuid.as_str() == text)
            .or_else(|_| instances::handle_by_uuid(text_of(uuid)?).and_then(|handle| put(out, handle)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleBySerial(serial: *const c_char, out: *mut Handle) -> u32 {
    // SAFETY: as nvml.h demands of the caller.
    code(unsafe { handle_by(serial, out, |gpu, text| gpu.serial.as_str() == text) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId(address: *const c_char, out: *mut Handle) -> u32 {
    // SAFETY: as nvml.h demands of the caller.
    code(unsafe { handle_by(address, out, is_at) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, out: *mut Handle) -> u32 {
    // SAFETY: as nvml.h demands of the caller.
    code(unsafe { handle_by(address, out, is_at) })
}

/// `[domain:]bus:device.function`, hexadecimal, with as many zeros in front as one likes.
fn is_at(gpu: &Gpu, address: &str) -> bool {
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let Some((slot, "0")) = address.rsplit_once('.') else { return false };
    let mut parts = slot.rsplit(':').map(number);
    parts.next() == Some(Some(gpu.pci_device))
        && parts.next() == Some(Some(gpu.pci_bus))
        && parts.next().unwrap_or(Some(0)) == Some(gpu.pci_domain)
        && parts.next().is_none()
}

/// The address as NVML writes it; the older structs have four digits of domain.
fn address(gpu: &Gpu, domain_digits: usize) -> CString {
    let (domain, bus, device) = (gpu.pci_domain, gpu.pci_bus, gpu.pci_device);
    CString::new(format!("{domain:0domain_digits$X}:{bus:02X}:{device:02X}.0")).unwrap_or_default()
}

texts! {
    nvmlDeviceGetName(text) => instances::name;
    nvmlDeviceGetUUID(text) => instances::uuid;
    nvmlDeviceGetSerial(text) => |device| device.gpu.serial.as_cstr().into();
    nvmlDeviceGetVbiosVersion(text) => |_| c"00.00.00.00.00".into();
    nvmlDeviceGetBoardPartNumber(text) => |_| c"000-00000-0000-000".into();
    nvmlDeviceGetInforomImageVersion(text) => |_| c"0000.0000.00.00".into();
}

values! {
    nvmlDeviceGetIndex(u32) => |device| Ok(instances::index(device));
    nvmlDeviceGetMinorNumber(u32) => |device| Ok(device.gpu.minor);
    nvmlDeviceGetModuleId(u32) => |device| Ok(device.number as u32 + 1);
    nvmlDeviceGetBoardId(u32) => |device| Ok(device.gpu.pci_bus << 8);
    nvmlDeviceGetMultiGpuBoard(u32) => |_| Ok(0);
    nvmlDeviceGetBrand(u32) => |_| Ok(BRAND_NVIDIA);
    nvmlDeviceGetArchitecture(u32) => |device| Ok(device.gpu.architecture);
    nvmlDeviceGetBusType(u32) => |_| Ok(BUS_TYPE_PCIE);
    nvmlDeviceGetNumGpuCores(u32) => |device| Ok(device.gpu.sm_count * device.gpu.cores_per_sm);
    nvmlDeviceGetMemoryBusWidth(u32) => |device| Ok(device.gpu.bus_width);
    nvmlDeviceGetVirtualizationMode(u32) => |_| Ok(0);
    nvmlDeviceGetHostVgpuMode(u32) => |_| Err(Failure::NOT_SUPPORTED);
    nvmlDeviceIsMigDeviceHandle(u32) => |device| Ok(u32::from(device.mig.is_some()));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Handle,
    major: *mut c_int,
    minor: *mut c_int,
) -> u32 {
    code(Device::of(device).and_then(|device| {
        // SAFETY: the pointers are null or valid, as nvml.h demands of the caller.
        unsafe {
            put(major, device.gpu.capability_major as c_int)?;
            put(minor, device.gpu.capability_minor as c_int)
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceOnSameBoard(first: Handle, second: Handle, same: *mut c_int) -> u32 {
    code(Device::of(first).and_then(|first| {
        let second = Device::of(second)?;
        // SAFETY: `same` is null or valid, as nvml.h demands of the caller.
        unsafe { put(same, c_int::from(first.number == second.number)) }
    }))
}

/// `nvmlPciInfo_v2_t` without the reserved fields at its end, and the start of `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    pci_device_id: u32,
    pci_subsystem_id: u32,
}

/// `nvmlPciInfo_t` (version 3).
#[repr(C)]
pub(crate) struct PciInfoV3 {
    info: PciInfo,
    bus_id: [u8; 32],
}

/// `nvmlPciInfoExt_v1_t`.
#[repr(C)]
struct PciInfoExt {
    version: u32,
    domain: u32,
    bus: u32,
    device: u32,
    pci_device_id: u32,
    pci_subsystem_id: u32,
    base_class: u32,
    sub_class: u32,
    bus_id: [u8; 32],
}

fn pci_info(gpu: &Gpu) -> PciInfo {
    PciInfo {
        bus_id_legacy: padded(address(gpu, 4).to_bytes()),
        domain: gpu.pci_domain,
        bus: gpu.pci_bus,
        device: gpu.pci_device,
        pci_device_id: gpu.pci_id,
        pci_subsystem_id: gpu.pci_subsystem_id,
    }
}

pub(crate) fn pci_info_v3(gpu: &Gpu) -> PciInfoV3 {
    PciInfoV3 { info: pci_info(gpu), bus_id: padded(address(gpu, 8).to_bytes()) }
}

/// Of a device that is no GPU.
pub(crate) fn pci_info_of(domain: u32, bus: u32, device: u32, pci_device_id: u32) -> PciInfoV3 {
    let text = |digits: usize| format!("{domain:0digits$X}:{bus:02X}:{device:02X}.0");
    let info = PciInfo {
        bus_id_legacy: padded(text(4).as_bytes()),
        domain,
        bus,
        device,
        pci_device_id,
        pci_subsystem_id: pci_device_id,
    };
    PciInfoV3 { info, bus_id: padded(text(8).as_bytes()) }
}

values! {
    nvmlDeviceGetPciInfo(PciInfo) => |device| Ok(pci_info(device.gpu));
    nvmlDeviceGetPciInfo_v2(PciInfo) => |device| Ok(pci_info(device.gpu));
    nvmlDeviceGetPciInfo_v3(PciInfoV3) => |device| Ok(pci_info_v3(device.gpu));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfoExt(device: Handle, out: *mut PciInfoExt) -> u32 {
    /// PCI class of a 3D controller.
    const DISPLAY: u32 = 3;
    const THREE_D: u32 = 2;
    code(Device::of(device).and_then(|device| {
        let gpu = device.gpu;
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe {
            check_version(out, 1)?;
            put(
                out,
                PciInfoExt {
                    version: (*out).version,
                    domain: gpu.pci_domain,
                    bus: gpu.pci_bus,
                    device: gpu.pci_device,
                    pci_device_id: gpu.pci_id,
                    pci_subsystem_id: gpu.pci_subsystem_id,
                    base_class: DISPLAY,
                    sub_class: THREE_D,
                    bus_id: padded(address(gpu, 8).to_bytes()),
                },
            )
        }
    }))
}
