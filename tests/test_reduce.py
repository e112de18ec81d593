"""Reductions against NumPy, in both worlds; the laws over all shardings are in tests/laws."""

from __future__ import annotations

import itertools
import os
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.checked import normalised_axes
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.settings import config
from meshard.sharding import Mesh, NamedSharding, P
from tests.lays import fetched, same
from tests.operands import in_all_worlds
from tests.ranks.shares import processes
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

BF16 = np.dtype(ml_dtypes.bfloat16)
F8 = np.dtype(ml_dtypes.float8_e4m3fn)
SPECS: list[Any] = [
    (),
    ("i",),
    (None, "i", "j"),
    (("i", "j"),),
    ("j", None, "i"),
    (None, ("j", "i")),
]
NAMES = ["sum", "prod", "max", "min", "any", "all", "mean", "var", "std", "argmax", "argmin"]


def cube(dtype: Any = "f8", seed: int = 0) -> Any:
    """Return 3 x 4 x 5 small whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    value = rng.integers(0 if np.dtype(dtype).kind in "ub" else -2, 3, (3, 4, 5))
    return value.astype(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_axes_and_keepdims(name):
    x = cube()
    axes: list[Any] = [None, 0, 1, -1, np.int64(2)]
    if not name.startswith("arg"):
        axes += [(0, 1), (-1, 0), (2, 1, 0), [1, 2], ()]
    cases = list(itertools.product(axes, [False, True], SPECS))
    if processes() is not None and not os.environ.get("MESHARD_TEST_ALL_RANKS"):
        cases = cases[::5]  # of every axis, spec and keepdims some

    def body() -> Any:
        found = []
        for axis, keepdims, spec in cases:
            a = put(x, *spec, uneven="balanced")
            found.append(getattr(mnp, name)(a, axis=axis, keepdims=keepdims))
        return fetched(found)

    for (axis, keepdims, _), found in zip(cases, everywhere(body), strict=True):
        axis = tuple(axis) if isinstance(axis, list) else axis
        expected = np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_partial_results_that_two_processes_have_and_a_third_needs():
    x = np.random.default_rng(3).normal(size=(6, 5, 7))

    def body() -> Any:
        devices = np.array(meshard.devices())[[[0, 2], [3, 4], [5, 1]]]
        a = put(x, "i", on=Mesh(devices, ("i", "j")))
        return fetched([a.sum(0), a.max(0), a.sum((0, 2)), a.sum(), mnp.argmin(a, 0), a.var(0)])

    expected = alone(body, 6)
    for one, known in zip(
        expected,
        [x.sum(0), x.max(0), x.sum((0, 2)), x.sum(), x.argmin(0), x.var(0)],
        strict=True,
    ):
        np.testing.assert_allclose(one, known, rtol=1e-12)
    for found in simulate(3, 2, body, deadline=30):
        same(found, expected)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("var", "std", "mean")])
@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i4", "u8", "f2", "f4", "f8", "F", BF16, F8])
def test_dtypes(name, dtype):
    x = cube(dtype)

    def body() -> Any:
        a = put(x, "i", "j", uneven="ceil")
        function = getattr(mnp, name)
        return fetched([function(a), function(a, axis=1), function(put(x), axis=-1)])

    wide = np.dtype(dtype).type(1).dtype
    if wide in (BF16, F8) or wide == np.float16:
        exact = x.astype("f4")
        with np.errstate(over="ignore"):
            expected = [getattr(np, name)(exact, axis=axis) for axis in (None, 1, -1)]
            if name in ("sum", "prod", "max", "min"):
                expected = [np.asarray(e).astype(dtype) for e in expected]
    else:
        expected = [getattr(np, name)(x, axis=axis) for axis in (None, 1, -1)]
    for found, e in zip(everywhere(body), expected, strict=True):
        e = np.asarray(e)
        assert (found.dtype, found.shape) == (e.dtype, e.shape)
        np.testing.assert_array_equal(found.astype("D"), e.astype("D"))


def test_dtype_is_that_of_the_sum():
    x = cube("i1") * 50

    def body() -> Any:
        a = put(x, "j", "i", uneven="balanced")
        found = [a.sum(), a.sum(dtype="i1"), a.sum(dtype="f4"), a.prod(1, dtype="u1")]
        found += [mnp.mean(a, dtype="f4"), put(cube("f8"), None, "i").sum(0, dtype="i8")]
        found += [
            put(cube("f4"), None, "i").sum(dtype="f8"),
            put(cube("?"), "j", uneven="ceil").sum(),
        ]
        return fetched(found)

    expected = [x.sum(), x.sum(dtype="i1"), x.sum(dtype="f4"), x.prod(1, dtype="u1")]
    expected += [np.mean(x, dtype="f4"), cube("f8").sum(0, dtype="i8")]
    expected += [cube("f4").sum(dtype="f8"), cube("?").sum()]
    same(everywhere(body), expected)


@pytest.mark.parametrize("dtype", ["f2", BF16])
def test_short_floats_are_summed_in_float32(dtype):
    # 4096 ones: a bfloat16 sum would stop at 256, a float16 one at 2048.
    x = np.ones(8192, dtype)
    x[1::2] = 0.5

    def body() -> Any:
        a = put(x, ("i", "j"))
        found = [a.sum(), put(x).sum(), a.mean(), a.var(), a.std(), (a * 0 + 1).prod()]
        assert all(f.dtype == dtype for f in found)
        return fetched([f.astype("f4") for f in found])

    sums = [6144.0, 6144.0, 0.75, 0.0625, 0.25, 1.0]
    same(everywhere(body), [np.float32(s).astype(dtype).astype("f4") for s in sums])


def test_short_floats_overflow_no_sooner_than_their_sum():
    x = np.full((4, 8), 30000, "f2")
    x[2:] *= -1

    def body() -> Any:
        return fetched([put(x, "i").sum(0), put(x, "i").mean(), put(x, None, "i").sum(0)])

    same(everywhere(body), [np.zeros(8, "f2"), np.float16(0), np.zeros(8, "f2")])


def test_nothing_to_reduce():
    x = np.zeros((0, 3))

    def body() -> Any:
        a = put(x, "i", uneven="balanced")
        found = [a.sum(), a.sum(0), a.sum(1), a.prod(0), a.any(), a.all(0), a.max(1), a.min(1)]
        return fetched([*found, mnp.argmax(a, 1), mnp.count_nonzero(a, 0), mnp.ptp(a, 1)])

    expected = [x.sum(), x.sum(0), x.sum(1), x.prod(0), x.any(), x.all(0), x.max(1), x.min(1)]
    same(everywhere(body), [*expected, x.argmax(1), np.count_nonzero(x, 0), np.ptp(x, 1)])


@in_worlds
@pytest.mark.filterwarnings("ignore:.*slice:RuntimeWarning")
def test_the_mean_of_nothing_is_nan():
    a = put(np.zeros((0, 3)), "i", uneven="balanced")
    with np.errstate(all="ignore"):
        for found in (a.mean(), a.mean(0)[1], a.var(), a.std(0)[2]):
            assert np.isnan(float(found))


_NAN = np.nan
NOTHING: list[Any] = [
    *(np.zeros(shape) for shape in [(0,), (0, 3), (2, 0), (0, 0)]),
    *(np.zeros(0, dtype) for dtype in (int, complex, "f2")),
    *(np.full(8, _NAN, dtype) for dtype in (float, complex, "f2")),
    np.array([[_NAN] * 8, [1.0] * 8]),
    np.array([[_NAN, 1.0], [1.0, 2.0]] * 4),
    np.array([_NAN] * 7 + [1.0]),
    np.ones(1),
    np.arange(8),
]
"""Values of which some statistics are of nothing, and some like them that are not."""

OF_NOTHING: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {})
        for name in ["mean", "average", "median", "nanmean", "nanmax", "nanmin", "nanmedian"]
    ),
    *((n, {"ddof": d}) for n in ["var", "std", "nanvar", "nanstd"] for d in (0, 1, 2, 8)),
    *((name, {"where": False}) for name in ["mean", "var", "nanmean", "nanstd"]),
    *((name, {"q": 0.5}) for name in ["quantile", "nanquantile"]),
    ("nanpercentile", {"q": [20, 50], "method": "lower"}),
    ("nanmax", {"initial": 1.0}),
]


def _told(function: Any, x: Any, said: dict[str, Any]) -> set[str] | None:
    """Return what a call warns of, beside floating-point errors; None if it is refused."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        try:
            function(x, **said)
        except (ValueError, TypeError, IndexError, ZeroDivisionError):
            return None
    own = [w for w in log if "encountered in" not in str(w.message)]
    assert all(w.category is RuntimeWarning for w in own)
    if function.__module__.startswith("meshard"):
        assert len(own) <= 1, [str(w.message) for w in own]
        assert {w.filename for w in own} <= {__file__}
    return {str(w.message) for w in own}


