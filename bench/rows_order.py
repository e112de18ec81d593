"""Rows of order, running totals and repetition, in float32: 64 MiB that are split 8 ways."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.by_hand import Array
from bench.claims import JAX_EAGER, JAX_JIT, NUMPY, Faster
from bench.harness import Peer, Row
from bench.libraries import Library
from bench.row import ArrayRow, Program
from bench.rows_foundation import FLAT, GRID, SIDE, normal
from bench.rows_positions import CLAIMS, COUNT, order

BESIDE_NUMPY = [Faster(1 / 1.3, than=NUMPY)]
PARTS = np.asarray((5, 50, 95), np.float32)
OFTEN = 8


class BesideNumPy(ArrayRow):
    """A row without JAX, which on 8 host devices takes seconds for a sixteenth of the elements."""

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of meshard and NumPy."""
        makers = super().peers()
        return {name: make for name, make in makers.items() if name not in (JAX_EAGER, JAX_JIT)}


def _beside_numpy(
    key: str,
    title: str,
    function: Callable[..., Any],
    shape: tuple[int, ...] = (COUNT,),
    **more: Any,
) -> Row:
    """Return a row of one function of NumPy's names, of one array.

    Args:
        key: see `bench.harness.Row`.
        title: see there.
        function: from the module with the names, and the array.
        shape: the array's.
        more: what else an `ArrayRow` takes.
    """

    def program(library: Library) -> Program:
        return lambda x: function(library.numpy, x)

    return BesideNumPy(
        key=key,
        title=title,
        claims=BESIDE_NUMPY,
        inputs=more.pop("inputs", lambda: (normal(*shape),)),
        specs=(more.pop("spec", FLAT),),
        program=program,
        expected=lambda x: function(np, x),
        plain=True,
        **more,
    )


def _beside_both(key: str, title: str, function: Callable[..., Any], count: int) -> Row:
    """Return a row of one function of NumPy's names, of an array of one dim."""

    def program(library: Library) -> Program:
        return lambda x: function(library.numpy, x)

    def expected(x: Array) -> Array:
        found: Array = function(np, x)
        return found

    return ArrayRow(
        key=key,
        title=title,
        claims=CLAIMS,
        inputs=lambda: (normal(count),),
        specs=(FLAT,),
        program=program,
        expected=expected,
        plain=True,
    )


ROWS: tuple[Row, ...] = (
    _beside_numpy("median", "median(x), 16 M elements P((i,j))", lambda np_, x: np_.median(x)),
    _beside_numpy(
        "median-grid",
        "median(x), 4096 x 4096 P(i,j)",
        lambda np_, x: np_.median(x),
        (SIDE, SIDE),
        spec=GRID,
    ),
    _beside_numpy(
        "median-rows",
        "median(x, axis=1), 4096 x 4096 P((i,j))",
        lambda np_, x: np_.median(x, axis=1),
        (SIDE, SIDE),
    ),
    _beside_numpy(
        "nanmedian", "nanmedian(x), 16 M elements P((i,j))", lambda np_, x: np_.nanmedian(x)
    ),
    _beside_numpy(
        "percentile",
        "percentile(x, [5, 50, 95]), 16 M elements P((i,j))",
        lambda np_, x: np_.percentile(x, PARTS),
    ),
    _beside_numpy("sort", "sort(x), 16 M elements P((i,j))", lambda np_, x: np_.sort(x)),
    _beside_numpy(
        "argsort",
        "argsort(x), 16 M elements P((i,j)), no two equal",
        lambda np_, x: np_.argsort(x),
        inputs=lambda: (order(COUNT).astype(np.float32),),
        layout=FLAT,
    ),
    _beside_numpy(
        "partition",
        "partition(x, n / 2) at n / 2, 16 M elements P((i,j))",
        lambda np_, x: np_.partition(x, COUNT // 2)[COUNT // 2],
    ),
    _beside_numpy(
        "cumsum",
        "cumsum(x), 16 M elements P((i,j))",
        lambda np_, x: np_.cumsum(x),
        layout=FLAT,
        tolerance=1e-3,
    ),
    _beside_numpy(
        "cumsum-leading",
        "cumsum(x, axis=0), 4096 x 4096 P((i,j))",
        lambda np_, x: np_.cumsum(x, axis=0),
        (SIDE, SIDE),
        layout=FLAT,
        tolerance=1e-3,
    ),
    _beside_both(
        "tile",
        f"tile(x, {OFTEN}), 2 M elements P((i,j))",
        lambda np_, x: np_.tile(x, OFTEN),
        COUNT // OFTEN,
    ),
    _beside_both(
        "roll", "roll(x, 12345), 16 M elements P((i,j))", lambda np_, x: np_.roll(x, 12345), COUNT
    ),
)
