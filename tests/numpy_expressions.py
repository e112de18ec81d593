"""Calls of NumPy's functions as text, which run alike with NumPy and with `meshard.numpy`.

The text is in `numpy_expressions.txt`: a function, and calls that ``|`` separates.

In an expression ``xp`` is the library, and the letters are arrays, of dtypes that are drawn anew
each time. Of two dims: ``f`` and ``g`` floats, ``z`` floats with NaN, ``i`` and ``j`` integers,
``a`` and ``d`` integers or floats, ``b`` bools, ``c`` complex numbers, ``k`` small integers,
``s`` a square matrix of floats. Of three: ``t`` floats. Of one: ``v`` and ``u`` floats, ``y`` and
``x`` integers or floats, ``n`` small positive integers, ``e`` rising floats, ``m`` bools. What
begins with ``!`` has a shape that values decide, so that it is not traced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

TEXT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")


def _read(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        name, _, calls = line.partition(" ")
        found.setdefault(name, []).extend(call.strip() for call in calls.split(" | "))
    return found


EXPRESSIONS = _read(TEXT)
"""The calls of each function, by its name below ``numpy``."""

FLOATS = ("float32", "float64", "float64", "float16")
INTEGERS = ("int8", "int32", "int64", "uint8", "int64")


def drawn(rng: np.random.Generator, rows: int = 7, columns: int = 5) -> dict[str, np.ndarray]:
    """Draw the arrays of expressions."""
    long = rows + 6

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.normal(size=shape) * 3).astype(rng.choice(FLOATS[:3]))

    def whole(*shape: int) -> np.ndarray:
        return rng.integers(-9, 10, shape).astype(rng.choice(INTEGERS[:3]))

    def either(*shape: int) -> np.ndarray:
        return (floats if rng.random() < 0.5 else whole)(*shape)

    z = floats(rows, columns)
    z[rng.random(z.shape) < 0.3] = np.nan
    z[0] = 1.5
    z[:, 0] = 2.5
    return {
        **{name: floats(rows, columns) for name in "fg"},
        **{name: whole(rows, columns) for name in "ij"},
        **{name: either(rows, columns) for name in "ad"},
        **{name: floats(long) for name in "vu"},
        **{name: either(long) for name in "yx"},
        "z": z,
        "b": rng.random((rows, columns)) < 0.5,
        "c": (floats(rows, columns) + 1j * floats(rows, columns)),
        "t": floats(3, rows, 4),
        "n": rng.integers(0, 5, long) + 1,
        "k": rng.integers(-3, 4, (rows, columns)),
        "e": np.cumsum(rng.uniform(0.1, 1, 6)),
        "s": np.eye(5) * 4 + rng.normal(size=(5, 5)),
        "m": rng.random(long) < 0.5,
    }


def evaluated(call: str, xp: Any, arrays: dict[str, Any]) -> Any:
    """Return what an expression gives with a library, and arrays."""
    return eval(call.removeprefix("!"), {"xp": xp, "np": np, "changed": changed, **arrays})


def changed(function: Any, x: Any, *args: Any) -> Any:
    """Return what a function that changes arrays in NumPy makes of one, which stays as it is."""
    if not isinstance(x, np.ndarray):
        return function(x, *args, inplace=False)
    found = x.copy()
    function(found, *args)
    return found