@pytest.mark.parametrize("value", NOTHING, ids=lambda v: f"{v.dtype}{list(v.shape)}{v.sum()}")
def test_statistics_of_nothing_warn_as_numpys_do(value: Any) -> None:
    split = put(value, "i", uneven="balanced")
    for name, said in OF_NOTHING:
        for axis in [None, *range(-value.ndim, 0)]:
            own = {**said, "axis": axis}
            expected = _told(getattr(np, name), value, own)
            if expected is None or (value.dtype.kind == "c" and name in ("median", "nanmedian")):
                continue
            assert _told(getattr(mnp, name), split, own) == expected, (name, own)


def test_warnings_of_traced_statistics_are_those_that_shapes_tell() -> None:
    def traced(name: str, **said: Any) -> Any:
        def call(x: Any, **more: Any) -> Any:
            return meshard.jit(lambda v: getattr(mnp, name)(v, **said))(x)

        call.__module__ = "meshard"
        return call

    empty, missing = mnp.zeros((0, 3)), put(np.full(8, _NAN), "i")
    assert _told(traced("mean"), empty, {}) == {"Mean of empty slice"}
    assert _told(traced("std", ddof=8), missing, {}) == {"Degrees of freedom <= 0 for slice"}
    for name in ("nanmax", "nanmean", "nanvar", "nanmedian"):
        assert _told(traced(name), missing, {}) == set()
    assert _told(mnp.nanmax, [_NAN], {}) == _told(np.nanmax, [_NAN], {})


