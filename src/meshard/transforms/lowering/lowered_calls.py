"""Loops, branches and `shard_map` bodies of a lowered program.

In: a call, and the types of its operands. Out: what runs it, with the programs in it lowered to
the layouts that values have in every turn, so that nothing is decided while a loop runs.

What loops and calls move around their parts: carries, positions of arrays, stacked results.

In: the types of a call's operands, and of what its parts read. Out: communications, each with the
operand that moves. Nothing is run: all follows from types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, final

import numpy as np

from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import MeshardError
from meshard.ops.engine.decide import decide, takes_arrays_only
from meshard.ops.engine.eager import WEAK, accept
from meshard.ops.engine.later import AbstractArray, ByValues
from meshard.plan.move.wires import Wire, collective_wire, in_turns
from meshard.runtime.array.array import Array
from meshard.runtime.callers import at_line
from meshard.runtime.doors import Interpreter, Params, interpreting
from meshard.runtime.moving.place import as_array, placed, wires_between
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.flow.running import run_scan
from meshard.transforms.lowering.executable import (
    AnyKind,
    Executable,
    Moving,
    NamedPart,
    Run,
    ensure_layout,
)
from meshard.transforms.lowering.lower_map import lower_map
from meshard.transforms.program.calls import (
    ForCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WhileCall,
    WholeCall,
)
from meshard.transforms.program.program import Eqn, Kind, Literal, Program
from meshard.transforms.tracing.abstract import types_only
from meshard.transforms.tracing.tracing import abstract_value, traced, unplaced_type

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


_TURNS = 4
"""How often a carry may take another layout before it is brought back in every turn."""

Lower = Callable[..., Executable]


@final
@dataclass(frozen=True, slots=True)
class LoweredCall:
    """A call, ready to run."""

    run: Run
    outputs: tuple[Kind, ...]
    parts: tuple[NamedPart, ...] = ()
    around: Callable[[], Sequence[Moving]] = lambda: ()


def lowered_call(world: RuntimeWorld, eqn: Eqn, kinds: Sequence[Kind], lower: Lower) -> LoweredCall:
    """Return a call of a program as something that can run.

    Args:
        world: whose devices are used.
        eqn: the operation with the call.
        kinds: what its operands are.
        lower: lowers a program.
    """
    call: Any = eqn.call
    if isinstance(call, WhileCall):
        return _while(world, call, kinds, lower)
    if isinstance(call, ForCall):
        return _for(world, call, kinds, lower, eqn)
    if isinstance(call, ScanCall):
        return _scan(world, call, kinds, lower)
    if isinstance(call, SwitchCall):
        return _switch(world, call, kinds, lower)
    if isinstance(call, ShardMapCall):
        return _mapped(world, call, kinds)
    if isinstance(call, WholeCall):
        return _whole(world, eqn, call, kinds, lower)
    raise MeshardError(f"{eqn.name} at {eqn.line} is a call that jit does not know.")


def _arrays(world: RuntimeWorld, kinds: Sequence[Kind]) -> list[Kind]:
    """Return the types of a carry, in which numbers are arrays."""
    return [k if isinstance(k, ArrayType) else unplaced_type(world, as_array(k(0))) for k in kinds]


def _ensure_layouts(world: RuntimeWorld, values: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    return [
        ensure_layout(world, x if type(x) is Array else as_array(x), k)
        for x, k in zip(values, kinds, strict=True)
    ]


def _settled(
    world: RuntimeWorld,
    body: Program,
    before: Sequence[Kind],
    carry: Sequence[Kind],
    after: Sequence[Kind],
    lower: Lower,
) -> tuple[Executable, list[Kind]]:
    """Return a loop's body, lowered so that its carry has one layout in every turn.

    Args:
        world: whose devices are used.
        body: from what it captures, the carry and more to the carry and more.
        before: the types of what comes before the carry.
        carry: the types of the first carry.
        after: the types of what comes after it.
        lower: lowers a program.
    """
    now = _arrays(world, carry)
    for _ in range(_TURNS):
        found = lower(world, body, [*before, *now, *after])
        then = list(found.returns[: len(now)])
        if then == now:
            return found.repeated(len(body.captured)), now
        now = _arrays(world, then)
    rest = [None] * (len(body.outputs) - len(now))
    found = lower(world, body, [*before, *now, *after], [*now, *rest])
    return found.repeated(len(body.captured)), now


def _while(
    world: RuntimeWorld, call: WhileCall, kinds: Sequence[Kind], lower: Lower
) -> LoweredCall:
    first, second, init = call.split_operands(list(kinds))
    body, carry = _settled(world, call.body, second, init, (), lower)
    cond = lower(world, call.cond, [*first, *carry]).repeated(len(first))
    cuts = len(first), len(first) + len(second)

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        one, two = operands[: cuts[0]], operands[cuts[0] : cuts[1]]
        state = _ensure_layouts(world, operands[cuts[1] :], carry)
        goes_on, turn = cond.looped(world), body.looped(world)
        while bool(goes_on([*one, *state])[0]):
            state = turn([*two, *state])
        return _returned(state)

    parts = (("cond", cond, None), ("body", body, None))
    first_moves = partial(first_carry, world, init, body.inputs[len(second) :], cuts[1])
    return LoweredCall(run, tuple(carry), parts, first_moves)


def _returned(values: list[Any]) -> Any:
    """Return what a step gives: one value, or several."""
    return values[0] if len(values) == 1 else values


def _for(
    world: RuntimeWorld, call: ForCall, kinds: Sequence[Kind], lower: Lower, eqn: Eqn
) -> LoweredCall:
    _, captured, init = call.split_operands(list(kinds))
    body, carry = _settled(world, call.body, [*captured, int], init, (), lower)
    cut = 2 + len(captured)

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        lower, upper = int(operands[0]), int(operands[1])
        own = operands[2:cut]
        state = _ensure_layouts(world, operands[cut:], carry)
        turn = body.looped(world)
        for i in range(lower, upper):
            state = turn([*own, i, *state])
        return _returned(state)

    bounds = [x.value for x in eqn.inputs[:2] if isinstance(x, Literal)]
    turns = max(0, int(bounds[1].real) - int(bounds[0].real)) if len(bounds) == 2 else None
    first_moves = partial(first_carry, world, init, body.inputs[len(captured) + 1 :], cut)
    return LoweredCall(run, tuple(carry), (("body", body, turns),), first_moves)


def _scan(world: RuntimeWorld, call: ScanCall, kinds: Sequence[Kind], lower: Lower) -> LoweredCall:
    captured, init, arrays = call.split_operands(list(kinds))
    given_types = [_array_type(k) for k in _arrays(world, arrays)]
    rows = [_row_type(world, k) for k in given_types]
    body, carry = _settled(world, call.body, captured, init, rows, lower)
    results = [_array_type(k) for k in _arrays(world, body.returns[call.carried :])]
    stacked = [_stacked_type(world, k, call.length) for k in results]
    cut, count = len(captured), call.length

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        own, rest = operands[:cut], operands[cut + call.carried :]
        state = _ensure_layouts(world, operands[cut : cut + call.carried], carry)
        xs = [x if type(x) is Array else as_array(x) for x in rest]
        after = body.looped(world)
        given = [(x, k, _in_place(x._type.layout, k.layout)) for x, k in zip(xs, rows, strict=True)]

        def turn(now: Sequence[Any], i: int) -> list[Any]:
            row = [_row(world, x, i, k, in_place) for x, k, in_place in given]
            return after([*own, *now, *row])

        last, columns = run_scan(count, call.reverse, turn, state)
        columns = columns or [[] for _ in results]
        joined = [
            _stacked(world, column, kind, whole)
            for column, kind, whole in zip(columns, results, stacked, strict=True)
        ]
        return _returned([*last, *joined])

    def around() -> list[Moving]:
        into = body.inputs[cut:]
        return [
            *first_carry(world, init, into, cut),
            *scanned(
                world,
                given_types,
                into[call.carried :],
                cut + call.carried,
                results,
                stacked,
            ),
        ]

    return LoweredCall(run, (*carry, *stacked), (("body", body, count),), around)


def _array_type(kind: Kind) -> ArrayType:
    assert isinstance(kind, ArrayType)
    return kind


def _row_type(world: RuntimeWorld, kind: Kind) -> ArrayType:
    """Return the type of one position: on the array's devices, whole along the axes of dim 0."""
    kind = _array_type(kind)
    sharding: Any = kind.sharding
    if isinstance(sharding, NamedSharding):
        spec = PartitionSpec(*sharding.spec[1:])
        uneven: Any = sharding.uneven
        uneven = tuple(uneven[1:]) if isinstance(uneven, tuple) else uneven
        sharding = NamedSharding(
            sharding.mesh, spec, memory_kind=sharding.memory_kind, uneven=uneven or None
        )
    elif not isinstance(sharding, SingleDeviceSharding):
        shape, world_shape = kind.shape[1:], kind.shape
        found = _typed(world, lambda x: x[0], [kind])[0] if world_shape[0] else None
        assert found is None or found.shape == shape
        return found or unplaced_type(world, as_array(np.zeros(shape, kind.dtype)))
    return world.type_of(kind.shape[1:], kind.dtype, sharding, kind.committed)


