"""Dtype laws: NumPy's promotion, with ml_dtypes' small floats and one setting.

With ``config.update("default_float", "float32")`` a float64 that no operand asked for, such as the
mean of integers, becomes float32.

Promotion: the dtype that operands of several dtypes meet in, for every function alike.

NumPy's own dtypes are promoted as in NumPy. A float of ml_dtypes keeps its dtype beside integers
and bools, as in JAX; two different short floats meet in float32. Integers of 2 and 4 bits meet in
the narrowest dtype that holds both.

The order of dtypes: which are floats, which are integers, short ones and typed keys included.

In: a dtype, or a class of scalars. Out: whether it is one of those that another class stands for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import described
from meshard.errors import DtypeError, MeshardError, did_you_mean
from meshard.ops.row import Dtype, Op, Operand, Params
from meshard.runtime.moving.place import checked_dtype
from meshard.runtime.settings import DEFAULT_FLOAT
from meshard.runtime.types import KEY, Block, dtype_name

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


_NAMES = (*(np.dtype(c).name for c in "?bhilBHILefdFD"), *sorted(d.name for d in SMALL_FLOATS))


def default_float() -> Dtype:
    """Return the dtype of floats that nothing else decides."""
    return np.dtype(DEFAULT_FLOAT.value)


def default_complex() -> Dtype:
    """Return the complex dtype that goes with `default_float`."""
    return np.dtype(np.complex64 if DEFAULT_FLOAT.value == "float32" else np.complex128)


def as_dtype(given: Any) -> Dtype:
    """Return a NumPy dtype; the Python type ``float`` is the default float.

    Raises:
        DtypeError: if it names no dtype, or one of Python objects or strings.
    """
    if given is float or given is None:
        return default_float()
    if given is complex:
        return default_complex()
    try:
        dtype = np.dtype(getattr(ml_dtypes, given, given) if isinstance(given, str) else given)
    except (TypeError, ValueError, RecursionError):
        meant = did_you_mean(given, _NAMES)
        raise DtypeError(f"{described(given)} is not a dtype.{meant}") from None
    return checked_dtype(dtype, "dtype")


def is_float(dtype: Dtype) -> bool:
    """Whether a dtype is a real float, small ones included."""
    return kind_of(dtype) == "f"


def is_whole(dtype: Dtype) -> bool:
    """Whether a dtype is one of bools or integers, those shorter than a byte included."""
    return kind_of(dtype) in "biu"


def accumulator(dtype: Dtype) -> Dtype:
    """Return the dtype in which sums are accumulated: float32 for all shorter floats.

    Sums in integers wrap in any case; those shorter than a byte are computed in one.
    """
    if dtype == np.float16 or dtype in SMALL_FLOATS:
        return np.dtype(np.float32)
    return BYTES.get(dtype, dtype)


def operand_dtype(operand: Operand) -> Dtype:
    """Return an operand's dtype; of a Python scalar the default of its kind."""
    kind = operand[1]
    if isinstance(kind, np.dtype):
        return kind
    return {bool: np.dtype(bool), int: np.dtype(np.int64), float: default_float()}.get(
        kind, default_complex()
    )


def weak_dtypes(operands: Sequence[Operand]) -> tuple[Dtype | None, ...]:
    """Return for each operand the dtype that a Python float takes before the kernel sees it.

    NumPy does so by itself for its own floats; for those of ml_dtypes it would promote instead.
    """
    found = {k for _, k in operands if isinstance(k, np.dtype) and (is_float(k) or k.kind == "c")}
    if len(found) != 1 or not found <= SMALL_FLOATS:
        return (None,) * len(operands)
    (small,) = found
    return tuple(small if k is float else None for _, k in operands)


def order_matters(op: Op, operands: Sequence[Operand]) -> bool:
    """Whether the last bits of a row's results depend on how its operands are laid out in memory.

    Sums of floats are grouped by memory order, and NumPy has other functions of float16 for
    contiguous memory than for strides. Operands are made contiguous then, since whether a block
    is a view or was received depends on the number of processes.
    """
    kinds = [operand_dtype(x) for x in operands]
    if op.sums:
        return any(is_float(k) or k.kind == "c" for k in kinds)
    return op.style == "ufunc" and np.dtype(np.float16) in kinds


def promoted_for(what: str, *dtypes: Dtype) -> Dtype:
    """Return the dtype that several dtypes are promoted to together.

    Raises:
        DtypeError: if there is none, as for numbers and typed random keys.
    """
    try:
        return np.result_type(*dtypes)
    except TypeError:
        kinds = " and ".join(
            dict.fromkeys(dtype_name(d) if hasattr(d, "kind") else repr(d) for d in dtypes)
        )
        raise DtypeError(
            f"{what}: {kinds} have no common dtype. Convert one with astype."
        ) from None


