import copy
import gc
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra import sharding as module
from meshard.algebra.abstract import Sharding
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding, device_tensor
from meshard.algebra.spec import P
from meshard.algebra.world import World, entered
from meshard.errors import ArgumentError, IndivisibleError, ShardingError, SpecError
from meshard.testing.strategies import named_shardings, placed_shapes
from meshard.testing.virtual import virtual_devices

DEVICES = virtual_devices(8)
MESH = Mesh(np.array(DEVICES).reshape(4, 2), ("x", "y"))


def test_the_device_tensor_lists_the_holders():
    ids = np.arange(24).reshape(2, 3, 4)
    tensor = device_tensor(ids, ("x", "y", "z"), [("z", "x"), ()])
    assert tensor.shape == (8, 1, 3)
    for z in range(4):
        for x in range(2):
            assert tensor[z * 2 + x, 0].tolist() == ids[x, :, z].tolist()


def test_a_named_sharding_says_what_it_is():
    sharding = NamedSharding(MESH, P("x", None, ("y",)))
    assert sharding.mesh is MESH
    assert sharding.spec == P("x", None, "y")
    assert sharding.memory_kind == "device"
    assert sharding.uneven is None
    assert sharding.device_set == set(DEVICES)
    assert sharding.device_order == tuple(DEVICES)
    assert sharding.num_devices == 8
    assert sharding.shards(4) == (4, 1, 2, 1)
    assert sharding.replicated_axes == frozenset()
    assert NamedSharding(MESH, P("y")).replicated_axes == {"x"}
    assert repr(sharding) == (
        "NamedSharding(mesh=Mesh('x': 4, 'y': 2), spec=P('x', None, 'y'), memory_kind=device)"
    )
    assert repr(NamedSharding(MESH, P(), uneven="ceil")).endswith("uneven='ceil')")


def test_another_spec_or_memory_on_the_same_mesh():
    sharding = NamedSharding(MESH, P("x"), memory_kind="pinned_host", uneven="ceil")
    assert sharding.with_spec(P("y")) == NamedSharding(
        MESH, P("y"), memory_kind="pinned_host", uneven="ceil"
    )
    assert sharding.with_spec([None, "y"]).spec == P(None, "y")
    cut = NamedSharding(MESH, P("y"), uneven=((0, 1, 4),))
    assert cut.with_spec(P("x")).uneven is None
    host = cut.with_memory_kind("unpinned_host")
    assert (host.memory_kind, host.uneven) == ("unpinned_host", cut.uneven)
    assert not host.is_equivalent_to(cut, 1)


@given(placed_shapes(uneven=(None, "balanced", "ceil")))
def test_the_indices_are_those_of_the_layout(placed):
    sharding, shape = placed
    layout = sharding.layout(shape)
    indices = sharding.devices_indices_map(shape)
    assert tuple(indices) == sharding.device_order
    for device, index in indices.items():
        piece = layout.piece_of[device.id]
        assert np.zeros(shape)[index].shape == layout.box(piece).shape
        assert tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True)) == tuple(
            zip(layout.box(piece).starts, layout.box(piece).stops, strict=True)
        )
        assert [s == slice(None) for s in index] == [n == 1 for n in layout.grid]
    assert sharding.shard_shape(list(shape)) == layout.largest_piece
    assert sharding.is_fully_replicated == (layout.piece_count == 1)


def test_explicit_cuts():
    sharding = NamedSharding(MESH, P("y", "x"), uneven=[[0, 3, 5], None, None])
    assert sharding.uneven == ((0, 3, 5),)
    assert sharding.layout((5, 8)).cuts == ((0, 3, 5), (0, 2, 4, 6, 8))
    assert sharding.shard_shape((5, 8)) == (3, 2)
    same = NamedSharding(MESH, P("y"), uneven=(np.array([0, 0, 5]),))
    assert same.layout((5,)).cuts == ((0, 0, 5),)
    assert hash(same) == hash(NamedSharding(MESH, P("y"), uneven=((0, 0, 5),)))
    assert NamedSharding(MESH, P(), uneven=((0, 5),)).layout((5,)).cuts == ((0, 5),)
    assert NamedSharding(MESH, P(), uneven=()) == NamedSharding(MESH, P())


@pytest.mark.parametrize(
    ("uneven", "shape"),
    [
        (((0, 5),), (5,)),
        (((0, 2, 4),), (5,)),
        (((1, 2, 5),), (5,)),
        (((0, 6, 5),), (5,)),
        (((),), (5,)),
    ],
)
def test_cuts_that_do_not_fit_are_refused(uneven, shape):
    sharding = NamedSharding(MESH, P("y"), uneven=uneven)
    with pytest.raises(ShardingError, match="must be 3 numbers that rise from 0 to 5") as refused:
        sharding.layout(shape)
    assert f"the cuts {uneven[0]} of dim 0 do not cut its size 5 into 2 parts" in str(refused.value)


