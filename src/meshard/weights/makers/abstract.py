"""Abstract arrays: arrays without values, which know where each element comes from.

In: what a loader written for NumPy does to its arrays. Out: their forms; whatever is not pure
movement is refused with the loader's line.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshard.algebra.arguments import shape_of
from meshard.algebra.boundary import bounded
from meshard.errors import KeyMapError, ShapeError
from meshard.runtime.callers import is_ours, place_text
from meshard.weights.maps.form import Form, check_count, joined, source_form

FUNCTIONS: dict[Callable[..., object], Callable[..., object]] = {}
"""What stands for NumPy's functions where an argument is an abstract array."""


def user_line() -> str:
    """Return file and line of the innermost running frame that is neither ours nor NumPy's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not is_ours(module) and not module.startswith("numpy."):
            break
        frame = frame.f_back
    return place_text(frame.f_code.co_filename, frame.f_lineno)


def refuse(why: str) -> NoReturn:
    """Refuse what a loader does, and name its line."""
    raise KeyMapError(f"record: {why}, at {user_line()}.")


def _impure(what: str) -> NoReturn:
    refuse(f"the loader is not pure movement: {what} depends on values, which a map does not have")


@bounded
@final
class AbstractArray(NDArrayOperatorsMixin):
    """An array without values."""

    def __init__(self, form: Form) -> None:
        self.form = form

    # --- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.form.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        return self.form.dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self.form.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.form.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.form.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.itemsize

    @property
    def T(self) -> AbstractArray:
        """The dims in the opposite order."""
        return self.transpose()

    @property
    def mT(self) -> AbstractArray:
        """The last two dims exchanged."""
        return self.swapaxes(-1, -2)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of an array without dims")
        return self.shape[0]

    def __iter__(self) -> Iterator[AbstractArray]:
        if not self.ndim:
            raise TypeError("iteration over an array without dims")
        return iter([AbstractArray(f) for f in self.form.unbound(0)])

    def __repr__(self) -> str:
        return f"AbstractArray(shape={self.shape}, dtype={self.dtype})"

    # --- what moves elements

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> AbstractArray:
        """Return the elements, in C order, in another shape."""
        if order != "C":
            refuse(f"reshape in the order {order!r} is not known; transpose before and after")
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        try:
            wanted = shape_of(sizes, "reshape", inferred=True)
        except ShapeError as error:
            refuse(str(error).rstrip("."))
        return moved(self.form.reshaped, list(wanted))

    def transpose(self, *dims: Any) -> AbstractArray:
        """Return the dims in another order."""
        perm = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
        order = [dim_of(self, d) for d in perm or reversed(range(self.ndim))]
        return moved(self.form.transposed, order)

    def swapaxes(self, a: int, b: int) -> AbstractArray:
        """Return two dims exchanged."""
        order = list(range(self.ndim))
        a, b = dim_of(self, a), dim_of(self, b)
        order[a], order[b] = b, a
        return moved(self.form.transposed, order)

    def astype(self, dtype: Any, *_: object, **__: object) -> AbstractArray:
        """Return the elements in another dtype."""
        return moved(self.form.cast, np.dtype(dtype))

    def ravel(self, order: str = "C") -> AbstractArray:
        """Return one dim."""
        return self.reshape(-1, order=order)

    flatten = ravel

    def squeeze(self, axis: int | Sequence[int] | None = None) -> AbstractArray:
        """Return the dims of more than one element."""
        if axis is None:
            dims = [d for d, n in enumerate(self.shape) if n == 1]
        else:
            dims = [dim_of(self, d) for d in ([axis] if isinstance(axis, int) else axis)]
        form = self.form
        for d in sorted(dims, reverse=True):
            if form.shape[d] != 1:
                refuse(f"dim {d} of an array of shape {self.shape} cannot be squeezed")
            form = form.squeezed(d)
        return AbstractArray(form)

    def repeat(self, repeats: int, axis: int | None = None) -> AbstractArray:
        """Return each element several times along a dim."""
        array = self.ravel() if axis is None else self
        dim = dim_of(array, axis or 0)
        form = array.form.expanded(dim + 1, int(repeats))
        return moved(form.merged, dim, dim + 1)

    def copy(self, order: str = "C") -> AbstractArray:
        """Return an array of the same elements."""
        return AbstractArray(self.form)

    def __getitem__(self, index: Any) -> AbstractArray:
        form, dim = self.form, 0
        for entry in _entries(index, self.shape):
            if entry is None:
                form = form.expanded(dim)
                dim += 1
            elif isinstance(entry, (int, np.integer)):
                form = taken(form, dim, [int(entry)]).squeezed(dim)
            else:
                form = taken(form, dim, _indices(entry, form.shape[dim]))
                dim += 1
        return AbstractArray(form)

    # --- what is refused

    def __setitem__(self, index: object, value: object) -> NoReturn:
        refuse("arrays of a loader cannot be written to; join parts by np.concatenate or np.stack")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        refuse(
            "an array of a loader has no values, so that it cannot become a NumPy array, nor be "
            "written into one; join parts by np.concatenate or np.stack"
        )

    def __bool__(self) -> NoReturn:
        _impure("a condition on an array")

    def __float__(self) -> NoReturn:
        _impure("float() of an array")

    def __int__(self) -> NoReturn:
        _impure("int() of an array")

    def __complex__(self) -> NoReturn:
        _impure("complex() of an array")

    def __index__(self) -> NoReturn:
        _impure("an index that is an array")

    def __contains__(self, value: object) -> NoReturn:
        _impure("`in` an array")

    def __array_ufunc__(self, ufunc: np.ufunc, *_: object, **__: object) -> NoReturn:
        refuse(
            f"the loader is not pure movement: np.{ufunc.__name__} makes new values, and a map "
            "only moves them"
        )

    def __array_function__(
        self,
        function: Callable[..., object],
        types: object,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> object:
        ours = FUNCTIONS.get(function)
        if ours is None:
            name = getattr(function, "__name__", repr(function))
            refuse(f"the loader is not pure movement: np.{name} is not known to move elements")
        return ours(*arguments, **keywords)

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(np.ndarray, name):
            refuse(f"the loader is not pure movement: {name} is not known to move elements")
        raise AttributeError(f"AbstractArray has no attribute {name!r}")


def moved(move: Callable[..., Form], *arguments: Any) -> AbstractArray:
    """Return what a move makes; name the loader's line if it is refused."""
    try:
        return AbstractArray(move(*arguments))
    except KeyMapError as error:
        refuse(str(error))


