"""Routes: the layouts that an array passes through on its way to another layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

from meshard.algebra.layout import Layout
from meshard.plan.hops.cells import Units, each_device
from meshard.plan.hops.hop import Hop


@final
@dataclass(frozen=True)
class Route:
    """A route from one layout to another.

    Attributes:
        name: its name in tables: ``"direct"``, ``"striped"``, ...
        layouts: the layouts in order, the source first and the destination last.
        why: a sentence on its advantage.
        split: whether a box may be cut between two senders.
        alive: the devices that still hold their part of the source; None for all.
    """

    name: str
    layouts: tuple[Layout, ...]
    why: str = ""
    split: bool = True
    alive: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert len(self.layouts) > 1
        assert len({x.shape for x in self.layouts}) == 1

    @property
    def source(self) -> Layout:
        """The layout that the array has."""
        return self.layouts[0]

    @property
    def destination(self) -> Layout:
        """The layout that it is to have."""
        return self.layouts[-1]

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        """The exchanges between devices, one after another."""
        return self.between(each_device)

    def between(self, units: Units) -> tuple[Hop, ...]:
        """Return the exchanges between units, such as processes."""
        living = [self.alive, *[None] * (len(self.layouts) - 2)]
        ends = zip(self.layouts, self.layouts[1:], living, strict=False)
        return tuple([Hop(a, b, units, alive=own, split=self.split) for a, b, own in ends])
