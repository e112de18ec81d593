"""All rows, in the order of the table; every issue adds its rows module here."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from bench import (
    rows_derivatives,
    rows_foundation,
    rows_interop,
    rows_jit,
    rows_linalg,
    rows_order,
    rows_planning,
    rows_positions,
    rows_programs,
    rows_random,
    rows_ranks,
    rows_sparse,
)
from bench.harness import Row

GROUPS: Mapping[str, Sequence[Row]] = {
    "one operation": rows_foundation.ROWS,
    "JAX's arrays": rows_interop.ROWS,
    "planning": rows_planning.ROWS,
    "positions": rows_positions.ROWS,
    "linear algebra": rows_linalg.ROWS,
    "order": rows_order.ROWS,
    "programs": rows_programs.ROWS,
    "jitted": rows_jit.ROWS,
    "gradients": rows_derivatives.ROWS,
    "random": rows_random.ROWS,
    "sparse": rows_sparse.ROWS,
    "processes": rows_ranks.ROWS,
}
ROWS: tuple[Row, ...] = tuple(row for rows in GROUPS.values() for row in rows)
GROUP_OF = {row.key: group for group, rows in GROUPS.items() for row in rows}

QUICK = (
    *("reshard-swap", "reshard-columns", "small-op", "add", "gram", "arange"),
    *("plan-131072", "psum", "psum-scatter", "all-gather", "jit-kmeans"),
    *("jit-tiny", "jit-tanh-chain", "jit-arithmetic", "jit-softmax", "jit-softmax-split"),
    *("jit-layer-norm", "jit-heat", "jit-power", "jit-ridge", "psum-small-jit"),
    *("random-normal", "ranks-columns", "ranks-tree", "ranks-tiny", "ranks-allreduce", "ranks-cg"),
    "sparse-cg",
)
"""A row of each kind, for a look that takes less than two minutes."""


def select(pattern: str | None, quick: bool = False) -> list[Row]:
    """Rows whose key or title contains `pattern`, or matches it where it has a `*`.

    Args:
        pattern: None for all rows, or for the quick ones.
        quick: whether rows that nobody asked for are left out.
    """
    if pattern is None:
        return [row for row in ROWS if not quick or row.key in QUICK]
    glob = pattern.lower() if "*" in pattern else f"*{pattern.lower()}*"
    return [row for row in ROWS if any(fnmatchcase(t.lower(), glob) for t in (row.key, row.title))]
