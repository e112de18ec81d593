"""The width of `meshard.numpy`: the Array API standard 2024.12 and ordinary NumPy functions.

One table of cases is run on NumPy and on meshard with every array split over the mesh, in both
worlds: what NumPy gives is what is wanted.
"""

import doctest
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, IndexingError, ShapeError
from tests.worlds import everywhere, in_worlds, put, whole

Case = Callable[[Any, Callable[..., Any]], Any]

# the standard's functions, as its table of contents has them

CREATION = (
    "arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones "
    "ones_like tril triu zeros zeros_like"
)
DTYPES = "astype can_cast finfo iinfo isdtype result_type"
DTYPE_NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128"
)
ELEMENTWISE = (
    "abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert "
    "bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp "
    "expm1 floor floor_divide greater greater_equal hypot imag isfinite isinf isnan less "
    "less_equal log log1p log2 log10 logaddexp logical_and logical_not logical_or logical_xor "
    "maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder "
    "round sign signbit sin sinh square sqrt subtract tan tanh trunc"
)
INDEXING = "take take_along_axis"
LINEAR = "matmul matrix_transpose tensordot vecdot"
MANIPULATION = (
    "broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape "
    "roll squeeze stack tile unstack"
)
SEARCHING = "argmax argmin count_nonzero nonzero searchsorted where"
SETS = "unique_all unique_counts unique_inverse unique_values"
SORTING = "argsort sort"
STATISTICS = "cumulative_prod cumulative_sum max mean min prod std sum var"
UTILITY = "all any diff"
INSPECTION = "__array_namespace_info__"
CONSTANTS = "e inf nan newaxis pi"
LINALG = (
    "cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank "
    "matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm"
)

FUNCTIONS = " ".join(
    [
        *(CREATION, DTYPES, ELEMENTWISE, INDEXING, LINEAR, MANIPULATION, SEARCHING, SETS),
        *(SORTING, STATISTICS, UTILITY, INSPECTION),
    ]
).split()

REAL = np.linspace(-0.9, 0.9, 24).reshape(6, 4)
LARGE = np.linspace(1.1, 9, 24).reshape(6, 4)
WHOLE = np.arange(24).reshape(6, 4) % 7
TRUTH = WHOLE % 2 == 0
COMPLEX = REAL + 1j * LARGE
MATRICES = np.random.default_rng(1).normal(size=(8, 3, 3)) + 3 * np.eye(3)
SYMMETRIC = MATRICES @ MATRICES.transpose(0, 2, 1)


def _unary(name: str, value: Any) -> Case:
    return lambda xp, a: getattr(xp, name)(a(value))


def _binary(name: str, x: Any, y: Any) -> Case:
    return lambda xp, a: [
        getattr(xp, name)(a(x), a(y)),
        getattr(xp, name)(a(x), y.reshape(-1)[1].item()),
    ]


OPERANDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("abs acos asin asinh atan atanh ceil conj cos cosh exp expm1 floor isfinite isinf", (REAL,)),
    ("isnan log1p negative positive round sign signbit sin sinh square tan tanh trunc", (REAL,)),
    ("acosh log log2 log10 reciprocal sqrt", (LARGE,)),
    ("imag real", (COMPLEX,)),
    ("logical_not", (TRUTH,)),
    ("bitwise_invert", (WHOLE,)),
    ("bitwise_and bitwise_or bitwise_xor bitwise_left_shift", (WHOLE, WHOLE[::-1])),
    ("bitwise_right_shift", (WHOLE, WHOLE[::-1])),
    ("logical_and logical_or logical_xor", (TRUTH, TRUTH[:, ::-1])),
    ("add atan2 copysign divide equal floor_divide greater greater_equal hypot", (REAL, LARGE)),
    ("less less_equal logaddexp maximum minimum multiply nextafter not_equal", (REAL, LARGE)),
    ("remainder subtract", (REAL, LARGE)),
    ("pow", (LARGE, REAL)),
)

