"""Decisions about operations that only move elements, worked out once.

In: a row, the operands' types, the parameters. Out: a `MoveDecision`: what this process copies,
sends and receives, and how the result is laid out.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import balanced_cuts
from meshard.algebra.propagate import Placement, Split
from meshard.ops.engine.decision import MoveDecision
from meshard.ops.engine.operand_mesh import OperandMesh
from meshard.ops.row import MoveOp, Onto, Params
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.wires import Move, move_wire
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
