"""What a program does, step by step, those of loops, branches and `shard_map` bodies too.

In: an `Executable`. Out: a flat list of `Item`s in the order in which they run, each with what it
moves and how often it runs. Nothing is run: all follows from types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, final

from meshard.algebra.sharding import NamedSharding
from meshard.ops.engine.accept import WEAK, accept
from meshard.ops.engine.decide import decide, takes_arrays_only
from meshard.ops.engine.infer import Ghost
from meshard.plan.move.wires import Wire, collective_wire, in_turns
from meshard.runtime.doors import Params, interpreting
from meshard.runtime.moving.place import as_array, wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.lowering.executable import Executable, Step
from meshard.transforms.lowering.inside import Inner, InnerKind, Inside, inside
from meshard.transforms.program.calls import (
    ForCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WhileCall,
    WholeCall,
)
from meshard.transforms.program.program import Eqn, Kind

_SAMPLES = 8
"""How many elements each pair of cells has looked at to decide where the rest goes."""

Program = Executable | Inside


@final
@dataclass(frozen=True, slots=True)
class Item:
    """One step.

    Attributes:
        step: the step, of a program or of a body.
        program: the program that it is a step of.
        around: the step whose program that is; None at the top.
        part: what the step around calls that program.
        depth: how many steps are around it.
        turns: how often it runs; None if values decide.
        counted: how often it counts in totals: once where values decide, and of the branches of a
            choice only those of the one that moves most.
        wires: what it moves each time, and the operand that moves; None where that is no operand.
    """

    step: Step | Inner
    program: Program
    around: Item | None
    part: str
    depth: int
    turns: int | None
    counted: int
    wires: tuple[tuple[Wire, int | None], ...]

    @property
    def name(self) -> str:
        """The operations."""
        return self.step.name if isinstance(self.step, Step) else self.step.eqn.name

    @property
    def line(self) -> str:
        """Where it was written; of what a loop does by itself where the loop was."""
        own = self.step.line if isinstance(self.step, Step) else self.step.eqn.line
        return own or ("" if self.around is None else self.around.line)

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        """Its operations."""
        return self.step.eqns if isinstance(self.step, Step) else (self.step.eqn,)

    @property
    def inputs(self) -> tuple[Kind | InnerKind, ...]:
        """What it reads."""
        return self.step.inputs

    @property
    def outputs(self) -> tuple[Kind | InnerKind, ...]:
        """What it gives."""
        return self.step.outputs

    @property
    def scope(self) -> Scope | None:
        """The axes of the body that it is in."""
        return self.program.scope if isinstance(self.program, Inside) else None

    @property
    def exact(self) -> bool:
        """Whether it moves so much, and not at most so much, as values will say."""
        everywhere = not isinstance(self.program, Inside) or self.program.everywhere
        return everywhere and all(w.exact for w, _ in self.wires)

    @property
    def total_bytes(self) -> int:
        """The bytes that all devices receive each time."""
        return sum(w.total for w, _ in self.wires)


def unrolled(world: RuntimeWorld, executable: Executable) -> list[Item]:
    """Return all steps of a program in the order in which they run."""
    return _items(world, executable, None, "", 1, 1)


def _items(
    world: RuntimeWorld,
    program: Program,
    around: Item | None,
    part: str,
    often: int | None,
    counting: int,
) -> list[Item]:
    found: list[Item] = []
    depth = 0 if around is None else around.depth + 1
    for step in program.steps:
        wires = _wires(world, step)
        turns, counted = often, counting
        if around is not None and isinstance(step, Step) and step.once:
            turns, counted = around.turns, min(counting, around.counted)
        item = Item(step, program, around, part, depth, turns, counted, wires)
        found.append(item)
        parts = _parts(world, step)
        inner = [
            _items(world, p, item, name, _times(turns, n), _counted(counted, n))
            for name, p, n in parts
        ]
        eqns = item.eqns
        if len(eqns) == 1 and isinstance(eqns[0].call, SwitchCall):
            # Only the branch that moves most counts; of those that move alike the longest.
            weights = [(sum(i.counted * i.total_bytes for i in b), len(b)) for b in inner]
            most = weights.index(max(weights))
            inner = [
                b if n == most else _items(world, p, item, name, _times(turns, many), 0)
                for n, (b, (name, p, many)) in enumerate(zip(inner, parts, strict=True))
            ]
        for items in inner:
            found += items
    return found


def _times(turns: int | None, often: int | None) -> int | None:
    return None if turns is None or often is None else turns * often


def _counted(counted: int, often: int | None) -> int:
    return counted * (1 if often is None else often)


def _parts(world: RuntimeWorld, step: Step | Inner) -> Sequence[tuple[str, Program, int | None]]:
    """Return the programs that a step runs."""
    if isinstance(step, Step) and not step.parts:
        for eqn in step.eqns:
            if isinstance(eqn.call, ShardMapCall):
                return (("body", inside(world, eqn.call, step.inputs), 1),)
    return step.parts


def _wires(world: RuntimeWorld, step: Step | Inner) -> tuple[tuple[Wire, int | None], ...]:
    """Return what a step moves itself, each with the operand that it moves."""
    if isinstance(step, Inner):
        return tuple([(w, _mover(w, step.inputs)) for w in step.wires])
    found = [(w, _mover(w, step.inputs)) for w in step.wires]
    call: Any = step.eqns[0].call if len(step.eqns) == 1 else None
    if isinstance(call, WholeCall) and call.values:
        return (*found, *[(w, None) for w in _by_values(step)])
    if isinstance(call, ShardMapCall):
        entering = inside(world, call, step.inputs).entering
        found += [(w, number) for number, wires in enumerate(entering) for w in wires]
    elif isinstance(call, WhileCall | ForCall | ScanCall) and step.parts:
        found += _first_carry(world, step, call)
        if isinstance(call, ScanCall):
            found += _rows(world, step, call)
    return tuple(found)


def _by_values(step: Step) -> Iterator[Wire]:
    """Yield what a function that looks at values may move, at most but for tiny arrays.

    A sample sort is one: its parts go where they belong, and settle between neighbours; before that
    some elements, and how many are in each part, are brought together.
    """
    for kind in step.outputs:
        if not isinstance(kind, ArrayType) or not isinstance(kind.sharding, NamedSharding):
            continue
        layout, sharding = kind.layout, kind.sharding
        if layout.piece_count < 2:
            continue
        sampled = min(_SAMPLES * layout.piece_count**2 * kind.dtype.itemsize, kind.nbytes)
        small = sampled + 16 * layout.piece_count**2
        received = {
            int(device): 2 * layout.box(piece).volume * kind.dtype.itemsize + small
            for piece in range(layout.piece_count)
            for device in layout.holders(piece)
        }
        shape = sharding.mesh.shape
        axes = tuple(a for dim in sharding.spec.axes(kind.ndim) for a in dim if shape[a] > 1)
        array = kind.str_short()
        yield collective_wire(array, "all-to-all", axes, sharding.mesh, received.copy, exact=False)


def _mover(wire: Wire, inputs: Sequence[Kind | InnerKind]) -> int | None:
    """Return which operand moves; None if partial results do."""
    origins = wire.origins
    if not origins:
        return None
    for number, kind in enumerate(inputs):
        alike = not isinstance(kind, type) and kind.sharding == origins[0]
        if alike and (len(origins) > 1 or _short(kind) == wire.array):
            return number
    return 0 if len(inputs) == 1 else None


def _moved_array(wire: Wire) -> str:
    return _moved_array(wire.parts[0][0]) if wire.parts else wire.array


def _short(kind: Kind | InnerKind) -> str:
    kind = kind.type if isinstance(kind, GridKind) else kind
    return kind.str_short() if isinstance(kind, ArrayType) else kind.__name__


def _first_carry(
    world: RuntimeWorld, step: Step, call: WhileCall | ForCall | ScanCall
) -> list[tuple[Wire, int | None]]:
    """Return what brings a loop's first carry to where it lies in every turn."""
    operands = list(step.inputs)
    body = step.parts[-1][1]
    if isinstance(call, WhileCall):
        _, captured, init = call.parted(operands)
        first = len(captured)
    elif isinstance(call, ForCall):
        _, captured, init = call.parted(operands)
        first = len(captured) + 1
    else:
        captured, init, _ = call.parted(operands)
        first = len(captured)
    before = len(operands) - len(init)
    if isinstance(call, ScanCall):
        before = len(captured)
    found: list[tuple[Wire, int | None]] = []
    for number, kind in enumerate(init):
        lies = body.inputs[first + number]
        if isinstance(kind, ArrayType) and isinstance(lies, ArrayType):
            found += [(w, before + number) for w in wires_between(world, kind, lies)]
    return found


