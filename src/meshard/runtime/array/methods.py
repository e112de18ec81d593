"""Methods of arrays: those of NumPy's array, each one call of a door.

What an array tells of its memory to code that asks as it asks NumPy's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn, Self, final

import numpy as np

from meshard.algebra.arguments import array_text, check_order, shown
from meshard.algebra.attributes import advise_instead, no_attribute
from meshard.errors import ArgumentError
from meshard.runtime.array.at import At
from meshard.runtime.array.numpy_protocol import array_function, array_ufunc
from meshard.runtime.array.operators import ArrayOperators
from meshard.runtime.doors import bind, call, namespace
from meshard.runtime.types import ArrayLike, ArrayType, DeviceLike, DTypeLike, Typed

_SHORT = {
    "C": "c_contiguous",
    "CONTIGUOUS": "c_contiguous",
    "F": "f_contiguous",
    "FORTRAN": "f_contiguous",
    "O": "owndata",
    "W": "writeable",
    "A": "aligned",
    "X": "writebackifcopy",
    "B": "behaved",
    "CA": "carray",
    "FA": "farray",
}


@final
class Flags:
    """What NumPy's ``x.flags`` says, of an array that no one writes to.

    Args:
        ndim: how many dims the array has.
        size: how many elements.

    Attributes:
        c_contiguous: True; the last dim is the fastest, as in ``np.asarray(x)``.
        f_contiguous: whether that is the same as the first dim.
        owndata: True.
        writeable: False.
        aligned: True.
        writebackifcopy: False.

    >>> flags = Flags(2, 6)
    >>> flags.writeable, flags["C_CONTIGUOUS"], flags.f_contiguous
    (False, True, False)
    """

    __slots__ = (
        *("aligned", "c_contiguous", "contiguous", "f_contiguous", "fortran", "owndata"),
        *("writeable", "writebackifcopy"),
        *("behaved", "carray", "farray", "fnc", "forc"),
    )

    def __init__(self, ndim: int, size: int) -> None:
        put = object.__setattr__
        flat = ndim < 2 or size == 0
        for name in ("c_contiguous", "contiguous", "owndata", "aligned", "forc"):
            put(self, name, True)
        for name in ("f_contiguous", "fortran"):
            put(self, name, flat)
        for name in ("writeable", "writebackifcopy", "behaved", "carray", "farray", "fnc"):
            put(self, name, False)

    def __getitem__(self, key: str) -> bool:
        """Return a flag by its name, in capitals, long or short, as NumPy has them."""
        name = _SHORT.get(key, key.lower() if key.isupper() else "")
        if name not in Flags.__slots__:
            raise KeyError(f"flags: {key!r} is not one of NumPy's, such as 'WRITEABLE' or 'C'.")
        found: bool = getattr(self, name)
        return found

    def __getattr__(self, name: str) -> bool:
        raise no_attribute(type(self), name, {})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"flags.{name} cannot be set: arrays are immutable. x.at[index].set(value) returns "
            "another array, and np.array(x) makes one of NumPy's that can be written to."
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Flags):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    def __hash__(self) -> int:
        return hash(self.f_contiguous)

    def __repr__(self) -> str:
        long = ("c_contiguous", "f_contiguous", "owndata", "writeable", "aligned")
        return "\n".join(f"  {n.upper()} : {getattr(self, n)}" for n in (*long, "writebackifcopy"))


Axis = int | tuple[int, ...] | None
_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


def _no_out(out: Any, method: str) -> None:
    """Refuse an output array; None is accepted, since NumPy's functions pass it."""
    if out is not None:
        raise ArgumentError(
            f"{method}: out= is not supported, since arrays are immutable; use what it returns."
        )


def _no_kind(kind: Any, order: Any, method: str) -> None:
    """Refuse arguments that mean nothing here; None is accepted, since NumPy passes it."""
    if kind is not None or order is not None:
        raise ArgumentError(
            f"{method}: kind= and order= are not supported; stable= says whether equal "
            "elements keep their order."
        )


