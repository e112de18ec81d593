"""Losses that have not happened: what is lost by count, and figures that noise cannot touch."""

import random
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import linprog

import meshard
from meshard import elastic
from meshard.algebra.device import Device
from meshard.errors import ArgumentError
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import virtual_devices
from tests.losing import box_mask, random_sharding


def place(devices):
    return NamedSharding(Mesh(np.array(devices), ("x",)), P("x"), uneven="balanced")


def struct(shape, sharding, dtype="float32"):
    return meshard.ShapeDtypeStruct(shape, dtype, sharding=sharding)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_lost_is_what_no_copy_of_is_left(seed):
    devices = virtual_devices(24, devices_per_process=2)
    tree = {"w": struct((240, 40), place(devices)), "b": struct((24,), place(devices[:6]))}
    found = elastic.simulate_loss(tree, place, 4, copies=1, seed=seed)
    assert len(found.dead) == 4
    owners = {d.id: d.process_index for d in devices}
    lost = 0
    for array in found.protected.arrays:
        has = np.zeros(array.own.shape, bool)
        for grid in (array.own, array.copies):
            for piece in range(grid.piece_count):
                if any(d >= 0 and owners[d] not in found.dead for d in grid.holders(piece)):
                    has[grid.box(piece).slices] = True
        assert np.array_equal(box_mask(has.shape, found.lost.get(array.name, ())), ~has)
        lost += 4 * int((~has).sum())
    assert found.lost_bytes == lost
    assert found.restored.bytes_moved == found.restored.bound
    verdict = f"Not safe: 4 of 12 processes die, and {lost:,} bytes are lost that nobody else has"
    safe = "Safe: 4 of 12 processes die, and nothing is lost"
    assert str(found).splitlines()[0] == (verdict if lost else safe)
    assert found.restored.unheld_bytes == lost
    assert f"4 of 12 processes die, {lost} bytes gone, RestorePlan(2 arrays" in repr(found)
    assert "1 copy apart by process, in 12 processes" in str(found.protected)
    assert repr(found.protected) == "ProtectPlan(2 arrays, 1 copy, 38496 bytes moved)"


def test_4096_devices_lose_some_at_random():
    devices = virtual_devices(4096, devices_per_process=8)
    mesh = Mesh(np.array(devices).reshape(64, 64), ("data", "model"))
    w = struct((8192, 8192), NamedSharding(mesh, P("data", "model")))
    replicated = struct((8192, 512), NamedSharding(mesh, P("model")))
    tree = {"w": w, "r": replicated}

    def on_grid(some):
        count = len(some) // 64 * 64
        grid = Mesh(np.array(some[:count]).reshape(-1, 64), ("data", "model"))
        return NamedSharding(grid, P("data", "model"), uneven="balanced")

    found = elastic.simulate_loss(
        tree, on_grid, 8, copies=1, apart="host", processes_per_host=2, topology="8-gpu hosts"
    )
    assert found.lost == {}
    plan = found.restored
    assert plan.bytes_lost == 8 * 8 * w.sharding.layout(w.shape).box(0).volume * 4
    assert plan.moved["copies"] > 0
    assert plan.bytes_moved == plan.bound
    assert 0 < found.time.seconds < 1
    assert found.protected.bytes_moved == 8192 * 8192 * 4  # what is replicated has enough
    most = found.protected.largest_memory_bytes
    assert most <= 1.2 * found.protected.memory_bytes / 512
    bare = elastic.simulate_loss(tree, on_grid, found.dead)
    assert bare.lost.keys() == {"w"}
    assert bare.lost_bytes == plan.bytes_lost


def test_refusals():
    devices = virtual_devices(4, devices_per_process=1)
    tree = {"w": struct((8,), place(devices))}
    with pytest.raises(ArgumentError, match=r"all 4 processes die; nobody is left"):
        elastic.simulate_loss(tree, place, 4)
    with pytest.raises(
        ArgumentError, match=r"copies=4 with apart='process' needs 5 processes, and there are 4"
    ):
        elastic.simulate_loss(tree, place, 1, copies=4)
    with pytest.raises(ArgumentError, match=r"deaths"):
        elastic.simulate_loss(tree, place, ["one"])
    with pytest.raises(ArgumentError, match=r"no array that is laid out"):
        elastic.simulate_loss({"n": 3}, place, 1)


def least_largest(plan):
    """Return the least that the largest sender can send, by linear programming."""
    sets = Counter()
    for array in plan.arrays:
        for hop in array.hops:
            holders, wanted = hop.before.holders.tolist(), hop.wanted.tolist()
            for row, count in zip(holders, wanted, strict=True):
                if count:
                    sets[tuple(sorted({u for u in row if u >= 0}))] += count * array.wanted.itemsize
    units = sorted({u for some in sets for u in some})
    pairs = [(i, u) for i, some in enumerate(sets) for u in some]
    if not pairs:
        return 0
    most = np.zeros((len(units), len(pairs) + 1))
    most[:, -1] = -1
    whole = np.zeros((len(sets), len(pairs) + 1))
    for j, (i, u) in enumerate(pairs):
        most[units.index(u), j] = whole[i, j] = 1
    cost = [0] * len(pairs) + [1]
    return linprog(cost, most, np.zeros(len(units)), whole, list(sets.values())).fun


@pytest.mark.parametrize("seed", range(25))
def test_donors_share_the_work_over_all_arrays(seed):
    pick = random.Random(seed)
    devices = virtual_devices(pick.choice([8, 12, 16]), devices_per_process=2)
    shapes = dict.fromkeys("abcdef", (240, 96))
    tree = {
        k: struct(s, random_sharding(pick, s, devices), pick.choice(["float32", "int8"]))
        for k, s in shapes.items()
    }

    def anywhere(some):
        return {k: random_sharding(pick, s, some) for k, s in shapes.items()}

    found = elastic.simulate_loss(tree, anywhere, pick.randint(1, 2), copies=1, seed=seed)
    plan = found.restored
    assert plan.bytes_moved == plan.bound
    assert plan.largest_sender_bytes <= 1.2 * least_largest(plan)
    assert plan.least_sender_bytes <= 1.001 * least_largest(plan) + 1
    assert sum(plan.sent.values()) == plan.bytes_moved


@pytest.mark.parametrize("counts", [(1, 3, 2, 1, 5), (4, 1, 1, 1), (2, 2, 7, 2, 2, 1)])
def test_processes_with_different_numbers_of_devices(counts):
    ids = iter(range(sum(counts)))
    devices = [Device(next(ids), p, "virtual") for p, n in enumerate(counts) for _ in range(n)]
    tree = {
        "w": struct((6000, 8), place(devices)),
        "one": struct((4000, 8), place(devices[:1])),
        "b": struct((6000,), place(devices[::-1])),
    }
    for dead in range(len(counts)):
        found = elastic.simulate_loss(tree, place, [dead], copies=1)
        assert found.lost == {}
        assert found.restored.bytes_moved == found.restored.bound
    plan = found.protected
    assert plan.memory_bytes == 4 * (6000 * 8 + 4000 * 8 + 6000)
    assert plan.largest_memory_bytes <= 1.3 * plan.memory_bytes / len(counts)
