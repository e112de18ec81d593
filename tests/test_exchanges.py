"""Plans of collectives against a model: cells as an array with a leading dim for each axis."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh
from meshard.transforms.collectives.exchanges import (
    Field,
    plan_all_to_all,
    plan_fold,
    plan_gather,
    plan_permute,
    plan_source,
)
from tests.watch import watched
from tests.worlds import alone

SIZES = {"i": 2, "j": 2, "k": 2}
NAMES = ("i", "j", "k")


def field(extent, shape, dtype=np.float64, order=None):
    devices = np.array(meshard.devices(), object)
    devices = devices if order is None else devices[list(order)]
    mesh = Mesh(devices.reshape([SIZES[a] for a in NAMES]), NAMES)
    return Field(here(), mesh, tuple(extent), tuple(shape), np.dtype(dtype))


def values(extent, shape):
    sizes = [SIZES[a] for a in extent]
    return np.random.default_rng(0).normal(size=(*sizes, *shape))


def cells(where, x):
    """Return the cells of a field that this process holds; the others are None."""
    flat = x.reshape(where.count(where.extent), *where.shape)
    names = where.mesh.axis_names
    order = [names.index(a) for a in (*where.extent, *(a for a in names if a not in where.extent))]
    devices = where.mesh.devices.transpose(order).reshape(len(flat), -1)
    me = where.world.process_index
    return [
        np.array(c) if any(d.process_index == me for d in own) else None
        for c, own in zip(flat, devices, strict=True)
    ]


def ran(make, extent, shape, order=None, active=None, hosts=None):
    """Return what each process finds of each cell of the result, in three worlds."""

    def body():
        where = field(extent, shape, order=order)
        plan = make(where)
        with watched() as seen:
            found = plan.run(cells(where, values(extent, shape)), active)
        return found, seen.sent, sum(plan.received().values()) if hasattr(plan, "received") else 0

    halves = simulate(2, 4, body, deadline=30)
    return [[alone(body)], halves, simulate(8, 1, body, deadline=30, hosts=hosts)]


def check(make, extent, shape, expected, **options):
    """Check a plan's cells, each in every process that has it, and that somebody has each."""
    for processes in ran(make, extent, shape, **options):
        for number, cell in enumerate(expected):
            held = [found[number] for found, _, _ in processes if found[number] is not None]
            assert held or cell is None
            for block in held:
                assert cell is not None
                assert block.shape == cell.shape
                np.testing.assert_array_equal(block, cell)


EXTENTS = st.sampled_from(
    [("i",), ("k",), ("i", "j"), ("j", "i"), ("k", "i"), ("i", "j", "k"), ("k", "j", "i")]
)


@st.composite
def places(draw):
    extent = draw(EXTENTS)
    count = draw(st.integers(1, len(extent)))
    axes = tuple(draw(st.permutations(extent))[:count])
    order = draw(st.permutations(range(8)))
    return extent, axes, order


def grouped(extent, axes, shape):
    """Return cells as ``[group, member, ...]``, and the axes of the groups."""
    x, rest = values(extent, shape), tuple(a for a in extent if a not in axes)
    order = [extent.index(a) for a in (*rest, *axes)]
    n = math.prod(SIZES[a] for a in axes)
    x = x.transpose(*order, *range(len(extent), x.ndim))
    return x.reshape(-1, n, *shape)


few = settings(max_examples=20)


@few
@given(places(), st.integers(0, 2), st.booleans())
def test_gathers(place, dim, tiled):
    extent, axes, order = place
    shape = (2, 3, 1)
    groups = grouped(extent, axes, shape)
    join = np.concatenate if tiled else np.stack
    check(
        lambda f: plan_gather(f, axes, dim, tiled),
        extent,
        shape,
        [join(list(g), dim) for g in groups],
        order=order,
    )


