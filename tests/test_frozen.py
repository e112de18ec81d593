"""Meshes and shardings stay what they are, whatever is assigned to them."""

import numpy as np
import pytest

import meshard
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import P
from meshard.testing.virtual import virtual_devices

DEVICES = virtual_devices(4)
MESH = Mesh(np.array(DEVICES).reshape(2, 2), ("x", "y"))
VALUES = (
    MESH,
    NamedSharding(MESH, P("x")),
    SingleDeviceSharding(DEVICES[0]),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_no_attribute_can_be_set_or_deleted(value):
    before, number = repr(value), hash(value)
    for name in {*vars(value), "device_set", "shape", "size", "memory_kind", "note"}:
        with pytest.raises(AttributeError, match=f"{name} cannot be set.*device_put"):
            setattr(value, name, None)
        with pytest.raises(AttributeError, match=f"{name} cannot be deleted"):
            delattr(value, name)
    assert (repr(value), hash(value)) == (before, number)


def test_the_sizes_of_a_mesh_are_a_copy():
    MESH.shape["x"] = 3
    MESH.shape.clear()
    assert dict(MESH.shape) == {"x": 2, "y": 2}
    assert NamedSharding(MESH, P("x")).shard_shape((4,)) == (2,)
    with pytest.raises(ValueError, match="read-only"):
        MESH.device_ids[0] = 7


def test_sets_of_devices_are_copies():
    for value in VALUES[1:]:
        count = len(value.device_set)
        value.device_set.pop()
        value.addressable_devices.clear()
        assert len(value.device_set) == count


def test_taking_a_device_out_of_those_of_an_array_leaves_it_where_it_is():
    x = meshard.device_put(np.arange(4.0), NamedSharding(Mesh(meshard.devices()[:1], "x"), P("x")))
    assert x.devices().pop() == meshard.devices()[0]
    assert x.devices() == x.sharding.device_set == {meshard.devices()[0]}
