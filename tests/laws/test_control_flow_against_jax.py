"""Control flow in shard_map bodies does what JAX's does: values, and the axes they vary over.

No collective stands in code here that only some devices run: on CPU JAX waits for ever in one.
Those are compared with a model in `test_divergent_programs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.laws.test_shard_map_against_jax import Ours, Program, Theirs, same_as_jax
from tests.worlds import everywhere

MESH = ((4, 2), ("i", "j"), None)


def places(s: Any) -> Any:
    return s.lax.axis_index("i"), s.lax.axis_index("j")


def varying(s: Any, x: Any, axes: Any = ("i", "j")) -> Any:
    return s.lax.pvary(x, axes)


CONDITIONS: list[Program] = [
    lambda s, x: s.lax.cond(places(s)[0] % 2 == 0, lambda v: v * 2, lambda v: v + 100, x),
    lambda s, x: s.lax.cond(x[0] > 5, lambda v: v, lambda v: -v, x),
    lambda s, x: s.lax.cond(s.lax.psum(places(s)[0], "i") > 3, lambda v: v, lambda v: v * 3, x),
    lambda s, x: s.lax.cond(s.lax.pmax(x[0], ("i", "j")) > 3, lambda: 1.5, lambda: 2.5),
    lambda s, x: s.lax.switch(places(s)[0] - 1, [lambda v: v, lambda v: v * 2, lambda v: v * 3], x),
    lambda s, x: s.lax.switch(
        places(s)[0] * 2 + places(s)[1], [lambda v, n=n: v.at[n % 2].add(n) for n in range(8)], x
    ),
    lambda s, x: s.lax.cond(
        places(s)[0] < 2,
        lambda v: s.lax.cond(places(s)[1] == 0, lambda u: u + 1, lambda u: u * 2, v),
        lambda v: s.lax.cond(v[1] > 20, lambda u: u - 1, lambda u: u, v),
        x,
    ),
    lambda s, x: s.lax.cond(
        places(s)[0] == 3,
        lambda t: {"a": t[0], "b": (t[1], None)},
        lambda t: {"a": t[1], "b": (t[0], None)},
        (x, -x),
    ),
    lambda s, x: s.np.where(places(s)[0] > 1, x, s.lax.cond(x[0] > 2, lambda: x, lambda: -x)),
    # one branch for all, with a collective in it
    lambda s, x: s.lax.cond(
        s.lax.psum(x[0], ("i", "j")) > 0,
        lambda v: s.lax.pmax(v, "i"),
        lambda v: s.lax.pmin(v, "i"),
        x,
    ),
]

LOOPS: list[Program] = [
    lambda s, x: s.lax.while_loop(
        lambda t: t[0] < places(s)[0], lambda t: (t[0] + 1, t[1] * 2), (varying(s, 0, "i"), x)
    ),
    lambda s, x: s.lax.while_loop(lambda v: v[0] < 50, lambda v: v * 3 + 1, x),
    lambda s, x: s.lax.while_loop(
        lambda v: s.lax.pmax(v[0], ("i", "j")) < 500, lambda v: v * 2 + s.lax.psum(v, "j") * 0, x
    ),
    lambda s, x: s.lax.fori_loop(0, 4, lambda k, v: v * 2 + k, x),
    lambda s, x: s.lax.fori_loop(0, 3, lambda k, c: c + 1, 0.0),
    lambda s, x: s.lax.fori_loop(0, places(s)[0], lambda k, v: v + k, x),
    lambda s, x: s.lax.fori_loop(places(s)[1], 3, lambda k, v: v * 2 + k, x),
    lambda s, x: s.lax.fori_loop(0, 0, lambda k, v: v + 1, x),
    lambda s, x: s.lax.fori_loop(
        0, 4, lambda k, v: s.lax.cond(v[0] > 9, lambda u: u - 5, lambda u: u + 4, v), x
    ),
    lambda s, x: s.lax.fori_loop(
        0, 3, lambda k, v: s.lax.ppermute(v, "i", [(n, (n + 1) % 4) for n in range(4)]) + k, x
    ),
    lambda s, x: s.lax.fori_loop(
        0, places(s)[0], lambda k, v: s.lax.fori_loop(0, places(s)[1] + k, lambda m, u: u + m, v), x
    ),
    lambda s, x: s.lax.fori_loop(
        0, 2, lambda k, t: (t[1], t[0] + x[k]), (varying(s, 0.0), varying(s, 1.0))
    ),
    lambda s, x: s.lax.fori_loop(
        0,
        2,
        lambda k, v: s.lax.dynamic_update_slice(v, v[:1] * 2, (places(s)[0] % 2,)),
        x,
    ),
    lambda s, x: s.lax.fori_loop(0, 3, lambda k, c: c + s.np.float32(2), 0.0),
]

SCANS: list[Program] = [
    lambda s, x: s.lax.scan(lambda c, v: (c + v, c * v), varying(s, 0.0), x),
    lambda s, x: s.lax.scan(lambda c, v: (c * 2 + v, c), varying(s, 1.0), x, reverse=True),
    lambda s, x: s.lax.scan(lambda c, _: (c + 1, c), 0, None, length=3),
    lambda s, x: s.lax.scan(lambda c, v: (c, v + places(s)[0]), 0.0, s.np.arange(3.0)),
    lambda s, x: s.lax.scan(lambda c, v: (c + v, (v, c)), varying(s, 0.0), x[:0]),
    lambda s, x: s.lax.map(lambda v: (v * 2, places(s)[1]), x),
    lambda s, x: s.lax.map(lambda v: s.lax.psum(v, "i"), x),
    lambda s, x: s.lax.scan(
        lambda c, v: (s.lax.cond(v > 7, lambda: c + v, lambda: c), c > 3), varying(s, 0.0), x
    ),
    lambda s, x: s.lax.scan(lambda c, v: (s.lax.psum(c + v, ("i", "j")) * 0.1, None), 0.0, x),
    lambda s, x: s.lax.associative_scan(s.np.add, x),
]


@pytest.mark.parametrize(
    "programs", [CONDITIONS, LOOPS, SCANS], ids=["conditions", "loops", "scans"]
)
def test_in_a_body(programs: list[Program], jax: Any) -> None:
    same_as_jax(jax, MESH, programs, [np.arange(16.0) * 1.5 + 1], [(("i", "j"),)])


def test_on_values_that_do_not_vary(jax: Any) -> None:
    programs: list[Program] = [
        lambda s, x: s.lax.cond(x[0] > 0, lambda v: v, lambda v: v * 2, x),
        lambda s, x: s.lax.while_loop(lambda v: v[0] < 50, lambda v: v * 3 + 1, x),
        lambda s, x: s.lax.scan(lambda c, v: (c + v, c), 0.0, x),
    ]
    same_as_jax(jax, MESH, programs, [np.arange(4.0)], [()])


def test_what_varies_by_the_condition_alone(jax: Any) -> None:
    """The values are JAX's; its type forgets here that the condition varies, and ours does not."""
    programs: list[Program] = [
        lambda s, x: s.lax.cond(places(s)[0] > 1, lambda v: v, lambda v: v * 2, x),
        lambda s, x: s.lax.cond(places(s)[0] > 0, lambda: places(s)[1], lambda: places(s)[1] * 5),
        lambda s, x: s.lax.switch(places(s)[1], [lambda v: v, lambda v: v * 2], x),
        lambda s, x: s.lax.while_loop(lambda v: v[1] < places(s)[0] * 9, lambda v: v * 2, x),
        lambda s, x: s.lax.fori_loop(0, places(s)[0], lambda k, c: c + 1, 0),
    ]
    same_as_jax(jax, MESH, programs, [np.arange(4.0)], [()], check_vma=False)


