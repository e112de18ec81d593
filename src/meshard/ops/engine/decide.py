"""Decisions: what an operation on operands of given types will do, worked out once.

In: an operation's name, the operands' types, the parameters. Out: a `Decision`: which operands
move, which cells of blocks the kernel runs on, how partial results are combined, what comes out.
Rows are looked up here and nowhere else.

Decisions about operations that only move elements, worked out once.

In: a row, the operands' types, the parameters. Out: a `MoveDecision`: what this process copies,
sends and receives, and how the result is laid out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from itertools import pairwise, repeat
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from meshard.algebra.abstract import Sharding
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import balanced_cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.propagate import Placement, Propagation, Split, propagate
from meshard.algebra.rule import BoundRule, Dim, OpRule
from meshard.algebra.sharding import NamedSharding, device_tensor
from meshard.errors import ArgumentError
from meshard.ops.dtypes.kernels import for_operands
from meshard.ops.dtypes.laws import order_matters, result_dtypes, weak_dtypes
from meshard.ops.engine.decide_exchange import decide_exchange
from meshard.ops.engine.decision import (
    Cells,
    Combination,
    Decision,
    KernelDecision,
    KernelDtypes,
    MoveDecision,
)
from meshard.ops.engine.each import each_row
from meshard.ops.engine.operand_mesh import SMALL, OperandMesh, way_to
from meshard.ops.engine.reduction import Partials, Scatter, plan_reduction
from meshard.ops.row import REGISTRY, Dtype, MoveOp, Onto, Op, Operand, Params
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Move, Wire, fold_wire, move_wire
from meshard.runtime.doors import Params as BoundParams
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld


def decide_move(
    world: RuntimeWorld, op: MoveOp, types: Sequence[ArrayType], params: Params
) -> MoveDecision:
    """Work out how elements move; the result keeps the first split operand's cuts if it can."""
    mesh = OperandMesh(op.name, list(types))
    maps = op.maps([t.shape for t in types], params)
    onto = op.onto([t.shape for t in types], params) if op.onto else [None] * len(types)
    sharding = mesh.sharding(_placement(mesh, op, types, params, maps, onto))
    if op.follow and not types[0].unplaced:
        sharding = types[0].sharding
    shape = tuple(m.size for m in maps[0])
    output = world.type_of(shape, types[0].dtype, sharding, mesh.committed)
    processes = world.process_map(output.sharding)
    sources, origins = [], []
    for array, own_maps, place in zip(types, maps, onto, strict=True):
        layout, origin = array.layout, array.sharding
        if array.unplaced:
            origin = mesh.sharding(_whole(array.shape))
            layout = origin.layout(array.shape)
        elif processes is not None:
            processes = {**processes, **(world.process_map(array.sharding) or {})}
        origins.append(origin)
        sources.append(Source(layout, None if op.flat else own_maps, place, op.flat))
    part = assemble(output.layout, sources, processes, world.process_index, world.sharing)
    moved = (types[0] if len(types) == 1 else output).str_short()
    itemsize = output.dtype.itemsize
    move = Move(output.sharding, tuple(origins), output.layout, tuple(sources), itemsize)
    return MoveDecision(row=op, part=part, outputs=(output,), wires=(move_wire(moved, move),))


def _placement(
    mesh: OperandMesh,
    op: MoveOp,
    types: Sequence[ArrayType],
    params: Params,
    maps: Sequence[Sequence[DimMap]],
    onto: Sequence[Onto],
) -> Placement:
    """Return the result's placement: like the heaviest split operand's, as far as maps let it."""
    whole = op.whole(params)

    def rank(i: int) -> tuple[bool, bool, int, int]:
        first = op.follow and i == 0
        return not first, types[i].layout.piece_count == 1, -types[i].nbytes, i

    for number in sorted(range(len(types)), key=rank):
        own = mesh.placement(types[number])
        if own is not None and op.flat:
            axes = tuple(a for s in own for a in s.axes if s.shards > 1)
            return (Split(axes, params["cuts"]),)
        if own is not None and onto[number] is None:
            alone = len(types) == 1 and not op.even
            return tuple(
                Split((), (0, m.size)) if d in whole else _moved_split(s, m, alone)
                for d, (s, m) in enumerate(zip(own, maps[number], strict=True))
            )
    return _whole([m.size for m in maps[0]])


