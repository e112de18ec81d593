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
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ShardingError
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import placed
from meshard.runtime.types import ArrayType
from meshard.transforms.body.body import Body
from meshard.transforms.body.boundary import cell_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import Extent, GridKind, Mask, Scope


def choices(body: Body, x: Grid) -> Any:
    """Return a grid of scalars as an array over all manual axes; -1 where it is not known here."""
    scope, extent = body.scope, x.kind.extent
    known = [_scalar(c) for c in x.cells]
    values = np.array([-1 if c is None else int(c) for c in known], np.int64)
    shape = [scope.sizes[a] if a in extent else 1 for a in scope.manual]
    return np.broadcast_to(values.reshape(shape), scope.here.shape)


def _scalar(cell: Any) -> Any:
    """Return the value of a cell without dims; None where this process does not hold it."""
    if type(cell) is Array:
        return next((b for b in cell._live() if b is not None), None)
    return cell


def common(x: Grid) -> int | None:
    """Return the one value of a grid of scalars; None where none of its cells is computed here."""
    found = [c for c in map(_scalar, x.cells) if c is not None]
    return int(found[0]) if found else None


def narrowed(body: Body, x: Grid, flags: Any) -> Mask:
    """Return the mask of the devices that run now and are flagged, where ``x`` chose the flags."""
    old = body.mask
    grid = flags if old is None else old.grid & flags
    axes, varies = x.kind.extent, x.kind.varies
    if old is not None:
        axes, varies = body.scope.extent((*old.axes, *axes)), old.varies | varies
    return Mask(axes, varies, np.broadcast_to(grid, body.scope.here.shape))


def empty_mask(body: Body, varies: frozenset[str] = frozenset()) -> Mask:
    """Return the mask under which nothing is computed but types.

    ``varies`` are the axes over which a condition varies that decides whether the code runs.
    """
    old = body.mask
    axes: Extent = ()
    if old is not None:
        axes, varies = old.axes, old.varies | varies
    return Mask(axes, varies, np.zeros(body.scope.here.shape, bool))


def idle(body: Body) -> bool:
    """Whether none of this process's devices runs the code at hand."""
    return body.mask is not None and not (body.mask.grid & body.scope.here).any()


def local_type(scope: Scope, shape: tuple[int, ...], dtype: Any) -> ArrayType:
    """Return the type of a cell that is not split over automatic axes."""
    if not scope.auto:
        return cell_type(scope, shape, dtype)
    sharding = NamedSharding(scope.submeshes[0], PartitionSpec())
    return scope.world.type_of(shape, dtype, sharding, True)


def abstract_grid(body: Body, kind: GridKind) -> Grid:
    """Return a value of a kind without cells."""
    return Grid(body, kind, (None,) * body.scope.count(kind.extent))


def alike(x: Grid, sharding: Any) -> Grid:
    """Return the value with one layout for its cells, if they are Arrays on automatic axes."""
    body, kind = x.body, x.kind
    if not body.scope.auto or kind.type.sharding == sharding:
        return x
    cells = _alike(body.scope, x.cells, sharding)
    type = body.scope.world.type_of(kind.shape, kind.dtype, sharding, True)
    found = Grid(body, body.scope.kind(type, kind.extent, kind.varies), tuple(cells))
    if body.recorder is not None:
        body.recorder.lifted(found, x)
    return found


def widened(x: Grid, varies: frozenset[str]) -> Grid:
    """Return the value, counting as varying over more axes."""
    if varies <= x.kind.varies:
        return x
    body = x.body
    kind = body.scope.kind(x.kind.type, x.kind.extent, x.kind.varies | varies, x.kind.weak)
    found = Grid(body, kind, x.cells)
    if body.recorder is not None:
        body.recorder.lifted(found, x)
    return found


def merged(
    body: Body, branches: Sequence[Grid], chosen: Any, by: GridKind, axes: Sequence[str]
) -> Grid:
    """Merge several values: each cell is taken from the branch that was chosen for it.

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
    """Return cells, Arrays on automatic axes, that all have one layout."""
    if not isinstance(sharding, NamedSharding):
        raise ShardingError(f"A cell is laid out as {sharding!r}, not on the automatic axes.")
    return [
        None if c is None else placed(c, NamedSharding(m, sharding.spec, uneven=sharding.uneven))
        for c, m in zip(cells, scope.submeshes, strict=True)
    ]
