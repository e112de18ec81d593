"""`vmap`: a function of one example, mapped over many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

from meshard.algebra.arguments import described, function_of, integer_of, refusal
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, DtypeError, ShapeError, TreeError
from meshard.ops.array.shape import moveaxis
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.transforms.batching.programs import every, run_example
from meshard.transforms.body.mapped_axes import Examples
from meshard.transforms.tracing.arguments import Arguments, JitOptions

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

    What all examples share, with None in ``in_axes``, is passed on as it is: a Python number, an
    array that the function may look at, or anything else.

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

    @functools.wraps(fun, updated=())
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
            "passed by position."
        )
    leaves, tree = trees.flatten((args, kwargs))
    dims = [*_axes_of(axes.given, args, "in_axes"), *[0] * len(trees.leaves(kwargs))]
    places = [i for i, d in enumerate(dims) if d is not None]

    def name(number: int) -> str:
        arguments = Arguments(f, f"vmap of {_name(f)!r}", JitOptions())
        return f"argument {arguments.told(tree.paths()[places[number]], None)}"

    values = [_array(leaves[i], name, n) for n, i in enumerate(places)]
    own = [d for d in dims if d is not None]
    size = _size_of(values, own, name, axes.size)
    moved = [moveaxis(x, d, 0) if d else x for x, d in zip(values, own, strict=True)]
    kept: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        every = list(leaves)  # what all examples share is passed on as it is
        for i, x in zip(places, given, strict=True):
            every[i] = x
        found, structure = trees.flatten(_called(f, trees.unflatten(tree, every)))
        kept.append(structure)
        return [_array(x, "result {}".format, n) for n, x in enumerate(found)]

    many = Examples(size, axes.name, axes.split)
    found, has = run_example(_name(f), flat, moved, many)
    wanted = _axes_of(axes.made, trees.unflatten(kept[-1], found), "out_axes")
    results = [_out(y, own, d, size) for y, own, d in zip(found, has, wanted, strict=True)]
    return trees.unflatten(kept[-1], results)


def _called(f: Callable[..., Any], given: Any) -> Any:
    args, kwargs = given
    return f(*args, **kwargs)


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__name__", None) or type(f).__name__


def _array(x: Any, name: Callable[[int], str], number: int) -> Any:
    """Return an argument or result that is an array or can be made one."""
    try:
        return x if isinstance(x, Traced) else as_array(x)
    except DtypeError as error:
        told = name(number)
        raise DtypeError(f"vmap: the {told} is not an array of numbers: {described(x)}.") from error


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
    if axes is None or isinstance(axes, int):
        return [axes] * len(trees.leaves(values))
    try:
        every = list(trees.broadcast_leaves(axes, values, lambda x: x is None))
        with_none, _ = trees.flatten_with_none(values)
        return [a for a, x in zip(every, with_none, strict=True) if x is not None]
    except (ValueError, TreeError) as error:
        what = "arguments" if name == "in_axes" else "results"
        there = str(trees.structure(values)).removeprefix("PyTreeSpec")
        why = str(error).split("; ")[0]
        raise TreeError(
            f"vmap: {name} must be a prefix of the tree of {what}; it is {axes!r}, and the {what} "
            f"are {there}: {why}."
        ) from error


def _size_of(
    values: Sequence[Any], axes: Sequence[int], name: Callable[[int], str], size: int | None
) -> int:
    """Return the number of examples.

    Args:
        values: the arguments that have them.
        axes: the dim of each.
        name: returns what messages call one of them.
        size: the number that was given.

    Raises:
        ShapeError: if an argument has no such dim, or the sizes differ.
    """
    sizes = set() if size is None else {size}
    for number, (x, a) in enumerate(zip(values, axes, strict=True)):
        if not -x.ndim <= a < x.ndim:
            raise ShapeError(
                f"vmap was requested to map its {name(number)} along axis {a}, which implies that "
                f"its rank should be at least {a + 1 if a >= 0 else -a}, but is only {x.ndim} (its "
                f"shape is {x.shape}). Arguments that all examples share have None in in_axes."
            )
        sizes.add(x.shape[a])
    if not sizes:
        raise ArgumentError(
            "vmap must have at least one non-None value in in_axes, or axis_size must be given."
        )
    if len(sizes) > 1:
        raise _differ(values, axes, name, size)
    (found,) = sizes
    return found


def _differ(
    values: Sequence[Any], axes: Sequence[int], name: Callable[[int], str], size: int | None
) -> ShapeError:
    """Return the error for arguments of which not all have the same number of examples."""
    told: dict[int, list[str]] = {}
    for number, (x, a) in enumerate(zip(values, axes, strict=True)):
        told.setdefault(x.shape[a], []).append(f"axis {a} of the {name(number)} of shape {x.shape}")
    sizes = [] if size is None else [f"axis_size is {size}"]
    sizes += [f"{n} is the size of {_some(every)}" for n, every in told.items()]
    return ShapeError(
        f"vmap got inconsistent sizes for array axes to be mapped: {'; '.join(sizes)}."
    )


def _some(names: Sequence[str]) -> str:
    """Return a list of names, of which there may be many."""
    if len(names) < 3:
        return " and ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


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
    return moveaxis(y, 0, axis) if axis else y
