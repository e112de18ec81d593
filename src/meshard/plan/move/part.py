"""Parts: the work of one process that builds its pieces of a layout, as a value.

In: the boxes that `assemble` has found. Out: copies, recipes for pieces, and messages.

Replicas on one host as one memory: which process builds a piece, and which ones map it.

In: what each process of a host would build for itself. Out: the same work, except that one of the
processes that lack part of a piece builds it, and the others map it when it is complete. Their
local copies and the messages to them are dropped: a piece is written once for each host.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from meshard.algebra.box import Index


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """One box: ``destination[piece][target] = sources[operand][origin][region]``.

    ``within`` is for a flat piece: the position where a box begins in C order, and that box's
    shape; the target is then relative to the box.
    """

    operand: int
    origin: int
    region: Index
    piece: int
    target: Index
    shape: tuple[int, ...]
    within: tuple[int, tuple[int, ...]] | None = None


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """How one local piece is built.

    Attributes:
        shape: the piece's shape.
        alias: the copy that makes up the whole piece, which is then the source's block or a view.
        copies: the local copies, if it is not an alias.
        covered: whether copies and received boxes fill the piece; otherwise the rest is filled.
        layered: whether later copies overwrite earlier ones, so that their order matters.
    """

    shape: tuple[int, ...]
    alias: Copy | None
    copies: tuple[Copy, ...]
    covered: bool
    layered: bool

    @property
    def is_plain(self) -> bool:
        """Whether boxes in their own shape fill the piece, and so an array of a dim at least."""
        flat = any(c.within is not None for c in self.copies)
        return bool(self.shape) and self.alias is None and self.covered and not flat


@final
@dataclass(frozen=True, slots=True)
class Message:
    """The boxes that pass between this process and a peer, in canonical order."""

    peer: int
    copies: tuple[Copy, ...]

    @property
    def is_flat(self) -> bool:
        """Whether some of the boxes are runs of a flat piece."""
        return any(c.within is not None for c in self.copies)


@final
@dataclass(frozen=True)
class Part:
    """The work of one process.

    Attributes:
        recipes: how each piece is built; None for one that is not held here.
        sends: its messages to others.
        receives: their messages to it.
        replicas: the work if replicas on a host share one memory; None if it is the same.
    """

    recipes: tuple[Recipe | None, ...]
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    replicas: Replicas | None = None

    @cached_property
    def elements(self) -> int:
        """The elements of all pieces that are filled, not views."""
        return sum(math.prod(r.shape) for r in self.recipes if r is not None and r.alias is None)

    @cached_property
    def plain(self) -> Plain | None:
        """The same as short lists, if all pieces are filled by boxes in their own shape."""
        held = [(i, r) for i, r in enumerate(self.recipes) if r is not None]
        if not all(r.is_plain for _, r in held) or any(m.is_flat for m in self.receives):
            return None
        return Plain(
            len(self.recipes),
            tuple([(i, r.shape, tuple(map(_local, r.copies))) for i, r in held]),
            tuple([(m.peer, tuple(map(_going, m.copies))) for m in self.sends]),
            tuple(
                [(m.peer, tuple([(c.piece, c.target) for c in m.copies])) for m in self.receives]
            ),
        )


def _local(copy: Copy) -> tuple[int, int, Index, Index]:
    return copy.operand, copy.origin, copy.region, copy.target


def _coming(copy: Copy) -> tuple[int, Index]:
    return copy.piece, copy.target


def _going(copy: Copy) -> tuple[int, int, Index, tuple[int, ...]]:
    return copy.operand, copy.origin, copy.region, copy.shape


@final
@dataclass(frozen=True, slots=True)
class Plain:
    """The work of one process where all is copied, box by box.

    Attributes:
        count: the number of pieces, those that are not held here too.
        pieces: each piece that is held: its number and shape, and for each local copy the
            operand, its piece, the box of it, and the place in the new piece.
        sends: for each peer the boxes that it gets: operand, piece, box and shape.
        receives: for each peer the places that it fills: piece and box.
    """

    count: int
    pieces: tuple[tuple[int, tuple[int, ...], tuple[tuple[int, int, Index, Index], ...]], ...]
    sends: tuple[tuple[int, tuple[tuple[int, int, Index, tuple[int, ...]], ...]], ...]
    receives: tuple[tuple[int, tuple[tuple[int, Index], ...]], ...]


@final
@dataclass(frozen=True, slots=True)
class Replicas:
    """The work of a process if replicas on a host share one memory.

    Attributes:
        volume: the elements of the largest piece that is shared, the same for all processes.
        part: the rest of the building and sending.
        lent: the pieces that others map, and which processes do.
        taken: the pieces that this process maps: number, owner and shape.
    """

    volume: int
    part: Part
    lent: tuple[tuple[int, tuple[int, ...]], ...]
    taken: tuple[tuple[int, int, tuple[int, ...]], ...]


@final
@dataclass(frozen=True, slots=True)
class Ownership:
    """One piece on one host: the process that builds it, and those that map it."""

    piece: int
    owner: int
    takers: tuple[int, ...]


def ownership(
    piece: int, wanted: Sequence[int], complete: Iterable[int], hosts: Sequence[int]
) -> list[Ownership]:
    """Return which process builds a piece and which ones map it, for each host with several.

    Args:
        piece: its number. Pieces take turns, so that one process does not build them all.
        wanted: the processes that are to hold it.
        complete: the processes that hold all its elements already.
        hosts: the number of each process's host.
    """
    has = set(complete)
    groups: dict[int, list[int]] = {}
    for process in wanted:
        groups.setdefault(hosts[process], []).append(process)
    found = []
    for _, group in sorted(groups.items()):
        lacking = [p for p in group if p not in has]
        builders = [p for p in group if p in has] or lacking
        owner = builders[piece % len(builders)]
        takers = tuple(p for p in lacking if p != owner)
        if takers:
            found.append(Ownership(piece, owner, takers))
    return found


def with_replicas(part: Part, owned: Sequence[Ownership], me: int, volume: int) -> Part:
    """Return a part that contains the remaining work if replicas on a host share one memory.

    Args:
        part: the work of process ``me`` by itself.
        owned: the ownership of all pieces.
        me: the process.
        volume: the elements of the largest piece of which there are replicas.
    """
    if not owned:
        return part
    taken: dict[int, tuple[int, int, tuple[int, ...]]] = {}
    for o in owned:
        recipe = part.recipes[o.piece]
        if me in o.takers and recipe is not None:
            taken[o.piece] = o.piece, o.owner, recipe.shape
    dropped = {(p, o.piece) for o in owned for p in o.takers}
    less = Part(
        tuple([None if i in taken else r for i, r in enumerate(part.recipes)]),
        _without(part.sends, dropped),
        _without(part.receives, {(m.peer, piece) for m in part.receives for piece in taken}),
    )
    replicas = Replicas(
        volume,
        less,
        tuple((o.piece, o.takers) for o in owned if o.owner == me),
        tuple(sorted(taken.values())),
    )
    return Part(part.recipes, part.sends, part.receives, replicas)


def _without(
    messages: Sequence[Message], dropped: Collection[tuple[int, int]]
) -> tuple[Message, ...]:
    """Return messages without the boxes of some pieces to or from some peers."""
    kept = [
        Message(m.peer, tuple([c for c in m.copies if (m.peer, c.piece) not in dropped]))
        for m in messages
    ]
    return tuple([m for m in kept if m.copies])
