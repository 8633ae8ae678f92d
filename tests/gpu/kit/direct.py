"""A share without mounts, for machines where `fgpu run` cannot make any: the quota libraries by LD_LIBRARY_PATH.

What `fgpu run` binds below /run/fgpu is written and linked there: limits and ledger as quota/wire/src has them, and the real
libraries. One share at a time; it holds nobody who leaves the path out, so it shows what the libraries do and nothing else.
"""
import os
import struct
import subprocess
import sys
from pathlib import Path

OURS = Path("/run/fgpu")
# Where a library that nobody has sealed looks for the real one (quota/wire/src/seal.rs).
REAL = OURS / ("driver-" + 32 * "0")
LIMITS_SIZE, LEDGER_SIZE = 4096, 20480 + 1024 * 2048
FIND = ("import ctypes, os, sys\nctypes.CDLL(sys.argv[1])\n"
        "print(next(os.path.realpath(line.split()[-1]) for line in open('/proc/self/maps') if '/' + sys.argv[1].split('.so')[0] in line))")


def real(name, libraries):
    """The real library's file, as the loader finds it."""
    env = dict(os.environ, LD_LIBRARY_PATH=libraries) if libraries else None
    return subprocess.check_output([sys.executable, "-c", FIND, name], env=env, universal_newlines=True).strip()


def limits(nonce, uuid, memory, minor):
    """The limits of one GPU; all of its SMs."""
    page = bytearray(LIMITS_SIZE)
    struct.pack_into("=8sII", page, 0, b"fgpulim1", 1, 1)
    page[32:48] = nonce
    struct.pack_into("=16sQIII", page, 64, bytes.fromhex(uuid[4:].replace("-", "")), memory, 1000000, 0, minor)
    return bytes(page)


def ledger(nonce):
    """The header of an empty ledger."""
    return struct.pack("=8sII16s", b"fgpuled1", 1, 0, nonce)


class Direct:
    """What a share needs that does not change."""

    def __init__(self, kit, work, root, libraries, uuid, minor):
        # The simulated driver's nvidia-smi is not where programs are.
        self.programs = ["PATH=%s/usr/bin:%s" % (root, os.environ["PATH"])] if root != "/" else []
        self.uuid, self.minor, self.path = uuid, minor, Path(work) / "direct"
        if any(OURS.iterdir()):
            raise OSError("%s is in use" % OURS)
        REAL.mkdir()
        self.path.mkdir()
        for name, place, own, aliases in (("libcuda.so.1", "cuda", "libfgpu-cuda.so", ("libcuda.so.1", "libcuda.so")),
                                          ("libnvidia-ml.so.1", "nvml", "libfgpu-nvml.so", ("libnvidia-ml.so.1",))):
            (REAL / place).symlink_to(real(name, libraries))
            for alias in aliases:
                (self.path / alias).symlink_to(Path(kit).resolve() / "usr/lib/fgpu" / own)

    def words(self, memory, command):
        """Makes the share anew, of so many bytes, and gives the words that run a command with it."""
        nonce = os.urandom(16)
        for name, content, size in (("limits", limits(nonce, self.uuid, memory, self.minor), LIMITS_SIZE),
                                    ("ledger", ledger(nonce), LEDGER_SIZE)):
            path = OURS / name
            if path.exists():
                path.unlink()  # who still has it mapped keeps the former one
            with open(str(path), "wb") as file:
                file.write(content)
                file.truncate(size)
            path.chmod(0o666)
        rest = os.environ.get("LD_LIBRARY_PATH")
        libraries = "%s:%s" % (self.path, rest) if rest else str(self.path)
        return ["env", "LD_LIBRARY_PATH=%s" % libraries, *self.programs, *map(str, command)]

    def remove(self):
        """Leaves nothing below /run/fgpu."""
        for path in (OURS / "limits", OURS / "ledger", REAL / "cuda", REAL / "nvml"):
            if os.path.lexists(str(path)):
                path.unlink()
        REAL.rmdir()
