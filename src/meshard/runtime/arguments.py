"""Arguments that are not arrays: integers, flags, numbers, shapes; accepted or refused in one way.

In: what a caller gave, the function's name and the argument's. Out: the plain Python value, or an
error that says what the argument may be and what was given.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, MeshardError, OutOfRangeError, ShapeError

LEAST_INTEGER, MOST_INTEGER = -(1 << 63), (1 << 63) - 1
"""The range of the 64-bit integers that sizes and positions are computed in."""
_PLAIN = {type(None), type, bool, int, float, complex, str, bytes, list, tuple, dict, set}
"""Types whose repr says what they are."""


def described(value: object) -> str:
    """Return a short text for a value that was given, with its type where that is not plain."""
    kind = type(value).__name__
    aval = getattr(type(value), "aval", None)
    if aval is not None:
        return f"an array {value.aval.str_short()}"  # type: ignore[attr-defined]
    if isinstance(value, np.ndarray) and value.ndim:
        return f"a NumPy array of shape {value.shape} and dtype {value.dtype}"
    text = shown(value)
    plain = type(value) in _PLAIN or text.startswith(f"a {kind} that")
    return text if plain else f"{text} of type {kind}"


def integer(value: Any, what: str, name: str, least: int | None = None) -> int:
    """Return an integer argument as a Python int.

    Args:
        value: what was given: anything that Python takes as an index.
        what: the function, for the message.
        name: the argument, for the message.
        least: the least integer that is allowed.

    Raises:
        ArgumentError: if it is not an integer, or below ``least``.
        OutOfRangeError: if it does not fit into 64 bits.
        ConcretizationError: if it is traced.
    """
    allowed = "an integer" if least is None else f"an integer of at least {least}"
    try:
        found = operator.index(value)
    except MeshardError as error:
        if isinstance(error, ArgumentError):
            raise _refused(value, what, name, allowed) from None
        raise
    except (TypeError, ValueError, OverflowError):
        raise _refused(value, what, name, allowed) from None
    if not LEAST_INTEGER <= found <= MOST_INTEGER:
        raise OutOfRangeError(
            f"{what}: {name} must fit into 64 bits, got {described(value)}, which has "
            f"{found.bit_length()} bits."
        )
    if least is not None and found < least:
        raise _refused(value, what, name, allowed)
    return int(found)


def _refused(value: object, what: str, name: str, allowed: str) -> ArgumentError:
    return ArgumentError(f"{what}: {name} must be {allowed}, got {described(value)}.")


def too_large(what: str, error: OverflowError, operands: Sequence[Any] = ()) -> MeshardError:
    """Return the error for a Python integer that an operand's dtype cannot hold.

    Args:
        what: the operation.
        error: what NumPy raised.
        operands: numbers and arrays, where they are known.
    """
    if isinstance(error, MeshardError):
        return error
    numbers = [shown(x) for x in operands if isinstance(x, int)]
    dtypes = dict.fromkeys(str(x.dtype) for x in operands if hasattr(x, "dtype"))
    return OutOfRangeError(
        f"{what}: the integer {' or '.join(numbers) or 'given'} does not fit into the dtype of the "
        f"other operand{', ' if dtypes else ''}{', '.join(dtypes)}. Convert that one with astype "
        "first."
    )


def flag(value: Any, what: str, name: str) -> bool:
    """Return an argument that is true or false as a Python bool.

    Raises:
        ArgumentError: if it is neither a bool nor 0 or 1.
        ConcretizationError: if it is traced.
    """
    if type(value) is bool:
        return value
    try:
        alone = getattr(value, "shape", None) == ()
        if alone and getattr(value, "dtype", None) == np.dtype(bool):
            return bool(value)
        found = operator.index(value)
    except MeshardError as error:
        if not isinstance(error, ArgumentError):
            raise
        found = -1
    except (TypeError, ValueError, OverflowError):
        found = -1
    if found not in (0, 1):
        raise _refused(value, what, name, "True or False")
    return bool(found)


def items(value: Any, what: str, name: str, allowed: str = "a sequence") -> list[Any]:
    """Return what a sequence holds, in its order; arrays are sequences along their first dim.

    Raises:
        ArgumentError: if it is not a sequence: a number, a text, a set or a dict, or an array
            without dims.
    """
    if isinstance(value, (str, bytes, Mapping, Set)) or not isinstance(value, Iterable):
        raise _refused(value, what, name, allowed)
    try:
        return list(value)
    except MeshardError:
        raise
    except TypeError:  # arrays without dims have __iter__, and refuse it
        raise _refused(value, what, name, allowed) from None


def checked_shape(
    shape: Any, what: str, name: str = "shape", *, inferred: bool = False
) -> tuple[int, ...]:
    """Return a shape as a tuple of Python ints; one integer is a shape of one dim.

    Args:
        shape: an integer, or a sequence of integers.
        what: the function, for the message.
        name: the argument, for the message.
        inferred: whether sizes may be negative, which the caller gives a meaning.

    Raises:
        ShapeError: if it is not made of non-negative integers that fit into 64 bits.
        ConcretizationError: if a size is traced.
    """
    try:
        alone = hasattr(shape, "__index__") and not getattr(shape, "shape", ())
        given = [shape] if alone else items(shape, what, name)
        sizes = tuple([integer(n, what, name) for n in given])
    except ArgumentError:
        sizes = None
    if sizes is None or (not inferred and any(n < 0 for n in sizes)):
        wanted = "integers" if inferred else "non-negative integers"
        which = "" if name == "shape" else f"{name} "
        raise ShapeError(
            f"{what}: {which}{described(shape)} is not a shape: sizes must be {wanted} of at most "
            "63 bits."
        )
    return sizes
