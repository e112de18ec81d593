"""Choices: the route that a pair of layouts takes, its figures, and those of other routes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import Layout
from meshard.errors import ShapeError
from meshard.plan.captions import amount_text, bytes_text
from meshard.plan.figures.footprint import added, messages_of, peak_elements
from meshard.plan.hops.hop import Hop, Route
from meshard.tuning import CHOICE_JOBS

_LONGEST = (1 << 63) - 1


@final
@dataclass(frozen=True, slots=True)
class PlanLeaf:
    """One array of a plan.

    Attributes:
        name: its name in tables.
        source: its layout now.
        destination: its layout afterwards.
        itemsize: bytes per element.
        dtype: the name of its dtype; empty if unknown.
        source_text: the text of its layout now, such as ``P('x', None)``.
        destination_text: the text of the layout afterwards.
        sharding: the sharding that the moved array is to have; None if only layouts are known.
        source_sharding: the sharding that it has now; None where only layouts are known.
        path: where it is in its tree, as Python writes it: ``"['layers'][0]"``; empty for an array
            that is a tree by itself; None if unknown, so that it is matched by position.
        also: the other places of the tree that hold the same array, which is moved once.
    """

    name: str
    source: Layout
    destination: Layout
    itemsize: int
    dtype: str = ""
    source_text: str = ""
    destination_text: str = ""
    sharding: Sharding | None = field(default=None, repr=False)
    source_sharding: Sharding | None = field(default=None, repr=False)
    path: str | None = None
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.source.shape == self.destination.shape
        if max(self.shape, default=0) > _LONGEST:
            raise ShapeError(
                f"Plan: {self.name} has shape {self.shape}, but a dim can have at most "
                f"{_LONGEST:,} elements."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.source.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the array, replicas not counted."""
        return math.prod(self.source.shape) * self.itemsize

    def received(self) -> dict[int, int]:
        """Return the bytes that each destination device lacks."""
        hop = Hop(self.source, self.destination)
        nothing = dict.fromkeys(sorted(self.destination.device_ids), 0)
        return nothing | added([(hop.received, self.itemsize)]).as_dict()


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """What a route costs one array.

    Attributes:
        bytes_moved: the bytes that enter devices, over all hops.
        most_sent: the most bytes that one device sends, over all hops.
        most_received: the most that one device receives.
        messages: pairs of a sender and a receiver, added up over the hops.
        hops: the number of exchanges, one after another.
        peak_bytes: the most bytes of the array that live on one device at once.
        messages_exact: whether ``messages`` was counted; otherwise it is an upper bound.
    """

    bytes_moved: int
    most_sent: int
    most_received: int
    messages: int
    hops: int
    peak_bytes: int
    messages_exact: bool = True

    def __str__(self) -> str:
        at_most = "" if self.messages_exact else "at most "
        return (
            f"{bytes_text(self.bytes_moved)} moved, most sent {amount_text(self.most_sent)}, "
            f"most received {amount_text(self.most_received)}, "
            f"{at_most}{self.messages:,} messages, {_count(self.hops, 'hop')}, "
            f"peak {amount_text(self.peak_bytes)}"
        )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A route that was considered and not taken.

    Attributes:
        name: its name.
        figures: what it would have cost; None if it cannot be taken.
        why: a sentence on why it was not taken.
    """

    name: str
    figures: Figures | None
    why: str = ""


@final
@dataclass(frozen=True)
class Choice:
    """The route of all arrays that share their layouts and their element size.

    Attributes:
        route: the route that each of them takes.
        figures: what it costs one of them.
        why: a sentence on why it was taken.
        others: the other routes that were considered.
        count: how many arrays share it.
    """

    route: Route
    figures: Figures
    why: str = ""
    others: tuple[Candidate, ...] = ()
    count: int = 1


def figures_of(
    route: Route, itemsize: int, *, donate: bool = False, most_jobs: int = CHOICE_JOBS
) -> Figures:
    """Return what a route costs one array.

    Args:
        route: the route.
        itemsize: bytes per element.
        donate: whether the source is freed as it goes.
        most_jobs: list the jobs of a hop in order to count messages, if there are no more than
            this; otherwise the count is exact only if no shard of the source has replicas.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout, even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> print(figures_of(Route("direct", (rows, whole)), 4))
    96 bytes moved, most sent 24, most received 24, 12 messages, 1 hop, peak 40
    """
    hops = route.hops
    found = [messages_of(hop, most_jobs=most_jobs) for hop in hops]
    return Figures(
        bytes_moved=sum(hop.moved for hop in hops) * itemsize,
        most_sent=added((hop.sent, itemsize) for hop in hops).most,
        most_received=added((hop.received, itemsize) for hop in hops).most,
        messages=sum(m.count for m in found),
        hops=len(hops),
        peak_bytes=peak_elements(route, donate=donate, itemsize=itemsize) * itemsize,
        messages_exact=all(m.exact for m in found),
    )


def direct_choice(
    source: Layout, destination: Layout, itemsize: int, *, donate: bool = False, count: int = 1
) -> Choice:
    """Return the choice of the direct route, with nothing else considered."""
    route = Route("direct", (source, destination), "one exchange brings each element once")
    figures = figures_of(route, itemsize, donate=donate)
    return Choice(route, figures, route.why, count=count)
