"""Other frameworks and NVIDIA's own tools, if they are installed: each works with a share."""
import os
import shutil
import sys
from pathlib import Path

from . import CHECKS

SCRIPT = Path(__file__).resolve().parent.parent.parent / "python/frameworks.py"
FRAMEWORKS = {
    "cublas": "a product by cuBLAS, through torch",
    "nccl": "an all-reduce by NCCL with one rank, through torch",
    "profiler": "CUPTI's activity, through torch.profiler",
    "compile": "torch.compile with CUDA graphs",
    "triton": "a kernel by Triton",
    "jax": "a product by JAX",
    "cupy": "a sum by CuPy",
}


def no_real_kernels(trial, node):
    """Ends a check on the simulated driver."""
    if node.simulated:
        trial.skip("NVIDIA's CUDA runtime does not start on the simulated driver")


def _framework(name, what):
    @CHECKS.add("others", name, what, "its result is right", limit=120)
    def framework(trial, node):
        no_real_kernels(trial, node)
        words = [sys.executable, SCRIPT, name]
        native = node.command(words, native=True)
        said = (native.lines() or [{}])[-1]
        if "missing" in said:
            trial.skip("not installed: %s" % said["missing"])
        if native.code != 0 or not said.get("ok"):
            trial.measured["native"] = native.story()
            trial.skip("it does not work without fgpu either: %s" % native.story()[-200:])
        done = node.share(trial, ["-p", "25%"], words)
        trial.need(done.code == 0 and done.lines(), done.story())
        trial.measured.update(done.lines()[-1])
        trial.expect(trial.measured.get("ok"), "its result is wrong")


for _name, _what in FRAMEWORKS.items():
    _framework(_name, _what)


def tool(trial, name):
    """The path of one of NVIDIA's tools; ends the check if it is not there."""
    path = shutil.which(name) or "/usr/local/cuda/bin/%s" % name
    if not os.path.exists(path):
        trial.skip("%s is not installed" % name)
    return path


def same_as_native(trial, node, words):
    """Runs it without and with a share, and gives both."""
    no_real_kernels(trial, node)
    native = node.command(words, native=True)
    trial.measured["native"] = (native.out + native.err)[-1500:]
    if native.code != 0:
        trial.skip("it does not work without fgpu either: %s" % native.story()[-200:])
    done = node.share(trial, ["-p", "25%"], words)
    trial.measured["shared"] = (done.out + done.err)[-1500:]
    trial.need(done.code == 0, done.story())
    return native.out + native.err, done.out + done.err


@CHECKS.add("others", "sanitizer", "compute-sanitizer over the kit's kernels", "no error", limit=120)
def sanitizer(trial, node):
    path = tool(trial, "compute-sanitizer")
    _, said = same_as_native(trial, node, [path, "--error-exitcode", "9", *node.program("measure", "launch", 100)])
    trial.expect("0 errors" in said, "it does not say 0 errors")


@CHECKS.add("others", "debugger", "cuda-gdb -batch over the kit's kernels", "the program runs to its end in it", limit=120)
def debugger(trial, node):
    path = tool(trial, "cuda-gdb")
    words = [path, "-batch", "-ex", "run", "-ex", "info cuda devices", "--args", *node.program("measure", "launch", 100)]
    _, said = same_as_native(trial, node, words)
    trial.expect("exited normally" in said, "the program did not end normally in it")


CUDART = r"""
#include <cstdio>
#include <cuda_runtime.h>
__global__ void twice(int *x) { x[threadIdx.x] *= 2; }
int main() {
    size_t left, total, got = 0;
    int *x, sum = 0;
    cudaMemGetInfo(&left, &total);
    cudaMallocManaged(&x, 256 * sizeof *x);
    for (int i = 0; i < 256; i++) x[i] = i;
    twice<<<1, 256>>>(x);
    cudaDeviceSynchronize();
    for (int i = 0; i < 256; i++) sum += x[i];
    void *p;
    cudaError_t code;
    while ((code = cudaMalloc(&p, 64 << 20)) == cudaSuccess) got += 64 << 20;
    printf("{\"total\": %zu, \"sum\": %d, \"code\": %d, \"got\": %zu}\n", total, sum, (int)code, got);
}
"""


@CHECKS.add("others", "cudart", "a program by nvcc, with the static CUDA runtime", "its total is granted, cudaMalloc ends in 2, its kernel works",
            limit=120)
def cudart(trial, node):
    no_real_kernels(trial, node)
    compiler = tool(trial, "nvcc")
    source, program = node.work / "cudart.cu", node.work / "cudart"
    source.write_text(CUDART)
    built = node.command([compiler, "-arch=native", "-o", program, source])
    if built.code != 0:
        built = node.command([compiler, "-o", program, source])
    if built.code != 0:
        trial.skip("nvcc: %s" % built.story()[-300:])
    done = node.share(trial, ["-p", "20%"], [program])
    trial.need(done.code == 0 and done.lines(), done.story())
    said, granted = done.lines()[-1], node.granted(20)
    trial.measured.update(said, granted=granted)
    trial.expect(said["total"] == granted and said["code"] == 2 and said["sum"] == 255 * 256, "it is not so")
    trial.expect(said["got"] <= granted, "more than granted could be had")
