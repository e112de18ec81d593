"""Programs are drawn, run in every way there is, and compared with NumPy step by step.

Each step is compared with NumPy's result for the values that the step was really given, so that
the first step that is wrong is the one that is named, and small errors do not add up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import meshard
import meshard.numpy as mnp
from meshard.errors import MeshardError
from meshard.runtime.simulated import simulate
from meshard.sharding import P
from tests.lays import Lay, fetched
from tests.programs.draw import LETTERS, Draw, Program, Step, letter_of, replaced
from tests.programs.model import MODEL, random_call
from tests.programs.table import CASES, Case
from tests.worlds import alone

Values = dict[int, Any]


class Disagreement(AssertionError):
    """A program gives another result than NumPy, or than itself in another world."""


@dataclass(frozen=True)
class Refused:
    """What a step gives that is refused."""

    why: str


def expected(step: Step, case: Case, values: Mapping[int, Any]) -> list[Any] | Refused:
    """Return what NumPy gives for a step."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            native = step.call(MODEL, values)
        except (TypeError, ValueError, ZeroDivisionError, np.linalg.LinAlgError) as error:
            if not case.law:
                return Refused(f"{type(error).__name__}: {error}")
            native = []
        native = [np.asarray(x) for x in native]
        if not case.wide:
            return native
        wide = [np.asarray(x) for x in step.call(MODEL, {n: widened(v) for n, v in values.items()})]
        if case.law:
            dtype = case.law([values[n] for n in step.refs()], step.kwargs)
            return [x.astype(dtype) if x.dtype.kind in "fc" else x for x in wide]
        return [
            w.astype(x.dtype) if x.dtype.kind in "fcV" or letter_of(x) in "hs" else x
            for x, w in zip(native, wide, strict=True)
        ]


def widened(value: np.ndarray) -> np.ndarray:
    """Return floats and complex numbers with 64 bits for each part."""
    letter = letter_of(value)
    if letter in "fhs":
        return value.astype(np.float64)
    return value.astype(np.complex128) if letter == "c" else value


def drawn(
    seed: int | tuple[int, int],
    names: Sequence[str],
    weights: Any = None,
    length: int = 1,
    team: tuple[int, ...] | None = None,
) -> Program:
    """Draw a program of calls of these functions, on some devices."""
    rng = np.random.default_rng(seed)
    d = Draw(rng, team)
    while len(d.program.steps) < length:
        case = CASES[str(rng.choice(names, p=weights))]
        d.begin()
        call = case.draw(d)
        if call is None:
            continue
        step = d.finish(case.name, *call)
        found = expected(step, case, dict(enumerate(d.values)))
        d.program.steps.append(step)
        if not isinstance(found, Refused):
            d.values += found
    return d.program


def _place(lay: Lay | None, value: np.ndarray) -> Any:
    return value if lay is None else lay.put(value)


def _steps(program: Program, inputs: Values) -> dict[int, Any]:
    """Run a program here; return what each step gives, by the step's number."""
    values = dict(inputs)
    found: dict[int, Any] = {}
    for number, step in enumerate(program.steps):
        if not all(n in values for n in step.refs()):
            continue
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[number] = step.call(NAMESPACE, values)
        except (MeshardError, TypeError, ValueError) as error:
            found[number] = Refused(f"{type(error).__name__}: {error}")
            continue
        values.update(enumerate(found[number], step.first))
    return found


class _Methods:
    """Indexing, and updates at an index."""

    @staticmethod
    def getitem(x: Any, index: Any) -> Any:
        return mnp.asarray(x)[index]

    select = getitem

    # Vectors are not unique: the values, and what the vectors make of them.

    @staticmethod
    def eigh(x: Any) -> Any:
        w, v = mnp.linalg.eigh(x)
        return w, mnp.matmul(v * w[..., None, :], mnp.conj(mnp.matrix_transpose(v)))

    @staticmethod
    def eig(x: Any) -> Any:
        w, v = mnp.linalg.eig(x)
        made = mnp.matmul(v * w[..., None, :], mnp.linalg.inv(v))
        return mnp.sort(w.real).astype(w.dtype), made

    @staticmethod
    def eigvals(x: Any) -> Any:
        w = mnp.linalg.eigvals(x)
        return mnp.sort(w.real).astype(w.dtype)

    @staticmethod
    def svd(x: Any, full: bool) -> Any:
        u, s, v = mnp.linalg.svd(x, full_matrices=full)
        k = s.shape[-1]
        zeros = mnp.zeros(u.shape), mnp.zeros(v.shape)
        return s, *zeros, mnp.matmul(u[..., :k] * s[..., None, :].astype(u.dtype), v[..., :k, :])

    def __getattr__(self, name: str) -> Any:
        return lambda x, index, values: getattr(mnp.asarray(x).at[index], name)(values)


