"""`with_sharding_constraint`: a value lies as is said, here and now."""

from __future__ import annotations

from typing import Any

import optree

from meshard.runtime.make import prefix_leaves
from meshard.runtime.place import as_sharding, placed
from meshard.runtime.primitive import innermost
from meshard.runtime.trees import flatten

from .body import Body
from .calls import ConstraintCall
from .constrained import constrained

__all__ = ["with_sharding_constraint"]


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Lay arrays out as shardings say.

    Args:
        x: a tree of arrays.
        shardings: a tree of shardings, or of specs where a mesh is set, that is a prefix of ``x``.
            Inside `shard_map` they may name the axes that are left automatic.

    Returns:
        The tree; each array has the sharding that was asked for.

    Raises:
        ShardingError: if an array cannot lie so, or no axis is automatic in this body.
        SpecError: if a spec names an axis that the body runs along.

    >>> import meshard, numpy as np
    >>> mesh = meshard.make_mesh((1,), ("i",))
    >>> x = with_sharding_constraint(np.arange(4), meshard.NamedSharding(mesh, meshard.P("i")))
    >>> x.sharding.spec
    P('i',)
    """
    what = "with_sharding_constraint"
    leaves, structure = flatten(x)
    every = prefix_leaves(shardings, x, what, "shardings")
    with_none, _ = flatten(x, none_is_leaf=True)
    given = [s for s, leaf in zip(every, with_none, strict=True) if leaf is not None]
    body = innermost()
    if not isinstance(body, Body):
        found: list[Any] = [
            placed(leaf, as_sharding(target, what), what=what)
            for leaf, target in zip(leaves, given, strict=True)
        ]
    else:
        found = []
        for leaf, target in zip(leaves, given, strict=True):
            x = body.lift(leaf)
            found.append(constrained(body, x, target))
            if body.recorder is not None:
                call = ConstraintCall(target)
                body.recorder.write(call.name, (), [x], found[-1:], call)
    return optree.tree_unflatten(structure, found)
