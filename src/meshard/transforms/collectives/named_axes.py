"""Collectives over named mesh axes, as ``jax.lax`` names them.

All take a tree of arrays and map over its leaves. An axis name is one of the mesh axes that the
enclosing `shard_map` makes manual, or a tuple of such names, which then count as one axis of their
product, the first name the slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from meshard.errors import ArgumentError, IndexingError, ShapeError
from meshard.ops.checked import checked
from meshard.ops.engine.eager import WEAK
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.transforms.body.mapped_axes import MappedAxis, are_mapped, axis_index_over
from meshard.transforms.body.members import same_number
from meshard.transforms.collectives.axis_arguments import (
    Axes,
    AxisName,
    Groups,
    bound_axes,
    check_numbers,
    checked_dim,
    index_groups,
    members,
    mesh_axes_only,
    pairs_of,
    positions,
    told,
    whole_numbers,
)

T = TypeVar("T")


def _each(leaf: Callable[[Any], Any], x: Any) -> Any:
    """Map over a tree; mostly it is one array."""
    return leaf(x) if isinstance(x, Traced) else trees.map(leaf, x)


def _reduced(name: str, x: Any, axis_name: AxisName, groups: Groups) -> Any:
    axes = bound_axes(axis_name, name)
    more = {} if groups is None else index_groups(groups, axes, name, False)

    def leaf(value: Any) -> Any:
        if type(value) in WEAK and same_number(value, axes):
            if name != "psum":
                return value
            if not more:
                return value * positions(axes)
        array = value if isinstance(value, Traced) else as_array(value)
        kind = array.dtype.kind
        if kind not in "iuf":
            check_numbers(array, name)
            array = _summable(array, name)
        return bind(name, array, axes=axes, **more) if axes else array

    return _each(leaf, x)


def _summable(array: Any, name: str) -> Any:
    """Return an array that can be added, or compared; bools are counted."""
    if name == "psum" and array.dtype == np.bool_:
        return array.astype(np.int64)
    if array.dtype.kind == "c" and name != "psum":
        raise ArgumentError(
            f"{name}: complex numbers have no order; got {array.dtype}. Reduce the real and "
            "the imaginary part, or the absolute value."
        )
    return array


def psum(x: T, axis_name: AxisName, *, axis_index_groups: Groups = None) -> T:
    """Sum over mesh axes.

    Args:
        x: a tree of arrays. A Python number is the same on each device, so that ``psum(1, "i")``
            is the size of the axis, as a Python number.
        axis_name: the axis, or a tuple of axes.
        axis_index_groups: lists of positions along the axis that are summed among themselves.

    Returns:
        The sums; the same on all devices along the axes. Each is summed in the order of the
        axis, once, so that all devices have the same bits. Bools are counted.

    Raises:
        AxisNameError: if an axis is not bound.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    >>> f(np.arange(4)).tolist()
    [6]
    """
    return _reduced("psum", x, axis_name, axis_index_groups)


def pmean(x: T, axis_name: AxisName, *, axis_index_groups: Groups = None) -> T:
    """Return the mean over mesh axes; of integers it is a float.

    The arguments are those of `psum`.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.pmean(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()
    ... )
    >>> f(np.arange(4)).tolist()
    [1.5]
    """
    axes = bound_axes(axis_name, "pmean")
    groups = index_groups(axis_index_groups, axes, "pmean", False).get("groups")
    if groups is not None and len({len(g) for g in groups}) > 1:
        count: Any = psum(as_array(1), axis_name, axis_index_groups=groups)
    else:
        count = len(groups[0]) if groups is not None else positions(axes)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    return _each(lambda value: value / count, total)


def pmax(x: T, axis_name: AxisName, *, axis_index_groups: Groups = None) -> T:
    """Return the maximum over mesh axes.

    The arguments are those of `psum`.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(lambda x: lax.pmax(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    >>> f(np.asarray([3, 1, 4, 1])).tolist()
    [4]
    """
    return _reduced("pmax", x, axis_name, axis_index_groups)


def pmin(x: T, axis_name: AxisName, *, axis_index_groups: Groups = None) -> T:
    """Return the minimum over mesh axes.

    The arguments are those of `psum`.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(lambda x: lax.pmin(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    >>> f(np.asarray([3, 1, 4, 1])).tolist()
    [1]
    """
    return _reduced("pmin", x, axis_name, axis_index_groups)


@checked
def all_gather(
    x: T,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> T:
    """Gather the values of all devices along mesh axes on each of them.

    Args:
        x: a tree of arrays.
        axis_name: the axis, or a tuple of axes.
        axis_index_groups: lists of positions along the axis that gather among themselves.
        axis: the dim of the result along which the values are put.
        tiled: whether they are concatenated along that dim; else it is a new one.
        to: ``"invarying"`` says that the result is the same on all devices along the axes, as
            `all_gather_invariant` does; by default it counts as varying.

    Raises:
        AxisNameError: if an axis is not bound.
        ArgumentError: if there is no dim ``axis``.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.all_gather(x, "i", tiled=True)[:2],
    ...     mesh=mesh,
    ...     in_specs=P("i"),
    ...     out_specs=P("i"),
    ... )
    >>> f(np.arange(4)).tolist()
    [0, 1, 0, 1, 0, 1, 0, 1]
    """
    if to not in ("varying", "invarying", "reduced"):
        raise ArgumentError(
            f"all_gather: to must be 'varying', 'reduced' or 'invarying', got {to!r}."
        )
    name = "all_gather" if to == "varying" else "all_gather_invariant"
    axes = bound_axes(axis_name, name)
    if are_mapped({"axes": axes}):
        name = _gathered_by_examples(axes, to)
    more = index_groups(axis_index_groups, axes, name, True)
    if more and to != "varying":
        raise ArgumentError(
            "all_gather: with axis_index_groups the result differs between the groups along "
            f"{told(axes)}, and cannot be {to!r}."
        )

    def leaf(value: Any) -> Any:
        array = as_array(value)
        if not axes:
            return array
        dim = checked_dim(axis, array.ndim + (not tiled), name, "axis")
        return bind(name, array, axes=axes, dim=dim, tiled=bool(tiled), **more)

    return _each(leaf, x)


def _gathered_by_examples(axes: Axes, to: str) -> str:
    """Return what gathers over axes of which `vmap` has bound some."""
    own = [a for a in axes if type(a) is not MappedAxis]
    if own and to != "varying":
        raise ArgumentError(
            f"all_gather: to={to!r} is not supported for {told(axes)}, some of which are mesh axes "
            "and some bound by vmap. Gather over one after another."
        )
    return "all_gather"


@checked
def all_gather_invariant(x: T, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> T:
    """Gather as `all_gather` does; the result counts as the same on all devices along the axes.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.all_gather_invariant(x, "i", tiled=True),
    ...     mesh=mesh,
    ...     in_specs=P("i"),
    ...     out_specs=P(),
    ... )
    >>> f(np.arange(4)).tolist()
    [0, 1, 2, 3]
    """
    return all_gather(x, axis_name, axis=axis, tiled=tiled, to="invarying")


@checked
def psum_scatter(
    x: T,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups = None,
    tiled: bool = False,
) -> T:
    """Sum over mesh axes, and keep on each device one part of the sum.

    Args:
        x: a tree of arrays.
        axis_name: the axis, or a tuple of axes.
        scatter_dimension: the dim that is divided among the devices along the axes.
        axis_index_groups: lists of positions along the axis that are summed among themselves.
        tiled: whether the dim is cut into equal parts; else its size is that of the axis, and it
            is dropped.

    Raises:
        AxisNameError: if an axis is not bound.
        ShapeError: if the dim's size is not that of the axis, or not a multiple of it if tiled.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.psum_scatter(x, "i", tiled=True),
    ...     mesh=mesh,
    ...     in_specs=P("i"),
    ...     out_specs=P("i"),
    ... )
    >>> f(np.arange(16)).tolist()
    [24, 28, 32, 36]
    """
    axes = bound_axes(axis_name, "psum_scatter")
    more = index_groups(axis_index_groups, axes, "psum_scatter", True)
    n = members(axes, more)

    def leaf(value: Any) -> Any:
        array = as_array(value)
        check_numbers(array, "psum_scatter")
        dim = checked_dim(scatter_dimension, array.ndim, "psum_scatter", "scatter_dimension")
        size = array.shape[dim]
        if tiled and size % n:
            raise ShapeError(
                f"psum_scatter: with tiled=True the size of dim {dim} must be divisible by the "
                f"size of the axis {told(axes)}, which is {n}, but it is {size} of the shape "
                f"{array.shape}."
            )
        if not tiled and size != n:
            raise ShapeError(
                f"psum_scatter: the size of dim {dim} must match the size of the axis "
                f"{told(axes)}, which is {n}, but it is {size} of the shape {array.shape}. With "
                "tiled=True it may be a multiple."
            )
        if array.dtype == np.bool_:
            array = array.astype(np.int64)
        return bind("psum_scatter", array, axes=axes, dim=dim, tiled=bool(tiled), **more)

    return _each(leaf, x)


@checked(perm="Write the pairs of source and destination as a list: [(0, 1), (1, 2)].")
def ppermute(x: T, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> T:
    """Send each device's value to another one along mesh axes.

    Args:
        x: a tree of arrays.
        axis_name: the axis, or a tuple of axes.
        perm: pairs of source and destination positions, each source and each destination at most
            once. Devices that receive nothing hold zeros.

    Raises:
        AxisNameError: if an axis is not bound.
        ArgumentError: if a source or destination repeats.
        IndexingError: if a position is outside the axis.

    Within one process blocks are passed by reference, and nothing is copied.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3)]),
    ...     mesh=mesh,
    ...     in_specs=P("i"),
    ...     out_specs=P("i"),
    ... )
    >>> f(np.arange(1, 5)).tolist()
    [0, 1, 2, 3]
    """
    axes = bound_axes(axis_name, "ppermute")
    if len(axes) > 1:
        mesh_axes_only(axes, "ppermute", "a permutation of several axes is not supported")
    n = positions(axes)
    origins = _origins(pairs_of(perm, "ppermute"), n, axes)
    return _each(lambda value: bind("ppermute", as_array(value), axes=axes, sources=origins), x)


@lru_cache(maxsize=256)
def _origins(
    pairs: tuple[tuple[int, ...], ...], n: int, axes: tuple[Any, ...]
) -> tuple[int | None, ...]:
    """Return for each position the one that it receives from; None for none."""
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    if len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise ArgumentError(
            f"ppermute: sources and destinations must be unique, got {pairs}. One value "
            "for several devices is a pbroadcast or an all_gather."
        )
    wrong = [i for i in (*sources, *targets) if not 0 <= i < n]
    if wrong:
        raise IndexingError(
            f"ppermute: position {wrong[0]} is outside the axis {told(axes)} of size {n}; perm "
            f"is {pairs}."
        )
    origin: list[int | None] = [None] * n
    for a, b in pairs:
        origin[b] = a
    return tuple(origin)


@checked(perm="Write the source of each position as a list: [1, 0].")
def pshuffle(x: T, axis_name: AxisName, perm: Sequence[int]) -> T:
    """Give each device along an axis the value of the position that ``perm`` lists for it.

    Raises:
        AxisNameError: if an axis is not bound.
        ArgumentError: if ``perm`` does not list every position once.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.pshuffle(x, "i", [3, 2, 1, 0]),
    ...     mesh=mesh,
    ...     in_specs=P("i"),
    ...     out_specs=P("i"),
    ... )
    >>> f(np.arange(4)).tolist()
    [3, 2, 1, 0]
    """
    n = positions(bound_axes(axis_name, "pshuffle"))
    sources = whole_numbers(perm, "pshuffle", "perm")
    if sorted(sources) != list(range(n)):
        raise ArgumentError(
            f"pshuffle: perm must list every position from 0 to {n - 1} once, got {list(sources)}."
        )
    return ppermute(x, axis_name, list(zip(sources, range(n), strict=True)))


@checked
def pbroadcast(x: T, axis_name: AxisName, source: int) -> T:
    """Give all devices along mesh axes the value of one of them.

    Raises:
        AxisNameError: if an axis is not bound.
        IndexingError: if ``source`` is outside the axis.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.pbroadcast(x, "i", 2), mesh=mesh, in_specs=P("i"), out_specs=P()
    ... )
    >>> f(np.arange(4)).tolist()
    [2]
    """
    axes = bound_axes(axis_name, "pbroadcast")
    n = positions(axes)
    (origin,) = whole_numbers((source,), "pbroadcast", "source")
    if not 0 <= origin < n:
        raise IndexingError(
            f"pbroadcast: source {origin} is outside the axis {told(axes)} of size {n}."
        )
    return _each(lambda value: bind("pbroadcast", as_array(value), axes=axes, source=origin), x)


@checked
def all_to_all(
    x: T,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Groups = None,
    tiled: bool = False,
) -> T:
    """Cut each device's value along one dim, and join the parts meant for each along another.

    Args:
        x: a tree of arrays.
        axis_name: the axis, or a tuple of axes.
        split_axis: the dim that is cut, one part for each device along the axes.
        concat_axis: the dim along which each device joins the parts that it receives.
        axis_index_groups: lists of positions along the axis that exchange among themselves.
        tiled: whether parts are concatenated; else ``split_axis`` has the size of the axis and
            goes away, and the parts are stacked along a new dim ``concat_axis``.

    Raises:
        AxisNameError: if an axis is not bound.
        ShapeError: if the dim's size is not that of the axis, or not a multiple of it if tiled.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
    ...     mesh=mesh,
    ...     in_specs=P("i"),
    ...     out_specs=P("i"),
    ... )
    >>> f(np.arange(16)).tolist()
    [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]
    """
    axes = bound_axes(axis_name, "all_to_all")
    groups = axis_index_groups
    more = {} if groups is None else index_groups(groups, axes, "all_to_all", True)
    n = members(axes, more)

    def leaf(value: Any) -> Any:
        array = value if isinstance(value, Traced) else as_array(value)
        split = checked_dim(split_axis, array.ndim, "all_to_all", "split_axis")
        concat = checked_dim(concat_axis, array.ndim, "all_to_all", "concat_axis")
        size = array.shape[split]
        if tiled and size % n:
            raise ShapeError(
                f"all_to_all: the size of split_axis {split} has to be divisible by the size of "
                f"the axis {told(axes)}, which is {n}, but it is {size} of the shape "
                f"{array.shape}."
            )
        if not tiled and size != n:
            raise ShapeError(
                f"all_to_all: the size of split_axis {split} must equal the size of the axis "
                f"{told(axes)}, which is {n}, but it is {size} of the shape {array.shape}. With "
                "tiled=True it may be a multiple."
            )
        return bind(
            "all_to_all", array, axes=axes, split=split, concat=concat, tiled=bool(tiled), **more
        )

    return _each(leaf, x)


@checked
def pswapaxes(x: T, axis_name: AxisName, axis: int, *, axis_index_groups: Groups = None) -> T:
    """Exchange a mesh axis with a dim: `all_to_all` with both dims the same, not tiled.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.pswapaxes(x, "i", 0), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    ... )
    >>> f(np.arange(16)).tolist()
    [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def axis_index(axis_name: AxisName) -> Array:
    """Return the device's position along a mesh axis, or along a tuple of axes as one.

    Returns:
        An int32 without dims, which varies over the axes.

    Raises:
        AxisNameError: if an axis is not bound.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: x + lax.axis_index("i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    ... )
    >>> f(np.full(4, 10)).tolist()
    [10, 11, 12, 13]
    """
    axes = bound_axes(axis_name, "axis_index")
    return axis_index_over(axes) if axes else as_array(np.int32(0))


def axis_size(axis_name: AxisName) -> int:
    """Return the number of devices along a mesh axis, or along a tuple of axes.

    Raises:
        AxisNameError: if an axis is not bound.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: x * lax.axis_size("i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    ... )
    >>> f(np.arange(4)).tolist()
    [0, 4, 8, 12]
    """
    return positions(bound_axes(axis_name, "axis_size"))


@checked
def pcast(x: T, axis_name: AxisName, *, to: str) -> T:
    """Let values count as varying over mesh axes, although they are the same on all devices.

    Args:
        x: a tree of arrays.
        axis_name: the axis, or a tuple of axes.
        to: ``"varying"``.

    Raises:
        AxisNameError: if an axis is not bound.
        ArgumentError: if a value already varies over an axis, or ``to`` is something else.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.pcast(lax.psum(x, "i"), "i", to="varying"),
    ...     mesh=mesh,
    ...     in_specs=P("i"),
    ...     out_specs=P("i"),
    ... )
    >>> f(np.arange(4)).tolist()
    [6, 6, 6, 6]
    """
    axes = _mesh_axes(bound_axes(axis_name, "pcast"))
    if to != "varying":
        raise ArgumentError(
            f"pcast: to must be 'varying', got {to!r}. A value becomes the same on all devices by "
            "a collective such as psum, pmax or all_gather_invariant."
        )

    def leaf(value: Any) -> Any:
        array = as_array(value)
        again = [a for a in axes if isinstance(array, Traced) and a in array.aval.vma]
        if again:
            raise ArgumentError(
                f"pcast: {array.aval!r} already varies over {told(again)}; leave that axis out."
            )
        return bind("pcast", array, axes=axes) if axes else array

    return _each(leaf, x)


def pvary(x: T, axis_name: AxisName) -> T:
    """Let values count as varying over mesh axes; those that do so already are left as they are.

    >>> import meshard, numpy as np
    >>> from meshard import P, lax
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4,), ("i",))
    >>> f = meshard.shard_map(
    ...     lambda x: lax.pvary(lax.psum(x, "i"), "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    ... )
    >>> f(np.arange(4)).tolist()
    [6, 6, 6, 6]
    """
    axes = _mesh_axes(bound_axes(axis_name, "pvary"))
    if not axes:
        return x
    return _each(lambda value: bind("pcast", as_array(value), axes=axes), x)


def _mesh_axes(axes: Axes) -> tuple[str, ...]:
    """Return the mesh axes: a value differs between examples by itself."""
    return tuple([a for a in axes if type(a) is not MappedAxis])
