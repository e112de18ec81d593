"""The door to compilers of fused work: what one can do, and which is chosen.

NumPy runs everything; a compiler that the setting ``jit_compiler`` names may take over what jit
fuses on large blocks. Compilers are entry points of the group ``meshard.compilers``, of this
package or of others, and loaded when they are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from meshard.errors import ConfigError
from meshard.ops.row import Dtype, Params
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld
from meshard.settings import Setting

Work = Callable[..., Any]
"""An operation on the compiler's own arrays."""
Run = Callable[[RuntimeWorld, Sequence[Sequence[Any]]], list[list[Block]]]
"""From what each cell reads, blocks and numbers, to what it gives."""


def _compiler(given: object) -> str:
    if given == "numpy":
        return "numpy"
    from importlib.metadata import entry_points  # slow to import

    known = sorted({e.name for e in entry_points(group="meshard.compilers")})
    if not isinstance(given, str) or given not in known:
        raise ValueError(
            f"jit_compiler must be 'numpy', or one of {', '.join(map(repr, known))}, which then "
            f"runs what jit fuses on large blocks; got {given!r}."
        )
    if given == "xla" and find_spec("jax") is None:
        raise ConfigError(
            "config: jit_compiler 'xla' needs JAX, which is not installed. Install it with: "
            'pip install "meshard[jax]"'
        )
    return given


JIT_COMPILER: Setting[str] = Setting("jit_compiler", "numpy", "'numpy' or 'xla'", _compiler)
"""What runs the operations that jit fuses, on large blocks."""


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
    name = JIT_COMPILER.value
    if name == "numpy":
        return None
    from importlib.metadata import entry_points  # slow to import

    (found,) = entry_points(group="meshard.compilers", name=name)
    compiler: Compiler = found.load()
    return compiler