CASES: dict[str, Case] = {
    **{
        name: (_unary if len(x) == 1 else _binary)(name, *x)
        for names, x in OPERANDS
        for name in names.split()
    },
    "clip": lambda xp, a: [xp.clip(a(WHOLE), 2, 5), xp.clip(a(REAL), a(-LARGE / 9), a(LARGE / 9))],
    # creation
    "arange": lambda xp, a: [xp.arange(5), xp.arange(1, 9, 3), xp.arange(0.0, 1.0, 0.25)],
    "asarray": lambda xp, a: [xp.asarray([[1, 2], [3, 4]]), xp.asarray(a(REAL))],
    "empty": lambda xp, a: xp.empty((2, 3), dtype=xp.float32).shape,
    "empty_like": lambda xp, a: xp.empty_like(a(WHOLE)).dtype,
    "eye": lambda xp, a: [xp.eye(3), xp.eye(3, 4, k=1, dtype=xp.int64)],
    "from_dlpack": lambda xp, a: xp.from_dlpack(np.arange(6.0)),
    "full": lambda xp, a: [xp.full((2, 3), 7), xp.full(4, 1.5)],
    "full_like": lambda xp, a: xp.full_like(a(WHOLE), 3),
    "linspace": lambda xp, a: [xp.linspace(0, 1, 5), xp.linspace(0, 1, 5, endpoint=False)],
    "meshgrid": lambda xp, a: [
        *xp.meshgrid(a(np.arange(3)), a(np.arange(4))),
        *xp.meshgrid(a(np.arange(3)), a(np.arange(4)), indexing="ij"),
    ],
    "ones": lambda xp, a: xp.ones((2, 3)),
    "ones_like": lambda xp, a: xp.ones_like(a(WHOLE)),
    "tril": lambda xp, a: [xp.tril(a(WHOLE)), xp.tril(a(MATRICES), k=-1)],
    "triu": lambda xp, a: [xp.triu(a(WHOLE)), xp.triu(a(MATRICES), k=1)],
    "zeros": lambda xp, a: xp.zeros(4, dtype=xp.int32),
    "zeros_like": lambda xp, a: xp.zeros_like(a(REAL)),
    # dtypes
    "astype": lambda xp, a: [xp.astype(a(REAL), xp.int64), xp.astype(a(WHOLE), xp.float32)],
    "can_cast": lambda xp, a: [
        xp.can_cast(xp.int8, xp.int16),
        xp.can_cast(xp.float64, xp.int8),
        xp.can_cast(a(REAL).dtype, xp.complex128),
    ],
    "finfo": lambda xp, a: [float(xp.finfo(xp.float32).eps), int(xp.finfo(xp.float64).bits)],
    "iinfo": lambda xp, a: [xp.iinfo(xp.int8).max, xp.iinfo(xp.uint16).bits],
    "isdtype": lambda xp, a: [
        xp.isdtype(np.dtype("int8"), "signed integer"),
        xp.isdtype(np.dtype("uint8"), "signed integer"),
        xp.isdtype(np.dtype("float32"), ("integral", "real floating")),
        xp.isdtype(np.dtype("complex64"), "numeric"),
        xp.isdtype(np.dtype("bool"), np.dtype("bool")),
        xp.isdtype(np.dtype("bool"), "numeric"),
    ],
    "result_type": lambda xp, a: [
        xp.result_type(a(WHOLE), xp.float32),
        xp.result_type(xp.int8, xp.uint8),
        xp.result_type(a(REAL.astype("float32")), 1.0),
    ],
    # indexing, products
    "take": lambda xp, a: xp.take(a(WHOLE), a(np.array([5, 0, 3])), axis=0),
    "take_along_axis": lambda xp, a: xp.take_along_axis(a(WHOLE), a(WHOLE % 4), axis=1),
    "matmul": lambda xp, a: [xp.matmul(a(REAL), a(LARGE.T)), xp.matmul(a(MATRICES), a(MATRICES))],
    "matrix_transpose": lambda xp, a: xp.matrix_transpose(a(MATRICES)),
    "tensordot": lambda xp, a: [
        xp.tensordot(a(REAL), a(LARGE), axes=((0,), (0,))),
        xp.tensordot(a(REAL), a(LARGE), axes=2),
    ],
    "vecdot": lambda xp, a: [xp.vecdot(a(COMPLEX), a(LARGE)), xp.vecdot(a(REAL), a(LARGE), axis=0)],
    # manipulation
    "broadcast_arrays": lambda xp, a: list(xp.broadcast_arrays(a(WHOLE), a(np.arange(4)))),
    "broadcast_to": lambda xp, a: xp.broadcast_to(a(np.arange(4)), (3, 4)),
    "concat": lambda xp, a: [
        xp.concat([a(WHOLE), a(REAL)], axis=0),
        xp.concat((a(WHOLE), a(WHOLE)), axis=None),
    ],
    "expand_dims": lambda xp, a: xp.expand_dims(a(WHOLE), axis=1),
    "flip": lambda xp, a: [xp.flip(a(WHOLE)), xp.flip(a(WHOLE), axis=1)],
    "moveaxis": lambda xp, a: xp.moveaxis(a(MATRICES), 0, 2),
    "permute_dims": lambda xp, a: xp.permute_dims(a(MATRICES), (2, 0, 1)),
    "repeat": lambda xp, a: [xp.repeat(a(WHOLE), 2, axis=0), xp.repeat(a(WHOLE), 3)],
    "reshape": lambda xp, a: [xp.reshape(a(WHOLE), (4, 6)), xp.reshape(a(WHOLE), (-1,))],
    "roll": lambda xp, a: [xp.roll(a(WHOLE), 2), xp.roll(a(WHOLE), (1, -1), axis=(0, 1))],
    "squeeze": lambda xp, a: xp.squeeze(a(WHOLE[None, :, :1]), axis=(0, 2)),
    "stack": lambda xp, a: xp.stack([a(WHOLE), a(WHOLE)], axis=1),
    "tile": lambda xp, a: [xp.tile(a(WHOLE), (2, 1, 2)), xp.tile(a(np.ones(1)), 5)],
    "unstack": lambda xp, a: list(xp.unstack(a(WHOLE), axis=1)),
    # searching, sets, sorting
    "argmax": lambda xp, a: [xp.argmax(a(WHOLE)), xp.argmax(a(WHOLE), axis=0, keepdims=True)],
    "argmin": lambda xp, a: [xp.argmin(a(WHOLE)), xp.argmin(a(WHOLE), axis=0)],
    "count_nonzero": lambda xp, a: [
        xp.count_nonzero(a(WHOLE)),
        xp.count_nonzero(a(WHOLE), axis=0, keepdims=True),
    ],
    "nonzero": lambda xp, a: list(xp.nonzero(a(WHOLE))),
    "searchsorted": lambda xp, a: [
        xp.searchsorted(a(np.arange(0.0, 9)), a(LARGE), side=side) for side in ("left", "right")
    ],
    "where": lambda xp, a: xp.where(a(TRUTH), a(REAL), a(LARGE)),
    "unique_all": lambda xp, a: list(xp.unique_all(a(WHOLE))),
    "unique_counts": lambda xp, a: list(xp.unique_counts(a(WHOLE))),
    "unique_inverse": lambda xp, a: list(xp.unique_inverse(a(WHOLE))),
    "unique_values": lambda xp, a: xp.sort(xp.unique_values(a(WHOLE))),
    "argsort": lambda xp, a: [
        xp.argsort(a(WHOLE), axis=0, stable=True),
        xp.argsort(a(WHOLE[:, 0]), stable=True),
    ],
    "sort": lambda xp, a: [xp.sort(a(WHOLE), axis=0), xp.sort(a(WHOLE[:, 0]))],
    # statistics, utility
    "cumulative_prod": lambda xp, a: xp.cumulative_prod(a(REAL), axis=0, include_initial=True),
    "cumulative_sum": lambda xp, a: [
        xp.cumulative_sum(a(REAL), axis=0, include_initial=True),
        xp.cumulative_sum(a(WHOLE.astype("int8")), axis=1),
    ],
    "max": lambda xp, a: [xp.max(a(REAL)), xp.max(a(REAL), axis=0, keepdims=True)],
    "mean": lambda xp, a: [xp.mean(a(REAL)), xp.mean(a(REAL), axis=0, keepdims=True)],
    "min": lambda xp, a: [xp.min(a(REAL)), xp.min(a(REAL), axis=(0, 1))],
    "prod": lambda xp, a: [xp.prod(a(REAL)), xp.prod(a(WHOLE), axis=1, dtype=xp.float64)],
    "std": lambda xp, a: [xp.std(a(REAL)), xp.std(a(REAL), axis=0, correction=1.0)],
    "sum": lambda xp, a: [xp.sum(a(WHOLE.astype("int8"))), xp.sum(a(REAL), axis=0)],
    "var": lambda xp, a: [xp.var(a(REAL)), xp.var(a(REAL), axis=0, correction=1.0)],
    "all": lambda xp, a: [xp.all(a(TRUTH)), xp.all(a(TRUTH), axis=0, keepdims=True)],
    "any": lambda xp, a: [xp.any(a(TRUTH)), xp.any(a(TRUTH), axis=0)],
    "diff": lambda xp, a: [
        xp.diff(a(REAL), axis=0),
        xp.diff(a(REAL), n=2, axis=0, prepend=a(REAL[:1])),
    ],
    "__array_namespace_info__": lambda xp, a: [
        xp.__array_namespace_info__().default_dtypes()["real floating"],
        sorted(xp.__array_namespace_info__().dtypes(kind="integral")),
    ],
}

