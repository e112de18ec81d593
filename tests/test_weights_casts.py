"""Casts: a dtype is said to hold another's values exactly if all of them come back."""

import ml_dtypes
import numpy as np
import pytest

from meshard.errors import KeyMapError
from meshard.weights.maps.fields import dtype_named, is_lossless

SMALL = (
    *("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn", "float6_e2m3fn"),
)
ALL = (*SMALL, "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64")


def every_value(name: str) -> np.ndarray:
    """Return all values of a small dtype."""
    dtype = dtype_named(name)
    if dtype == np.bool_:
        return np.array([False, True])
    bits = np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")
    return bits.view(dtype)


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether values are equal, with the signs of zeros; a NaN is a NaN."""
    equal = np.array_equal(a, b, equal_nan=True)
    return equal and np.array_equal(np.signbit(a.real)[a == 0], np.signbit(b.real)[b == 0])


@pytest.mark.parametrize("old", SMALL)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
def test_all_values_come_back_from_a_cast_that_is_said_to_be_lossless(old: str) -> None:
    values = every_value(old)
    for name in ALL:
        new = dtype_named(name)
        told = is_lossless(values.dtype, new)
        # Past the largest value casts saturate, wrap or are infinite; the exact value tells.
        there = values.astype("c16" if new.kind == "c" else "f8").astype(new)
        exact = same_values(there.astype("c16"), values.astype("c16"))
        if told:
            assert exact, (old, name)
        elif name not in ("bool",):
            assert not exact, (old, name)


def test_what_large_dtypes_hold() -> None:
    yes = [("int32", "float64"), ("float32", "float64"), ("float32", "complex64")]
    yes += [("complex64", "complex128"), ("uint32", "int64"), ("uint8", "bfloat16")]
    no = [("int64", "float64"), ("int32", "float32"), ("float64", "float32"), ("int64", "uint64")]
    no += [
        ("complex64", "float64"),
        ("float32", "int64"),
        ("uint64", "int64"),
        ("float64", "complex64"),
    ]
    for pairs, expected in ((yes, True), (no, False)):
        for old, new in pairs:
            assert is_lossless(np.dtype(old), np.dtype(new)) is expected, (old, new)


def test_dtypes_are_numbers_by_their_names() -> None:
    assert dtype_named("bfloat16") == np.dtype(ml_dtypes.bfloat16)
    assert dtype_named("f4") == dtype_named(np.float32) == np.dtype("f4")
    for wrong in (
        "O",
        "U3",
        "S",
        "datetime64",
        "M8[s]",
        "i4,i4",
        ">f4",
        "f99",
        "",
        "x" * 99,
        {},
        3,
    ):
        with pytest.raises(KeyMapError):
            dtype_named(wrong)
