"""What gradients keep: no longer than needed, no more than needed, and nothing in cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax, nn
from meshard.errors import DerivativeError
from meshard.runtime.array.array import Array
from meshard.sharding import P
from tests.worlds import mesh


@pytest.fixture(scope="module", autouse=True)
def nothing_older_is_walked() -> None:
    """Hide what is there already from the collector: each test would walk it several times."""
    gc.collect()
    gc.freeze()


def alive() -> int:
    """Return how many arrays there are."""
    return sum(type(x) is Array for x in gc.get_objects())


def f(x: Any) -> Any:
    return mnp.sum(mnp.tanh(mnp.sin(x) @ x))


jitted = meshard.jit(f)


def mapped(x: Any) -> Any:
    body = meshard.shard_map(
        lambda t: mnp.sin(t) * lax.psum(t, "i"), mesh=mesh(), in_specs=P("i"), out_specs=P("i")
    )
    return mnp.sum(body(x))


def scanned(x: Any) -> Any:
    return mnp.sum(lax.scan(lambda c, y: (mnp.sin(c) * y, c), x[0], x)[1])


def closing(x: Any) -> Any:
    inner = meshard.jit(lambda y: mnp.sin(y) * x)
    return mnp.sum(inner(x) + inner(2 * x))


def failing(x: Any) -> Any:
    y = mnp.sin(x) @ x
    raise KeyError(y.shape)


def refused(x: Any) -> Any:
    y = mnp.sin(x)
    return mnp.sum(lax.while_loop(lambda v: v.sum() < 10, lambda v: v * 2, y))


@meshard.custom_vjp
def custom(x: Any) -> Any:
    return mnp.sin(x)


custom.defvjp(lambda x: (mnp.sin(x), x), lambda kept, g: (g * mnp.cos(kept),))

CALLS: dict[str, Callable[[Any], Any]] = {
    "grad": meshard.grad(f),
    "grad of jit": meshard.grad(jitted),
    "jit of grad": lambda x: meshard.jit(meshard.grad(f))(x),
    "vjp": lambda x: meshard.vjp(f, x)[1](1.0),
    "vjp of jit": lambda x: meshard.vjp(jitted, x)[1](1.0),
    "jvp": lambda x: meshard.jvp(jitted, (x,), (x,)),
    "linearize": lambda x: meshard.linearize(jitted, x)[1](x),
    "shard_map": meshard.grad(mapped),
    "scan": meshard.grad(scanned),
    "remat": meshard.grad(meshard.remat(f)),
    "custom_vjp": meshard.grad(lambda x: mnp.sum(custom(x))),
    "closure": meshard.grad(closing),
    "second": meshard.grad(lambda x: mnp.sum(meshard.grad(f)(x))),
    "vmap": lambda x: meshard.vmap(meshard.grad(lambda r: mnp.sum(r**2)))(x),
    "an error inside": meshard.grad(failing),
    "a refusal": meshard.grad(refused),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_waits_for_the_garbage_collector(name: str) -> None:
    def call() -> None:
        with contextlib.suppress(KeyError, DerivativeError):
            CALLS[name](x)

    x = mnp.asarray(np.random.default_rng(0).normal(size=(8, 8)))
    call()
    call()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        call()
        call()
        assert alive() == before
    finally:
        gc.enable()


def test_the_way_back_lets_go_of_what_it_has_passed() -> None:
    """At its end, which is the beginning of the function, next to nothing is left."""
    found = {}

    def chain(way: str) -> Callable[[Any], Any]:
        @meshard.custom_vjp
        def first(x: Any) -> Any:
            return x

        def back(_: None, g: Any) -> Any:
            found[way] = alive()
            return (g,)

        first.defvjp(lambda x: (x, None), back)

        def function(x: Any) -> Any:
            y = first(x)
            for _ in range(30):
                y = mnp.sin(y) * y
            return mnp.sum(y)

        return function

    x = mnp.ones(4)
    gc.collect()
    before = alive()
    meshard.grad(chain("grad"))(x)
    meshard.vjp(chain("vjp"), x)[1](1.0)  # it may be called again
    assert found["grad"] - before < 10 < 60 < found["vjp"] - before


def temporaries(f: Callable[..., Any], *args: Any) -> int:
    analysis = meshard.jit(f).lower(*args).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes)


def test_slopes_are_computed_where_they_are_used() -> None:
    """Not where they could be: the way there keeps its own values, and one of each."""
    n = 512
    x, w = mnp.ones((n, n)), mnp.ones((n, n))

    def attention(w: Any) -> Any:
        return mnp.sum((nn.softmax(x @ w) @ w) ** 2)

    forward, back = temporaries(attention, w), temporaries(meshard.grad(attention), w)
    assert back <= forward + 3 * 8 * n * n + 64 * n
    text = str(meshard.jit(meshard.grad(attention)).lower(w).as_text())
    assert text.count("= equal ") == 0, "the maxima of softmax have no slope"


def test_a_seed_is_not_a_large_constant() -> None:
    x = mnp.ones((256, 256))
    program = meshard.jit(meshard.grad(lambda x: mnp.sum(x**2))).trace(x).program
    assert program.captured == ()
    assert [e.name for e in program.eqns if e.name in ("broadcast_to", "asarray")] == []
