"""Moving and loading leaf by leaf, so that a tree larger than memory passes through.

In: a tree or files, and how the leaves are to be laid out. Out: the leaves, one after the other, in
the order that is cheapest to read; what the caller no longer refers to is freed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from meshard.algebra.arguments import flag_of
from meshard.algebra.boundary import bounded
from meshard.plan.figures.window import checked_window
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.moved import leaf_names
from meshard.runtime.moving.reshard import Options
from meshard.runtime.trees.trees import flatten_with_accessors
from meshard.weights.moving.reshard import reshard_tree

_TOGETHER = 64 << 20
"""Bytes of leaves that are moved together if memory is not limited."""


def reshard_iter(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    max_bytes: int | None = None,
    alive: Collection[Any] | None = None,
    dtype: Any = None,
) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a tree in other layouts, one after the other.

    All processes of a job take all of them, in the same order. Small arrays are moved together.

    Args:
        x: a tree of arrays; other leaves are placed.
        sharding: see `reshard`.
        donate: delete each source array when it has been moved. An array that is in two places is
            deleted after the last.
        max_bytes: the most bytes of arrays that are moved before the first of them is yielded, and
            in flight; a larger array is moved alone.
        alive: see `reshard`.
        dtype: see `reshard`.

    Yields:
        Path and array, the path's keys joined by dots.

    Raises:
        ShardingError, UnequalError, ArgumentError, TreeError, DeletedArrayError, DataLoss: see
            `reshard`.

    >>> import numpy as np, meshard
    >>> from meshard.resharding import reshard_iter
    >>> tree = {"a": np.arange(4), "b": np.ones(3)}
    >>> [(name, y.shape) for name, y in reshard_iter(tree, meshard.devices()[0])]
    [('a', (4,)), ('b', (3,))]
    """
    what = "reshard_iter"
    donate = flag_of(donate, what, "donate")
    window = checked_window(max_bytes, what)
    accessors, leaves, _ = flatten_with_accessors(x)
    targets = prefix_leaves(sharding, x, what, "shardings")
    names = leaf_names(accessors)
    known = [k for k, leaf in enumerate(leaves) if leaf is not None]
    options = Options(False, max_bytes=max_bytes, alive=alive)
    last = {id(leaves[k]): k for k in known}

    def moved() -> Iterator[tuple[str, Array]]:
        for batch in _batches(leaves, known, window or _TOGETHER):
            given, places = [leaves[k] for k in batch], [targets[k] for k in batch]
            found = reshard_tree(given, places, options, dtype)
            for k in batch:
                leaf = leaves[k]
                kept = any(leaf is one for one in found)
                if donate and last[id(leaf)] == k and type(leaf) is Array and not kept:
                    leaf.delete()
            given.clear()
            while found:
                yield names[batch[len(batch) - len(found)]], found.pop(0)

    return bounded(moved)()


def _batches(leaves: list[Any], numbers: list[int], most: int) -> Iterator[list[int]]:
    """Yield the numbers of leaves that are moved together."""
    batch: list[int] = []
    size = 0
    for k in numbers:
        nbytes = int(getattr(leaves[k], "nbytes", 8))
        if batch and size + nbytes > most:
            yield batch
            batch, size = [], 0
        batch.append(k)
        size += nbytes
    if batch:
        yield batch
