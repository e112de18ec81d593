"""Decisions: what an operation on operands of given types will do, worked out once.

In: a row, the operands' types, the parameters. Out: a `Decision`: which operands move, which
cells of blocks the kernel runs on, how partial results are reduced, what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import numpy as np

from meshard.algebra.layout import balanced_cuts, even_cuts
from meshard.algebra.propagate import Placement, Propagation, Split, propagate
from meshard.algebra.rule import BoundRule, Dim, OpRule
from meshard.algebra.sharding import NamedSharding, device_tensor
from meshard.plan.assemble import Part, Source, assemble
from meshard.plan.traffic import Fold, Move, Wire
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld

from .dtypes import order_matters, result_dtypes, weak_dtypes
from .exchange import Reduction, plan_reduction
from .frame import Frame
from .registry import Dtype, MoveOp, Op, Operand, Params

__all__ = ["Cell", "KernelPlan", "MovePlan", "decide_kernel", "decide_move"]


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


@final
@dataclass(frozen=True, slots=True)
class MovePlan:
    """What moving elements between layouts does.

    Attributes:
        name: the operation.
        part: what this process does.
        output: the result's type.
        wire: what passes between devices.
    """

    name: str
    part: Part
    output: ArrayType
    wire: Move


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


def decide_kernel(
    world: RuntimeWorld, op: Op, types: Sequence[ArrayType | type], params: Params
) -> KernelPlan:
    """Work out how a row runs on operands of these types.

    Raises:
        ShapeError: if the shapes do not fit the rule.
        DtypeError: if the kernel cannot take the dtypes.
        IncompatibleDevicesError: if the operands are committed to different devices.
    """
    operands = _operands(types)
    text = op.rule if isinstance(op.rule, str) else op.rule(operands, params)
    text, sizes = (text, {}) if isinstance(text, str) else text
    rule = OpRule.parse(text).bind([s for s, _ in operands], sizes, op.name)
    dtypes, given = result_dtypes(op, operands, params)
    kinds = [t if isinstance(t, ArrayType) else None for t in types]
    frame = Frame(op.name, kinds)
    if op.partial is None:
        rule = _nothing_reduced(rule)
    found = propagate(
        rule,
        [frame.placement(k) for k in kinds],
        frame.mesh.shape,
        [0 if k is None else k.nbytes for k in kinds],
    )
    moves: list[Part | None] = []
    wires: list[Wire] = []
    for kind, placement in zip(kinds, found.inputs, strict=True):
        moves.append(None if kind is None else _move_to(world, frame, kind, placement, wires))
    outputs = tuple(
        _output(world, frame, rule.output_shape(i), dtypes[i], placement, kinds)
        for i, placement in enumerate(found.outputs)
    )
    return _with_cells(
        world, op, params, frame, rule, found, kinds, moves, wires, outputs, operands, given
    )


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
        )
    return KernelPlan(
        op,
        tuple(moves),
        tuple(cells),
        tuple(tuple(g) for g in groups),
        outputs,
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
        (*wires, _fold(frame, found, outputs[0], dtypes)) if partial else tuple(wires),
    )


def _fold(frame: Frame, found: Propagation, output: ArrayType, dtypes: Sequence[Dtype]) -> Fold:
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
    )


def _process_array(world: RuntimeWorld, frame: Frame, tensor: Any) -> Any:
    """Return the process of each device of a tensor; None if this world is alone."""
    if world.process_count == 1:
        return None
    process = {d.id: d.process_index for d in frame.mesh.flat_devices}
    return np.vectorize(process.__getitem__, otypes=[np.int64])(tensor)


def decide_move(
    world: RuntimeWorld, op: MoveOp, types: Sequence[ArrayType], params: Params
) -> MovePlan:
    """Work out how elements move; the result keeps the first split operand's cuts if it can."""
    frame = Frame(op.name, list(types))
    maps = op.maps([t.shape for t in types], params)
    shape = tuple(m.size for m in maps[0])
    whole = op.whole(params)
    order = sorted(
        range(len(types)),
        key=lambda i: (
            not (op.follow and i == 0),
            types[i].layout.piece_count == 1,
            -types[i].nbytes,
            i,
        ),
    )
    onto = op.onto([t.shape for t in types], params) if op.onto else [None] * len(types)
    placement: Placement | None = None
    for number in order:
        own = frame.placement(types[number])
        if own is not None and op.flat:
            axes = tuple(a for s in own for a in s.axes if s.shards > 1)
            placement = (Split(axes, params["cuts"]),)
            break
        if own is not None and onto[number] is None:
            alone = len(types) == 1
            placement = tuple(
                _moved_split(s, m, alone) if d not in whole else Split((), (0, m.size))
                for d, (s, m) in enumerate(zip(own, maps[number], strict=True))
            )
            break
    if placement is None:
        placement = tuple(Split((), (0, n)) for n in shape)
    dtype = types[0].dtype
    lies = frame.sharding(placement)
    if op.follow and not frame.is_guest(types[0]):
        lies = types[0].sharding
    output = world.type_of(shape, dtype, lies, frame.committed)
    processes = world.process_map(output.sharding)
    sources, origins = [], []
    for kind, own_maps, place in zip(types, maps, onto, strict=True):
        layout, origin = kind.layout, kind.sharding
        if frame.is_guest(kind):
            flat = tuple(Split((), (0, n)) for n in kind.shape)
            origin = frame.sharding(flat)
            layout = origin.layout(kind.shape)
        elif processes is not None:
            processes = {**processes, **(world.process_map(kind.sharding) or {})}
        origins.append(origin)
        sources.append(Source(layout, None if op.flat else own_maps, place, op.flat))
    part = assemble(output.layout, sources, processes, world.process_index, world.sharing)
    array = (types[0] if len(types) == 1 else output).str_short()
    wire = Move(
        array, output.sharding, tuple(origins), output.layout, tuple(sources), dtype.itemsize
    )
    return MovePlan(op.name, part, output, wire)


def _moved_split(split: Split, dim_map: Any, alone: bool) -> Split:
    """Return how the result's dim is split: at the operand's own cuts if the map keeps order."""
    if split.shards == 1:
        return Split((), (0, dim_map.size))
    if dim_map.is_identity:
        return split
    cuts = dim_map.image_cuts(split.cuts) if alone else None
    if cuts is None:
        n = split.shards
        cuts = (
            even_cuts(dim_map.size, n) if dim_map.size % n == 0 else balanced_cuts(dim_map.size, n)
        )
    return Split(split.axes, cuts)
