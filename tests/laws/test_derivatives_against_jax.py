"""Derivatives of functions that users write are those of JAX.

For each function of `tests/corpus.py`: its value, gradients with respect to all arguments,
tangents, second derivatives, gradients of a batch of examples, with and without jit. By default a
sample of the functions is tried, since JAX compiles each; the profile "thorough" tries all.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import meshard
import meshard.lax
import meshard.nn
import meshard.numpy as mnp
from meshard.errors import MeshardError
from meshard.runtime.trees import trees
from tests.corpus import ENTRIES, Entry
from tests.misuses import MISUSES
from tests.tracebacks import ROOT
from tests.transformed_calls import CALLS, DIFFERENT
from tests.worlds import whole

ALL = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SOME = [e for e in ENTRIES if ALL or crc32(e.name.encode()) % 3 == 0]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TRANSFORMATIONS = """
    checkpoint checkpoint_policies closure_convert custom_gradient custom_jvp custom_vjp grad
    hessian jacfwd jacrev jit jvp linear_transpose linearize value_and_grad vjp vmap
"""


def _named(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in TRANSFORMATIONS.split()}


@pytest.fixture(autouse=True)
def of_64_bits() -> Iterator[None]:
    """Let JAX compute in 64 bits."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield


OURS = SimpleNamespace(
    np=mnp, lax=meshard.lax, nn=meshard.nn, asarray=mnp.asarray, **_named(meshard)
)


def theirs() -> SimpleNamespace:
    """Return JAX by the same names."""
    jax = pytest.importorskip("jax")
    return SimpleNamespace(
        np=jax.numpy, lax=jax.lax, nn=jax.nn, asarray=jax.numpy.asarray, **_named(jax)
    )


def derivatives(m: Any, entry: Entry, jitted: bool) -> dict[str, Any]:
    """Return all derivatives of a function."""
    rng = np.random.default_rng(1)
    args = tuple([x if isinstance(x, float) else m.asarray(x) for x in entry.args])
    tangents = tuple([_direction(x, rng) for x in entry.args])
    moves = tuple([t if isinstance(t, float) else m.asarray(t) for t in tangents])
    batch = tuple([_batch(m, x, rng) for x in entry.args])
    every = tuple(range(len(args)))

    def f(*xs: Any) -> Any:
        return entry.function(m, *xs)

    def along(*xs: Any) -> Any:
        slopes = m.grad(f, every)(*xs)
        return sum((m.np.real(g) * np.real(t)).sum() for g, t in zip(slopes, tangents, strict=True))

    found: dict[str, Any] = {
        "value and gradient": lambda *xs: m.value_and_grad(f, every)(*xs),
        "tangent": lambda *xs: m.jvp(f, xs, moves),
        "gradients of a batch": lambda *_: m.vmap(m.grad(f, every))(*batch),
    }
    if entry.second:
        found["second derivative"] = lambda *xs: m.grad(along, every)(*xs)

    def all_of_them(*xs: Any) -> Any:
        return {k: g(*xs) for k, g in found.items()}

    return (m.jit(all_of_them) if jitted else all_of_them)(*args)


def _direction(x: Any, rng: np.random.Generator) -> Any:
    if isinstance(x, float):
        return 0.7
    t = rng.normal(size=x.shape)
    return (t + 1j * rng.normal(size=x.shape) if x.dtype.kind == "c" else t).astype(x.dtype)


def _batch(m: Any, x: Any, rng: np.random.Generator) -> Any:
    one = np.asarray(x)
    return m.asarray(np.stack([one, one * np.asarray(1.01, one.dtype)]))


def faults(entry: Entry, expected: Any, found: Any) -> list[str]:
    """Return in what derivatives differ."""
    wrong = []
    for what, values in expected.items():
        own = trees.leaves(found[what])
        others = trees.leaves(values)
        assert len(own) == len(others), what
        for i, (a, b) in enumerate(zip(own, others, strict=True)):
            a, b = whole(a), np.asarray(b)
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                wrong.append(f"{what} {i}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}")
            elif not np.allclose(
                _wide(a), _wide(b), entry.tolerance, entry.tolerance, equal_nan=True
            ):
                wrong.append(f"{what} {i}: {a} instead of {b}")
    return wrong


def _wide(x: Any) -> Any:
    return x if x.dtype.kind == "c" else x.astype(np.float64)


@pytest.mark.parametrize("entry", SOME, ids=lambda e: e.name)
def test_derivatives_are_those_of_jax(entry: Entry) -> None:
    expected = derivatives(theirs(), entry, True)
    with np.errstate(all="ignore"):
        assert faults(entry, expected, derivatives(OURS, entry, False)) == []
        assert faults(entry, expected, derivatives(OURS, entry, True)) == []


