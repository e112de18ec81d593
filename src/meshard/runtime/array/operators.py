"""Operators of arrays: each hands one operation to `bind`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from meshard.errors import ArgumentError
from meshard.runtime.doors import bind, call
from meshard.runtime.types import ArrayLike


def _operand(other: object) -> bool:
    """Return whether an operator takes ``other``; an unknown type decides for itself.

    Raises:
        ArgumentError: if it is a plain container, whose own operators mean something else.
    """
    if isinstance(other, (ArrayOperators, np.ndarray, np.generic, int, float, complex)):
        return True
    if type(other) in _CONTAINERS:
        raise ArgumentError(
            f"An operator takes an array and a number, or two arrays, not an array and a "
            f"{type(other).__name__}. Make an array of it with meshard.numpy.asarray(...)."
        )
    return hasattr(type(other), "__array__") or hasattr(type(other), "__jax_array__")


_CONTAINERS = frozenset({list, tuple, dict, set})


class ArrayOperators:
    """The operators that any array-like value of meshard has."""

    __slots__ = ()
    __array_priority__ = 100

    def __hash__(self) -> int:
        raise ArgumentError(
            "meshard arrays are unhashable: two arrays that are equal element by element need not "
            "be the same key. As a key take x.item() of a scalar, x.tobytes(), or id(x)."
        )

    def __add__(self, other: ArrayLike) -> Self:
        return bind("add", self, other) if _operand(other) else NotImplemented

    def __radd__(self, other: ArrayLike) -> Self:
        return bind("add", other, self) if _operand(other) else NotImplemented

    def __sub__(self, other: ArrayLike) -> Self:
        return bind("subtract", self, other) if _operand(other) else NotImplemented

    def __rsub__(self, other: ArrayLike) -> Self:
        return bind("subtract", other, self) if _operand(other) else NotImplemented

    def __mul__(self, other: ArrayLike) -> Self:
        return bind("multiply", self, other) if _operand(other) else NotImplemented

    def __rmul__(self, other: ArrayLike) -> Self:
        return bind("multiply", other, self) if _operand(other) else NotImplemented

    def __truediv__(self, other: ArrayLike) -> Self:
        return bind("divide", self, other) if _operand(other) else NotImplemented

    def __rtruediv__(self, other: ArrayLike) -> Self:
        return bind("divide", other, self) if _operand(other) else NotImplemented

    def __floordiv__(self, other: ArrayLike) -> Self:
        return bind("floor_divide", self, other) if _operand(other) else NotImplemented

    def __rfloordiv__(self, other: ArrayLike) -> Self:
        return bind("floor_divide", other, self) if _operand(other) else NotImplemented

    def __mod__(self, other: ArrayLike) -> Self:
        return bind("remainder", self, other) if _operand(other) else NotImplemented

    def __rmod__(self, other: ArrayLike) -> Self:
        return bind("remainder", other, self) if _operand(other) else NotImplemented

    def __divmod__(self, other: ArrayLike) -> tuple[Self, Self]:
        return call("divmod", self, other) if _operand(other) else NotImplemented

    def __rdivmod__(self, other: ArrayLike) -> tuple[Self, Self]:
        return call("divmod", other, self) if _operand(other) else NotImplemented

    def __pow__(self, other: ArrayLike) -> Self:
        return bind("power", self, other) if _operand(other) else NotImplemented

    def __rpow__(self, other: ArrayLike) -> Self:
        return bind("power", other, self) if _operand(other) else NotImplemented

    def __matmul__(self, other: ArrayLike) -> Self:
        return call("matmul", self, other) if _operand(other) else NotImplemented

    def __rmatmul__(self, other: ArrayLike) -> Self:
        return call("matmul", other, self) if _operand(other) else NotImplemented

    def __and__(self, other: ArrayLike) -> Self:
        return bind("bitwise_and", self, other) if _operand(other) else NotImplemented

    def __rand__(self, other: ArrayLike) -> Self:
        return bind("bitwise_and", other, self) if _operand(other) else NotImplemented

    def __or__(self, other: ArrayLike) -> Self:
        return bind("bitwise_or", self, other) if _operand(other) else NotImplemented

    def __ror__(self, other: ArrayLike) -> Self:
        return bind("bitwise_or", other, self) if _operand(other) else NotImplemented

    def __xor__(self, other: ArrayLike) -> Self:
        return bind("bitwise_xor", self, other) if _operand(other) else NotImplemented

    def __rxor__(self, other: ArrayLike) -> Self:
        return bind("bitwise_xor", other, self) if _operand(other) else NotImplemented

    def __lshift__(self, other: ArrayLike) -> Self:
        return bind("left_shift", self, other) if _operand(other) else NotImplemented

    def __rlshift__(self, other: ArrayLike) -> Self:
        return bind("left_shift", other, self) if _operand(other) else NotImplemented

    def __rshift__(self, other: ArrayLike) -> Self:
        return bind("right_shift", self, other) if _operand(other) else NotImplemented

    def __rrshift__(self, other: ArrayLike) -> Self:
        return bind("right_shift", other, self) if _operand(other) else NotImplemented

    def __neg__(self) -> Self:
        return bind("negative", self)

    def __pos__(self) -> Self:
        return bind("positive", self)

    def __abs__(self) -> Self:
        return bind("absolute", self)

    def __invert__(self) -> Self:
        return bind("invert", self)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return bind("equal", self, other) if _operand(other) else NotImplemented

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return bind("not_equal", self, other) if _operand(other) else NotImplemented

    def __lt__(self, other: ArrayLike) -> Self:
        return bind("less", self, other) if _operand(other) else NotImplemented

    def __le__(self, other: ArrayLike) -> Self:
        return bind("less_equal", self, other) if _operand(other) else NotImplemented

    def __gt__(self, other: ArrayLike) -> Self:
        return bind("greater", self, other) if _operand(other) else NotImplemented

    def __ge__(self, other: ArrayLike) -> Self:
        return bind("greater_equal", self, other) if _operand(other) else NotImplemented

    def __getitem__(self, index: Any) -> Self:
        return call("getitem", self, index)

    def __round__(self, digits: int | None = None) -> Self:
        found = call("round", self, 0 if digits is None else digits)
        # As in Python, the result without digits is an integer.
        return found if digits is not None or found.dtype.kind in "biu" else found.astype(np.int64)
