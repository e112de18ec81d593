"""Convolutions, windows and lookups of `jax.lax`, against JAX, in both worlds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import P, lax
from meshard.errors import ArgumentError, DtypeError, ShapeError
from tests.worlds import alone, everywhere, mesh, put, whole

rng = np.random.default_rng(3)
LAST = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    # shapes of both operands; strides, padding, dilations, dimension numbers, groups
    "one dim": ((4, 3, 9), (5, 3, 3), ((1,), "SAME")),
    "strides": ((4, 3, 9), (5, 3, 3), ((2,), "VALID")),
    "features first": ((4, 3, 9, 8), (6, 3, 3, 2), ((2, 1), "SAME_LOWER")),
    "features last": ((4, 9, 8, 3), (3, 3, 3, 8), ((2, 1), "SAME", None, None, LAST)),
    "groups": ((4, 9, 7, 4), (3, 2, 2, 8), ((2, 1), [(1, 2), (-1, 3)], None, (2, 1), LAST, 2)),
    "groups of examples": (
        (4, 9, 7, 4),
        (3, 2, 4, 8),
        ((1, 2), [(1, 2), (-1, 3)], None, (2, 3), LAST, 1, 2),
    ),
    "each feature alone": ((4, 4, 7), (4, 1, 3), ((1,), "SAME", None, None, None, 4)),
    "each alone, last": ((2, 7, 6, 4), (3, 2, 1, 4), ((1, 1), "SAME", None, None, LAST, 4)),
    "transposed": ((2, 4, 7), (8, 2, 3), ((1,), [(2, 1)], (3,), None, None, 2)),
    "both dilated": ((2, 4, 7), (8, 4, 3), ((2,), [(2, 1)], (3,), (2,))),
    "cropped": ((2, 4, 5, 6), (8, 4, 3, 2), ((1, 1), [(2, 1), (-3, 4)], (3, 2), (2, 1))),
    "three dims": (
        (9, 2, 4, 5, 3),
        (7, 3, 2, 2, 2),
        ((1, 2, 1), "SAME", None, None, ("DNHWC", "OIDHW", "NCDHW")),
    ),
    "no dim in space": ((4, 3), (5, 3), ((), "SAME")),
    "nothing": ((4, 3, 0), (5, 3, 3), ((1,), "SAME")),
    "windows too long": ((4, 3, 2), (5, 3, 3), ((1,), "VALID")),
    "no examples": ((0, 3, 9), (5, 3, 3), ((1,), "SAME")),
}
SPLITS: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((None, "i", "j"), (None, "i")),
    (("j", None, None, "i"), ("j",)),
]


def cut(value: np.ndarray, spec: tuple[Any, ...]) -> Any:
    return put(value, *spec[: value.ndim], uneven="ceil")


def close(found: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def with_gradients(f: Callable[..., Any], number: int, m: Any) -> Callable[..., Any]:
    """Return a function of arrays that returns f's value and the gradients of a sum."""
    wanted = tuple(range(number))
    back = m.grad(lambda *xs: (f(*xs) ** 3).sum(), wanted)
    return lambda *xs: (f(*xs), *back(*xs))


def compare(jax: Any, f: Callable[..., Any], xs: list[np.ndarray], splits: Any) -> None:
    """Compare values and gradients in both worlds, at once and jitted."""
    with jax.enable_x64(True):
        theirs = with_gradients(functools.partial(f, jax.lax), len(xs), jax)
        expected = jax.jit(theirs)(*xs)  # compiled at once, not operation by operation
    own = with_gradients(functools.partial(f, lax), len(xs), meshard)

    def body(run: Callable[..., Any]) -> list[Any]:
        return [[whole(x) for x in run(*map(cut, xs, specs))] for specs in splits]

    for found in everywhere(lambda: body(own)):
        for a, b in zip(found, expected, strict=True):
            close(a, b)
    for found in alone(lambda: body(meshard.jit(own))):
        for a, b in zip(found, expected, strict=True):
            close(a, b)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, jax):
    shapes = CONVOLUTIONS[name]
    x, w = rng.standard_normal(shapes[0]), rng.standard_normal(shapes[1])
    compare(jax, lambda m, a, b: m.conv_general_dilated(a, b, *shapes[2]), [x, w], SPLITS)