INSTEAD = {
    "append": "arrays are immutable; use meshard.numpy.append(x, values)",
    "backward": "use meshard.grad(function)(x); derivatives are those of functions",
    "block_host_until_ready": "use x.block_until_ready()",
    "byteswap": "arrays have the machine's byte order; use np.asarray(x).byteswap()",
    "cpu": "the data is on the host already; np.asarray(x) makes a NumPy array",
    "ctypes": "use np.asarray(x).ctypes",
    "detach": "use meshard.lax.stop_gradient(x)",
    "device_buffer": "use x.addressable_data(0)",
    "device_buffers": "use [s.data for s in x.addressable_shards]",
    "device_put": "use meshard.device_put(x, sharding) or x.to_device(sharding)",
    "dim": "use x.ndim",
    "fill": "arrays are immutable; use meshard.numpy.full_like(x, value)",
    "grad": "use meshard.grad(function)(x); derivatives are those of functions",
    "itemset": "arrays are immutable; use x.at[index].set(value)",
    "mesh": "use x.sharding.mesh",
    "numel": "use x.size",
    "numpy": "use np.asarray(x), or meshard.device_get(x) for a tree of arrays",
    "partitionspec": "use x.sharding.spec",
    "permute": "use x.transpose(...)",
    "put": "arrays are immutable; use x.at[index].set(values)",
    "reshard": "use meshard.reshard(x, sharding)",
    "resize": "arrays are immutable; use x.reshape(...) or meshard.numpy.pad(x, ...)",
    "setflags": "arrays are immutable",
    "shards": "use x.addressable_shards, or x.global_shards",
    "spec": "use x.sharding.spec",
    "strides": "arrays have no memory layout; use np.asarray(x).strides",
    "to": "use x.to_device(sharding), or x.astype(dtype)",
    "tofile": "use that of np.asarray(x)",
    "type": "use x.astype(dtype)",
    "unsqueeze": "use meshard.numpy.expand_dims(x, axis)",
    "value": "use x.item() or np.asarray(x)",
}
"""What to do instead of attributes that arrays of other libraries have."""
INSTEAD |= {
    name: f"it is a function, meshard.numpy.{name}(x)"
    for name in (
        *("abs", "argwhere", "ceil", "cos", "exp", "floor", "isfinite", "isinf", "isnan", "log"),
        *(
            "matmul",
            "median",
            "quantile",
            "roll",
            "sign",
            "sin",
            "split",
            "sqrt",
            "square",
            "stack",
        ),
        *("tan", "tanh", "tile", "unique", "where"),
    )
}
INSTEAD |= {
    name: f"it is a function, meshard.nn.{name}(x)"
    for name in ("gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax")
}


