"""``x.at[index]``: places in arrays, for updated copies.

In: an array and an index. Out: an object whose methods return changed copies; each is one call of a
door.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, final

from meshard.errors import ArgumentError
from meshard.runtime.doors import call
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
