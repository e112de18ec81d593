"""The interpreter of `shard_map` bodies: each operation once, for all cells of its operands.

In: an operation, and values of the body. Out: grids. What an operation does to one cell is decided
as if it ran on one device, and kept per scope; then its kernel runs for each cell that is wanted:
held by this process, and active where the code is under a condition. Where some axes of the mesh
stay automatic, a cell is an Array on those, and the operation is bound once more for each cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ConcretizationError
from meshard.ops.engine.decide import decide, takes_arrays_only
from meshard.ops.engine.decision import KernelDecision, MoveDecision
from meshard.ops.engine.eager import EAGER, WEAK, accept
from meshard.ops.engine.later import AbstractArray, inferred, weak_of
from meshard.ops.engine.run import as_block, fast_path, may_join_chain, run_cells
from meshard.plan.move.wires import Wire
from meshard.runtime.array.array import Array
from meshard.runtime.doors import Interpreter, Params
from meshard.runtime.moving.execute import run_parts
from meshard.runtime.moving.place import as_array, placed
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import Memo
from meshard.settings import config
from meshard.transforms.body.boundary import cell_type, to_grid
from meshard.transforms.body.grid import Grid, Pending, scattered
from meshard.transforms.body.mapped_axes import are_mapped, kind_of
from meshard.transforms.body.scope import (
    Extent,
    GridKind,
    Mask,
    Scope,
    cell_types,
    operation_wires,
    record_wires,
)
from meshard.tuning import MOST_MASKS

Runner = Callable[["Body", Sequence[Any]], Any]
Kinds = tuple[GridKind | type, ...]
OnCells = Callable[[Any, Sequence[Any]], Any]
"""From cells, a tuple for each grid, and numbers to the cells of the result, or of each result."""


@final
@dataclass(frozen=True, slots=True)
class Decided:
    """What an operation does on values of given kinds.

    Attributes:
        run: from the body and the values to the result, or a tuple of results.
        kinds: the kinds of the results, where ``on_cells`` is there.
        on_cells: what runs it on nothing but cells, where all devices run the code; those that
            other processes hold are None. None if there is no such way.
    """

    run: Runner
    kinds: tuple[GridKind, ...] = ()
    on_cells: OnCells | None = None


Decide = Callable[[Scope, Kinds, dict[str, Any]], Decided]


_NOBODY: Any = None
"""The body of a grid that has yet to be told which it belongs to."""
COLLECTIVES: dict[str, Decide] = {}
"""Operations that are about the axes themselves; written while this floor is imported."""


@final
class Body(Interpreter):
    """One run of a shard_map body.

    Attributes:
        scope: the axes that it runs along.
        outer: the body around it, whose values it may use.
        mask: the devices that run the code at hand; None while that is all.
        typed: whether nothing is run at all, and only types are wanted.
        recorder: writes the operations down; None if nothing does.
        notes: takes what typed collectives would move; None if nobody asks.
        meeting: where the runs for unequal local shapes meet; None where all shapes are equal.
    """

    def __init__(self, scope: Scope, outer: Body | None = None, typed: bool = False) -> None:
        self.scope = scope
        self.outer = outer
        self.typed: bool = typed or (outer is not None and outer.typed)
        self.mask: Mask | None = None
        self.recorder: Any = None
        self.notes: list[Wire] | None = None
        self.meeting: Any = None
        self.axis_sizes: Mapping[str, int] = scope.sizes
        self._constants: dict[int, tuple[Any, Grid]] = {}
        if outer is not None and outer.mask is not None:
            old = outer.mask
            grid = np.broadcast_to(_over(outer.scope, scope, old.grid), scope.here.shape)
            self.mask = Mask(old.axes, old.varies, grid)
        if typed:
            self.mask = Mask((), frozenset(), np.zeros(scope.here.shape, bool))

    @property
    def ledgers(self) -> tuple[Any, ...]:
        """The open ledgers and profiles of its world."""
        return self.scope.world.ledgers

    @property
    def profiles(self) -> tuple[Any, ...]:
        """The open profiles of its world."""
        return self.scope.world.profiles

    def close(self) -> None:
        """Let go of values from outside; they hold the body, which would keep them alive."""
        self._constants.clear()

    @contextlib.contextmanager
    def under(self, mask: Mask | None) -> Iterator[None]:
        """Run code for the devices of a mask only."""
        before = self.mask
        self.mask = mask
        try:
            yield
        finally:
            self.mask = before

    def active(self, extent: Extent) -> tuple[int, ...] | None:
        """Return the cells of a grid that are to be computed here; None if that is all."""
        mask = self.mask
        if mask is None:
            return self.scope.local(extent)
        found = mask.numbers.get(extent)
        if found is None:
            found = self.scope.within(mask.grid & self.scope.here, extent)
            mask.numbers[extent] = found
        return found

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Run one operation on all cells and return its result, or a tuple of results."""
        scope, values = self.scope, operands
        known: list[Any] = [name, params]
        own = not operands
        for x in operands:
            kind = type(x)
            if kind is Grid and x.body is self:
                own = True
                known.append(x.kind)
            elif kind in WEAK:
                known.append(kind)
            else:
                own = False
                break
        if not own:  # values from outside, or numbers alone
            values = accept(name, operands, self.lift)
            known[2:] = [x.kind if type(x) is Grid else type(x) for x in values]
        if scope.epoch != config.epoch:
            scope.forget()
        key = tuple(known)
        found: Decided | None = scope.tables[_NUMBER].get(key)  # `Memo.table`, without a call
        if found is None:
            found = decided(scope, name, key[2:], params)
        run = found.run
        if self.recorder is None:
            if self.meeting is None and not scope.world.profiles:
                return run(self, values)
            return self._watched(name, run, values, params)
        result = run(self, values)
        results = result if isinstance(result, tuple) else (result,)
        self.recorder.write(name, params, values, results)
        return result

    def narrowed(self, x: Any, axes: tuple[str, ...]) -> Any:
        """Return the sum of a value over axes over which it varies."""
        return self.run("psum", (x,), (("axes", axes),))

    def _watched(self, name: str, run: Runner, values: Sequence[Any], params: Params) -> Any:
        """Run an operation where runs meet in collectives, or a profile is open."""
        if self.meeting is not None and self.meeting.meets(self, name, params):
            return self.meeting.ask(self, name, values, params)
        if self.typed or not self.scope.world.profiles:
            return run(self, values)
        with timed(self.scope.world, name, "body") as ran_on:
            ran_on([NamedSharding(self.scope.mesh, PartitionSpec())])
            return run(self, values)

    def lift(self, x: Any) -> Grid:
        """Return a value from outside as one that is the same on every device."""
        if type(x) is Grid and x.body is self:
            return x
        known = self._constants.get(id(x))
        if known is not None:
            if self.recorder is not None:  # it may have been lifted while nothing was written down
                self.recorder.lifted(known[1], x)
            return known[1]
        if type(x) is Grid:
            return self._adopted(x)
        x = as_array(x)
        if self.outer is not None and (self.scope.auto or self.typed):
            return self._narrowed_from(self.outer, x)
        return self._constant(x)

    def _constant(self, x: Any) -> Grid:
        if self.typed and (type(x) is Array or isinstance(x, AbstractArray)):
            return self._typed_constant(x)
        if type(x) is not Array:
            raise ConcretizationError(
                f"{x!r} belongs to another transformation than this shard_map body, and cannot be "
                "used in it."
            )
        scope = self.scope
        if scope.auto:
            found = to_grid(self, [x], PartitionSpec())
        else:
            whole = x
            if not x._type.layout.replicated or not x._type.local:
                whole = placed(x, NamedSharding(scope.mesh, PartitionSpec()))
            kind = scope.kind(cell_type(scope, x.shape, x.dtype), (), frozenset())
            found = Grid(self, kind, whole._live())
            if whole is x:
                return found
        self._constants[id(x)] = (x, found)
        return found

    def _typed_constant(self, x: Any) -> Grid:
        found = to_grid(self, [None], PartitionSpec(), like=x._type)
        found = found.standing_for(weak_of(x))
        if self.recorder is not None:
            self.recorder.lifted(found, x)
            self._constants[id(x)] = (x, found)
        return found

    def _adopted(self, x: Grid) -> Grid:
        """Return a value of a body around this one, the same along the axes that this one adds."""
        around = self.outer
        while around is not None and around is not x.body:
            around = around.outer
        if around is None or self.outer is None:
            raise ConcretizationError(
                f"This {x.kind.str_short()} belongs to a shard_map body that has ended, or to one "
                "that does not enclose this one. Return it from its body instead of keeping it."
            )
        return self._narrowed_from(self.outer, x)

    def _narrowed_from(self, outer: Body, x: Any) -> Grid:
        """Return a value as the body around has it, or has lifted it, on the axes left to this."""
        own = outer.lift(x)
        found = to_grid(self, own.cells, PartitionSpec(), own.kind.varies, own.kind.type)
        found = found.standing_for(own.kind.weak)
        if self.recorder is not None:
            self.recorder.lifted(found, x)
        self._constants[id(x)] = (x, found)
        return found


