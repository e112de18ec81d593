"""Printing on one process, and timing blocks of code."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import meshard
from meshard import NamedSharding, P
from meshard.debug import print0, timer
from meshard.errors import AgreementError, ArgumentError
from meshard.testing import simulate
from tests.worlds import alone


def test_one_process_prints_for_all(capsys):
    def body():
        mesh = meshard.make_mesh((4,), ("i",))
        x = meshard.device_put(np.arange(8.0), NamedSharding(mesh, P("i")))
        print0("step", 3, x, sep=" | ", end=".\n")
        meshard.print0("done")
        return float(x.sum())  # the processes are in step

    assert simulate(4, 1, body) == [28.0] * 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step | 3 | Array(shape=(8,)")
    assert "[0. 1.]" in "".join(lines)
    assert "[2. 3.]" not in "".join(lines)
    assert lines[-1] == "done"


def test_it_prints_as_print_does(capsys):
    def body():
        for values in ((), ("a", 1, None), (np.arange(3),)):
            print0(*values)
            ours = capsys.readouterr().out
            print(*values)
            assert ours == capsys.readouterr().out
        print0("a", "b", sep=None, end=None)
        assert capsys.readouterr().out == "a b\n"
        stream = io.StringIO()
        print0("é → ≤", file=stream)
        assert stream.getvalue() == "é → ≤\n"

    alone(body)


def test_what_the_stream_cannot_encode_is_replaced(monkeypatch):
    def body():
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        print0("├─ 3 ≤ 4 → é")
        stream.flush()
        assert stream.buffer.getvalue() == b"+- 3 <= 4 -> \\xe9\n"

    alone(body)


def test_odd_arguments_are_refused_on_all_processes():
    def body():
        told = []
        for odd in ({"sep": 1}, {"end": b""}, {"file": "x"}, {"flush": 2}):
            with pytest.raises(ArgumentError, match=f"print0.*{next(iter(odd))}") as caught:
                print0("x", **odd)
            told.append(str(caught.value))
        return told

    first, second = simulate(2, 1, body)
    assert first == second


def test_a_name_is_printed_with_the_time(capsys):
    def body():
        with timer("step") as t:
            assert t.seconds >= 0
        with timer() as silent:
            pass
        return t.seconds, silent.seconds

    found = simulate(2, 1, body)
    assert all(0 <= seconds < 60 for pair in found for seconds in pair)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("step: ")
    assert line.endswith("s")


def test_together_all_processes_wait_and_the_slowest_counts(capsys):
    def body():
        with timer("step", together=True) as t:
            me = meshard.process_index()
            t._starts[-1] -= [1.0, 5.0, 3.0][me]  # as if it had begun earlier
        return t.seconds

    seconds = simulate(3, 1, body)
    assert len(set(seconds)) == 1
    assert 5 <= seconds[0] < 60
    assert "(the slowest of 3 processes)" in capsys.readouterr().out


def test_processes_that_time_other_blocks_together_are_told_so():
    def body():
        name = "ab"[meshard.process_index()]
        with pytest.raises(AgreementError, match="different blocks") as caught:
            timer(name, together=True).__enter__()
        return str(caught.value)

    first, second = simulate(2, 1, body)
    assert first == second
    assert "process 0: 'a', process 1: 'b'" in first


def test_timers_nest_and_decorate(capsys):
    def body():
        @timer("call")
        def fact(n):
            return n * fact(n - 1) if n else 1

        assert fact(3) == 6
        assert fact.__name__ == "fact"
        with timer() as outer, timer() as inner:
            pass
        assert inner.seconds <= outer.seconds
        again = timer()
        with again, again:
            first = again.seconds
        assert 0 <= first <= again.seconds

    alone(body)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["call"] * 4


def test_after_an_error_nothing_is_printed_and_nobody_waits(capsys):
    def body():
        me = meshard.process_index()
        with timer() as before:
            pass
        if me:
            return before.seconds
        t = timer("broken")

        def broken():
            with t:
                t._together = True  # it has not met the others
                return 1 / 0

        with pytest.raises(ZeroDivisionError):
            broken()
        return t.seconds

    assert all(seconds >= 0 for seconds in simulate(2, 1, body))
    assert capsys.readouterr().out == ""
