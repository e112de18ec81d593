"""Elements of given ranks, partitions and the greatest: what they cost, and their kernels."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError
from meshard.lax import top_k
from meshard.ops import ordering
from meshard.ops.array import formulas
from meshard.ops.reductions import select, sort
from meshard.runtime.doors import bind
from tests.lays import fetched, lays, same, shapes
from tests.worlds import alone, everywhere, in_worlds, put, whole

KINDS = ["f8", "f4", "f2", "i8", "i4", "u1", "bool", "bfloat16"]


def _values(shape: Any, kind: str, seed: int = 0) -> np.ndarray:
    """Return numbers with many ties, zeros of both signs, and NaN of both signs."""
    random = np.random.default_rng(seed)
    value = np.round(random.normal(size=shape) * 3)
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    if dtype.kind in "fV":
        value = np.where(value > 5, np.copysign(np.nan, random.normal(size=shape)), value)
        value = np.where(value == 0, np.copysign(0.0, random.normal(size=shape)), value)
    return (abs(value) if dtype.kind == "u" else value).astype(dtype)


def _keys(value: np.ndarray) -> np.ndarray:
    return value.astype("f4") if value.dtype == ml_dtypes.bfloat16 else value


def _descending(value: np.ndarray) -> np.ndarray:
    """Return the positions along the last dim, the greatest first, equal ones in their order."""
    back = np.argsort(np.flip(_keys(value), -1), -1, kind="stable")
    return value.shape[-1] - 1 - np.flip(back, -1)


@pytest.fixture(params=[True, False], ids=["gathered", "counted"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Select from small arrays as from such, or as from large ones."""
    if not request.param:
        monkeypatch.setattr(sort, "GATHERED_SORT", -1)
        monkeypatch.setattr("meshard.ops.array.samplesort.GATHERED_SORT", -1)
        monkeypatch.setattr(select, "_pays", lambda x, axis, ranks: True)


_LAID_OUT = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_LAID_OUT
@given(data=st.data())
def test_quantiles_are_numpy_s_however_an_array_lies(counted: None, data: st.DataObject) -> None:
    shape = data.draw(shapes(1))
    value = _values(shape, data.draw(st.sampled_from(["f8", "f4", "i4"])), sum(shape))
    axes = data.draw(st.none() | st.sets(st.integers(0, len(shape) - 1), min_size=1))
    axis = None if axes is None else tuple(sorted(axes))
    rows = axis if axis is not None else tuple(range(len(shape)))
    if not value.size or not all(shape[d] for d in rows):
        return
    lay = data.draw(lays(shape))
    keepdims = data.draw(st.booleans())
    q = np.asarray(data.draw(st.lists(st.sampled_from([0, 0.2, 0.5, 1]), min_size=1, max_size=3)))
    method = data.draw(st.sampled_from(["linear", "lower", "hazen", "inverted_cdf", "midpoint"]))
    said = {"axis": axis, "keepdims": keepdims}

    def body() -> Any:
        x = lay.put(value)
        return fetched(
            [
                mnp.median(x, **said),
                mnp.nanmedian(x, **said),
                mnp.quantile(x, q, method=method, **said),
                mnp.nanquantile(x, q, method=method, **said),
            ]
        )

    found = everywhere(body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        wanted = [
            np.median(value, **said),
            np.nanmedian(value, **said),
            np.quantile(value, q, method=method, **said),
            np.nanquantile(value, q, method=method, **said),
        ]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@_LAID_OUT
@given(data=st.data())
def test_the_greatest_are_the_first_of_those_sorted(counted: None, data: st.DataObject) -> None:
    shape = data.draw(shapes(1))
    if data.draw(st.booleans()):
        shape = (data.draw(st.integers(0, 60)),)
    value = _values(shape, data.draw(st.sampled_from(KINDS)), sum(shape))
    axis = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(0, min(shape[axis], 5)))
    lay = data.draw(lays(shape))
    found, places = everywhere(lambda: fetched(list(top_k(lay.put(value), k, axis=axis))))
    back = np.moveaxis(value, axis, -1)
    order = _descending(back)[..., :k]
    same(np.moveaxis(places, axis, -1), order)
    wanted = np.take_along_axis(back, order, -1)
    for value in (found, wanted):  # one NaN is as good as another
        value[np.isnan(value)] = np.asarray(np.nan if value.dtype.kind in "fV" else 0, value.dtype)
    same(np.moveaxis(found, axis, -1), wanted)