def _over(outer: Scope, scope: Scope, grid: Any) -> Any:
    """Return flags over an outer scope's axes so that they broadcast over an inner one's."""
    shape = [scope.sizes[a] if a in outer.sizes else 1 for a in scope.manual]
    return grid.reshape(shape)


_DECIDED: Memo[tuple[Any, ...], Decided] = Memo("operations in bodies", 1 << 14)
_NUMBER = _DECIDED.number


def decided(scope: Scope, name: str, kinds: Kinds, params: Params) -> Decided:
    """Return what an operation does on values of these kinds, worked out once per scope."""
    key = (name, params, *kinds)
    found = _DECIDED.table(scope).get(key)
    if found is not None:
        return found
    return _DECIDED.keep(scope, key, _decided(scope, name, kinds, params))


def _decided(scope: Scope, name: str, kinds: Kinds, params: Params) -> Decided:
    collective = COLLECTIVES.get(name)
    if collective is not None:
        own = dict(params)
        return (
            _written(scope, name, kinds, own) if are_mapped(own) else collective(scope, kinds, own)
        )
    grids = [k for k in kinds if isinstance(k, GridKind)]
    if any(k.weak for k in grids):
        return Decided(_weakly(scope, name, kinds, params))
    types = [k.type if isinstance(k, GridKind) else k for k in kinds]
    decision = decide(scope.world, name, types, params)
    extent, varies = _axes_of_results(scope, grids)
    results = tuple(scope.kind(t, extent, varies) for t in decision.outputs)
    if scope.auto:
        return Decided(_each_array(scope, name, params, results))
    onto = [None if isinstance(k, type) else scope.onto(k.extent, extent) for k in kinds]
    if isinstance(decision, MoveDecision):
        return _moving(scope, decision, results[0], onto)
    assert isinstance(decision, KernelDecision)  # a cell has all rows
    return _computing(scope, decision, results, onto)


