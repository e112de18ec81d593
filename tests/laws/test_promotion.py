"""Operands of several dtypes meet in one dtype, the same for every function that takes them.

NumPy's own dtypes meet as in NumPy; where NumPy has no law, as in JAX; where JAX refuses, in the
least dtype that holds the values of both.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard.lax as lax
import meshard.numpy as mnp
from meshard.ops.dtypes.laws import BYTES, EXTENDED, SMALL_FLOATS, cast, kind_of, promoted
from meshard.ops.row import REGISTRY, Op
from meshard.runtime.doors import bind
from tests.worlds import alone

OWN = [np.dtype(c) for c in "?bhiqBHIQefdFD"]
SMALL = [np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]
NARROW = [np.dtype(getattr(ml_dtypes, n)) for n in ("int2", "int4", "uint2", "uint4")]
DTYPES = [*OWN, *SMALL, *NARROW]
PAIRS = list(itertools.product(DTYPES, DTYPES))


def rows_that_keep_the_common_dtype() -> list[str]:
    """Return the rows of two operands whose result has the dtype in which these meet."""
    found = []
    for name, row in REGISTRY.items():
        if isinstance(row, Op) and row.alike == 0 and row.rule == "..., ... -> ...":
            one = np.ones(1, np.int16)
            try:
                kept = row.kernel(one, one).dtype == np.int16
            except TypeError:
                continue
            if kept and row.dtypes is None:
                found.append(name)
    return found


FUNCTIONS: dict[str, Any] = {
    "where": lambda x, y: mnp.where(x == x, x, y),
    "matmul": lambda x, y: x @ y,
    "dot": mnp.dot,
    "vdot": mnp.vdot,
    "inner": mnp.inner,
    "outer": mnp.outer,
    "tensordot": lambda x, y: mnp.tensordot(x, y, 1),
    "einsum": lambda x, y: mnp.einsum("i,i", x, y),
    "concatenate": lambda x, y: mnp.concatenate([x, y]),
    "stack": lambda x, y: mnp.stack([x, y]),
    "hstack": lambda x, y: mnp.hstack([x, y]),
    "vstack": lambda x, y: mnp.vstack([x, y]),
    "append": mnp.append,
    "union1d": mnp.union1d,
    "select": lambda x, y: mnp.select([x == x], [x], y),
    "result_type": lambda x, y: np.empty(0, mnp.result_type(x, y)),
    "promote_types": lambda x, y: np.empty(0, mnp.promote_types(x.dtype, y.dtype)),
    "operator": lambda x, y: x * y,
}


def test_every_function_promotes_alike():
    rows = rows_that_keep_the_common_dtype()
    assert {"add", "multiply", "maximum", "bitwise_or", "truncated_divide"} <= set(rows)

    def body() -> list[str]:
        wrong = []
        for a, b in PAIRS:
            if a.kind == b.kind == "V" or {a, b} & EXTENDED or a.num < b.num:
                x, y = (mnp.asarray(np.ones(1, d)) for d in (a, b))
                expected = promoted((a, b))
                for name, function in FUNCTIONS.items():
                    found = function(x, y).dtype
                    if found != expected:
                        wrong.append(f"{name}({a}, {b}): {found}, not {expected}")
                for name in rows if {a, b} & EXTENDED else ():
                    try:
                        found = bind(name, x, y).dtype
                    except TypeError:
                        continue  # such as the bits of floats
                    if found != expected and not _own_law(name, expected):
                        wrong.append(f"{name}({a}, {b}): {found}, not {expected}")
        return wrong

    assert not alone(body)


def _own_law(name: str, common: np.dtype[Any]) -> bool:
    """Whether a row's results differ from the dtype in which its operands meet, in NumPy too."""
    work = BYTES.get(common, np.dtype("f4") if common in SMALL_FLOATS else common)
    row = REGISTRY[name]
    assert isinstance(row, Op)
    one = np.ones(1, work)
    return row.kernel(one, one).dtype != work


def test_the_table_is_numpys_where_it_has_one():
    for a, b in itertools.product(OWN, OWN):
        assert promoted((a, b)) == np.result_type(a, b)
    for a, scalar in itertools.product(OWN, (True, 1, 1.0, 1j)):
        assert promoted((a, type(scalar))) == np.result_type(a, scalar)