LINALG_CASES: dict[str, Case] = {
    "cholesky": lambda xp, a: [
        xp.linalg.cholesky(a(SYMMETRIC)),
        xp.linalg.cholesky(a(SYMMETRIC), upper=True),
    ],
    "cross": lambda xp, a: [
        xp.linalg.cross(a(REAL[:, :3]), a(LARGE[:, :3])),
        xp.linalg.cross(a(REAL[:3]), a(LARGE[:3]), axis=0),
    ],
    "det": lambda xp, a: xp.linalg.det(a(MATRICES)),
    "diagonal": lambda xp, a: [
        xp.linalg.diagonal(a(WHOLE)),
        xp.linalg.diagonal(a(WHOLE), offset=-2),
    ],
    "eigh": lambda xp, a: [
        xp.linalg.eigh(a(SYMMETRIC)).eigenvalues,
        xp.abs(xp.linalg.eigh(a(SYMMETRIC)).eigenvectors),
    ],
    "eigvalsh": lambda xp, a: xp.linalg.eigvalsh(a(SYMMETRIC)),
    "inv": lambda xp, a: xp.linalg.inv(a(MATRICES)),
    "matmul": lambda xp, a: xp.linalg.matmul(a(REAL), a(LARGE.T)),
    "matrix_norm": lambda xp, a: [
        xp.linalg.matrix_norm(a(m), ord=ord, keepdims=True)
        for m in (MATRICES, REAL)
        for ord in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    ],
    "matrix_power": lambda xp, a: [xp.linalg.matrix_power(a(MATRICES), n) for n in (-2, 0, 1, 5)],
    "matrix_rank": lambda xp, a: [
        xp.linalg.matrix_rank(a(MATRICES)),
        xp.linalg.matrix_rank(a(np.ones((6, 4)))),
    ],
    "matrix_transpose": lambda xp, a: xp.linalg.matrix_transpose(a(REAL)),
    "outer": lambda xp, a: xp.linalg.outer(a(REAL[:, 0]), a(LARGE[0])),
    "pinv": lambda xp, a: [
        xp.linalg.pinv(a(REAL), rtol=1e-9),
        xp.linalg.pinv(a(COMPLEX), rtol=1e-9),
    ],
    "qr": lambda xp, a: [
        xp.abs(f) for mode in ("reduced", "complete") for f in xp.linalg.qr(a(REAL), mode=mode)
    ][1::2],
    "slogdet": lambda xp, a: list(xp.linalg.slogdet(a(MATRICES))),
    "solve": lambda xp, a: [
        xp.linalg.solve(a(MATRICES), a(MATRICES[..., :2])),
        xp.linalg.solve(a(MATRICES), a(np.arange(3.0))),
        xp.linalg.solve(a(MATRICES[0]), a(np.arange(3.0))),
    ],
    "svd": lambda xp, a: [xp.abs(f) for f in xp.linalg.svd(a(LARGE.T @ REAL), full_matrices=False)][
        1:2
    ],
    "svdvals": lambda xp, a: xp.linalg.svdvals(a(MATRICES)),
    "tensordot": lambda xp, a: xp.linalg.tensordot(a(REAL), a(LARGE), axes=2),
    "trace": lambda xp, a: [xp.linalg.trace(a(MATRICES)), xp.linalg.trace(a(WHOLE), offset=1)],
    "vecdot": lambda xp, a: xp.linalg.vecdot(a(COMPLEX), a(LARGE)),
    "vector_norm": lambda xp, a: [
        xp.linalg.vector_norm(a(x), axis=axis, keepdims=True, ord=ord)
        for x in (REAL, COMPLEX)
        for axis in (None, 0, (0, 1))
        for ord in (2, 1, 3, 0, np.inf, -np.inf)
    ],
}

