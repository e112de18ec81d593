"""The devices of one call of a jitted function: all that is committed is on the same ones.

In: where arguments and captured arrays are, and where shardings send them. Out: nothing, or a
refusal that names both; and captured arrays moved to where the arguments are.

What processes agree on when they run programs.

In: a program. Out: the processes of its arrays, and what all of them must agree on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshard.algebra.abstract import Sharding, same_devices
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import IncompatibleDevicesError
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import placed
from meshard.runtime.processes.agreement import described
from meshard.runtime.types import ArrayType
from meshard.transforms.lowering.executable import Executable, turns
from meshard.transforms.program.calls import ConstraintCall, ShardMapCall
from meshard.transforms.program.program import Kind, Program
from meshard.transforms.tracing.signature import Trace


def check_devices(trace: Trace, kinds: Sequence[Kind]) -> Sharding | None:
    """Check that committed arguments and shardings agree on their devices.

    Returns:
        A sharding on these devices; else one on those of a `shard_map` or of the captured arrays.
        None if nothing says where to compute.

    Raises:
        IncompatibleDevicesError: if two have different devices.
    """
    first: tuple[str, Sharding] | None = None
    for told, sharding in _places(trace, kinds):
        if first is None:
            first = told, sharding
        elif not same_devices(sharding, first[1]):
            raise IncompatibleDevicesError(
                f"{trace.what}: received incompatible devices: {first[0]} on devices "
                f"{_ids(first[1])}, and {told} on devices {_ids(sharding)}. One program runs on "
                "one set of devices. Move an argument first, with meshard.device_put(x, sharding)."
            )
    if first is not None:
        return first[1]
    inner = _mapped(trace.program)
    return _captured(trace.captured) if inner is None else inner


def _captured(arrays: Sequence[Array]) -> Sharding | None:
    """Return a sharding on the devices of captured arrays, if these agree."""
    committed = [x.sharding for x in arrays if x.committed]
    agree = len({frozenset(s.device_order) for s in committed}) == 1
    return committed[0] if agree else None


def _mapped(program: Program) -> Sharding | None:
    """Return a sharding on the mesh of the first `shard_map` of a program."""
    for eqn in program.eqns:
        if isinstance(eqn.call, ShardMapCall):
            return NamedSharding(eqn.call.mesh, PartitionSpec())
        for _, inner in eqn.call.programs if eqn.call is not None else ():
            found = _mapped(inner)
            if found is not None:
                return found
    return None


def _places(trace: Trace, kinds: Sequence[Kind]) -> Iterator[tuple[str, Sharding]]:
    used = trace.used
    for number, (told, kind) in enumerate(zip(trace.told, kinds, strict=True)):
        wanted = trace.in_shardings[number]
        if isinstance(kind, ArrayType) and kind.committed and number in used:
            yield f"argument {told}, {kind.str_short()},", kind.sharding
        elif wanted is not None:
            yield f"the in_shardings of argument {told}", wanted
    for wanted in trace.out_shardings:
        if wanted is not None:
            yield "out_shardings", wanted
    yield from _constraints(trace.program)


def _constraints(program: Program) -> Iterator[tuple[str, Sharding]]:
    for eqn in program.eqns:
        if isinstance(eqn.call, ConstraintCall):
            if eqn.call.what != "device_put":  # which may go anywhere
                yield f"{eqn.call.what} at {eqn.line}", eqn.call.sharding
        elif eqn.call is not None and eqn.name != "shard_map":
            for _, inner in eqn.call.programs:
                yield from _constraints(inner)


def _ids(sharding: Sharding) -> list[int]:
    ids = [d.id for d in sharding.device_order]
    return ids if len(ids) <= 16 else [*ids[:15], ids[-1]]


def replicated(place: Sharding) -> Sharding:
    """Return a sharding by which each device of another holds the whole array."""
    if isinstance(place, NamedSharding):
        mesh = place.mesh
    elif place.num_devices == 1:
        return place
    else:
        mesh = Mesh(list(place.device_order), "all")
    return NamedSharding(mesh, PartitionSpec(), memory_kind=place.memory_kind)


def captured_beside(captured: Sequence[Array], place: Sharding | None) -> list[Array]:
    """Return captured arrays; those on other devices than the arguments are replicated there."""
    found = list(captured)
    if place is None:
        return found
    target = replicated(place)
    for number, x in enumerate(found):
        if x.committed and set(x.sharding.device_order) != set(place.device_order):
            found[number] = placed(x, target, what="jit")
    return found


Members = tuple[int, ...]


def account_of_program(executable: Executable, traced: Program) -> tuple[Members, str]:
    """Return the processes of a program's arrays, and what must be the same on all of them.

    That is how its arrays are laid out, what was traced, and what passes between devices in which
    order. The order of the steps that need nobody else may differ: it depends on the cells that a
    process has.
    """
    kinds: list[Any] = [*executable.inputs, *executable.returns]
    arrays = [k for k in kinds if isinstance(k, ArrayType) and not k.unplaced]
    members = {d.process_index for k in arrays for d in k.sharding.device_order}
    exact = [
        described(k, exact=True) if isinstance(k, ArrayType) else k.__qualname__ for k in kinds
    ]
    # Without the function's name and the lines, which may differ.
    lines = str(traced).partition("(")[2].splitlines()
    bare = [(line.rpartition("  # ")[0] or line).rstrip() for line in lines]
    moves = [
        f"{w.kind} {' '.join(w.axes)} {w.array}"
        for step, _ in turns(executable)
        for w in step.wires
    ]
    return tuple(sorted(members)), "\n".join([*exact, *bare, *moves])
