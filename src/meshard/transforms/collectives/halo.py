"""Halos: each device's tile with rows of its neighbours, and the other way round.

In: a tile, a mesh axis, a dim and how many rows. Out: the tile with the neighbours' edge rows in
front and behind, by one `ppermute` in each direction; or, the other way round, a tile that has the
rows added that its neighbours computed for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from meshard.algebra.arguments import integer_of, shown
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.create import full_like, zeros_like
from meshard.ops.array.elementwise import where
from meshard.ops.array.join import concatenate, flip
from meshard.ops.checked import checked
from meshard.ops.reductions.reduce import sum as sum_
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike
from meshard.transforms.collectives.axis_arguments import (
    AxisName,
    bound_axes,
    checked_dim,
    positions,
)
from meshard.transforms.collectives.named_axes import axis_index, ppermute

Boundary = Literal["wrap", "edge", "reflect", "symmetric"] | float
_KINDS = ("wrap", "edge", "reflect", "symmetric")


@checked
def halo(
    x: ArrayLike,
    axis_name: AxisName,
    dim: int = 0,
    width: int | tuple[int, int] = 1,
    *,
    boundary: Any = 0,
) -> Array:
    """Return each device's tile with the rows of its neighbours around it.

    What every stencil needs: the tile grows by ``width`` rows on both sides along a dim that a mesh
    axis splits, by one `ppermute` in each direction. Tiles may be of different sizes along the dim.

    Args:
        x: the tile.
        axis_name: the mesh axis that splits the dim.
        dim: the dim.
        width: how many rows are taken from each neighbour, or how many from the one before and from
            the one behind.
        boundary: what is beyond the ends of the whole array: a number; ``"wrap"``, the other end;
            ``"edge"``, the first or last row again; ``"reflect"``, the rows mirrored without the
            first or last one; or ``"symmetric"``, the rows mirrored. The names are those of
            ``numpy.pad``.

    Returns:
        A tile of ``width`` more rows on each side, in the same dtype.

    Raises:
        AxisNameError: if the axis is not bound.
        ShapeError: if a tile has fewer rows than are taken from it.
        ArgumentError: if ``boundary`` is something else, or ``width`` is negative.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((3,), ("i",), devices=meshard.devices()[:3])
    >>> def second_difference(tile):
    ...     wide = lax.halo(tile, "i", boundary="edge")
    ...     return wide[:-2] - 2 * tile + wide[2:]
    >>> f = meshard.shard_map(
    ...     second_difference, mesh=mesh, in_specs=P("i"), out_specs=P("i"), uneven=True
    ... )
    >>> f(mnp.arange(7.0) ** 2).tolist()
    [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, -11.0]
    """
    tile, edge = as_array(x), _Edge("halo", x, axis_name, dim, width, boundary)
    edge.check_size(tile.shape[edge.dim], tile.shape)
    parts = [tile]
    if edge.before:
        came = edge.sent(edge.last(tile, edge.before), 1)
        parts.insert(0, edge.at_end(came, lambda: edge.beyond(tile, edge.before, 0), 0))
    if edge.behind:
        came = edge.sent(edge.first(tile, edge.behind), -1)
        parts.append(edge.at_end(came, lambda: edge.beyond(tile, edge.behind, -1), -1))
    return concatenate(parts, axis=edge.dim)


@checked
def halo_add(
    x: ArrayLike,
    axis_name: AxisName,
    dim: int = 0,
    width: int | tuple[int, int] = 1,
    *,
    boundary: Any = 0,
) -> Array:
    """Return each device's tile with what its neighbours have computed for its edge rows added.

    The opposite of `halo`, and its transpose: rows around a tile go back to the devices that own
    them, and are added there. What was computed for rows beyond the ends of the whole array is
    dropped where ``boundary`` is a number, and otherwise added to the rows that `halo` takes them
    from.

    Args:
        x: the tile, with ``width`` rows more on each side.
        axis_name: the mesh axis that splits the dim.
        dim: the dim.
        width: how many rows belong to each neighbour, or how many to the one before and to the one
            behind.
        boundary: as for `halo`; any number drops what is beyond the ends.

    Returns:
        A tile without the rows around it.

    Raises:
        AxisNameError: if the axis is not bound.
        ShapeError: if a tile has fewer rows of its own than are added to it.
        ArgumentError: if ``boundary`` is something else, or ``width`` is negative.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((2,), ("i",), devices=meshard.devices()[:2])
    >>> def counted(tile):  # how many elements of a finite element mesh touch each node
    ...     touched = mnp.ones(tile.shape[0] + 1)  # each device's elements touch one node more
    ...     return lax.halo_add(touched, "i", width=(0, 1))
    >>> f = meshard.shard_map(counted, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    >>> f(mnp.zeros(6)).tolist()
    [1.0, 1.0, 1.0, 2.0, 1.0, 1.0]
    """
    wide, edge = as_array(x), _Edge("halo_add", x, axis_name, dim, width, boundary)
    own = wide.shape[edge.dim] - edge.before - edge.behind
    edge.check_size(own, wide.shape)
    tile = edge.rows(wide, edge.before, edge.before + own)
    if edge.before:
        front = edge.rows(wide, 0, edge.before)
        tile = edge.added(tile, edge.sent(front, -1), own - edge.before)
        tile = edge.folded(tile, front, edge.before, 0)
    if edge.behind:
        back = edge.rows(wide, own + edge.before, own + edge.before + edge.behind)
        tile = edge.added(tile, edge.sent(back, 1), 0)
        tile = edge.folded(tile, back, edge.behind, -1)
    return tile


class _Edge:
    """How tiles meet along one mesh axis and one dim.

    Attributes:
        dim: the dim.
        before: how many rows come from the device before.
        behind: how many come from the one behind.
    """

    def __init__(
        self, what: str, x: Any, axis_name: Any, dim: int, width: Any, boundary: Any
    ) -> None:
        self._what, self._axis = what, axis_name
        self._count = positions(bound_axes(axis_name, what))
        self.dim = checked_dim(dim, np.ndim(x), what, "dim")
        pair = width if isinstance(width, (tuple, list)) else (width, width)
        if len(pair) != 2:
            raise ArgumentError(f"{what}: width is a number or a pair, got {shown(width)}.")
        self.before, self.behind = [integer_of(n, what, "width", least=0) for n in pair]
        if isinstance(boundary, str) and boundary not in _KINDS:
            raise ArgumentError(
                f"{what}: boundary={shown(boundary)} is none of {', '.join(map(repr, _KINDS))} and "
                "not a number."
            )
        self._boundary = boundary

    def check_size(self, size: int, shape: tuple[int, ...]) -> None:
        """Refuse a tile of fewer rows than its neighbours need."""
        needed = max(self.before, self.behind)
        needed += needed > 0 and self._boundary == "reflect"
        if size < needed:
            raise ShapeError(
                f"{self._what}: a tile of shape {shape} has {max(size, 0)} rows of its own along "
                f"dim {self.dim}, but width={self.before, self.behind} with boundary="
                f"{self._boundary!r} needs {needed}. Split the dim over fewer devices, or take the "
                "halo in several steps."
            )

    def rows(self, x: Any, start: int, stop: int) -> Any:
        """Return some rows."""
        return x[(slice(None),) * self.dim + (slice(start, stop),)]

    def first(self, x: Any, count: int) -> Any:
        """Return the first rows."""
        return self.rows(x, 0, count)

    def last(self, x: Any, count: int) -> Any:
        """Return the last rows."""
        size = x.shape[self.dim]
        return self.rows(x, size - count, size)

    def sent(self, rows: Any, by: int) -> Any:
        """Return the rows that come from the device ``by`` positions before; zeros at an end."""
        n = self._count
        pairs = [(i, (i + by) % n) for i in range(n)]
        if self._boundary != "wrap":
            pairs = [(i, i + by) for i in range(n) if 0 <= i + by < n]
        return ppermute(rows, self._axis, pairs)

    def at_end(self, rows: Any, beyond: Callable[[], Any], end: int) -> Any:
        """Return rows, and on the device at an end what is beyond it instead."""
        if self._boundary == "wrap" or (
            type(self._boundary) in (int, float) and not self._boundary
        ):
            return rows
        return where(axis_index(self._axis) == end % self._count, beyond(), rows)

    def beyond(self, tile: Any, count: int, end: int) -> Any:
        """Return the rows beyond an end of the whole array, from the tile at that end."""
        kind = self._boundary
        if not isinstance(kind, str):
            return full_like(self.first(tile, count), kind)
        skipped = kind == "reflect"
        if kind == "edge":
            row = self.first(tile, 1) if end == 0 else self.last(tile, 1)
            return concatenate([row] * count, axis=self.dim)
        rows = self.first(tile, count + skipped) if end == 0 else self.last(tile, count + skipped)
        rows = (
            rows
            if not skipped
            else (self.last(rows, count) if end == 0 else self.first(rows, count))
        )
        return flip(rows, axis=self.dim)

    def added(self, tile: Any, rows: Any, start: int) -> Any:
        """Return a tile to whose rows from ``start`` on others are added."""
        index = (slice(None),) * self.dim + (slice(start, start + rows.shape[self.dim]),)
        return tile.at[index].add(rows)

    def folded(self, tile: Any, rows: Any, count: int, end: int) -> Any:
        """Return a tile with what is beyond an end added to where `beyond` takes it from."""
        kind = self._boundary
        if kind == "wrap" or not isinstance(kind, str):
            return tile
        own = where(axis_index(self._axis) == end % self._count, rows, zeros_like(rows))
        size = tile.shape[self.dim]
        if kind == "edge":
            total = sum_(own, axis=self.dim, keepdims=True)
            return self.added(tile, total, 0 if end == 0 else size - 1)
        skipped = kind == "reflect"
        start = skipped if end == 0 else size - count - skipped
        return self.added(tile, flip(own, axis=self.dim), start)
