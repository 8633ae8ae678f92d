//! Which processes use a GPU's memory, and how much: what the driver itself knows, whatever library a program
//! uses.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

/// The processes on a GPU, with bytes of its memory, by pid in this process's PID namespace. `None`: the
/// driver does not say of this GPU, or its processes are served by MPS, where one server holds the memory of
/// several clients.
///
/// # Errors
/// NVML refuses.
pub fn processes(nvml: &Nvml, uuid: &str) -> Result<Option<BTreeMap<u32, u64>>, String> {
    let device = nvml.device_by_uuid(uuid).map_err(|error| format!("cannot open it: {error}"))?;
    // Without these calls a driver has no MPS, or nothing that draws.
    let known = |list: Result<Vec<ProcessInfo>, NvmlError>| match list {
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => {
            Ok(Vec::new())
        }
        list => list.map_err(|error| format!("cannot list its processes: {error}")),
    };
    if !known(device.mps_running_compute_processes())?.is_empty() {
        return Ok(None);
    }
    let compute = known(device.running_compute_processes())?;
    let graphics = known(device.running_graphics_processes())?;
    let mut sizes = BTreeMap::new();
    for process in compute.into_iter().chain(graphics) {
        let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { return Ok(None) };
        // One that computes and draws is in both lists, with all that it has.
        let size = sizes.entry(process.pid).or_insert(0);
        *size = bytes.max(*size);
    }
    Ok(Some(sizes))
}
