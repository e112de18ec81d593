"""What loops and calls move around their parts: carries, positions of arrays, stacked results.

In: the types of a call's operands, and of what its parts read. Out: communications, each with the
operand that moves. Nothing is run: all follows from types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, final

from meshard.algebra.sharding import NamedSharding
from meshard.ops.engine.accept import WEAK, accept
from meshard.ops.engine.decide import decide, takes_arrays_only
from meshard.ops.engine.infer import AbstractArray
from meshard.ops.engine.later import ByValues
from meshard.plan.move.wires import Wire, collective_wire, in_turns
from meshard.runtime.doors import Interpreter, Params, interpreting
from meshard.runtime.moving.place import as_array, wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.lowering.executable import AnyKind, Moving

_SAMPLES = 8
"""How many elements each pair of cells has looked at to decide where the rest goes."""


def by_values(
    function: Any, operands: Sequence[ArrayType], outputs: Sequence[ArrayType]
) -> list[Moving]:
    """Return what a function that looks at values may move at most, tiny arrays aside.

    Some functions say it themselves. Others are sample sorts: parts go where they belong, and
    settle between neighbours; before that some elements, and how many are in each part, are brought
    together.
    """
    if isinstance(function, ByValues):
        kind = operands[0]
        received = function.most(operands)
        wire = _around(kind, "all-gather", received)
        return [] if wire is None else [(wire, None)]
    found: list[Moving] = []
    for kind in outputs:
        layout, sharding = kind.layout, kind.sharding
        if not isinstance(sharding, NamedSharding) or layout.piece_count < 2:
            continue
        sampled = min(_SAMPLES * layout.piece_count**2 * kind.dtype.itemsize, kind.nbytes)
        small = sampled + 16 * layout.piece_count**2
        received = {
            int(device): 2 * layout.box(piece).volume * kind.dtype.itemsize + small
            for piece in range(layout.piece_count)
            for device in layout.holders(piece)
        }
        wire = _around(kind, "all-to-all", received)
        found += [] if wire is None else [(wire, None)]
    return found


def _around(kind: ArrayType, how: str, received: Mapping[int, int]) -> Wire | None:
    """Return at most what passes along the axes that split an array; None if none does."""
    sharding = kind.sharding
    if not isinstance(sharding, NamedSharding):
        return None
    mesh = sharding.mesh
    axes = tuple(a for dim in sharding.spec.axes(kind.ndim) for a in dim if mesh.shape[a] > 1)
    return collective_wire(kind.str_short(), how, axes, mesh, lambda: dict(received), exact=False)


def first_carry(
    world: RuntimeWorld, first: Sequence[AnyKind], turn: Sequence[AnyKind], before: int
) -> list[Moving]:
    """Return what moves a loop's first carry to the layout that it has in every turn.

    Args:
        world: whose devices are used.
        first: the types of the first carry.
        turn: those that a turn reads.
        before: how many operands come before the carry.
    """
    return [
        (wire, before + number)
        for number, (kind, wanted) in enumerate(zip(first, turn, strict=False))
        if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType)
        for wire in wires_between(world, kind, wanted)
    ]


def scanned(
    world: RuntimeWorld,
    arrays: Sequence[ArrayType],
    rows: Sequence[AnyKind],
    before: int,
    results: Sequence[ArrayType],
    stacked: Sequence[ArrayType],
) -> list[Moving]:
    """Return what a scan moves besides its body: positions of arrays, and its results.

    Args:
        world: whose devices are used.
        arrays: the types of the arrays.
        rows: those of one position, as the body reads it.
        before: how many operands come before the arrays.
        results: the types of a position's results.
        stacked: those of all of them.
    """
    found: list[Moving] = []
    for number, (kind, row) in enumerate(zip(arrays, rows, strict=True)):
        assert isinstance(row, ArrayType)
        parts = _positions(world, kind, row)
        if any(any(w.received.values()) for w, _ in parts):
            found.append((in_turns(parts, kind.str_short()), before + number))
    for kind, whole in zip(results, stacked, strict=True):
        if kind.layout.piece_count != whole.layout.piece_count:
            there = world.type_of(kind.shape, kind.dtype, whole.sharding, True)
            for wire in wires_between(world, kind, there):
                found.append((in_turns([(wire, whole.shape[0])], whole.str_short()), None))
    return found


def _positions(world: RuntimeWorld, type_: ArrayType, row: ArrayType) -> list[tuple[Wire, int]]:
    """Return what taking each position of an array moves, and how often."""
    cuts = type_.layout.cuts[0]
    alike = type_.layout.piece_count == row.layout.piece_count
    if type_.layout.regular and len(cuts) == 2 and alike:
        return []
    parts: list[tuple[Wire, int]] = []
    for start, stop in pairwise(cuts):
        if start < stop:
            recorder = _WireRecorder(world)
            with interpreting(recorder):
                x: Any = AbstractArray(type_)
                taken = x[start]._type
            wires = [*recorder.wires, *wires_between(world, taken, row)]
            parts += [(w, stop - start) for w in wires]
    return parts


@final
class _WireRecorder(Interpreter):
    """An interpreter that knows types alone, and keeps what operations would move."""

    def __init__(self, world: RuntimeWorld) -> None:
        self.world = world
        self.wires: list[Wire] = []

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Return the result's type as a value without data."""
        values = accept(name, operands, lambda x: x)
        types = [type(x) if type(x) in WEAK else x._type for x in values]
        if takes_arrays_only(name):
            types = [as_array(x)._type for x in values]
        decision = decide(self.world, name, types, params)
        self.wires += decision.wires
        found = tuple([AbstractArray(t) for t in decision.outputs])
        return found[0] if len(found) == 1 else found