def dim_of(array: AbstractArray, dim: int) -> int:
    """Return a dim, counted from the front."""
    if not -array.ndim <= dim < array.ndim:
        refuse(f"dim {dim} of an array of shape {array.shape} does not exist")
    return int(dim) % array.ndim


def _entries(index: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return what an index says of each dim, and where it adds one."""
    entries = list(index) if isinstance(index, tuple) else [index]
    used = sum([e is not None and e is not Ellipsis for e in entries])
    if used > len(shape):
        refuse(f"there are {used} indices for an array of shape {shape}")
    if not any(e is Ellipsis for e in entries):
        entries.append(Ellipsis)
    at = next(k for k, e in enumerate(entries) if e is Ellipsis)
    entries[at : at + 1] = [slice(None)] * (len(shape) - used)
    _check_advanced(entries)
    return entries


def _check_advanced(entries: list[Any]) -> None:
    """Refuse what NumPy would index all at once: arrays, and integers beside them."""
    advanced = [e for e in entries if e is not None and not isinstance(e, slice)]
    plain = all(isinstance(e, (int, np.integer)) and not isinstance(e, bool) for e in advanced)
    single = len(advanced) == 1 and not isinstance(advanced[0], bool)
    if not plain and not single:
        refuse("an array of indices beside an integer or another one is not known; index in turn")


def _indices(entry: Any, size: int) -> range | list[int]:
    """Return the positions that an entry of an index takes."""
    if isinstance(entry, AbstractArray):
        _impure("an index that is an array")
    told = f"an index of type {type(entry).__name__} is not known; use slices and integers"
    try:
        if isinstance(entry, slice):
            return range(size)[entry]
        array = np.asarray(entry)
    except (TypeError, ValueError):
        refuse(told)
    if array.dtype == np.bool_ and array.shape != (size,):
        refuse(f"a mask of shape {array.shape} does not fit a dim of size {size}")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biu"):
        refuse(told)
    if array.dtype == np.bool_:
        array = np.flatnonzero(array)
    listed: list[int] = array.tolist()
    return listed


def taken(form: Form, dim: int, positions: Sequence[int]) -> Form:
    """Return the elements at some positions along a dim, in that order."""
    size = form.shape[dim]
    if any(not -size <= p < size for p in positions):
        refuse(f"an index is out of range for dim {dim} of size {size}")
    listed = [p % size for p in positions]
    parts = []
    at = 0
    while at < len(listed):
        step = listed[at + 1] - listed[at] if at + 1 < len(listed) else 1
        end = at + 1
        while step > 0 and end < len(listed) and listed[end] - listed[end - 1] == step:
            end += 1
        parts.append((listed[at], listed[end - 1] + 1, max(step, 1)))
        at = end
    try:
        check_count(len(parts))
    except KeyMapError as error:
        refuse(str(error))
    if len(parts) == 1:
        return form.sliced(dim, *parts[0])
    if not parts:
        return form.sliced(dim, 0, 0)
    return joined([form.sliced(dim, *p) for p in parts], dim)


def as_form(value: object) -> Form:
    """Return the form of an abstract array, or of a NumPy array of one value."""
    if isinstance(value, AbstractArray):
        return value.form
    array = np.asarray(value)
    if array.dtype.kind not in "biufV":
        refuse(f"an array of dtype {array.dtype} cannot be part of a tensor")
    if not array.size:
        return source_form("", array.shape, array.dtype)
    first = array.reshape(-1)[0]
    if not (array == first).all():
        refuse(
            "an array of several values that the loader makes itself cannot be part of a map; only "
            "one value, such as np.zeros, can"
        )
    vector = source_form("", (0,), array.dtype).padded(0, 0, array.size, float(first))
    return vector.reshaped(array.shape)
