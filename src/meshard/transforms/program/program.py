"""Programs: what a function does, as a list of operations on variables.

In: nothing but values. A program has no data and knows nothing of layouts; it is printed
(`listing`), checked, simplified, lowered onto shardings, or run by binding its operations one after
another.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any, Protocol, final

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import MeshardError
from meshard.ops.engine.later import Weak
from meshard.plan.move.wires import Wire
from meshard.runtime.callers import at_line
from meshard.runtime.doors import Params, beneath, bind, interpreters
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here
from meshard.transforms.body.scope import GridKind

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST = 60
_WIDEST = 100
_NOTHING = contextlib.nullcontext()


@final
class Var:
    """A variable: it is given, or set by one operation, and never changes.

    Attributes:
        aval: shape and dtype; in the body of a `shard_map` also the axes over which it varies.
        weak: the type of Python number that it is; None for an array.
    """

    __slots__ = ("aval", "weak")

    def __init__(self, aval: ArrayType | GridKind, weak: Weak = None) -> None:
        self.aval = aval
        self.weak = weak

    def str_short(self) -> str:
        """Return its type as in ``float64[4,8]``; of a number that of Python."""
        return self.aval.str_short() if self.weak is None else self.weak.__name__


@final
@dataclass(frozen=True, slots=True)
class Literal:
    """A Python number instead of a variable."""

    value: bool | int | float | complex


Atom = Var | Literal

Kind = ArrayType | type[Any]
"""What a value is: an array's type, or the type of a Python number."""


class Call(Protocol):
    """An operation that is more than a row: it holds programs, or lays a value out."""

    @property
    def name(self) -> str:
        """What listings call it."""

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The programs that it holds, by name."""

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """What else a listing tells of it."""

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Do it under the interpreter at hand, and return its results."""


@final
@dataclass(frozen=True, slots=True)
class Eqn:
    """One operation.

    Attributes:
        name: what `bind` is given; of a call what it is called.
        params: its parameters.
        inputs: its operands.
        outputs: what it sets.
        line: where in the user's program it was written, as ``file:line``.
        call: what to do instead of binding the name; None for a row.
        purpose: what it is for, if it is part of a derivative, as in ``"gradient of w"``.
    """

    name: str
    params: Params
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    line: str
    call: Call | None = None
    purpose: str = ""


@final
@dataclass(frozen=True)
class Program:
    """A function as operations.

    Attributes:
        captured: variables for values of the code around it, which come before the inputs.
        inputs: variables for the arguments.
        eqns: the operations, in order.
        outputs: the results.
        name: what it is called in listings.
        made: what was made of it, by whoever made it: it goes with the program.
    """

    captured: tuple[Var, ...]
    inputs: tuple[Var, ...]
    eqns: tuple[Eqn, ...]
    outputs: tuple[Atom, ...]
    name: str = "program"
    made: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def numbers(self) -> dict[Var, int]:
        """The number of each variable: captured, inputs, then as the operations set them."""
        found: dict[Var, int] = {}
        for var in (*self.captured, *self.inputs):
            found[var] = len(found)
        for eqn in self.eqns:
            for var in eqn.outputs:
                found[var] = len(found)
        return found

    @cached_property
    def steps(self) -> tuple[tuple[Eqn, tuple[Any, ...], tuple[int, ...]], ...]:
        """Per operation its operands, as numbers of variables or literals, and its results."""
        return tuple(
            (
                eqn,
                tuple([x if isinstance(x, Literal) else self.numbers[x] for x in eqn.inputs]),
                tuple([self.numbers[v] for v in eqn.outputs]),
            )
            for eqn in self.eqns
        )

    def check(self) -> None:
        """Check that each variable is set once, and before it is used.

        Raises:
            MeshardError: if the program is wrong, which is a fault of meshard.
        """
        known = set(self.captured) | set(self.inputs)
        for number, eqn in enumerate(self.eqns):
            for atom in eqn.inputs:
                if isinstance(atom, Var) and atom not in known:
                    raise MeshardError(
                        f"{self.name}: operation {number}, {eqn.name}, uses a variable before it "
                        "is set."
                    )
            for var in eqn.outputs:
                if var in known:
                    raise MeshardError(
                        f"{self.name}: operation {number}, {eqn.name}, sets a variable again."
                    )
                known.add(var)
        for atom in self.outputs:
            if isinstance(atom, Var) and atom not in known:
                raise MeshardError(f"{self.name}: a result is never set.")

    def __iter__(self) -> Iterator[Eqn]:
        return iter(self.eqns)

    def __len__(self) -> int:
        return len(self.eqns)

    def __str__(self) -> str:
        return listing(self)