# NumPy's own, beyond the standard

FIRST = np.array([3.0, np.nan, -np.inf, 2.0, 2.0, np.inf, 0.0, -1.0])
GAPS = np.where(WHOLE == 3, np.nan, REAL)
ODD = np.array([4, 4, 1, 9, 0, 3, 3, 7, 2, 8, 11])

ORDINARY: dict[str, Case] = {
    "allclose": lambda xp, a: [xp.allclose(a(REAL), a(REAL + 1e-12)), xp.allclose(a(REAL), 0)],
    "angle": lambda xp, a: [xp.angle(a(COMPLEX)), xp.angle(a(COMPLEX), deg=True)],
    "append": lambda xp, a: [xp.append(a(ODD), [5]), xp.append(a(WHOLE), a(WHOLE[:1]), axis=0)],
    "argwhere": lambda xp, a: xp.argwhere(a(WHOLE)),
    "array_equal": lambda xp, a: [
        xp.array_equal(a(FIRST), a(FIRST)),
        xp.array_equal(a(FIRST), a(FIRST), equal_nan=True),
        xp.array_equal(a(ODD), a(ODD[1:])),
    ],
    "array_equiv": lambda xp, a: [
        xp.array_equiv(a(WHOLE[:1]), a(np.tile(WHOLE[:1], (3, 1)))),
        xp.array_equiv(a(ODD), a(ODD[1:])),
    ],
    "array_split": lambda xp, a: [*xp.array_split(a(ODD), 3), *xp.array_split(a(ODD), [2, 5])],
    "atleast_3d": lambda xp, a: [xp.atleast_3d(a(ODD)), xp.atleast_3d(a(WHOLE))],
    "bincount": lambda xp, a: [
        xp.bincount(a(ODD)),
        xp.bincount(a(ODD), minlength=20),
        xp.bincount(a(ODD), weights=a(ODD / 2)),
    ],
    "choose": lambda xp, a: [
        xp.choose(a(WHOLE % 3), [a(WHOLE), a(REAL), a(LARGE)]),
        xp.choose(a(WHOLE), [a(WHOLE), a(REAL)], mode="clip"),
        xp.choose(a(WHOLE), [a(WHOLE), a(REAL)], mode="wrap"),
    ],
    "column_stack": lambda xp, a: xp.column_stack([a(ODD), a(np.stack([ODD, ODD], 1))]),
    "compress": lambda xp, a: [
        xp.compress(ODD > 3, a(ODD)),
        xp.compress([True, False, True], a(WHOLE), axis=0),
    ],
    "corrcoef": lambda xp, a: [xp.corrcoef(a(LARGE**2)), xp.corrcoef(a(ODD), a(ODD[::-1]))],
    "cov": lambda xp, a: [
        xp.cov(a(LARGE**2)),
        xp.cov(a(LARGE**2), rowvar=False),
        xp.cov(a(ODD), a(ODD[::-1] ** 2), bias=True),
        xp.cov(a(COMPLEX)),
        xp.cov(a(ODD), ddof=2),
    ],
    "cumprod": lambda xp, a: [xp.cumprod(a(REAL), axis=0), xp.cumprod(a(REAL))],
    "cumsum": lambda xp, a: [xp.cumsum(a(WHOLE), axis=0), xp.cumsum(a(TRUTH), axis=0, dtype="f4")],
    "diag_indices": lambda xp, a: list(xp.diag_indices(3)),
    "diagflat": lambda xp, a: xp.diagflat(a(ODD[:4].reshape(2, 2)), 1),
    "diagonal": lambda xp, a: [xp.diagonal(a(WHOLE), 1), xp.diagonal(a(MATRICES), -1, 2, 0)],
    "digitize": lambda xp, a: [
        xp.digitize(a(LARGE), a(np.arange(0.0, 9))),
        xp.digitize(a(LARGE), a(np.arange(9.0, 0, -1)), right=True),
    ],
    "dsplit": lambda xp, a: xp.dsplit(a(MATRICES), 3),
    "dstack": lambda xp, a: xp.dstack([a(ODD), a(ODD)]),
    "ediff1d": lambda xp, a: [xp.ediff1d(a(WHOLE)), xp.ediff1d(a(ODD), to_end=[1, 2], to_begin=5)],
    "extract": lambda xp, a: xp.extract(a(TRUTH), a(REAL)),
    "flatnonzero": lambda xp, a: xp.flatnonzero(a(WHOLE)),
    "fliplr": lambda xp, a: xp.fliplr(a(WHOLE)),
    "flipud": lambda xp, a: xp.flipud(a(WHOLE)),
    "fromfunction": lambda xp, a: xp.fromfunction(lambda i, j: i * 10 + j, (3, 4), dtype=int),
    "geomspace": lambda xp, a: xp.geomspace(1, 1000, 4),
    "histogram": lambda xp, a: [
        *xp.histogram(a(LARGE)),
        *xp.histogram(a(LARGE), bins=5, range=(2, 4), density=True),
        *xp.histogram(a(LARGE), bins=a(np.array([1.0, 2.0, 5.0])), weights=a(REAL)),
    ],
    "histogram_bin_edges": lambda xp, a: xp.histogram_bin_edges(a(LARGE), 4),
    "hsplit": lambda xp, a: [*xp.hsplit(a(WHOLE), 2), *xp.hsplit(a(ODD), [3])],
    "indices": lambda xp, a: [xp.indices((2, 3)), *xp.indices((2, 3), sparse=True)],
    "interp": lambda xp, a: [
        xp.interp(a(LARGE), a(np.arange(5.0)), a(np.arange(5.0) ** 2)),
        xp.interp(a(LARGE), a(np.arange(5.0)), a(np.arange(5.0) ** 2), left=-1, right=7),
        xp.interp(a(LARGE), a(np.arange(5.0)), a(COMPLEX[0, 0] * np.arange(5.0))),
    ],
    "intersect1d": lambda xp, a: xp.intersect1d(a(ODD), a(WHOLE)),
    "isclose": lambda xp, a: [
        xp.isclose(a(FIRST), a(FIRST[::-1])),
        xp.isclose(a(FIRST), a(FIRST), equal_nan=True),
        xp.isclose(a(ODD), a(ODD + 1), atol=1),
    ],
    "iscomplex": lambda xp, a: xp.iscomplex(a(COMPLEX)),
    "iscomplexobj": lambda xp, a: [xp.iscomplexobj(a(COMPLEX)), xp.iscomplexobj(a(REAL))],
    "isin": lambda xp, a: [xp.isin(a(WHOLE), a(ODD)), xp.isin(a(ODD), [1, 2], invert=True)],
    "isneginf": lambda xp, a: xp.isneginf(a(FIRST)),
    "isposinf": lambda xp, a: xp.isposinf(a(FIRST)),
    "isreal": lambda xp, a: xp.isreal(a(COMPLEX)),
    "isrealobj": lambda xp, a: xp.isrealobj(a(COMPLEX)),
    "kron": lambda xp, a: [xp.kron(a(WHOLE), a(REAL)), xp.kron(a(ODD), a(WHOLE))],
    "logspace": lambda xp, a: [xp.logspace(0, 3, 4), xp.logspace(0, 3, 4, base=2.0)],
    "median": lambda xp, a: [
        xp.median(a(LARGE)),
        xp.median(a(GAPS), axis=0),
        xp.median(a(ODD), keepdims=True),
        xp.median(a(MATRICES), axis=(0, 2)),
    ],
    "nan_to_num": lambda xp, a: [xp.nan_to_num(a(FIRST)), xp.nan_to_num(a(FIRST), nan=1, posinf=2)],
    "nancumprod": lambda xp, a: xp.nancumprod(a(GAPS), axis=0),
    "nancumsum": lambda xp, a: xp.nancumsum(a(GAPS), axis=0),
    "nanmax": lambda xp, a: [xp.nanmax(a(GAPS)), xp.nanmax(a(GAPS), axis=0), xp.nanmax(a(WHOLE))],
    "nanmean": lambda xp, a: [xp.nanmean(a(GAPS)), xp.nanmean(a(GAPS), axis=0)],
    "nanmin": lambda xp, a: [xp.nanmin(a(GAPS)), xp.nanmin(a(GAPS), axis=1, keepdims=True)],
    "nanprod": lambda xp, a: xp.nanprod(a(GAPS), axis=0),
    "nanstd": lambda xp, a: [xp.nanstd(a(GAPS), axis=0), xp.nanstd(a(WHOLE))],
    "nansum": lambda xp, a: [xp.nansum(a(GAPS), axis=0), xp.nansum(a(WHOLE))],
    "nanvar": lambda xp, a: [xp.nanvar(a(GAPS), axis=0, ddof=1), xp.nanvar(a(COMPLEX))],
    "ndim": lambda xp, a: xp.ndim(a(WHOLE)),
    "percentile": lambda xp, a: xp.percentile(a(LARGE), [5, 50, 99], axis=0),
    "polyval": lambda xp, a: xp.polyval(a(ODD[:3]), a(REAL)),
    "quantile": lambda xp, a: [
        xp.quantile(a(LARGE), 0.3),
        xp.quantile(a(GAPS), [0, 0.25, 1], axis=0, keepdims=True),
        *[
            xp.quantile(a(LARGE), [0.1, 0.5, 0.77], axis=1, method=method)
            for method in ("lower", "higher", "midpoint", "nearest", "linear")
        ],
    ],
    "rot90": lambda xp, a: [xp.rot90(a(WHOLE), k) for k in range(-1, 4)],
    "select": lambda xp, a: xp.select([a(WHOLE) < 2, a(WHOLE) < 5], [a(WHOLE), a(REAL)], 9.0),
    "setdiff1d": lambda xp, a: xp.setdiff1d(a(ODD), a(WHOLE)),
    "setxor1d": lambda xp, a: xp.setxor1d(a(ODD), a(WHOLE)),
    "shape": lambda xp, a: xp.shape(a(WHOLE)),
    "size": lambda xp, a: [xp.size(a(WHOLE)), xp.size(a(WHOLE), 1)],
    "trace": lambda xp, a: [xp.trace(a(WHOLE)), xp.trace(a(MATRICES), 1, 1, 2)],
    "trapezoid": lambda xp, a: [
        xp.trapezoid(a(LARGE)),
        xp.trapezoid(a(LARGE), dx=0.5, axis=0),
        xp.trapezoid(a(LARGE), a(ODD[:6]), axis=0),
        xp.trapezoid(a(LARGE), a(REAL), axis=0),
    ],
    "tril_indices": lambda xp, a: list(xp.tril_indices(4, -1)),
    "triu_indices": lambda xp, a: list(xp.triu_indices(4, 1, 5)),
    "union1d": lambda xp, a: xp.union1d(a(ODD), a(WHOLE)),
    "unique": lambda xp, a: [
        xp.unique(a(FIRST)),
        *xp.unique(a(WHOLE), return_index=True, return_inverse=True, return_counts=True),
    ],
    "unravel_index": lambda xp, a: list(xp.unravel_index(a(ODD), (3, 5))),
    "vander": lambda xp, a: [xp.vander(a(ODD), 3), xp.vander(a(ODD), 3, increasing=True)],
    "vsplit": lambda xp, a: xp.vsplit(a(WHOLE), 3),
}


