"""Sorting, searching and sets: right and stable, spread over devices, and nothing gathered."""

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, DtypeError, NotAddressableError, ShapeError
from meshard.ops.array import samplesort
from meshard.ops.dtypes.laws import SMALL_FLOATS
from meshard.ops.reductions import distinct, partition, select, sort
from meshard.runtime.doors import bind
from meshard.runtime.simulated import simulate
from meshard.sharding import Mesh, NamedSharding, P
from tests.lays import Lay, fetched, lays, on_meshes, same, shapes
from tests.operands import in_all_worlds
from tests.watch import watched
from tests.worlds import alone, everywhere, in_worlds, put, whole

KINDS = ["f8", "f4", "i8", "u1", "bool", "c8", "bfloat16", "float8_e5m2"]


def _values(shape: Any, kind: str, seed: int) -> np.ndarray:
    """Return numbers with many ties, zeros of both signs and NaN."""
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    random = np.random.default_rng(seed)
    value = np.round(random.normal(size=shape) * 3)
    if dtype.kind not in "biu":
        value = np.where(value > 4, np.nan, value)
        value = np.where(random.random(shape) < 0.2, -0.0, value)
    elif dtype.kind == "u":
        value = abs(value)
    if dtype.kind == "c":
        value = value + 1j * np.round(random.normal(size=shape))
    return value.astype(dtype)


