"""Making arrays: `device_put`, callbacks, single-device arrays; and fetching them."""

import gc
import sys
from collections import OrderedDict, namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import (
    ArgumentError,
    DeletedArrayError,
    DtypeError,
    IndivisibleError,
    NotAddressableError,
    OutOfRangeError,
    ShapeError,
    ShardingError,
    SpecError,
    TreeError,
)
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P, Sharding, SingleDeviceSharding
from meshard.testing.strategies import box_shardings, placed_shapes
from meshard.testing.virtual import virtual_devices

from .worlds import alone, everywhere, in_worlds, mesh, put, whole

GRID = np.arange(32.0).reshape(8, 4)
Point = namedtuple("Point", "x y")


def split(*spec: Any, uneven: Any = None) -> NamedSharding:
    return NamedSharding(mesh(), P(*spec), uneven=uneven)


# device_put: trees


VALUES = [
    *(GRID, GRID.T, GRID[::2, ::-1], np.ones((8, 0)), np.arange(4, dtype=">i4")),
    *(np.float32(3), 3, 2.5, True, 1j, np.ones(3, ml_dtypes.bfloat16)),
]


@in_worlds
def test_values_of_all_kinds_are_placed():
    for value in VALUES:
        expected = np.asarray(value)
        for target in (None, split(), meshard.local_devices()[-1]):
            placed = meshard.device_put(value, target)
            assert placed.dtype == expected.dtype.newbyteorder("=")
            assert placed.committed is (target is not None)
            np.testing.assert_array_equal(whole(placed), expected)


@in_worlds
def test_containers_are_trees_and_none_is_no_leaf():
    tree = {"b": [GRID, None], "a": Point(1, (2.5,)), "o": OrderedDict(z=np.ones(2), y=())}
    placed = meshard.device_put(tree)
    assert list(placed) == ["b", "a", "o"]
    assert isinstance(placed["a"], Point)
    assert isinstance(placed["o"], OrderedDict)
    assert placed["b"][1] is None
    assert isinstance(placed["a"].y[0], meshard.Array)
    assert meshard.device_put(None) is None
    assert meshard.device_put(None, split()) is None
    assert meshard.device_put([], split()) == []
    fetched = meshard.device_get(placed)
    np.testing.assert_array_equal(fetched["b"][0], GRID)
    assert fetched["a"].x == 1


@in_worlds
def test_a_prefix_of_shardings_places_a_tree():
    first = meshard.devices()[0]
    tree = {"a": [GRID, GRID], "b": {"c": GRID, "d": 1.0}}
    placed = meshard.device_put(tree, {"a": [split("i"), first], "b": None})
    assert placed["a"][0].sharding == split("i")
    assert placed["a"][1].device == first
    assert [placed["b"][k].committed for k in "cd"] == [False, False]
    placed = meshard.device_put(tree, {"a": split("j"), "b": split()})
    assert [x.sharding for x in placed["a"]] == [split("j")] * 2
    assert [x.sharding for x in placed["b"].values()] == [split()] * 2


@in_worlds
def test_a_bare_spec_means_the_mesh_that_is_set():
    with mesh():
        placed = meshard.device_put({"a": GRID, "b": GRID}, {"a": P("i"), "b": P(None, "j")})
        assert placed["a"].sharding == split("i")
        assert placed["b"].sharding == split(None, "j")
        assert meshard.device_put(GRID, P("i", "j")).sharding == split("i", "j")


@in_worlds
def test_a_bare_spec_without_a_mesh_is_refused():
    with pytest.raises(ShardingError, match=r"bare spec P\('i',\) needs a mesh.*with mesh:"):
        meshard.device_put(GRID, P("i"))
    with pytest.raises(ShardingError, match="mesh"):
        meshard.device_put({"a": GRID}, {"a": P("i")})


