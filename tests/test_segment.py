"""Segments give the bits of one operation at a time, whatever way they run: packed, loose, rows."""

from __future__ import annotations

import random
import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.ops.engine import decision
from meshard.ops.fused.segment import CompiledSegment
from meshard.ops.fused.ways import Loose, Packed, Rows
from meshard.sharding import P
from meshard.transforms.lowering import regions
from meshard.transforms.lowering.regions import with_regions
from tests.worlds import alone, in_worlds, mesh, put, whole


def normal(*shape: int) -> Any:
    """Return numbers that are the same in every process."""
    return np.random.default_rng(0).standard_normal(shape)


def ways(f: Any, *args: Any) -> set[type]:
    """Return how the segments of a program run."""
    found = set()
    for step in meshard.jit(f).lower(*args).executable.steps:
        run = step.run
        while hasattr(run, "func") and hasattr(run, "args") and run.args:
            run = run.args[0]
        found.add(type(run))
    return found & {Loose, Packed, Rows, CompiledSegment}


def same_bits(f: Any, *args: Any) -> None:
    for found, expected in zip(
        meshard.tree.leaves(meshard.jit(f)(*args)), meshard.tree.leaves(f(*args)), strict=True
    ):
        assert found.dtype == expected.dtype
        assert found.sharding.is_equivalent_to(expected.sharding, expected.ndim)
        assert whole(found).tobytes() == whole(expected).tobytes()


@pytest.fixture
def numpy_alone():
    meshard.config.update("jit_compiler", "numpy")
    yield
    meshard.config.update("jit_compiler", "auto")


@pytest.mark.usefixtures("numpy_alone")
def test_the_way_follows_size_and_shape():
    def body():
        def chain(x):
            return mnp.tanh(x * 2 + 1) * x

        assert ways(chain, put(np.ones((8, 8)), "i")) == {Packed}
        assert ways(chain, put(np.ones((9, 8)), "i", uneven="balanced")) == {Loose}
        assert ways(chain, put(np.ones((2048, 512)), "i")) == {Rows}
        assert ways(lambda x: (x + 1).sum(axis=1), put(np.ones((8, 8)), "i")) == {Loose}

    alone(body)


@in_worlds
def test_operands_that_lie_otherwise():
    for rows in 8, 512:
        x = put(normal(rows, 256), "i", "j")
        row, column = put(normal(256), "j"), put(normal(rows, 1), "i")
        scalar, plain = put(np.float64(2.5)), normal(rows, 256)

        def f(x, row, column, scalar, plain):
            y = (x + row) * column - scalar
            return y, mnp.exp(-abs(y)) + plain, x > row

        same_bits(f, x, row, column, scalar, plain)


@in_worlds
def test_reductions_of_rows_are_part_of_it():
    for rows in 16, 1024:
        x = put(normal(rows, 300), "i")

        def f(x):
            d = x - x.mean(axis=1, keepdims=True)
            n = d / mnp.sqrt((d * d).mean(axis=1, keepdims=True) + 1e-5)
            return n, n.max(axis=1), (n > 0).any(axis=1), mnp.argmax(n, axis=1)

        same_bits(f, x)


@in_worlds
def test_values_that_are_read_outside_are_kept_and_others_have_no_block():
    x = put(normal(1024, 512), "i")

    def f(x):
        y = x * 2
        z = y + 1
        return z.sum(), y, mnp.sqrt(abs(z)) @ mnp.ones((512, 1))

    for found, expected in zip(meshard.jit(f)(x), f(x), strict=True):
        np.testing.assert_allclose(whole(found), whole(expected), rtol=1e-12)