def evaluate(
    program: Program,
    captured: Sequence[Any],
    given: Sequence[Any],
    binding: Callable[..., Any] = bind,
) -> list[Any]:
    """Run a program by binding its operations under the interpreter at hand.

    Args:
        program: the program.
        captured: the values of the code around it.
        given: the arguments.
        binding: what to call for a row.
    """
    values: list[Any] = [None] * len(program.numbers)
    first = len(program.captured)
    values[:first] = captured
    values[first : first + len(program.inputs)] = given
    told = at_line if here().ledgers or interpreters() else _untold
    for eqn, sources, targets in program.steps:
        operands = [x.value if type(x) is Literal else values[x] for x in sources]
        with told(eqn.line, eqn.purpose):
            if eqn.call is not None:
                results: Sequence[Any] = eqn.call.run(operands)
            elif is_of_numbers(eqn, operands):
                results = (number_of(eqn, operands),)
            else:
                found = binding(eqn.name, *operands, **dict(eqn.params))
                results = found if len(targets) > 1 else (found,)
        for number, result in zip(targets, results, strict=True):
            values[number] = result
    return [
        x.value if isinstance(x, Literal) else values[program.numbers[x]] for x in program.outputs
    ]


def is_of_numbers(eqn: Eqn, operands: Sequence[Any]) -> bool:
    """Whether an operation is one on Python numbers alone, and gives one."""
    if len(eqn.outputs) != 1 or not all(isinstance(x, (int, float, complex)) for x in operands):
        return False
    aval = eqn.outputs[0].aval
    weak = aval.weak if isinstance(aval, GridKind) else eqn.outputs[0].weak
    return weak is not None


def number_of(eqn: Eqn, operands: Sequence[Any]) -> Any:
    """Return what an operation on Python numbers gives, which takes the dtype of what it meets."""
    with beneath(()):
        return bind(eqn.name, *operands, **dict(eqn.params)).item()


def _untold(line: str, purpose: str) -> contextlib.AbstractContextManager[None]:
    return _NOTHING


# listings


def short_line(line: str) -> str:
    """Return the file's name and the line of a place given as ``path:line``."""
    return PurePath(line).name


def shown(value: object) -> str:
    """Return a parameter as a listing shows it, cut if it is long."""
    if isinstance(value, tuple):
        text = "(" + ", ".join(map(shown, value)) + ("," if len(value) == 1 else "") + ")"
    elif callable(value) and hasattr(value, "__name__"):
        text = value.__name__
    elif isinstance(value, PartitionSpec | NamedSharding):
        spec = value if isinstance(value, PartitionSpec) else value.spec
        text = repr(spec).replace(",)", ")")
    else:
        text = " ".join(str(value).split())
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


def layout_text(kind: object) -> str:
    """Return in a few words how an array is laid out; nothing for a number."""
    sharding: Any = getattr(kind, "sharding", None)
    if sharding is None:
        return ""
    if isinstance(sharding, NamedSharding):
        return shown(sharding.spec)
    count = sharding.num_devices
    if count == 1:
        return "anywhere" if not getattr(kind, "committed", True) else "on one device"
    return f"on {count} devices"


def crossing_text(wires: Sequence[Wire]) -> str:
    """Return in a few words what passes between devices; nothing if nothing does."""
    told = []
    for wire in wires:
        if any(wire.received.values()):
            kind = f"{wire.kind} {','.join(wire.axes)}".rstrip()
            told.append(f"{kind}: {max(wire.received.values()):,} bytes to a device")
    return ", ".join(told)


def _names() -> Iterator[str]:
    for count in itertools.count(1):
        for letters in itertools.product(_LETTERS, repeat=count):
            yield "".join(letters)


