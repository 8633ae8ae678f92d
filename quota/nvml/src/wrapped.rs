//! The table: every exported function, and where it is done. The library's list of exported names is exactly
//! the `wrap` part.

use core::ffi::{c_char, c_uint, c_void};

use crate::abi::{Device, FUNCTION_NOT_FOUND, Memory, MemoryV2, ProcessV1, ProcessV2, Result};
use crate::{devices, memory, private, processes};

fgpu_quota_core::symbols! {
    library: fgpu_wire::REAL_NVML, "libnvidia-ml.so.1";
    result: Result, absent: FUNCTION_NOT_FOUND;
    wrap {
        Report nvmlDeviceGetCount(count: *mut c_uint) = devices::count;
        Report nvmlDeviceGetCount_v2(count: *mut c_uint) = devices::count_v2;
        Report nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut Device) = devices::by_index;
        Report nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) = devices::by_index;
        Report nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) = devices::by_uuid;
        Report nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, device: *mut Device) = devices::by_uuidv;
        Report nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut Device) = devices::by_serial;
        Report nvmlDeviceGetHandleByPciBusId(bus: *const c_char, device: *mut Device) = devices::by_pci;
        Report nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: *mut Device) = devices::by_pci_v2;
        Report nvmlDeviceGetIndex(device: Device, index: *mut c_uint) = devices::index;

        Report nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) = memory::info;
        Report nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) = memory::info_v2;

        Report nvmlDeviceGetComputeRunningProcesses(
            device: Device, count: *mut c_uint, list: *mut ProcessV1,
        ) = processes::compute_v1;
        Report nvmlDeviceGetComputeRunningProcesses_v2(
            device: Device, count: *mut c_uint, list: *mut ProcessV2,
        ) = processes::compute_v2;
        Report nvmlDeviceGetComputeRunningProcesses_v3(
            device: Device, count: *mut c_uint, list: *mut ProcessV2,
        ) = processes::compute_v2;
        Report nvmlDeviceGetGraphicsRunningProcesses(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;
        Report nvmlDeviceGetGraphicsRunningProcesses_v2(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;
        Report nvmlDeviceGetGraphicsRunningProcesses_v3(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;
        Report nvmlDeviceGetMPSComputeRunningProcesses(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;
        Report nvmlDeviceGetMPSComputeRunningProcesses_v2(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;
        Report nvmlDeviceGetMPSComputeRunningProcesses_v3(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;

        Resolve nvmlInternalGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) = private::table;
    }
    call {
        nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint);
    }
}