@pytest.mark.parametrize(
    "prefix",
    [{"a": None}, {"a": None, "b": None, "c": None}, [None, None], {"a": [None], "b": None}],
)
def test_what_is_no_prefix_is_refused(prefix):
    tree = {"a": [GRID, GRID], "b": GRID}
    with pytest.raises(
        TreeError, match="device_put: the tree of devices must be a prefix of the tree of values"
    ):
        meshard.device_put(tree, prefix)


@pytest.mark.parametrize("target", [3, "cpu", meshard.Device, object(), 2.5])
def test_what_is_no_place_is_refused(target):
    with pytest.raises(ArgumentError, match="device_put: expected a Sharding, a Device, a spec or"):
        meshard.device_put(GRID, target)
    with pytest.raises(ArgumentError, match=r"got 3\. A device by its number is meshard"):
        meshard.device_put(GRID, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "dtype <U4 is not a numeric dtype"),
        (object(), "got <object object at .* of type object"),
        (
            np.array([None, 1]),
            r"nested lists of numbers, got a NumPy array of shape \(2,\) and dtype object",
        ),
        (np.datetime64("2020-01-01"), "dtype datetime64"),
        (2**70, "1180591620717411303424 does not fit into integers of 64 bits"),
        (meshard.ShapeDtypeStruct((2,), "f4"), "of type ShapeDtypeStruct"),
    ],
)
def test_what_is_no_number_is_refused(value, message):
    for target in (None, meshard.devices()[0]):
        with pytest.raises((DtypeError, OutOfRangeError), match=message):
            meshard.device_put(value, target)


@in_worlds
def test_a_shape_that_cannot_lie_so_is_refused():
    with pytest.raises(IndivisibleError, match=r"dimension 0 should be divisible by 4, .* to 6"):
        meshard.device_put(np.ones(6), split("i"))
    with pytest.raises(SpecError, match="rank at least 2"):
        meshard.device_put(np.ones(8), split("i", "j"))


def test_devices_that_do_not_exist_are_refused_everywhere():
    there = Mesh(virtual_devices(4), ("i",))
    sharding = NamedSharding(there, P("i"))
    for make in (
        lambda: meshard.device_put(GRID, sharding),
        lambda: meshard.device_put(mnp.asarray(GRID), sharding),
        lambda: meshard.make_array_from_callback((4,), sharding, lambda i: np.ones(1)),
        lambda: meshard.make_array_from_single_device_arrays((4,), sharding, []),
        lambda: meshard.make_array_from_process_local_data(sharding, np.ones(4)),
    ):
        with pytest.raises(ShardingError, match=r"VirtualDevice.*does not exist here; there are 8"):
            make()


# device_put: memory


def test_a_later_change_of_the_users_array_does_not_show():
    def body() -> None:
        for alias in (None, True, False):
            value = np.arange(8.0)
            arrays = [meshard.device_put(value, split("i"), may_alias=alias), mnp.asarray(value)]
            value[:] = -1
            for x in arrays:
                np.testing.assert_array_equal(x, np.arange(8.0))

    alone(body)


@in_worlds
def test_moving_within_a_process_shares_blocks_and_large_ones_too():
    value = np.arange(1 << 18, dtype=np.float64)
    x = meshard.device_put(value, split("i"))
    y = meshard.device_put(x, split("i"))
    for a, b in zip(x.addressable_shards, y.addressable_shards, strict=True):
        assert np.shares_memory(np.asarray(a.data), np.asarray(b.data))
    np.testing.assert_array_equal(whole(meshard.device_put(x, split(None))), value)


