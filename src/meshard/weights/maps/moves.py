"""What rules do to tensors: checked moves of forms, by what their users call them.

In: forms, and the numbers of a rule. Out: forms; sizes that do not fit are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshard.errors import KeyMapError
from meshard.weights.maps.form import Form, joined


def dim_of(form: Form, dim: int) -> int:
    """Return a dim, counted from the front."""
    if not -form.ndim <= dim < form.ndim:
        raise KeyMapError(f"dim {dim} does not exist; expected {-form.ndim} to {form.ndim - 1}")
    return dim % form.ndim


def fuse(forms: Sequence[Form], dim: int, groups: int) -> Form:
    """Return tensors one after the other along a dim, group by group."""
    first = forms[0]
    dim = dim_of(first, dim)
    for form in forms[1:]:
        if form.ndim != first.ndim or any(
            a != b for d, (a, b) in enumerate(zip(form.shape, first.shape, strict=True)) if d != dim
        ):
            raise KeyMapError(
                f"only dim {dim} may differ between tensors that are joined along it; found "
                f"{first.shape} and {form.shape}"
            )
        if form.dtype != first.dtype:
            raise KeyMapError(
                f"tensors that are joined have one dtype; found {first.dtype} and {form.dtype}. "
                "Cast one of them before"
            )
    parts = [grouped(f, dim, groups) for f in forms]
    return joined(parts, dim + 1).merged(dim, dim + 1)


def split(form: Form, sizes: Sequence[int], dim: int, groups: int) -> list[Form]:
    """Return the parts of a tensor along a dim, each gathered from all groups."""
    dim = dim_of(form, dim)
    if sum(sizes) != form.shape[dim]:
        raise KeyMapError(
            f"the parts along dim {dim} must have {form.shape[dim]} elements together; "
            f"{' + '.join(map(str, sizes))} are {sum(sizes)}"
        )
    for n in sizes:
        _check_divides(n, groups, f"a part of {n} elements along dim {dim}", "groups")
    whole = grouped(form, dim, groups)
    parts, at = [], 0
    for n in sizes:
        part = whole.sliced(dim + 1, at, at + n // groups)
        parts.append(part.merged(dim, dim + 1))
        at += n // groups
    return parts


def grouped(form: Form, dim: int, groups: int) -> Form:
    """Return a dim as two: groups, and what is in each."""
    size = form.shape[dim]
    _check_divides(size, groups, f"dim {dim}, of size {size},", "groups")
    if not size:
        return form.expanded(dim).reshaped((*form.shape[:dim], groups, 0, *form.shape[dim + 1 :]))
    return form.split(dim, size // groups)


def rope(form: Form, dim: int, heads: int, pairs: str) -> Form:
    """Return the rows of each head in another order.

    Args:
        form: the tensor.
        dim: the dim of the rows.
        heads: the number of heads.
        pairs: "interleaved" or "half", how the result has the two elements of a pair.
    """
    dim = dim_of(form, dim)
    size = form.shape[dim]
    _check_divides(size, heads, f"dim {dim}, of size {size},", "heads")
    _check_divides(size // heads, 2, f"a head of {size // heads} rows", "halves")
    if not math.prod(form.shape):
        return form
    inner = 2 if pairs == "half" else size // heads // 2
    cut = form.split(dim, size // heads).split(dim + 1, inner)
    perm = list(range(cut.ndim))
    perm[dim + 1], perm[dim + 2] = dim + 2, dim + 1
    return cut.transposed(perm).merged(dim, dim + 2)


def repeat(form: Form, dim: int, times: int, groups: int) -> Form:
    """Return a tensor with each group along a dim several times, one copy after the other."""
    dim = dim_of(form, dim)
    cut = grouped(form, dim, groups).expanded(dim + 1, times)
    return cut.merged(dim, dim + 2)


def first_copy(form: Form, dim: int, times: int, groups: int) -> Form:
    """Return the first of several copies of each group along a dim."""
    dim = dim_of(form, dim)
    size = form.shape[dim]
    _check_divides(size, groups * times, f"dim {dim}, of size {size},", "copies of all groups")
    cut = grouped(form, dim, groups)
    return cut.sliced(dim + 1, 0, size // groups // times).merged(dim, dim + 1)


def pad(form: Form, dim: int, size: int, value: float) -> Form:
    """Return a tensor with elements of one value at a dim's end."""
    dim = dim_of(form, dim)
    if size < form.shape[dim]:
        raise KeyMapError(
            f"dim {dim} has {form.shape[dim]} elements, which is more than {size}; padding does "
            "not remove any"
        )
    return form.padded(dim, 0, size - form.shape[dim], value)


def slice_(form: Form, dim: int, start: int, stop: int) -> Form:
    """Return some elements along a dim."""
    dim = dim_of(form, dim)
    if not 0 <= start <= stop <= form.shape[dim]:
        raise KeyMapError(
            f"{start} to {stop} is not a range within dim {dim}, of size {form.shape[dim]}"
        )
    return form.sliced(dim, start, stop)


def stack(forms: Sequence[Form], dim: int) -> Form:
    """Return tensors one after the other along a new dim."""
    first = forms[0]
    if not -first.ndim - 1 <= dim <= first.ndim:
        raise KeyMapError(f"a new dim is between {-first.ndim - 1} and {first.ndim}; found {dim}")
    dim %= first.ndim + 1
    for form in forms:
        if (form.shape, form.dtype) != (first.shape, first.dtype):
            raise KeyMapError(
                f"tensors that are stacked have one shape and dtype; found {first.shape} of "
                f"{first.dtype} and {form.shape} of {form.dtype}"
            )
    return joined([f.expanded(dim) for f in forms], dim)


def unstack(form: Form, dim: int) -> list[Form]:
    """Return the tensors along a dim."""
    return form.unbound(dim_of(form, dim))


def _check_divides(size: int, by: int, what: str, into: str) -> None:
    if size % by:
        raise KeyMapError(f"{what} does not divide into {by} {into}")
