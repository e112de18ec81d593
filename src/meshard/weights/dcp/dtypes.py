"""The dtypes of torch: their names, and the classes of storages that its files name.

In: a NumPy dtype. Out: torch's name of it, and the other way round.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_PLAIN = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")

DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in _PLAIN},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in (*_SMALL, "float8_e8m0fnu")},
}
"""NumPy's dtype of each of torch's that NumPy has, by torch's name."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""Torch's name of each dtype that it has."""

WITHOUT = ("complex32", "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "float4_e2m1fn_x2")
"""Names of dtypes that NumPy does not have."""

STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
"""The dtype of the elements in each class of storages; others are named as untyped ones."""