# what moves

COUNT = 1 << 18


def _moved(f: Any, x: Any) -> int:
    """Return the bytes that a function moves; jitted it moves as many, and `explain` says so."""
    with meshard.debug.ledger() as log:
        f(x)
    jitted = meshard.jit(f)
    with meshard.debug.ledger() as again:
        jitted(x)
    assert again.total_bytes == log.total_bytes
    assert meshard.explain(jitted, x).total_bytes >= log.total_bytes
    return log.total_bytes


def test_medians_move_a_small_part_of_an_array() -> None:
    value = np.random.default_rng(0).normal(size=COUNT).astype("f4")

    def body() -> None:
        for x in (
            put(value.reshape(512, -1), "i", "j"),
            put(value, ("i", "j")),
            put(value, ("i", "j"), uneven=((0, 5, 5, 90000, *range(100000, 100004), COUNT),)),
        ):
            moved = _moved(mnp.median, x)
            assert 0 < moved < 0.5 * value.nbytes
            assert float(mnp.median(x)) == np.median(value)
        missing = np.where(value > 2, np.nan, value)
        assert _moved(mnp.nanmedian, put(missing, ("i", "j"))) < 0.5 * value.nbytes
        found = mnp.nanmedian(put(missing, ("i", "j")))
        assert float(found) == pytest.approx(np.nanmedian(missing), rel=1e-6)

    alone(body)


def test_long_rows_are_counted_together() -> None:
    value = np.random.default_rng(0).normal(size=(3, 1 << 17)).astype("f4")

    def body() -> None:
        x = put(value, None, ("i", "j"))
        with meshard.debug.ledger() as log:
            found = mnp.median(x, axis=1)
        same(whole(found), np.median(value, axis=1))
        assert len(log.records) <= 4  # samples, counts and candidates, of all rows at once
        assert log.total_bytes < value.nbytes

    alone(body)


@pytest.mark.parametrize("name", ["partition", "argpartition"])
def test_a_partition_moves_what_is_on_the_wrong_side(name: str) -> None:
    value = np.random.default_rng(0).normal(size=COUNT).astype("f4")
    k = COUNT // 4
    wrong = np.count_nonzero(value.argsort()[:k] >= k)

    def body() -> None:
        x = put(value, ("i", "j"))
        f = getattr(mnp, name)
        item = 4 if name == "partition" else 8
        with meshard.debug.ledger() as log:
            f(x, k)
        crossed = sum(r.total_bytes for r in log.records if r.what == name)
        assert 2 * (wrong - 1) * item <= crossed <= 2 * (wrong + 1) * item
        assert _moved(lambda x: f(x, k), x) < crossed + 0.5 * value.nbytes
        found = whole(f(x, [k, k + 7]))
        found = found if name == "partition" else value[found]
        ordered = np.sort(value)
        same(found[[k, k + 7]], ordered[[k, k + 7]])
        same(np.sort(found[:k]), ordered[:k])
        same(np.sort(found[k + 8 :]), ordered[k + 8 :])

    alone(body)


