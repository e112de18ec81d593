"""What nobody reads is left out, in what calls hold too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import P
from tests.worlds import mesh


def scan(x: Any) -> Any:
    """Carry three values, of which the results need two; and give rows that nobody reads."""

    def step(carry: Any, row: Any) -> Any:
        a, b, c = carry
        return (a + b, b * row, c + mnp.exp(row)), (mnp.sin(a), mnp.cosh(row))

    (a, _, _), (rows, _) = lax.scan(step, (x[0], x[1], x[2]), x)
    return a, rows


def fori(x: Any) -> Any:
    def turn(i: Any, c: Any) -> Any:
        return c[0] + c[1] * i, c[1] * 2, mnp.exp(-mnp.abs(c[2]))

    return lax.fori_loop(0, 4, turn, (x, x, x))[0]


def mapped(x: Any) -> Any:
    def body(a: Any, b: Any) -> Any:
        return a * 2, lax.psum(mnp.exp(b), ("i", "j"))

    f = meshard.shard_map(body, mesh=mesh(), in_specs=P("i", "j"), out_specs=(P("i", "j"), P()))
    return f(x, x + 1)[0]


def switch(x: Any) -> Any:
    def first(y: Any) -> Any:
        return y * 2, mnp.exp(y)

    def second(y: Any) -> Any:
        return y - 1, mnp.exp(y * y)

    return lax.cond(x[0, 0] > 0, first, second, x)[0]


def loop_in_a_body(x: Any) -> Any:
    def body(a: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            return (lax.psum(carry[0], "i") * 0.1, lax.pmax(mnp.exp(-mnp.abs(carry[1])), "i")), None

        return lax.scan(step, (a, a), None, length=3)[0][0]

    return meshard.shard_map(body, mesh=mesh(), in_specs=P("i", "j"), out_specs=P("i", "j"))(x)


@pytest.mark.parametrize("f", [scan, fori, mapped, switch, loop_in_a_body])
def test_what_is_left_out(f: Callable[[Any], Any]) -> None:
    x = mnp.asarray(np.random.default_rng(0).normal(size=(8, 4)))
    text = str(meshard.jit(f).trace(x).program)
    for word in ("exp", "cosh", "pmax"):
        assert f"= {word}" not in text, text
    leaves = meshard.tree.leaves
    for a, b in zip(leaves(meshard.jit(f)(x)), leaves(f(x)), strict=True):
        assert np.array_equal(a, b)
    steps = str(meshard.jit(f).lower(x).as_text())
    assert "exp" not in steps


def test_what_is_carried_for_another_stays() -> None:
    """Each carry is read by the one before it, and none but the first is a result."""

    def f(x: Any) -> Any:
        def turn(_: int, c: Any) -> Any:
            return c[0] + c[1], c[1] + c[2], c[2] + c[3], c[3] * 2, c[0] * c[4]

        return lax.fori_loop(0, 6, turn, (x, x, x, x, x))[0]

    x = mnp.arange(1.0, 4.0)
    program = meshard.jit(f).trace(x).program
    (loop,) = [e for e in program.eqns if e.name == "fori_loop"]
    assert len(loop.outputs) == 4
    assert np.array_equal(meshard.jit(f)(x), f(x))


def test_the_way_back_of_a_linear_loop_keeps_nothing() -> None:
    """And communicates as much as the way there: nothing of it is done again."""
    right = [(k, k + 1) for k in range(3)]

    def body(x: Any) -> Any:
        def step(_: int, tile: Any) -> Any:
            edge = lax.ppermute(tile[-1:], "i", right)
            return tile + 0.1 * mnp.concatenate([edge, tile[:-1]])

        return lax.fori_loop(0, 5, step, x)

    f = meshard.shard_map(body, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
    back = meshard.jit(meshard.grad(lambda x: mnp.sum(f(x) * mnp.arange(8.0)[:, None])))
    x = mnp.ones((8, 3))
    loops = str(back.trace(x).program).count("= scan[")
    assert loops == 1, "the way there is left out, where its value is not asked for"
    with meshard.debug.ledger() as there:
        f(x)
    with meshard.debug.ledger() as again:
        back(x)
    assert again.total_bytes == there.total_bytes
