"""Elements repeated as often as numbers of their own say: where they are, in one pass."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import debug
from meshard.errors import ArgumentError
from meshard.sharding import NamedSharding, P
from tests.lays import fetched, lays, same
from tests.worlds import alone, everywhere, in_processes, put, whole


@settings(max_examples=40)
@given(data=st.data())
def test_rows_are_repeated_as_numpy_does(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    value = np.arange(np.prod(shape)).reshape(shape)
    counts = np.array(
        data.draw(st.lists(st.integers(0, 3), min_size=shape[axis], max_size=shape[axis])), "i4"
    )
    lay = data.draw(lays(shape))
    found = everywhere(lambda: fetched(mnp.repeat(lay.put(value), counts, axis)))
    same(found, np.repeat(value, counts, axis))


@pytest.mark.parametrize("length", [0, 5, 11, 40])
def test_a_known_length_is_jax_s(length: int, jax: Any) -> None:
    value, counts = np.arange(14.0).reshape(7, 2), np.array([0, 3, 0, 1, 4, 0, 2])

    def body() -> Any:
        x = put(value, "i", uneven="ceil")
        own = put(counts, "j", uneven="balanced")

        def long(v: Any, c: Any) -> Any:
            return mnp.repeat(v, c, 0, total_repeat_length=length)

        found = [long(x, counts), long(x, own), meshard.jit(long)(x, own)]
        assert len({y.sharding.spec for y in found if length}) < 2
        return [whole(y) for y in found]

    expected = jax.numpy.repeat(value, counts, 0, total_repeat_length=length)
    for found in everywhere(body):
        np.testing.assert_array_equal(found, expected)


def test_four_processes_whose_numbers_are_split() -> None:
    value, counts = np.arange(5.0), np.array([2, 0, 0, 7, 1])

    def body() -> Any:
        mesh = meshard.make_mesh((8,), ("i",))
        split = [((0, 0, 3, 3, 4, 4, 4, 5, 5),), ((0, 1, 1, 1, 2, 3, 4, 5, 5),)]
        x, own = (
            meshard.device_put(v, NamedSharding(mesh, P("i"), uneven=u))
            for v, u in zip((value, counts), split, strict=True)
        )
        found = mnp.repeat(x, own)
        assert found.aval.layout.cuts == ((0, 0, 2, 2, 9, 9, 9, 10, 10),)
        return fetched(found)

    same(in_processes(body, (2, 4)), np.repeat(value, counts))


def test_nothing_but_the_numbers_crosses() -> None:
    counts = np.random.default_rng(0).integers(0, 4, 1 << 14)

    def body() -> tuple[int, int]:
        x, own = (put(v, ("i", "j")) for v in (np.ones((1 << 14, 4)), counts))
        with debug.ledger() as log:
            mnp.repeat(x, own, 0)
        with debug.ledger() as parts:
            mnp.repeat(x, own, 0, total_repeat_length=counts.sum())
        return log.total_bytes, parts.total_bytes

    sums, parts = alone(body)
    assert sums <= 8 * 7 * 16
    assert parts < 0.1 * (1 << 14) * 4 * 8  # what is at the edges


def test_its_gradient_adds_up_the_copies() -> None:
    counts = np.array([2, 0, 3, 1])

    def body() -> Any:
        x = put(np.arange(4.0), "i")
        by_length = meshard.grad(
            lambda v: (mnp.repeat(v, counts, total_repeat_length=6) ** 2).sum()
        )
        known = meshard.grad(lambda v: (mnp.repeat(v, counts) ** 2).sum())
        return [whole(f(x)) for f in (by_length, known, meshard.jit(known))]

    for found in everywhere(body):
        same(found, 2 * np.arange(4.0) * counts)


@pytest.mark.parametrize("lay", ["host", "split"])
def test_negative_numbers_are_refused_on_all_processes(lay: str) -> None:
    def body() -> bool:
        counts: Any = np.array([1, -2, 0, 1])
        own = put(counts, "i") if lay == "split" else counts
        with pytest.raises(ArgumentError, match="repeat: repeats must not be negative, got"):
            mnp.repeat(put(np.arange(4.0), "i"), own)
        return True

    assert everywhere(body)
