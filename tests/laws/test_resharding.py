"""The laws of resharding: any layout to any other, bit by bit, and the bytes that it takes.

The first half looks at plans alone, for devices that exist nowhere; the second moves arrays, in
one process and between simulated ones.
"""

import itertools
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.plan.figures.bounds import receive_bound
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.plan import Plan
from meshard.runtime.simulated import simulate
from meshard.sharding import (
    Mesh,
    NamedSharding,
    P,
    Sharding,
    SingleDeviceSharding,
)
from meshard.testing.strategies import box_shardings, meshes, specs
from meshard.testing.virtual import virtual_devices
from tests.worlds import alone

DTYPES = [
    np.dtype(d)
    for d in (
        *("bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
]
SHAPES = st.lists(st.integers(1, 9), max_size=3).map(tuple) | st.lists(
    st.integers(0, 4), min_size=1, max_size=3
).map(tuple)
DRAWN = settings().max_examples
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def named(draw: st.DrawFn, shape: tuple[int, ...], devices: Sequence[Device]) -> NamedSharding:
    """Draw a mesh and a spec; where a dim does not divide, one of the ways to cut it unevenly."""
    mesh = draw(meshes(devices, max_axes=3))
    spec = draw(specs(mesh, len(shape)))
    plain = NamedSharding(mesh, spec)
    shards = plain.shards(len(shape))
    kinds = ["balanced", "ceil", "cuts"]
    if all(n % k == 0 for n, k in zip(shape, shards, strict=True)):
        kinds.insert(0, "even")
    kind = draw(st.sampled_from(kinds))
    if kind == "even":
        return plain
    if kind == "cuts":
        cuts = tuple(
            (0, *sorted(draw(st.lists(st.integers(0, n), min_size=k - 1, max_size=k - 1))), n)
            for n, k in zip(shape, shards, strict=True)
        )
        return NamedSharding(mesh, spec, uneven=cuts)
    return NamedSharding(mesh, spec, uneven=kind)


def shardings(shape: tuple[int, ...], devices: Sequence[Device]) -> st.SearchStrategy[Sharding]:
    """Return shardings of every kind for one shape."""
    return (
        named(shape, devices)
        | meshes(devices).map(lambda m: NamedSharding(m, P()))
        | st.sampled_from(list(devices)).map(SingleDeviceSharding)
        | box_shardings(shape, devices)
    )


# plans alone


def reference_moved(source: Layout, destination: Layout) -> dict[int, int]:
    """Return each destination device's elements that it lacks, box by box."""
    lacks = {}
    for device, piece in destination.piece_of.items():
        box = destination.box(piece)
        have = 0
        if device in source.piece_of:
            held = source.box(source.piece_of[device])
            spans = zip(box.starts, box.stops, held.starts, held.stops, strict=True)
            have = math.prod(max(0, min(b, d) - max(a, c)) for a, b, c, d in spans)
        lacks[device] = box.volume - have
    return lacks


@settings(max_examples=3 * DRAWN, suppress_health_check=SLOW)
@given(st.data(), SHAPES)
def test_a_plan_moves_what_is_lacking_and_no_more(data, shape):
    devices = virtual_devices(8)
    source = data.draw(shardings(shape, devices)).layout(shape)
    destination = data.draw(shardings(shape, devices)).layout(shape)
    plan = Plan([PlanLeaf("x", source, destination, 4)])
    lacks = reference_moved(source, destination)
    assert plan.received == {d: 4 * n for d, n in lacks.items()}
    assert plan.bytes_moved == plan.lower_bound_bytes == 4 * sum(lacks.values())
    assert receive_bound(source, destination) == sum(lacks.values())
    assert (plan.bytes_moved == 0) == all(n == 0 for n in lacks.values())


@given(st.data(), SHAPES, st.permutations(range(8)))
def test_bytes_do_not_depend_on_the_names_of_devices(data, shape, order):
    devices = virtual_devices(8)
    pair = [data.draw(named(shape, devices)) for _ in range(2)]
    renamed = [
        NamedSharding(
            Mesh(
                np.array([devices[order[d.id]] for d in s.mesh.flat_devices], object).reshape(
                    s.mesh.axis_sizes
                ),
                s.mesh.axis_names,
            ),
            s.spec,
            uneven=s.uneven,
        )
        for s in pair
    ]
    plan, again = (
        Plan([PlanLeaf("x", a.layout(shape), b.layout(shape), 1)]) for a, b in (pair, renamed)
    )
    assert again.bytes_moved == plan.bytes_moved
    assert again.lower_bound_bytes == plan.lower_bound_bytes
    assert again.received == {order[d]: n for d, n in plan.received.items()}


@settings(max_examples=3 * DRAWN, suppress_health_check=SLOW)
@given(st.data(), SHAPES, st.integers(1, 4))
def test_every_process_gets_each_element_once_as_its_peers_send_them(data, shape, processes):
    devices = virtual_devices(8, devices_per_process=-(-8 // processes))
    process_of = {d.id: d.process_index for d in devices}
    source = data.draw(shardings(shape, devices)).layout(shape)
    destination = data.draw(shardings(shape, devices)).layout(shape)
    parts = [assemble(destination, [Source(source)], process_of, p) for p in range(processes)]
    value = np.arange(math.prod(shape)).reshape(shape)
    for p, part in enumerate(parts):
        for message in part.sends:
            back = [m.copies for m in parts[message.peer].receives if m.peer == p]
            assert back == [message.copies]
            assert message.peer != p
        for message in part.receives:
            assert any(m.peer == p for m in parts[message.peer].sends)
        check_part(part, p, source, destination, process_of, value)


def check_part(
    part: Part,
    me: int,
    source: Layout,
    destination: Layout,
    process_of: dict[int, int],
    value: np.ndarray,
) -> None:
    """Run one process's part on numbered elements, counting how often each is written."""
    assert len(part.recipes) == destination.piece_count
    received = [(m.peer, c) for m in part.receives for c in m.copies]
    for piece, recipe in enumerate(part.recipes):
        held = me in {process_of[d] for d in destination.holders(piece)}
        assert held == (recipe is not None)
        if recipe is None:
            continue
        box = destination.box(piece)
        assert recipe.shape == box.shape
        made, written = np.full(box.shape, -1), np.zeros(box.shape, int)
        local = [(me, c) for c in recipe.copies]
        for sender, copy in local + [(s, c) for s, c in received if c.piece == piece]:
            assert sender in {process_of[d] for d in source.holders(copy.origin)}
            block = value[source.box(copy.origin).slices]
            assert block[copy.region].shape == copy.shape
            made[copy.target] = block[copy.region]
            written[copy.target] += 1
        assert (written == 1).all()
        assert not recipe.layered
        assert recipe.covered
        assert (made == value[box.slices]).all()
        if recipe.alias is not None:
            assert recipe.copies == (recipe.alias,)
            assert recipe.alias.shape == recipe.shape


DEVICES = virtual_devices(512 * 256)


def on(axes: dict[str, int], *spec: object, ids: Sequence[int] | None = None) -> NamedSharding:
    """Return a sharding on the first virtual devices, or those with some ids; cut rule ceil."""
    sizes = tuple(axes.values())
    chosen = DEVICES[: math.prod(sizes)] if ids is None else [DEVICES[i] for i in ids]
    grid = np.empty(len(chosen), object)
    grid[:] = chosen
    return NamedSharding(Mesh(grid.reshape(sizes), tuple(axes)), P(*spec), uneven="ceil")


X8, X4, A2B2 = {"x": 8}, {"x": 4}, {"a": 2, "b": 2}
ONE = SingleDeviceSharding(DEVICES[0])
CASES = [
    # shape, from, to, T (must enter), L (is there already), mr (most by one device)
    ((8,), on(X8, "x"), on(X8), 56, 8, 7),
    ((8,), on(X8), on(X8, "x"), 0, 8, 0),
    ((8, 8), on(X8, "x"), on(X8, None, "x"), 56, 8, 7),
    ((8, 8), on({"a": 2, "b": 4}, "a", "b"), on({"a": 2, "b": 4}, "b", "a"), 48, 16, 8),
    ((4,), on(A2B2, ("a", "b")), on(A2B2, ("b", "a")), 2, 2, 1),
    ((8,), on(X8, "x"), on(X8, "x", ids=range(7, -1, -1)), 8, 0, 1),
    ((10,), on(X4, "x"), on({"x": 3}, "x"), 4, 6, 2),
    ((3,), ONE, on(X8, "x"), 2, 1, 1),
    ((16,), on(X4, "x"), on(X8, "x"), 14, 2, 2),
    ((16,), on(X8, "x"), on(X4, "x"), 14, 2, 4),
    ((8, 8), on({"f": 8}, "f"), on({"t": 4}, ids=range(8, 12)), 256, 0, 64),
    ((8, 8), on({"f": 8}, "f"), on({"t": 4}, None, "t", ids=range(8, 12)), 64, 0, 16),
    (
        (8, 8),
        on({"dp": 2, "tp": 4}, None, "tp"),
        on({"tp": 2}, None, "tp", ids=(8, 9)),
        64,
        0,
        32,
    ),
    ((6, 6), on({"x": 3, "y": 2}, "x", "y"), on({"y": 2, "x": 3}, "y", "x"), 24, 12, 6),
    ((6,), on({"x": 2, "y": 3}, "x"), on({"x": 2, "y": 3}, "y"), 6, 6, 2),
    ((0, 8), on(X4, "x"), on(X4, None, "x"), 0, 0, 0),
    ((12,), on({"r": 2, "x": 2}, "x"), on({"x": 3}, "x", ids=(0, 2, 3)), 2, 10, 2),
]


@pytest.mark.parametrize(("shape", "source", "destination", "moved", "local", "most"), CASES)
def test_the_cases_of_the_table(shape, source, destination, moved, local, most):
    x = meshard.ShapeDtypeStruct(shape, "float32", sharding=source)
    plan = meshard.plan_reshard(x, destination)
    assert plan.bytes_moved == plan.lower_bound_bytes == 4 * moved
    assert max(plan.received.values()) == 4 * most
    whole = sum(
        destination.layout(shape).box(p).volume for p in destination.layout(shape).piece_of.values()
    )
    assert whole - moved == local


@pytest.mark.parametrize(
    ("source", "destination", "moved", "local"),
    [
        (("x", "y"), ("y", "x"), 68585259008, 134217728),
        ((("x", "y"),), (None, ("x", "y")), 68718952448, 524288),
    ],
)
def test_the_bound_of_131072_devices_is_found_without_pairs(source, destination, moved, local):
    axes, n = {"x": 512, "y": 256}, 262144
    a, b = (on(axes, *spec).layout((n, n)) for spec in (source, destination))
    assert receive_bound(a, b) == moved
    assert n * n - moved == local


# arrays


def random_value(seed: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return random bits of a dtype: every NaN payload may come."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype).reshape(shape)


def check_pieces(x: meshard.Array, value: np.ndarray, sharding: Sharding) -> None:
    """Check what each of this process's devices holds, bit by bit."""
    assert x.shape == value.shape
    assert x.dtype == value.dtype
    assert x.sharding == sharding
    assert x.committed
    indices = sharding.devices_indices_map(value.shape)
    here = [d for d in sharding.device_order if d.process_index == meshard.process_index()]
    shards = x.addressable_shards
    assert [s.device for s in shards] == here
    blocks = {}
    for shard in shards:
        (block,) = shard.data._live()
        if block.size:  # replicas share it
            assert blocks.setdefault(str(shard.index), block) is block
        got, want = np.asarray(shard.data), value[indices[shard.device]]
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()


def there_and_back(value: np.ndarray, chain: Sequence[Sharding]) -> None:
    """Move a value along a chain of layouts and back to the first; all arrays must stay intact.

    The second time the parts are those that were kept.
    """
    for _ in range(2):
        arrays = [meshard.device_put(value, chain[0])]
        for sharding in (*chain[1:], chain[0]):
            arrays.append(meshard.device_put(arrays[-1], sharding))
        for x, sharding in zip(arrays, (*chain, chain[0]), strict=True):
            check_pieces(x, value, sharding)


@settings(max_examples=4 * DRAWN, suppress_health_check=SLOW)
@given(st.data(), SHAPES, st.sampled_from(DTYPES), st.integers(0, 999))
def test_any_layout_becomes_any_other_in_one_process(data, shape, dtype, seed):
    chain = [data.draw(shardings(shape, [Device(i) for i in range(8)])) for _ in range(2)]
    value = random_value(seed, shape, dtype)
    alone(lambda: there_and_back(value, chain))


@pytest.mark.parametrize(("processes", "devices"), list(itertools.product((1, 2, 3, 4), (1, 2, 3))))
@settings(max_examples=max(25, DRAWN // 4), suppress_health_check=SLOW)
@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 999))
def test_any_layout_becomes_any_other_between_processes(
    processes, devices, data, shape, dtype, seed
):
    every = [Device(i, i // devices) for i in range(processes * devices)]
    chain = [data.draw(shardings(shape, every)) for _ in range(4)]
    value = random_value(seed, shape, dtype)
    simulate(processes, devices, lambda: there_and_back(value, chain), deadline=10)
