"""Resharding plans as values: what moving arrays to other layouts will do, before it does.

In: pairs of layouts with element sizes. Out: a `Plan`, whose bytes are counted from the copies it
lists, beside the least that any plan could move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from meshard.algebra.layout import Layout

from .assemble import Source
from .bounds import receive_bound
from .traffic import moved

__all__ = ["Leaf", "Plan"]


@final
@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a plan.

    Attributes:
        name: how to call it in a table.
        source: its layout now.
        destination: its layout afterwards.
        itemsize: bytes per element.
    """

    name: str
    source: Layout
    destination: Layout
    itemsize: int

    def __post_init__(self) -> None:
        assert self.source.shape == self.destination.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the array, replicas not counted."""
        return math.prod(self.source.shape) * self.itemsize

    def received(self) -> dict[int, int]:
        """Return for each destination device the bytes that it gets from other devices."""
        return moved(self.destination, [Source(self.source)], self.itemsize)


@final
class Plan:
    """What a reshard of one or more arrays will move.

    >>> import numpy as np
    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> plan = Plan([Leaf("x", rows, whole, 4)])
    >>> plan.bytes_moved, plan.lower_bound_bytes
    (96, 96)
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.leaves = tuple(leaves)

    @cached_property
    def received(self) -> dict[int, int]:
        """Bytes that each destination device gets from other devices."""
        total: dict[int, int] = {}
        for leaf in self.leaves:
            for device, count in leaf.received().items():
                total[device] = total.get(device, 0) + count
        return total

    @property
    def bytes_moved(self) -> int:
        """Bytes that enter a device which lacks them, counted from the plan's own copies."""
        return sum(self.received.values())

    @cached_property
    def lower_bound_bytes(self) -> int:
        """The least bytes that any plan must bring into devices which lack them."""
        return sum(receive_bound(x.source, x.destination) * x.itemsize for x in self.leaves)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, replicas not counted."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def __str__(self) -> str:
        most = max(self.received.values(), default=0)
        bound = self.lower_bound_bytes
        ratio = self.bytes_moved / bound if bound else 1.0
        rows = [
            ("arrays", f"{len(self.leaves)}"),
            ("bytes of the arrays", f"{self.nbytes:,}"),
            ("bytes moved", f"{self.bytes_moved:,}"),
            ("lower bound", f"{bound:,}"),
            ("moved / bound", f"{ratio:.3f}"),
            ("most by one device", f"{most:,}"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value:>16}" for name, value in rows)

    def __repr__(self) -> str:
        return f"Plan({len(self.leaves)} arrays, {self.bytes_moved} bytes moved)"
