"""Joining a job from outside: tickets, and boxes over lines."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshard.errors import ConfigError
from meshard.mpi import joining
from meshard.mpi.joining import Door
from meshard.mpi.outside.channel import OpenChannel, Porter, Ticket, entry_name
from meshard.mpi.outside.far import Far
from meshard.mpi.transport import shared_hosts
from meshard.runtime.lines.connecting import new_token
from meshard.runtime.lines.line import Line
from meshard.runtime.lines.rendezvous import Rendezvous
from meshard.runtime.processes.agreement import Stamp
from meshard.runtime.processes.identity import Facts, state_of, whereabouts
from meshard.runtime.settings import RENDEZVOUS, TIMEOUT


@pytest.fixture(autouse=True)
def doors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all doors."""
    made: list[Door] = []
    begin = Door.__init__

    def remembered(self: Door, name: str) -> None:
        made.append(self)
        begin(self, name)

    monkeypatch.setattr(Door, "__init__", remembered)
    yield
    for door in made:
        door.close()


@pytest.fixture
def porter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Porter]:
    """A job 'a' that gives the next number 3 and the next device 7."""
    monkeypatch.setattr(RENDEZVOUS, "value", str(tmp_path / "found"))
    monkeypatch.setattr(TIMEOUT, "value", 1.0)
    found = Porter(new_token())
    found.offer(Ticket(3, 7, "j", {}, (found.addresses,)))
    about = {"members": [[list(a) for a in found.addresses]]}
    Rendezvous().announce(entry_name("a"), found.addresses, found.token, about)
    yield found
    found.close()


