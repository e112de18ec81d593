"""The order of devices in which the most stays put."""

import numpy as np
import pytest

import meshard
from meshard.errors import ArgumentError
from meshard.resharding import best_device_order, plan_reshard, reshard
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding
from tests.worlds import everywhere, in_worlds, mesh, put, whole

GRID = np.arange(64.0).reshape(8, 8)


def test_a_rotation_is_undone() -> None:
    def body():
        devices = np.array(meshard.devices())
        x = meshard.device_put(GRID, NamedSharding(Mesh(devices, "x"), P("x")))
        turned = NamedSharding(Mesh(np.roll(devices, 3), "x"), P("x"))
        best = best_device_order(x, turned)
        moved = reshard(x, best)
        return [
            plan_reshard(x, turned).bytes_moved,
            plan_reshard(x, best).bytes_moved,
            list(best.mesh.device_ids.ravel()),
            whole(moved),
        ]

    far, near, order, value = everywhere(body)
    assert (far, near) == (GRID.nbytes, 0)
    assert order == list(range(8))
    assert (value == GRID).all()


@pytest.mark.parametrize("spec", [P("j", "i"), P(("j", "i")), P(None, "j"), P()])
def test_the_spec_and_the_devices_stay(spec) -> None:
    def body():
        x = put(GRID, "i", "j")
        wanted = NamedSharding(mesh(), spec)
        best = best_device_order([x, GRID, x[:1]], wanted)
        assert best.spec == spec
        assert best.mesh.axis_names == ("i", "j")
        assert best.device_set == wanted.device_set
        assert plan_reshard(x, best).bytes_moved <= plan_reshard(x, wanted).bytes_moved
        return whole(reshard(x, best))

    assert (everywhere(body) == GRID).all()


@in_worlds
def test_refusals() -> None:
    x = put(GRID, "i")
    with pytest.raises(ArgumentError, match="must be a NamedSharding"):
        best_device_order(x, SingleDeviceSharding(meshard.devices()[0]))
    with pytest.raises(ArgumentError, match="x holds no array that has a sharding"):
        best_device_order([1.0], NamedSharding(mesh(), P()))