@pytest.mark.parametrize("dtype", ["i4", "u1", "f4", "F", BF16, F8, ml_dtypes.float8_e5m2])
def test_empty_shards_have_no_say(dtype):
    cases = [np.array(v).astype(dtype) for v in ([1, 3], [3, 1], [-2, -3], [0, 0])]
    if np.dtype(dtype).kind in "u":
        cases = [np.array(v).astype(dtype) for v in ([255, 255], [0, 1])]
    elif np.dtype(dtype).kind == "c":
        cases.append(np.array([complex(-np.inf, -1), complex(-np.inf, -2)], dtype))
        cases.append(np.array([complex(np.inf, 1), complex(np.inf, 2)], dtype))
    elif np.dtype(dtype).kind == "f":
        cases += [np.full(2, v, dtype) for v in (np.inf, -np.inf, np.nan)]

    def body() -> Any:
        found = []
        for x in cases:
            for uneven in (
                "balanced",
                ((0, 0, 0, 0, 0, 0, 0, 1, 2),),
                ((0, 2, 2, 2, 2, 2, 2, 2, 2),),
            ):
                a = put(x, ("i", "j"), uneven=uneven)
                found += [a.max(), a.min(), a.argmax(), a.argmin(), a.sum(), a.all(), a.any()]
        return fetched(found)

    found = everywhere(body)
    for i, x in enumerate(y for y in cases for _ in range(3)):
        wide = x.astype("F") if x.dtype.kind == "c" else x.astype("f4")
        expected = [wide.max(), wide.min(), wide.argmax(), wide.argmin(), wide.sum()]
        np.testing.assert_array_equal(
            [f.astype(wide.dtype) for f in found[7 * i : 7 * i + 5]], expected
        )


def test_nan_wins():
    x = np.array([1.0, 5, 2, np.nan, 7, np.inf, np.nan, 0])

    def body() -> Any:
        found = []
        for spec in ((), ("i",), (("j", "i"),)):
            a = put(x, *spec)
            found += [a.max(), a.min(), a.argmax(), a.argmin(), a.sum(), a.any(), a.all(), a.ptp()]
        return fetched(found)

    expected = [x.max(), x.min(), x.argmax(), x.argmin(), x.sum(), x.any(), x.all(), np.ptp(x)]
    for found, e in zip(everywhere(body), expected * 3, strict=True):
        np.testing.assert_array_equal(found, e)


