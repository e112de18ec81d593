"""Arguments as they were given, and as they are meant: one function for each kind.

In: a value that a caller passed, the function's name and the argument's. Out: the value in its
normal form, or a refusal that says what was asked, what was given and what is allowed.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from meshard.errors import ArgumentError, MeshardError, ShapeError

T = TypeVar("T")
Refusal = type[MeshardError]


def shown(value: object, most: int = 80) -> str:
    """Return a value's repr on one line, shortened if it is long.

    >>> shown(list(range(100)), 20)
    '[0, 1, 2, 3, 4, ...'
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # too deep, or a repr of the caller's that fails
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= most else f"{text[: most - 4].rstrip()} ..."


def refusal(what: str, name: str, allowed: str, value: object, advice: str = "") -> str:
    """Return the message that refuses a value.

    Args:
        what: the function, as the caller wrote it.
        name: the argument.
        allowed: what it must be, after "must be".
        value: what was given.
        advice: a sentence that says what to write instead.
    """
    return (
        f"{what}: {name} must be {allowed}, but got {shown(value)} of type "
        f"{type(value).__name__}.{' ' if advice else ''}{advice}"
    )


def instance_of(
    value: object,
    kind: type[T],
    what: str,
    name: str,
    *,
    advice: str = "",
    error: Refusal = ArgumentError,
) -> T:
    """Return a value of a class; refuse any other."""
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise error(refusal(what, name, f"{article} {kind.__name__}", value, advice))


def function_of(value: object, what: str, name: str, advice: str = "") -> Callable[..., Any]:
    """Return a value that can be called."""
    if callable(value):
        return value
    raise ArgumentError(refusal(what, name, "a function", value, advice))


def is_text(value: object, *texts: str) -> bool:
    """Return whether a value is one of some strings; arrays are not asked, which would compare."""
    return isinstance(value, str) and value in texts


def text_of(value: object, what: str, name: str, error: Refusal = ArgumentError) -> str:
    """Return a text."""
    if isinstance(value, str):
        return value
    raise error(refusal(what, name, "a string", value))


def choice_of(value: object, choices: Sequence[str], what: str, name: str) -> str:
    """Return a text that is one of some."""
    if isinstance(value, str) and value in choices:
        return value
    raise ArgumentError(refusal(what, name, " or ".join(map(repr, choices)), value))


def flag_of(value: object, what: str, name: str) -> bool:
    """Return a bool: True or False, NumPy's as well, or the numbers 1 and 0."""
    kind = type(value)
    if kind is bool or (kind.__name__ in ("bool", "bool_") and kind.__module__ == "numpy"):
        return bool(value)
    if kind is int and value in (0, 1):
        return bool(value)
    raise ArgumentError(refusal(what, name, "True or False", value))


def count_of(
    value: object,
    what: str,
    name: str,
    *,
    least: int | None = 0,
    most: int | None = None,
    error: Refusal = ArgumentError,
) -> int:
    """Return an integer as Python's, within bounds; True and False are not integers here.

    >>> count_of(3, "f", "n")
    3
    """
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)  # type: ignore[arg-type]
        except Exception:
            raise error(refusal(what, name, _range(least, most), value)) from None
    else:
        number = value
    if (least is not None and number < least) or (most is not None and number > most):
        raise error(refusal(what, name, _range(least, most), value))
    return number


def _range(least: int | None, most: int | None) -> str:
    if most is not None:
        return f"an integer from {least} to {most}" if least is not None else f"at most {most}"
    if least is None:
        return "an integer"
    return "a non-negative integer" if least == 0 else f"an integer of at least {least}"


def number_of(
    value: object, what: str, name: str, *, least: float = 0.0, open_below: bool = False
) -> float:
    """Return a finite real number as a Python float, from ``least`` on."""
    allowed = f"a finite number {'above' if open_below else 'of at least'} {least:g}"
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except Exception:
        raise ArgumentError(refusal(what, name, allowed, value)) from None
    if not math.isfinite(number) or number < least or (open_below and number == least):
        raise ArgumentError(refusal(what, name, allowed, value))
    return number


def items_of(
    value: object, what: str, name: str, of: str, *, error: Refusal = ArgumentError
) -> tuple[object, ...]:
    """Return what a list, tuple or another iterable holds; a text or a mapping holds no items.

    Args:
        value: what was given.
        what: the function.
        name: the argument.
        of: what the items should be: ``"devices"``.
        error: the class of the refusal.
    """
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping)):
        try:
            return tuple(value)
        except TypeError:  # an array without dims
            pass
    raise error(refusal(what, name, f"a list or tuple of {of}", value))


def names_of(
    value: object, what: str, name: str, of: str = "axis names", error: Refusal = ArgumentError
) -> tuple[str, ...]:
    """Return names, such as those of mesh axes, as a tuple; one string is one name."""
    if isinstance(value, str):
        return (value,)
    found: list[str] = []
    for item in items_of(value, what, name, of, error=error):
        if not isinstance(item, str):
            raise error(
                f"{what}: {name} must hold {of}, which are strings, but {shown(value)} holds "
                f"{shown(item)} of type {type(item).__name__}."
            )
        found.append(item)
    return tuple(found)


def shape_of(value: object, what: str, name: str = "shape") -> tuple[int, ...]:
    """Return a shape as a tuple of Python ints; one number is a shape of one dim.

    Raises:
        ShapeError: if it is not made of non-negative integers.
    """
    if type(value) is tuple and all(type(n) is int and 0 <= n < 1 << 63 for n in value):
        return value
    try:
        if not isinstance(value, (str, bytes, bytearray, Mapping)):
            single = not isinstance(value, Iterable) or getattr(value, "shape", None) == ()
            items: Iterable[object] = (value,) if single else value  # type: ignore[assignment]
            sizes = tuple([operator.index(n) for n in items])  # type: ignore[arg-type]
            if all(0 <= n < 1 << 63 for n in sizes):
                return sizes
    except Exception:  # an array-like of the caller's own may raise anything
        raise _no_shape(value, what, name) from None
    raise _no_shape(value, what, name)


def _no_shape(value: object, what: str, name: str) -> ShapeError:
    whose = f"{what}: {shown(value)}" if name == "shape" else f"{what}: {name}: {shown(value)}"
    return ShapeError(
        f"{whose} is not a shape: sizes must be non-negative integers of at most 63 bits."
    )


def path_of(value: object, what: str, name: str = "path") -> Path:
    """Return a path."""
    if isinstance(value, (str, os.PathLike)):
        found = os.fspath(value)
        if isinstance(found, str) and found and "\0" not in found:
            return Path(found)
    raise ArgumentError(refusal(what, name, "the path of a file: a string or a Path", value))
