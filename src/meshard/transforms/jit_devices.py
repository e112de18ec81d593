"""The devices of one call of a jitted function: all that is committed lies on the same ones.

In: how arguments and captured arrays lie, and where shardings send them. Out: nothing, or a
refusal that names both; and captured arrays brought to where the arguments are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshard.algebra.sharding import NamedSharding, Sharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import IncompatibleDevicesError
from meshard.runtime.array import Array
from meshard.runtime.place import placed
from meshard.runtime.types import ArrayType

from .calls import ConstraintCall
from .executable import Kind
from .jit_trace import Trace
from .program import Program

__all__ = ["captured_beside", "check_devices"]


def check_devices(trace: Trace, kinds: Sequence[Kind]) -> Sharding | None:
    """Check that committed arguments and shardings agree on their devices.

    Returns:
        A sharding on these devices; None if nothing says where to compute.

    Raises:
        IncompatibleDevicesError: if two have different devices.
    """
    first: tuple[str, Sharding] | None = None
    for told, sharding in _places(trace, kinds):
        if first is None:
            first = told, sharding
        elif set(sharding.device_order) != set(first[1].device_order):
            raise IncompatibleDevicesError(
                f"{trace.what}: received incompatible devices: {first[0]} on devices "
                f"{_ids(first[1])}, and {told} on devices {_ids(sharding)}. One program runs on "
                "one set of devices. Move an argument first, with meshard.device_put(x, sharding)."
            )
    return None if first is None else first[1]


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


def captured_beside(captured: Sequence[Array], place: Sharding | None) -> list[Array]:
    """Return captured arrays; what lies on other devices than the arguments is replicated there."""
    found = list(captured)
    if place is None:
        return found
    target = place
    if isinstance(place, NamedSharding):
        target = NamedSharding(place.mesh, PartitionSpec())
    for number, x in enumerate(found):
        if x.committed and set(x.sharding.device_order) != set(place.device_order):
            found[number] = placed(x, target, what="jit")
    return found