@in_worlds
def test_donated_arrays_are_deleted_once_all_are_placed():
    x, y, z = put(GRID, "i"), put(GRID, "j"), mnp.ones(3)
    first, second = meshard.device_put([x, y], split(None, "j"), donate=[True, False])
    assert (x.is_deleted(), y.is_deleted()) == (True, False)
    np.testing.assert_array_equal(whole(first), GRID)
    np.testing.assert_array_equal(whole(second), GRID)
    with pytest.raises(IndivisibleError):
        meshard.device_put([y, z], split("i"), donate=True)
    assert not y.is_deleted()
    same = meshard.device_put(y, y.sharding, donate=True)
    assert y.is_deleted()
    np.testing.assert_array_equal(whole(same), GRID)
    # With no place given the array is its own result, and stays.
    assert meshard.device_put(z, donate=True) is z
    assert not z.is_deleted()
    meshard.device_put({"a": GRID, "n": None}, split(), donate=True)


@in_worlds
def test_donation_and_aliasing_exclude_each_other():
    x = put(GRID, "i")
    with pytest.raises(ArgumentError, match="donate and may_alias are both True"):
        meshard.device_put({"x": x}, split(), donate=True, may_alias={"x": True})
    assert not x.is_deleted()
    meshard.device_put(x, split(), donate=True, may_alias=False)


@in_worlds
def test_a_deleted_array_cannot_be_placed_or_fetched():
    x = put(GRID, "i")
    x.delete()
    for use in (
        lambda: meshard.device_put(x, split("j")),
        lambda: meshard.device_put(x, x.sharding),
        lambda: meshard.device_get([x]),
        lambda: meshard.block_until_ready({"x": x}),
    ):
        with pytest.raises(DeletedArrayError, match=r"test_make\.py"):
            use()


@in_worlds
def test_fetching_leaves_other_leaves_alone():
    marker = object()
    tree = {"x": put(GRID), "n": 3, "t": "text", "o": marker, "g": np.float32(2), "none": None}
    found = meshard.device_get(tree)
    np.testing.assert_array_equal(found["x"], GRID)
    assert (found["n"], found["t"], found["o"], found["none"]) == (3, "text", marker, None)
    assert isinstance(found["g"], np.ndarray)
    assert meshard.block_until_ready(tree) is tree


# device_put: values


@given(st.data())
def test_any_layout_gives_the_value_back(data):
    kinds = (None, "balanced", "ceil")
    if data.draw(st.booleans()):
        sharding, shape = data.draw(placed_shapes(uneven=kinds, devices=meshard.devices()))
    else:
        shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
        sharding = data.draw(box_shardings(shape, meshard.devices()))
    value = np.random.default_rng(0).integers(0, 99, shape)
    x = meshard.device_put(value, sharding)
    np.testing.assert_array_equal(np.asarray(x), value)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, value[shard.index])
    made = meshard.make_array_from_callback(shape, sharding, lambda index: value[index])
    assert made.aval is x.aval
    np.testing.assert_array_equal(made, value)
    again = meshard.make_array_from_single_device_arrays(
        shape, sharding, [s.data for s in reversed(made.addressable_shards)]
    )
    np.testing.assert_array_equal(again, value)


class Halves(Sharding):
    """A sharding of the user's own: the first dim in two, on two devices."""

    def __init__(self) -> None:
        self.devices = meshard.devices()[3:5]

    @property
    def device_set(self) -> set[meshard.Device]:
        return set(self.devices)

    def devices_indices_map(self, global_shape):
        half = global_shape[0] // 2
        rest = (slice(None),) * (len(global_shape) - 1)
        first, second = self.devices
        return {first: (slice(0, half), *rest), second: (slice(half, None), *rest)}


@pytest.mark.halves
def test_a_sharding_of_the_users_own_works_in_all_ways():
    def body() -> dict[str, np.ndarray]:
        sharding = Halves()
        placed = meshard.device_put(GRID, sharding)
        made = meshard.make_array_from_callback((8, 4), sharding, lambda i: GRID[i])
        assert {d.id for d in placed.devices()} == {3, 4}
        moved = meshard.reshard(put(GRID, "i"), sharding)
        joined = meshard.make_array_from_single_device_arrays(
            (8, 4), sharding, [s.data for s in placed.addressable_shards]
        )
        return {"p": whole(placed), "m": whole(made), "r": whole(moved), "j": whole(joined)}

    for value in everywhere(body).values():
        np.testing.assert_array_equal(value, GRID)


