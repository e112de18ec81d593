"""Every elementwise row, against NumPy, in both worlds."""

from __future__ import annotations

import inspect
import itertools
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

import meshard
import meshard.numpy as mnp
from meshard.errors import (
    ArgumentError,
    DeletedArrayError,
    DtypeError,
    IncompatibleDevicesError,
    MeshardError,
    ShapeError,
)
from meshard.ops.array import elementwise
from meshard.ops.dtypes.laws import SMALL_FLOATS
from meshard.ops.row import REGISTRY, Op
from meshard.runtime.doors import bind
from meshard.runtime.world import here
from meshard.settings import config
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P, SingleDeviceSharding
from tests.lays import fetched, same
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

BF16 = np.dtype(ml_dtypes.bfloat16)
F8 = np.dtype(ml_dtypes.float8_e4m3fn)
NUMPYS = [np.dtype(d) for d in ("?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "F", "D")]
DTYPES = [*NUMPYS, BF16, F8]
SPECIAL = {
    "digamma": "digamma",
    "erf": "erf",
    "erfc": "erfc",
    "erfinv": "erfinv",
    "lgamma": "gammaln",
    "logistic": "expit",
}
ELEMENTWISE = sorted(
    name
    for name, row in REGISTRY.items()
    if isinstance(row, Op) and (hasattr(elementwise, name) or name in SPECIAL)
)
UNARY = [n for n in ELEMENTWISE if REGISTRY[n].rule.startswith("... -> ...") and hasattr(np, n)]
BINARY = [n for n in ELEMENTWISE if REGISTRY[n].rule.startswith("..., ... ->")]


def values(dtype: Any, seed: int = 0) -> Any:
    """Return 3 x 4 numbers that no function minds much; powers of two divide them."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, (3, 4)).astype(bool)
    if kind.kind in "iu":
        return rng.integers(1, 7, (3, 4)).astype(kind)
    found = rng.integers(-8, 9, (3, 4)) / 8
    return (found + 1j * rng.integers(-8, 9, (3, 4)) / 8 if kind.kind == "c" else found).astype(
        kind
    )


def attempt(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a value, or the word for a refusal; other warnings and NaN are NumPy's business."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            return "ValueError" if isinstance(error, ValueError) else "TypeError"


def assert_same(found: Any, expected: Any, near: bool = False) -> None:
    if isinstance(found, str) or isinstance(expected, str):
        assert str(found) == str(expected)
    elif isinstance(expected, (tuple, list)):
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b, near)
    else:
        found, expected = np.asarray(found), np.asarray(expected)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype in SMALL_FLOATS:
            found, expected = found.astype("f4"), expected.astype("f4")
        if near:
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)


def collected(found: Any) -> Any:
    return found if isinstance(found, str) else fetched(found)


# every row


def test_the_rows_are_those_of_the_table():
    assert len(ELEMENTWISE) > 80
    known = {*UNARY, *BINARY, *SPECIAL, "where", "astype", "clip"}
    assert set(ELEMENTWISE) == known
    for name in [*UNARY, *BINARY]:
        assert callable(getattr(mnp, name)), name
        assert callable(getattr(np, name)), name


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    cases = [values(d) for d in DTYPES]

    def body() -> Any:
        function = getattr(mnp, name)
        spread = [attempt(function, put(x, ("j", "i"), uneven="balanced")) for x in cases]
        return [collected(f) for f in spread]

    for x, found in zip(cases, everywhere(body), strict=True):
        assert_same(found, attempt(getattr(np, name), x))


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    same_dtypes = [(d, d) for d in DTYPES]
    mixed = [("i1", "u1"), ("i4", "f4"), ("f4", "F"), ("?", "i8"), ("u8", "i8"), ("f2", "f4")]
    pairs = [(values(a), values(b, 1)) for a, b in [*same_dtypes, *mixed, (BF16, "f4")]]

    def body() -> Any:
        found = []
        for x, y in pairs:
            a, b = put(x, None, "i"), put(y, "j", "i", uneven="ceil")
            found.append(attempt(getattr(mnp, name), a, b))
            found.append(attempt(getattr(mnp, name), a, b[0]))
        return [collected(f) for f in found]

    found = everywhere(body)
    near = name == "power"  # NumPy takes other ways where one exponent is for all
    for i, (x, y) in enumerate(pairs):
        assert_same(found[2 * i], attempt(getattr(np, name), x, y), near)
        assert_same(found[2 * i + 1], attempt(getattr(np, name), x, y[0]), near)


@pytest.mark.parametrize("name", BINARY)
def test_python_scalars_are_weak_and_numpy_scalars_are_not(name):
    if name in ("left_shift", "right_shift"):
        scalars = [True, 2, np.int8(1), np.uint16(2)]
    else:
        scalars = [True, 2, 0.5, 1 + 2j, np.int8(3), np.float32(0.5), np.float64(2), np.True_]
    operands = [values(d) for d in NUMPYS]
    cases = list(itertools.product(operands, scalars))

    def body() -> Any:
        function = getattr(mnp, name)
        found = []
        arrays = [put(x, None, "i") for x in operands]
        for array, scalar in itertools.product(arrays, scalars):
            found.append((attempt(function, array, scalar), attempt(function, scalar, array)))
        return [(collected(a), collected(b)) for a, b in found]

    for (x, scalar), (left, right) in zip(cases, everywhere(body), strict=True):
        assert_same(left, attempt(getattr(np, name), x, scalar))
        assert_same(right, attempt(getattr(np, name), scalar, x))


@pytest.mark.parametrize("small", [BF16, F8])
def test_python_scalars_are_weak_for_small_floats_too(small):
    # NumPy alone does not know that these are floats, and would promote to float32.
    x = values(small)
    half, two = small.type(0.3), small.type(2)

    def body() -> Any:
        a = put(x, None, "i")
        found = [a * 0.3, 0.3 * a, a + 2, a**2.0, a > 0.3, mnp.maximum(a, 0.3)]
        found += [mnp.where(a > 0, a, 0.3), mnp.where(a > 0, 0.3, a), a * True]
        return fetched([*found, mnp.clip(a, -0.3, 0.3)])

    with np.errstate(all="ignore"):
        expected = [x * half, half * x, x + two, x**two, x > half, np.maximum(x, half)]
        expected += [np.where(x > 0, x, half), np.where(x > 0, half, x), x * True]
    expected.append(np.minimum(np.maximum(x, -half), half))
    same(everywhere(body), expected)
    assert {e.dtype for e in expected} == {small, np.dtype(bool)}


def test_small_floats_give_way_to_wider_arrays_and_scalars():
    def body() -> Any:
        a = put(values(BF16), None, "i")
        wide = [a + np.float32(0.3), a + put(values("f4"), None, "i"), a + 1j]
        return fetched(wide)

    x = values(BF16)
    same(everywhere(body), [x + np.float32(0.3), x + values("f4"), x + 1j])


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_special_functions(name):
    function = getattr(scipy.special, SPECIAL[name])
    cases = [values(d) for d in ("f2", "f4", "f8", BF16)]

    def body() -> Any:
        return fetched([bind(name, put(x, None, "i")) for x in cases])

    with np.errstate(all="ignore"):
        found = everywhere(body)
        for x, got in zip(cases, found, strict=True):
            wide = x if x.itemsize > 2 else x.astype("f4")
            if name == "logistic" and x.itemsize > 2:  # which SciPy rounds otherwise
                expected = function(x.astype(np.float64)).astype(x.dtype)
                assert got.dtype == x.dtype
                np.testing.assert_allclose(got, expected, rtol=4 * np.finfo(x.dtype).eps)
            else:
                same(got, function(wide).astype(x.dtype))


def test_several_results():
    x, y = values("f8", 3), values("f8", 4)

    def body() -> Any:
        a, b = put(x, None, "i"), put(y + 2, "j", uneven="balanced")
        found = [
            *mnp.divmod(a, b),
            *mnp.modf(a),
            *mnp.frexp(a),
            *mnp.divmod(7, b),
            *mnp.divmod(a, 2),
        ]
        found += [*divmod(a, b), *divmod(5, a + 9)]
        assert {str(v.sharding.spec) for v in mnp.modf(a)} == {"P(None, 'i')"}
        return fetched(found)

    expected = [*np.divmod(x, y + 2), *np.modf(x), *np.frexp(x), *np.divmod(7, y + 2)]
    expected += [*np.divmod(x, 2), *np.divmod(x, y + 2), *np.divmod(5, x + 9)]
    same(everywhere(body), expected)


def test_operators_are_the_functions():
    x, y = values("i4", 1), values("i4", 2)

    def both(a: Any, b: Any) -> list[Any]:
        found = [
            a + b,
            a - b,
            a * b,
            a / b,
            a // b,
            a % b,
            a**2,
            a & b,
            a | b,
            a ^ b,
            a << 1,
            a >> 1,
        ]
        found += [-a, +a, abs(a), ~a, a == b, a != b, a < b, a <= b, a > b, a >= b, 2**b, 3 << a]
        found += [1 + b, 1 - b, 2 * b, 2 / b, 7 // b, 7 % b, 6 & b, 6 | b, 6 ^ b, 64 >> b]
        return found

    def body() -> Any:
        return fetched(both(put(x, None, "i"), put(y, "j", "i", uneven="balanced")))

    same(everywhere(body), both(x, y))


def test_numpy_arrays_on_either_side():
    x, y = values("f8", 1), values("f8", 2)

    def body() -> Any:
        a = put(x, None, "i")
        found = [a + y, y + a, a - y[0], y[:, :1] * a, a < y, y < a, np.float64(2) - a, y @ a.T]
        assert all(isinstance(f, meshard.Array) for f in found)
        assert all(f.sharding == a.sharding for f in found[:7])
        return fetched(found)

    expected = [x + y, y + x, x - y[0], y[:, :1] * x, x < y, y < x, 2 - x, y @ x.T]
    same(everywhere(body), expected)


# rounding, parts, choices


@pytest.mark.parametrize("decimals", [0, 1, 2, -1])
def test_round(decimals):
    cases = [np.linspace(-17.77, 16.66, 12).reshape(3, 4).astype(d) for d in ("f8", "f4", "i8")]

    def body() -> Any:
        return fetched([mnp.round(put(x, None, "i"), decimals) for x in cases])

    same(everywhere(body), [np.round(x, decimals) for x in cases])


@in_worlds
def test_round_by_other_doors():
    a = put(np.linspace(-2, 2, 8), "i")
    same(whole(round(a)), np.round(np.linspace(-2, 2, 8)).astype("i8"))
    same(whole(round(a, 2)), np.round(np.linspace(-2, 2, 8), 2))
    same(whole(a.round(1)), np.round(np.linspace(-2, 2, 8), 1))
    assert mnp.round(put(values(BF16), None, "i"), 1).dtype == BF16


@in_worlds
def test_real_and_imag():
    z = values("D")
    a = put(z, None, "i")
    same(whole(a.real), z.real.copy())
    same(whole(a.imag), z.imag.copy())
    same(whole(mnp.imag(put(values("i4")))), np.zeros((3, 4), "i4"))
    same(whole(a.conj()), z.conj())
    assert a.real.sharding == a.sharding


def test_where():
    c, x, y = values("?"), values("f4"), values("i4")

    def body() -> Any:
        k, a, b = (
            put(c, None, "i"),
            put(x, "j", uneven="ceil"),
            put(y, None, ("i", "j"), uneven="ceil"),
        )
        found = [
            mnp.where(k, a, b),
            mnp.where(k, a, 0),
            mnp.where(k, 1.5, b),
            mnp.where(True, a, b),
        ]
        found += [mnp.where(k, 1, 2), mnp.where(k[0], a, b[:, :1]), mnp.where(b > 3, x, 7)]
        return fetched(found)

    expected = [np.where(c, x, y), np.where(c, x, 0), np.where(c, 1.5, y), np.where(True, x, y)]
    expected += [np.where(c, 1, 2), np.where(c[0], x, y[:, :1]), np.where(y > 3, x, 7)]
    same(everywhere(body), expected)


def test_clip():
    x = np.array([np.nan, -2, -0.5, 0.5, 2, 9, -9, 1])

    def body() -> Any:
        a, low = put(x, "i"), put(np.linspace(-1, 1, 8), "j")
        found = [mnp.clip(a, -1, 1), a.clip(min=0), a.clip(max=0), mnp.clip(a), a.clip(low, 1.5)]
        return fetched([*found, mnp.clip(put(np.arange(8, dtype="u1"), "i"), 2, 5)])

    expected = [np.clip(x, -1, 1), np.clip(x, 0, None), np.clip(x, None, 0), x]
    expected += [np.clip(x, np.linspace(-1, 1, 8), 1.5), np.clip(np.arange(8, dtype="u1"), 2, 5)]
    same(everywhere(body), expected)


def test_astype():
    pairs = [("f8", "f4"), ("f8", "i4"), ("i4", "?"), ("f4", BF16), (BF16, "f8"), ("i8", "D")]
    cases = [(values(a), np.dtype(b)) for a, b in pairs]

    def body() -> Any:
        return fetched([put(x, None, "i").astype(d) for x, d in cases])

    same(everywhere(body), [x.astype(d) for x, d in cases])


@in_worlds
def test_astype_keeps_what_it_can():
    a = put(values("f4"), None, "i")
    assert mnp.astype(a, "float32", copy=False) is a
    assert isinstance(mnp.astype(np.ones(2), "float64", copy=False), meshard.Array)
    assert a.astype("float32") is not a
    assert a.astype("bfloat16").sharding == a.sharding
    assert a.astype(float).dtype == np.float64
    with pytest.raises(DtypeError, match="'int33' is not a dtype"):
        a.astype("int33")
    with pytest.raises(DtypeError, match="dtype object is not a numeric dtype"):
        a.astype(object)


# where results lie


@in_worlds
def test_one_operand_keeps_its_sharding():
    for spec in [("i", "j"), (("i", "j"),), (None, "j"), ()]:
        a = put(np.ones((8, 8)), *spec)
        for result in (mnp.sin(a), a + 1, 2 * a, a.astype("f4"), -a, mnp.isnan(a), abs(a)):
            assert result.sharding is a.sharding
            assert result.committed
    a = put(np.ones((7, 5)), "i", "j", uneven="ceil")
    assert mnp.sin(a).sharding is a.sharding
    cuts = ((0, 1, 1, 4, 7), None)
    a = put(np.ones((7, 5)), "i", uneven=cuts)
    assert (a * a).sharding is a.sharding


@in_worlds
def test_the_layer_of_the_tutorial():
    x, w, b = np.ones((8, 4)), np.ones((4, 6)), np.ones(6)
    y = put(x, "i", None) @ put(w, None, "j") + put(b, "j")
    assert y.sharding == NamedSharding(mesh(), P("i", "j"))
    same(whole(y), x @ w + b)


@in_worlds
def test_operands_share_out_the_axes():
    def spec(*arrays: Any) -> Any:
        total = arrays[0]
        for a in arrays[1:]:
            total = total + a
        return total.sharding.spec

    rows, columns = put(np.ones((8, 1)), "i"), put(np.ones(8), "j")
    assert spec(rows, columns) == P("i", "j")
    assert spec(columns, rows) == P("i", "j")
    assert spec(put(np.ones((8, 8)), "i"), put(np.ones((8, 8)), None, "j")) == P("i", "j")
    assert spec(put(np.ones((8, 8)), "i"), put(np.ones((8, 8)), ("i", "j"))) == P(("i", "j"))
    assert spec(put(np.ones((8, 8)), "i"), np.ones((8, 8))) == P("i")
    # both want axis i: the heavier operand stays where it is
    assert spec(put(np.ones((8, 8)), "i"), put(np.ones(8), "i")) == P("i")
    assert spec(put(np.ones((8, 8), "f4"), "i"), put(np.ones((8, 8)), None, "i")) == P(None, "i")
    # of equals, the first
    assert spec(put(np.ones((8, 8)), "i"), put(np.ones((8, 8)), None, "i")) == P("i")
    assert spec(put(np.ones((8, 8)), None, "i"), put(np.ones((8, 8)), "i")) == P(None, "i")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("i", None), ("i", None)),
        (("i", "j"), (None, "j")),
        ((None, None), ("j", "i")),
        ((("i", "j"), None), (None, None)),
    ],
)
def test_plain_cases_lie_as_in_jax(jax, left, right):
    grid = np.array(jax.devices()).reshape(4, 2)
    theirs = jax.sharding.Mesh(grid, ("i", "j"))
    apart = not set(left) & set(right) - {None}

    def there(*spec: Any) -> Any:
        place = jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec(*spec))
        return jax.device_put(np.ones((8, 8), "f4"), place)

    def body() -> Any:
        x, y = put(np.ones((8, 8), "f4"), *left), put(np.ones((8, 8), "f4"), *right)
        found = [x + y, mnp.sin(x), x.T, x @ y if apart else x]
        return [{d.id: i for d, i in f.sharding.devices_indices_map((8, 8)).items()} for f in found]

    x, y = there(*left), there(*right)
    expected = [x + y, jax.numpy.sin(x), x.T, x @ y if apart else x]
    for mine, other in zip(alone(body), expected, strict=True):
        indices = other.sharding.devices_indices_map((8, 8))
        assert {k: _spans(v) for k, v in mine.items()} == {
            d.id: _spans(v) for d, v in indices.items()
        }


def _spans(index: Any) -> list[Any]:
    return [s.indices(8)[:2] for s in index]


@in_worlds
def test_other_meshes_of_the_same_devices():
    x = np.arange(64.0).reshape(8, 8)
    wide = meshard.make_mesh((2, 4), ("a", "b"))
    turned = Mesh(np.array(meshard.devices())[::-1].reshape(8), "all")
    a, b, c = put(x, "i", "j"), put(x, "b", "a", on=wide), put(x, "all", on=turned)
    for result in (a + b + c, c + b + a, b * a + c):
        assert result.sharding.device_set == set(meshard.devices())
    same(whole(a + b + c), 3 * x)
    same(whole(c - b + a), x)
    assert (a + b).sharding == a.sharding
    assert (b + a).sharding == b.sharding


@in_worlds
def test_boxes_as_operands():
    devices = meshard.devices()
    x = np.arange(12.0).reshape(6, 2)
    spans = [(0, 1), (0, 1), (1, 3), (1, 3), (3, 5), (5, 6), (5, 6), (0, 6)]
    boxes = {d: (slice(a, b), slice(None)) for d, (a, b) in zip(devices, spans, strict=True)}
    a = meshard.device_put(x, BoxSharding((6, 2), boxes))
    assert not a.aval.layout.regular
    same(whole(a + 1), x + 1)
    same(whole(a * a), x * x)
    same(whole(mnp.sin(a)), np.sin(x))
    b = put(x, None, "j")
    same(whole(a - b), x - x)
    assert (a - b).sharding == b.sharding
    assert (b - a).sharding == b.sharding
    assert len({s.data.shape for s in (a + 1).addressable_shards}) <= 2
    assert not (a + 1).is_fully_replicated


@in_worlds
def test_nothing_split_is_gathered_for_what_is_whole():
    devices = meshard.devices()
    boxes = {d: (slice(i, i + 1 + 2 * (i == 7)),) for i, d in enumerate(devices)}
    a = meshard.device_put(np.arange(10.0), BoxSharding((10,), boxes))
    turned = Mesh(np.array(devices)[::-1].reshape(2, 4), ("a", "b"))
    for b in (put(np.ones(10)), put(np.ones(10), on=turned), np.ones(10)):
        for found in (a + b, b + a):
            assert found.aval.layout.piece_count == 8
            same(whole(found), np.arange(10.0) + 1)
    c = put(np.arange(8.0), "b", on=turned)
    for found in (c * put(np.ones((1, 8))), put(np.ones((3, 8))) * c):
        assert found.sharding == NamedSharding(turned, P(None, "b"))


@in_worlds
def test_uncommitted_operands_follow_committed_ones():
    a, unplaced = put(np.ones((8, 8)), "i", "j"), mnp.arange(8.0)
    assert not unplaced.committed
    for result in (a + unplaced, unplaced + a, a + unplaced[:, None]):
        assert result.sharding == a.sharding
        assert result.committed
    assert not (unplaced + 1).committed
    alone_there = meshard.device_put(np.ones(8), meshard.devices()[3])
    result = alone_there + unplaced
    assert result.sharding == SingleDeviceSharding(meshard.devices()[3])
    assert result.committed
    same(fetched(result), 1 + np.arange(8.0))


@in_worlds
def test_what_no_device_of_mine_holds_i_do_not_compute():
    there = meshard.devices()[-1]
    x = meshard.device_put(np.arange(4.0), there)
    y = mnp.sin(x) + 1 - x.sum() * mnp.matmul(x, x)
    assert y.devices() == {there}
    held = [b for b in y._live() if b is not None]
    assert len(held) == (there in here().local_devices)
    expected = np.sin(np.arange(4.0)) + 1 - 6.0 * 14.0
    np.testing.assert_allclose(fetched(y), expected)


@in_worlds
def test_a_mesh_of_other_processes_only():
    some = Mesh(meshard.devices()[4:], "i")
    x = meshard.device_put(np.arange(8.0), NamedSharding(some, P("i")))
    y = x * 2 + np.ones(8)
    assert y.sharding.device_set == set(some.flat_devices)
    np.testing.assert_array_equal(fetched(y), np.arange(8.0) * 2 + 1)
    np.testing.assert_array_equal(fetched(y.sum()), 64.0)


@in_worlds
def test_large_blocks():
    x = np.random.default_rng(0).normal(size=(1024, 513)).astype("f4")
    a, b = put(x, "i", None), put(x, ("i", "j"))
    same(whole(mnp.exp(a)), np.exp(x))
    same(whole(a * 2 + b), x * 2 + x)
    same(whole(mnp.where(a > 0, a, b)), x)
    same(whole(a.astype("bfloat16")), x.astype(BF16))


@in_worlds
def test_shapes_of_all_ranks():
    for shape in [(), (1,), (0,), (5,), (0, 3), (2, 0, 4), (1, 1, 1, 1), (2, 3, 1, 2)]:
        x = np.ones(shape, "f4")
        spec = ["i", "j"][: len(shape)]
        a = put(x, *spec, uneven="balanced")
        same(whole(a + a), x + x)
        same(whole(a + np.ones((1,), "f4")), x + np.ones((1,), "f4"))
        same(whole(mnp.exp(a)), np.exp(x))
        assert type(mnp.exp(a)) is meshard.Array


@in_worlds
def test_replicas_are_computed_once():
    a = put(np.ones((8, 8)), "j")
    result = a + 1
    blocks = [b for b in result._live() if b is not None]
    rows = {s.index[0].start for s in result.addressable_shards}
    assert len(blocks) == len(rows) == min(2, len(meshard.local_devices()))
    pieces = {id(s.data._live()[0]) for s in result.addressable_shards}
    assert len(pieces) == len(rows)


@in_worlds
def test_nothing_is_sent_where_operands_lie_alike():
    a, b = put(np.ones((8, 8)), "i", "j"), put(np.ones(8), "j")
    transport = here().transport
    calls: list[Any] = []
    exchange = transport.exchange
    transport.exchange = lambda *args: calls.append(args) or exchange(*args)  # type: ignore
    try:
        mnp.exp(a) + b * a - (a > b)
        assert calls == []
        a + put(np.ones((8, 8)), "j", "i")
        assert bool(calls) == (meshard.process_count() > 1)
    finally:
        del transport.exchange


@in_worlds
def test_results_are_new_and_operands_stay():
    x = np.arange(8.0)
    a = put(x, "i")
    b = +a
    b.delete()
    same(whole(a), x)
    a.delete()
    with pytest.raises(DeletedArrayError, match="Array has been deleted"):
        a + 1
    with pytest.raises(DeletedArrayError, match="Array has been deleted"):
        mnp.ones(8) * a


# refusals


@in_worlds
def test_incompatible_devices():
    devices = meshard.devices()
    left = Mesh(devices[:4], "i")
    a = meshard.device_put(np.ones((4, 2), "f4"), NamedSharding(left, P("i")))
    b = meshard.device_put(np.ones(2), devices[5])
    with pytest.raises(IncompatibleDevicesError) as refused:
        a + b
    message = str(refused.value)
    assert "add: received incompatible devices" in message
    assert "Operand 0, float32[4,2], is committed to devices [0, 1, 2, 3]" in message
    assert "operand 1, float64[2], to devices [5]" in message
    assert "meshard.device_put" in message
    with pytest.raises(ValueError, match=r"where: received incompatible devices\. Operand 1"):
        mnp.where(b > 0, b, put(np.ones(2)))
    with pytest.raises(ValueError, match="matmul: received incompatible devices"):
        a @ b


@in_worlds
@pytest.mark.parametrize(
    ("left", "right", "where"),
    [
        ((3,), (4,), "dim 0"),
        ((2, 3), (2, 2), "dim 1"),
        ((0,), (2,), "dim 0"),
        ((2, 1), (3, 4), "dim 0"),
    ],
)
def test_shapes_that_do_not_broadcast(left, right, where):
    with pytest.raises(ShapeError) as refused:
        put(np.ones(left)) + np.ones(right)
    message = str(refused.value)
    assert f"add: got incompatible shapes {left}, {right}" in message
    assert where in message
    with pytest.raises(ValueError, match="incompatible shapes"):
        np.ones(left) * put(np.ones(right))


@in_worlds
@pytest.mark.parametrize("bad", [[1, 2], (1, 2), "ab", None, {1: 2}, object()])
def test_operands_that_are_no_arrays(bad):
    a = put(np.ones(2))
    with pytest.raises(DtypeError, match="add: operand 1 must be an array or a number, got "):
        mnp.add(a, bad)
    with pytest.raises(DtypeError, match="sin: operand 0 must be an array or a number, got "):
        mnp.sin(bad)
    with pytest.raises(TypeError):
        a + bad
    with pytest.raises(TypeError):
        bad * a


@in_worlds
def test_arrays_that_hold_no_numbers():
    with pytest.raises(DtypeError, match="dtype <U1 is not a numeric dtype"):
        put(np.ones(2)) + np.array(["a", "b"])
    with pytest.raises(
        DtypeError,
        match="nested lists of numbers, got",
    ):
        mnp.sin(np.array([None, 1]))
    with pytest.raises(DtypeError, match=r"dtype datetime64\[D\] is not a numeric dtype"):
        np.array(["2020-01-01"], "M8[D]") + put(np.ones(1))


@in_worlds
def test_dtypes_that_a_function_does_not_take():
    with pytest.raises(DtypeError, match="bitwise_and: not possible for operands of dtype float64"):
        put(np.ones(2)) & 1
    with pytest.raises(DtypeError, match="invert: not possible for operands of dtype float32"):
        ~put(np.ones(2, "f4"))
    with pytest.raises(DtypeError, match="floor: not possible for operands of dtype complex128"):
        mnp.floor(put(np.ones(2, "D")))
    with pytest.raises(DtypeError, match="subtract: not possible for operands of dtype bool, bool"):
        put(np.ones(2, "?")) - np.ones(2, "?")
    with pytest.raises(DtypeError, match=r"left_shift: .* int32, float"):
        put(np.ones(2, "i4")) << 1.5


@in_worlds
def test_values_that_numpy_refuses():
    a = put(np.arange(8, dtype="i4"), "i")
    with pytest.raises(ValueError, match="negative integer powers"):
        a**-1
    with pytest.raises(OverflowError):
        a.astype("u1") + 300
    assert not whole(a.astype("u1") == 300).any()
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
        (a + 1) / 0


def test_no_such_operation():
    with pytest.raises(ArgumentError, match="There is no operation named 'plus'"):
        bind("plus", mnp.ones(2))
    assert issubclass(ArgumentError, MeshardError)


def test_functions_document_themselves():
    for name in {*UNARY, *BINARY} - {"astype", "round"}:
        function = getattr(mnp, name)
        assert function.__doc__.splitlines()[0].endswith("."), name
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.POSITIONAL_ONLY in kinds, name


# what nothing else decides


@in_worlds
def test_two_python_scalars():
    for function, a, b in [(mnp.add, 1, 2), (mnp.add, 1, 2.5), (mnp.less, 1, 2), (mnp.power, 2, 3)]:
        found = function(a, b)
        same(whole(found), getattr(np, function.__name__)(np.asarray(a), b))
        assert not found.committed
    same(whole(mnp.where(True, 1, 2.0)), np.where(True, 1, 2.0))


def test_the_default_float():
    def body() -> Any:
        a, wide = put(np.arange(8), "i"), put(np.arange(8.0), "i")
        found = [a / 2, mnp.sin(a), a * 0.5, mnp.add(1, 2.5), a * 1j, wide * 0.5, mnp.sqrt(wide)]
        return [(x.dtype.name, fetched(x)) for x in found]

    before = config.read("default_float")
    config.update("default_float", "float32")
    try:
        found = everywhere(body)
    finally:
        config.update("default_float", before)
    names = [name for name, _ in found]
    assert names == ["float32"] * 4 + ["complex64"] + ["float64"] * 2
    np.testing.assert_array_equal(found[0][1], np.arange(8, dtype="f4") / 2)
    assert [name for name, _ in alone(body)] == ["float64"] * 4 + ["complex128"] + ["float64"] * 2


def test_memory_order_does_not_show():
    # A block is a view of other memory in one process, and was received in the other.
    rng = np.random.default_rng(0)
    cases = [rng.uniform(-1, 1, (64, 24)).astype(d) for d in ("f2", "f4", "f8")]
    names = ["arcsin", "arccos", "exp", "tanh", "sin", "log1p", "expm1", "cbrt"]

    def body() -> Any:
        turned = Mesh(np.array(meshard.devices())[::-1].reshape(4, 2), ("i", "j"))
        found = []
        for x in cases:
            a = put(x, "i")[:, ::2].T
            moved = meshard.device_put(a, NamedSharding(turned, P(None, "i")))
            found += [getattr(mnp, name)(moved) for name in names]
        return fetched(found)

    found = everywhere(body)
    same(found[:8], [getattr(np, name)(cases[0][:, ::2].T.copy()) for name in names])


@pytest.mark.parametrize("order", [range(8), (0, 4, 1, 5, 2, 6, 3, 7), (7, 6, 0, 1, 5, 4, 2, 3)])
@pytest.mark.parametrize("axes", [("i",), ()])
def test_small_blocks_lie_where_they_did_however_pieces_are_dealt(order, axes):
    """The quick way, first decided and then looked up, where processes hold some of the pieces."""

    def body():
        devices = [meshard.devices()[i] for i in order]
        lies = NamedSharding(Mesh(devices, ("i",)), P(*axes))
        x = meshard.device_put(np.arange(16.0), lies)
        found = []
        for _ in range(2):
            found += [x + x, x * 3.0, 2.0 - x, -x, mnp.sqrt(x), x > 4]
        assert all(y.sharding == lies for y in found)
        assert all(len(y._blocks) == len(x._blocks) for y in found)
        for y in found:
            assert [b is None for b in y._blocks] == [b is None for b in x._blocks]
        return [whole(y) for y in found]

    everywhere(body)


DTYPES_OF_BLOCKS = ["?", "i4", "f4", "D", BF16, ml_dtypes.int4]
LIMITS = (None, -(10**30), -300, -129, -9, -8, -1, 0, 1, 3, 4, 15, 16, 127, 128, 255, 300, 10**30)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i8", "u8", ml_dtypes.int4, ml_dtypes.uint2])
def test_clip_takes_limits_beyond_the_dtype(dtype):
    info = ml_dtypes.iinfo(dtype)
    least, greatest = int(info.min), int(info.max)
    values = [least, greatest, 0, 1]

    def body() -> None:
        x = mnp.asarray(np.array(values, object).astype("u8" if least == 0 else "i8").astype(dtype))
        for low, high in itertools.product(LIMITS, LIMITS):
            if (low is not None and low > greatest) or (high is not None and high < least):
                with pytest.raises(ArgumentError, match=r"clip: (min|max)=-?\d+ leaves no number"):
                    mnp.clip(x, low, high)
                continue
            expected = [v if low is None else max(v, low) for v in values]
            expected = [v if high is None else min(v, high) for v in expected]
            found = mnp.clip(x, low, high)
            assert found.dtype == x.dtype
            assert [int(v) for v in np.asarray(found)] == expected

    alone(body)


MORE_OF_ROWS: dict[str, dict[str, Any]] = {
    "round": {"decimals": 0},
    "astype": {"dtype": np.dtype("D")},
    "isclose": {"rtol": 1e-5, "atol": 1e-8, "equal_nan": False},
    "nan_to_num": {"nan": 0.0, "posinf": None, "neginf": None},
    "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 3},
    "positions_within": {"size": 3, "clamp": True},
    "bitcast": {"dtype": np.dtype("f4")},
    "again": {"number": 1},
    "checkpoint_name": {"name": "here"},
}


def test_blocks_of_every_row_have_the_shape_that_its_rule_says():
    """Of arrays without dims, of empty ones, of one element and of more, in every dtype."""
    assert meshard.lax  # which registers some of the rows
    rows = {}
    for name, row in REGISTRY.items():
        text = row.rule if isinstance(row, Op) and isinstance(row.rule, str) else "no text"
        if not text.replace("...", "").strip(" ,->") and not name.startswith("random_"):
            rows[name] = text.split("->")[0].count(",") + 1
    assert {"real", "imag", "negative", "add", "where", "reduce_precision"} <= set(rows)

    def body() -> set[str]:
        ran = set()
        for name, count in rows.items():
            for shape, dtype in itertools.product(((), (0,), (1,), (2, 3)), DTYPES_OF_BLOCKS):
                x = mnp.asarray(np.ones(shape, dtype))
                try:
                    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                        found = bind(name, *[x] * count, **MORE_OF_ROWS.get(name, {}))
                except (TypeError, ValueError):  # the public functions refuse these dtypes
                    continue
                ran.add(name)
                for one in found if isinstance(found, tuple) else (found,):
                    assert one.shape == shape, name
                    for block in one._live():
                        assert (block.shape, block.dtype) == (shape, one.dtype), (name, dtype)
        return ran

    assert set(rows) - alone(body) <= {"bitcast"}


def test_parts_of_a_complex_number():
    def body() -> None:
        total = mnp.sum(put(np.arange(8) * (1 + 2j), "i"))
        assert (float(total.real), float(total.imag)) == (28.0, 56.0)
        assert mnp.linspace(0, total.real, 3).tolist() == [0.0, 14.0, 28.0]

    alone(body)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_large_results_have_their_operands_memory_order(order):
    x = np.arange(600 * 700, dtype=np.float32).reshape(600, 700)
    row = np.arange(x.transpose(order).shape[1], dtype=np.float32)
    found = mnp.asarray(x).transpose(order) * 2 - row
    assert np.array_equal(found, x.transpose(order) * 2 - row)
    (block,) = found._blocks
    assert block.transpose(order).flags.c_contiguous


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1"])
@pytest.mark.parametrize("limits", [(1, 3), (3, 1), (-0.5, 0.5), (np.nan, 1.0), (0, np.nan)])
def test_large_arrays_are_clipped_as_small_ones_are(dtype, limits):
    count = (1 << 20) // np.dtype(dtype).itemsize
    x = np.random.default_rng(0).integers(0, 9, count).astype(dtype)
    if x.dtype.kind == "f":
        x[:3] = np.nan, np.inf, -np.inf
    large, small = mnp.clip(mnp.asarray(x), *limits), mnp.clip(mnp.asarray(x[:64]), *limits)
    assert large.dtype == small.dtype
    np.testing.assert_array_equal(np.asarray(large)[:64], small)
    np.testing.assert_array_equal(large, np.clip(x, *limits))


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_the_error_function_of_float32_is_rounded_once(name):
    """Within 0.51 units in the last place of float64's, everywhere, and without warnings."""
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45]
    near, far = np.linspace(-4, 4, 400_001), np.linspace(-11, 11, 200_001)
    x = np.concatenate([near, far, np.logspace(-44, 1, 50_000), ends]).astype(np.float32)
    found = REGISTRY[name].kernel(x)
    exact = getattr(scipy.special, name)(x.astype(np.float64))
    missing = np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(found), missing)
    found, exact = found[~missing], exact[~missing]
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(found - exact) / unit) < 0.51
    assert np.signbit(REGISTRY["erf"].kernel(np.array([-0.0], np.float32)))[0]
    strided = np.empty((50, 4), np.float32)
    for out in (strided, strided[::2, 1:3], strided.T):
        given = np.asfortranarray(np.resize(x, out.shape))
        assert REGISTRY[name].kernel(given, out=out) is out
        np.testing.assert_array_equal(out, REGISTRY[name].kernel(given))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
def test_large_arrays_are_clipped_in_one_pass_with_the_same_result(dtype):
    x = (np.random.default_rng(0).standard_normal((512, 1024)) * 90).astype(dtype)
    x = np.tile(x, (1, 8 // x.itemsize))
    if dtype[0] == "f":
        x[::7] = np.nan

    def body():
        a = put(x, "i", "j")
        found = mnp.clip(a, 2, 60)
        two = mnp.minimum(mnp.maximum(a, 2), 60)
        return fetched([found, two])

    for found in alone(body):
        np.testing.assert_array_equal(found, np.clip(x, 2, 60))
