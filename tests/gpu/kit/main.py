"""The command: runs the parts in a mount namespace of its own, looks at what is left, writes the report."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from . import leaks, programs, report, trial
from .node import Node
from .parts import CHECKS, PARTS

HERE = Path(__file__).resolve().parent.parent
# What must exist for something to be mounted over it.
PLACES = ("/etc/fgpu", "/run/fgpu")


def arguments(words):
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--only", action="append", metavar="PART", help="one of %s; may be repeated" % ", ".join(PARTS))
    parser.add_argument("--check", metavar="TEXT", help="only checks with this in their name")
    parser.add_argument("--quick", action="store_true", help="fewer shares and rounds")
    parser.add_argument("--out", metavar="DIR", help="where the report goes")
    parser.add_argument("--gpu", type=int, default=0, metavar="INDEX", help="which GPU, as nvidia-smi counts; default 0")
    parser.add_argument("--budget", type=int, default=540, metavar="SECONDS", help="no check begins later; default 540")
    parser.add_argument("--kit", default=HERE.parent.parent / ".lab/gpu-kit", help="what `make gpu-kit` made")
    parser.add_argument("--driver-root", default="/", help=argparse.SUPPRESS)  # the simulated driver's
    parser.add_argument("--no-mounts", action="store_true",
                        help="as where `fgpu run` does not work: the quota libraries by LD_LIBRARY_PATH, one share at a time")
    parser.add_argument("--list", action="store_true", help="list the checks and end")
    parser.add_argument("--self-test", action="store_true", help="test the kit itself; no GPU needed")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parsed = parser.parse_args(words)
    for part in parsed.only or ():
        if part not in PARTS:
            parser.error("there is no part %s; there are %s" % (part, ", ".join(PARTS)))
    return parsed


def chosen(options):
    """The checks that are asked for."""
    return [
        check
        for check in CHECKS.all
        if (not options.only or check.part in options.only)
        and (not options.check or options.check in "%s.%s" % (check.part, check.name))
        and (not options.quick or check.quick)
    ]


def main(words):
    """Gives the exit status: 0 if nothing failed."""
    options = arguments(words)
    if options.list:
        for check in chosen(options):
            print("%-40s %s" % ("%s.%s" % (check.part, check.name), check.what))
        return 0
    if options.self_test:
        from . import selftest

        return selftest.run()
    if options.inside:
        return inside(options, json.loads(options.inside))
    if not options.out:
        print("tests/gpu/run: say where the report goes: --out DIR", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("tests/gpu/run: needs root, as `fgpu run` does", file=sys.stderr)
        return 2
    return outside(options, words)


def outside(options, words):
    """The part that stays in the machine's own namespace."""
    began = time.monotonic()
    mark = "%d-%d" % (os.getpid(), time.time())
    work = Path(tempfile.mkdtemp(prefix="fgpu-kit-"))
    os.chmod(work, 0o755)
    made = [place for place in PLACES if not os.path.isdir(place)]
    commit = commit_of(options.kit)
    gpu, checks = {}, []
    try:
        before = leaks.look(options.driver_root)
        for place in made:
            os.makedirs(place)
        setting = {"work": str(work), "mark": mark, "began": began}
        env = dict(os.environ, **caches(work), **{trial.MARK: mark})
        child = subprocess.run([sys.executable, str(HERE / "run"), *words, "--inside", json.dumps(setting)], env=env)
        for line in read_lines(work / "results"):
            if "gpu" in line:
                gpu = line["gpu"]
            else:
                checks.append(line)
        if child.returncode != 0:
            checks.append(row_of("kit.inside", "the kit itself", "failed", "it ended with status %d" % child.returncode))
        for place in made:
            try:
                os.rmdir(place)
            except OSError:  # somebody else's is in it: not ours to remove
                pass
        # After all, and always: whatever was run must have left nothing.
        for check in leaks.checks(before, work, mark, options.driver_root):
            checks.append(check)
            print(report.row(check), flush=True)
    except Exception:
        checks.append(row_of("kit.outside", "the kit itself", "failed", traceback.format_exc(limit=4)))
        print(report.row(checks[-1]), flush=True)
    finally:
        trial.end(trial.marked(mark))
        shutil.rmtree(work, ignore_errors=True)
    path, counted = report.write(options.out, gpu, commit, words, checks, time.monotonic() - began)
    note = " SIMULATED driver: nothing here is about a real GPU." if "simulated" in path.name else ""
    print("%(ok)d ok, %(failed)d failed, %(skipped)d skipped" % counted, "in", path, note)
    return 1 if counted["failed"] else 0


