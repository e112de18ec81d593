"""The reference's reshard through an intermediate sharding, rule by rule.

In: a source and a target sharding. Out: a sharding in which source axes that the target does not
need have become replicas, so that each replica can send a part of what the target needs. meshard's
own planner knows more routes than this one; here the reference's rules are kept unchanged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar, overload

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import flag_of, shown
from meshard.algebra.mesh import AxisType, Mesh
from meshard.algebra.sharding import NamedSharding, Uneven
from meshard.algebra.spec import PartitionSpec
from meshard.errors import NoIntermediateShardingError, NoIntermediateShardingNeededError
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import as_sharding
from meshard.runtime.moving.plan_reshard import Options, resharded
from meshard.runtime.trees.trees import flatten, unflatten
from meshard.runtime.types import ArrayLike

_REPLICA = "_intermediate_replica"
_SPLIT = "_intermediate_split"


def find_intermediate_sharding(
    in_sharding: Sharding, out_sharding: Sharding
) -> tuple[NamedSharding, list[str]]:
    """Return an intermediate sharding between two others, and its replica axes.

    With ``s`` and ``d`` the numbers of shards of each dim in source and target, a dim is a
    candidate if ``gcd(s, d) == 1``, ``s > d`` and a single axis splits it. The source's
    devices, in their order, become a mesh of ``<axis>_intermediate_replica`` (of size ``s // d``)
    for each candidate's axis, then the source's axes, a candidate's as
    ``<axis>_intermediate_split`` (of size ``d``).

    Args:
        in_sharding: how the array is laid out.
        out_sharding: how it is to be laid out.

    Returns:
        The intermediate sharding, and the names of its replica axes in mesh order.

    Raises:
        NoIntermediateShardingNeededError: if a dim has shards that source and target share.
        NoIntermediateShardingError: if another rule fails; the message says which.

    >>> import numpy as np
    >>> from meshard.resharding import find_intermediate_sharding
    >>> from meshard import NamedSharding
    >>> from meshard.sharding import Mesh, P
    >>> from meshard.testing import virtual_devices
    >>> source = Mesh(np.array(virtual_devices(8)).reshape(8, 1), ("fsdp", "tp"))
    >>> target = Mesh(np.array(virtual_devices(4)).reshape(1, 4), ("fsdp", "tp"))
    >>> spec = P("fsdp", "tp")
    >>> between, replicas = find_intermediate_sharding(
    ...     NamedSharding(source, spec), NamedSharding(target, spec)
    ... )
    >>> between.mesh
    Mesh('fsdp_intermediate_replica': 8, 'fsdp_intermediate_split': 1, 'tp': 1)
    >>> between.spec, replicas
    (P('fsdp_intermediate_split', 'tp'), ['fsdp_intermediate_replica'])
    """
    if not isinstance(in_sharding, NamedSharding) or not isinstance(out_sharding, NamedSharding):
        raise NoIntermediateShardingError(
            "find_intermediate_sharding: both shardings must be NamedSharding (rule 1), but "
            f"in_sharding is {shown(in_sharding)} of type {type(in_sharding).__name__} and "
            f"out_sharding is {shown(out_sharding)} of type {type(out_sharding).__name__}. Use "
            "reshard, which takes any."
        )
    rank = _common_length(in_sharding, out_sharding)
    before, after = in_sharding.shards(rank), out_sharding.shards(rank)
    _check_counts(in_sharding, out_sharding, before, after)
    candidates = {
        entry: dim
        for dim, entry in enumerate(in_sharding.spec)
        if isinstance(entry, str)
        and math.gcd(before[dim], after[dim]) == 1
        and before[dim] > after[dim]
    }
    if not candidates:
        raise NoIntermediateShardingError(
            _asked(in_sharding, out_sharding, before, after)
            + "no dim can be split (rule 7): a candidate has shard counts without a common "
            "factor, more shards in the source than in the target, and a single mesh axis in "
            "in_sharding, not a tuple of them. Use reshard, which needs no intermediate."
        )
    uneven = [(dim, before[dim], after[dim]) for dim in candidates.values() if after[dim] > 1]
    if uneven:
        dim, s, d = uneven[0]
        raise NoIntermediateShardingError(
            _asked(in_sharding, out_sharding, before, after)
            + f"dim {dim} is a candidate, but its {s} shards are not a multiple of {d}: "
            f"{s // d} replicas of {d} shards are not {s} devices, and the source's devices "
            "cannot be reshaped in that way. Use reshard, which needs no intermediate."
        )
    mesh = _with_replicas(in_sharding.mesh, {a: after[dim] for a, dim in candidates.items()})
    entries = [e if e not in candidates else f"{e}{_SPLIT}" for e in in_sharding.spec]
    between = NamedSharding(
        mesh,
        PartitionSpec(*entries),
        memory_kind=in_sharding.memory_kind,
        uneven=_without_cuts(in_sharding.uneven, candidates.values()),
    )
    return between, list(mesh.axis_names[: len(candidates)])


def _common_length(source: NamedSharding, target: NamedSharding) -> int:
    """Return the specs' length; an empty spec counts as Nones, as many as the other has entries."""
    lengths = len(source.spec), len(target.spec)
    if all(lengths) and lengths[0] != lengths[1]:
        raise NoIntermediateShardingError(
            "find_intermediate_sharding: the specs must have one length (rule 3), but "
            f"in_sharding's {source.spec} has {lengths[0]} entries and out_sharding's "
            f"{target.spec} has {lengths[1]}. Pad the shorter one with None, or use reshard."
        )
    return max(lengths)


def _check_counts(
    source: NamedSharding, target: NamedSharding, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    asked = _asked(source, target, before, after)
    most, least = max(before, default=1), max(after, default=1)
    if most % least:
        raise NoIntermediateShardingError(
            f"{asked}the most shards of one dim in the source, {most}, must be a multiple of the "
            f"most in the target, {least} (rule 4). Use reshard, which needs no intermediate."
        )
    shards, wanted = math.prod(before), math.prod(after)
    if shards <= wanted:
        raise NoIntermediateShardingError(
            f"{asked}the source must have more shards than the target (rule 5), but has {shards} "
            f"where the target has {wanted}. Use reshard, which needs no intermediate."
        )
    if shards % wanted:
        raise NoIntermediateShardingError(
            f"{asked}the number of the source's shards, {shards}, must be a multiple of the "
            f"target's, {wanted} (rule 5). Use reshard, which needs no intermediate."
        )
    common = tuple(map(math.gcd, before, after))
    if math.prod(common) != 1:
        raise NoIntermediateShardingNeededError(
            f"{asked}an intermediate helps where no dim's counts have a common factor (rule 6), "
            f"but their greatest common divisors are {common}. None is needed; use reshard."
        )


def _asked(
    source: NamedSharding, target: NamedSharding, before: tuple[int, ...], after: tuple[int, ...]
) -> str:
    return (
        f"find_intermediate_sharding: from {source.spec} on {source.mesh!r}, with {before} shards "
        f"along the dims, to {target.spec} on {target.mesh!r}, with {after}: "
    )


def _with_replicas(mesh: Mesh, splits: dict[str, int]) -> Mesh:
    """Return a mesh of the same devices in which axes are cut into replicas and splits.

    Args:
        mesh: the mesh.
        splits: for each axis to be cut the size of its split.
    """
    cut = [a for a in mesh.axis_names if a in splits]
    names = [f"{a}{_REPLICA}" for a in cut]
    names += [f"{a}{_SPLIT}" if a in splits else a for a in mesh.axis_names]
    twice = sorted({a for a in names if names.count(a) > 1})
    if twice:
        raise NoIntermediateShardingError(
            f"find_intermediate_sharding: the intermediate's axis {twice[0]!r} is already an axis "
            f"of in_sharding's {mesh!r}. Rename that axis, or use reshard."
        )
    sizes = [mesh.shape[a] // splits[a] for a in cut]
    sizes += [splits.get(a, n) for a, n in mesh.shape.items()]
    types = (AxisType.Auto,) * len(cut) + mesh.axis_types
    return Mesh(mesh.devices.reshape(sizes), names, types)


def _without_cuts(uneven: Uneven, dims: Any) -> Uneven:
    """Return the cuts of dims, without those of dims that are now whole."""
    if not isinstance(uneven, tuple):
        return uneven
    return tuple(None if dim in dims else cuts for dim, cuts in enumerate(uneven))


T = TypeVar("T")


@overload
def reshard_with_intermediate_sharding(
    x: ArrayLike,
    in_sharding: Any,
    out_sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
) -> Array: ...
@overload
def reshard_with_intermediate_sharding(
    x: T,
    in_sharding: Any,
    out_sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
) -> T: ...
def reshard_with_intermediate_sharding(
    x: Any,
    in_sharding: Any,
    out_sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
) -> Any:
    """Move a tree of arrays to other layouts, through an intermediate one if that helps.

    It helps if `find_intermediate_sharding` finds one: the array is then first laid out that way on
    its own devices, and its replicas share in sending. All other leaves move directly.

    Args:
        x: a tree of arrays; other leaves are placed.
        in_sharding: how the arrays are laid out: a tree of shardings that is a prefix of ``x``. A
            leaf with another layout, or none yet, moves directly; None means each leaf's own.
        out_sharding: a tree of shardings that is a prefix of ``x``.
        donate: delete the source arrays when all have been moved.
        may_alias: as for `reshard`.
        cache_resharding_plans: as for `reshard`.

    Returns:
        The tree of moved arrays.

    Raises:
        ShardingError: if a leaf's shape cannot be laid out as asked; nothing has been deleted then.
        TreeError: if a tree of shardings is not a prefix of ``x``.

    >>> import numpy as np, meshard
    >>> from meshard import Mesh, NamedSharding
    >>> from meshard.resharding import reshard_with_intermediate_sharding
    >>> from meshard.sharding import P
    >>> source = NamedSharding(Mesh(meshard.devices(), "x"), P("x"))
    >>> target = NamedSharding(Mesh(meshard.devices()[:1], "x"), P())
    >>> x = meshard.device_put(np.arange(2 * len(meshard.devices())), source)
    >>> bool((reshard_with_intermediate_sharding(x, source, target) == np.asarray(x)).all())
    True
    """
    what = "reshard_with_intermediate_sharding"
    donate = flag_of(donate, what, "donate")
    leaves, structure = flatten(x, is_leaf=lambda node: node is None)
    froms = [as_sharding(s, what) for s in prefix_leaves(in_sharding, x, what, "in_sharding")]
    targets = [as_sharding(s, what) for s in prefix_leaves(out_sharding, x, what, "out_sharding")]
    ways: dict[int, NamedSharding] = {}
    for i, leaf in enumerate(leaves):
        between = _way(leaf, froms[i], targets[i]) if type(leaf) is Array else None
        if between is not None:
            ways[i] = between
    options = Options(False, may_alias, cache_resharding_plans)
    moving = dict(enumerate(leaves))
    if ways:
        staged = resharded([leaves[i] for i in ways], list(ways.values()), options)
        moving.update(zip(ways, staged, strict=True))
    results = resharded(list(moving.values()), targets, replace(options, donate=donate))
    if donate:
        for i in ways:
            leaves[i]._discard(f"donated to {what}")
    return unflatten(structure, results)


def _way(x: Array, source: Sharding | None, target: Sharding | None) -> NamedSharding | None:
    """Return the intermediate sharding that helps an array, or None."""
    if source is None:
        source = x.sharding
    if target is None or not (source == x.sharding or source.is_equivalent_to(x.sharding, x.ndim)):
        return None
    try:
        return find_intermediate_sharding(source, target)[0]
    except NoIntermediateShardingError:
        return None