OPERATIONS = {
    "add": lambda a, b: a + b,
    "less": lambda a, b: mnp.where(a < b, a, b),
    "times": lambda a, b: a * b / 4,
    "tanh": lambda a, b: mnp.tanh(a) - b,
    "row": lambda a, b: a - b.max(axis=-1, keepdims=True),
    "total": lambda a, b: a / (1 + abs(b).sum(axis=-1, keepdims=True)),
    "half": lambda a, b: a.astype(np.float32) + b,
    "column": lambda a, b: a - b.sum(axis=0),
    "turn": lambda a, b: (a.T + 1).T * b,
}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=8),
    st.sampled_from([(8, 16), (7, 5), (1, 40), (640, 512), (0, 4)]),
    st.sampled_from([(), ("i",), ("i", "j"), (None, "j"), (("i", "j"),)]),
    st.randoms(use_true_random=False),
)
def test_any_program_gives_the_bits_of_its_operations(names, shape, spec, choice):
    def f(x):
        values = [x, x * 0.5]
        for name in names:
            values.append(OPERATIONS[name](values[-1], choice.choice(values)))
        return values[-1], values[len(values) // 2]

    def body():
        data = np.random.default_rng(1).standard_normal(shape)
        x = put(data, *spec, uneven="balanced")
        state = choice.getstate()
        expected = f(x)
        choice.setstate(state)
        for found, one in zip(meshard.jit(f)(x), expected, strict=True):
            np.testing.assert_allclose(whole(found), whole(one), rtol=1e-12, atol=1e-14)

    alone(body)


@pytest.fixture
def always_large(monkeypatch):
    """Let blocks of any size be large, so that a compiler is asked for all of them."""
    pytest.importorskip("llvmlite")
    for module in (decision, regions):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(decision, "TINY_CELL", 0)


SHAPES = [(8, 16), (7, 5), (1, 40), (40, 1), (1, 1), (300, 20), (0, 4), (3, 9)]
MORE_OPERATIONS = {
    **OPERATIONS,
    "all": lambda a, b: a - b.sum(),
    "columns": lambda a, b: a / (1 + abs(b).sum(axis=0, keepdims=True)),
    "last": lambda a, b: a + b.max(axis=-1)[:, None],
    "place": lambda a, b: a * mnp.argmax(b, axis=-1)[:, None],
    "true": lambda a, b: (a > b).astype(a.dtype) - a,
    "sign": lambda a, b: mnp.sign(b).astype(np.int8) + a,
    "picked": lambda a, b: mnp.where(a > 0, b, 0.5),
    "rolled": lambda a, b: mnp.roll(a, 1, axis=0) - b,
    "flipped": lambda a, b: mnp.flip(a, axis=-1) * 0.5 + b,
    "shifted": lambda a, b: mnp.concatenate([a[1:], b[:1]]) * 0.5,
    "first row": lambda a, b: a - b[:1],
    "first column": lambda a, b: a + b[:, :1] / 2,
    "every other": lambda a, b: mnp.repeat(a[:, ::2], 2, axis=1)[:, : a.shape[1]] + b,
    "deep": lambda a, b: (a[:, None] + b[:, :1, None]).max(axis=1),
    "flat": lambda a, b: (a.reshape(-1) + 1).reshape(a.shape) * b,
}


SUMS = {"total", "column", "columns", "all"}
"""Whose last bits depend on how the operand is laid out, which jit decides for the whole."""
ELEMENTWISE = ["add", "less", "times", "tanh", "half", "true", "sign", "picked"]


def random_function(pick: random.Random) -> Any:
    """Return a function of two arrays of two dims that gives one to four values."""
    steps: list[tuple[str, int, int]] = []
    for n in range(2, pick.randint(4, 11)):
        near = n - 1 if pick.random() < 0.7 else pick.randrange(n)
        names = ELEMENTWISE if pick.random() < 0.6 else sorted(MORE_OPERATIONS)
        steps.append((pick.choice(names), near, pick.randrange(n)))
    wanted = [pick.randrange(2, len(steps) + 2) for _ in range(pick.randint(1, 4))]

    def f(x: Any, y: Any) -> Any:
        values = [x, y]
        for name, k, j in steps:
            values.append(MORE_OPERATIONS[name](values[k], values[j]))
        return [values[k] for k in wanted]

    f.steps = steps, wanted  # type: ignore[attr-defined]
    return f


def random_data(pick: random.Random, shape: tuple[int, int]) -> Any:
    data = np.random.default_rng(pick.randrange(100)).standard_normal(shape)
    data[data > 2.2], data[data < -2.2] = np.nan, -np.inf
    return data.astype(pick.choice(["d", "d", "f"]))


def check_random_program(seed: int) -> None:
    """Compare the calls of a jitted function with the first, and with operations one at a time."""
    from meshard.interop.llvm import compiler as llvm

    pick = random.Random(seed)
    f = random_function(pick)
    note(str(f.steps))
    shape = pick.choice(SHAPES)
    layouts = [(), ("i",), ("i", "j"), (None, "j"), (("i", "j"),)]
    data = [(random_data(pick, shape), pick.choice(layouts)) for _ in range(2)]
    given_away = pick.choice([(), (0,), (1,), (0, 1)])

    def args() -> Any:
        return [put(x, *spec, uneven="balanced") for x, spec in data]

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is given away in vain
        x, y = args()
        expected = [whole(one) for one in f(x, y)]
        kept, losing = meshard.jit(f), meshard.jit(f, donate_argnums=given_away)
        found = []
        with mock.patch.object(llvm, "BEHIND", llvm.Behind()) as behind:
            for _ in range(2):
                found.append([whole(one) for one in kept(x, y)])
                found.append([whole(one) for one in losing(*args())])
                behind.finish()
    sums = any(name in SUMS for name, _, _ in f.steps[0])
    for results in found:
        for one, other in zip(results, found[0] if sums else expected, strict=True):
            assert one.dtype == other.dtype
            lost = np.isnan(other)  # a NaN is a NaN, whatever its sign
            np.testing.assert_array_equal(lost, np.isnan(one))
            assert np.where(lost, 0, one).tobytes() == np.where(lost, 0, other).tobytes()
    for one, (other, _) in zip((x, y), data, strict=True):
        assert whole(one).tobytes() == other.tobytes()


@pytest.mark.usefixtures("always_large")
@pytest.mark.parametrize("compiler", ["auto", "numpy"])
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 40))
def test_large_segments_have_the_bits_of_their_operations_in_any_layout(compiler, seed):
    meshard.config.update("jit_compiler", compiler)
    try:
        alone(lambda: check_random_program(seed))
    finally:
        meshard.config.update("jit_compiler", "auto")


