"""Rows of the foundation: placing, resharding and eager ops on a 4 x 2 mesh, in float32."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import foundation_by_hand as by_hand
from bench.by_hand import Array
from bench.claims import JAX_EAGER, Faster, Within
from bench.harness import Row
from bench.import_time import ImportRow
from bench.libraries import Library, Spec
from bench.limits import NOTHING, Need
from bench.row import ArrayRow, Program

SIDE = 4096
TREE = 200
BLAS_SETTLE = 0.03

GRID: Spec = ("i", "j")
SWAPPED: Spec = ("j", "i")
WHOLE: Spec = ()
FLAT: Spec = (("i", "j"),)
COLUMNS: Spec = (None, ("i", "j"))

BYTES = 4 * SIDE**2
COPIED = Need(bytes=2 * BYTES)
"""64 MiB are read and written."""
PRODUCT = Need(flops=2 * 2048**3)

NOT_SLOWER = Faster(1)


@functools.cache
def normal(*shape: int, seed: int = 0) -> Array:
    """Normal float32 numbers; the same array for the same arguments."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def square() -> tuple[Array]:
    """The operand of most rows: 64 MiB."""
    return (normal(SIDE, SIDE),)


def positive_square() -> tuple[Array]:
    """The operand of the sum; terms of both signs would leave little but rounding."""
    return (np.abs(normal(SIDE, SIDE)),)


def tree() -> tuple[list[Array]]:
    """Arrays of 64 KiB, as the parameters of a model."""
    return ([normal(128, 128, seed=k) for k in range(TREE)],)


def reshard_to(spec: Spec) -> Callable[[Library], Program]:
    """`device_put` of an array or a tree to another spec."""

    def program(library: Library) -> Program:
        put, sharding = library.root.device_put, library.sharding(spec)
        return lambda tree: put(tree, sharding)

    return program


def identity_to(spec: Spec) -> Callable[[Library], Program]:
    """What JAX is given to jit: nothing to do but to lie as `spec` says."""

    def program(library: Library) -> Program:
        constrain, sharding = library.root.lax.with_sharding_constraint, library.sharding(spec)
        return lambda tree: constrain(tree, sharding)

    return program


def from_callback_to(spec: Spec) -> Callable[[Library], Program]:
    """An array whose shards are slices of an existing NumPy array."""

    def program(library: Library) -> Program:
        make, sharding = library.root.make_array_from_callback, library.sharding(spec)
        return lambda source: make(source.shape, sharding, lambda index: source[index])

    return program


def counted(library: Library) -> Program:
    """The numbers from 0 on, split; jitted, JAX makes them where they are wanted."""
    sharding, numpy = library.sharding(FLAT), library.numpy
    if library.root.__name__ == "meshard":
        return lambda _: numpy.arange(by_hand.COUNTED, dtype=np.float32, device=sharding)
    put = library.root.device_put
    return lambda _: put(numpy.arange(by_hand.COUNTED, dtype=np.float32), sharding)


def counted_jit(library: Library) -> Program:
    """The same for JAX to jit."""
    constrain, sharding = library.root.lax.with_sharding_constraint, library.sharding(FLAT)
    return lambda _: constrain(library.numpy.arange(by_hand.COUNTED, dtype=np.float32), sharding)


def rechunked(spec: Spec) -> Callable[[Library], Program]:
    """Dask's reshard."""
    return lambda library: lambda x: x.rechunk(library.chunks(x.shape, spec)).map_blocks(np.copy)


@dataclass(frozen=True)
class Pattern:
    """A reshard of a matrix, how many parts each side has by hand, and whether views are enough."""

    key: str
    told: str
    source: Spec
    target: Spec
    before: tuple[int, int]
    after: tuple[int, int]
    ratio: float = 1
    copies: bool = True