def _whole(shape: Sequence[int]) -> Placement:
    return tuple(Split((), (0, n)) for n in shape)


def _moved_split(split: Split, dim_map: DimMap, alone: bool) -> Split:
    """Return how the result's dim is split: at the operand's own cuts if the map keeps order."""
    if split.shards == 1:
        return Split((), (0, dim_map.size))
    if dim_map.is_identity:
        return split
    cuts = dim_map.image_cuts(split.cuts) if alone else None
    if cuts is None:
        cuts = balanced_cuts(dim_map.size, split.shards)
    return Split(split.axes, cuts)


Type = ArrayType | type[Any]
"""What an operand is: an array's type, or the type of a Python number."""


def find_row(name: str) -> Op | MoveOp | None:
    """Return the row of an operation; None if there is none, as for collectives."""
    return REGISTRY.get(name) or each_row(name)


def row_of(name: str) -> Op | MoveOp:
    """Return the row of an operation.

    Raises:
        ArgumentError: if there is no such operation.
    """
    row = find_row(name)
    if row is None:
        raise ArgumentError(f"There is no operation named {name!r}.")
    return row


def decide(
    world: RuntimeWorld,
    name: str,
    types: Sequence[Type],
    params: BoundParams,
    *,
    preferred: Sequence[Sharding | None] = (),
    leading: int | None = None,
) -> Decision:
    """Work out what an operation on operands of these types does.

    Args:
        world: whose devices are used.
        name: the operation.
        types: the operands' types.
        params: the parameters.
        preferred: for each result how it is best laid out, as far as the operands leave it open.
        leading: the operand that stays where it is if operands disagree; None for the heaviest.

    Raises:
        ArgumentError: if there is no such operation.
        ShapeError: if the shapes do not fit the operation's rule.
        DtypeError: if the kernel cannot take the dtypes.
        IncompatibleDevicesError: if the operands are committed to different devices.
    """
    row = row_of(name)
    if isinstance(row, MoveOp):
        return decide_move(world, row, [t for t in types if isinstance(t, ArrayType)], dict(params))
    if row.decides is not None:
        made: Decision = row.decides(world, row, types, dict(params))
        return made
    if row.positions is not None:
        found = decide_exchange(world, row, types, dict(params), preferred, leading)
        if found is not None and (row.positions.updates or not found.moved):
            return found
        other = _Kernel(world, row, types, dict(params), preferred, leading).decision
        # An operand has to move in any case: perhaps the rows should be together.
        return other if found is None or _total(other) < _total(found) else found
    return _Kernel(world, row, types, dict(params), preferred, leading).decision


def _total(decision: Decision) -> int:
    return sum(w.total for w in decision.wires)


def takes_arrays_only(name: str) -> bool:
    """Whether a Python number among the operands of an operation must be made an array first."""
    return isinstance(row_of(name), MoveOp)


def _operands(types: Sequence[Type]) -> list[Operand]:
    return [(t.shape, t.dtype) if isinstance(t, ArrayType) else ((), t) for t in types]


def bound_rule(op: Op, types: Sequence[Type], params: Params) -> BoundRule:
    """Return an operation's rule on operands of these types.

    Raises:
        ShapeError: if the shapes do not fit the rule.
    """
    operands = _operands(types)
    given = op.rule if isinstance(op.rule, str) else op.rule(operands, params)
    text, sizes = (given, {}) if isinstance(given, str) else given
    return OpRule.parse(text).bind([s for s, _ in operands], sizes, op.name)


def lasting_rule(op: Op, types: Sequence[Type], params: Params) -> BoundRule:
    """Return an operation's rule, in which factors are whole of which no part can be computed.

    These are contracted ones whose partial results stay so, and those that only results have, if
    the kernel does not learn which part of them a cell is.

    Raises:
        ShapeError: if the shapes do not fit the rule.
    """
    return _lasting(bound_rule(op, types, params), op.partial is None, op.local is None)


@lru_cache(maxsize=4096)
def _lasting(rule: BoundRule, contracted: bool, unread: bool) -> BoundRule:
    """Return a rule in which also contracted factors are whole, or those that only results have."""
    whole = rule.whole
    if contracted:
        whole |= rule.sizes.keys() - rule.kept
    if unread:
        whole |= rule.sizes.keys() - {f for term in rule.inputs for dim in term for f in dim}
    if whole == rule.whole:
        return rule
    return BoundRule(rule.inputs, rule.outputs, rule.sizes, whole)


