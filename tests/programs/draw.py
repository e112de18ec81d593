"""Draw programs: chains of calls of public functions, with operands of every dtype and layout.

In: a random generator. Out: a `Program`, which prints as the calls that it makes and can be run in
any namespace: `meshard` itself, or `tests.programs.model`, which is NumPy by the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests.lays import Lay

KINDS = {
    "b": ["bool"],
    "i": ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    "n": ["int2", "uint2", "int4", "uint4"],
    "f": ["float16", "float32", "float64"],
    "h": ["bfloat16"],
    "s": [
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
    ],
    "c": ["complex64", "complex128"],
}
"""Dtypes by a letter: narrow integers are ``n``, bfloat16 is ``h``, the 8-bit floats are ``s``."""
ALL = "binfhsc"
SIZES = (4, 1, 3, 8, 2, 5, 0, 7, 11)
TEAMS = ((0, 1, 2, 3, 4, 5, 6, 7), (5, 0, 3, 6, 1, 4, 7, 2), (6, 3, 5, 4), (7, 2))
"""Sets of devices; in two processes of four, both have some of each."""
ASIDE = (0, 3, 2, 1)
"""Devices of one process only, when there are two."""
GRIDS = {8: [(8,), (4, 2), (2, 4), (2, 2, 2)], 4: [(4,), (2, 2), (1, 4)], 2: [(2,), (2, 1)]}


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype of NumPy or of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


LETTERS = {dtype_named(name): letter for letter, names in KINDS.items() for name in names}


def letter_of(value: Any) -> str:
    """Return the letter of an array's dtype; "?" for those that are not drawn."""
    return LETTERS.get(value.dtype, "?")


@dataclass(frozen=True)
class Ref:
    """An array of a program: one of its inputs, or what a step has returned."""

    number: int

    def __repr__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True)
