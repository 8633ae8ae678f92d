//! NVLinks: two GPUs of a group are linked directly, more of them over switches.

use sim_node::config::Gpu;

use crate::abi::{Answer, Failure, Handle, code, put};
use crate::identity::{PciInfoV3, pci_info_of, pci_info_v3};
use crate::session::Device;

/// `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: u32 = 18;
/// `nvmlEnableState_t`.
const DISABLED: u32 = 0;
const ENABLED: u32 = 1;
/// `nvmlIntNvLinkDeviceType_t`.
const TYPE_GPU: u32 = 0;
const TYPE_SWITCH: u32 = 2;
/// Bus of the first of four switches; GPUs are below it.
const SWITCH_BUS: u32 = 0xF0;
/// PCI device and vendor id of a switch of the third generation.
const SWITCH_ID: u32 = 0x22A3_10DE;

/// Whether two different GPUs reach each other over NVLinks.
pub(crate) fn linked(one: &Gpu, other: &Gpu) -> bool {
    one.nvlinks > 0 && other.nvlinks > 0 && one.nvlink_group == other.nvlink_group
}

/// What is at the other end of a link.
enum Remote {
    Gpu(&'static Gpu),
    Switch(u32),
}

/// The other end of an active link; `None`: the link is there and nothing is at its end.
fn remote(device: &Device, link: u32) -> Result<Option<Remote>, Failure> {
    if link >= MOST_LINKS {
        return Err(Failure::INVALID_ARGUMENT);
    }
    if device.gpu.nvlinks == 0 {
        return Err(Failure::NOT_SUPPORTED);
    }
    // Of the node and not of the process: hiding a GPU cuts no cable.
    let all = device.session.node.gpus().iter().enumerate();
    let mut others = all.filter(|(number, gpu)| *number != device.number && linked(device.gpu, gpu));
    Ok(match (others.next(), others.next()) {
        _ if link >= device.gpu.nvlinks => None,
        (None, _) => None,
        (Some((_, other)), None) => (link < other.nvlinks).then_some(Remote::Gpu(other)),
        (Some(_), Some(_)) => Some(Remote::Switch(link % 4)),
    })
}

/// The other end of a link that is active.
fn active(handle: Handle, link: u32) -> Result<Remote, Failure> {
    remote(&Device::of(handle)?, link)?.ok_or(Failure::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(device: Handle, link: u32, out: *mut u32) -> u32 {
    code(Device::of(device).and_then(|device| {
        let state = if remote(&device, link)?.is_some() { ENABLED } else { DISABLED };
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, state) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: u32, out: *mut u32) -> u32 {
    code(active(device, link).and_then(|remote| {
        let kind = if matches!(remote, Remote::Gpu(_)) { TYPE_GPU } else { TYPE_SWITCH };
        // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
        unsafe { put(out, kind) }
    }))
}

/// Both versions write an `nvmlPciInfo_t`.
unsafe fn remote_pci_info(device: Handle, link: u32, out: *mut PciInfoV3) -> Answer {
    let info = match active(device, link)? {
        Remote::Gpu(gpu) => pci_info_v3(gpu),
        Remote::Switch(number) => pci_info_of(0, SWITCH_BUS + number, 0, SWITCH_ID),
    };
    // SAFETY: handed on from the caller.
    unsafe { put(out, info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: Handle,
    link: u32,
    out: *mut PciInfoV3,
) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(unsafe { remote_pci_info(device, link, out) })
}
