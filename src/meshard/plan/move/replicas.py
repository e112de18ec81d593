"""Replicas on one host as one memory: which process builds a piece, and which ones map it.

In: what each process of a host would build for itself. Out: the same work, except that one of the
processes that lack part of a piece builds it, and the others map it when it is complete. Their
local copies and the messages to them are dropped: a piece is written once for each host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import final

from meshard.plan.move.part import Message, Part, Replicas


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
