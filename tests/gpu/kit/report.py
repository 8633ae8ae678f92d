"""The table, and the report in JSON."""
import json
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

FORMAT = 1


def row(check):
    """A line of the table."""
    line = "%-8s %-34s %7.1fs  %s" % (check["status"], check["name"], check["seconds"], brief(check["measured"]))
    if check["reason"]:
        line += "\n         %s" % check["reason"].replace("\n", "\n         ")
    return line


def brief(measured):
    """What was measured, in a line."""
    text = ", ".join("%s=%s" % (key, value) for key, value in measured.items() if not isinstance(value, (dict, list)))
    return text if len(text) < 160 else text[:157] + "..."


def machine():
    """What may matter about the machine besides its GPU."""
    return {
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "uid": os.getuid(),
        "capabilities": _field("/proc/self/status", "CapEff"),
        "cgroup": _read("/proc/self/cgroup"),
        "nvcc": _first(["nvcc", "--version"]),
        "gcc": _first(["gcc", "--version"]),
        "runc": shutil.which("runc"),
    }


def _read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _field(path, name):
    for line in (_read(path) or "").splitlines():
        if line.startswith(name + ":"):
            return line.split(":", 1)[1].strip()
    return None


def _first(words):
    if not shutil.which(words[0]):
        return None
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    lines = [line for line in done.stdout.splitlines() if "release" in line] or done.stdout.splitlines()
    return lines[0] if lines else None


def write(directory, gpu, commit, arguments, checks, seconds):
    """Writes the report and gives its path. Its name sorts by time."""
    simulated = bool(gpu) and gpu.get("name", "").startswith("Simulated ")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kind = "simulated" if simulated else "gpu" if gpu and "name" in gpu else "none"
    counted = {status: sum(check["status"] == status for check in checks) for status in ("ok", "failed", "skipped")}
    report = {
        "format": FORMAT,
        "simulated": simulated,
        "time": stamp,
        "fgpu_commit": commit,
        "arguments": arguments,
        "gpu": gpu,
        "machine": machine(),
        "seconds": round(seconds, 1),
        "count": counted,
        "checks": checks,
    }
    path = Path(directory) / ("%s-%s.json" % (stamp, kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path, counted
