"""This machine, as the checks use it: fgpu with a configuration and state of the kit's own, the GPU, and programs."""
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from .direct import OURS, Direct
from .nvml import Nvml

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
KIB, MIB = 1 << 10, 1 << 20
PIECE = 2 * MIB

libc = ctypes.CDLL(None, use_errno=True)


def _system(call, what):
    if call != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))


def unshare():
    """Gives this process a mount namespace of its own; what it mounts is seen nowhere else."""
    _system(libc.unshare(CLONE_NEWNS), "unshare")
    _system(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "keep mounts private")


def mount(source, target, kind, flags=0, options=None):
    """mount(2)."""
    words = [str(word).encode() if word is not None else None for word in (source, target, kind)]
    options = options.encode() if options else None
    _system(libc.mount(words[0], words[1], words[2], flags, options), "mount %s" % target)


class Finished:
    """A command that has ended."""

    def __init__(self, words, code, out, err):
        self.words, self.code, self.out, self.err = words, code, out, err

    def lines(self):
        """The JSON lines that it printed; others are passed over."""
        found = []
        for line in self.out.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
        return [line for line in found if isinstance(line, dict)]

    def story(self):
        """One line for a report."""
        said = (self.err.strip() or self.out.strip())[-600:]
        return "%s: status %s: %s" % (" ".join(map(str, self.words))[-200:], self.code, said)


