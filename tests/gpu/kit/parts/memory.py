"""The memory limit: all of the share can be had, and no more, on every road, and it is free again afterwards."""
from ..node import KIB, MIB, PIECE
from . import CHECKS

ROADS = ("alloc", "pitch", "managed", "create", "async", "pool", "array", "array3d", "mipmap", "graph")
OUT_OF_MEMORY = 2


def outside(node, pid, before):
    """(bytes that the real NVML says the process uses, how it was had). The second way: nobody else uses the GPU."""
    used, processes = node.outside()
    own = processes.get(pid)
    return (own, "process") if own is not None else (used - before, "gpu")


def judge_outside(trial, node, pid, before, granted, got):
    """No more than the grant and one granule is really in use. What was not allocated is the context's and the driver's."""
    used, by = outside(node, pid, before)
    trial.measured.update(outside=used, outside_by=by, above_grant=used - granted, not_allocated=used - got)
    trial.expect(used <= granted + PIECE, "outside it is %d more than granted; %d of it were not allocated" % (used - granted, used - got))


def fill_and_free(trial, node, percent, road):
    """Fills a share by one road and looks from outside, gives all back, and fills it once more."""
    before, granted = node.outside()[0], node.granted(percent)
    words = node.program("fill", "info", "fill", road, "hold", "free", "fill", road, "free")
    running = node.start(trial, ["-p", "%d%%" % percent], words)
    info = running.line()
    trial.need("total" in info, "no context: %s" % info)
    filled = running.line()
    if filled.get("missing"):
        running.finish()
        trial.skip("the driver has no such call")
    trial.need("got" in filled, "filling: %s" % filled)
    held = running.line()
    trial.need("pid" in held, "holding: %s" % held)
    trial.measured.update(granted=granted, context=info["total"] - info["free"], got=filled["got"], code=filled["code"])
    judge_outside(trial, node, held["pid"], before, granted, filled["got"])
    done = running.finish()
    trial.need(done.code == 0 and len(done.lines()) == 3, done.story())
    freed, again, last = done.lines()
    trial.measured.update(after_free=freed["in_use"], got_again=again["got"], after_all=last["in_use"])
    room = info["free"]
    part = filled["got"] / room if room else 0
    trial.measured["usable_percent"] = round(part * 100, 2)
    trial.expect(filled["code"] == OUT_OF_MEMORY, "the code was %d, not out of memory (2)" % filled["code"])
    trial.expect(part >= 0.99, "only %.2f %% could be had" % (part * 100))
    trial.expect(filled["got"] <= granted, "more than granted could be had")
    trial.expect(again["got"] >= filled["got"] - PIECE, "after it was freed only %d could be had again" % again["got"])
    # A pool's or the driver's own small things may stay, but not what was allocated.
    context = info["total"] - info["free"]
    trial.expect(freed["in_use"] <= context + 32 * MIB, "after the free %d are in use" % freed["in_use"])


def _accuracy(percent, quick):
    @CHECKS.add("memory", "share_%d" % percent, "cuMemAlloc until it is refused, with %d %% of the GPU" % percent,
                "99 % of what the context leaves, out of memory (2), at most 2 MiB above the grant outside", quick=quick)
    def accuracy(trial, node):
        fill_and_free(trial, node, percent, "alloc")


for _percent in (10, 25, 33, 50, 75, 90):
    _accuracy(_percent, _percent in (25, 90))


def _by_road(road):
    @CHECKS.add("memory", "road_%s" % road, "the same by %s, with 20 %% of the GPU" % road,
                "99 % of what the context leaves, out of memory (2), all of it free again")
    def by_road(trial, node):
        fill_and_free(trial, node, 20, road)


for _road in ROADS[1:]:
    _by_road(_road)


