"""Rows of programs on a mesh: collectives in shard_map, and two small real programs, in float32."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bench import programs_by_hand as by_hand
from bench.by_hand import Array
from bench.claims import JAX_EAGER, JAX_JIT, JAX_OWN, NUMPY, Faster, Within
from bench.harness import Row
from bench.libraries import Library, Spec
from bench.limits import Need
from bench.row import ArrayRow, Program
from bench.rows_foundation import BYTES, FLAT, GRID, normal, square

SMALL = 16
STEPS = 50
PLATE = 2048
POINTS, FEATURES, CENTRES, ITERATIONS = 500_000, 16, 8, 10

COLUMNS: Spec = (None, "j")
ROTATION = [(k, (k + 1) % 4) for k in range(4)]

Collective = Callable[[Any, Any], Any]


def mapped(work: Collective, out: Spec, check: bool = True) -> Callable[[Library], Program]:
    """`work` of `lax` and a local array as a body over the 4 x 2 mesh."""

    def program(library: Library) -> Program:
        lax, spec = library.root.lax, library.placing.PartitionSpec
        mapped: Program = library.root.shard_map(
            lambda x: work(lax, x),
            mesh=library.mesh,
            in_specs=spec(*GRID),
            out_specs=spec(*out),
            check_vma=check,
        )
        return mapped

    return program


def tiles(x: Array) -> list[list[Array]]:
    """The shards of P(i, j), by position along i and j."""
    return [np.split(row, 2, axis=1) for row in np.split(x, 4, axis=0)]


def summed(x: Array) -> Array:
    """What psum over i gives, joined along j."""
    return np.sum(np.split(x, 4, axis=0), axis=0, dtype=np.float32)


def exchanged(x: Array) -> Array:
    """What all_to_all over i gives, splitting rows and joining columns."""
    parts = [[np.split(tile, 4, axis=0) for tile in row] for row in tiles(x)]
    return np.block(
        [
            [np.concatenate([parts[source][j][i] for source in range(4)], axis=1) for j in range(2)]
            for i in range(4)
        ]
    )


def rotated(x: Array) -> Array:
    """What ppermute to the next along i gives."""
    return np.roll(x, len(x) // 4, axis=0)


def _collective(
    key: str,
    title: str,
    work: Collective,
    out: Spec,
    expected: Callable[[Array], Array],
    ratio: float,
    hand: Callable[[Array], Any],
    moved: float,
    check: bool = True,
) -> tuple[Row, Row]:
    common: dict[str, Any] = {
        "specs": (GRID,),
        "program": mapped(work, out, check),
        "expected": expected,
        "layout": out,
        "by_hand": hand,
        "tolerance": 1e-5,
    }
    large = ArrayRow(
        key=key,
        title=f"{title}, 64 MiB",
        claims=[Faster(ratio, than=JAX_JIT)],
        inputs=square,
        need=Need(bytes=moved * BYTES),
        memory=True,
        **common,
    )
    small = ArrayRow(
        key=f"{key}-small",
        title=f"{title}, 1 KiB",
        claims=[Within(60e-6)],
        inputs=lambda: (normal(SMALL, SMALL),),
        batch=20,
        need=Need(calls=1),
        **common,
    )
    return large, small


def heat_steps(lax: Any, numpy: Any, sizes: tuple[int, int], steps: int = STEPS) -> Program:
    """The steps of `examples/heat.py`, of a tile on a mesh of so many devices along i and j."""
    rate = by_hand.RATE

    def before(edge: Any, axis: str, size: int) -> Any:
        return lax.ppermute(edge, axis, [(k, k + 1) for k in range(size - 1)])

    def after(edge: Any, axis: str, size: int) -> Any:
        return lax.ppermute(edge, axis, [(k + 1, k) for k in range(size - 1)])

    def step(_: Any, tile: Any) -> Any:
        above, below = before(tile[-1:], "i", sizes[0]), after(tile[:1], "i", sizes[0])
        left, right = before(tile[:, -1:], "j", sizes[1]), after(tile[:, :1], "j", sizes[1])
        rows = numpy.concatenate([above, tile, below], axis=0)
        columns = numpy.concatenate([left, tile, right], axis=1)
        around = rows[:-2] + rows[2:] + columns[:, :-2] + columns[:, 2:]
        return tile + rate * (around - 4 * tile)

    return lambda tile: lax.fori_loop(0, steps, step, tile)


def heat(library: Library, steps: int = STEPS) -> Program:
    """The steps on the 4 x 2 mesh."""
    spec = library.placing.PartitionSpec
    mapped: Program = library.root.shard_map(
        heat_steps(library.root.lax, library.numpy, (4, 2), steps),
        mesh=library.mesh,
        in_specs=spec(*GRID),
        out_specs=spec(*GRID),
    )
    return mapped


def heat_by_steps(library: Library) -> Program:
    """One step jitted and called again and again: no loop of collectives that could hang."""
    step = library.root.jit(heat(library, 1))

    def program(plate: Any) -> Any:
        for _ in range(STEPS):
            plate = library.root.block_until_ready(step(plate))
        return plate

    return program


def kmeans(library: Library) -> Program:
    """Lloyd's iterations on points that are split over all devices."""
    lax, numpy, spec = library.root.lax, library.numpy, library.placing.PartitionSpec

    def body(points: Any, centres: Any) -> Any:
        def iteration(_: Any, centres: Any) -> Any:
            distance = (centres**2).sum(axis=1) - points @ (2 * centres.T)
            nearest = numpy.argmin(distance, axis=1)
            member = (nearest[:, None] == numpy.arange(CENTRES)).astype(points.dtype)
            total = lax.psum(member.T @ points, ("i", "j"))
            count = lax.psum(member.sum(axis=0), ("i", "j"))
            return total / numpy.maximum(count, 1)[:, None]

        return lax.fori_loop(0, ITERATIONS, iteration, centres)

    mapped: Program = library.root.shard_map(
        body,
        mesh=library.mesh,
        in_specs=(spec(*FLAT), spec()),
        out_specs=spec(),
    )
    return mapped