class _Random:
    """Random numbers by the seed of their key, and how they are to be laid out."""

    def __getattr__(self, name: str) -> Any:
        def draw(*args: Any, lay: Any = None, **kwargs: Any) -> Any:
            if lay is not None:
                shape = next(a for a in args[::-1] if isinstance(a, tuple))
                kwargs["out_sharding"] = lay.sharding(shape)
            return random_call(name, *args, **kwargs)

        return draw


class _Mapped:
    """Random numbers drawn inside a `shard_map`, by a key that all devices share."""

    def __getattr__(self, name: str) -> Any:
        def draw(seed: Any, *args: Any, grid: Lay, **kwargs: Any) -> Any:
            mesh = grid.sharding(()).mesh  # type: ignore[union-attr]
            taken = [i for i, a in enumerate(args) if hasattr(a, "dtype")]
            named = [n for n, a in kwargs.items() if isinstance(a, (np.ndarray, meshard.Array))]

            def body(seed: Any, given: Any, more: Any) -> Any:
                own = list(args)
                for i, value in zip(taken, given, strict=True):
                    own[i] = value
                return random_call(name, seed, *own, **{**kwargs, **more})

            run = meshard.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())
            return run(
                np.asarray(seed) if type(seed) is int else seed,
                [args[i] for i in taken],
                {n: kwargs[n] for n in named},
            )

        return draw


class _Meshard:
    array, random, mapped = _Methods(), _Random(), _Mapped()

    def __getattr__(self, name: str) -> Any:
        return getattr(meshard, name)


NAMESPACE = _Meshard()


def outside(program: Program) -> dict[int, Any]:
    """Run a program in the current world."""
    inputs = {n: _place(program.lays[n], v) for n, v in program.inputs.items()}
    return _told(_steps(program, inputs))


def jitted(program: Program) -> dict[int, Any]:
    """Run a program in the current world as one jitted function."""
    inputs = {n: _place(program.lays[n], v) for n, v in program.inputs.items()}
    refused: dict[int, Refused] = {}

    def run(inputs: dict[int, Any]) -> dict[int, Any]:
        found = _steps(program, inputs)
        refused.update({n: v for n, v in found.items() if isinstance(v, Refused)})
        return {n: v for n, v in found.items() if not isinstance(v, Refused)}

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = meshard.jit(run)(inputs)
    return _told({**found, **refused})


@dataclass(frozen=True)
class Told:
    """A value, fetched, and how it was laid out."""

    value: Any
    where: Any


def _told(found: dict[int, Any]) -> dict[int, Any]:
    return {
        n: v if isinstance(v, Refused) else [Told(_value(x), _where(x)) for x in v]
        for n, v in sorted(found.items())
    }


def _value(x: Any) -> Any:
    return np.asarray(fetched(x))


def _where(x: Any) -> Any:
    if not isinstance(x, meshard.Array):
        return type(x).__name__
    boxes = x.sharding.devices_indices_map(x.shape)
    if not x.committed and len(boxes) == 1:
        return "here"  # on the first device of each process
    return {
        d.id: tuple(s.indices(n) for s, n in zip(box, x.shape, strict=True))
        for d, box in boxes.items()
    }


def verify(program: Program, found: dict[int, Any]) -> None:
    """Compare every step of a program with NumPy, from what the steps gave.

    Raises:
        Disagreement: at the first step that differs.
    """
    values: Values = dict(program.inputs)
    for number, step in enumerate(program.steps):
        if number not in found:
            continue
        case, given = CASES[step.name], found[number]
        wanted = expected(step, case, values)
        if isinstance(wanted, Refused) or isinstance(given, Refused):
            if isinstance(wanted, Refused) and isinstance(given, Refused):
                continue
            if isinstance(given, Refused) and case.eager and "ConcretizationError" in given.why:
                continue
            raise Disagreement(f"{step}\n  gives {given}\n  not {wanted}")
        if len(wanted) != len(given):
            raise Disagreement(f"{step}\n  gives {len(given)} arrays, not {len(wanted)}")
        operands = [values[n] for n in step.refs()]
        for a, b in zip(given, wanted, strict=True):
            both = [a.value, b]
            if case.free is not None:
                said = replaced(step.args, values), replaced(step.kwargs, values)
                both = [case.free(v, *said) for v in both]
            why = differs(*both, case, operands)
            if why:
                raise Disagreement(f"{step}\n  {why}: gives\n{a.value!r}\n  not\n{b!r}")
        values.update(enumerate([t.value for t in given], step.first))


