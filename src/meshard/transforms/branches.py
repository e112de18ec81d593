"""Code that only some devices run: masks from predicates, and the merging of what they computed.

In: a grid of truth values or branch numbers. Out: a mask for each branch, under which the body's
interpreter computes only the cells of its devices; and afterwards one value per leaf, each cell
taken by reference from the branch that its devices ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.sharding import NamedSharding
from meshard.errors import ShardingError
from meshard.runtime.array import Array
from meshard.runtime.place import placed

from .body import Body
from .grid import Grid
from .scope import GridKind, Mask, Scope

__all__ = ["choices", "empty_mask", "ghost", "merged", "narrowed", "widened"]


def choices(body: Body, x: Grid) -> Any:
    """Return a grid of scalars as an array over all manual axes; -1 where it is not known here."""
    scope, extent = body.scope, x.kind.extent
    values = np.array([-1 if c is None else int(_scalar(c)) for c in x.cells], np.int64)
    shape = [scope.sizes[a] if a in extent else 1 for a in scope.manual]
    return np.broadcast_to(values.reshape(shape), scope.here.shape)


def _scalar(cell: Any) -> Any:
    if isinstance(cell, Array):
        block = next((b for b in cell._live() if b is not None), None)
        return -1 if block is None else block
    return cell


def narrowed(body: Body, x: Grid, flags: Any) -> Mask:
    """Return the mask of the devices that run now and are flagged, where ``x`` chose the flags."""
    old = body.mask
    grid = flags if old is None else old.grid & flags
    axes, varies = x.kind.extent, x.kind.varies
    if old is not None:
        axes, varies = body.scope.extent((*old.axes, *axes)), old.varies | varies
    return Mask(axes, varies, np.broadcast_to(grid, body.scope.here.shape))


def empty_mask(body: Body) -> Mask:
    """Return the mask under which nothing is computed but types."""
    old = body.mask
    axes, varies = ((), frozenset[str]()) if old is None else (old.axes, old.varies)
    return Mask(axes, varies, np.zeros(body.scope.here.shape, bool))


def ghost(body: Body, kind: GridKind) -> Grid:
    """Return a value of a kind without cells."""
    return Grid(body, kind, (None,) * body.scope.count(kind.extent))


def widened(x: Grid, varies: frozenset[str]) -> Grid:
    """Return the value, counting as varying over more axes."""
    if varies <= x.kind.varies:
        return x
    body = x.body
    kind = body.scope.kind(x.kind.type, x.kind.extent, x.kind.varies | varies)
    return Grid(body, kind, x.cells)


def merged(
    body: Body, branches: Sequence[Grid], chosen: Any, by: GridKind, axes: Sequence[str]
) -> Grid:
    """Return one value of several, each cell that of the branch that was chosen for it.

    Args:
        body: the body.
        branches: the values; they agree in shape and dtype.
        chosen: over all manual axes the number of the branch.
        by: the kind of what chose.
        axes: the axes along which the choice differs.
    """
    scope = body.scope
    varies = by.varies.union(*(x.kind.varies for x in branches))
    extent = scope.extent([*axes, *(a for x in branches for a in x.kind.extent)])
    index = tuple([slice(None) if a in extent else 0 for a in scope.manual])
    numbers = np.where(scope.here, chosen, -1)
    for place, axis in enumerate(scope.manual):
        if axis not in extent and scope.sizes[axis] > 1:
            # Not known for coordinates of other processes: take what any position knows.
            numbers = numbers.max(axis=place, keepdims=True)
    flat = numbers[index].ravel().tolist()
    onto = [scope.onto(x.kind.extent, extent) for x in branches]
    cells = [
        None if n < 0 or n >= len(branches) else branches[n].cells[onto[n][i]]
        for i, n in enumerate(flat)
    ]
    first = branches[0].kind.type
    if scope.auto:
        cells = _alike(scope, cells, first.sharding)
    return Grid(body, scope.kind(first, extent, varies), tuple(cells))


def _alike(scope: Scope, cells: Sequence[Any], sharding: Any) -> list[Any]:
    """Return cells, Arrays on automatic axes, that all lie in the same way."""
    if not isinstance(sharding, NamedSharding):
        raise ShardingError(f"A cell lies as {sharding!r}, not on the automatic axes.")
    return [
        None if c is None else placed(c, NamedSharding(m, sharding.spec, uneven=sharding.uneven))
        for c, m in zip(cells, scope.submeshes, strict=True)
    ]
