"""What processes agree on when they run programs.

In: a program. Out: the processes of its arrays, and what all of them must agree on.
"""

from __future__ import annotations

from typing import Any

from meshard.runtime.processes.canonical import described
from meshard.runtime.types import ArrayType
from meshard.transforms.lowering.executable import Executable, turns
from meshard.transforms.program.program import Program

Members = tuple[int, ...]


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
