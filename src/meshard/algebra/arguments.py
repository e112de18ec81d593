"""Arguments as they were given, and as they are meant: one function for each kind.

In: a value that a caller passed, the function's name and the argument's. Out: the value in its
normal form, or a refusal that says what was asked, what was given and what is allowed.
"""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from meshard.errors import ArgumentError, MeshardError, OutOfRangeError, ShapeError, did_you_mean

T = TypeVar("T")
Refusal = type[MeshardError]

LEAST_INTEGER, MOST_INTEGER = -(1 << 63), (1 << 63) - 1
"""The range of the 64-bit integers that sizes and positions are computed in."""
_PLAIN = {type(None), type, bool, int, float, complex, str, bytes, list, tuple, dict, set}
"""Types whose repr says what they are."""


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


@functools.singledispatch
def array_text(value: object) -> str | None:
    """Return what messages say of an array; None for what is not one.

    Floors that have arrays of their own register them.
    """
    return None


@array_text.register
def _(value: np.ndarray) -> str | None:
    return f"a NumPy array of shape {value.shape} and dtype {value.dtype}" if value.ndim else None


def described(value: object, *, typed: bool = False) -> str:
    """Return a short text for a value that was given.

    Args:
        value: the value; an array is described by its shape and dtype, others by repr and type.
        typed: whether to give the type even where the repr shows it, as that of ``'3'`` does.
    """
    array = array_text(value)
    if array is not None:
        return array
    kind, text = type(value).__name__, shown(value)
    told = (type(value) in _PLAIN and not typed) or text.startswith(f"a {kind} that")
    return text if told else f"{text} of type {kind}"


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
        f"{what}: {name} must be {allowed}, got {described(value, typed=True)}."
        f"{' ' if advice else ''}{advice}"
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
    """Return a text that is one of some.

    >>> choice_of("left", ("left", "right"), "searchsorted", "side")
    'left'
    """
    if isinstance(value, str) and value in choices:
        return value
    *most, last = map(repr, choices)
    allowed = f"{', '.join(most)} or {last}"
    raise ArgumentError(refusal(what, name, allowed, value, did_you_mean(value, choices).strip()))


def check_order(order: object, what: str) -> None:
    """Accept an order of elements in memory that every array has; NumPy's functions pass it.

    Raises:
        ArgumentError: if it asks for the first dim to be the fastest, or is not an order.
    """
    if order is None or is_text(order, "K"):
        return
    if choice_of(order, ("C", "A", "K", "F"), what, "order") == "F":
        raise ArgumentError(
            f"{what}: order='F' asks for elements in memory with the first dim the fastest, but "
            "arrays have no memory layout that can be seen. Leave it out, or make a NumPy array "
            "with np.asfortranarray(np.asarray(x))."
        )


def flag_of(value: object, what: str, name: str) -> bool:
    """Return a bool: True or False, NumPy's as well, or the numbers 1 and 0.

    Raises:
        ArgumentError: if it is something else.
        ConcretizationError: if it is traced.
    """
    if type(value) is bool:
        return value

    def refused() -> MeshardError:
        return ArgumentError(refusal(what, name, "True or False", value))

    found = _converted(
        _switch if getattr(value, "shape", None) == () else operator.index, value, refused
    )
    if found not in (0, 1):
        raise refused()
    return bool(found)


def _switch(value: object) -> int:
    """Return an array without dims as 0 or 1: it holds a bool, or an integer."""
    array = np.asarray(value)
    return int(array) if array.dtype == bool else operator.index(value)  # type: ignore[arg-type]