def test_ties_go_to_the_first_in_global_order():
    # The devices of axis j hold earlier rows than those of axis i: mesh order is not global order.
    x = np.zeros((8, 8), "i4")
    x[6, 1] = x[1, 6] = x[3, 3] = 9
    turned = (None, ("j", "i"))

    def body() -> Any:
        backwards = Mesh(np.array(meshard.devices())[::-1].reshape(4, 2), ("i", "j"))
        arrays = [put(x, *s) for s in (("i", "j"), ("j", "i"), turned, (("j", "i"),))]
        arrays += [put(x, "i", "j", on=backwards)]
        return fetched([[a.argmax(), a.argmin(), a.argmax(0), a.argmax(1)] for a in arrays])

    expected = [x.argmax(), x.argmin(), x.argmax(0), x.argmax(1)]
    assert int(expected[0]) == 14
    same(everywhere(body), [expected] * 5)


def test_variance_and_its_kin():
    x = np.random.default_rng(1).normal(size=(6, 8))
    z = (x + 1j * x[::-1]).astype("F")

    def body() -> Any:
        a, c = put(x, "j", "i"), put(z, None, ("i", "j"))
        found = [
            a.var(ddof=1),
            a.std(0, ddof=2),
            a.var(1, keepdims=True),
            a.std(),
            c.var(),
            c.std(0),
        ]
        found += [mnp.var(a, dtype="f4"), mnp.var(put(np.arange(8), "i")), c.mean(1)]
        found += [mnp.var(put(np.arange(8), "i") > 3), mnp.std(a, correction=1)]
        return fetched(found)

    expected = [
        x.var(ddof=1),
        x.std(0, ddof=2),
        x.var(1, keepdims=True),
        x.std(),
        z.var(),
        z.std(0),
    ]
    expected += [np.var(x, dtype="f4"), np.var(np.arange(8)), z.mean(1)]
    expected += [np.var(np.arange(8) > 3), x.std(ddof=1)]
    for found, e in zip(everywhere(body), expected, strict=True):
        assert found.dtype == e.dtype
        np.testing.assert_allclose(found, e, rtol=1e-5)


@in_worlds
@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
def test_more_taken_off_than_there_is():
    a = put(np.arange(4.0), "i")
    with np.errstate(divide="ignore"):
        assert float(a.var(ddof=4)) == float(a.var(ddof=5)) == np.inf
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
        a.var(ddof=4)


def test_averages():
    x = np.arange(24.0).reshape(4, 6)
    w, rows = np.arange(24.0).reshape(4, 6)[::-1] + 1, np.array([1.0, 0, 2, 1])

    def body() -> Any:
        a, v = put(x, "i", "j"), put(w, "j", "i", uneven="balanced")
        found = [mnp.average(a), mnp.average(a, 1), mnp.average(a, weights=v)]
        found += [mnp.average(a, 0, v), mnp.average(a, 0, rows), mnp.average(a, -2, put(rows, "i"))]
        found += [mnp.average(a, (1, 0), w.T), mnp.average(a, 1, v, keepdims=True)]
        found += [
            mnp.average(a, 0, rows, keepdims=True),
            mnp.average(put(np.arange(4)), weights=[1, 2, 3, 4]),
        ]
        return fetched(found)

    expected = [np.average(x), np.average(x, 1), np.average(x, weights=w), np.average(x, 0, w)]
    expected += [np.average(x, 0, rows), np.average(x, 0, rows), np.average(x, (1, 0), w.T)]
    expected += [np.average(x, 1, w, keepdims=True), np.average(x, 0, rows, keepdims=True)]
    expected += [np.average(np.arange(4), weights=[1, 2, 3, 4])]
    for found, e in zip(everywhere(body), expected, strict=True):
        assert found.shape == np.shape(e)
        np.testing.assert_allclose(found, e, rtol=1e-14)


def test_counts_and_ranges():
    x = cube("i4")

    def body() -> Any:
        a = put(x, "j", "i", uneven="balanced")
        found = [
            mnp.count_nonzero(a),
            mnp.count_nonzero(a, (0, 2)),
            a.ptp(),
            a.ptp(1),
            mnp.ptp(a, -1),
        ]
        found += [mnp.count_nonzero(a, 0, keepdims=True), mnp.count_nonzero([0, 1, 2])]
        return fetched(found)

    expected = [
        np.count_nonzero(x),
        np.count_nonzero(x, (0, 2)),
        np.ptp(x),
        np.ptp(x, 1),
        np.ptp(x, -1),
    ]
    same(everywhere(body), [*expected, np.count_nonzero(x, 0, keepdims=True), np.int64(2)])


