"""Operations that public functions are made of, recorded while these run, for laws over all rows.

`sites` yields every operation that a valid call of each public array function binds, with its
operands; the laws then put other values of the same shapes in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax, random
from meshard.errors import MeshardError
from meshard.ops.engine.eager import EAGER
from meshard.ops.linalg.triangular import solve_triangular
from meshard.runtime.doors import Interpreter, Params, bind, interpreting
from tests import odd_array_calls

SHAPES = ((4, 4), (3, 5), (0, 3), (2, 1))
"""What the matrices in the calls are of; not every function takes each."""


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: the row.
        params: its parameters.
        operands: arrays as NumPy arrays, and numbers.
    """

    name: str
    params: Params
    operands: tuple[Any, ...]

    def __call__(self, *operands: Any) -> list[Any]:
        """Bind it to other operands; return its results."""
        found = bind(self.name, *operands, **dict(self.params))
        return list(found) if isinstance(found, tuple) else [found]

    def cast(self, dtype: Any) -> Operation:
        """Return it with the dtype among its parameters that was its operand's replaced."""
        own = [x.dtype for x in self.operands if isinstance(x, np.ndarray)]
        params = tuple([(k, dtype if k == "dtype" and v in own else v) for k, v in self.params])
        return Operation(self.name, params, self.operands)

    def key(self) -> tuple[Any, ...]:
        """Return what tells it from others: all but the values of arrays."""
        return self.name, self.params, tuple([_type(x) for x in self.operands])


def _type(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, np.ndarray) else x