def test_the_greatest_move_as_values_and_positions() -> None:
    value = np.random.default_rng(0).normal(size=(16, 4096)).astype("f4")

    def body() -> None:
        x = put(value, "i", "j")
        assert _moved(lambda x: top_k(x, 10)[1], x) == 2 * 16 * 10 * (4 + 8)
        values, places = top_k(x, 10)
        assert values.sharding.spec[0] == "i"  # rows stay where they are
        order = _descending(value)[:, :10]
        same(whole(places), order)
        flat = put(value.reshape(-1), ("i", "j"))
        assert _moved(lambda x: top_k(x, 3)[1], flat) == 2 * 7 * 3 * (4 + 8)

    alone(body)


@in_worlds
def test_more_greatest_than_one_device_may_hold_are_divided_by_rows() -> None:
    value = np.random.default_rng(0).normal(size=(64, 4096)).astype("f4")
    values, places = top_k(put(value, None, ("i", "j")), 200)
    order = _descending(value)[:, :200]
    same(whole(places), order)
    same(whole(values), np.take_along_axis(value, order, -1))


@in_worlds
def test_positions_of_split_arrays_are_sorted_with_short_elements() -> None:
    for kind in KINDS:
        value = _values(9000, kind)
        x = put(value, ("i", "j"))
        same(whole(mnp.argsort(x)), np.argsort(_keys(value), kind="stable"))
        same(whole(mnp.argsort(x, descending=True)), _descending(value))
    value = np.arange(1 << 17, dtype="f4")[::-1].copy()
    x = put(value, ("i", "j"))
    with meshard.debug.ledger() as log:
        mnp.argsort(x)
    assert log.total_bytes < 1.2 * value.size * 8


# derivatives and jit


@in_worlds
def test_derivatives_of_what_is_selected(counted: None) -> None:
    value = np.random.default_rng(0).permutation(40).astype("f8")
    value[3] = np.nan
    split = put(value, ("i", "j"))
    found = whole(meshard.grad(mnp.nanmedian)(split))
    ranks = np.argsort(value)
    wanted = np.zeros(40)
    wanted[ranks[19]] = 1.0
    same(found, wanted)
    weights = np.arange(40.0)
    value[3] = 3.5
    for x in (put(value, ("i", "j")), put(value.reshape(8, 5), "i")):

        def f(x: Any) -> Any:
            return (mnp.partition(mnp.ravel(x), [7, 20]) * weights).sum()

        gradient = whole(meshard.grad(f)(x)).ravel()
        parted = whole(mnp.partition(mnp.ravel(x), [7, 20]))
        wanted = np.empty(40)
        wanted[[int(np.flatnonzero(value == v)[0]) for v in parted]] = weights
        same(gradient, wanted)


@in_worlds
def test_traced_parts_select_as_known_ones_do(counted: None) -> None:
    value = np.random.default_rng(0).normal(size=(6, 50))
    x = put(value, "j", "i", uneven="balanced")
    for axis in (None, 0, 1):
        found = whole(meshard.jit(lambda x, q, axis=axis: mnp.quantile(x, q, axis))(x, 0.3))
        np.testing.assert_allclose(found, np.quantile(value, 0.3, axis), rtol=1e-12)
    same(
        whole(meshard.jit(meshard.vmap(lambda v: mnp.partition(v, 25)[25]))(x)),
        np.sort(value, 1)[:, 25],
    )
    same(whole(meshard.vmap(lambda v: mnp.median(v))(x)), np.median(value, 1))


@in_worlds
def test_refusals() -> None:
    x = put(np.arange(16.0), ("i", "j"))
    with pytest.raises(ArgumentError, match="partition: kth 16 is out of bounds for dim 0 with"):
        mnp.partition(x, 16)
    with pytest.raises(ArgumentError, match="argpartition: kth -17 is out of bounds for dim 0"):
        mnp.argpartition(x, [0, -17])
    with pytest.raises(ArgumentError, match="top_k: k must be from 0 to the size of dim 0, 16"):
        top_k(x, 17)


# kernels


