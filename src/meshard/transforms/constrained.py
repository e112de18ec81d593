"""A value of a `shard_map` body whose cells, Arrays on the automatic axes, lie as a spec says."""

from __future__ import annotations

from typing import Any

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ShardingError, SpecError
from meshard.runtime.place import placed

from .grid import Grid
from .scope import Running

__all__ = ["constrained"]


def constrained(body: Running, x: Grid, target: Any) -> Grid:
    """Return a value whose cells, Arrays on the automatic axes, lie as a spec says."""
    spec = target.spec if isinstance(target, NamedSharding) else target
    scope = body.scope
    if not isinstance(spec, PartitionSpec):
        raise ShardingError(
            f"with_sharding_constraint: inside shard_map a value is laid out over the mesh's "
            f"automatic axes; give a PartitionSpec or NamedSharding, not {target!r}."
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
