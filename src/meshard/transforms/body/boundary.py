"""The boundary of a shard_map body: arrays become grids on the way in, and arrays on the way out.

In: an Array (or, in a nested body, one for each coordinate of the outer body's axes) and a spec
over the axes that the body makes manual. Out: the cells that the devices hold, by reference; an
array with another layout is resharded first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.layout import even_cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.runtime.agree import agree
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import home, placed
from meshard.runtime.types import ArrayType
from meshard.runtime.world import Memo, memoized
from meshard.transforms.body.grid import Cells, Grid
from meshard.transforms.body.scope import Extent, GridKind, Running, Scope, lay_out

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


_WAYS_IN: Memo[tuple[ArrayType, PartitionSpec], Enter] = Memo("ways into bodies", 1 << 12)


def way_in(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Enter:
    """Return how arrays of a type enter a body that no other encloses; the spec is known to fit."""
    found = known_way_in(scope, type, spec)
    if found is None:
        enter = _among_arrays(scope, type, spec) if scope.auto else _way_in(scope, type, spec)
        found = _WAYS_IN.keep(scope, (type, spec), enter)
    return found


def known_way_in(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Enter | None:
    """Return how arrays of a type enter a body, if some have before: their spec was checked."""
    return _WAYS_IN.table(scope).get((type, spec))


def _among_arrays(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Enter:
    """Return how arrays of a type enter a body whose cells are Arrays on the automatic axes."""

    def enter(body: Running, x: Array | None) -> Grid:
        return to_grid(body, [x], spec, like=type)

    return enter


def _way_in(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Enter:
    axes = spec.axes(type.ndim)
    named = frozenset(a for dim in axes for a in dim)
    local = _local_shape(type.shape, axes, scope.sizes)
    kind = scope.kind(cell_type(scope, local, type.dtype), scope.extent(named), named)
    nothing = (None,) * scope.count(kind.extent)
    cells_of = cells_in(scope, type, spec)

    def enter(body: Running, x: Array | None) -> Grid:
        return Grid(body, kind, nothing if x is None else cells_of(x))

    return enter


@memoized(most=1 << 12)
def cells_in(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Callable[[Array], Cells]:
    """Return what makes the cells of a body of an array of a type, which no other body encloses.

    Bringing it in is a step of the processes that it spans.
    """
    world, cells_of, params = scope.world, _cells_in(scope, type, spec), (("in_spec", spec),)
    if world.agreement is None:
        return cells_of

    def agreed(x: Array) -> Cells:
        agree(world, "shard_map", params, (type,))
        return cells_of(x)

    return agreed


def _cells_in(scope: Scope, type: ArrayType, spec: PartitionSpec) -> Callable[[Array], Cells]:
    axes = spec.axes(type.ndim)
    pieces = pieces_of_cells(scope, axes)
    wanted = NamedSharding(scope.mesh, spec)
    in_order = pieces == list(range(len(pieces)))
    if type.sharding == wanted and in_order:
        return lambda x: x._blocks or x._live()
    if in_order:
        return lambda x: placed(x, wanted, what="shard_map")._live()

    def cells_of(x: Array) -> Cells:
        blocks = placed(x, wanted, what="shard_map")._live()
        return tuple([blocks[p] for p in pieces])

    return cells_of


def pieces_of_cells(scope: Scope, axes: Axes) -> list[int]:
    """Return the piece that each cell is of an array that axes split."""
    order = [a for a in scope.manual if any(a in dim for dim in axes)]
    found: list[int] = _pieces(axes, scope.sizes, order).ravel().tolist()
    return found


def _counts(sizes: Mapping[str, int], axes: Axes) -> list[int]:
    """Return into how many parts axes split each dim."""
    return [math.prod([sizes[a] for a in dim]) for dim in axes]


def _local_shape(shape: tuple[int, ...], axes: Axes, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple([n // c for n, c in zip(shape, _counts(sizes, axes), strict=True)])


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
    scope, outer = body.scope, body.outer
    if outer is None and not scope.auto:
        return cells_out(scope, grid.kind, spec)(grid._blocks or grid._live())
    join = _Join(body, grid, spec)
    around = outer.scope.manual if outer is not None else ()
    submeshes = outer.scope.submeshes if outer is not None else (scope.mesh,)
    # All cells, by outer coordinate and by coordinate along the added axes.
    cells = _objects(join.laid_out()).reshape([scope.sizes[a] for a in scope.manual])
    order = [scope.manual.index(a) for a in (*around, *join.added)]
    cells = cells.transpose(order).reshape(len(submeshes), *[scope.sizes[a] for a in join.added])
    arrays = [join.array(cells[number], mesh) for number, mesh in enumerate(submeshes)]
    whole = join.type_on(submeshes[0])
    if outer is None:
        return Array(whole, (None,) * whole.layout.piece_count) if arrays[0] is None else arrays[0]
    every = outer.scope.extent(outer.scope.manual)
    kind = outer.scope.kind(whole, every, grid.kind.varies - frozenset(join.added))
    return Grid(outer, kind, tuple(arrays))


Leave = Callable[[Grid], Array]
"""From a grid of one kind to the array that it is outside."""


def way_out(scope: Scope, kind: GridKind, spec: PartitionSpec) -> Leave:
    """Return how grids of a kind leave a body along all axes of a mesh: cells become blocks."""
    join = cells_out(scope, kind, spec)
    return lambda grid: join(grid._blocks or grid._live())


@memoized(most=1 << 12)
def cells_out(scope: Scope, kind: GridKind, spec: PartitionSpec) -> Callable[[Cells], Array]:
    """Return what makes an array of the cells of a grid of a kind."""
    axes = spec.axes(kind.ndim)
    shape = tuple([n * c for n, c in zip(kind.shape, _counts(scope.sizes, axes), strict=True)])
    type = scope.world.type_of(shape, kind.dtype, NamedSharding(scope.mesh, spec), True)
    choices = cells_of_pieces(scope, kind.extent, axes)
    firsts = [c[0] for c in choices]

    def join(cells: Cells) -> Array:
        return Array(type, tuple([cells[i] for i in firsts]))

    def join_first(cells: Cells) -> Array:
        # Replication is claimed and not checked: the first cell that this process holds is taken.
        blocks = [next((cells[i] for i in c if cells[i] is not None), None) for c in choices]
        return Array(type, tuple(blocks))

    if max(map(len, choices)) > 1:
        return join_first
    in_order = firsts == list(range(scope.count(kind.extent)))
    return partial(Array, type) if in_order else join


def cells_of_pieces(scope: Scope, extent: Extent, axes: Axes) -> list[list[int]]:
    """Return for each piece of an array the cells, numbered over an extent, that can be it."""
    named = [a for a in scope.manual if any(a in dim for dim in axes)]
    split = scope.extent(named)
    rest = scope.extent(a for a in extent if a not in split)
    wide = scope.extent((*split, *rest))
    by_place = np.array(scope.onto(extent, wide)).reshape([scope.sizes[a] for a in wide])
    order = [wide.index(a) for a in (*split, *rest)]
    pieces = np.argsort(_pieces(axes, scope.sizes, named).ravel())
    found: list[list[int]] = (
        by_place.transpose(order).reshape(scope.count(split), -1)[pieces].tolist()
    )
    return found


@final
class _Join:
    """How the cells of a grid become an array outside of the body.

    Attributes:
        axes: the axes that the body makes manual and that split each dim of the array.
        added: the axes along which the cells are joined.
        inner: how the cells are laid out on the automatic axes; None where there are none.
    """

    def __init__(self, body: Running, grid: Grid, spec: PartitionSpec) -> None:
        self._body, self._grid = body, grid
        self.axes: Axes = spec.axes(grid.ndim)
        self.added = _added(body)
        self.inner = _inner_sharding(body.scope, grid.kind)

    def laid_out(self) -> list[Any]:
        """Return the cells at all coordinates, those on automatic axes laid out alike."""
        scope, kind, inner = self._body.scope, self._grid.kind, self.inner
        cells = [self._grid.cells[i] for i in scope.onto(kind.extent, scope.extent(scope.manual))]
        if inner is None:
            return cells
        alike = [NamedSharding(m, inner.spec, uneven=inner.uneven) for m in scope.submeshes]
        return lay_out(scope, kind, cells, alike, "shard_map", everywhere=self._body.mask is None)

    def type_on(self, mesh: Mesh) -> ArrayType:
        """Return the type of the array on a mesh."""
        grid, inner = self._grid, self.inner
        counts = _counts(mesh.shape, self.axes)
        shape = tuple([n * c for n, c in zip(grid.shape, counts, strict=True)])
        sharding = NamedSharding(mesh, PartitionSpec(*self.axes))
        if inner is not None:
            own = zip(self.axes, inner.spec.axes(grid.ndim), strict=True)
            uneven = _joined_cuts(grid.shape, counts, inner.dim_cuts(grid.shape))
            sharding = NamedSharding(mesh, PartitionSpec(*[m + k for m, k in own]), uneven=uneven)
        return self._body.scope.world.type_of(shape, grid.dtype, sharding, True)

    def array(self, cells: Any, mesh: Mesh) -> Array | None:
        """Join the cells at the coordinates of the added axes; None if there are none."""
        flat = [a for dim in self.axes for a in dim]
        # Along axes that do not split it any cell will do: the first that there is.
        rest = [i for i, a in enumerate(self.added) if a not in flat]
        kept = [i for i, a in enumerate(self.added) if a in flat]
        sides = cells.transpose(kept + rest).reshape(math.prod(cells.shape[i] for i in kept), -1)
        chosen = [next((c for c in side if c is not None), None) for side in sides]
        if all(c is None for c in chosen):
            return None
        type_ = self.type_on(mesh)
        sharding = type_.sharding
        assert isinstance(sharding, NamedSharding)
        split = sharding.spec.axes(type_.ndim)
        pieces = _pieces(split, dict(mesh.shape), [self.added[i] for i in kept])
        return Array(type_, _blocks_of_pieces(chosen, pieces))


def _inner_sharding(scope: Scope, kind: GridKind) -> NamedSharding | None:
    """Return how cells are laid out on the automatic axes; None where there are none."""
    if not scope.auto:
        return None
    sharding = kind.type.sharding
    if isinstance(sharding, NamedSharding) and sharding.mesh == scope.submeshes[0]:
        return sharding
    return NamedSharding(scope.submeshes[0], PartitionSpec())


def _joined_cuts(
    shape: Sequence[int], counts: Sequence[int], cuts: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...] | None, ...] | None:
    """Return the cuts of that many cells one after another along each dim; None if all are even."""
    found: list[tuple[int, ...] | None] = []
    for n, count, own in zip(shape, counts, cuts, strict=True):
        total = n * count
        wide = (*(i * n + c for i in range(count) for c in own[:-1]), total)
        shards = len(wide) - 1
        even = total % shards == 0 and wide == even_cuts(total, shards)
        found.append(None if even else wide)
    return tuple(found) if any(c is not None for c in found) else None


def _blocks_of_pieces(cells: Sequence[Any], pieces: Any) -> tuple[Any, ...]:
    """Return the blocks of an array, given for each cell the pieces that its blocks are."""
    blocks: list[Any] = [None] * math.prod(pieces.shape)
    for cell, row in zip(cells, pieces.reshape(-1, pieces.shape[-1]), strict=True):
        if cell is not None:
            parts = cell._live() if type(cell) is Array else (cell,)
            for piece, block in zip(row, parts, strict=True):
                blocks[piece] = block
    return tuple(blocks)