HEAT = Need(bytes=2 * STEPS * 4 * PLATE**2)
KMEANS = Need(
    bytes=ITERATIONS * 4 * POINTS * FEATURES,
    flops=ITERATIONS * 4 * POINTS * FEATURES * CENTRES,
)
OWN_HEAT: dict[str, Any] = {
    "own": heat_by_steps,
    "notes": {
        JAX_OWN: "one jitted step, called again and again, since loops of collectives may abort"
    },
}


ROWS: tuple[Row, ...] = (
    *_collective(
        "psum",
        "psum over i of P(i,j)",
        lambda lax, x: lax.psum(x, "i"),
        COLUMNS,
        summed,
        1,
        by_hand.psum,
        5 / 4,
    ),
    *_collective(
        "psum-scatter",
        "psum_scatter over i of P(i,j)",
        lambda lax, x: lax.psum_scatter(x, "i", tiled=True),
        GRID,
        summed,
        1 / 1.6,
        by_hand.psum_scatter,
        5 / 4,
    ),
    *_collective(
        "all-gather",
        "all_gather over i of P(i,j)",
        lambda lax, x: lax.all_gather(x, "i", tiled=True),
        COLUMNS,
        lambda x: x,
        10,
        by_hand.all_gather,
        2,
        check=False,
    ),
    *_collective(
        "all-to-all",
        "all_to_all over i of P(i,j)",
        lambda lax, x: lax.all_to_all(x, "i", 0, 1, tiled=True),
        GRID,
        exchanged,
        3,
        by_hand.all_to_all,
        2,
    ),
    *_collective(
        "ppermute",
        "ppermute over i of P(i,j)",
        lambda lax, x: lax.ppermute(x, "i", ROTATION),
        GRID,
        rotated,
        20,
        by_hand.ppermute,
        0,
    ),
    ArrayRow(
        key="heat",
        title=f"heat equation {PLATE}x{PLATE}, {STEPS} steps",
        claims=[Faster(1.5, than=NUMPY)],
        inputs=lambda: (normal(PLATE, PLATE),),
        specs=(GRID,),
        program=heat,
        expected=by_hand.heat_numpy(STEPS),
        layout=GRID,
        by_hand=by_hand.heat(STEPS),
        tolerance=1e-4,
        need=HEAT,
        risky=(JAX_EAGER, JAX_JIT),
        **OWN_HEAT,
        plain=True,
    ),
    ArrayRow(
        key="kmeans",
        title=f"k-means {POINTS}x{FEATURES}, {CENTRES} centres, {ITERATIONS} iterations",
        claims=[Faster(1.5, than=NUMPY)],
        inputs=lambda: (normal(POINTS, FEATURES), normal(CENTRES, FEATURES, seed=1)),
        specs=(FLAT, ()),
        program=kmeans,
        expected=by_hand.kmeans_numpy(ITERATIONS),
        by_hand=by_hand.kmeans(ITERATIONS),
        tolerance=1e-3,
        need=KMEANS,
        risky=(JAX_EAGER, JAX_JIT),
        plain=True,
    ),
)