class Running:
    """A command that runs until its standard input ends, and prints JSON lines meanwhile."""

    def __init__(self, words, env):
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, universal_newlines=True
        )

    def line(self):
        """Its next JSON line; an empty one if it has ended."""
        for text in self.process.stdout:
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
        return {"ended": self.process.stderr.read()[-600:]}

    def go_on(self):
        """Ends its pause."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self):
        """Ends its standard input and waits for it."""
        out, err = self.process.communicate()
        return Finished(self.process.args, self.process.returncode, out, err)


class Node:
    """See the module."""

    def __init__(self, kit, work, programs, driver_root, gpu, mark):
        self.kit, self.work, self.programs, self.root = Path(kit), Path(work), Path(programs), driver_root
        self.mark, self.wanted, self.keep, self.refusal = mark, gpu, set(), None
        self.fgpu = self.kit / "usr/bin/fgpu"
        self.config = self.work / "etc/config.toml"
        self.uuid = self.name = self.direct = None
        self.minor, self.private = 0, False
        self.quick = False

    # The machine.

    def describe(self):
        """Looks at the driver; raises if there is none."""
        nvml = self.nvml()
        handle = nvml.device(self.wanted)
        self.minor = nvml.minor(handle)
        self.uuid, self.name = nvml.text("nvmlDeviceGetUUID", handle), nvml.text("nvmlDeviceGetName", handle)
        memory = nvml.memory2(handle)
        return {
            "name": self.name,
            "uuid": self.uuid,
            "driver": nvml.text("nvmlSystemGetDriverVersion"),
            "cuda": nvml.cuda_version(),
            "gpus": nvml.count(),
            "total": memory["total"],
            "reserved": memory["reserved"],
            "used_before": memory["used"],
            "mig": nvml.mig(handle),
        }

    @property
    def simulated(self):
        """Whether this is the simulated driver."""
        return bool(self.name) and self.name.startswith("Simulated ")

    @property
    def libraries(self):
        """Where the driver's libraries are, if not where the loader looks."""
        return None if self.root == "/" else "%s/usr/lib/x86_64-linux-gnu" % self.root

    def nvml(self):
        """The real NVML."""
        return Nvml("%s/libnvidia-ml.so.1" % self.libraries if self.libraries else "libnvidia-ml.so.1")

    def outside(self):
        """(bytes used of the GPU by all, {pid: bytes}) as the driver tells."""
        nvml = self.nvml()
        handle = nvml.device(self.uuid)
        return nvml.memory2(handle)["used"], nvml.processes(handle)

    # Entering.

    def configure(self):
        """Writes the kit's own configuration."""
        (self.work / "etc").mkdir(exist_ok=True)
        (self.work / "state").mkdir(exist_ok=True)
        text = 'state-dir = "%s"\nlibrary-dir = "%s"\nwait-max = "90s"\n' % (self.work / "state", self.work / "libraries")
        if self.root != "/":
            text += '\n[driver]\nroot = "%s"\nextra = ["/run/nvidia-sim"]\n' % self.root
        self.config.write_text(text)

    def enter(self):
        """A mount namespace in which /etc/fgpu and /run/fgpu are the kit's own. The folders exist already."""
        unshare()
        if self.root != "/":
            os.makedirs("/run/nvidia-sim", exist_ok=True)
            mount("overlay", "/dev", "overlay", 0, "lowerdir=%s/dev:/dev" % self.root)
        mount(self.work / "etc", "/etc/fgpu", None, MS_BIND)
        mount("tmpfs", OURS, "tmpfs", 0, "mode=755")
        self.private = True

    def enter_without_mounts(self):
        """The second best, see direct.py."""
        if self.private:
            mount("tmpfs", OURS, "tmpfs", 0, "mode=755")  # over what a run that failed has left there
        self.direct = Direct(self.kit, self.work, self.root, self.libraries, self.uuid, self.minor)

    # Commands.

    def environment(self, more=None, native=False):
        """This environment, with what a command shall have besides."""
        env = dict(os.environ, **(more or {}))
        if native and self.libraries:
            env["LD_LIBRARY_PATH"] = self.libraries
        return env

    def ask(self, share, command):
        """The words that run a command with a share, as ["-p", "0.25"], of the GPU that is checked."""
        if self.direct:
            return self.direct.words(self.memory_of(share), command)
        return [str(self.fgpu), "--config", str(self.config), "run", *share, "-a", "device=%s" % self.uuid, "--", *map(str, command)]

    def memory_of(self, share):
        """The bytes of a share as it is asked for."""
        if share[0] == "-p":
            return self.granted(int(share[1].rstrip("%")))
        if share[:2] == ["-m", "1Gi"]:
            return 1 << 30
        raise ValueError(share)

    def need_run(self, trial, mounts=False):
        """Ends a check that needs a share where there is none, or one by mounts."""
        if self.refusal and (mounts or not self.direct):
            trial.skip(self.refusal)

    def command(self, words, more=None, native=False, timeout=None):
        """Runs a command to its end."""
        words = list(map(str, words))
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment(more, native),
                universal_newlines=True,
                errors="replace",
                timeout=timeout,
            )
        except FileNotFoundError as error:
            return Finished(words, 127, "", str(error))
        except subprocess.TimeoutExpired as error:
            return Finished(words, "none after %s s" % timeout, _text(error.stdout), _text(error.stderr))
        return Finished(words, done.returncode, done.stdout, done.stderr)

    def program(self, name, *words):
        """The words that run one of the kit's programs."""
        return [str(self.programs / name), *map(str, words)]

    def share(self, trial, share, command, more=None):
        """Runs a command with a share, to its end."""
        self.need_run(trial)
        return self.command(self.ask(share, command), more)

    def start(self, trial, share, command, more=None):
        """Starts a command with a share."""
        self.need_run(trial)
        return Running(self.ask(share, command), self.environment(more))

    def status(self):
        """`fgpu status --json`."""
        done = self.command([self.fgpu, "--config", self.config, "status", "--json"])
        try:
            return json.loads(done.out)
        except ValueError:
            raise OSError(done.story())

    def told_context(self, size):
        """What the limits of the only grant say that a context takes on its first GPU, in bytes (quota/wire/src/limits.rs). Without
        `fgpu run` nobody has written it: then `size` is."""
        [limits] = [OURS / "limits"] if self.direct else (self.work / "state/containers").glob("*/limits")
        with open(str(limits), "r+b") as file:
            file.seek(64 + 40)
            if self.direct:
                file.write(size.to_bytes(8, sys.byteorder))
                return size
            return int.from_bytes(file.read(8), sys.byteorder)

    def usable(self):
        """Bytes of the GPU that can be granted."""
        return next(gpu["usable_memory"] for gpu in self.status()["gpus"] if gpu["uuid"] == self.uuid)

    def granted(self, percent):
        """What a share of so many percent is in bytes: usable memory's, in whole MiB."""
        return self.usable() * percent // 100 // MIB * MIB

    def gc(self):
        """Gives back what a check that was killed held."""
        if not self.refusal and self.config.exists():
            self.command([self.fgpu, "--config", self.config, "gc", "--quiet"], timeout=20)


def _text(output):
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