def _typed(world: RuntimeWorld, f: Callable[..., Any], kinds: Sequence[Kind]) -> list[ArrayType]:
    """Return the types of a function's results, from its arguments' types."""
    given = [abstract_value(world, k) for k in kinds]
    with types_only(None):
        found = f(*given)
    return [x._type for x in (found if isinstance(found, list) else [found])]


@lru_cache(maxsize=256)
def _in_place(whole: Layout, row: Layout) -> bool:
    """Whether all rows of each block of an array are the blocks of the array's rows."""
    return whole.piece_count == row.piece_count and all(
        a.starts == (0, *b.starts)
        and a.stops == (whole.shape[0], *b.stops)
        and whole.holders(i) == row.holders(i)
        for i, (a, b) in enumerate(zip(whole.boxes, row.boxes, strict=True))
    )


def _row(world: RuntimeWorld, x: Array, i: int, type_: ArrayType, in_place: bool) -> Array:
    """Return one position of an array, without a copy where its blocks hold those of its rows."""
    if in_place:
        return Array(type_, tuple([None if b is None else b[i, ...] for b in x._live()]))
    found: Array = ensure_layout(world, x[i], type_)
    return found


def _stacked_type(world: RuntimeWorld, type_: ArrayType, count: int) -> ArrayType:
    """Return the type of that many arrays stacked along a new first dim."""
    sharding: Any = type_.sharding
    if isinstance(sharding, NamedSharding):
        uneven: Any = sharding.uneven
        uneven = (None, *uneven) if isinstance(uneven, tuple) else uneven
        sharding = NamedSharding(
            sharding.mesh,
            PartitionSpec(None, *sharding.spec) if len(sharding.spec) else PartitionSpec(),
            memory_kind=sharding.memory_kind,
            uneven=uneven,
        )
    elif not isinstance(sharding, SingleDeviceSharding):
        first = sharding.device_order[0]
        sharding = SingleDeviceSharding(first)
    return world.type_of((count, *type_.shape), type_.dtype, sharding, type_.committed)


