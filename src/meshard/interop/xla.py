"""XLA as the compiler of operations that jit fuses, if `jit_compiler` is ``"xla"``.

In: operations by name, and blocks. Out: one XLA program for all of them, run on each block in
place. Transcendental functions may differ from NumPy's in the last bits. Needs JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from meshard.ops.engine.decide import find_row
from meshard.ops.fused.compilers import InputKind, Run, Work
from meshard.ops.row import Dtype, MoveOp, Params
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld

_ALIGNED = 64
_REDUCTIONS = frozenset({"sum", "prod", "max", "min", "any", "all"})
_PLAIN = frozenset({"where", "erf", "erfc", "erf_inv", "lgamma", "digamma", "logistic"})
"""Operations besides NumPy's ufuncs that XLA has under the same name."""


def _translated(name: str, params: Params, dtype: Dtype) -> Work | None:
    """Return an operation as a function of JAX arrays; None if XLA does not take it over."""
    row = find_row(name)
    if row is None or dtype.kind not in "fiub":
        return None
    if name in _REDUCTIONS and not set(params) - {"axis", "keepdims", "dtype"}:
        return _reduction(name, params, dtype)
    make = _MADE.get(name)
    if make is not None:
        return make(params, dtype)
    if params or not (name in _PLAIN or (not isinstance(row, MoveOp) and row.style == "ufunc")):
        return None
    work = getattr(jnp, name, None) or getattr(jax.lax, name, None)
    return None if work is None else _elementwise(name, work, dtype)


def _elementwise(name: str, work: Callable[..., Any], dtype: Dtype) -> Work:
    if name == "floor_divide" and dtype.kind in "iu":
        return lambda x, y: _quotient(x, y).astype(dtype)
    if dtype.kind == "f" and name not in _PLAIN:
        return lambda *xs: work(*[_floating(x, dtype) for x in xs]).astype(dtype)
    return lambda *xs: work(*xs).astype(dtype)


def _extreme_place(find: Callable[..., Any], params: Params, dtype: Dtype) -> Work | None:
    """Return what finds the position of an extreme, along one dim; None along several."""
    if len(params["axis"]) != 1:
        return None
    (axis,), keep = params["axis"], params.get("keepdims", False)
    return lambda x: find(x, axis=axis, keepdims=keep).astype(dtype)


def _sliced(params: Params, dtype: Dtype) -> Work:
    index = tuple([slice(*s) for s in params["slices"]])
    dropped = tuple(params.get("dropped", ()))
    return lambda x: jnp.squeeze(x[index], dropped)


_MADE: dict[str, Callable[[Params, Dtype], Work | None]] = {
    "argmax": partial(_extreme_place, jnp.argmax),
    "argmin": partial(_extreme_place, jnp.argmin),
    "astype": lambda params, dtype: lambda x: x.astype(dtype),
    "broadcast_to": lambda params, dtype: lambda x: jnp.broadcast_to(x, params["shape"]),
    "concatenate": lambda params, dtype: lambda *xs: jnp.concatenate(xs, axis=params["axis"]),
    "contract": lambda params, dtype: (
        _contraction(params["rule"], dtype) if params.get("dtype") is None else None
    ),
    "reshape": lambda params, dtype: lambda x: jnp.reshape(x, params["shape"]),
    "slice": _sliced,
    "transpose": lambda params, dtype: lambda x: jnp.transpose(x, params["axes"]),
}
"""What makes the work of operations with parameters, from these and the result's dtype."""


def _floating(x: Any, dtype: Dtype) -> Any:
    """Return an operand of a float result as NumPy computes with it.

    NumPy converts integers to floats of the result's dtype; JAX converts them to the shortest float
    among the operands.
    """
    whole = isinstance(x, (jax.Array, np.ndarray, np.generic)) and x.dtype.kind in "iub"
    return jnp.asarray(x).astype(dtype) if whole else x


def _quotient(x: Any, y: Any) -> Any:
    """Return the quotient of integers, which is 0 where the divisor is 0, as in NumPy."""
    return jnp.where(y == 0, 0, jnp.floor_divide(x, jnp.where(y == 0, 1, y)))


def _reduction(name: str, params: Params, dtype: Dtype) -> Work:
    """Return a reduction that accumulates in the result's dtype or a wider one, like the kernel."""
    keywords = {k: params[k] for k in ("axis", "keepdims") if k in params}
    reduce = getattr(jnp, name)
    if name in ("sum", "prod"):
        return lambda x: reduce(x.astype(dtype), **keywords).astype(dtype)
    if name not in ("max", "min") or dtype.kind != "f":
        return lambda x: reduce(x, **keywords).astype(dtype)

    def extreme(x: Any) -> Any:
        # XLA's own leaves NaNs out on the processor, where NumPy's is NaN.
        missing = jnp.isnan(x).any(**keywords)
        return jnp.where(missing, jnp.nan, reduce(x, **keywords)).astype(dtype)

    return extreme


def _contraction(rule: str, dtype: Dtype) -> Work | None:
    """Return a contraction as an einsum; each factor is a letter."""
    if any(mark in rule for mark in "(!1.") or dtype.kind not in "f":
        return None
    letters: dict[str, str] = {}
    left, right = rule.split("->")
    terms = [
        "".join([letters.setdefault(f, chr(ord("a") + len(letters))) for f in term.split()])
        for term in (*left.split(","), right)
    ]
    if len(letters) > 26:
        return None
    text = f"{','.join(terms[:-1])}->{terms[-1]}"
    return lambda *xs: jnp.einsum(text, *xs, precision="highest").astype(dtype)


def _lent(block: Any) -> Any:
    """Return a block as a JAX array that reads it in place, if possible; a number as it is."""
    if not isinstance(block, np.ndarray):
        return block
    aligned = block.ctypes.data % _ALIGNED == 0 and block.flags.c_contiguous
    if aligned and block.flags.writeable and block.dtype != bool:
        return jax.dlpack.from_dlpack(block)
    return np.ascontiguousarray(block).reshape(block.shape)


@final
class _Program:
    """A jitted function of JAX arrays that runs cells."""

    def __init__(self, f: Callable[..., list[Any]], device: Any) -> None:
        self._jitted = jax.jit(f)
        self._device = device

    def __call__(
        self,
        world: RuntimeWorld,
        cells: Sequence[Sequence[Any]],
        free: Sequence[Collection[int]] = (),
    ) -> list[list[Block]]:
        """Return what each cell gives, in new memory."""
        results: list[list[Block]] = [[] for _ in cells]

        def task(number: int) -> None:
            with jax.enable_x64(True), jax.default_device(self._device):
                found = self._jitted(*map(_lent, cells[number]))
                results[number] = [np.from_dlpack(x) for x in found]

        world.workers.run([partial(task, number) for number in range(len(cells))])
        return results

    def refusal(self, kinds: Sequence[InputKind]) -> str:
        """Return nothing: XLA runs what it has taken."""
        return ""


@final
class Xla:
    """XLA on the host's processor."""

    name = "XLA"

    def __init__(self) -> None:
        self._device = jax.devices("cpu")[0]

    def work(self, name: str, params: Params, dtype: Dtype) -> Work | None:
        """Return an operation as a function of JAX arrays; None if XLA is not to run it."""
        return _translated(name, params, dtype)

    def program(self, f: Callable[..., list[Any]]) -> Run:
        """Return a function of JAX arrays as one that runs cells."""
        return _Program(f, self._device)


COMPILER = Xla()
