"""The devices on which the operands of one operation meet.

In: the operands' types. Out: the mesh, or the one device, that they share, each operand's
placement on it, and back from placements to shardings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

from meshard.algebra.abstract import Sharding, same_devices
from meshard.algebra.layout import balanced_cuts, ceil_cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.propagate import Placement, Split
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding, Uneven
from meshard.algebra.spec import PartitionSpec
from meshard.errors import IncompatibleDevicesError
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Move, Wire, move_wire
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld, here

SMALL = 256
"""The most devices of a mesh for which the places of factors and operands are remembered."""
_MOST = 64
"""How many shardings are kept with a mesh."""


def named_sharding(mesh: Mesh, placement: Placement, memory_kind: str | None) -> NamedSharding:
    """Return the simplest sharding with this placement: even if it is, or by a named rule.

    The same placement on the same small mesh gives the same object, which knows its layouts.
    """
    if mesh.size > SMALL:
        return _named_sharding(mesh, placement, memory_kind)
    known: dict[Any, NamedSharding] = vars(mesh).setdefault("_placed", {})
    key = placement, memory_kind
    # Simulated processes share meshes: another thread may clear between two lookups.
    found = known.get(key)
    if found is None:
        found = _named_sharding(mesh, placement, memory_kind)
        if len(known) >= _MOST:
            known.clear()
        known[key] = found
    return found


def _named_sharding(mesh: Mesh, placement: Placement, memory_kind: str | None) -> NamedSharding:
    entries: list[tuple[str, ...]] = [s.axes for s in placement]
    while entries and not entries[-1]:
        entries.pop()
    uneven: Uneven = None
    odd = [s for s in placement if s.shards > 1 and len({b - a for a, b in pairwise(s.cuts)}) > 1]
    if odd:
        if all(s.cuts == balanced_cuts(s.cuts[-1], s.shards) for s in odd):
            uneven = "balanced"
        elif all(s.cuts == ceil_cuts(s.cuts[-1], s.shards) for s in odd):
            uneven = "ceil"
        else:
            uneven = tuple(s.cuts if s in odd else None for s in placement)
    return NamedSharding(mesh, PartitionSpec(*entries), memory_kind=memory_kind, uneven=uneven)


@final
class OperandMesh:
    """The mesh, or the single device, on which an operation runs.

    Raises:
        IncompatibleDevicesError: if operands are committed to different sets of devices.
    """

    def __init__(self, op: str, operands: Sequence[ArrayType | None]) -> None:
        types = [(i, t) for i, t in enumerate(operands) if t is not None]
        _check_devices(op, [(i, t) for i, t in types if t.committed])
        # Committed operands come first, since their devices are the user's choice, and then those
        # on the most devices.
        ranked = sorted(
            types,
            key=lambda it: (
                not it[1].committed,
                -it[1].sharding.num_devices,
                it[1].layout.piece_count == 1,  # nothing split is gathered for what is not
                not isinstance(it[1].sharding, NamedSharding),
                -it[1].nbytes,
            ),
        )
        base = ranked[0][1].sharding
        self.committed = any(t.committed for _, t in types)
        self.memory_kind = base.memory_kind
        self.single: Sharding | None = None
        if isinstance(base, NamedSharding):
            self.mesh = base.mesh
        elif isinstance(base, SingleDeviceSharding):
            self.single = base
            self.mesh = Mesh([base.device], ("device",))
        else:
            self.mesh = Mesh(list(base.device_order), ("device",))

    def placement(self, kind: ArrayType | None) -> Placement | None:
        """Return an operand's placement on this mesh; None for one that decides nothing."""
        if kind is None:
            return None
        sharding = kind.sharding
        if isinstance(sharding, NamedSharding):
            if sharding.mesh != self.mesh:
                return None
            axes = sharding.spec.axes(kind.ndim)
            return tuple(Split(a, c) for a, c in zip(axes, kind.layout.cuts, strict=True))
        if self.mesh.axis_names == ("device",) and self.mesh.size > 1 and kind.size > 1:
            known = set(sharding.device_order) == set(self.mesh.flat_devices)
            return self._spread(kind) if known else None
        return None

    def preferred(self, sharding: Sharding | None, shape: tuple[int, ...]) -> Placement | None:
        """Return the placement that a preferred sharding is on this mesh; None where it is none."""
        if not isinstance(sharding, NamedSharding) or sharding.mesh != self.mesh:
            return None
        if self.single is not None:
            return None
        axes, cuts = sharding.spec.axes(len(shape)), sharding.layout(shape).cuts
        return tuple(Split(a, c) for a, c in zip(axes, cuts, strict=True))

    def _spread(self, kind: ArrayType) -> Placement:
        """Split the longest dim of an operand that came with no mesh."""
        longest = max(range(kind.ndim), key=lambda d: kind.shape[d])
        n = self.mesh.size
        return tuple(
            Split(("device",), balanced_cuts(s, n)) if dim == longest else Split((), (0, s))
            for dim, s in enumerate(kind.shape)
        )

    def sharding(self, placement: Placement) -> Sharding:
        """Return the sharding with a placement."""
        if self.single is not None:
            return self.single
        return named_sharding(self.mesh, placement, self.memory_kind)


