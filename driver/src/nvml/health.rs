//! What changes of a GPU while the driver stays loaded: whether it answers, and what processes have on it.

use std::collections::BTreeMap;

use fgpu_spec::Gpu;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

/// What is in use of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InUse {
    /// Bytes, without what the driver keeps for itself.
    pub memory: u64,
    /// The processes that have memory on it, and how much, where the driver tells.
    pub processes: BTreeMap<u32, Option<u64>>,
}

/// Why a GPU was not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// It is lost, or must be reset: nothing can run on it.
    Unhealthy(String),
    /// It does not say. Nothing follows from that.
    Unknown(String),
}

/// Looks at a GPU of the inventory.
///
/// # Errors
/// [`Trouble`].
pub fn look(nvml: &Nvml, gpu: &Gpu) -> Result<InUse, Trouble> {
    let device = nvml.device_by_index(gpu.index).map_err(trouble)?;
    let uuid = device.uuid().map_err(trouble)?;
    if uuid != gpu.uuid {
        return Err(Trouble::Unknown(format!("NVML has GPU {uuid} in its place")));
    }
    let memory = super::used(nvml, &device).map_err(trouble)?.saturating_sub(gpu.reserved_memory);
    let mut processes = BTreeMap::new();
    for list in [device.running_compute_processes(), device.running_graphics_processes()] {
        let list = match list {
            Ok(list) => list,
            // A driver without such a list.
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => {
                continue;
            }
            Err(error) => return Err(trouble(error)),
        };
        for process in list {
            let used = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let known = processes.entry(process.pid).or_insert(used);
            *known = (*known).max(used);
        }
    }
    Ok(InUse { memory, processes })
}

fn trouble(error: NvmlError) -> Trouble {
    match error {
        NvmlError::GpuLost => Trouble::Unhealthy("it is lost: the driver cannot reach it any more".into()),
        NvmlError::ResetRequired => Trouble::Unhealthy("it must be reset".into()),
        other => Trouble::Unknown(other.to_string()),
    }
}
