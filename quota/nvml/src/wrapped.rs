//! The table: every exported function, and where it is done. The library's list of exported names is exactly
//! the `wrap` part.

use core::ffi::{c_char, c_uint, c_void};

use crate::abi::{
    DetailList, Device, FUNCTION_NOT_FOUND, GpmSupport, Memory, MemoryV2, ProcessV1, ProcessV2, Result,
    Sample, Utilization, UtilizationList,
};
use crate::{accounting, activity, command, devices, memory, private, processes, topology};

fgpu_quota_core::symbols! {
    library: "libnvidia-ml.so.1";
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

        Report nvmlDeviceGetTopologyNearestGpus(
            device: Device, level: c_uint, count: *mut c_uint, list: *mut Device,
        ) = topology::nearest;
        Report nvmlSystemGetTopologyGpuSet(
            processor: c_uint, count: *mut c_uint, list: *mut Device,
        ) = topology::near_processor;
        Report nvmlUnitGetDevices(
            unit: *mut c_void, count: *mut c_uint, list: *mut Device,
        ) = topology::of_unit;
        Report nvmlGetExcludedDeviceCount(count: *mut c_uint) = topology::excluded_count;
        Report nvmlGetBlacklistDeviceCount(count: *mut c_uint) = topology::excluded_count;
        Report nvmlGetExcludedDeviceInfoByIndex(index: c_uint, info: *mut c_void) = topology::excluded;
        Report nvmlGetBlacklistDeviceInfoByIndex(index: c_uint, info: *mut c_void) = topology::excluded;

        Report nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) = memory::info;
        Report nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) = memory::info_v2;
        Report nvmlDeviceGetBAR1MemoryInfo(device: Device, window: *mut Memory) = memory::bar1;
        Report nvmlDeviceGetConfComputeProtectedMemoryUsage(
            device: Device, memory: *mut Memory,
        ) = memory::protected;

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
        Report nvmlDeviceGetRunningProcessDetailList(
            device: Device, list: *mut DetailList,
        ) = processes::details;
        Report nvmlDeviceGetEncoderSessions(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;
        Report nvmlDeviceGetFBCSessions(
            device: Device, count: *mut c_uint, list: *mut c_void,
        ) = processes::none;
        Report nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) = command::name;

        Report nvmlDeviceGetAccountingMode(device: Device, mode: *mut c_uint) = accounting::mode;
        Report nvmlDeviceGetAccountingPids(
            device: Device, count: *mut c_uint, pids: *mut c_uint,
        ) = accounting::pids;
        Report nvmlDeviceGetAccountingStats(
            device: Device, pid: c_uint, stats: *mut c_void,
        ) = accounting::stats;
        Report nvmlDeviceGetAccountingStats_v2(device: Device, stats: *mut c_void) = accounting::stats_v2;

        Report nvmlDeviceGetUtilizationRates(device: Device, rates: *mut Utilization) = activity::rates;
        Report nvmlDeviceGetProcessUtilization(
            device: Device, samples: *mut Sample, count: *mut c_uint, since: u64,
        ) = activity::of_processes;
        Report nvmlDeviceGetProcessesUtilizationInfo(
            device: Device, list: *mut UtilizationList,
        ) = activity::of_processes_info;
        Report nvmlGpmQueryDeviceSupport(device: Device, support: *mut GpmSupport) = activity::counters;
        Report nvmlDeviceGetDecoderUtilization(device: Device) = activity::of_the_gpu;
        Report nvmlDeviceGetDynamicPstatesInfo(device: Device) = activity::of_the_gpu;
        Report nvmlDeviceGetEncoderStats(device: Device) = activity::of_the_gpu;
        Report nvmlDeviceGetEncoderUtilization(device: Device) = activity::of_the_gpu;
        Report nvmlDeviceGetFBCStats(device: Device) = activity::of_the_gpu;
        Report nvmlDeviceGetJpgUtilization(device: Device) = activity::of_the_gpu;
        Report nvmlDeviceGetOfaUtilization(device: Device) = activity::of_the_gpu;
        Report nvmlDeviceGetSamples(device: Device) = activity::of_the_gpu;
        Report nvmlDevicePerfMetricsGetSamples_v1(device: Device) = activity::of_the_gpu;
        Report nvmlGpmSampleGet(device: Device) = activity::of_the_gpu;

        Resolve nvmlInternalGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) = private::table;
    }
    call {
        nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint);
    }
}
