"""Losing processes and going on: simulated processes that die at any place."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import meshard
from meshard import checkpoint, elastic, multihost_utils
from meshard.errors import (
    ArgumentError,
    DataLoss,
    IncompatibleDevicesError,
    ShardingError,
    SpecError,
    TransportError,
)
from meshard.runtime.simulated import SimulatedTransport
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import die, simulate, virtual_devices

VALUE = np.arange(35.0).reshape(7, 5)


def rows(axes: str = "i") -> NamedSharding:
    """Return rows over all devices that take part, unevenly."""
    return NamedSharding(elastic.mesh(axes), P("i"), uneven="balanced")


def me() -> int:
    return meshard.process_index()


def fields(error: elastic.ProcessLostError) -> tuple[Any, ...]:
    return str(error), error.processes, error.operation, error.step, error.line


def living(results: list[Any]) -> list[Any]:
    return [r for r in results if r is not None]


@pytest.mark.parametrize("dead", [(0,), (1,), (3,), (0, 1), (1, 3)])
def test_all_living_raise_the_same_error_and_go_on(dead: tuple[int, ...]) -> None:
    def program() -> Any:
        x = meshard.device_put(VALUE, rows())

        def work() -> None:
            for _ in range(3):
                x.max()

        x.sum()
        if me() in dead:
            die()
        with pytest.raises(elastic.ProcessLostError) as caught:
            work()
        found = elastic.recover()
        assert found.lost == dead
        assert (found.operation, found.step, found.line) == fields(caught.value)[2:]
        assert meshard.process_count() == 4 - len(dead) == len(meshard.devices())
        y = meshard.device_put(VALUE, rows())
        for k in range(10):
            assert float((y + k).sum()) == (VALUE + k).sum()
            whole = meshard.reshard(y, NamedSharding(y.sharding.mesh, P()))
            assert (np.asarray(whole) == VALUE).all()
        return fields(caught.value), str(found).rpartition(" (")[0]

    told = living(simulate(4, 1, program))
    assert len(told) == 4 - len(dead)
    assert len(set(told)) == 1
    (text, lost, operation, step, line), said = told[0]
    assert set(lost) <= set(dead)  # the second may die a moment later
    assert "has died" in text
    assert "meshard.elastic.recover()" in text
    assert operation.startswith("`max`")
    assert step == 4
    assert "test_elastic.py:" in line
    assert "lost in step 4, `max`" in said


@contextlib.contextmanager
def dying_at(deaths: dict[int, int]) -> Iterator[None]:
    """Let processes die when they are about to send their nth message."""
    sent: dict[int, int] = {}
    before = SimulatedTransport._put

    def put(self: SimulatedTransport, *given: Any) -> None:
        sent[self.index] = sent.get(self.index, 0) + 1
        if sent[self.index] == deaths.get(self.index):
            die()
        before(self, *given)

    with mock.patch.object(SimulatedTransport, "_put", put):
        yield


def rounds() -> int:
    """Work round by round, each from the beginning if a process dies in it."""
    done = 0
    while done < 4:
        with elastic.surviving() as block:
            # One may have come to the end of a round in which another has died.
            done = int(multihost_utils.process_allgather(np.array(done)).min())
            x = meshard.device_put(VALUE + done, rows())
            y = meshard.reshard(
                x * 2, NamedSharding(x.sharding.mesh, P(None, "i"), uneven="balanced")
            )
            assert float(y.sum()) == 2 * (VALUE + done).sum()
            multihost_utils.sync_global_devices("the round")
        done += not block.lost
    return meshard.process_count()


@pytest.mark.parametrize("at", range(1, 34))
def test_a_death_at_any_message(at: int) -> None:
    """Rounds are idempotent, and all that live come to their end, wherever one or two die."""
    with dying_at({at % 4: at}):
        assert len(set(living(simulate(4, 1, rounds, deadline=20)))) == 1
    with dying_at({at % 4: at, (at + 1) % 4: at + at % 3}):
        assert len(set(living(simulate(4, 1, rounds, deadline=20)))) == 1


def test_one_that_dies_in_the_recovery_is_lost_too() -> None:
    from meshard.resilience.joining import recover as module

    before = module.meet

    def meet(*given: Any) -> None:
        if me() == 2 and given[-1] == "`recover`":
            die()
        before(*given)

    def program() -> Any:
        if me() == 0:
            die()
        found = elastic.recover()
        return found.lost, found.processes

    with mock.patch.object(module, "meet", meet):
        told = living(simulate(4, 1, program))
    assert told == [((0, 2), (1, 3))] * 2


def test_what_the_dead_did_not_hold_goes_on() -> None:
    def program() -> None:
        some = Mesh(meshard.devices()[:2], "i")
        mine = meshard.device_put(VALUE, NamedSharding(some, P("i"), uneven="balanced"))
        whole = meshard.device_put(VALUE, NamedSharding(elastic.mesh("i"), P()))
        cut = meshard.device_put(VALUE, rows())
        sum_of = meshard.jit(lambda x: x.sum())
        sum_of(mine)
        if me() == 2:
            die()
        # Not lost before it is needed.
        if me() < 2:
            assert float(mine.sum()) == VALUE.sum()
        with pytest.raises(elastic.ProcessLostError):
            cut.sum()
        elastic.recover()
        if me() < 2:
            assert float(sum_of(mine)) == float((mine + 0).sum()) == VALUE.sum()
        with pytest.raises(DataLoss, match=r"1 belongs to process 2.* it has lost \[5:7, 0:5\]"):
            cut.sum()
        with pytest.raises(
            IncompatibleDevicesError, match="belongs to process 2, which takes part"
        ):
            whole + 1
        assert (np.asarray(whole) == VALUE).all()

    simulate(3, 1, program)


def test_recover_on_some_processes_only() -> None:
    def program() -> str | None:
        if me() == 1:
            return None
        with pytest.raises(TransportError) as caught:
            elastic.recover(timeout=0.2)
        return str(caught.value)

    told = simulate(3, 1, lambda: (program(), multihost_utils.sync_global_devices("end"))[0])
    assert told[0] is not None
    assert re.search(r"waited 0.2 s for .*\b1\b.* to decide who takes part", told[0])
    with pytest.raises(ArgumentError, match="timeout must be a finite number above 0"):
        elastic.recover(timeout=-1)


def test_recovery_without_a_loss() -> None:
    def program() -> tuple[int, ...]:
        x = meshard.device_put(VALUE, rows())
        found = elastic.recover()
        assert (found.lost, found.joined, found.operation) == ((), (), None)
        assert float(x.sum()) == VALUE.sum()
        return found.processes

    assert simulate(2, 2, program) == [(0, 1)] * 2
    assert elastic.recover().processes == (0,)
    with elastic.surviving() as block:
        pass
    assert (block.changed, block.lost, block.joined) == (False, (), ())


def test_what_was_told_for_a_decision_is_not_kept() -> None:
    """Its letters hold what each knows of all that ever took part, and may come after it."""

    def program() -> list[int]:
        counts = []
        for _ in range(3):
            elastic.recover()
            meshard.device_put(VALUE, rows()).sum()
            watchdog = here().transport.watchdog
            assert watchdog is not None
            watchdog.waiting()  # reads all letters that have come
            counts.append(len(watchdog.membership._heard) + len(watchdog.membership._decided))
            multihost_utils.sync_global_devices("all have read theirs")
        return counts

    assert simulate(4, 1, program) == [[0, 0, 0]] * 4


def test_spares_join_and_take_the_place_of_the_dead() -> None:
    def program() -> Any:
        seen: list[Any] = []
        done = 0
        while done < 4:
            with elastic.surviving() as block:
                told = multihost_utils.process_allgather(np.array(done))
                done = int(told.max())
                seen.append((done, meshard.process_count(), block.joined, block.changed))
                if me() == 1 and done == 2:
                    die()
                meshard.device_put(VALUE, rows()).sum()
                done += 1
        return seen[-1][:2], meshard.devices()[-1].id

    found = simulate(2, 2, program, spares=2)
    assert [f for f in found if f is not None] == [((3, 2), found[0][1])] * 2
    assert found[1] is None


def test_growing_by_all_spares() -> None:
    def program() -> Any:
        if me() < 2:
            while True:
                found = elastic.grow(spares=3)
                if found.joined:
                    break
        else:
            found = elastic.grow()
        while meshard.process_count() < 5:
            elastic.grow(spares=5 - meshard.process_count())
        assert float(meshard.device_put(VALUE, rows()).sum()) == VALUE.sum()
        return meshard.process_count(), me() in found.processes

    assert simulate(2, 1, program, spares=3) == [(5, True)] * 5
    with pytest.raises(ArgumentError, match="spares must be"):
        elastic.grow(spares=-1)


def test_a_spare_that_is_not_needed_ends_with_the_job() -> None:
    def program() -> int:
        if me() == 2:
            with elastic.surviving():
                raise AssertionError("it was not needed")
        meshard.device_put(VALUE, rows()).sum()
        return meshard.process_count()

    assert simulate(2, 1, program, spares=1) == [2, 2, None]


@pytest.mark.parametrize("dead", [0, 1])
def test_checkpoints_and_meetings_without_a_process(dead: int, tmp_path: Path) -> None:
    def program() -> None:
        checkpoint.save(tmp_path / "0", {"w": meshard.device_put(VALUE, rows())})
        if me() == dead:
            die()
        found = elastic.recover()
        first = found.processes[0]
        w = meshard.device_put(VALUE, rows())
        for path in (tmp_path / "a", tmp_path / "b.safetensors", tmp_path / "c.zarr"):
            checkpoint.save(path, {"w": w})
            for source in (path, tmp_path / "0"):
                back = checkpoint.load(source, {"w": rows()})["w"]
                assert (multihost_utils.gather(back, root=first) is None) == (me() != first)
                assert float((back - w).sum()) == 0
        checkpoint.save(tmp_path / "d", {"w": w}, wait=False).wait()
        assert checkpoint.verify(tmp_path / "d") == []
        assert multihost_utils.broadcast_one_to_all(np.array(me())) == first
        assert multihost_utils.process_allgather(np.array(me())).tolist() == list(found.processes)

    simulate(3, 2, program)


class TestMesh:
    def test_uses_as_many_devices_as_any(self) -> None:
        for count in range(1, 13):
            some = virtual_devices(count)
            for axes in ("i", ("i", "j"), ("i", "j", "k")):
                assert elastic.mesh(axes, devices=some).size == count
            assert elastic.mesh({"i": None, "j": 1}, devices=some).devices.shape == (count, 1)

    @pytest.mark.parametrize(
        ("count", "axes", "prefer", "shape"),
        [
            (8, ("i", "j"), None, (4, 2)),
            (8, ("i", "j"), {"j": 4}, (2, 4)),
            (8, ("i", "j"), {"j": 8}, (1, 8)),
            (7, ("i", "j"), None, (7, 1)),
            (7, {"i": None, "j": 2}, None, (3, 2)),
            (7, {"i": -1, "j": 2, "k": None}, {"k": 3}, (1, 2, 3)),
            (6, {"i": 2, "j": 2}, None, (2, 2)),
        ],
    )
    def test_keeps_laws_and_then_wishes(
        self, count: int, axes: Any, prefer: Any, shape: tuple[int, ...]
    ) -> None:
        assert elastic.mesh(axes, prefer, devices=virtual_devices(count)).devices.shape == shape

    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            (
                lambda: elastic.mesh({"i": 2, "j": 4}, devices=virtual_devices(7)),
                ShardingError,
                "axes of the sizes i=2, j=4 need 8 devices, and 7 are there",
            ),
            (lambda: elastic.mesh("i", {"j": 2}), SpecError, "prefer has 'j'; the free axes"),
            (lambda: elastic.mesh({"i": 1}, {"i": 2}), SpecError, "the free axes are none"),
            (lambda: elastic.mesh(("i", "i")), SpecError, "axes has a name twice"),
            (lambda: elastic.mesh({"i": 0}), ArgumentError, r"axes\['i'\] must be"),
            (
                lambda: elastic.mesh("i", 3),
                ArgumentError,
                "prefer must be a mapping from axes to sizes",
            ),
        ],
    )
    def test_refuses(self, call: Callable[[], Any], error: type[Exception], said: str) -> None:
        with pytest.raises(error, match=said):
            call()


def test_arrays_of_different_steps_are_never_mixed() -> None:
    """Process 0 has its result before the process dies that the others still wait for."""
    before = SimulatedTransport._put

    def put(self: SimulatedTransport, *given: Any) -> None:
        if self.index == 2 and state["counts"] and given[0] == 1:
            die()
        before(self, *given)

    state = {"counts": False}

    def program() -> list[str]:
        mesh = elastic.mesh("i")
        old = meshard.device_put(VALUE, NamedSharding(mesh, P()))
        x = meshard.device_put(VALUE, rows())
        multihost_utils.sync_global_devices("begin")
        state["counts"] = True
        told = []
        with contextlib.suppress(elastic.ProcessLostError):
            new = meshard.reshard(x + 1, NamedSharding(mesh, P()))
            old = new
            told.append("came through")
            new.sum()
            meshard.reshard(new, rows())
            multihost_utils.sync_global_devices("end")
        elastic.recover()
        with pytest.raises(DataLoss, match=r"x may be of different steps: .* had already made"):
            elastic.restore({"x": old}, rows())
        assert float(elastic.restore({"x": x}, rows(), None)["x"].sum()) if x.is_complete else True
        return told

    with mock.patch.object(SimulatedTransport, "_put", put):
        told = simulate(3, 1, program, deadline=20)
    assert [t for t in told if t is not None].count(["came through"]) == 1


@pytest.mark.parametrize("spares", [0, 2])
def test_the_last_process_goes_on_alone(spares: int) -> None:
    """What one makes that is left alone is whole, and it can take others in again."""

    def program() -> Any:
        columns = NamedSharding(elastic.mesh("i"), P(None, "i"), uneven="balanced")
        guard = elastic.protect({"x": meshard.device_put(VALUE, rows()), "step": 0})
        while guard.tree["step"] < 9:
            with elastic.surviving(grow=guard.tree["step"] > 5) as block:
                state = elastic.restore(guard, rows()) if block.changed else guard.tree
                if state["step"] in (1, 3) and me() == state["step"] // 2:
                    die()
                columns = NamedSharding(elastic.mesh("i"), P(None, "i"), uneven="balanced")
                turned = meshard.reshard(state["x"] * 2, columns)
                x = meshard.reshard(turned, rows())
                guard.refresh({"x": x, "step": state["step"] + 1})
        found = elastic.restore(guard, NamedSharding(elastic.mesh("i"), P()))
        assert (np.asarray(found["x"]) == VALUE * 2.0**9).all()
        return meshard.process_count()

    assert simulate(3, 1, program, spares=spares, deadline=20) == [None] * 2 + [1 + spares] * (
        1 + spares
    )