def _lay(value: Any) -> meshard.Array:
    """Split the first dim, evenly or not."""
    value = np.asarray(value)
    return put(value, "i", uneven="balanced") if value.ndim else meshard.numpy.asarray(value)


def _same(found: Any, expected: Any, name: str) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            _same(x, y, name)
    elif isinstance(expected, (np.ndarray, np.generic)):
        value = whole(found)
        assert value.dtype == expected.dtype, (name, value.dtype, expected.dtype)
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12, err_msg=name)
    else:
        assert (bool(found) if isinstance(expected, bool) else found) == expected, name


def _run(case: Case, name: str) -> None:
    with np.errstate(all="ignore"):
        expected = case(np, np.asarray)
    _same(case(mnp, _lay), expected, name)


def test_the_tables_hold_what_the_standard_names() -> None:
    assert sorted(CASES) == sorted(FUNCTIONS)
    assert sorted(LINALG_CASES) == sorted(LINALG.split())
    missing = [n for n in FUNCTIONS if not callable(getattr(mnp, n, None))]
    missing += [n for n in LINALG.split() if not callable(getattr(mnp.linalg, n, None))]
    assert not missing
    for name in DTYPE_NAMES.split():
        assert np.dtype(getattr(mnp, name)) == np.dtype(name)
    for name in CONSTANTS.split():
        np.testing.assert_equal(getattr(mnp, name), getattr(np, name))
    assert mnp.__array_api_version__ == "2025.12"


