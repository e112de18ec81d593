"""`with_sharding_constraint`: a value is laid out as a sharding says."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import innermost
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import as_host, placed
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayLike
from meshard.runtime.world import here
from meshard.transforms.body.body import Body
from meshard.transforms.body.constrained import CONSTRAINT, constrained, evened, needed, settled
from meshard.transforms.program.calls import ConstraintCall
from meshard.transforms.tracing.recorder import Tracer
from meshard.transforms.tracing.tracing import unplaced_type

T = TypeVar("T")


@overload
def with_sharding_constraint(x: ArrayLike, shardings: Any) -> Array: ...
@overload
def with_sharding_constraint(x: T, shardings: Any) -> T: ...
def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Lay arrays out as shardings say.

    Args:
        x: a tree of arrays.
        shardings: a tree of shardings, or of specs where a mesh is set, that is a prefix of ``x``.
            Inside `shard_map` they may name the axes that are left automatic. A dim that does not
            divide is cut into parts that differ by at most one. A dim whose entry in the spec is
            ``P.UNCONSTRAINED`` stays split as it is, over the axes that the others leave.

    Returns:
        The tree; each array has the sharding that was asked for.

    Raises:
        ArgumentError: if a sharding is None.
        ShardingError: if an array cannot be laid out so, or no axis is automatic in this body.
        SpecError: if a spec names an axis that the body runs along.

    >>> import numpy as np, meshard
    >>> from meshard.lax import with_sharding_constraint
    >>> mesh = meshard.make_mesh((1,), ("i",))
    >>> x = with_sharding_constraint(np.arange(4), meshard.NamedSharding(mesh, meshard.P("i")))
    >>> x.sharding.spec
    P('i',)
    """
    what = CONSTRAINT
    leaves, structure = trees.flatten(x)
    every = prefix_leaves(shardings, x, what, "shardings")
    with_none, _ = trees.flatten_with_none(x)
    given = [s for s, leaf in zip(every, with_none, strict=True) if leaf is not None]
    body = innermost()
    if not isinstance(body, Body):
        found: list[Any] = [
            _constrained(leaf, needed(target, what), what)
            for leaf, target in zip(leaves, given, strict=True)
        ]
    else:
        found = []
        for leaf, target in zip(leaves, given, strict=True):
            if target is None:
                needed(target, what)
            x = body.lift(leaf)
            found.append(constrained(body, x, target))
            if body.recorder is not None:
                call = ConstraintCall(target)
                body.recorder.write(call.name, (), [x], found[-1:], call)
    return trees.unflatten(structure, found)


def _constrained(leaf: Any, target: Sharding, what: str) -> Any:
    x = leaf if isinstance(leaf, Traced) or type(leaf) is Array else as_host(leaf, what)
    place = evened(target, x.shape)
    now = settled(place, unplaced_type(here(), x) if isinstance(x, np.ndarray) else x._type)
    now.layout(x.shape)  # refuses what cannot be laid out so
    return placed(x, place if type(x) is Tracer else now, what=what)
