"""Programs that LLVM compiles give NumPy's bits, whatever they are made of."""

from __future__ import annotations

import fcntl
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.special
from hypothesis import given, note, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.ops.engine.decide import find_row
from meshard.ops.fused import compilers
from meshard.ops.fused.ways import Rows
from meshard.ops.row import MoveOp, Op
from meshard.runtime.doors import bind
from meshard.runtime.world import here
from meshard.sharding import P
from tests.worlds import alone, in_worlds, mesh, put, whole

pytest.importorskip("llvmlite")

from meshard.interop.llvm import compiler, templates
from meshard.interop.llvm import compiler as llvm
from meshard.interop.llvm.nodes import Unsupported
from meshard.interop.llvm.works import work_of

Array = np.ndarray[Any, Any]
Step = tuple[str, tuple[int, ...], dict[str, Any]]
"""An operation, the numbers of its operands, and its parameters."""

DTYPES = [np.dtype(c) for c in "?bhilBHILfd"]
UNARY = (
    *("negative", "absolute", "sqrt", "square", "sign", "floor", "ceil", "trunc", "rint", "exp"),
    *("tanh", "isnan", "isinf", "isfinite", "signbit", "logical_not", "invert", "reciprocal"),
    *("positive", "log", "erf", "logistic", "deg2rad"),
)
BINARY = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin", "copysign"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and"),
    *("logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift"),
    *("right_shift", "floor_divide", "remainder", "power"),
)


def run(name: str, params: dict[str, Any], args: Sequence[Any]) -> Array:
    """Return what a row gives on NumPy's arrays."""
    row = find_row(name)
    if isinstance(row, MoveOp):
        return moved(row, params, args)
    assert isinstance(row, Op)
    if name in ("sum", "prod"):
        dtype = params["dtype"] or np.add.reduce(np.ones(1, args[0].dtype)).dtype
        params = {**params, "accumulator": dtype}
    # The engine gives kernels whose last bits depend on it operands in C order.
    args = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) and x.ndim else x for x in args]
    with np.errstate(all="ignore"):
        return np.asarray(row.kernel(*args, **params))


def moved(row: MoveOp, params: dict[str, Any], args: Sequence[Array]) -> Array:
    maps = row.maps([x.shape for x in args], params)
    out = np.zeros([m.size for m in maps[0]], args[0].dtype)
    for x, own in zip(args, maps, strict=True):
        places = [m.positions() for m in own]
        target = np.ix_(*[np.flatnonzero(p >= 0) for p in places])
        out[target] = x[np.ix_(*[p[p >= 0] for p in places])]
    dropped = params.get("dropped", ())
    return out.reshape([n for d, n in enumerate(out.shape) if d not in dropped])


def compiled(steps: Sequence[tuple[Step, np.dtype[Any]]], wanted: Sequence[int]) -> Any:
    """Return a program of some steps; each comes with the dtype of its result."""
    works = [(work_of(name, params, dtype), reads) for (name, reads, params), dtype in steps]
    if any(work is None for work, _ in works):
        raise Unsupported("a step is left to NumPy")

    def program(*inputs: Any) -> list[Any]:
        values = list(inputs)
        for work, reads in works:
            assert work is not None
            values.append(work(*[values[r] for r in reads]))
        return [values[k] for k in wanted]

    return llvm.Program(program)


def same(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind == "f":  # a NaN is a NaN, whatever its payload
        lost = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), lost)
        found, expected = np.where(lost, 0, found), np.where(lost, 0, expected)
    assert found.tobytes() == expected.tobytes()


def as_kind(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, np.ndarray) else type(x)


