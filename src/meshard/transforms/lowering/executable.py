"""Executables: steps over arrays of known types, ready to run.

In: the arrays that a program reads. Out: those that it returns. What each step does was decided
when the program was lowered, so that a call costs little more than its kernels.

Slots: the places of a program's values while it runs.

In: variables and literals, in the order in which steps name them. Out: a number for each; literals
are in their places before the program runs.

What single steps of a lowered program run, besides the runners of operations.

In: the operands of a step, behind what was known when it was lowered. Out: its result.

The steps of a program as one function of Python: the list of calls that a call of jit runs.

In: for each step the slots that it reads, sets and lets go of. Out: a function with a line for each
step, and nothing else to do between them; and the step that raised an error.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import CodeType, FunctionType
from typing import Any, Protocol, final

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.plan.move.wires import Wire
from meshard.runtime.array.array import Array
from meshard.runtime.callers import at_line
from meshard.runtime.doors import too_large
from meshard.runtime.moving.place import as_array, placed, resharded
from meshard.runtime.types import ArrayType
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.program.calls import MakeCall
from meshard.transforms.program.program import Atom, Eqn, Kind, Listed, Literal, Var, listing

Function = Callable[[Any, Sequence[Any]], Any]
"""From the world, or a body, and the values that are given to what is returned."""


class Slotted(Protocol):
    """What is known of a step: the slots that it reads, sets and lets go of."""

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads."""

    @property
    def writes(self) -> tuple[int, ...]:
        """The slots that it sets."""

    @property
    def dead(self) -> tuple[int, ...]:
        """The slots that nobody reads any more."""


