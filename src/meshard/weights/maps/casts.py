"""Casts: which dtypes hold all values of which others.

In: two dtypes. Out: whether a cast there and back gives every value again.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import KeyMapError


@functools.lru_cache(maxsize=1024)
def is_lossless(old: np.dtype[Any], new: np.dtype[Any]) -> bool:
    """Return whether every value of one dtype is a value of another.

    >>> is_lossless(np.dtype(ml_dtypes.bfloat16), np.dtype("f4"))
    True
    >>> is_lossless(np.dtype("i8"), np.dtype("f8")), is_lossless(np.dtype("f4"), np.dtype("f2"))
    (False, False)
    """
    if old == new:
        return True
    if new.kind == "c":
        part = np.dtype(f"f{new.itemsize // 2}")
        return is_lossless(np.dtype(f"f{old.itemsize // 2}") if old.kind == "c" else old, part)
    if old.kind == "c" or new == np.bool_:
        return False
    whole, into = _integers(old), _integers(new)
    if whole and into:
        return into[0] <= whole[0] and whole[1] <= into[1]
    if into:
        return False
    here, there = _float(old), _float(new)
    if there is None:
        return False
    if whole:
        bits = max(-whole[0], whole[1]).bit_length()
        return "0" in _special(new) and bits <= min(there[0] + 1, there[2])
    return here is not None and _within(here, there) and _special(old) <= _special(new)


def _within(here: tuple[int, int, int], there: tuple[int, int, int]) -> bool:
    return here[0] <= there[0] and here[1] >= there[1] and here[2] <= there[2]


def constant_in(value: float, dtype: np.dtype[Any]) -> float:
    """Return a number as a dtype has it.

    Raises:
        KeyMapError: if the dtype is one of integers and does not have it.

    >>> constant_in(0.1, np.dtype("f2")), constant_in(1.7, np.dtype("i4"))
    (0.0999755859375, 1.0)
    """
    whole = _integers(dtype)
    if whole and not (np.isfinite(value) and whole[0] <= math.trunc(value) <= whole[1]):
        raise KeyMapError(
            f"the value {value} is not one of {dtype}, which has {whole[0]} to {whole[1]}"
        )
    with np.errstate(all="ignore"):
        return float(np.asarray(value).astype(dtype).astype("c16").real)


def dtype_named(name: object) -> np.dtype[Any]:
    """Return a dtype of numbers by its name.

    Raises:
        KeyMapError: if no dtype of numbers has this name.

    >>> dtype_named("bfloat16")
    dtype(bfloat16)
    """
    if isinstance(name, str) and len(name) < 32:
        own = getattr(ml_dtypes, name, None) if name.isidentifier() else None
        if isinstance(own, type) and issubclass(own, np.generic):
            return np.dtype(own)
    try:
        found: np.dtype[Any] = np.dtype(name)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError, OverflowError, RecursionError) as error:
        raise KeyMapError(f"no dtype is named {shown(name)}") from error
    if found.names or found.subdtype or not found.isnative:
        raise KeyMapError(f"{shown(name)} is not a dtype of numbers in this machine's byte order")
    if found.kind not in "biufc" and _float(found) is None and not _integers(found):
        raise KeyMapError(f"{shown(name)} is not a dtype of numbers")
    return found


def _integers(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    if dtype == np.bool_:
        return 0, 1
    try:
        found: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    return int(found.min), int(found.max)


def _float(dtype: np.dtype[Any]) -> tuple[int, int, int] | None:
    """Return the digits of a float, and the exponents of its least and its largest values."""
    try:
        found: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except (ValueError, KeyError, TypeError):
        return None
    return int(found.nmant), int(found.minexp - found.nmant), int(found.maxexp)


def _special(dtype: np.dtype[Any]) -> frozenset[str]:
    """Return which of zero, negative zero, infinity and NaN a float has."""
    with np.errstate(all="ignore"):
        held = np.array([0.0, -0.0, np.inf, np.nan]).astype(dtype).astype("f8").tolist()
    wanted = ("0", "-0", "inf", "nan")
    told = [repr(v) for v in held]
    return frozenset(w for w, v in zip(wanted, told, strict=True) if v in (w, f"{w}.0"))
