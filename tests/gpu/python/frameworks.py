"""frameworks.py WHAT: one small use of a framework with a known result. One JSON line, {"ok": ..., ...}.

A framework that is not there is {"missing": why}.
"""
import json
import sys


def torch_cuda():
    """torch, or the program's end."""
    import torch

    if not torch.cuda.is_available():
        raise ImportError("torch sees no CUDA device")
    return torch


def cublas():
    """A product by cuBLAS in three types."""
    torch = torch_cuda()
    answer = {"version": torch.__version__}
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        ones = torch.ones(1024, 1024, device="cuda", dtype=kind)
        answer[str(kind)] = bool(((ones @ ones) == 1024).all())
    return dict(answer, ok=all(value for key, value in answer.items() if key != "version"))


def nccl():
    """All-reduce with one rank."""
    import os

    torch = torch_cuda()
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl")
    tensor = torch.full((1 << 20,), 3.0, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    answer = {"version": ".".join(map(str, torch.cuda.nccl.version())), "ok": float(tensor.sum()) == 3.0 * (1 << 20)}
    dist.destroy_process_group()
    return answer


def profiler():
    """CUPTI, by torch.profiler: the kernels of a product have device time."""
    torch = torch_cuda()
    from torch.profiler import ProfilerActivity, profile

    ones = torch.ones(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            ones = (ones @ ones).clamp(0, 1)
        torch.cuda.synchronize()
    kernels = [event for event in seen.events() if str(event.device_type).endswith("CUDA")]
    return {"events": len(kernels), "ok": len(kernels) >= 5}


def triton_():
    """A kernel that Triton compiles: it needs a C compiler."""
    global add, tl, triton  # a kernel and what it uses are looked up by name
    import triton
    import triton.language as tl

    torch = torch_cuda()

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)

    x, y = torch.rand(98432, device="cuda"), torch.rand(98432, device="cuda")
    out = torch.empty_like(x)
    add[(triton.cdiv(98432, 1024),)](x, y, out, 98432, BLOCK=1024)
    return {"version": triton.__version__, "ok": bool(torch.equal(out, x + y))}


def compile_():
    """torch.compile, with graphs."""
    torch = torch_cuda()
    step = torch.compile(lambda x: (x.sin() + x.cos()).sum(), mode="reduce-overhead")
    x = torch.ones(4096, device="cuda")
    for _ in range(4):
        got = float(step(x))
    return {"ok": abs(got - float((x.sin() + x.cos()).sum())) < 0.1}


def jax():
    """A product by XLA; JAX takes three quarters of what it sees by itself."""
    import jax
    import jax.numpy as jnp

    devices = [device for device in jax.devices() if device.platform == "gpu"]
    if not devices:
        raise ImportError("jax sees no GPU")
    ones = jnp.ones((1024, 1024))
    stats = devices[0].memory_stats() or {}
    return {"version": jax.__version__, "bytes_limit": stats.get("bytes_limit"), "ok": bool(((ones @ ones) == 1024).all())}


def cupy():
    """A sum, and what it says of memory."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    return {"version": cupy.__version__, "free": free, "total": total, "ok": int(cupy.arange(1000).sum()) == 499500}


WHAT = {"cublas": cublas, "nccl": nccl, "profiler": profiler, "triton": triton_, "compile": compile_, "jax": jax, "cupy": cupy}
try:
    answer = WHAT[sys.argv[1]]()
except ImportError as error:
    answer = {"missing": str(error)}
print(json.dumps(answer), flush=True)
