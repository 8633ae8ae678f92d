//! The table of NVML's functions that are wrapped, and of those that are only called.
//!
//! Each row says which function of ours does it; [`exports!`](fgpu_quota_core::exports) tells how it is read.
//! The exported names are exactly the `wrap` part. The crate `fgpu-quota-names` says what every function of
//! NVML shows.

/// Hands the table to a macro.
macro_rules! table {
    ($($with:ident)::+) => { $($with)::+! {
    library: "libnvidia-ml.so.1";
    result: Result, absent: FUNCTION_NOT_FOUND;
    wrap {
        nvmlDeviceGetCount(count: *mut c_uint) = devices::count(count);
        nvmlDeviceGetCount_v2(count: *mut c_uint) = devices::count(count);
        nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut Device) = devices::by_index;
        nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) = devices::by_index;
        nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) = devices::if_granted(device);
        nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, device: *mut Device) = devices::if_granted(device);
        nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut Device) = devices::if_granted(device);
        nvmlDeviceGetHandleByPciBusId(bus: *const c_char, device: *mut Device) = devices::if_granted(device);
        nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: *mut Device)
            = devices::if_granted(device);
        nvmlDeviceGetIndex(device: Device, index: *mut c_uint) = devices::index(device, index);

        nvmlDeviceGetTopologyNearestGpus(device: Device, level: c_uint, count: *mut c_uint, list: *mut Device)
            = topology::nearest;
        nvmlSystemGetTopologyGpuSet(processor: c_uint, count: *mut c_uint, list: *mut Device)
            = topology::near_processor;
        nvmlUnitGetDevices(unit: *mut c_void, count: *mut c_uint, list: *mut Device) = topology::of_unit;
        nvmlGetExcludedDeviceCount(count: *mut c_uint) = topology::excluded_count;
        nvmlGetBlacklistDeviceCount(count: *mut c_uint) = topology::excluded_count;
        nvmlGetExcludedDeviceInfoByIndex(index: c_uint, info: *mut c_void) = topology::excluded;
        nvmlGetBlacklistDeviceInfoByIndex(index: c_uint, info: *mut c_void) = topology::excluded;

        nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) = memory::info(device, memory);
        nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) = memory::info_v2(device, memory);
        nvmlDeviceGetBAR1MemoryInfo(device: Device, window: *mut Memory) = memory::bar1(device, window);
        nvmlDeviceGetConfComputeProtectedMemoryUsage(device: Device, memory: *mut Memory)
            = memory::info(device, memory);

        nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut c_uint, list: *mut ProcessV1)
            = processes::compute_v1;
        nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut ProcessV2)
            = processes::compute_v2;
        nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut ProcessV2)
            = processes::compute_v2;
        nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut c_uint, list: *mut c_void)
            = processes::none;
        nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut c_void)
            = processes::none;
        nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut c_void)
            = processes::none;
        nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut c_uint, list: *mut c_void)
            = processes::none;
        nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut c_void)
            = processes::none;
        nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut c_void)
            = processes::none;
        nvmlDeviceGetRunningProcessDetailList(device: Device, list: *mut DetailList) = processes::details;
        nvmlDeviceGetEncoderSessions(device: Device, count: *mut c_uint, list: *mut c_void) = processes::none;
        nvmlDeviceGetFBCSessions(device: Device, count: *mut c_uint, list: *mut c_void) = processes::none;
        nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) = command::name;

        nvmlDeviceGetAccountingMode(device: Device, mode: *mut c_uint) = accounting::mode;
        nvmlDeviceGetAccountingPids(device: Device, count: *mut c_uint, pids: *mut c_uint) = accounting::pids;
        nvmlDeviceGetAccountingStats(device: Device, pid: c_uint, stats: *mut c_void) = accounting::stats;
        nvmlDeviceGetAccountingStats_v2(device: Device, stats: *mut c_void) = accounting::stats_v2;

        nvmlDeviceGetUtilizationRates(device: Device, rates: *mut Utilization) = activity::rates;
        nvmlDeviceGetProcessUtilization(device: Device, samples: *mut Sample, count: *mut c_uint, since: u64)
            = activity::of_processes;
        nvmlDeviceGetProcessesUtilizationInfo(device: Device, list: *mut UtilizationList)
            = activity::of_processes_info;
        nvmlGpmQueryDeviceSupport(device: Device, support: *mut GpmSupport) = activity::counters;
        nvmlDeviceGetDecoderUtilization(device: Device) = activity::of_the_gpu;
        nvmlDeviceGetDynamicPstatesInfo(device: Device) = activity::of_the_gpu;
        nvmlDeviceGetEncoderStats(device: Device) = activity::of_the_gpu;
        nvmlDeviceGetEncoderUtilization(device: Device) = activity::of_the_gpu;
        nvmlDeviceGetFBCStats(device: Device) = activity::of_the_gpu;
        nvmlDeviceGetJpgUtilization(device: Device) = activity::of_the_gpu;
        nvmlDeviceGetOfaUtilization(device: Device) = activity::of_the_gpu;
        nvmlDeviceGetSamples(device: Device) = activity::of_the_gpu;
        nvmlDevicePerfMetricsGetSamples_v1(device: Device) = activity::of_the_gpu;
        nvmlGpmSampleGet(device: Device) = activity::of_the_gpu;

        nvmlInternalGetExportTable(table: *mut *const c_void, id: *const [u8; 16])
            = private::table(table, id);
    }
    call {
        nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint);
    }
}};
}
pub(crate) use table;
