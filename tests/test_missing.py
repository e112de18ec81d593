"""What arrays have lost, and moving what is left."""

import random

import numpy as np
import pytest

import meshard
from meshard.errors import ArgumentError, DataLoss
from meshard.runtime import agree
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P
from tests.losing import box_mask, held_mask, lose, random_sharding
from tests.worlds import alone

SHAPE = (12, 10)
VALUE = np.arange(120.0).reshape(SHAPE)


def rows(devices):
    grid = np.empty(len(devices), object)
    grid[:] = devices
    return NamedSharding(Mesh(grid, ("x",)), P("x"), uneven="balanced")


def local_parts(x, value):
    """Compare what this process holds with the same boxes of a value."""
    for shard in x.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), value[shard.index])


@pytest.mark.parametrize("seed", range(40))
def test_what_is_missing_is_what_nobody_holds_by_count(seed):
    def program():
        pick = random.Random(seed)
        world = here()
        before = random_sharding(pick, SHAPE, world.devices)
        dead = pick.sample(range(1, 4), pick.randint(0, 2))
        x = meshard.device_put(VALUE, before)
        assert x.is_complete
        assert x.missing == ()
        if not lose(*dead):
            return None
        alive = [d.id for d in world.devices]
        expected = ~held_mask(before, SHAPE, alive)
        assert np.array_equal(box_mask(SHAPE, x.missing), expected)
        assert x.is_complete == (not expected.any())
        after = random_sharding(pick, SHAPE, world.devices)
        if expected.any():
            with pytest.raises(DataLoss, match="x: No live device holds") as error:
                meshard.reshard(x, after)
            assert error.value.by_name["x"] == x.missing == error.value.boxes
            return False
        with meshard.debug.ledger() as log:
            y = meshard.reshard(x, after)
        local_parts(y, VALUE)
        assert y.is_complete
        return log.received

    found = [r for r in simulate(4, 2, program) if r is not None]
    assert all(r == found[0] for r in found)


@pytest.mark.parametrize("seed", range(20))
def test_devices_that_are_said_to_be_dead_are_not_read(seed):
    pick = random.Random(seed)

    def program():
        devices = meshard.devices()
        before, after = (random_sharding(pick, SHAPE, devices) for _ in range(2))
        alive = pick.sample(range(8), pick.randint(1, 8))
        x = meshard.device_put(VALUE, before)
        lost = ~held_mask(before, SHAPE, alive)
        if not lost.any():
            y = meshard.reshard({"w": x}, after, alive=alive)["w"]
            assert np.array_equal(np.asarray(y), VALUE)
            ((_, z),) = meshard.resharding.reshard_iter({"w": x}, after, alive=alive)
            assert np.array_equal(np.asarray(z), VALUE)
            assert meshard.plan_reshard(x, after, alive=alive).check()
            return
        with pytest.raises(DataLoss, match=r"reshard: w: No live device holds .* has moved") as e:
            meshard.reshard({"w": x}, after, alive=[devices[i] for i in alive])
        assert np.array_equal(box_mask(SHAPE, e.value.by_name["w"]), lost)
        assert x.is_complete  # nobody has died: it was only said so

    alone(program)


def test_what_only_dead_devices_held_is_refused_for_a_map_too():
    def program():
        x = meshard.device_put(VALUE, rows(meshard.devices()))
        whole = NamedSharding(Mesh(np.array(meshard.devices()), ("x",)), P())
        keep = meshard.checkpoint.KeyMap([{"rename": "w", "to": "v"}])
        assert meshard.reshard({"w": x}, whole, map=keep, alive=range(8))["v"].shape == SHAPE
        with pytest.raises(DataLoss, match=r"holds \[0:2, 0:10\]"):
            meshard.reshard({"w": x}, whole, map=keep, alive=range(1, 8))

    alone(program)


def test_alive_must_be_devices():
    def program():
        with pytest.raises(ArgumentError, match="alive"):
            meshard.reshard(meshard.numpy.ones(4), meshard.devices()[0], alive=["cpu:0"])

    alone(program)


def test_a_whole_world_looks_at_a_type_once(monkeypatch):
    looked = []
    real = agree.lost_boxes
    monkeypatch.setattr(agree, "lost_boxes", lambda *a: looked.append(a) or real(*a))

    def program():
        x = meshard.device_put(VALUE, rows(meshard.devices()))
        for _ in range(50):
            assert x.is_complete
            assert x.missing == ()
        assert not looked
        here().take_part(())
        assert len(x.missing) == 8
        assert not x.is_complete
        assert len(looked) == 1

    alone(program)


def test_the_plan_of_what_is_left_needs_no_list():
    def program():
        world = here()
        pairs = NamedSharding(Mesh(np.array(world.devices).reshape(2, 4), ("r", "x")), P("x"))
        x = meshard.device_put(VALUE[:8], pairs)
        if not lose(3):
            return None
        plan = meshard.plan_reshard(x, rows(world.devices))
        assert plan.alive == tuple(range(6))
        y = plan.run(x)
        local_parts(y, VALUE[:8])
        return plan.bytes_moved, plan.lower_bound_bytes

    found = [r for r in simulate(4, 2, program) if r is not None]
    assert len(found) == 3
    assert found[0][0] == found[0][1]
