"""Doorbells: who sleeps is woken by what it waits for, and by nothing else."""

import mmap
import threading
import time
from typing import Any

import pytest

from meshard.mpi import waiting as doorbell_module
from meshard.mpi import waiting as patience_module
from meshard.mpi.mailbox import Mailbox, MailPage, mail_bytes
from meshard.mpi.waiting import Doorbell, Patience
from meshard.runtime.processes.agreement import NOWHERE, Stamp

LONG = 20.0
PATIENT = 5.0
has_futex = pytest.mark.skipif(doorbell_module._futex() is None, reason="this system has no futex")


class Anywhere:
    """A program that has no steps."""

    def stamp(self, peer: int) -> Stamp:
        return NOWHERE

    def is_over(self, peer: int, stamp: Stamp) -> bool:
        return False


def two() -> tuple[MailPage, MailPage, Mailbox, Mailbox]:
    """Return the mail of two processes: pages, and the mailbox of each."""
    pages = [MailPage(memoryview(mmap.mmap(-1, mail_bytes(2))), place, 2) for place in range(2)]
    nothing: Any = None
    boxes = [
        Mailbox(nothing, nothing, pages[me], pages[1 - me], 1 - me, Anywhere()) for me in range(2)
    ]
    return (*pages, *boxes)  # type: ignore[return-value]


def asleep(bell: Doorbell) -> tuple[threading.Thread, list[float]]:
    """Begin to sleep in a thread, and return it with the seconds that it will have slept."""
    slept: list[float] = []

    def sleep() -> None:
        begun = time.monotonic()
        bell.sleep(LONG)
        slept.append(time.monotonic() - begun)

    thread = threading.Thread(target=sleep)
    thread.start()
    return thread, slept


@has_futex
@pytest.mark.parametrize("wanted", [None, 0])
def test_a_letter_wakes_who_waits_for_it(wanted):
    _, page, there, back = two()
    page.doorbell.announce(wanted)
    thread, slept = asleep(page.doorbell)
    time.sleep(0.05)
    assert thread.is_alive()
    assert there.post(b"one")
    thread.join(PATIENT)
    assert slept
    assert back.collect() == b"one"


@has_futex
def test_a_letter_that_came_before_the_sleep_ends_it_at_once():
    _, page, there, _ = two()
    page.doorbell.announce(0)
    assert there.post(b"one")
    thread, slept = asleep(page.doorbell)
    thread.join(PATIENT)
    assert slept


def test_nobody_is_rung_for_who_is_awake_or_waits_for_another(monkeypatch):
    _, page, there, back = two()
    rung: list[Doorbell] = []
    monkeypatch.setattr(Doorbell, "ring", lambda self: rung.append(self))
    assert there.post(b"one")
    assert back.collect() == b"one"
    page.doorbell.announce(1)
    assert there.post(b"two")
    assert back.collect() == b"two"
    assert not rung
    page.doorbell.announce(0)
    assert there.post(b"three")
    assert len(rung) == 1


def test_reading_wakes_only_who_waits_for_anything(monkeypatch):
    page, _, there, back = two()
    rung: list[Doorbell] = []
    monkeypatch.setattr(Doorbell, "ring", lambda self: rung.append(self))
    for wanted, count in (1, 0), (None, 1):
        page.doorbell.announce(wanted)
        assert there.post(b"one")
        assert back.collect() == b"one"
        assert len(rung) == count


def test_where_there_is_no_futex_sleep_is_short(monkeypatch):
    monkeypatch.setattr(doorbell_module, "_futex", lambda: None)
    _, page, there, _ = two()
    page.doorbell.announce(0)
    begun = time.monotonic()
    page.doorbell.sleep(LONG)
    assert time.monotonic() - begun < PATIENT
    page.doorbell.announce(0)
    assert there.post(b"one")


@has_futex
def test_who_announces_another_wish_looks_once_more():
    patience, bell = Patience(), Doorbell(memoryview(mmap.mmap(-1, 4096))[:4])
    patience.doorbell = bell
    patience.begin()
    told = [patience.slept(0), bell.word[0], patience.slept(None), bell.word[0]]
    assert told == [False, 2, False, 1]
    assert patience.slept(None)  # nobody rings: it looks around by itself
    assert bell.word[0] == 0
    assert not patience.slept(3)
    patience.end()
    assert bell.word[0] == 0


def test_a_core_that_was_gone_for_long_is_not_given_away_for_a_while(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(patience_module.time, "monotonic", lambda: now[0])
    gone = [1e-6]

    def give() -> None:
        now[0] += gone[0]

    monkeypatch.setattr(patience_module, "_GIVE_AWAY", give)
    patience = Patience()
    patience.begin()
    assert patience.gave_core_away()
    assert patience.gave_core_away()
    gone[0] = 3e-3
    patience.begin()
    assert patience.gave_core_away()  # this one was dear
    patience.begin()
    assert not patience.gave_core_away()
    now[0] += 3e-3 * patience_module.REGRETS
    patience.begin()
    assert patience.gave_core_away()
    now[0] += patience_module.EAGER_SECONDS + 1  # nor is it given away all the time
    assert not patience.gave_core_away()
