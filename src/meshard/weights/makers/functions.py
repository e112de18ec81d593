"""NumPy's functions that move elements, on abstract arrays.

In: the arguments of a call of NumPy's. Out: abstract arrays; `abstract.FUNCTIONS` filled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from meshard.weights.makers.abstract import (
    FUNCTIONS,
    AbstractArray,
    as_form,
    dim_of,
    moved,
    refuse,
    taken,
)
from meshard.weights.maps.form import joined

_F = TypeVar("_F", bound=Callable[..., object])


def _stands_for(*functions: Callable[..., object]) -> Callable[[_F], _F]:
    def noted(ours: _F) -> _F:
        FUNCTIONS.update(dict.fromkeys(functions, ours))
        return ours

    return noted


def _array(value: object) -> AbstractArray:
    return value if isinstance(value, AbstractArray) else AbstractArray(as_form(value))


@_stands_for(np.shape)
def _shape(a: AbstractArray) -> tuple[int, ...]:
    return a.shape


@_stands_for(np.ndim)
def _ndim(a: AbstractArray) -> int:
    return a.ndim


@_stands_for(np.size)
def _size(a: AbstractArray, axis: int | None = None) -> int:
    return a.size if axis is None else a.shape[axis]


@_stands_for(np.zeros_like, np.empty_like)
def _zeros_like(a: AbstractArray, dtype: Any = None, **_: object) -> np.ndarray[Any, Any]:
    return np.zeros(a.shape, a.dtype if dtype is None else dtype)


@_stands_for(np.ones_like)
def _ones_like(a: AbstractArray, dtype: Any = None, **_: object) -> np.ndarray[Any, Any]:
    return np.ones(a.shape, a.dtype if dtype is None else dtype)


@_stands_for(np.copy)
def _copy(a: AbstractArray, order: str = "K", subok: bool = False) -> AbstractArray:
    return a.copy()


@_stands_for(np.reshape)
def _reshape(a: AbstractArray, shape: Any, order: str = "C", **_: object) -> AbstractArray:
    return a.reshape(shape, order=order)


@_stands_for(np.ravel)
def _ravel(a: AbstractArray, order: str = "C") -> AbstractArray:
    return a.ravel(order)


@_stands_for(np.transpose)
def _transpose(a: AbstractArray, axes: Sequence[int] | None = None) -> AbstractArray:
    return a.transpose(axes) if axes is not None else a.transpose()


@_stands_for(np.swapaxes)
def _swapaxes(a: AbstractArray, axis1: int, axis2: int) -> AbstractArray:
    return a.swapaxes(axis1, axis2)


@_stands_for(np.moveaxis)
def _moveaxis(a: AbstractArray, source: Any, destination: Any) -> AbstractArray:
    old = [dim_of(a, d) for d in _listed(source)]
    new = [dim_of(a, d) for d in _listed(destination)]
    order = [d for d in range(a.ndim) if d not in old]
    for place, dim in sorted(zip(new, old, strict=True)):
        order.insert(place, dim)
    return a.transpose(order)


@_stands_for(np.expand_dims)
def _expand_dims(a: AbstractArray, axis: Any) -> AbstractArray:
    dims = _listed(axis)
    form = a.form
    for d in sorted([d % (a.ndim + len(dims)) for d in dims]):
        form = form.expanded(d)
    return AbstractArray(form)


@_stands_for(np.squeeze)
def _squeeze(a: AbstractArray, axis: Any = None) -> AbstractArray:
    return a.squeeze(axis)


@_stands_for(np.concatenate)
def _concatenate(arrays: Sequence[Any], axis: int | None = 0, **kept: Any) -> AbstractArray:
    parts = [_array(a) for a in arrays]
    if axis is None:
        parts, axis = [p.ravel() for p in parts], 0
    first = parts[0]
    dim = dim_of(first, axis)
    rest = [(p.shape[:dim], p.shape[dim + 1 :]) for p in parts]
    if any(r != rest[0] for r in rest):
        refuse(f"arrays of shapes {[p.shape for p in parts]} cannot be joined along dim {dim}")
    dtype = kept.get("dtype")
    dtype = np.result_type(*[p.dtype for p in parts]) if dtype is None else np.dtype(dtype)
    return moved(joined, [p.astype(dtype).form for p in parts], dim)


@_stands_for(np.stack)
def _stack(arrays: Sequence[Any], axis: int = 0, **kept: Any) -> AbstractArray:
    parts = [_array(a) for a in arrays]
    axis %= parts[0].ndim + 1
    return _concatenate([_expand_dims(p, axis) for p in parts], axis, **kept)


@_stands_for(np.vstack)
def _vstack(tup: Sequence[Any], **kept: Any) -> AbstractArray:
    rows = [_array(a) for a in tup]
    return _concatenate([_expand_dims(a, 0) if a.ndim == 1 else a for a in rows], 0, **kept)


@_stands_for(np.hstack)
def _hstack(tup: Sequence[Any], **kept: Any) -> AbstractArray:
    arrays = [_array(a) for a in tup]
    return _concatenate(arrays, 0 if arrays[0].ndim == 1 else 1, **kept)


@_stands_for(np.array_split)
def _array_split(
    ary: AbstractArray, indices_or_sections: Any, axis: int = 0
) -> list[AbstractArray]:
    dim = dim_of(ary, axis)
    size = ary.shape[dim]
    if isinstance(indices_or_sections, (int, np.integer)):
        count = int(indices_or_sections)
        ends = [k * (size // count) + min(k, size % count) for k in range(count + 1)]
    else:
        ends = [0, *[range(size)[: int(k)].stop for k in indices_or_sections], size]
    return [AbstractArray(ary.form.sliced(dim, a, max(a, b))) for a, b in itertools.pairwise(ends)]


@_stands_for(np.split)
def _split(ary: AbstractArray, indices_or_sections: Any, axis: int = 0) -> list[AbstractArray]:
    if isinstance(indices_or_sections, (int, np.integer)):
        size = ary.shape[dim_of(ary, axis)]
        if size % indices_or_sections:
            refuse(f"{size} elements do not divide into {indices_or_sections} equal parts")
    return _array_split(ary, indices_or_sections, axis)


@_stands_for(np.vsplit)
def _vsplit(ary: AbstractArray, indices_or_sections: Any) -> list[AbstractArray]:
    return _split(ary, indices_or_sections, 0)


@_stands_for(np.hsplit)
def _hsplit(ary: AbstractArray, indices_or_sections: Any) -> list[AbstractArray]:
    return _split(ary, indices_or_sections, 0 if ary.ndim == 1 else 1)


@_stands_for(np.repeat)
def _repeat(a: AbstractArray, repeats: Any, axis: int | None = None) -> AbstractArray:
    if not isinstance(repeats, (int, np.integer)):
        refuse("np.repeat with a count for each element is not known; give one count")
    return a.repeat(int(repeats), axis)


@_stands_for(np.tile)
def _tile(A: AbstractArray, reps: Any) -> AbstractArray:
    counts = [int(n) for n in _listed(reps)]
    form = A.form
    for _ in range(len(counts) - A.ndim):
        form = form.expanded(0)
    counts = [1] * (form.ndim - len(counts)) + counts
    for dim, n in enumerate(counts):
        if n != 1:
            form = form.expanded(dim, n).merged(dim, dim + 1)
    return AbstractArray(form)


@_stands_for(np.broadcast_to)
def _broadcast_to(array: AbstractArray, shape: Any, subok: bool = False) -> AbstractArray:
    sizes = [int(n) for n in _listed(shape)]
    form = array.form
    for _ in range(len(sizes) - array.ndim):
        form = form.expanded(0)
    if len(sizes) < array.ndim or any(
        a not in (1, b) for a, b in zip(form.shape, sizes, strict=True)
    ):
        refuse(f"an array of shape {array.shape} cannot be broadcast to {tuple(sizes)}")
    for dim, n in enumerate(sizes):
        if form.shape[dim] != n:
            form = form.squeezed(dim).expanded(dim, n)
    return AbstractArray(form)


@_stands_for(np.pad)
def _pad(array: AbstractArray, pad_width: Any, mode: str = "constant", **how: Any) -> AbstractArray:
    if mode != "constant":
        refuse(f"np.pad in the mode {mode!r} is not known; padding of one value is")
    values = np.unique(np.asarray(how.get("constant_values", 0)))
    if len(values) != 1:
        refuse("np.pad with several values is not known; pad one after the other")
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    form = array.form
    for dim, (before, after) in enumerate(widths):
        form = form.padded(dim, before, after, float(values[0]))
    return AbstractArray(form)


@_stands_for(np.roll)
def _roll(a: AbstractArray, shift: int, axis: int | None = None) -> AbstractArray:
    if axis is None:
        return _roll(a.ravel(), shift, 0).reshape(a.shape)
    dim = dim_of(a, axis)
    size = a.shape[dim]
    at = -shift % size if size else 0
    return AbstractArray(taken(a.form, dim, [*range(at, size), *range(at)]))


@_stands_for(np.flip)
def _flip(m: AbstractArray, axis: Any = None) -> AbstractArray:
    form = m.form
    for d in range(m.ndim) if axis is None else _listed(axis):
        dim = dim_of(m, d)
        form = taken(form, dim, range(form.shape[dim])[::-1])
    return AbstractArray(form)


@_stands_for(np.take)
def _take(a: AbstractArray, indices: Any, axis: int | None = None, **_: object) -> AbstractArray:
    array = a.ravel() if axis is None else a
    dim = dim_of(array, axis or 0)
    return array[(slice(None),) * dim + (indices,)]


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, (int, np.integer)) else list(value)
