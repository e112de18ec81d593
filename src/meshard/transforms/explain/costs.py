"""What a program costs: operations, bytes read and written, bytes that cross, memory.

In: an `Executable`. Out: estimates from the types of its steps alone, those in loops and in bodies
of `shard_map` included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.boundary import bounded
from meshard.plan.hops.jobs import volumes_of
from meshard.runtime.types import ArrayType
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.explain.reasons import rule_of
from meshard.transforms.explain.steps_in_order import Item, steps_in_order
from meshard.transforms.lowering.executable import Executable
from meshard.transforms.program.program import Atom, Eqn, Literal

Held = dict[int, int]
"""Bytes by device id."""


@bounded
@final
@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Bytes on the device that holds the most.

    Attributes:
        argument_size_in_bytes: of the arguments and of the arrays that the function captures.
        output_size_in_bytes: of the results.
        temp_size_in_bytes: the most of all other values at one time.
        alias_size_in_bytes: of results that are arguments themselves.
        peak_memory_in_bytes: the most of everything at one time.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int
    peak_memory_in_bytes: int


# operations and bytes


def _size(kind: Any) -> int:
    return 0 if isinstance(kind, type) else math.prod(kind.shape)


def _operations(eqn: Eqn, inputs: Sequence[Any], outputs: Sequence[Any]) -> float:
    """Return the arithmetic operations of a row.

    They are two for each product of a contraction, else one for each element of the largest
    operand or result.
    """
    if eqn.call is not None:
        return 0.0
    if eqn.name == "contract":
        rule = rule_of(eqn, inputs)
        if rule is not None:
            return 2.0 * math.prod(rule.sizes.values())
    return float(max(map(_size, (*inputs, *outputs)), default=0))


def _flops(item: Item) -> float:
    total = 0.0
    for eqn in item.eqns:
        given: list[Any] = [_kind_of(x) for x in eqn.inputs]
        gives: list[Any] = [v.aval for v in eqn.outputs]
        if len(item.eqns) == 1 and item.scope is not None:
            given, gives = list(item.inputs), list(item.outputs)
        # An operation of a body is done once for each distinct cell of its results.
        cells = max((_cells(item.scope, k) for k in gives), default=1) if item.scope else 1
        total += cells * _operations(eqn, given, gives)
    return total


def _kind_of(atom: Atom) -> Any:
    return type(atom.value) if isinstance(atom, Literal) else atom.aval


def _cells(scope: Scope, kind: Any) -> int:
    return scope.count(kind.extent) if isinstance(kind, GridKind) else 1


def _nbytes(item: Item, kind: Any) -> int:
    if isinstance(kind, GridKind):
        assert item.scope is not None
        return _cells(item.scope, kind) * kind.nbytes
    return kind.nbytes if isinstance(kind, ArrayType) else 0


def _touched(item: Item) -> int:
    """Return the bytes that a step reads and writes; what its parts do is theirs to tell."""
    if any(e.call is not None and e.call.programs for e in item.eqns):
        return 0
    return sum(_nbytes(item, k) for k in (*item.inputs, *item.outputs))


def costs(executable: Executable) -> dict[str, float]:
    """Return the operations, bytes and communication of a program, all devices together.

    What devices that hold the same would compute alike counts once. Loops of which only values
    decide how often they turn count one turn; of branches the one that moves most counts.
    """
    flops = accessed = moved = 0.0
    for item in steps_in_order(executable):
        flops += item.counted * _flops(item)
        accessed += item.counted * _touched(item)
        moved += item.counted * item.total_bytes
    return {"flops": flops, "bytes accessed": accessed, "bytes communicated": moved}


# memory


def device_bytes(kind: Any) -> Held:
    """Return for each device id the bytes of a value that it holds."""
    if not isinstance(kind, ArrayType):
        return {}
    layout, itemsize = kind.layout, kind.dtype.itemsize
    if layout.regular:
        lengths = [np.diff(cuts) for cuts in layout.cuts]
        volumes = volumes_of(lengths, math.prod(layout.shape) * itemsize) * itemsize
        holders = layout.tensor.reshape(len(volumes), -1)
        return dict(
            zip(holders.ravel().tolist(), volumes.repeat(holders.shape[1]).tolist(), strict=True)
        )
    found: Held = {}
    for piece in range(layout.piece_count):
        for device in layout.holders(piece):
            found[device] = found.get(device, 0) + layout.box(piece).volume * itemsize
    return found


def _cell_bytes(scope: Scope, kind: Any) -> Held:
    """Return for each device id the bytes of its cell of a body's value."""
    if not isinstance(kind, GridKind):
        return {}
    layout = kind.type.layout
    pieces = [layout.box(i).volume for i in range(layout.piece_count)]
    volume = max(pieces, default=0) * kind.dtype.itemsize
    return dict.fromkeys([d.id for d in scope.mesh.flat_devices], volume)


def _sum(*held: Mapping[int, int]) -> Held:
    total: Held = {}
    for one in held:
        for device, count in one.items():
            total[device] = total.get(device, 0) + count
    return total


def most(held: Sequence[Mapping[int, int]]) -> int:
    """Return the bytes on the device that holds the most of several values."""
    return max(_sum(*held).values(), default=0)


def _held(program: Executable) -> tuple[list[Held], list[Held]]:
    """Return for each step the bytes of values that are there, and of results that are."""
    live: dict[int, Held] = {}
    results = set(program.results)
    rest, done = [], []
    for step in program.steps:
        for slot, kind in zip(step.writes, step.outputs, strict=True):
            own = device_bytes(kind) if program.scope is None else _cell_bytes(program.scope, kind)
            live[slot] = own
        rest.append(_sum(*(b for s, b in live.items() if s not in results)))
        done.append(_sum(*(b for s, b in live.items() if s in results)))
        for slot in step.dead:
            live.pop(slot, None)
    return rest, done


def _temporaries(items: Sequence[Item]) -> list[tuple[Held, Held]]:
    """Return for each step the bytes of temporaries, of the steps around it too, and of results."""
    known: dict[tuple[int, int, str], tuple[list[Held], list[Held]]] = {}
    place: dict[tuple[int, int, str], int] = {}
    found: list[tuple[Held, Held]] = []
    by_item: dict[int, tuple[Held, Held]] = {}
    for item in items:
        key = id(item.program), id(item.around), item.part
        if key not in known:
            known[key] = _held(item.program)
            place[key] = 0
        number = place[key]
        place[key] += 1
        rest, done = known[key][0][number], known[key][1][number]
        if item.around is not None:
            # The results of a part are those of the step around it, and counted there.
            before, results = by_item[id(item.around)]
            rest, done = _sum(before, rest), results
        found.append((rest, done))
        by_item[id(item)] = found[-1]
    return found


def live_bytes(executable: Executable, items: Sequence[Item]) -> list[int]:
    """Return for each step the bytes in use on the device that uses most, arguments included."""
    arguments = _sum(*map(device_bytes, executable.inputs))
    return [most([arguments, rest, done]) for rest, done in _temporaries(items)]


def memory(executable: Executable) -> MemoryAnalysis:
    """Return the bytes of a program's values on the device that holds the most."""
    items = steps_in_order(executable)
    given = len(executable.inputs)
    arguments = most([device_bytes(k) for k in executable.inputs])
    passed = zip(executable.outputs, executable.results, strict=True)
    return MemoryAnalysis(
        arguments,
        most([device_bytes(k) for k in executable.outputs]),
        max((most([rest]) for rest, _ in _temporaries(items)), default=0),
        most([device_bytes(k) for k, slot in passed if slot < given]),
        max(live_bytes(executable, items), default=arguments),
    )