def compiled_and_not(f, x):
    """Return what NumPy gives, and what a compiled program gives."""
    from meshard.interop.llvm import compiler as llvm

    meshard.config.update("jit_compiler", "numpy")
    expected = [whole(one) for one in meshard.tree.leaves(meshard.jit(f)(x))]
    meshard.config.update("jit_compiler", "auto")
    jitted = meshard.jit(f)
    with mock.patch.object(llvm, "BEHIND", llvm.Behind()) as behind:
        jitted(x)
        behind.finish()
        return expected, [whole(one) for one in meshard.tree.leaves(jitted(x))]


@pytest.mark.usefixtures("always_large")
def test_no_output_is_written_over_an_input_that_another_of_its_loop_reads():
    def f(x):
        half = x * 0.5
        first = mnp.tanh(half - x.sum(axis=0)) - x  # may take the place of `half`
        second = first + half
        return second.T, first

    def body():
        for shape in [(4, 8), (1, 9)]:  # one row: values at their own place are read as broadcast
            x = put(normal(*shape))
            for one, other in zip(*compiled_and_not(f, x), strict=True):
                assert one.tobytes() == other.tobytes()

    alone(body)


@pytest.mark.usefixtures("always_large")
def test_cells_that_numpy_runs_after_all_find_their_inputs_as_they_were():
    def f(x):
        both = x * 0.5 + x
        moved = (both.T + 1).T * x  # of values between segments, which may be written over
        return (mnp.tanh(moved) - moved) * both / (1 + abs(moved).sum(axis=1, keepdims=True))

    def body():
        # The last cell holds no row: it has no program, so NumPy runs all four.
        x = put(normal(3, 8), "i", uneven="balanced")
        (one,), (other,) = compiled_and_not(f, x)
        assert one.tobytes() == other.tobytes()

    alone(body)


def test_what_a_segment_gave_is_written_over_by_its_last_reader_and_nothing_else_is():
    """A value between two segments gives its blocks to the result; arguments keep theirs."""

    def body():
        data = normal(1024, 512)
        x, y = put(data, "i"), put(data + 1, "i")
        rows = x.sharding

        def total(v):  # a step of its own, between two segments
            return (v * v).sum()

        def f(x, y):
            kept = meshard.lax.with_sharding_constraint(y, rows)
            z = x * 2 + 1
            return (z / total(z)) + 1, kept * 2 + total(kept)

        jitted = meshard.jit(f)
        steps = jitted.lower(x, y).executable.steps
        assert len([s for s in steps if "+" in s.name]) >= 2
        expected = [whole(one) for one in f(x, y)]
        for _ in range(5):
            for found, one in zip(jitted(x, y), expected, strict=True):
                assert whole(found).tobytes() == one.tobytes()
        assert whole(x).tobytes() == data.tobytes()
        assert whole(y).tobytes() == (data + 1).tobytes()

    alone(body)


# XLA


