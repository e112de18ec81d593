"""Wires: what passes between devices, and the bytes that each must receive, before anything moves.

In: layouts, or groups of devices and sizes. Out: a `Wire`. Each device counts as if it had its own
memory, even if several share a process.

Collectives cost what their bandwidth-optimal forms do (Chan, Heimlich, Purkayastha, van de Geijn,
"Collective communication: theory, practice, and experience", 2007; Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009), for ``n`` devices in a group and
``b`` bytes:

===============  =================================  =============================================
all-reduce       ``2 (n - 1) / n * b`` per device   ``b``: one partial result; a reduce-scatter
                                                    and an all-gather of the parts
reduce-scatter   ``(n - 1) / n * b``                ``b``: one partial result, before
all-gather       ``(n - 1) * b``                    ``b``: one shard, before
all-to-all       ``(n - 1) / n * b``                ``b``: one shard, before and after
===============  =================================  =============================================

If ``n`` does not divide ``b``, some parts have one byte more; a group's total is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import Layout
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.plan.move.assemble import Source, overlaps

Groups = NDArray[np.int64]
"""Device ids, ``[group, member]``."""
Sizes = int | Sequence[int]
"""Bytes: the same for all groups, or one number for each."""


def moved(destination: Layout, sources: Sequence[Source], itemsize: int) -> dict[int, int]:
    """Return the bytes of a destination that each device can take from no source it holds.

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> moved(whole, [Source(rows)], 4), moved(rows, [Source(whole)], 4)
    ({0: 24, 1: 24, 2: 24, 3: 24}, {0: 0, 1: 0, 2: 0, 3: 0})
    """
    found: dict[int, int] = {}
    for source in sources:
        layout = source.layout
        holders = [frozenset(layout.holders(piece)) for piece in range(layout.piece_count)]
        if source.alive is not None:
            holders = [ids & source.alive for ids in holders]
        for piece in range(destination.piece_count):
            boxes = overlaps(source, destination, piece)
            for device in destination.holders(piece):
                lacked = sum(
                    volume
                    for volume, origins in boxes
                    if not any(device in holders[origin] for origin in origins)
                )
                found[device] = found.get(device, 0) + lacked * itemsize
    return found


def _parts(nbytes: int, count: int) -> list[int]:
    return [nbytes * (k + 1) // count - nbytes * k // count for k in range(count)]


def _per_group(groups: Groups, nbytes: Sizes) -> list[tuple[list[int], int]]:
    members = np.asarray(groups, np.int64)
    sizes = [nbytes] * len(members) if isinstance(nbytes, int) else list(nbytes)
    return list(zip(members.tolist(), map(int, sizes), strict=True))


def _summed(pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for device, count in pairs:
        found[device] = found.get(device, 0) + count
    return found


def all_reduced(groups: Groups, nbytes: Sizes) -> dict[int, int]:
    """Return what each device receives when each group sums arrays of ``nbytes`` for all members.

    >>> all_reduced(np.array([[0, 1, 2, 3]]), 8)
    {0: 12, 1: 12, 2: 12, 3: 12}
    """
    return _summed(
        [
            (device, (len(members) - 1) * part + size - part)
            for members, size in _per_group(groups, nbytes)
            for device, part in zip(members, _parts(size, len(members)), strict=True)
        ]
    )


def gathered(groups: Groups, shard_nbytes: Sizes) -> dict[int, int]:
    """Return what each device receives when each group brings its shards to all members.

    >>> gathered(np.array([[0, 1], [2, 3]]), 8)
    {0: 8, 1: 8, 2: 8, 3: 8}
    """
    return _summed(
        [
            (device, (len(members) - 1) * size)
            for members, size in _per_group(groups, shard_nbytes)
            for device in members
        ]
    )


def scattered(groups: Groups, nbytes: Sizes) -> dict[int, int]:
    """Return what each device receives when each group sums arrays and keeps a part on each.

    >>> scattered(np.array([[0, 1, 2, 3]]), 8)
    {0: 6, 1: 6, 2: 6, 3: 6}
    """
    return _summed(
        [
            (device, (len(members) - 1) * part)
            for members, size in _per_group(groups, nbytes)
            for device, part in zip(members, _parts(size, len(members)), strict=True)
        ]
    )


def exchanged(groups: Groups, nbytes: Sizes) -> dict[int, int]:
    """Return what each device receives when each member sends a part of its shard to each other.

    >>> exchanged(np.array([[0, 1, 2, 3]]), 8)
    {0: 6, 1: 6, 2: 6, 3: 6}
    """
    return _summed(
        [
            (device, size - part)
            for members, size in _per_group(groups, nbytes)
            for device, part in zip(members, _parts(size, len(members)), strict=True)
        ]
    )


Axes = tuple[str, ...]
Received = Mapping[int, int]
"""Bytes by device id."""


@final
@dataclass(frozen=True, slots=True)
class Move:
    """Elements pass from sources to a destination.

    Attributes:
        target: the destination's sharding.
        origins: the sources' shardings.
        destination: the destination's layout.
        sources: the sources, as in `assemble`.
        itemsize: bytes per element.
    """

    target: Sharding
    origins: tuple[Sharding, ...]
    destination: Layout
    sources: tuple[Source, ...]
    itemsize: int

    @property
    def kind(self) -> str:
        """Its name: that of the collective that it is, otherwise ``"reshard"`` or ``"move"``."""
        if len(self.sources) > 1 or not _is_identity(self.sources[0]):
            return "move"
        source, destination = self.sources[0].layout, self.destination
        if source.regular and destination.regular and source.cuts == destination.cuts:
            return "permute" if destination.replicas <= source.replicas else "broadcast"
        if source.piece_count == 1:
            return "scatter"
        if destination.piece_count == 1:
            return "all-gather" if destination.replicas > 1 else "gather"
        before, after = self._uses()
        if before is None or after is None:
            return "reshard"
        return _kind_by_axes(before, after)

    @property
    def axes(self) -> Axes:
        """The axes that are used differently than before, or across which a map leads."""
        target = self.target
        if not isinstance(target, NamedSharding):
            return ()
        found: set[str] = set()
        after = _dims(target, self.destination)
        for source, origin in zip(self.sources, self.origins, strict=True):
            if not isinstance(origin, NamedSharding) or origin.mesh != target.mesh:
                return ()
            before = _dims(origin, source.layout)
            if source.flat:
                found.update(a for dims in (before, after) for dim in dims for a in dim)
                continue
            for dim, (a, b) in enumerate(zip(before, after, strict=True)):
                if a != b:
                    found.update(set(a) ^ set(b) or {*a, *b})
                elif _changes(source, self.destination, dim):
                    found.update(a)
        return tuple(a for a in target.mesh.axis_names if a in found)

    def _uses(self) -> tuple[list[Axes] | None, list[Axes] | None]:
        origin, target = self.origins[0], self.target
        if (
            isinstance(origin, NamedSharding)
            and isinstance(target, NamedSharding)
            and origin.mesh == target.mesh
        ):
            return _dims(origin, self.sources[0].layout), _dims(target, self.destination)
        return None, None


def _kind_by_axes(before: Sequence[Axes], after: Sequence[Axes]) -> str:
    """Return what a move is called by the axes that split each dim before it and after it."""
    if all(a[: len(b)] == b for a, b in zip(before, after, strict=True)):
        return "reshard" if before == after else "all-gather"  # no dim is split by other axes
    same = {a for dim in before for a in dim} == {a for dim in after for a in dim}
    return "all-to-all" if same else "reshard"


def _is_identity(source: Source) -> bool:
    return (
        source.onto is None
        and not source.flat
        and (source.maps is None or all(m.is_identity for m in source.maps))
    )


def _changes(source: Source, destination: Layout, dim: int) -> bool:
    """Whether a dim is not taken over in its present layout."""
    return (
        source.layout.cuts[dim] != destination.cuts[dim]
        or (source.maps is not None and not source.maps[dim].is_identity)
        or (source.onto is not None and source.onto[dim] != (0, 1))
    )


def _dims(sharding: NamedSharding, layout: Layout) -> list[Axes]:
    """Return for each dim the axes of more than one device that split it."""
    shape = sharding.mesh.shape
    return [tuple(a for a in axes if shape[a] > 1) for axes in sharding.spec.axes(layout.ndim)]


@final
class Wire:
    """One communication; its figures are counted when they are first asked for.

    Attributes:
        array: what moves, as in ``"float64[4,8]"``.
        exact: whether devices receive that many bytes; otherwise at most, depending on values.
        move: which elements move; None for a collective, of which only the groups are known.
        parts: the communications that it stands for, each with its number of repetitions.
        at_once: whether its parts happen at the same time; otherwise one after another.
    """

    __slots__ = ("__dict__", "_axes", "_groups", "_kind", "_received")

    def __init__(
        self,
        array: str,
        kind: str,
        axes: Axes,
        received: Callable[[], Received],
        *,
        groups: Callable[[], Groups] | None = None,
        exact: bool = True,
    ) -> None:
        self.array = array
        self.exact = exact
        self.move: Move | None = None
        self.parts: tuple[tuple[Wire, int], ...] = ()
        self.at_once = True
        self._kind = kind
        self._axes = axes
        self._received = received
        self._groups = groups

    @cached_property
    def kind(self) -> str:
        """``"all-reduce"``, ``"all-gather"``, ..."""
        return self._kind if self.move is None else self.move.kind

    @cached_property
    def axes(self) -> Axes:
        """The mesh axes that it goes along."""
        return self._axes if self.move is None else self.move.axes

    @cached_property
    def received(self) -> Received:
        """The bytes that each device receives."""
        return self._received()

    @property
    def groups(self) -> Groups | None:
        """The devices that a collective joins; None if they are not known, or elements move."""
        return None if self._groups is None else self._groups()

    @property
    def origins(self) -> tuple[Sharding, ...]:
        """The layouts of the array before; empty if partial results are combined."""
        if self.parts:
            return self.parts[0][0].origins
        return () if self.move is None else self.move.origins

    @property
    def total(self) -> int:
        """The bytes that all devices receive."""
        return sum(self.received.values())

    def __repr__(self) -> str:
        return f"Wire({self.kind} of {self.array} over {', '.join(self.axes) or 'no axis'})"


def move_wire(array: str, move: Move) -> Wire:
    """Return the communication of a move of elements.

    Args:
        array: what moves, as in ``"float64[4,8]"``.
        move: which elements move.
    """
    received = partial(moved, move.destination, move.sources, move.itemsize)
    found = Wire(array, "move", (), received)
    found.move = move
    return found


def collective_wire(
    array: str,
    kind: str,
    axes: Axes,
    mesh: Mesh,
    received: Callable[[], Received],
    *,
    exact: bool = True,
) -> Wire:
    """Return the communication of a collective over some axes of a mesh."""
    return Wire(array, kind, axes, received, groups=partial(_along, mesh, axes), exact=exact)


def _along(mesh: Mesh, axes: Axes) -> Groups:
    """Return the devices that communicate along axes."""
    names = mesh.axis_names
    last = [names.index(a) for a in axes]
    first = [i for i in range(len(names)) if i not in last]
    ids = np.asarray(mesh.device_ids, np.int64).transpose(first + last)
    return ids.reshape(-1, int(np.prod([mesh.shape[a] for a in axes], dtype=np.int64)))


def fold_wire(
    array: str, axes: Axes, tensor: Groups, result: Layout, itemsize: int, *, scattered: bool
) -> Wire:
    """Return the communication that combines partial results for all devices that gave one.

    Args:
        array: the array of which a group's result is a piece.
        axes: the axes that are reduced.
        tensor: device ids, ``[partial result, shard..., replica]``.
        result: the layout of the result.
        itemsize: bytes per element of the partial results, all of them together.
        scattered: whether each device gets a part of the result, and not the whole.
    """
    kind = "reduce-scatter" if scattered else "all-reduce"
    received = partial(_folded, tensor, result, itemsize, scattered)
    return Wire(array, kind, axes, received, groups=partial(_members, tensor))


def _members(tensor: Groups) -> Groups:
    members = np.moveaxis(tensor, 0, -1)
    return members.reshape(-1, members.shape[-1])


def _folded(tensor: Groups, result: Layout, itemsize: int, divided: bool) -> Received:
    replicas = tensor.shape[-1]
    sizes = [box.volume * itemsize for box in result.boxes for _ in range(replicas)]
    return (scattered if divided else all_reduced)(_members(tensor), sizes)


def together(wires: Sequence[Wire]) -> Wire:
    """Return communications of several parts of a mesh at the same time, as one."""
    return _joined([(w, 1) for w in wires], wires[0].array, at_once=True)


def in_turns(wires: Sequence[tuple[Wire, int]], array: str) -> Wire:
    """Return repeated communications that happen one after another, as one."""
    return _joined(wires, array, at_once=False)


def _joined(parts: Sequence[tuple[Wire, int]], array: str, *, at_once: bool) -> Wire:
    def received() -> Received:
        return _summed([(d, n * times) for w, times in parts for d, n in w.received.items()])

    first = parts[0][0]
    found = Wire(array, first.kind, first.axes, received, exact=all(w.exact for w, _ in parts))
    found.parts, found.at_once = tuple(parts), at_once
    return found
