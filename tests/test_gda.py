"""The global device array, in one process and several."""

import copy
import functools
import inspect
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import (
    ArgumentError,
    DeletedArrayError,
    DtypeError,
    IndivisibleError,
    NotAddressableError,
    ShapeError,
    ShardingError,
    SpecError,
)
from meshard.gda import (
    GlobalDeviceArray,
    Shard,
    get_shard_indices,
    get_shard_indices_replica_ids,
    get_shard_shape,
)
from meshard.runtime.simulated import simulate
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices

from .ranks import shares
from .worlds import mesh, whole

GRID = np.arange(16.0).reshape(8, 2)


KINDS = [1, 2, 4] if shares.processes() is None else ["ranks"]


def in_worlds(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in one process of 8 devices, in two of 4 and in four of 2; or as the job is."""

    @functools.wraps(test)
    def run(*args: Any, world_kind: Any, **kwargs: Any) -> None:
        body = functools.partial(test, *args, **kwargs)
        if world_kind == "ranks":
            body()
        else:
            simulate(world_kind, 8 // world_kind, body, deadline=30)

    own = inspect.signature(test)
    extra = inspect.Parameter("world_kind", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])
    return pytest.mark.parametrize("world_kind", KINDS)(run)


def grid(shape: tuple[int, ...] = (4, 2), names: tuple[str, ...] = ("x", "y")) -> Mesh:
    return mesh(shape, names)


def shuffled() -> Mesh:
    """A mesh whose order is not that of the device ids."""
    order = [0, 2, 3, 1, 4, 6, 7, 5]
    devices = np.array(meshard.devices(), object)[order]
    return Mesh(devices.reshape(4, 2), ("x", "y"))


def cut(index: tuple[slice, ...]) -> np.ndarray:
    return GRID[index]


def made(axes: Any = ("x",), on: Mesh | None = None) -> GlobalDeviceArray:
    return GlobalDeviceArray.from_callback(GRID.shape, on or grid(), axes, cut)


def buffers(on: Mesh, axes: Any = ("x", "y")) -> list[meshard.Array]:
    indices = get_shard_indices(GRID.shape, on, axes)
    return [meshard.device_put(GRID[indices[d]], d) for d in on.local_devices]


# what it is

LAYOUTS = [
    (["x", "y"], (2, 1), [0] * 8, (slice(0, 2), slice(1, 2))),
    (P("x", "y"), (2, 1), [0] * 8, (slice(0, 2), slice(1, 2))),
    (["x"], (2, 2), [0, 1] * 4, (slice(0, 2), slice(None))),
    (["y"], (4, 2), [0, 0, 1, 1, 2, 2, 3, 3], (slice(4, 8), slice(None))),
    ([None, "y"], (8, 1), [0, 0, 1, 1, 2, 2, 3, 3], (slice(None), slice(1, 2))),
    ([("x", "y")], (1, 2), [0] * 8, (slice(1, 2), slice(None))),
    ([("y", "x")], (1, 2), [0] * 8, (slice(4, 5), slice(None))),
    ([["x", "y"], None], (1, 2), [0] * 8, (slice(1, 2), slice(None))),
    ([], (8, 2), [0, 1, 2, 3, 4, 5, 6, 7], (slice(None), slice(None))),
]


@pytest.mark.parametrize(("axes", "shape", "replicas", "second"), LAYOUTS)
@in_worlds
def test_shards_lie_as_the_axes_say(axes, shape, replicas, second):
    on = grid()
    x = made(axes, on)
    assert (x.shape, x.ndim, x.size, x.dtype) == ((8, 2), 2, 16, np.float64)
    assert x.mesh == on
    assert x.is_fully_replicated == (axes == [])
    assert get_shard_shape((8, 2), on, axes) == shape
    assert get_shard_indices((8, 2), on, axes)[on.flat_devices[1]] == second
    everyone = x.global_shards
    assert [s.device for s in everyone] == list(on.flat_devices)
    assert [s.replica_id for s in everyone] == replicas
    for shard in everyone:
        local = shard.device.process_index == meshard.process_index()
        assert (shard.data is not None) == local
        if local:
            assert shard.data.device == shard.device
            np.testing.assert_array_equal(shard.data, GRID[shard.index])
    mine = x.local_shards
    assert [s.device for s in mine] == on.local_devices
    assert [s.device for s in x.addressable_shards] == on.local_devices
    for i, shard in enumerate(mine):
        assert shard.data is x.local_data(i)
        assert shard.data is x.addressable_data(i)
        assert shard.data is x.local_data(i - len(mine))
    for what in ("local_data", "addressable_data"):
        with pytest.raises(IndexError, match=rf"{what}\(8\): this process holds {len(mine)} shar"):
            getattr(x, what)(8)
    assert x.block_until_ready() is x


@in_worlds
def test_shards_are_the_public_frozen_ones():
    shard = made().local_shards[0]
    assert type(shard) is Shard is meshard.Shard
    with pytest.raises(AttributeError):
        shard.replica_id = 3
    assert Shard(shard.device, (slice(None),), 0).data is None


@in_worlds
def test_all_shards_are_listed_when_first_asked_for():
    x = made()
    assert x._global_shards is None
    assert all(a is b for a, b in zip(x.global_shards, x.global_shards, strict=True))
    x.global_shards.clear()
    x.local_shards.clear()
    assert len(x.global_shards) == 8


@in_worlds
def test_str_and_repr():
    x = made([("x", "y")])
    assert str(x) == "GlobalDeviceArray(shape=(8, 2), dtype=float64)"
    assert repr(x) == (
        "GlobalDeviceArray(shape=(8, 2), dtype=float64, global_mesh_shape={'x': 4, 'y': 2}, "
        "mesh_axes=[('x', 'y')])"
    )
    assert repr(made(P("x"))).endswith("mesh_axes=P('x',))")


@in_worlds
def test_mesh_axes_are_kept_as_given_and_do_not_change_later():
    axes: list[Any] = [["x"], None]
    x = made(axes)
    axes[0] = None
    assert x.mesh_axes == [("x",), None]
    x.mesh_axes.clear()
    assert x.mesh_axes == [("x",), None]
    assert made(("x",)).mesh_axes == ("x",)
    assert made(P("x", None)).mesh_axes == P("x", None)


@in_worlds
def test_equality_says_what_to_write_instead():
    x, y = made(), made()
    law = "equality is intentionally unimplemented.* write a.to_array\\(\\) == b.to_array\\(\\)"
    for compare in (lambda: x == y, lambda: x != y, lambda: x == 3, lambda: x in [y]):
        with pytest.raises(NotImplementedError, match=law):
            compare()
    assert whole(x.to_array() == y.to_array()).all()
    with pytest.raises(TypeError, match=r"unhashable.* Use id\(x\)"):
        hash(x)


@in_worlds
def test_it_is_not_taken_for_an_array():
    x = made()
    law = r"shape=\(8, 2\).* is not converted to a NumPy array.* Write x.to_array\(\)"
    for use in (np.asarray, mnp.sin, meshard.device_put):
        with pytest.raises(ArgumentError, match=law):
            use(x)


@in_worlds
def test_copies_outlive_the_deletion_of_what_was_copied():
    x = made()
    for new in (copy.copy(x), copy.deepcopy(x)):
        assert repr(new) == repr(x)
        assert new.local_data(0) is not x.local_data(0)
    x.local_data(0).delete()
    np.testing.assert_array_equal(new.local_data(0), GRID[new.local_shards[0].index])
    for use in (x.block_until_ready, x.to_array):
        with pytest.raises(DeletedArrayError, match="has been deleted"):
            use()
    with pytest.raises(TypeError, match=r"cannot be pickled.* Pickle x.to_array\(\)"):
        pickle.dumps(x)


# the constructor


@in_worlds
def test_buffers_are_held_and_not_copied():
    for on in (grid(), shuffled(), grid((2, 2)), grid((8, 1))):
        given = buffers(on)
        x = GlobalDeviceArray(GRID.shape, on, ["x", "y"], given, dtype=GRID.dtype)
        assert all(s.data is b for s, b in zip(x.local_shards, given, strict=True))
        fetched = meshard.device_put(x.to_array(), NamedSharding(grid(), P()))
        np.testing.assert_array_equal(np.asarray(fetched), GRID)


@in_worlds
def test_buffers_on_other_devices_than_their_places_are_refused():
    on = shuffled()
    indices = get_shard_indices(GRID.shape, on, ["x", "y"])
    given = [meshard.device_put(GRID[indices[d]], d) for d in sorted_devices(on)]
    law = (
        r"device_buffers\[\d\] is on CpuDevice\(id=\d\), but should be on CpuDevice\(id=\d\): "
        r"the `global_mesh.local_devices` and `device_buffers` device order doesn't match"
    )
    if list(on.local_devices) == sorted_devices(on):
        given.reverse()
    if len(given) == 1:  # the only other devices are those of other processes
        other = next(d for d in on.flat_devices if d != on.local_devices[0])
        given = [meshard.device_put(GRID[indices[on.local_devices[0]]], other)]
    with pytest.raises(ValueError, match=law) as caught:
        GlobalDeviceArray(GRID.shape, on, ["x", "y"], given)
    assert type(caught.value) is ShardingError


def sorted_devices(on: Mesh) -> list[meshard.Device]:
    return sorted(on.local_devices, key=lambda d: d.id)


@in_worlds
def test_buffers_of_wrong_number_shape_or_dtype_are_refused():
    on = grid()
    given = buffers(on)
    count = len(given)
    with pytest.raises(
        ShardingError, match=f"has {count - 1} buffers, but this process has {count} devices of"
    ):
        GlobalDeviceArray(GRID.shape, on, ["x", "y"], given[:-1])
    last = on.local_devices[-1]
    for value in (GRID, np.zeros((2, 2)), np.zeros(2)):
        with pytest.raises(
            ShapeError,
            match=re.escape("expected shard shape (2, 1) for index [")
            + f".*device_buffers.{count - 1}. has shape {re.escape(str(value.shape))}",
        ):
            GlobalDeviceArray(
                GRID.shape, on, ["x", "y"], [*given[:-1], meshard.device_put(value, last)]
            )
    other = meshard.device_put(np.zeros((2, 1), np.float32), last)
    if count > 1:
        law = r"expected dtype float64 .* has dtype float32. All shards must have match"
        with pytest.raises(ValueError, match=law):
            GlobalDeviceArray(GRID.shape, on, ["x", "y"], [*given[:-1], other])
    with pytest.raises(ShardingError, match=r"expected dtype int32 .* has dtype float64"):
        GlobalDeviceArray(GRID.shape, on, ["x", "y"], given, dtype="int32")


@in_worlds
def test_what_is_no_buffer_is_refused():
    on = grid()
    given = buffers(on)
    with pytest.raises(
        ArgumentError,
        match=r"device_buffers\[0\] is a ndarray, not an Array on CpuDevice\(id=\d\). Write "
        r"meshard.device_put\(x, device\)",
    ):
        GlobalDeviceArray(GRID.shape, on, ["x", "y"], [np.asarray(b) for b in given])
    with pytest.raises(ArgumentError, match="device_buffers is a generator; give a list or tuple"):
        GlobalDeviceArray(GRID.shape, on, ["x", "y"], (b for b in given))
    spread = meshard.device_put(GRID, NamedSharding(on, P("x")))
    with pytest.raises(ShardingError, match=r"\[0\] is on 8 devices; .*GlobalDeviceArray.from_ar"):
        GlobalDeviceArray(GRID.shape, on, ["x", "y"], [spread] * len(given))
    given[0].delete()
    with pytest.raises(DeletedArrayError, match="has been deleted"):
        GlobalDeviceArray(GRID.shape, on, ["x", "y"], given)


def test_devices_that_do_not_exist_hold_nothing():
    on = Mesh(np.array(virtual_devices(8), object).reshape(4, 2), ("x", "y"))
    assert get_shard_shape((8, 2), on, ["x"]) == (2, 2)
    asked: list[Any] = []
    for make in (
        lambda: GlobalDeviceArray((8, 2), on, ["x"], []),
        lambda: GlobalDeviceArray.from_callback((8, 2), on, ["x"], asked.append),
        lambda: GlobalDeviceArray.from_batched_callback((8, 2), on, ["x"], asked.append),
    ):
        with pytest.raises(ShardingError, match="does not exist here"):
            make()
    assert not asked


# from callbacks


@in_worlds
def test_the_callback_is_called_for_each_local_device():
    on, asked = shuffled(), []

    def callback(index):
        asked.append(index)
        return GRID[index]

    x = GlobalDeviceArray.from_callback([8, 2], on, ["x"], callback)
    indices = get_shard_indices((8, 2), on, ["x"])
    assert asked == [indices[d] for d in on.local_devices]
    assert x.shape == (8, 2)
    np.testing.assert_array_equal(whole(x.to_array()), GRID)


@pytest.mark.parametrize(
    ("give", "dtype"),
    [
        (lambda v: v.tolist(), np.float64),
        (lambda v: v.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16),
        (mnp.asarray, np.float64),
        (lambda v: meshard.device_put(v, meshard.local_devices()[0]), np.float64),
        (lambda v: meshard.device_put(v, meshard.local_devices()[-1]), np.float64),
    ],
)
@in_worlds
def test_a_callback_returns_anything_that_is_like_an_array(give, dtype):
    x = GlobalDeviceArray.from_callback(GRID.shape, grid(), ["x"], lambda i: give(GRID[i]))
    assert x.dtype == dtype
    for shard in x.local_shards:
        assert shard.data.device == shard.device
        np.testing.assert_array_equal(shard.data, GRID[shard.index].astype(dtype))


@in_worlds
def test_fresh_memory_becomes_the_block_and_known_memory_is_copied():
    at: list[int] = []

    def fresh(index):
        value = GRID[index].copy()
        at.append(value.ctypes.data)
        return value

    x = GlobalDeviceArray.from_callback(GRID.shape, grid(), ["x"], fresh)
    assert [s.data.unsafe_buffer_pointer() for s in x.local_shards] == at
    mine = GRID.copy()
    y = GlobalDeviceArray.from_callback(GRID.shape, grid(), ["x"], lambda i: mine[i])
    mine[:] = -1
    np.testing.assert_array_equal(y.local_data(0), GRID[y.local_shards[0].index])


@in_worlds
def test_an_array_on_its_device_is_not_copied():
    on = grid()
    given = iter(made(["x"], on).local_shards)
    kept = []

    def callback(index):
        kept.append(next(given).data)
        return kept[-1]

    x = GlobalDeviceArray.from_callback(GRID.shape, on, ["x"], callback)
    for a, b in zip(x.local_shards, kept, strict=True):
        assert a.data.unsafe_buffer_pointer() == b.unsafe_buffer_pointer()


@in_worlds
def test_a_shard_of_wrong_shape_or_dtype_names_its_index():
    on = grid()
    last = on.local_devices[-1]
    wrong = get_shard_indices(GRID.shape, on, ["x", "y"])[last]
    box = f"[{wrong[0].start}:{wrong[0].stop}, {wrong[1].start}:{wrong[1].stop}]"
    named = re.escape(f"for index {box} = {wrong} on {last!r}, but")

    def one_off(value):
        return lambda index: value if index == wrong else GRID[index]

    if len(on.local_devices) == 1:  # nothing has another dtype than the first
        with pytest.raises(ShapeError, match=rf"shape \(2, 1\) {named} .* has shape \(8, 2\)"):
            from_callback(on, one_off(GRID))
        return

    for make in (from_callback, from_batched):
        with pytest.raises(
            ShapeError,
            match=rf"expected shard shape \(2, 1\) {named} .* returned has shape \(8, 2\)",
        ):
            make(on, one_off(GRID))
        with pytest.raises(
            ShardingError, match=f"expected dtype float64 {named} .* returned has dtype int16"
        ):
            make(on, one_off(np.zeros((2, 1), np.int16)))
        with pytest.raises(DtypeError, match=r"not a numeric dtype|expected an array"):
            make(on, one_off("text"))


def from_callback(on, callback, **given):
    return GlobalDeviceArray.from_callback(GRID.shape, on, ["x", "y"], callback, **given)


def from_batched(on, callback, **given):
    return GlobalDeviceArray.from_batched_callback(
        GRID.shape, on, ["x", "y"], lambda indices: [callback(i) for i in indices], **given
    )


@pytest.mark.parametrize("make", [from_callback, from_batched])
@in_worlds
def test_dtype_converts_within_a_kind(make):
    x = make(grid(), cut, dtype="float32")
    assert (x.dtype, x.local_data(0).dtype) == (np.float32, np.float32)
    y = make(grid(), lambda i: mnp.asarray(GRID[i]), dtype="float32")
    assert y.local_data(0).dtype == np.float32
    # NumPy takes None for float64, so that float64 is not the same as no dtype at all.
    wide = make(grid(), lambda i: cut(i).astype(np.float32), dtype="float64")
    assert (wide.dtype, wide.local_data(0).dtype) == (np.float64, np.float64)
    with pytest.raises(ShardingError, match=r"expected dtype int32 .* has dtype float64"):
        make(grid(), cut, dtype="int32")
    with pytest.raises(DtypeError, match="not a numeric dtype"):
        make(grid(), cut, dtype="datetime64[s]")


@in_worlds
def test_an_error_in_a_callback_comes_through():
    def callback(index):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        from_callback(grid(), callback)


@in_worlds
def test_a_callback_that_returns_what_other_processes_hold():
    on = grid()
    spread = meshard.device_put(GRID, NamedSharding(on, P("x")))
    if spread.is_fully_addressable:
        x = GlobalDeviceArray.from_callback(GRID.shape, on, [], lambda index: spread)
        np.testing.assert_array_equal(x.local_data(3), GRID)
    else:
        with pytest.raises(NotAddressableError, match="spans processes"):
            GlobalDeviceArray.from_callback(GRID.shape, on, [], lambda index: spread)
    same = meshard.device_put(GRID, NamedSharding(on, P()))
    x = GlobalDeviceArray.from_callback(GRID.shape, on, [], lambda index: same)
    np.testing.assert_array_equal(x.local_data(-1), GRID)


@in_worlds
def test_the_batched_callback_is_called_once():
    on, asked = grid(), []

    def callback(indices):
        asked.append(list(indices))
        indices.clear()
        return (GRID[i] for i in asked[-1])

    x = GlobalDeviceArray.from_batched_callback(GRID.shape, on, ["y"], callback)
    indices = get_shard_indices(GRID.shape, on, ["y"])
    assert asked == [[indices[d] for d in on.local_devices]]
    np.testing.assert_array_equal(whole(x.to_array()), GRID)


@in_worlds
def test_the_batched_callback_returns_an_array_for_each_index():
    on = grid()
    count = len(on.local_devices)
    for more in (-1, 1):
        with pytest.raises(
            ShardingError, match=f"returned {count + more} arrays for {count} indices. It must ret"
        ):
            GlobalDeviceArray.from_batched_callback(
                GRID.shape, on, ["x"], lambda indices, n=more: [GRID[:2]] * (len(indices) + n)
            )
    for wrong in (3, None, "text", {0: GRID}):
        with pytest.raises(ArgumentError, match=f"returned a {type(wrong).__name__}; it must ret"):
            GlobalDeviceArray.from_batched_callback(GRID.shape, on, ["x"], lambda _, w=wrong: w)


def on_devices(places):
    return [meshard.device_put(GRID[index], d) for index, group in places for d in group]


@pytest.mark.parametrize("axes", [["x"], ["y"], [None, "y"], [], [("y", "x")]])
@in_worlds
def test_equal_indices_come_with_all_their_devices(axes):
    for on in (grid(), shuffled()):
        asked, given = [], []

        def callback(places, asked=asked, given=given):
            asked.append(places)
            given.extend(on_devices(places))
            return given

        x = GlobalDeviceArray.from_batched_callback_with_devices(GRID.shape, on, axes, callback)
        (places,) = asked
        indices = get_shard_indices(GRID.shape, on, axes)
        expected: list[tuple[Any, list[Any]]] = []
        for device in on.local_devices:
            for index, group in expected:
                if index == indices[device]:
                    group.append(device)
                    break
            else:
                expected.append((indices[device], [device]))
        assert places == [(index, tuple(group)) for index, group in expected]
        assert {id(s.data) for s in x.local_shards} == {*map(id, given)}
        np.testing.assert_array_equal(whole(x.to_array()), GRID)


def with_devices(on, callback, axes=("x",), **given):
    return GlobalDeviceArray.from_batched_callback_with_devices(
        GRID.shape, on, axes, callback, **given
    )


@in_worlds
def test_arrays_for_devices_are_as_many_and_where_they_should_be():
    on = grid()
    count = len(on.local_devices)
    held = len({d.id // 2 for d in on.local_devices})
    said = f"returned {held} arrays for {count} devices, which hold {held} indices"
    if count > held:
        with pytest.raises(ShardingError, match=said):
            with_devices(on, lambda places: [meshard.device_put(GRID[i], g[0]) for i, g in places])
    said = (
        r"array 0 of what data_callback returned is on CpuDevice\(id=\d\), but should be "
        r"on CpuDevice\(id=\d\): the arrays must come in the order in which data_callback was giv"
    )
    if count > 1:
        with pytest.raises(ShardingError, match=said):
            with_devices(on, lambda places: on_devices(places)[::-1])
    with pytest.raises(
        ArgumentError, match=r"array 0 of .* is a ndarray, not an Array on CpuDevic"
    ):
        with_devices(on, lambda places: [GRID[i] for i, group in places for _ in group])
    with pytest.raises(ArgumentError, match="data_callback returned a NoneType"):
        with_devices(on, lambda places: None)
    with pytest.raises(ShapeError, match=r"expected shard shape \(2, 2\) for index \["):
        with_devices(on, lambda p: [meshard.device_put(GRID, d) for _, group in p for d in group])

    def mixed(places):
        *first, last = on_devices(places)
        return [*first, last.astype("int32")]

    if count > 1:
        with pytest.raises(ShardingError, match=r"expected dtype float64 for index .* dtype int32"):
            with_devices(on, mixed)


# where shards lie

ASKING = [get_shard_indices, get_shard_indices_replica_ids, get_shard_shape]
MAKING = [
    lambda *where: GlobalDeviceArray(*where, []),
    lambda *where: GlobalDeviceArray.from_callback(*where, cut),
    lambda *where: GlobalDeviceArray.from_batched_callback(*where, cut),
    lambda *where: GlobalDeviceArray.from_batched_callback_with_devices(*where, on_devices),
]


@in_worlds
def test_where_shards_lie_is_worked_out_once_and_cannot_be_changed():
    for ask in ASKING:
        assert ask((8, 2), grid(), ["x"]) is ask([8, 2], grid(), P("x"))
    places = get_shard_indices((8, 2), grid(), ["x"])
    with pytest.raises(TypeError):
        places[meshard.devices()[0]] = ()  # type: ignore[index]
    both = get_shard_indices_replica_ids((8, 2), grid(), ["x"])
    assert {d: index for d, (index, _) in both.items()} == places
    assert places == NamedSharding(grid(), P("x")).devices_indices_map((8, 2))


@in_worlds
def test_replica_ids_count_in_mesh_order():
    on = shuffled()
    both = get_shard_indices_replica_ids((8, 2), on, ["y"])
    assert list(both) == list(on.flat_devices)
    assert [r for _, r in both.values()] == [0, 0, 1, 1, 2, 2, 3, 3]
    cube = grid((2, 2, 2), ("x", "y", "z"))
    both = get_shard_indices_replica_ids((8, 4, 2), cube, ["z"])
    assert [r for _, r in both.values()] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert get_shard_shape((8, 4, 2), cube, [("x", "y"), "z"]) == (2, 2, 2)


@in_worlds
def test_arrays_without_dims_or_elements():
    line = Mesh(meshard.devices(), "x")
    x = GlobalDeviceArray.from_callback((), line, [], lambda index: 3.0)
    assert (x.ndim, x.size, x.is_fully_replicated) == (0, 1, True)
    assert [s.replica_id for s in x.global_shards] == list(range(8))
    assert float(x.to_array()) == 3
    for axes in ([None], ["x"]):
        x = GlobalDeviceArray.from_callback((0,), line, axes, lambda index: np.zeros(0))
        assert [s.replica_id for s in x.global_shards] == list(range(8))
        assert (x.size, get_shard_shape((0,), line, axes)) == (0, (0,))
        assert x.is_fully_replicated
        assert x.to_array().shape == (0,)


@pytest.mark.parametrize("use", ASKING + MAKING)
@in_worlds
def test_axes_that_cannot_lay_out_the_shape_are_refused(use):
    on = grid()
    with pytest.raises(
        SpecError,
        match=r"mesh_axes \['z'\] cannot lay out global_shape \(8, 2\) over global_mesh Mesh\('x': "
        r"4, 'y': 2\).* axis 'z' .* not found in mesh .* its axes are \('x', 'y'\)",
    ):
        use((8, 2), on, ["z"])
    for axes in (["x", "x"], P("x", "x"), [("y", "x", "y")]):
        with pytest.raises(
            SpecError, match=r"has duplicate entries for axis '[xy]'; a mesh axis can"
        ):
            use((8, 2), on, axes)
    with pytest.raises(
        SpecError, match=r"arrays of rank at least 2, but the shape is \(8,\), of ra"
    ):
        use((8,), on, ["x", None])
    with pytest.raises(
        IndivisibleError,
        match=r"dimension 0 should be divisible by 8, but it is equal to 4 \(full shape: \(4, 2\)\)"
        ".*The shards of a GlobalDeviceArray have one shape",
    ):
        use((4, 2), on, [("x", "y")])
    with pytest.raises(
        SpecError, match=r"each entry must be None, an axis name or a tuple .* is 3 of type"
    ):
        use((8, 2), on, [3])
    for axes in ("x", None, 3):
        with pytest.raises(
            ArgumentError, match=r"mesh_axes is .* it must be a PartitionSpec, or a l"
        ):
            use((8, 2), on, axes)
    with pytest.raises(ArgumentError, match=r"Write P\('x'\)"):
        use((8, 2), on, "x")
    with pytest.raises(ArgumentError, match=r"global_mesh must be a Mesh, got .* of type dict"):
        use((8, 2), {"x": 4}, ["x"])
    with pytest.raises(ShapeError, match=r"global_shape: \(8, -2\) is not a shape"):
        use((8, -2), on, [])


# a process that has no part


def test_a_process_without_devices_of_the_mesh():
    def body():
        on = grid((2, 2))  # all devices of process 0
        if meshard.process_index() == 0:
            x = made(["x"], on)
            assert len(x.local_shards) == 4
        else:
            law = "process 1 has no device of .*, so that no shard gives the dtype; pass dtype="
            calls: list[Any] = []
            for make in (
                lambda **given: GlobalDeviceArray(GRID.shape, on, ["x"], [], **given),
                lambda **given: from_callback(on, calls.append, **given),
                lambda **given: from_batched(on, cut, **given),
                lambda **given: with_devices(on, lambda places: [], **given),
            ):
                with pytest.raises(ArgumentError, match=law):
                    make()
                x = make(dtype="float64")
                assert (x.local_shards, x.dtype) == ([], np.float64)
                assert [s.data for s in x.global_shards] == [None] * 4
            assert not calls
        assert not x.is_fully_replicated
        y = meshard.device_put(x.to_array(), NamedSharding(grid(), P()))
        np.testing.assert_array_equal(whole(y), GRID)

    simulate(2, 4, body, deadline=30)


# to and from Array


@pytest.mark.parametrize("axes", [P("x"), ["y", "x"], [], [("y", "x")]])
@in_worlds
def test_to_array_and_back_copies_nothing(axes):
    on = grid((2, 4)) if axes == ["y", "x"] else grid()
    x = GlobalDeviceArray.from_callback((8, 8), on, axes, lambda index: ROWS[index])
    y = x.to_array()
    spec = P(*axes)
    assert (y.shape, y.sharding, y.committed) == ((8, 8), NamedSharding(on, spec), True)
    np.testing.assert_array_equal(whole(y), ROWS)
    by_device = {s.device: s for s in x.local_shards}
    for shard in y.addressable_shards:
        same = by_device[shard.device]
        assert (same.index, same.replica_id) == (shard.index, shard.replica_id)
        if shard.replica_id == 0:
            assert address(same) == address(shard)
    z = GlobalDeviceArray.from_array(y)
    assert (z.shape, z.dtype, z.mesh, z.mesh_axes) == (y.shape, y.dtype, on, spec)
    assert [*map(address, z.local_shards)] == [*map(address, y.addressable_shards)]
    assert z.to_array().sharding == y.sharding
    y.delete()
    np.testing.assert_array_equal(whole(z.to_array()), ROWS)
    with pytest.raises(DeletedArrayError, match="has been deleted"):
        GlobalDeviceArray.from_array(y)


ROWS = np.arange(64.0).reshape(8, 8)


def address(shard: Shard) -> int:
    return shard.data.unsafe_buffer_pointer()


@in_worlds
def test_a_program_takes_it_as_an_array_and_gives_it_back():
    x = made(["x", "y"])
    y = GlobalDeviceArray.from_array(mnp.tanh(x.to_array()) @ mnp.ones((2, 2)))
    np.testing.assert_allclose(whole(y.to_array()), np.tanh(GRID) @ np.ones((2, 2)))


@in_worlds
def test_memory_kinds_survive():
    host = NamedSharding(grid(), P("x"), memory_kind="pinned_host")
    x = GlobalDeviceArray.from_array(meshard.device_put(GRID, host))
    assert copy.copy(x).to_array().sharding == host


@in_worlds
def test_arrays_that_do_not_lie_evenly_on_a_mesh_are_refused():
    convert, on = GlobalDeviceArray.from_array, grid()
    with pytest.raises(ArgumentError, match=r"expected an Array, got a ndarray. Lay it out first"):
        convert(GRID)
    boxed = BoxSharding((8, 2), dict.fromkeys(meshard.devices(), (slice(0, 8), slice(0, 2))))
    for other in (meshard.local_devices()[0], boxed):
        with pytest.raises(
            ShardingError, match=r"needs a mesh, but the array's sharding is .* Wri"
        ):
            convert(meshard.device_put(GRID, other))
    uneven = NamedSharding(on, P("x"), uneven=((0, 1, 4, 6, 8),))
    with pytest.raises(ShardingError, match=r"one shape, here \(2, 2\), but .* cuts it unevenly"):
        convert(meshard.device_put(GRID, uneven))
    balanced = NamedSharding(on, P("x"), uneven="balanced")
    with pytest.raises(
        IndivisibleError, match=r"dimension 0 should be divisible by 4.* equal to 7"
    ):
        convert(meshard.device_put(GRID[:7], balanced))
    assert convert(meshard.device_put(GRID, balanced)).to_array().sharding == balanced


# the setting and the doors


def test_the_setting_is_read_from_the_environment():
    script = "import meshard; print(meshard.config.read('parallel_functions_output_gda'))"
    for given, expected in (("", "False"), ("1", "True"), ("true", "True"), ("FALSE", "False")):
        done = run(script, given)
        assert (done.stdout, done.stderr) == (f"{expected}\n", "")
    done = run(script, "yes")
    assert "parallel_functions_output_gda must be True or False" in done.stderr
    assert "not 'yes'" in done.stderr


def run(script: str, given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "MESHARD_PARALLEL_FUNCTIONS_OUTPUT_GDA": given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_also_lies_where_jax_had_it():
    from meshard.experimental import global_device_array as old

    assert [getattr(old, name) is getattr(meshard.gda, name) for name in old.__all__] == [True] * 5
