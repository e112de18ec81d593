"""Elementwise operations in a body are put off; nothing but time and memory shows it."""

import warnings
import weakref

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import P
from meshard.transforms.body import grid
from tests.worlds import everywhere, in_worlds, mesh, put, whole

SHAPE = (1024, 512)


def value(seed: int = 0, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(dtype)


GRID = P("i", "j")


def mapped(body, *args, out=GRID):
    return meshard.shard_map(body, mesh(), GRID, out)(*args)


def test_a_formula_has_the_bits_of_plain_numpy_everywhere() -> None:
    x, y = value(), value(1)

    def formula(a, b):
        part = a * 2 + b
        return (
            np.tanh(part) - part / (1 + abs(a))
            if isinstance(a, np.ndarray)
            else (mnp.tanh(part) - part / (1 + mnp.abs(a)))
        )

    def body():
        return whole(mapped(formula, put(x, "i", "j"), put(y, "i", "j")))

    assert everywhere(body).tobytes() == formula(x, y).tobytes()


@in_worlds
def test_values_that_are_kept_are_stored_once_and_the_rest_never() -> None:
    runs = []
    real = grid.run_chain

    def counting(world, chain, cells):
        runs.append((len(chain.steps), len(chain.results), len(chain.temporaries)))
        return real(world, chain, cells)

    grid.run_chain = counting
    try:

        def body(a):
            kept = a + 1
            b = (kept * 2 - a) * kept  # two values that are gone when the chain runs
            return b, kept

        found, kept = mapped(body, put(value(), "i", "j"), out=(P("i", "j"), P("i", "j")))
    finally:
        grid.run_chain = real
    assert set(runs) == {(4, 2, 1)}  # one run in each process
    x = value()
    np.testing.assert_array_equal(whole(kept), x + 1)
    np.testing.assert_array_equal(whole(found), ((x + 1) * 2 - x) * (x + 1))


@in_worlds
def test_what_nobody_asks_for_is_not_computed() -> None:
    def body(a):
        with np.errstate(all="raise"):
            a / 0  # gone at once
        return a + 1

    assert whole(mapped(body, put(value(), "i", "j")))[0, 0] == value()[0, 0] + 1


@in_worlds
def test_long_chains_and_shared_parts() -> None:
    def body(a):
        b = a
        for _ in range(150):
            b = b + b * 0.001
        return b

    expected = value()
    for _ in range(150):
        expected = expected + expected * np.float32(0.001)
    np.testing.assert_array_equal(whole(mapped(body, put(value(), "i", "j"))), expected)


@in_worlds
def test_error_states_hold_where_the_operation_was_written() -> None:
    zero = np.zeros(SHAPE, np.float32)

    def silent(a):
        with np.errstate(all="ignore"):
            b = 1 / a
        return b * 2

    def loud(a):
        return 1 / a

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(whole(mapped(silent, put(zero, "i", "j")))).all()
        with pytest.raises(RuntimeWarning, match="divide by zero"):
            mapped(loud, put(zero, "i", "j"))


@in_worlds
def test_under_a_mask_and_between_collectives() -> None:
    def body(a):
        b = a * 2 + 1
        c = lax.cond(lax.axis_index("i") == 0, lambda: b * b, lambda: b - 1)
        return c + lax.ppermute(c * 3, "j", [(0, 1), (1, 0)])

    x = value()
    b = x * 2 + 1
    c = np.where(np.arange(SHAPE[0])[:, None] < SHAPE[0] // 4, b * b, b - 1)
    expected = c + np.roll(c * 3, SHAPE[1] // 2, axis=1)
    np.testing.assert_array_equal(whole(mapped(body, put(x, "i", "j"))), expected)


def test_nothing_is_kept_alive_when_the_body_has_ended() -> None:
    def body():
        kept = []

        def work(a):
            found = (a + 1) * 2
            kept.append(weakref.ref(found))
            return found

        kept.append(weakref.ref(mapped(work, put(value(), "i", "j"))))
        return [ref() is None for ref in kept]

    assert everywhere(body) == [True, True]


def test_broadcast_operands_and_other_dtypes() -> None:
    def body():
        def work(a, row):
            big = a * row + mnp.arange(256)
            return (big > 0) * 3 + (a.astype("f8") * 2).astype("f4")

        return whole(
            meshard.shard_map(work, mesh(), (P("i", "j"), P(None, "j")), P("i", "j"))(
                put(value(), "i", "j"), value(2)[:1]
            )
        )

    x, row = value(), value(2)[:1]
    big = x * row + np.tile(np.arange(256), 2)
    expected = (big > 0) * 3 + (x.astype("f8") * 2).astype("f4")
    np.testing.assert_array_equal(everywhere(body), expected)
