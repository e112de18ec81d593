"""Jitted functions that are differentiated: programs of their own forward, and for the way back.

In: the program of a jitted function that is called while a level follows the code around it. Out:
one compiled program that gives its results and what the way back needs, and another that is the way
back; or one that gives results and tangents. They are made once for each program, and lowered once
for each layout of what they read, as jit does. Both are calls like the first, so that they can be
differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from meshard.algebra.sharding import NamedSharding
from meshard.ops.array.create import zeros
from meshard.ops.derivatives.kinds import Derivative, Site, Values, is_differentiable
from meshard.ops.engine.eager import EAGER, WEAK
from meshard.runtime.array.array import Array
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld, here
from meshard.transforms.derivatives.calls import CallRule
from meshard.transforms.derivatives.forward import pushed
from meshard.transforms.derivatives.levels import Level
from meshard.transforms.derivatives.reverse import recorded
from meshard.transforms.derivatives.rules import CALLS
from meshard.transforms.jit.stages import ProgramEntry
from meshard.transforms.program.halves import Halves, halved
from meshard.transforms.program.program import Atom, Call, Literal, Program, Var, evaluate
from meshard.transforms.program.simplify import simplified
from meshard.transforms.tracing.signature import Trace
from meshard.transforms.tracing.tracing import Tracing, Typed, traced, unplaced_type

Pattern = tuple[bool, ...]
Wishes = tuple[ArrayType | None, ...]


@final
@dataclass(frozen=True, slots=True)
class JittedCall:
    """A program that runs compiled where code runs at once.

    Attributes:
        program: the program; it reads its operands only.
        name: the function that it was traced from.
        told: what messages call each operand.
        constants: arrays that the program captures.
        like: for each result how it is to be laid out; None where it may stay as it comes.
    """

    program: Program
    name: str
    told: tuple[str, ...]
    constants: tuple[Array, ...] = ()
    like: Wishes | None = None

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The program."""
        return (("body", self.program),)

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The function."""
        return (("name", self.name),)

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the results."""
        at_hand = innermost()
        if at_hand is None or at_hand is EAGER:
            return self._entry(here(), operands).flat(here(), list(operands))
        if isinstance(at_hand, Level) and at_hand.runs:
            return at_hand.called(self, operands)
        if isinstance(at_hand, Tracing) and at_hand.recorder.runs:
            like = [_typed(x) for x in self.program.outputs]
            found: list[Any] = at_hand.recorder.result(self.name, (), operands, like, self)
            return found
        return self.evaluated(operands)

    def evaluated(self, operands: Sequence[Any]) -> list[Any]:
        """Return the results, operation by operation under the interpreter at hand."""
        return evaluate(self.program, self.constants, operands)

    def _entry(self, world: RuntimeWorld, operands: Sequence[Any]) -> ProgramEntry:
        kinds = tuple([x._type if type(x) is Array else type(x) for x in operands])
        key = ProgramEntry, kinds, self.like
        found: ProgramEntry | None = self.program.made.get(key)
        if found is None:
            found = ProgramEntry(world, self._trace(), kinds, None, self.like)
            self.program.made[key] = found
        return found

    def _trace(self) -> Trace:
        program = self.program
        count, results = len(program.inputs), len(program.outputs)
        return Trace(
            self.name,
            f"jit of {self.name!r}",
            program,
            self.constants,
            trees.structure((list(range(count)), {})),
            trees.structure(list(range(results))),
            self.told,
            (None,) * count,
            (None,) * results,
            (),
            frozenset(range(count)),
        )


def jitted_call(program: Program, name: str, told: Sequence[str]) -> JittedCall:
    """Return a program as a call; what it captures are the first of its operands."""
    closed = program.made.get(JittedCall)
    if closed is None:
        given = (*program.captured, *program.inputs)
        closed = Program((), given, program.eqns, program.outputs, program.name)
        program.made[JittedCall] = closed
    captured = [f"captured value {i}" for i in range(len(program.captured))]
    return JittedCall(closed, name, (*captured, *told))


@final
@dataclass(frozen=True, slots=True)
class _Joint:
    """A function and its derivative as one program.

    Attributes:
        program: from the operands and, of those that move, tangents, or of the results that do,
            cotangents, to the results and then the tangents or cotangents that are not zero.
        constants: the arrays that it captures.
        ends: for each result, or operand that moves, whether its tangent or cotangent is there.
    """

    program: Program
    constants: tuple[Array, ...]
    ends: Pattern


def _typed(atom: Atom) -> Typed:
    """Return the type that a value of a program has outside of it."""
    if isinstance(atom, Literal):
        return unplaced_type(here(), as_array(atom.value)), None
    assert isinstance(atom.aval, ArrayType)
    return atom.aval, None


