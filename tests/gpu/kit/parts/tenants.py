"""Several shares of one GPU at the same time."""
import json
import subprocess
import time

from ..node import PIECE
from . import CHECKS


def at_once(trial, node, shares):
    """Each tenant fills its share while the others hold theirs, and all are looked at from outside."""
    node.need_run(trial, mounts=True)
    before = node.outside()[0]
    tenants = [node.start(trial, ["-p", "%d%%" % percent], node.program("fill", "info", "fill", "alloc", "hold", "free"))
               for percent in shares]
    sum_granted, pids = 0, []
    for number, (percent, tenant) in enumerate(zip(shares, tenants)):
        granted = node.granted(percent)
        sum_granted += granted
        info, filled, held = tenant.line(), tenant.line(), tenant.line()
        trial.need("pid" in held, "tenant %d: %s %s %s" % (number, info, filled, held))
        pids.append(held["pid"])
        trial.measured["tenant_%d" % number] = {"percent": percent, "granted": granted, "free": info["free"], "got": filled["got"],
                                                "code": filled["code"]}
        trial.expect(info["total"] == granted, "tenant %d sees %d" % (number, info["total"]))
        trial.expect(filled["code"] == 2, "tenant %d was refused with %d" % (number, filled["code"]))
        trial.expect(0.99 * info["free"] <= filled["got"] <= granted, "tenant %d got %d of %d" % (number, filled["got"], info["free"]))
    used, processes = node.outside()
    trial.measured.update(outside=used - before, sum_granted=sum_granted)
    trial.expect(used - before <= sum_granted + len(shares) * PIECE, "outside it is %d in all" % (used - before))
    for number, pid in enumerate(pids):
        own = processes.get(pid)
        tenant = trial.measured["tenant_%d" % number]
        tenant["outside"] = own
        if own is not None:
            trial.expect(own <= tenant["granted"] + PIECE, "tenant %d uses %d outside" % (number, own))
    # Nobody else has room.
    spare = 100 - sum(shares) + 5
    late = node.share(trial, ["-p", "%d%%" % spare], ["true"])
    trial.measured["refusal"] = late.err.strip()[:300]
    trial.expect(late.code == 1 and any(code in late.err for code in ("no-capacity", "fragmented")), "a further %d %%: %s" % (spare, late.story()))
    for tenant in tenants:
        done = tenant.finish()
        trial.expect(done.code == 0, done.story())
    trial.expect(not node.status()["leases"], "leases are left: %s" % json.dumps(node.status()["leases"])[:300])


@CHECKS.add("tenants", "two", "two shares of 30 and 70 % at once, each filled", "each gets its own, a third is refused", limit=90)
def two(trial, node):
    at_once(trial, node, (30, 70))


@CHECKS.add("tenants", "four", "four shares of 25 % at once, each filled", "each gets its own, a fifth is refused", limit=120)
def four(trial, node):
    at_once(trial, node, (25, 25, 25, 25))


@CHECKS.add("tenants", "waits", "a share that does not fit, with --wait", "it runs when another one ends")
def waits(trial, node):
    node.need_run(trial, mounts=True)
    first = node.start(trial, ["-p", "60%"], node.program("fill", "take", "alloc", PIECE, "hold"))
    first.line()
    trial.need("pid" in first.line(), "the first one does not run")
    words = node.ask(["-p", "60%", "--wait", "30s"], node.program("fill", "info"))
    second = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    # It may not begin while the first one holds its share, however long that is; a second shows it.
    try:
        second.wait(1)
        trial.expect(False, "it did not wait")
    except subprocess.TimeoutExpired:
        pass
    first.finish()
    out, err = second.communicate()
    trial.measured["then"] = out.strip()
    trial.expect(second.returncode == 0, "it ended with %d: %s" % (second.returncode, err))


@CHECKS.add("tenants", "resize", "a share of 25 % that is full gets 50 % while it runs, and then 25 % again",
            "it can fill the new share, and has no memory to come after that; nobody is ended", limit=90)
def resize(trial, node):
    node.need_run(trial, mounts=True)
    words = node.program("fill", "info", "fill", "alloc", "pause", "fill", "alloc", "pause", "fill", "alloc", "free")
    running = node.start(trial, ["-p", "25%"], words)
    info, first = running.line(), running.line()
    trial.need("got" in first, "filling: %s %s" % (info, first))
    [lease] = node.status()["leases"]
    more, less = node.granted(50), node.granted(25)
    for fraction, expected in (("0.5", more - less), ("0.25", 0)):
        began = time.monotonic()
        done = node.command([node.fgpu, "--config", node.config, "resize", lease["container"], "--fraction", fraction])
        trial.measured["resize_to_%s_seconds" % fraction] = round(time.monotonic() - began, 3)
        trial.need(done.code == 0, done.story())
        running.go_on()
        line = running.line()
        if "pid" in line:  # what the pause says
            line = running.line()
        trial.need("got" in line, "after a resize to %s: %s" % (fraction, line))
        trial.measured["got_at_%s" % fraction] = line["got"]
        trial.expect(0.99 * expected - PIECE <= line["got"] <= expected, "at %s it got %d more, not %d" % (fraction, line["got"], expected))
    done = running.finish()
    trial.expect(done.code == 0, done.story())


@CHECKS.add("tenants", "two_gpus", "a share of 25 % of each of two GPUs", "each has its own limit", limit=90)
def two_gpus(trial, node):
    node.need_run(trial, mounts=True)
    if len(node.status()["gpus"]) < 2:
        trial.skip("this machine has one GPU")
    for device in ("0", "1"):
        words = [str(node.fgpu), "--config", str(node.config), "run", "-n", "2", "-p", "25%", "--",
                 *node.program("fill", "--device", device, "info", "fill", "alloc")]
        done = node.command(words, timeout=40)
        trial.need(done.code == 0 and len(done.lines()) == 2, done.story())
        info, filled = done.lines()
        trial.measured["gpu_%s" % device] = {"total": info["total"], "got": filled["got"], "code": filled["code"]}
        trial.expect(info["devices"] == 2, "it sees %d GPUs" % info["devices"])
        trial.expect(filled["code"] == 2 and 0.99 * info["free"] <= filled["got"] <= info["total"], "GPU %s: %s" % (device, filled))
