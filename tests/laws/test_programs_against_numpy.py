"""Programs made at random give what the same programs give in NumPy.

Every public function is drawn, with operands of every dtype, shape and layout; eager and jitted,
in one process and in two. Every row of the registry is exercised, and a fault that is planted in
any one of them, or in the engine, is noticed. `HYPOTHESIS_PROFILE=thorough` runs far more.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import meshard
from meshard.algebra.dimmap import DimMap
from meshard.ops.dtypes.laws import is_float
from meshard.ops.engine import eager, run
from meshard.ops.engine import reduction as exchange
from meshard.ops.random import tiles as sampling
from meshard.ops.reductions import reduce
from meshard.ops.row import REGISTRY, MoveOp, Op
from meshard.runtime.types import KEY
from meshard.runtime.world import Memo, RuntimeWorld
from tests.numpy_expressions import EXPRESSIONS
from tests.programs.cases import CASES
from tests.programs.check import check, drawn, jitted, outside, verify
from tests.programs.draw import ASIDE, Program
from tests.test_api import collectives
from tests.worlds import alone

pytestmark = pytest.mark.timeout(900)  # of busy machines; thorough runs take longer still
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
NAMES = sorted(CASES)
WEIGHTS = np.array([CASES[n].weight for n in NAMES])
WEIGHTS /= WEIGHTS.sum()
MODULES = ("numpy", "numpy.linalg", "numpy.fft", "lax", "nn", "random")
WITHOUT_A_MODEL = {
    "collectives, which test_shard_map_against_jax draws": {f"lax.{n}" for n in collectives()},
    "functions of dtypes and shapes, without arrays": {
        *("numpy.broadcast_shapes", "numpy.can_cast", "numpy.finfo", "numpy.iinfo"),
        *("numpy.isdtype", "numpy.issubdtype", "numpy.promote_types", "numpy.result_type"),
        *("lax.broadcast_shapes", "random.key_dtype", "random.key_impl"),
    },
    "what they return has no values of its own": {
        *("numpy.empty", "numpy.empty_like", "numpy.from_dlpack", "random.key", "random.PRNGKey"),
        "lax.with_sharding_constraint",
    },
    "special functions; see test_special": {
        *("lax.igamma", "lax.igammac", "lax.betainc", "lax.zeta", "lax.polygamma"),
        *("lax.bessel_i0e", "lax.bessel_i1e", "lax.random_gamma_grad"),
    },
    "windows and places of any kind; see test_lax_windows": {
        *("lax.approx_max_k", "lax.approx_min_k", "lax.broadcast_like", "lax.broadcast_to_rank"),
        *("lax.conv", "lax.conv_dimension_numbers", "lax.conv_general_dilated"),
        *("lax.conv_general_dilated_patches", "lax.conv_transpose"),
        *("lax.conv_with_general_padding", "lax.empty", "lax.fft", "lax.gather"),
        *("lax.padtype_to_pads", "lax.platform_dependent", "lax.ragged_dot"),
        *("lax.reduce_window", "lax.rng_bit_generator", "lax.scatter", "lax.scatter_add"),
        *("lax.scatter_apply", "lax.scatter_max", "lax.scatter_min", "lax.scatter_mul"),
        "lax.scatter_sub",
    },
    "they take functions that solve equations; see test_custom_rules": {
        *("lax.custom_linear_solve", "lax.custom_root"),
    },
    "drawn by test_numpy_names": {
        f"numpy.{name}" for name in EXPRESSIONS if callable(attrgetter(name)(meshard.numpy))
    }
    - CASES.keys(),
    "drawn by what their results make": {f"numpy.linalg.{n}" for n in ("eig", "eigh", "eigvals")},
}


def module_of(name: str) -> ModuleType:
    found: Any = meshard
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_every_public_function_has_a_model():
    public = {
        f"{module}.{name}"
        for module in MODULES
        for name, value in vars(module_of(module)).items()
        if not name.startswith("_") and callable(value) and not isinstance(value, type)
    }
    public.discard("numpy.vectorize")  # which takes a function: see test_vmap
    public.discard("numpy.writeable")  # which is around calls: see test_in_place
    excused = set().union(*WITHOUT_A_MODEL.values())
    missing = sorted(public - set(CASES) - excused)
    assert missing == [], "give each a case in tests/programs; docs/contributing says how"
    assert not excused & set(CASES)
    assert excused <= public


# every row

MANIFOLD = (
    *("random.", "lax.reduce_", "numpy.quantile", "numpy.percentile"),
    *("numpy.linalg.qr", "numpy.linalg.svdvals", "numpy.linalg.cholesky"),
)
"""Functions that run quite different rows, as their arguments are: more calls are drawn."""
Row = Op | MoveOp
Ways = dict[str, Callable[[Program], Any]]
WAYS: Ways = {"eager": outside, "jit": jitted}


@contextmanager
def planted(rows: dict[str, Row], samplers: dict[str, Any] | None = None) -> Iterator[None]:
    """Let the registry have other rows, and other samplers of random numbers."""
    before, drawing = dict(REGISTRY), dict(sampling._SAMPLERS)
    REGISTRY.update(rows)
    sampling._SAMPLERS.update(samplers or {})
    try:
        yield
    finally:
        REGISTRY.update(before)
        sampling._SAMPLERS.update(drawing)


def altered(row: Row, change: Callable[[Any], Any]) -> Row:
    """Return a row whose kernels, or maps, have their results changed."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: change(function(*args, **kwargs))

    if isinstance(row, MoveOp):
        return replace(row, maps=wrapped(row.maps))
    partial = row.partial
    if partial is not None and partial.kernel is not None:
        partial = replace(partial, kernel=wrapped(partial.kernel))
    return replace(row, kernel=wrapped(row.kernel), partial=partial)


