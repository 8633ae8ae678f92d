"""What a process with a share sees of the GPU: the grant, and no more."""
import re
import sys
from pathlib import Path

from ..node import MIB
from . import CHECKS

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"
TAKEN = 512 * MIB


@CHECKS.add("views", "cuda", "cuMemGetInfo and cuDeviceTotalMem through dlopen", "total is the granted memory, free is less")
def cuda(trial, node):
    for percent in (25,) if node.quick else (10, 25, 33, 50, 75, 90):
        done = node.share(trial, ["-p", "%d%%" % percent], node.program("fill", "info"))
        trial.need(done.code == 0 and done.lines(), done.story())
        said, granted = done.lines()[0], node.granted(percent)
        trial.measured["%d%%" % percent] = dict(said, granted=granted)
        trial.expect(said["total"] == granted, "%d%%: cuMemGetInfo's total is %d, granted %d" % (percent, said["total"], granted))
        trial.expect(said["device_total"] == granted, "%d%%: cuDeviceTotalMem is %d" % (percent, said["device_total"]))
        trial.expect(node.direct or said["devices"] == 1, "%d%%: there are %d devices" % (percent, said["devices"]))
        trial.expect(said["free"] <= said["total"], "%d%%: free is more than total" % percent)


@CHECKS.add("views", "nvml", "NVML memory v1 and v2, process lists v1 to v3, devices, by ctypes",
            "one GPU, index 0, total granted, used the share's own, the process by its pid")
def nvml(trial, node):
    words = [sys.executable, PYTHON / "nvml_view.py", node.programs / "fill", TAKEN]
    done = node.share(trial, ["-p", "25%"], words)
    trial.need(done.code == 0 and done.lines(), done.story())
    said, granted = done.lines()[-1], node.granted(25)
    trial.measured.update(said, granted=granted)
    trial.expect(said["count"] == 1, "it sees %d GPUs" % said["count"])
    trial.expect(said["uuid"] == node.uuid, "it sees %s" % said["uuid"])
    trial.expect(said["index"] == 0, "the GPU's index is %d" % said["index"])
    for version in ("memory", "memory2"):
        memory = said[version]
        trial.expect(memory["total"] == granted, "%s: total is %d" % (version, memory["total"]))
        trial.expect(TAKEN <= memory["used"] <= granted, "%s: used is %d" % (version, memory["used"]))
    for name, processes in said["processes"].items():
        if "refused" in processes:
            continue
        used = processes.get(str(said["pid"]))
        trial.expect(set(processes) == {str(said["pid"])}, "%s lists %s, not only %d" % (name, processes, said["pid"]))
        trial.expect(used is not None and used >= TAKEN, "%s says that it uses %s" % (name, used))
    trial.expect(any("refused" not in it for it in said["processes"].values()), "no process list works")


FORMS = {
    "plain": ["nvidia-smi"],
    "list": ["nvidia-smi", "-L"],
    "query": ["nvidia-smi", "-q"],
    "query-memory": ["nvidia-smi", "-q", "-d", "MEMORY"],
    "query-pids": ["nvidia-smi", "-q", "-d", "PIDS"],
    "xml": ["nvidia-smi", "-q", "-x"],
    "csv": ["nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.used,memory.free", "--format=csv,noheader,nounits"],
    "csv-apps": ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
    "pmon": ["nvidia-smi", "pmon", "-c", "1", "-s", "m"],
    "dmon": ["nvidia-smi", "dmon", "-c", "1", "-s", "m"],
    "topo": ["nvidia-smi", "topo", "-m"],
    "index": ["nvidia-smi", "-i", "0", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
}


@CHECKS.add("views", "smi", "nvidia-smi in each of its forms, while a process of the share holds 512 MiB",
            "each ends with 0, and shows one GPU with the granted total and that process", limit=120)
def smi(trial, node):
    forms = ["%s=%s" % (name, " ".join(words)) for name, words in FORMS.items()]
    done = node.share(trial, ["-p", "25%"], [sys.executable, PYTHON / "smi_view.py", node.programs / "fill", TAKEN, *forms])
    trial.need(done.code == 0 and done.lines(), done.story())
    said, total = done.lines()[-1], str(node.granted(25) // MIB)
    outputs, pid = said["forms"], str(said["pid"])
    trial.measured.update({"pid": said["pid"], "total_mib": total, "forms": outputs})

    def shows(form, pattern, what):
        trial.expect(re.search(pattern, outputs[form]["out"]), "%s does not show %s" % (form, what))

    for form, output in outputs.items():
        trial.expect(output["code"] == 0, "%s ended with %s: %s" % (form, output["code"], output["out"][-200:]))
    shows("plain", r"/ *%sMiB" % total, "the granted total")
    shows("plain", r"\b%s\b" % pid, "the process")
    trial.expect(len(outputs["list"]["out"].split("GPU ")) == 2, "-L shows another number of GPUs than one")
    shows("list", re.escape(node.uuid), "the GPU")
    for form in ("query", "query-memory"):
        shows(form, r"Total +: %s MiB" % total, "the granted total")
    for form in ("query", "query-pids"):
        shows(form, r"Process ID +: %s\b" % pid, "the process")
    shows("xml", r"<total>%s MiB</total>" % total, "the granted total")
    shows("xml", r"<pid>%s</pid>" % pid, "the process")
    trial.expect(outputs["csv"]["out"].count("\n") == 1, "the csv has more lines than one")
    shows("csv", r"^0, %s, %s," % (re.escape(node.uuid), total), "index 0 and the granted total")
    shows("csv-apps", r"(?m)^%s, " % pid, "the process")
    shows("pmon", r"\b%s\b" % pid, "the process")
    shows("index", r"(?m)^%s$" % total, "the granted total")


@CHECKS.add("views", "nodes", "device nodes of the other GPUs", "cannot be opened")
def nodes(trial, node):
    node.need_run(trial, mounts=True)
    words = [sys.executable, "-c", "import glob,json,os\nsaid={}\nfor path in sorted(glob.glob('/dev/nvidia[0-9]*')):\n"
             " try:\n  os.close(os.open(path, os.O_RDWR)); said[path]='opens'\n except OSError as error: said[path]=error.strerror\n"
             "print(json.dumps(said))"]
    done = node.share(trial, ["-p", "25%"], words)
    trial.need(done.code == 0 and done.lines(), done.story())
    said = done.lines()[-1]
    trial.measured["nodes"] = said
    # The simulated driver has no driver behind its nodes: what is permitted ends in ENXIO.
    opened = [path for path, answer in said.items() if answer in ("opens", "No such device or address")]
    trial.expect(len(opened) == 1, "these open: %s" % ", ".join(opened))
