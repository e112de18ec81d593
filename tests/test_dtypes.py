"""Dtype laws: names, promotion, weak scalars, and the default float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard.numpy as mnp
from meshard.errors import DtypeError, ShapeError
from meshard.ops.dtypes.laws import (
    SMALL_FLOATS,
    accumulator,
    as_dtype,
    default_float,
    is_float,
    operand_dtype,
    order_matters,
    result_dtypes,
    same_dtype,
    weak_dtypes,
)
from meshard.ops.row import REGISTRY, Op
from meshard.runtime.types import KEY
from meshard.settings import config
from tests.worlds import in_worlds, put

BF16 = np.dtype(ml_dtypes.bfloat16)
F8 = np.dtype(ml_dtypes.float8_e4m3fn)
F2, F4, F8B, I4, I8 = (np.dtype(d) for d in ("f2", "f4", "f8", "i4", "i8"))
BOOL, C8, C16 = (np.dtype(d) for d in ("?", "c8", "c16"))


@pytest.fixture
def float32() -> Iterator[None]:
    before = config.read("default_float")
    config.update("default_float", "float32")
    try:
        yield
    finally:
        config.update("default_float", before)


def row(name: str) -> Op:
    found = REGISTRY[name]
    assert isinstance(found, Op)
    return found


def results(name: str, *kinds: Any, **params: Any) -> tuple[str, ...]:
    """Return the names of the dtypes that a row gives for operands of these kinds."""
    operands = [((2,) if isinstance(k, np.dtype) else (), k) for k in kinds]
    law, _ = result_dtypes(row(name), operands, params)
    return tuple(d.name for d in law)


def test_small_floats():
    assert BF16 in SMALL_FLOATS
    assert F8 in SMALL_FLOATS
    assert len(SMALL_FLOATS) >= 8
    assert all(d.itemsize <= 2 for d in SMALL_FLOATS)
    assert not {F2, F4, F8B} & SMALL_FLOATS
    assert all(is_float(d) for d in (*SMALL_FLOATS, F2, F4, F8B, np.dtype("g")))
    assert not any(is_float(d) for d in (BOOL, I4, C8, np.dtype(ml_dtypes.int4)))


def test_sums_are_accumulated_in_float32_or_more():
    assert all(accumulator(d) == F4 for d in (*SMALL_FLOATS, F2, F4))
    assert all(accumulator(d) == d for d in (F8B, C8, C16, I4, BOOL))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float32", F4),
        ("f4", F4),
        (np.float16, F2),
        (bool, BOOL),
        (int, I8),
        (float, F8B),
        (complex, C16),
        (None, F8B),
        ("bfloat16", BF16),
        (ml_dtypes.bfloat16, BF16),
        (mnp.bfloat16, BF16),
        ("float8_e4m3fn", F8),
        (mnp.float8_e5m2, np.dtype(ml_dtypes.float8_e5m2)),
        (">f4", F4),
        (np.dtype(">i4"), I4),
        ("int4", np.dtype(ml_dtypes.int4)),
        ("?", BOOL),
        ("complex64", C8),
    ],
)
def test_names_of_dtypes(given, expected):
    assert as_dtype(given) == expected
    assert as_dtype(given).isnative


@pytest.mark.parametrize("given", ["int33", "float", "f12", 5, object(), "finfo", [1, 2]])
def test_no_dtypes(given):
    if given == "float":
        assert as_dtype(given) == F8B
        return
    with pytest.raises(DtypeError, match=r"is not a dtype\.|is not a numeric dtype"):
        as_dtype(given)


@pytest.mark.parametrize("given", ["U3", "S1", object, "M8[D]", "m8[s]", "V4", "f4,i4", str, bytes])
def test_dtypes_of_other_things_than_numbers(given):
    with pytest.raises(DtypeError, match="is not a numeric dtype: arrays hold bool, integers"):
        as_dtype(given)


@in_worlds
def test_every_dtype_makes_arrays():
    for dtype in [
        *sorted(SMALL_FLOATS, key=str),
        "?",
        "i1",
        "u8",
        "f2",
        "f8",
        "F",
        "D",
        np.dtype("g"),
    ]:
        a = put(np.ones(8).astype(dtype), "i")
        assert a.dtype == dtype
        assert (a * a).dtype == dtype
        assert a.astype("D").dtype == C16
        assert np.asarray(mnp.ones(2, dtype=dtype)).dtype == dtype


def test_python_scalars_have_the_dtype_of_their_kind():
    assert [operand_dtype(((), k)) for k in (bool, int, float, complex)] == [BOOL, I8, F8B, C16]
    assert operand_dtype(((2,), F2)) == F2
    assert same_dtype([((2,), F2), ((), int)], {}) == (F2,)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((I4, int), "int32"),
        ((I4, float), "float64"),
        ((F4, float), "float32"),
        ((F4, complex), "complex64"),
        ((BOOL, int), "int64"),
        ((F2, F4), "float32"),
        ((I8, F4), "float64"),
        ((np.dtype("u8"), I8), "float64"),
        ((BF16, float), "bfloat16"),
        ((float, BF16), "bfloat16"),
        ((BF16, int), "bfloat16"),
        ((F8, float), "float8_e4m3fn"),
        ((BF16, F4), "float32"),
        ((BF16, complex), "complex64"),
        ((np.dtype("g"), float), "longdouble"),
    ],
)
def test_promotion(kinds, expected):
    assert results("add", *kinds) == (np.dtype(as_dtype(expected)).name,)


def test_laws_of_several_kinds_of_rows():
    assert results("less", F4, float) == ("bool",)
    assert results("frexp", F4) == ("float32", "int32")
    assert results("absolute", C8) == ("float32",)
    assert results("astype", C8, dtype=BF16) == ("bfloat16",)
    assert results("sum", BOOL, dtype=None) == ("int64",)
    assert results("sum", np.dtype("u1"), dtype=None) == ("uint64",)
    assert results("sum", BF16, dtype=None) == ("bfloat16",)
    assert results("argmax", BF16) == ("int64",)
    assert results("contract", np.dtype("i1"), F2, dtype=None) == ("float16",)
    assert results("contract", BF16, F2, dtype=None) == ("float32",)
    assert results("contract", BF16, BF16, dtype=F4) == ("float32",)


def test_only_small_floats_make_scalars_weak_here():
    def weak(*kinds: Any) -> tuple[Any, ...]:
        return weak_dtypes([((2,) if isinstance(k, np.dtype) else (), k) for k in kinds])

    assert weak(BF16, float) == (None, BF16)
    assert weak(float, F8) == (F8, None)
    assert weak(BF16, int) == (None, None)
    assert weak(BF16, complex) == (None, None)
    assert weak(F2, float) == (None, None)
    assert weak(BOOL, BF16, float) == (None, None, BF16)
    assert weak(I8, BF16, float) == (None, None, BF16)
    assert weak(F4, BF16, float) == (None, None, None)
    assert weak(float, float) == (None, None)


def test_where_memory_order_matters():
    def matters(name: str, *kinds: Any) -> bool:
        return order_matters(row(name), [((2,), k) for k in kinds])

    assert matters("sum", F4)
    assert matters("sum", BF16)
    assert matters("prod", C8)
    assert not matters("sum", I4)
    assert not matters("sum", BOOL)
    assert not matters("max", F4)
    assert matters("arcsin", F2)
    assert not matters("arcsin", F4)
    assert not matters("add", BF16, F4)


def test_dtypes_that_a_kernel_cannot_take():
    with pytest.raises(
        DtypeError, match="bitwise_and: not possible for operands of dtype float32, int"
    ):
        results("bitwise_and", F4, int)
    with pytest.raises(
        DtypeError, match="floor_divide: not possible for operands of dtype bfloat16, complex64"
    ):
        results("floor_divide", BF16, C8)
    with pytest.raises(
        DtypeError, match=r"contract: not possible for operands of dtype bfloat16, key<"
    ):
        results("contract", BF16, KEY, dtype=None)


def test_refusals_of_laws_pass():
    def law(operands: Any, params: Any) -> Any:
        raise ShapeError("no such shape")

    with pytest.raises(ShapeError, match="no such shape"):
        result_dtypes(Op("x", "a -> a", np.sin, dtypes=law), [((2,), F4)], {})


@pytest.mark.usefixtures("float32")
def test_the_default_float():
    assert default_float() == F4
    assert as_dtype(float) == as_dtype(None) == F4
    assert as_dtype(complex) == C8
    assert as_dtype("float64") == F8B
    assert results("divide", I8, I8) == ("float32",)
    assert results("sin", I8) == ("float32",)
    assert results("add", I8, float) == ("float32",)
    assert results("add", I8, complex) == ("complex64",)
    assert results("add", F8B, float) == ("float64",)
    assert results("add", F8B, F4) == ("float64",)
    assert results("add", F4, C16) == ("complex128",)
    assert results("add", F2, float) == ("float16",)
    assert results("add", np.dtype("g"), float) == (np.dtype("g").name,)


def test_the_default_float_is_float64():
    assert default_float() == F8B
    assert results("divide", I8, I8) == ("float64",)