@pytest.fixture(scope="module", autouse=True)
def across_devices() -> Iterator[None]:
    """Sort all but the smallest arrays across devices, and select there, as in large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshard.ops.reductions.sort.GATHERED_SORT", 32)
        patch.setattr("meshard.ops.array.samplesort.GATHERED_SORT", 32)
        patch.setattr("meshard.ops.reductions.select._pays", lambda x, axis, ranks: True)
        patch.setattr("meshard.ops.linalg.decompose.WHOLE_CHOLESKY", 0)
        yield


@pytest.fixture(scope="module")
def exercised() -> dict[str, list[tuple[Program, str]]]:
    """Return for each row, and each sampler, programs that run it, and in which way they do."""
    found: dict[str, list[tuple[Program, str]]] = defaultdict(list)
    now: list[Any] = [None]

    def noting(name: str) -> Callable[[Any], Any]:
        def note(result: Any) -> Any:
            if now[0] is not None and (not found[name] or found[name][-1] is not now[0]):
                found[name].append(now[0])
            return result

        return note

    def noted(name: str, sampler: Any) -> Any:
        return lambda *args: noting(f"sampler {name}")(sampler(*args))

    for module in MODULES:  # which register their rows
        module_of(module)
    rows = {name: altered(row, noting(name)) for name, row in REGISTRY.items()}
    samplers = {name: noted(name, s) for name, s in sampling._SAMPLERS.items()}
    with planted(rows, samplers):
        for name in NAMES:
            number = zlib.crc32(name.encode())  # the same, whichever other functions there are
            count = 14 if name.startswith(MANIFOLD) else 6
            for seed in range(count):
                way = "jit" if seed in (1, 3) else "eager"
                now[0] = None
                program = drawn((number, seed), [name])
                now[0] = program, way
                verify(program, alone(lambda way=way, program=program: WAYS[way](program)))
    return dict(found)


LARGE_ONLY = {
    *("igamma", "igammac", "betainc", "zeta", "polygamma", "bessel_i0e", "bessel_i1e"),
    *("again", "checkpoint_name", "clip", "cofactors", "pseudo_inverse", "random_gamma_slope"),
    *("search_pieces", "sort_whole", "stop_gradient"),
    *("convolve", "convolve_back", "reduce_windows", "sum_windows", "window_first"),
    *("runs", "tile_runs", "runs_like", "ragged_dot", "ragged_outer"),
    # What derivatives of Cholesky factors run: see test_tall.
    *("solve_triangular", "triangular_stretch", "triangular_rest"),
    *("sparse_times", "sparse_times_transposed", "sparse_sampled"),
}
"""Rows of large blocks, and of gradients, which these programs lack (see test_elementwise.py), of
two operands that are split alike, which they seldom have (see test_rows.py), of sparse matrices
(see test_sparse.py), and of what NumPy does not have (see test_lax_windows.py).
"""


def test_every_row_is_exercised(exercised):
    wanted = {*REGISTRY, *(f"sampler {name}" for name in sampling._SAMPLERS)} - LARGE_ONLY
    assert wanted - set(exercised) == set()


# planted faults


def changed_block(block: Any) -> Any:
    """Return a block whose last element is another."""
    found = np.array(block)
    if found.size:
        flat = found.reshape(-1)
        if flat.dtype.kind in "fc" or is_float(flat.dtype):
            with np.errstate(all="ignore"):
                last = np.asarray(-3 * flat[-1] - 1, flat.dtype)[()]
                flat[-1] = last if np.isfinite(last) and last != flat[-1] else 1
        elif flat.dtype.kind == "b" or flat.dtype == KEY:
            flat[-1:].view(np.uint8)[-1] ^= 1
        else:
            flat[-1] = ~flat[-1]
    return found


def on_results(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda found: tuple(map(change, found)) if isinstance(found, tuple) else change(found)


def changed_maps(maps: Any) -> Any:
    """Return maps that read the last two positions in the other order, or the last one twice."""

    def change(m: DimMap) -> DimMap:
        at = m.positions()
        if len(at) < 2 or min(at) < 0:
            return m
        last = at[-2:][::-1] if at[-1] != at[-2] else [(at[-1] + 1) % m.source_size] * 2
        return DimMap.take(m.source_size, [*at[:-2].tolist(), *map(int, last)])

    return tuple(tuple(map(change, dims)) for dims in maps)


def other_dtype(dtype: Any) -> Any:
    return np.dtype(np.float32 if dtype == np.float64 else np.float64)


def shifted(local: Any) -> Any:
    """Return what makes a cell believe that it starts one element later than it does."""

    def cell(params: Any, bounds: Any, shape: Any) -> Any:
        moved = {k: (a + i, b + i) for i, (k, (a, b)) in enumerate(bounds.items(), 1)}
        return local(params, moved, shape)

    return cell


def first_only(parts: Any) -> Any:
    return tuple(parts[0])


def faults_of(row: Row) -> dict[str, Row]:
    """Return the row with each of the faults that can be planted in it."""
    if isinstance(row, MoveOp):
        return {"two elements change places": altered(row, changed_maps)}
    found = {"the last element of a cell is wrong": altered(row, on_results(changed_block))}
    if row.dtypes is None:
        widen = on_results(lambda b: np.asarray(b).astype(other_dtype(np.asarray(b).dtype)))
        found["another dtype"] = altered(row, widen)
    elif not row.name.startswith("random_"):
        law = row.dtypes
        found["another dtype"] = replace(
            row, dtypes=lambda operands, params: tuple(map(other_dtype, law(operands, params)))
        )
    if row.local is not None:
        found["a cell is one element off"] = replace(row, local=shifted(row.local))
    if row.partial is not None:
        found["the first part is taken for the whole"] = replace(
            row, partial=replace(row.partial, combine=first_only)
        )
    return found


def noticed(programs: list[tuple[Program, str]]) -> bool:
    """Whether one of these programs gives another result than NumPy, or fails."""
    for program, way in programs:
        try:
            verify(program, alone(lambda way=way, program=program: WAYS[way](program)))
        except Exception:  # of any kind: a planted fault may break anything
            return True
    return False


def further(programs: list[tuple[Program, str]]) -> list[tuple[Program, str]]:
    """Return more programs of the functions that these call; without a fault they are right."""
    names = {zlib.crc32(s.name.encode()): s.name for program, _ in programs for s in program.steps}
    drawings = ((number, seed) for seed in range(20, 60) for number in sorted(names))
    found = [(drawn(pair, [names[pair[0]]]), "eager") for pair in islice(drawings, 60)]
    assert not noticed(found), f"{sorted(names.values())}: without any fault"
    return found


def goes_unnoticed(
    programs: list[tuple[Program, str]],
    rows: dict[str, Row],
    samplers: dict[str, Any] | None = None,
) -> bool:
    """Whether neither these programs nor more of their functions notice other rows, or samplers."""
    with planted(rows, samplers):
        if noticed(programs):
            return False
    more = further(programs)
    with planted(rows, samplers):
        return not noticed(more)


def test_a_fault_in_any_row_is_noticed(exercised):
    missed = []
    for name, row in REGISTRY.items():
        for fault, wrong in ({} if name in LARGE_ONLY else faults_of(row)).items():
            if (name, fault) in WITHOUT_EFFECT:
                continue
            if goes_unnoticed(exercised.get(name, []), {name: wrong}):
                missed.append((name, fault))
    for name, sampler in sampling._SAMPLERS.items():

        def wrong_sampler(draw: Any, out: Any, *constants: Any, sampler: Any = sampler) -> None:
            sampler(draw, out, *constants)
            out[...] = changed_block(out)

        if goes_unnoticed(exercised.get(f"sampler {name}", []), {}, {name: wrong_sampler}):
            missed.append((name, "the last element of a tile is wrong"))
    assert missed == []


WITHOUT_EFFECT = [
    ("flat", "two elements change places"),  # its map says the size alone
    ("reshape", "a cell is one element off"),  # a cell's parameters are its shape alone
    ("broadcast_to", "a cell is one element off"),
    # A cell is one stretch, and its parameters do not depend on where it is.
    ("scan", "a cell is one element off"),
    ("sort_runs", "a cell is one element off"),
    ("sort_runs_with", "a cell is one element off"),
    ("interpolate", "another dtype"),  # what it gives is converted
    # Which rows are factored first shows in signs at most, and what is set to zero is nearly so.
    ("qr_factors", "a cell is one element off"),
    ("qr_wide", "a cell is one element off"),
    # Counts that lead nowhere: the array is then sorted.
    ("ranks", "the last element of a cell is wrong"),
    ("ranks", "the first part is taken for the whole"),
]


# random programs

RUNS = int(os.environ.get("PROGRAMS", 2000 if THOROUGH else 40))
FIRST = int(os.environ.get("PROGRAMS_FROM", 0))
LOOKS = (
    *("dynamic", "take", "array.", "cond", "switch", "while", "random", "mapped", "quantile"),
    "lstsq",  # whether there are residuals depends on the rank
)


def program_of(seed: int) -> Program:
    """Draw a program of 3 to 10 calls; every third makes the same few calls again and again."""
    rng = np.random.default_rng([seed, 1])
    length = int(rng.integers(3, 11))
    if seed % 3:
        return drawn(seed, NAMES, WEIGHTS, length)
    return drawn(seed, [str(n) for n in rng.choice(NAMES, 2)], None, length)


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part):
    for seed in range(FIRST + part, FIRST + RUNS, 4):
        check(program_of(seed))


def test_arrays_of_another_process():
    """A process that has nothing of the arrays runs the same program, if no value is looked at."""
    names = [n for n in NAMES if not CASES[n].eager and not any(word in n for word in LOOKS)]
    for seed in range(RUNS // 3):
        check(drawn(seed, names, None, 5, ASIDE))


class Stale(dict[Any, Any]):
    """Decisions that are found again whatever the parameters of an operation are."""

    @staticmethod
    def short(key: Any) -> Any:
        return (key[0], *key[2:]) if type(key) is tuple and key[0] in REGISTRY else key

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self.short(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self.short(key), value)


def stale(patch: pytest.MonkeyPatch) -> None:
    whole = Memo.table

    def table(self: Any, world: RuntimeWorld) -> dict[Any, Any]:
        found = whole(self, world)
        if self is eager._RUNNERS and type(found) is dict:
            found = world.tables[self.number] = Stale(found)
        return found

    patch.setattr(Memo, "table", table)


def dropped(patch: pytest.MonkeyPatch) -> None:
    runs = DimMap.runs

    def short(self: Any, *args: Any) -> Any:
        found = runs(self, *args)
        if len(found) > 1 and found[-1].length > 1:
            found[-1] = found[-1]._replace(length=found[-1].length - 1)
        return found

    patch.setattr(DimMap, "runs", short)


def beside(patch: pytest.MonkeyPatch) -> None:
    runs = DimMap.runs

    def off(self: Any, start: int, stop: int, cuts: Any) -> Any:
        inner = [min(c + 1, cuts[-1]) for c in cuts[1:-1]]
        return runs(self, start, stop, (cuts[0], *inner, cuts[-1]) if len(cuts) > 2 else cuts)

    patch.setattr(DimMap, "runs", off)


def unmasked(patch: pytest.MonkeyPatch) -> None:
    for name, ufunc in (("max", np.maximum), ("min", np.minimum)):
        kernel = reduce._extreme(ufunc, lambda dtype: dtype.type(0))
        patch.setitem(REGISTRY, name, replace(REGISTRY[name], kernel=kernel))  # type: ignore[arg-type]


def wrong_axis(patch: pytest.MonkeyPatch) -> None:
    axes = reduce.normalised_axes

    def last_first(axis: Any, ndim: int, what: str) -> Any:
        found = axes(axis, ndim, what)
        return tuple(ndim - 1 - a for a in found)[::-1] if len(found) == 1 else found

    patch.setattr(reduce, "normalised_axes", last_first)


def unordered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exchange, "combined", lambda world, combine, parts: tuple(parts[-1]))
    patch.setattr(run, "combined", lambda world, combine, parts: tuple(parts[-1]))


@pytest.mark.parametrize("plant", [stale, dropped, beside, wrong_axis, unordered])
def test_a_fault_in_the_engine_is_noticed(plant):
    """Some programs suffice, whichever functions there are to be drawn; rarely it takes more."""
    for seed in range(200):
        program = [(program_of(seed), "eager")]
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            failed = noticed(program)
        if failed:
            assert not noticed(program), "without any fault"
            return
    pytest.fail("no program notices it")


def test_an_empty_piece_that_counts_as_zero_is_noticed(exercised, monkeypatch):
    unmasked(monkeypatch)
    assert noticed(exercised["max"] + exercised["min"])
