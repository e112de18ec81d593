"""Kernels for dtypes: what a row runs on operands of given dtypes.

In: a row and its operands' dtypes. Out: the same row with the kernel that these dtypes need. Here
are two laws that no kernel has to know. Operands of short dtypes meet in one (`promotion`), and
integers shorter than a byte are computed in bytes and wrapped. What adds up or multiplies elements
does so in the accumulator's dtype, and is rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from meshard.ops.dtypes.laws import (
    BYTES,
    EXTENDED,
    SMALL_FLOATS,
    accumulator,
    cast,
    operand_dtype,
    promoted,
)
from meshard.ops.row import Dtype, Op, Operand, Params, Partial
from meshard.runtime.types import Block

Kernel = Callable[..., Any]
Kinds = tuple[Dtype | type, ...]
DtypeLaw = Callable[[Sequence[Operand], Params], tuple[Dtype, ...]]


def for_operands(op: Op, operands: Sequence[Operand], params: Params) -> Op:
    """Return a row with the kernel for operands of these dtypes; the row itself, if it serves."""
    law = op.partial
    if law is not None and law.accumulates == "wide":
        assert op.dtypes is not None, f"{op.name} accumulates, so that it needs a dtype law"
        try:
            (result,) = op.dtypes(operands, params)
        except TypeError:
            return op  # whoever asks for the results' dtypes refuses them
        op = _accumulating(op, result)
    elif law is not None and law.accumulates == "counts":
        _check_counts(op, operands, params)
    kinds = tuple([kind for _, kind in operands])
    if op.alike is None:
        made = tuple([operand_dtype(x) if isinstance(x[1], type) else None for x in operands])
        return _of_arrays(op, made) if any(made) else op
    if EXTENDED.isdisjoint(kinds[op.alike :]):
        return op
    return _meeting(op, kinds)


@lru_cache(maxsize=1024)
def _accumulating(op: Op, result: Dtype) -> Op:
    """Return a row whose kernel accumulates in a dtype that the engine chooses."""
    law, wide = op.partial, accumulator(result)
    assert law is not None
    kernel = partial(op.kernel, accumulator=wide)
    whole = kernel if wide == result else partial(_rounded, kernel, result)
    parts = Partial(law.combine, law.accumulates, kernel, lambda operands, params: (wide,))
    return replace(op, kernel=whole, partial=parts)


def _rounded(
    kernel: Kernel, result: Dtype, *blocks: Any, out: Block | None = None, **given: Any
) -> Any:
    return np.asarray(kernel(*blocks, **given)).astype(result)


_TOTALS = frozenset(map(np.dtype, ("i8", "u8", "f8", "c16")))


def _check_counts(op: Op, operands: Sequence[Operand], params: Params) -> None:
    assert op.dtypes is not None, f"{op.name} counts, so that it needs a dtype law"
    for dtype in op.dtypes(operands, params):
        assert dtype in _TOTALS, f"{op.name} counts in {dtype}, which is too short for that"


@lru_cache(maxsize=1024)
def _of_arrays(op: Op, dtypes: tuple[Dtype | None, ...]) -> Op:
    """Return a row whose kernel gets arrays for Python's numbers, which it does not expect."""
    law = op.partial
    if law is not None and law.kernel is not None:
        law = replace(law, kernel=partial(_with_arrays, law.kernel, dtypes))
    return replace(op, kernel=partial(_with_arrays, op.kernel, dtypes), partial=law)


def _with_arrays(kernel: Kernel, dtypes: Sequence[Dtype | None], *blocks: Any, **given: Any) -> Any:
    pairs = zip(blocks, dtypes, strict=True)
    return kernel(*[x if d is None else np.asarray(x, d) for x, d in pairs], **given)


@lru_cache(maxsize=4096)
def _meeting(op: Op, kinds: Kinds) -> Op:
    """Return a row whose operands meet in one dtype before the kernel sees them."""
    first = op.alike
    assert first is not None
    try:
        common = promoted(kinds[first:])
    except TypeError:
        return op  # the kernel refuses them
    # NumPy computes nothing in 2 or 4 bits: the kernel works in bytes, whose result is then cut.
    work = BYTES.get(common, common)
    casts = (None,) * first + tuple([_cast_to(work, kind) for kind in kinds[first:]])
    if work == common and not any(casts):
        return op
    bare = partial(_converted, op.kernel, casts)
    kernel = bare if work == common else partial(_wrapped, bare, work, common)
    law = op.partial
    if law is not None:
        of_parts = partial(_converted, law.kernel or op.kernel, casts)
        dtypes = partial(_dtypes_of_parts, law.dtypes or op.dtypes, work, first)
        law = replace(law, kernel=of_parts, dtypes=dtypes)
    return replace(op, kernel=kernel, partial=law)


def _cast_to(work: Dtype, kind: Dtype | type) -> Dtype | None:
    """Return what an operand is cast to; None: nothing.

    NumPy converts Python's numbers to its own dtypes by itself. With a dtype of ml_dtypes it would
    promote them instead.
    """
    if isinstance(kind, np.dtype):
        return None if kind == work else work
    return work if work in SMALL_FLOATS else None


def _dtypes_of_parts(
    law: DtypeLaw | None, work: Dtype, first: int, operands: Sequence[Operand], params: Params
) -> tuple[Dtype, ...]:
    """Return the dtypes of partial results, which are not cut to a shorter dtype yet."""
    if law is None:
        return (work,)
    taken = [
        (shape, work if isinstance(kind, np.dtype) and i >= first else kind)
        for i, (shape, kind) in enumerate(operands)
    ]
    return law(taken, params)


def _converted(kernel: Kernel, casts: Sequence[Dtype | None], *blocks: Any, **given: Any) -> Any:
    pairs = zip(blocks, casts, strict=True)
    return kernel(
        *[
            x if to is None else cast(x, to) if hasattr(x, "astype") else to.type(x)
            for x, to in pairs
        ],
        **given,
    )


def _wrapped(
    kernel: Kernel, work: Dtype, narrow: Dtype, *blocks: Any, out: Block | None = None, **given: Any
) -> Any:
    """Return what a kernel gives in bytes, cut to the bits of a shorter dtype."""
    found = kernel(*blocks, **given)
    if type(found) is tuple:
        return tuple([_cut(x, work, narrow) for x in found])
    if out is None:
        return _cut(found, work, narrow)
    out[...] = _cut(found, work, narrow)
    return out


def _cut(found: Any, work: Dtype, narrow: Dtype) -> Any:
    block = np.asarray(found)
    return block.astype(narrow) if block.dtype == work else block