TRANSPOSED: dict[str, dict[str, Any]] = {
    "same": {"strides": (2, 1), "padding": "SAME"},
    "valid": {"strides": (2, 3), "padding": "VALID", "rhs_dilation": (2, 1)},
    "pairs": {"strides": (2, 2), "padding": [(1, 2), (0, 3)]},
    "consistent": {"strides": (2, 2), "padding": [(1, 2), (0, 1)], "use_consistent_padding": True},
    "turned": {"strides": (2, 1), "padding": "SAME", "transpose_kernel": True},
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions(name, jax):
    x, w = rng.standard_normal((2, 5, 6, 3)), rng.standard_normal((3, 2, 3, 3))
    splits = [(("i",), ()), ((None, "i", "j"), (None, None, "i"))]
    compare(jax, lambda m, a, b: m.conv_transpose(a, b, **TRANSPOSED[name]), [x, w], splits)


def test_convolutions_with_few_arguments(jax):
    x, w = rng.standard_normal((4, 3, 9)), rng.standard_normal((5, 3, 3))
    splits = [((None, None, "i"), ("j",))]
    compare(jax, lambda m, a, b: m.conv(a, b, (2,), "SAME"), [x, w], splits)
    compare(
        jax,
        lambda m, a, b: m.conv_with_general_padding(a, b, (1,), [(1, 2)], (2,), None),
        [x, w],
        splits,
    )
    compare(
        jax,
        lambda m, a: m.conv_general_dilated_patches(a, (3,), (2,), "SAME", rhs_dilation=(2,)),
        [x],
        [((None, None, "i"),)],
    )


def test_dimension_numbers_and_padding(jax):
    for m in (jax.lax, lax):
        assert tuple(m.conv_dimension_numbers((1, 8, 9, 3), (3, 3, 3, 4), LAST).out_spec) == (
            (0, 3, 1, 2)
        )
    for kind in ("SAME", "SAME_LOWER", "VALID", "same"):
        given = (np.array([10, 7]), np.array([3, 4]), np.array([2, 3]))
        expected = [tuple(map(int, p)) for p in jax.lax.padtype_to_pads(*given, kind)]
        assert lax.padtype_to_pads(*[v.tolist() for v in given], kind) == expected


@pytest.mark.parametrize("short", ["bfloat16", "float16", "int32", "complex64"])
def test_dtypes_of_convolutions(short, jax):
    x, w = rng.integers(-3, 4, (2, 3, 7)), rng.integers(-3, 4, (4, 3, 3))
    expected = jax.lax.conv(*[jax.numpy.asarray(v, short) for v in (x, w)], (1,), "SAME")
    found = alone(
        lambda: [
            whole(lax.conv(*[mnp.asarray(v, short) for v in (x, w)], (1,), "SAME", **more))
            for more in ({}, {"preferred_element_type": "complex128"})
        ]
    )
    assert [f.dtype.name for f in found] == [short, "complex128"]
    np.testing.assert_array_equal(found[0].astype("complex"), np.asarray(expected, "complex"))


# what moves


def moved(f: Callable[..., Any], *operands: Any) -> tuple[int, Any]:
    with meshard.debug.ledger() as log:
        found = f(*operands)
    return log.total_bytes, found


def test_only_edges_of_tiles_move():
    x = rng.standard_normal((8, 61, 10, 4)).astype("float32")
    w = rng.standard_normal((3, 3, 4, 8)).astype("float32")
    row = 8 * 10 * 4 * 4
    cuts = (0, 1, 7, 7, 20, 33, 40, 60, 61)

    def conv(a: Any, b: Any) -> Any:
        return lax.conv_general_dilated(a, b, (1, 1), "SAME", dimension_numbers=LAST)

    def body() -> None:
        line = mesh((8,), ("i",))
        kernel = put(w, on=line)
        for run in (conv, meshard.jit(conv)):
            count, found = moved(run, put(x, "i", on=line), kernel)
            assert (count, found.sharding.spec) == (0, P("i"))
            count, found = moved(run, put(x, on=line), put(w, None, None, None, "i", on=line))
            assert (count, found.sharding.spec) == (0, P(None, None, None, "i"))
            tiles = put(x, None, "i", on=line, uneven=(None, cuts, None, None))
            count, found = moved(run, tiles, kernel)
            assert count == 12 * row  # one row on each side of six borders: one tile is empty
            assert found.sharding.layout(found.shape).cuts[1] == cuts
        back = meshard.jit(meshard.grad(lambda a, b: (conv(a, b) ** 2).sum(), (0, 1)))
        count, _ = moved(back, tiles, kernel)
        kernels = 2 * 7 * w.nbytes
        assert count == 3 * 12 * row + kernels  # once more for the kernel, and back

    alone(body)


def test_partial_sums_of_split_features():
    x, w = rng.standard_normal((2, 8, 6)), rng.standard_normal((4, 8, 3))

    def body() -> tuple[int, Any]:
        line = mesh((8,), ("i",))
        count, found = moved(
            lambda a, b: lax.conv(a, b, (1,), "SAME"),
            put(x, None, "i", on=line),
            put(w, None, "i", on=line),
        )
        return count, found.shape

    count, shape = alone(body)
    assert count == 2 * 7 * int(np.prod(shape)) * 8  # an all-reduce round a ring


# reductions of windows

WINDOWS: dict[str, tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((5, 9), ((2, 3),), {}),
    "pools": ((2, 9, 7, 3), ((1, 3, 2, 1), (1, 2, 2, 1), "SAME"), {}),
    "dilated": ((5, 9), ((2, 3), (2, 1), ((1, 2), (-2, 3))), {"base_dilation": (2, 1)}),
    "apart": ((5, 9), ((2, 3), (2, 1), "SAME_LOWER"), {"window_dilation": (2, 2)}),
    "too long": ((5, 2), ((2, 3),), {}),
    "of one": ((5, 9), ((1, 1),), {}),
}
ACROSS = [(("i", "j"),), ((None, "j", "i"),)]


@pytest.mark.parametrize("name", WINDOWS)
def test_reduced_windows(name, jax):
    shape, positional, named = WINDOWS[name]
    x = rng.integers(-4, 5, shape).astype(float)
    for how, init in (("add", 0.0), ("max", -np.inf), ("add", 2.0), ("mul", 1.0)):

        def f(m: Any, a: Any, how: str = how, init: float = init) -> Any:
            return m.reduce_window(a, init, getattr(m, how), *positional, **named)

        dilated = how == "max" and bool(named)
        if how == "mul" or init == 2.0 or dilated:  # JAX has no gradient
            expected = np.asarray(f(jax.lax, x.astype("float32")))
            found = everywhere(lambda f=f: [whole(f(lax, cut(x, *s))) for s in ACROSS])
            assert all(np.array_equal(v, expected) for v in found)
            continue
        compare(jax, f, [x], ACROSS)


def test_windows_of_trees_and_any_operation(jax):
    x, y = rng.standard_normal((2, 5, 9))

    def f(m: Any, a: Any, b: Any) -> Any:
        def pick(p: Any, q: Any) -> Any:
            better = q[0] > p[0]
            return m.select(better, q[0], p[0]), m.select(better, q[1], p[1])

        return m.reduce_window((a, b), (-np.inf, 0.0), pick, (2, 3), (1, 2), "SAME")

    with jax.enable_x64(True):
        expected = f(jax.lax, jax.numpy.asarray(x), jax.numpy.asarray(y))
    for specs in ((("i", "j"), ("i", "j")), ((None, "i"), ("j",))):
        found = everywhere(lambda specs=specs: [whole(v) for v in f(lax, *map(cut, (x, y), specs))])
        for a, b in zip(found, expected, strict=True):
            close(a, b)


def test_vmapped_windows(jax):
    x, w = rng.standard_normal((3, 2, 4, 9)), rng.standard_normal((3, 5, 4, 3))

    def conv(m: Any, a: Any, b: Any) -> Any:
        return m.conv(a, b, (2,), "SAME")

    def pool(m: Any, a: Any) -> Any:
        return m.reduce_window(a, -np.inf, m.max, (1, 1, 3), (1, 1, 2), "SAME")

    for axes in ((0, None), (None, 0), (0, 0)):
        operands = [v if a == 0 else v[0] for v, a in zip((x, w), axes, strict=True)]
        with jax.enable_x64(True):
            expected = jax.vmap(functools.partial(conv, jax.lax), axes)(*operands)
        specs = [(None, None, None, "i")[-o.ndim :] for o in operands]
        found = everywhere(
            lambda axes=axes, operands=operands, specs=specs: whole(
                meshard.vmap(functools.partial(conv, lax), axes)(
                    cut(operands[0], specs[0]), operands[1]
                )
            )
        )
        close(found, expected)
    with jax.enable_x64(True):
        expected = jax.vmap(functools.partial(pool, jax.lax))(x)
    close(
        everywhere(
            lambda: whole(
                meshard.vmap(functools.partial(pool, lax))(cut(x, (None, None, "j", "i")))
            )
        ),
        expected,
    )


def test_windows_in_bodies():
    x, w = rng.standard_normal((8, 3, 9)), rng.standard_normal((4, 3, 3))

    def body() -> tuple[Any, ...]:
        def tile(a: Any, b: Any) -> Any:
            found = lax.conv(a, b, (1,), "SAME")
            return lax.reduce_window(found, -np.inf, lax.max, (1, 1, 2), (1, 1, 2), "VALID")

        f = meshard.shard_map(tile, mesh=mesh(), in_specs=(P("i"), P()), out_specs=P("i"))
        return (
            whole(f(put(x, "i"), put(w))),
            whole(meshard.jit(f)(put(x, "i"), put(w))),
            whole(tile(mnp.asarray(x), mnp.asarray(w))),
        )

    first, second, third = everywhere(body)
    np.testing.assert_allclose(first, third, rtol=1e-12)
    np.testing.assert_array_equal(first, second)


# lookups

X = rng.standard_normal((7, 9, 5))
GATHERS: dict[str, tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]] = {
    # dimension numbers, sizes of windows, shape of the positions
    "rows": (((1, 2), (0,), (0,)), (1, 9, 5), (6, 1)),
    "windows": (((0, 2), (1,), (0, 1)), (3, 1, 4), (6, 2)),
    "turned": (((1, 2, 3), (), (2, 0)), (2, 3, 2), (4, 2)),
    "elements": (((0,), (0, 1), (0, 1)), (1, 1, 5), (3, 4, 2)),
    "one": (((0, 1, 2), (), (1,)), (7, 2, 5), (1,)),
    "dims that go together": (((2,), (1,), (1,), (0,), (0,)), (1, 1, 4), (7, 3, 1)),
    "a part of a dim": (((1, 2), (2,), (0,)), (3, 9, 1), (4, 1)),
    "nothing chosen": (((1, 2, 3), (), ()), (7, 9, 5), (3, 0)),
    "a point": (((0, 1), (0,), (0, 1, 2)), (1, 2, 3), (3,)),
}
SCATTERS: dict[str, tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]] = {
    # dimension numbers, shapes of the updates and of the positions
    "rows": (((1, 2), (0,), (0,)), (6, 9, 5), (6, 1)),
    "windows": (((0, 2), (1,), (0, 1)), (3, 6, 4), (6, 2)),
    "turned": (((1, 2, 3), (), (2, 0)), (4, 2, 3, 2), (4, 2)),
    "elements": (((2,), (0, 1), (0, 1)), (3, 4, 5), (3, 4, 2)),
    "one": (((0, 1, 2), (), (1,)), (7, 2, 5), (1,)),
    "dims that go together": (((2,), (1,), (1,), (0,), (0,)), (7, 3, 4), (7, 3, 1)),
    "nothing chosen": (((1, 2, 3), (), ()), (3, 7, 9, 5), (3, 0)),
    "a point": (((0, 1), (0,), (0, 1, 2)), (2, 3), (3,)),
}
HOLDS = [((None, "i"), ("j",)), (("j",), ("i",))]


