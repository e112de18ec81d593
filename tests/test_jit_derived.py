"""Jitted functions that are differentiated where code runs at once: compiled, there and back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.lax
import meshard.nn
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ConcretizationError, DerivativeError, IncompatibleDevicesError
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from meshard.transforms.jit.derived import JittedCall, _Split
from meshard.transforms.jit.jit import Jitted
from meshard.transforms.jit.stages import ProgramEntry
from tests.corpus import ENTRIES, Entry
from tests.worlds import everywhere, mesh, whole

MODULES = SimpleNamespace(
    **{name: getattr(meshard, name) for name in meshard.__all__ if name != "numpy"}, np=mnp
)
SOME = [e for e in ENTRIES if e.name != "nested"][::4]


def placed(x: Any, *spec: Any) -> Any:
    return meshard.device_put(x, NamedSharding(mesh(), P(*spec)))


def split_of(f: Jitted[..., Any]) -> _Split:
    """Return the two programs of the only function that was differentiated."""
    programs = here().programs[f]
    traces = [*programs.traces.values(), *programs.nested.values()]
    calls = [t.program.made[JittedCall] for t in traces if JittedCall in t.program.made]
    (found,) = [x for c in calls for x in c.made.values() if isinstance(x, _Split)]
    return found


@pytest.mark.parametrize("entry", SOME, ids=lambda e: e.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_bits_of_a_gradient(entry: Entry) -> None:
    """It does not matter what is jitted: nothing, the function, or its gradient."""
    numbers = tuple(range(len(entry.args)))

    def f(*xs: Any) -> Any:
        return entry.function(MODULES, *xs)

    def both(f: Any) -> Any:
        return meshard.value_and_grad(f, numbers)

    with np.errstate(all="ignore"):
        found = [g(*entry.args) for g in (both(f), both(meshard.jit(f)), meshard.jit(both(f)))]
    first, *others = [[whole(value), *map(whole, slopes)] for value, slopes in found]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())


def test_a_function_is_traced_once() -> None:
    traced = []

    @meshard.jit
    def f(x: Any) -> Any:
        traced.append(1)
        return mnp.sum(mnp.sin(x) ** 3)

    x = mnp.arange(4.0)
    t = mnp.ones(4)
    for _ in range(2):
        f(x)
        meshard.grad(f)(x)
        meshard.value_and_grad(f)(x)
        meshard.vjp(f, x)[1](1.0)
        meshard.jvp(f, (x,), (t,))
        meshard.linearize(f, x)[1](t)
        meshard.hessian(f)(x)
        meshard.grad(lambda y: meshard.grad(f)(y)[0])(x)
    assert len(traced) == 1


def test_nothing_is_made_again_for_a_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    @meshard.jit
    def layer(w: Any, x: Any) -> Any:
        return mnp.tanh(x @ w)

    def loss(w: Any, x: Any) -> Any:
        return mnp.sum(layer(w, layer(w, x)) ** 2)

    w, x = placed(np.eye(4), None, "j"), placed(np.ones((8, 4)), "i")
    expected = meshard.grad(loss)(w, x)
    monkeypatch.setattr(ProgramEntry, "__init__", None)
    monkeypatch.setattr("meshard.transforms.jit.derived.traced", None)
    assert np.array_equal(meshard.grad(loss)(w, x), expected)


def test_what_is_kept_is_what_is_needed() -> None:
    """A mask of bools instead of numbers, an argument instead of what was made of it."""

    @meshard.jit
    def f(w: Any, x: Any) -> Any:
        return mnp.sum(mnp.where(x @ w > 0, x @ w, 0.0))

    w, x = mnp.ones((4, 3)), mnp.ones((8, 4))
    meshard.grad(f)(w, x)
    split = split_of(f)
    kept = [v.str_short() for v in split._variables]
    assert kept == ["float64[8,4]", "bool[8,3]"]
    second, _ = split._seconds[True,] or (None, None)
    assert second is not None
    assert str(second.program).count("= contract[") == 1, "the gradient of x was not asked for"


def test_zeros_are_not_computed_with() -> None:
    @meshard.jit
    def f(w: Any, x: Any) -> Any:
        y = mnp.sin(x @ w)
        return mnp.sum(y), {"large": mnp.exp(y) @ y.T, "whole": mnp.arange(3)}

    w, x = mnp.ones((4, 3)), mnp.ones((8, 4))
    (value, more), slope = meshard.value_and_grad(f, has_aux=True)(w, x)
    assert np.array_equal(slope, meshard.grad(lambda w: mnp.sum(mnp.sin(x @ w)))(w))
    assert more["large"].shape == (8, 8)
    assert more["whole"].tolist() == [0, 1, 2]
    assert float(value) == float(f(w, x)[0])
    seconds = split_of(f)._seconds
    texts = {pattern: str(s[0].program) for pattern, s in seconds.items() if s is not None}
    assert texts[True, True, False].count("= contract[") == 3
    assert texts[True, False, False].count("= contract[") == 1


def test_the_forward_pass_communicates_once() -> None:
    def records(f: Callable[..., Any], *args: Any) -> list[str]:
        with meshard.debug.ledger() as log:
            f(*args)
        return sorted(r.kind for r in log.records)

    def body() -> list[list[str]]:
        w, x = placed(np.eye(8), "j"), placed(np.ones((8, 8)), "i", "j")

        def f(w: Any, x: Any) -> Any:
            return lax.psum(mnp.tanh(lax.psum(x @ w, "j")).sum(), ("i", "j"))

        mapped = meshard.shard_map(f, mesh=mesh(), in_specs=(P("j"), P("i", "j")), out_specs=P())
        return [
            records(mapped, w, x),
            records(meshard.grad(mapped), w, x),
            records(meshard.grad(meshard.jit(mapped)), w, x),
            records(meshard.jit(meshard.grad(mapped)), w, x),
            records(lambda w: meshard.jvp(lambda w: mapped(w, x), (w,), (w,)), w),
        ]

    forward, plain, derived, whole, pushed = everywhere(body)
    assert len(forward) == 2
    # One more, for the gradient of what all devices along i share.
    assert plain == derived == [*forward, "all-reduce"]
    assert whole == forward, "the value is not asked for, so that nothing is summed for it"
    assert len(pushed) == 2 * len(forward)


def test_layouts_are_those_of_arguments() -> None:
    def body() -> list[Any]:
        w, x = placed(np.arange(32.0).reshape(4, 8) / 9, None, "j"), placed(np.ones((8, 4)), "i")
        f = meshard.jit(lambda w, x: mnp.sum(mnp.sin(x @ w)))
        g = meshard.grad(f, (0, 1))(w, x)
        assert [v.sharding.spec for v in g] == [P(None, "j"), P("i")]
        return [whole(v) for v in g]

    everywhere(body)


def test_options_of_jit_hold() -> None:
    x = mnp.arange(8.0)
    rows = NamedSharding(mesh(), P("i"))

    def f(power: int, x: Any) -> Any:
        return mnp.sum(x**power) * mnp.ones(8)

    laid = meshard.jit(f, static_argnums=0, in_shardings=rows, out_shardings=rows)
    value, back = meshard.vjp(lambda x: laid(3, x), x)
    assert value.sharding == rows
    assert back(mnp.ones(8))[0].tolist() == (8 * 3 * np.arange(8.0) ** 2).tolist()
    given = meshard.jit(lambda x: mnp.sum(x**2), donate_argnums=0)
    assert meshard.grad(given)(x).tolist() == (2 * np.arange(8.0)).tolist()
    assert x.tolist() == np.arange(8.0).tolist()  # it is needed for the way back


def test_what_a_function_closes_over_is_differentiated() -> None:
    count = []

    def f(w: Any) -> Any:
        @meshard.jit
        def inner(x: Any) -> Any:
            count.append(1)
            return x @ w

        return mnp.sum(inner(mnp.ones((2, 3))) * inner(2 * mnp.ones((2, 3))))

    w = mnp.arange(6.0).reshape(3, 2)
    expected = meshard.jit(meshard.grad(f))(w)
    count.clear()
    assert np.array_equal(meshard.grad(f)(w), expected)
    assert len(count) == 1


def test_a_function_of_constants_runs_as_it_does() -> None:
    seen = []

    @meshard.jit
    def constant(x: Any) -> Any:
        seen.append(1)
        return mnp.sum(x)

    x = mnp.ones(3)
    assert meshard.grad(lambda y: mnp.sum(y) * constant(x))(x).tolist() == [3.0] * 3
    assert constant(x) == 3.0
    assert len(seen) == 1
    assert not [k for t in here().programs[constant].traces.values() for k in t.program.made]


def test_second_derivatives_are_compiled_too() -> None:
    f = meshard.jit(lambda x: mnp.sum(mnp.sin(x) * x**2))
    x = mnp.arange(4.0)
    twice = meshard.grad(lambda x: mnp.sum(meshard.grad(f)(x) ** 2))
    plain = meshard.grad(lambda x: mnp.sum(meshard.grad(f._f)(x) ** 2))
    np.testing.assert_allclose(twice(x), plain(x), rtol=1e-14)
    split = split_of(f)
    second, _ = split._seconds[True,] or (None, None)
    assert second is not None
    inner = [x for call in (split.first, second) for x in call.program.made.values()]
    assert any(isinstance(x, _Split) for x in inner)


def test_refusals_name_the_function_and_its_line() -> None:
    @meshard.jit
    def f(x: Any) -> Any:
        return lax.while_loop(lambda v: v < 9, lambda v: 2 * v, x)

    with pytest.raises(DerivativeError, match=r"while_loop at .*test_jit_derived.py:\d+ cannot"):
        meshard.grad(f)(1.0)

    @meshard.jit
    def g(x: Any) -> Any:
        return x if x > 0 else -x

    with pytest.raises(ConcretizationError, match="traced by jit of 'g'"):
        meshard.grad(g)(1.0)
    one, other = (meshard.device_put(mnp.ones(3), d) for d in meshard.devices()[:2])
    h = meshard.jit(lambda a, b: mnp.sum(a * b))
    with pytest.raises(IncompatibleDevicesError, match=r"argument a, .* and argument b"):
        meshard.grad(h)(one, other)
