"""Values for devices of several processes: the same on all, or refused on all."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import UnequalError
from meshard.runtime.moving.same_values import digest
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P

from .worlds import alone, in_worlds, mesh, put, whole

PUTS = {
    "device_put": meshard.device_put,
    "reshard": meshard.reshard,
    "array": lambda x, sharding: mnp.array(x, device=sharding),
}


def place(*spec: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*spec))


def refused(value: Any, put: Any, *spec: Any) -> list[str]:
    """Return what each of four processes with two devices says of a value that differs."""

    def program() -> str:
        with pytest.raises(UnequalError) as caught:
            put(value(), place(*spec))
        assert isinstance(caught.value, (ValueError, AssertionError))
        return str(caught.value)

    return simulate(4, 2, program, deadline=30)


@pytest.mark.parametrize("name", PUTS)
def test_values_that_differ_are_refused_on_all_processes(name: str) -> None:
    for spec in ((), ("i",), (None, "j")):
        said = refused(
            lambda: np.full((8, 2), meshard.process_index() == 2, np.int32), PUTS[name], *spec
        )
        assert said == [said[0]] * 4
        assert said[0].startswith(
            f"{name}: the processes give different values: the value is int32[8,2] on all of them, "
            "but with other elements on process 2 than on process 0, 1, 3. A value that is put on "
            "devices of several processes is the whole array, and must be the same on each of them."
        )
        assert "make_array_from_process_local_data" in said[0]


def test_host_local_parts_of_other_shapes_are_refused() -> None:
    said = refused(lambda: np.zeros((4 * meshard.process_index(), 2)), meshard.device_put, "i")
    assert said == [said[0]] * 4
    assert "the value is float64[0,2] on process 0, float64[4,2] on process 1, " in said[0]


def test_the_leaf_of_a_tree_is_named() -> None:
    def tree() -> Any:
        return {"rate": 1.0, "steps": [3, None, meshard.process_index()]}

    for put_tree in (meshard.device_put, meshard.reshard):
        said = refused(tree, put_tree)
        assert "values: steps.2 is int64[] on all of them, but with other elements" in said[0]


def test_other_numbers_of_leaves_are_refused() -> None:
    said = refused(lambda: [0.0] * (1 + meshard.process_index() % 2), meshard.device_put)
    assert "different numbers of values: 1 on process 0, 2 on process 1, 1 on process 2" in said[0]


def test_a_value_that_changed_its_last_bit_is_found_whatever_its_size() -> None:
    for count in (1, 1000, 100_003):

        def last_bit(count: int = count) -> np.ndarray:
            value = np.linspace(0, 1, count)
            value[-1:].view(np.uint64)[0] ^= meshard.process_index() == 1
            return value

        assert "other elements on process 1 than" in refused(last_bit, meshard.device_put)[0]


@in_worlds
def test_values_that_are_the_same_are_put() -> None:
    for value in (np.arange(8.0), np.full(8, np.nan), mnp.arange(8), np.zeros((8, 0))):
        found = whole(meshard.device_put(value, place("i")))
        np.testing.assert_array_equal(found, np.asarray(value))
    keys = meshard.random.split(meshard.random.key(1), 8)
    assert meshard.device_put(keys, place("i")).shape == (8,)


@in_worlds
def test_values_for_one_process_may_differ() -> None:
    me, mine = meshard.process_index(), meshard.local_devices()
    assert int(meshard.device_put(me, mine[0])) == me
    own = NamedSharding(meshard.sharding.Mesh(mine, "own"), P())
    assert np.asarray(meshard.device_put(np.full(3, me), own)).tolist() == [me] * 3
    assert np.asarray(mnp.full(3, me)).tolist() == [me] * 3


def test_nothing_is_told_of_arrays_nor_in_one_process() -> None:
    alone(lambda: meshard.device_put(np.ones(8), place("i")))

    def program() -> list[Any]:
        x, told = put(np.arange(8.0), "i"), []
        transport = here().transport
        transport.all_gather = lambda *told_now: told.append(told_now)
        meshard.reshard({"x": x, "none": None}, place())
        meshard.device_put(x, place(None))
        meshard.device_put(3, meshard.local_devices()[0])
        return told

    assert simulate(2, 4, program, deadline=30) == [[], []]


# digests


def test_digests_differ_where_any_element_does() -> None:
    generator = np.random.default_rng(0)
    for count in (1, 7, 4096, 4097, 3 * 4096 + 5, 50_000):
        value = generator.normal(size=count)
        known = digest(value)
        assert known == digest(value.copy())
        for place_ in {0, count // 2, count - 1}:
            other = value.copy()
            other[place_] += 1e-9 + abs(other[place_]) * 1e-9
            assert digest(other) != known
        if count > 1:
            assert digest(value[::-1]) != known
            assert digest(np.roll(value, 4096 if count > 4097 else 1)) != known


@pytest.mark.parametrize("dtype", ["bool", "int8", "complex64", ml_dtypes.bfloat16, "float16"])
def test_digests_of_all_kinds(dtype: Any) -> None:
    value = np.arange(24).reshape(4, 6).astype(dtype)
    assert digest(value) == digest(np.asfortranarray(value))
    assert digest(value) != digest(value[::-1])
    assert len(digest(value[:0])) == 16


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_bytes_that_hold_nothing_do_not_count(dtype: Any) -> None:
    value = np.arange(1, 9).astype(dtype)
    other = np.frombuffer(b"\xff" * value.nbytes, dtype).copy()
    other[...] = value  # the padding may stay
    assert digest(other) == digest(value)
    assert digest(other * 2) != digest(value)


@pytest.mark.parametrize("name", ["int4", "uint2"])
def test_bits_that_hold_nothing_do_not_count(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    value = np.array([0, 1, 1, 0]).astype(dtype)
    other = (value.view(np.uint8) | 0x80).view(dtype)
    assert (other == value).all()
    assert digest(other) == digest(value)
    assert digest(other[:3]) != digest(value[1:])
