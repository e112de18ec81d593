"""Slices at places that are values, against JAX, in both worlds and under a transformation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ArgumentError, DtypeError, IndexingError, ShapeError
from tests.tracing import opened, traced
from tests.worlds import alone, everywhere, in_worlds, put, whole

X = np.arange(48.0).reshape(8, 6)
STARTS = [(0, 0), (3, 1), (-1, -2), (20, 9), (-20, 2), (5, -6)]


def jaxed(jax: Any, name: str, *args: Any, **options: Any) -> Any:
    with jax.enable_x64(True):
        return np.asarray(getattr(jax.lax, name)(*args, **options))


@pytest.mark.parametrize("spec", [("i", "j"), (None, "i"), (("j", "i"),), ()])
@pytest.mark.parametrize("sizes", [(3, 2), (8, 1), (1, 6), (8, 6), (0, 2)])
def test_dynamic_slice(spec, sizes, jax):
    expected = [jaxed(jax, "dynamic_slice", X, starts, sizes) for starts in STARTS]

    def body() -> Any:
        x = put(X, *spec, uneven="balanced")
        return [whole(lax.dynamic_slice(x, starts, sizes)) for starts in STARTS]

    for found, wanted in zip(everywhere(body), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("spec", [("i", "j"), (None, "i"), ()])
@pytest.mark.parametrize("shape", [(3, 2), (8, 1), (8, 6), (0, 2)])
def test_dynamic_update_slice(spec, shape, jax):
    update = -1 - np.arange(float(np.prod(shape))).reshape(shape)
    expected = [jaxed(jax, "dynamic_update_slice", X, update, starts) for starts in STARTS]

    def body() -> Any:
        x = put(X, *spec, uneven="balanced")
        found = [lax.dynamic_update_slice(x, update, starts) for starts in STARTS]
        assert all(y.sharding == x.sharding for y in found)
        return [whole(y) for y in found]

    for found, wanted in zip(everywhere(body), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


CALLS: dict[str, tuple[Any, ...]] = {
    "dynamic_slice_in_dim": ((2, 3), (6, 3, 0), (-1, 2, 1), (99, 2, -1)),
    "dynamic_index_in_dim": ((3,), (-1, 1), (9, 1, False), (-20, -2, False)),
    "dynamic_update_slice_in_dim": ((X[:2] * -1, 3, 0), (X[:, :1] * -1, -1, 1), (X[:3], 99, 0)),
    "dynamic_update_index_in_dim": ((X[0], 3, 0), (X[:1], -1, 0), (X[:, 1], 99, 1)),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_along_one_dim(name, jax):
    expected = [jaxed(jax, name, X, *args) for args in CALLS[name]]

    def body() -> Any:
        x = put(X, "i", "j")
        return [whole(getattr(lax, name)(x, *args)) for args in CALLS[name]]

    for found, wanted in zip(everywhere(body), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["int32", "uint8", "int64"])
def test_places_may_be_arrays(kind):
    @in_worlds
    def test() -> None:
        x = put(X, "i", "j")
        expected = X[2:5, 3:5]
        for starts in (
            (np.array(2, kind), mnp.asarray(np.array(3, kind))),
            mnp.asarray(np.array([2, 3], kind)),
            np.array([2, 3], kind),
            put(np.array([2, 3], kind), "j"),
        ):
            np.testing.assert_array_equal(whole(lax.dynamic_slice(x, starts, (3, 2))), expected)

    test(world_kind="1 x 8")
    test(world_kind="2 x 4")


@in_worlds
def test_a_slice_keeps_the_cuts():
    x = put(X, "i", "j")
    y = lax.dynamic_slice(x, (1, 0), (5, 6))
    assert y.aval.layout.cuts == ((0, 1, 3, 5, 5), (0, 3, 6))
    assert lax.dynamic_slice(x, (1, 2), (8, 6)) is x


def test_an_update_keeps_the_blocks_that_it_does_not_touch():
    def body() -> None:
        x = put(X, "i", "j")
        y = lax.dynamic_update_slice(x, np.zeros((1, 1)), (0, 0))
        same = [a is b for a, b in zip(x._live(), y._live(), strict=True)]
        assert same == [False] + [True] * 7

    alone(body)


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("sizes", [(3, 2), (8, 1), (8, 6)])
def test_traced_places(starts, sizes):
    places = np.array(starts)
    update = -np.ones(sizes)

    def body() -> None:
        plain = opened(
            [lax.dynamic_slice(X, starts, sizes), lax.dynamic_update_slice(X, update, starts)]
        )
        for given in (
            lambda t: tuple(t(p) for p in places),
            lambda t: t(places),
            lambda t: (t(places[0]), starts[1]),
        ):
            found = traced(
                lambda t, given=given: [
                    lax.dynamic_slice(t(X), given(t), sizes),
                    lax.dynamic_update_slice(X, t(update), given(t)),
                ]
            )
            for a, b in zip(found, plain, strict=True):
                np.testing.assert_array_equal(a, b)

    alone(body, 1)


def test_negative_places_may_be_refused_or_moved_inside(jax):
    def body() -> None:
        with pytest.raises(IndexingError, match="start index -1 of dim 0 is negative"):
            lax.dynamic_slice(X, (-1, 0), (2, 2), allow_negative_indices=False)
        place = np.array(-3)
        options = {"allow_negative_indices": (False, True)}
        expected = jaxed(jax, "dynamic_slice", X, (place, place), (2, 2), **options)
        found = lax.dynamic_slice(X, (place, place), (2, 2), **options)
        np.testing.assert_array_equal(whole(found), expected)
        hidden = traced(lambda t: lax.dynamic_slice(X, (t(place), t(place)), (2, 2), **options))
        np.testing.assert_array_equal(hidden, expected)

    alone(body, 1)


def test_an_update_takes_the_arrays_dtype():
    found = lax.dynamic_update_slice(mnp.arange(4), mnp.asarray([1.5]), (2,))
    assert found.tolist() == [0, 1, 1, 3]


@in_worlds
def test_a_place_may_be_replicated_over_a_mesh():
    x = put(np.arange(8), "i")
    assert whole(lax.dynamic_slice(x, (put(np.array(5)),), (2,))).tolist() == [5, 6]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: lax.dynamic_slice(X, (0,), (1, 1)), ShapeError, "1 start indices .* has 2 dims"),
        (lambda: lax.dynamic_slice(X, (0, 0), (9, 1)), ShapeError, r"slice_sizes \(9, 1\) for"),
        (lambda: lax.dynamic_slice(X, (0, 0), (1,)), ShapeError, r"slice_sizes \(1,\) for"),
        (lambda: lax.dynamic_slice(X, (0, 0), (-1, 1)), ShapeError, "from 0 to the dim's"),
        (
            lambda: lax.dynamic_slice(X, (0.5, 0), (1, 1)),
            DtypeError,
            r"dynamic_slice: the start index of dim 0 must be one integer, got 0\.5 of",
        ),
        (lambda: lax.dynamic_slice(X, (0, [0]), (1, 1)), DtypeError, "of dim 1 .* one integer"),
        (lambda: lax.dynamic_update_slice(X, X[0], (0, 0)), ShapeError, r"update of shape \(6,\)"),
        (lambda: lax.dynamic_slice_in_dim(X, 0, 1, 2), ArgumentError, "axis 2 is out of bounds"),
        (
            lambda: lax.dynamic_slice(X, (0, 0), (1, 1), allow_negative_indices=(True,)),
            ShapeError,
            "1 entries for 2 dims",
        ),
    ],
)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