def check(inputs: Sequence[Any], steps: Sequence[Step], wanted: Sequence[int] = ()) -> bool:
    """Compare a program with NumPy; whether it was compiled."""
    values = list(inputs)
    typed = []
    for name, reads, params in steps:
        values.append(run(name, params, [values[r] for r in reads]))
        typed.append(((name, reads, params), values[-1].dtype))
    wanted = tuple(wanted) or (len(values) - 1,)
    try:
        program = compiled(typed, wanted)
        program(here(), [inputs])
        llvm.BEHIND.finish()
    except Unsupported:
        return False
    found = program(here(), [inputs])
    if found is None:
        told = program.refusal([as_kind(x) for x in inputs])
        assert not told.startswith("LLVM"), told
        return False
    # Inputs may be written over: all, then each of two halves; what may not keeps its bits.
    arrays = [k for k, x in enumerate(inputs) if isinstance(x, np.ndarray)]
    cells, free = [inputs], [[], arrays, arrays[::2], arrays[1::2]]
    cells += [[laid_out_alike(x) for x in inputs] for _ in free[1:]]
    for cell, own, results in zip(cells, free, program(here(), cells, free), strict=True):
        for k, x in zip(wanted, results, strict=True):
            same(x, values[k])
        for k in set(arrays) - set(own):
            assert cell[k].tobytes() == inputs[k].tobytes(), k
    return True


def laid_out_alike(x: Any) -> Any:
    """Return a copy of a block with the same strides, a number as it is."""
    if not isinstance(x, np.ndarray):
        return x
    low = sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True) if s < 0 and n)
    room = sum((n - 1) * abs(s) for n, s in zip(x.shape, x.strides, strict=True) if n) + x.itemsize
    copy = np.ndarray(x.shape, x.dtype, bytearray(room), -low, x.strides)
    copy[...] = x
    return copy


