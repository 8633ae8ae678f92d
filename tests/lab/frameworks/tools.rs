//! Programs that show GPUs: what they show is the share.

use fgpu_lab::inside::Test;
use fgpu_lab::node;

use crate::pytorch::python;

pub(crate) const TESTS: &[Test] = &[
    Test::once("tools::nvidia_ml_py", nvidia_ml_py),
    Test::once("tools::gpustat", gpustat),
    Test::once("tools::nvitop", nvitop),
    Test::once("tools::nvtop", nvtop),
];

fn mib() -> u64 {
    node::gpus()[0].share(250_000) >> 20
}

fn nvidia_ml_py() {
    let program = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); \
        print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(h).total >> 20, \
        n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).total >> 20, len(n.nvmlDeviceGetComputeRunningProcesses(h)))";
    let output = python().command(["python3", "-c", program]).run();
    assert_eq!(output.ok(), format!("1 {0} {0} 0", mib()));
}

fn gpustat() {
    let output = python().command(["python3", "-m", "gpustat", "--no-color", "--no-header"]).run();
    let said = output.ok();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&format!("/ {} MB", mib())), "{said}");
}

fn nvitop() {
    let output = python().command(["python3", "-m", "nvitop", "--once", "--no-unicode"]).run();
    let said = output.ok();
    assert!(said.contains(&format!("{}MiB", mib())), "{said}");
}

fn nvtop() {
    let output = python().command(["nvtop", "-s"]).run();
    let said = output.ok();
    assert!(said.contains("device_name"), "{said}");
}