def _order(value: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return the positions that sort a value stably; NaN as the greatest."""
    keys = value.astype("f4") if value.dtype in SMALL_FLOATS else value
    if not descending:
        return np.argsort(keys, axis, kind="stable")
    back = np.argsort(np.flip(keys, axis), axis, kind="stable")
    return value.shape[axis] - 1 - np.flip(back, axis)


@pytest.fixture(params=[True, False], ids=["gathered", "spread"])
def gathered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort small arrays as such, or as if they were large."""
    if not request.param:
        for module in (sort, samplesort, distinct):
            monkeypatch.setattr(module, "GATHERED_SORT", -1)
        monkeypatch.setattr(select, "_pays", lambda x, axis, ranks: True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_sorts_are_numpy_s_however_an_array_lies(gathered: None, data: st.DataObject) -> None:
    shape = data.draw(shapes(1))
    if data.draw(st.booleans()):
        shape = (data.draw(st.integers(0, 60)),)
    value = _values(shape, data.draw(st.sampled_from(KINDS)), sum(shape))
    lay = data.draw(lays(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    descending = data.draw(st.booleans())

    def body() -> Any:
        x = lay.put(value)
        return fetched(
            [
                mnp.sort(x, axis, descending=descending),
                mnp.argsort(x, axis, descending=descending),
            ]
        )

    found, order = everywhere(body)
    expected = _order(value, axis, descending)
    same(order, expected)
    same(found, np.take_along_axis(value, expected, axis))


@pytest.mark.parametrize("shape", [(1000,), (40, 3), (30, 2, 3), (6, 20, 7)])
def test_sorts_are_the_same_on_any_number_of_processes(
    gathered: None, shape: tuple[int, ...]
) -> None:
    value = _values(shape, "f4", 1)

    def body() -> Any:
        x = put(value, ("j", "i"), uneven="balanced")
        return fetched([mnp.sort(x, 0), mnp.argsort(x, 0)])

    found, _ = in_all_worlds(body)
    same(found, np.sort(value, 0, kind="stable"))


def _long(kind: str, n: int = 8000) -> np.ndarray:
    random = np.random.default_rng(5)
    return {
        "random": random.normal(size=n),
        "sorted": np.arange(n, dtype=float),
        "reversed": np.arange(n, dtype=float)[::-1],
        "equal": np.zeros(n),
        "two values": (random.random(n) < 0.9).astype(float),
        "skewed": random.random(n) ** 20,
        "blocks": np.repeat(np.arange(8.0)[::-1], n // 8),
    }[kind]


LONG = ["random", "sorted", "reversed", "equal", "two values", "skewed", "blocks"]


@pytest.mark.parametrize("kind", LONG)
def test_a_long_dim_is_sorted_where_it_lies(kind: str) -> None:
    value = _long(kind)

    def body() -> tuple[Any, float, float, Any]:
        x = put(value, ("i", "j"))
        with watched() as seen:
            found, order = mnp.sort(x), mnp.argsort(x)
        assert found.sharding == x.sharding
        assert order.sharding == x.sharding
        return whole(found), seen.largest / (value.size / 8), seen.sent / value.nbytes, whole(order)

    for found, largest, sent, order in simulate(2, 4, body):
        same(found, np.sort(value))
        same(order, np.argsort(value, kind="stable"))
        # No block is much longer than a device's share; the samples are 512 of 8000.
        assert largest < 1.3
        # This process's half crosses at most once for the values, and once again for each of the
        # keys and positions of argsort, with what balancing and samples add.
        assert sent < 3 * 0.5 * 1.35


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("descending", [False, True])
def test_splitters_cut_evenly(kind: str, descending: bool) -> None:
    value = _long(kind)

    def parts() -> Any:
        x = put(value, ("i", "j"))
        run = bind("sort_runs", x, descending=descending)
        cuts = run.aval.layout.cuts[0]
        splitters = samplesort._splitters(run, cuts, descending)
        counts = bind("sort_counts", run, *splitters, cuts=cuts, descending=descending)
        return np.diff(np.asarray(counts).sum(axis=0), prepend=0, append=value.size)

    sizes = alone(parts)
    assert sizes.sum() == value.size
    assert sizes.max() <= 1.25 * value.size / 8
    assert sizes.min() >= 0.75 * value.size / 8


@in_worlds
def test_axes_move_to_a_dim_that_is_long_enough() -> None:
    value = np.random.default_rng(0).normal(size=(16, 32))
    with watched() as seen:
        found = mnp.sort(put(value, "i", "j"), 0)
    assert found.sharding.spec == P(None, ("j", "i"))
    assert seen.largest == value.size // 8
    same(whole(found), np.sort(value, 0))
    assert mnp.sort(put(value, "i"), 1).sharding.spec == P("i")


@pytest.mark.parametrize("shape", [(8000, 2, 5), (8000, 3)])
def test_where_no_dim_is_long_enough_nothing_is_gathered(shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(0).normal(size=shape)

    def body() -> Any:
        x = put(value, ("i", "j"))
        with watched() as seen:
            found = mnp.sort(x, 0)
        # Ten columns on eight devices: two on some.
        assert seen.largest <= 1.6 * value.size / 8
        return whole(found)

    same(everywhere(body), np.sort(value, 0))


@in_worlds
def test_options_and_methods() -> None:
    value = _values((5, 7), "f8", 0)
    x = put(value, "i", uneven="balanced")
    same(whole(mnp.sort(x, axis=None)), np.sort(value, None, kind="stable"))
    same(whole(x.sort(0)), np.sort(value, 0, kind="stable"))
    same(whole(x.argsort(0)), np.argsort(value, 0, kind="stable"))
    same(whole(mnp.sort(x, kind="stable", stable=True)), np.sort(value, kind="stable"))
    ordered = put(np.arange(9.0), "i", uneven="balanced")
    assert int(whole(ordered.searchsorted(3.5))) == 4


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_selected_is_what_sorting_puts_there(gathered: None, data: st.DataObject) -> None:
    shape = data.draw(shapes(1))
    if data.draw(st.booleans()):
        shape = (data.draw(st.integers(1, 60)),)
    value = _values(shape, data.draw(st.sampled_from([k for k in KINDS if k != "c8"])), sum(shape))
    if not value.size:
        return
    lay = data.draw(lays(shape))
    n = shape[-1]
    kth = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=4)))
    axis = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    back = np.moveaxis(value, axis, range(len(shape) - len(axis), len(shape)))
    back = back.reshape(*back.shape[: len(shape) - len(axis)], -1)
    some = sorted({k % back.shape[-1] for k in kth})
    ranks = np.random.default_rng(n).integers(0, back.shape[-1], (*back.shape[:-1], 3))

    def body() -> Any:
        x = lay.put(value)
        parts = [mnp.partition(x, kth), mnp.argpartition(x, kth)]
        chosen = [select.selected(x, axis, some), select.selected_at(x, axis, ranks)]
        one, other, parted = [
            p if value.dtype.kind in "biu" else p + 0 for p in (*chosen, parts[0])
        ]
        return fetched([one, other, parted, parts[1]])

    one, other, parted, order = everywhere(body)
    if value.dtype.kind not in "biu":
        back = back + value.dtype.type(0)
    ordered = np.take_along_axis(back, _order(back, -1, False), -1)
    same(one, ordered[..., some])
    same(other, np.take_along_axis(ordered, ranks, -1))
    value = value if value.dtype.kind in "biu" else value + value.dtype.type(0)  # -0.0: 0.0
    ordered = np.take_along_axis(value, _order(value, -1, False), -1)
    wanted = ordered[..., kth]
    for result in (parted, np.take_along_axis(value, order, -1)):
        same(result[..., kth], wanted)
        again = np.take_along_axis(result, _order(result, -1, False), -1)
        same(again, ordered)
        lesser = result[..., : kth[0]]
        lesser = np.take_along_axis(lesser, _order(lesser, -1, False), -1)
        same(lesser, ordered[..., : kth[0]])


@pytest.mark.parametrize("kind", [*LONG, "infinite", "whole", "repeating"])
def test_few_elements_are_brought_together_to_select_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 200_000
    value = _long(kind, n) if kind in LONG else _long("random", n)
    if kind == "infinite":
        value = np.where(value < -1, -np.inf, np.where(value > 2, np.nan, value))
    elif kind == "whole":
        value = (value * 1000).astype("i2")
    elif kind == "repeating":
        value = np.arange(n) % 59.0  # the step of the samples: all of them are equal
    ranks = (0, 3, n // 3, n // 2, n - 1)
    in_full: list[Any] = []
    sort_all = select.sort
    monkeypatch.setattr(select, "sort", lambda x: in_full.append(x) or sort_all(x))

    def body() -> Any:
        x = put(value, ("i", "j"))
        with watched() as seen:
            found = whole(select.selected(x, (0,), ranks))
        assert seen.largest < 1.3 * value.size / 8
        return found

    for found in simulate(2, 4, body):
        same(found, np.sort(value)[list(ranks)])
    assert bool(in_full) == (kind == "repeating")


@in_worlds
def test_top_k(gathered: None) -> None:
    value = np.random.default_rng(0).permutation(60)
    for x in (put(value, "i"), put(value.reshape(5, 12), None, "i")):
        found, places = partition.top_k(x, 4)
        rows = value.reshape(whole(x).shape)
        order = np.flip(np.argsort(rows), -1)[..., :4]
        same(whole(places), order)
        same(whole(found), np.take_along_axis(rows, order, -1))
    with pytest.raises(
        ArgumentError, match=r"top_k: k must be from 0 to the size of dim 0, 60, got 61"
    ):
        partition.top_k(put(value, "i"), 61)


@settings(max_examples=50)
@given(data=st.data())
def test_searches_are_numpy_s(data: st.DataObject) -> None:
    n, shape = data.draw(st.integers(0, 30)), data.draw(shapes(0, 2))
    kind = data.draw(st.sampled_from(["f8", "i4", "bfloat16"]))
    a, v = np.sort(_values((n,), "f8", n)).astype("f4"), _values(shape, "f8", 9).astype("f4")
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    if dtype.kind == "i":
        a, v = np.sort(np.nan_to_num(a, nan=9)), np.nan_to_num(v, nan=9)
    first, second = data.draw(lays((n,))), Lay()  # two committed ones would have to agree
    if data.draw(st.booleans()):
        first, second = Lay(), data.draw(lays(shape))
    side = data.draw(st.sampled_from(["left", "right"]))

    def body() -> Any:
        found = mnp.searchsorted(first.put(a.astype(dtype)), second.put(v.astype(dtype)), side)
        return fetched(found)

    same(everywhere(body), np.searchsorted(a, v, side))


@in_worlds
def test_searching_a_split_array_with_a_sorter() -> None:
    value = np.random.default_rng(0).permutation(24)
    x = put(value, "i")
    wanted = np.searchsorted(value, [0, 7, 99], sorter=np.argsort(value))
    same(whole(mnp.searchsorted(x, np.array([0, 7, 99]), sorter=mnp.argsort(x))), wanted)


@in_worlds
def test_refusals() -> None:
    x = put(np.arange(8.0).reshape(4, 2), "i")
    with pytest.raises(ArgumentError, match=r"sort: axis 2 is out of bounds .* 2 dims"):
        mnp.sort(x, 2)
    with pytest.raises(ShapeError, match=r"argsort: an array without dims .* axis=None"):
        mnp.argsort(mnp.asarray(3))
    with pytest.raises(ShapeError, match=r"searchsorted: .* one dim, but its shape is \(4, 2\)"):
        mnp.searchsorted(x, 3)
    with pytest.raises(
        ArgumentError, match="searchsorted: side must be 'left' or 'right', got 'up'"
    ):
        mnp.searchsorted(x[:, 0], 3, "up")
    with pytest.raises(ArgumentError, match=r"partition: kth 4 is out of bounds for dim 0 .* 4"):
        mnp.partition(x, 4, 0)
    with pytest.raises(ArgumentError, match="digitize: the bins must be edges that rise or fall"):
        mnp.digitize(x, np.array([1, 3, 2]))
    with pytest.raises(
        ShapeError, match=r"extract: the condition of shape \(3,\) .* \(4, 2\) must have"
    ):
        mnp.extract(np.ones(3, bool), x)
    with pytest.raises(ShapeError, match=r"compress: a condition of shape \(5,\) for dim 0"):
        mnp.compress(np.ones(5, bool), x, axis=0)
    assert mnp.argwhere(mnp.asarray(3)).shape == (1, 0)


# sets


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_distinct_elements_are_numpy_s(gathered: None, data: st.DataObject) -> None:
    shape = data.draw(shapes(1))
    value = _values(shape, data.draw(st.sampled_from(["f8", "i4", "u1", "bool", "c8"])), sum(shape))
    lay = data.draw(st.one_of(on_meshes(shape), st.just(Lay())))
    if lay.grid and len(lay.ids) < 8:  # a process without a device of the mesh cannot know them
        lay = Lay((*range(8),), (8,), ("i",), "balanced")
    equal_nan = data.draw(st.booleans())

    def body() -> Any:
        found = mnp.unique(lay.put(value), True, True, True, equal_nan=equal_nan)
        return fetched(list(found))

    found = everywhere(body)
    expected = np.unique(value, True, True, True, equal_nan=equal_nan)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


@in_worlds
def test_distinct_elements_stay_spread() -> None:
    value = np.random.default_rng(0).integers(0, 5000, size=8000)
    x = put(value, ("i", "j"))
    with watched() as seen:
        found = mnp.unique(x)
    assert found.sharding.spec == x.sharding.spec
    cuts = found.aval.layout.cuts[0]
    assert max(b - a for a, b in pairwise(cuts)) < 1.4 * found.size / 8
    assert seen.largest < 1.4 * value.size / 8
    same(whole(found), np.unique(value))


@in_worlds
def test_what_a_mask_selects_stays_where_it_is() -> None:
    value = np.arange(80)
    x = put(value, ("i", "j"))
    mask = (x % 10) < 3
    with watched() as seen:
        found = mnp.compress(mask, x)
        places = mnp.flatnonzero(mask)
    assert seen.sent < 8 * 8 * 8 * 4  # the counts of cells
    assert found.aval.layout.cuts == ((0, 3, 6, 9, 12, 15, 18, 21, 24),)
    same(whole(found), value[value % 10 < 3])
    same(whole(places), np.flatnonzero(value % 10 < 3))
    local = mnp.compress(np.asarray(value % 10 < 3), x)
    same(whole(local), value[value % 10 < 3])
    assert whole(mnp.extract(mask, mnp.zeros(80))).shape == (24,)


@in_worlds
def test_membership_in_a_split_array() -> None:
    x, test = (
        put(np.arange(24).reshape(6, 4), "i", uneven="balanced"),
        put(np.arange(0, 16, 2), "j"),
    )
    found = mnp.isin(x, test)
    assert found.sharding == x.sharding
    same(whole(found), np.isin(np.arange(24).reshape(6, 4), np.arange(0, 16, 2)))
    both = put(np.arange(8), "i")
    same(whole(mnp.isin(both, put(np.arange(4, 12), "i"))), np.arange(8) >= 4)
    small = np.arange(4).astype(ml_dtypes.bfloat16)
    same(whole(mnp.isin(put(small, "i"), small[:2])), np.array([True, True, False, False]))


def test_what_depends_on_values_cannot_be_known_without_a_device() -> None:
    def body() -> Any:
        own = Mesh(meshard.devices()[:4], ("x",))
        x = meshard.device_put(np.arange(8)[::-1], NamedSharding(own, P("x")))
        ordered = mnp.sort(x)
        if meshard.process_index() == 0:
            return np.asarray(ordered).tolist(), np.asarray(mnp.unique(x)).tolist()
        with pytest.raises(NotAddressableError):
            mnp.unique(x)
        return ordered.shape

    assert simulate(2, 4, body) == [(list(range(8)), list(range(8))), (8,)]


# order statistics and counts, which stand on the sort


@in_worlds
def test_medians_of_a_split_dim() -> None:
    value = np.random.default_rng(0).normal(size=4001)
    x = put(value, ("i", "j"), uneven="balanced")
    with watched() as seen:
        assert float(mnp.median(x)) == np.median(value)
        assert float(mnp.quantile(x, 0.37)) == np.quantile(value, 0.37)
    assert seen.largest < 1.4 * value.size / 8
    value[17] = np.nan
    assert np.isnan(float(mnp.median(put(value, "i", uneven="balanced"))))
    small = put(np.arange(6).astype("f2"), "j")
    assert mnp.median(small).dtype == np.float16
    assert float(mnp.quantile(put(np.full(4, np.inf), "i"), 0.5)) == np.inf
    assert float(mnp.quantile(np.array([1, np.inf]), 0.3)) == np.inf


@in_worlds
def test_counts_in_bins_move_counts_only() -> None:
    value = np.random.default_rng(0).normal(size=8000)
    x = put(value, ("i", "j"))
    with watched() as seen:
        found, edges = mnp.histogram(x, 16)
    # Each device has 16 counts of its own and its least and greatest value, for the others.
    sends = len(meshard.local_devices()) * (meshard.process_count() - 1)
    assert seen.sent <= sends * 20 * 8
    expected = np.histogram(value, 16)
    same(whole(found), expected[0])
    same(whole(edges), expected[1])
    assert whole(mnp.bincount(put(np.arange(8) % 3, "i"), length=2)).tolist() == [3, 3]


@in_worlds
def test_refusals_of_statistics() -> None:
    x = put(np.arange(8.0).reshape(4, 2), "i")
    with pytest.raises(ArgumentError, match=r"quantile: q must be from 0 to 1; got \[0.5, 1.5\]"):
        mnp.quantile(x, [0.5, 1.5])
    with pytest.raises(ArgumentError, match=r"percentile: q must be from 0 to 100; got 101"):
        mnp.percentile(x, 101)
    with pytest.raises(
        ArgumentError, match=r"quantile: method must be 'inverted_cdf', .* got 'weibul'"
    ):
        mnp.quantile(x, 0.5, method="weibul")
    with pytest.raises(ArgumentError, match="weights go with method='inverted_cdf' only"):
        mnp.quantile(x, 0.5, weights=x)
    with pytest.raises(ShapeError, match=r"weights of shape \(3,\) for an array of"):
        mnp.quantile(x, 0.5, axis=0, weights=np.ones(3), method="inverted_cdf")
    with pytest.raises(ShapeError, match=r"quantile: dims \(1,\) of the shape \(4, 0\) are empty"):
        mnp.quantile(x[:, :0], 0.5, axis=1)
    with pytest.raises(DtypeError, match="quantile: complex numbers have no order"):
        mnp.quantile(x * 1j, 0.5)
    with pytest.raises(ArgumentError, match=r"histogram: bins must be 'auto', .* got 'automatic'"):
        mnp.histogram(x, "automatic")
    with pytest.raises(ArgumentError, match="histogram: bins='auto' chooses the bins by the"):
        mnp.histogram(x, "auto", weights=x)
    with pytest.raises(ArgumentError, match=r"histogram: bins=0 and range=None do not define bins"):
        mnp.histogram(x, 0)
    with pytest.raises(ShapeError, match=r"histogram: weights of shape \(2,\) .* \(4, 2\)"):
        mnp.histogram(x, weights=np.ones(2))
    with pytest.raises(DtypeError, match=r"bincount: the elements must be integers, .* float64"):
        mnp.bincount(x[:, 0])
    with pytest.raises(ArgumentError, match=r"bincount: .* must not be negative, .* least is -1"):
        mnp.bincount(np.array([3, -1]))
    with pytest.raises(
        ShapeError, match=r"bincount: takes an array of one dim, got shape \(4, 2\)"
    ):
        mnp.bincount(x.astype(int))
    with pytest.raises(ShapeError, match=r"cov: takes an array of one or two dims, .* \(2, 2, 2\)"):
        mnp.cov(np.zeros((2, 2, 2)))


def between(below: float, above: float, part: float) -> float:
    """Return what lies between two numbers, infinite ones too."""
    if part in (0, 1) or below == above:
        return above if part == 1 else below
    return float(np.float64(below) * (1 - part) + np.float64(above) * part)


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_of_infinities(method):
    ends = [
        *([1, np.inf], [np.inf, np.inf], [-np.inf, np.inf], [-np.inf, 3], [-np.inf, 1, np.inf]),
        *([1, 2, np.inf, np.inf], [-np.inf, -np.inf, 3, 4], [-np.inf, -np.inf, np.inf, np.inf]),
        *([-1.5e308, 1.5e308], [3.0], [np.nan, 1, np.inf]),
    ]
    parts = np.array([0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 1])

    def body() -> Any:
        values = [np.array(v, np.float64) for v in ends]
        run = meshard.jit(lambda x, q: mnp.quantile(x, q, method=method))
        return [
            (whole(mnp.quantile(v, parts, method=method)), whole(run(v, parts))) for v in values
        ]

    for value, found in zip(ends, alone(body), strict=True):
        expected = []
        for q in parts:
            place = q * (len(value) - 1)
            low = int(np.floor(place))
            part = {
                "linear": place - low,
                "lower": 0,
                "higher": int(place > low),
                "midpoint": 0.5 if place > low else 0,
                "nearest": np.rint(place) - low,
            }[method]
            with np.errstate(invalid="ignore"):
                expected.append(between(value[low], value[min(low + 1, len(value) - 1)], part))
        expected = np.full(len(parts), np.nan) if np.isnan(value).any() else np.array(expected)
        for one in found:
            np.testing.assert_allclose(one, expected, rtol=1e-14, err_msg=str(value))


@pytest.mark.filterwarnings("ignore:(Mean of empty slice|invalid value)")  # as NumPy's median warns
@pytest.mark.parametrize("name", ["median", "quantile", "percentile"])
def test_order_statistics_of_no_rows_are_none(name):
    more = () if name == "median" else (0.5,)

    def body() -> None:
        for shape, axis, kept in (((0, 3), 1, (0,)), ((2, 0, 3), (0, 2), (0,)), ((0, 0), 0, (0,))):
            found = getattr(mnp, name)(mnp.zeros(shape), *more, axis=axis)
            assert (found.shape, found.dtype) == (kept, np.float64)
        for shape, axis in (((0, 3), 0), ((0,), None)):
            if name == "median":
                assert np.isnan(np.asarray(mnp.median(mnp.zeros(shape), axis=axis))).all()
                continue
            with pytest.raises(ShapeError, match=f"{name}: dims .* are empty"):
                getattr(mnp, name)(mnp.zeros(shape), *more, axis=axis)

    alone(body)
