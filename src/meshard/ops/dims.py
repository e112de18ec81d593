"""Dims as arguments name them: in, what a user wrote for ``axis``; out, sorted numbers from 0."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from meshard.errors import ArgumentError, DimError

Axis = int | Sequence[int] | None


def normalised_axes(axis: Axis, ndim: int, what: str) -> tuple[int, ...]:
    """Return dims as a sorted tuple of numbers from 0; None means all.

    Raises:
        DimError: if a dim does not exist.
        ArgumentError: if one is named twice, or ``axis`` is of another kind.
    """
    if axis is None:
        return tuple(range(ndim))
    try:
        given = (index(axis),) if hasattr(axis, "__index__") else tuple(map(index, axis))
    except TypeError:
        raise ArgumentError(
            f"{what}: axis={axis!r} must be an integer, a sequence of integers or None."
        ) from None
    for a in given:
        if not -ndim <= a < ndim:
            raise DimError(f"{what}: axis {a} is out of bounds for an array with {ndim} dims.")
    dims = tuple(sorted(a % ndim for a in given))
    if len(set(dims)) != len(dims):
        raise ArgumentError(f"{what}: axis {axis} names a dim twice.")
    return dims