@final
@dataclass(frozen=True)
class Listed:
    """A program, and what a listing tells of it besides.

    Attributes:
        program: the program.
        told: for some variables what is told after their types, such as their layouts.
        notes: for some operations, by identity, what is told after their lines.
        parts: for some operations, by identity, the programs that they run, instead of those
            that they hold.
        called: for some variables what they are called in the user's program.
    """

    program: Program
    told: Mapping[Var, str] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)
    parts: Mapping[int, Sequence[tuple[str, Listed]]] = field(default_factory=dict)
    called: Mapping[Var, str] = field(default_factory=dict)

    def parts_of(self, eqn: Eqn) -> Sequence[tuple[str, Listed]]:
        """Return the programs that an operation runs."""
        found = self.parts.get(id(eqn))
        if found is None and eqn.call is not None:
            found = [(part, Listed(inner)) for part, inner in eqn.call.programs]
        return found or ()


def listing(program: Program | Listed) -> str:
    """Return a program as text."""
    names: dict[Var, str] = {}
    fresh = _names()

    def name(var: Var) -> str:
        if var not in names:
            names[var] = next(fresh)
        return names[var]

    whole = program if isinstance(program, Listed) else Listed(program)
    return "\n".join(_lines(whole, name, ""))


def _lines(listed: Listed, name: Callable[[Var], str], indent: str) -> list[str]:
    program = listed.program

    def read(atom: Atom) -> str:
        return repr(atom.value) if isinstance(atom, Literal) else name(atom)

    def typed(var: Var) -> str:
        more = listed.told.get(var)
        return f"{name(var)}: {var.str_short()}" + (f" {more}" if more else "")

    lines = _head(listed, typed, indent)
    rows: list[tuple[str, str]] = []
    for eqn in program.eqns:
        left = ", ".join(map(typed, eqn.outputs))
        note = listed.notes.get(id(eqn))
        where = "; ".join([t for t in (short_line(eqn.line), eqn.purpose, note) if t])
        told = f"{left} = {_told(eqn, read)}" if left else _told(eqn, read)
        rows.append((f"{indent}    {told}", where))
    width = min(_WIDEST, max((len(text) for text, _ in rows), default=0))
    for eqn, (text, where) in zip(program.eqns, rows, strict=True):
        lines.append(f"{text:<{width}}  # {where}")
        for part, inner in listed.parts_of(eqn):
            inside = _lines(inner, name, indent + " " * 8)
            own = inside[0].lstrip().removeprefix(inner.program.name)
            lines += [f"{indent}        {part}{own}", *inside[1:]]
    return [*lines, f"{indent}    return {', '.join(map(read, program.outputs)) or 'nothing'}"]


def _head(listed: Listed, typed: Callable[[Var], str], indent: str) -> list[str]:
    """Return the lines that name a program and its operands; each has its own if they are many."""
    program = listed.program
    given = list(map(typed, program.inputs))
    captured = list(map(typed, program.captured))
    more = f" with {', '.join(captured)}" if captured else ""
    head = f"{indent}{program.name}({', '.join(given)}){more}:"
    if len(head) <= _WIDEST or not given:
        names = ", ".join([listed.called[v] for v in program.inputs if v in listed.called])
        return [f"{head}  # {names}" if names else head]
    rows = []
    for var, text in zip(program.inputs, given, strict=True):
        rows.append((f"{indent}    {text},", listed.called.get(var, "")))
    width = max((len(text) for text, _ in rows), default=0)
    lines = [f"{text:<{width}}  # {what}".rstrip(" #") for text, what in rows]
    return [f"{indent}{program.name}(", *lines, f"{indent}){more}:"]


def _told(eqn: Eqn, read: Callable[[Atom], str]) -> str:
    details: list[tuple[str, Any]] = list(eqn.params if eqn.call is None else eqn.call.details)
    # What is None or False was left as it is by default.
    params = ", ".join(f"{k}={shown(v)}" for k, v in details if v is not None and v is not False)
    operands = " ".join(map(read, eqn.inputs))
    return f"{eqn.name}{f'[{params}]' if params else ''} {operands}".rstrip()
