"""The boundary of a shard_map body: arrays become grids on the way in, and arrays on the way out.

In: an Array (or, in a nested body, one for each coordinate of the outer body's axes) and a spec
over the axes that the body makes manual. Out: the cells that the devices hold, by reference; an
array that does not lie so is resharded first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.layout import even_cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.runtime.agree import agree
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import home, placed
from meshard.runtime.types import ArrayType
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.recording_wires import lay_out
from meshard.transforms.body.scope import Extent, GridKind, Running, Scope

Axes = tuple[tuple[str, ...], ...]


def cell_type(scope: Scope, shape: tuple[int, ...], dtype: Any) -> ArrayType:
    """Return the type of a cell that is a block."""
    return scope.world.type_of(shape, dtype, home(scope.world), False)


def _added(body: Running) -> Extent:
    """Return the axes that a body makes manual besides those of the bodies around it."""
    around = body.outer.scope.sizes if body.outer is not None else {}
    return tuple(a for a in body.scope.manual if a not in around)


def _pieces(axes: Axes, sizes: dict[str, int], order: Sequence[str]) -> Any:
    """Return the pieces of a layout by position along some axes, then in the layout's own order.

    ``axes`` are those of each dim; of these, the ones in ``order`` come first, in that order.
    """
    flat = [a for dim in axes for a in dim]
    numbers = np.arange(math.prod(sizes[a] for a in flat)).reshape([sizes[a] for a in flat])
    first = [flat.index(a) for a in order if a in flat]
    rest = [i for i in range(len(flat)) if i not in first]
    shape = [sizes[a] if a in flat else 1 for a in order]
    return numbers.transpose(first + rest).reshape(*shape, -1)


def _objects(values: Sequence[Any]) -> Any:
    """Return an object array of values; given a list, NumPy would look into the arrays in it."""
    found = np.empty(len(values), object)
    for i, value in enumerate(values):
        found[i] = value
    return found


# in


def to_grid(
    body: Running,
    arrays: Sequence[Any],
    spec: PartitionSpec,
    varies: frozenset[str] = frozenset(),
    like: ArrayType | None = None,
) -> Grid:
    """Return the grid that arrays are to a body.

    Args:
        body: the body.
        arrays: the array, or one for each coordinate of the outer body (None: not wanted here).
        spec: how the axes that the body makes manual split it; it is known to divide.
        varies: the outer axes over which it varies.
        like: the type of one of the arrays; needed where it may be that none is wanted here.
    """
    scope = body.scope
    if body.outer is None and not scope.auto:
        type = arrays[0]._type if like is None else like
        return way_in(scope, type, spec)(body, arrays[0])
    added = _added(body)
    submeshes = body.outer.scope.submeshes if body.outer is not None else (scope.mesh,)
    cells = np.empty((len(submeshes), scope.count(added)), object)
    first = arrays[0]._type if like is None else like
    axes: Axes = spec.axes(first.ndim)
    kept = _kept(first, submeshes[0], axes, scope)
    for number, (x, mesh) in enumerate(zip(arrays, submeshes, strict=True)):
        if x is not None:
            cells[number] = _cut(scope, x, mesh, axes, kept, added)
    local = _local_shape(first.shape, axes, scope.sizes)
    now = varies | {a for dim in axes for a in dim}
    extent = scope.extent(scope.manual)
    if scope.auto:
        sharding = NamedSharding(scope.submeshes[0], PartitionSpec(*kept))
        kind = scope.kind(scope.world.type_of(local, first.dtype, sharding, True), extent, now)
    else:
        kind = scope.kind(cell_type(scope, local, first.dtype), extent, now)
    outer = body.outer.scope.manual if body.outer is not None else ()
    grid = cells.reshape([scope.sizes[a] for a in (*outer, *added)])
    order = [(*outer, *added).index(a) for a in scope.manual]
    return Grid(body, kind, tuple(grid.transpose(order).ravel()))


Enter = Callable[[Running, Array | None], Grid]
"""From an array of one type to a grid; from None, where cells are not wanted, to one without."""


def way_in(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Enter:
    """Return how arrays of a type enter a body along all axes of a mesh: cells are their blocks."""
    key = ("enter", type, spec)
    found: Enter | None = scope.decisions.get(key)
    if found is None:
        found = scope.decisions[key] = _way_in(scope, type, spec)
    return found


def _way_in(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Enter:
    axes = spec.axes(type.ndim)
    named = frozenset(a for dim in axes for a in dim)
    local = _local_shape(type.shape, axes, scope.sizes)
    kind = scope.kind(cell_type(scope, local, type.dtype), scope.extent(named), named)
    pieces = _pieces(axes, scope.sizes, [a for a in scope.manual if a in named]).ravel().tolist()
    wanted = NamedSharding(scope.mesh, spec)
    there = type.sharding == wanted
    nothing = (None,) * len(pieces)
    params = (("in_spec", spec),)
    world = scope.world

    def enter(body: Running, x: Array | None) -> Grid:
        if x is None:
            return Grid(body, kind, nothing)
        if world.agreement is not None:
            agree(world, "shard_map", params, (type,))
        blocks = (x if there else placed(x, wanted, what="shard_map"))._live()
        return Grid(body, kind, tuple([blocks[p] for p in pieces]))

    return enter


def _local_shape(shape: tuple[int, ...], axes: Axes, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(
        [n // math.prod([sizes[a] for a in dim]) for n, dim in zip(shape, axes, strict=True)]
    )


def _kept(x: Any, mesh: Mesh, axes: Axes, scope: Scope) -> Axes:
    """Return the automatic axes that may go on splitting each dim of an array."""
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh:
        return tuple([()] * x.ndim)
    local = _local_shape(x.shape, axes, scope.sizes)
    kept: list[tuple[str, ...]] = []
    for n, dim in zip(local, sharding.spec.axes(x.ndim), strict=True):
        auto = tuple(a for a in dim if a in scope.auto)
        fits = n % math.prod([mesh.shape[a] for a in auto]) == 0
        kept.append(auto if fits else ())
    return tuple(kept)


def _cut(scope: Scope, x: Array, mesh: Mesh, axes: Axes, kept: Axes, added: Extent) -> Any:
    """Return the cells of one array at each coordinate of the added axes, in an object array."""
    both = tuple(m + k for m, k in zip(axes, kept, strict=True))
    x = placed(x, NamedSharding(mesh, PartitionSpec(*both)), what="shard_map")
    blocks = x._live()
    pieces = _pieces(both, dict(mesh.shape), added)
    whole = np.broadcast_to(pieces, (*[mesh.shape[a] for a in added], pieces.shape[-1]))
    rows = whole.reshape(-1, pieces.shape[-1])
    if not scope.auto:
        return _objects([blocks[row[0]] for row in rows])
    cells = np.empty(len(rows), object)
    local = _local_shape(x.shape, axes, scope.sizes)
    names = [mesh.axis_names.index(a) for a in (*added, *scope.auto)]
    devices = mesh.devices.transpose(names)
    devices = devices.reshape(len(rows), *devices.shape[len(added) :])
    for number, row in enumerate(rows):
        sharding = NamedSharding(Mesh(devices[number], scope.auto), PartitionSpec(*kept))
        kind = scope.world.type_of(local, x.dtype, sharding, True)
        cells[number] = Array(kind, tuple([blocks[p] for p in row]))
    return cells


# out


def to_array(body: Running, grid: Grid, spec: PartitionSpec) -> Any:
    """Return the array that a body's grid is outside: an Array, or a grid of the outer body."""
    scope = body.scope
    axes = spec.axes(grid.ndim)
    if body.outer is None and not scope.auto:
        return way_out(scope, grid.kind, spec)(grid)
    added = _added(body)
    outer = body.outer
    around = outer.scope.manual if outer is not None else ()
    submeshes = outer.scope.submeshes if outer is not None else (scope.mesh,)
    # All cells, by outer coordinate and by coordinate along the added axes.
    full = scope.extent(scope.manual)
    found = [grid.cells[i] for i in scope.onto(grid.kind.extent, full)]
    inner = _inner_sharding(scope, grid)
    if inner is not None:
        alike = [NamedSharding(m, inner.spec, uneven=inner.uneven) for m in scope.submeshes]
        everywhere = body.mask is None
        found = lay_out(scope, grid.kind, found, alike, "shard_map", everywhere=everywhere)
    cells = _objects(found).reshape([scope.sizes[a] for a in scope.manual])
    order = [scope.manual.index(a) for a in (*around, *added)]
    cells = cells.transpose(order).reshape(len(submeshes), *[scope.sizes[a] for a in added])
    arrays = [
        _joined(scope, cells[number], mesh, grid, axes, added, inner)
        for number, mesh in enumerate(submeshes)
    ]
    shape, sharding = _outer_type(scope, submeshes[0], grid, axes, inner)
    world = scope.world
    if outer is None:
        whole = world.type_of(shape, grid.dtype, sharding, True)
        return Array(whole, (None,) * whole.layout.piece_count) if arrays[0] is None else arrays[0]
    kind = outer.scope.kind(
        world.type_of(shape, grid.dtype, sharding, True),
        outer.scope.extent(outer.scope.manual),
        grid.kind.varies - frozenset(added),
    )
    return Grid(outer, kind, tuple(arrays))