def propagated(
    op: Op,
    types: Sequence[Type],
    params: Params,
    preferred: Sequence[Sharding | None] = (),
) -> tuple[OperandMesh, Propagation]:
    """Return how the factors of an operation are split.

    Args:
        op: the operation.
        types: the operands' types.
        params: the parameters.
        preferred: for each result how it is best laid out.
    """
    lasting = (
        op.positions is None
    )  # rows that are looked up pass between devices, as they are split
    rule = (lasting_rule if lasting else bound_rule)(op, types, params)
    mesh = OperandMesh(op.name, [t if isinstance(t, ArrayType) else None for t in types])
    return mesh, _propagated(mesh, rule, types, preferred, None)


def _propagated(
    mesh: OperandMesh,
    rule: BoundRule,
    types: Sequence[Type],
    preferred: Sequence[Sharding | None],
    leading: int | None,
) -> Propagation:
    arrays = [t if isinstance(t, ArrayType) else None for t in types]
    weights = [0 if t is None else t.nbytes for t in arrays]
    if leading is not None:  # heavier than all others together
        weights[leading] = sum(weights) + 1
    wanted = tuple([mesh.preferred(s, rule.output_shape(i)) for i, s in enumerate(preferred)])
    placements = tuple([mesh.placement(t) for t in arrays])
    if mesh.mesh.size > SMALL:
        return propagate(rule, placements, mesh.mesh.shape, weights, wanted)
    return _propagation(rule, placements, mesh.mesh.shape_tuple, tuple(weights), wanted)


@lru_cache(maxsize=2048)
def _propagation(
    rule: BoundRule,
    placements: tuple[Placement | None, ...],
    axes: tuple[tuple[str, int], ...],
    weights: tuple[int, ...],
    wanted: tuple[Placement | None, ...],
) -> Propagation:
    """Return how factors are split: operations of one rule meet operands that lie alike."""
    return propagate(rule, placements, dict(axes), weights, wanted)


@final
@dataclass(frozen=True)
class _Places:
    """The cells of the factors that a kernel's runs are cut along, as arrays over all of them.

    Attributes:
        count: how many there are.
        shards: into how many cells each factor is cut.
        at: the cell along each factor that runs are cut along.
        bounds: the positions of each factor that a cell holds; one pair where all hold the same.
    """

    count: int
    shards: Mapping[str, int]
    at: Mapping[str, NDArray[np.int64]]
    bounds: Mapping[str, tuple[Any, Any]]
    _pieces: dict[tuple[str, ...], tuple[int, ...]] = field(default_factory=dict)
    _elements: dict[tuple[str, ...], int] = field(default_factory=dict)

    def pieces(self, term: Sequence[Dim]) -> tuple[int, ...]:
        """Return the number of the piece that each cell reads or gives.

        The cells of the factors that split an operand, in C order, are the pieces of its layout.
        """
        factors = tuple([f for dim in term for f in dim if f in self.at])
        found = self._pieces.get(factors)
        if found is None:
            piece = np.zeros(self.count, np.int64)
            for factor in factors:
                piece = piece * self.shards[factor] + self.at[factor]
            found = self._pieces[factors] = tuple(piece.tolist())
        return found

    def elements(self, term: Sequence[Dim]) -> int:
        """Return how many elements all cells together read or give."""
        factors = tuple([f for dim in term for f in dim])
        found = self._elements.get(factors)
        if found is None:
            spans = [self.bounds[f][1] - self.bounds[f][0] for f in factors]
            whole = np.ones(self.count, np.int64)
            found = self._elements[factors] = int(np.sum(reduce(operator.mul, spans, whole)))
        return found

    @cached_property
    def volume(self) -> int:
        """The most factor positions that a cell holds, or somewhat more if cuts are uneven."""
        if not self.count:
            return 0
        return math.prod([int(np.max(stop - start)) for start, stop in self.bounds.values()])

    def local(self, op: Op, params: Params, term: Sequence[Dim]) -> Iterator[Params]:
        """Yield the parameters of each run, of a kernel for which they differ.

        Args:
            op: the operation.
            params: its parameters.
            term: the dims of its first result.
        """
        assert op.local is not None
        bounds = [np.broadcast_to(np.transpose(b), (self.count, 2)) for b in self.bounds.values()]
        rows = zip(*[b.tolist() for b in bounds], strict=True) if bounds else repeat((), self.count)
        for spans in rows:
            own = {f: (start, stop) for f, (start, stop) in zip(self.bounds, spans, strict=True)}
            sizes = {f: stop - start for f, (start, stop) in own.items()}
            yield op.local(params, own, tuple(math.prod(sizes[f] for f in dim) for dim in term))


