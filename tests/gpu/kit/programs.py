"""The C programs: built here if there is a compiler, else those that `make gpu-kit` built."""
import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "programs"
NAMES = ("fill", "measure")


def prepare(kit, work):
    """Makes the kit's files executable and gives the folder that has the programs."""
    for folder in ("usr/bin", "programs"):
        for file in (Path(kit) / folder).glob("*"):
            if not os.access(str(file), os.X_OK):  # what carried it may have kept no modes
                file.chmod(0o755)
    built = Path(work) / "programs"
    built.mkdir(exist_ok=True)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler and all(build(compiler, name, built) for name in NAMES):
        return built
    return Path(kit) / "programs"


def build(compiler, name, target):
    """Whether it could be built."""
    words = [compiler, "-O2", "-o", str(target / name), str(SOURCES / (name + ".c")), "-ldl"]
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