Leave = Callable[[Grid], Array]
"""From a grid of one kind to the array that it is outside."""


def way_out(scope: Scope, kind: GridKind, spec: PartitionSpec) -> Leave:
    """Return how grids of a kind leave a body along all axes of a mesh: cells become blocks."""
    key = ("leave", kind, spec)
    found: Leave | None = scope.decisions.get(key)
    if found is None:
        found = scope.decisions[key] = _way_out(scope, kind, spec)
    return found


def _way_out(scope: Scope, kind: GridKind, spec: PartitionSpec) -> Leave:
    axes = spec.axes(kind.ndim)
    sharding = NamedSharding(scope.mesh, spec)
    shape = tuple(
        n * math.prod(scope.sizes[a] for a in dim) for n, dim in zip(kind.shape, axes, strict=True)
    )
    named = [a for a in scope.manual if any(a in dim for dim in axes)]
    extent = scope.extent(named)
    numbers = np.argsort(_pieces(axes, scope.sizes, named).ravel()).tolist()
    rest = scope.extent(a for a in kind.extent if a not in extent)
    wide = scope.extent((*extent, *rest))
    by_place = np.array(scope.onto(kind.extent, wide)).reshape([scope.sizes[a] for a in wide])
    order = [wide.index(a) for a in (*extent, *rest)]
    choices = by_place.transpose(order).reshape(scope.count(extent), -1)[numbers].tolist()
    type = scope.world.type_of(shape, kind.dtype, sharding, True)
    firsts = [c[0] for c in choices]

    def leave(grid: Grid) -> Array:
        cells = grid.cells
        return Array(type, tuple([cells[i] for i in firsts]))

    def leave_first(grid: Grid) -> Array:
        # Replication is claimed and not checked: the first cell that this process holds is taken.
        cells = grid.cells
        blocks = [next((cells[i] for i in c if cells[i] is not None), None) for c in choices]
        return Array(type, tuple(blocks))

    return leave_first if rest else leave