@final
class _Writing:
    """Writes down a function and its derivative.

    Args:
        call: the function.
        moving: the operands that move.
        forward: whether tangents are pushed forward, rather than cotangents pulled back.

    Attributes:
        late: the results, or operands that move, that have a cotangent or tangent.
        types: what these are.
    """

    def __init__(self, call: JittedCall, moving: Pattern, forward: bool) -> None:
        self._call, self._forward = call, forward
        program = call.program
        self._types: list[Typed] = [(_typed(v)[0], v.weak) for v in program.inputs]
        self._places = [i for i, moves in enumerate(moving) if moves]
        late: Sequence[Atom] = program.outputs
        if forward:
            late = [program.inputs[i] for i in self._places]
        self.late = tuple([isinstance(x, Var) and is_differentiable(_typed(x)[0]) for x in late])
        self.types = [_typed(x) for x, own in zip(late, self.late, strict=True) if own]

    def joint(self, patterns: Sequence[Pattern], *, at_once: bool = False) -> _Joint:
        """Return both as one program, for some choices of the late values that are not zero.

        What it returns is that of the last choice; what the others need comes before, so that it is
        the same in all programs that begin with these choices.

        Args:
            patterns: the choices.
            at_once: whether all that runs may push tangents beside its results. The program can
                be halved only if it may not: a call would give both.
        """
        count, call = len(self._types), self._call

        def flat(*values: Any) -> tuple[list[Any], Any]:
            own, given = list(values[:count]), iter(values[count:])
            late = [next(given) if has else None for has in self.late]
            results, ends = self._both(own, late, patterns, at_once)
            return [*results, *[x for x in ends if x is not None]], [x is not None for x in ends]

        told = [*call.told, *["a tangent" if self._forward else "a cotangent"] * len(self.types)]
        program, constants, ends = traced(call.name, flat, [*self._types, *self.types], told)
        return _Joint(program, tuple(constants), tuple(ends))

    def _both(
        self, own: list[Any], late: list[Any], patterns: Sequence[Pattern], at_once: bool
    ) -> tuple[list[Any], list[Any]]:
        call, name = self._call, f"jit of {self._call.name!r}"

        def f(*moved: Any) -> list[Any]:
            every = list(own)
            for i, x in zip(self._places, moved, strict=True):
                every[i] = x
            return call.evaluated(every)

        values = [own[i] for i in self._places]
        chosen = [
            [x if has else None for x, has in zip(late, pattern, strict=True)]
            for pattern in patterns
        ]
        if at_once:
            return pushed(name, f, values, chosen[0])
        told = [call.told[i] for i in self._places]
        run = recorded(name, f, values, told, forward=self._forward)
        found = [run.push(g) if self._forward else run.pull(g) for g in chosen]
        return run.results, found[-1]


@final
class _Split:
    """A function that is differentiated, and then its derivative: two programs.

    Args:
        call: the function.
        moving: the operands that move.
        forward: whether tangents are pushed forward later, rather than cotangents pulled back.

    Attributes:
        moving: the operands that move.
        first: from the operands to the results and what is kept besides.
        kept: what the derivative reads, as numbers among the operands and what `first` returns.
        late: the results, or operands that move, that have a cotangent or tangent.
    """

    def __init__(self, call: JittedCall, moving: Pattern, forward: bool) -> None:
        self._call = call
        self._writing = _Writing(call, moving, forward)
        self._joint = self._writing.joint([self._writing.late])
        halves, constants = self._halves(self._joint, None)
        self._variables = halves.variables
        self.first = JittedCall(
            halves.first, call.name, call.told, tuple([constants[i] for i in halves.early])
        )
        self.moving, self.kept, self.late = moving, halves.kept, self._writing.late
        self._seconds: dict[Pattern, tuple[JittedCall, Pattern] | None]
        self._seconds = {self.late: self._second(self._joint, halves, constants, self.late)}

    def _halves(
        self, joint: _Joint, variables: Sequence[Var] | None
    ) -> tuple[Halves, Sequence[Array]]:
        program, used = simplified(joint.program)
        early, results = len(self._call.program.inputs), len(self._call.program.outputs)
        halves = halved(program, early, results, variables)
        return halves, [joint.constants[i] for i in used]

    def _second(
        self, joint: _Joint, halves: Halves, constants: Sequence[Array], given: Pattern
    ) -> tuple[JittedCall, Pattern]:
        program, count = halves.second, len(halves.kept)
        chosen = [own for own, has in zip(given, self.late, strict=True) if has]
        pairs = zip(program.inputs[count:], chosen, strict=True)
        late = [v for v, own in pairs if own]
        program = replace(program, inputs=(*program.inputs[:count], *late))
        name = self._call.name
        told = [f"value {i} that {name!r} kept" for i in range(count)]
        told += [f"cotangent {i} of {name!r}" for i in range(len(late))]
        known = tuple([constants[i] for i in halves.late])
        return JittedCall(program, name, tuple(told), known), joint.ends

    def second(self, given: Pattern) -> tuple[JittedCall, Pattern] | None:
        """Return the derivative for some late values, and which of what it gives is not zero.

        None if it is not made of what was kept.
        """
        if given not in self._seconds:
            joint = self._writing.joint([self.late, given])
            mine, other = self._joint.program, joint.program
            same = dict(zip(mine.inputs, other.inputs, strict=True))
            for eqn, twin in zip(mine.eqns, other.eqns, strict=False):
                same.update(zip(eqn.outputs, twin.outputs, strict=True))
            halves, constants = self._halves(joint, [same[v] for v in self._variables])
            self._seconds[given] = None
            if halves.separate:
                self._seconds[given] = self._second(joint, halves, constants, given)
        return self._seconds[given]

    def zeros(self, late: Sequence[Any]) -> list[Any]:
        """Return tangents or cotangents with zeros for those that are None."""
        types = iter(self._writing.types)
        like = [next(types)[0] if has else None for has in self.late]
        return [
            zeros(t.shape, t.dtype) if g is None and t is not None else g
            for g, t in zip(late, like, strict=True)
        ]