# callbacks


def indices(*spec: Any, shape: tuple[int, ...] = (8, 4)) -> list[Any]:
    """What a callback is called with."""
    calls = []

    def callback(index: Any) -> np.ndarray:
        calls.append(index)
        return np.arange(np.prod(shape)).reshape(shape)[index]

    x = meshard.make_array_from_callback(shape, split(*spec), callback)
    np.testing.assert_array_equal(whole(x), np.arange(np.prod(shape)).reshape(shape))
    return calls


def test_a_callback_is_called_once_for_each_distinct_index():
    def body() -> None:
        assert indices("i") == [(slice(r, r + 2), slice(None)) for r in (0, 2, 4, 6)]
        assert indices() == [(slice(None), slice(None))]
        assert len(indices("i", "j")) == 8
        assert indices(shape=()) == [()]

    alone(body)


def test_a_callback_is_called_once_for_all_pieces_without_elements():
    calls = []

    def callback(index: Any) -> np.ndarray:
        calls.append(index)
        return np.arange(10.0)[index]

    def body() -> None:
        flat = NamedSharding(meshard.make_mesh((8,), ("i",)), P("i"), uneven="ceil")
        x = meshard.make_array_from_callback((10,), flat, callback)
        np.testing.assert_array_equal(x, np.arange(10.0))

    alone(body)
    assert calls == [(slice(a, a + 2),) for a in (0, 2, 4, 6, 8)] + [(slice(10, 10),)]


def test_a_callback_is_called_for_local_pieces_only():
    def body() -> list[Any]:
        return [indices("i"), indices(None, "j"), indices("i", "j")]

    first, second = simulate(2, 4, body, deadline=10)
    assert first[0] == [(slice(r, r + 2), slice(None)) for r in (0, 2)]
    assert second[0] == [(slice(r, r + 2), slice(None)) for r in (4, 6)]
    assert first[1] == second[1] == [(slice(None), slice(c, c + 2)) for c in (0, 2)]
    assert not set(map(str, first[2])) & set(map(str, second[2]))


@in_worlds
def test_callbacks_give_anything_array_like():
    for give in (
        lambda index: GRID[index].tolist(),
        lambda index: mnp.asarray(GRID[index]),
        lambda index: memoryview(np.ascontiguousarray(GRID[index])),
        lambda index: np.asfortranarray(GRID[index]),
        lambda index: GRID[index].astype(">f8"),
    ):
        x = meshard.make_array_from_callback((8, 4), split("i", "j"), give)
        assert x.dtype == np.float64
        assert x.committed
        np.testing.assert_array_equal(whole(x), GRID)
    assert meshard.make_array_from_callback((), split(), lambda i: 3).dtype == np.int64
    device = meshard.devices()[-1]
    assert meshard.make_array_from_callback(4, device, lambda i: np.ones(4), "f8").device == device
    with mesh():
        x = meshard.make_array_from_callback((8, 4), P("i"), lambda i: GRID[i])
    assert x.sharding == split("i")