def _turns(m: Any, x: Any) -> Any:
    return m.lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] * x), (0, m.np.sin(x)))[1]


def _until(m: Any, x: Any) -> Any:
    return m.lax.while_loop(lambda y: m.np.sum(y) < 50.0, lambda y: y * m.np.abs(x) + 1.0, x)


def _counted(m: Any, x: Any) -> Any:
    return m.lax.fori_loop(0, m.np.asarray(3), lambda i, y: m.np.cos(y) * x + i, x)


@pytest.mark.parametrize("function", [_turns, _until, _counted])
def test_loops_forward(function: Any) -> None:
    """Loops whose turns are counted by values: tangents, columns, and batches of both."""
    x, t = np.array([1.5, 2.0, -1.2]), np.array([0.3, -1.0, 2.0])

    def found(m: Any) -> list[Any]:
        def f(y: Any) -> Any:
            return function(m, y)

        given, along = m.asarray(x), m.asarray(t)
        batch = m.asarray(np.stack([x, x * 2, x - 0.1]))
        _, slope = m.jvp(f, (given,), (along,))
        second = m.jvp(lambda y: m.jvp(f, (y,), (along,))[1], (given,), (along,))[1]
        columns = m.jacfwd(f)(given)
        return [slope, second, columns, m.vmap(m.jacfwd(f))(batch), m.jit(m.jacfwd(f))(given)]

    for a, b in zip(found(OURS), found(theirs()), strict=True):
        np.testing.assert_allclose(whole(a), np.asarray(b), rtol=1e-10, atol=1e-12)


OTHER_KINDS = {"custom_jvp none", "custom_vjp none", "vjp wrong dtype"}
"""Refused with an error of another class."""


@pytest.mark.parametrize("name", MISUSES)
def test_what_jax_refuses_is_refused(name: str) -> None:
    def ended(m: Any) -> Exception | None:
        try:
            MISUSES[name](m)
        except Exception as error:
            return error
        return None

    with np.errstate(all="ignore"):
        expected, found = ended(theirs()), ended(OURS)
    if expected is None:
        assert found is None
        return
    assert isinstance(found, MeshardError), repr(found)
    assert len(str(found)) > 40
    kinds = (TypeError, ValueError, NotImplementedError)
    assert name in OTHER_KINDS or any(
        isinstance(expected, k) == isinstance(found, k) for k in kinds
    )


def _ended(m: Any, call: Any) -> Any:
    """Return what a call gives, or the error that it raises."""
    try:
        with np.errstate(all="ignore"):
            return call(m)
    except Exception as error:
        return error


def _leaves(x: Any) -> list[Any]:
    """Return the leaves of a tree in its order, with its structure."""
    if isinstance(x, dict):
        return ["{", *[y for k in sorted(x) for y in (k, *_leaves(x[k]))], "}"]
    if isinstance(x, (tuple, list)):
        return [type(x).__name__, *[y for e in x for y in _leaves(e)], ")"]
    return [x]


def difference(found: Any, expected: Any) -> str | None:
    """Return in what the end of a call differs from that in JAX."""
    if isinstance(expected, Exception):
        if not isinstance(found, Exception):
            return f"gives {found}, where JAX refuses: {expected}"
        if isinstance(found, MeshardError):
            return None if len(str(found)) > 40 else f"short: {found}"
        ours = traceback.extract_tb(found.__traceback__)[-1].filename
        return f"raised at {ours}: {found!r}" if ours.startswith(ROOT) else None
    if isinstance(found, Exception):
        return f"refused: {found}"
    own, others = _leaves(found), _leaves(expected)
    if len(own) != len(others):
        return f"{own} instead of {others}"
    for a, b in zip(own, others, strict=True):
        if a is None or isinstance(a, str):
            if a != b:
                return f"{a} instead of {b}"
            continue
        x, y = whole(a) if isinstance(a, meshard.Array) else np.asarray(a), np.asarray(b)
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{x.dtype}{x.shape} instead of {y.dtype}{y.shape}"
        if x.dtype.kind != "V" and not np.allclose(_wide(x), _wide(y), 1e-6, equal_nan=True):
            return f"{x} instead of {y}"
    return None


def test_calls_give_what_jax_gives_or_are_refused_alike() -> None:
    ends = {k: difference(_ended(OURS, f), _ended(theirs(), f)) for k, f in CALLS.items()}
    assert {k: d for k, d in ends.items() if d is not None and k not in DIFFERENT} == {}
    assert {k for k in DIFFERENT if ends[k] is None} == set()