@in_worlds
def test_methods_are_the_functions():
    x = cube()
    a = put(x, None, "i")
    for name in NAMES:
        np.testing.assert_allclose(whole(getattr(a, name)()), getattr(x, name)(), rtol=1e-14)
        np.testing.assert_allclose(
            whole(getattr(a, name)(axis=1)), getattr(x, name)(axis=1), rtol=1e-14
        )


@in_worlds
def test_other_things_than_arrays():
    same(whole(mnp.sum([1, 2, 3])), np.sum([1, 2, 3]))
    same(whole(mnp.max(np.arange(4.0))), np.float64(3))
    same(whole(mnp.mean(5)), np.float64(5))
    assert not mnp.sum(np.ones(3)).committed


@in_worlds
def test_without_dims():
    a = put(np.float32(3))
    for name in NAMES:
        found = whole(getattr(mnp, name)(a))
        expected = np.asarray(getattr(np, name)(np.float32(3)))
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found == expected


# where results lie


@in_worlds
def test_a_reduced_dim_gives_its_axes_back():
    a = put(np.ones((8, 8, 8)), "i", None, "j")
    assert a.sum(1).sharding == NamedSharding(mesh(), P("i", "j"))
    assert a.sum(0).sharding == NamedSharding(mesh(), P(None, "j"))
    assert a.max((0, 2)).sharding == NamedSharding(mesh(), P())
    assert a.sum(0, keepdims=True).sharding == NamedSharding(mesh(), P(None, None, "j"))
    assert a.argmax(2).sharding == NamedSharding(mesh(), P("i"))
    assert a.mean().is_fully_replicated
    assert a.var(1).sharding == a.sum(1).sharding
    b = put(np.ones((8, 7)), "i", "j", uneven="ceil")
    assert b.sum(0).sharding.layout((7,)).cuts == ((0, 4, 7),)
    assert all(x.committed for x in (a.sum(), a.any(0), b.argmin()))


def test_reductions_lie_as_in_jax(jax):
    grid = np.array(jax.devices()).reshape(4, 2)
    place = jax.sharding.NamedSharding(
        jax.sharding.Mesh(grid, ("i", "j")), jax.sharding.PartitionSpec("i", "j")
    )
    x = jax.device_put(np.ones((8, 8), "f4"), place)

    def body() -> Any:
        a = put(np.ones((8, 8), "f4"), "i", "j")
        found = [a.sum(0), a.sum(1), a.max(0), a.sum()]
        return [
            {d.id: s.shard_shape(shape) for d in s.device_set}
            for s, shape in ((f.sharding, f.shape) for f in found)
        ]

    theirs = [x.sum(0), x.sum(1), x.max(0), x.sum()]
    for mine, other in zip(alone(body), theirs, strict=True):
        assert set(mine.values()) == {other.sharding.shard_shape(other.shape)}


# between processes