@in_worlds
def test_a_callbacks_wrong_shape_names_the_index():
    with pytest.raises(ShardingError) as caught:
        meshard.make_array_from_callback((8, 4), split("i"), lambda i: GRID)
    row = 2 * (meshard.local_devices()[0].id // 2)
    index = f"[{row}:{row + 2}, 0:4]"
    assert f"expected shard shape (2, 4) for index {index}, but got (8, 4)" in str(caught.value)
    assert "float64[8,4]" in str(caught.value)


def test_a_callbacks_wrong_dtype_names_the_index():
    def mixed(index: Any) -> np.ndarray:
        return GRID[index].astype(np.float32 if index[0].start == 4 else np.float64)

    def narrow_first(index: Any) -> np.ndarray:
        return GRID[index].astype(np.float32 if index[0].start == 0 else np.float64)

    def body() -> None:
        with pytest.raises(ShardingError, match=r"dtype float64 for index \[4:6, 0:4\], but got f"):
            meshard.make_array_from_callback((8, 4), split("i"), mixed)
        with pytest.raises(ShardingError, match=r"dtype float32 for index \[2:4, 0:4\], but got f"):
            meshard.make_array_from_callback((8, 4), split("i"), narrow_first)
        x = meshard.make_array_from_callback((8, 4), split("i"), mixed, dtype=np.float32)
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, GRID.astype(np.float32))
        x = meshard.make_array_from_callback((8, 4), split("i"), mixed, dtype=np.float64)
        assert x.dtype == np.float64
        with pytest.raises(ShardingError, match=r"dtype int32 for index \[0:2, 0:4\], but got fl"):
            meshard.make_array_from_callback((8, 4), split("i"), mixed, np.int32)
        bf = meshard.make_array_from_callback((8, 4), split("i"), mixed, ml_dtypes.bfloat16)
        assert bf.dtype == ml_dtypes.bfloat16

    alone(body)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda s: ((2, -1), s, None),
            ShapeError,
            r"make_array_from_callback: \(2, -1\) is not a shape: sizes must be",
        ),
        (
            lambda s: ("ab", s, None),
            ShapeError,
            "make_array_from_callback: 'ab' is not a shape: sizes must be non-negative",
        ),
        (
            lambda s: ((2.0,), s, None),
            ShapeError,
            r"make_array_from_callback: \(2\.0,\) is not a shape: sizes must be",
        ),
        (
            lambda s: (None, s, None),
            ShapeError,
            "make_array_from_callback: None is not a shape: sizes must be non-negative",
        ),
        (lambda s: ((2,), None, None), ArgumentError, "a sharding is needed, got None"),
        (lambda s: ((2,), P("i"), None), ShardingError, "needs a mesh"),
        (lambda s: ((2,), "cpu", None), ArgumentError, "expected a Sharding"),
        (lambda s: ((6,), s, None), IndivisibleError, "divisible by 4"),
        (lambda s: ((8,), s, "U3"), DtypeError, "not a numeric dtype"),
    ],
)
def test_wrong_arguments_are_refused_before_the_callback_is_called(make, error, message):
    calls: list[Any] = []
    shape, sharding, dtype = make(split("i"))
    with pytest.raises(error, match=message):
        meshard.make_array_from_callback(shape, sharding, calls.append, dtype=dtype)
    assert calls == []


def test_a_callback_that_gives_nothing_is_refused():
    with pytest.raises(
        DtypeError,
        match="make_array_from_callback: expected an array, a number or nested lists of",
    ):
        meshard.make_array_from_callback((8,), split("i"), lambda i: None)


def test_a_callback_that_raises_leaves_no_array_and_no_memory():
    rows = 1 << 18

    def body() -> None:
        value = np.zeros(rows)
        fill = meshard.make_array_from_callback((rows,), split("i"), lambda i: value[i])
        del fill
        gc.collect()
        before, idle = meshard.live_arrays(), here().memory.idle_bytes
        assert idle >= rows * 8

        def broken(index: Any) -> np.ndarray:
            if index[0].start:
                raise KeyError("no third piece")
            return value[index]

        with pytest.raises(KeyError, match="no third piece"):
            meshard.make_array_from_callback((rows,), split("i"), broken)
        gc.collect()
        assert meshard.live_arrays() == before == []
        assert here().memory.idle_bytes == idle

    alone(body)


