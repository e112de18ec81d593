import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.sharding import BoxSharding, NamedSharding
from meshard.errors import CoverageError, ShapeError, ShardingError
from meshard.testing.strategies import box_shardings, placed_shapes
from meshard.testing.virtual import virtual_devices

DEVICES = virtual_devices(8)
HALVES = BoxSharding((4,), {DEVICES[1]: (slice(0, 1),), DEVICES[0]: (slice(1, 4),)})


def boxes(*given: object) -> dict[Device, object]:
    return dict(zip(DEVICES, given, strict=False))


def test_boxes_are_a_sharding():
    assert HALVES.device_set == {DEVICES[0], DEVICES[1]}
    assert HALVES.device_order == (DEVICES[1], DEVICES[0])
    assert HALVES.num_devices == 2
    assert not HALVES.is_fully_replicated
    assert HALVES.memory_kind == "device"
    assert HALVES.with_memory_kind("device") is HALVES
    assert list(HALVES.devices_indices_map((4,)).items()) == [
        (DEVICES[1], (slice(0, 1),)),
        (DEVICES[0], (slice(1, 4),)),
    ]
    assert HALVES.shard_shape([4]) == (3,)
    assert HALVES.layout((4,)).tensor.tolist() == [[1], [0]]


def test_boxes_are_given_as_slices_or_boxes():
    a = BoxSharding((4, 2), boxes((slice(-2, None), slice(None)), (slice(None, -2), slice(0, 2))))
    b = BoxSharding((4, 2), boxes(Box((2, 0), (4, 2)), [slice(np.int64(0), np.int64(2)), slice(2)]))
    assert a == b
    assert hash(a) == hash(b)
    assert repr(a) == repr(b)
    assert "VirtualDevice(id=1): [0:2, 0:2]" in repr(b)


def test_replicas_are_seen():
    assert BoxSharding((4,), boxes((slice(None),), Box((0,), (4,)))).is_fully_replicated
    assert BoxSharding((), boxes((), ())).is_fully_replicated


@given(placed_shapes(min_size=1, uneven=(None, "balanced", "ceil")))
def test_the_product_form_is_found_where_there_is_one(placed):
    sharding, shape = placed
    layout = sharding.layout(shape)
    found = BoxSharding(shape, sharding.devices_indices_map(shape)).layout(shape)
    if all(b.volume for b in layout.boxes):
        assert found == layout


@given(st.data(), st.lists(st.integers(0, 5), max_size=3).map(tuple))
def test_any_boxes_hold_every_element(data, shape):
    sharding = data.draw(box_shardings(shape))
    layout = sharding.layout(shape)
    held = np.zeros(shape, int)
    for index in sharding.devices_indices_map(shape).values():
        held[index] += 1
    assert (held > 0).all()
    for device, index in sharding.devices_indices_map(shape).items():
        piece = layout.piece_of[device.id]
        assert layout.box(piece).slices == index
        assert device.id in layout.holders(piece)
        lengths = zip(np.zeros(shape)[index].shape, sharding.shard_shape(shape), strict=True)
        assert all(n <= most for n, most in lengths)
    assert layout.device_ids == {d.id for d in sharding.device_set}
    if layout.regular and held.size:
        assert (held == layout.replicas).all()


def test_equality_is_by_shape_boxes_and_order():
    again = BoxSharding((4,), {DEVICES[1]: (slice(0, 1),), DEVICES[0]: (slice(1, 4),)})
    assert again == HALVES
    assert hash(HALVES) == hash(again)
    turned = BoxSharding((4,), {DEVICES[0]: (slice(1, 4),), DEVICES[1]: (slice(0, 1),)})
    for other in (turned, BoxSharding((4,), boxes((slice(None),))), "boxes"):
        assert other != HALVES
    assert HALVES.is_equivalent_to(again, 1)
    assert not HALVES.is_equivalent_to(turned, 1)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_a_copy_is_equal(again):
    assert again(HALVES) == HALVES
    assert hash(again(HALVES)) == hash(HALVES)
    assert again(HALVES).layout((4,)) == HALVES.layout((4,))


def test_many_boxes_print_short():
    many = BoxSharding((8,), boxes(*[(slice(i, i + 1),) for i in range(8)]))
    assert repr(many).endswith("VirtualDevice(id=3): [3:4], ... 4 more})")
    assert repr(HALVES) == (
        "BoxSharding((4,), {VirtualDevice(id=1): [0:1], VirtualDevice(id=0): [1:4]})"
    )


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        ((4,), {}, "no boxes were given"),
        ((4,), {0: (slice(None),)}, "0 is not a Device"),
        ((4,), boxes((slice(None),) * 2), r"VirtualDevice\(id=0\) has 2 dims, .* has 1"),
        ((4, 4), boxes(Box((0,), (4,))), r"has 1 dims, the shape \(4, 4\) has 2"),
        ((4,), boxes((slice(0, 4, 2),)), r"slice\(0, 4, 2\), which is not a slice of step 1"),
        ((4,), boxes((2,)), "holds 2, which is not a slice of step 1"),
        ((4,), boxes((slice(0, 5),)), r"the box \[0:5\] of .* does not fit the shape \(4,\)"),
        ((4,), boxes((slice(5, None),)), r"the box \[5:\] of VirtualDevice\(id=0\) does not fit"),
        ((4,), boxes(Box((-1,), (3,))), r"the box \[-1:3\] of .*: it reaches outside"),
        ((4,), boxes(Box((3,), (1,))), r"the box \[3:1\] of .* or stops before it starts"),
        (
            (4,),
            {Device(0, 0): (slice(None),), Device(0, 1): (slice(None),)},
            "two of the devices have the same id",
        ),
    ],
)
def test_boxes_that_do_not_fit_are_refused(shape, given, message):
    with pytest.raises(ShardingError, match=message):
        BoxSharding(shape, given)


def test_a_gap_is_refused_with_the_gap():
    with pytest.raises(CoverageError, match=r"no device holds \[1:2, 0:3\] of .* \(2, 3\)"):
        BoxSharding((2, 3), boxes((slice(0, 1), slice(None))))


def test_boxes_lay_out_their_own_shape_only():
    with pytest.raises(ShapeError, match=r"shape \(4,\), and cannot lay out one of shape \(8,\)"):
        HALVES.layout((8,))


def test_named_and_boxed_are_not_equal():
    assert not isinstance(HALVES, NamedSharding)
    assert BoxSharding((4,), boxes((slice(None),))) != object()
