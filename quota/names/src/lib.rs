//! What every function of the CUDA driver does for the memory limit.
//!
//! One table, [`TABLE`], in which every name that any known driver exports is in exactly one class. The quota
//! library wraps all classes except the last two. A test of this crate fails on a name that a driver has and
//! the table lacks; one in `suite` fails if the library exports anything else than the table says. The
//! drivers' names are in `lists/`, one a line, sorted:
//!
//! - `driver-*.txt`: the output of `nm -D --defined-only libcuda.so.1` for Debian's packages (`libcuda1` of
//!   bullseye, bookworm, trixie and experimental, `libnvidia-tesla-450-cuda1` and `-460-`;
//!   `tests/driver/fetch-nvidia-smi` shows how to get such a package without installing it);
//! - `cuda-*.txt`: the functions that `cuda.h` of that version declares, preprocessed as it is, with
//!   `__CUDA_API_VERSION_INTERNAL` and with `CUDA_API_PER_THREAD_DEFAULT_STREAM`: a driver of that version
//!   has at least these. (Two names of `cuGetProcAddress` with `_ptsz`, which only the macros make, are left
//!   out.) The header is in the PyPI packages `nvidia-cuda-runtime` and `nvidia-cuda-runtime-cu12`, `-cu11`.
//!
//! For a new driver: add its list, run the test, and put each name that it reports into a class.

#![no_std]
#![forbid(unsafe_code)]

pub mod nvml;

/// What a function does for the memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// May take device memory: at once, when it is part of a graph, or as code that is loaded.
    Counted,
    /// Gives device memory back, or lets the driver do so.
    Freed,
    /// Decides how long memory lives or where it counts.
    Held,
    /// Reports how much memory there is.
    Reported,
    /// Returns functions.
    Resolved,
    /// Lets the GPU work, or ends a stream of work. Wrapped where it may load code, give a graph its memory,
    /// or let time be read.
    Launched,
    /// Waits for launches, asks or reports whether they have ended, or is a copy or a fill that follows them
    /// in a stream. Wrapped so that the launches are timed before that.
    Followed,
    /// Begins the capture of a stream into a graph. Wrapped to know whether any stream may be captured:
    /// captured work does not run.
    Captured,
    /// Opens or passes on existing memory, which counts where it was allocated. Not wrapped.
    Shared,
    /// Has nothing to do with device memory. Not wrapped.
    Pass,
}

/// The class of a name that some driver exports.
pub fn class_of(name: &str) -> Option<Class> {
    TABLE.iter().find(|(_, names)| names.contains(&name)).map(|&(class, _)| class)
}

