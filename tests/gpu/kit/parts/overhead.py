"""What calls cost with a share and without fgpu: in turns, so that a change of clocks meets both."""
import time

from . import CHECKS


def medians(trial, node, words):
    """The medians of several runs of each, by the names that the program prints."""
    runs = {"native": [], "shared": []}
    for _ in range(3 if node.quick else 7):
        for kind in runs:
            done = node.share(trial, ["-p", "50%"], words) if kind == "shared" else node.command(words, native=True)
            trial.need(done.code == 0 and done.lines(), done.story())
            runs[kind].append(done.lines()[0])
    table = {}
    for key in runs["native"][0]:
        native, shared = (sorted(run[key] for run in runs[kind]) for kind in ("native", "shared"))
        middle = len(native) // 2
        table[key] = {"native": native[middle], "shared": shared[middle], "more": shared[middle] - native[middle],
                      "native_runs": native, "shared_runs": shared}
    trial.measured["nanoseconds"] = table
    trial.measured["summary"] = "; ".join("%s %d -> %d ns" % (key, it["native"], it["shared"]) for key, it in table.items())
    return table


@CHECKS.add("overhead", "pair", "a pair of cuMemAlloc and cuMemFree, of 1 KiB and of 4 MiB", "measured; the limit has no target for it", limit=120)
def pair(trial, node):
    medians(trial, node, node.program("measure", "pair", 2000 if node.quick else 5000))


@CHECKS.add("overhead", "launch", "cuLaunchKernel of an empty kernel", "at most 50 ns more, as launches are not capped in this version",
            limit=120)
def launch(trial, node):
    words = node.program("measure", "launch", 5000 if node.quick else 20000)
    if node.simulated:
        trial.skip("the simulated driver's kernels compute nothing: its launches say nothing about a GPU's")
    table = medians(trial, node, words)
    trial.expect(table["launch"]["more"] <= 50, "a launch costs %d ns more" % table["launch"]["more"])


@CHECKS.add("overhead", "start", "a process from its start to its first context, with `fgpu run` and without", "measured", limit=120)
def start(trial, node):
    node.need_run(trial, mounts=True)
    took = {"native": [], "shared": []}
    words = node.program("fill", "info")
    for _ in range(3 if node.quick else 5):
        for kind in took:
            began = time.monotonic_ns()
            done = node.share(trial, ["-p", "50%"], words) if kind == "shared" else node.command(words, native=True)
            took[kind].append(time.monotonic_ns() - began)
            trial.need(done.code == 0, done.story())
    middle = {kind: sorted(times)[len(times) // 2] for kind, times in took.items()}
    trial.measured.update({"%s_ms" % kind: round(value / 1e6, 1) for kind, value in middle.items()})
