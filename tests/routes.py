"""Layouts drawn at random, and what devices hold after the hops of a route, followed by hand."""

import math

import numpy as np
from hypothesis import strategies as st

from meshard.algebra.layout import Layout, balanced_cuts, ceil_cuts, even_cuts
from meshard.sharding import NamedSharding, SingleDeviceSharding
from meshard.testing.strategies import box_shardings, meshes, specs
from meshard.testing.virtual import virtual_devices

DEVICES = virtual_devices(12)


def laid(shape, grid, ids, cuts=even_cuts):
    """A layout with so many cells along each dim; more ids than cells are replicas."""
    points = tuple(cuts(n, k) for n, k in zip(shape, grid, strict=True))
    return Layout(shape, points, np.array(ids, np.int64).reshape(*grid, -1))


@st.composite
def products(draw, shape, devices=12):
    """Draw a layout in product form, uneven by any rule, on some devices in any order."""
    grid = []
    for _ in shape:
        grid.append(draw(st.integers(1, max(1, devices // math.prod(grid)))))
    copies = draw(st.integers(1, devices // math.prod(grid)))
    ids = draw(st.permutations(range(devices)))[: math.prod(grid) * copies]
    cuts = draw(st.sampled_from([balanced_cuts, ceil_cuts]))
    return laid(shape, tuple(grid), ids, cuts)


def layouts(shape):
    """Draw a layout of any kind."""
    named = meshes(DEVICES[:8]).flatmap(
        lambda m: specs(m, len(shape)).map(lambda s: NamedSharding(m, s, uneven="ceil"))
    )
    alone = st.sampled_from(DEVICES).map(SingleDeviceSharding)
    boxes = box_shardings(shape, DEVICES[4:])
    other = (named | alone | boxes).map(lambda s: s.layout(shape))
    return products(shape) | products(shape) | other


SHAPES = st.lists(st.integers(0, 9) | st.integers(2, 12), max_size=3).map(tuple)


def delivered(route):
    """Check that every hop leaves each device with its box, and that figures are what is sent."""
    shape = route.source.shape
    labels = np.arange(math.prod(shape)).reshape(shape)
    held = {}
    for device, piece in route.source.piece_of.items():
        held[device] = np.full(shape, -1)
        box = route.source.box(piece).slices
        held[device][box] = labels[box]
    for hop in route.hops:
        jobs, arrived = hop.jobs(), {}
        for device, piece in hop.destination.piece_of.items():
            arrived[device] = np.full(shape, -1)
            box = hop.destination.box(piece).slices
            if device in held:
                arrived[device][box] = held[device][box]
        sent = dict.fromkeys(held, 0)
        for row in range(len(jobs)):
            sender, receiver = int(jobs.sender[row]), int(jobs.receiver[row])
            for box in hop.boxes(jobs, row):
                assert (arrived[receiver][box.slices] == -1).all()
                arrived[receiver][box.slices] = held[sender][box.slices]
                sent[sender] += box.volume
        for device, piece in hop.destination.piece_of.items():
            box = hop.destination.box(piece).slices
            assert (arrived[device][box] == labels[box]).all()
        assert sum(sent.values()) == hop.moved == hop.sent.total == hop.received.total
        assert max(sent.values(), default=0) == hop.sent.most
        held = arrived
