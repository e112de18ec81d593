"""The list of calls that a jitted function runs: what it computes, and what makes it look again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import debug, lax
from meshard.errors import DeletedArrayError, OutOfRangeError
from meshard.sharding import NamedSharding, P
from meshard.transforms.lowering.executable import Prepared


@dataclass(frozen=True)
class Slotted:
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...] = ()


def row(count: int = 16) -> Any:
    mesh = meshard.make_mesh((meshard.device_count(),), ("i",))
    x = np.arange(float(count * meshard.device_count()))
    return meshard.device_put(x, NamedSharding(mesh, P("i")))


STEPS = [
    Slotted((0, 2), (3,), (0,)),
    Slotted((3, 1), (4, 5)),
    Slotted((4,), ()),
    Slotted((5,), (6,)),
]


def test_steps_run_in_order_on_the_values_of_their_slots() -> None:
    seen: list[Any] = []
    prepared = Prepared(STEPS, range(2), (6, 4), {2: 10})
    runs = [
        lambda where, given: given[0] + given[1],
        lambda where, given: (given[0] * 2, given[0] - given[1]),
        lambda where, given: seen.append((where, given)),
        lambda where, given: -given[0],
    ]
    assert prepared.function(runs)("here", [1, 2]) == [-9, 22]
    assert seen == [("here", (22,))]
    sole = Prepared(STEPS[:1], range(2), (3,), {2: 10}, sole=True)
    assert sole.function(runs)("here", [1, 2]) == 11


@pytest.mark.parametrize("wrong", range(4))
def test_an_error_tells_the_step_that_raised_it(wrong: int) -> None:
    def run(number: int) -> Any:
        def step(where: Any, given: Any) -> Any:
            if number == wrong:
                raise KeyError(number)
            return (0, 0) if number == 1 else 0

        return step

    prepared = Prepared(STEPS, range(2), (6,), {2: 10})
    with pytest.raises(KeyError) as caught:
        prepared.function([run(i) for i in range(4)])(None, [1, 2])
    assert prepared.step_of(caught.value) == wrong


def test_what_a_step_lets_go_of_is_freed_before_the_next() -> None:
    class Value:
        pass

    import weakref

    first = weakref.ref(value := Value())
    alive: list[bool] = []
    steps = [Slotted((0,), (1,), (0,)), Slotted((1,), (2,), (1,)), Slotted((2,), (3,), (2,))]
    prepared = Prepared(steps, range(1), (3,), {})
    look = lambda where, given: alive.append(first() is not None)  # noqa: E731
    run = prepared.function([lambda where, given: given[0], lambda where, given: Value(), look])
    given = [value]
    del value
    made = iter(given)
    given = None  # type: ignore[assignment]
    run(None, made)
    assert alive == [False]


def test_settings_are_looked_at_again() -> None:
    x = row()
    f = meshard.jit(lambda x: mnp.ones(3) + x[:3])
    assert f(x).dtype == np.float64
    assert f(x).dtype == np.float64
    before = meshard.config.read("default_float")
    try:
        meshard.config.update("default_float", "float32")
        made = meshard.jit(lambda: mnp.ones(3))()
        assert made.dtype == np.float32
        assert f._cache_size() == 1  # type: ignore[attr-defined]
        f(x)
        assert f._cache_size() == 2  # type: ignore[attr-defined]
    finally:
        meshard.config.update("default_float", before)


def test_the_default_device_is_looked_at_again() -> None:
    if meshard.local_device_count() < 2:
        pytest.skip("There is one device.")
    f = meshard.jit(lambda n: mnp.zeros(2) + n)
    first, second = meshard.local_devices()[:2]
    for _ in range(3):
        with meshard.default_device(second):
            assert f(1.0).devices() == {second}
        with meshard.default_device(first):
            assert f(1.0).devices() == {first}


@pytest.mark.parametrize("jitted", [True, False])
def test_a_ledger_sees_a_body_that_has_run_before(jitted: bool) -> None:
    x = row()
    if x.sharding.num_devices < 2:
        pytest.skip("Nothing moves on one device.")
    mesh = x.sharding.mesh
    f = meshard.shard_map(lambda v: lax.psum(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    f = meshard.jit(f) if jitted else f
    for _ in range(3):
        f(x)
    with debug.ledger() as ledger:
        f(x)
    assert ledger.total_bytes > 0
    f(x)
    before = ledger.total_bytes
    f(x)
    assert ledger.total_bytes == before


@pytest.mark.parametrize("jitted", [True, False])
def test_a_deleted_array_is_refused_by_what_has_run_before(jitted: bool) -> None:
    x, y = row(), row()
    for operation in (lambda v: v * 2, lambda v: v + v):
        f: Any = meshard.shard_map(
            operation, mesh=x.sharding.mesh, in_specs=P("i"), out_specs=P("i")
        )
        for g in (meshard.jit(operation), meshard.jit(f) if jitted else f):
            for _ in range(3):
                g(x)
            gone = y.copy()
            gone.delete()
            with pytest.raises(DeletedArrayError):
                g(gone)


def test_an_error_of_a_program_that_has_run_before_says_where() -> None:
    x = row().astype(np.int8)
    f = meshard.jit(lambda x, n: x + n)
    for _ in range(3):
        f(x, 1)
    with pytest.raises(OutOfRangeError, match="add") as caught:
        f(x, 1000)
    assert "It happened in add of jit of" in caught.value.__notes__[0]
    assert __file__.rpartition("/")[2] in caught.value.__notes__[0]


def test_trees_of_arguments_are_told_apart() -> None:
    x = row()
    f = meshard.jit(
        lambda a, b=None: (a[0] if isinstance(a, tuple) else a) + (0 if b is None else b)
    )
    for _ in range(3):
        assert (np.asarray(f(x)) == np.asarray(x)).all()
        assert (np.asarray(f((x,))) == np.asarray(x)).all()
        assert (np.asarray(f(x, x)) == 2 * np.asarray(x)).all()
        assert (np.asarray(f(x, 1)) == np.asarray(x) + 1).all()
        assert f(x, 1.5).dtype == x.dtype
        assert (np.asarray(f(x, b=1)) == np.asarray(x) + 1).all()
        assert (np.asarray(f(x, np.ones(1))) == np.asarray(x) + 1).all()
