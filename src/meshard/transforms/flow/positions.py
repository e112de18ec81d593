"""The positions that a scan goes along.

In: a tree of arrays, and a length. Out: the number of positions, and the tree at one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.errors import ArgumentError, ShapeError
from meshard.ops.engine.infer import AbstractArray
from meshard.runtime.moving.place import as_array, home
from meshard.runtime.trees import trees
from meshard.runtime.world import here
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import abstract_grid, local_type
from meshard.transforms.flow.carries import arrays_of


@final
@dataclass(frozen=True, slots=True)
class Positions:
    """The positions along the first dim of some arrays.

    Attributes:
        arrays: the arrays, in a body its values.
        shape: their tree.
        count: the number of positions.
        reverse: whether the last comes first.
        body: the shard_map body that the scan is in, or None.
    """

    arrays: list[Any]
    shape: Any
    count: int
    reverse: bool
    body: Body | None

    @classmethod
    def of(cls, xs: Any, length: int | None, reverse: Any, body: Body | None) -> Positions:
        """Return the positions of a tree of arrays.

        Raises:
            ArgumentError: if a leaf is not an array, or the length not an integer.
            ShapeError: if sizes of first dims differ, or there are none.
        """
        leaves, shape = trees.flatten(xs)
        arrays = [as_array(x) for x in arrays_of(leaves, "scan: the leaves of xs")]
        if body is not None:
            arrays = [body.lift(x) for x in arrays]
        return cls(arrays, shape, _length(arrays, length), bool(reverse), body)

    @property
    def order(self) -> range:
        """The positions as the scan takes them."""
        every = range(self.count)
        return every[::-1] if self.reverse else every

    def samples(self) -> list[Any]:
        """Return one position of each array as a value without data."""
        body = self.body
        if body is None:
            return [unplaced_value(x.shape[1:], x.dtype) for x in self.arrays]
        kinds = [
            body.scope.kind(
                local_type(body.scope, x.shape[1:], x.dtype), x.kind.extent, x.kind.varies
            )
            for x in self.arrays
        ]
        return [abstract_grid(body, k) for k in kinds]


def unplaced_value(shape: tuple[int, ...], dtype: Any) -> AbstractArray:
    """Return a value without data, on whatever devices it is needed."""
    world = here()
    return AbstractArray(world.type_of(shape, dtype, home(world), False))


def _length(arrays: Sequence[Any], length: int | None) -> int:
    """Return the number of positions of a scan."""
    for x in arrays:
        if not x.shape:
            raise ShapeError(f"scan: got a value with no leading dim to scan over: {x!r}.")
    sizes = [x.shape[0] for x in arrays]
    if len(set(sizes)) > 1:
        told = ", ".join([str(n) for n in dict.fromkeys(sizes)])
        raise ShapeError(f"scan: got values with different sizes of the leading dim: {told}.")
    if length is not None:
        count = -1 if isinstance(length, bool) else getattr(length, "__index__", lambda: -1)()
        if count < 0:
            raise ArgumentError(f"scan: length must be a non-negative integer, got {length!r}.")
        if sizes and sizes[0] != count:
            raise ShapeError(
                f"scan: got length {count}, which disagrees with the leading dim's size {sizes[0]}."
            )
        return count
    if not sizes:
        raise ShapeError("scan: got no values to scan over, and length is not given.")
    return int(sizes[0])
