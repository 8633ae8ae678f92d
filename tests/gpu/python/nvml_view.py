"""nvml_view.py FILL BYTES: what NVML says here while a process of ours holds so many bytes; one JSON line."""
import json
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kit.nvml import Nvml, Refused  # noqa: E402

LISTS = ("nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3")

program, size = sys.argv[1:]
holder = subprocess.Popen([program, "take", "alloc", size, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
taken, held = json.loads(holder.stdout.readline()), json.loads(holder.stdout.readline())
nvml = Nvml()
device = nvml.device(0)
lists = {}
for name in LISTS:
    try:
        lists[name] = nvml.processes(device, name)
    except (Refused, AttributeError) as error:
        lists[name] = {"refused": str(error)}
print(json.dumps({
    "pid": held["pid"],
    "code": taken["code"],
    "count": nvml.count(),
    "uuid": nvml.text("nvmlDeviceGetUUID", device),
    "index": nvml.index(device),
    "memory": nvml.memory(device),
    "memory2": nvml.memory2(device),
    "processes": lists,
}))
holder.communicate()
