"""`with_sharding_constraint`: a value lies as is said, here and now."""

from __future__ import annotations

from typing import Any

import optree

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ShardingError, SpecError
from meshard.runtime.make import prefix_leaves
from meshard.runtime.place import as_sharding, placed
from meshard.runtime.primitive import innermost

from .body import Body
from .grid import Grid

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
    leaves, structure = optree.tree_flatten(x)
    given = prefix_leaves(shardings, x, what, "shardings")
    body = innermost()
    if not isinstance(body, Body):
        found: list[Any] = [
            placed(leaf, as_sharding(target, what), what=what)
            for leaf, target in zip(leaves, given, strict=True)
        ]
    else:
        found = [
            _constrained(body, body.lift(leaf), target)
            for leaf, target in zip(leaves, given, strict=True)
        ]
    return optree.tree_unflatten(structure, found)


def _constrained(body: Body, x: Grid, target: Any) -> Grid:
    """Return a value whose cells, Arrays on the automatic axes, lie as a spec says."""
    spec = target.spec if isinstance(target, NamedSharding) else target
    scope = body.scope
    if not isinstance(spec, PartitionSpec):
        raise ShardingError(
            f"with_sharding_constraint: inside shard_map a value lies by the axes of the mesh; "
            f"give a PartitionSpec or NamedSharding, not {target!r}."
        )
    named = [a for dim in spec.axes(len(spec)) for a in dim]
    wrong = [a for a in named if a in scope.sizes]
    if wrong:
        raise SpecError(
            f"with_sharding_constraint: {spec!r} names {wrong[0]!r}, along which this shard_map "
            f"body runs; a constraint may name the automatic axes "
            f"{', '.join(map(repr, scope.auto)) or '(there are none)'}."
        )
    if not scope.auto:
        return x
    laid = [
        None if c is None else placed(c, NamedSharding(m, spec))
        for c, m in zip(x.cells, scope.submeshes, strict=True)
    ]
    first = scope.world.type_of(x.shape, x.dtype, NamedSharding(scope.submeshes[0], spec), True)
    kind = scope.kind(first, x.kind.extent, x.kind.varies)
    return Grid(body, kind, tuple(laid))
