import copy
import pickle
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given

from meshard.algebra.abstract import MEMORY_KINDS, Sharding
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.world import World, entered
from meshard.errors import ArgumentError, CoverageError, ShardingError
from meshard.testing.strategies import placed_shapes
from meshard.testing.virtual import virtual_devices

DEVICES = virtual_devices(8)


class Custom(Sharding):
    """All that a user has to write."""

    def __init__(self, indices: Mapping[Device, Index | None]) -> None:
        self.indices = dict(indices)

    @property
    def device_set(self) -> set[Device]:
        return set(self.indices)

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index | None]:
        return self.indices


class Ordered(Custom):
    """One that also says in which order replicas are counted."""

    @property
    def device_order(self) -> tuple[Device, ...]:
        return tuple(self.indices)


def custom(*indices: Index | None) -> Custom:
    return Custom(dict(zip(DEVICES, indices, strict=False)))


def test_a_sharding_needs_both_methods():
    with pytest.raises(TypeError, match="abstract"):
        Sharding()


def test_the_rest_follows():
    halves = custom((slice(None), slice(0, 2)), (slice(0, 3), slice(2, None)))
    assert halves.num_devices == 2
    assert halves.device_order == tuple(DEVICES[:2])
    assert halves.memory_kind == "device"
    assert not halves.is_fully_replicated
    assert halves.shard_shape((3, 4)) == (3, 2)
    assert halves.layout((3, 4)).cuts == ((0, 3), (0, 2, 4))
    assert halves.layout((3, 4)) is halves.layout((3, 4))


def test_slices_are_read_as_numpy_reads_them():
    odd = custom((slice(-2, None),), (slice(None, -2),), (slice(4, 99),), (slice(3, 1),))
    layout = odd.layout((6,))
    boxes = [layout.box(layout.piece_of[i]) for i in range(4)]
    assert boxes == [Box((4,), (6,)), Box((0,), (4,)), Box((4,), (6,)), Box((3,), (3,))]


def test_one_device_is_fully_replicated():
    assert custom((slice(None),)).is_fully_replicated


def test_addressable_is_what_this_process_owns():
    devices = [Device(i, i // 2) for i in range(4)]
    sharding = Custom({d: (slice(d.id, d.id + 1),) for d in devices})
    with entered(World(1, 2, devices)):
        assert sharding.addressable_devices == set(devices[2:])
        assert not sharding.is_fully_addressable
        own = sharding.addressable_devices_indices_map((4,))
        assert list(own.items()) == [(devices[2], (slice(2, 3),)), (devices[3], (slice(3, 4),))]
        assert Custom({devices[3]: (slice(None),)}).is_fully_addressable


@given(placed_shapes(min_size=1, uneven=(None, "balanced")))
def test_a_custom_sharding_with_the_indices_of_another_has_its_layout(placed):
    sharding, shape = placed
    layout = sharding.layout(shape)
    same = Ordered(sharding.devices_indices_map(shape))
    if min(layout.largest_piece, default=1) and all(b.volume for b in layout.boxes):
        assert same.layout(shape) == layout
        assert hash(same.layout(shape)) == hash(layout)
    assert same.shard_shape(shape) == sharding.shard_shape(shape)
    boxes = {d: same.layout(shape).box(same.layout(shape).piece_of[d.id]) for d in same.device_set}
    assert boxes == {d: layout.box(layout.piece_of[d.id]) for d in same.device_set}


def test_equivalence_is_known_of_equal_ones_and_of_one_device():
    halves = custom((slice(0, 2),), (slice(2, 4),))
    again = custom((slice(0, 2),), (slice(2, 4),))
    assert halves.is_equivalent_to(halves, 1)
    assert not halves.is_equivalent_to(again, 1)
    assert custom((slice(None),)).is_equivalent_to(SingleDeviceSharding(DEVICES[0]), 1)
    assert not custom((slice(None),)).is_equivalent_to(SingleDeviceSharding(DEVICES[1]), 1)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ((None,), r"gives no index for VirtualDevice\(id=0\) and shape \(4,\)"),
        (((),), r"Custom: the box of VirtualDevice\(id=0\) has 0 dims, the shape \(4,\) has 1"),
        (((slice(None),) * 2,), r"has 2 dims, the shape \(4,\) has 1"),
        (((slice(None), 1)[1:],), "holds 1, which is not a slice of step 1"),
        (((slice(0, 4, 2),),), r"holds slice\(0, 4, 2\), which is not a slice of step 1"),
        (((slice(None, None, -1),),), r"holds slice\(None, None, -1\), which is not a slice"),
    ],
)
def test_indices_that_are_no_boxes_are_refused(indices, message):
    with pytest.raises(ShardingError, match=message):
        custom(*indices).layout((4,))


def test_a_device_without_an_index_is_refused():
    class Forgetful(Custom):
        @property
        def device_set(self) -> set[Device]:
            return set(DEVICES[:2])

    with pytest.raises(ShardingError, match=r"gives no index for VirtualDevice\(id=1\)"):
        Forgetful({DEVICES[0]: (slice(None),)}).layout((4,))


def test_a_gap_is_refused():
    with pytest.raises(CoverageError, match=r"no device holds \[2:3\]"):
        custom((slice(0, 2),), (slice(3, 4),)).layout((4,))


def test_memory_kinds():
    sharding = custom((slice(None),))
    assert sharding.with_memory_kind("device") is sharding
    with pytest.raises(ArgumentError, match="Custom does not support memory_kind='pinned_host'"):
        sharding.with_memory_kind("pinned_host")
    with pytest.raises(ArgumentError, match="memory_kind='tape' is not one .*" + MEMORY_KINDS[2]):
        sharding.with_memory_kind("tape")


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_a_copy_lays_out_alike(again):
    halves = custom((slice(0, 2),), (slice(2, 4),))
    assert again(halves).layout((4,)) == halves.layout((4,))
    assert again(halves).layout((4,)) == halves.layout((4,))


def test_the_kept_layouts_do_not_grow_for_ever():
    sharding = SingleDeviceSharding(DEVICES[0])
    first = sharding.layout((0,))
    for n in range(200):
        sharding.layout((n,))
    assert len(sharding.__dict__["_layouts"]) < 100
    assert sharding.layout((0,)) == first


class Cleared(dict):
    """A memory that another thread clears right after each look into it."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found

    def get(self, key: object, default: object = None) -> object:
        found = super().get(key, default)
        self.clear()
        return found


def test_another_thread_may_clear_the_kept_layouts_at_any_time():
    """Simulated processes share shardings."""
    sharding = SingleDeviceSharding(DEVICES[0])
    layout = sharding.layout((3,))
    sharding.__dict__["_layouts"] = Cleared({(3,): layout})
    assert sharding.layout((3,)) is layout
    assert sharding.layout((3,)) == layout


def test_a_named_sharding_is_a_sharding():
    assert issubclass(NamedSharding, Sharding)
    assert np.prod(SingleDeviceSharding(DEVICES[0]).shard_shape((2, 3))) == 6