def test_cuts_of_more_dims_than_there_are_are_refused():
    sharding = NamedSharding(MESH, P("y"), uneven=(None, (0, 4)))
    with pytest.raises(ShardingError, match=r"the cuts of 2 dims, but the shape \(8,\) has 1"):
        sharding.shard_shape((8,))


@pytest.mark.parametrize(
    "uneven", ["even", 3, ("balanced",), ((0, 2.5, 5),), (3,), np.array([0, 1])], ids=str
)
def test_another_uneven_is_refused(uneven):
    with pytest.raises(
        ShardingError, match="is not None, 'balanced', 'ceil' or a tuple"
    ) as refused:
        NamedSharding(MESH, P("y"), uneven=uneven)
    assert f"uneven={uneven!r}" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((DEVICES, P()), {}, ShardingError, "mesh must be a Mesh, got .* of type list"),
        (
            (MESH, ("x",)),
            {},
            ShardingError,
            r"spec must be a PartitionSpec, got \(.x.,\) of type tuple.*P\(",
        ),
        ((P("x"), MESH), {}, ShardingError, r"mesh and spec are swapped.*NamedSharding\(mesh, P"),
        (
            (MESH, None),
            {},
            ShardingError,
            "spec must be a PartitionSpec, got None of type NoneType",
        ),
        (
            (MESH, P("q")),
            {},
            SpecError,
            r"axis 'q' of P\('q',\) is not found in mesh Mesh\('x': 4, 'y': 2\); "
            r"its axes are \('x', 'y'\)",
        ),
        ((MESH, P("x", "x")), {}, SpecError, "duplicate entries for axis 'x'"),
        ((MESH, P(("y", "y"))), {}, SpecError, "duplicate entries for axis 'y'"),
        ((MESH, P()), {"memory_kind": "tape"}, ArgumentError, "'tape' is not .* pinned_host"),
    ],
)
def test_a_named_sharding_that_means_nothing_is_refused(arguments, options, kind, message):
    with pytest.raises(kind, match=message) as refused:
        NamedSharding(*arguments, **options)
    assert isinstance(refused.value, ValueError)


def test_a_dim_that_does_not_divide_is_refused_with_the_way_out():
    with pytest.raises(IndivisibleError) as refused:
        NamedSharding(MESH, P(None, ("x", "y"))).shard_shape((3, 12))
    for part in (
        "splits dim 1 over ('x', 'y')",
        "the global size of its dimension 1 should be divisible by 8, but it is equal to 12",
        "(full shape: (3, 12))",
        "Pad the dim to 16",
        "uneven='balanced'",
    ):
        assert part in str(refused.value)
    partly = NamedSharding(MESH, P("y", "x"), uneven=((0, 1, 3),))
    with pytest.raises(IndivisibleError, match="dimension 1 should be divisible by 4"):
        partly.layout((3, 5))


def test_a_spec_longer_than_the_rank_is_refused():
    with pytest.raises(SpecError, match=r"only valid for arrays of rank at least 2, .* of rank 1"):
        NamedSharding(MESH, P(None, None)).layout((8,))


def test_equality():
    sharding = itself = NamedSharding(MESH, P("x"))
    assert sharding == itself
    again = NamedSharding(Mesh(MESH.devices, MESH.axis_names), P(("x",)))
    assert sharding == again
    assert hash(sharding) == hash(again)
    for other in (
        NamedSharding(MESH, P("x", None)),
        NamedSharding(MESH, P("x"), uneven="ceil"),
        NamedSharding(MESH, P("x"), memory_kind="pinned_host"),
        NamedSharding(Mesh(MESH.devices[::-1], ("x", "y")), P("x")),
        SingleDeviceSharding(DEVICES[0]),
        "x",
    ):
        assert sharding != other


@given(st.data(), st.integers(0, 3))
def test_equivalent_shardings_have_equal_layouts(data, ndim):
    """And the other way round, for a shape that every axis cuts and no two cut alike."""
    meshes = data.draw(st.permutations(DEVICES[:4]))
    one, two = (
        data.draw(named_shardings(ndim, devices=meshes, uneven=(None, "balanced", "ceil")))
        for _ in range(2)
    )
    shape = tuple(24 * (dim + 1) for dim in range(ndim))
    uneven = tuple(n + 1 for n in shape)
    alike = one.layout(shape) == two.layout(shape) and one.device_order == two.device_order
    assert one.is_equivalent_to(two, ndim) == two.is_equivalent_to(one, ndim)
    if one.is_equivalent_to(two, ndim):
        assert alike
        if one.uneven and two.uneven:
            assert one.layout(uneven) == two.layout(uneven)
    elif one.uneven == two.uneven:
        assert not alike


