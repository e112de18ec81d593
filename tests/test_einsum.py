"""Einsum against NumPy, in both worlds; the laws over all shardings are in tests/laws."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard.numpy as mnp
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.sharding import NamedSharding, P
from tests.lays import fetched, same
from tests.operands import numbers, unsigned
from tests.worlds import everywhere, in_worlds, mesh, put

BF16 = np.dtype(ml_dtypes.bfloat16)


def check(body: Any, expected: Any) -> None:
    """Check that a list of results is the same in both worlds and the one expected."""
    same(
        [unsigned(f) for f in everywhere(lambda: fetched(body()))], [unsigned(e) for e in expected]
    )


EINSUMS = [
    ("ij,jk->ik", (4, 6), (6, 8)),
    ("ij,jk", (4, 6), (6, 8)),
    ("ij , jk -> ki", (4, 6), (6, 8)),
    ("ab,cd", (4, 6), (2, 8)),
    ("ba", (4, 6)),
    ("ii", (6, 6)),
    ("ii->i", (6, 6)),
    ("iij->ji", (4, 4, 6)),
    ("iji->j", (4, 6, 4)),
    ("i,i->", (8,), (8,)),
    ("i,i->i", (8,), (8,)),
    ("i,j->ji", (8,), (4,)),
    ("ij->", (4, 6)),
    ("ij->j", (4, 6)),
    (",ij->ji", (), (4, 6)),
    (",->", (), ()),
    ("ij,j,i->", (4, 6), (6,), (4,)),
    ("bij,bjk,bkl->bil", (2, 3, 4), (2, 4, 5), (2, 5, 3)),
    ("ij,jk,kl,lm->im", (4, 6), (6, 2), (2, 8), (8, 4)),
    ("ijk,jil,kjm,n->lmn", (4, 2, 6), (2, 4, 3), (6, 2, 5), (4,)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (5, 1, 3, 4), (2, 4, 5)),
    ("...ij,jk", (2, 3, 4), (4, 5)),
    ("i...,i...->...", (4, 2, 3), (4, 3)),
    ("...ii->...i", (2, 4, 4)),
    ("...->...", (2, 4)),
    ("b...,...->b...", (2, 4), (4,)),
    ("ij,ij->ij", (4, 1), (1, 6)),
    ("ij,jk->ik", (4, 1), (6, 8)),
    ("i,i,i->", (1,), (1,), (8,)),
    ("ij,ik->", (4, 6), (4, 3)),
    ("ij,kl->jl", (4, 6), (2, 3)),
    ("ijk,ik->j", (2, 4, 8), (2, 8)),
    ("xy,yx,xx->", (4, 6), (6, 4), (4, 4)),
    ("ij,jk->ik", (0, 4), (4, 3)),
    ("ij,jk->ik", (3, 0), (0, 3)),
    ("ZA,aA->aZ", (4, 6), (2, 6)),
]


@pytest.mark.parametrize("case", EINSUMS, ids=lambda c: c[0])
def test_einsum(case):
    text, *shapes = case
    values = [numbers(s, "f8", i) for i, s in enumerate(shapes)]

    def body() -> Any:
        found = []
        for turn in range(4):
            axes: list[Any] = [["i", "j", None], [None, "i", "j"], [("j", "i")], []][turn]
            operands = [
                put(v, *([*axes[n % 2 :], None, None][: v.ndim]), uneven="balanced")
                for n, v in enumerate(values)
            ]
            found.append(mnp.einsum(text, *operands))
        return found

    check(body, [np.einsum(text, *values)] * 4)


@pytest.mark.parametrize("optimize", ["auto", True, False, "optimal", "greedy", [(0, 1), (0, 1)]])
def test_einsum_in_any_order(optimize):
    text, shapes = "ij,jk,ki->", [(4, 6), (6, 3), (3, 4)]
    values = [numbers(s, "i8", i) for i, s in enumerate(shapes)]

    def body() -> Any:
        operands = [put(v, "j", "i", uneven="ceil") for v in values]
        return [mnp.einsum(text, *operands, optimize=optimize)]

    check(body, [np.einsum(text, *values)])


def test_einsum_in_numbers():
    x, y = numbers((4, 6), "f8", 0), numbers((6, 2), "f8", 1)

    def body() -> Any:
        a, b = put(x, "i"), put(y, None, "j")
        found = [mnp.einsum(a, [0, 1], b, [1, 2], [2, 0]), mnp.einsum(a, [0, 1], b, [1, 2])]
        return [*found, mnp.einsum(a, [..., 0], [0, ...]), mnp.einsum(a, [5, 3])]

    expected = [np.einsum(x, [0, 1], y, [1, 2], [2, 0]), np.einsum(x, [0, 1], y, [1, 2])]
    check(body, [*expected, np.einsum(x, [..., 0], [0, ...]), np.einsum(x, [5, 3])])


def test_einsum_computes_in_the_common_dtype():
    small, wide = np.full(4, 100, "i1"), np.full(4, 0.5)

    def body() -> Any:
        a, b = put(small, "i"), put(wide, "i")
        found = [mnp.einsum("i,i,i->", a, a, b), mnp.einsum("i,i->", a, a), mnp.einsum("i->", a)]
        found += [mnp.einsum("i,j->ij", a, a, preferred_element_type="i4"), mnp.einsum("i", a)]
        found += [
            mnp.einsum("i->", a, preferred_element_type="f4"),
            mnp.einsum("i->", put(small > 0)),
        ]
        return found

    expected = [np.einsum("i,i,i->", small, small, wide), np.einsum("i,i->", small, small)]
    expected += [np.einsum("i->", small), np.full((4, 4), 10000, "i4"), small]
    check(body, [*expected, np.float32(400), np.True_])


def test_einsum_keeps_a_diagonal_where_it_can():
    x = numbers((8, 4, 8), "f8", 0)

    def body() -> Any:
        a, b = put(x, None, "i", None), put(x, "i", None, None)
        assert mnp.einsum("iji->j", a).sharding == NamedSharding(mesh(), P("i"))
        assert mnp.einsum("iji->ij", a).sharding == NamedSharding(mesh(), P(None, "i"))
        return [mnp.einsum("iji->j", a), mnp.einsum("iji->ij", b)]

    check(body, [np.einsum("iji->j", x), np.einsum("iji->ij", x)])


@in_worlds
@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("ij,jk->il", [(2, 3), (3, 4)], "'ij,jk->il' does not fit .*: Output character 'l'"),
        ("ij,jk->ik", [(2, 3), (4, 5)], r"shapes \(2, 3\), \(4, 5\): Size of label 'j'"),
        ("ij,jk->ik", [(2, 3)], "Number of einsum subscripts, 2, must be equal to"),
        ("ij", [(2, 3), (3, 4)], "Number of einsum subscripts, 1"),
        ("ijk->i", [(2, 3)], "does not fit operands"),
        ("ij->ii", [(2, 2)], "Output character 'i' appeared more than once"),
        ("ij-jk", [(2, 3)], "does not fit operands"),
        ("i....->i", [(2, 3)], "Invalid Ellipses"),
        ("ii->i", [(2, 3)], r"the dims named 'i' of one operand are \[2, 3\]"),
        ("ii->i", [(1, 3)], r"the dims named 'i' of one operand are \[1, 3\]"),
        ("ij", [], r"of shapes \(none\)"),
    ],
)
def test_subscripts_that_do_not_fit(text, shapes, message):
    with pytest.raises(ShapeError, match=message) as refused:
        mnp.einsum(text, *[put(np.ones(s)) for s in shapes])
    assert str(refused.value).startswith(f"einsum: {text!r} does not fit operands of shapes")


@in_worlds
def test_an_einsum_of_something_else():
    a = put(np.ones((2, 2)))
    for given in [(5, a), (a,), (a, "ij"), (None, a), (a, [0, 1.5]), (a, a)]:
        with pytest.raises(ArgumentError, match="einsum: the first argument is neither a string"):
            mnp.einsum(*given)


@in_worlds
def test_a_wider_dtype_is_that_of_all_sums():
    ones = put(np.ones((257, 4), BF16), "i", uneven="balanced")  # bfloat16 has no 257
    assert float(mnp.einsum("ij->j", ones, preferred_element_type="f4")[0]) == 257
    assert float(mnp.einsum("ij->j", ones)[0]) == 256
    weights = put(np.ones(3, BF16))
    found = mnp.einsum("ij,k->j", ones, weights, preferred_element_type="f4")
    assert float(found[0]) == 771


@in_worlds
def test_different_short_floats_meet_in_float32():
    a, b = put(np.ones((2, 2), BF16)), put(np.ones((2, 2), "f2"))
    assert mnp.einsum("ij,jk", a, b).dtype == np.float32
    assert mnp.einsum("ij,jk", a, b, preferred_element_type="f8").dtype == np.float64
    with pytest.raises(DtypeError, match="'f12' is not a dtype"):
        mnp.einsum("ij->", a, preferred_element_type="f12")
