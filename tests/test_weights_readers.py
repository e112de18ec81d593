"""`meshard.weights.transfer.reading`: who reads a slab, beside the rule written out for each."""

import random

import numpy as np
import pytest

from meshard import checkpoint
from meshard.algebra.box import Box
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import virtual_devices
from meshard.weights.transfer.reading import Holding, Readers, holding_of, slabs_of

LAYOUTS = [P(), P("x"), P("y", "x"), P(None, "y"), P(("x", "y"), None), P("y")]


def by_the_rule(pieces, slab, nbytes, load, readers):
    """Of those that have read least the one that needs most; of these the one with least."""
    most = min(load[p] for p in readers) + nbytes // 2
    needs = dict.fromkeys(readers, 0)
    for _, box, holders in pieces:
        for process in holders:
            needs[process] += box.intersect(slab).volume
    chosen = min(readers, key=lambda p: (load[p] > most, -needs[p], load[p], p))
    return chosen, needs[chosen]


@pytest.mark.parametrize("per_process", [1, 2, 4])
def test_the_rule(per_process):
    draw = random.Random(per_process)
    mesh = Mesh(np.asarray(virtual_devices(12, per_process)).reshape(3, 4), ("x", "y"))
    readers = range(12 // per_process + 2)  # two hold nothing
    chosen, load = Readers(readers), [0] * len(readers)
    for _ in range(60):
        shape = draw.choice([(9, 16), (12, 5), (1, 40), (30, 8)])
        spec, uneven = draw.choice(LAYOUTS), draw.choice(["balanced", "ceil"])
        holding = holding_of(NamedSharding(mesh, spec, uneven=uneven), shape)
        order = draw.choice([(0, 1), (1, 0)])
        for slab in slabs_of(Box.whole(shape), order, draw.choice([3, 20, 64])):
            nbytes = 4 * slab.volume
            wanted = by_the_rule(holding.pieces, slab, nbytes, load, readers)
            assert chosen.choose(holding, slab, nbytes) == wanted
            load[wanted[0]] += nbytes
            assert chosen.load == load
        if draw.random() < 0.2:
            chosen.add(1, 50)
            load[1] += 50


def test_what_is_held():
    pieces = (
        (0, Box((0, 0), (2, 3)), (0, 1)),
        (1, Box((2, 0), (4, 3)), (2,)),
        (2, Box((1, 0), (3, 3)), (2,)),
    )
    holding = Holding(pieces)
    assert holding.shared
    assert holding.volume == 6 * 4
    assert holding.counts.tolist() == [6, 6, 12]
    assert holding.processes == {0, 1, 2}
    assert [n for n, _ in holding.first_held(2)] == [1, 2]
    assert not list(holding.first_held(7))
    groups, unit = holding.groups(Box((1, 0), (4, 2)))
    assert (groups, unit) == ([(4, (2,)), (1, (0, 1))], 2)
    assert Holding(()).groups(Box((0,), (0,))) == ([], 1)


def test_many_processes_are_a_few_groups():
    """The time does not depend on how many processes need the same."""
    mesh = Mesh(np.asarray(virtual_devices(1024, 1)).reshape(128, 8), ("d", "m"))
    holding = holding_of(NamedSharding(mesh, P(None, "m")), (64, 32))
    assert holding_of(NamedSharding(mesh, P(None, "m")), (64, 32)) is holding
    readers, calls = Readers(range(1024)), []
    readers._least, own = lambda group: calls.append(group) or own(group), readers._least
    for row in range(64):
        readers.choose(holding, Box((row, 0), (row + 1, 32)), 128)
    assert len(calls) == 64 * 2
    assert sorted(readers.load, reverse=True)[:65] == [128] * 64 + [0]


def test_a_few_tensors_that_few_hold_are_passed_on_and_the_rest_is_not(tmp_path):
    tree = {f"w{k}": np.zeros((8, 1 << 14), np.float32) for k in range(4)}
    tree["few"] = np.zeros((4, 1 << 14), np.float32)
    checkpoint.save(tmp_path / "x.safetensors", tree)
    mesh = Mesh(np.asarray(virtual_devices(8, 1)), "d")
    wanted = NamedSharding(mesh, P("d"), uneven="balanced")
    plan = checkpoint.plan_load(tmp_path / "x.safetensors", wanted)
    assert {plan.reading.wanted[k].name for k in plan.reading.direct} == {"w0", "w1", "w2", "w3"}
    assert plan.largest_reader_bytes * 8 <= 1.1 * plan.bytes_read
    assert plan.bytes_moved < tree["few"].nbytes
