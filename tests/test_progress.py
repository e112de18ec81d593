"""Progress: what is shown where, and what is left of it."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import meshard
from meshard import NamedSharding, P, checkpoint
from meshard.errors import ArgumentError
from meshard.plan.show import progress
from meshard.plan.show.progress import adding, telling
from meshard.testing import simulate
from tests.worlds import alone


class Clock:
    """A clock that goes on by a second with every look at it."""

    now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(progress, "time", Clock())


class Screen(io.StringIO):
    """A terminal that remembers the last line as it looks, and all that was written."""

    encoding = "ascii"

    def isatty(self):
        return True

    def line(self):
        shown = ""
        for part in self.getvalue().split("\r"):
            shown = part + shown[len(part) :]
        return shown


@pytest.fixture
def screen(monkeypatch, clock):
    found = Screen()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    return found


def test_a_bar_is_drawn_over_itself_and_disappears(screen):
    with telling(None, "loading") as tell:
        seen = []
        for done in range(0, 1001, 100):
            tell(done, 1000)
            seen.append(screen.line())
    assert "\n" not in screen.getvalue()
    assert screen.line().strip() == ""
    assert screen.getvalue().endswith("\r")
    assert all(len(line) <= 59 for line in seen)
    assert seen[5].startswith("loading  =")
    assert "500 bytes of 1,000 bytes, 50 %" in seen[5]


def test_short_work_shows_nothing(monkeypatch, screen):
    monkeypatch.setattr(Clock, "monotonic", lambda self: 0.5)
    with telling(None, "loading") as tell:
        tell(1, 2)
    assert screen.getvalue() == ""
    with telling(True, "loading") as tell:
        tell(1, 2)
    assert "loading" in screen.getvalue()


def test_an_error_leaves_nothing_behind(screen):
    threads = threading.active_count()

    def work(error):
        with telling(None, "loading") as tell:
            tell(0, 2)
            tell(1, 2)
            raise error

    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error):
            work(error)
        assert screen.line().strip() == ""
    assert threading.active_count() == threads
    assert "\x1b" not in screen.getvalue()  # the cursor was never hidden
    with telling(None, "again") as tell:
        assert tell is not None


def test_only_the_outermost_work_has_a_bar(screen):
    with telling(None, "outer") as outer, telling(None, "inner") as inner, telling(True, "x") as x:
        assert outer is not None
        assert inner is None
        assert x is None


def test_nobody_is_told_who_has_not_asked(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    second = SimpleNamespace(process_index=1, first=0)
    for asked, world in ((None, None), (False, None), (True, second), (None, second)):
        with telling(asked, "loading", world=world) as tell:
            assert tell is None
            assert adding(tell, 10) is None
    assert stream.getvalue() == ""


def test_who_asks_without_a_terminal_gets_lines(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    with telling(True, "loading", unit="arrays") as tell:
        for done in range(12):
            tell(done, 11)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "loading: 4 of 11 arrays, 36 %"
    assert 2 <= len(lines) <= 5
    assert lines[-1].startswith("loading: 11 of 11 arrays, 100 % in ")


def test_a_terminal_that_goes_away_does_not_stop_the_work(monkeypatch, screen):
    with telling(None, "loading") as tell:
        screen.close()
        for done in range(5):
            tell(done, 5)


@pytest.fixture
def asked(tmp_path):
    """Everything that has an argument `progress`, as functions of it."""

    def calls():
        mesh = meshard.make_mesh((4,), ("i",))
        x = meshard.device_put(np.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("i")))
        to = NamedSharding(mesh, P(None, "i"))
        folder = tmp_path / "saved"
        checkpoint.save(folder, {"x": x}, overwrite=True)
        renamed = checkpoint.KeyMap().rename("x", "y")
        return {
            "reshard": lambda p: meshard.reshard({"x": x}, to, progress=p),
            "map": lambda p: meshard.reshard({"x": x}, to, map=renamed, progress=p),
            "save": lambda p: checkpoint.save(folder, {"x": x}, overwrite=True, progress=p),
            "load": lambda p: checkpoint.load(folder, to, progress=p),
            "convert": lambda p: checkpoint.convert(
                folder, tmp_path / "x.safetensors", overwrite=True, progress=p
            ),
            "verify": lambda p: checkpoint.verify(folder, progress=p),
        }

    calls.folder = tmp_path
    return calls


def test_all_long_work_tells_how_far_it_is(asked):
    def body():
        for name, call in asked().items():
            seen = []
            call(lambda done, total, seen=seen: seen.append((done, total)))
            assert seen, name
            assert seen == sorted(seen), name
            assert seen[-1][0] == seen[-1][1] == 512, (name, seen)
            for odd in ("yes", 1.5, 3, lambda done: None):
                with pytest.raises(ArgumentError, match="progress must be a function"):
                    call(odd)

    alone(body)


def test_what_asks_for_a_bar_gets_one_on_the_first_process(asked, monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))

    def body():
        for call in asked().values():
            call(True)

    alone(body)
    doing = [line.partition(":")[0] for line in stream.getvalue().splitlines()]
    assert list(dict.fromkeys(doing)) == [
        *("resharding", "saving", "loading", "converting", "verifying"),
    ]
    assert doing[-1] == "verifying"


def test_processes_may_ask_for_different_things(asked):
    def body():
        mesh = meshard.make_mesh((2,), ("i",))
        x = meshard.device_put(np.arange(8.0), NamedSharding(mesh, P("i")))
        mine = [None, lambda done, total: None][meshard.process_index()]
        return meshard.reshard(x, NamedSharding(mesh, P()), progress=mine).sum().item()

    assert simulate(2, 1, body) == [28.0, 28.0]


def test_an_error_of_the_function_is_raised_and_keeps_the_processes_in_step(asked):
    def stop(done, total):
        raise ZeroDivisionError

    def alone_body():
        for call in asked().values():
            with pytest.raises(ZeroDivisionError):
                call(stop)

    alone(alone_body)

    def body():
        mesh = meshard.make_mesh((2,), ("i",))
        x = meshard.device_put(np.arange(8.0), NamedSharding(mesh, P("i")))
        mine = [None, stop][meshard.process_index()]
        for call in (
            lambda: checkpoint.save("saved", {"x": x}, overwrite=True, progress=mine),
            lambda: checkpoint.load("saved", NamedSharding(mesh, P()), progress=mine),
            lambda: checkpoint.verify("saved", progress=mine),
            lambda: meshard.reshard(x, NamedSharding(mesh, P()), progress=mine),
        ):
            with contextlib.suppress(ZeroDivisionError):  # who reads nothing is not asked
                call()
        return x.sum().item()

    with contextlib.chdir(asked.folder):
        assert simulate(2, 1, body) == [28.0, 28.0]


def test_plans_and_simulations_of_large_trees_are_watched(screen):
    def body():
        mesh = meshard.make_mesh((4,), ("i",))
        rows, columns = NamedSharding(mesh, P("i")), NamedSharding(mesh, P(None, "i"))
        shapes = [meshard.ShapeDtypeStruct((8, 4 * n), "f4", sharding=rows) for n in range(1, 9)]
        return meshard.plan_reshard(shapes, columns).simulate("one process")

    alone(body)
    for word in ("planning", "simulating", "arrays", "moves"):
        assert word in screen.getvalue()
    assert screen.line().strip() == ""


SCRIPT = """
import signal, sys, time
from meshard.plan.show.progress import telling
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
with telling(None, "saving") as tell:
    for n in range(600):
        if tell is not None:
            tell(n, 600)
        if n == 15:
            print("ready", flush=True)
        time.sleep(0.1)
"""


@pytest.mark.parametrize("variables", [{}, {"CI": "1"}, {"TERM": "dumb"}])
def test_ctrl_c_on_a_real_terminal(variables):
    mine, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "TERM")}
    job = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment | {"TERM": "xterm"} | variables,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    assert job.stdout.readline() == b"ready\n"
    job.send_signal(signal.SIGINT)
    job.wait(30)
    printed = b""
    try:
        while more := os.read(mine, 65536):
            printed += more
    except OSError:  # the other end is closed
        pass
    os.close(mine)
    job.stdout.close()
    before, found, _ = printed.partition(b"Traceback")
    assert found
    assert (b"saving" in before) == (not variables)
    assert before.rpartition(b"\r")[2] == b""
    assert b"\x1b" not in before