def _stacked(
    world: RuntimeWorld, column: Sequence[Any], type_: ArrayType, whole: ArrayType
) -> Array:
    """Return arrays of one type stacked along a new first dim."""
    if whole.layout.piece_count != type_.layout.piece_count:
        column = [placed(y, whole.sharding) for y in column]
        type_ = world.type_of(type_.shape, type_.dtype, whole.sharding, True)
    blocks: list[Block | None] = [None] * whole.layout.piece_count
    for piece in whole.local:
        blocks[piece] = world.memory.allocate(whole.layout.box(piece).shape, whole.dtype)
    for i, y in enumerate(column):
        for piece, block in enumerate(ensure_layout(world, as_array(y), type_)._live()):
            target = blocks[piece]
            if block is not None and target is not None:
                target[i] = block
    return Array(whole, tuple(blocks))


def _switch(
    world: RuntimeWorld, call: SwitchCall, kinds: Sequence[Kind], lower: Lower
) -> LoweredCall:
    _, captured, args = call.split_operands(list(kinds))
    first = lower(world, call.branches[0], [*captured[0], *args])
    outputs = _arrays(world, first.returns)
    branches = [
        lower(world, b, [*own, *args], outputs)
        for b, own in zip(call.branches, captured, strict=True)
    ]
    names = [b.name for b in call.branches]

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        index, *own, args = call.split_operands(operands)
        number = min(max(int(index), 0), len(branches) - 1)
        found = branches[number].run(world, [*own[0][number], *args])
        return _returned(_ensure_layouts(world, found, outputs))

    parts = tuple([(n, b, None) for n, b in zip(names, branches, strict=True)])
    return LoweredCall(run, tuple(outputs), parts)


def _mapped(world: RuntimeWorld, call: ShardMapCall, kinds: Sequence[Kind]) -> LoweredCall:
    lowered = lower_map(world, call, kinds)
    parts = (("body", lowered.body, 1),)
    return LoweredCall(lowered.run, lowered.outputs, parts, lambda: lowered.entering)


def _whole(
    world: RuntimeWorld, eqn: Eqn, call: WholeCall, kinds: Sequence[Kind], lower: Lower
) -> LoweredCall:
    """Lower a function that is called when the program runs, or followed now."""
    given = [_array_type(k) for k in _arrays(world, kinds)]
    if not call.values:
        with at_line(eqn.line, eqn.purpose):
            program, captured, _ = traced(
                call.name,
                lambda *operands: (call.run(operands), None),
                [(k, None) for k in given],
                [f"an operand of {call.name}"] * len(given),
                placed=True,
            )
        own = lower(world, program, [*(x._type for x in captured), *given])
        passed = [i for i, s in enumerate(own.results) if s < len(captured) + len(given)]

        def follow(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
            arrays = [x if type(x) is Array else as_array(x) for x in operands]
            results = own.run(world, [*captured, *arrays])
            for number in passed:  # a result is an array of its own
                results[number] = Array(results[number]._type, results[number]._live())
            return _returned(results)

        return LoweredCall(follow, own.returns, ((call.name, own, 1),))
    outputs = _typed(world, lambda *operands: call.run(operands), given)

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        return _returned(_ensure_layouts(world, call.run(operands), outputs))

    return LoweredCall(run, tuple(outputs), (), lambda: by_values(call.function, given, outputs))
