"""Results of a known size where their shape would depend on values, against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, ShapeError
from tests.test_lax import same, tree_of
from tests.tracing import jitted, traced
from tests.worlds import alone, everywhere, in_worlds, put, whole

rng = np.random.default_rng(2)
B = rng.random((8, 6)) > 0.7
N = rng.integers(0, 9, (8, 6))
V = rng.integers(0, 9, 16)
W = rng.integers(4, 14, 8)
GAPS = np.array([np.nan, 1.0, np.nan, 3.0, 1.0, 0.0, np.nan, 3.0])

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "nonzero": lambda m, t: [
        m.nonzero(t(B), size=n, fill_value=f) for n in (0, 3, 60) for f in (None, -1, (-1, 7))
    ],
    "where": lambda m, t: m.where(t(N), size=5),
    "argwhere": lambda m, t: [m.argwhere(t(B), size=n, fill_value=-1) for n in (3, 60)],
    "flatnonzero": lambda m, t: [m.flatnonzero(t(B), size=n, fill_value=-1) for n in (3, 60)],
    "unique": lambda m, t: [
        m.unique(t(N), True, True, True, size=n, fill_value=f) for n in (3, 30) for f in (None, -5)
    ],
    "unique_nan": lambda m, t: [
        m.unique(t(GAPS), return_counts=True, size=n, equal_nan=e) for n in (2, 7) for e in (0, 1)
    ],
    "unique_all": lambda m, t: tuple(m.unique_all(t(V), size=12)),
    "unique_counts": lambda m, t: tuple(m.unique_counts(t(V), size=12)),
    "unique_inverse": lambda m, t: tuple(m.unique_inverse(t(V), size=12)),
    "unique_values": lambda m, t: m.unique_values(t(V), size=12, fill_value=99),
    "union1d": lambda m, t: [m.union1d(t(V), t(W), size=n) for n in (2, 20)],
    "intersect1d": lambda m, t: [
        m.intersect1d(t(V), t(W), size=20),
        m.intersect1d(t(V), t(W), size=20, fill_value=-1),
    ],
    "setdiff1d": lambda m, t: [m.setdiff1d(t(V), t(W), size=20)],
    "setxor1d": lambda m, t: [m.setxor1d(t(V), t(W), size=20, fill_value=99)],
    "extract": lambda m, t: [m.extract(t(B), t(N), size=n, fill_value=9) for n in (2, 40)],
    "compress": lambda m, t: [
        m.compress(t(B[:, 0]), t(N), axis=0, size=n, fill_value=9) for n in (1, 6)
    ],
    "bincount": lambda m, t: [m.bincount(t(V), length=5), m.bincount(t(V), t(V / 2), length=12)],
    "repeat": lambda m, t: [m.repeat(t(W), t(V[:8]), total_repeat_length=n) for n in (9, 90)],
    "take": lambda m, t: [
        m.take(t(N), t(V * 3 - 9), axis=0, mode="fill", fill_value=-1),
        m.take(t(N / 2), t(V * 3 - 9), axis=1, mode="fill"),
        m.take(t(N), t(V * 9), mode="fill"),
    ],
    "take_along_axis": lambda m, t: [
        m.take_along_axis(t(N), t(N), 1, mode="fill"),
        m.take_along_axis(t(N), t(N - 4), 0, mode="fill", fill_value=3),
    ],
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_against_jax(name, jax):
    case = CASES[name]
    with jax.enable_x64(True):
        expected = case(jax.numpy, jax.numpy.asarray)

    def split(value: Any) -> Any:
        return put(value, *("i", "j")[: np.ndim(value)], uneven="balanced")

    same(everywhere(lambda: tree_of(case(mnp, split))), expected)
    same(alone(lambda: traced(lambda t: case(mnp, t)), 1), expected)
    same(alone(lambda: jitted(lambda t: case(mnp, t)), 1), expected)


@in_worlds
def test_nothing_of_nothing():
    none = mnp.zeros((0, 3))
    assert [x.tolist() for x in mnp.nonzero(none, size=2, fill_value=7)] == [[7, 7], [7, 7]]
    assert mnp.unique(none, size=2, fill_value=4).tolist() == [4, 4]
    assert mnp.unique(none, size=0).shape == (0,)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: mnp.nonzero(B, size=-1), ArgumentError, "size must not be negative, got -1"),
        (
            lambda: mnp.nonzero(B, size=2.5),
            ArgumentError,
            r"nonzero: size must be an integer or None, got 2\.5",
        ),
        (lambda: mnp.nonzero(B, size=2, fill_value=(1,)), ShapeError, "1 entries for 2 dims"),
        (
            lambda: mnp.unique(np.zeros(0), size=2),
            ArgumentError,
            "unique: size=2 of an array without elements: there is no element to fill the",
        ),
        (lambda: mnp.where(B, 1, 2, size=3), ArgumentError, "go with the condition alone"),
        (lambda: mnp.take_along_axis(N, N, 0, mode="x"), ArgumentError, "'clip' or 'fill', got"),
        (lambda: mnp.repeat(W, V, total_repeat_length=3), ArgumentError, "has 8 positions"),
    ],
)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


SETS = ("union1d", "intersect1d", "setdiff1d", "setxor1d")
NAN = np.nan
COUPLES: list[tuple[list[float], list[float]]] = [
    ([1, 2, 3, 3], [3, 4]),
    ([5, 6], [1, 2]),
    ([7, 9], [9, 7]),
    ([0, 5], [0, 0]),
    ([5, 6], []),
    ([], [5]),
    ([1, NAN, NAN], [NAN, 2]),
    ([NAN, 1, NAN], [1]),
    ([np.inf, -np.inf, 2], [np.inf, NAN]),
    (list(V), list(W)),
]


SIZES = ((0, None), (3, None), (9, None), (9, -5))


@pytest.mark.parametrize("name", SETS)
def test_sets_are_numpys_and_those_of_a_known_size_are_the_same_elements(name):
    """Missing elements are the fill value, else the first of the result, 0 if there is none."""
    function = getattr(mnp, name)

    def of_all_sizes(x: Any, y: Any) -> list[Any]:
        some = x.size or y.size
        return [function(x, y, size=n, fill_value=f) for n, f in SIZES if some or f is not None]

    def found_of(a: Any, b: Any) -> Any:
        x, y = (put(np.array(v, np.float64), "j", uneven="balanced") for v in (a, b))
        found = [function(x, y), *of_all_sizes(x, y), *meshard.jit(of_all_sizes)(x, y)]
        return [whole(v) for v in found]

    spread = everywhere(lambda: found_of(*COUPLES[-1]))
    for (a, b), rest in zip(
        COUPLES, [*alone(lambda: [found_of(*c) for c in COUPLES[:-1]]), spread], strict=True
    ):
        expected = getattr(np, name)(np.array(a, np.float64), np.array(b, np.float64))
        np.testing.assert_array_equal(rest[0], expected)
        first = expected[0] if len(expected) and name != "setdiff1d" else 0
        wanted = []
        for size, fill in SIZES:
            padded = np.full(size, first if fill is None else fill, np.float64)
            padded[: len(expected)] = expected[:size]
            wanted.append(padded)
        for one, padded in zip(rest[1:], wanted * 2, strict=True):
            np.testing.assert_array_equal(one, padded, err_msg=f"{a} {b}")
