"""Medians, quartiles and the units they are told in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Figure:
    """What the repetitions of one peer say, in seconds for one call."""

    samples: tuple[float, ...]
    q1: float
    median: float
    q3: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Figure":
        """Sum up `samples` (seconds, at least one)."""
        q1, median, q3 = (float(q) for q in np.quantile(np.asarray(samples), (0.25, 0.5, 0.75)))
        return cls(tuple(samples), q1, median, q3)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a fraction of the median."""
        return (self.q3 - self.q1) / 2 / self.median


def digits(value: float) -> str:
    """Three significant digits: `0.123`, `4.56`, `45.6`, `456`."""
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(value))))}f}" if value > 0 else "0"


def unit_of(seconds: float) -> tuple[str, float]:
    """The name of the unit in which `seconds` reads well, and its size in seconds."""
    if seconds < 1e-3:
        return "us", 1e-6
    return ("ms", 1e-3) if seconds < 1.0 else ("s", 1.0)


def with_quartiles(figure: Figure) -> str:
    """For example `4.56 ms (4.41-4.80)`."""
    unit, size = unit_of(figure.median)
    low, middle, high = (digits(t / size) for t in (figure.q1, figure.median, figure.q3))
    return f"{middle} {unit} ({low}-{high})"


def with_spread(figure: Figure) -> str:
    """For example `4.56 ms ±4%`."""
    unit, size = unit_of(figure.median)
    return f"{digits(figure.median / size)} {unit} ±{figure.spread:.0%}"
