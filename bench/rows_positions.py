"""Rows of look-ups by position, in float32: 64 MiB that are split 8 ways."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.by_hand import Array
from bench.claims import NUMPY, Faster
from bench.harness import Row
from bench.libraries import Library, Spec
from bench.row import ArrayRow, Program
from bench.rows_foundation import FLAT, normal

COUNT, WIDTH = 1 << 24, 64
CLAIMS = [Faster(1 / 1.3), Faster(1 / 1.3, than=NUMPY)]


def order(count: int) -> Array:
    """All positions once, in any order."""
    return np.random.default_rng(1).permutation(count).astype(np.int32)


def places(*shape: int, below: int) -> Array:
    """Positions, some of them several times."""
    return np.random.default_rng(2).integers(0, below, size=shape, dtype=np.int32)


def halves() -> tuple[Array, ...]:
    """An array, and a mask that is true for half of it."""
    return normal(COUNT), np.random.default_rng(3).random(COUNT) < 0.5


def added(x: Array, at: Array, values: Array) -> Array:
    """What NumPy's `add.at` makes of a copy."""
    found = x.copy()
    np.add.at(found, at, values)
    return found


def _row(
    key: str,
    title: str,
    inputs: Callable[[], tuple[Any, ...]],
    program: Callable[[Library], Program],
    expected: Callable[..., Array],
    **options: Any,
) -> Row:
    specs: tuple[Spec | None, ...] = options.pop("specs")
    return ArrayRow(
        key=key,
        title=title,
        claims=CLAIMS,
        inputs=inputs,
        specs=specs,
        program=program,
        expected=expected,
        plain=True,
        **options,
    )


ROWS: tuple[Row, ...] = (
    _row(
        "permute-elements",
        "x at perm, 16 M elements P((i,j))",
        lambda: (normal(COUNT), order(COUNT)),
        lambda library: lambda x, at: x[at],
        lambda x, at: x[at],
        specs=(FLAT, FLAT),
        layout=FLAT,
    ),
    _row(
        "permute-rows",
        "x at perm, 262144 rows of 64 P((i,j))",
        lambda: (normal(COUNT // WIDTH, WIDTH), order(COUNT // WIDTH)),
        lambda library: lambda x, at: x[at],
        lambda x, at: x[at],
        specs=(FLAT, FLAT),
        layout=FLAT,
    ),
    _row(
        "mask",
        "x at a mask, 16 M elements P((i,j)), half of them",
        halves,
        lambda library: lambda x, mask: x[mask],
        lambda x, mask: x[mask],
        specs=(FLAT, FLAT),
        has_jit=False,
    ),
    _row(
        "take-along",
        "take_along_axis(x, at, 1), 262144 x 64 P((i,j))",
        lambda: (
            normal(COUNT // WIDTH, WIDTH),
            places(COUNT // WIDTH, WIDTH, below=WIDTH),
        ),
        lambda library: lambda x, at: library.numpy.take_along_axis(x, at, 1),
        lambda x, at: np.take_along_axis(x, at, 1),
        specs=(FLAT, FLAT),
    ),
    _row(
        "take-along-split",
        "take_along_axis(x, at, 0), 262144 x 64 P((i,j))",
        lambda: (
            normal(COUNT // WIDTH, WIDTH),
            places(COUNT // WIDTH, WIDTH, below=COUNT // WIDTH),
        ),
        lambda library: lambda x, at: library.numpy.take_along_axis(x, at, 0),
        lambda x, at: np.take_along_axis(x, at, 0),
        specs=(FLAT, FLAT),
        layout=FLAT,
    ),
    _row(
        "repeat",
        "repeat(x, 8), 2 M elements P((i,j))",
        lambda: (normal(COUNT // 8),),
        lambda library: lambda x: library.numpy.repeat(x, 8),
        lambda x: np.repeat(x, 8),
        specs=(FLAT,),
    ),
    _row(
        "add-at",
        "add.at(x, at, v), 16 M elements P((i,j))",
        lambda: (normal(COUNT), order(COUNT), normal(COUNT, seed=1)),
        lambda library: lambda x, at, v: x.at[at].add(v),
        added,
        specs=(FLAT, FLAT, FLAT),
        layout=FLAT,
        tolerance=1e-6,
    ),
    _row(
        "embedding-gradient",
        "add.at(x, at, v), 65536 rows of 64, 262144 times P((i,j))",
        lambda: (
            normal(1 << 16, WIDTH),
            places(1 << 18, below=1 << 16),
            normal(1 << 18, WIDTH, seed=1),
        ),
        lambda library: lambda x, at, v: x.at[at].add(v),
        added,
        specs=(FLAT, FLAT, FLAT),
        layout=FLAT,
        tolerance=1e-5,
    ),
)
