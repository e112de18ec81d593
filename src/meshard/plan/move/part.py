"""Parts: the work of one process that builds its pieces of a layout, as a value.

In: the boxes that `assemble` has found. Out: copies, recipes for pieces, and messages.
"""

from __future__ import annotations

import math
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


@final
@dataclass(frozen=True, slots=True)
class Message:
    """The boxes that pass between this process and a peer, in canonical order."""

    peer: int
    copies: tuple[Copy, ...]


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
