"""The arguments that collectives have in common: axis names, groups, dims, positions."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

from meshard.algebra.arguments import described, shown
from meshard.errors import ArgumentError, AxisNameError, DtypeError, did_you_mean
from meshard.runtime.doors import innermost
from meshard.runtime.types import KEY
from meshard.transforms.body.mapped_axes import MappedAxis, count_of, mapped_axes

AxisName = str | Sequence[str]
Axes = Sequence[Any]
"""Names of mesh axes, and axes that `vmap` has bound."""
Groups = Sequence[Sequence[int]] | None


def _items(given: Any) -> list[Any]:
    """Return the items of a sequence; a value that is not a sequence is the one item."""
    try:
        return list(given)
    except TypeError:
        return [given]


def whole_numbers(given: Any, what: str, name: str) -> tuple[int, ...]:
    """Return integers as Python's.

    Raises:
        ArgumentError: if it is not a sequence of integers.
    """
    try:
        return tuple([operator.index(i) for i in given])
    except TypeError:
        only = given[0] if type(given) is tuple and len(given) == 1 else given
        raise ArgumentError(f"{what}: {name} takes integers, got {shown(only)}.") from None


def are_pairs(given: Any) -> bool:
    """Whether something is a list or tuple of pairs of integers, seen without a loop of Python."""
    if type(given) not in (list, tuple) or not {tuple}.issuperset(map(type, given)):
        return False
    return {int}.issuperset(map(type, chain.from_iterable(given))) and {2}.issuperset(
        map(len, given)
    )


def pairs_of(given: Any, what: str) -> tuple[tuple[int, ...], ...]:
    """Return pairs of integers as Python's.

    Raises:
        ArgumentError: if something else is given.
    """
    if are_pairs(given):
        return tuple(given)
    found = tuple([whole_numbers(p, what, "a pair of perm") for p in _items(given)])
    wrong = [p for p in found if len(p) != 2]
    if wrong:
        raise ArgumentError(
            f"{what}: perm is a list of pairs of a source and a destination, but holds {wrong[0]}."
        )
    return found


def check_numbers(array: Any, what: str) -> None:
    """Refuse what cannot be added or compared.

    Raises:
        DtypeError: for typed keys.
    """
    if array.dtype.kind == KEY.kind and array.dtype == KEY:
        raise DtypeError(
            f"{what}: typed random keys are not numbers. Gather or permute them, or draw numbers "
            "with meshard.random first."
        )


def bound_axes(given: Any, what: str) -> tuple[Any, ...]:
    """Return axis names as a tuple; each must be bound here, and named once.

    A name that `vmap` has bound is returned as its `MappedAxis`.

    Raises:
        AxisNameError: if one is not bound.
        ArgumentError: if one is named twice.
    """
    interpreter = innermost()
    bound = interpreter.axis_sizes if interpreter is not None else {}
    mapped = mapped_axes()
    if type(given) is str and given in bound and given not in mapped:
        return (given,)
    alone = isinstance(given, str) or _is_in(given, mapped)
    names = (given,) if alone else given
    if not isinstance(names, (tuple, list)):
        raise AxisNameError(
            f"{what}: axis_name must be a string or a tuple of strings, got {described(given)}."
        )
    known: dict[Any, Any] = {**dict.fromkeys(bound), **mapped}
    for name in names:
        if not _is_in(name, known):
            raise _unbound(what, name, list(known))
        if list(names).count(name) > 1:
            raise ArgumentError(f"{what}: the axis name {name!r} is repeated in {tuple(names)}.")
    return tuple([mapped.get(n, n) for n in names])


def _is_in(name: Any, known: Mapping[Any, Any]) -> bool:
    return isinstance(name, Hashable) and name in known


def _unbound(what: str, name: Any, bound: Sequence[Any]) -> AxisNameError:
    here = (
        f"the axes bound here are {', '.join(map(repr, bound))}"
        if bound
        else "no axis is bound here, outside of shard_map"
    )
    return AxisNameError(
        f"{what}: unbound axis name: {shown(name)}; {here}."
        f"{did_you_mean(name, map(str, bound))} An axis is bound by the mesh of the enclosing "
        "meshard.shard_map (and its axis_names=, where that is given), or by meshard.vmap with "
        "axis_name=."
    )


def mesh_axes_only(axes: Axes, what: str, why: str) -> None:
    """Refuse axes that `vmap` has bound.

    Raises:
        ArgumentError: if there is one.
    """
    mapped = [a for a in axes if type(a) is MappedAxis]
    if mapped:
        raise ArgumentError(
            f"{what}: {why} over {told(mapped)}, which vmap has bound. Write it with operations on "
            "the dim of the examples, outside of the mapped function."
        )


def positions(axes: Axes) -> int:
    """Return the number of positions along axes that are bound here."""
    interpreter = innermost()
    if interpreter is not None and len(axes) == 1 and type(axes[0]) is str:
        return interpreter.axis_sizes[axes[0]]
    return count_of(axes)


def index_groups(groups: Groups, axes: Axes, what: str, alike: bool) -> dict[str, Any]:
    """Return the parameter for groups of positions along an axis.

    Raises:
        ArgumentError: if they do not hold each position once, or differ in size and must not.
    """
    if groups is None:
        return {}
    mesh_axes_only(axes, what, "axis_index_groups are not supported")
    listed = tuple([whole_numbers(g, what, "a group of axis_index_groups") for g in _items(groups)])
    n = positions(axes)
    if not all(listed) or sorted(i for g in listed for i in g) != list(range(n)):
        raise ArgumentError(
            f"{what}: axis_index_groups must cover all indices exactly once: 0 to {n - 1} of the "
            f"axis {told(axes)}, got {[list(g) for g in listed]}."
        )
    if alike and len({len(g) for g in listed}) > 1:
        raise ArgumentError(
            f"{what}: axis_index_groups must all have one size, since the result's shape depends "
            f"on it, got {[list(g) for g in listed]}."
        )
    return {"groups": listed}


def told(axes: Axes) -> str:
    """Return axes as a message calls them."""
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def members(axes: Axes, groups: dict[str, Any]) -> int:
    """Return the size of a group; without groups all positions are one."""
    return len(groups["groups"][0]) if groups else positions(axes)


def checked_dim(given: Any, ndim: int, what: str, name: str) -> int:
    """Return a dim counted from 0.

    Raises:
        ArgumentError: if there is no such dim.
    """
    (dim,) = (given,) if type(given) is int else whole_numbers((given,), what, name)
    if not -ndim <= dim < ndim:
        raise ArgumentError(f"{what}: {name} {dim} is out of bounds for array of dimension {ndim}.")
    return dim % ndim
