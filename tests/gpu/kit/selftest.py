"""The kit's own test: no GPU, no root. What it finds a hang, a crash and a failure to be, and that its sources build."""
import os
import subprocess
import tempfile
import time
from pathlib import Path

from . import programs, report, trial
from .parts import CHECKS, PARTS


class Nothing:
    """A node that has nothing."""

    mark, keep = "self-test-%d" % os.getpid(), set()

    def gc(self):
        """There is nothing to give back."""


def _row(call, limit=30):
    check = trial.Check("self", call.__name__, "", "", call, limit, True)
    return trial.perform(check, Nothing(), limit)


def good(it, _):
    it.measured["one"] = 1
    it.expect(True, "never")


def bad(it, _):
    it.measured["two"] = 2
    it.expect(False, "this")
    it.expect(False, "that")


def ends_early(it, _):
    it.need(False, "needed")
    it.measured["never"] = True


def absent(it, _):
    it.skip("not here")


def raises(it, _):
    raise ValueError("a bug")


def dies(it, _):
    os._exit(3)


def hangs(it, _):
    # With a child that has left its session, as a daemon would.
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    time.sleep(1000)


def run():
    """Gives the exit status; a failure is an AssertionError."""
    row = _row(good)
    assert (row["status"], row["measured"], row["name"]) == ("ok", {"one": 1}, "self.good"), row
    row = _row(bad)
    assert (row["status"], row["reason"], row["measured"]) == ("failed", "this; that", {"two": 2}), row
    row = _row(ends_early)
    assert (row["status"], row["measured"]) == ("failed", {}), row
    row = _row(absent)
    assert (row["status"], row["reason"]) == ("skipped", "not here"), row
    row = _row(raises)
    assert row["status"] == "failed" and "a bug" in row["reason"], row
    row = _row(dies)
    assert row["status"] == "failed" and "without a word" in row["reason"], row
    row = _row(hangs, 1)
    assert row["status"] == "failed" and "did not end within" in row["reason"], row
    assert trial.marked(Nothing.mark) == [], "a child of a hung check lives"

    names = [(check.part, check.name) for check in CHECKS.all]
    assert len(set(names)) == len(names), "two checks have one name"
    assert {part for part, _ in names} == set(PARTS) - {"leaks"}, "a part has no check, or is not listed"
    assert all(0 < check.limit <= 120 for check in CHECKS.all)

    with tempfile.TemporaryDirectory() as folder:
        for name in programs.NAMES:
            assert programs.build("cc", name, Path(folder)), "%s.c does not build" % name
        path, counted = report.write(folder, {"name": "Simulated H100"}, "commit", [], [row], 1)
        assert "simulated" in path.name and counted == {"ok": 0, "failed": 1, "skipped": 0}
    print("self-test ok: %d checks in %d parts" % (len(names), len(PARTS)))
    return 0
