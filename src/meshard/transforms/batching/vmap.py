"""`vmap`: a function of one example, mapped over many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, final

from meshard.algebra.arguments import function_of, integer_of, refusal
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.ops.array.shape import moveaxis
from meshard.runtime import trees
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array
from meshard.transforms.batching.programs import every, run_example
from meshard.transforms.body.mapped_axes import Examples

F = TypeVar("F", bound=Callable[..., Any])


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Callable[..., Any]:
    """Map a function over a dim of its arguments.

    Args:
        fun: a function of one example.
        in_axes: for each argument the dim that numbers the examples: an int, None for an argument
            that all share, or a tree of these that is a prefix of the arguments.
        out_axes: for each result where the dim comes; None for results that are the same for all.
        axis_name: a name by which collectives of ``meshard.lax`` know the dim: each example is
            like a device along a mesh axis of that name. They may name mesh axes besides.
        axis_size: the number of examples, needed where no argument has them.
        spmd_axis_name: the mesh axis, or axes, that the dim is split over wherever the function
            says how values are laid out: in front of the specs of constraints and of `shard_map`.
            Without it constraints leave the dim as it is, and each device of a `shard_map` has all
            examples.

    Returns:
        A function of arrays with the dim. Examples stay where they are: a split dim stays split.

    Raises:
        ArgumentError: if axes are of another kind, or the sizes of the dim differ.
        ShapeError: if an argument or result has no such dim.
        TreeError: if a tree of axes does not fit.
        ConcretizationError: if the function looks at values.

    Source: the semantics are those of ``jax.vmap``.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.vmap(mnp.dot)(mnp.ones((3, 4)), mnp.ones((3, 4))).tolist()
    [4.0, 4.0, 4.0]
    """
    f = function_of(fun, "vmap", "fun")
    axes = _Axes.of(in_axes, out_axes, axis_name, axis_size, spmd_axis_name)

    @functools.wraps(fun)
    @bounded
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _mapped(f, axes, args, kwargs)

    return mapped


@final
@dataclass(frozen=True, slots=True)
class _Axes:
    """What `vmap` was told.

    Attributes:
        given: the dims of the arguments.
        made: those of the results.
        name: the name by which collectives know the dim.
        size: its size, if it is given.
        split: the mesh axes that constraints and `shard_map` split it over.
    """

    given: Any
    made: Any
    name: Any
    size: int | None
    split: tuple[str, ...]

    @classmethod
    def of(cls, in_axes: Any, out_axes: Any, name: Any, size: Any, split: Any) -> _Axes:
        """Return them, checked."""
        if isinstance(in_axes, list):
            in_axes = tuple(in_axes)
        if in_axes is not None and not isinstance(in_axes, (int, tuple)):
            raise ArgumentError(
                "vmap: in_axes must be an int, None, or a tuple of entries for the arguments, but "
                f"got {in_axes!r}."
            )
        for told, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
            _check_axes(told, axes)
        count = None if size is None else integer_of(size, "vmap", "axis_size", least=0)
        if not isinstance(name, Hashable):
            raise ArgumentError(refusal("vmap", "axis_name", "a name, such as 'batch'", name))
        over = () if split is None else (split,) if isinstance(split, str) else split
        if not isinstance(over, tuple) or not all(isinstance(a, str) for a in over):
            wanted = "the name of a mesh axis, or a tuple of such"
            raise ArgumentError(refusal("vmap", "spmd_axis_name", wanted, split))
        return cls(in_axes, out_axes, name, count, over)


def _mapped(f: Callable[..., Any], axes: _Axes, args: tuple[Any, ...], kwargs: Any) -> Any:
    if isinstance(axes.given, tuple) and len(axes.given) != len(args):
        raise ArgumentError(
            "vmap: in_axes must be an int, None, or a tuple of entries corresponding to the "
            f"arguments, but it has {len(axes.given)} entries, and {len(args)} arguments were "
            "passed."
        )
    leaves, tree = trees.flatten((args, kwargs))
    dims = [*_axes_of(axes.given, args, "in_axes"), *[0] * len(trees.leaves(kwargs))]
    values = [x if isinstance(x, (Array, Traced)) else as_array(x) for x in leaves]
    size = _size_of(values, dims, axes.size)
    moved = [x if d is None else moveaxis(x, d, 0) for x, d in zip(values, dims, strict=True)]
    kept: list[Any] = []

    def flat(*own: Any) -> list[Any]:
        given, named = trees.unflatten(tree, list(own))
        found, structure = trees.flatten(f(*given, **named))
        kept.append(structure)
        return [x if isinstance(x, Traced) else as_array(x) for x in found]

    flags = [d is not None for d in dims]
    many = Examples(size, axes.name, axes.split)
    found, has = run_example(getattr(f, "__name__", "f"), flat, moved, flags, many)
    wanted = _axes_of(axes.made, trees.unflatten(kept[-1], found), "out_axes")
    results = [_out(y, own, d, size) for y, own, d in zip(found, has, wanted, strict=True)]
    return trees.unflatten(kept[-1], results)


def _check_axes(name: str, axes: Any) -> None:
    leaves, _ = trees.flatten_with_none(axes)
    for a in leaves:
        if a is not None and (not isinstance(a, int) or isinstance(a, bool)):
            raise ArgumentError(
                f"vmap: {name} must be an int, None, or a tree with those as leaves, but got "
                f"{axes!r}."
            )


def _axes_of(axes: Any, values: Any, name: str) -> list[int | None]:
    """Return the dim of each leaf of a tree."""
    try:
        every = list(trees.broadcast_leaves(axes, values, lambda x: x is None))
        with_none, _ = trees.flatten_with_none(values)
        return [a for a, x in zip(every, with_none, strict=True) if x is not None]
    except (ValueError, TreeError) as error:
        what = "arguments" if name == "in_axes" else "results"
        raise TreeError(
            f"vmap: {name} must be a prefix of the tree of {what}; it is {axes!r}: {error}"
        ) from error


def _size_of(values: list[Any], axes: list[int | None], size: int | None) -> int:
    """Return the number of examples.

    Raises:
        ShapeError: if an argument has no such dim, or the sizes differ.
    """
    sizes: dict[int, str] = {} if size is None else {size: "axis_size"}
    for number, (x, a) in enumerate(zip(values, axes, strict=True)):
        if a is None:
            continue
        if not -x.ndim <= a < x.ndim:
            raise ShapeError(
                f"vmap was requested to map its argument along axis {a}, which implies that its "
                f"rank should be at least {a + 1 if a >= 0 else -a}, but is only {x.ndim} (its "
                f"shape is {x.shape})."
            )
        sizes.setdefault(x.shape[a], f"argument {number} of shape {x.shape}, along axis {a}")
    if not sizes:
        raise ArgumentError(
            "vmap must have at least one non-None value in in_axes, or axis_size must be given."
        )
    if len(sizes) > 1:
        told = "; ".join(f"{n} for {what}" for n, what in sizes.items())
        raise ShapeError(f"vmap got inconsistent sizes for array axes to be mapped: {told}.")
    return next(iter(sizes))


def _out(y: Any, has: bool, axis: int | None, size: int) -> Any:
    """Return a result with the dim where it is wanted."""
    if axis is None:
        if has:
            raise ShapeError(
                "vmap: out_axes is None for a result that differs between examples. Give the dim "
                "where the examples come."
            )
        return y
    (y,) = every([y], [has], size)
    if not -y.ndim <= axis < y.ndim:
        raise ShapeError(
            f"vmap: out_axes is {axis}, which is out of bounds for a result of shape {y.shape}."
        )
    return moveaxis(y, 0, axis)
