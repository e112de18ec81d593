"""Placement: where new arrays lie, what becomes one, and how they get elsewhere."""

import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import (
    ArgumentError,
    DtypeError,
    IndivisibleError,
    OutOfRangeError,
    ShapeError,
    ShardingError,
)
from meshard.runtime.moving import place
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding

from .worlds import alone, everywhere, in_worlds, mesh, put, whole

GRID = np.arange(32.0).reshape(8, 4)


@pytest.fixture
def default_float() -> Iterator[None]:
    """Whatever a test sets, floats are float64 again afterwards."""
    yield
    meshard.config.update("default_float", "float64")


# the default device


@in_worlds
def test_new_arrays_lie_on_the_default_device():
    first, last = meshard.local_devices()[0], meshard.local_devices()[-1]
    with meshard.default_device(last):
        for x in (mnp.ones(3), mnp.asarray([1, 2]), meshard.device_put(GRID), mnp.arange(2) + 1):
            assert x.device == last
            assert not x.committed
        with meshard.default_device(first):
            assert mnp.ones(3).device == first
        with meshard.default_device("cpu"):
            assert mnp.ones(3).device == first
        with meshard.default_device(None):
            assert mnp.ones(3).device == first
        assert mnp.ones(3).device == last
        assert put(GRID, "i").sharding.num_devices == 8
    assert mnp.ones(3).device == first


def test_the_default_device_is_left_when_an_error_passes():
    first, *_, last = meshard.local_devices()
    with pytest.raises(KeyError), meshard.default_device(last):
        raise KeyError
    assert mnp.ones(3).device == first


def test_the_default_device_is_that_of_a_context():
    seen: list[Any] = []
    with meshard.default_device(meshard.devices()[3]):
        thread = threading.Thread(target=lambda: seen.append(mnp.ones(1).device))
        thread.start()
        thread.join()
    assert seen == [meshard.devices()[0]]


@pytest.mark.parametrize("device", [3, "gpu", object(), meshard.Device(99), ["cpu"]])
def test_a_default_device_that_is_none_is_refused_at_once(device):
    with pytest.raises(ArgumentError, match=r"is not a device of this process, which has Cpu.*0\)"):
        meshard.default_device(device)


def test_the_device_of_another_process_cannot_be_the_default():
    def body() -> None:
        there = meshard.devices()[4 * (1 - meshard.process_index())]
        with pytest.raises(ArgumentError, match="is not a device of this process"):
            meshard.default_device(there)

    simulate(2, 4, body, deadline=5)


def test_uncommitted_operands_follow_committed_ones_and_not_the_default():
    with meshard.default_device(meshard.devices()[5]):
        assert (mnp.ones(4) + put(GRID, "i")).sharding == NamedSharding(mesh(), P("i"))


# what becomes an array


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (True, "bool"),
        (3, "int64"),
        (2.5, "float64"),
        (1j, "complex128"),
        ([1, 2.5], "float64"),
        ((), "float64"),
        (np.float32(2), "float32"),
        (np.arange(3, dtype=">i2"), "int16"),
        (np.ones(2, ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
        (range(4), "int64"),
    ],
)
def test_dtypes_are_numpys(given, dtype):
    value = place.as_host(given)
    assert value.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert value.dtype.isnative
    assert place.as_array(given).dtype == value.dtype


def test_python_floats_take_the_default_float(default_float):
    meshard.config.update("default_float", "float32")
    assert place.as_host(2.5).dtype == np.float32
    assert place.as_host([1.0, 2]).dtype == np.float32
    assert place.as_host(1j).dtype == np.complex64
    assert place.as_host(np.float64(2)).dtype == np.float64
    assert place.as_host(np.ones(2)).dtype == np.float64
    assert place.as_host(2.5, dtype=np.float64).dtype == np.float64
    assert place.as_host(3).dtype == np.int64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], r"what: dtype <U1 is not a numeric dtype"),
        (b"ab", "dtype .S2"),
        (np.array("2020", "M8[D]"), r"dtype datetime64\[D\]"),
        (np.zeros(2, [("a", "i4")]), "dtype .*'a'"),
        ({1, 2}, r"nested lists of numbers, got \{1, 2\}"),
        (["x" * 200, None], "what: expected an array, a number or nested lists of numbers, got"),
        (None, "what: expected an array, a number or nested lists of numbers, got None"),
    ],
)
def test_what_is_no_number_is_refused(given, message):
    with pytest.raises(DtypeError, match=message):
        place.as_host(given, "what")


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ShapeError, match=r"what: \[\[1\], \[2, 3\]\] cannot become an array"):
        place.as_host([[1], [2, 3]], "what")


def test_a_value_that_its_dtype_cannot_hold_is_refused():
    with pytest.raises(OutOfRangeError, match="what: 300 cannot become an array"):
        place.as_host(300, "what", np.int8)


def test_an_array_is_taken_as_it_is():
    x = put(GRID, "i")
    assert place.as_array(x) is x
    assert place.as_array(x, np.float64) is x


def test_a_fresh_value_becomes_the_block_and_another_is_copied():
    value = np.arange(3)
    assert np.shares_memory(np.asarray(place.as_array(value, fresh=True)), value)
    assert not np.shares_memory(np.asarray(place.as_array(value)), value)


