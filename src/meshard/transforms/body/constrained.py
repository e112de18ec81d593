"""What a constraint's sharding means for a value: outside of bodies, and for the cells of one.

In: a sharding that may leave dims open, or not divide them, and how a value is laid out. Out: a
sharding with a layout, or the value of a `shard_map` body whose cells have it.
"""

from __future__ import annotations

import math
from typing import Any

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import balanced_cuts, even_cuts
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, ShardingError, SpecError
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.runtime.moving.place import as_sharding, placed
from meshard.runtime.types import ArrayType
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import Running

CONSTRAINT = "with_sharding_constraint"


def needed(target: Any, what: str = CONSTRAINT) -> Sharding:
    """Return the sharding of a constraint.

    Raises:
        ArgumentError: if it is None.
    """
    found = as_sharding(target, what)
    if found is None:
        raise ArgumentError(
            f"{what}: one of the shardings is None, which constrains nothing. Give a sharding or a "
            "spec for every array; P.UNCONSTRAINED in a spec leaves one dim as it is."
        )
    return found


def evened(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    """Return a sharding by which dims that do not divide are cut into nearly equal parts."""
    if not isinstance(sharding, NamedSharding) or isinstance(sharding.uneven, str):
        return sharding
    cuts = list(sharding.uneven or ())[: len(shape)]
    cuts += [None] * (len(shape) - len(cuts))
    odd = False
    for dim, (size, axes) in enumerate(zip(shape, sharding.spec.axes(len(shape)), strict=False)):
        shards = _count(sharding, axes)
        if cuts[dim] is None and size % shards:
            cuts[dim], odd = balanced_cuts(size, shards), True
    if not odd:
        return sharding
    uneven: Any = "balanced" if sharding.uneven is None else tuple(cuts)
    return NamedSharding(
        sharding.mesh, sharding.spec, memory_kind=sharding.memory_kind, uneven=uneven
    )


def settled(sharding: Sharding, type_: ArrayType) -> Sharding:
    """Return a sharding for an array of a type whose unconstrained dims stay as they are.

    They stay split over the axes of the same mesh that no other dim is to be split over.
    """
    if not isinstance(sharding, NamedSharding) or not sharding.spec.unconstrained:
        return sharding
    mesh, shape, now = sharding.mesh, type_.shape, type_.sharding
    plain = _without_open_dims(sharding)
    cuts, axes = plain.dim_cuts(shape), plain.spec.axes(type_.ndim)
    if not isinstance(now, NamedSharding) or now.mesh != mesh:
        return plain
    taken = {a for dim in axes for a in dim}
    splits = [Split(a, c) for a, c in zip(axes, cuts, strict=True)]
    for dim in sharding.spec.unconstrained:
        own = now.spec.axes(type_.ndim)[dim]
        left = tuple([a for a in own if a not in taken])
        shards, size = _count(sharding, left), shape[dim]
        if left == own:
            splits[dim] = Split(left, type_.layout.cuts[dim])
        elif left:
            cut = balanced_cuts if size % shards else even_cuts
            splits[dim] = Split(left, cut(size, shards))
    return named_sharding(mesh, tuple(splits), sharding.memory_kind)


def _without_open_dims(sharding: NamedSharding) -> NamedSharding:
    """Return a sharding whose unconstrained dims are whole."""
    open_dims, uneven = sharding.spec.unconstrained, sharding.uneven
    spec = PartitionSpec(*[None if d in open_dims else e for d, e in enumerate(sharding.spec)])
    if isinstance(uneven, tuple):
        uneven = tuple([None if d in open_dims else c for d, c in enumerate(uneven)])
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind, uneven=uneven)


def _count(sharding: NamedSharding, axes: tuple[str, ...]) -> int:
    """Return the number of shards of a dim that is split over some axes."""
    return math.prod([sharding.mesh.shape[a] for a in axes])


def constrained(body: Running, x: Grid, target: Any) -> Grid:
    """Return a value whose cells, Arrays on the automatic axes, are laid out by a spec."""
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
    first = evened(NamedSharding(scope.submeshes[0], spec), x.shape)
    first = settled(first, x.kind.type)
    assert isinstance(first, NamedSharding)
    places = [NamedSharding(m, first.spec, uneven=first.uneven) for m in scope.submeshes]
    laid = [None if c is None else placed(c, p) for c, p in zip(x.cells, places, strict=True)]
    kind = scope.kind(
        scope.world.type_of(x.shape, x.dtype, first, True), x.kind.extent, x.kind.varies
    )
    return Grid(body, kind, tuple(laid))
