"""Operations by the names of `jax.lax`, against JAX, in both worlds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ArgumentError, DtypeError, IndexingError, ShapeError, TreeError
from meshard.ops.lax import table as lax_table
from tests.tracing import jitted, traced
from tests.worlds import alone, everywhere, in_worlds, put, whole

rng = np.random.default_rng(1)
F = rng.uniform(0.05, 0.95, (8, 6))
G = rng.uniform(-3, 3, (8, 6))
I = rng.integers(-9, 9, (8, 6))  # noqa: E741
K = rng.integers(1, 6, (8, 6))
B = I > 0
C = F + 1j * G
HALVES = np.array([0.5, 1.5, -0.5, -2.5, 0.49999999999999994, 2.3, -7.7, np.inf])

Case = Callable[[Any, Callable[[Any], Any]], Any]
"""A call of one of two modules, given what an operand goes through first."""


def tree_of(found: Any) -> Any:
    if isinstance(found, (list, tuple)):
        return [tree_of(x) for x in found]
    if isinstance(found, dict):
        return {k: tree_of(x) for k, x in found.items()}
    return whole(found)


def same(found: Any, expected: Any, rtol: float = 1e-12) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b, rtol)
    elif isinstance(expected, dict):
        same([found[k] for k in expected], list(expected.values()), rtol)
    else:
        expected = np.asarray(expected)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        if expected.dtype.kind in "fc":
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-13)
        else:
            np.testing.assert_array_equal(found, expected)


def against_jax(jax: Any, case: Case, rtol: float = 1e-12) -> None:
    """Compare on split arrays in both worlds, and on traced ones in one."""
    with jax.enable_x64(True):
        expected = case(jax.lax, jax.numpy.asarray)

    def split(value: Any) -> Any:
        value = np.asarray(value)
        axes = ("i", "j")[: value.ndim]
        return put(value, *axes, uneven="balanced")

    same(everywhere(lambda: tree_of(case(lax, split))), expected, rtol)
    same(alone(lambda: traced(lambda t: case(lax, t)), 1), expected, rtol)
    same(alone(lambda: jitted(lambda t: case(lax, t)), 1), expected, rtol)


ELEMENTWISE: dict[str, list[tuple[Any, ...]]] = {
    **{
        name: [(F,)]
        for name in (
            *("acos", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "digamma", "erf"),
            *("erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log1p", "logistic"),
            *("reciprocal", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh"),
        )
    },
    "acosh": [(F + 1,)],
    "abs": [(G,), (I,), (C,)],
    "ceil": [(G,)],
    "floor": [(G,)],
    "conj": [(C,)],
    "imag": [(C,)],
    "real": [(C,)],
    "is_finite": [(np.array([1.0, np.inf, -np.inf, np.nan]),)],
    "neg": [(G,), (I,)],
    "sign": [(G,), (I,), (C,)],
    "square": [(G,), (I,)],
    "bitwise_not": [(I,), (B,)],
    "clz": [(I,), (I.astype("int8"),), (K.astype("uint16"),), (np.array([0, 1, -1], "int32"),)],
    "population_count": [(I,), (I.astype("int8"),), (K.astype("uint16"),)],
    "round": [(HALVES,), (G,), (G.astype("float32"),)],
    **{
        name: [(F, G), (F, F[:1, :1]), (F, 0.5)]
        for name in ("add", "sub", "mul", "div", "rem", "max", "min", "atan2")
    },
    "pow": [(F, G), (F, 2)],
    "nextafter": [(F, G)],
    "complex": [(F, G), (F.astype("float32"), G.astype("float32"))],
    **{name: [(I, K), (G, F)] for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: [(I, K), (B, ~B)] for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{
        name: [(I, K), (I.astype("int8"), K.astype("int8")), (I.astype("int32"), np.int32(40))]
        for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic")
    },
}


def test_every_elementwise_name_is_tested():
    others = {
        *("RoundingMethod", "associative_scan", "argmax", "argmin", "batch_matmul"),
        *("bitcast_convert_type", "broadcast", "broadcast_in_dim", "broadcast_shapes"),
        *("broadcasted_iota", "clamp", "collapse", "concatenate", "convert_element_type"),
        *("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "dot", "dot_general"),
        *("dynamic_index_in_dim", "dynamic_slice", "dynamic_slice_in_dim"),
        *("dynamic_update_index_in_dim", "dynamic_update_slice", "dynamic_update_slice_in_dim"),
        *("expand_dims", "full", "full_like", "index_in_dim", "index_take", "integer_pow", "iota"),
        *("optimization_barrier", "pad", "reduce", "reduce_and", "reduce_max", "reduce_min"),
        *("reduce_or", "reduce_precision", "reduce_prod", "reduce_sum", "reduce_xor", "reshape"),
        *("rev", "select", "select_n", "slice", "slice_in_dim", "sort", "sort_key_val", "split"),
        *("squeeze", "stack", "stop_gradient", "tile", "top_k", "transpose", "unstack"),
    }
    assert others <= set(lax.__all__)
    assert set(ELEMENTWISE) <= set(lax.__all__)
    table = {n for n, f in vars(lax_table).items() if n[0] != "_" and callable(f)}
    table -= {"named", "finished", "checked", "bind", "cast", "fill"}
    table = {n for n in table if n[0].islower()}
    assert set(ELEMENTWISE) - table == {"round", "rsqrt"}
    assert table <= set(ELEMENTWISE)


OURS = [n for n in lax.__all__ if getattr(lax, n).__module__.startswith("meshard.ops.lax.")]


@pytest.mark.parametrize("name", [n for n in OURS if inspect.isfunction(getattr(lax, n))])
def test_every_argument_is_described_and_named_as_in_jax(name, jax):
    function = getattr(lax, name)
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            assert f"\n    {parameter.name}: " in inspect.getdoc(function)
    assert f"lax.{name}(" in inspect.getdoc(function)
    assert signature.return_annotation != inspect.Signature.empty
    try:
        own = inspect.signature(getattr(jax.lax, name))
    except ValueError:  # some are made where Python sees no signature
        return
    if "args" in own.parameters:
        return
    named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert [p.name for p in named][: len(signature.parameters)] == [*signature.parameters]


def _broadcast(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """JAX demands equal shapes, or a scalar."""
    return tuple(np.broadcast_to(a, np.shape(args[0])) if np.ndim(a) else a for a in args)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_elementwise(name, jax):
    for args in ELEMENTWISE[name]:
        given = _broadcast(args)

        def case(module: Any, make: Any, given: Any = given) -> Any:
            return getattr(module, name)(*[make(a) if np.ndim(a) else a for a in given])

        against_jax(jax, case, 1e-10 if name in ("digamma", "lgamma", "erf_inv") else 1e-12)


@pytest.mark.parametrize("dtype", [-7, 7])
def test_division_of_integers_drops_the_fraction(dtype, jax):
    x, y = np.array([dtype, 6, -6, 1]), np.array([2, -4, 4, -3])
    against_jax(jax, lambda m, t: [m.div(t(x), t(y)), m.rem(t(x), t(y)), m.div(t(x), 2)])


SHAPES: dict[str, Case] = {
    "reshape": lambda m, t: [m.reshape(t(F), (6, 8)), m.reshape(t(F), (6, 8), (1, 0))],
    "collapse": lambda m, t: m.collapse(t(F.reshape(8, 3, 2)), 1),
    "expand_dims": lambda m, t: m.expand_dims(t(F), (0, 2)),
    "squeeze": lambda m, t: m.squeeze(t(F[None]), (0,)),
    "transpose": lambda m, t: m.transpose(t(F), (1, 0)),
    "broadcast": lambda m, t: m.broadcast(t(F), (2, 3)),
    "broadcast_in_dim": lambda m, t: [
        m.broadcast_in_dim(t(F), (8, 2, 6), (0, 2)),
        m.broadcast_in_dim(t(F[:1]), (3, 4, 6), (1, 2)),
    ],
    "rev": lambda m, t: [m.rev(t(F), (0,)), m.rev(t(F), (0, 1))],
    "concatenate": lambda m, t: m.concatenate([t(F), t(G[:3])], 0),
    "stack": lambda m, t: m.stack([t(F), t(G)], 1),
    "unstack": lambda m, t: m.unstack(t(F), 1),
    "tile": lambda m, t: m.tile(t(F), (2, 1)),
    "split": lambda m, t: m.split(t(F), (1, 4, 3)),
    "pad": lambda m, t: [
        m.pad(t(F), 9.0, [(1, 2, 0), (0, 0, 1)]),
        m.pad(t(F), 0.0, [(-1, -2, 0), (3, -4, 2)]),
        m.pad(t(F), F[0, 0], [(2, 0, 3), (-7, 3, 0)]),
        m.pad(t(F), 1.0, [(-9, 4, 0), (-3, 0, 1)]),
        m.pad(t(F[:1]), 2.0, [(0, 0, 5), (0, 0, 0)]),
    ],
    "slice": lambda m, t: [
        m.slice(t(F), (1, 2), (7, 6)),
        m.slice(t(F), (0, 1), (8, 6), (3, 2)),
        m.slice(t(F), (3, 0), (3, 0)),
    ],
    "slice_in_dim": lambda m, t: [
        m.slice_in_dim(t(F), 1, -1),
        m.slice_in_dim(t(F), -3, None, 2, 1),
        m.slice_in_dim(t(F), None, 4, axis=-1),
    ],
    "index_in_dim": lambda m, t: [m.index_in_dim(t(F), 2), m.index_in_dim(t(F), -1, 1, False)],
    "index_take": lambda m, t: [
        m.index_take(t(F), (t(np.array([1, 9, -1])),), (0,)),
        m.index_take(t(F), (t(np.array([1, 2])), t(np.array([5, -2]))), (0, 1)),
    ],
    "full": lambda m, t: [m.full((2, 3), 7.0), m.full_like(t(F), 3), m.full_like(t(F), 1, "int32")],
    "iota": lambda m, t: [m.iota("float32", 5), m.iota("int32", 0)],
    "broadcasted_iota": lambda m, t: m.broadcasted_iota("int32", (2, 3), 1),
    "convert_element_type": lambda m, t: m.convert_element_type(t(G), "int32"),
    "bitcast_convert_type": lambda m, t: [
        m.bitcast_convert_type(t(F), "int64"),
        m.bitcast_convert_type(t(F), "uint8"),
        m.bitcast_convert_type(t(np.arange(24, dtype="uint8").reshape(6, 4)), "float32"),
        m.bitcast_convert_type(t(F.astype("float32")[:, :2]), "float64"),
    ],
    "reduce_precision": lambda m, t: [
        m.reduce_precision(t(x.astype(dtype)), *bits)
        for x in (G * 1e3, np.array([1e30, -1e-30, np.inf, np.nan, 0, 3e-40, 65519.9, 65520]))
        for dtype in ("float32", "float64")
        for bits in ((5, 10), (8, 7), (11, 52), (3, 0))
    ],
    "integer_pow": lambda m, t: [m.integer_pow(t(F), n) for n in (-2, 0, 1, 2, 5)],
    "select": lambda m, t: [m.select(t(B), t(F), t(G)), m.select(True, t(F), t(G))],
    "select_n": lambda m, t: [
        m.select_n(t(K % 3), t(F), t(G), t(-F)),
        m.select_n(t(B), t(F), t(G)),
        m.select_n(t(np.array([0, 7, -1], "int32")), *[t(np.full(3, i)) for i in range(3)]),
    ],
    "clamp": lambda m, t: [m.clamp(0.2, t(F), 0.7), m.clamp(t(F - 0.1), t(G), t(F))],
    "stop_gradient": lambda m, t: m.stop_gradient({"a": t(F)}),
    "optimization_barrier": lambda m, t: m.optimization_barrier((t(F), t(I))),
}
REDUCTIONS: dict[str, Case] = {
    "reduce_sum": lambda m, t: [
        m.reduce_sum(t(F), (0,)),
        m.reduce_sum(t(I), axes=(1, 0)),
        m.reduce_sum(t(np.ones(9, "int8")), axes=(0,)),
    ],
    "reduce_prod": lambda m, t: [m.reduce_prod(t(F), (1,)), m.reduce_prod(t(K), (0,))],
    "reduce_max": lambda m, t: [m.reduce_max(t(F), (1,)), m.reduce_max(t(F[:0]), (0,))],
    "reduce_min": lambda m, t: m.reduce_min(t(I), (0, 1)),
    "reduce_and": lambda m, t: [m.reduce_and(t(I), (0,)), m.reduce_and(t(B), (1,))],
    "reduce_or": lambda m, t: [m.reduce_or(t(I), (0,)), m.reduce_or(t(B), (1,))],
    "reduce_xor": lambda m, t: m.reduce_xor(t(I), (0, 1)),
    "reduce": lambda m, t: [
        m.reduce(t(F), 0.5, m.add, (0,)),
        m.reduce(t(F), 0.5, m.max, (0, 1)),
        m.reduce(t(F), 0.0, lambda a, b: a + b, (0,)),
        m.reduce(t(F[:7]), 1.0, lambda a, b: a * b, (0, 1)),
        m.reduce(
            (t(F), t(G)),
            (1.0, 0.0),
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]),
            (1,),
        ),
    ],
    "argmax": lambda m, t: [m.argmax(t(I), 0, "int32"), m.argmax(t(F), 1, "int64")],
    "argmin": lambda m, t: m.argmin(t(I), 0, "int32"),
    **{
        name: lambda m, t, name=name: [
            getattr(m, name)(t(F), 0),
            getattr(m, name)(t(F), 1, reverse=True),
            *([] if name == "cumlogsumexp" else [getattr(m, name)(t(K.astype("int16")), axis=0)]),
        ]
        for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
    },
    "associative_scan": lambda m, t: [
        m.associative_scan(m.add, t(F)),
        m.associative_scan(m.add, t(F[:, :5]), axis=1, reverse=True),
        m.associative_scan(m.max, t(F[:3])),
        m.associative_scan(m.add, t(F[:1])),
        m.associative_scan(m.add, t(F[:0])),
        m.associative_scan(
            lambda a, b: {"x": a["x"] * b["x"], "y": b["x"] * a["y"] + b["y"]},
            {"x": t(F), "y": t(G)},
        ),
    ],
    "sort": lambda m, t: [
        m.sort(t(G)),
        m.sort(t(G), dimension=0),
        m.sort((t(K % 3), t(G)), dimension=0),
        m.sort((t(K % 3), t(I % 4), t(G)), dimension=1, num_keys=2),
    ],
    "sort_key_val": lambda m, t: m.sort_key_val(t(K % 4), t(G), 0),
    "dot": lambda m, t: [
        m.dot(t(F), t(G.T)),
        m.dot(t(F), t(G[0])),
        m.dot(t(F[0]), t(G[0])),
        m.dot(t(F), t(G), dimension_numbers=(((0,), (0,)), ((), ()))),
    ],
    "dot_general": lambda m, t: [
        m.dot_general(t(F.reshape(8, 2, 3)), t(G.reshape(8, 3, 2)), (((2,), (1,)), ((0,), (0,)))),
        m.dot_general(t(F.reshape(8, 2, 3)), t(G.reshape(3, 8, 2)), (((2, 1), (0, 2)), ((), ()))),
    ],
    "batch_matmul": lambda m, t: m.batch_matmul(t(F.reshape(4, 2, 6)), t(G.reshape(4, 6, 2))),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_shapes_and_choices(name, jax):
    against_jax(jax, SHAPES[name])


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_reductions_scans_and_products(name, jax):
    against_jax(jax, REDUCTIONS[name])


def test_top_k(jax):
    with jax.enable_x64(True):
        expected = jax.lax.top_k(F, 2)
    found = everywhere(lambda: tree_of(lax.top_k(put(F, "i", "j"), 2)))
    same(found, [expected[0], np.asarray(expected[1], np.int64)])


def test_rounding_to_even(jax):
    against_jax(jax, lambda m, t: m.round(t(HALVES), m.RoundingMethod.TO_NEAREST_EVEN))


def test_small_floats():
    x = mnp.asarray(np.array([0.5, -1.5, 2.25], ml_dtypes.bfloat16))
    assert lax.round(x).dtype == x.dtype
    assert lax.round(x).astype("float32").tolist() == [1, -2, 2]
    assert lax.reduce_precision(x, 5, 0).astype("float32").tolist() == [0.5, -2, 2]
    assert lax.bitcast_convert_type(x, "uint16").tolist() == [16128, 49088, 16400]


def test_dtypes_are_promoted_and_shapes_broadcast():
    x = lax.add(mnp.ones((2, 1), "float32"), mnp.arange(3))
    assert (x.shape, x.dtype) == ((2, 3), np.dtype("float64"))


@in_worlds
def test_results_keep_the_sharding():
    x = put(F, "i", "j")
    kept = [
        *(lax.exp(x), lax.add(x, 1), lax.round(x), lax.reduce_precision(x, 5, 10)),
        *(lax.clamp(0, x, 1), lax.cumsum(x), lax.bitcast_convert_type(x, "int64")),
        *(lax.select(x > 0, x, x), lax.full_like(x, 1), lax.associative_scan(lax.add, x)),
    ]
    assert all(y.aval.layout == x.aval.layout for y in kept)


def test_an_empty_reduction_by_any_operation_is_what_it_begins_with():
    found = lax.reduce(mnp.ones((0, 3)), 5.0, lambda a, b: a - b, (0,))
    assert found.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: lax.integer_pow(mnp.ones(2), 0.5),
            ArgumentError,
            r"integer_pow: y must be an integer, got 0\.5",
        ),
        (lambda: lax.integer_pow(mnp.arange(2), -1), ArgumentError, "negative power -1"),
        (lambda: lax.round(mnp.arange(2)), DtypeError, "takes floats; the dtype is int64"),
        (lambda: lax.round(mnp.ones(2), 7), ArgumentError, "AWAY_FROM_ZERO or TO_NEAREST_EVEN"),
        (lambda: lax.bitcast_convert_type(B, "int8"), DtypeError, "a bool is not made of bits"),
        (
            lambda: lax.bitcast_convert_type(F, "complex128"),
            ShapeError,
            "bitcast_convert_type: one element of complex128 is made of 2 of float64, so",
        ),
        (lambda: lax.reduce_precision(I, 5, 5), DtypeError, "takes floats; the dtype is int64"),
        (lambda: lax.reduce_precision(F, 0, 5), ArgumentError, "at least one bit of exponent"),
        (lambda: lax.select(B[0], F, F), ShapeError, r"the choice has shape \(6,\)"),
        (lambda: lax.select_n(B, F, F, F), ArgumentError, "bool chooses of 3 cases"),
        (lambda: lax.select_n(F, F, F), DtypeError, "integers or bools choose, not float64"),
        (lambda: lax.clamp(F[0], F, 1), ShapeError, r"min has shape \(6,\)"),
        (lambda: lax.broadcast_in_dim(F, (8, 2), (0, 1)), ShapeError, "cannot become"),
        (lambda: lax.broadcast_in_dim(F, (6, 8), (1, 0)), ShapeError, "in rising order"),
        (
            lambda: lax.collapse(F, 1, 1),
            ArgumentError,
            "collapse: there is no dim from 1 up to, but not including, 1 in an array with 2 dims",
        ),
        (lambda: lax.split(F, (1, 2)), ShapeError, r"add up to 3; dim 0 .* has 8"),
        (lambda: lax.pad(F, 0, [(0, 0, -1), (0, 0, 0)]), ShapeError, "which the last is not neg"),
        (
            lambda: lax.pad(F, 0, [(0, 0, 0)]),
            ShapeError,
            r"pad: padding_config \(\(0, 0, 0\),\) for an array of shape \(8, 6\) would",
        ),
        (lambda: lax.pad(F, 0, [(-5, -5, 0), (0, 0, 0)]), ShapeError, r"would give \(-2, 6\)"),
        (lambda: lax.slice(F, (0, 0), (9, 1)), IndexingError, r"to \(9, 1\) in steps"),
        (lambda: lax.slice(F, (0, 0), (1, 1), (0, 1)), IndexingError, "a step above zero"),
        (
            lambda: lax.slice(F, "ab", (1, 1)),
            ArgumentError,
            "slice: start_indices must be a sequence of integers, got 'ab'",
        ),
        (lambda: lax.index_take(F, (), ()), ArgumentError, "0 arrays of positions"),
        (lambda: lax.reduce_and(F, (0,)), DtypeError, "reduce_and: takes integers or bools"),
        (lambda: lax.reduce_sum(F, (2,)), ArgumentError, "reduce_sum: axis 2 is out of bounds"),
        (lambda: lax.reduce((F, F), 0.0, lax.add, (0,)), TreeError, "operands are the tree"),
        (lambda: lax.reduce((F, G[0]), (0, 0), max, (0,)), ShapeError, "operands have shapes"),
        (
            lambda: lax.reduce((F, F), (0, 0), lambda a, b: a[0], (0,)),
            TreeError,
            "reduce: the function returned the tree",
        ),
        (
            lambda: lax.associative_scan(F, lax.add),
            ArgumentError,
            r"associative_scan: fn must be a function, got a NumPy array of shape \(8, 6\)",
        ),
        (lambda: lax.associative_scan(lax.add, F, axis=2), ArgumentError, "axis 2 is out of"),
        (
            lambda: lax.associative_scan(lambda a, b: a, (F, G[:3])),
            ShapeError,
            r"sizes \[8, 3\] along axis 0",
        ),
        (lambda: lax.sort((F, G), num_keys=3), ArgumentError, "num_keys=3 for 2 arrays"),
        (lambda: lax.sort((F, G[0])), ShapeError, "the arrays have shapes"),
        (lambda: lax.dot(F, G), ShapeError, r"the shapes are \(8, 6\) and \(8, 6\)"),
        (
            lambda: lax.dot_general(F, G, (((0,), (1,)), ((), ()))),
            ShapeError,
            r"dim 0 of \(8, 6\) is 8, and dim 1 of \(8, 6\), which goes with it, is 6",
        ),
        (lambda: lax.dot_general(F, G, ((0, 1),)), ArgumentError, "do not pair up dims"),
        (lambda: lax.batch_matmul(F, G[0]), ShapeError, "with the same leading dims"),
    ],
)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