def _places(rule: BoundRule, found: Propagation, mesh: Mesh | None, process: int) -> _Places:
    """Return the cells that a process has devices for; all of them if it is alone, without mesh."""
    factors, reduced = found.factors, found.reduced
    # The contracted factors come last.
    names = [*(f for f in rule.sizes if f in factors and f not in reduced), *reduced]
    shards = {f: factors[f].shards for f in names}
    numbers = np.arange(math.prod(shards.values()))
    if mesh is not None:
        held = (_processes(mesh, [factors[f].axes for f in names]) == process).any(axis=-1)
        numbers = np.flatnonzero(held)
    at: dict[str, NDArray[np.int64]] = {}
    rest = numbers
    for f in reversed(names):
        rest, at[f] = np.divmod(rest, shards[f])
    bounds: dict[str, tuple[Any, Any]] = {f: (0, n) for f, n in rule.sizes.items()}
    for f in names:
        cuts = np.array(factors[f].cuts)
        bounds[f] = cuts[at[f]], cuts[at[f] + 1]
    return _Places(len(numbers), shards, at, bounds)


_kept_places = lru_cache(maxsize=2048)(_places)


def _processes(mesh: Mesh, axes: Sequence[tuple[str, ...]]) -> Any:
    """Return the processes of the devices of each cell."""
    tensor = device_tensor(mesh.device_ids, mesh.axis_names, axes)
    process = {d.id: d.process_index for d in mesh.flat_devices}
    return np.array([process[d] for d in tensor.ravel().tolist()], np.int64).reshape(tensor.shape)