@pytest.mark.parametrize("mode", [None, "clip", "fill"])
@pytest.mark.parametrize("name", GATHERS)
def test_gather(name, mode, jax):
    numbers, sizes, shape = GATHERS[name]
    places = rng.integers(*((0, 2) if mode is None else (-2, 8)), shape)
    more = {"mode": mode, "fill_value": 3.0 if mode == "fill" else None}

    def f(m: Any, x: Any, at: Any) -> Any:
        return m.gather(x, at, m.GatherDimensionNumbers(*numbers), sizes, **more)

    def both(m: Any, own: Any) -> Callable[..., Any]:
        return lambda x, at: with_gradients(lambda v: f(m, v, at), 1, own)(x)

    with jax.enable_x64(True):
        expected = jax.jit(both(jax.lax, jax))(X, places)
    own = both(lax, meshard)
    for world, run in ((everywhere, own), (alone, meshard.jit(own))):
        for specs in HOLDS:
            found = world(
                lambda run=run, specs=specs: [whole(v) for v in run(*map(cut, (X, places), specs))]
            )
            for a, b in zip(found, expected, strict=True):
                close(a, b)


@pytest.mark.parametrize("mode", [None, "clip"])
@pytest.mark.parametrize("name", SCATTERS)
def test_scatter(name, mode, jax):
    numbers, shape, at = SCATTERS[name]
    places, updates = rng.integers(-2, 8, at), rng.standard_normal(shape)

    def f(m: Any, how: str, x: Any, at: Any, u: Any) -> Any:
        return getattr(m, how)(x, at, u, m.ScatterDimensionNumbers(*numbers), mode=mode)

    for how in ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min"):
        with jax.enable_x64(True):
            expected = jax.jit(functools.partial(f, jax.lax, how))(X, places, updates)
        for specs in HOLDS:
            found = everywhere(
                lambda how=how, specs=specs: whole(
                    f(lax, how, cut(X, specs[0]), cut(places, specs[1]), cut(updates, specs[1]))
                )
            )
            close(found, expected)
    with jax.enable_x64(True):
        fixed = [functools.partial(f, m, "scatter_add", at=places) for m in (jax.lax, lax)]
    compare(jax, lambda m, x, u: fixed[m is lax](x=x, u=u), [X, updates], HOLDS)


