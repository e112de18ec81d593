"""Segments compiled by XLA, for who asks for it: one program for all operations of a cell.

In: the operations of a segment, and its blocks. Out: the results' blocks. XLA reads the blocks
where they are and fuses what NumPy does in several passes; its transcendental functions may differ
from NumPy's in the last bits. The setting ``jit_compiler`` chooses it; JAX must be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, final

import numpy as np

from meshard.runtime.array import Array
from meshard.runtime.world import RuntimeWorld

from .piecewise import Piecewise
from .segment_runs import Base

__all__ = ["Compiled", "is_there"]

_ALIGNED = 64
_REDUCTIONS = frozenset({"sum", "prod", "max", "min", "any", "all"})
_PLAIN = frozenset({"where", "erf", "erfc", "erf_inv", "lgamma", "digamma", "logistic"})
"""Operations besides NumPy's ufuncs that XLA has by the same name."""


def is_there() -> bool:
    """Whether JAX is installed."""
    return find_spec("jax") is not None


def _work(part: Piecewise) -> Callable[..., Any] | None:
    """Return what XLA is to do for an operation; None if it shall not."""
    import jax
    import jax.numpy

    op, output = part.plan.op, part.output
    params = dict(part.plan.cells[0].params)
    if output.dtype.kind not in "fiub":
        return None
    if op.name == "astype":
        return lambda x: x.astype(output.dtype)
    work = getattr(jax.numpy, op.name, None) or getattr(jax.lax, op.name, None)
    if work is None:
        return None
    if op.name in _REDUCTIONS:
        if set(params) - {"axis", "keepdims", "dtype"}:
            return None
        keywords = {k: params[k] for k in ("axis", "keepdims") if k in params}

        def reduced(x: Any) -> Any:
            return work(x, **keywords).astype(output.dtype)

        return reduced
    if (op.style != "ufunc" and op.name not in _PLAIN) or params:
        return None
    return lambda *xs: work(*xs).astype(output.dtype)


@final
class Compiled:
    """Runs a segment as one XLA program for each shape of cell.

    Attributes:
        possible: whether XLA can do all of it.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        work = [_work(p) for p, _ in base.work] if is_there() else [None]
        self.possible = all(w is not None for w in work)
        if not self.possible:
            return
        import jax

        steps = [(w, reads) for w, (_, reads) in zip(work, base.work, strict=True) if w is not None]
        inputs, fixed, out = len(base.inputs), base.fixed, base.out
        self._varying = [i for i in range(inputs) if i not in fixed]

        def program(*given: Any) -> list[Any]:
            values: list[Any] = [fixed.get(i) for i in range(inputs)]
            for i, x in zip(self._varying, given, strict=True):
                values[i] = x
            for do, reads in steps:
                values.append(do(*[values[i] for i in reads]))
            return [values[inputs + k] for k in out]

        self._device = jax.devices("cpu")[0]
        self._program = jax.jit(program)
        self._wide = jax.enable_x64

    def __call__(self, world: RuntimeWorld, operands: Sequence[Any]) -> list[Array]:
        """Return the wanted results."""
        import jax

        base = self._base
        values = {i: base.value(i, operands) for i in self._varying}
        places = {i: base.inputs[i].pieces for i in self._varying}
        found: list[list[Any]] = [[] for _ in base.out]
        with self._wide(True), jax.default_device(self._device):
            results = []
            for c in range(len(base.pieces)):
                given = []
                for i in self._varying:
                    pieces = places[i]
                    given.append(values[i] if pieces is None else _lent(values[i][pieces[c]]))
                results.append(self._program(*given))
            for cell in results:
                for k, block in enumerate(cell):
                    found[k].append(np.from_dlpack(block))
        return base.arrays(found)


def _lent(block: Any) -> Any:
    """Return a block as a JAX array that reads it where it is, if it can."""
    import jax

    if not isinstance(block, np.ndarray):
        return block
    aligned = block.ctypes.data % _ALIGNED == 0 and block.flags.c_contiguous
    if aligned and block.flags.writeable and block.dtype != bool:
        return jax.dlpack.from_dlpack(block)
    return np.ascontiguousarray(block)