@CHECKS.add("memory", "mixed", "one road's memory counts for the others, with 20 % of the GPU", "half by cuMemCreate, the rest by the others")
def mixed(trial, node):
    room = node.granted(20)
    words = node.program("fill", "info", "take", "create", room // 2 // PIECE * PIECE, "take", "async", room // 8 // PIECE * PIECE,
                         "take", "array", room // 8 // (64 * MIB) * 64 * MIB, "take", "alloc", room, "fill", "alloc", "free")
    done = node.share(trial, ["-p", "20%"], words)
    trial.need(done.code == 0 and len(done.lines()) == 7, done.story())
    info, first, second, third, refused, rest, _ = done.lines()
    taken = first["bytes"] + second["bytes"] + third["bytes"] + rest["got"]
    trial.measured.update(granted=room, taken=taken, free_before=info["free"])
    trial.expect([it["code"] for it in (first, second, third)] == [0, 0, 0], "a part of it was refused")
    trial.expect(refused["code"] == OUT_OF_MEMORY, "all of it once more: the code was %d" % refused["code"])
    trial.expect(0.99 * info["free"] <= taken <= room, "%d in all" % taken)


@CHECKS.add("memory", "killed", "a process that filled the share gets SIGKILL", "another one in it can have all of it at once")
def killed(trial, node):
    done = node.share(trial, ["-p", "25%"], node.program("fill", "killed", "info", "fill", "alloc", "free"))
    trial.need(done.code == 0 and len(done.lines()) == 4, done.story())
    victim, info, filled, _ = done.lines()
    trial.measured.update(held=victim["held"], end_nanoseconds=victim["nanoseconds"], got=filled["got"], code=filled["code"])
    trial.expect(filled["got"] >= victim["held"] - PIECE, "the next one got only %d" % filled["got"])
    trial.expect(info["total"] - info["free"] + victim["held"] <= info["total"], "it counts on: %s" % info)


@CHECKS.add("memory", "race", "eight processes fill one share at the same time", "together at most the grant, and 2 MiB more outside")
def race(trial, node):
    before, granted = node.outside()[0], node.granted(50)
    running = node.start(trial, ["-p", "50%"], node.program("fill", "race", 8))
    said = running.line()
    trial.need("got" in said, "racing: %s" % said)
    used, _ = node.outside()
    running.finish()
    trial.measured.update(granted=granted, got=said["got"], least=said["least"], most=said["most"], outside=used - before,
                          not_allocated=used - before - said["got"])
    trial.expect(said["other_code"] == 0, "one was refused with %d" % said["other_code"])
    trial.expect(said["got"] <= granted, "together they got more than granted")
    trial.expect(used - before <= granted + PIECE, "outside it is %d more than granted" % (used - before - granted))


@CHECKS.add("memory", "costs", "what a context, a module and a first launch take of this GPU, without and with a share",
            "the share counts a context for what it takes, but for 2 MiB")
def costs(trial, node):
    native = node.command(node.program("measure", "costs"), native=True)
    trial.need(native.code == 0 and native.lines(), native.story())
    trial.measured["native"] = native.lines()[0]
    shared = node.share(trial, ["-p", "50%"], node.program("measure", "costs"))
    trial.need(shared.code == 0 and shared.lines(), shared.story())
    trial.measured["shared"] = shared.lines()[0]
    real, counted = native.lines()[0]["context"], shared.lines()[0]["said_in_use"]
    trial.measured.update(context=real, context_counted=counted)
    trial.expect(counted + PIECE >= real, "a context takes %d and counts for %d" % (real, counted))


def context_size(trial, node):
    """What a context takes on this GPU, in bytes."""
    native = node.command(node.program("measure", "costs"), native=True)
    trial.need(native.code == 0 and native.lines(), native.story())
    return native.lines()[0]["context"]


@CHECKS.add("memory", "told", "a share is filled while its limits are compared with what a context takes here, as `costs` measures it",
            "`fgpu inventory --refresh` has measured the same but for 2 MiB; at most 2 MiB above the grant outside")
def told(trial, node):
    context = context_size(trial, node)
    before, granted = node.outside()[0], node.granted(20)
    running = node.start(trial, ["-p", "20%"], node.program("fill", "pause", "info", "fill", "alloc", "hold", "free"))
    trial.need("pid" in running.line(), "it does not run")
    told = node.told_context(context)
    running.go_on()
    info, filled, held = running.line(), running.line(), running.line()
    trial.need("pid" in held, "filling: %s %s" % (info, filled))
    trial.measured.update(told=told, alone=context, context=info["total"] - info["free"], granted=granted, got=filled["got"], code=filled["code"])
    judge_outside(trial, node, held["pid"], before, granted, filled["got"])
    trial.expect(abs(told - context) <= PIECE, "fgpu has measured %d, and alone a context takes %d" % (told, context))
    trial.expect(info["total"] - info["free"] >= told, "the context counts for %d" % (info["total"] - info["free"]))
    trial.expect(filled["got"] >= 0.99 * info["free"], "only %d could be had" % filled["got"])
    done = running.finish()
    trial.need(done.code == 0, done.story())


@CHECKS.add("memory", "odd_sizes", "a share of 5 % is filled by allocations of one odd size, of which a context is a part",
            "at most 2 MiB above the grant outside, at every size", limit=90)
def odd_sizes(trial, node):
    context, before, granted = context_size(trial, node), node.outside()[0], node.granted(5)
    for size in (300 * KIB, MIB, MIB + 1, 3 * MIB // 2, 2 * MIB + 1, 3 * MIB + 1, 40 * MIB + 1):
        running = node.start(trial, ["-p", "5%"], node.program("fill", "pause", "each", size, "hold"))
        trial.need("pid" in running.line(), "it does not run")
        node.told_context(context)
        running.go_on()
        filled, held = running.line(), running.line()
        trial.need("pid" in held, "%d: %s" % (size, filled))
        used, by = outside(node, held["pid"], before)
        done = running.finish()
        trial.need(done.code == 0, done.story())
        trial.measured[str(size)] = {"got": filled["got"], "counted": filled["in_use"], "outside": used, "by": by, "above_grant": used - granted}
        trial.expect(filled["code"] == OUT_OF_MEMORY, "%d: the code was %d" % (size, filled["code"]))
        trial.expect(used <= granted + PIECE, "of %d B: %d above the grant" % (size, used - granted))


@CHECKS.add("memory", "rounding", "what cuMemAlloc of 1 B to 4 MiB really takes, without fgpu",
            "no more than fgpu counts (512 B steps to 1 MiB, pieces of 2 MiB above), and one piece")
def rounding(trial, node):
    done = node.command(node.program("measure", "rounding"), native=True)
    trial.need(done.code == 0 and done.lines(), done.story())
    rows = done.lines()[0]["rounding"]
    for row in rows:
        step = 512 if row["bytes"] <= MIB else PIECE
        row["counted"] = -(-row["bytes"] // step) * step * row["count"]
        trial.expect(row["taken"] <= row["counted"] + PIECE,
                     "%d of %d B take %d, counted %d" % (row["count"], row["bytes"], row["taken"], row["counted"]))
    trial.measured["sizes"] = rows