def _rows(world: RuntimeWorld, step: Step, call: ScanCall) -> list[tuple[Wire, int | None]]:
    """Return what a scan moves besides its body: positions of arrays, and its results."""
    captured, init, arrays = call.parted(list(step.inputs))
    body = step.parts[0][1]
    first = len(captured) + len(init)
    found: list[tuple[Wire, int | None]] = []
    for number, (kind, row) in enumerate(zip(arrays, body.inputs[first:], strict=True)):
        assert isinstance(kind, ArrayType)
        assert isinstance(row, ArrayType)
        cuts = kind.layout.cuts[0]
        alike = kind.layout.piece_count == row.layout.piece_count
        if kind.layout.regular and len(cuts) == 2 and alike:
            continue
        parts: list[tuple[Wire, int]] = []
        for start, stop in pairwise(cuts):
            if start < stop:
                noting = _Noting(world)
                with interpreting(noting):
                    x: Any = Ghost(kind)
                    taken = x[start]._type
                wires = [*noting.wires, *wires_between(world, taken, row)]
                parts += [(w, stop - start) for w in wires]
        if any(any(w.received.values()) for w, _ in parts):
            found.append((in_turns(parts, kind.str_short()), first + number))
    for kind, whole in zip(body.outputs[call.carried :], step.outputs[call.carried :], strict=True):
        if not isinstance(kind, ArrayType) or not isinstance(whole, ArrayType):
            continue
        if kind.layout.piece_count != whole.layout.piece_count:
            lies = world.type_of(kind.shape, kind.dtype, whole.sharding, True)
            for wire in wires_between(world, kind, lies):
                found.append((in_turns([(wire, call.length)], whole.str_short()), None))
    return found


@final
class _Noting:
    """An interpreter that knows types alone, and keeps what operations would move."""

    axis_sizes: Mapping[str, int] = MappingProxyType({})

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
        found = tuple([Ghost(t) for t in decision.outputs])
        return found[0] if len(found) == 1 else found