class TestTickets:
    def test_numbers_and_devices_go_on(self, porter: Porter) -> None:
        told = [Door("a").ring(devices) for devices in (2, 1, 1)]
        assert [(t.number, t.device) for t in told] == [(3, 7), (4, 9), (5, 10)]
        porter.offer(Ticket(4, 8, "j", {}, ()))  # what was given is not given again
        assert Door("a").ring(1).number == 6

    def test_one_that_asks_again_keeps_its_number(self, porter: Porter) -> None:
        door = Door("a")
        assert door.ring(1).number == door.ring(1).number == 3
        heir = Door("a")
        heir.ticket = Ticket(5, 20, "j", {}, ())  # of a process that has died since
        assert (heir.ring(1).number, Door("a").ring(1).device) == (5, 21)

    def test_a_number_that_was_given_to_another_is_refused(
        self, porter: Porter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Door("a").ring(1)
        late = Door("a")
        late.ticket = Ticket(3, 7, "j", {}, ())
        monkeypatch.setattr(joining, "whereabouts", lambda: ("elsewhere", 1, "2"))
        with pytest.raises(ConfigError, match="Its number, 3, was given to another process"):
            late.ring(1)

    @pytest.mark.parametrize("name", ["meshard", "Python", "NumPy"])
    def test_other_versions_are_refused(
        self, porter: Porter, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = joining.builds() | {name: "0.0"}
        monkeypatch.setattr(joining, "builds", lambda: other)
        with pytest.raises(ConfigError, match=rf"take this process. It has {name} 0\.0 instead of"):
            Door("a").ring(1)

    def test_a_job_that_is_not_there(self, porter: Porter) -> None:
        with pytest.raises(ConfigError, match=r"no job 'b' .* those in .*found are 'a'\."):
            Door("b").ring(1)

    def test_a_job_that_has_ended(self, porter: Porter) -> None:
        porter.close()
        with pytest.raises(ConfigError, match="The job 'a' has ended; no process is left to join"):
            Door("a").ring(1)

    def test_a_job_that_does_not_answer(self, porter: Porter) -> None:
        porter.offer(None)
        with pytest.raises(ConfigError, match=r"has not answered for 1 s \(MESHARD_TIMEOUT\)"):
            Door("a").ring(1)


class Steps:
    """A place in a program: messages of earlier steps are over."""

    def __init__(self) -> None:
        self.now = 0

    def stamp(self, peer: int) -> Stamp:
        return 0, self.now, 0

    def is_over(self, peer: int, stamp: Stamp) -> bool:
        return stamp[1] < self.now


class Pair:
    """Two processes with a line between them."""

    def __init__(self) -> None:
        self.steps = Steps(), Steps()
        self.far = Far(self.steps[0]), Far(self.steps[1])
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            there = socket.create_connection(listening.getsockname())
            here, _ = listening.accept()
        self.far[0].attach(1, Line(there))
        self.far[1].attach(0, Line(here))

    def close(self) -> None:
        for far in self.far:
            far.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.close()


def run(jobs: list[Any], most: int = 200_000) -> bool:
    """Continue generators until all have ended, at most so often; return whether they have."""
    for _ in range(most):
        jobs = [job for job in jobs if next(job, StopIteration) is not StopIteration]
        if not jobs:
            return True
    for job in jobs:
        job.close()
    return False


def boxes(pick: random.Random) -> list[np.ndarray[Any, Any]]:
    """Return some boxes: strided, empty, of several dtypes, larger than what the kernel keeps."""
    found = []
    for _ in range(pick.randint(0, 4)):
        n, m = pick.choice([0, 1, 7, 300]), pick.choice([1, 5, 2000])
        x = np.arange(n * m * 2).reshape(n, 2 * m).astype(pick.choice(["f8", "i1", "c16"]))
        found.append(pick.choice([x, x.T, x[:, ::2], x[::-1]]))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_boxes_pass_although_steps_are_left(pair: Pair, seed: int) -> None:
    """Each step sends boxes in both directions; some are left in the middle."""
    pick = random.Random(seed)
    for _ in range(12):
        sent = boxes(pick), boxes(pick)
        wanted = [[np.full_like(b, 3) for b in some] for some in (sent[1], sent[0])]
        jobs = [
            pair.far[0].talk(1, sent[0], wanted[0]),
            pair.far[1].talk(0, sent[1], wanted[1]),
        ]
        if pick.random() < 0.5:
            run([*jobs[0], *jobs[1]], pick.randint(0, 3))
        else:
            assert run([*jobs[0], *jobs[1]])
            for found, given in zip(wanted, (sent[1], sent[0]), strict=True):
                assert all((f == g).all() for f, g in zip(found, given, strict=True))
        for steps in pair.steps:
            steps.now += 1
    heard: dict[int, Any] = {}
    letter = np.frombuffer(b"", np.uint8) if seed % 2 else np.arange(9, dtype=np.uint8)
    assert run([pair.far[0].tell(1, letter), pair.far[1].hear(0, heard)])
    assert heard[0].tobytes() == letter.tobytes()


def test_a_message_of_a_later_step_stays(pair: Pair) -> None:
    there, here = pair.far
    pair.steps[0].now = 1
    assert run([there.tell(1, np.arange(3, dtype=np.uint8))])
    heard: dict[int, Any] = {}
    assert not run([here.hear(0, heard)], 2000)
    assert here.refused(0) == (0, 1, 0)
    here.sweep()
    pair.steps[1].now = 1
    assert run([here.hear(0, heard)])
    assert heard[0].tolist() == [0, 1, 2]


def test_a_line_that_is_closed_is_waited_for_until_somebody_finds_out(pair: Pair) -> None:
    pair.far[0].close()
    heard: dict[int, Any] = {}
    assert not run([pair.far[1].hear(0, heard)], 100)
    assert pair.far[1].is_closed(0)
    assert not run([pair.far[1].tell(0, np.zeros(3, np.uint8))], 100)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_processes_one_connects_to_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newcomers are taken in one by one or together, in any order of their numbers."""
    pick, links = random.Random(seed), []
    monkeypatch.setattr(
        OpenChannel, "_reach", lambda self, facts: links.append((self._index, facts.index))
    )
    facts = {p: Facts(p, p, 1, "h", ("elsewhere", p, "1"), (), p) for p in range(7)}
    channels = {p: OpenChannel(p, 2, None) for p in facts}
    members, waiting = {0, 1}, pick.sample(range(2, 7), 5)
    while waiting:
        new = {facts[waiting.pop()] for _ in range(pick.randint(1, len(waiting)))}
        members |= {one.index for one in new}
        for member in members:
            if pick.random() < 0.3:  # it hears of one first
                channels[member].admit([max(new, key=lambda one: one.index)])
            channels[member].admit(new)
        for member in members:  # all learn of all
            for one in members:
                channels[member]._know(facts[one])
    pairs = [frozenset(link) for link in links]
    assert len(pairs) == len(set(pairs)) == 7 * 6 // 2 - 1  # MPI joins 0 and 1


def test_who_shares_memory_is_the_same_on_all() -> None:
    rooms = {"a": [0, 1, 4], "b": [2, 3, 5]}
    everybody = set(range(6))
    whole = {p: everybody - {p} for p in everybody}
    assert shared_hosts(rooms, (0, 0, 1, 1, -5, -6), whole) == (0, 0, 1, 1, 0, 1)
    one_way = whole | {4: everybody - {0}}
    assert shared_hosts(rooms, (0, 0, 1, 1, -5, -6), one_way) == (0, 0, 1, 1, -5, 1)
    alone = {4: {5}, 5: {4}}  # the first processes have died
    assert shared_hosts(rooms, (0, 0, 1, 1, -5, -6), alone) == (0, 0, 1, 1, -5, -6)
    assert shared_hosts({"a": [0, 1]}, (-1, -2), {0: set(), 1: set()}) is None
    assert shared_hosts({"a": [0, 1]}, (-1, -2), {0: {1}, 1: {0}}) == (-1, -1)


def test_a_process_says_when_it_began() -> None:
    host, number, begun = whereabouts()
    assert (host, number) == (socket.gethostname(), os.getpid())
    assert begun == state_of(os.getpid())[1]
