//! nvidia-ml-py on a simulated node.

use crate::fixture::{Node, python_path, run};

fn python(node: &Node, script: &str) -> String {
    run(node.command("python3").env("PYTHONPATH", python_path()).args(["-c", script]))
}

#[test]
fn nvidia_ml_py_sees_the_node() {
    let node = Node::install("h100-80-x2.toml");
    let mut client = node.client();
    client.succeed("alloc 1073741824");
    let script = "
from pynvml import *
nvmlInit()
print(nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion(), nvmlSystemGetCudaDriverVersion())
for i in range(nvmlDeviceGetCount()):
    gpu = nvmlDeviceGetHandleByIndex(i)
    assert nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(gpu))) == i
    assert nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(gpu).busId)) == i
    one, two = nvmlDeviceGetMemoryInfo(gpu), nvmlDeviceGetMemoryInfo(gpu, version=nvmlMemory_v2)
    assert one.total == two.total == two.reserved + two.used + two.free and one.used == two.used + two.reserved
    users = [(p.pid, p.usedGpuMemory) for p in nvmlDeviceGetComputeRunningProcesses(gpu)]
    print(nvmlDeviceGetName(gpu), nvmlDeviceGetMinorNumber(gpu), two.used, users, nvmlDeviceGetMigMode(gpu))
nvmlShutdown()
try:
    nvmlDeviceGetCount()
except NVMLError_Uninitialized:
    print('uninitialized')
";
    let name = "Simulated H100 80GB HBM3";
    let expected = format!(
        "550.163.01 12.550.163.01 12040\n{name} 0 1073741824 [({}, 1073741824)] [0, 0]\n{name} 1 0 [] [0, 0]\n\
         uninitialized\n",
        client.pid()
    );
    assert_eq!(python(&node, script), expected);
}

/// The process holds its slot by a lock that does not stand in its own way; both libraries are in it.
#[test]
fn a_process_sees_itself() {
    let node = Node::install("h100-80-x1.toml");
    let script = "
import ctypes, os
from pynvml import *
cuda, context, address = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64()
nvmlInit()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(512)) == 0
for _ in range(2):
    users = nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetHandleByIndex(0))
    print([(p.pid == os.getpid(), p.usedGpuMemory) for p in users])
    nvmlShutdown()
    nvmlInit()
";
    assert_eq!(python(&node, script), "[(True, 512)]\n[(True, 512)]\n");
}

#[test]
fn mig_profiles_and_placements_are_those_of_the_class() {
    let node = Node::install("h100-80-mig.toml");
    let script = "
from pynvml import *
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(1)
print(nvmlDeviceGetMigMode(gpu), nvmlDeviceGetMaxMigDeviceCount(gpu))
for number in range(NVML_GPU_INSTANCE_PROFILE_COUNT):
    try:
        p = nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, version=2)
    except NVMLError_NotSupported:
        continue
    count = c_uint()
    function = nvmlDeviceGetGpuInstancePossiblePlacements
    array = (c_nvmlGpuInstancePlacement_t * 8)()
    count.value = 8
    function(gpu, p.id, array, byref(count))
    name = p.name.decode() if isinstance(p.name, bytes) else p.name
    print(name, p.instanceCount, p.multiprocessorCount, p.memorySizeMB, [(a.start, a.size) for a in array[:count.value]])
";
    let output = python(&node, script);
    assert!(output.starts_with("[1, 1] 7\n"), "{output}");
    assert!(output.contains("MIG 1g.20gb 4 26 20096 [(0, 2), (2, 2), (4, 2), (6, 2)]"), "{output}");
    assert!(output.contains("MIG 3g.40gb 2 60 40448 [(0, 4), (4, 4)]"), "{output}");
    assert!(output.contains("MIG 7g.80gb 1 132 81152 [(0, 8)]"), "{output}");
    assert_eq!(output.lines().count(), 1 + 7);
}

/// As NVIDIA's go-nvlib walks over the devices of a node: it asks every GPU that knows MIG, in MIG mode or
/// not, for each index, and each device by its UUID.
#[test]
fn mig_devices_are_found_by_index_and_by_uuid() {
    let node = Node::install("h100-80-mig.toml");
    let script = "
from pynvml import *
nvmlInit()
whole, cut = [nvmlDeviceGetHandleByIndex(i) for i in range(2)]
profile = nvmlDeviceGetGpuInstanceProfileInfo(cut, NVML_GPU_INSTANCE_PROFILE_1_SLICE)
for _ in range(2):
    instance = nvmlDeviceCreateGpuInstance(cut, profile.id)
    nvmlGpuInstanceCreateComputeInstance(instance, NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
for gpu in whole, cut:
    for index in range(nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except NVMLError_NotFound:
            continue
        same = nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(mig))
        parent = nvmlDeviceGetDeviceHandleFromMigDeviceHandle(same)
        print(index, nvmlDeviceGetIndex(same), nvmlDeviceGetMinorNumber(parent))
try:
    nvmlDeviceGetHandleByUUID('MIG-00000000-0000-0000-0000-000000000000')
except NVMLError_NotFound:
    print('not found')
";
    assert_eq!(python(&node, script), "0 0 1\n1 1 1\nnot found\n");
}