def differs(found: Any, wanted: Any, case: Case, operands: Sequence[Any]) -> str:
    """Return in which way a value is not what it must be; an empty string if it is."""
    if found.shape != wanted.shape:
        return f"shape {found.shape} instead of {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"dtype {found.dtype} instead of {wanted.dtype}"
    letter = LETTERS.get(found.dtype, "?")
    if case.ulps is None or letter in "bin?":
        return "" if _same_bits(found, wanted) else "values"
    info = ml_dtypes.finfo(found.dtype)
    kind = np.complex128 if letter == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = found.astype(kind), wanted.astype(kind)
        scale = np.abs(b)
        if case.sums or (case.wide and float(info.eps) > 1e-4):  # each step of it is rounded
            sizes = [np.abs(v[np.isfinite(v)]).max(initial=0) for v in map(widened, operands)]
            finite = scale[np.isfinite(scale)]
            scale = np.maximum(scale, max([*map(float, sizes), finite.max(initial=0)]))
        room = case.ulps * (float(info.eps) * scale + float(info.smallest_subnormal))
        near = np.abs(a - b) <= room
        big = (np.abs(b) >= float(info.max) * (1 - case.ulps * float(info.eps))) & ~np.isfinite(a)
    alike = (a == b) | (np.isnan(a) & np.isnan(b)) | (near & np.isfinite(b)) | (big & ~np.isnan(b))
    return "" if alike.all() else "values"


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether bits are the same; one NaN is as good as another."""
    if a.tobytes() == b.tobytes():
        return True
    if letter_of(a) == "n":  # whose upper bits mean nothing
        return bool((a.astype(np.int8) == b.astype(np.int8)).all())
    if a.dtype.kind == "c":
        return _same_bits(a.real.copy(), b.real.copy()) and _same_bits(a.imag.copy(), b.imag.copy())
    with np.errstate(all="ignore"):
        nan = np.isnan(a) & np.isnan(b)
    return a[~nan].tobytes() == b[~nan].tobytes()


def alike(found: dict[int, Any], other: dict[int, Any], what: str, program: Program) -> None:
    """Check that a program gave the same bits and types in two worlds.

    Raises:
        Disagreement: at the first step that differs.
    """
    for n, values in found.items():
        if n not in other:
            continue  # an operand of it was refused
        if isinstance(values, Refused) and isinstance(other[n], Refused):
            continue
        if isinstance(values, Refused) or isinstance(other[n], Refused):
            raise Disagreement(f"{program.steps[n]}\n  {what}: {values}\n  {other[n]}")
        for a, b in zip(values, other[n], strict=True):
            same = a.value.dtype == b.value.dtype and a.value.shape == b.value.shape
            if not same or not _same_bits(a.value, b.value):
                raise Disagreement(f"{program.steps[n]}\n  {what}: {a.value!r} and {b.value!r}")
            if a.where != b.where:
                raise Disagreement(f"{program.steps[n]}\n  {what}: {a.where} and {b.where}")


def check(program: Program, ways: Sequence[str] = ("eager", "jit", "two", "two jit")) -> None:
    """Run a program in these ways and compare with NumPy, and the worlds with each other.

    Raises:
        Disagreement: with the program, if anything differs.
    """
    runs: dict[str, Callable[[Program], Any]] = {"eager": outside, "jit": jitted}
    try:
        single: dict[str, Any] = {}
        for way in ways:
            run = runs[way.removeprefix("two ") if way != "two" else "eager"]
            if not way.startswith("two"):
                single[way] = alone(lambda run=run: run(program))
                verify(program, single[way])
                continue
            for found in simulate(2, 4, lambda run=run: run(program), deadline=60):
                alike(single["jit" if "jit" in way else "eager"], found, way, program)
    except Disagreement as error:
        raise Disagreement(f"{way}: {error}\n\n{program}") from None