/// Every name.
#[rustfmt::skip]
pub const TABLE: &[(Class, &[&str])] = &[
    (Class::Counted, &[
        "cuArray3DCreate", "cuArray3DCreate_v2", "cuArrayCreate", "cuArrayCreate_v2", "cuCtxCreate",
        "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuCtxSetLimit", "cuDevicePrimaryCtxRetain",
        "cuFuncLoad", "cuGLCtxCreate", "cuGLCtxCreate_v2", "cuGraphAddMemAllocNode", "cuGraphAddNode",
        "cuGraphAddNode_v2", "cuGraphAddNode_v3", "cuGraphInstantiate", "cuGraphInstantiateWithFlags",
        "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz", "cuGraphInstantiate_v2",
        "cuGraphUpload", "cuGraphUpload_ptsz", "cuGreenCtxCreate", "cuKernelGetFunction",
        "cuLibraryGetGlobal", "cuLibraryGetManaged", "cuLibraryGetModule", "cuLibraryLoadData",
        "cuLibraryLoadFromFile", "cuLinkComplete", "cuMemAlloc", "cuMemAllocAsync", "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz", "cuMemAllocManaged", "cuMemAllocPitch",
        "cuMemAllocPitch_v2", "cuMemAlloc_v2", "cuMemCreate", "cuMemPoolCreate", "cuMipmappedArrayCreate",
        "cuModuleGetFunction", "cuModuleGetGlobal_v2", "cuModuleLoad", "cuModuleLoadData",
        "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2",
    ]),
    (Class::Freed, &[
        "cuArrayDestroy", "cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach", "cuCtxSynchronize",
        "cuCtxSynchronize_v2", "cuDeviceGraphMemTrim", "cuDevicePrimaryCtxRelease",
        "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2",
        "cuEventSynchronize", "cuGraphExecDestroy", "cuGreenCtxDestroy", "cuLibraryUnload", "cuMemFree",
        "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemFree_v2", "cuMemPoolDestroy", "cuMemPoolTrimTo",
        "cuMemRelease", "cuMemUnmap", "cuMipmappedArrayDestroy", "cuModuleUnload", "cuMulticastUnbind",
        "cuStreamSynchronize", "cuStreamSynchronize_ptsz",
    ]),
    (Class::Held, &[
        "cuCtxAttach", "cuCtxFromGreenCtx", "cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemMap",
        "cuMemImportFromShareableHandle", "cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz", "cuMemRetainAllocationHandle",
        "cuMulticastBindAddr", "cuMulticastBindAddr_v2", "cuMulticastBindMem", "cuMulticastBindMem_v2",
    ]),
    (Class::Reported, &[
        "cuDeviceTotalMem", "cuDeviceTotalMem_v2", "cuMemGetInfo", "cuMemGetInfo_v2",
    ]),
    (Class::Resolved, &[
        "cuGetProcAddress", "cuGetProcAddress_v2",
    ]),
    (Class::Launched, &[
        "cuGraphLaunch", "cuGraphLaunch_ptsz", "cuLaunch", "cuLaunchCooperativeKernel",
        "cuLaunchCooperativeKernelMultiDevice", "cuLaunchCooperativeKernel_ptsz", "cuLaunchGrid",
        "cuLaunchGridAsync", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz",
        "cuLaunchKernel_ptsz", "cuStreamDestroy", "cuStreamDestroy_v2",
    ]),
    (Class::Followed, &[
        "cuEventQuery", "cuEventRecord", "cuEventRecordWithFlags", "cuEventRecordWithFlags_ptsz",
        "cuEventRecord_ptsz", "cuLaunchHostFunc", "cuLaunchHostFunc_ptsz", "cuLaunchHostFunc_v2",
        "cuLaunchHostFunc_v2_ptsz", "cuMemcpy", "cuMemcpy2D", "cuMemcpy2DAsync", "cuMemcpy2DAsync_v2",
        "cuMemcpy2DAsync_v2_ptsz", "cuMemcpy2DUnaligned", "cuMemcpy2DUnaligned_v2",
        "cuMemcpy2DUnaligned_v2_ptds", "cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds", "cuMemcpy3D", "cuMemcpy3DAsync",
        "cuMemcpy3DAsync_v2", "cuMemcpy3DAsync_v2_ptsz", "cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds",
        "cuMemcpyAsync", "cuMemcpyAsync_ptsz", "cuMemcpyDtoD", "cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoDAsync_v2_ptsz", "cuMemcpyDtoD_v2", "cuMemcpyDtoD_v2_ptds", "cuMemcpyDtoH",
        "cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyDtoH_v2",
        "cuMemcpyDtoH_v2_ptds", "cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2",
        "cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpy_ptds",
        "cuMemsetD16Async", "cuMemsetD16Async_ptsz", "cuMemsetD32Async", "cuMemsetD32Async_ptsz",
        "cuMemsetD8Async", "cuMemsetD8Async_ptsz", "cuStreamAddCallback", "cuStreamAddCallback_ptsz",
        "cuStreamQuery", "cuStreamQuery_ptsz",
    ]),
    (Class::Captured, &[
        "cuStreamBeginCapture", "cuStreamBeginCaptureToCig", "cuStreamBeginCaptureToCig_ptsz",
        "cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph_ptsz", "cuStreamBeginCapture_ptsz",
        "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz", "cuStreamBeginRecaptureToGraph",
        "cuStreamBeginRecaptureToGraph_ptsz",
    ]),
    (Class::Shared, &[
        "cuDestroyExternalMemory", "cuExternalMemoryGetMappedBuffer",
        "cuExternalMemoryGetMappedMipmappedArray", "cuGLMapBufferObject", "cuGLMapBufferObjectAsync",
        "cuGLMapBufferObjectAsync_v2", "cuGLMapBufferObjectAsync_v2_ptsz", "cuGLMapBufferObject_v2",
        "cuGLMapBufferObject_v2_ptds", "cuGraphicsEGLRegisterImage", "cuGraphicsGLRegisterBuffer",
        "cuGraphicsGLRegisterImage", "cuGraphicsMapResources", "cuGraphicsMapResources_ptsz",
        "cuGraphicsResourceGetMappedEglFrame", "cuGraphicsResourceGetMappedMipmappedArray",
        "cuGraphicsResourceGetMappedPointer", "cuGraphicsResourceGetMappedPointer_v2",
        "cuGraphicsSubResourceGetMappedArray", "cuGraphicsVDPAURegisterOutputSurface",
        "cuGraphicsVDPAURegisterVideoSurface", "cuImportExternalMemory", "cuIpcCloseMemHandle",
        "cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuLogicalEndpointBindAddr",
        "cuLogicalEndpointBindMem", "cuLogicalEndpointImport", "cuMemExportToShareableHandle",
        "cuMemGetHandleForAddressRange", "cuMemPoolExportPointer",
        "cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer",
        "cuMulticastAddDevice", "cuMulticastCreate",
    ]),
    (Class::Pass, &[
        "cuArray3DGetDescriptor", "cuArray3DGetDescriptor_v2", "cuArrayGetDescriptor",
        "cuArrayGetDescriptor_v2", "cuArrayGetMemoryRequirements", "cuArrayGetPlane",
        "cuArrayGetSparseProperties", "cuCheckpointOperationComplete", "cuCheckpointProcessCheckpoint",
        "cuCheckpointProcessGetRestoreThreadId", "cuCheckpointProcessGetState", "cuCheckpointProcessLock",
        "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock", "cuCoredumpDeregisterCompleteCallback",
        "cuCoredumpDeregisterStartCallback", "cuCoredumpGetAttribute", "cuCoredumpGetAttributeGlobal",
        "cuCoredumpRegisterCompleteCallback", "cuCoredumpRegisterStartCallback", "cuCoredumpSetAttribute",
        "cuCoredumpSetAttributeGlobal", "cuCtxDisablePeerAccess", "cuCtxEnablePeerAccess",
        "cuCtxGetApiVersion", "cuCtxGetCacheConfig", "cuCtxGetCurrent", "cuCtxGetDevResource",
        "cuCtxGetDevice", "cuCtxGetDevice_v2", "cuCtxGetExecAffinity", "cuCtxGetFlags", "cuCtxGetId",
        "cuCtxGetLimit", "cuCtxGetSharedMemConfig", "cuCtxGetStreamPriorityRange", "cuCtxPopCurrent",
        "cuCtxPopCurrent_v2", "cuCtxPushCurrent", "cuCtxPushCurrent_v2", "cuCtxRecordEvent",
        "cuCtxResetPersistingL2Cache", "cuCtxSetCacheConfig", "cuCtxSetCurrent", "cuCtxSetFlags",
        "cuCtxSetSharedMemConfig", "cuCtxWaitEvent", "cuDestroyExternalSemaphore",
        "cuDevResourceGenerateDesc", "cuDevSmResourceSplit", "cuDevSmResourceSplitByCount",
        "cuDeviceCanAccessPeer", "cuDeviceComputeCapability", "cuDeviceGet", "cuDeviceGetAttribute",
        "cuDeviceGetByPCIBusId", "cuDeviceGetCliqueCount", "cuDeviceGetCliqueInfo", "cuDeviceGetCount",
        "cuDeviceGetDefaultMemPool", "cuDeviceGetDevResource", "cuDeviceGetExecAffinitySupport",
        "cuDeviceGetFabricClusterUuid", "cuDeviceGetGraphMemAttribute", "cuDeviceGetHostAtomicCapabilities",
        "cuDeviceGetLuid", "cuDeviceGetMemPool", "cuDeviceGetName", "cuDeviceGetNvSciSyncAttributes",
        "cuDeviceGetP2PAtomicCapabilities", "cuDeviceGetP2PAttribute", "cuDeviceGetPCIBusId",
        "cuDeviceGetProperties", "cuDeviceGetTexture1DLinearMaxWidth", "cuDeviceGetUuid",
        "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxSetFlags",
        "cuDevicePrimaryCtxSetFlags_v2", "cuDeviceRegisterAsyncNotification", "cuDeviceSetGraphMemAttribute",
        "cuDeviceSetMemPool", "cuDeviceUnregisterAsyncNotification", "cuDriverGetVersion", "cuEGLApiInit",
        "cuEGLStreamConsumerAcquireFrame", "cuEGLStreamConsumerConnect",
        "cuEGLStreamConsumerConnectWithFlags", "cuEGLStreamConsumerDisconnect",
        "cuEGLStreamConsumerReleaseFrame", "cuEGLStreamProducerConnect", "cuEGLStreamProducerDisconnect",
        "cuEGLStreamProducerPresentFrame", "cuEGLStreamProducerReturnFrame", "cuEventCreate",
        "cuEventDestroy", "cuEventDestroy_v2", "cuEventElapsedTime", "cuEventElapsedTime_v2",
        "cuFabricCpyBatchAsync", "cuFabricCpyBatchAsync_ptsz", "cuFlushGPUDirectRDMAWrites",
        "cuFuncGetAttribute", "cuFuncGetModule", "cuFuncGetName", "cuFuncGetParamCount",
        "cuFuncGetParamInfo", "cuFuncIsLoaded", "cuFuncSetAttribute", "cuFuncSetBlockShape",
        "cuFuncSetCacheConfig", "cuFuncSetSharedMemConfig", "cuFuncSetSharedSize", "cuGLGetDevices",
        "cuGLGetDevices_v2", "cuGLInit", "cuGLRegisterBufferObject", "cuGLSetBufferObjectMapFlags",
        "cuGLUnmapBufferObject", "cuGLUnmapBufferObjectAsync", "cuGLUnregisterBufferObject",
        "cuGetErrorName", "cuGetErrorString", "cuGetExportTable",
        "cuGraphAddBatchMemOpNode", "cuGraphAddChildGraphNode", "cuGraphAddDependencies",
        "cuGraphAddDependencies_v2", "cuGraphAddEmptyNode", "cuGraphAddEventRecordNode",
        "cuGraphAddEventWaitNode", "cuGraphAddExternalSemaphoresSignalNode",
        "cuGraphAddExternalSemaphoresWaitNode", "cuGraphAddHostNode", "cuGraphAddKernelNode",
        "cuGraphAddKernelNode_v2", "cuGraphAddMemFreeNode", "cuGraphAddMemcpyNode", "cuGraphAddMemsetNode",
        "cuGraphBatchMemOpNodeGetParams", "cuGraphBatchMemOpNodeSetParams", "cuGraphChildGraphNodeGetGraph",
        "cuGraphClone", "cuGraphConditionalHandleCreate", "cuGraphCreate", "cuGraphDebugDotPrint",
        "cuGraphDestroy", "cuGraphDestroyNode", "cuGraphEventRecordNodeGetEvent",
        "cuGraphEventRecordNodeSetEvent", "cuGraphEventWaitNodeGetEvent", "cuGraphEventWaitNodeSetEvent",
        "cuGraphExecBatchMemOpNodeSetParams", "cuGraphExecChildGraphNodeSetParams",
        "cuGraphExecEventRecordNodeSetEvent", "cuGraphExecEventWaitNodeSetEvent",
        "cuGraphExecExternalSemaphoresSignalNodeSetParams", "cuGraphExecExternalSemaphoresWaitNodeSetParams",
        "cuGraphExecGetFlags", "cuGraphExecGetId", "cuGraphExecHostNodeSetParams",
        "cuGraphExecKernelNodeSetParams", "cuGraphExecKernelNodeSetParams_v2",
        "cuGraphExecMemcpyNodeSetParams", "cuGraphExecMemsetNodeSetParams", "cuGraphExecNodeSetParams",
        "cuGraphExecUpdate", "cuGraphExecUpdate_v2", "cuGraphExternalSemaphoresSignalNodeGetParams",
        "cuGraphExternalSemaphoresSignalNodeSetParams", "cuGraphExternalSemaphoresWaitNodeGetParams",
        "cuGraphExternalSemaphoresWaitNodeSetParams", "cuGraphGetEdges", "cuGraphGetEdges_v2",
        "cuGraphGetId", "cuGraphGetNodes", "cuGraphGetRootNodes", "cuGraphHostNodeGetParams",
        "cuGraphHostNodeSetParams", "cuGraphKernelNodeCopyAttributes", "cuGraphKernelNodeGetAttribute",
        "cuGraphKernelNodeGetParams", "cuGraphKernelNodeGetParams_v2", "cuGraphKernelNodeSetAttribute",
        "cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams_v2", "cuGraphMemAllocNodeGetParams",
        "cuGraphMemFreeNodeGetParams", "cuGraphMemcpyNodeGetParams", "cuGraphMemcpyNodeSetParams",
        "cuGraphMemsetNodeGetParams", "cuGraphMemsetNodeSetParams", "cuGraphNodeFindInClone",
        "cuGraphNodeGetContainingGraph", "cuGraphNodeGetDependencies", "cuGraphNodeGetDependencies_v2",
        "cuGraphNodeGetDependentNodes", "cuGraphNodeGetDependentNodes_v2", "cuGraphNodeGetEnabled",
        "cuGraphNodeGetLocalId", "cuGraphNodeGetParams", "cuGraphNodeGetToolsId", "cuGraphNodeGetType",
        "cuGraphNodeSetEnabled", "cuGraphNodeSetParams", "cuGraphNodeSetParams_v2",
        "cuGraphReleaseUserObject", "cuGraphRemoveDependencies", "cuGraphRemoveDependencies_v2",
        "cuGraphRetainUserObject", "cuGraphicsResourceSetMapFlags", "cuGraphicsResourceSetMapFlags_v2",
        "cuGraphicsUnmapResources", "cuGraphicsUnmapResources_ptsz", "cuGraphicsUnregisterResource",
        "cuGreenCtxGetDevResource", "cuGreenCtxGetId", "cuGreenCtxRecordEvent", "cuGreenCtxStreamCreate",
        "cuGreenCtxWaitEvent", "cuImportExternalSemaphore", "cuInit", "cuIpcGetEventHandle",
        "cuIpcOpenEventHandle", "cuKernelGetAttribute", "cuKernelGetLibrary", "cuKernelGetName",
        "cuKernelGetParamCount", "cuKernelGetParamInfo", "cuKernelSetAttribute", "cuKernelSetCacheConfig",
        "cuLibraryEnumerateKernels", "cuLibraryGetKernel", "cuLibraryGetKernelCount",
        "cuLibraryGetUnifiedFunction", "cuLinkAddData", "cuLinkAddData_v2", "cuLinkAddFile",
        "cuLinkAddFile_v2", "cuLinkCreate", "cuLinkCreate_v2", "cuLinkDestroy", "cuLogicalEndpointAddDevice",
        "cuLogicalEndpointCreate", "cuLogicalEndpointDestroy", "cuLogicalEndpointExport",
        "cuLogicalEndpointGetLimits", "cuLogicalEndpointIdRelease", "cuLogicalEndpointIdReserve",
        "cuLogicalEndpointQuery", "cuLogicalEndpointUnbind", "cuLogsCurrent", "cuLogsDumpToFile",
        "cuLogsDumpToMemory", "cuLogsRegisterCallback", "cuLogsUnregisterCallback", "cuMemAddressFree",
        "cuMemAddressReserve", "cuMemAdvise", "cuMemAdvise_v2", "cuMemAllocHost", "cuMemAllocHost_v2",
        "cuMemBatchDecompressAsync", "cuMemBatchDecompressAsync_ptsz", "cuMemDiscardAndPrefetchBatchAsync",
        "cuMemDiscardAndPrefetchBatchAsync_ptsz", "cuMemDiscardBatchAsync", "cuMemDiscardBatchAsync_ptsz",
        "cuMemFreeHost", "cuMemGetAccess", "cuMemGetAddressRange", "cuMemGetAddressRange_v2",
        "cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle", "cuMemGetAttribute",
        "cuMemGetAttribute_v2", "cuMemGetLocationInfo", "cuMemHostAlloc", "cuMemHostGetDevicePointer",
        "cuMemHostGetDevicePointer_v2", "cuMemHostGetFlags", "cuMemHostRegister", "cuMemHostRegister_v2",
        "cuMemHostUnregister", "cuMemPoolGetAccess", "cuMemPoolGetAttribute", "cuMemPoolSetAccess",
        "cuMemPoolSetAttribute", "cuMemPrefetchAsync", "cuMemPrefetchAsync_ptsz", "cuMemPrefetchAsync_v2",
        "cuMemPrefetchAsync_v2_ptsz", "cuMemPrefetchBatchAsync", "cuMemPrefetchBatchAsync_ptsz",
        "cuMemRangeGetAttribute", "cuMemRangeGetAttributes", "cuMemSetAccess", "cuMemSetMemPool",
        "cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_ptsz",
        "cuMemcpy3DBatchAsync_v2", "cuMemcpy3DBatchAsync_v2_ptsz", "cuMemcpy3DPeer", "cuMemcpy3DPeerAsync",
        "cuMemcpy3DPeerAsync_ptsz", "cuMemcpy3DPeer_ptds", "cuMemcpy3DWithAttributesAsync",
        "cuMemcpy3DWithAttributesAsync_ptsz",
        "cuMemcpyAtoA", "cuMemcpyAtoA_v2", "cuMemcpyAtoA_v2_ptds", "cuMemcpyAtoD",
        "cuMemcpyAtoD_v2", "cuMemcpyAtoD_v2_ptds", "cuMemcpyAtoH", "cuMemcpyAtoHAsync",
        "cuMemcpyAtoHAsync_v2", "cuMemcpyAtoHAsync_v2_ptsz", "cuMemcpyAtoH_v2", "cuMemcpyAtoH_v2_ptds",
        "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_ptsz", "cuMemcpyBatchAsync_v2",
        "cuMemcpyBatchAsync_v2_ptsz", "cuMemcpyDtoA", "cuMemcpyDtoA_v2", "cuMemcpyDtoA_v2_ptds",
        "cuMemcpyHtoA", "cuMemcpyHtoAAsync", "cuMemcpyHtoAAsync_v2", "cuMemcpyHtoAAsync_v2_ptsz",
        "cuMemcpyHtoA_v2", "cuMemcpyHtoA_v2_ptds",
        "cuMemcpyPeer", "cuMemcpyPeerAsync", "cuMemcpyPeerAsync_ptsz", "cuMemcpyPeer_ptds",
        "cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync_ptsz", "cuMemsetD16",
        "cuMemsetD16_v2", "cuMemsetD16_v2_ptds",
        "cuMemsetD2D16", "cuMemsetD2D16Async", "cuMemsetD2D16Async_ptsz", "cuMemsetD2D16_v2",
        "cuMemsetD2D16_v2_ptds", "cuMemsetD2D32", "cuMemsetD2D32Async", "cuMemsetD2D32Async_ptsz",
        "cuMemsetD2D32_v2", "cuMemsetD2D32_v2_ptds", "cuMemsetD2D8", "cuMemsetD2D8Async",
        "cuMemsetD2D8Async_ptsz", "cuMemsetD2D8_v2", "cuMemsetD2D8_v2_ptds", "cuMemsetD32",
        "cuMemsetD32_v2", "cuMemsetD32_v2_ptds", "cuMemsetD8",
        "cuMemsetD8_v2", "cuMemsetD8_v2_ptds",
        "cuMipmappedArrayGetLevel", "cuMipmappedArrayGetMemoryRequirements",
        "cuMipmappedArrayGetSparseProperties", "cuModuleEnumerateFunctions", "cuModuleGetFunctionCount",
        "cuModuleGetGlobal", "cuModuleGetLoadingMode", "cuModuleGetSurfRef", "cuModuleGetTexRef",
        "cuMulticastGetGranularity", "cuOccupancyAvailableDynamicSMemPerBlock",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cuOccupancyMaxActiveClusters",
        "cuOccupancyMaxPotentialBlockSize", "cuOccupancyMaxPotentialBlockSizeWithFlags",
        "cuOccupancyMaxPotentialClusterSize", "cuParamSetSize", "cuParamSetTexRef", "cuParamSetf",
        "cuParamSeti", "cuParamSetv", "cuPointerGetAttribute", "cuPointerGetAttributes",
        "cuPointerSetAttribute", "cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop",
        "cuSignalExternalSemaphoresAsync", "cuSignalExternalSemaphoresAsync_ptsz",
        "cuStreamAttachMemAsync", "cuStreamAttachMemAsync_ptsz",
        "cuStreamBatchMemOp", "cuStreamBatchMemOp_ptsz", "cuStreamBatchMemOp_v2",
        "cuStreamBatchMemOp_v2_ptsz",
       
       
        "cuStreamCopyAttributes",
        "cuStreamCopyAttributes_ptsz", "cuStreamCreate", "cuStreamCreateWithPriority",
        "cuStreamEndCapture", "cuStreamEndCaptureToCig",
        "cuStreamEndCaptureToCig_ptsz", "cuStreamEndCapture_ptsz", "cuStreamGetAttribute",
        "cuStreamGetAttribute_ptsz", "cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_ptsz",
        "cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo_v2_ptsz", "cuStreamGetCaptureInfo_v3",
        "cuStreamGetCaptureInfo_v3_ptsz", "cuStreamGetCtx", "cuStreamGetCtx_ptsz", "cuStreamGetCtx_v2",
        "cuStreamGetCtx_v2_ptsz", "cuStreamGetDevResource", "cuStreamGetDevResource_ptsz",
        "cuStreamGetDevice", "cuStreamGetDevice_ptsz", "cuStreamGetFlags", "cuStreamGetFlags_ptsz",
        "cuStreamGetGreenCtx", "cuStreamGetId", "cuStreamGetId_ptsz", "cuStreamGetPriority",
        "cuStreamGetPriority_ptsz", "cuStreamIsCapturing", "cuStreamIsCapturing_ptsz",
        "cuStreamSetAttribute", "cuStreamSetAttribute_ptsz",
        "cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_ptsz",
        "cuStreamUpdateCaptureDependencies_v2", "cuStreamUpdateCaptureDependencies_v2_ptsz",
        "cuStreamWaitEvent", "cuStreamWaitEvent_ptsz", "cuStreamWaitValue32", "cuStreamWaitValue32_ptsz",
        "cuStreamWaitValue32_v2", "cuStreamWaitValue32_v2_ptsz", "cuStreamWaitValue64",
        "cuStreamWaitValue64_ptsz", "cuStreamWaitValue64_v2", "cuStreamWaitValue64_v2_ptsz",
        "cuStreamWriteValue32", "cuStreamWriteValue32_ptsz", "cuStreamWriteValue32_v2",
        "cuStreamWriteValue32_v2_ptsz", "cuStreamWriteValue64", "cuStreamWriteValue64_ptsz",
        "cuStreamWriteValue64_v2", "cuStreamWriteValue64_v2_ptsz", "cuSurfObjectCreate",
        "cuSurfObjectDestroy", "cuSurfObjectGetResourceDesc", "cuSurfRefGetArray", "cuSurfRefSetArray",
        "cuTensorMapEncodeIm2col", "cuTensorMapEncodeIm2colWide", "cuTensorMapEncodeTiled",
        "cuTensorMapReplaceAddress", "cuTensorMapSetAllocationClass", "cuTexObjectCreate",
        "cuTexObjectDestroy", "cuTexObjectGetResourceDesc", "cuTexObjectGetResourceViewDesc",
        "cuTexObjectGetTextureDesc", "cuTexRefCreate", "cuTexRefDestroy", "cuTexRefGetAddress",
        "cuTexRefGetAddressMode", "cuTexRefGetAddress_v2", "cuTexRefGetArray", "cuTexRefGetBorderColor",
        "cuTexRefGetFilterMode", "cuTexRefGetFlags", "cuTexRefGetFormat", "cuTexRefGetMaxAnisotropy",
        "cuTexRefGetMipmapFilterMode", "cuTexRefGetMipmapLevelBias", "cuTexRefGetMipmapLevelClamp",
        "cuTexRefGetMipmappedArray", "cuTexRefSetAddress", "cuTexRefSetAddress2D", "cuTexRefSetAddress2D_v2",
        "cuTexRefSetAddress2D_v3", "cuTexRefSetAddressMode", "cuTexRefSetAddress_v2", "cuTexRefSetArray",
        "cuTexRefSetBorderColor", "cuTexRefSetFilterMode", "cuTexRefSetFlags", "cuTexRefSetFormat",
        "cuTexRefSetMaxAnisotropy", "cuTexRefSetMipmapFilterMode", "cuTexRefSetMipmapLevelBias",
        "cuTexRefSetMipmapLevelClamp", "cuTexRefSetMipmappedArray", "cuThreadExchangeStreamCaptureMode",
        "cuUserObjectCreate", "cuUserObjectRelease", "cuUserObjectRetain", "cuVDPAUGetDevice", "cuWaitExternalSemaphoresAsync",
        "cuWaitExternalSemaphoresAsync_ptsz", "cudbgApiAttach", "cudbgApiClientPid",
        "cudbgApiClientRevision", "cudbgApiDetach", "cudbgApiInit", "cudbgAttachHandlerAvailable",
        "cudbgDebuggerCapabilities", "cudbgDebuggerInitialized", "cudbgDetachSuspendedDevicesMask",
        "cudbgEnableIntegratedMemcheck", "cudbgEnableLaunchBlocking", "cudbgEnablePreemptionDebugging",
        "cudbgGetAPI", "cudbgGetAPIVersion", "cudbgInjectionPath", "cudbgIpcFlag", "cudbgMain",
        "cudbgReportDriverApiError", "cudbgReportDriverApiErrorFlags", "cudbgReportDriverInternalError",
        "cudbgReportedDriverApiErrorCode", "cudbgReportedDriverApiErrorFuncNameAddr",
        "cudbgReportedDriverApiErrorFuncNameSize", "cudbgReportedDriverInternalErrorCode",
        "cudbgResumeForAttachDetach", "cudbgRpcEnabled", "cudbgSessionId", "cudbgUseExternalDebugger",
    ]),
];

