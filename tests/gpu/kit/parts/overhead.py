"""What calls cost with a share and without fgpu: in turns, so that a change of clocks meets both."""
import time

from . import CHECKS


def medians(trial, node, words, ask=("-p", "50%")):
    """The medians of several runs of each, by the names that the program prints."""
    runs = {"native": [], "shared": []}
    for _ in range(3 if node.quick else 7):
        for kind in runs:
            done = node.share(trial, list(ask), words) if kind == "shared" else node.command(words, native=True)
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


@CHECKS.add("overhead", "launch", "cuLaunchKernel of an empty kernel, with SM time not limited and limited to 100 and to 50 %",
            "at most 50 ns more, and at most 200 at 100 % (at 50 % launches wait)", limit=120)
def launch(trial, node):
    words = node.program("measure", "launch", 5000 if node.quick else 20000)
    if node.simulated:
        trial.skip("the simulated driver's kernels compute nothing: its launches say nothing about a GPU's")
    for name, ask, most in (("off", ["-p", "50%", "--compute", "off"], 50), ("cap_100", ["-m", "1Gi", "--cores", "100%"], 200),
                            ("cap_50", ["-p", "50%"], None)):
        table = medians(trial, node, words, ask)
        trial.measured[name] = trial.measured.pop("nanoseconds")
        more = table["launch"]["more"]
        trial.expect(most is None or more <= most, "%s: a launch costs %d ns more" % (name, more))


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