def way_to(
    world: RuntimeWorld, meets: OperandMesh, array: ArrayType, placement: Placement
) -> tuple[Part | None, Wire | None]:
    """Return how an operand gets to a placement, and what crosses then; None if it is there."""
    if array.unplaced and not any(s.shards > 1 for s in placement):
        return None, None
    target = meets.sharding(placement)
    layout, source = target.layout(array.shape), array.layout
    if array.unplaced:  # it is on every device already, so that nothing crosses
        whole = tuple(Split((), (0, n)) for n in array.shape)
        source = meets.sharding(whole).layout(array.shape)
    if source == layout:
        return None, None
    wire = None
    if not array.unplaced:
        move = Move(target, (array.sharding,), layout, (Source(source),), array.dtype.itemsize)
        wire = move_wire(array.str_short(), move)
    processes = world.process_map(target)
    if processes is not None:
        processes = {**processes, **(world.process_map(array.sharding) or {})}
    part = assemble(layout, [Source(source)], processes, world.process_index, world.sharing)
    return part, wire


def replicated_beside(op: str, value: Block, *operands: Any) -> Array:
    """Return a value that a function worked out of its operands as an array on their devices.

    Args:
        op: the function, for messages.
        value: the value, the same on every process, which no one else holds.
        operands: the operands; those that are not arrays are ignored.

    Raises:
        IncompatibleDevicesError: if operands are committed to different sets of devices.
    """
    types = [x._type for x in operands if type(x) is Array]
    if not types:
        found: Array = as_array(value, fresh=True)
        return found
    world, mesh = here(), OperandMesh(op, types)
    sharding = mesh.sharding(tuple([Split((), (0, n)) for n in value.shape]))
    kind = world.type_of(value.shape, value.dtype, sharding, mesh.committed)
    return Array(kind, (value if kind.local else None,))


def _check_devices(op: str, committed: Sequence[tuple[int, ArrayType]]) -> None:
    for (i, first), (j, second) in pairwise(committed):
        if first.sharding is second.sharding:
            continue
        if not same_devices(first.sharding, second.sharding):
            raise IncompatibleDevicesError(
                f"{op}: received incompatible devices. Operand {i}, {first.str_short()}, is "
                f"committed to devices {_ids(first)}, and operand {j}, {second.str_short()}, to "
                f"devices {_ids(second)}. Move one with meshard.device_put(x, sharding)."
            )


def _ids(kind: ArrayType) -> list[int]:
    ids = [d.id for d in kind.sharding.device_order]
    return ids if len(ids) <= 16 else [*ids[:15], ids[-1]]
