"""SM time: what a share gets of it, in kernels per second compared with those without fgpu."""
from ..node import Running
from . import CHECKS


def native_rate(trial, node, seconds):
    """(rounds of a kernel of a millisecond, kernels per second) without fgpu."""
    if node.simulated:
        trial.skip("the simulated driver's kernels compute nothing")
    done = node.command(node.program("measure", "calibrate"), native=True)
    trial.need(done.code == 0 and done.lines(), done.story())
    rounds = done.lines()[0]["rounds"]
    done = node.command(node.program("measure", "busy", rounds, seconds), native=True)
    trial.need(done.code == 0 and len(done.lines()) == 2, done.story())
    return rounds, rate(done.lines()[1])


def rate(said):
    """Kernels per second."""
    return said["kernels"] * 1e9 / said["nanoseconds"]


def most_in_a_second(tenths):
    """Kernels in the second that had most of them."""
    return max((sum(tenths[at:at + 10]) for at in range(max(len(tenths) - 9, 0))), default=0)


def together(trial, node, asks, rounds, seconds):
    """Kernels per second of each, all at once."""
    words = node.program("measure", "busy", rounds, seconds)
    running = [node.start(trial, ask, words) if ask else Running(words, node.environment(native=True)) for ask in asks]
    rates, tenths = [], []
    for it in running:
        trial.need(it.line().get("ready"), "it does not run")
    for it in running:  # all are ready: none has the GPU for itself at first
        it.go_on()
    for it in running:
        said = it.line()
        trial.need("kernels" in said, "it did not end: %s" % said)
        rates.append(rate(said))
        tenths.append(said["tenths"])
        it.finish()
    return rates, tenths


@CHECKS.add("compute", "alone", "kernels per second under 10 to 90 % of the SMs, alone on the GPU",
            "the share, within 3 points over any second", limit=120)
def alone(trial, node):
    seconds = 1 if node.quick else 3
    rounds, whole = native_rate(trial, node, seconds)
    trial.measured["native_per_second"] = round(whole, 1)
    for percent in (10, 25, 33, 50, 75, 90):
        ask = ["-m", "1Gi", "--cores", "%d%%" % percent]
        [got], [tenths] = together(trial, node, [ask], rounds, seconds)
        points, most = got / whole * 100, most_in_a_second(tenths) / whole * 100
        trial.measured["%d%%" % percent] = {"points": round(points, 1), "most_in_a_second": round(most, 1), "tenths": tenths}
        trial.expect(points >= 0.95 * percent, "%d %%: only %.1f" % (percent, points))
        trial.expect(max(points, most) <= percent + 3, "%d %%: %.1f, and %.1f in a second" % (percent, points, most))


@CHECKS.add("compute", "idle", "a share of 10 % that may use idle time, alone on the GPU, and a container beside it that comes and goes",
            "alone at least 95 % of the GPU; beside 70 % no more than the rest", limit=90)
def idle(trial, node):
    node.need_run(trial, mounts=True)
    seconds = 1 if node.quick else 3
    rounds, whole = native_rate(trial, node, seconds)
    modest = ["-m", "1Gi", "--cores", "10%", "--compute", "share"]
    [alone], _ = together(trial, node, [modest], rounds, seconds)
    both, _ = together(trial, node, [modest, ["-m", "1Gi", "--cores", "70%", "--compute", "share"]], rounds, seconds)
    trial.measured.update(native_per_second=round(whole, 1), alone=round(alone / whole * 100, 1), both=[round(it / whole * 100, 1) for it in both])
    trial.expect(alone >= 0.95 * whole, "alone it gets %.1f %%" % (alone / whole * 100))
    trial.expect(both[1] >= 0.65 * whole, "70 %% get %.1f %%" % (both[1] / whole * 100))


@CHECKS.add("compute", "contention", "two tenants at 30 and 70 % of the SMs, and two at 50 %",
            "their ratio, within 5 points", limit=90)
def contention(trial, node):
    node.need_run(trial, mounts=True)
    seconds = 1 if node.quick else 4
    rounds, whole = native_rate(trial, node, seconds)
    trial.measured["native_per_second"] = round(whole, 1)
    for shares in ((30, 70), (50, 50)):
        asks = [["-m", "1Gi", "--cores", "%d%%" % percent] for percent in shares]
        rates, tenths = together(trial, node, asks, rounds, seconds)
        points = [round(it / whole * 100, 1) for it in rates]
        part = rates[0] / sum(rates) * 100
        trial.measured["%d/%d" % shares] = {"points": points, "of_both": round(part, 1), "tenths": tenths}
        trial.expect(abs(part - shares[0]) <= 5, "%d/%d: %.1f of both" % (shares + (part,)))
        trial.expect(sum(rates) >= 0.9 * whole, "%d/%d: both together get %.1f %%" % (shares + (sum(points),)))
