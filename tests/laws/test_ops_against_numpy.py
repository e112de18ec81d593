"""Operations give what NumPy gives, however their operands lie and whatever the processes.

Operands are drawn with any meshes of the same devices, specs with tuples of axes, even and uneven
cuts with empty shards, explicit boxes, uncommitted arrays and NumPy arrays, ranks 0 to 4.
"""

from __future__ import annotations

import math
import string
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from tests.lays import fetched, same
from tests.operands import (
    broadcasting,
    in_all_worlds,
    numbers,
    placings,
    shapes_of,
    teams,
    unsigned,
)
from tests.worlds import everywhere

DTYPES = ["b1", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", ml_dtypes.bfloat16]


def quietly(body: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a call gives, or the kind of its refusal."""
    try:
        with np.errstate(all="ignore"):
            return body(*args, **kwargs)
    except TypeError:
        return "refused"


def check(compute: Any, operands: Any, expected: Any, *, sums: bool = False) -> None:
    """Check in all worlds that ``compute`` of placed values gives a value bit by bit."""

    def body() -> Any:
        found = quietly(lambda: compute(*[placing(value) for placing, value in operands]))
        return found if isinstance(found, str) else fetched(found)

    found = everywhere(body)
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
    elif sums:
        same(unsigned(found), unsigned(expected))
    else:
        same(found, expected)


@settings(max_examples=60)
@given(st.data(), shapes_of(), teams(), st.sampled_from(DTYPES[:-1]))
def test_operators_with_scalars(data, shape, team, dtype):
    value = numbers(shape, dtype, 5, low=1)
    scalar = data.draw(st.sampled_from([True, 2, 1.5, 1 - 2j, np.int8(3), np.float32(0.5)]))
    placing = data.draw(placings(shape, team))
    assume(placing.how != "numpy")

    def compute(x: Any) -> Any:
        return x + scalar, scalar + x, x * scalar, scalar == x, scalar - (-x)

    check(compute, [(placing, value)], quietly(compute, value))


@st.composite
def products(draw: st.DrawFn, most: int) -> tuple[str, list[tuple[int, ...]]]:
    """Draw an einsum: subscripts, with repeated letters and dims of size one, and shapes."""
    letters = string.ascii_letters[: draw(st.integers(1, 5))]
    size = {f: draw(st.sampled_from([2, 4, 3, 1, 5, 8, 0])) for f in letters}
    terms = []
    for _ in range(draw(st.integers(1, most))):
        terms.append("".join(draw(st.lists(st.sampled_from(letters), max_size=3))))
    used = sorted(set("".join(terms)))
    out = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    shapes = []
    for term in terms:
        thin = draw(st.sampled_from(["", "", "", *term]))
        shapes.append(tuple(1 if f == thin else size[f] for f in term))
    assume(math.prod(size[f] for f in used) <= 2000)
    return f"{','.join(terms)}->{out}", shapes


@settings(max_examples=150)
@given(st.data(), products(4), teams(), st.sampled_from(["i1", "i8", "f8", "c16", "b1"]))
def test_einsum(data, product, team, dtype):
    text, shapes = product
    values = [numbers(s, dtype, i) for i, s in enumerate(shapes)]
    # A dim of size one everywhere but in the output is what NumPy alone would make of it.
    operands = [(data.draw(placings(s, team)), v) for s, v in zip(shapes, values, strict=True)]
    check(lambda *xs: mnp.einsum(text, *xs), operands, np.einsum(text, *values), sums=True)


@settings(max_examples=150)
@given(st.data(), teams(), st.sampled_from(DTYPES[:-1]))
def test_matmul(data, team, dtype):
    batch = data.draw(shapes_of(2, 8))
    m, k, n = (data.draw(st.sampled_from([4, 3, 1, 8, 0, 5])) for _ in range(3))
    left = (*data.draw(broadcasting(batch)), m, k) if data.draw(st.integers(0, 3)) else (k,)
    right = (*data.draw(broadcasting(batch)), k, n) if data.draw(st.integers(0, 3)) else (k,)
    values = [numbers(left, dtype, 1), numbers(right, dtype, 2)]
    operands = [(data.draw(placings(v.shape, team)), v) for v in values]
    check(mnp.matmul, operands, np.matmul(*values), sums=True)


def chain(x: Any, y: Any, w: Any) -> list[Any]:
    """Compute with sums of floats of every kind, whose last bits show the order of adding."""
    z = mnp.tanh(x @ y / 3) + mnp.exp(w)
    t = z.T
    return [
        z,
        z.sum(),
        z.mean(0),
        t.sum(0),
        t @ x,
        mnp.einsum("ij,jk,ik->k", x, y, z),
        mnp.vdot(x, x),
        meshard.nn.softmax(t, 0),
        t.std(1),
        (x[:, ::2] * 3).sum(0),
        mnp.argmax(z, 1),
    ]


@settings(max_examples=10)
@given(st.data(), teams())
def test_bits_are_the_same_in_any_number_of_processes(data, team):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    m, k, n = (data.draw(st.sampled_from([16, 40, 9])) for _ in range(3))
    shapes = (m, k), (k, n), (m, n)
    values = [rng.normal(size=s).astype(data.draw(st.sampled_from(["f4", "f8"]))) for s in shapes]
    how = [data.draw(placings(s, team)) for s in shapes]

    def body() -> Any:
        return fetched(chain(*[mnp.asarray(p(v)) for p, v in zip(how, values, strict=True)]))

    found = in_all_worlds(body)
    for a, b in zip(found, chain(*map(mnp.asarray, values)), strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=2e-3, atol=1e-5)


def test_the_oracle_can_disagree():
    def body() -> Any:
        return fetched(mnp.add(mnp.asarray([1.0]), 1))

    with pytest.raises(AssertionError):
        same(everywhere(body), np.array([2.0000000001]))