@pytest.mark.parametrize("name", FUNCTIONS)
@in_worlds
def test_a_function_of_the_standard(name: str) -> None:
    _run(CASES[name], name)


@pytest.mark.parametrize("name", LINALG.split())
@in_worlds
def test_a_function_of_the_linalg_extension(name: str) -> None:
    _run(LINALG_CASES[name], name)


@pytest.mark.parametrize("name", ORDINARY)
@in_worlds
def test_an_ordinary_function(name: str) -> None:
    _run(ORDINARY[name], name)


def test_the_tables_give_the_same_bits_in_both_worlds() -> None:
    def values(found: Any) -> Any:
        if isinstance(found, (list, tuple)):
            return [values(f) for f in found]
        return whole(found) if isinstance(found, meshard.Array) else found

    def body() -> Any:
        every = {**CASES, **{f"linalg.{n}": c for n, c in LINALG_CASES.items()}, **ORDINARY}
        # NaN is not equal to itself, and this comparison is of bytes.
        return {name: values(case(mnp, _lay)) for name, case in every.items() if name != "empty"}

    everywhere(body)


def test_an_array_names_its_namespace() -> None:
    assert mnp.arange(3).__array_namespace__(api_version="2025.12") is mnp


def test_the_door_lists_what_it_has() -> None:
    here = {n for n in dir(mnp) if not n.startswith("_")}
    assert here == set(mnp.__all__)