class Step:
    """One call: a function by its path below a namespace, and its arguments, some by `Ref`."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    first: int

    def __repr__(self) -> str:
        args = [_shown(a) for a in self.args]
        args += [f"{k}={_shown(v)}" for k, v in self.kwargs.items()]
        return f"v{self.first}.. = {self.name}({', '.join(args)})"

    def call(self, namespace: Any, values: Mapping[int, Any]) -> list[Any]:
        """Call it in a namespace; return all the arrays that come out, in order."""
        function = namespace
        for part in self.name.split("."):
            function = getattr(function, part)
        args = replaced(self.args, values)
        return flattened(function(*args, **replaced(self.kwargs, values)))

    def refs(self) -> list[int]:
        """Return the numbers of the arrays that it takes."""
        return [r.number for r in _refs((self.args, self.kwargs))]


@dataclass
class Program:
    """Inputs and how each is laid out, by their numbers among all arrays, and steps."""

    inputs: dict[int, np.ndarray] = field(default_factory=dict)
    lays: dict[int, Lay | None] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"v{i} = np.array({v.tolist()!r}, {v.dtype.name!r}).reshape({v.shape})  "
            f"  # {self.lays[i]}"
            for i, v in self.inputs.items()
        ]
        return "\n".join([*lines, *map(repr, self.steps)])


def _shown(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def _refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, dict):
        yield from _refs(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _refs(v)


def replaced(value: Any, values: Mapping[int, Any]) -> Any:
    """Return arguments with the arrays in the place of their numbers."""
    if isinstance(value, Ref):
        return values[value.number]
    if isinstance(value, dict):
        return {k: replaced(v, values) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replaced(v, values) for v in value)
    return value


def flattened(found: Any) -> list[Any]:
    """Return the arrays and numbers of a result, whatever tuples and lists they are in."""
    if isinstance(found, (list, tuple)):
        return [x for part in found for x in flattened(part)]
    return [found]


def lay_of(rng: np.random.Generator, shape: Sequence[int], team: Sequence[int]) -> Lay | None:
    """Draw how an array is laid out on these devices; None: it stays a NumPy array."""
    kind = rng.random()
    if kind < 0.04:
        return None
    if kind < 0.12:
        return Lay()
    if kind < 0.2:
        return Lay(boxes=boxes_of(rng, shape, team))
    grid = GRIDS[len(team)][rng.integers(len(GRIDS[len(team)]))]
    dims: list[list[str]] = [[] for _ in shape]
    shards = [1] * len(shape)
    for axis in rng.permutation(len(grid)):
        place = int(rng.integers(-1, len(shape))) if rng.random() < 0.9 else -1
        if place >= 0:
            dims[place].append("ijk"[axis])
            shards[place] *= grid[axis]
    rule: Any = rng.choice(["balanced", "ceil", "cuts"])
    if rule == "cuts":
        rule = tuple(
            (0, *sorted(rng.integers(0, n + 1, k - 1).tolist()), n)
            for n, k in zip(shape, shards, strict=True)
        )
    elif all(n % k == 0 for n, k in zip(shape, shards, strict=True)) and rng.random() < 0.5:
        rule = None
    else:
        rule = str(rule)
    return Lay(tuple(team), grid, tuple(tuple(d) if d else None for d in dims), rule)


def boxes_of(
    rng: np.random.Generator, shape: Sequence[int], team: Sequence[int]
) -> tuple[tuple[int, tuple[slice, ...]], ...]:
    """Draw a box for each device: cut up at random, some with all of it."""
    boxes = [tuple(slice(0, n) for n in shape)]
    while len(boxes) < len(team) and shape and rng.random() < 0.8:
        box = boxes.pop(int(rng.integers(len(boxes))))
        dim = int(rng.integers(len(shape)))
        at = int(rng.integers(box[dim].start, box[dim].stop + 1))
        for part in (slice(box[dim].start, at), slice(at, box[dim].stop)):
            boxes.append((*box[:dim], part, *box[dim + 1 :]))
    whole = tuple(slice(0, n) for n in shape)
    boxes += [whole] * (len(team) - len(boxes))
    return tuple((int(team[i]), boxes[n]) for n, i in enumerate(rng.permutation(len(team))))


def numbers(rng: np.random.Generator, shape: Sequence[int], name: str, domain: str) -> np.ndarray:
    """Draw elements of a dtype.

    Args:
        rng: the generator.
        shape: how many.
        name: the dtype's.
        domain: "any": odd values too, such as NaN, -0.0 and the extremes; "finite"; "small": whole
            numbers from -3 to 3, exact in any dtype; "tame": NaN and infinities, but nothing
            else that overflows; "positive"; "unit": between -1 and 1.
    """
    dtype = dtype_named(name)
    if dtype.kind == "c":
        parts = [numbers(rng, shape, "float64", domain) for _ in range(2)]
        with np.errstate(all="ignore"):
            found = np.empty(shape, dtype)
            found.real, found.imag = parts
        return found
    whole = LETTERS[dtype] in "bin"
    low = 0 if name.startswith(("u", "bool")) or domain == "positive" else -3
    if whole or domain == "small" or (domain in ("any", "finite", "tame") and rng.random() < 0.3):
        top = 2 if name in ("int2", "bool") else 4
        low = max(low, -2) if name == "int2" else low
        value = rng.integers(low + (domain == "positive"), top, tuple(shape))
        found = value.astype(np.int8 if whole else np.float32).astype(dtype)
    elif domain in ("positive", "unit"):
        value = rng.uniform(-1, 1, tuple(shape))
        found = (np.abs(value) * 3 + 0.25 if domain == "positive" else value).astype(dtype)
    else:
        found = (rng.standard_normal(tuple(shape)) * 3).astype(dtype)
    if domain not in ("any", "tame") or dtype.kind == "b" or (domain == "tame" and whole):
        return found
    if found.size and rng.random() < 0.4:
        info = (ml_dtypes.iinfo if whole else ml_dtypes.finfo)(dtype)
        odd = [info.min, info.max] if whole else [np.nan, np.inf, -np.inf, -0.0]
        odd += [info.max] if domain == "any" and not whole else []
        flat = found.reshape(-1)
        with np.errstate(all="ignore"):
            for at in rng.integers(0, flat.size, 2):
                flat[at] = dtype.type(odd[rng.integers(len(odd))])
    return found


class Draw:
    """Draws one program; what draws a step asks it for operands and choices."""

    def __init__(self, rng: np.random.Generator, team: tuple[int, ...] | None = None) -> None:
        self.rng = rng
        self.values: list[np.ndarray] = []
        self.program = Program()
        some = TEAMS[rng.integers(len(TEAMS))] if rng.random() < 0.4 else TEAMS[0]
        self.team = team or some
        self.fresh: list[np.ndarray] = []

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Return one of several."""
        return choices[int(self.rng.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        """Return True that often."""
        return bool(self.rng.random() < p)

    def shape(self, low: int = 0, high: int = 4, least: int = 0, most: int = 64) -> tuple[int, ...]:
        """Draw a shape of ``low`` to ``high`` dims of at least ``least``, of few elements."""
        shape: list[int] = []
        for _ in range(self.integer(low, high)):
            room = max(1, most // max(1, math.prod(shape)))
            shape.append(self.one_of([n for n in SIZES if least <= n <= max(room, least)]))
        return tuple(shape)

    def array(
        self,
        kinds: str = ALL,
        shape: Sequence[int] | Callable[[], tuple[int, ...]] | None = None,
        domain: str = "any",
        ok: Callable[[np.ndarray], bool] = lambda x: True,
    ) -> Ref:
        """Return an operand: an array that the program has already, or a new input.

        Args:
            kinds: letters of dtypes.
            shape: the shape, or what draws one; any by default.
            domain: which values; arrays at hand are taken for "any" and "finite" only.
            ok: whether an array will do.
        """
        fixed = shape is not None and not callable(shape)
        wanted = tuple(shape) if fixed else ()  # type: ignore[arg-type]
        if domain in _LOOSE and self.values and self.chance(0.5):
            fits = [
                i
                for i, v in enumerate(self.values)
                if letter_of(v) in kinds
                and (v.shape == wanted if fixed else v.size <= 128)
                and _LOOSE[domain](v)
                and ok(v)
            ]
            if fits:
                return Ref(self.one_of(fits))
        for _ in range(100):
            own = self.shape() if shape is None else shape() if callable(shape) else tuple(shape)
            name = self.one_of(KINDS[self.one_of(kinds)])
            value = np.asarray(numbers(self.rng, own, name, domain))
            if ok(value):
                return self.given(value)
        raise AssertionError("no operand of the kind that is wanted was drawn")

    def given(self, value: np.ndarray) -> Ref:
        """Return a value as a new input of the program, laid out in some way."""
        self.fresh.append(value)
        return Ref(-len(self.fresh))

    def value(self, ref: Ref) -> np.ndarray:
        """Return the value of an operand."""
        return self.values[ref.number] if ref.number >= 0 else self.fresh[-ref.number - 1]

    def axis(self, ndim: int) -> int:
        """Draw one dim, negative or not."""
        return self.integer(-ndim, ndim - 1)

    def axes(self, ndim: int) -> Any:
        """Draw an axis argument: None, one number, or several."""
        if not ndim or self.chance(0.3):
            return None
        if self.chance(0.5):
            return self.axis(ndim)
        some = self.rng.permutation(ndim)[: self.integer(1, ndim)].tolist()
        return tuple(d - ndim * self.integer(0, 1) for d in some)

    def like(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Draw a shape that broadcasts to another."""
        start = self.integer(0, len(shape)) if self.chance(0.3) else 0
        return tuple(n if self.chance(0.8) else 1 for n in shape[start:])

    def begin(self) -> None:
        """Forget the new operands of a step that was not drawn to its end."""
        self.fresh = []

    def finish(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Step:
        """Return a step with its new operands made inputs of the program."""
        places = {}
        for i, value in enumerate(self.fresh):
            number = places[-i - 1] = len(self.values)
            self.values.append(value)
            self.program.inputs[number] = value
            self.program.lays[number] = lay_of(self.rng, value.shape, self.team)
        self.fresh = []
        args, kwargs = _renumbered((tuple(args), dict(kwargs)), places)
        return Step(name, args, kwargs, len(self.values))


def _finite(value: np.ndarray) -> bool:
    return bool(np.isfinite(value).all()) and _tame(value)


def _tame(value: np.ndarray) -> bool:
    sizes = np.abs(value.astype(np.complex128))
    return bool((~np.isfinite(sizes) | (sizes < 1e3)).all())


_LOOSE: dict[str, Callable[[np.ndarray], bool]] = {
    "any": lambda value: True,
    "finite": _finite,
    "tame": _tame,
}
"""Which arrays that a program has already may serve for a domain."""


def _renumbered(value: Any, places: dict[int, int]) -> Any:
    if isinstance(value, Ref):
        return Ref(places.get(value.number, value.number))
    if isinstance(value, dict):
        return {k: _renumbered(v, places) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_renumbered(v, places) for v in value)
    return value
