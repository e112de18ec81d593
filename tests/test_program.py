"""Programs print as listings that can be read: what runs, how it lies, what moves, and where."""

from __future__ import annotations

import re

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, mesh, put

V = np.arange(64.0).reshape(8, 8)


def listed(text):
    """Return the lines without line numbers and padding."""
    return [re.sub(r" +# test_program\.py:\d+", " #", line) for line in text.split("\n")]


def lowered(f, *args, **options):
    return listed(alone(lambda: meshard.jit(f, **options).lower(*(a() for a in args)).as_text()))


def rows():
    return put(V, "i")


def columns():
    return put(V, None, "i")


def test_a_traced_program_knows_nothing_of_devices():
    def f(x, n):
        return mnp.tanh(x * n).sum(axis=0)

    text = alone(lambda: str(meshard.jit(f).trace(rows(), 3)))
    assert listed(text) == [
        "f(a: float64[8,8], b: int):",
        "    c: float64[8,8] = multiply a b #",
        "    d: float64[8,8] = tanh c #",
        "    e: float64[8] = sum[axis=(0,)] d #",
        "    return e",
    ]


def test_what_runs_is_listed_with_what_moves():
    def f(x, y):
        return x + y

    assert lowered(f, rows, columns) == [
        "f(a: float64[8,8] P('i'), b: float64[8,8] P(None, 'i')):  # x, y",
        "    c: float64[8,8] P('i') = sharding_constraint[sharding=P('i')] b #; all-to-all i: 96 "
        "bytes to a device",
        "    d: float64[8,8] P('i') = add a c #",
        "    return d",
    ]


def test_bodies_of_loops_are_listed_as_they_run():
    def f(x):
        return lax.fori_loop(0, 3, lambda i, c: c - c.sum(), x)

    assert lowered(f, rows) == [
        "f(a: float64[8,8] P('i')):  # x",
        "    b: float64[8,8] P('i') = fori_loop 0 3 a #",
        "        body(c: int, d: float64[8,8] P('i')):",
        "            e: float64[] P() = sum[axis=(0, 1)] d #; all-reduce i: 12 bytes to a device",
        "            f: float64[8,8] P('i') = subtract d e #",
        "            return f",
        "    return b",
    ]


def test_bodies_of_shard_map_say_over_which_axes_values_vary():
    def f(x):
        over = meshard.shard_map(
            lambda v: lax.psum(v, "i"), mesh=mesh(), in_specs=P("i"), out_specs=P()
        )
        return over(x)

    text = lowered(f, rows)
    assert text[1].startswith("    b: float64[2,8] P() = shard_map[axes=(i, j), in_specs=(P('i'),)")
    assert text[2:5] == [
        "        body(c: float64[2,8]{V:i}):",
        "            d: float64[2,8] = psum[axes=(i,)] c #; all-reduce i: 192 bytes to a device",
        "            return d",
    ]


def test_many_arguments_have_a_line_each():
    names = ["query", "key", "value", "up", "down"]

    def f(w):
        total = 0
        for name in names:
            total = total + w[name]
        return total

    text = lowered(f, lambda: {n: put(V, "i", "j") for n in names})
    assert text[0] == "f("
    assert text[6] == "):"
    assert [line.partition("# ")[2] for line in text[1:6]] == [f"w[{n!r}]" for n in sorted(names)]


def test_results_that_are_asked_for_elsewhere_show_the_move():
    text = alone(
        lambda: (
            meshard.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh(), P()))
            .lower(rows())
            .as_text()
        )
    )
    assert "all-gather i: 384 bytes to a device" in text
    assert listed(text)[-1] == "    return c"


def test_what_reads_a_value_spreads_it() -> None:
    def f(x, s):
        return mnp.broadcast_to(mnp.reshape(s, (1, 1)), (4, 3)) * x, mnp.broadcast_to(s, (4, 3))

    x, s = mnp.arange(12.0).reshape(4, 3), mnp.asarray(2.0)
    program = meshard.jit(f).trace(x, s).program
    assert [e.name for e in program.eqns] == ["multiply", "broadcast_to"]
    for a, b in zip(meshard.jit(f)(x, s), f(x, s), strict=True):
        assert np.array_equal(a, b)


def test_a_result_keeps_the_shape_that_spreading_gave() -> None:
    def f(a, b):
        return mnp.broadcast_to(a, (4, 3)) + mnp.broadcast_to(b, (4, 3))

    a, b = mnp.arange(3.0), mnp.asarray(2.0)
    assert meshard.jit(f)(a, b).shape == (4, 3)
    assert np.array_equal(meshard.jit(f)(a, b), f(a, b))