OPS = Path(importlib.import_module("meshard.ops").__file__).parent
MODULES = sorted(
    ".".join(("meshard.ops", *path.relative_to(OPS).with_suffix("").parts))
    for path in OPS.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner()
    found = doctest.DocTestFinder(recurse=False).find(module)
    for member, value in vars(module).items():
        if getattr(value, "__module__", "") == name:  # also where a decorator has made it
            found += doctest.DocTestFinder().find(value, member, False, dict(vars(module)))
    with np.errstate(all="ignore"):
        for example in found:
            runner.run(example)
    assert runner.tries > 0
    assert runner.failures == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_says_what_it_does(name: str) -> None:
    module = importlib.import_module(name)
    for member, value in vars(module).items():
        if not member.startswith("_") and getattr(value, "__module__", "") == name:
            assert inspect.getdoc(value), member
            assert inspect.getdoc(value).split("\n")[0].endswith("."), member


# the array object of the standard

ATTRIBUTES = "dtype device mT ndim shape size T"
METHODS = (
    "__abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ "
    "__dlpack_device__ __eq__ __float__ __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ "
    "__invert__ __le__ __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ "
    "__pow__ __rshift__ __setitem__ __sub__ __truediv__ __xor__ to_device __radd__ __rsub__ "
    "__rmul__ __rtruediv__ __rfloordiv__ __rmod__ __rpow__ __rmatmul__ __rand__ __ror__ __rxor__ "
    "__rlshift__ __rrshift__"
)


@in_worlds
def test_the_array_object_of_the_standard() -> None:
    x = put(np.arange(6).reshape(2, 3), None, uneven="balanced")
    missing = [n for n in f"{ATTRIBUTES} {METHODS}".split() if not hasattr(x, n)]
    assert not missing
    y = x
    y += 1
    y **= 2
    assert whole(y).tolist() == ((np.arange(6).reshape(2, 3) + 1) ** 2).tolist()
    assert whole(x).tolist() == np.arange(6).reshape(2, 3).tolist()
    moved = x.to_device(meshard.devices()[-1])
    assert moved.device == meshard.devices()[-1]
    with pytest.raises(TypeError, match="immutable"):
        x[0, 0] = 1


@in_worlds
def test_refusals() -> None:
    x = put(np.arange(8.0), "i")
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: mnp.select([], []), ArgumentError, "select: 0 conditions and 0 choices"),
        (lambda: mnp.select([x > 1], [x, x]), ArgumentError, "select: 1 conditions and 2 choices"),
        (
            lambda: mnp.choose(x.astype(int), [x, x]),
            ArgumentError,
            "choose: a number is outside the 2 choices, 0 to 1",
        ),
        (
            lambda: mnp.choose(x.astype(int), [x], mode="skip"),
            ArgumentError,
            "choose: mode must be 'raise', 'wrap' or 'clip', got 'skip'",
        ),
        (lambda: mnp.interp(x, x, x[1:]), ShapeError, r"interp: points .* \(8,\) and .* \(7,\)"),
        (
            lambda: mnp.interp(x, x, x, period=0),
            ArgumentError,
            r"interp: period must not be zero",
        ),
        (
            lambda: mnp.geomspace(0, 1),
            ArgumentError,
            "geomspace: there is no sequence from 0 to 1: Geometric sequence cannot include zero",
        ),
        (lambda: mnp.vander(mnp.eye(2)), ShapeError, r"vander: .* one dim, got shape \(2, 2\)"),
        (
            lambda: mnp.unravel_index(np.array([0, 6]), (2, 3)),
            IndexingError,
            r"unravel_index: positions from 0 to 6 for shape \(2, 3\), .* 0 to 5",
        ),
        (lambda: mnp.from_dlpack([1]), ArgumentError, "from_dlpack: a list cannot be read"),
        (lambda: mnp.array_split(x, 0), ArgumentError, "array_split: the number of sections"),
        (lambda: mnp.vsplit(x, 2), ShapeError, r"vsplit: needs at least 2 dims, got shape \(8,\)"),
        (lambda: mnp.dsplit(x, 2), ShapeError, r"dsplit: needs at least 3 dims, got shape \(8,\)"),
        (lambda: mnp.rot90(mnp.eye(2), 1, (0, 0)), ArgumentError, r"rot90: axes \(0, 0\)"),
        (
            lambda: mnp.isdtype(np.dtype("f4"), "float"),
            ArgumentError,
            "isdtype: kind 'float' is not known; it must be a dtype or one of 'bool'",
        ),
        (
            lambda: mnp.__array_namespace_info__().dtypes(kind="float"),
            ArgumentError,
            "dtypes: kind 'float' is not known",
        ),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


@in_worlds
def test_small_floats() -> None:
    bfloat16 = np.dtype(mnp.bfloat16)
    x = put(np.array([1.0, np.nan, np.inf, -np.inf]).astype(bfloat16), "i")
    assert whole(mnp.isclose(x, x)).tolist() == [True, False, True, True]
    assert whole(mnp.isclose(x, x, equal_nan=True)).all()
    cleaned = mnp.nan_to_num(x)
    assert cleaned.dtype == bfloat16
    most = float(mnp.finfo(bfloat16).max)
    assert whole(cleaned).astype(float).tolist() == [1.0, 0.0, most, -most]
    assert mnp.isdtype(bfloat16, "real floating")
    assert not mnp.isdtype(bfloat16, "integral")
    assert mnp.isdtype(bfloat16, bfloat16)
    assert mnp.median(x[:1]).dtype == bfloat16
    assert float(mnp.nanmax(x)) == np.inf
    assert mnp.finfo(x).bits == 16