def same_dtype(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    """The law of operations that only rearrange their first operand's elements."""
    return (operand_dtype(operands[0]),)


def result_dtypes(
    op: Op, operands: Sequence[Operand], params: Params
) -> tuple[tuple[Dtype, ...], tuple[Dtype, ...]]:
    """Return the dtypes of a row's results, and those that its kernel gives.

    Raises:
        DtypeError: if the kernel cannot take the operands' dtypes.
    """
    try:
        if op.dtypes is not None:
            _check_takes_keys(op, operands)
            law = op.dtypes(operands, params)
            return law, law
        given = _dtypes_given(op, operands, params)
    except MeshardError:
        raise
    except TypeError as error:
        kinds = ", ".join(
            dtype_name(k) if isinstance(k, np.dtype) else k.__name__ for _, k in operands
        )
        advice = ""
        if _has_keys(operands):
            advice = (
                " Typed random keys do not support arithmetic; their words are in "
                "meshard.random.key_data(key)."
            )
        raise DtypeError(
            f"{op.name}: not possible for operands of dtype {kinds}.{advice}"
        ) from error
    return tuple(_modest(dtype, operands) for dtype in given), given


def _has_keys(operands: Sequence[Operand]) -> bool:
    return any(kind == KEY for _, kind in operands)


def _check_takes_keys(op: Op, operands: Sequence[Operand]) -> None:
    """Refuse typed random keys, but for rows that move elements or draw from the keys.

    A row with a dtype law is never tried on samples, where NumPy would refuse the keys by itself.
    """
    moves = op.dtypes is same_dtype or op.name == "astype"
    if not moves and not op.name.startswith("random_") and _has_keys(operands):
        raise TypeError(op.name)


def _dtypes_given(op: Op, operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    """Return the dtypes that a kernel gives, by running it on one element of each operand."""
    samples = [
        np.ones((1,) * len(shape), kind)
        if isinstance(kind, np.dtype)
        else (kind if weak is None else weak.type)(1)
        for (shape, kind), weak in zip(operands, weak_dtypes(operands), strict=True)
    ]
    with np.errstate(all="ignore"):
        found = op.kernel(*samples, **params)
    results = found if isinstance(found, tuple) else (found,)
    return tuple(np.asarray(r).dtype for r in results)


def _modest(dtype: Dtype, operands: Sequence[Operand]) -> Dtype:
    """Lower a float64 or complex128 that no operand has to the default float's kind."""
    wide = (np.dtype("f8"), np.dtype("c16"))
    given = [kind for _, kind in operands if isinstance(kind, np.dtype)]
    if dtype not in wide or any(kind in wide for kind in given):
        return dtype
    return default_float() if dtype.kind == "f" else default_complex()


class extended(ABC):
    """The class of dtypes that are not NumPy's: typed random keys.

    >>> import meshard, meshard.numpy as mnp
    >>> key = meshard.random.key(0)
    >>> mnp.issubdtype(key.dtype, meshard.dtypes.extended), mnp.issubdtype("int8", mnp.integer)
    (True, True)
    """

    @abstractmethod
    def __init__(self) -> None:
        """It has no instances: it is asked for in `issubdtype`."""


class prng_key(extended):
    """The class of typed random keys.

    >>> import meshard, meshard.numpy as mnp
    >>> mnp.issubdtype(meshard.random.key(0).dtype, meshard.dtypes.prng_key)
    True
    >>> mnp.issubdtype(meshard.random.PRNGKey(0).dtype, meshard.dtypes.prng_key)
    False
    """


_KIND_OF: dict[type, type] = {
    prng_key: np.generic,
    extended: np.generic,
    **{d.type: np.floating for d in SMALL_FLOATS},
    **{d.type: np.unsignedinteger if b.kind == "u" else np.signedinteger for d, b in BYTES.items()},
}
"""The class of NumPy's that scalars belong to where NumPy does not say so itself."""


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Return whether a dtype is at or below another in the order of dtypes.

    It is NumPy's, and knows that bfloat16 and the floats of 8 bits are floats, that integers of 2
    and 4 bits are integers, and what typed random keys are.

    Args:
        arg1: a dtype, or a class such as ``mnp.floating``.
        arg2: the same.

    Raises:
        DtypeError: if one is neither.

    >>> import meshard.numpy as mnp
    >>> mnp.issubdtype(mnp.bfloat16, mnp.floating), mnp.issubdtype(mnp.float32, mnp.integer)
    (True, False)
    """
    below, above = _class_of(arg1), _class_of(arg2)
    return issubclass(below, above) or issubclass(_KIND_OF.get(below, below), above)


def _class_of(given: Any) -> type:
    """Return the class of scalars that a dtype or a class stands for."""
    if isinstance(given, type) and issubclass(given, (np.generic, extended)):
        return given
    try:
        dtype = np.dtype(given)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, MeshardError):
            raise
        raise DtypeError(f"issubdtype: {described(given)} is not a dtype.") from None
    return prng_key if dtype == KEY else dtype.type


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Dtype:
    """Return the dtype that something stands for; the Python type ``float`` is the default float.

    Args:
        dtype: a dtype, its name, or what NumPy takes for one.
        allow_extended_dtype: whether the dtype of typed random keys is taken.

    Raises:
        DtypeError: if it is not a dtype of numbers.

    >>> import meshard
    >>> meshard.dtypes.canonicalize_dtype("bfloat16"), meshard.dtypes.canonicalize_dtype(float)
    (dtype(bfloat16), dtype('float64'))
    """
    found = as_dtype(dtype)
    if found == KEY and not allow_extended_dtype:
        raise DtypeError("canonicalize_dtype: typed random keys are not numbers.")
    return found