@final
class _Kernel:
    """The decision about one kernel, part by part."""

    def __init__(
        self,
        world: RuntimeWorld,
        op: Op,
        types: Sequence[Type],
        params: Params,
        preferred: Sequence[Sharding | None],
        leading: int | None,
    ) -> None:
        self.world = world
        self.params = params
        self.operands = _operands(types)
        self.op = for_operands(op, self.operands, params)
        self.arrays = [t if isinstance(t, ArrayType) else None for t in types]
        # What a kernel cannot take is refused before the devices are looked at.
        self.dtypes, self.kernel_dtypes = result_dtypes(self.op, self.operands, params)
        self.rule = lasting_rule(self.op, types, params)
        self.meets = OperandMesh(self.op.name, self.arrays)
        self.found = _propagated(self.meets, self.rule, types, preferred, leading)
        self.preferred = preferred

    @property
    def decision(self) -> KernelDecision:
        """All parts together."""
        moves, wires = self._moves()
        outputs = self._outputs()
        if self.partial:
            wires += self._folds(outputs[0])
        return KernelDecision(
            row=self.op,
            operands=tuple(map(self._read, self.arrays, moves, self.found.inputs)),
            moves=tuple(moves),
            cells=self._cells(outputs),
            combination=self._combination(outputs[0]) if self.partial else None,
            outputs=outputs if self.scatter is None else (self._scattered(outputs[0]),),
            wires=tuple(wires),
            dtypes=self._converted(outputs),
            agree=self._agreeing(outputs[0]),
        )

    def _agreeing(self, output: ArrayType) -> tuple[int, ...]:
        """Return the processes that raise the same error if one of them meets such values."""
        if self.op.refuses is None or not self.op.refuses(self.operands):
            return ()
        members = tuple(sorted({d.process_index for d in output.sharding.device_order}))
        return members if len(members) > 1 and self.world.process_index in members else ()

    # operands and results

    def _moves(self) -> tuple[list[Part | None], list[Wire]]:
        """Return how each operand gets to where it is read, and what crosses then."""
        moves: list[Part | None] = []
        wires: list[Wire] = []
        for array, placement in zip(self.arrays, self.found.inputs, strict=True):
            part = None if array is None else self._move_to(array, placement, wires)
            moves.append(part)
        return moves, wires

    def _move_to(self, array: ArrayType, placement: Placement, wires: list[Wire]) -> Part | None:
        """Return how an operand gets to a placement, None if it is there; add what crosses then."""
        part, wire = way_to(self.world, self.meets, array, placement)
        wires += [] if wire is None else [wire]
        return part

    def _read(
        self, array: ArrayType | None, move: Part | None, placement: Placement
    ) -> ArrayType | None:
        """Return how an operand is laid out when the kernel reads it."""
        if array is None or move is None:
            return array
        return self._type(array.shape, array.dtype, placement)

    def _type(self, shape: tuple[int, ...], dtype: Dtype, placement: Placement) -> ArrayType:
        sharding = self.meets.sharding(placement)
        return self.world.type_of(shape, dtype, sharding, self.meets.committed)

    def _outputs(self) -> tuple[ArrayType, ...]:
        """Return the results' types, before any is scattered."""
        return tuple(
            self._output(self.rule.output_shape(i), self.dtypes[i], placement)
            for i, placement in enumerate(self.found.outputs)
        )

    def _output(self, shape: tuple[int, ...], dtype: Dtype, placement: Placement) -> ArrayType:
        """Return a result's type; with an operand's own sharding where it is laid out alike."""
        if self.meets.single is None:
            for array in self.arrays:
                if array is None or array.shape != shape:
                    continue
                own = self.meets.placement(array)
                named = isinstance(array.sharding, NamedSharding)
                if named and own is not None and _same(own, placement):
                    committed = self.meets.committed
                    return self.world.type_of(shape, dtype, array.sharding, committed)
        return self._type(shape, dtype, placement)

    def _converted(self, outputs: Sequence[ArrayType]) -> KernelDtypes:
        return KernelDtypes(
            casts=tuple(
                None if t.dtype == own and not self.partial else t.dtype
                for t, own in zip(outputs, self.kernel_dtypes, strict=True)
            ),
            weak=weak_dtypes(self.operands),
            out_usable=self._cell_dtypes == tuple(t.dtype for t in outputs),
            contiguous=order_matters(self.op, self.operands),
        )

    # the runs of the kernel

    def _cells(self, outputs: Sequence[ArrayType]) -> Cells:
        """Return the runs that fall to this process."""
        # Every result of a run is the same piece, so all must be split over the same factors.
        count = outputs[0].layout.piece_count
        assert all(t.layout.piece_count == count for t in outputs), self.op.name
        rule, places = self.rule, self._places
        reduced = [(f,) for f in self.found.reduced]
        itemsizes = [0 if t is None else t.dtype.itemsize for t in self.arrays]
        itemsizes.append(outputs[0].dtype.itemsize)
        terms = (*rule.inputs, rule.outputs[0])
        own = None
        if self.op.local is not None:
            own = tuple(places.local(self.op, self.params, rule.outputs[0]))
        # Runs that agree in all factors but the contracted ones give parts of one piece. The
        # contracted ones come last, so that runs of a piece are in mesh order.
        return Cells(
            count=places.count,
            operands=tuple(
                None if array is None else places.pieces(term)
                for array, term in zip(self.arrays, rule.inputs, strict=True)
            ),
            result=places.pieces(rule.outputs[0]),
            pieces=count,
            params=self.params,
            own_params=own,
            contraction_index=places.pieces(reduced),
            nbytes=sum(
                places.elements(term) * n for term, n in zip(terms, itemsizes, strict=True) if n
            ),
            volume=places.volume,
            single=all(n == 1 for n in places.shards.values()),
        )

    @property
    def _places(self) -> _Places:
        """The cells that this process has devices for."""
        mesh = None if self.world.process_count == 1 else self.meets.mesh
        asked = self.rule, self.found, mesh, self.world.process_index
        return (_places if self.meets.mesh.size > SMALL else _kept_places)(*asked)

    # partial results

    @property
    def partial(self) -> bool:
        """Whether a contracted factor is split, so that runs give partial results."""
        return any(self.found.factors[f].shards > 1 for f in self.found.reduced)

    @cached_property
    def _cell_dtypes(self) -> tuple[Dtype, ...]:
        """The dtypes of what a run gives."""
        law = self.op.partial
        if self.partial:
            assert law is not None
            if law.dtypes is not None:
                return law.dtypes(self.operands, self.params)
        return self.kernel_dtypes

    @cached_property
    def scatter(self) -> tuple[int, Split, tuple[str, ...]] | None:
        """The dim along which a combined result is preferred divided, how, and over which axes."""
        law = self.op.partial
        if not self.preferred or law is None or not isinstance(law.combine, np.ufunc):
            return None
        preferred = self.meets.preferred(self.preferred[0], self.rule.output_shape(0))
        return None if preferred is None else _scatter(self.found, preferred)

    def _scattered(self, output: ArrayType) -> ArrayType:
        assert self.scatter is not None
        dim, split, _ = self.scatter
        placement = list(self.found.outputs[0])
        placement[dim] = split
        return self._type(output.shape, output.dtype, tuple(placement))

    def _combination(self, output: ArrayType) -> Combination:
        scatter = None if self.scatter is None else self.scatter[0]
        if self.world.process_count == 1:
            return Combination(None, scatter, output)
        axes = tuple(a for f in self.found.reduced for a in self.found.factors[f].axes)
        assert self.op.partial is not None
        partials = Partials(
            self.meets.mesh,
            axes,
            self.found.outputs[0],
            output.shape,
            self._cell_dtypes,
            self.op.partial.along,
        )
        if self.scatter is None:
            return Combination(plan_reduction(self.world, partials), None, output)
        kept = Scatter(self.scatter[0], self.scatter[2], self._scattered(output).layout)
        return Combination(plan_reduction(self.world, partials, kept), scatter, output)

    def _folds(self, output: ArrayType) -> list[Wire]:
        """Return what crosses when partial results are combined.

        What is divided over some of the axes is scattered over these, and of what a device keeps
        the sum over the others is taken.
        """
        placement = self.found.outputs[0]
        axes = tuple(a for f in self.found.reduced for a in self.found.factors[f].axes)
        if self.scatter is None:
            return [self._fold(output, placement, axes, False)]
        dim, split, over = self.scatter
        wires = [self._fold(output, placement, over, True)]
        rest = tuple(a for a in axes if a not in over)
        if rest:
            kept = tuple([split if d == dim else s for d, s in enumerate(placement)])
            wires.append(self._fold(self._scattered(output), kept, rest, False))
        return wires

    def _fold(
        self, output: ArrayType, placement: Placement, axes: tuple[str, ...], scattered: bool
    ) -> Wire:
        mesh = self.meets.mesh
        return fold_wire(
            output.str_short(),
            tuple(a for a in mesh.axis_names if a in axes and mesh.shape[a] > 1),
            device_tensor(mesh.device_ids, mesh.axis_names, [axes, *(s.axes for s in placement)]),
            output.layout,
            sum(d.itemsize for d in self._cell_dtypes),
            scattered=scattered,
        )