PATTERNS = (
    Pattern("swap", "P(i,j) -> P(j,i)", GRID, SWAPPED, (4, 2), (2, 4), 3),
    Pattern("replicate", "P(i,j) -> P()", GRID, WHOLE, (4, 2), (1, 1), 15),
    Pattern("columns", "P((i,j)) -> P(None,(i,j))", FLAT, COLUMNS, (8, 1), (1, 8)),
    Pattern("turn", "P(i) -> P(None,i)", ("i",), (None, "i"), (4, 1), (1, 4)),
    Pattern("rows", "P(i,j) -> P((i,j))", GRID, FLAT, (4, 2), (8, 1)),
    Pattern("half", "P(i,j) -> P(i)", GRID, ("i",), (4, 2), (4, 1)),
    Pattern("spread", "P() -> P(i,j)", WHOLE, GRID, (1, 1), (4, 2), copies=False),
    Pattern("order", "P((i,j)) -> P((j,i))", FLAT, (("j", "i"),), (8, 1), (8, 1), copies=False),
)


def reshard_row(pattern: Pattern) -> Row:
    """The row of a pattern, 64 MiB."""
    return ArrayRow(
        key=f"reshard-{pattern.key}",
        title=f"reshard 4096x4096 {pattern.told}",
        claims=[Faster(pattern.ratio)],
        inputs=square,
        specs=(pattern.source,),
        program=reshard_to(pattern.target),
        jitted=identity_to(pattern.target),
        dask=rechunked(pattern.target),
        expected=lambda x: x,
        layout=pattern.target,
        by_hand=by_hand.reshard(pattern.after, pattern.before),
        need=COPIED if pattern.copies else NOTHING,
        memory=True,
    )


def chain(namespace: Any) -> Program:
    """20 ops: 5 times a product, a sum, an absolute value and a root."""

    def program(v: Any) -> Any:
        for _ in range(by_hand.CHAIN):
            v = namespace.sqrt(namespace.abs(v * 0.5 + 1))
        return v

    return program


