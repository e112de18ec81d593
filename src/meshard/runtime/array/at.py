"""``x.at[index]``: places in arrays, for updated copies.

In: an array and an index. Out: an object whose methods return changed copies; each is one call of a
door.

Writing into arrays, for code of other libraries that must: ``x[i] = v`` and ``x += y``.

In: an array, and what it is to hold. Out: the same object with other blocks. The old blocks stay
what they are, for whatever else refers to them. It is refused unless the caller has asked for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, final

import numpy as np

from meshard.algebra.boundary import context
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.runtime.array.operators import ArrayOperators
from meshard.runtime.doors import call, innermost
from meshard.runtime.settings import WRITEABLE
from meshard.runtime.types import ArrayLike

A = TypeVar("A")


@final
class At(Generic[A]):
    """What ``x.at`` is: ``x.at[index]`` names a place, whose methods return changed copies."""

    def __init__(self, x: A) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Place[A]:
        return Place(self._x, index)

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise ArgumentError(
            "Arrays are immutable: instead of x.at[index] = y write x = x.at[index].set(y)."
        )

    def __repr__(self) -> str:
        return f"At({self._x!r})"


@final
class Place(Generic[A]):
    """A place in an array; each method returns a copy that differs there, laid out alike.

    Values broadcast to the place and take the array's dtype; only ``divide`` makes floats of whole
    numbers. Where an index array names an element twice, ``set`` takes the last value and the
    others apply all.

    ``mode=`` says what happens to positions outside the array: by default they are refused, or
    where they are traced passed over; ``"drop"`` or ``"fill"`` passes over all of them, ``"clip"``
    moves them inside.

    Raises:
        IndexingError: from every method, if the index is not one of the array.
        ShapeError: if the values do not broadcast to the place.
        DtypeError: if the array's dtype cannot hold the result.
    """

    def __init__(self, x: A, index: Any) -> None:
        self._x = x
        self._index = index

    def set(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy with the values put there."""
        return call("update_at", self._x, self._index, values, "set", options)

    def add(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy with the values added there."""
        return call("update_at", self._x, self._index, values, "add", options)

    def subtract(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy with the values subtracted there."""
        return call("update_at", self._x, self._index, values, "subtract", options)

    def multiply(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy multiplied by the values there."""
        return call("update_at", self._x, self._index, values, "multiply", options)

    mul = multiply

    def divide(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy divided by the values there."""
        return call("update_at", self._x, self._index, values, "divide", options)

    def power(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy raised to the power of the values there."""
        return call("update_at", self._x, self._index, values, "power", options)

    def min(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy with the lesser of element and value there."""
        return call("update_at", self._x, self._index, values, "min", options)

    def max(self, values: ArrayLike, **options: Any) -> A:
        """Return a copy with the greater of element and value there."""
        return call("update_at", self._x, self._index, values, "max", options)

    def apply(self, function: Callable[[A], ArrayLike], **options: Any) -> A:
        """Return a copy with a function applied there, as often as the index names the element."""
        return call("apply_at", self._x, self._index, function, options)

    def get(self, **options: Any) -> A:
        """Return the elements there; with ``mode="fill"``, ``fill_value`` for those outside."""
        return call("get_at", self._x, self._index, options)


_here: ContextVar[bool | None] = ContextVar("meshard_writeable", default=None)
_AT = "write x = x.at[index].set(y), or another method of x.at[index]"


def writing() -> bool:
    """Return whether arrays may be written into here."""
    found = _here.get()
    return WRITEABLE.value if found is None else found


def may_write() -> bool:
    """Return whether arrays may be written into here, outside of transformations."""
    return writing() and innermost() is None


@context
def writeable(allowed: bool = True) -> Iterator[None]:
    """Let ``x[index] = y`` and ``x += y`` change arrays, within a ``with`` statement.

    It is meant for code of other libraries, such as SciPy and scikit-learn, that writes into the
    arrays which it makes. The array gets new blocks: it keeps its shape, dtype and sharding, values
    are cast to its dtype, and each write copies the blocks that it changes. All names of that one
    array see the change. Other arrays that share its blocks do not, nor do parts taken from it
    earlier: ``x[2:5]`` is never a view. In jit, `shard_map` and derivatives ``x[index] = y`` stays
    refused, and ``x += y`` gives a new array, as it does outside of the statement.

    What `meshard.vjp` or `meshard.linearize` returned reads its arrays later: do not change these
    before.

    ``meshard.config.update("writeable", True)`` allows it everywhere.

    Args:
        allowed: False forbids it again within the statement.

    >>> import meshard, meshard.numpy as mnp
    >>> x = mnp.zeros(3)
    >>> before = x.copy()
    >>> with mnp.writeable():
    ...     x[1] = 5
    ...     x += 1
    >>> x.tolist(), before.tolist()
    ([1.0, 6.0, 1.0], [0.0, 0.0, 0.0])
    """
    with _allowing(allowed):
        yield


@contextlib.contextmanager
def _allowing(allowed: bool) -> Iterator[None]:
    token = _here.set(bool(allowed))
    try:
        yield
    finally:
        _here.reset(token)


def refuse_write(x: Any) -> None:
    """Refuse to write into an array, unless it is allowed here.

    Raises:
        ArgumentError: if it is refused; the message says what to write instead.
    """
    if not writing():
        raise ArgumentError(
            "meshard arrays are immutable and do not support item assignment. Instead of "
            f"x[index] = y, {_AT}. For code that you cannot change, `with "
            "meshard.numpy.writeable():` lets x[index] = y give the array new blocks."
        )
    if innermost() is not None:
        raise ArgumentError(
            f"x[index] = y: {x.aval.str_short()} cannot be written into while a function is "
            "traced, mapped or derived: what runs later would not see it. Also within "
            f"meshard.numpy.writeable() {_AT} there."
        )


def _kept(x: Any, found: Any, symbol: str) -> Any:
    """Return what ``x += y`` leaves under the name: the array changed, or a new one."""
    if innermost() is not None or found is NotImplemented:
        return found
    if found.shape != x.shape:
        raise ShapeError(
            f"x {symbol} y: the result has shape {found.shape}, and cannot be kept in x, of shape "
            f"{x.shape}. Write x = x {symbol[:-1]} y."
        )
    if not np.can_cast(found.dtype, x.dtype, "same_kind"):
        raise DtypeError(
            f"x {symbol} y: the result has dtype {found.dtype}, and cannot be kept in x, of dtype "
            f"{x.dtype}. Write x = x {symbol[:-1]} y, or convert x with astype first."
        )
    found = call("astype", found, x.dtype, copy=False)
    if x.committed:
        found = call("to_device", found, x.sharding)
    x._rebind(found)
    return x


def _in_place(operator: Callable[[Any, Any], Any], symbol: str) -> Callable[[Any, Any], Any]:
    """Return the method of an operator such as ``+=``, of the one that makes a new array."""

    def method(self: Any, other: Any) -> Any:
        found = operator(self, other)
        return _kept(self, found, symbol) if writing() else found

    method.__name__ = operator.__name__.replace("__", "__i", 1)
    method.__qualname__ = f"Array.{method.__name__}"
    return method


@final
class FlatPlaces:
    """What ``x.flat`` is where arrays may be written into: ``x.flat[index] = y`` changes ``x``."""

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Any:
        return self._x.ravel()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Put values there, repeated as often as need be, as NumPy does."""
        refuse_write(self._x)
        flat = self._x.ravel()
        new, shape = call("ravel", call("asarray", value)), flat[index].shape
        if shape and new.size:
            turn = np.arange(int(np.prod(shape))) % new.size
            new = call("reshape", call("take", new, turn), shape)
        changed = call("update_at", flat, index, new if shape else new[0], "set", {})
        changed = call("reshape", changed, self._x.shape)
        self._x._rebind(
            call("to_device", changed, self._x.sharding) if self._x.committed else changed
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._x.ravel())

    def __len__(self) -> int:
        return int(self._x.size)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._x, dtype, copy=copy).reshape(-1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._x.ravel(), name)


class InPlace:
    """The operators that change an array where that is allowed; elsewhere they make a new one."""

    __slots__ = ()

    def _rebind(self, found: Self) -> None:
        """Take another array's data."""
        raise NotImplementedError

    if not TYPE_CHECKING:  # to type checkers `x += y` is what `x + y` is

        @property
        def flat(self) -> Any:
            """The array with one dim, to iterate over, to index, and where allowed to write to."""
            return FlatPlaces(self) if may_write() else call("ravel", self)

        @flat.setter
        def flat(self, value: Any) -> None:
            FlatPlaces(self)[:] = value

        __iadd__ = _in_place(ArrayOperators.__add__, "+=")
        __isub__ = _in_place(ArrayOperators.__sub__, "-=")
        __imul__ = _in_place(ArrayOperators.__mul__, "*=")
        __itruediv__ = _in_place(ArrayOperators.__truediv__, "/=")
        __ifloordiv__ = _in_place(ArrayOperators.__floordiv__, "//=")
        __imod__ = _in_place(ArrayOperators.__mod__, "%=")
        __ipow__ = _in_place(ArrayOperators.__pow__, "**=")
        __imatmul__ = _in_place(ArrayOperators.__matmul__, "@=")
        __iand__ = _in_place(ArrayOperators.__and__, "&=")
        __ior__ = _in_place(ArrayOperators.__or__, "|=")
        __ixor__ = _in_place(ArrayOperators.__xor__, "^=")
        __ilshift__ = _in_place(ArrayOperators.__lshift__, "<<=")
        __irshift__ = _in_place(ArrayOperators.__rshift__, ">>=")

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_write(self)
        if isinstance(value, (list, tuple)):
            value = call("asarray", value)
        self._rebind(call("update_at", self, index, value, "set", {}))
