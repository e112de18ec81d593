"""Bringing trees back: from replicas, from a checkpoint, or not at all, with the lost boxes."""

import random

import numpy as np
import pytest

import meshard
from meshard import checkpoint, elastic
from meshard.algebra.box import Box
from meshard.errors import CheckpointError, DataLoss, MissingFileError, TreeError
from meshard.runtime.settings import Table
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import virtual_devices
from tests.losing import box_mask, held_mask, lose, random_sharding
from tests.test_missing import local_parts, rows

HOSTS = [None, [0, 0, 1, 1], [0, 1, 1, 2]]
SHAPES = {"w": (12, 10), "b": (7,), "c": (3, 4, 5)}


def values():
    return {
        k: np.arange(float(np.prod(s))).reshape(s) + i for i, (k, s) in enumerate(SHAPES.items())
    }


def needs(before, after, shape, alive, after_process):
    """Count what each process lacks: elements of its new boxes that it did not hold."""
    total = 0
    for process in set(after_process.values()):
        mine = [d for d, p in after_process.items() if p == process]
        wanted = held_mask(after, shape, mine)
        has = held_mask(before, shape, [d for d in mine if d in alive])
        total += int((wanted & ~has).sum())
    return total


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_comes_back_with_the_same_bits_or_the_lost_boxes(seed, tmp_path):
    def program():
        pick = random.Random(seed)
        world, given = here(), values()
        before = {k: random_sharding(pick, s, world.devices) for k, s in SHAPES.items()}
        tree = {k: meshard.device_put(given[k], before[k]) for k in SHAPES}
        checkpoint.save(tmp_path / "all", {"state": {**tree, "step": 3}})
        dead = pick.sample(range(4), pick.randint(0, 2))
        if not lose(*dead):
            return None
        alive = {d.id: d.process_index for d in world.devices}
        after = {k: random_sharding(pick, s, world.devices) for k, s in SHAPES.items()}
        tree, after = {"state": {**tree, "step": 3}}, {"state": after}
        lost = {}
        for k, s in SHAPES.items():
            if (~(mask := held_mask(before[k], s, alive))).any():
                lost[f"state.{k}"] = ~mask
        plan = elastic.plan_restore(tree, after)
        assert plan.lost.keys() == lost.keys()
        for name, mask in lost.items():
            assert np.array_equal(box_mask(mask.shape, plan.lost[name]), mask)
        moved = sum(needs(before[k], after["state"][k], s, alive, alive) for k, s in SHAPES.items())
        if lost:
            with pytest.raises(DataLoss, match=r"elastic.restore: state") as error:
                elastic.restore(tree, after)
            assert error.value.by_name == plan.lost
        else:
            assert plan.bytes_moved == plan.bound == 8 * moved
        again = elastic.plan_restore(tree, after, tmp_path / "all")
        assert again.bytes_read == 8 * sum(int(m.sum()) for m in lost.values())
        assert again.bytes_moved == again.bound <= 8 * moved
        with meshard.debug.ledger() as log:
            found = elastic.restore(
                tree, after, tmp_path / "all", max_bytes=pick.choice([None, 256])
            )
        assert found["state"]["step"] == 3
        for k in SHAPES:
            local_parts(found["state"][k], given[k])
            assert found["state"][k].sharding == after["state"][k]
        return log.received, str(again)

    shared = Table(replicas=8 if seed % 2 else 1 << 20)
    told = simulate(4, 2, program, hosts=HOSTS[seed % 3], table=shared)
    found = [r for r in told if r is not None]
    assert all(r == found[0] for r in found)


def test_only_the_lost_boxes_are_read(tmp_path, monkeypatch):
    from meshard.weights.transfer import gather

    read = []
    real = gather.Gatherer.fill
    monkeypatch.setattr(
        gather.Gatherer, "fill", lambda s, r, box, out: (read.append(box), real(s, r, box, out))[1]
    )

    def program():
        world, x = here(), np.arange(48.0).reshape(8, 6)
        tree = {"x": meshard.device_put(x, rows(world.devices))}
        checkpoint.save(tmp_path / "run", tree, step=7)
        if not lose(2):
            return
        found = elastic.restore(tree, rows(world.devices), tmp_path / "run")
        local_parts(found["x"], x)

    simulate(4, 1, program)
    assert box_mask((8, 6), read).sum() == 12
    assert box_mask((8, 6), read)[4:6].all()


def test_what_many_need_is_read_by_all_of_them(tmp_path):
    def program():
        world, x = here(), np.arange(1 << 18).astype(np.float64)
        tree = {"x": meshard.device_put(x, rows(world.devices))}
        checkpoint.save(tmp_path / "c", tree)
        if not lose(1):
            return None
        whole = NamedSharding(Mesh(np.array(world.devices), ("x",)), P())
        plan = elastic.plan_restore(tree, whole, tmp_path / "c")
        found = elastic.restore(tree, whole, tmp_path / "c")
        assert np.array_equal(np.asarray(found["x"]), x)
        return plan.read, plan.bytes_read

    found = [r for r in simulate(4, 1, program) if r is not None]
    assert all(r == found[0] for r in found)
    read, total = found[0]
    assert total == 1 << 19
    assert max(read.values()) - min(read.values()) <= 8