@final
@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of a call for its derivative.

    Attributes:
        split: its programs.
        values: the values that the derivative reads.
        like: how what it gives is to be laid out.
    """

    split: _Split
    values: list[Any]
    like: Wishes

    def linear(self, late: Sequence[Any]) -> list[Any]:
        """Return what the derivative makes of tangents or cotangents; None where it is zero."""
        own = [g if has else None for g, has in zip(late, self.split.late, strict=True)]
        found = self.split.second(tuple([g is not None for g in own]))
        if found is None:
            own = self.split.zeros(own)
            found = self.split.second(self.split.late)
        assert found is not None
        call, ends = found
        like = tuple([x for x, has in zip(self.like, ends, strict=True) if has])
        moved = [g for g in own if g is not None]
        made = iter(replace(call, like=like).run([*self.values, *moved]))
        return [next(made) if has else None for has in ends]


def _wish(x: Any) -> ArrayType | None:
    """Return how the cotangent of a value is to be laid out: as the value, if that is on a mesh."""
    if type(x) in WEAK or not isinstance(x._type.sharding, NamedSharding):
        return None
    type_: ArrayType = x._type
    return here().type_of(type_.shape, type_.dtype, type_.sharding, True)


@final
@dataclass(frozen=True, slots=True)
class _Derivative(Derivative):
    kept_alone = True

    def push(self, site: Site, tangents: Values) -> list[Any]:
        kept: _Kept = site.params["kept"]
        pairs = zip(tangents, kept.split.moving, strict=True)
        return kept.linear([t for t, moves in pairs if moves])

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        kept: _Kept = site.params["kept"]
        found = iter(kept.linear(cotangents))
        return [next(found) if want else None for want in wanted]


@final
class _Jits(CallRule):
    def of(self, call: Call) -> Derivative:
        return _DERIVATIVE

    def run(
        self, call: Call, values: Values, moving: Pattern, forward: bool, names: Sequence[str]
    ) -> tuple[list[Any], Any]:
        assert isinstance(call, JittedCall)
        key = _Split, moving, forward
        split: _Split | None = call.program.made.get(key)
        if split is None:
            split = call.program.made[key] = _Split(call, moving, forward)
        count = len(call.program.outputs)
        first, like = split.first, None
        if call.like is not None:
            more = len(first.program.outputs) - count
            first = replace(first, like=(*call.like, *[None] * more))
        found = first.run(values)
        every = (*values, *found)
        own = [x for x, moves in zip(values, moving, strict=True) if moves]
        like = tuple(map(_wish, found[:count] if forward else own))
        return found[:count], _Kept(split, [every[i] for i in split.kept], like)

    def forth(
        self, call: Call, values: Values, tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        assert isinstance(call, JittedCall)
        moving = tuple([t is not None for t in tangents])
        key = _Writing, moving
        made = call.program.made.get(key)
        if made is None:
            writing = _Writing(call, moving, True)
            joint = writing.joint([writing.late], at_once=True)
            program, used = simplified(joint.program)
            told = (*call.told, *[f"tangent {i}" for i in range(sum(moving))])
            constants = tuple([joint.constants[i] for i in used])
            made = JittedCall(program, call.name, told, constants), joint.ends
            call.program.made[key] = made
        both, ends = made
        count = len(call.program.outputs)
        if call.like is not None:
            more = len(both.program.outputs) - count
            both = replace(both, like=(*call.like, *[None] * more))
        found = both.run([*values, *[t for t in tangents if t is not None]])
        moved = iter(found[count:])
        return found[:count], [next(moved) if has else None for has in ends]


_DERIVATIVE = _Derivative()
CALLS[JittedCall] = _Jits()
