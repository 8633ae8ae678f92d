//! What is at the other end of an NVLink.
//!
//! The raw call: nvml-wrapper 0.13 has the driver write the answer into a copy, and always returns `Unknown`.

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU as IBM_NPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH,
};

/// The kind of device at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remote {
    Gpu,
    Switch,
    /// The processor of an IBM machine.
    Processor,
    /// The driver does not know, or does not know the call.
    Unknown,
}

/// Asks the driver about an active link. The PCI ids of a switch do not tell: some drivers answer zeroes for
/// them.
pub(super) fn remote(device: &Device<'_>, link: u32) -> Remote {
    let Ok(ask) = &device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType else { return Remote::Unknown };
    let mut kind = u32::MAX;
    // SAFETY: the function comes from the library that `device` keeps loaded and initialised and has the type
    // that nvml.h gives it; the handle is of this session, and `kind` outlives the call.
    let answer = unsafe { ask(device.handle(), link, &raw mut kind) };
    match kind {
        _ if answer != 0 => Remote::Unknown,
        GPU => Remote::Gpu,
        IBM_NPU => Remote::Processor,
        SWITCH => Remote::Switch,
        _ => Remote::Unknown,
    }
}
