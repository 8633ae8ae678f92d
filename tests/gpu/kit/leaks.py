"""What is left on the machine after all: nothing."""
import json
import os
import time
from pathlib import Path

from . import trial
from .node import PIECE
from .nvml import Nvml

WATCHED = ("/etc/fgpu", "/run/fgpu", "/tmp")


def look(driver_root):
    """What may not have changed: mounts, files, cgroups; and the GPU's memory in use."""
    return {
        "mounts": mounts(),
        "files": {place: files(place) for place in WATCHED},
        "cgroups": cgroups(),
        "used": used(driver_root),
    }


def mounts():
    """The mount points of this namespace."""
    with open("/proc/self/mountinfo") as file:
        return sorted(line.split()[4] for line in file)


def files(place):
    """What a folder has, by name; those of /tmp only by fgpu's name."""
    try:
        names = os.listdir(place)
    except OSError:
        return []
    return sorted(name for name in names if place != "/tmp" or name.startswith("fgpu"))


def cgroups():
    """The cgroups of runs."""
    return sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/fgpu-run-*"))


def used(driver_root):
    """Bytes in use on all GPUs, None without a driver."""
    library = "libnvidia-ml.so.1"
    if driver_root != "/":
        library = "%s/usr/lib/x86_64-linux-gnu/%s" % (driver_root, library)
    try:
        nvml = Nvml(library)
        return sum(nvml.memory2(nvml.device(index))["used"] for index in range(nvml.count()))
    except Exception:
        return None


def leases(work):
    """The leases that the state directory still has."""
    try:
        text = (Path(work) / "state/allocations.json").read_text()
    except OSError:
        return []
    try:
        return json.loads(text).get("leases", [])
    except ValueError:
        return ["unreadable: %s" % text[:200]]


def checks(before, work, mark, driver_root):
    """The rows of the report."""
    began = time.monotonic()
    left = [pid for pid in trial.marked(mark) if pid != os.getppid()]
    # The driver gives memory back a moment after a process has ended.
    until = time.monotonic() + 10
    after = look(driver_root)
    while after["used"] is not None and after["used"] > (before["used"] or 0) + PIECE and time.monotonic() < until:
        time.sleep(0.2)
        after = look(driver_root)
    folders = Path(work) / "state/containers"
    rest = sorted(os.listdir(folders)) if folders.is_dir() else []
    held = leases(work)
    own = Path(work).name
    new = {place: sorted(set(after["files"][place]) - set(before["files"][place]) - {own}) for place in WATCHED}
    rows = [
        ("processes", "processes of the kit", "none", {"left": left}, not left),
        ("mounts", "mounts on the machine", "as before", {"new": _more(before, after, "mounts")}, before["mounts"] == after["mounts"]),
        ("leases", "leases and grants' folders", "none", {"leases": held, "folders": rest}, not held and not rest),
        ("files", "files of fgpu on the machine", "as before", {"new": new}, not any(new.values())),
        ("cgroups", "cgroups of runs", "as before", {"new": _more(before, after, "cgroups")}, before["cgroups"] == after["cgroups"]),
    ]
    answers = [_row(name, what, expected, measured, "ok" if good else "failed", "" if good else "see what was measured")
               for name, what, expected, measured, good in rows]
    memory = {"before": before["used"], "after": after["used"]}
    if after["used"] is None:
        status, reason = "skipped", "no driver"
    elif after["used"] <= before["used"] + PIECE:
        status, reason = "ok", ""
    else:
        status, reason = "failed", "the GPU's memory is not free again"
    for path in _more(before, after, "cgroups"):  # told, and taken away all the same
        try:
            os.rmdir(path)
        except OSError:
            pass
    answers.append(_row("memory", "device memory in use", "as before, but for 2 MiB", memory, status, reason))
    answers[-1]["seconds"] = round(time.monotonic() - began, 2)
    return answers


def _more(before, after, key):
    return [it for it in after[key] if it not in before[key]]


def _row(name, what, expected, measured, status, reason):
    return {"name": "leaks.%s" % name, "what": what, "expected": expected, "measured": measured, "status": status,
            "reason": reason, "seconds": 0.0}