def example(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Array:
    """Return numbers of which some are at the ends of what the dtype has."""
    draw = np.random.default_rng(seed)
    if dtype.kind == "b":
        return draw.random(shape) < 0.5
    if dtype.kind == "f":
        x = (draw.standard_normal(shape) * 3).astype(dtype)
        odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, np.finfo(dtype).max, 1.0]
        marks = draw.integers(0, 5 * len(odd), shape)
        return np.where(marks < len(odd), np.array(odd, dtype)[marks % len(odd)], x)
    info = np.iinfo(dtype)
    x = draw.integers(-9 if info.min else 0, 10, shape).astype(dtype)
    marks = draw.integers(0, 20, shape)
    return np.where(marks == 0, dtype.type(info.max), np.where(marks == 1, info.min, x)).astype(
        dtype
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_elementwise_operation_has_numpys_bits(dtype):
    x, y = (example(dtype, (257,), seed) for seed in (1, 2))
    count = 0
    for name in (*UNARY, *BINARY):
        reads = (0,) if name in UNARY else (0, 1)
        try:
            count += check([x, y], [(name, reads, {})])
        except (TypeError, ValueError):  # NumPy has no such operation for the dtype
            continue
        if name in BINARY:
            check([x, y], [(name, (1, 0), {}), ("multiply", (2, 2), {})])
    assert count > 20 or dtype.kind != "f"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts_have_numpys_bits(dtype):
    x = example(dtype, (100,), 3)
    for target in DTYPES:
        given = x
        if dtype.kind == "f" and target.kind in "iu":  # beyond the range C says nothing
            given = np.where(np.abs(x) < 100, np.abs(x), 1).astype(dtype)
        with np.errstate(all="ignore"):
            assert check([given], [("astype", (0,), {"dtype": target})]) == (
                dtype.kind != "f" or target != np.dtype("u8")
            )


SHAPES = [
    *[(7, 5), (1, 9), (33, 1), (4, 3, 6), (40,), (300, 8), (1, 40), (1, 1), (2, 1, 3), (1,)],
    *[(0, 4), (5, 0), (0,), (3, 9), (2, 3, 1, 4)],
]
Program = tuple[list[Any], list[Step], list[int]]
"""Inputs, steps, and the numbers of the wanted values."""


def program_of(seed: int) -> Program:
    """Return a program that a number stands for."""
    pick = random.Random(seed)
    shape = pick.choice(SHAPES)
    dtype = pick.choice([*DTYPES, *[np.dtype("f"), np.dtype("d")] * 4])
    turned = tuple(range(len(shape)))[::-1]
    every = pick.choice([2, -1, -3])
    inputs: list[Any] = [
        example(dtype, shape, 5),
        example(dtype, shape, 6),
        example(dtype, shape[::-1], 7).transpose(turned),
        example(pick.choice(DTYPES), (*shape[:-1], 1), 8),
        example(dtype, (*shape[:-1], shape[-1] * abs(every)), 9)[..., ::every],
        example(dtype, shape[1:], 10),
        pick.choice([2, 0.5, -1, 3.0]),
    ]
    values = list(inputs)
    steps: list[Step] = []
    for _ in range(pick.randint(1, 12)):
        step = one_step(pick, values)
        try:
            found = run(step[0], step[2], [values[r] for r in step[1]])
        except (TypeError, ValueError, OverflowError):  # NumPy has no such operation
            continue
        if found.dtype in DTYPES and found.size <= 20_000:
            values.append(found)
            steps.append(step)
    made = range(len(inputs), len(values))
    return inputs, steps, pick.sample(made, min(len(made), pick.randint(1, 4)))


def one_step(pick: random.Random, values: Sequence[Any]) -> Step:
    """Return an operation on some of the values."""
    arrays = [k for k, x in enumerate(values) if isinstance(x, np.ndarray)]
    k = pick.choice(arrays if pick.random() < 0.5 else arrays[-2:])
    x = values[k]
    j = pick.choice([j for j, y in enumerate(values) if fits(x, y)])
    i = pick.choice([i for i in arrays if fits(x, values[i])])
    kinds: list[Step] = [
        (pick.choice(UNARY), (k,), {}),
        (pick.choice(BINARY), (k, j), {}),
        (pick.choice(BINARY), (j, k), {}),
        ("where", (i, k, j), {}),
        ("astype", (k,), {"dtype": cast_of(pick, x)}),
    ]
    if x.ndim and pick.random() < 0.5:
        a = pick.randrange(x.ndim)
        other = pick.choice([j for j in arrays if alike(x, values[j])])
        over = tuple(sorted(pick.sample(range(x.ndim), pick.randint(1, x.ndim))))
        keep = pick.random() < 0.5
        kinds += [
            ("roll", (k,), {"dims": ((a, (2,)),)}),
            ("flip", (k,), {"dims": ((a, ()),)}),
            ("pad_zeros", (k,), {"dims": ((a, (pick.randrange(3), pick.randrange(3))),)}),
            ("slice", (k,), sliced(x.ndim, a, x.shape)),
            ("concatenate", (k, other), {"axis": a}),
            ("transpose", (k,), {"axes": tuple(pick.sample(range(x.ndim), x.ndim))}),
            ("reshape", (k,), {"shape": pick.choice([(x.size,), (*x.shape, 1)])}),
            ("broadcast_to", (k,), {"shape": (3, *x.shape)}),
            *[(name, (k,), reduced(name, over, keep)) for name in ("sum", "max", "any", "prod")],
            (pick.choice(("argmin", "argmax")), (k,), {"axis": (x.ndim - 1,), "keepdims": keep}),
        ]
    return pick.choice(kinds)


def reduced(name: str, axes: tuple[int, ...], keep: bool) -> dict[str, Any]:
    more = {"dtype": None} if name in ("sum", "prod") else {}
    return {"axis": axes, "keepdims": keep, **more}


def sliced(rank: int, axis: int, shape: Sequence[int]) -> dict[str, Any]:
    own = (1, None, 2) if shape[axis] > 2 else (None, None, -1)
    return {
        "slices": tuple([own if d == axis else (None, None, 1) for d in range(rank)]),
        "dropped": (),
    }


def cast_of(pick: random.Random, x: Array) -> np.dtype[Any]:
    """Return a dtype that can hold the values: beyond its range C says nothing."""
    low, high = (x.min(), x.max()) if x.size else (0, 0)
    return pick.choice(
        [t for t in DTYPES if t.kind == "f" or x.dtype.kind != "f" or (low >= 0 and high < 100)]
    )


def alike(x: Array, y: Array) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape


def fits(x: Any, y: Any) -> bool:
    try:
        shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    except ValueError:
        return False
    return math.prod(shape) <= 20_000


@pytest.mark.parametrize("shape", [(1, 40), (8, 5), (64,), (3, 1, 2)])
def test_what_is_written_over_an_input_waits_for_all_that_read_it(shape):
    """Two results in one nest of loops: the first is written over what the second reads."""
    x, short = example(np.dtype("d"), shape, 1), example(np.dtype("f"), shape, 2)
    wide: Step = ("astype", (1,), {"dtype": x.dtype})
    assert check([x, short], [wide, ("add", (2, 0), {})], [2, 3])
    assert check([x, short], [wide, ("tanh", (2,), {}), ("add", (3, 0), {})], [3, 2, 4])


@pytest.mark.parametrize("why", ["refused", "not yet compiled", "too large a number"])
def test_nothing_is_written_over_unless_all_cells_can_run(why):
    """Blocks that only some cells have a program for: NumPy runs all of them, on what was given."""
    dtype = np.dtype("d")
    steps: list[Step] = [("add", (0, 1), {}), ("multiply", (2, 2), {})]
    program = compiled([(step, dtype) for step in steps], [3])
    first = [example(dtype, (4, 3), 1), 300]
    second: dict[str, list[Any]] = {
        "refused": [np.zeros((4, 3), complex), 300],
        "not yet compiled": [np.zeros((5, 3)), 300],
        "too large a number": [np.zeros((4, 3), np.int8), 300],
    }
    for cell in [first, *([] if why == "not yet compiled" else [second[why]])]:
        program(here(), [cell])
        llvm.BEHIND.finish()
    assert program(here(), [first]) is not None
    before = first[0].copy()
    with (
        mock.patch.object(llvm.BEHIND, "add"),
        mock.patch.object(llvm, "known", return_value=False),
    ):
        assert program(here(), [first, second[why]], [[0], [0]]) is None
    assert first[0].tobytes() == before.tobytes()


@settings(max_examples=150)
@given(st.integers(0, 1 << 40))
def test_any_program_has_numpys_bits(seed):
    inputs, steps, wanted = program_of(seed)
    note(f"{[(np.shape(x), getattr(x, 'dtype', type(x))) for x in inputs]} {steps} {wanted}")
    if wanted:
        check(inputs, steps, wanted)


def test_a_planted_miscompilation_is_found(monkeypatch):
    """One wrong instruction: products are computed with the operands' sum."""
    wrong = dict(templates.FLOATS, multiply=templates.FLOATS["add"])
    monkeypatch.setitem(templates.TABLES, "f", wrong)
    x = example(np.dtype("f"), (64,), 1)
    with pytest.raises(AssertionError):
        check([x], [("multiply", (0, 0), {})])


# The library's own programs


@pytest.fixture
def empty_cache(tmp_path):
    before = meshard.config.read("cache_dir")
    meshard.config.update("cache_dir", str(tmp_path / "kept"))
    yield tmp_path / "kept"
    meshard.config.update("cache_dir", before)


def chain(x: Any, n: float) -> Any:
    return mnp.tanh(x * n + 1) * x - x.sum(axis=1, keepdims=True)


def large() -> Any:
    return put(example(np.dtype("f"), (1024, 512), 4), "i")


def test_numpy_runs_a_segment_until_it_is_compiled_and_bits_stay(empty_cache):
    def body():
        x = large()
        with np.errstate(all="ignore"):
            expected = whole(chain(x, 1.5))
            f = meshard.jit(chain)
            first = whole(f(x, 1.5))
            llvm.BEHIND.finish()
            with mock.patch.object(Rows, "__call__", side_effect=AssertionError("NumPy runs")):
                second = whole(f(x, 1.5))
        assert first.tobytes() == second.tobytes() == expected.tobytes()
        assert not [t for t in threading.enumerate() if t.name == "meshard-llvm"]
        assert [p for p in empty_cache.rglob("*") if p.is_file() and not p.name.startswith(".")]

    alone(body)


def compiled_once(f: Any, *args: Any) -> int:
    """Return how many programs LLVM compiles, and does not load, for one call."""
    with mock.patch.object(
        compiler.Builder, "compiled", autospec=True, side_effect=compiler.Builder.compiled
    ) as made:
        with np.errstate(all="ignore"):
            f(*args)
        llvm.BEHIND.finish()
    return made.call_count


def test_programs_are_kept_on_disk_and_what_is_broken_there_is_made_anew(empty_cache):
    def body():
        x = large()
        assert compiled_once(meshard.jit(lambda v: chain(v, 2)), x) == 1
        assert compiled_once(meshard.jit(lambda v: chain(v, 2)), x) == 0
        (kept,) = [p for p in empty_cache.rglob("*") if p.is_file() and len(p.name) == 64]
        good = kept.read_bytes()
        for bad in (b"", good[:-1], good[:-1] + b"!", b"meshard 0\n" + good[10:], b"x" * 5000):
            kept.write_bytes(bad)
            assert compiled_once(meshard.jit(lambda v: chain(v, 2)), x) == 1
            assert kept.read_bytes() == good
        for _ in range(10):
            assert compiled_once(meshard.jit(lambda v: chain(v, 2)), x) == 0

    alone(body)


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    before = meshard.config.read("cache_dir")
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")

    def body():
        meshard.config.update("cache_dir", str(blocked / "below"))
        x = large()
        for _ in range(2):
            assert compiled_once(meshard.jit(lambda v: chain(v, 3)), x) == 1

    try:
        alone(body)
    finally:
        meshard.config.update("cache_dir", before)
    assert blocked.read_text() == "not a folder"


def test_a_program_that_llvm_refuses_is_numpys(empty_cache):
    def body():
        x = large()
        f = meshard.jit(chain)
        with (
            mock.patch.object(
                compiler.Builder, "compiled", side_effect=RuntimeError("no such word")
            ),
            np.errstate(all="ignore"),
        ):
            found = [whole(f(x, 2.0)) for _ in range(3)]
            llvm.BEHIND.finish()
            found += [whole(f(x, 2.0)) for _ in range(10)]
            expected = whole(chain(x, 2.0))
        assert {one.tobytes() for one in found} == {expected.tobytes()}

    alone(body)


def test_explain_says_who_runs_what():
    def body():
        x = large()
        told = str(meshard.explain(lambda v: v.astype(np.uint64) + 1, x))
        assert "run by NumPy               step 1, because floats are made uint64 by NumPy" in told
        told = meshard.explain(lambda v: v * 2 + 1, x)
        assert [s.runner for s in told.steps] == ["LLVM"]
        assert "run by LLVM                step 1" in str(told)

    alone(body)


@pytest.mark.parametrize("how", ["raise", "call", "print", "log"])
def test_who_asks_to_be_told_of_overflow_is_told_by_numpy(how):
    def body():
        x = put(np.full((1024, 512), 3e38, "f"), "i")
        f = meshard.jit(lambda v: v * 2 + 1)
        with np.errstate(all="ignore"):
            f(x)
            llvm.BEHIND.finish()
            f(x)
        told: list[Any] = []
        with np.errstate(over=how, call=lambda *a: told.append(a)):
            if how == "raise":
                with pytest.raises(FloatingPointError):
                    f(x)
            elif how == "call":
                f(x)
                assert told
        with np.errstate(all="ignore"):
            assert np.isinf(whole(f(x))).all()

    alone(body)


def test_who_asks_scipy_to_raise_is_told_by_scipy():
    def body():
        x = put(np.full((1024, 512), -1.0), "i")
        f = meshard.jit(lambda v: bind("lgamma", v) * 2 + 1)
        f(x)
        llvm.BEHIND.finish()
        assert np.isinf(whole(f(x))).all()
        with (
            scipy.special.errstate(singular="raise"),
            pytest.raises(scipy.special.SpecialFunctionError),
        ):
            f(x)
        for _ in range(10):
            assert np.isinf(whole(f(x))).all()

    alone(body)


def test_a_lock_that_a_stopped_process_holds_is_not_waited_for_long(empty_cache, monkeypatch):
    monkeypatch.setattr(compiler, "_PATIENCE", 0.05)
    taken = []

    def open_and_hold(*args: Any, **more: Any) -> int:
        other = os_open(*args, **more)  # another description of the same file
        fcntl.flock(other, fcntl.LOCK_EX)
        taken.append(other)
        return os_open(*args, **more)

    os_open = os.open
    with compiler._turn("ab" + "0" * 62):
        pass
    monkeypatch.setattr(compiler.os, "open", open_and_hold)
    with compiler._turn("ab" + "0" * 62):
        pass
    assert taken
    os.close(taken[0])


def test_a_compiler_that_cannot_be_loaded_is_told_of_once():
    broken = mock.Mock(load=mock.Mock(side_effect=ImportError("too new for this Python")))
    compilers.loaded.cache_clear()
    try:
        with (
            mock.patch("importlib.metadata.entry_points", return_value=[broken]),
            pytest.warns(RuntimeWarning, match=r"'llvm' cannot be loaded \(ImportError: too new"),
        ):
            assert compilers.chosen() is None
        assert compilers.chosen() is None
    finally:
        compilers.loaded.cache_clear()
    assert compilers.chosen() is not None


def test_without_llvmlite_numpy_runs_everything_silently():
    with mock.patch.object(compilers, "find_spec", return_value=None):
        assert compilers.chosen() is None
        with pytest.raises(meshard.errors.ConfigError, match=r'pip install "meshard\[fast\]"'):
            meshard.config.update("jit_compiler", "llvm")


@in_worlds
def test_bodies_are_compiled_between_collectives():
    """The heat equation and k-means have the bits that NumPy gives them."""

    def heat(_, tile):
        above = lax.ppermute(tile[-1:], "i", [(k, k + 1) for k in range(3)])
        left = lax.ppermute(tile[:, -1:], "j", [(0, 1)])
        rows = mnp.concatenate([above, tile], axis=0)
        columns = mnp.concatenate([left, tile], axis=1)
        return tile + 0.1 * (rows[:-1] + columns[:, :-1] - 2 * tile)

    def nearest(points, centres):
        distance = ((points[:, None, :] - centres) ** 2).sum(axis=2)
        place = mnp.argmin(distance, axis=1)
        member = (place[:, None] == mnp.arange(8)).astype(points.dtype)
        return lax.psum(member.sum(axis=0), ("i", "j"))

    plate = put(np.random.default_rng(0).standard_normal((1024, 512)), "i", "j")
    loop = meshard.shard_map(
        lambda x: lax.fori_loop(0, 4, heat, x),
        mesh=mesh(),
        in_specs=P("i", "j"),
        out_specs=P("i", "j"),
    )
    points = put(np.random.default_rng(1).standard_normal((1 << 15, 16)), ("i", "j"))
    centres = put(np.random.default_rng(2).standard_normal((8, 16)))
    once = meshard.shard_map(nearest, mesh=mesh(), in_specs=(P(("i", "j")), P()), out_specs=P())
    for f, args in ((loop, (plate,)), (once, (points, centres))):
        jitted = meshard.jit(f)
        expected = whole(f(*args)).tobytes()
        for _ in range(3):
            assert whole(jitted(*args)).tobytes() == expected
            llvm.BEHIND.finish()


FORKED = """
import os
import numpy as np
import meshard
import meshard.numpy as mnp
from meshard.interop.llvm import compiler
meshard.config.update("num_devices", 1)
x = np.random.default_rng(0).standard_normal((1024, 512)).astype("f")
f = meshard.jit(lambda v: mnp.tanh(v * 2 + 1) * v)
g = meshard.jit(lambda v: mnp.exp(v * 3) - v)
first = np.asarray(f(x))
compiler.BEHIND.finish()
if {busy}:
    compiler._LOCK.acquire()  # as if another thread compiled just now
child = os.fork()
if not child:
    ok = True
    for _ in range(10):  # what is compiled runs, and what is not is compiled, or NumPy's
        ok &= np.asarray(f(x)).tobytes() == first.tobytes()
        ok &= np.asarray(g(x)).tobytes() == (np.exp(x * np.float32(3)) - x).tobytes()
        compiler.BEHIND.finish()
    os._exit(0 if ok else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.no_job
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_runs_what_is_compiled_and_never_waits_for_its_parent(busy, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKED.format(busy=busy)],
        env={**os.environ, "MESHARD_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "0\n", done.stderr


# Polynomials


@pytest.fixture
def fast_math():
    meshard.config.update("jit_math", "fast")
    yield
    meshard.config.update("jit_math", "exact")


@pytest.mark.usefixtures("fast_math")
@pytest.mark.parametrize("name", ["exp", "tanh", "log", "logistic"])
@pytest.mark.parametrize("dtype", [np.dtype("f"), np.dtype("d")], ids=str)
def test_polynomials_are_within_two_units_in_the_last_place(name, dtype):
    draw = np.random.default_rng(0)
    end = 750 if dtype.itemsize == 8 else 110
    x = np.concatenate(
        [
            draw.uniform(-end, end, 200_000).astype(dtype),
            draw.standard_normal(200_000).astype(dtype),
            np.exp(draw.uniform(-80, 80, 100_000)).astype(dtype),
            np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-40, 3e38, -3e38], dtype),
        ]
    )
    reference = (lambda v: 1 / (1 + np.exp(-v))) if name == "logistic" else getattr(np, name)
    program = compiled([((name, (0,), {}), dtype)], [1])
    program(here(), [[x]])
    llvm.BEHIND.finish()
    ((found,),) = program(here(), [[x]])
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble))
        rounded = exact.astype(dtype)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.finfo(dtype).tiny))
    # The logistic function is made of three operations, each of which rounds.
    assert np.max(np.abs(found[finite] - exact[finite]) / unit) < (3 if name == "logistic" else 2)


def test_jit_math_changes_what_is_compiled_next():
    def body():
        x = put(np.random.default_rng(0).standard_normal((1024, 512)).astype("f"), "i")
        f = meshard.jit(lambda v: mnp.exp(v * 0.5) + 1)
        found = []
        for how in ("exact", "fast", "exact"):
            meshard.config.update("jit_math", how)
            f(x)
            llvm.BEHIND.finish()
            found.append(whole(f(x)))
        assert found[0].tobytes() == found[2].tobytes() == whole(mnp.exp(x * 0.5) + 1).tobytes()
        np.testing.assert_array_max_ulp(found[0], found[1], 4)

    alone(body)


SCATTERED = """
import ctypes
from unittest import mock
import numpy as np
import meshard
import meshard.numpy as mnp
from meshard.interop.llvm import compiler as llvm

def compiled(number):
    f = meshard.jit(lambda x: mnp.tanh(x * (1.5 + number)) + mnp.exp(-x * x) * 0.1 - x / 3)
    x = meshard.device_put(np.random.default_rng(number).standard_normal((600, 600)))
    with mock.patch.object(llvm, "BEHIND", llvm.Behind()) as behind:
        first = np.asarray(f(x))
        behind.finish()
        return first.tobytes() == np.asarray(f(x)).tobytes()

assert compiled(0)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
size, taken = 1 << 45, []
while size >= 1 << 16:  # all addresses are reserved
    address = libc.mmap(None, size, 0, 0x4022, -1, 0)
    if address in (None, 2**64 - 1):
        size >>= 1
    else:
        taken.append((address, size))
for address, size in taken:  # but for small places, far from each other, and one that is large
    for offset in range(0, size if size > 1 << 34 else 0, 8 << 30):
        libc.munmap(address + offset, 1 << 14)
libc.munmap(taken[0][0] + (taken[0][1] >> 1), 6 << 30)
assert all(map(compiled, range(1, 12)))
"""


@pytest.mark.timeout(100)
@pytest.mark.skipif(sys.platform != "linux", reason="it reserves addresses as Linux does")
def test_code_and_constants_may_lie_far_apart(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCATTERED],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path), "MESHARD_NUM_DEVICES": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_way_back_of_a_halo_exchange_is_two_regions() -> None:
    """What it sends, and all the rest: large values pass through memory once."""
    size = 1024
    right, left = [(k, k + 1) for k in range(3)], [(k + 1, k) for k in range(3)]

    def body(x: Any) -> Any:
        above, below = lax.ppermute(x[-1:], "i", right), lax.ppermute(x[:1], "i", left)
        rows = mnp.concatenate([above, x, below])
        return x + 0.1 * (rows[:-2] + rows[2:] - 2 * x)

    f = meshard.shard_map(body, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
    back = meshard.jit(meshard.grad(lambda x: mnp.sum(f(x) * x)))
    x = mnp.asarray(np.random.default_rng(0).normal(size=(size, size)))
    text = back.lower(x).as_text()
    assert text.count("= region ") == 3, text  # one of them on the way there
    expected = meshard.grad(lambda x: mnp.sum(f(x) * x))(x)
    for _ in range(2):  # by NumPy, and compiled
        assert np.array_equal(back(x), expected)
        llvm.BEHIND.finish()