def test_what_the_user_can_still_change_is_copied():
    kept: list[np.ndarray] = []
    buffer = bytearray(64)

    def keeps(index: Any) -> np.ndarray:
        kept.append(GRID[index].copy())
        return kept[-1]

    def keeps_a_view(index: Any) -> np.ndarray:
        fresh = GRID[index].copy()
        kept.append(fresh[:1])
        return fresh

    def keeps_the_base(index: Any) -> np.ndarray:
        kept.append(GRID[index].copy())
        return kept[-1][:]

    def keeps_a_buffer(index: Any) -> np.ndarray:
        found = np.frombuffer(buffer).reshape(2, 4)
        kept.append(found)
        return found

    def body() -> None:
        for give in (keeps, keeps_a_view, keeps_the_base, keeps_a_buffer):
            kept.clear()
            x = meshard.make_array_from_callback((8, 4), split("i"), give)
            before = np.array(x)
            for theirs in kept:
                theirs[:] = -1
            np.testing.assert_array_equal(x, before)

    alone(body)


def test_what_the_user_has_let_go_of_is_adopted():
    addresses = []

    def fresh(index: Any) -> np.ndarray:
        value = np.ascontiguousarray(GRID[index]) + 0
        addresses.append(value.ctypes.data)
        return value

    def body() -> None:
        x = meshard.make_array_from_callback((8, 4), split("i"), fresh)
        shards = [s for s in x.addressable_shards if not s.replica_id]
        assert [np.asarray(s.data).ctypes.data for s in shards] == addresses
        np.testing.assert_array_equal(x, GRID)

    alone(body)
    assert sys.getrefcount(addresses) < 10


def test_a_process_without_a_piece_needs_the_dtype():
    def body() -> tuple[int, str]:
        there = SingleDeviceSharding(meshard.devices()[-1])
        calls = []
        x = meshard.make_array_from_callback(
            (8, 4), there, lambda i: calls.append(i) or GRID[i], dtype=np.float64
        )
        assert x.shape == (8, 4)
        message = ""
        if meshard.process_index() == 0:
            with pytest.raises(ArgumentError, match="needs dtype=") as caught:
                meshard.make_array_from_callback((8, 4), there, lambda i: GRID[i])
            message = str(caught.value)
            with pytest.raises(NotAddressableError):
                np.asarray(x)
        return len(calls), message

    (first, message), (second, _) = simulate(2, 4, body, deadline=10)
    assert (first, second) == (0, 1)
    assert message.startswith("make_array_from_callback: a process without devices")


# single-device arrays


def parts(sharding: Sharding, shape: tuple[int, ...] = (8, 4)) -> list[meshard.Array]:
    value = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    pieces = sharding.addressable_devices_indices_map(shape)
    return [meshard.device_put(value[index], device) for device, index in pieces.items()]


@in_worlds
def test_single_device_arrays_join_without_a_copy():
    sharding = split("i", "j")
    given = parts(sharding)
    x = meshard.make_array_from_single_device_arrays((8, 4), sharding, given[::-1])
    assert (x.shape, x.sharding, x.committed) == ((8, 4), sharding, True)
    np.testing.assert_array_equal(whole(x), GRID)
    for shard, part in zip(x.addressable_shards, given, strict=True):
        assert np.shares_memory(np.asarray(shard.data), np.asarray(part))
    for part in given:
        part.delete()
    np.testing.assert_array_equal(whole(x), GRID)


def test_uneven_single_device_arrays_join():
    def body() -> np.ndarray:
        sharding = split("i", uneven="balanced")
        given = parts(sharding, (7, 3))
        x = meshard.make_array_from_single_device_arrays((7, 3), sharding, tuple(given))
        return whole(x)

    np.testing.assert_array_equal(everywhere(body), np.arange(21.0).reshape(7, 3))


