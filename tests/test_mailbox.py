"""Letters and boxes between neighbours: processes of one host play in one, step by step."""

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.mpi import mailbox as mailbox_module
from meshard.mpi.mailbox import ROOM, packed
from meshard.mpi.neighbours import Neighbours, open_neighbours
from meshard.runtime.memory.arena import Neighbour, chunk_of
from meshard.runtime.memory.pages import Pages
from meshard.runtime.processes.agreement import NOWHERE, Stamp
from meshard.runtime.settings import Table

F8 = np.dtype(np.float64)
LARGE = 1 << 16


class Stamped:
    """A process whose steps are numbers, in the place of an agreement."""

    def __init__(self, stamps: list[Stamp], me: int) -> None:
        self.stamps = stamps
        self.me = me

    def stamp(self, peer: int) -> Stamp:
        return self.stamps[self.me]

    def is_over(self, peer: int, stamp: Stamp) -> bool:
        return stamp[1] < self.stamps[self.me][1]


class Host:
    """The processes of one host, which open their memory in step."""

    def __init__(self, count: int = 3, table: Table | None = None, able: Sequence[int] = ()):
        self.count = count
        self.stamps = [NOWHERE] * count
        self.pages = [Pages() for _ in range(count)]
        self.found: list[Any] = [None] * count
        self._rounds: list[list[Any]] = [[None] * count for _ in range(2)]
        self._gates = [threading.Barrier(count) for _ in range(2)]
        for me in range(count):
            if able and me not in able:
                self.pages[me].open_arena = self._refused  # type: ignore[method-assign]
        threads = [
            threading.Thread(target=self._open, args=(me, table or Table())) for me in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.neighbours: list[Neighbours] = [near for near, _ in self.found]

    def _refused(self, places: int, used: int | None = None, room: int = 0) -> Any:
        raise OSError("no memory files here")

    def _open(self, me: int, table: Table) -> None:
        number = iter(range(2))

        def all_gather(value: object) -> list[Any]:
            at = next(number)
            self._rounds[at][me] = value
            self._gates[at].wait(10)
            return self._rounds[at]

        self.found[me] = open_neighbours(
            self.pages[me], [0] * self.count, me, table, all_gather, Stamped(self.stamps, me)
        )

    def play(self, jobs: list[Any], seed: int = 0) -> list[Any]:
        """Go on with generators in any order until all have ended; return what they return."""
        order, results = random.Random(seed), [None] * len(jobs)
        left = list(range(len(jobs)))
        for _ in range(100_000):
            if not left:
                return results
            number = order.choice(left)
            try:
                next(jobs[number])
            except StopIteration as stop:
                results[number] = stop.value
                left.remove(number)
        raise AssertionError(f"jobs {left} wait for ever")


@pytest.fixture(scope="module")
def host() -> Host:
    return Host(3, Table(pushed=1 << 10))


@pytest.mark.parametrize("size", [0, 1, ROOM - 1, ROOM, ROOM + 1, 1 << 20])
def test_letters_arrive_as_they_were_written(host, size):
    value = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    there, back = host.neighbours[0]._mailboxes[1], host.neighbours[1]._mailboxes[0]
    _, found = host.play([there.put([value]), back.get()])
    assert found.tobytes() == value.tobytes()


def test_a_slot_that_was_read_is_not_looked_at_again():
    """The writer may fill it as soon as the reader says that it has read the letter."""
    host = Host(2)
    there, back = host.neighbours[0]._mailboxes[1], host.neighbours[1]._mailboxes[0]
    value = np.arange(2 * ROOM, dtype=np.uint8)
    host.play([there.put([value])])
    count = back._seen_here

    class Counting:
        def __setitem__(self, at: int, number: int) -> None:
            count[at] = number
            while there.post(b"\xff" * ROOM):
                pass

    back._seen_here = Counting()  # type: ignore[assignment]
    found = back.collect()
    assert found is not None
    assert np.asarray(found).tobytes() == value.tobytes()


def test_letters_from_another_place_of_the_program_are_not_read():
    host = Host(2)
    there, back = host.neighbours[0]._mailboxes[1], host.neighbours[1]._mailboxes[0]
    host.stamps[0] = step = (7, 3, (1 << 64) - 1)
    assert there.post(b"one")
    assert back.collect() is None
    assert back.refused == step
    host.stamps[1] = step
    assert back.collect() == b"one"
    assert back.refused is None


@given(st.lists(st.integers(0, 3 * ROOM), max_size=12), st.integers(0, 99))
def test_many_letters_arrive_in_order_both_ways(sizes, seed):
    host = Host(2)
    first, second = host.neighbours[0]._mailboxes[1], host.neighbours[1]._mailboxes[0]
    written = [np.full(n, i, np.uint8) for i, n in enumerate(sizes)]

    def write(mail):
        for value in written:
            yield from mail.put([value[::2], value[1::2]])

    def read(mail):
        found = []
        for _ in written:
            found.append((yield from mail.get()))
        return found

    jobs = [write(first), write(second), read(second), read(first)]
    for found in host.play(jobs, seed)[2:]:
        assert [f.tobytes() for f in found] == [w.tobytes() for w in written]


def test_without_addresses_long_letters_go_slot_by_slot_both_ways():
    host = Host(2)
    for pages in host.pages:
        pages.arena.lease = lambda nbytes: None  # type: ignore[method-assign]
    value = np.arange(5 * ROOM // 8 + 3.0)
    first, second = host.neighbours[0]._mailboxes[1], host.neighbours[1]._mailboxes[0]
    jobs = [first.put([value]), second.put([value[::-1]]), first.get(), second.get()]
    _, _, back, there = host.play(jobs)
    assert (there.view(F8) == value).all()
    assert (back.view(F8) == value[::-1]).all()


def test_processors_that_reorder_writes_are_held_to_the_order(monkeypatch):
    monkeypatch.setattr(mailbox_module, "_ORDERED", False)
    host = Host(2)
    value = np.arange(9)
    _, found = host.play(
        [host.neighbours[0]._mailboxes[1].put([value]), host.neighbours[1]._mailboxes[0].get()]
    )
    assert (found.view(np.int64) == value).all()


def test_packed_is_c_order():
    x = np.arange(6).reshape(2, 3)
    assert packed([x.T, x[:, :1]]) == x.T.copy().tobytes() + x[:, :1].copy().tobytes()


def boxes(draw: random.Random, pages: Pages, sizes: Sequence[int], fill: bool) -> list[np.ndarray]:
    """Return boxes of several kinds: contiguous or strided, in an arena or not."""
    found = []
    for size in sizes:
        within = draw.random() < 0.5
        shape = (max(1, size // 8), 16)
        room = (pages.reachable if within else pages.allocate)(shape, F8)
        room[...] = draw.random() if fill else -1.0
        box = draw.choice([room, room[:, 3:9], room[::-1, ::2], room[:0], room[0, 0]])
        found.append(box)
    return found


@given(
    st.lists(st.sampled_from([8, 64, 1 << 13]), max_size=5),
    st.lists(st.sampled_from([8, 64, 1 << 13]), max_size=5),
    st.integers(0, 999),
)
def test_boxes_of_all_kinds_arrive(there, back, seed):
    host = Host(2, Table(pushed=1 << 10))
    draw = random.Random(seed)
    jobs, expected = [], []
    going, coming = [], []
    for me, sizes in enumerate((there, back)):
        going.append(boxes(draw, host.pages[me], sizes, fill=True))
        targets = []
        for box in going[me]:
            rows = host.pages[1 - me].reachable((*box.shape, 2), F8)
            targets.append(draw.choice([rows[..., 0], rows[..., 1].copy()]))
        coming.append(targets)
        expected.append(going[me])
    for me in range(2):
        jobs += host.neighbours[me].talk(1 - me, going[me], coming[1 - me])
    host.play(jobs, seed)
    for wanted, found in zip(expected, coming, strict=True):
        for a, b in zip(wanted, found, strict=True):
            assert (a == b).all()


def test_what_is_wanted_in_the_arena_is_written_there_at_once(host):
    x = np.arange(float(LARGE))
    target = host.pages[1].reachable((LARGE,), F8)
    assert host.pages[1].arena.offset_of(target) is not None
    before = host.pages[0].idle_bytes, host.pages[0].arena.idle_bytes
    jobs = [*host.neighbours[0].talk(1, [x], []), *host.neighbours[1].talk(0, [], [target])]
    host.play(jobs)
    assert (target == x).all()
    after = host.pages[0].idle_bytes, host.pages[0].arena.idle_bytes
    assert after == before  # no letter held it on its way


@pytest.mark.parametrize("seed", range(4))
def test_small_boxes_are_swapped_and_nobody_is_missing_at_the_end(host, seed):
    values = [[np.full((2, 3), 10.0 * a + b) for b in range(3)] for a in range(3)]
    found: list[dict[int, Any]] = [{} for _ in range(3)]
    jobs, lists = [], []
    for me in range(3):
        others = [p for p in range(3) if p != me]
        sends = [(p, [values[me][p], values[me][p][:0]]) for p in others]
        assert host.neighbours[me].is_small(sends, sends)
        lists.append([(p,) for p in others])
        letters = [(p, packed(blocks)) for p, blocks in sends]
        jobs.append(host.neighbours[me].swap(letters if me else sends, lists[me], found[me]))
    host.play(jobs, seed)
    assert lists == [[], [], []]
    for a in range(3):
        for b in range(3):
            assert a == b or (np.frombuffer(found[b][a]).reshape(2, 3) == values[a][b]).all()


def test_swapping_and_talking_are_one_protocol(host):
    x, y, other = np.arange(5.0), np.arange(700.0), np.zeros(5)
    found: dict[int, Any] = {}
    jobs = [host.neighbours[0].swap([(1, x.tobytes())], [(1,)], found)]
    jobs += host.neighbours[1].talk(0, [y[:100]], [other])
    host.play(jobs)
    assert (other == x).all()
    assert (np.frombuffer(found[1]) == y[:100]).all()
    assert not host.neighbours[0].is_small([(1, [y])], [])
    assert not host.neighbours[0].is_small([(5, [x])], [])


def test_blocks_are_lent_and_seen_where_they_lie(host):
    owner, taker = host.neighbours[0], host.neighbours[2]
    inside = host.pages[0].reachable((LARGE,), F8)
    inside[:] = 3
    outside = np.arange(float(LARGE))
    lent = [owner.within_reach(b) for b in (inside, outside, inside[5:9])]
    assert lent[0] is inside
    assert chunk_of(lent[1]) is not None
    found: dict[int, np.ndarray] = {}
    kinds = {7: ((LARGE,), F8), 8: ((LARGE,), F8), 9: ((4,), F8)}
    host.play([owner.lend(lent, 2), taker.take(0, kinds, found)])
    assert sorted(found) == [7, 8, 9]
    assert (found[8] == outside).all()
    assert not any(b.flags.writeable for b in found.values())
    inside[6] = 11
    assert found[7][6] == found[9][1] == 11  # one memory
    where = inside.__array_interface__["data"][0]
    del inside, lent
    kept = [host.pages[0].reachable((LARGE,), F8) for _ in range(3)]
    assert where not in [b.__array_interface__["data"][0] for b in kept]


def test_what_cannot_be_lent_comes_by_letter():
    host = Host(2)
    outside = np.arange(10.0)
    assert chunk_of(host.neighbours[0].within_reach(outside)) is None  # too small for a chunk
    found: dict[int, np.ndarray] = {}
    host.play(
        [host.neighbours[0].lend([outside], 1), host.neighbours[1].take(0, {0: ((10,), F8)}, found)]
    )
    assert (found[0] == outside).all()


def test_told_and_heard(host):
    found: dict[int, np.ndarray] = {}
    host.play(
        [
            host.neighbours[0].tell(1, np.arange(9, dtype=np.uint8)),
            host.neighbours[1].hear(0, found),
        ]
    )
    assert found[0].tolist() == list(range(9))


def test_hosts_that_share_memory_are_known_to_all():
    assert [hosts for _, hosts in Host(3).found] == [(0, 0, 0)] * 3


def test_where_one_process_has_no_such_memory_the_host_does_without():
    host = Host(3, able=(0, 1))
    assert host.found == [(None, None)] * 3
    assert all(pages.arena is None for pages in host.pages)


def test_memory_that_is_another_processs_is_not_taken_for_a_neighbours(monkeypatch):
    monkeypatch.setattr(Neighbour, "read_mark", lambda self, length: bytes(length))
    assert Host(2).found == [(None, None)] * 2


def test_where_a_neighbour_cannot_be_reached_the_host_does_without(monkeypatch):
    def refused(self, handle, place, places):
        raise OSError("no entry in /proc")

    monkeypatch.setattr(Neighbour, "__init__", refused)
    assert Host(2).found == [(None, None)] * 2


def test_a_slot_is_waited_for():
    host = Host(2)
    mail, other = host.neighbours[0]._mailboxes[1], host.neighbours[1]._mailboxes[0]
    values = [np.full(3, float(i)) for i in range(4)]
    jobs = [host.neighbours[0].swap([(1, v.tobytes())], [], {}) for v in values]
    for job in jobs[:2]:
        assert next(job, "done") == "done"
    assert next(jobs[2], "done") is None
    assert not mail.post(b"x")
    found = [other.collect(), other.collect()]
    assert next(jobs[2], "done") == "done"
    assert next(jobs[3], "done") == "done"
    found += [other.collect(), other.collect()]
    assert [np.frombuffer(f).tolist() for f in found] == [v.tolist() for v in values]
    assert other.collect() is None
