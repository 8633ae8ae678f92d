"""A share for a real container: `fgpu-runtime` in front of runc or crun, with the machine's own root as its root."""
import json
import os
import shutil
import subprocess

from ..node import MS_BIND, MS_REC, mount
from . import CHECKS
from .memory import judge_outside


def bundle(trial, node, runtime, annotations, command):
    """A bundle whose process is this command, made from what `RUNTIME spec` writes."""
    folder = node.work / "bundle"
    shutil.rmtree(str(folder / "config.json"), ignore_errors=True)
    folder.mkdir(exist_ok=True)
    (folder / "rootfs").mkdir(exist_ok=True)
    if not os.path.ismount(str(folder / "rootfs")):
        mount("/", folder / "rootfs", None, MS_BIND | MS_REC)
    if (folder / "config.json").exists():
        (folder / "config.json").unlink()
    done = subprocess.run([runtime, "spec"], cwd=str(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    trial.need(done.returncode == 0, "%s spec: %s" % (runtime, done.stdout[-300:]))
    spec = json.loads((folder / "config.json").read_text())
    spec["process"].update(terminal=False, args=list(map(str, command)))
    spec["process"]["env"] = ["PATH=%s" % os.environ["PATH"], "FGPU_KIT=%s" % node.mark]
    spec["annotations"] = annotations
    (folder / "config.json").write_text(json.dumps(spec))
    return folder


def a_runtime(trial, node):
    """The first runtime that this machine has."""
    node.need_run(trial, mounts=True)
    found = [shutil.which(name) for name in ("runc", "crun")]
    if not any(found):
        trial.skip("neither runc nor crun is here")
    return next(path for path in found if path)


def run(trial, node, annotations, command):
    """Runs a container to its end, or skips where this machine lets nobody make one."""
    runtime = a_runtime(trial, node)
    plain = bundle(trial, node, runtime, {}, ["true"])
    probe = node.command([runtime, "run", "-b", plain, "fgpu-kit-plain"], timeout=30)
    if probe.code != 0:
        trial.skip("%s cannot run a container here: %s" % (runtime, (probe.err or probe.out).strip()[-200:]))
    ours = node.kit / "usr/bin/fgpu-runtime"
    folder = bundle(trial, node, runtime, dict(annotations, **{"fgpu/device": node.uuid}), command)
    done = node.command([ours, "run", "-b", folder, "fgpu-kit-%d" % os.getpid()], timeout=50)
    trial.need(done.code == 0, done.story())
    return done.lines()


@CHECKS.add("containers", "runtime", "a container of fgpu-runtime over runc or crun fills a quarter of the GPU", "its grant, and out of memory (2)", limit=90)
def runtime(trial, node):
    info, filled = run(trial, node, {"fgpu/fraction": "0.25"}, node.program("fill", "info", "fill", "alloc"))
    granted = node.granted(25)
    trial.measured.update(granted=granted, total=info["total"], got=filled["got"], code=filled["code"])
    trial.expect(info["total"] == granted, "cuMemGetInfo's total is %d" % info["total"])
    trial.expect(info["devices"] == 1, "it sees %d GPUs" % info["devices"])
    trial.expect(filled["code"] == 2 and 0.99 * info["free"] <= filled["got"] <= granted, "it got %d" % filled["got"])
    trial.expect(not node.status()["leases"], "its lease is still there")


@CHECKS.add("containers", "driver_tier", "with fgpu/isolation=driver a process that loads the real libcuda is held, too (r615)",
            "out of memory (2) at the grant, by the driver alone", limit=90)
def driver_tier(trial, node):
    node.need_run(trial, mounts=True)
    inventory = json.loads(node.command([node.fgpu, "--config", node.config, "inventory", "--json"]).out)
    if not inventory.get("driver_limits"):
        trial.skip("driver %s has no memory limits by cgroup, or there is no cgroup v2 at /sys/fs/cgroup" % inventory["driver_version"])
    before, granted = node.outside()[0], node.granted(25)
    running = node.start(trial, ["-p", "25%", "-a", "isolation=driver"],
                         ["sh", "-c", 'FGPU_KIT_CUDA=$(echo /run/fgpu/driver-*/cuda) exec "$@"', "sh",
                          *node.program("fill", "fill", "alloc", "hold")])
    filled, held = running.line(), running.line()
    trial.need("pid" in held, "filling: %s" % filled)
    trial.measured.update(granted=granted, got=filled["got"], code=filled["code"])
    judge_outside(trial, node, held["pid"], before, granted, filled["got"])
    trial.expect(filled["code"] == 2, "it was refused with %d" % filled["code"])
    running.finish()


@CHECKS.add("containers", "mig", "a MIG slice of a GPU on which MIG is on", "its memory is the slice's, and it is gone afterwards", limit=90)
def mig(trial, node):
    node.need_run(trial, mounts=True)
    inventory = json.loads(node.command([node.fgpu, "--config", node.config, "inventory", "--json"]).out)
    enabled = [gpu["uuid"] for gpu in inventory["gpus"] if gpu["mig_enabled"]]
    if not enabled:
        trial.skip("no GPU of this machine has MIG enabled; the kit does not change that")
    words = [str(node.fgpu), "--config", str(node.config), "run", "-m", "4Gi", "-a", "mig=auto", "-a", "device=%s" % enabled[0], "--",
             *node.program("fill", "info", "fill", "alloc")]
    done = node.command(words, timeout=80)
    trial.need(done.code == 0 and len(done.lines()) == 2, done.story())
    info, filled = done.lines()
    trial.measured.update(total=info["total"], got=filled["got"], code=filled["code"])
    trial.expect(info["devices"] == 1 and filled["code"] == 2, "%s %s" % (info, filled))
    whole = next(gpu["total_memory"] for gpu in inventory["gpus"] if gpu["uuid"] == enabled[0])
    trial.expect(info["total"] < whole, "the slice is the whole GPU")
