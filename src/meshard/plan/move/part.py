"""Parts: what one process does to build its pieces of a layout, as a value.

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

    ``within`` is for a flat piece: where in it a box begins in C order, and that box's shape; the
    target is then one in the box.
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
        alias: the copy that is the whole piece, which then is the source's block or a view of it.
        copies: the local copies, where it is not an alias.
        covered: whether copies and received boxes fill the piece; the rest is fill.
        layered: whether later copies lie over earlier ones, so that their order matters.
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
    """What one process does.

    Attributes:
        recipes: how each piece is built; None for one that is not held here.
        sends: its messages to others.
        receives: their messages to it.
        replicas: what it does instead where replicas on a host are one memory; None if the same.
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
    """What a process does where replicas on a host are one memory.

    Attributes:
        volume: the elements of the largest piece that is shared, the same for all processes.
        part: what is left to build and to send.
        lent: the pieces that others map, and who.
        taken: the pieces that this process maps: number, owner and shape.
    """

    volume: int
    part: Part
    lent: tuple[tuple[int, tuple[int, ...]], ...]
    taken: tuple[tuple[int, int, tuple[int, ...]], ...]