@pytest.mark.parametrize("dtype", ["f4", "f8", "F"])
def test_bits_do_not_depend_on_the_number_of_processes(dtype):
    rng = np.random.default_rng(0)
    small = rng.normal(size=(40, 24)).astype(dtype)
    large = rng.normal(size=(64, 8192)).astype(dtype)  # too large to be combined everywhere

    def body() -> Any:
        found = []
        for x in (small, large):
            for spec in [("i", "j"), (("i", "j"),), ("j",), (None, ("j", "i"))]:
                a = put(x, *spec)
                found += [a.sum(0), a.sum(), a.mean(1), a.std(0), a.T.sum(1), a.prod(1)]
        return fetched(found)

    found = in_all_worlds(body)
    np.testing.assert_allclose(found[0], small.sum(0), rtol=1e-3)
    np.testing.assert_allclose(found[24], large.sum(0), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("shape", [(64, 8192), (8192, 16), (4, 3, 8192)])
def test_large_results_are_combined_by_shares(shape):
    x = np.random.default_rng(0).integers(-9, 9, shape).astype("f4")
    x[-1, 0] = x[0, 0] = 10

    def body() -> Any:
        found = []
        for spec in [("i",), (("i", "j"),), ("j", None)]:
            a = put(x, *spec, uneven="balanced")
            found += [
                a.sum(0),
                a.max(0),
                a.argmax(0),
                a.any(0),
                a.argmin(0),
                a.sum(0, keepdims=True),
            ]
        return fetched(found)

    expected = [x.sum(0), x.max(0), x.argmax(0), x.any(0), x.argmin(0), x.sum(0, keepdims=True)]
    same(everywhere(body), expected * 3)


def test_large_results_on_the_devices_of_other_processes():
    x = np.random.default_rng(0).integers(-9, 9, (64, 8192)).astype("f4")

    def body() -> Any:
        some = Mesh(meshard.devices()[2:6], "i")
        a = put(x, "i", on=some)
        found = [a.sum(0), a.argmax(0), a.sum(), a.max(1)]
        assert all(len(f._live()) == f.aval.layout.piece_count for f in found)
        return fetched(found)

    found = in_all_worlds(body)
    same(found, [x.sum(0), x.argmax(0), x.sum(), x.max(1)])


def sent_by(body: Any) -> int:
    """Return the bytes that this process sends while a body runs."""
    transport = here().transport
    sent = []
    exchange = transport.exchange

    def recorded(sends: Any, receives: Any) -> None:
        sent.extend(b.nbytes for _, blocks in sends for b in blocks)
        exchange(sends, receives)

    transport.exchange = recorded  # type: ignore[method-assign]
    try:
        body()
    finally:
        del transport.exchange
    return sum(sent)


def test_only_partial_results_travel():
    x = np.ones((64, 8192), "f4")

    def body() -> Any:
        a, b = put(x, "i"), put(x, None, "i")
        return [
            sent_by(lambda: a.sum(1)),
            sent_by(lambda: a.sum()),
            sent_by(lambda: a.sum(0)),
            sent_by(lambda: b.sum(0)),
        ]

    for whole_rows, all_of_it, columns, whole_columns in simulate(2, 4, body):
        assert whole_rows == whole_columns == 0
        assert 0 < all_of_it <= 8 * 8 * 4
        # each of 8 devices needs the sums from 4 partial results of which 2 are here
        assert 0 < columns <= 4 * x[0].nbytes


# refusals


@in_worlds
@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (3, r"axis 3 is out of bounds for an array with 3 dims"),
        (-4, r"axis -4 is out of bounds"),
        ((0, 5), r"axis 5 is out of bounds"),
        ((1, 1), r"axis \(1, 1\) names a dim twice"),
        ((0, -3), r"names a dim twice"),
        (1.5, r"axis must be an integer, a sequence of integers or None, got 1.5"),
        ("0", r"axis must be an integer, a sequence of integers or None, got '0'"),
        ((0, "i"), r"axis must be an integer, a sequence of integers or None, got \(0"),
    ],
)
def test_a_bad_axis(axis, message):
    a = put(cube(), None, "i")
    for name in ("sum", "max", "any", "mean", "var", "count_nonzero", "average"):
        with pytest.raises(ArgumentError, match=f"^{name}: .*{message}"):
            getattr(mnp, name)(a, axis=axis)
    assert issubclass(ArgumentError, ValueError)


@in_worlds
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_take_one_axis(name):
    a = put(cube(), None, "i")
    for axis in ((0, 1), (0,), "0", 1.0):
        with pytest.raises(ArgumentError, match=f"{name}: axis must be an integer or None, got"):
            getattr(mnp, name)(a, axis=axis)
    with pytest.raises(ArgumentError, match=f"{name}: axis 3 is out of bounds"):
        getattr(mnp, name)(a, axis=3)


@in_worlds
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "ptp"])
def test_there_is_no_extreme_of_nothing(name):
    a = put(np.zeros((0, 3)), "i", uneven="balanced")
    with pytest.raises(ShapeError, match=rf"{name}: dim 0 of the shape \(0, 3\) is empty"):
        getattr(mnp, name)(a)
    with pytest.raises(ValueError, match="is empty"):
        getattr(mnp, name)(a, axis=0)


