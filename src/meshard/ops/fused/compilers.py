"""The door to compilers of fused work: what one can do, and which is chosen.

NumPy runs everything; a compiler that the setting ``jit_compiler`` names may take over what jit
fuses on large blocks. Compilers are entry points of the group ``meshard.compilers``, of this
package or of others, and loaded when they are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meshard.algebra.world import config
from meshard.ops.engine.row import Dtype, Params
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld

Work = Callable[..., Any]
"""An operation on the compiler's own arrays."""
Run = Callable[[RuntimeWorld, Sequence[Sequence[Any]]], list[list[Block]]]
"""From what each cell reads, blocks and numbers, to what it gives."""


class Compiler(Protocol):
    """Makes one program of several operations on one block."""

    def work(self, name: str, params: Params, dtype: Dtype) -> Work | None:
        """Return an operation as a function of the compiler's arrays; None if it shall not do it.

        Args:
            name: the operation.
            params: its parameters, the same on every block.
            dtype: the dtype of its result.
        """

    def program(self, f: Callable[..., list[Any]]) -> Run:
        """Return a function of the compiler's arrays, made of its works, as one that runs cells."""


def chosen() -> Compiler | None:
    """Return the compiler that the setting names; None for NumPy."""
    name = config.jit_compiler
    if name == "numpy":
        return None
    from importlib.metadata import entry_points  # slow to import

    (found,) = entry_points(group="meshard.compilers", name=name)
    compiler: Compiler = found.load()
    return compiler
