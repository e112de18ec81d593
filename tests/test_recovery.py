"""After every kind of failure that a program catches, ten further operations give right results."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import meshard
from meshard.errors import TransportError
from meshard.runtime.settings import Table
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from tests import caught

pytestmark = pytest.mark.no_job
DEADLINE = 0.5


@pytest.fixture(autouse=True)
def as_before() -> Any:
    before = set(threading.enumerate())
    yield
    meshard.config.update("check", "hash")
    assert set(threading.enumerate()) <= before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", caught.FAILURES)
@pytest.mark.parametrize(("processes", "check"), [(3, "hash"), (2, "full")])
def test_ten_operations_follow_every_failure(name: str, processes: int, check: str) -> None:
    """Twice, so that a failure can follow another, with and without shared replicas."""
    meshard.config.update("check", check)
    table = Table(memory=check == "hash")
    told = simulate(
        processes,
        6 // processes,
        lambda: caught.survive([name, name], DEADLINE),
        deadline=30,
        table=table,
    )
    assert any("nothing" not in line for lines in told for line in lines), "nothing has failed"


def test_after_an_interrupt_in_a_wait_all_go_on() -> None:
    def body() -> str:
        x = caught.made(caught.SMALL, "i")
        error = ""
        try:
            if caught.me() == 0:
                watchdog = here().transport.watchdog
                assert watchdog is not None
                found = watchdog.look
                watchdog.look = lambda missing: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign,assignment]
                try:
                    x.sum()
                finally:
                    watchdog.look = found  # type: ignore[method-assign]
            elif caught.me() == 1:
                time.sleep(0.2)
            x.sum()
        except (KeyboardInterrupt, TransportError) as caught_error:
            error = f"{type(caught_error).__name__} {caught_error}"
        caught.ten_operations(0)
        return error

    told = simulate(3, 2, body, deadline=10)
    assert told == ["KeyboardInterrupt ", "", ""]  # it had sent what the others wait for


def test_those_that_a_divergence_is_not_about_go_on() -> None:
    """Two of four processes diverge in a set of their own; the others never hear of it."""

    def body() -> str:
        error = ""
        if caught.me() < 2:
            y = caught.made((4,), "i", on=caught.mesh([0, 1]))
            try:
                (y + 1 if caught.me() else y * 2).sum()
            except TransportError as caught_error:
                error = str(caught_error)
        else:
            y = caught.made((4,), "i", on=caught.mesh([2, 3]))
            assert float(y.sum()) == 6
        caught.ten_operations(0)
        return error

    for _ in range(3):
        told = simulate(4, 1, body, deadline=10)
        assert told[2:] == ["", ""]
        assert all("Processes 0 and 1 disagree in step 2" in text for text in told[:2])


def test_without_comparing_nothing_follows_a_failure() -> None:
    """Nobody could tell to which operation a message belongs: there is an error, no wrong value."""
    meshard.config.update("check", "off")

    def body() -> str:
        x = caught.made(caught.SMALL, "i")
        if caught.me() == 0:
            time.sleep(2 * DEADLINE)
        try:
            for _ in range(4):
                x.sum()
        except TransportError:
            pass
        try:
            for _ in range(4):
                assert float((x * 0).sum()) == 0
        except TransportError as error:
            return str(error)
        return ""

    told = simulate(2, 1, body, deadline=DEADLINE)
    assert "its messages cannot be distinguished from those of other operations" in told[1]