def test_a_checkpoint_of_another_tree_is_refused_before_anything_is_read(tmp_path):
    device = meshard.devices()[0]
    x = meshard.device_put(np.ones((2, 3), np.float32), device)
    checkpoint.save(tmp_path / "c", {"w": x, "step": 1})
    with pytest.raises(
        CheckpointError, match=r"another tree: it does not hold 'v'. It holds 1 arr"
    ):
        elastic.restore({"v": x}, device, tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"'w' is float32\[2,3\] there, and float32\[3,2\]"):
        elastic.restore({"w": x.T}, device, tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"'w' is float32\[2,3\] there, and int32\[2,3\]"):
        elastic.restore({"w": x.astype("int32")}, device, tmp_path / "c")
    with pytest.raises(MissingFileError):
        elastic.restore({"w": x}, device, tmp_path / "nothing")


def test_refusals_name_the_leaf():
    x = meshard.device_put(np.ones((3, 3)), meshard.devices()[0])
    with pytest.raises(meshard.errors.ArgumentError, match=r"elastic.restore: a.b has no sharding"):
        elastic.restore({"a": {"b": x}}, None)
    with pytest.raises(TreeError, match=r"elastic.restore: the tree of shardings must be a prefix"):
        elastic.restore({"a": x}, {"c": meshard.devices()[0]})
    with pytest.raises(meshard.errors.ArgumentError, match="has no sharding"):
        elastic.plan_restore({"a": meshard.ShapeDtypeStruct((3,), "int8")}, meshard.devices()[0])
    with pytest.raises(
        meshard.errors.ArgumentError, match=r"restore: shardings of a: expected a S"
    ):
        elastic.restore({"a": x}, {"a": 3})
    with pytest.raises(TreeError, match=r"instance of list, got \{'a': float64\[3,3\], 's': 1\}"):
        elastic.restore({"a": x, "s": 1}, [meshard.devices()[0]])
    with pytest.raises(meshard.errors.ArgumentError, match=r"elastic.restore: checkpoint must be"):
        elastic.restore({"a": x}, meshard.devices()[0], 3)
    with pytest.raises(meshard.errors.ArgumentError, match=r"protect: a is Shape.* no sharding"):
        elastic.protect({"a": meshard.ShapeDtypeStruct((3,), "int8")})
    grid = Mesh(np.array(virtual_devices(2)), ("x",))
    with pytest.raises(meshard.errors.ShardingError, match=r"elastic.plan_restore: a: "):
        elastic.plan_restore({"a": x}, NamedSharding(grid, P("x")))


def test_tied_arrays_stay_one():
    device = meshard.devices()[0]
    x = meshard.device_put(np.ones(3), device)
    found = elastic.restore(
        {"a": x, "b": [x], "n": None, "name": "m"}, {"a": device, "b": device, "n": None}
    )
    assert found["a"] is found["b"][0]
    assert found["name"] == "m"
    assert found["n"] is None


def test_donors_share_the_work_and_the_plan_says_so():
    devices = virtual_devices(16, devices_per_process=1)
    mesh = Mesh(np.array(devices).reshape(4, 4), ("r", "x"))
    w = meshard.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, P("x")))
    alive = [d for d in devices if d.id not in (0, 5, 10, 15)]
    place = NamedSharding(Mesh(np.array(alive), ("x",)), P())
    plan = elastic.plan_restore({"w": w}, place, alive=alive)
    assert plan.lost == {}
    assert plan.bytes_moved == plan.bound == 12 * 64 * 64 * 3
    assert plan.balance <= 1.2
    text = str(plan)
    assert text.startswith("Safe: 1 array can be restored, and 147,456 bytes move\n")
    assert "147,456 bytes  1.00 x the least possible, 147,456 bytes from arrays" in text
    assert f"{plan.largest_sender_bytes:,}" in text
    assert plan.simulate("one process").bytes == plan.bytes_moved


def test_near_holders_give_before_far_ones():
    """Rows are on both hosts; the process that joins its host's layout gets them from there."""

    def program():
        world = here()
        value = np.arange(64.0).reshape(8, 8)
        grid = np.array(world.devices).reshape(2, 3)[::-1, :2]  # two of each host have all rows
        x = meshard.device_put(value, NamedSharding(Mesh(grid, ("host", "x")), P("x")))
        sent = []
        real = world.transport.exchange

        def counted(sends, receives):
            sent.extend((peer, sum(b.nbytes for b in blocks)) for peer, blocks in sends)
            real(sends, receives)

        world.transport.exchange = counted
        whole = NamedSharding(Mesh(np.array(world.devices), ("x",)), P())
        plan = elastic.plan_restore({"x": x}, whole)
        assert plan.bytes_moved == plan.bound == value.nbytes * 4
        assert plan.sent == {0: 512, 1: 512, 3: 512, 4: 512}
        found = elastic.restore({"x": x}, whole)["x"]
        assert np.array_equal(np.asarray(found), value)
        far = [n for peer, n in sent if world.hosts[peer] != world.hosts[world.process_index]]
        return sum(n for _, n in sent), sum(far)

    found = simulate(6, 1, program, hosts=[0, 0, 0, 1, 1, 1])
    assert found == [(512, 0), (512, 0), (0, 0), (512, 0), (512, 0), (0, 0)]


def test_plans_for_arrays_to_be_know_who_takes_part():
    def program():
        world = here()
        w = meshard.ShapeDtypeStruct((8,), "float32", sharding=rows(world.devices))
        if lose(3):
            plan = elastic.plan_restore({"w": w}, rows(world.devices))
            assert plan.lost == {"w": (Box((6,), (8,)),)}
            assert repr(plan) == "RestorePlan(1 array, 12 bytes moved, 1 of them with lost boxes)"

    simulate(4, 1, program)
