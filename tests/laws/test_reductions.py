"""Every reduction, of every dtype: what it adds up in, and what becomes of nothing and of NaN.

The model is NumPy in float64, int64 or complex128, rounded to the result's dtype once.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard.numpy as mnp
from meshard import lax, nn
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.numpy import linalg
from meshard.ops.dtypes.laws import BYTES, accumulator, kind_of, same_dtype
from meshard.ops.reductions.reduce import reduction_rule
from meshard.ops.row import REGISTRY, Op, Partial, register
from meshard.runtime.doors import bind
from tests.lays import fetched
from tests.worlds import alone, everywhere, in_worlds, put

Function = Callable[..., Any]
DTYPES = [
    *map(np.dtype, "?bBhHiIqQefdFD"),
    *(np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2")),
    *(np.dtype(getattr(ml_dtypes, n)) for n in ("int2", "int4", "uint2", "uint4")),
]
FLOATS = [d for d in DTYPES if kind_of(d) in "fc"]


def logsumexp(x: Any, axis: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.log(np.sum(np.exp(x + 0.0), axis))


NUMPY: dict[str, Function] = {
    name: getattr(mnp, name)
    for name in mnp.__all__
    if callable(getattr(mnp, name))
    and not inspect.isclass(getattr(mnp, name))
    and {"axis", "keepdims"} <= set(inspect.signature(getattr(mnp, name)).parameters)
}
OTHERS: dict[str, tuple[Function, Function]] = {
    "lax.reduce_sum": (lambda x, d: lax.reduce_sum(x, (d,)), np.sum),
    "lax.reduce_prod": (lambda x, d: lax.reduce_prod(x, (d,)), np.prod),
    "lax.reduce_max": (lambda x, d: lax.reduce_max(x, (d,)), np.max),
    "lax.reduce_min": (lambda x, d: lax.reduce_min(x, (d,)), np.min),
    "lax.reduce_and": (lambda x, d: lax.reduce_and(x, (d,)), np.bitwise_and.reduce),
    "lax.reduce_or": (lambda x, d: lax.reduce_or(x, (d,)), np.bitwise_or.reduce),
    "lax.reduce_xor": (lambda x, d: lax.reduce_xor(x, (d,)), np.bitwise_xor.reduce),
    "lax.argmax": (lambda x, d: lax.argmax(x, d, "int32"), np.argmax),
    "lax.argmin": (lambda x, d: lax.argmin(x, d, "int32"), np.argmin),
    "nn.logsumexp": (lambda x, d: nn.logsumexp(x, d), logsumexp),
    "nn.logmeanexp": (
        lambda x, d: nn.logmeanexp(x, d),
        lambda x, d: logsumexp(x, d) - np.log(x.shape[d]),
    ),
    "matmul": (lambda x, d: mnp.ones(x.shape[0], x.dtype) @ x, lambda x, d: x.sum(0)),
    "einsum": (lambda x, d: mnp.einsum("ij->j", x), lambda x, d: x.sum(0)),
    "linalg.vector_norm": (
        lambda x, d: linalg.vector_norm(x, axis=d),
        lambda x, d: np.sqrt(np.sum(np.abs(x) ** 2, d)),
    ),
    "cumsum": (lambda x, d: mnp.cumsum(x, d), np.cumsum),
    "cumprod": (lambda x, d: mnp.cumprod(x, d), np.cumprod),
    "lax.cumsum": (lambda x, d: lax.cumsum(x, d), np.cumsum),
    "lax.cummax": (lambda x, d: lax.cummax(x, d), np.maximum.accumulate),
    "trace": (lambda x, d: mnp.trace(x), np.trace),
}
MORE = {n: (0.4 if "quantile" in n else 40.0,) for n in NUMPY if n.endswith("tile")}
WRAPS = {"matmul", "einsum", "lax.reduce_sum", "lax.reduce_prod", "lax.cumsum"}
"""Those whose sums of integers have the array's dtype, and wrap in it."""


def of_both(name: str) -> tuple[Function, Function]:
    """Return a function of ours, and NumPy's of the same name, over one dim."""
    more = MORE.get(name, ())
    theirs = getattr(np, name)

    def quietly(x: Any, dim: int) -> Any:
        with warnings.catch_warnings(action="ignore"):
            return theirs(x, *more, axis=dim)

    return lambda x, dim: NUMPY[name](x, *more, axis=dim), quietly