def _written(scope: Scope, name: str, kinds: Kinds, params: dict[str, Any]) -> Decided:
    """Decide a collective over axes that `vmap` has bound: it is only written down here."""
    kind = kind_of(scope, name, kinds, params)
    count = scope.count(kind.extent)
    return Decided(lambda body, values: Grid(body, kind, (None,) * count))


def _axes_of_results(scope: Scope, grids: Sequence[GridKind]) -> tuple[Extent, frozenset[str]]:
    """Return the axes along which results differ, and those over which they may differ."""
    extent = scope.manual if scope.auto else [a for k in grids for a in k.extent]
    return scope.extent(extent), frozenset[str]().union(*(k.varies for k in grids))


def _weakly(scope: Scope, name: str, kinds: Kinds, params: Params) -> Runner:
    """Decide an operation on values of which some stand for Python numbers.

    These take the dtype of what they meet. Of such values alone it makes one that does so too.
    """
    grids = [k for k in kinds if isinstance(k, GridKind)]
    types = [(k.type, k.weak) if isinstance(k, GridKind) else (k, k) for k in kinds]
    extent, varies = _axes_of_results(scope, grids)
    outputs = [
        scope.kind(t, extent, varies, weak)
        for t, weak in inferred(scope.world, name, types, params)
    ]

    alone = takes_arrays_only(name) or all(k.weak for k in grids)

    def run(body: Body, values: Sequence[Any]) -> Any:
        given = [_met(x, alone) for x in values]
        own = tuple([x.kind if type(x) is Grid else type(x) for x in given])
        found = decided(scope, name, own, params).run(body, given)
        results = found if isinstance(found, tuple) else (found,)
        made = [x.standing_for(k.weak) for x, k in zip(results, outputs, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    return run


def _met(x: Any, alone: bool) -> Any:
    """Return what stands for a number as that number, or as an array where it meets none."""
    if type(x) is not Grid or x.kind.weak is None:
        return x
    return x.standing_for(None) if alone else x.number


def _moving(
    scope: Scope, decision: MoveDecision, kind: GridKind, onto: Sequence[tuple[int, ...] | None]
) -> Decided:
    everything = tuple(range(scope.count(kind.extent)))
    world, part, dtype = scope.world, decision.part, kind.dtype

    def moved(given: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
        sets = [
            [(x[m[i]],) for x, m in zip(given, onto, strict=True) if m is not None] for i in wanted
        ]
        return [blocks[0] for blocks in run_parts(world, part, sets, dtype, 0)]

    def run(body: Body, values: Sequence[Grid]) -> Grid:
        numbers = body.active(kind.extent)
        given = [x.cells for x in values]
        found = moved(given, everything if numbers is None else numbers)
        return Grid(body, kind, scattered(found, numbers, len(everything)))

    local = scope.local(kind.extent)

    def on_cells(where: Any, given: Sequence[Any]) -> Any:
        found = moved(given, everything if local is None else local)
        return scattered(found, local, len(everything))

    return Decided(run, (kind,), on_cells)


def _computing(
    scope: Scope,
    decision: KernelDecision,
    kinds: tuple[GridKind, ...],
    onto: Sequence[tuple[int, ...] | None],
) -> Decided:
    extent = kinds[0].extent
    count, held = scope.count(extent), scope.local(extent)
    here = tuple(range(count)) if held is None else held
    whole = _of_cells(decision, range(count), onto, bool(extent))
    general = _General(scope, decision, onto, kinds)
    if here:  # else other processes hold all cells
        own = _of_cells(decision, here, onto, bool(extent))
        own = replace(own, cells=replace(own.cells, result=here, pieces=count))
        fast = fast_path(own, partial(Grid, _NOBODY, kinds[0]))
        if fast is not None:
            every = tuple(range(count))
            alike = all(m is None or tuple(m) == every for m in onto)  # else some have fewer cells
            on_cells = fast_path(own, None) if alike else None
            return Decided(_fast(general.run, fast), kinds, on_cells or general.on_cells)
    if not may_join_chain(whole):
        return Decided(general.run, kinds, general.on_cells)

    def put_off(body: Body, values: Sequence[Any]) -> Any:
        if body.mask is not None:
            return general.run(body, values)
        return _deferred(body, whole, kinds[0], onto, values, body.active(extent))

    return Decided(put_off)


@final
class _General:
    """Runs the kernel of an operation for whichever cells are wanted."""

    def __init__(
        self,
        scope: Scope,
        decision: KernelDecision,
        onto: Sequence[tuple[int, ...] | None],
        kinds: tuple[GridKind, ...],
    ) -> None:
        self._world, self._decision, self._onto, self._kinds = scope.world, decision, onto, kinds
        self._extent = kinds[0].extent
        self._local = scope.local(self._extent)
        self._count = scope.count(self._extent)
        self._parts: dict[tuple[int, ...] | None, KernelDecision] = {}

    def _of(self, numbers: tuple[int, ...] | None) -> KernelDecision:
        """Return the decision about some of the cells."""
        known = self._parts.get(numbers)
        if known is None:
            if len(self._parts) > MOST_MASKS:
                self._parts.clear()
            cells = range(self._count) if numbers is None else numbers
            known = _of_cells(self._decision, cells, self._onto, bool(self._extent))
            self._parts[numbers] = known
        return known

    def _columns(self, decision: KernelDecision, given: Sequence[Any]) -> list[list[Any]]:
        """Return for each result the blocks of its cells."""
        dtypes = decision.dtypes
        ready = [
            x if to is None or type(x) is tuple else to.type(x)
            for x, to in zip(given, dtypes.weak, strict=True)
        ]
        found = run_cells(decision, self._world, ready, decision.row.kernel)
        return [[as_block(row[k], cast) for row in found] for k, cast in enumerate(dtypes.casts)]

    def run(self, body: Body, values: Sequence[Any]) -> Any:
        """Return the result, or a tuple of results."""
        numbers, count = body.active(self._extent), self._count
        given = [x.cells if type(x) is Grid else x for x in values]
        grids = [
            Grid(body, kind, scattered(blocks, numbers, count))
            for kind, blocks in zip(
                self._kinds, self._columns(self._of(numbers), given), strict=True
            )
        ]
        return grids[0] if len(grids) == 1 else tuple(grids)

    def on_cells(self, where: Any, given: Sequence[Any]) -> Any:
        """Return the cells of the result, or of each result."""
        columns = self._columns(self._of(self._local), given)
        found = [scattered(blocks, self._local, self._count) for blocks in columns]
        return found[0] if len(found) == 1 else found


def _fast(general: Runner, fast: Runner) -> Runner:
    """Return the shortest way where all cells are wanted, and the general one elsewhere."""

    def run(body: Body, values: Sequence[Any]) -> Any:
        if body.mask is not None:
            return general(body, values)
        grid = fast(body, values)
        grid.body = body
        return grid

    return run


def _deferred(
    body: Body,
    decision: KernelDecision,
    kind: GridKind,
    onto: Sequence[tuple[int, ...] | None],
    values: Sequence[Any],
    numbers: tuple[int, ...] | None,
) -> Grid:
    """Return the result of an operation, which runs when somebody looks at it."""
    args: list[Any] = []
    for x, m, weak in zip(values, onto, decision.dtypes.weak, strict=True):
        if m is None:
            args.append(x if weak is None else weak.type(x))
            continue
        pending = x.pending
        if pending is not None and pending.joins(kind, numbers):
            args.append(pending)
        else:
            cells = x.cells
            args.append(tuple([cells[i] for i in m]))
    cells = decision.cells
    params = cells.params if cells.own_params is None else cells.own_params[0]
    kernel = partial(decision.row.kernel, **params) if params else decision.row.kernel
    operation = Pending(body.scope.world, kernel, args, kind, cells.count, numbers)
    grid = Grid(body, kind, operation)
    operation.held_by(grid)
    return grid


def _of_cells(
    decision: KernelDecision,
    numbers: Sequence[int],
    onto: Sequence[tuple[int, ...] | None],
    many: bool,
) -> KernelDecision:
    """Return a decision about one cell as one about many, whose results all look alike.

    Args:
        decision: the decision.
        numbers: the cells.
        onto: for each operand the cell of it that each cell reads; None for a number.
        many: whether there are others.
    """
    alone, count = decision.cells, len(numbers)
    own = alone.own_params
    return replace(
        decision,
        cells=replace(
            alone,
            count=count,
            operands=tuple([None if m is None else tuple([m[i] for i in numbers]) for m in onto]),
            result=tuple(range(count)),
            pieces=count,
            own_params=None if own is None else own * count,
            contraction_index=(0,) * count,
            nbytes=alone.nbytes * count,
            single=alone.single and not many,
        ),
    )


def _each_array(scope: Scope, name: str, params: Params, kinds: tuple[GridKind, ...]) -> Runner:
    """Bind the operation for each cell, which is an Array on the automatic axes."""
    extent = kinds[0].extent
    count = scope.count(extent)

    def run(body: Body, values: Sequence[Any]) -> Any:
        numbers = body.active(extent)
        with _recorded(body, name, values, params, numbers):
            found = [
                EAGER.run(name, tuple(x.cells[i] if type(x) is Grid else x for x in values), params)
                for i in (range(count) if numbers is None else numbers)
            ]
        columns = (
            [found] if len(kinds) == 1 else list(zip(*found, strict=True)) or [()] * len(kinds)
        )
        grids = tuple(
            Grid(body, kind, scattered(cells, numbers, count))
            for kind, cells in zip(kinds, columns, strict=True)
        )
        return grids[0] if len(grids) == 1 else grids

    return run


def _recorded(
    body: Body,
    name: str,
    values: Sequence[Any],
    params: Params,
    numbers: Sequence[int] | None,
) -> contextlib.AbstractContextManager[None]:
    """Record what an operation moves, on all parts of the mesh that it is about."""
    scope = body.scope
    if not scope.world.ledgers:
        return contextlib.nullcontext()
    types = [
        cell_types(scope, x.kind, x.cells) if type(x) is Grid else [type(x)] * len(scope.submeshes)
        for x in values
    ]
    wanted = range(len(scope.submeshes)) if body.mask is None or numbers is None else numbers
    parts = [operation_wires(scope, name, [t[i] for t in types], params) for i in wanted]
    return record_wires(scope, name, parts)
