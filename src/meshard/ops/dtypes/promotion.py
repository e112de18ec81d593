"""Promotion: the dtype that operands of several dtypes meet in, for every function alike.

NumPy's own dtypes are promoted as in NumPy. A float of ml_dtypes keeps its dtype beside integers
and bools, as in JAX; two different short floats meet in float32. Integers of 2 and 4 bits meet in
the narrowest dtype that holds both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshard.errors import DtypeError
from meshard.ops.row import Dtype
from meshard.runtime.types import Block, dtype_name

SMALL_FLOATS = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if name.startswith(("bfloat", "float")) and isinstance(getattr(ml_dtypes, name), type)
)
"""The floats of ml_dtypes, which NumPy does not count among its own kinds."""

BYTES: dict[Dtype, Dtype] = {
    np.dtype(getattr(ml_dtypes, name)): np.dtype("u1" if name.startswith("u") else "i1")
    for name in ("int2", "int4", "uint2", "uint4", "int1", "uint1")
    if hasattr(ml_dtypes, name)
}
"""The integers shorter than a byte, each with the byte that it is computed in."""

EXTENDED = SMALL_FLOATS | BYTES.keys()
"""The dtypes that NumPy's promotion does not know."""

_FLOAT32 = np.dtype(np.float32)


def kind_of(dtype: Dtype) -> str:
    """Return the letter of a dtype's kind, as NumPy's ``dtype.kind``, for short dtypes too."""
    if dtype in SMALL_FLOATS:
        return "f"
    return BYTES[dtype].kind if dtype in BYTES else dtype.kind


def promoted(kinds: Sequence[Dtype | type]) -> Dtype:
    """Return the dtype to which dtypes, and the types of Python numbers, are promoted together.

    Raises:
        TypeError: if there is none.
    """
    numbers = [kind(1) for kind in kinds if not isinstance(kind, np.dtype)]
    dtypes = [kind for kind in kinds if isinstance(kind, np.dtype)]
    own = [d for d in dtypes if d not in EXTENDED]
    small = {d for d in dtypes if d in SMALL_FLOATS}
    if small:
        return _with_small_floats(small, own, numbers)
    narrow = [d for d in dtypes if d in BYTES]
    if narrow:
        return _with_short_integers(narrow, own, numbers)
    return np.result_type(*own, *numbers)


def _with_small_floats(small: set[Dtype], own: Sequence[Dtype], numbers: Sequence[Any]) -> Dtype:
    """Return the dtype for floats of ml_dtypes beside NumPy's dtypes and Python's numbers.

    No float of ml_dtypes holds all values of another one, so that two meet in float32. What NumPy
    knows as a float or a complex is at least as wide, and promotes as if it met float32.
    """
    wide = any(d.kind not in "biu" for d in own) or any(type(n) is complex for n in numbers)
    if wide:
        return np.result_type(_FLOAT32, *own, *numbers)
    return next(iter(small)) if len(small) == 1 else _FLOAT32


def _with_short_integers(
    narrow: Sequence[Dtype], own: Sequence[Dtype], numbers: Sequence[Any]
) -> Dtype:
    """Return the dtype for integers shorter than a byte beside NumPy's dtypes and numbers.

    Bools and Python's integers do not change the dtype. With anything else, the short integers
    count as a byte, a signed one if any integer is signed.
    """
    meeting = _meeting(narrow)
    if all(d.kind == "b" for d in own) and all(type(n) in (bool, int) for n in numbers):
        return meeting
    signed = kind_of(meeting) == "i" or any(d.kind == "i" for d in own)
    return np.result_type(np.int8 if signed else np.uint8, *own, *numbers)


def _meeting(narrow: Sequence[Dtype]) -> Dtype:
    """Return the narrowest integer dtype that holds all values of several short ones."""
    limits = [limits_of(d) for d in narrow]
    low, high = min(i.least for i in limits), max(i.greatest for i in limits)
    for dtype in sorted(BYTES, key=lambda d: (limits_of(d).bits, d.name)):
        own = limits_of(dtype)
        if own.least <= low and high <= own.greatest:
            return dtype
    return np.dtype(np.int8)


class Limits(NamedTuple):
    """The least and the greatest number of an integer dtype, and its bits."""

    least: int
    greatest: int
    bits: int


def limits_of(dtype: Dtype) -> Limits:
    """Return the limits of an integer dtype, those shorter than a byte included.

    Raises:
        TypeError: if it is not one of integers.
    """
    if kind_of(dtype) not in "iu":
        raise TypeError(f"{dtype} is not a dtype of integers.")
    found: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return Limits(int(found.min), int(found.max), int(found.bits))


def cast(x: Block, dtype: Dtype) -> Block:
    """Return a block in another dtype; ml_dtypes cannot convert all of its own to each other."""
    if x.dtype != dtype and x.dtype in EXTENDED and dtype in EXTENDED:
        x = x.astype(BYTES.get(x.dtype, _FLOAT32))
    return x.astype(dtype, copy=False)


def same_kind(own: Dtype, wanted: Dtype) -> bool:
    """Whether NumPy converts a dtype by ``casting="same_kind"``; short ones by their kinds."""
    if {own, wanted} & EXTENDED:
        order = "buifc"
        return order.index(kind_of(own)) <= order.index(kind_of(wanted))
    return np.can_cast(own, wanted, "same_kind")


def weak_kind(value: object) -> type | None:
    """Return the type of a Python number, which is promoted to the dtypes beside it; else None."""
    return next((k for k in (bool, int, float, complex) if type(value) is k), None)


def common_dtype(what: str, dtypes: Sequence[Dtype | type]) -> Dtype:
    """Return the dtype to which the operands of a function are promoted.

    Raises:
        DtypeError: if there is none.
    """
    try:
        return promoted(dtypes)
    except TypeError:
        kinds = ", ".join(dtype_name(d) if isinstance(d, np.dtype) else d.__name__ for d in dtypes)
        raise DtypeError(
            f"{what}: the dtypes {kinds} have no common dtype. Convert an operand with astype."
        ) from None
