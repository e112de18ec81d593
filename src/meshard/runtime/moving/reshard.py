"""Resharding of trees."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from meshard.algebra.arguments import flag_of, function_of
from meshard.errors import ArgumentError
from meshard.plan.figures.window import checked_window
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.moved import Progress, Tree, moved
from meshard.runtime.moving.place import as_sharding
from meshard.runtime.moving.same_values import check_same_values
from meshard.runtime.trees import flatten_with_none
from meshard.runtime.types import ArrayLike

T = TypeVar("T")


@overload
def reshard(
    x: ArrayLike,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
) -> Array: ...
@overload
def reshard(
    x: T,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
) -> T: ...
def reshard(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
) -> Any:
    """Move a tree of arrays to other layouts, all of them together.

    Any layout can become any other: on the same, overlapping or other devices, other meshes, uneven
    cuts, other processes. Elements that a device already holds are not moved.

    Args:
        x: a tree of arrays; other leaves are placed.
        sharding: a tree of shardings, devices, or specs where a mesh is set, that is a prefix of
            ``x``; None leaves a leaf where it is.
        donate: delete the source arrays. Each is freed as soon as it has arrived, and a large one
            while it moves, so that source and destination together take little more than the
            larger; `plan_reshard` says how much. Memory that is referred to elsewhere stays.
        may_alias: accepted as in the reference; blocks are immutable and shared where they can be.
        cache_resharding_plans: accepted as in the reference; plans are always kept and reused.
        max_bytes: the most bytes in flight from and to one process at once, besides source and
            destination; None for no limit. Within one process nothing is in flight.
        progress: called with the bytes that have arrived in this process, and the bytes that will;
            True shows a bar. An exception that it raises is raised when nothing is half moved; in
            a program of several processes when all has arrived, since the others take part.

    Returns:
        The tree of moved arrays, committed. An array that is in two places of ``x``, as tied
        weights are, is moved once, and the result is in both places.

    Raises:
        ShardingError: if a leaf's shape cannot be laid out as asked.
        UnequalError: if a leaf that is not an array is to be laid out on devices of several
            processes, and these give different values.
        ArgumentError: if ``max_bytes`` is not a positive integer, or does not hold one element to
            and from each other process.
        TreeError: if ``sharding`` is not a prefix of ``x``.
        DeletedArrayError: if an array was deleted.
        AllocationError: if the system has no memory for a result.

    A refusal comes before anything has moved. After any later failure, or an interrupt, the sources
    are intact; if they were donated, the exception's attribute ``partial`` is the tree as it is
    then, with each array moved or where it was, and a note says which.
    Only a large donated array that was on its way when another process failed is lost.

    >>> import numpy as np, meshard
    >>> x = reshard(np.arange(4), meshard.devices()[0])
    >>> x.committed
    True
    """
    donate = flag_of(donate, "reshard", "donate")
    may_alias = may_alias is not None and flag_of(may_alias, "reshard", "may_alias")
    flag_of(cache_resharding_plans, "reshard", "cache_resharding_plans")
    max_bytes = checked_window(max_bytes, "reshard")
    if progress is not None and not isinstance(progress, bool):
        function_of(progress, "reshard", "progress", "True shows a bar.")
    if donate and may_alias:
        raise ArgumentError(
            "reshard: donate and may_alias are both True; a donated array is deleted, so that "
            "nothing can share its memory. Choose one."
        )
    leaves, structure = flatten_with_none(x)
    given = prefix_leaves(sharding, x, "reshard", "shardings")
    targets = [as_sharding(d, "reshard") for d in given]
    check_same_values(x, leaves, targets, "reshard")
    tree = Tree(leaves, targets, structure)
    return tree.rebuilt(moved(tree, donate, max_bytes, progress))
