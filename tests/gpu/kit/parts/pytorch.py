"""PyTorch: each of its allocators up to out of memory, and at work after it."""
import sys
from pathlib import Path

from ..node import MIB, PIECE
from . import CHECKS

SCRIPT = Path(__file__).resolve().parent.parent.parent / "python/torch_memory.py"
PERCENT = 20
ALLOCATORS = {
    "caching": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "graphs": {},
}


def has_torch(trial, node):
    """Ends a check where there is no torch that can use this GPU."""
    if node.simulated:
        trial.skip("NVIDIA's CUDA runtime does not start on the simulated driver")
    done = node.command([sys.executable, "-c", "import torch; assert torch.cuda.is_available(), 'no CUDA device'"], native=True)
    if done.code != 0:
        trial.skip("torch without fgpu: %s" % (done.err.strip().splitlines() or ["status %s" % done.code])[-1])


def _way(way):
    @CHECKS.add("pytorch", way, "PyTorch's %s until it is out of memory, with %d %% of the GPU" % (way, PERCENT),
                "mem_get_info's total is granted, at least 95 % of the free memory can be had (graphs: 75 %), "
                "it is refused, at most 2 MiB more outside, works on and can have it again", limit=120)
    def memory(trial, node):
        has_torch(trial, node)
        before, granted = node.outside()[0], node.granted(PERCENT)
        running = node.start(trial, ["-p", "%d%%" % PERCENT], [sys.executable, SCRIPT, way], ALLOCATORS[way])
        full = running.line()
        trial.need("full" in full, "it ended before it was full: %s" % full)
        used, processes = node.outside()
        own = processes.get(full["pid"])
        outside = used - before if own is None else own
        done = running.finish()
        trial.need(done.code == 0 and done.lines(), done.story())
        said = done.lines()[-1]
        trial.measured.update(said, granted=granted, outside=outside)
        trial.expect(said["total"] == granted, "mem_get_info's total is %d" % said["total"])
        trial.expect(outside <= granted + PIECE, "outside it is %d more than granted" % (outside - granted))
        trial.expect(said["got"] >= (0.75 if way == "graphs" else 0.95) * said["free"], "it got %d of %d" % (said["got"], said["free"]))
        trial.expect("refusal" in said, "it was never refused")
        trial.expect(said["works_after"] and said["works_at_last"], "it does not work after it")
        trial.expect(said["got_again"] >= said["got"] - 64 * MIB, "then it got only %d" % said["got_again"])
        if way == "graphs":
            # By what it is refused is PyTorch's: some versions free cached blocks in a capture, which ends the capture
            # (pytorch/pytorch pull request 187795), and then say that instead of OutOfMemoryError.
            trial.expect(said.get("replayed"), "a graph's replay was wrong")
        if way == "async":
            trial.expect(said["backend"] == "cudaMallocAsync", "the backend is %s" % said["backend"])


for _name in ALLOCATORS:
    _way(_name)


@CHECKS.add("pytorch", "larger", "a tensor that is larger than the share", "OutOfMemoryError, and it works on", limit=60)
def larger(trial, node):
    has_torch(trial, node)
    text = ("import json, torch\n"
            "total = torch.cuda.mem_get_info()[1]\n"
            "try:\n torch.empty(total + (1 << 20), dtype=torch.uint8, device='cuda'); said = 'nothing'\n"
            "except torch.cuda.OutOfMemoryError as error: said = 'OutOfMemoryError'\n"
            "print(json.dumps({'said': said, 'sum': float(torch.ones(1000, device='cuda').sum())}))")
    done = node.share(trial, ["-p", "%d%%" % PERCENT], [sys.executable, "-c", text])
    trial.need(done.code == 0 and done.lines(), done.story())
    trial.measured.update(done.lines()[-1])
    trial.expect(trial.measured == {"said": "OutOfMemoryError", "sum": 1000.0}, "it is not so")
