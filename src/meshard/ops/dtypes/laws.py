"""Dtype laws: NumPy's promotion, with ml_dtypes' small floats and one setting.

With ``config.update("default_float", "float32")`` a float64 that no operand asked for, such as the
mean of integers, becomes float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import described
from meshard.errors import DtypeError, MeshardError, did_you_mean
from meshard.ops.dtypes.promotion import BYTES, SMALL_FLOATS, kind_of
from meshard.ops.row import Dtype, Op, Operand, Params
from meshard.runtime.moving.place import checked_dtype
from meshard.runtime.settings import DEFAULT_FLOAT
from meshard.runtime.types import KEY, dtype_name

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


def promoted(what: str, *dtypes: Dtype) -> Dtype:
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