@in_worlds
def test_bad_dtypes_and_operands():
    a = put(np.ones(8), "i")
    with pytest.raises(DtypeError, match="'f12' is not a dtype"):
        a.sum(dtype="f12")
    with pytest.raises(DtypeError, match="dtype object is not a numeric dtype"):
        a.prod(dtype=object)
    with pytest.raises(DtypeError, match="dtype <U1 is not a numeric dtype"):
        mnp.sum(["a"])
    with pytest.raises(DtypeError, match="subtract: not possible for operands of dtype bool"):
        mnp.ptp(put(np.ones(8, "?"), "i"))


@in_worlds
def test_weights_that_do_not_fit():
    a = put(np.ones((4, 6)), "i")
    with pytest.raises(
        ShapeError, match=r"average: weights of shape \(4,\) .* \(4, 6\), over axis=None"
    ):
        mnp.average(a, weights=np.ones(4))
    with pytest.raises(ShapeError, match=r"axis=1; they must have the array's shape, or \(6,\)"):
        mnp.average(a, 1, np.ones(4))
    with pytest.raises(ShapeError, match=r"or \(6, 4\)"):
        mnp.average(a, (1, 0), np.ones((4, 5)))


def test_normalised_axes():
    assert normalised_axes(None, 3, "f") == (0, 1, 2)
    assert normalised_axes(-1, 3, "f") == (2,)
    assert normalised_axes([np.int8(2), -3], 3, "f") == (0, 2)
    assert normalised_axes((), 3, "f") == ()
    assert normalised_axes(None, 0, "f") == ()


def test_the_default_float_is_that_of_means():
    def body() -> Any:
        a = put(np.arange(8), "i")
        found = [a.mean(), a.std(), a.mean(dtype=float), mnp.average(a), a.astype("f8").mean()]
        return [f.dtype.name for f in found]

    before = config.read("default_float")
    config.update("default_float", "float32")
    try:
        assert everywhere(body) == ["float32"] * 4 + ["float64"]
    finally:
        config.update("default_float", before)
    assert alone(body) == ["float64"] * 5


PARTS = {
    "sum": [{}, {"initial": 3}, {"initial": 2.5, "dtype": "float32"}],
    "prod": [{}, {"initial": 3}],
    "max": [{"initial": 0.25}],
    "min": [{"initial": 0.25}],
    "mean": [{}, {"dtype": "float32"}],
    "var": [{}, {"ddof": 1}],
    "std": [{}],
    "any": [{}],
    "all": [{}],
}


@pytest.mark.parametrize("name", sorted(PARTS))
@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_reductions_of_some_elements(name, axis):
    x = np.random.default_rng(5).uniform(-1, 1, (8, 6))
    mask = x > -0.5
    mask[0] = True
    masks = [mask, mask[:, :1], mask[0]]
    wants = [
        getattr(np, name)(x, axis=axis, where=m, **options)
        for options in PARTS[name]
        for m in masks
    ]

    def body() -> Any:
        given = put(x, "i", "j")
        found = [
            getattr(mnp, name)(given, axis=axis, where=m, **options)
            for options in PARTS[name]
            for m in (put(mask, "j"), put(mask[:, :1]), mask[0])
        ]
        method = getattr(given, name)(axis=axis, where=mask, **PARTS[name][0])
        return [whole(y) for y in (*found, method)]

    for found, wanted in zip(everywhere(body), [*wants, wants[0]], strict=True):
        assert found.dtype == np.asarray(wanted).dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if found.itemsize == 4 else 1e-12)


def test_a_first_value_takes_the_results_dtype_and_makes_up_for_no_elements():
    assert mnp.sum(mnp.arange(3), initial=1.5).tolist() == np.sum(np.arange(3), initial=1.5)
    assert mnp.max(mnp.arange(3), initial=5.5).tolist() == 5
    assert mnp.min(mnp.zeros((0, 2)), axis=0, initial=4).tolist() == [4, 4]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: mnp.max(x, where=x > 0), ArgumentError, "max: where= may .* give initial="),
        (lambda x: mnp.sum(x, where=[True, False]), ShapeError, r"where= of shape \(2,\) does not"),
        (lambda x: mnp.mean(x, where=mnp.ones((2, 1, 3)) > 0), ShapeError, r"shape \(2, 1, 3\)"),
    ],
)
def test_refused_parts(call, error, words):
    with pytest.raises(error, match=words):
        call(mnp.ones((2, 3)))