@dataclass
class Recording(Interpreter):
    """Runs operations at once, and keeps the first of each kind."""

    layouts_known = True
    found: dict[tuple[Any, ...], Operation] = field(default_factory=dict)

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Run an operation."""
        given = [
            x if isinstance(x, (int, float, complex)) else np.asarray(x)
            for x in operands
            if not str(getattr(x, "dtype", "")).startswith("key")
        ]
        if len(given) == len(operands):
            operation = Operation(name, params, tuple(given))
            self.found.setdefault(operation.key(), operation)
        return EAGER.run(name, operands, params)


def _more() -> Iterator[Callable[[], Any]]:
    """Yield calls for rows that the others do not reach."""
    x, v = mnp.asarray(np.arange(12.0).reshape(3, 4)), mnp.asarray(np.arange(4.0) / 5 + 0.1)
    i, key = mnp.asarray([2, 0, 2]), random.key(0)
    yield lambda: mnp.ravel(x)
    yield lambda: mnp.clip(v, 0.2, 0.5)
    yield lambda: mnp.clip(x, v, 0.5)
    yield lambda: mnp.linalg.qr(x.T, mode="r")
    yield lambda: mnp.linalg.svd(x, full_matrices=False)
    yield lambda: mnp.linalg.eigh(x.T @ x, UPLO="U")
    yield lambda: mnp.linalg.cholesky(x[:, :3] @ x[:, :3].T + mnp.eye(3), upper=True)
    yield lambda: mnp.linalg.solve(mnp.eye(3) + 1, x)
    yield lambda: [solve_triangular(mnp.eye(3) + 1, x, lower=lower) for lower in (True, False)]
    yield lambda: lax.dynamic_slice(x, (mnp.asarray(1), 0), (2, 3))
    yield lambda: lax.dynamic_update_slice(x, x[:2, :2], (mnp.asarray(1), 1))
    yield lambda: [getattr(x.at[i], how)(x[i]) for how in ("set", "add", "subtract", "get")[:3]]
    yield lambda: [getattr(x.at[:, i], how)(1.5) for how in ("set", "add", "multiply", "min")]
    yield lambda: [x[i], x[:, i], x[i, i], x[1:, ::2], x[::-1], x[None, :, 1], x[i, :, None]]
    yield lambda: [x.at[1:, ::2].set(0.5), x.at[1].add(v), mnp.take(x, [0, 2, 2], 1)]
    yield lambda: [mnp.percentile(v, 30), mnp.quantile(x, v, axis=1), mnp.median(x, 0)]
    yield lambda: [mnp.einsum("ii->i", x[:, :3]), mnp.einsum("iij->j", mnp.stack([x[:2], x[:2]]))]
    yield lambda: [mnp.einsum("bij,bjk->bik", x[None], x.T[None]), mnp.einsum("i,j->ij", v, v)]
    yield lambda: [mnp.tile(x, (2, 3)), mnp.repeat(x, 2, 1), mnp.pad(x, 1), mnp.diag(v, 1)]
    yield lambda: [mnp.diagonal(x, 1), mnp.tril(x, -1), mnp.triu(x, 1), mnp.diag(v, -2)]
    yield lambda: [mnp.max(x, (0, 1)), mnp.prod(x, 1, keepdims=True), mnp.sum(x, 0, keepdims=True)]
    yield lambda: [mnp.interp(x, v, v, left=1.0), mnp.interp(x, v, v), lax.top_k(x, 2)]
    yield lambda: [lax.reduce_window(x, -np.inf, lax.max, (2, 2))]
    yield lambda: lax.reduce_window(x, 0.0, lax.add, (2, 1), (2, 1))
    # parts of what is put off until layouts are known
    rows = {"terms": ("n s0", "k0", "n t0"), "dtype": None}
    yield lambda: bind("convolve_back", x, v[:2], steps=((1,), (1,)), sizes=(5,), **rows)
    yield lambda: bind("convolve_back", x, v[:2], steps=((2,), (1,)), sizes=(8,), **rows)
    yield lambda: bind("ragged_outer", x, x, mnp.asarray([1, 2]), dtype=None)
    yield lambda: bind("runs", x, dims=((0, 5, ((0, 2, 1),)),))
    yield lambda: bind("tile_runs", x, dims=((0, 5, ((0, 2, 0), (3, 2, 1))),))
    yield lambda: bind("runs_like", x, x, dims=((0, ((1, 2, 0),)),))
    yield lambda: [mnp.fft.rfft(x, 5), mnp.fft.irfft(x, 5), mnp.fft.fft(x, 3, norm="ortho")]
    yield lambda: [mnp.fft.ifft(x, 6), mnp.fft.irfft(x), mnp.fft.hfft(x), mnp.fft.rfft2(x)]
    yield lambda: [mnp.sort(x, descending=True), mnp.partition(x, 1), mnp.concatenate([x, x[:1]])]
    yield lambda: [mnp.roll(x, (1, -2), (0, 1)), mnp.flip(x), mnp.moveaxis(x, 0, 1)]
    for name in ["rayleigh", "lognormal", "triangular", "truncated_normal", "wald", "weibull_min"]:
        yield lambda name=name: _drawn(name, key, v[:3] + 1)
    yield lambda: random.double_sided_maxwell(key, v, v + 1, (4,))
    yield lambda: [random.uniform(key, (4,), minval=v, maxval=v + 1), random.pareto(key, v + 1)]
    yield lambda: [random.categorical(key, x, 1), random.choice(key, v, (2,), p=v / v.sum())]
    yield lambda: [random.choice(key, v, (2,), False, v / v.sum()), random.permutation(key, x)]


def _drawn(name: str, key: Any, v: Any) -> Any:
    draw = getattr(random, name)
    return {
        "triangular": lambda: draw(key, v - 1, v, v + 1),
        "truncated_normal": lambda: draw(key, -v, v),
        "weibull_min": lambda: draw(key, v, v + 1),
        "wald": lambda: draw(key, v),
    }.get(name, lambda: draw(key, v))()


def operations() -> dict[str, list[Operation]]:
    """Return by row what public functions bind when they are called."""
    recording = Recording()
    before = odd_array_calls.SQUARE, odd_array_calls.LINE
    for shape in SHAPES:
        rng = np.random.default_rng(len(shape))
        if shape != SHAPES[0]:
            odd_array_calls.SQUARE = rng.uniform(0.2, 0.8, shape)
            odd_array_calls.LINE = np.sort(rng.uniform(0.2, 0.8, shape[1]))
        try:
            calls = [case.call for case in odd_array_calls.cases() if not case.in_mesh]
            for call in [*calls, *(_more() if shape == SHAPES[0] else ())]:
                with interpreting(recording), np.errstate(all="ignore"):
                    try:
                        call()
                    except (MeshardError, ValueError, IndexError, TypeError):
                        assert shape != SHAPES[0], call
        finally:
            odd_array_calls.SQUARE, odd_array_calls.LINE = before
    found: dict[str, list[Operation]] = {}
    for operation in recording.found.values():
        found.setdefault(operation.name, []).append(operation)
    return found


def laid_out(value: Any, rng: np.random.Generator) -> Any:
    """Return an array laid out on the 4 x 2 mesh by a drawn spec, unevenly where sizes say so."""
    mesh = meshard.make_mesh((4, 2), ("i", "j"))
    specs: Sequence[Any] = [(), ("i",), ("j",), (None, "i"), ("j", "i"), ("i", "j"), (("i", "j"),)]
    fits = [s for s in specs if len(s) <= np.ndim(value)]
    spec = meshard.P(*fits[rng.integers(len(fits))])
    how = meshard.sharding.NamedSharding(mesh, spec, uneven="balanced")
    return meshard.device_put(value, how)