#[cfg(test)]
mod lists {
    extern crate std;
    use std::{fs, string::String, vec::Vec};

    /// The lists of names in a folder of this crate, by the files' names.
    pub(crate) fn read(folder: &str) -> Vec<(String, String)> {
        let folder = fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        let files = folder.map(|entry| entry.unwrap().path());
        files
            .map(|path| {
                let name = path.file_stem().unwrap().to_str().unwrap().into();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashMap;
    use std::{string::String, vec::Vec};

    use super::{Class, TABLE, class_of};
    use crate::lists::read;

    #[test]
    fn every_drivers_every_name_is_known() {
        let lists = read("lists");
        assert!(lists.len() >= 9, "{}", lists.len());
        for (list, names) in &lists {
            assert!(names.lines().count() > 400, "{list}");
            let unknown: Vec<_> = names.lines().filter(|name| class_of(name).is_none()).collect();
            assert!(unknown.is_empty(), "{list} has names of which the table says nothing: {unknown:?}");
        }
    }

    #[test]
    fn a_name_has_one_class_and_some_driver_has_it() {
        let lists = read("lists");
        let mut seen = HashMap::new();
        for (class, names) in TABLE {
            for name in *names {
                assert_eq!(seen.insert(*name, *class), None, "{name}");
                let has = |list: &(String, String)| list.1.lines().any(|line| line == *name);
                assert!(lists.iter().any(has), "no driver has {name}");
            }
        }
    }

    /// Every context takes memory, and everything in it ends with it.
    #[test]
    fn all_contexts_count() {
        for name in TABLE.iter().flat_map(|(_, names)| *names).filter(|name| name.contains("CtxCreate")) {
            assert_eq!(class_of(name), Some(Class::Counted), "{name}");
        }
    }

    /// In an unknown capture, launches would count, and our events would be in its graph.
    #[test]
    fn all_captures_are_known() {
        for name in TABLE.iter().flat_map(|(_, names)| *names).filter(|name| name.contains("StreamBegin")) {
            assert_eq!(class_of(name), Some(Class::Captured), "{name}");
        }
    }

    /// A new version of a function is assumed to do what the old one did.
    #[test]
    fn versions_of_a_function_are_of_one_class() {
        let stem = |name: &str| {
            let name = name.strip_suffix("_ptsz").or(name.strip_suffix("_ptds")).unwrap_or(name);
            let (stem, version) = name.rsplit_once("_v").unwrap_or((name, "1"));
            String::from(if version.parse::<u32>().is_ok() { stem } else { name })
        };
        let mut classes: HashMap<String, (Class, &str)> = HashMap::new();
        for (class, names) in TABLE {
            for name in *names {
                let (first, other) = *classes.entry(stem(name)).or_insert((*class, name));
                // The first version is of 32-bit drivers: its pointers cannot be used, and it loads nothing.
                let exempt = stem(name) == "cuModuleGetGlobal";
                assert!(first == *class || exempt, "{name} is {class:?}, {other} is {first:?}");
            }
        }
    }
}