@pytest.fixture
def xla():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", False)
    meshard.config.update("jit_compiler", "xla")
    yield
    meshard.config.update("jit_compiler", "auto")
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.usefixtures("xla")
@in_worlds
def test_xla_runs_large_segments_if_it_is_asked_to():
    for dtype in np.float32, np.float64:
        x = put(normal(1024, 512).astype(dtype), "i", "j")
        y = put(normal(1024, 1).astype(dtype), "i")

        def f(x, y, n):
            z = mnp.tanh(x * n + y) - x.max()
            return z, z > 0, (z * z).astype(np.float64)

        assert CompiledSegment in ways(f, x, y, 2.5)
        for found, expected in zip(meshard.jit(f)(x, y, 2.5), f(x, y, 2.5), strict=True):
            assert found.dtype == expected.dtype
            assert found.sharding.is_equivalent_to(expected.sharding, 2)
            np.testing.assert_allclose(whole(found), whole(expected), rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("xla")
def test_xla_leaves_to_numpy_what_it_cannot_do():
    def body():
        x = put(normal(1024, 512), "i")
        big = put(np.arange(1 << 20, dtype=np.complex128).reshape(1024, 1024), "i")
        assert ways(lambda z: (z + 1).conj() * 2, big) == {Rows}
        same_bits(lambda v: mnp.nextafter(v, 1) + mnp.cumsum(v, axis=1), x)

    alone(body)


def test_other_compilers_are_refused():
    told = "jit_compiler must be 'auto', 'numpy', or one of 'llvm', 'xla'"
    with pytest.raises(meshard.errors.ArgumentError, match=told):
        meshard.config.update("jit_compiler", "gcc")


@pytest.mark.usefixtures("xla")
@in_worlds
def test_xla_runs_bodies_between_collectives():
    """A heat step and a k-means step: slices, joins, contractions, positions, loops."""

    def heat(_, tile):
        above = meshard.lax.ppermute(tile[-1:], "i", [(k, k + 1) for k in range(3)])
        rows = mnp.concatenate([above, tile], axis=0)
        return tile + 0.1 * (rows[:-1] - tile)

    def nearest(points, centres):
        distance = (centres**2).sum(axis=1) - points @ (2 * centres.T)
        place = mnp.argmin(distance, axis=1)
        member = (place[:, None] == mnp.arange(8)).astype(points.dtype)
        return meshard.lax.psum(member.T @ points, ("i", "j"))

    loop = meshard.shard_map(
        lambda x: meshard.lax.fori_loop(0, 3, heat, x),
        mesh=mesh(),
        in_specs=P("i", "j"),
        out_specs=P("i", "j"),
    )
    once = meshard.shard_map(nearest, mesh=mesh(), in_specs=(P(("i", "j")), P()), out_specs=P())
    plate, points = put(normal(2048, 1024), "i", "j"), put(normal(1 << 15, 16), ("i", "j"))
    centres = put(normal(8, 16))
    assert "region" in str(with_regions_of(loop, plate))
    found = whole(meshard.jit(loop)(plate))
    np.testing.assert_allclose(found, whole(loop(plate)), rtol=1e-12, atol=1e-13)
    found = whole(meshard.jit(once)(points, centres))
    np.testing.assert_allclose(found, whole(once(points, centres)), rtol=1e-9, atol=1e-9)


def with_regions_of(f: Any, *args: Any) -> Any:
    """Return the body of a function's one shard_map, with what the compiler runs."""
    (eqn,) = meshard.jit(f).trace(*args).program.eqns
    return with_regions(eqn.call.body)


@pytest.mark.usefixtures("xla")
def test_xla_computes_in_the_dtypes_of_numpy_and_keeps_its_nans():
    def body():
        def f(x, i, j):
            return {
                "a sum in float64": (x + 1).sum(axis=1, dtype=np.float64),
                "a quotient of integers": (i + 1) / (j + 20),
                "an integer times a float": (i + 1) * 0.1,
                "an integer beside a float32": (i + 1) * x,
                "integers divided by zero": (i + 1) // j,
                "the greatest": mnp.where(x < 1, x, mnp.nan).max(axis=1),
                "the least": mnp.where(x < 1, x, mnp.nan).min(axis=1, keepdims=True),
            }

        x = put(normal(1024, 512).astype(np.float32), "i")
        i, j = (put(random_integers(seed), "i") for seed in (1, 2))
        with np.errstate(divide="ignore"):
            assert CompiledSegment in ways(f, x, i, j)
            found, expected = meshard.jit(f)(x, i, j), f(x, i, j)
        for name, value in expected.items():
            assert found[name].dtype == value.dtype, name
            np.testing.assert_allclose(
                whole(found[name]), whole(value), rtol=1e-13, atol=1e-13, err_msg=name
            )

    alone(body)


def random_integers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, (1024, 512)).astype(np.int32)


def test_a_scan_takes_each_block_as_one():
    """Blocks that are long enough to be computed in stretches are scanned from end to end."""
    value = np.random.default_rng(0).normal(size=300_003)
    x = put(value, ("i", "j"), uneven="balanced")
    for f in (mnp.cumsum, lambda x: lax.cummax(x, axis=0), lambda x: mnp.sort(mnp.cumsum(x))):
        np.testing.assert_array_equal(np.asarray(meshard.jit(f)(x)), np.asarray(f(x)))
