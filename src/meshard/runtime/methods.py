"""What `Array` shares with NumPy's array: operators and methods, each one call of a door."""

from __future__ import annotations

from typing import Any

from .primitive import bind, call

Axis = int | tuple[int, ...] | None

__all__ = ["ArrayMethods"]


def _operand(other: object) -> bool:
    """Return whether an operator may take ``other``; containers and strings it leaves to them."""
    return not isinstance(other, (str, bytes, list, tuple, dict, set)) and other is not None


class ArrayMethods:
    """Operators and methods that any array-like value of meshard has.

    The methods are those of NumPy's array, with the same arguments; each is the function of the
    same name in ``meshard.numpy``, which documents it.
    """

    __slots__ = ()
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Any:
        return bind("add", self, other) if _operand(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return bind("add", other, self) if _operand(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return bind("subtract", self, other) if _operand(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return bind("subtract", other, self) if _operand(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return bind("multiply", self, other) if _operand(other) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        return bind("multiply", other, self) if _operand(other) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        return bind("divide", self, other) if _operand(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return bind("divide", other, self) if _operand(other) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        return bind("floor_divide", self, other) if _operand(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return bind("floor_divide", other, self) if _operand(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return bind("remainder", self, other) if _operand(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return bind("remainder", other, self) if _operand(other) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return call("divmod", self, other) if _operand(other) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return call("divmod", other, self) if _operand(other) else NotImplemented

    def __pow__(self, other: Any) -> Any:
        return bind("power", self, other) if _operand(other) else NotImplemented

    def __rpow__(self, other: Any) -> Any:
        return bind("power", other, self) if _operand(other) else NotImplemented

    def __matmul__(self, other: Any) -> Any:
        return call("matmul", self, other) if _operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return call("matmul", other, self) if _operand(other) else NotImplemented

    def __and__(self, other: Any) -> Any:
        return bind("bitwise_and", self, other) if _operand(other) else NotImplemented

    def __rand__(self, other: Any) -> Any:
        return bind("bitwise_and", other, self) if _operand(other) else NotImplemented

    def __or__(self, other: Any) -> Any:
        return bind("bitwise_or", self, other) if _operand(other) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return bind("bitwise_or", other, self) if _operand(other) else NotImplemented

    def __xor__(self, other: Any) -> Any:
        return bind("bitwise_xor", self, other) if _operand(other) else NotImplemented

    def __rxor__(self, other: Any) -> Any:
        return bind("bitwise_xor", other, self) if _operand(other) else NotImplemented

    def __lshift__(self, other: Any) -> Any:
        return bind("left_shift", self, other) if _operand(other) else NotImplemented

    def __rlshift__(self, other: Any) -> Any:
        return bind("left_shift", other, self) if _operand(other) else NotImplemented

    def __rshift__(self, other: Any) -> Any:
        return bind("right_shift", self, other) if _operand(other) else NotImplemented

    def __rrshift__(self, other: Any) -> Any:
        return bind("right_shift", other, self) if _operand(other) else NotImplemented

    def __neg__(self) -> Any:
        return bind("negative", self)

    def __pos__(self) -> Any:
        return bind("positive", self)

    def __abs__(self) -> Any:
        return bind("absolute", self)

    def __invert__(self) -> Any:
        return bind("invert", self)

    def __eq__(self, other: object) -> Any:
        return bind("equal", self, other) if _operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return bind("not_equal", self, other) if _operand(other) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return bind("less", self, other) if _operand(other) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return bind("less_equal", self, other) if _operand(other) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return bind("greater", self, other) if _operand(other) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return bind("greater_equal", self, other) if _operand(other) else NotImplemented

    def __getitem__(self, index: Any) -> Any:
        return call("getitem", self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "meshard arrays are immutable and do not support item assignment. Instead of "
            "x[index] = y, write x = x.at[index].set(y), or another method of x.at[index]."
        )

    def __round__(self, digits: int = 0) -> Any:
        return call("round", self, digits)

    @property
    def at(self) -> Any:
        """The helper for updated copies: ``x.at[index].set(value)``, ``.add`` and so on."""
        return call("at", self)

    @property
    def T(self) -> Any:
        """The array with its dims in reverse order."""
        return call("transpose", self)

    @property
    def mT(self) -> Any:
        """The array with its last two dims exchanged."""
        return call("matrix_transpose", self)

    @property
    def real(self) -> Any:
        """The real part."""
        return call("real", self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return call("imag", self)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return the array converted to another dtype."""
        return call("astype", self, dtype, copy=copy)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return the array in another shape, given as one tuple or as numbers."""
        wanted = shape[0] if len(shape) == 1 else shape
        return call("reshape", self, wanted, order=order)

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its dims permuted; reversed by default."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return call("transpose", self, order or None)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """Return the array with two dims exchanged."""
        return call("swapaxes", self, axis1, axis2)

    def squeeze(self, axis: Axis = None) -> Any:
        """Return the array without dims of size one."""
        return call("squeeze", self, axis)

    def ravel(self, order: str = "C") -> Any:
        """Return the array with one dim."""
        return call("ravel", self, order=order)

    def flatten(self, order: str = "C") -> Any:
        """Return the array with one dim."""
        return call("ravel", self, order=order)

    def sum(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
        """Return the sum over dims."""
        return call("sum", self, axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
        """Return the product over dims."""
        return call("prod", self, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
        """Return the mean over dims."""
        return call("mean", self, axis=axis, dtype=dtype, keepdims=keepdims)

    def var(
        self, axis: Axis = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False
    ) -> Any:
        """Return the variance over dims."""
        return call("var", self, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims)

    def std(
        self, axis: Axis = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False
    ) -> Any:
        """Return the standard deviation over dims."""
        return call("std", self, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Return the maximum over dims."""
        return call("max", self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Return the minimum over dims."""
        return call("min", self, axis=axis, keepdims=keepdims)

    def ptp(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Return the range from minimum to maximum over dims."""
        return call("ptp", self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Return whether all elements are true over dims."""
        return call("all", self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Any:
        """Return whether any element is true over dims."""
        return call("any", self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Return the position of the first maximum."""
        return call("argmax", self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Return the position of the first minimum."""
        return call("argmin", self, axis=axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Any:
        """Return the running sum."""
        return call("cumsum", self, axis=axis, dtype=dtype)

    def cumprod(self, axis: int | None = None, dtype: Any = None) -> Any:
        """Return the running product."""
        return call("cumprod", self, axis=axis, dtype=dtype)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """Return the array with its values limited to an interval."""
        return call("clip", self, min, max)

    def round(self, decimals: int = 0) -> Any:
        """Return the array rounded to a number of decimals."""
        return call("round", self, decimals)

    def conj(self) -> Any:
        """Return the complex conjugate."""
        return call("conj", self)

    def conjugate(self) -> Any:
        """Return the complex conjugate."""
        return call("conj", self)

    def dot(self, other: Any) -> Any:
        """Return the dot product with another array."""
        return call("dot", self, other)

    def take(self, indices: Any, axis: int | None = None, mode: str | None = None) -> Any:
        """Return the elements at positions along a dim."""
        return call("take", self, indices, axis=axis, mode=mode)

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:
        """Return the array with its elements repeated."""
        return call("repeat", self, repeats, axis=axis)

    def sort(self, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return a sorted copy; unlike NumPy's method, which sorts in place."""
        return call("sort", self, axis=axis, descending=descending, stable=stable)

    def argsort(self, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
        """Return the positions that would sort the array."""
        return call("argsort", self, axis=axis, descending=descending, stable=stable)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """Return the diagonal of two dims."""
        return call("diagonal", self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """Return the sum of the diagonal of two dims."""
        return call("trace", self, offset, axis1, axis2)

    def nonzero(self) -> Any:
        """Return the positions of the elements that are not zero, one array per dim."""
        return call("nonzero", self)

    def searchsorted(self, values: Any, side: str = "left") -> Any:
        """Return where values would be inserted to keep the array sorted."""
        return call("searchsorted", self, values, side=side)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return call("array_namespace", api_version)
