"""What processes agree on when they run collectives.

In: a collective of a body, and the groups of devices that take part. Out: a step for each set of
processes whose devices do: all of the mesh, or under a condition those of each group by itself.
"""

from __future__ import annotations

from collections.abc import Collection

from meshard.runtime.agree import agreed
from meshard.runtime.memo import memoized
from meshard.transforms.body.scope import Scope

Axes = tuple[str, ...]
Members = tuple[int, ...]


def agree_on_collective(
    scope: Scope, told: str, rest: Axes, active: Collection[int] | None
) -> None:
    """Say that devices run a collective now.

    Args:
        scope: the axes that the body runs along.
        told: the collective, its parameters and what it is given.
        rest: the axes that number the groups.
        active: the groups that take part; None for all.

    Raises:
        AgreementError: if each step is compared, and another process runs another operation.
    """
    world = scope.world
    if world.agreement is None:
        return
    if active is None:
        (members,) = _processes(scope, ())
        agreed(world, members, told, told)
        return
    groups = _processes(scope, rest)
    for group in sorted(active):
        agreed(world, groups[group], told, told)


@memoized(most=1 << 8)
def _processes(scope: Scope, rest: Axes) -> list[Members]:
    """Return for each position along some axes the processes that have devices there."""
    names = scope.mesh.axis_names
    places = [names.index(a) for a in rest]
    order = [*places, *(i for i in range(len(names)) if i not in places)]
    devices = scope.mesh.devices.transpose(order)
    rows = devices.reshape(scope.count(rest), -1).tolist()
    return [tuple(sorted({d.process_index for d in row})) for row in rows]
