"""Decisions about operations that only move elements, worked out once.

In: a row, the operands' types, the parameters. Out: a `MovePlan`: what this process copies, sends
and receives, and how the result lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.layout import balanced_cuts, even_cuts
from meshard.algebra.propagate import Placement, Split
from meshard.ops.engine.operand_mesh import Frame
from meshard.ops.engine.row import MoveOp, Params
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Move
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld


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
