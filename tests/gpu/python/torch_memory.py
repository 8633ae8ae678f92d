"""torch_memory.py WAY: PyTorch takes memory until it is refused, goes on, and can have as much again. One JSON line.

WAY: caching, expandable, async (each with PYTORCH_CUDA_ALLOC_CONF as pytorch.py sets it), graphs.
"""
import json
import os
import sys

import torch

MIB = 1 << 20
way = sys.argv[1]
said = {"way": way, "torch": torch.__version__, "cuda": torch.version.cuda, "backend": torch.cuda.get_allocator_backend()}


def works():
    """A little arithmetic whose result is known."""
    ones = torch.ones(256, 256, device="cuda")
    return float((ones @ ones).sum()) == 256.0**3


def fill():
    """(tensors, bytes): until torch says that it is out of memory."""
    taken = []
    for size in (64 * MIB, 2 * MIB):
        while True:
            try:
                taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError as error:
                said["refusal"] = str(error)[:300]
                break
    return taken, sum(it.numel() for it in taken)


def graphs():
    """Captured work with memory of its own, again and again, until there is none; then one is replayed."""
    kept, result = [], None
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # warm up, as torch's documentation asks
        works()
    torch.cuda.synchronize()
    count = 0
    while count < 100000:
        graph = torch.cuda.CUDAGraph()
        source = None
        try:
            source = torch.full((64 * MIB // 4,), 2.0, device="cuda")
            with torch.cuda.graph(graph):
                result = source * 3
        except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
            said["refusal"] = str(error)[:300]
            # The end of a capture that failed has an error of its own, over the one that mattered.
            cause = error.__context__ if isinstance(error.__context__, torch.cuda.OutOfMemoryError) else error
            said["refused_by"] = type(cause).__name__
            break
        kept.append((graph, source, result))
        count += 1
    said["graphs"] = len(kept)
    if kept:
        graph, source, result = kept[0]
        source.fill_(5.0)
        graph.replay()
        torch.cuda.synchronize()
        said["replayed"] = float(result[0]) == 15.0
    total = sum(it[1].numel() * 4 + it[2].numel() * 4 for it in kept)
    return kept, total


assert works()
free, total = torch.cuda.mem_get_info()
said.update(free=free, total=total, properties_total=torch.cuda.get_device_properties(0).total_memory)
take = graphs if way == "graphs" else fill
taken, said["got"] = take()
# From outside it is looked at while all is held.
print(json.dumps({"full": True, "pid": os.getpid()}), flush=True)
sys.stdin.read()
del taken
torch.cuda.synchronize()
torch.cuda.empty_cache()
said["works_after"] = works()
said["free_after"] = torch.cuda.mem_get_info()[0]
taken, said["got_again"] = take()
del taken
torch.cuda.synchronize()
torch.cuda.empty_cache()
said["works_at_last"] = works()
print(json.dumps(said), flush=True)