@few
@given(places(), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_exchanges(place, split, concat, tiled):
    extent, axes, order = place
    n = math.prod(SIZES[a] for a in axes)
    shape = [2, 3, 1]
    shape[split] = n * (2 if tiled else 1)
    expected = []
    for members in grouped(extent, axes, shape):
        for receiver in range(n):
            if tiled:
                parts = [np.split(m, n, split)[receiver] for m in members]
                expected.append(np.concatenate(parts, concat))
            else:
                parts = [m.take(receiver, split) for m in members]
                expected.append(np.stack(parts, concat))
    check(
        lambda f: plan_all_to_all(f, axes, split, concat, tiled),
        extent,
        tuple(shape),
        expected,
        order=order,
    )


@few
@given(places(), st.data())
def test_permutations_and_sources(place, data):
    extent, axes, order = place
    n, shape = math.prod(SIZES[a] for a in axes), (2, 3)
    sources = [
        s if data.draw(st.booleans()) else None for s in data.draw(st.permutations(range(n)))
    ]
    groups = grouped(extent, axes, shape)
    check(
        lambda f: plan_permute(f, axes, sources),
        extent,
        shape,
        [np.zeros(shape) if s is None else members[s] for members in groups for s in sources],
        order=order,
    )
    source = data.draw(st.integers(0, n - 1))
    check(
        lambda f: plan_source(f, axes, source),
        extent,
        shape,
        [members[source] for members in groups],
        order=order,
    )


@few
@given(places(), st.sampled_from([None, 0, 1]), st.booleans(), st.sampled_from([3, 3000]))
def test_folds(place, scatter, tiled, rows):
    extent, axes, order = place
    n = math.prod(SIZES[a] for a in axes)
    shape = [rows, 2]
    if scatter is not None:
        shape[scatter] = n * (2 if tiled else 1)
    expected = []
    for members in grouped(extent, axes, shape):
        total = members[0]
        for member in members[1:]:
            total = total + member
        if scatter is None:
            expected.append(total)
        elif tiled:
            expected += np.split(total, n, scatter)
        else:
            expected += [total.take(k, scatter) for k in range(n)]
    check(
        lambda f: plan_fold(f, axes, np.add, scatter, tiled),
        extent,
        tuple(shape),
        expected,
        order=order,
    )


PLANS = {
    "gather": lambda f: plan_gather(f, ("i", "k"), 0, True),
    "all to all": lambda f: plan_all_to_all(f, ("k", "i"), 0, 0, True),
    "permute": lambda f: plan_permute(f, ("i", "k"), [3, None, 0, 1]),
    "source": lambda f: plan_source(f, ("i",), 1),
    "fold": lambda f: plan_fold(f, ("i", "k"), np.add),
    "scatter": lambda f: plan_fold(f, ("i",), np.add, 0, True),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_figures_are_what_a_device_to_each_process_sends(name):
    """The ledger's model: one memory per device. Small sums are not cut into shares."""
    shape = (64, 256)
    # Replicas on one host are one memory; the ledger counts one for each device.
    *_, each = ran(PLANS[name], NAMES, shape, hosts=range(8))
    assert sum(sent for _, sent, _ in each) == each[0][2]


@pytest.mark.parametrize("name", PLANS)
def test_only_active_groups_take_part(name):
    """Cells of other groups are not touched, and may be missing."""
    shape = (4, 6)
    whole, *_ = ran(PLANS[name], NAMES, shape)
    rest = [a for a in NAMES if a not in (("i",) if name in ("source", "scatter") else ("i", "k"))]
    count = math.prod(SIZES[a] for a in rest)
    for group in range(count):
        for processes in ran(PLANS[name], NAMES, shape, active=frozenset([group])):
            results = whole[0][0]
            each = len(results) // count
            for number, cell in enumerate(results):
                held = [found[number] for found, _, _ in processes]
                held = [h for h in held if h is not None]
                if number // each == group:
                    assert held
                    for block in held:
                        np.testing.assert_array_equal(block, cell)
                else:
                    assert not held


def test_fields_count_order_and_number():
    def body():
        f = field(("j", "i"), (2,))
        assert f.count(("i", "k")) == 4
        assert f.count(()) == 1
        assert f.order(("i", "j")) == (0, 2, 1, 3)
        assert f.order(("j", "i")) == (0, 1, 2, 3)
        assert f.groups(("i",)).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
        assert f.groups(("k", "i")).tolist() == [[0, 4, 1, 5], [2, 6, 3, 7]]
        assert f.numbers(("k", "i")) == {0: 0, 1: 2, 2: 0, 3: 2, 4: 1, 5: 3, 6: 1, 7: 3}
        assert set(f.numbers(()).values()) == {0}
        layout = f.layout([(2, ("i",)), (3, ()), (4, ("k", "j"))])
        assert layout.shape == (2, 3, 4)
        assert layout.cuts == ((0, 1, 2), (0, 3), (0, 1, 2, 3, 4))
        assert f.processes is None

    alone(body)


def test_a_permutation_returns_the_blocks_themselves():
    def body():
        f = field(NAMES, (4, 4))
        given_cells = cells(f, values(NAMES, (4, 4)))
        found = plan_permute(f, ("k",), [1, 0]).run(given_cells)
        order = f.order(("i", "j", "k"))
        return [found[n] is given_cells[order[n ^ 1]] for n in range(8)]

    assert alone(body) == [True] * 8
