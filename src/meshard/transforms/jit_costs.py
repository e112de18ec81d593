"""What a program costs: operations, bytes read and written, bytes that cross, memory.

In: an `Executable`. Out: estimates from the types of its steps alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld

from .executable import Executable, Kind, Step

__all__ = ["MemoryAnalysis", "costs", "crossing", "device_bytes", "memory", "turns"]


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


def turns(executable: Executable, times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yield each step, those of loops too, and how often it runs at least."""
    for step in executable.steps:
        yield step, times
        for _, part, count in step.parts:
            yield from turns(part, times * (1 if count is None else count))


def crossing(step: Step) -> int:
    """Return the bytes that devices receive from others in one run of a step."""
    return sum(sum(w.received.values()) for w in step.wires)


def _size(kind: Kind) -> int:
    return kind.nbytes if isinstance(kind, ArrayType) else 0


def _operations(step: Step) -> float:
    """Return the arithmetic operations of a step, roughly: one for each element."""
    total = 0.0
    for eqn in step.eqns:
        if eqn.call is not None:
            continue
        sizes = [math.prod(getattr(v.aval, "shape", ())) for v in eqn.outputs]
        given = [math.prod(x.aval.shape) for x in eqn.inputs if hasattr(x, "aval")]
        if eqn.name == "contract" and len(given) == 2 and sizes[0]:
            total += 2.0 * math.sqrt(float(given[0]) * given[1] * sizes[0])
        else:
            total += max([*sizes, *given], default=0)
    return total


def costs(executable: Executable) -> dict[str, float]:
    """Return the operations, bytes and communication of a program, all devices together."""
    flops = accessed = moved = 0.0
    for step, times in turns(executable):
        flops += times * _operations(step)
        accessed += times * sum(map(_size, (*step.inputs, *step.outputs)))
        moved += times * crossing(step)
    return {"flops": flops, "bytes accessed": accessed, "bytes communicated": moved}


def device_bytes(kind: Kind) -> dict[int, int]:
    """Return for each device id the bytes of an array that it holds."""
    found: dict[int, int] = {}
    if isinstance(kind, ArrayType):
        for piece in range(kind.layout.piece_count):
            volume = kind.layout.box(piece).volume * kind.dtype.itemsize
            for device in kind.layout.holders(piece):
                found[device] = found.get(device, 0) + volume
    return found


def memory(world: RuntimeWorld, executable: Executable) -> MemoryAnalysis:
    """Return the bytes of a program's values on the device that holds the most."""
    arguments = _most([device_bytes(k) for k in executable.inputs])
    outputs = _most([device_bytes(k) for k in executable.outputs])
    given = len(executable.inputs)
    alias = _most(
        [
            device_bytes(k)
            for k, slot in zip(executable.outputs, executable.results, strict=True)
            if slot < given
        ]
    )
    live: dict[int, dict[int, int]] = {}
    own = temporary = 0
    for step in executable.steps:
        for slot, kind in zip(step.writes, step.outputs, strict=True):
            live[slot] = device_bytes(kind)
        inside = max((memory(world, p).temp_size_in_bytes for _, p, _ in step.parts), default=0)
        own = max(own, _most(list(live.values())) + inside)
        results = set(executable.results)
        rest = [b for slot, b in live.items() if slot not in results]
        temporary = max(temporary, _most(rest) + inside)
        for slot in step.dead:
            live.pop(slot, None)
    return MemoryAnalysis(arguments, outputs, temporary, alias, arguments + own)


def _most(held: list[dict[int, int]]) -> int:
    total: dict[int, int] = {}
    for one in held:
        for device, count in one.items():
            total[device] = total.get(device, 0) + count
    return max(total.values(), default=0)
