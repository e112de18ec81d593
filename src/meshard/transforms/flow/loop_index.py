"""`LoopIndex`: the integer that `fori_loop` hands to its body."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, final

import numpy as np

from meshard.runtime.moving.place import as_array


def _compared(name: str) -> Callable[[int, Any], Any]:
    plain = getattr(int, name)

    def compare(self: int, other: Any) -> Any:
        found = plain(self, other)
        return found if found is NotImplemented else np.bool_(found)

    return compare


def _calculated(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def calculate(self: int, *others: Any) -> Any:
        found = plain(self, *others)
        return LoopIndex(found) if type(found) is int else found

    return calculate


@final
class LoopIndex(int):
    """A Python int that also answers as an array without dims does.

    With arrays it is a Python number, which takes their dtype. A comparison gives NumPy's bool, so
    that ``~(i == 0)`` is what it says; of Python's own bools that would be a number.

    >>> i = LoopIndex(3)
    >>> i + 1, ~(i == 3), i.dtype
    (4, np.False_, dtype('int64'))
    """

    __slots__ = ()

    dtype = np.dtype(np.int64)
    shape: tuple[int, ...] = ()
    ndim = 0
    size = 1
    __hash__ = int.__hash__

    def astype(self, dtype: Any) -> Any:
        """Return the number as an array of a dtype."""
        return as_array(int(self)).astype(dtype)

    def item(self) -> int:
        """Return the number."""
        return int(self)

    __eq__ = _compared("__eq__")
    __ne__ = _compared("__ne__")
    __lt__ = _compared("__lt__")
    __le__ = _compared("__le__")
    __gt__ = _compared("__gt__")
    __ge__ = _compared("__ge__")
    __add__ = _calculated("__add__")
    __radd__ = _calculated("__radd__")
    __sub__ = _calculated("__sub__")
    __rsub__ = _calculated("__rsub__")
    __mul__ = _calculated("__mul__")
    __rmul__ = _calculated("__rmul__")
    __floordiv__ = _calculated("__floordiv__")
    __rfloordiv__ = _calculated("__rfloordiv__")
    __mod__ = _calculated("__mod__")
    __rmod__ = _calculated("__rmod__")
    __pow__ = _calculated("__pow__")
    __and__ = _calculated("__and__")
    __or__ = _calculated("__or__")
    __xor__ = _calculated("__xor__")
    __lshift__ = _calculated("__lshift__")
    __rshift__ = _calculated("__rshift__")
    __neg__ = _calculated("__neg__")
    __abs__ = _calculated("__abs__")
    __invert__ = _calculated("__invert__")

    def __repr__(self) -> str:
        return int.__repr__(self)

    def __index__(self) -> int:
        return operator.index(int(self))
