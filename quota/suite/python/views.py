"""Prints what nvidia-ml-py shows of everything that could tell of other tenants: a line for each call, with its answer."""
from pynvml import *

NEAR = (NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE, NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE,
        NVML_TOPOLOGY_SYSTEM)


def show(value):
    """Structures and lists in words."""
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(show, value))
    if hasattr(value, "_fields_"):
        return "{%s}" % ", ".join("%s: %s" % (field[0], show(getattr(value, field[0]))) for field in value._fields_)
    if type(value).__name__.startswith("LP_") and not isinstance(value, POINTER(c_int)):
        return nvmlDeviceGetUUID(value)
    return str(value)


def ask(call, *arguments):
    """One call."""
    try:
        answer = show(call(*arguments))
    except NVMLError as error:
        answer = "refused: %s" % error
    print("%s: %s" % (call.__name__, answer))


nvmlInit()
for call in (nvmlDeviceGetCount, nvmlUnitGetCount, nvmlGetExcludedDeviceCount if "nvmlGetExcludedDeviceCount" in globals() else nvmlUnitGetCount):
    ask(call)
ask(nvmlSystemGetTopologyGpuSet, 0)
for index in range(nvmlDeviceGetCount()):
    gpu = nvmlDeviceGetHandleByIndex(index)
    print("GPU %d" % index)
    for call in (nvmlDeviceGetUUID, nvmlDeviceGetIndex, nvmlDeviceGetMemoryInfo, nvmlDeviceGetBAR1MemoryInfo,
                 nvmlDeviceGetUtilizationRates, nvmlDeviceGetEncoderUtilization, nvmlDeviceGetDecoderUtilization,
                 nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v2,
                 nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetAccountingMode,
                 nvmlDeviceGetAccountingPids, nvmlDeviceGetEncoderSessions, nvmlDeviceGetEncoderStats, nvmlDeviceGetFBCSessions,
                 nvmlDeviceGetFBCStats, nvmlGpmQueryDeviceSupport):
        ask(call, gpu)
    ask(nvmlDeviceGetMemoryInfo, gpu, nvmlMemory_v2)
    ask(nvmlDeviceGetProcessUtilization, gpu, 0)
    ask(nvmlDeviceGetProcessesUtilizationInfo, gpu, 0)
    for mode in range(3):
        ask(nvmlDeviceGetRunningProcessDetailList, gpu, nvmlProcessDetailList_v1, mode)
    for sampled in range(7):
        ask(nvmlDeviceGetSamples, gpu, sampled, 0)
    for level in NEAR:
        ask(nvmlDeviceGetTopologyNearestGpus, gpu, level)
    for process in nvmlDeviceGetComputeRunningProcesses(gpu):
        print("name: %s" % nvmlSystemGetProcessName(process.pid))
        ask(nvmlDeviceGetAccountingStats, gpu, process.pid)
