"""What processes agree on when they run collectives and programs.

In: a collective of a body, and the groups of devices that take part; or a program. Out: a step for
each set of processes whose devices do: all of the mesh, or under a condition those of each group by
itself; or what all processes of a program's arrays must agree on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from meshard.runtime.agree import agreed
from meshard.runtime.memo import memoized
from meshard.runtime.processes.canonical import described
from meshard.runtime.types import ArrayType
from meshard.transforms.body.scope import Scope
from meshard.transforms.lowering.executable import Executable, turns
from meshard.transforms.program.program import Program

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


def account_of_program(executable: Executable, traced: Program) -> tuple[Members, str]:
    """Return the processes of a program's arrays, and what must be the same on all of them.

    That is how its arrays are laid out, what was traced, and what passes between devices in which
    order. The order of the steps that need nobody else may differ: it depends on the cells that a
    process has.
    """
    kinds: list[Any] = [*executable.inputs, *executable.returns]
    arrays = [k for k in kinds if isinstance(k, ArrayType) and not k.unplaced]
    members = {d.process_index for k in arrays for d in k.sharding.device_order}
    exact = [
        described(k, exact=True) if isinstance(k, ArrayType) else k.__qualname__ for k in kinds
    ]
    # Without the function's name and the lines, which may differ.
    lines = str(traced).partition("(")[2].splitlines()
    bare = [(line.rpartition("  # ")[0] or line).rstrip() for line in lines]
    moves = [
        f"{w.kind} {' '.join(w.axes)} {w.array}"
        for step, _ in turns(executable)
        for w in step.wires
    ]
    return tuple(sorted(members)), "\n".join([*exact, *bare, *moves])


@memoized(most=1 << 8)
def _processes(scope: Scope, rest: Axes) -> list[Members]:
    """Return for each position along some axes the processes that have devices there."""
    names = scope.mesh.axis_names
    places = [names.index(a) for a in rest]
    order = [*places, *(i for i in range(len(names)) if i not in places)]
    devices = scope.mesh.devices.transpose(order)
    rows = devices.reshape(scope.count(rest), -1).tolist()
    return [tuple(sorted({d.process_index for d in row})) for row in rows]