def _same(a: Placement, b: Placement) -> bool:
    return all(
        s.cuts == t.cuts and (s.axes == t.axes or s.shards == 1) for s, t in zip(a, b, strict=True)
    )


def _scatter(found: Propagation, preferred: Placement) -> tuple[int, Split, tuple[str, ...]] | None:
    """Return the one dim that a placement divides further by contracted axes, how, and by which.

    Each device then keeps the part of the sum that it has combined itself (a reduce-scatter), but
    only if the preferred cuts are those that `plan_reduction` would share the work at. Where only
    some of the axes divide it, devices along the others keep the same part, each having combined
    a share of it.
    """
    axes = tuple(a for f in found.reduced for a in found.factors[f].axes)
    if not axes:
        return None
    place = None
    for dim, (own, want) in enumerate(zip(found.outputs[0], preferred, strict=True)):
        if own.cuts == want.cuts:
            continue
        parts = want.shards // own.shards
        if not parts:
            return None
        fine = (
            *(a + c for a, b in pairwise(own.cuts) for c in balanced_cuts(b - a, parts)[:-1]),
            own.cuts[-1],
        )
        own_axes = own.axes if own.shards > 1 else ()
        over = want.axes[len(own_axes) :]
        divides = want.axes == (*own_axes, *over) and over and set(over) <= set(axes)
        if place is not None or not divides or want.cuts != fine:
            return None
        place = dim, want, over
    return place