def caches(work):
    """Where compilers and frameworks keep what they made: with the rest of the kit's, so that it goes with it."""
    names = ("TMPDIR", "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "XDG_CACHE_HOME",
             "JAX_COMPILATION_CACHE_DIR")
    for name in names:
        (work / "cache" / name).mkdir(parents=True)
    return {name: str(work / "cache" / name) for name in names}


def inside(options, setting):
    """The part that runs the checks, in a mount namespace."""
    work = Path(setting["work"])
    results = open(work / "results", "a", buffering=1)

    def tell(line):
        results.write(json.dumps(line) + "\n")
        if "name" in line and "status" in line:
            print(report.row(line), flush=True)

    prepared = programs.prepare(options.kit, work)
    node = Node(options.kit, work, prepared, options.driver_root, options.gpu, setting["mark"])
    node.quick = options.quick
    node.keep = {os.getpid(), os.getppid()}
    try:
        gpu = node.describe()
    except (OSError, RuntimeError, Exception) as error:  # no driver: every check says so
        tell({"gpu": {"error": str(error)}})
        tell(row_of("kit.driver", "the driver answers", "failed", str(error)))
        return 0
    tell({"gpu": gpu})
    print("%s, driver %s, CUDA %s" % (gpu["name"], gpu["driver"], gpu["cuda"]), flush=True)
    node.configure()
    try:
        if options.no_mounts:
            raise OSError("--no-mounts")
        node.enter()
        if not node.fgpu.exists():
            raise OSError("%s is not there: run `make gpu-kit` first" % node.fgpu)
        done = node.command(node.ask(["-p", "0.1"], ["true"]), timeout=60)
        if done.code != 0:
            raise OSError(done.story())
        tell(row_of("kit.run", "`fgpu run` works on this machine", "ok", ""))
    except OSError as error:
        node.refusal = "fgpu run does not work here: %s" % error
        asked = options.no_mounts
        tell(row_of("kit.run", "`fgpu run` works on this machine", "skipped" if asked else "failed", str(error)))
        try:
            node.enter_without_mounts()
            tell(row_of("kit.direct", "the quota libraries by LD_LIBRARY_PATH instead; tenants cannot be had so", "ok", ""))
        except (OSError, subprocess.CalledProcessError) as why:
            tell(row_of("kit.direct", "the quota libraries by LD_LIBRARY_PATH instead", "failed", str(why)))
    for check in chosen(options):
        left = setting["began"] + options.budget - time.monotonic()
        if left < 5:
            tell(dict(row_of("", check.what, "skipped", "no time was left; run it with --only %s" % check.part),
                      name="%s.%s" % (check.part, check.name), expected=check.expected))
            continue
        tell(trial.perform(check, node, min(check.limit, left)))
    if node.direct:
        node.direct.remove()
    return 0


def row_of(name, what, status, reason):
    """A row that is no check's."""
    return {"name": name, "what": what, "expected": "it works", "measured": {}, "status": status, "reason": reason,
            "seconds": 0.0}


def read_lines(path):
    """The JSON lines of a file; the last one may be half."""
    try:
        text = path.read_text()
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            pass


def commit_of(kit):
    """The commit that the kit was made from."""
    try:
        return (Path(kit) / "commit").read_text().strip()
    except OSError:
        return None