def test_scatter_apply(jax):
    numbers, shape, at = SCATTERS["windows"]
    places = rng.integers(-1, 5, at)

    def f(m: Any, sine: Any, x: Any) -> Any:
        own = m.ScatterDimensionNumbers(*numbers)
        return m.scatter_apply(x, places, sine, own, update_shape=shape)

    with jax.enable_x64(True):
        expected = f(jax.lax, jax.numpy.sin, jax.numpy.asarray(X))
    close(everywhere(lambda: whole(f(lax, mnp.sin, cut(X, ("i", "j"))))), expected)
    close(alone(lambda: whole(meshard.jit(lambda x: f(lax, mnp.sin, x))(X))), expected)


# groups of rows, and what stands alone


def test_ragged_dot(jax):
    x, w = rng.standard_normal((9, 4)), rng.standard_normal((3, 4, 5))
    for sizes in ([2, 0, 7], [3, 3, 1]):
        given = np.array(sizes)
        splits = [(("i",), ()), ((None, "i"), (None, "i")), (("j",), ("i", None, None)[:1])]
        compare(jax, lambda m, a, b, s=given: m.ragged_dot(a, b, s), [x, w], splits)


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_transforms_by_kind(kind, jax):
    x = rng.standard_normal((4, 6, 5))
    sizes = (6, 8) if kind == "IRFFT" else (6, 5)
    with jax.enable_x64(True):
        expected = jax.lax.fft(x, kind, sizes)
    for named in (kind, lax.FftType[kind]):
        close(
            everywhere(lambda named=named: whole(lax.fft(cut(x, ("i",)), named, sizes))), expected
        )