def test_the_table_is_jaxs_where_numpy_has_none(jax: ModuleType):
    agreed = 0
    for a, b in PAIRS:
        if not {a, b} & EXTENDED:
            continue
        try:
            with jax.enable_x64(True):
                expected = np.dtype(jax.numpy.promote_types(a, b))
        except jax.dtypes.TypePromotionError:
            continue
        agreed += 1
        assert promoted((a, b)) == expected, (a, b)
    assert agreed > 50


def test_the_rest_of_the_table_holds_both():
    for a, b in PAIRS:
        common = promoted((a, b))
        assert common == promoted((b, a))
        for d in {a, b}:
            beside = kind_of(common) == "f" and kind_of(d) in "biu"
            if d in EXTENDED and not (beside or d.kind == "u"):
                every = np.arange(256, dtype=np.uint8)
                values = every.astype(d) if d in BYTES else every.view("u1").astype(np.float32)
                kept = values.astype(d)
                there_and_back = cast(cast(kept, common), d)
                assert there_and_back.tobytes() == kept.tobytes(), (a, b)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("int4", int), "int4"),
        (("int4", float), "float64"),
        (("uint4", "int8", "int2"), "int8"),
        (("uint2", "int2"), "int4"),
        (("uint4", "int4"), "int8"),
        (("bfloat16", "int32", float), "bfloat16"),
        (("bfloat16", "float8_e5m2", "int64"), "float32"),
        (("bfloat16", complex), "complex64"),
        (("int4", "bfloat16", "float64"), "float64"),
    ],
)
def test_several_at_once(kinds, expected):
    found = promoted(
        [np.dtype(getattr(ml_dtypes, k, k)) if isinstance(k, str) else k for k in kinds]
    )
    assert found == np.dtype(getattr(ml_dtypes, expected, expected))


def test_short_integers_wrap_in_every_operation():
    """Each row gives in 2 and 4 bits what it gives in bytes, cut to the bits of the type."""

    def body() -> list[str]:
        wrong = []
        for dtype in NARROW:
            info = ml_dtypes.iinfo(dtype)
            every = np.arange(info.min, info.max + 1).astype(BYTES[dtype])
            for name, row in REGISTRY.items():
                if not isinstance(row, Op) or row.alike != 0 or not isinstance(row.rule, str):
                    continue
                count = row.rule.split("->")[0].count(",") + 1
                if row.dtypes is not None or row.rule.replace("...", "").strip(" ,->") or count > 2:
                    continue
                grid = [every] if count == 1 else [g.ravel() for g in np.meshgrid(every, every)]
                more = {"decimals": 0} if name == "round" else {}
                with np.errstate(all="ignore"):
                    try:
                        expected = row.kernel(*grid, **more)
                    except (TypeError, ValueError):
                        continue
                    found = bind(name, *[mnp.asarray(g.astype(dtype)) for g in grid], **more)
                expected = expected if isinstance(expected, tuple) else (expected,)
                for one, right in zip(
                    found if isinstance(found, tuple) else (found,), expected, strict=True
                ):
                    cut = right.astype(dtype) if right.dtype == BYTES[dtype] else right
                    if one.dtype != cut.dtype or np.asarray(one).tobytes() != cut.tobytes():
                        wrong.append(f"{name} of {dtype}: {one}, not {cut}")
        return wrong

    assert not alone(body)


def test_bits_of_short_integers():
    def body() -> None:
        for dtype in NARROW:
            bits = ml_dtypes.iinfo(dtype).bits
            every = np.arange(1 << bits)
            x = mnp.asarray(every.astype(dtype))
            ones = [int(n).bit_count() for n in every]
            zeros = [bits - int(n).bit_length() for n in every]
            for found, expected in (
                (lax.population_count(x), ones),
                (lax.clz(x), zeros),
                (lax.shift_right_logical(x, mnp.ones_like(x)), every >> 1),
            ):
                assert found.dtype == dtype
                assert np.asarray(found).tolist() == np.asarray(expected).astype(dtype).tolist()

    alone(body)
