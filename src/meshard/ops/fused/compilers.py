"""The door to compilers of fused work: what one can do, and which is chosen.

NumPy runs everything; a compiler that the setting ``jit_compiler`` names may take over what jit
fuses on large blocks. Compilers are entry points of the group ``meshard.compilers``, of this
package or of others, and loaded when they are chosen.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from os.path import isabs
from pathlib import Path
from typing import Any, Protocol

from meshard.errors import ConfigError, did_you_mean
from meshard.ops.row import Dtype, Params
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld
from meshard.settings import Setting, one_of

Work = Callable[..., Any]
"""An operation on the compiler's own arrays."""
InputKind = tuple[tuple[int, ...], Dtype] | type[Any]
"""What a program reads: a block's shape and dtype, or the type of a number."""


class Run(Protocol):
    """A program of several operations."""

    def __call__(
        self,
        world: RuntimeWorld,
        cells: Sequence[Sequence[Any]],
        free: Sequence[Collection[int]] = (),
    ) -> list[list[Block]] | None:
        """Return what each cell gives; None if NumPy is to run it now.

        Args:
            world: whose memory and workers are used.
            cells: for each cell what it reads.
            free: for each cell the inputs whose blocks may be written over; none if not given.
        """

    def refusal(self, kinds: Sequence[InputKind]) -> str:
        """Return why NumPy runs it for a cell that reads these; nothing if it is compiled."""


_NEEDS = {"llvm": ("llvmlite", "LLVM", "fast"), "xla": ("jax", "JAX", "jax")}
"""For meshard's own compilers the package that each needs, its name, and the extra that has it."""


def _compiler(given: object) -> str:
    if given in ("auto", "numpy"):
        return str(given)
    from importlib.metadata import entry_points  # slow to import

    known = sorted({e.name for e in entry_points(group="meshard.compilers")})
    if not isinstance(given, str) or given not in known:
        raise ValueError(
            f"jit_compiler must be 'auto', 'numpy', or one of {', '.join(map(repr, known))}, which "
            f"then runs what jit fuses on large blocks; got {given!r}."
            f"{did_you_mean(given, ('auto', 'numpy', *known))}"
        )
    package, name, extra = _NEEDS.get(given, ("", "", ""))
    if package and find_spec(package) is None:
        raise ConfigError(
            f"config: jit_compiler {given!r} needs {name}, which is not installed. Install it "
            f'with: pip install "meshard[{extra}]"'
        )
    return given


JIT_COMPILER: Setting[str] = Setting(
    "jit_compiler", "auto", "'auto', 'numpy', 'llvm' or 'xla'", _compiler
)
"""What runs the operations that jit fuses, on large blocks; auto is LLVM where it is installed."""


JIT_MATH: Setting[str] = Setting("jit_math", "exact", *one_of("exact", "fast"))
"""Whether compiled transcendental functions have NumPy's bits, or are faster, within 2 ulp."""


def _folder(given: object) -> str | None:
    if given is None or (isinstance(given, str) and isabs(given) and given.isprintable()):
        return given
    raise ValueError


CACHE_DIR: Setting[str | None] = Setting(
    "cache_dir", None, "the absolute path of a folder", _folder
)
"""Where compiled programs are kept; None for a folder of the user's cache."""


def cache_folder() -> Path | None:
    """Return the folder of compiled programs; None if there is no place for it."""
    if CACHE_DIR.value is not None:
        return Path(CACHE_DIR.value)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "meshard"
    except RuntimeError:
        return None


class Compiler(Protocol):
    """Makes one program of several operations on one block.

    Attributes:
        name: how it is called where it is told who runs what.
    """

    name: str

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
    """Return the compiler that the setting names; None for NumPy.

    A compiler that cannot be loaded is told of once, and NumPy goes on.
    """
    name = JIT_COMPILER.value
    if name == "auto":
        name = "numpy" if find_spec("llvmlite") is None else "llvm"
    return None if name == "numpy" else loaded(name)


@cache
def loaded(name: str) -> Compiler | None:
    """Return a compiler; None, after a warning, if it cannot be loaded."""
    from importlib.metadata import entry_points  # slow to import

    try:
        (found,) = entry_points(group="meshard.compilers", name=name)
        compiler: Compiler = found.load()
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:
        warnings.warn(
            f"meshard: jit_compiler {name!r} cannot be loaded ({type(error).__name__}: {error}); "
            f"NumPy runs what it would have run.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return compiler


def runner_text(compiler: Compiler, run: Run, cells: Iterable[Sequence[InputKind]]) -> str:
    """Return who runs a program: the compiler's name, or NumPy and why."""
    for kinds in dict.fromkeys(map(tuple, cells)):
        told = run.refusal(kinds)
        if told:
            return f"NumPy: {told}"
    return compiler.name