def test_nearest_and_likenesses(jax):
    x = rng.standard_normal((6, 20)).astype("float32")
    for name in ("approx_max_k", "approx_min_k"):
        expected = np.sort(x)[:, ::-1][:, :3] if "max" in name else np.sort(x)[:, :3]
        values, places = everywhere(
            lambda name=name: tuple(map(whole, getattr(lax, name)(cut(x, ("i", "j")), 3)))
        )
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(np.take_along_axis(x, places, 1), expected)
    assert lax.broadcast_like(mnp.ones(2), mnp.ones((3, 2))).shape == (3, 2)
    assert lax.broadcast_to_rank(mnp.ones(2), 3).shape == (1, 1, 2)
    assert lax.platform_dependent(1, default=lambda v: v + 1) == 2


def test_random_bits_follow_from_the_state():
    state = np.array([1, 2, 3, 4], "uint32")

    def body() -> list[Any]:
        after, first = lax.rng_bit_generator(state, (50,))
        again = lax.rng_bit_generator(state, (50,))[1]
        _, second = lax.rng_bit_generator(after, (50,))
        long, _ = lax.rng_bit_generator(state.view("uint64"), (3,), "uint64")
        return [whole(v) for v in (after, first, again, second, long)]

    after, first, again, second, long = everywhere(body)
    assert (after.dtype, after.shape, long.dtype, long.shape) == ("u4", (4,), "u8", (2,))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: lax.conv(mnp.ones((1, 3, 5)), mnp.ones((2, 4, 3)), (1,), "SAME"),
        ShapeError,
        "lhs of shape .* has 3 features, rhs of shape .* takes 4 in each of 1 groups",
    ),
    (
        lambda: lax.conv(mnp.ones((1, 3, 5)), mnp.ones((2, 3)), (1,), "SAME"),
        ShapeError,
        "as many dims, at least two; the shapes are",
    ),
    (
        lambda: lax.conv_general_dilated(
            mnp.ones((3, 2, 5)), mnp.ones((2, 2, 3)), (1,), "SAME", batch_group_count=2
        ),
        ShapeError,
        "2 features of rhs and 3 examples of lhs cannot be divided",
    ),
    (
        lambda: lax.conv_general_dilated(
            mnp.ones((2, 2, 5)), mnp.ones((2, 2, 3)), (1,), "SAME", None, None, None, 2, 2
        ),
        ArgumentError,
        "one of them is 1",
    ),
    (
        lambda: lax.conv(mnp.ones((1, 3, 5)), mnp.ones((2, 3, 3)), (0,), "SAME"),
        ArgumentError,
        "window_strides are positive integers, one for each of 1 dims",
    ),
    (
        lambda: lax.conv(mnp.ones((1, 3, 5)), mnp.ones((2, 3, 3)), (1,), [(1, 1), (2, 2)]),
        ArgumentError,
        r"a pair \(before, after\) for each of 1 dims",
    ),
    (
        lambda: lax.conv(mnp.ones((1, 3, 5)), mnp.ones((2, 3, 3)), (1,), "MOST"),
        ArgumentError,
        "padding is 'SAME', 'SAME_LOWER' or 'VALID', not 'MOST'",
    ),
    (
        lambda: lax.conv_general_dilated(
            mnp.ones((1, 3, 5)), mnp.ones((2, 3, 3)), (1,), "SAME", (2,)
        ),
        ArgumentError,
        "has no meaning with lhs_dilation",
    ),
    (
        lambda: lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), ("NCH", "OIW", "NCH")),
        ArgumentError,
        "does not name the 3 dims of",
    ),
    (
        lambda: lax.conv_dimension_numbers((1, 2, 3), (1, 2), None),
        ShapeError,
        "have 3 and 2 dims",
    ),
    (
        lambda: lax.conv_transpose(mnp.ones((1, 2)), mnp.ones((1, 2, 3)), (), "SAME"),
        ShapeError,
        "without dimension_numbers the operands have 2 to 5 dims",
    ),
    (
        lambda: lax.reduce_window(mnp.ones((2, 3)), 0.0, lax.add, (2,)),
        ShapeError,
        "a window has a size for each dim",
    ),
    (
        lambda: lax.gather(
            mnp.ones(3), mnp.ones((1, 1)), lax.GatherDimensionNumbers((), (0,), (0,)), (1,)
        ),
        DtypeError,
        "positions are integers",
    ),
    (
        lambda: lax.gather(mnp.ones(3), [[1]], lax.GatherDimensionNumbers((1,), (0,), (0,)), (1,)),
        ArgumentError,
        "offset_dims .* are not 0 dims of a result with 1 dims",
    ),
    (
        lambda: lax.gather(mnp.ones(3), [[1]], lax.GatherDimensionNumbers((1,), (), (2,)), (1,)),
        ArgumentError,
        "do not fit an operand of shape",
    ),
    (
        lambda: lax.gather(mnp.ones(3), [[1]], lax.GatherDimensionNumbers((1,), (), (0,)), (4,)),
        ShapeError,
        "does not fit into the shape",
    ),
    (
        lambda: lax.gather(mnp.ones(3), [[1]], lax.GatherDimensionNumbers((), (0,), (0,)), (2,)),
        ShapeError,
        "have more than one element along a dim of",
    ),
    (
        lambda: lax.gather(mnp.ones(3), [[1]], (1, 2, 3), (1,)),
        ArgumentError,
        "dimension_numbers are GatherDimensionNumbers",
    ),
    (lambda: lax.GatherScatterMode.from_any("most"), ArgumentError, "the modes are 'clip'"),
    (
        lambda: lax.scatter(
            mnp.ones(3), [[1]], mnp.ones(2), lax.ScatterDimensionNumbers((), (0,), (0,))
        ),
        ShapeError,
        "the others must have the sizes of the positions",
    ),
    (
        lambda: lax.scatter(
            mnp.ones(3), [[1]], mnp.ones(1), lax.ScatterDimensionNumbers((0,), (0,), (0,))
        ),
        ArgumentError,
        "update_window_dims .* are not one dim of updates",
    ),
    (
        lambda: lax.ragged_dot(mnp.ones((3, 2)), mnp.ones((2, 3, 1)), [1, 2]),
        ShapeError,
        "takes rows",
    ),
    (
        lambda: lax.ragged_dot(mnp.ones((3, 2)), mnp.ones((2, 2, 1)), [1.0, 2.0]),
        DtypeError,
        "group_sizes are integers",
    ),
    (
        lambda: lax.ragged_dot(mnp.ones((3, 2)), mnp.ones((2, 2, 1)), [1, 2], group_offset=1),
        ArgumentError,
        "group_offset",
    ),
    (lambda: lax.fft(mnp.ones(4), "DCT", (4,)), ArgumentError, "fft_type is one of FFT, IFFT"),
    (lambda: lax.fft(mnp.ones(4), "FFT", (3,)), ShapeError, "takes arrays whose last dims are"),
    (lambda: lax.fft(1j * mnp.ones(4), "RFFT", (4,)), DtypeError, "RFFT takes real numbers"),
    (lambda: lax.approx_max_k(mnp.ones(3, int), 1), DtypeError, "takes floats"),
    (lambda: lax.broadcast_to_rank(mnp.ones((1, 2)), 1), ShapeError, "which is more than 1"),
    (lambda: lax.rng_bit_generator(np.zeros(3, "u4"), (2,)), ShapeError, "four uint32 or two"),
    (lambda: lax.rng_bit_generator(np.zeros(4), (2,)), DtypeError, "key is uint32 or uint64"),
    (
        lambda: lax.rng_bit_generator(np.zeros(4, "u4"), (2,), algorithm=9),
        ArgumentError,
        "there is no RandomAlgorithm 9",
    ),
    (lambda: lax.platform_dependent(1, cuda=abs), ArgumentError, "the platform is 'cpu'"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number):
    call, error, message = REFUSED[number]
    with pytest.raises(error, match=message):
        call()
