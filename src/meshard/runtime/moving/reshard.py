"""Resharding of trees: the way from the public function's arguments to a move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.arguments import flag_of
from meshard.errors import ArgumentError
from meshard.plan.figures.window import checked_window
from meshard.plan.show.progress import Progress, checked_progress
from meshard.runtime.array.array import Array
from meshard.runtime.missing import alive_ids
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.moved import Tree, moved
from meshard.runtime.moving.place import as_sharding
from meshard.runtime.moving.same_values import check_same_values
from meshard.runtime.trees.trees import flatten_with_none

_LARGE = 64 << 20  # smaller trees move too fast for a bar


@final
@dataclass(frozen=True, slots=True)
class Options:
    """How a tree is moved; see `reshard`."""

    donate: bool = False
    may_alias: bool | None = None
    cache_resharding_plans: bool = False
    max_bytes: int | None = None
    progress: Progress = None
    alive: Any = None


def resharded(x: Any, sharding: Any, options: Options) -> Any:
    """Return a tree of arrays in other layouts; see `reshard`."""
    donate = flag_of(options.donate, "reshard", "donate")
    given = options.may_alias
    may_alias = given is not None and flag_of(given, "reshard", "may_alias")
    flag_of(options.cache_resharding_plans, "reshard", "cache_resharding_plans")
    max_bytes = checked_window(options.max_bytes, "reshard")
    progress = checked_progress(options.progress, "reshard")
    alive = alive_ids(options.alive, "reshard")
    if donate and may_alias:
        raise ArgumentError(
            "reshard: donate and may_alias are both True; a donated array is deleted, so that "
            "nothing can share its memory. Choose one."
        )
    leaves, structure = flatten_with_none(x)
    prefix = prefix_leaves(sharding, x, "reshard", "shardings")
    targets = [as_sharding(d, "reshard") for d in prefix]
    check_same_values(x, leaves, targets, "reshard")
    tree = Tree(leaves, targets, structure, alive=alive)
    if progress is None and sum([x.nbytes for x in leaves if type(x) is Array]) < _LARGE:
        progress = False
    return tree.rebuilt(moved(tree, donate, max_bytes, progress))