@final
class Prepared:
    """Some steps, written as the text of one function and compiled.

    Args:
        steps: the steps.
        given: the slots of the values that the function is given.
        results: the slots that it returns, as a list.
        numbers: the slots that have a value before the program runs.
        sole: whether it returns the first of the results itself instead.

    With one step that adds a number, for example, the text is::

        def run(where, given):
            (v0,) = given
            v2 = r0(
                where,
                (
                    v0,
                    v1,
                ),
            )
            v0 = None
            return [v2]
    """

    def __init__(
        self,
        steps: Sequence[Slotted],
        given: Iterable[int],
        results: Sequence[int],
        numbers: Mapping[int, Any],
        *,
        sole: bool = False,
    ) -> None:
        self._numbers = {f"v{slot}": value for slot, value in numbers.items()}
        unpacked = _names(given)
        lines = ["def run(where, given):", f" {unpacked} = given" if unpacked else " pass"]
        lines += [_line(number, step) for number, step in enumerate(steps)]
        lines.append(f" return v{results[0]}" if sole else f" return [{_names(results)}]")
        made: dict[str, Any] = {}
        exec("\n".join(lines), made)  # the text holds numbers of slots, and nothing else
        self._code: CodeType = made["run"].__code__

    def function(self, runs: Iterable[Callable[..., Any]]) -> Function:
        """Return the function, given what each step runs."""
        names = {f"r{number}": run for number, run in enumerate(runs)}
        return FunctionType(self._code, {"__name__": __name__} | names | self._numbers)

    def step_of(self, error: BaseException) -> int:
        """Return the number of the step that raised an error."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._code:
            trace = trace.tb_next
        return 0 if trace is None else max(0, trace.tb_lineno - _LINES_BEFORE)


_LINES_BEFORE = 3  # counted from 1: the head of the function, and the line that unpacks


def _line(number: int, step: Slotted) -> str:
    found = f"r{number}(where, ({_names(step.reads)}))"
    set_ = f"{_names(step.writes)} = " if len(step.writes) != 1 else f"v{step.writes[0]} = "
    gone = "".join(f"v{slot} = " for slot in step.dead)
    return f" {set_ if step.writes else ''}{found}" + (f"; {gone}None" if gone else "")


def _names(slots: Iterable[int]) -> str:
    """Return slots as the items of a tuple."""
    return "".join(f"v{slot}, " for slot in slots)


AnyKind = Kind | GridKind
"""What a value is, in a body too."""
Run = Callable[[Any, Sequence[Any]], Any]
Moving = tuple[Wire, int | None]
"""A communication, and the operand that moves; None if that is not an operand."""
NamedPart = tuple[str, "Executable", int | None]
"""A program that a step runs: its name there, and how often it runs; None if that is not known."""


_MOST = 3


def nothing_around() -> tuple[()]:
    """Say that nothing moves around a step's parts."""
    return ()


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: the operation, or several joined by ``+`` where they run as one.
        line: where in the user's program it was written.
        inputs: what it reads.
        outputs: what it gives.
        reads: the slots that it reads.
        writes: the slots that it sets.
        dead: the slots that nobody reads any more.
        run: from the world, in a body of `shard_map` the `Body`, and the values that it reads to
            the one that it gives, or a sequence of them.
        wires: what passes between devices.
        around: tells what passes besides while it gets values to its parts, and from them, each
            with the operand that moves; None if that is not an operand.
        eqns: the operations of the program.
        parts: the programs that it runs.
        once: whether it is part of a loop's body and gives the same in every turn, so that only
            the first turn runs it.
        runner: tells who runs it, if a compiler was asked: its name, or NumPy and why.
        on_cells: in a body, the same from cells to cells, as in `Executable.on_cells`.
        purpose: what it is for, if it is part of a derivative.
    """

    name: str
    line: str
    inputs: tuple[AnyKind, ...]
    outputs: tuple[AnyKind, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]
    run: Run
    wires: tuple[Wire, ...] = ()
    around: Callable[[], Sequence[Moving]] = nothing_around
    eqns: tuple[Eqn, ...] = ()
    parts: tuple[NamedPart, ...] = ()
    once: bool = False
    runner: Callable[[], str] = str
    on_cells: Run | None = None
    purpose: str = ""


def purpose_of(eqns: Sequence[Eqn]) -> str:
    """Return what some operations are for that run as one; nothing if not all have a purpose."""
    found = list(dict.fromkeys([e.purpose for e in eqns]))
    if "" in found:
        return ""
    return ", ".join(found) if len(found) < _MOST else f"{found[0]} and {len(found) - 1} more"


def _keeping(step: Step, slots: Container[int]) -> Step:
    """Return a step that does not let go of some slots."""
    return replace(step, dead=tuple([i for i in step.dead if i not in slots]))


@final
@dataclass(frozen=True, eq=False)
class Executable:
    """A program on values of known types: arrays, or in a body of `shard_map` grids of cells.

    Attributes:
        name: the function.
        inputs: the types of what it reads: the values captured, then the arguments.
        outputs: the types of what it returns.
        steps: the steps in order.
        template: the slots before it runs: those of what it reads come first, and numbers that
            are written in the program are there.
        results: the slots of what it returns.
        listed: returns what runs as a program to be printed, with how each value is laid out.
        kinds: what each variable of the program is.
        scope: the axes that it runs along, in a body; None outside of bodies.
        everywhere: whether all devices run it; else those that values choose.
    """

    name: str
    inputs: tuple[AnyKind, ...]
    outputs: tuple[AnyKind, ...]
    steps: tuple[Step, ...]
    template: tuple[Any, ...]
    results: tuple[int, ...]
    listed: Callable[[], Listed]
    kinds: Mapping[Var, AnyKind]
    scope: Scope | None = None
    everywhere: bool = True

    @property
    def returns(self) -> tuple[Kind, ...]:
        """The types of what it returns, outside of bodies."""
        found = tuple([k for k in self.outputs if not isinstance(k, GridKind)])
        assert len(found) == len(self.outputs), "a body's results are not arrays"
        return found

    @cached_property
    def _numbers(self) -> dict[int, Any]:
        """The slots of the numbers that are written in the program."""
        return {i: x for i, x in enumerate(self.template) if x is not None}

    @cached_property
    def _runs(self) -> list[Run]:
        return [s.run for s in self.steps]

    @cached_property
    def _watched_runs(self) -> list[Run]:
        """What the steps run while a ledger or a profile is open."""
        return [partial(self._watched, s) for s in self.steps]

    @cached_property
    def _whole(self) -> _Stretch:
        return self._stretch(0, len(self.steps), range(len(self.inputs)), self.results)

    @cached_property
    def _turn(self) -> tuple[_Stretch, _Stretch]:
        """What only the first turn of a loop runs, and what each turn does with the results."""
        first, given = sum(s.once for s in self.steps), range(len(self.inputs))
        read = {i for s in self.steps[first:] for i in s.reads} | set(self.results)
        kept = [i for s in self.steps[:first] for i in s.writes if i in read]
        return (
            self._stretch(0, first, given, kept),
            self._stretch(first, len(self.steps), (*given, *kept), self.results),
        )

    def _stretch(
        self, start: int, stop: int, given: Sequence[int], results: Sequence[int]
    ) -> _Stretch:
        """Return some of the steps, given the values of some slots, as one function."""
        made = Prepared(self.steps[start:stop], given, results, self._numbers)
        return _Stretch(self, made, start, stop)

    def direct(self, sole: bool) -> Direct | None:
        """Return the shortest way to the results while no ledger is open, or to the only one.

        None if a number that is written in the program is a result.
        """
        if not self._numbers.keys().isdisjoint(self.results):
            return None
        given = range(len(self.inputs))
        made = Prepared(self.steps, given, self.results, self._numbers, sole=sole)
        stretch = _Stretch(self, made, 0, len(self.steps))
        if sole and len(self.steps) == 1:
            (step,) = self.steps
            if step.reads == tuple(given) and step.writes == self.results:
                return Direct(step.run, stretch)
        return Direct(made.function(self._runs), stretch)

    @cached_property
    def on_cells(self) -> Executable | None:
        """The same program on cells, a tuple for each grid; None if some step needs more.

        It runs where all devices run the code, this process holds all cells, and what is given has
        the kinds of `inputs`; then all values have the kinds that they were lowered for.
        """
        runs = [s.on_cells for s in self.steps]
        grids = all(isinstance(k, GridKind) and k.weak is None for k in self.outputs)
        if not grids or None in runs:
            return None
        steps = [replace(s, run=s.on_cells or s.run) for s in self.steps]
        return replace(self, steps=tuple(steps))

    def repeated(self, fixed: int) -> Executable:
        """Return the program as a loop's body, of which some steps need to run only once.

        Args:
            fixed: how many of the first values that it reads are the same in every turn.
        """
        known = {*range(fixed), *(i for i, x in enumerate(self.template) if x is not None)}
        first: list[Step] = []
        rest: list[Step] = []
        for step in self.steps:
            if step.reads and known.issuperset(step.reads):
                known.update(step.writes)
                first.append(replace(step, once=True))
            else:
                rest.append(step)
        if not first:
            return self
        read = {i for s in rest for i in s.reads} | set(self.results)
        first = [_keeping(s, read) for s in first]  # later turns read what the first one gave
        rest = [_keeping(s, known) for s in rest]
        return replace(self, steps=(*first, *rest))

    def looped(self, where: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """Return what runs one turn of a loop whose body this is, given all that it reads.

        What is the same in every turn is computed in the first.
        """
        if not self.steps or not self.steps[0].once:
            return partial(self.run, where)
        first, rest = self._turn
        kept: list[list[Any]] = []

        def turn(given: Sequence[Any]) -> list[Any]:
            if not kept:
                kept.append(first.run(where, given))
            return rest.run(where, [*given, *kept[0]])

        return turn

    def run(self, where: Any, given: Sequence[Any]) -> list[Any]:
        """Return the results, given all that it reads.

        Args:
            where: the world; in a body of `shard_map` the `Body`.
            given: the values captured, then the arguments.
        """
        return self._whole.run(where, given)

    def text(self) -> str:
        """Return what runs as a listing, with how each value is laid out."""
        return listing(self.listed())

    def told(self, error: Exception, number: int) -> Exception:
        """Return the error to raise where a step has raised one; a note says where that is."""
        step = self.steps[number]
        found = too_large(step.name, error) if isinstance(error, OverflowError) else error
        if self.scope is None:
            found.add_note(f"It happened in {step.name} of jit of {self.name!r}, at {step.line}.")
        return found

    def _watched(self, step: Step, where: Any, given: Sequence[Any]) -> Any:
        """Run a step while a ledger or a profile is open."""
        with at_line(step.line, step.purpose):
            return self._timed(step, where, given) if where.profiles else step.run(where, given)

    def _timed(self, step: Step, where: Any, given: Sequence[Any]) -> Any:
        """Run a step while a profile is open."""
        if self.scope is not None:
            if step.parts:
                return step.run(where, given)
            with timed(self.scope.world, step.name, "body") as ran_on:
                ran_on([NamedSharding(self.scope.mesh, PartitionSpec())])
                return step.run(where, given)
        with timed(where, step.name, "step", step.line) as ran_on:
            ran_on([k.sharding for k in step.outputs if isinstance(k, ArrayType)])
            return step.run(where, given)


@final
class _Stretch:
    """Some steps of a program that run one after the other.

    Args:
        executable: the program.
        prepared: the steps as one function.
        start: the number of the first.
        stop: the number behind the last.
    """

    def __init__(self, executable: Executable, prepared: Prepared, start: int, stop: int) -> None:
        self._executable, self._prepared = executable, prepared
        self._steps = slice(start, stop)

    @cached_property
    def _plain(self) -> Function:
        return self._prepared.function(self._executable._runs[self._steps])

    @cached_property
    def _watched(self) -> Function:
        return self._prepared.function(self._executable._watched_runs[self._steps])

    def run(self, where: Any, given: Sequence[Any]) -> list[Any]:
        """Return the results."""
        function = self._watched if where.ledgers else self._plain
        try:
            found: list[Any] = function(where, given)
        except OverflowError as error:
            raise self.told(error) from None
        except Exception as error:
            self.told(error)
            raise
        return found

    def told(self, error: Exception) -> Exception:
        """Return the error to raise where the function has raised one."""
        return self._executable.told(error, self._steps.start + self._prepared.step_of(error))


@final
class Direct:
    """The shortest way from what a program reads to its results.

    Attributes:
        run: from the world and what the program reads to the results, or to the only one.
        told: returns the error to raise where `run` has raised one.
    """

    __slots__ = ("run", "told")

    def __init__(self, run: Function, stretch: _Stretch) -> None:
        self.run, self.told = run, stretch.told


def turns(
    executable: Executable, times: int = 1, first: int | None = None
) -> Iterator[tuple[Step, int]]:
    """Yield each step, those of loops too but not of bodies, and how often it runs at least.

    Args:
        executable: the program.
        times: how often it runs.
        first: how often the steps run that only the first turn of a loop needs; None for as often.
    """
    for step in executable.steps:
        own = first if step.once and first is not None else times
        yield step, own
        for _, part, count in step.parts:
            if part.scope is not None:  # what bodies move is the same however they are lowered
                continue
            often = 1 if count is None else count
            yield from turns(part, own * often, own * min(often, 1))


def crossing(step: Step) -> int:
    """Return the bytes that devices receive from others in one run of a step."""
    return sum(w.total for w in step.wires)


def ensure_layout(world: RuntimeWorld, x: Any, kind: Kind, what: str = "jit") -> Any:
    """Return a value as an array of a type of the same shape and dtype; a number stays one.

    ``what`` is how ledgers call the move.
    """
    if not isinstance(kind, ArrayType) or (type(x) is Array and x._type is kind):
        return x
    if kind.committed:
        return placed(x, kind.sharding, what=what)
    return resharded(world, x, kind, what)


@final
class Slots:
    """The slots of one program.

    Args:
        given: the variables of what it reads; the same value may be given twice.
    """

    def __init__(self, given: Sequence[Var]) -> None:
        self._places: dict[Var, int] = {}
        for number, var in enumerate(given):
            self._places[var] = number
        self._template: list[Any] = [None] * len(given)
        self._literals: dict[tuple[type, str], int] = {}

    def of(self, atom: Atom) -> int:
        """Return the slot of a variable or literal."""
        if isinstance(atom, Literal):
            key = type(atom.value), repr(atom.value)
            if key not in self._literals:
                self._literals[key] = len(self._template)
                self._template.append(atom.value)
            return self._literals[key]
        if atom not in self._places:
            self._places[atom] = len(self._template)
            self._template.append(None)
        return self._places[atom]

    def all_of(self, atoms: Sequence[Atom]) -> tuple[int, ...]:
        """Return the slots of several."""
        return tuple(map(self.of, atoms))

    @property
    def template(self) -> tuple[Any, ...]:
        """What is in the slots before the program runs."""
        return tuple(self._template)


def last_uses(reads: Sequence[Sequence[Atom]], results: Sequence[Atom]) -> dict[Var, int]:
    """Return for each variable the last step that reads it; results are read at the end.

    Args:
        reads: for each step what it reads.
        results: what the program returns.
    """
    last: dict[Var, int] = {}
    for number, own in enumerate(reads):
        last |= {x: number for x in own if isinstance(x, Var)}
    return last | {x: len(reads) for x in results if isinstance(x, Var)}


def first_of(many: Callable[..., list[Any]], world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return the only result of a function that gives a list."""
    return many(world, operands)[0]


def ensured(type_: ArrayType, what: str, world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return the operand in the layout of a type; ``what`` is how ledgers call the move."""
    x = operands[0]
    return ensure_layout(world, x if type(x) is Array else as_array(x), type_, what)


def create(call: MakeCall, type_: ArrayType, world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Make an array."""
    return call.make(type_, *[x if type(x) is Array else as_array(x) for x in operands])


def as_number_array(dtype: Any, world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return a Python number as an array."""
    return as_array(operands[0], dtype)


def as_python_number(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return an array of one integer as a Python number."""
    return int(operands[0])


def converted(
    run: Callable[..., Any],
    made: tuple[bool, ...],
    weak: tuple[bool, ...],
    world: RuntimeWorld,
    operands: Sequence[Any],
) -> Any:
    """Run an operation on Python numbers made arrays; a weak result becomes a number."""
    given = tuple([as_array(x) if m else x for x, m in zip(operands, made, strict=True)])
    found = run(world, given)
    if len(weak) == 1:
        return found.item() if weak[0] else found
    return [x.item() if w else x for x, w in zip(found, weak, strict=True)]