def test_refused_in_a_body_as_in_jax(jax: Any) -> None:
    programs: list[Program] = [
        lambda s, x: s.lax.cond(x[0] > 0, lambda v: v, lambda v: v[:1], x),
        lambda s, x: s.lax.cond(x[0] > 0, lambda v: v, lambda v: (v, v), x),
        lambda s, x: s.lax.cond(x > 0, lambda v: v, lambda v: v, x),
        lambda s, x: s.lax.while_loop(lambda v: v, lambda v: v, x[0]),
        lambda s, x: s.lax.fori_loop(0, places(s)[0], lambda k, v: v[:1], x),
        lambda s, x: s.lax.scan(lambda c, v: c, x[0], x),
        lambda s, x: s.lax.switch(x[0], [lambda: 1, lambda: 2]),
        lambda s, x: x * 2 if x[0] > 0 else x,
    ]
    value = np.arange(16.0)

    def refused(side: Any, program: Program) -> bool:
        split = side.P(("i", "j"))
        body = side.shard_map(
            lambda x: program(side, x), mesh=side.mesh(*MESH), in_specs=split, out_specs=split
        )
        try:
            body(value)
        except (TypeError, ValueError):
            return True
        return False

    with jax.enable_x64(True):
        assert [refused(Theirs(jax), p) for p in programs] == [True] * len(programs)
    assert everywhere(lambda: [refused(Ours(), p) for p in programs]) == [True] * len(programs)