# what a place is


def test_places_are_shardings_devices_and_specs():
    device = meshard.devices()[2]
    assert place.as_sharding(None, "f") is None
    assert place.as_sharding(device, "f") == SingleDeviceSharding(device)
    sharding = NamedSharding(mesh(), P("i"))
    assert place.as_sharding(sharding, "f") is sharding
    with mesh():
        assert place.as_sharding(P("i"), "f") == sharding
    with pytest.raises(ShardingError, match=r"f: the bare spec P\('i',\) needs a mesh"):
        place.as_sharding(P("i"), "f")
    with pytest.raises(ArgumentError, match=r"f: expected a Sharding, .* got 3"):
        place.as_sharding(3, "f")


# getting elsewhere


LAYS = [(), ("i",), (None, "j"), ("j", "i"), (("i", "j"),)]


@pytest.mark.parametrize("target", LAYS)
@pytest.mark.parametrize("source", LAYS)
def test_from_every_layout_to_every_other(source, target):
    np.testing.assert_array_equal(
        everywhere(lambda: whole(moved(source, target))), GRID.repeat(2, 1)
    )


def moved(source: tuple[Any, ...], target: tuple[Any, ...]) -> meshard.Array:
    x = put(GRID.repeat(2, 1), *source)
    y = meshard.device_put(x, NamedSharding(mesh(), P(*target)))
    assert y.sharding == NamedSharding(mesh(), P(*target))
    assert not x.is_deleted()
    return y


@in_worlds
def test_what_to_do_is_decided_once():
    x, target = put(GRID, "i"), NamedSharding(mesh(), P("j"))
    meshard.device_put(x, target)
    known = list(map(len, here().tables))
    meshard.device_put(put(GRID + 1, "i"), target)
    assert list(map(len, here().tables)) == known


def test_an_uncommitted_array_is_every_processs_own_and_nothing_is_sent():
    def body() -> None:
        x = mnp.asarray(GRID)
        y = meshard.device_put(x, NamedSharding(mesh(), P("i")))
        np.testing.assert_array_equal(whole(y), GRID)
        if meshard.process_index() == 0:  # one process alone may do so
            there = meshard.device_put(x, meshard.devices()[-1])
            assert there.addressable_shards == []

    simulate(2, 4, body, deadline=5)


def test_a_committed_array_is_where_it_is_and_is_sent():
    def body() -> np.ndarray:
        halves = np.array(meshard.devices()).reshape(2, 4)
        here_first, then_there = (Mesh(h, ("i",)) for h in halves)
        # Only process 0 holds the value; the other's is another one.
        value = GRID if meshard.process_index() == 0 else np.zeros((8, 4))
        x = meshard.device_put(value, NamedSharding(here_first, P("i")))
        y = meshard.device_put(x, NamedSharding(then_there, P(None, "i")))
        assert [bool(a.addressable_shards) for a in (x, y)] == [
            meshard.process_index() == 0,
            meshard.process_index() == 1,
        ]
        return whole(meshard.device_put(y, NamedSharding(mesh(), P())))

    for found in simulate(2, 4, body, deadline=5):
        np.testing.assert_array_equal(found, GRID)


def test_large_values_are_copied_in_parts():
    def body() -> None:
        value = np.arange(3 << 20, dtype=np.float64).reshape(-1, 4)
        np.testing.assert_array_equal(mnp.asarray(value), value)
        np.testing.assert_array_equal(np.asarray(put(value, "i")), value)
        column = value[:, 1]
        np.testing.assert_array_equal(np.asarray(put(column, "i")), column)
        tall = np.broadcast_to(np.float64(3), (1, 1 << 20))
        np.testing.assert_array_equal(np.asarray(put(tall)), tall)

    alone(body)


def test_a_local_part_that_is_passed_as_the_whole_is_said_to_be_one():
    def body() -> list[str]:
        told = []
        local = np.ones((4, 2))  # each process's half of (8, 2)
        whole = NamedSharding(meshard.make_mesh((8,), ("x",)), P("x"))
        mapped = meshard.shard_map(lambda x: x, mesh=whole.mesh, in_specs=P("x"), out_specs=P("x"))
        for use in (lambda: meshard.device_put(local, whole), lambda: mapped(local)):
            with pytest.raises(IndivisibleError) as caught:
                use()
            told.append(str(caught.value))
        return told

    told = [text for process in simulate(2, 4, body, deadline=20) for text in process]
    assert len(told) == 4
    for text in told:
        assert text.endswith(
            "In a program of several processes values are global arrays, not the local part of "
            "each: make one from local data with meshard.make_array_from_process_local_data."
        )
    assert sum("device_put: NamedSharding(mesh=Mesh('x': 8), spec=P('x',)" in t for t in told) == 2
    law = "the global size of its dimension 0 should be divisible by 8, but it is equal to 4"
    assert sum(law in t for t in told) == 2
    assert sum("args[0] (parameter 'x') of shape (4, 2) has in_specs" in t for t in told) == 2
    with pytest.raises(IndivisibleError) as caught:
        alone(
            lambda: meshard.device_put(
                np.ones((4, 2)), NamedSharding(meshard.make_mesh((8,), ("x",)), P("x"))
            )
        )
    assert "several processes" not in str(caught.value)
