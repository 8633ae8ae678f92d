//! What every function of NVML shows of the GPUs.
//!
//! Like [`TABLE`](crate::TABLE) of the CUDA driver: every name that any known NVML exports is in exactly one
//! class. The quota library wraps the first five classes.
//!
//! The names are in `nvml/`: `driver-*.txt` from Debian's packages (`libnvidia-ml1` of bullseye, bookworm,
//! trixie and experimental, `libnvidia-tesla-450-ml1` and `-460-`), `nvml-*.txt` the functions that `nvml.h`
//! of that version declares, of the PyPI packages `nvidia-nvml-dev` and `nvidia-nvml-dev-cu12`.

/// What a function shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Counts GPUs or returns a handle: only the grant's.
    Handle,
    /// Reports memory: the grant's, and the container's use of it.
    Memory,
    /// Reports processes: the container's own.
    Process,
    /// Reports utilisation: the container's own part, or "not supported" where it is unknown.
    Activity,
    /// Returns functions.
    Resolved,
    /// Reports a GPU's hardware or settings. Not wrapped: a container has handles of its own GPUs only.
    Gpu,
    /// Changes the GPU or its settings. Not wrapped: the driver requires CAP_SYS_ADMIN on the host, which a
    /// container lacks.
    Change,
    /// MIG: hardware slices, shown as they are. Not wrapped.
    Mig,
    /// Virtual GPUs of virtual machines. Not wrapped: a GPU that serves them serves no containers.
    Vgpu,
    /// Shows nothing of a GPU. Not wrapped.
    Node,
}

impl Class {
    /// Whether the quota library has a function of its own for each of this class.
    pub fn is_wrapped(self) -> bool {
        matches!(self, Self::Handle | Self::Memory | Self::Process | Self::Activity | Self::Resolved)
    }
}

/// The class of a name that some NVML exports.
pub fn class_of(name: &str) -> Option<Class> {
    TABLE.iter().find(|(_, names)| names.contains(&name)).map(|&(class, _)| class)
}

