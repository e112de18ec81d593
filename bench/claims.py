"""What a row promises about meshard, and whether the figures keep it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.figures import Figure, digits, unit_of

MESHARD, JAX_EAGER, JAX_JIT, BY_HAND = "meshard", "jax eager", "jax jit", "by hand"
NUMPY, UNJITTED, ONE_PROCESS = "numpy", "unjitted", "one process"
ARRAYS = "whole arrays"
JAX_OWN, DASK, TORCH, HEAT = "jax own form", "dask", "torch DTensor", "heat"
PEERS = (MESHARD, JAX_EAGER, JAX_JIT, NUMPY, BY_HAND)
"""The peers that have a column of their own in the table."""
IMPORT_NUMPY = "import numpy"
FORWARD, JAX_FORWARD = "forward", "jax forward"
NO_RIVALS = (MESHARD, UNJITTED, ONE_PROCESS, ARRAYS, IMPORT_NUMPY, FORWARD, JAX_FORWARD)
"""Figures that are no peers of meshard's: its own in other ways, and what it builds on."""
Figures = Mapping[str, Figure]


def jax_best(figures: Figures) -> Figure | None:
    """The best of JAX op by op, jitted, and in its own form; None when none was measured."""
    measured = [figures[peer] for peer in (JAX_EAGER, JAX_JIT, JAX_OWN) if peer in figures]
    return min(measured, key=lambda figure: figure.median, default=None)


def best_peer(figures: Figures) -> str | None:
    """The fastest of those that are not meshard; None when there is none."""
    others = [peer for peer in figures if peer not in NO_RIVALS]
    return min(others, key=lambda peer: figures[peer].median, default=None)


def best_ratio(figures: Figures) -> float | None:
    """How many times meshard is faster than the best peer; None when one of them is missing."""
    best = best_peer(figures)
    return None if best is None else ratio_of(figures, against=best)


def ratio_of(figures: Figures, over: str = MESHARD, against: str | None = None) -> float | None:
    """How many times the peer `over` is faster than `against` (None: than the best of JAX)."""
    other = jax_best(figures) if against is None else figures.get(against)
    ours = figures.get(over)
    return None if other is None or ours is None else other.median / ours.median


class Claim(Protocol):
    """One promise of a row."""

    def __str__(self) -> str:
        """The promise in a few characters."""

    def reached(self, figures: Figures) -> bool | None:
        """Whether the figures keep it; None when a peer is missing."""


@dataclass(frozen=True)
class Faster:
    """meshard is at least `ratio` times as fast as `than` (None: as the best of JAX)."""

    ratio: float
    than: str | None = None

    def __str__(self) -> str:
        """For example `>= 3x` or `>= 10x jax eager`."""
        return f">= {self.ratio:g}x" + (f" {self.than}" if self.than else "")

    def reached(self, figures: Figures) -> bool | None:
        """Compare the medians."""
        ratio = ratio_of(figures, against=self.than)
        return None if ratio is None else ratio >= self.ratio


@dataclass(frozen=True)
class Within:
    """One call of meshard takes at most so many seconds."""

    seconds: float

    def __str__(self) -> str:
        """For example `<= 25.0 us`."""
        unit, size = unit_of(self.seconds)
        return f"<= {digits(self.seconds / size)} {unit}"

    def reached(self, figures: Figures) -> bool | None:
        """Look at the median."""
        return None if MESHARD not in figures else figures[MESHARD].median <= self.seconds


@dataclass(frozen=True)
class AsForward:
    """A gradient is at least as fast, beside JAX's, as the function itself beside JAX's.

    Attributes:
        noise: how much less is still the same.
    """

    noise: float = 0.05

    def __str__(self) -> str:
        """For example `>= forward's`."""
        return ">= forward's"

    def reached(self, figures: Figures) -> bool | None:
        """Compare the ratios of medians."""
        back = ratio_of(figures, against=JAX_JIT)
        forward = ratio_of(figures, FORWARD, JAX_FORWARD)
        return None if back is None or forward is None else back >= forward * (1 - self.noise)