EVERY: dict[str, tuple[Function, Function]] = {**{n: of_both(n) for n in NUMPY}, **OTHERS}


def values(dtype: np.dtype[Any], rows: int = 96) -> np.ndarray:
    """Return numbers of a dtype, of which no sum of a column is far from the others' sizes."""
    rng = np.random.default_rng(3)
    kind = kind_of(dtype)
    if kind == "b":
        return rng.random((rows, 2)) > 0.5
    if kind in "iu":
        info = ml_dtypes.iinfo(dtype)
        low, high = max(int(info.min), -100), min(int(info.max), 100)
        return rng.integers(low, high + 1, (rows, 2)).astype(BYTES.get(dtype, dtype)).astype(dtype)
    found = rng.uniform(0.5, 1.5, (rows, 2)) * np.where(rng.random((rows, 2)) < 0.2, -1, 1)
    return (found + (1j * found[::-1] if kind == "c" else 0)).astype(dtype)


def model(name: str, x: np.ndarray) -> Any:
    """Return what NumPy computes in the widest dtype of its kind; None where it cannot."""
    wide = {"b": x.dtype, "i": np.int64, "u": np.uint64, "f": np.float64, "c": np.complex128}
    kind = kind_of(x.dtype)
    given = x.astype(BYTES.get(x.dtype, x.dtype)).astype(wide[kind])
    with np.errstate(all="ignore"):
        try:
            return np.asarray(EVERY[name][1](given, 0))
        except TypeError:
            return None