/// Every name.
#[rustfmt::skip]
pub const TABLE: &[(Class, &[&str])] = &[
    (Class::Handle, &[
        "nvmlDeviceGetCount", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2",
        "nvmlDeviceGetHandleBySerial", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUIDV",
        "nvmlDeviceGetIndex", "nvmlDeviceGetTopologyNearestGpus", "nvmlGetBlacklistDeviceCount",
        "nvmlGetBlacklistDeviceInfoByIndex", "nvmlGetExcludedDeviceCount", "nvmlGetExcludedDeviceInfoByIndex",
        "nvmlSystemGetTopologyGpuSet", "nvmlUnitGetDevices",
    ]),
    (Class::Memory, &[
        "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetConfComputeProtectedMemoryUsage",
        "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
    ]),
    (Class::Process, &[
        "nvmlDeviceGetAccountingMode", "nvmlDeviceGetAccountingPids", "nvmlDeviceGetAccountingStats",
        "nvmlDeviceGetAccountingStats_v2", "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetEncoderSessions", "nvmlDeviceGetFBCSessions", "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetRunningProcessDetailList",
        "nvmlSystemGetProcessName",
    ]),
    (Class::Activity, &[
        "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetDynamicPstatesInfo", "nvmlDeviceGetEncoderStats",
        "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetFBCStats", "nvmlDeviceGetJpgUtilization",
        "nvmlDeviceGetOfaUtilization", "nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates",
        "nvmlDevicePerfMetricsGetSamples_v1", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet",
    ]),
    (Class::Resolved, &[
        "nvmlInternalGetExportTable",
    ]),
    (Class::Gpu, &[
        "nvmlDeviceGetAPIRestriction", "nvmlDeviceGetAccountingBufferSize",
        "nvmlDeviceGetAdaptiveClockInfoStatus", "nvmlDeviceGetAdaptiveTgpModeInfo_v1",
        "nvmlDeviceGetAddressingMode", "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetAutoBoostedClocksEnabled", "nvmlDeviceGetBBXTimeData_v1",
        "nvmlDeviceGetBankRemapperStatus_v1", "nvmlDeviceGetBoardId", "nvmlDeviceGetBoardPartNumber",
        "nvmlDeviceGetBrand", "nvmlDeviceGetBridgeChipInfo", "nvmlDeviceGetBusType",
        "nvmlDeviceGetC2cModeInfoV", "nvmlDeviceGetCapabilities", "nvmlDeviceGetClkMonStatus",
        "nvmlDeviceGetClock", "nvmlDeviceGetClockInfo", "nvmlDeviceGetClockOffsets",
        "nvmlDeviceGetComputeMode", "nvmlDeviceGetConfComputeGpuAttestationReport",
        "nvmlDeviceGetConfComputeGpuCertificate", "nvmlDeviceGetConfComputeMemSizeInfo",
        "nvmlDeviceGetCoolerInfo", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetCpuAffinityWithinScope",
        "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetCurrentClockFreqs",
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetDefaultApplicationsClock", "nvmlDeviceGetDefaultEccMode",
        "nvmlDeviceGetDetailedEccErrors", "nvmlDeviceGetDisplayActive", "nvmlDeviceGetDisplayMode",
        "nvmlDeviceGetDramEncryptionMode", "nvmlDeviceGetDriverModel", "nvmlDeviceGetDriverModel_v2",
        "nvmlDeviceGetEccMode", "nvmlDeviceGetEncoderCapacity", "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetFanControlPolicy_v2", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeedRPM",
        "nvmlDeviceGetFanSpeed_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpcClkMinMaxVfOffset",
        "nvmlDeviceGetGpcClkVfOffset", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo_v4", "nvmlDeviceGetGpuMaxPcieLinkGeneration",
        "nvmlDeviceGetGpuOperationMode", "nvmlDeviceGetGpuUptime_v1", "nvmlDeviceGetGspFirmwareMode",
        "nvmlDeviceGetGspFirmwareVersion", "nvmlDeviceGetHostname_v1",
        "nvmlDeviceGetInforomConfigurationChecksum", "nvmlDeviceGetInforomImageVersion",
        "nvmlDeviceGetInforomVersion", "nvmlDeviceGetIrqNum", "nvmlDeviceGetLastBBXFlushTime",
        "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetMaxCustomerBoostClock",
        "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetMemClkMinMaxVfOffset", "nvmlDeviceGetMemClkVfOffset", "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetMemoryLimits_v1",
        "nvmlDeviceGetMinMaxClockOfPState", "nvmlDeviceGetMinMaxFanSpeed", "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetModuleId", "nvmlDeviceGetMultiGpuBoard", "nvmlDeviceGetName", "nvmlDeviceGetNumFans",
        "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetNvLinkCapability",
        "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetNvLinkInfo", "nvmlDeviceGetNvLinkInfo_v3",
        "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkTelemetrySamples_v1", "nvmlDeviceGetNvLinkUtilizationControl",
        "nvmlDeviceGetNvLinkUtilizationCounter", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvlinkBwMode",
        "nvmlDeviceGetNvlinkNvlePrivateInfo_v1", "nvmlDeviceGetNvlinkRemapTableInfo_v1",
        "nvmlDeviceGetNvlinkSupportedBwModes", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetPciInfoExt", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetPcieLinkMaxSpeed", "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetPcieSpeed",
        "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetPdi", "nvmlDeviceGetPerformanceModes",
        "nvmlDeviceGetPerformanceState", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetPlatformInfo",
        "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetPowerManagementMode",
        "nvmlDeviceGetPowerMizerMode_v1", "nvmlDeviceGetPowerSource", "nvmlDeviceGetPowerState",
        "nvmlDeviceGetPowerUsage", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRemappedRows_v2",
        "nvmlDeviceGetRepairStatus", "nvmlDeviceGetRetiredPages", "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetSerial",
        "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts",
        "nvmlDeviceGetSupportedClocksEventReasons", "nvmlDeviceGetSupportedClocksThrottleReasons",
        "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetSupportedGraphicsClocks",
        "nvmlDeviceGetSupportedMemoryClocks", "nvmlDeviceGetSupportedPerformanceStates",
        "nvmlDeviceGetTargetFanSpeed", "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetTemperatureV", "nvmlDeviceGetThermalSettings", "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUUID",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetViolationStatus",
        "nvmlDeviceGetVirtualizationMode", "nvmlDeviceOnSameBoard", "nvmlDeviceQueryDrainState",
        "nvmlDeviceReadPRMCounters_v1", "nvmlDeviceRegisterEvents", "nvmlDeviceValidateInforom",
        "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", "nvmlDeviceWorkloadPowerProfileGetProfilesInfo",
        "nvmlGpmMetricsGet", "nvmlGpmMigSampleGet", "nvmlGpmQueryIfStreamingEnabled", "nvmlGpmSampleAlloc",
        "nvmlGpmSampleFree",
    ]),
    (Class::Change, &[
        "nvmlDeviceClearAccountingPids", "nvmlDeviceClearCpuAffinity", "nvmlDeviceClearEccErrorCounts",
        "nvmlDeviceClearFieldValues", "nvmlDeviceDiscoverGpus", "nvmlDeviceFreezeNvLinkUtilizationCounter",
        "nvmlDeviceLockNvlinkRemapTable_v1", "nvmlDeviceModifyDrainState",
        "nvmlDevicePowerSmoothingActivatePresetProfile", "nvmlDevicePowerSmoothingSetState",
        "nvmlDevicePowerSmoothingUpdatePresetProfileParam", "nvmlDeviceReadWritePRM_v1",
        "nvmlDeviceRemoveGpu", "nvmlDeviceRemoveGpu_v2", "nvmlDeviceResetApplicationsClocks",
        "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceResetMemoryLockedClocks",
        "nvmlDeviceResetNvLinkErrorCounters", "nvmlDeviceResetNvLinkUtilizationCounter",
        "nvmlDeviceSetAPIRestriction", "nvmlDeviceSetAccountingMode", "nvmlDeviceSetAdaptiveTgpMode_v1",
        "nvmlDeviceSetApplicationsClocks", "nvmlDeviceSetAutoBoostedClocksEnabled",
        "nvmlDeviceSetClockOffsets", "nvmlDeviceSetComputeMode", "nvmlDeviceSetConfComputeUnprotectedMemSize",
        "nvmlDeviceSetCpuAffinity", "nvmlDeviceSetDefaultAutoBoostedClocksEnabled",
        "nvmlDeviceSetDefaultFanSpeed_v2", "nvmlDeviceSetDramEncryptionMode", "nvmlDeviceSetDriverModel",
        "nvmlDeviceSetEccMode", "nvmlDeviceSetFanControlPolicy", "nvmlDeviceSetFanSpeed_v2",
        "nvmlDeviceSetGpcClkVfOffset", "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetGpuOperationMode",
        "nvmlDeviceSetHostname_v1", "nvmlDeviceSetMemClkVfOffset", "nvmlDeviceSetMemoryLimits_v1",
        "nvmlDeviceSetMemoryLockedClocks", "nvmlDeviceSetMigMode",
        "nvmlDeviceSetNvLinkDeviceLowPowerThreshold", "nvmlDeviceSetNvLinkUtilizationControl",
        "nvmlDeviceSetNvlinkBwMode", "nvmlDeviceSetNvlinkBwModeAsync_v1", "nvmlDeviceSetNvlinkNvleReady_v1",
        "nvmlDeviceSetPersistenceMode", "nvmlDeviceSetPowerManagementLimit",
        "nvmlDeviceSetPowerManagementLimit_v2", "nvmlDeviceSetPowerMizerMode_v1",
        "nvmlDeviceSetRusdSettings_v1", "nvmlDeviceSetTemperatureThreshold",
        "nvmlDeviceSetVirtualizationMode", "nvmlDeviceSetupNvlinkNvleEncryptionKey_v1",
        "nvmlDeviceWorkloadPowerProfileClearRequestedProfiles",
        "nvmlDeviceWorkloadPowerProfileSetRequestedProfiles",
        "nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1", "nvmlGpmSetStreamingEnabled",
        "nvmlSystemSetConfComputeGpusReadyState", "nvmlSystemSetConfComputeKeyRotationThresholdInfo",
        "nvmlSystemSetNvlinkBwMode", "nvmlUnitSetLedState",
    ]),
    (Class::Mig, &[
        "nvmlComputeInstanceDestroy", "nvmlComputeInstanceGetInfo", "nvmlComputeInstanceGetInfo_v2",
        "nvmlDeviceCreateGpuInstance", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlDeviceGetAttributes",
        "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetGpuInstanceById",
        "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetGpuInstancePossiblePlacements",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstanceProfileInfo",
        "nvmlDeviceGetGpuInstanceProfileInfoByIdV", "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstanceRemainingCapacity", "nvmlDeviceGetGpuInstances",
        "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetMigMode",
        "nvmlDeviceIsMigDeviceHandle", "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement", "nvmlGpuInstanceDestroy",
        "nvmlGpuInstanceGetComputeInstanceById", "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        "nvmlGpuInstanceGetComputeInstanceRemainingCapacity", "nvmlGpuInstanceGetComputeInstances",
        "nvmlGpuInstanceGetInfo",
    ]),
    (Class::Vgpu, &[
        "nvmlDeviceGetActiveVgpus", "nvmlDeviceGetCreatableVgpus", "nvmlDeviceGetGridLicensableFeatures",
        "nvmlDeviceGetGridLicensableFeatures_v2", "nvmlDeviceGetGridLicensableFeatures_v3",
        "nvmlDeviceGetGridLicensableFeatures_v4", "nvmlDeviceGetHostVgpuMode",
        "nvmlDeviceGetPgpuMetadataString", "nvmlDeviceGetSupportedVgpus", "nvmlDeviceGetVgpuCapabilities",
        "nvmlDeviceGetVgpuHeterogeneousMode", "nvmlDeviceGetVgpuInstancesUtilizationInfo",
        "nvmlDeviceGetVgpuMetadata", "nvmlDeviceGetVgpuProcessUtilization",
        "nvmlDeviceGetVgpuProcessesUtilizationInfo", "nvmlDeviceGetVgpuSchedulerCapabilities",
        "nvmlDeviceGetVgpuSchedulerLog", "nvmlDeviceGetVgpuSchedulerLog_v2",
        "nvmlDeviceGetVgpuSchedulerState", "nvmlDeviceGetVgpuSchedulerState_v2",
        "nvmlDeviceGetVgpuTypeCreatablePlacements", "nvmlDeviceGetVgpuTypeSupportedPlacements",
        "nvmlDeviceGetVgpuUtilization", "nvmlDeviceSetVgpuCapabilities", "nvmlDeviceSetVgpuHeterogeneousMode",
        "nvmlDeviceSetVgpuSchedulerState", "nvmlDeviceSetVgpuSchedulerState_v2",
        "nvmlDeviceVgpuForceGspUnload", "nvmlGetVgpuCompatibility", "nvmlGetVgpuDriverCapabilities",
        "nvmlGetVgpuVersion", "nvmlGpuInstanceGetActiveVgpus", "nvmlGpuInstanceGetCreatableVgpus",
        "nvmlGpuInstanceGetVgpuHeterogeneousMode", "nvmlGpuInstanceGetVgpuSchedulerLog",
        "nvmlGpuInstanceGetVgpuSchedulerLog_v2", "nvmlGpuInstanceGetVgpuSchedulerState",
        "nvmlGpuInstanceGetVgpuSchedulerState_v2", "nvmlGpuInstanceGetVgpuTypeCreatablePlacements",
        "nvmlGpuInstanceSetVgpuHeterogeneousMode", "nvmlGpuInstanceSetVgpuSchedulerState",
        "nvmlGpuInstanceSetVgpuSchedulerState_v2", "nvmlSetVgpuVersion",
        "nvmlVgpuInstanceClearAccountingPids", "nvmlVgpuInstanceGetAccountingMode",
        "nvmlVgpuInstanceGetAccountingPids", "nvmlVgpuInstanceGetAccountingStats",
        "nvmlVgpuInstanceGetEccMode", "nvmlVgpuInstanceGetEncoderCapacity",
        "nvmlVgpuInstanceGetEncoderSessions", "nvmlVgpuInstanceGetEncoderStats",
        "nvmlVgpuInstanceGetFBCSessions", "nvmlVgpuInstanceGetFBCStats", "nvmlVgpuInstanceGetFbUsage",
        "nvmlVgpuInstanceGetFrameRateLimit", "nvmlVgpuInstanceGetGpuInstanceId",
        "nvmlVgpuInstanceGetGpuPciId", "nvmlVgpuInstanceGetLicenseInfo", "nvmlVgpuInstanceGetLicenseInfo_v2",
        "nvmlVgpuInstanceGetLicenseStatus", "nvmlVgpuInstanceGetMdevUUID", "nvmlVgpuInstanceGetMetadata",
        "nvmlVgpuInstanceGetPlacementId", "nvmlVgpuInstanceGetRuntimeStateSize", "nvmlVgpuInstanceGetType",
        "nvmlVgpuInstanceGetUUID", "nvmlVgpuInstanceGetVmDriverVersion", "nvmlVgpuInstanceGetVmID",
        "nvmlVgpuInstanceSetEncoderCapacity", "nvmlVgpuTypeGetBAR1Info", "nvmlVgpuTypeGetCapabilities",
        "nvmlVgpuTypeGetClass", "nvmlVgpuTypeGetDeviceID", "nvmlVgpuTypeGetFbReservation",
        "nvmlVgpuTypeGetFrameRateLimit", "nvmlVgpuTypeGetFramebufferSize",
        "nvmlVgpuTypeGetGpuInstanceProfileId", "nvmlVgpuTypeGetGspHeapSize", "nvmlVgpuTypeGetLicense",
        "nvmlVgpuTypeGetMaxInstances", "nvmlVgpuTypeGetMaxInstancesPerGpuInstance",
        "nvmlVgpuTypeGetMaxInstancesPerVm", "nvmlVgpuTypeGetName", "nvmlVgpuTypeGetNumDisplayHeads",
        "nvmlVgpuTypeGetResolution",
    ]),
    (Class::Node, &[
        "nscq_init", "nscq_path_compile", "nscq_path_release", "nscq_session_create", "nscq_session_destroy",
        "nscq_shutdown", "nvmlErrorString", "nvmlEventSetCreate", "nvmlEventSetFree",
        "nvmlEventSetGetContextCount_v1", "nvmlEventSetGetContextData_v1", "nvmlEventSetGetContextInfo_v1",
        "nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1",
        "nvmlEventSetRegisterGpuOperationalEvents_v1", "nvmlEventSetWait", "nvmlEventSetWait_v2",
        "nvmlEventSetWait_v3", "nvmlInit", "nvmlInitWithFlags", "nvmlInit_v2", "nvmlRetry_NvRmControl",
        "nvmlShutdown", "nvmlSystemEventSetCreate", "nvmlSystemEventSetFree", "nvmlSystemEventSetWait",
        "nvmlSystemGetCPER_v1", "nvmlSystemGetConfComputeCapabilities",
        "nvmlSystemGetConfComputeGpusReadyState", "nvmlSystemGetConfComputeKeyRotationThresholdInfo",
        "nvmlSystemGetConfComputeSettings", "nvmlSystemGetConfComputeSettings_v2",
        "nvmlSystemGetConfComputeState", "nvmlSystemGetCudaDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetDriverBranch", "nvmlSystemGetDriverVersion",
        "nvmlSystemGetHicVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetNvlinkBwMode",
        "nvmlSystemRegisterEvents", "nvmlUnitGetCount", "nvmlUnitGetFanSpeedInfo", "nvmlUnitGetHandleByIndex",
        "nvmlUnitGetLedState", "nvmlUnitGetPsuInfo", "nvmlUnitGetTemperature", "nvmlUnitGetUnitInfo",
    ]),
];

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashMap;
    use std::string::String;
    use std::vec::Vec;

    use super::{Class, TABLE, class_of};
    use crate::lists::read;

    #[test]
    fn every_librarys_every_name_is_known() {
        let lists = read("nvml");
        assert!(lists.len() >= 8, "{}", lists.len());
        for (list, names) in &lists {
            assert!(names.lines().count() > 240, "{list}");
            let unknown: Vec<_> = names.lines().filter(|name| class_of(name).is_none()).collect();
            assert!(unknown.is_empty(), "{list} has names of which the table says nothing: {unknown:?}");
        }
    }

    #[test]
    fn a_name_has_one_class_and_some_library_has_it() {
        let lists = read("nvml");
        let mut seen = HashMap::new();
        for (class, names) in TABLE {
            for name in *names {
                assert_eq!(seen.insert(*name, *class), None, "{name}");
                let has = |list: &(String, String)| list.1.lines().any(|line| line == *name);
                assert!(lists.iter().any(has), "no library has {name}");
            }
        }
    }

    /// A new version of a function is assumed to show what the old one did.
    #[test]
    fn versions_of_a_function_are_of_one_class() {
        let mut classes: HashMap<&str, (Class, &str)> = HashMap::new();
        for (class, names) in TABLE {
            for name in *names {
                let (stem, version) = name.rsplit_once("_v").unwrap_or((name, "1"));
                let stem = if version.parse::<u32>().is_ok() { stem } else { name };
                let (first, other) = *classes.entry(stem).or_insert((*class, name));
                assert_eq!(first, *class, "{name} and {other}");
            }
        }
    }
}
