"""Fields of rules: what each takes, checked when a rule is made.

In: a value from Python or TOML. Out: the value as rules keep it; another kind is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import KeyMapError
from meshard.weights.maps.casts import dtype_named
from meshard.weights.maps.pattern import parse

MAX_SIZE = 2**62


def one_pattern() -> Any:
    """Return the field of a pattern."""
    return field(metadata={"check": _pattern})


def patterns() -> Any:
    """Return the field of several patterns."""
    return field(metadata={"check": _patterns})


def patterns_or_none() -> Any:
    """Return the field of several patterns, or of none."""
    return field(default=None, metadata={"check": _patterns_or_none})


def one_or_more() -> Any:
    """Return the field of a pattern or several."""
    return field(metadata={"check": _one_or_more})


def integer(default: int | None, least: int | None = None) -> Any:
    """Return the field of an integer, which may be None if that is its default."""
    check = _whole if default is not None else _whole_or_none
    return field(default=default, metadata={"check": functools.partial(check, least=least)})


def integers(least: int | None = None) -> Any:
    """Return the field of several integers, or of none."""
    return field(default=None, metadata={"check": functools.partial(_wholes, least=least)})


def word(default: str) -> Any:
    """Return the field of a text."""
    return field(default=default, metadata={"check": _word})


def real(default: float) -> Any:
    """Return the field of a number."""
    return field(default=default, metadata={"check": _value})


def dtype_of_numbers() -> Any:
    """Return the field of a dtype's name, which must be given."""
    return field(metadata={"check": _dtype})


def _pattern(given: object, where: str) -> str:
    return parse(_of(str, given, where, "a pattern")).text


def _patterns(given: object, where: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise KeyMapError(f"{where} is a list of patterns; found {shown(given)}.")
    return tuple([parse(_of(str, v, where, "a list of patterns")).text for v in given])


def _patterns_or_none(given: object, where: str) -> tuple[str, ...] | None:
    return None if given is None else _patterns(given, where)


def _one_or_more(given: object, where: str) -> str | tuple[str, ...]:
    several = isinstance(given, (tuple, list))
    return _patterns(given, where) if several else _pattern(given, where)


def _word(given: object, where: str) -> str:
    return str(_of(str, given, where, "a text"))


def flag(given: object, where: str) -> bool:
    """Return what is true or false."""
    return bool(_of(bool, given, where, "true or false"))


def _value(given: object, where: str) -> float:
    return float(_of((int, float), given, where, "a number"))


def _dtype(given: object, where: str) -> str:
    try:
        return dtype_named(given).name
    except KeyMapError as error:
        raise KeyMapError(f"{where}: {error}.") from None


def _of(kinds: Any, given: Any, where: str, expected: str) -> Any:
    if not isinstance(given, kinds) or (isinstance(given, bool) and kinds is not bool):
        raise KeyMapError(f"{where} is {expected}; found {shown(given)}.")
    return given


def _whole_or_none(given: Any, where: str, *, least: int | None) -> int | None:
    return None if given is None else _whole(given, where, least=least)


def _whole(given: Any, where: str, *, least: int | None) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise KeyMapError(f"{where} is made of integers; found {shown(given)}.")
    if abs(int(given)) > MAX_SIZE or (least is not None and int(given) < least):
        raise KeyMapError(f"{where} is between {least} and {MAX_SIZE}; found {shown(given)}.")
    return int(given)


def _wholes(given: Any, where: str, *, least: int | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise KeyMapError(f"{where} is a list of integers; found {shown(given)}.")
    return tuple([_whole(v, where, least=least) for v in given])