class ArrayMethods(Typed, ArrayOperators):
    """The methods that any array-like value of meshard has.

    They are those of NumPy's array, with the same arguments; each is the function of the same name
    in ``meshard.numpy``, which documents it.
    """

    __slots__ = ()

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._type.dtype.itemsize

    @property
    def aval(self) -> ArrayType:
        """All that is known about the value except its data."""
        return self._type

    def _held(self, what: str) -> Any:
        """Refuse to iterate where the elements are not available; ``what`` names the operation."""

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len: an array without dims has no length.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return map(self.__getitem__, range(self._rows("iteration")))

    def __reversed__(self) -> Iterator[Self]:
        return map(self.__getitem__, reversed(range(self._rows("reversed"))))

    def _rows(self, what: str) -> int:
        if not self.shape:
            raise ArgumentError("iteration: an array without dims cannot be iterated over.")
        self._held(what)
        return self.shape[0]

    def __contains__(self, value: Any) -> bool:
        if value is None or isinstance(value, (str, bytes)):
            raise ArgumentError(
                f"in: an array holds numbers only, so {value!r} cannot be one of its elements."
            )
        found = self == value
        return found if isinstance(found, bool) else bool(found.any())

    def __pow__(self, other: ArrayLike) -> Self:
        if type(other) is int and other == 2 and self._type.dtype.kind == "b":
            return bind("square", self)  # as NumPy does: its dtype is not that of other powers
        return super().__pow__(other)

    def copy(self, order: str | None = "C") -> Self:
        """Return an equal array with the same sharding."""
        check_order(order, "copy")
        return self  # a value inside a transformation is immutable, and is never deleted

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INSTEAD]

    @property
    def at(self) -> At[Self]:
        """The helper for updated copies: ``x.at[index].set(value)``, ``.add`` and so on."""
        return At(self)

    @property
    def T(self) -> Self:
        """The array with its dims in reverse order."""
        return call("transpose", self)

    @property
    def mT(self) -> Self:
        """The array with its last two dims exchanged."""
        return call("matrix_transpose", self)

    @property
    def real(self) -> Self:
        """The real part."""
        return call("real", self)

    @property
    def imag(self) -> Self:
        """The imaginary part."""
        return call("imag", self)

    def astype(self, dtype: DTypeLike, copy: bool = True, device: DeviceLike = None) -> Self:
        """Return the array converted to another dtype, and placed on a device or sharding."""
        return call("astype", self, dtype, copy=copy, device=device)

    def view(self, dtype: DTypeLike = None) -> Self:
        """Return the bits of the elements read as another dtype, as NumPy does along the last dim.

        Raises:
            DtypeError: if no number of elements of one dtype fills one of the other.
            ShapeError: if the last dim does not hold whole elements of a longer dtype.
        """
        return call("view", self, dtype)

    @property
    def flags(self) -> Flags:
        """What NumPy tells of memory: an array is seen as whole, in C order, and read-only."""
        return Flags(self.ndim, self.size)

    def to_device(self, device: DeviceLike, /, *, stream: Any = None) -> Self:
        """Return the array placed on a device or sharding, as `meshard.device_put` does.

        ``x.device`` of another array says where, not how it is split: an array that is on these
        devices stays as it is.
        """
        if stream is not None:
            raise ArgumentError(f"to_device: there are no streams; got stream={shown(stream)}.")
        return call("to_device", self, device)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Self:
        """Return the array in another shape, given as one tuple or as numbers."""
        wanted = shape[0] if len(shape) == 1 else shape
        return call("reshape", self, wanted, order=order, copy=copy)

    def transpose(self, *axes: Any) -> Self:
        """Return the array with its dims permuted; reversed by default."""
        alone = len(axes) == 1 and not hasattr(axes[0], "__index__")
        return call("transpose", self, (axes[0] if alone else axes) if axes else None)

    def swapaxes(self, axis1: int, axis2: int) -> Self:
        """Return the array with two dims exchanged."""
        return call("swapaxes", self, axis1, axis2)

    def squeeze(self, axis: Axis = None) -> Self:
        """Return the array without dims of size one."""
        return call("squeeze", self, axis)

    def ravel(self, order: str = "C") -> Self:
        """Return the array with one dim."""
        return call("ravel", self, order=order)

    def flatten(self, order: str = "C") -> Self:
        """Return a copy of the array with one dim."""
        return call("ravel", self, order=order).copy()

    def sum(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        keepdims: bool = False,
        **more: Any,
    ) -> Self:
        """Return the sum over dims."""
        _no_out(out, "sum")
        return call("sum", self, axis=axis, dtype=dtype, keepdims=keepdims, **more)

    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        keepdims: bool = False,
        **more: Any,
    ) -> Self:
        """Return the product over dims."""
        _no_out(out, "prod")
        return call("prod", self, axis=axis, dtype=dtype, keepdims=keepdims, **more)

    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        keepdims: bool = False,
        **more: Any,
    ) -> Self:
        """Return the mean over dims."""
        _no_out(out, "mean")
        return call("mean", self, axis=axis, dtype=dtype, keepdims=keepdims, **more)

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        **more: Any,
    ) -> Self:
        """Return the variance over dims."""
        _no_out(out, "var")
        return call("var", self, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims, **more)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
        **more: Any,
    ) -> Self:
        """Return the standard deviation over dims."""
        _no_out(out, "std")
        return call("std", self, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims, **more)

    def max(self, axis: Axis = None, out: None = None, keepdims: bool = False, **more: Any) -> Self:
        """Return the maximum over dims."""
        _no_out(out, "max")
        return call("max", self, axis=axis, keepdims=keepdims, **more)

    def min(self, axis: Axis = None, out: None = None, keepdims: bool = False, **more: Any) -> Self:
        """Return the minimum over dims."""
        _no_out(out, "min")
        return call("min", self, axis=axis, keepdims=keepdims, **more)

    def ptp(self, axis: Axis = None, out: None = None, keepdims: bool = False, **more: Any) -> Self:
        """Return the range from minimum to maximum over dims."""
        _no_out(out, "ptp")
        return call("ptp", self, axis=axis, keepdims=keepdims, **more)

    def all(self, axis: Axis = None, out: None = None, keepdims: bool = False, **more: Any) -> Self:
        """Return whether all elements are true over dims."""
        _no_out(out, "all")
        return call("all", self, axis=axis, keepdims=keepdims, **more)

    def any(self, axis: Axis = None, out: None = None, keepdims: bool = False, **more: Any) -> Self:
        """Return whether any element is true over dims."""
        _no_out(out, "any")
        return call("any", self, axis=axis, keepdims=keepdims, **more)

    def argmax(self, axis: int | None = None, out: None = None, keepdims: bool = False) -> Self:
        """Return the position of the first maximum."""
        _no_out(out, "argmax")
        return call("argmax", self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, out: None = None, keepdims: bool = False) -> Self:
        """Return the position of the first minimum."""
        _no_out(out, "argmin")
        return call("argmin", self, axis=axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Self:
        """Return the running sum."""
        _no_out(out, "cumsum")
        return call("cumsum", self, axis=axis, dtype=dtype)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike = None, out: None = None) -> Self:
        """Return the running product."""
        _no_out(out, "cumprod")
        return call("cumprod", self, axis=axis, dtype=dtype)

    def clip(
        self, min: ArrayLike | None = None, max: ArrayLike | None = None, out: None = None
    ) -> Self:
        """Return the array with its values limited to an interval."""
        _no_out(out, "clip")
        return call("clip", self, min, max)

    def round(self, decimals: int = 0, out: None = None) -> Self:
        """Return the array rounded to a number of decimals."""
        _no_out(out, "round")
        return call("round", self, decimals)

    def conj(self) -> Self:
        """Return the complex conjugate."""
        return call("conj", self)

    def conjugate(self) -> Self:
        """Return the complex conjugate."""
        return call("conj", self)

    def dot(self, other: ArrayLike, out: None = None, **more: Any) -> Self:
        """Return the dot product with another array."""
        _no_out(out, "dot")
        return call("dot", self, other, **more)

    def take(
        self,
        indices: ArrayLike | Sequence[int],
        axis: int | None = None,
        out: None = None,
        mode: str | None = None,
    ) -> Self:
        """Return the elements at positions along a dim."""
        _no_out(out, "take")
        return call("take", self, indices, axis=axis, mode=mode)

    def repeat(self, repeats: ArrayLike | Sequence[int], axis: int | None = None) -> Self:
        """Return the array with its elements repeated."""
        return call("repeat", self, repeats, axis=axis)

    @property
    def flat(self) -> Self:
        """The array with one dim, to iterate over and to index."""
        return call("ravel", self)

    def choose(self, choices: Sequence[ArrayLike], out: None = None, mode: str = "raise") -> Self:
        """Return for each position the element of the choice that its number selects."""
        _no_out(out, "choose")
        return call("choose", self, choices, mode=mode)

    def compress(
        self, condition: ArrayLike, axis: int | None = None, out: None = None, **more: Any
    ) -> Self:
        """Return the slices along a dim where a condition is true."""
        _no_out(out, "compress")
        return call("compress", condition, self, axis=axis, **more)

    def partition(
        self,
        kth: int | Sequence[int],
        axis: int = -1,
        kind: str = "introselect",
        order: None = None,
    ) -> Self:
        """Return a partitioned copy; unlike NumPy's method, which changes the array."""
        return call("partition", self, kth, axis=axis, kind=kind, order=order)

    def argpartition(
        self,
        kth: int | Sequence[int],
        axis: int = -1,
        kind: str = "introselect",
        order: None = None,
    ) -> Self:
        """Return the positions that would partition the array."""
        return call("argpartition", self, kth, axis=axis, kind=kind, order=order)

    def sort(
        self,
        axis: int = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool | None = True,
        descending: bool = False,
    ) -> Self:
        """Return a sorted copy; unlike NumPy's method, which sorts in place."""
        _no_kind(kind, order, "sort")
        steady = stable is not False
        return call("sort", self, axis=axis, descending=descending, stable=steady)

    def argsort(
        self,
        axis: int = -1,
        *,
        kind: None = None,
        order: None = None,
        stable: bool | None = True,
        descending: bool = False,
    ) -> Self:
        """Return the positions that would sort the array."""
        _no_kind(kind, order, "argsort")
        steady = stable is not False
        return call("argsort", self, axis=axis, descending=descending, stable=steady)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Self:
        """Return the diagonal of two dims."""
        return call("diagonal", self, offset, axis1, axis2)

    def trace(
        self,
        offset: int = 0,
        axis1: int = 0,
        axis2: int = 1,
        dtype: DTypeLike = None,
        out: None = None,
    ) -> Self:
        """Return the sum of the diagonal of two dims."""
        _no_out(out, "trace")
        more = {} if dtype is None else {"dtype": dtype}
        return call("trace", self, offset, axis1, axis2, **more)

    def nonzero(self) -> tuple[Self, ...]:
        """Return the positions of the elements that are not zero, one array per dim."""
        return call("nonzero", self)

    def searchsorted(
        self, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None
    ) -> Self:
        """Return where values would be inserted to keep the array sorted."""
        more = {} if sorter is None else {"sorter": sorter}
        return call("searchsorted", self, v, side=side, **more)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type[Any]],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        return array_function(func, types, args, kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return array_ufunc(ufunc, method, inputs, kwargs)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        if api_version is not None and api_version not in _API_VERSIONS:
            raise ArgumentError(
                f"__array_namespace__: the Array API version {shown(api_version)} is not "
                f"supported; the versions {', '.join(_API_VERSIONS)} are."
            )
        return namespace()


@array_text.register(ArrayMethods)
def _described(x: Any) -> str:
    return f"an array {x.aval.str_short()}"


advise_instead(ArrayMethods, INSTEAD)
