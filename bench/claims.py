"""What a row promises about meshard, and whether the figures keep it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.figures import Figure, digits, unit_of

MESHARD, JAX_EAGER, JAX_JIT, BY_HAND = "meshard", "jax eager", "jax jit", "by hand"
NUMPY, UNJITTED = "numpy", "unjitted"
PEERS = (MESHARD, JAX_EAGER, JAX_JIT, NUMPY, BY_HAND)
Figures = Mapping[str, Figure]


def jax_best(figures: Figures) -> Figure | None:
    """The better of JAX op by op and JAX jitted; None when neither was measured."""
    measured = [figures[peer] for peer in (JAX_EAGER, JAX_JIT) if peer in figures]
    return min(measured, key=lambda figure: figure.median, default=None)


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
