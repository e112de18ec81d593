"""Decisions: what an operation on operands of given types will do, worked out once.

In: a row, the operands' types, the parameters. Out: a `Decision`: which operands move, which
cells of blocks the kernel runs on, how partial results are reduced, what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import balanced_cuts
from meshard.algebra.propagate import Placement, Propagation, Split, propagate
from meshard.algebra.rule import BoundRule, Dim, OpRule
from meshard.algebra.sharding import NamedSharding, device_tensor
from meshard.ops.engine.dtypes import order_matters, result_dtypes, weak_dtypes
from meshard.ops.engine.kernels import for_operands
from meshard.ops.engine.operand_mesh import Frame
from meshard.ops.engine.reduction import Reduction, plan_reduction
from meshard.ops.engine.row import Dtype, Op, Operand, Params
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Fold, Move, Wire
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the kernel: the operands' pieces (-1: a scalar) and its parameters."""

    pieces: tuple[int, ...]
    params: Params


@final
@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What running a row on operands of given types does.

    Attributes:
        moves: per operand how it moves first; None if it stays.
        cells: the runs of the kernel that fall to this process.
        groups: per piece of the results the cells that give it, in mesh order.
        outputs: the results' types.
        reduction: what joins partial results of several processes; None if nothing does.
        partial: whether a cell's results are partial, to be combined over a group.
        nbytes: bytes read and written by all cells.
        cast: per result the dtype to convert to; None where the kernel gives the right one.
        own_dtype: whether a cell's results have the dtype of the operation's.
        order: per cell its number among the cells of the contracted factors.
        weak: per operand the dtype that a Python float becomes; None where it stays one.
        contiguous: whether the kernel needs contiguous blocks, to give the same bits everywhere.
        single: whether one cell is all there is, on the whole mesh.
        volume: the most factor positions that a cell has.
        wires: what passes between devices, the operands' moves first.
        scatter: the dim along which each device that gave a partial result keeps a part of the
            combined one; None where all of them keep the whole.
        operands: how each operand lies when the kernel reads it; None for a number.
    """

    op: Op
    moves: tuple[Part | None, ...]
    cells: tuple[Cell, ...]
    groups: tuple[tuple[int, ...], ...]
    outputs: tuple[ArrayType, ...]
    reduction: Reduction | None
    partial: bool
    nbytes: int
    cast: tuple[Dtype | None, ...]
    order: tuple[int, ...]
    own_dtype: bool
    weak: tuple[Dtype | None, ...]
    contiguous: bool
    single: bool
    volume: int
    wires: tuple[Wire, ...]
    scatter: int | None
    operands: tuple[ArrayType | None, ...]


def _operands(types: Sequence[ArrayType | type]) -> list[Operand]:
    return [(t.shape, t.dtype) if isinstance(t, ArrayType) else ((), t) for t in types]


def _indices(
    term: Sequence[Dim], factors: Mapping[str, Split], coordinate: Mapping[str, int]
) -> int:
    """Return the piece of an operand or result that a cell reads or gives."""
    piece = 0
    for dim in term:
        for factor in dim:
            if factor in factors:
                piece = piece * factors[factor].shards + coordinate[factor]
    return piece


def bound_rule(op: Op, types: Sequence[ArrayType | type], params: Params) -> BoundRule:
    """Return a row's rule on operands of these types.

    Raises:
        ShapeError: if the shapes do not fit the rule.
    """
    operands = _operands(types)
    text = op.rule if isinstance(op.rule, str) else op.rule(operands, params)
    text, sizes = (text, {}) if isinstance(text, str) else text
    rule = OpRule.parse(text).bind([s for s, _ in operands], sizes, op.name)
    return rule if op.partial is not None else _nothing_reduced(rule)


def propagated(
    op: Op,
    types: Sequence[ArrayType | type],
    params: Params,
    wanted: Sequence[Sharding | None] = (),
    leading: int | None = None,
) -> tuple[Frame, BoundRule, Propagation]:
    """Return how a row's factors are split, for operands of these types.

    Args:
        op: the row.
        types: the operands' types.
        params: the parameters.
        wanted: for each result where it had better lie.
        leading: the operand that stays where it is if operands disagree; None for the heaviest.
    """
    rule = bound_rule(op, types, params)
    kinds = [t if isinstance(t, ArrayType) else None for t in types]
    frame = Frame(op.name, kinds)
    weights = [0 if k is None else k.nbytes for k in kinds]
    if leading is not None:
        weights[leading] = sum(weights) + 1
    shapes = [rule.output_shape(i) for i in range(len(wanted))]
    wishes = [frame.wish(w, s) for w, s in zip(wanted, shapes, strict=True)]
    placements = [frame.placement(k) for k in kinds]
    return frame, rule, propagate(rule, placements, frame.mesh.shape, weights, wishes)


def decide_kernel(
    world: RuntimeWorld,
    op: Op,
    types: Sequence[ArrayType | type],
    params: Params,
    wanted: Sequence[Sharding | None] = (),
    leading: int | None = None,
) -> KernelPlan:
    """Work out how a row runs on operands of these types.

    Args:
        world: whose devices are used.
        op: the row.
        types: the operands' types.
        params: the parameters.
        wanted: for each result where it had better lie, as far as the operands leave it open.
        leading: the operand that stays where it is if operands disagree; None for the heaviest.

    Raises:
        ShapeError: if the shapes do not fit the rule.
        DtypeError: if the kernel cannot take the dtypes.
        IncompatibleDevicesError: if the operands are committed to different devices.
    """
    operands = _operands(types)
    op = for_operands(op, operands, params)
    dtypes, given = result_dtypes(op, operands, params)
    kinds = [t if isinstance(t, ArrayType) else None for t in types]
    frame, rule, found = propagated(op, types, params, wanted, leading)
    moves: list[Part | None] = []
    wires: list[Wire] = []
    for kind, placement in zip(kinds, found.inputs, strict=True):
        moves.append(None if kind is None else _move_to(world, frame, kind, placement, wires))
    outputs = tuple(
        _output(world, frame, rule.output_shape(i), dtypes[i], placement, kinds)
        for i, placement in enumerate(found.outputs)
    )
    scatter = None
    if wanted and op.partial is not None and isinstance(op.partial.combine, np.ufunc):
        scatter = _scatter(found, frame.wish(wanted[0], outputs[0].shape))
    return _with_cells(
        world,
        op,
        params,
        frame,
        rule,
        found,
        kinds,
        moves,
        wires,
        outputs,
        operands,
        given,
        scatter,
    )


def _scatter(found: Propagation, wish: Placement | None) -> tuple[int, Split] | None:
    """Return the dim along which a combined result is wanted divided, and how; None for none."""
    axes = tuple(a for f in found.reduced for a in found.factors[f].axes)
    if wish is None or not axes:
        return None
    place = None
    for dim, (own, want) in enumerate(zip(found.outputs[0], wish, strict=True)):
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
        if place is not None or want.axes != (*own_axes, *axes) or want.cuts != fine:
            return None
        place = dim, want
    return place


def _nothing_reduced(rule: BoundRule) -> BoundRule:
    """Demand that contracted factors are whole, for a row that cannot combine partial results."""
    kept = {f for term in rule.outputs for dim in term for f in dim}
    return BoundRule(
        rule.inputs, rule.outputs, rule.sizes, rule.whole | (frozenset(rule.sizes) - kept)
    )


def _move_to(
    world: RuntimeWorld, frame: Frame, kind: ArrayType, placement: Placement, wires: list[Wire]
) -> Part | None:
    """Return how an operand gets to a placement, None if it is there; add what crosses then."""
    split = any(s.shards > 1 for s in placement)
    if frame.is_guest(kind) and not split:
        return None
    target = frame.sharding(placement)
    layout = target.layout(kind.shape)
    source = kind.layout
    if frame.is_guest(kind):
        source = frame.sharding(tuple(Split((), (0, n)) for n in kind.shape)).layout(kind.shape)
    if source == layout:
        return None
    if not frame.is_guest(kind):
        wires.append(
            Move(
                kind.str_short(),
                target,
                (kind.sharding,),
                layout,
                (Source(source),),
                kind.dtype.itemsize,
            )
        )
    processes = world.process_map(target)
    if processes is not None:
        processes = {**processes, **(world.process_map(kind.sharding) or {})}
    return assemble(layout, [Source(source)], processes, world.process_index, world.sharing)


def _output(
    world: RuntimeWorld,
    frame: Frame,
    shape: tuple[int, ...],
    dtype: Dtype,
    placement: Placement,
    kinds: Sequence[ArrayType | None],
) -> ArrayType:
    """Return a result's type; an operand's own sharding, where the result lies like it."""
    if frame.single is None:
        for kind in kinds:
            if (
                kind is not None
                and kind.shape == shape
                and isinstance(kind.sharding, NamedSharding)
            ):
                own = frame.placement(kind)
                if own is not None and _same(own, placement):
                    return world.type_of(shape, dtype, kind.sharding, frame.committed)
    return world.type_of(shape, dtype, frame.sharding(placement), frame.committed)


def _same(a: Placement, b: Placement) -> bool:
    return all(
        s.cuts == t.cuts and (s.axes == t.axes or s.shards == 1) for s, t in zip(a, b, strict=True)
    )


def _with_cells(
    world: RuntimeWorld,
    op: Op,
    params: Params,
    frame: Frame,
    rule: BoundRule,
    found: Propagation,
    kinds: Sequence[ArrayType | None],
    moves: Sequence[Part | None],
    wires: Sequence[Wire],
    outputs: tuple[ArrayType, ...],
    operands: Sequence[Operand],
    given: tuple[Dtype, ...],
    scatter: tuple[int, Split] | None,
) -> KernelPlan:
    factors = found.factors
    names = [f for f in rule.sizes if f in factors and f not in found.reduced]
    names += found.reduced
    tensor = device_tensor(
        frame.mesh.device_ids, frame.mesh.axis_names, [factors[f].axes for f in names]
    )
    processes = _process_array(world, frame, tensor)
    cells: list[Cell] = []
    order: list[int] = []
    reduced: list[Dim] = [(f,) for f in found.reduced]
    groups: list[list[int]] = [[] for _ in range(outputs[0].layout.piece_count)]
    # Every result of a cell goes to the same piece, so all must be split over the same factors.
    assert all(o.layout.piece_count == len(groups) for o in outputs), op.name
    nbytes = volume = 0
    for place in product(*(range(factors[f].shards) for f in names)):
        if processes is not None and world.process_index not in processes[place]:
            continue
        at = dict(zip(names, place, strict=True))
        bounds = {
            f: (factors[f].cuts[at[f]], factors[f].cuts[at[f] + 1]) if f in at else (0, size)
            for f, size in rule.sizes.items()
        }
        shapes = [
            tuple(math.prod(bounds[f][1] - bounds[f][0] for f in dim) for dim in term)
            for term in (*rule.inputs, rule.outputs[0])
        ]
        own = op.local(params, bounds, shapes[-1]) if op.local else params
        pieces = tuple(
            -1 if kind is None else _indices(term, factors, at)
            for kind, term in zip(kinds, rule.inputs, strict=True)
        )
        groups[_indices(rule.outputs[0], factors, at)].append(len(cells))
        cells.append(Cell(pieces, own))
        order.append(_indices(reduced, factors, at))
        sizes = [k.dtype.itemsize if k is not None else 0 for k in kinds]
        sizes.append(outputs[0].dtype.itemsize)
        nbytes += sum(math.prod(s) * n for s, n in zip(shapes, sizes, strict=True))
        volume = max(volume, math.prod(stop - start for start, stop in bounds.values()))
    partial = any(factors[f].shards > 1 for f in found.reduced)
    reduction = None
    dtypes = given
    if partial:
        assert op.partial is not None
        if op.partial.dtypes is not None:
            dtypes = op.partial.dtypes(operands, params)
    if partial and processes is not None:
        reduction = plan_reduction(
            world,
            frame.mesh,
            [factors[f].axes for f in found.reduced],
            found.outputs[0],
            outputs[0].shape,
            dtypes,
            None if scatter is None else scatter[0],
        )
    given_out = outputs
    if scatter is not None:
        dim, split = scatter
        placement = list(found.outputs[0])
        placement[dim] = split
        lies = frame.sharding(tuple(placement))
        given_out = (world.type_of(outputs[0].shape, outputs[0].dtype, lies, frame.committed),)
    return KernelPlan(
        op,
        tuple(moves),
        tuple(cells),
        tuple(tuple(g) for g in groups),
        given_out,
        reduction,
        partial,
        nbytes,
        tuple(
            None if t.dtype == own and not partial else t.dtype
            for t, own in zip(outputs, given, strict=True)
        ),
        tuple(order),
        dtypes == tuple(t.dtype for t in outputs),
        weak_dtypes(operands),
        order_matters(op, operands),
        all(factors[f].shards == 1 for f in names),
        volume,
        (*wires, _fold(frame, found, outputs[0], dtypes, scatter is not None))
        if partial
        else tuple(wires),
        None if scatter is None else scatter[0],
        tuple(
            None
            if k is None
            else k
            if move is None
            else world.type_of(k.shape, k.dtype, frame.sharding(placement), frame.committed)
            for k, move, placement in zip(kinds, moves, found.inputs, strict=True)
        ),
    )


def _fold(
    frame: Frame,
    found: Propagation,
    output: ArrayType,
    dtypes: Sequence[Dtype],
    scattered: bool,
) -> Fold:
    """Return what crosses when partial results are combined."""
    mesh = frame.mesh
    axes = tuple(a for f in found.reduced for a in found.factors[f].axes)
    tensor = device_tensor(
        mesh.device_ids, mesh.axis_names, [axes, *(s.axes for s in found.outputs[0])]
    )
    return Fold(
        output.str_short(),
        tuple(a for a in mesh.axis_names if a in axes and mesh.shape[a] > 1),
        tensor,
        output.layout,
        sum(d.itemsize for d in dtypes),
        scattered,
    )


def _process_array(world: RuntimeWorld, frame: Frame, tensor: Any) -> Any:
    """Return the process of each device of a tensor; None if this world is alone."""
    if world.process_count == 1:
        return None
    process = {d.id: d.process_index for d in frame.mesh.flat_devices}
    return np.vectorize(process.__getitem__, otypes=[np.int64])(tensor)
