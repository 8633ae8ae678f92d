"""A check, and how one is run: in a process of its own, with a time limit, so that a hang is a result."""
import json
import os
import select
import signal
import sys
import time
import traceback

# Every process of the kit has this in its environment; by it they are found again.
MARK = "FGPU_KIT"


class Skipped(Exception):
    """The check cannot be made here, and why."""


class Check:
    """A check of one part. `limit` is in seconds; `quick` says whether it runs with --quick."""

    def __init__(self, part, name, what, expected, call, limit, quick):
        self.part, self.name, self.what, self.expected = part, name, what, expected
        self.call, self.limit, self.quick = call, limit, quick


class Trial:
    """What a check has in hand while it runs: it writes down what it measured, and what should have been."""

    def __init__(self):
        self.measured = {}
        self.wrong = []

    def expect(self, condition, text):
        """Notes `text` as a failure if the condition does not hold, and goes on."""
        if not condition:
            self.wrong.append(text)
        return bool(condition)

    def need(self, condition, text):
        """As `expect`, but there is no going on."""
        if not self.expect(condition, text):
            raise StopIteration

    def skip(self, reason):
        """Ends the check: it cannot be made here."""
        raise Skipped(reason)


class Checks:
    """All checks, in the order in which they were declared."""

    def __init__(self):
        self.all = []

    def add(self, part, name, what, expected, limit=60, quick=True):
        """Declares a function of (trial, node) as a check."""

        def declare(call):
            self.all.append(Check(part, name, what, expected, call, limit, quick))
            return call

        return declare


def _in_child(check, node, write_end):
    os.setsid()
    os.environ[MARK] = node.mark
    trial, status, reason = Trial(), None, ""
    try:
        check.call(trial, node)
    except StopIteration:
        pass
    except Skipped as why:
        status, reason = "skipped", str(why)
    except BaseException as error:  # a bug of the kit is a result too
        where = traceback.extract_tb(error.__traceback__)[-1]
        trial.wrong.append("%s: %s (%s:%d)" % (type(error).__name__, error, os.path.basename(where.filename), where.lineno))
    if trial.wrong:
        status, reason = "failed", "; ".join(trial.wrong)
    answer = {"status": status or "ok", "reason": reason, "measured": trial.measured}
    with os.fdopen(write_end, "w") as pipe:
        json.dump(answer, pipe)
    sys.stdout.flush()
    os._exit(0)


def marked(mark):
    """The pids of all processes that carry this mark, without this one."""
    wanted, found = ("%s=%s" % (MARK, mark)).encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            pass
    return found


def end(pids):
    """Kills these processes and waits until they are gone, five seconds at most."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    until = time.monotonic() + 5
    while time.monotonic() < until and any(os.path.exists("/proc/%d" % pid) for pid in pids):
        time.sleep(0.02)


def perform(check, node, limit):
    """Runs a check and gives its row of the report."""
    began = time.monotonic()
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _in_child(check, node, write_end)
    os.close(write_end)
    text, until = b"", began + limit
    while True:
        ready, _, _ = select.select([read_end], [], [], max(0, until - time.monotonic()))
        if not ready:
            break
        piece = os.read(read_end, 65536)
        if not piece:
            break
        text += piece
    os.close(read_end)
    try:
        answer = json.loads(text)
    except ValueError:
        hung = time.monotonic() >= until
        reason = "did not end within %d s" % limit if hung else "ended without a word"
        answer = {"status": "failed", "reason": reason, "measured": {}}
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(child, 0)
    left = [pid for pid in marked(node.mark) if pid not in node.keep]
    end(left)
    node.gc()
    return {
        "name": "%s.%s" % (check.part, check.name),
        "what": check.what,
        "expected": check.expected,
        "measured": answer["measured"],
        "status": answer["status"],
        "reason": answer["reason"],
        "seconds": round(time.monotonic() - began, 2),
    }