def check_close(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Check that a result is the expected one, accumulated in a wide dtype and rounded once."""
    if kind_of(found.dtype) in "biu":
        exact = expected.astype(found.dtype).astype("i8")
        assert found.astype("i8").tolist() == exact.tolist(), f"{name} of {found.dtype}"
        return
    eps = float(ml_dtypes.finfo(found.dtype).eps)
    # The composed functions round what they add up, and a logarithm that they take off.
    more = 8 if name.startswith("nn.") else 0
    wide = float(np.finfo(accumulator(found.dtype)).eps)
    with np.errstate(all="ignore"):
        rounded = expected.astype(found.dtype).astype("c16")
        value = found.astype("c16")
        size = np.abs(rounded)
        close = np.abs(value - rounded) <= eps * (size + more) + 400 * wide * (1 + size)
    close |= (np.isnan(value) & np.isnan(rounded)) | (value == rounded)
    assert close.all(), f"{name} of {found.dtype}: {found[~close]}, not {rounded[~close]}"


@pytest.mark.parametrize("name", EVERY)
def test_every_dtype_is_accumulated_in_one_that_is_wide_enough(name):
    given = [values(d) for d in DTYPES]

    def body() -> list[Any]:
        found = []
        for x in given:
            try:
                with np.errstate(all="ignore"):
                    found.append(EVERY[name][0](put(x, "i", uneven="balanced"), 0))
            except (DtypeError, ArgumentError):
                found.append(np.zeros(0))
        return fetched(found)

    refused = 0
    for x, found in zip(given, everywhere(body), strict=True):
        expected = model(name, x)
        if expected is None or found.shape == (0,):
            refused += 1
            continue
        if name in WRAPS and kind_of(x.dtype) in "biu":
            assert found.dtype == x.dtype
            expected = expected.astype(BYTES.get(x.dtype, x.dtype))
        assert found.shape == expected.shape
        check_close(found, expected, name)
    assert refused <= len(DTYPES) - 4


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "f2", "i1", ml_dtypes.uint2, "?"])
def test_many_ones(dtype):
    """In one process and in several: 8,192 ones are 8,192, however short they are."""
    ones = np.ones((8192, 2), dtype)

    def body() -> Any:
        x = put(ones, ("i", "j"))
        with np.errstate(all="ignore"):
            results = [mnp.sum(x, 0), mnp.count_nonzero(x, 0), mnp.nansum(x, 0), mnp.mean(x, 0)]
            results += [mnp.average(x, 0), mnp.cumsum(x, 0)[-1], mnp.linalg.norm(x, axis=0) ** 2]
        return fetched(results)

    for found, expected in zip(everywhere(body), [8192] * 3 + [1, 1, 8192, 8192], strict=True):
        np.testing.assert_allclose(found.astype("f8"), expected, rtol=2e-2)


@pytest.mark.filterwarnings("ignore:.*slice:RuntimeWarning")
@pytest.mark.parametrize("name", NUMPY)
def test_nothing(name):
    """Of no elements sums are 0, products 1; what has no value for nothing refuses."""
    with np.errstate(all="ignore"):
        try:
            expected: Any = np.asarray(EVERY[name][1](np.zeros((0, 2)), 0))
        except (ValueError, IndexError):
            expected = None
    refuses = expected is None or "max" in name or "min" in name

    def body() -> None:
        for x in (mnp.zeros((0, 2)), put(np.zeros((0, 2)), "i")):
            if refuses:
                with pytest.raises(ShapeError, match=r"hold no elements|(is|are) empty"):
                    EVERY[name][0](x, 0)
            else:
                with np.errstate(all="ignore"):
                    found = np.asarray(EVERY[name][0](x, 0))
                np.testing.assert_array_equal(found, expected)
        assert EVERY[name][0](mnp.zeros((0, 2)), 1).shape == (0,)

    alone(body)


@pytest.mark.filterwarnings("ignore:.*slice:RuntimeWarning")
@pytest.mark.parametrize("name", NUMPY)
def test_nan(name):
    """NaN goes through, in every float and wherever it lies; the nan functions pass over it."""
    plain = np.array([[1, np.nan, np.nan], [3, 2, np.nan], [2, 4, np.nan], [np.nan, 1, np.nan]])

    def body() -> list[Any]:
        found = []
        for dtype in FLOATS:
            try:
                with np.errstate(all="ignore"):
                    found.append(EVERY[name][0](put(plain.astype(dtype), "i"), 0))
            except (DtypeError, ShapeError):
                found.append(np.zeros(0))
        return fetched(found)

    for dtype, found in zip(FLOATS, everywhere(body), strict=True):
        if found.shape == (0,):
            continue
        check_close(found, model(name, plain.astype(dtype)), name)


# the column that every reduction row has


def test_every_row_that_combines_says_how_it_accumulates():
    adds = {
        name
        for name, row in REGISTRY.items()
        if isinstance(row, Op) and row.partial is not None and row.partial.accumulates == "wide"
    }
    products = {"contract", "convolve", "convolve_back", "ragged_dot", "ragged_outer"}
    assert adds == {"sum", "prod"} | products
    for row in REGISTRY.values():
        if isinstance(row, Op) and row.partial is not None:
            if row.partial.combine in (np.add, np.multiply):
                assert row.partial.accumulates != "selects", row.name
            if row.rule is reduction_rule:
                assert row.alike == 0 or row.partial.accumulates == "wide", row.name


def plain_kernel(x: Any, *, axis: Any, keepdims: bool) -> Any:
    return np.add.reduce(x, axis=axis, keepdims=keepdims)


def wide_kernel(x: Any, *, axis: Any, keepdims: bool, accumulator: Any) -> Any:
    return np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=accumulator)


def test_a_row_cannot_forget_it():
    with pytest.raises(TypeError, match="accumulates"):
        Partial(np.add)
    with pytest.raises(AssertionError, match="does not only select"):
        Partial(np.add, "selects")
    with pytest.raises(AssertionError):
        Partial(np.maximum, "somehow")


@in_worlds
def test_the_engine_accumulates_for_a_row(monkeypatch):
    """Rows written after the pattern of others: right, or refused at their first use."""
    rows = dict(REGISTRY)
    monkeypatch.setattr("meshard.ops.row.REGISTRY", rows)
    for module in ("eager", "decide"):
        monkeypatch.setattr(f"meshard.ops.engine.{module}.REGISTRY", rows, raising=False)
    for name, kernel, how in (
        ("own_total", wide_kernel, "wide"),
        ("own_count", plain_kernel, "counts"),
        ("own_sum", plain_kernel, "wide"),
    ):
        combined = Partial(np.add, how)
        register(Op(name, reduction_rule, kernel, dtypes=same_dtype, partial=combined))
    x = put(np.ones(8192, ml_dtypes.bfloat16), "i")
    assert float(bind("own_total", x, axis=(0,), keepdims=False)) == 8192
    with pytest.raises(AssertionError, match="own_count counts in bfloat16, which is too short"):
        bind("own_count", x, axis=(0,), keepdims=False)
    with pytest.raises(TypeError, match="accumulator"):
        bind("own_sum", x, axis=(0,), keepdims=False)