def test_equivalence_over_trailing_dims():
    assert NamedSharding(MESH, P("x", None)).is_equivalent_to(NamedSharding(MESH, P("x")), 1)
    longer = NamedSharding(MESH, P(None, "x"))
    assert longer.is_equivalent_to(NamedSharding(MESH, P(None, "x")), 1)
    assert not longer.is_equivalent_to(NamedSharding(MESH, P(None, "y")), 1)
    assert not longer.is_equivalent_to(NamedSharding(MESH, P()), 1)


def test_uneven_matters_where_something_is_split():
    ceil, balanced = (NamedSharding(MESH, P("x"), uneven=u) for u in ("ceil", "balanced"))
    assert not ceil.is_equivalent_to(balanced, 1)
    assert ceil.with_spec(P()).is_equivalent_to(balanced.with_spec(P()), 1)


def test_a_single_device_holds_the_whole():
    sharding = SingleDeviceSharding(DEVICES[2])
    assert sharding.device == DEVICES[2]
    assert sharding.device_set == {DEVICES[2]}
    assert sharding.device_order == (DEVICES[2],)
    assert sharding.is_fully_replicated
    assert sharding.devices_indices_map((2, 3)) == {DEVICES[2]: (slice(None), slice(None))}
    assert sharding.shard_shape((2, 3)) == (2, 3)
    assert repr(sharding) == (
        "SingleDeviceSharding(device=VirtualDevice(id=2), memory_kind=device)"
    )
    host = sharding.with_memory_kind("pinned_host")
    assert host == SingleDeviceSharding(DEVICES[2], memory_kind="pinned_host")
    assert host.memory_kind == "pinned_host"
    assert hash(sharding) == hash(SingleDeviceSharding(DEVICES[2]))
    assert sharding not in (host, SingleDeviceSharding(DEVICES[1]), "device")
    alone = NamedSharding(Mesh([DEVICES[2]], "x"), P("x"))
    assert sharding.is_equivalent_to(alone, 1)
    assert alone.is_equivalent_to(sharding, 1)
    assert sharding.layout((3,)) == alone.layout((3,))


def test_a_single_device_is_a_device():
    with pytest.raises(ShardingError, match="SingleDeviceSharding: 0 is not a Device"):
        SingleDeviceSharding(0)


def test_addressable_devices_of_several_processes():
    devices = virtual_devices(8, devices_per_process=2)
    sharding = NamedSharding(Mesh(np.array(devices).reshape(4, 2), ("x", "y")), P("x"))
    with entered(World(2, 4, devices)):
        assert sharding.addressable_devices == set(devices[4:6])
        assert not sharding.is_fully_addressable
        own = sharding.addressable_devices_indices_map((8,))
        assert own == {devices[4]: (slice(4, 6),), devices[5]: (slice(4, 6),)}


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
@pytest.mark.parametrize(
    "sharding",
    [
        NamedSharding(MESH, P("x", ("y",)), memory_kind="pinned_host", uneven="ceil"),
        NamedSharding(MESH, P(None, "y"), uneven=(None, (0, 1, 4))),
        SingleDeviceSharding(DEVICES[3], memory_kind="pinned_host"),
    ],
)
def test_a_copy_is_equal(sharding, again):
    sharding.layout((4, 4))
    assert again(sharding) == sharding
    assert hash(again(sharding)) == hash(sharding)
    assert again(sharding).layout((4, 4)) == sharding.layout((4, 4))


def test_the_shape_of_a_shard_needs_no_devices(monkeypatch):
    def touched(*_: object) -> None:
        raise AssertionError("a device was looked at")

    sharding = NamedSharding(MESH, P("x", "y"), uneven="balanced")
    monkeypatch.setattr(module, "device_tensor", touched)
    monkeypatch.setattr(Sharding, "layout", touched)
    monkeypatch.setattr(NamedSharding, "_layout", touched)
    assert sharding.shard_shape((10, 4, 3)) == (3, 2, 3)
    assert sharding.is_fully_replicated is False


def big(devices: int) -> NamedSharding:
    grid = np.empty(devices, object)
    grid[:] = [Device(i, platform="virtual") for i in range(devices)]
    side = int(devices**0.5)
    return NamedSharding(Mesh(grid.reshape(side, side // 2, 2), ("x", "y", "z")), P("x", "y"))


def test_many_devices_are_laid_out_in_time_that_grows_with_them():
    def seconds(devices: int) -> float:
        times = []
        for _ in range(5):
            sharding = big(devices)
            start = time.thread_time()
            indices = sharding.devices_indices_map((1 << 10, 1 << 9))
            times.append(time.thread_time() - start)
            assert len(indices) == devices
            last = sharding.device_order[-1]
            step = (1 << 10) // sharding.mesh.shape["x"]
            assert indices[last][0] == slice((1 << 10) - step, 1 << 10)
        return min(times)

    gc.collect()
    gc.disable()  # its work grows with all that other tests have left
    try:
        # Sixteen times as many; quadratic would be 256. A busy machine may need a second try.
        assert any(seconds(1 << 16) < 40 * seconds(1 << 12) for _ in range(3))
    finally:
        gc.enable()
