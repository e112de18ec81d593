"""Running totals and differences: right, laid out like the operand, and without a gather."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.reductions import scan
from meshard.runtime.simulated import simulate
from tests.lays import fetched, lays, numbered, same, shapes
from tests.operands import in_all_worlds
from tests.watch import watched
from tests.worlds import everywhere, in_worlds, mesh, put, whole

RANDOM = np.random.default_rng(7)


@settings(max_examples=60)
@given(data=st.data())
def test_sums_of_integers_are_numpy_s_however_an_array_lies(data: st.DataObject) -> None:
    shape = data.draw(shapes(1))
    value = numbered(shape, data.draw(st.sampled_from(["i8", "u1", "i2", "bool"])))
    lay = data.draw(lays(shape))
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    found = everywhere(lambda: fetched(mnp.cumsum(lay.put(value), axis)))
    same(found, np.cumsum(value, axis))


@settings(max_examples=30)
@given(data=st.data())
def test_sums_of_floats_are_close_and_the_same_on_any_number_of_processes(
    data: st.DataObject,
) -> None:
    shape = data.draw(shapes(1))
    value = np.random.default_rng(sum(shape)).normal(size=shape).astype("f4")
    lay = data.draw(lays(shape))
    axis = data.draw(st.integers(0, len(shape) - 1))
    found = in_all_worlds(lambda: fetched(mnp.cumsum(lay.put(value), axis)))
    np.testing.assert_allclose(found, np.cumsum(value, axis), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (mnp.cumsum, np.add.accumulate),
        (mnp.cumprod, np.multiply.accumulate),
        (scan.cummax, np.maximum.accumulate),
        (scan.cummin, np.minimum.accumulate),
        (scan.cumlogsumexp, np.logaddexp.accumulate),
    ],
)
@pytest.mark.parametrize("uneven", [None, "balanced", "ceil", ((0, 0, 5, 5, 24),)])
@in_worlds
def test_every_scan(function: Callable[..., Any], expected: Any, uneven: Any) -> None:
    value = np.random.default_rng(3).normal(size=(24, 6))
    x = put(value, "i", "j", uneven=uneven)
    for axis in (0, 1, -1):
        found = function(x, axis)
        assert found.sharding == x.sharding
        np.testing.assert_allclose(whole(found), expected(value, axis), rtol=1e-12)
    np.testing.assert_allclose(whole(function(x)), expected(value.reshape(-1)), rtol=1e-12)


@in_worlds
def test_a_nan_stays_from_its_cell_on() -> None:
    value = np.arange(16.0)
    value[5] = np.nan
    x = put(value, "i")
    for function in (mnp.cumsum, scan.cummax):
        assert np.isnan(whole(function(x))[5:]).all()
        assert not np.isnan(whole(function(x))[:5]).any()
    assert whole(mnp.nancumsum(x))[-1] == np.nansum(value)
    assert whole(mnp.nancumprod(put(np.where(value < 1, 1, value), "i")))[6] == 1 * 2 * 3 * 4 * 6


def _long_and_thin() -> None:
    # 8 positions on 8 cells: each cell's total is its whole block, so that bringing the totals
    # together would bring the array together.
    value = np.random.default_rng(0).normal(size=(8, 1 << 14))
    x = put(value, ("i", "j"))
    with watched() as seen:
        found = mnp.cumsum(x, 0)
    assert found.sharding == x.sharding
    assert seen.largest <= 2 * (value.size // 8)
    np.testing.assert_allclose(whole(found), np.cumsum(value, 0), rtol=1e-12)


def test_a_short_dim_of_a_large_array_is_not_brought_together() -> None:
    everywhere(_long_and_thin)


def test_only_totals_move() -> None:
    def body() -> int:
        x = put(np.ones((4096, 3)), ("i", "j"))
        with watched() as seen:
            mnp.cumsum(x, 0)
        return seen.sent

    # Each process sends the totals of its 4 cells, 3 floats each, once.
    assert simulate(2, 4, body) == [4 * 3 * 8, 4 * 3 * 8]


def test_differences_move_the_edges_only() -> None:
    def body() -> int:
        x = put(np.arange(8000.0).reshape(800, 10), ("i", "j"))
        with watched() as seen:
            found = mnp.diff(x, axis=0)
        assert whole(found).shape == (799, 10)
        return seen.sent

    # One row of ten floats crosses from the second process to the first, or back.
    assert sum(simulate(2, 4, body)) == 10 * 8


@in_worlds
def test_methods() -> None:
    x = put(np.arange(1, 9), "i")
    assert whole(x.cumsum()).tolist() == np.arange(1, 9).cumsum().tolist()
    assert whole(x.cumprod(0, dtype="f8"))[-1] == 40320.0


@in_worlds
def test_dtypes() -> None:
    small = put(np.full(64, 0.1).astype(ml_dtypes.bfloat16), "i")
    found = mnp.cumsum(small)
    assert found.dtype == ml_dtypes.bfloat16
    # Accumulated in float32: in bfloat16 the sum would stop near 4 for want of bits.
    assert abs(float(whole(found)[-1]) - 6.4) < 0.1
    assert mnp.cumsum(put(np.ones(8, bool), "i")).dtype == np.int64
    assert mnp.cumsum(put(np.ones(8, "u2"), "i")).dtype == np.uint64
    assert mnp.cumsum(put(np.ones(8, "i1"), "i"), dtype="i1").dtype == np.int8
    assert scan.cumlogsumexp(put(np.zeros(8, int), "i")).dtype == np.float64
    assert mnp.cumsum(put(np.ones(8, "c8"), "i")).dtype == np.complex64


@in_worlds
def test_no_elements() -> None:
    assert mnp.cumsum(mnp.zeros((0, 3)), 0).shape == (0, 3)
    assert mnp.cumsum(mnp.zeros((3, 0)), 0).shape == (3, 0)
    assert whole(mnp.cumulative_sum(mnp.zeros(0), include_initial=True)).tolist() == [0.0]
    assert mnp.diff(mnp.zeros(1)).shape == (0,)
    assert whole(mnp.cumsum(mnp.asarray(3))).tolist() == [3]


@in_worlds
def test_the_initial_value_goes_to_the_first_device() -> None:
    x = put(np.arange(1.0, 9), "i")
    found = mnp.cumulative_sum(x, include_initial=True)
    assert found.aval.layout.cuts == ((0, 3, 5, 7, 9),)
    assert whole(found).tolist() == [0, *np.cumsum(np.arange(1.0, 9))]
    grid = put(np.arange(1, 13).reshape(4, 3), "i")
    for axis in (0, 1):
        expected = np.cumulative_prod(
            np.arange(1, 13).reshape(4, 3), axis=axis, include_initial=True
        )
        same(whole(mnp.cumulative_prod(grid, axis=axis, include_initial=True)), expected)


@settings(max_examples=40)
@given(data=st.data())
def test_differences_are_numpy_s(data: st.DataObject) -> None:
    shape = data.draw(shapes(1))
    value = numbered(shape, data.draw(st.sampled_from(["i8", "f8", "bool"]))) % 5
    value = value.astype(bool) if data.draw(st.booleans()) else value
    lay = data.draw(lays(shape))
    axis, n = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.integers(0, 3))
    ends = {
        name: value[(slice(None),) * (axis % len(shape)) + (slice(0, 2),)]
        for name in data.draw(st.sets(st.sampled_from(["prepend", "append"])))
    }

    def body() -> Any:
        return fetched(mnp.diff(lay.put(value), n, axis, **ends))

    same(everywhere(body), np.diff(value, n, axis, **ends))


@in_worlds
def test_ends_of_differences_may_be_scalars() -> None:
    value = np.arange(12).reshape(4, 3) ** 2
    x = put(value, "i")
    same(whole(mnp.diff(x, axis=0, prepend=7)), np.diff(value, axis=0, prepend=7))
    same(whole(mnp.diff(x, axis=0, append=7)), np.diff(value, axis=0, append=7))


@in_worlds
def test_refusals() -> None:
    x = put(np.ones((4, 2)), "i")
    with pytest.raises(ArgumentError, match=r"cumsum: axis 2 is out of bounds .* 2 dims"):
        mnp.cumsum(x, 2)
    with pytest.raises(ArgumentError, match=r"cumulative_sum: axis may be left out .*\(4, 2\)"):
        mnp.cumulative_sum(x)
    with pytest.raises(ArgumentError, match=r"diff: n must be a non-negative integer, not -1"):
        mnp.diff(x, -1)
    with pytest.raises(ShapeError, match=r"trapezoid: points of shape \(3,\) for values"):
        mnp.trapezoid(x, np.ones(3), axis=0)


def test_a_process_without_devices_of_the_mesh_has_nothing_to_do() -> None:
    def body() -> tuple[int, ...]:
        first = meshard.devices()[:4]
        own = meshard.sharding.Mesh(first, ("x",))
        x = meshard.device_put(np.arange(8), meshard.NamedSharding(own, meshard.P("x")))
        return mnp.cumsum(x).shape

    assert simulate(2, 4, body) == [(8,), (8,)]
    assert mesh().size == 8