@in_worlds
def test_arrays_by_position() -> None:
    grid = mnp.fromfunction(lambda i, j: (i, j), (0, 3), dtype=int)
    assert [g.shape for g in grid] == [(0, 3), (0, 3)]
    assert mnp.indices(()).shape == (0,)
    assert mnp.geomspace(1, 8, 4, dtype="f4").dtype == np.float32
    assert mnp.logspace(0, 1, 3, dtype="f4").dtype == np.float32
    assert mnp.array_split(put(np.arange(8), "i"), [2])[1].aval.layout.cuts == ((0, 0, 2, 4, 6),)


def test_what_the_namespace_can_do() -> None:
    info = mnp.__array_namespace_info__()
    assert info.capabilities()["data-dependent shapes"]
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["indexing"] == np.int64
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert len(info.dtypes()) == 13


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("bins", [1, 7, 1000, (0.0, 0.1, 0.2, 0.3, 0.4)])
def test_elements_on_edges_fall_into_the_bins_that_numpy_puts_them_in(dtype, bins):
    rng = np.random.default_rng(0)
    edges = np.histogram_bin_edges(np.asarray([0, 1], dtype), bins).astype(dtype)
    x = np.concatenate([rng.random(50_000), rng.choice(edges, 1000), [2.0, -1.0, 0.0, 1.0]])
    x = x.astype(dtype)
    x = np.nextafter(x, rng.choice(np.asarray([-1, 0.5, 2], dtype), x.shape))
    expected = np.histogram(x, edges)[0]
    assert np.array_equal(mnp.histogram(mnp.asarray(x), edges)[0], expected)
    x[5] = np.nan
    assert mnp.histogram(mnp.asarray(x), edges)[0].sum() in (expected.sum() - 1, expected.sum())


REFUSED = """
    xp.r_[xp.ones(2, xp.int8), 255] | xp.r_[xp.ones(2, xp.uint8), -1]
    xp.insert(xp.ones(2, xp.int8), 1, 255) | xp.pad(xp.ones(2, xp.int8), 1, constant_values=300)
    xp.ediff1d(xp.arange(3), to_end=xp.nan) | xp.ediff1d(xp.arange(3), to_begin=2.5)
    xp.max(xp.ones(2, xp.int8), initial=300)
    xp.multiply.reduce(xp.ones(2, xp.int8), dtype=xp.int8, initial=300)
    xp.isin(xp.arange(2), 1, kind="quick") | xp.isin(xp.ones(2), 1.0, kind="table")
    xp.unravel_index([], (0,)) | xp.unravel_index(xp.arange(1), ())
    xp.unpackbits(xp.ones(1, xp.uint8), count=-9)
    xp.linalg.cond(xp.zeros((2, 0))) | xp.ones((1,) * 65)
    xp.quantile(xp.ones(2), 0.5, weights=xp.asarray([1, -1]), method="inverted_cdf")
    xp.percentile(xp.ones(2), 5, weights=xp.asarray([1, xp.nan]), method="inverted_cdf")
    xp.nanquantile(xp.ones(2), 0.5, weights=xp.zeros(2), method="inverted_cdf")
    xp.digitize(xp.ones(2) * 1j, xp.arange(2)) | xp.digitize(xp.ones(2), xp.arange(2) * 1j)
    xp.select([xp.arange(2)], [xp.arange(2)]) | xp.select([xp.ones(2)], [1])
    xp.insert(xp.arange(3), xp.zeros(0), []) | xp.delete(xp.arange(3), xp.zeros(0))
    xp.arange(3)[xp.ix_(xp.zeros(0))] | xp.delete(xp.arange(3), xp.ones(2, bool))
    xp.unravel_index(6, (2, 3)) | xp.ravel_multi_index((0, 3), (2, 3))
    xp.pad(xp.ones(3), 1, "maximum", stat_length=0)
    xp.interp(xp.ones(2), xp.arange(3), xp.arange(3), left=1j)
    xp.linalg.norm(xp.ones((2, 2, 2)), 1) | xp.linalg.matrix_power(xp.eye(2), 1.5)
"""


@pytest.mark.parametrize("call", [c.strip() for c in re.split(r"[|\n]", REFUSED) if c.strip()])
def test_what_numpy_refuses_is_refused_by_an_error_of_the_same_class(call: str) -> None:
    with np.errstate(all="ignore"), pytest.raises(Exception) as wanted:  # noqa: PT011
        eval(call, {"xp": np})
    kind = next(k for k in wanted.type.__mro__ if k.__module__ in ("builtins", "numpy.linalg"))
    with pytest.raises(kind):
        eval(call, {"xp": mnp})


@pytest.mark.parametrize(("name", "value"), [("power", 3.5), ("divide", 3), ("add", -1.5)])
def test_combining_at_positions_casts_the_result_only(name: str, value: float) -> None:
    wanted = np.arange(2, 10)
    getattr(np, name).at(wanted, [0, 3], value)
    found = getattr(mnp, name).at(mnp.arange(2, 10), [0, 3], value, inplace=False)
    np.testing.assert_array_equal(found, wanted, strict=True)