def integer_of(
    value: object,
    what: str,
    name: str,
    *,
    least: int | None = None,
    most: int | None = None,
    error: Refusal = ArgumentError,
) -> int:
    """Return an integer as Python's, within bounds; True and False are not integers here.

    Args:
        value: what was given: anything that Python takes as an index.
        what: the function, for the message.
        name: the argument, for the message.
        least: the least integer that is allowed.
        most: the greatest one.
        error: the class of the refusal.

    Raises:
        OutOfRangeError: if it does not fit into 64 bits.
        ConcretizationError: if it is traced.

    >>> integer_of(-3, "f", "n")
    -3
    """

    def refused() -> MeshardError:
        return error(refusal(what, name, _range(least, most), value))

    if isinstance(value, bool):
        raise refused()
    found = _converted(operator.index, value, refused)
    if (least is not None and found < least) or (most is not None and found > most):
        raise refused()
    if not LEAST_INTEGER <= found <= MOST_INTEGER:
        raise OutOfRangeError(
            f"{what}: {name} must fit into 64 bits, got {described(value)}, which has "
            f"{found.bit_length()} bits."
        )
    return found


def _whole_floats(sizes: object) -> str:
    """Return what to write where sizes are floats that `/` has made."""
    given = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    whole = any(isinstance(n, float) and n.is_integer() for n in given)
    return " Divide integers by //, not by /." if whole else ""


def count_of(
    value: object,
    what: str,
    name: str,
    *,
    least: int = 0,
    most: int | None = None,
    error: Refusal = ArgumentError,
) -> int:
    """Return an integer that counts something: a non-negative one; see `integer_of`."""
    return integer_of(value, what, name, least=least, most=most, error=error)


def _converted(
    convert: Callable[[Any], int], value: object, refused: Callable[[], MeshardError]
) -> int:
    """Return what a value is as an int, or raise the refusal; a traced one says itself why not."""
    try:
        return int(convert(value))
    except ArgumentError:
        raise refused() from None
    except MeshardError:
        raise
    except Exception:  # an array-like of the caller's own may raise anything
        raise refused() from None


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
    value: object,
    what: str,
    name: str,
    of: str,
    *,
    ordered: bool = False,
    error: Refusal = ArgumentError,
) -> tuple[Any, ...]:
    """Return what a list, tuple or another iterable holds; a text or a mapping holds no items.

    Args:
        value: what was given; an array is a sequence along its first dim.
        what: the function.
        name: the argument.
        of: what the items should be: ``"devices"``.
        ordered: whether a set, which has no order, is refused.
        error: the class of the refusal.
    """
    wrong: tuple[type, ...] = (str, bytes, bytearray, Mapping, *((Set,) if ordered else ()))
    if isinstance(value, Iterable) and not isinstance(value, wrong):
        try:
            return tuple(value)
        except MeshardError:
            raise
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


def shape_of(
    value: object, what: str, name: str = "shape", *, inferred: bool = False
) -> tuple[int, ...]:
    """Return a shape as a tuple of Python ints; one integer is a shape of one dim.

    Args:
        value: an integer, or a sequence of integers.
        what: the function, for the message.
        name: the argument, for the message.
        inferred: whether sizes may be negative, which the caller gives a meaning.

    Raises:
        ShapeError: if it is not made of non-negative integers that fit into 64 bits.
        ConcretizationError: if a size is traced.
    """
    if type(value) is tuple and all(type(n) is int and 0 <= n < 1 << 63 for n in value):
        return value

    def refused() -> MeshardError:
        which = "" if name == "shape" else f"{name}: "
        return ShapeError(
            f"{what}: {which}{described(value)} is not a shape: sizes must be "
            f"{'integers' if inferred else 'non-negative integers'} of at most 63 bits."
            f"{_whole_floats(value)}"
        )

    given: Iterable[Any] = (value,)
    if getattr(value, "shape", None) or not hasattr(value, "__index__"):
        try:
            given = items_of(value, what, name, "integers", ordered=True)
        except ArgumentError:
            raise refused() from None
    sizes = tuple([_converted(operator.index, n, refused) for n in given])
    if any(n > MOST_INTEGER or n < (LEAST_INTEGER if inferred else 0) for n in sizes):
        raise refused()
    return sizes


def path_of(value: object, what: str, name: str = "path") -> Path:
    """Return a path."""
    if isinstance(value, (str, os.PathLike)):
        found = os.fspath(value)
        if isinstance(found, str) and found and "\0" not in found:
            return Path(found)
    raise ArgumentError(refusal(what, name, "the path of a file: a string or a Path", value))
