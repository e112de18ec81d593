"""What collectives do to the cells of a grid, planned once per kind of grid.

In: the mesh, the axes along which cells differ, a cell's shape, and the axes of the collective.
Out: a plan from cells to cells. Seen from outside, a grid is one array with a leading dim for each
axis of its extent, cut into single positions. So a gather, an all-to-all or a permutation is an
ordinary reshard between two layouts of that array, where some dims of a cell are seen as two; and
a sum is a reduction over leading dims. Nothing here knows which process runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import itemgetter
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Cuts, Layout
from meshard.algebra.mesh import Mesh
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import device_tensor
from meshard.ops.dtypes.laws import accumulator
from meshard.ops.engine.reduction import (
    Partials,
    Reduction,
    Scatter,
    combined,
    combined_across,
    plan_reduction,
)
from meshard.plan.move import wires as traffic
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Message, Part
from meshard.runtime.moving.execute import run_part
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import LARGE, STACKED_CELLS, TURNED_AT_ONCE

Shape = tuple[int, ...]
Axes = tuple[str, ...]
Cells = Sequence[Any]
Active = frozenset[int] | None
"""The groups that take part, numbered by the axes that are not the collective's; None: all."""


@final
@dataclass(frozen=True)
class Field:
    """Where a collective happens.

    Attributes:
        world: whose transport is used.
        mesh: the devices; axes that are not named in a plan only hold replicas.
        extent: the axes along which cells differ, the slowest first.
        shape: the shape of a cell.
        dtype: the dtype of a cell.
    """

    world: RuntimeWorld
    mesh: Mesh
    extent: Axes
    shape: Shape
    dtype: np.dtype[Any]

    def count(self, axes: Sequence[str]) -> int:
        """Return the number of positions along axes."""
        return math.prod([self.mesh.shape[a] for a in axes])

    @property
    def processes(self) -> dict[int, int] | None:
        """The process of each device id; None in a world that is alone."""
        if self.world.process_count == 1:
            return None
        return {d.id: d.process_index for d in self.mesh.flat_devices}

    def order(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the cells in the order of other axes, a permutation of the extent."""
        numbers = np.arange(self.count(self.extent))
        numbers = numbers.reshape([self.mesh.shape[a] for a in self.extent])
        return tuple(numbers.transpose([self.extent.index(a) for a in axes]).ravel().tolist())

    def groups(self, axes: Sequence[str]) -> NDArray[np.int64]:
        """Return the ids of the devices that communicate along axes, ``[group, member]``."""
        names = self.mesh.axis_names
        last = [names.index(a) for a in axes]
        first = [i for i in range(len(names)) if i not in last]
        ids = self.mesh.device_ids.transpose(first + last)
        groups: NDArray[np.int64] = ids.reshape(-1, self.count(axes))
        return groups

    def numbers(self, axes: Sequence[str]) -> dict[int, int]:
        """Return for each device id its position along axes, the first the slowest."""
        names = self.mesh.axis_names
        places = [names.index(a) for a in axes]
        order = [*places, *(i for i in range(len(names)) if i not in places)]
        ids = self.mesh.device_ids.transpose(order).reshape(self.count(axes), -1)
        return {int(d): number for number, row in enumerate(ids) for d in row}

    def layout(self, dims: Sequence[tuple[int, Axes]]) -> Layout:
        """Return the layout of an array whose dims are cut into single positions along axes."""
        shape = tuple([n for n, _ in dims])
        cuts: list[Cuts] = [tuple(range(n + 1)) if axes else (0, n) for n, axes in dims]
        tensor = device_tensor(self.mesh.device_ids, self.mesh.axis_names, [a for _, a in dims])
        return Layout(shape, tuple(cuts), tensor)


@final
@dataclass(frozen=True)
class Exchange:
    """Cells are cut up, and others joined of the parts.

    Attributes:
        field: where.
        order: the cell that is each piece of the source.
        groups: the number of groups; the pieces of each stand together.
        view: the shape of a cell as a piece of the source.
        part: from pieces to pieces.
        extent: the axes of the result's cells, the slowest first.
        shape: the shape of a cell of the result.
        kind: what the ledger calls it.
        axes: the axes that it goes along.
        received: the bytes that each device receives.
        turned: for small cells, which are stacked and turned at once: the dims that a cell is
            seen as, and the order of the dims of the stack (the cell's number is its first).
    """

    field: Field
    order: tuple[int, ...]
    groups: int
    view: Shape
    part: Part
    extent: Axes
    shape: Shape
    kind: str
    axes: Axes
    received: Callable[[], Mapping[int, int]]
    turned: tuple[Shape, Shape] | None = None

    @cached_property
    def everywhere(self) -> Callable[[Cells], tuple[Any, ...]]:
        """What runs it where all groups take part: from the cells to those of the result."""
        if self._at_once:
            return self._all_turned
        routes = self._routes
        if routes is None:
            return lambda cells: tuple(self.run(cells))
        if -1 not in routes:
            return picked(routes)
        zeros, shape, dtype = self.field.world.memory.zeros, self.shape, self.field.dtype
        return lambda cells: tuple([cells[i] if i >= 0 else zeros(shape, dtype) for i in routes])

    def run(self, cells: Cells, active: Active = None) -> Sequence[Any]:
        """Return the cells of the result; those that are not held or not active are None."""
        if active is None and (self._at_once or self._routes is not None):
            return self.everywhere(cells)
        field, part = self.field, self.part
        if active is not None:
            ends = (len(self.order), len(part.recipes))
            part = _masked(part, *(_of_groups(active, n // self.groups) for n in ends))
        given = [cells[i] for i in self.order]
        pieces = tuple([None if c is None else c.reshape(self.view) for c in given])
        found = run_part(field.world, part, (pieces,), field.dtype, 0)
        shape = self.shape
        return [b if b is None or b.shape == shape else b.reshape(shape) for b in found]

    @cached_property
    def _at_once(self) -> bool:
        field = self.field
        nbytes = _nbytes(field) * len(self.order)
        alone = field.world.process_count == 1
        return self.turned is not None and alone and 0 < nbytes <= TURNED_AT_ONCE

    @cached_property
    def _all_turned(self) -> Callable[[Cells], tuple[Any, ...]]:
        """What stacks the cells, turns the stack at once, and takes it apart."""
        assert self.turned is not None
        sizes, dims = self.turned
        before, after = (self.groups, -1, *sizes), (len(self.order), *self.shape)
        order, turn = picked(self.order), (0, *[1 + d for d in dims])
        in_order = self.order == tuple(range(len(self.order)))

        def turned(cells: Cells) -> tuple[Any, ...]:
            stack = np.array(cells if in_order else order(cells))
            return tuple(stack.reshape(before).transpose(turn).reshape(after))

        return turned

    @cached_property
    def _routes(self) -> tuple[int, ...] | None:
        """The cell that each result's cell is, -1 for zeros; None if cells are cut or sent."""
        recipes, routes = self.part.recipes, []
        if self.field.world.process_count > 1 or self.shape != self.field.shape:
            return None
        for recipe in recipes:
            if recipe is None or (recipe.copies and recipe.alias is None):
                return None
            alias = recipe.alias
            if alias is not None and alias.shape != self.view:
                return None
            routes.append(-1 if alias is None else self.order[alias.origin])
        return tuple(routes)


@final
@dataclass(frozen=True)
class FoldExchange:
    """Cells are combined along axes.

    Attributes:
        field: where.
        axes: the axes.
        combine: joins two cells, or all.
        extent: the axes of the result's cells.
        scatter: the dim of a cell, seen as two, of which each member keeps one position.
        view: the shape of a cell, seen so.
        shape: the shape of a cell of the result.
        kind: what the ledger calls it.
    """

    field: Field
    axes: Axes
    combine: np.ufunc | Callable[[Sequence[tuple[Any, ...]]], tuple[Any, ...]]
    extent: Axes
    scatter: int | None
    view: Shape
    shape: Shape
    kind: str

    def received(self) -> Mapping[int, int]:
        """Return the bytes that each device receives."""
        nbytes = math.prod(self.field.shape) * self.field.dtype.itemsize
        count = traffic.all_reduced if self.scatter is None else traffic.scattered
        return count(self.field.groups(self.axes), nbytes)

    @cached_property
    def _rest(self) -> Axes:
        return tuple(a for a in self.field.extent if a not in self.axes)

    @cached_property
    def _order(self) -> tuple[int, ...]:
        return self.field.order((*self.axes, *self._rest))

    @cached_property
    def _counts(self) -> tuple[int, int]:
        """The members of a group, and the groups."""
        return self.field.count(self.axes), self.field.count(self._rest)

    @cached_property
    def _reduction(self) -> Reduction:
        field, rest = self.field, self._rest
        sizes = tuple(field.mesh.shape[a] for a in rest)
        placement = [Split((a,), tuple(range(n + 1))) for a, n in zip(rest, sizes, strict=True)]
        placement += [Split((), (0, n)) for n in self.view]
        shape = (*sizes, *self.view)
        partials = Partials(field.mesh, self.axes, tuple(placement), shape, (field.dtype,))
        scatter = None if self.scatter is None else Scatter(len(rest) + self.scatter, self.axes)
        return plan_reduction(field.world, partials, scatter)

    @cached_property
    def everywhere(self) -> Callable[[Cells], tuple[Any, ...]]:
        """What runs it where all groups take part: from the cells to those of the result."""
        members, groups = self._counts
        field, combine, order = self.field, self.combine, picked(self._order)
        if field.world.process_count > 1 or not self._small or not isinstance(combine, np.ufunc):
            return lambda cells: tuple(self.run(cells))
        if members >= STACKED_CELLS and groups * math.prod(field.shape) > 1:
            # NumPy adds rows one after another, in order, unless they are of one element.
            shape, dtype = (members, groups, *field.shape), field.dtype
            return lambda cells: tuple(
                combine.reduce(np.array(order(cells)).reshape(shape), axis=0, dtype=dtype)
            )
        if not field.shape:
            return lambda cells: tuple(
                [np.asarray(reduce(combine, order(cells)[g::groups])) for g in range(groups)]
            )
        if groups == 1 and self._order == tuple(range(members)):
            return lambda cells: (reduce(combine, cells),)
        return lambda cells: tuple(
            [reduce(combine, order(cells)[g::groups]) for g in range(groups)]
        )

    @property
    def _small(self) -> bool:
        """Whether cells are combined on this thread, and members keep the whole."""
        return self.scatter is None and _nbytes(self.field) < LARGE

    def run(self, cells: Cells, active: Active = None) -> list[Any]:
        """Return the cells of the result; those that are not held or not active are None."""
        if self.field.world.process_count == 1 or not self.axes:
            return self._here(cells, active)
        return self._across(cells, active)

    def _here(self, cells: Cells, active: Active) -> list[Any]:
        members, groups = self._counts
        pieces = [cells[i] for i in self._order]
        found: list[Any] = []
        for group in range(groups):
            parts = pieces[group::groups]
            kept = 1 if self.scatter is None else members
            if parts[0] is None or (active is not None and group not in active):
                found += [None] * kept
            elif self.scatter is None:
                found.append(self._joined(parts))
            else:  # each member sees its part of one sum
                total = self._joined(parts).reshape(self.view)
                for member in range(members):
                    at = (*[slice(None)] * self.scatter, member, ...)  # no scalar for 0-d
                    found.append(total[at].reshape(self.shape))
        return found

    def _joined(self, parts: Sequence[Any]) -> Any:
        (total,) = combined(self.field.world, self.combine, [(p,) for p in parts])
        return np.asarray(total)

    def _across(self, cells: Cells, active: Active) -> list[Any]:
        reduction, rest = self._reduction, self._rest
        ones, groups = (1,) * len(rest), self.field.count(rest)
        own = {
            piece: (cells[number].reshape((*ones, *self.view)),)
            for piece, number in enumerate(self._order)
            if cells[number] is not None and (active is None or piece % groups in active)
        }
        if active is not None:
            reduction = _masked_reduction(reduction, active, groups)
        last = reduction.gather if reduction.place is None else reduction.place
        found = combined_across(self.field.world, reduction, own, len(last.recipes), self.combine)
        return [b[0].reshape(self.shape) if b else None for b in found]


def _of_groups(active: frozenset[int], each: int) -> frozenset[int]:
    """Return the pieces of some groups, all of one size, one after another."""
    return frozenset(g * each + i for g in active for i in range(each))


def _masked(part: Part, source: frozenset[int], destination: frozenset[int]) -> Part:
    """Return the part for some of the pieces only, the same on both ends."""
    recipes = tuple([r if i in destination else None for i, r in enumerate(part.recipes)])
    sends = [
        Message(m.peer, tuple([c for c in m.copies if c.origin in source])) for m in part.sends
    ]
    receives = [
        Message(m.peer, tuple([c for c in m.copies if c.piece in destination]))
        for m in part.receives
    ]
    return Part(
        recipes,
        tuple([m for m in sends if m.copies]),
        tuple([m for m in receives if m.copies]),
    )


def _masked_reduction(reduction: Reduction, active: frozenset[int], groups: int) -> Reduction:
    """Return a reduction of which only some groups take part."""
    gather, place = reduction.gather, reduction.place
    partial = frozenset(m * groups + g for m in range(reduction.cells) for g in active)
    shares = _of_groups(active, len(gather.recipes) // groups)
    return replace(
        reduction,
        gather=_masked(gather, partial, shares),
        place=None if place is None else _masked(place, shares, active),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Recut:
    """How the dims of a cell are cut before an exchange, and after; leading dims are left out.

    Attributes:
        view: the shape of a cell as a piece of the source.
        source: the size of each dim, and the axes that cut it into single positions.
        destination: the same, afterwards.
        maps: for each dim of the destination where it reads from; None where nothing moves in it.
        turned: for small cells the dims that one is seen as, and their order, as in `Exchange`.
    """

    view: Shape
    source: Sequence[tuple[int, Axes]]
    destination: Sequence[tuple[int, Axes]]
    maps: tuple[DimMap, ...] | None = None
    turned: tuple[Shape, Shape] | None = None


def _exchange(
    field: Field,
    axes: Axes,
    recut: _Recut,
    shape: Shape,
    kind: str,
    received: Callable[[], Mapping[int, int]],
) -> Exchange:
    """Plan an exchange along axes, after which a cell has some shape."""
    rest = tuple(a for a in field.extent if a not in axes)
    lead = [(field.mesh.shape[a], (a,)) for a in rest]
    maps = recut.maps
    if maps is not None:
        maps = (*(DimMap.identity(n) for n, _ in lead), *maps)
    part = assemble(
        field.layout([*lead, *recut.destination]),
        [Source(field.layout([*lead, *recut.source]), maps)],
        field.processes,
        field.world.process_index,
        field.world.sharing,
    )
    kept = any(own for _, own in recut.destination)
    return Exchange(
        field=field,
        order=field.order((*rest, *axes)),
        groups=field.count(rest),
        view=(*(1,) * len(rest), *recut.view),
        part=part,
        extent=(*rest, *axes) if kept else rest,
        shape=shape,
        kind=kind,
        axes=axes,
        received=received,
        turned=recut.turned,
    )


def picked(numbers: Sequence[int]) -> Callable[[Cells], tuple[Any, ...]]:
    """Return what takes some of the cells, in order: best a function of C."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda cells: tuple([cells[i] for i in numbers])


def _nbytes(field: Field) -> int:
    return math.prod(field.shape) * field.dtype.itemsize


def plan_gather(field: Field, axes: Axes, dim: int, tiled: bool) -> Exchange:
    """Plan the gathering of all cells along axes, stacked as a new dim or joined along one."""
    shape, n = field.shape, field.count(axes)
    local = [(s, ()) for s in shape]
    result = (*shape[:dim], n, *shape[dim:])
    if tiled:
        result = (*shape[:dim], n * shape[dim], *shape[dim + 1 :])
    recut = _Recut(
        view=(*shape[:dim], 1, *shape[dim:]),
        source=[*local[:dim], (n, axes), *local[dim:]],
        destination=[*local[:dim], (n, ()), *local[dim:]],
    )

    def received() -> Mapping[int, int]:
        return traffic.gathered(field.groups(axes), _nbytes(field))

    return _exchange(field, axes, recut, result, "all-gather", received)


def plan_all_to_all(field: Field, axes: Axes, split: int, concat: int, tiled: bool) -> Exchange:
    """Plan that each cell is cut along one dim, and the parts of all joined along another."""
    kept = [s for d, s in enumerate(field.shape) if d != split]
    result = [*kept[:concat], field.count(axes), *kept[concat:]]
    if tiled:
        result = list(field.shape)
        result[split] //= field.count(axes)
        result[concat] *= field.count(axes)

    def received() -> Mapping[int, int]:
        return traffic.exchanged(field.groups(axes), _nbytes(field))

    recut = _crosswise(field, axes, split, concat, tiled)
    return _exchange(field, axes, recut, tuple(result), "all-to-all", received)


def _crosswise(field: Field, axes: Axes, split: int, concat: int, tiled: bool) -> _Recut:
    """Cut one dim by receiver, and put a dim of senders where the parts are joined.

    A cell of shape ``(4, 6)`` on two members, split along dim 1 and joined along dim 0, is seen as
    ``(1, 4, 2, 3)``: the sender, the rows, the receiver, and the columns that one receiver gets.
    Before, the first is cut by the axes, and afterwards the third is.
    """
    n = field.count(axes)
    view: list[int] = []
    source: list[tuple[int, Axes]] = []
    destination: list[tuple[int, Axes]] = []
    sizes: list[int] = []  # of the dims of a cell, in the order of the view
    order: list[int] = []  # where each dim of the result comes from; 0 is the sender

    def add(size: int, after: Axes = ()) -> None:
        sizes.append(size)
        order.append(len(sizes))
        view.append(size)
        source.append((size, ()))
        destination.append((size, after))

    def add_sender() -> None:
        order.append(0)
        view.append(1)
        source.append((n, axes))
        destination.append((n, ()))

    receiver = others = 0
    for dim, size in enumerate(field.shape):
        # Without tiling the dim that is cut goes away, and the new one is counted without it.
        if (dim if tiled else others) == concat and (tiled or dim != split):
            add_sender()
        if dim != split:
            add(size)
            others += 1
            continue
        add(n, after=axes)
        receiver = order.pop()
        if tiled:
            add(size // n)
    if not tiled and concat == others:
        add_sender()
    turned = (tuple(sizes), (receiver, *order))
    return _Recut(view=tuple(view), source=source, destination=destination, turned=turned)


def plan_permute(field: Field, axes: Axes, sources: Sequence[int | None]) -> Exchange:
    """Plan that each position along axes gets the cell of another, or zeros."""
    n, local = field.count(axes), [(s, ()) for s in field.shape]
    pieces = [(at, 1, origin, 1) for at, origin in enumerate(sources) if origin is not None]
    maps = (DimMap(n, n, pieces), *(DimMap.identity(s) for s in field.shape))

    def received() -> dict[int, int]:
        moving = [at for at, origin in enumerate(sources) if origin not in (None, at)]
        return {int(d): _nbytes(field) for g in field.groups(axes) for d in g[moving]}

    dims: list[tuple[int, Axes]] = [(n, axes), *local]
    recut = _Recut(view=(1, *field.shape), source=dims, destination=dims, maps=maps)
    return _exchange(field, axes, recut, field.shape, "permute", received)


def plan_source(field: Field, axes: Axes, source: int) -> Exchange:
    """Plan that all positions along axes get the cell of one."""
    n, local = field.count(axes), [(s, ()) for s in field.shape]
    maps = (DimMap.take(n, [source]), *(DimMap.identity(s) for s in field.shape))

    def received() -> dict[int, int]:
        others = [at for at in range(n) if at != source]
        return {int(d): _nbytes(field) for g in field.groups(axes) for d in g[others]}

    recut = _Recut(
        view=(1, *field.shape),
        source=[(n, axes), *local],
        destination=[(1, ()), *local],
        maps=maps,
    )
    return _exchange(field, axes, recut, field.shape, "broadcast", received)


def _added(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the sum of floats shorter than 32 bits: added in float32, and rounded once."""
    first = parts[0][0]
    total = first.astype(np.float32)
    for (part,) in parts[1:]:
        np.add(total, part, out=total)
    return (np.asarray(total).astype(first.dtype),)


def plan_fold(
    field: Field, axes: Axes, combine: np.ufunc, scatter: int | None = None, tiled: bool = False
) -> FoldExchange:
    """Plan that cells are combined along axes, and each member keeps all, or one part of a dim."""
    how = _added if combine is np.add and accumulator(field.dtype) != field.dtype else combine
    rest = tuple(a for a in field.extent if a not in axes)
    shape = view = field.shape
    if scatter is None:
        return FoldExchange(field, axes, how, rest, None, view, shape, "all-reduce")
    n = field.count(axes)
    own = shape[scatter] // n
    view = (*shape[:scatter], n, *(own,) * tiled, *shape[scatter + 1 :])
    shape = (*shape[:scatter], *(own,) * tiled, *shape[scatter + 1 :])
    extent = (*rest, *axes)
    return FoldExchange(field, axes, how, extent, scatter, view, shape, "reduce-scatter")