def _inner_sharding(scope: Scope, grid: Grid) -> NamedSharding | None:
    """Return how the cells lie on the automatic axes; None where there are none."""
    if not scope.auto:
        return None
    sharding = grid.kind.type.sharding
    if isinstance(sharding, NamedSharding) and sharding.mesh == scope.submeshes[0]:
        return sharding
    return NamedSharding(scope.submeshes[0], PartitionSpec())


def _outer_type(
    scope: Scope, mesh: Mesh, grid: Grid, axes: Axes, inner: NamedSharding | None
) -> tuple[tuple[int, ...], NamedSharding]:
    """Return the shape and the sharding of what a grid is joined to."""
    counts = [math.prod(mesh.shape[a] for a in dim) for dim in axes]
    shape = tuple([n * c for n, c in zip(grid.shape, counts, strict=True)])
    if inner is None:
        return shape, NamedSharding(mesh, PartitionSpec(*axes))
    both = tuple(m + k for m, k in zip(axes, inner.spec.axes(grid.ndim), strict=True))
    cuts = []
    for n, count, own in zip(grid.shape, counts, inner.dim_cuts(grid.shape), strict=True):
        wide = (*(i * n + c for i in range(count) for c in own[:-1]), n * count)
        total = n * count
        shards = len(wide) - 1
        even = total % shards == 0 and wide == even_cuts(total, shards)
        cuts.append(None if even else wide)
    uneven = tuple(cuts) if any(c is not None for c in cuts) else None
    return shape, NamedSharding(mesh, PartitionSpec(*both), uneven=uneven)


def _joined(
    scope: Scope,
    cells: Any,
    mesh: Mesh,
    grid: Grid,
    axes: Axes,
    added: Extent,
    inner: NamedSharding | None,
) -> Array | None:
    """Join the cells at the coordinates of the added axes to one array; None if there are none."""
    flat = [a for dim in axes for a in dim]
    # Along axes that do not split it any cell will do: the first that there is.
    rest = [i for i, a in enumerate(added) if a not in flat]
    kept = [i for i, a in enumerate(added) if a in flat]
    count = math.prod(cells.shape[i] for i in kept)
    sides = cells.transpose(kept + rest).reshape(count, -1)
    chosen = [next((c for c in side if c is not None), None) for side in sides]
    if all(c is None for c in chosen):
        return None
    shape, sharding = _outer_type(scope, mesh, grid, axes, inner)
    both = sharding.spec.axes(grid.ndim)
    pieces = _pieces(both, dict(mesh.shape), [added[i] for i in kept])
    blocks: list[Any] = [None] * math.prod(pieces.shape)
    rows = pieces.reshape(-1, pieces.shape[-1])
    for cell, row in zip(chosen, rows, strict=True):
        if cell is not None:
            parts = cell._live() if type(cell) is Array else (cell,)
            for piece, block in zip(row, parts, strict=True):
                blocks[piece] = block
    return Array(scope.world.type_of(shape, grid.dtype, sharding, True), tuple(blocks))