@given(data=st.data())
def test_kernels_of_one_block(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 400))
    value = _values((2, n), data.draw(st.sampled_from([*KINDS, "u8"])), n)
    keys = _keys(value)
    ordered = np.sort(keys, -1)
    kth = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=20)))
    found = _keys(ordering.select_block(value, kth=kth))
    np.testing.assert_array_equal(found, ordered[:, kth])
    parted = _keys(ordering.partition_block(value, dim=1, kth=kth))
    np.testing.assert_array_equal(parted[:, kth], ordered[:, kth])
    np.testing.assert_array_equal(np.sort(parted[:, : kth[0]], -1), ordered[:, : kth[0]])
    for row, own in zip(value, keys, strict=True):
        places = ordering.argsort_block(row, dim=0, descending=False)
        same(places, np.argsort(own, kind="stable"))
        same(ordering.argsort_block(row, dim=0, descending=True), _descending(row))


def test_positions_of_long_elements_with_equal_ones() -> None:
    random = np.random.default_rng(0)
    far = random.integers(0, 50, 5000) * (1 << 40)
    near = random.integers(0, 50, 5000)
    gaps = np.where(near > 45, np.nan, near + 0.5)
    for value in (far, near, gaps, -gaps, near.astype("u8"), np.empty(0, "i8")):
        same(
            ordering.argsort_block(value, dim=0, descending=False),
            np.argsort(value, kind="stable"),
        )
        same(ordering.argsort_block(value, dim=0, descending=True), _descending(value))


def test_what_is_repeated_is_copied_in_growing_pieces() -> None:
    for shape, wide in (((1, 7), (70_000, 7)), ((3, 1, 5), (3, 50_000, 5)), ((9, 1), (9, 40_000))):
        x = np.arange(np.prod(shape)).reshape(shape)
        found = formulas.repeated_copy(np.broadcast_to(x, wide))
        same(np.array(found), np.array(np.broadcast_to(x, wide)))
    assert formulas.repeated_copy(np.broadcast_to(np.arange(7), (70_000, 7))).strides[0] == 7 * 8
    y = np.ones((4, 4))
    assert formulas.repeated_copy(y) is y


@in_worlds
def test_many_repetitions() -> None:
    value = np.arange(24.0)
    for x in (put(value, ("i", "j")), put(value), put(value.reshape(4, 6), "i", "j")):
        known = whole(x)
        same(whole(mnp.tile(x, 20_003)), np.tile(known, 20_003))
        same(whole(mnp.tile(x, (300, 17))), np.tile(known, (300, 17)))
    for count in (10**15, 10**18):
        with pytest.raises((MemoryError, meshard.errors.ShapeError)):
            mnp.tile(put(value, ("i", "j")), count)


@in_worlds
def test_running_totals_of_leading_dims() -> None:
    value = np.random.default_rng(0).normal(size=(6, 5, 300)).astype("f4")
    for axis in range(3):
        for spec in (("i", "j"), (None, None, "i"), ()):
            x = put(value, *spec, uneven="balanced")
            np.testing.assert_allclose(
                whole(mnp.cumsum(x, axis)), np.cumsum(value, axis), rtol=2e-5, atol=2e-5
            )
    plain = mnp.asarray(value)
    same(whole(mnp.cumsum(plain, 0)), np.cumsum(value, 0))
    same(
        whole(bind("scan", plain, dim=0, how="maximum", dtype=np.dtype("f4"), whole=True)),
        np.maximum.accumulate(value, 0),
    )


def test_a_ledger_tells_nothing_where_dims_are_whole() -> None:
    def body() -> None:
        x = put(np.random.default_rng(0).normal(size=(64, 50)), ("i", "j"))
        for f in (
            lambda: mnp.median(x, 1),
            lambda: mnp.nanquantile(x, 0.3, 1),
            lambda: mnp.partition(x, 3),
            lambda: top_k(x, 3),
        ):
            with meshard.debug.ledger() as log:
                f()
            assert log.total_bytes == 0

    alone(body)