ROWS: tuple[Row, ...] = (
    *map(reshard_row, PATTERNS),
    ArrayRow(
        key="reshard-tree",
        title="reshard 200 x 64 KiB P(i,j) -> P(j,i)",
        claims=[Faster(4)],
        inputs=tree,
        specs=(GRID,),
        program=reshard_to(SWAPPED),
        jitted=identity_to(SWAPPED),
        expected=lambda arrays: arrays,
        layout=SWAPPED,
        by_hand=by_hand.reshard_tree,
        need=Need(bytes=2 * TREE * (64 << 10)),
    ),
    ArrayRow(
        key="small-op",
        title="v + 1, 64 elements on 8 shards",
        claims=[Within(25e-6), NOT_SLOWER],
        inputs=lambda: (normal(64),),
        specs=(FLAT,),
        program=lambda library: lambda v: v + 1,
        expected=lambda v: v + 1,
        layout=FLAT,
        by_hand=by_hand.each_small(by_hand.add_one_small),
        need=Need(calls=1),
        dask=lambda library: lambda v: v + 1,
        batch=20,
    ),
    ArrayRow(
        key="small-chain",
        title="20 ops, 64 elements on 8 shards",
        claims=[Faster(10, than=JAX_EAGER)],
        inputs=lambda: (normal(64),),
        specs=(FLAT,),
        program=lambda library: chain(library.numpy),
        expected=chain(np),
        layout=FLAT,
        by_hand=by_hand.each_small(by_hand.chain),
        need=Need(calls=20),
        tolerance=1e-6,
        batch=4,
    ),
    ArrayRow(
        key="add",
        title="v + 1, 4096x4096 P(i,j)",
        claims=[NOT_SLOWER],
        inputs=square,
        specs=(GRID,),
        program=lambda library: lambda v: v + 1,
        expected=lambda v: v + 1,
        layout=GRID,
        by_hand=by_hand.add_one,
        need=COPIED,
        dask=lambda library: lambda v: v + 1,
        memory=True,
    ),
    ArrayRow(
        key="sum",
        title="sum of all, 4096x4096 P(i,j)",
        claims=[NOT_SLOWER],
        inputs=positive_square,
        specs=(GRID,),
        program=lambda library: library.numpy.sum,
        expected=lambda x: np.sum(x, dtype=np.float64).astype(np.float32),
        by_hand=by_hand.total,
        need=Need(bytes=BYTES),
        dask=lambda library: library.numpy.sum,
        tolerance=1e-5,
    ),
    ArrayRow(
        key="argmax",
        title="argmax of all, 4096x4096 P(i,j)",
        claims=[NOT_SLOWER],
        inputs=square,
        specs=(GRID,),
        program=lambda library: library.numpy.argmax,
        expected=np.argmax,
        by_hand=by_hand.argmax,
        need=Need(bytes=BYTES),
        dask=lambda library: library.numpy.argmax,
    ),
    ArrayRow(
        key="affine",
        title="x @ w + b, 2048^3, P(i,None) P(None,j) P(j)",
        claims=[NOT_SLOWER],
        inputs=lambda: (normal(2048, 2048), normal(2048, 2048, seed=1), normal(2048)),
        specs=(("i", None), (None, "j"), ("j",)),
        program=lambda library: lambda x, w, b: x @ w + b,
        expected=lambda x, w, b: x @ w + b,
        layout=GRID,
        by_hand=by_hand.affine,
        need=PRODUCT,
        dask=lambda library: lambda x, w, b: x @ w + b,
        tolerance=1e-5,
        settle=BLAS_SETTLE,
    ),
    ArrayRow(
        key="contract",
        title="x @ w, 2048^3, P(None,i) P(i,None)",
        claims=[NOT_SLOWER],
        inputs=lambda: (normal(2048, 2048), normal(2048, 2048, seed=1)),
        specs=((None, "i"), ("i", None)),
        program=lambda library: lambda x, w: x @ w,
        expected=lambda x, w: x @ w,
        by_hand=by_hand.contract,
        need=PRODUCT,
        dask=lambda library: lambda x, w: x @ w,
        tolerance=1e-5,
        settle=BLAS_SETTLE,
    ),
    ArrayRow(
        key="gram",
        title="x.T @ x (ridge), 200000x64 P((i,j))",
        claims=[NOT_SLOWER],
        inputs=lambda: (normal(200_000, 64),),
        specs=(FLAT,),
        program=lambda library: lambda x: x.T @ x,
        expected=lambda x: x.T @ x,
        by_hand=by_hand.gram,
        need=Need(bytes=4 * 200_000 * 64, flops=2 * 200_000 * 64**2),
        dask=lambda library: lambda x: x.T @ x,
        tolerance=1e-5,
        settle=BLAS_SETTLE,
    ),
    ArrayRow(
        key="arange",
        title="arange of 64 MiB, P((i,j))",
        claims=[Faster(2.6 / 3)],
        inputs=lambda: (normal(1),),
        specs=(None,),
        program=counted,
        jitted=counted_jit,
        dask=lambda library: (
            lambda _: library.numpy.arange(
                by_hand.COUNTED, chunks=by_hand.COUNTED // 8, dtype=np.float32
            )
        ),
        expected=lambda _: np.arange(by_hand.COUNTED, dtype=np.float32),
        layout=FLAT,
        by_hand=by_hand.arange,
        need=Need(bytes=BYTES),
        memory=True,
    ),
    ArrayRow(
        key="callback",
        title="array from callback 4096x4096 P(i,j)",
        claims=[NOT_SLOWER],
        inputs=square,
        specs=(None,),
        program=from_callback_to(GRID),
        has_jit=False,
        expected=lambda x: x,
        layout=GRID,
        by_hand=by_hand.from_callback((4, 2)),
        need=COPIED,
        memory=True,
    ),
    ArrayRow(
        key="callback-replicate",
        title="array from callback 4096x4096 P()",
        claims=[NOT_SLOWER],
        inputs=square,
        specs=(None,),
        program=from_callback_to(WHOLE),
        has_jit=False,
        expected=lambda x: x,
        layout=WHOLE,
        by_hand=by_hand.from_callback((1, 1)),
        need=COPIED,
        memory=True,
    ),
    ImportRow(claims=[Within(0.3)]),
)
