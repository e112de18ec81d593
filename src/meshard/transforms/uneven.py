"""`shard_map` of arrays whose shards are unequal: each device sees its own local shape.

In: arrays, how each is laid out, and the body. Out: arrays whose shards are what the devices
returned. The body runs once for each local shape that some device has (`members`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.layout import even_cuts
from meshard.algebra.mesh import entered_mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, IndivisibleError, ReplicationError, ShapeError, TreeError
from meshard.ops.engine.later import AbstractArray
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array, placed
from meshard.runtime.trees import trees
from meshard.transforms.body.body import Body
from meshard.transforms.body.boundary import cell_type, cells_of_pieces, pieces_of_cells, to_array
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.members import Meeting, Shares
from meshard.transforms.body.scope import Scope

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """A call of a mapped function whose arguments are uneven.

    Attributes:
        told: the function, for messages.
        f: the body.
        structure: the structure of the tuple of arguments.
        leaves: their leaves.
        specs: the spec of each leaf; None for one that is passed on as it is.
        shardings: how each leaf with a spec is laid out.
        out_specs: from the results to the spec of each leaf.
        check: from a grid, its spec, the results and its number; refuses what varies otherwise.
        checked: whether results that differ where their specs say that they do not are refused.
    """

    told: str
    f: Callable[..., Any]
    structure: Any
    leaves: Sequence[Any]
    specs: Sequence[PartitionSpec | None]
    shardings: Sequence[NamedSharding | None]
    out_specs: Callable[[Any], Sequence[PartitionSpec]]
    check: Callable[[Grid, PartitionSpec, Any, int], None]
    checked: bool

    def run(self, body: Body, leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return the structure of the results, and the arrays that they are outside."""
        scope = body.scope
        entered = [self._entered(body, n, x) for n, x in enumerate(leaves)]
        shares, shapes = _shares(scope, [e for e in entered if e is not None])
        meeting = Meeting(body, shares, self.told)
        runs = []
        for number, each in enumerate(meeting.bodies):
            local = iter(shapes[number])
            values = [
                x if e is None else e.grid(each, next(local))
                for x, e in zip(leaves, entered, strict=True)
            ]
            runs.append(partial(self._call, values))
        with entered_mesh(scope.mesh):
            found = meeting.run(runs)
        return self._joined(meeting, found)

    def _call(self, values: Sequence[Any]) -> Any:
        return self.f(*trees.unflatten(self.structure, values))

    def _entered(self, body: Body, number: int, x: Any) -> _Entered | None:
        spec, sharding = self.specs[number], self.shardings[number]
        if spec is None or sharding is None:
            return None
        x = as_array(x)
        if type(x) is not Array and not body.typed:
            raise ArgumentError(
                f"{self.told}: with uneven arguments it can be called and jitted, but not "
                "differentiated, or mapped by vmap. Pad the arguments, or write it with global "
                "operations, which take uneven shards."
            )
        blocks = None if body.typed else placed(x, sharding, what="shard_map")._live()
        return _Entered(body.scope, x.shape, x.dtype, spec, sharding, blocks)

    def _joined(self, meeting: Meeting, found: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return the results of all runs as arrays."""
        structures = [trees.structure(result) for result in found]
        if any(structure != structures[0] for structure in structures):
            raise TreeError(
                f"{self.told}: its arguments are uneven, and the body returns trees of different "
                "structures for different local shapes. Return the same structure everywhere."
            )
        specs = self.out_specs(found[0])
        rows = [
            [body.lift(x) for x in trees.leaves(result)]
            for body, result in zip(meeting.bodies, found, strict=True)
        ]
        arrays = [
            self._array(meeting, list(grids), spec, found[0], number)
            for number, (spec, *grids) in enumerate(zip(specs, *rows, strict=True))
        ]
        return structures[0], arrays

    def _array(
        self, meeting: Meeting, grids: list[Grid], spec: PartitionSpec, result: Any, number: int
    ) -> Any:
        """Return one result of all runs as an array."""
        body, axes = meeting.body, meeting.shares.axes
        kinds = {(x.kind.ndim, x.kind.dtype) for x in grids}
        if len(kinds) > 1:
            raise ShapeError(
                f"{self.told}: its arguments are uneven, and a result is "
                f"{' and '.join(x.kind.type.str_short() for x in grids)} on different devices; "
                "only its sizes may differ."
            )
        for grid in grids:
            self.check(grid, spec, result, number)
        if len({x._type for x in grids}) > 1:
            return self._uneven(meeting, grids, spec)
        named = {a for dim in spec.axes(grids[0].ndim) for a in dim}
        if named.isdisjoint(axes) and not any(a in axes for x in grids for a in x.kind.extent):
            whole = self._same(meeting, grids)
        else:
            whole = meeting.merged(grids)
            self.check(whole, spec, result, number)
        found = to_array(body, whole, spec)
        return AbstractArray(found._type) if body.typed else found

    def _same(self, meeting: Meeting, grids: Sequence[Grid]) -> Grid:
        """Return a value that is the same for all local shapes.

        Raises:
            ReplicationError: if it is not, as far as this process can see.
        """
        body = meeting.body
        extent = body.scope.extent([a for x in grids for a in x.kind.extent])
        columns = [[x.cells[i] for i in body.scope.onto(x.kind.extent, extent)] for x in grids]
        cells = []
        for row in zip(*columns, strict=True):
            held = [cell for cell in row if cell is not None]
            if self.checked and any(not _equal(held[0], cell) for cell in held[1:]):
                raise ReplicationError(
                    f"{self.told}: its arguments are uneven, and a result that out_specs claims to "
                    "be the same on all devices differs with the local shape. Name the mesh axes "
                    f"{', '.join(map(repr, meeting.shares.axes))} in its spec, or make it one "
                    "value with lax.psum or lax.pmax over them."
                )
            cells.append(held[0] if held else None)
        varies = frozenset(a for x in grids for a in x.kind.varies)
        return Grid(body, body.scope.kind(grids[0].kind.type, extent, varies), tuple(cells))

    def _uneven(self, meeting: Meeting, grids: Sequence[Grid], spec: PartitionSpec) -> Any:
        """Return the array whose shards are unequal values."""
        scope, chosen = meeting.body.scope, meeting.shares.chosen
        sizes = np.array([x.kind.shape for x in grids])[chosen]
        axes = spec.axes(grids[0].ndim)
        cuts = [self._cuts(scope, sizes[..., d], dim, d, spec) for d, dim in enumerate(axes)]
        shape = tuple([c[-1] for c in cuts])
        sharding = self._sharding(scope, spec, shape, tuple(cuts))
        type_ = scope.world.type_of(shape, grids[0].kind.dtype, sharding, True)
        if meeting.body.typed:
            return AbstractArray(type_)
        every = scope.extent(scope.manual)
        onto = [scope.onto(x.kind.extent, every) for x in grids]
        cells = [grids[c].cells[onto[c][i]] for i, c in enumerate(chosen.ravel().tolist())]
        choices = cells_of_pieces(scope, every, axes)
        blocks = [next((cells[i] for i in c if cells[i] is not None), None) for c in choices]
        return Array(type_, tuple(blocks))

    def _cuts(
        self, scope: Scope, sizes: Any, axes: tuple[str, ...], dim: int, spec: PartitionSpec
    ) -> tuple[int, ...]:
        """Return where a result's dim is cut, from its size on each device."""
        order = [scope.manual.index(a) for a in axes]
        rest = [i for i in range(len(scope.manual)) if i not in order]
        count = int(np.prod([sizes.shape[i] for i in order], dtype=int))
        rows = sizes.transpose(order + rest).reshape(count, -1)
        if (rows != rows[:, :1]).any():
            found = sorted(set(sizes.ravel().tolist()))
            raise ShapeError(
                f"{self.told}: its arguments are uneven, and dim {dim} of a result is of sizes "
                f"{found} on different devices, which its spec {spec!r} of out_specs does not "
                "account for. Split that dim over the axes along which its size differs, or return "
                "what has the same shape on all of them."
            )
        return (0, *np.cumsum(rows[:, 0]).tolist())

    def _sharding(
        self, scope: Scope, spec: PartitionSpec, shape: Shape, cuts: tuple[tuple[int, ...], ...]
    ) -> NamedSharding:
        """Return the sharding that cuts a shape so: an argument's if one does, else a rule's."""
        own = [s.uneven for s in self.shardings if s is not None and s.uneven is not None]
        for rule in (*own, "balanced", "ceil"):
            tried = NamedSharding(scope.mesh, spec, uneven=rule)
            try:
                if tried.dim_cuts(shape) == cuts:
                    return tried
            except (IndivisibleError, ShapeError, ValueError):
                continue
        given = tuple([None if c == _even(c) else c for c in cuts])
        return NamedSharding(scope.mesh, spec, uneven=given)


def _even(cuts: tuple[int, ...]) -> tuple[int, ...] | None:
    shards = len(cuts) - 1
    return tuple(even_cuts(cuts[-1], shards)) if cuts[-1] % shards == 0 else None


def _equal(one: Any, other: Any) -> bool:
    return one is other or np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


@final
class _Entered:
    """An argument as it enters the body: its local shapes, and its blocks."""

    def __init__(
        self,
        scope: Scope,
        shape: Shape,
        dtype: Any,
        spec: PartitionSpec,
        sharding: NamedSharding,
        blocks: Sequence[Any] | None,
    ) -> None:
        self._scope, self._dtype, self._blocks = scope, dtype, blocks
        self._axes = spec.axes(len(shape))
        self._named = frozenset(a for dim in self._axes for a in dim)
        self._cuts = sharding.dim_cuts(shape)

    def local_shapes(self) -> Any:
        """Return the local shape at each coordinate of the manual axes."""
        scope = self._scope
        here = np.indices([scope.sizes[a] for a in scope.manual])
        sizes = []
        for axes, cuts in zip(self._axes, self._cuts, strict=True):
            place = np.zeros(here.shape[1:], int)
            for axis in axes:
                place = place * scope.sizes[axis] + here[scope.manual.index(axis)]
            sizes.append(np.diff(cuts)[place])
        shape = here.shape[1:]
        return np.stack(sizes, -1) if sizes else np.zeros((*shape, 0), int)

    def grid(self, body: Body, local: Shape) -> Grid:
        """Return the argument as the devices of one local shape see it."""
        scope = self._scope
        extent = scope.extent(self._named)
        kind = scope.kind(cell_type(scope, local, self._dtype), extent, self._named)
        cells: list[Any] = [None] * scope.count(extent)
        if self._blocks is not None:
            pieces = pieces_of_cells(scope, self._axes)
            active = body.active(extent)
            for i in range(len(cells)) if active is None else active:
                cells[i] = self._blocks[pieces[i]]
        return Grid(body, kind, tuple(cells))


def _shares(scope: Scope, entered: Sequence[_Entered]) -> tuple[Shares, list[list[Shape]]]:
    """Return which devices have which local shapes, and for each the shape of each argument."""
    every = [e.local_shapes() for e in entered]
    ends = np.cumsum([e.shape[-1] for e in every])[:-1]
    joined = np.concatenate(every, -1)
    rows, inverse = np.unique(joined.reshape(-1, joined.shape[-1]), axis=0, return_inverse=True)
    chosen = inverse.reshape(joined.shape[:-1])
    shapes = [[tuple(part.tolist()) for part in np.split(row, ends)] for row in rows]
    return Shares(scope, chosen, len(rows)), shapes