def wrong_parts(change: str) -> tuple[Any, Sharding, Any, dict[str, Any]]:
    sharding: Sharding = split("i")
    shape, given, more = (8, 4), parts(sharding), {}
    devices = meshard.devices()
    if change == "too few":
        given = given[:7]
    elif change == "none":
        given = []
    elif change == "twice":
        given[7] = given[0]
    elif change == "elsewhere":
        sharding, given = SingleDeviceSharding(devices[3]), given[:1]
    elif change == "shape":
        shape = (16, 4)
    elif change == "dtype":
        given[5] = given[5].astype(np.float32)
    elif change == "said dtype":
        more = {"dtype": np.int32}
    elif change == "sharded":
        given[2] = put(GRID, "i")
    elif change == "numpy":
        given[2] = np.ones((2, 4))
    elif change == "one":
        given = given[0]
    elif change == "generator":
        given = (x for x in given)
    elif change == "deleted":
        given[7].delete()
    return shape, sharding, given, more


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("too few", ShardingError, "expected 8 per-device arrays .* but got 7"),
        ("none", ShardingError, "expected 8 per-device arrays .* but got 0"),
        ("twice", ShardingError, r"two arrays are on CpuDevice\(id=0\)"),
        ("elsewhere", ShardingError, r"no array is on CpuDevice\(id=3\); .*\[CpuDevice\(id=0\)"),
        ("shape", ShardingError, r"expected shard shape \(4, 4\) on CpuDevice\(id=0\) .*\(2, 4\)"),
        ("dtype", ShardingError, r"CpuDevice\(id=5\) has float32, where float64 is expected"),
        ("said dtype", ShardingError, r"CpuDevice\(id=0\) has float64, where int32 is expected"),
        ("sharded", ShardingError, r"array of shape \(8, 4\) is on 8 devices; each must be on"),
        ("numpy", ArgumentError, "expected Arrays on one device each, got a ndarray"),
        ("one", ArgumentError, "arrays is a Array; give a list or tuple"),
        ("generator", ArgumentError, "arrays is a generator"),
        ("deleted", DeletedArrayError, "deleted by delete"),
    ],
)
def test_wrong_single_device_arrays_are_refused(change, error, message):
    def body() -> None:
        shape, sharding, given, more = wrong_parts(change)
        with pytest.raises(error, match=message):
            meshard.make_array_from_single_device_arrays(shape, sharding, given, **more)

    alone(body)


def test_arrays_of_another_process_are_refused():
    def body() -> str:
        on = NamedSharding(mesh((8,), ("i",)), P("i"))
        *mine, _ = [meshard.device_put(np.ones(1), d) for d in meshard.local_devices()]
        other = next(d for d in meshard.devices() if d not in meshard.local_devices())
        given = [*mine, meshard.device_put(np.ones(1), other)]
        with pytest.raises(ShardingError) as caught:
            meshard.make_array_from_single_device_arrays((8,), on, given)
        return str(caught.value)

    first, second = simulate(2, 4, body, deadline=20)
    assert "no array is on CpuDevice(id=3); the arrays are on" in first
    assert (
        "CpuDevice(id=4) belongs to process 1. Each process must give one array for each of its"
        in first
    )
    assert "CpuDevice(id=0) belongs to process 0." in second


def test_a_process_without_arrays_needs_the_dtype_of_the_others():
    def body() -> None:
        there = SingleDeviceSharding(meshard.devices()[-1])
        mine = [meshard.device_put(GRID, meshard.devices()[-1])] * meshard.process_index()
        x = meshard.make_array_from_single_device_arrays((8, 4), there, mine, dtype=np.float64)
        assert x.dtype == np.float64
        if not mine:
            with pytest.raises(ArgumentError, match="needs dtype="):
                meshard.make_array_from_single_device_arrays((8, 4), there, mine)

    simulate(2, 4, body, deadline=10)


def test_boxes_are_shardings_of_one_shape():
    first, second = meshard.devices()[:2]
    boxes = BoxSharding((4,), {first: (slice(0, 3),), second: (slice(3, 4),)})
    x = meshard.device_put(np.arange(4), boxes)
    assert [s.data.tolist() for s in x.addressable_shards] == [[0, 1, 2], [3]]
    with pytest.raises(ShapeError, match=r"shape \(4,\), and cannot lay out one of shape \(5,\)"):
        meshard.device_put(np.arange(5), boxes)
