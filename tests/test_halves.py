"""Programs in two halves: what is kept between them, and that they are the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.transforms.program.halves import Halves, halved
from meshard.transforms.program.program import Program, evaluate

N = 8  # the elements of each value


def cut(early: int, late: int, results: int, f: Callable[..., Any]) -> tuple[Program, Halves]:
    """Trace a function of values, of which the last come late, and cut its program in two."""
    program = meshard.jit(f).trace(*[mnp.ones(N)] * (early + late)).program
    return program, halved(program, early, results)


def kept(halves: Halves) -> list[str]:
    return [v.str_short() for v in halves.variables]


FUNCTIONS: dict[str, tuple[int, int, int, Callable[..., Any], list[str]]] = {
    "an argument is enough": (1, 1, 1, lambda x, g: (mnp.sin(x), g * mnp.cos(x)), ["float64[8]"]),
    "a mask is smaller": (
        1, 1, 1,
        lambda x, g: (mnp.exp(mnp.sin(x)), mnp.where(mnp.sin(x) > 0, 1.0, 0.0) * g),
        ["bool[8]"],
    ),
    "a result is there already": (
        1, 1, 1, lambda x, g: (mnp.tanh(x), g * (1 - mnp.tanh(x) ** 2)), ["float64[8]"]
    ),
    "one value for two slopes": (
        1, 1, 1,
        lambda x, g: (
            mnp.exp(mnp.sin(x)), g * mnp.cos(mnp.sin(x)) + mnp.sqrt(g) * mnp.exp(-mnp.sin(x))
        ),
        ["float64[8]"],
    ),
    "a broadcast is done again": (
        1, 1, 1,
        lambda x, g: (
            mnp.exp(mnp.broadcast_to(mnp.sum(x), (N,))), g * mnp.broadcast_to(mnp.sum(x), (N,))
        ),
        ["float64[]"],
    ),
    "nothing is read": (1, 1, 1, lambda x, g: (mnp.sin(x), g * 2.0), []),
    "a number stays one": (1, 1, 1, lambda x, g: (x * 2, g * 3), []),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_kept(name: str) -> None:
    early, late, results, f, expected = FUNCTIONS[name]
    program, halves = cut(early, late, results, f)
    assert kept(halves) == expected, f"{program}\n{halves.first}\n{halves.second}"
    assert halves.separate


@pytest.mark.parametrize("name", FUNCTIONS)
def test_halves_are_the_whole(name: str) -> None:
    early, late, results, f, _ = FUNCTIONS[name]
    program, halves = cut(early, late, results, f)
    halves.first.check()
    halves.second.check()
    rng = np.random.default_rng(0)
    values = [mnp.asarray(rng.uniform(0.1, 1, N)) for _ in range(early + late)]
    expected = evaluate(program, (), values)
    first = evaluate(halves.first, (), values[:early])
    every = [*values[:early], *first]
    second = evaluate(halves.second, (), [*[every[i] for i in halves.kept], *values[early:]])
    for a, b in zip(expected, [*first[:results], *second], strict=True):
        assert np.array_equal(a, b)


def test_nothing_is_computed_twice() -> None:
    """But for what moves nothing and costs nothing."""
    for early, late, results, f, _ in FUNCTIONS.values():
        program, halves = cut(early, late, results, f)
        names = [e.name for half in (halves.first, halves.second) for e in half.eqns]
        twice = sorted(set(names)) if len(names) > len(program.eqns) else []
        assert not twice or "broadcast_to" in twice


def test_what_is_to_be_computed_again_waits() -> None:
    layer = meshard.remat(lambda x: mnp.sin(mnp.exp(x)))
    back = meshard.grad(lambda x: mnp.sum(layer(x)))
    program = (
        meshard.jit(lambda x, g: (mnp.sum(layer(x)), back(x) * g))
        .trace(mnp.ones(N), mnp.ones(N))
        .program
    )
    halves = halved(program, 1, 1)
    assert "= exp " in str(halves.first)
    assert str(halves.second).count("= exp ") == 1
    assert kept(halves) == ["float64[8]"]
