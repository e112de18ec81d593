"""Lowering: from a program and the types of what it reads to steps that can run.

In: a `Program`, and how its operands are laid out. Out: an `Executable`: each operation decided as
it would be by itself, elementwise ones and reductions of rows joined into segments, loops and
branches lowered for the layouts of their carries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.sharding import NamedSharding
from meshard.ops.array.elementwise import AGAIN
from meshard.ops.engine.decide import decide, takes_arrays_only
from meshard.ops.engine.decision import (
    Decision,
    KernelDecision,
    MoveDecision,
    cheapest,
    cheapest_in_place,
)
from meshard.ops.engine.eager import runner
from meshard.ops.fused.segment import FusedSegment, runner_of
from meshard.ops.fused.ways import Piecewise, piecewise
from meshard.ops.row import Op
from meshard.plan.move.wires import Wire
from meshard.runtime.moving.place import as_array, wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.constrained import settled
from meshard.transforms.lowering.executable import (
    Executable,
    Moving,
    NamedPart,
    Run,
    Slots,
    Step,
    as_number_array,
    as_python_number,
    converted,
    create,
    crossing,
    ensured,
    first_of,
    last_uses,
    nothing_around,
    purpose_of,
    turns,
)
from meshard.transforms.lowering.lowered_calls import lowered_call
from meshard.transforms.lowering.preferences import (
    WaitingSum,
    added,
    preferences,
    uses_of,
    waiting_sum,
)
from meshard.transforms.program.calls import (
    AlikeCall,
    ArrayCall,
    ConstraintCall,
    MakeCall,
    NumberCall,
    opened,
)
from meshard.transforms.program.program import (
    Atom,
    Eqn,
    Kind,
    Listed,
    Literal,
    Program,
    Var,
    crossing_text,
    layout_text,
)
from meshard.transforms.program.simplify import exact_key
from meshard.transforms.tracing.tracing import unplaced_type
from meshard.tuning import LARGE, PACKED_CELLS

Results = Sequence[Kind | Sharding | None] | None
"""For each result the sharding that was asked for, or its whole type."""


def lower(
    world: RuntimeWorld,
    program: Program,
    given: Sequence[Kind],
    results: Results = None,
    donated: Sequence[int] | None = None,
    place: Sharding | None = None,
) -> Executable:
    """Return a program as steps on arrays of known types.

    Args:
        world: whose devices are used.
        program: the program.
        given: the types of what it captures, then of its arguments.
        results: for each result the sharding that it is to have, or its whole type; None where it
            may stay as it comes.
        donated: the numbers of the operands whose blocks may be written over, as those of values
            in between may then be; None for what may run more than once, as a loop's body does,
            where nothing is.
        place: where results go that depend on nothing committed; None where they may stay.
    """
    program = opened(program)
    decisions: _Decisions = {}
    follow = _Lowering(world, program, given, donated, decisions)
    best = follow.lowered(results, place)
    if not follow.may_gain:
        return best
    least = _moved(best)
    found = preferences(program, follow.kinds, results)
    guides = [_Guide(found, cheapest)] if found else []
    if least:
        guides.append(_Guide(found, cheapest_in_place))
    for guide in guides:
        other = _Lowering(world, program, given, donated, decisions, guide)
        lowered = other.lowered(results, place)
        cost = _moved(lowered)
        # What is split costs less work than what every device computes.
        if cost < least or (cost == least and guide.choose is cheapest):
            best, least = lowered, cost
    return best


@final
@dataclass(frozen=True, slots=True)
class _Guide:
    """What leads a lowering that does not only follow the operands.

    Attributes:
        preferred: how values should be laid out.
        choose: chooses a way to run an operation, given what is preferred.
    """

    preferred: Mapping[Var, NamedSharding]
    choose: Callable[..., Decision]


def _moved(executable: Executable) -> int:
    """Return the bytes that a program moves at least, all devices together."""
    return sum(times * crossing(step) for step, times in turns(executable))


_Decisions = dict[Any, Decision]


def _size(x: Var) -> int:
    assert isinstance(x.aval, ArrayType)
    return math.prod(x.aval.shape) * x.aval.dtype.itemsize


@final
class _Group:
    """Operations that become one step."""

    def __init__(self, run: Run | None, segment: FusedSegment | None = None) -> None:
        self.run = run
        self.segment = segment
        self.decision: Decision | None = None
        self.eqns: list[Eqn] = []
        self.name = ""
        self.line = ""
        self.inputs: list[Atom] = []
        self.outputs: list[Var] = []
        self.wires: tuple[Wire, ...] = ()
        self.around: Callable[[], Sequence[Moving]] = nothing_around
        self.parts: tuple[NamedPart, ...] = ()
        self.runner: Callable[[], str] = str

    @property
    def purpose(self) -> str:
        """What the operations are for."""
        return purpose_of(self.eqns)

    def clear(self) -> None:
        """Let nothing be done here."""
        self.eqns, self.inputs, self.outputs, self.wires = [], [], [], ()

    def settle(self) -> None:
        """Let an operation on few small cells that has stayed alone run as it does by itself."""
        if self.segment is None or self.decision is None or len(self.eqns) > 1:
            return
        (eqn,), cells = self.eqns, self.segment.parts[0].decision.cells
        if not cells.large and cells.count <= PACKED_CELLS:
            self.run, self.segment = runner(self.decision), None
            self.name, self.inputs, self.outputs = eqn.name, list(eqn.inputs), list(eqn.outputs)


@final
class _Lowering:
    def __init__(
        self,
        world: RuntimeWorld,
        program: Program,
        given: Sequence[Kind],
        donated: Sequence[int] | None,
        decisions: _Decisions,
        guide: _Guide | None = None,
    ) -> None:
        self.world = world
        self.may_gain = False
        self._guide = guide
        self._decisions = decisions
        self.program = program
        self.given = tuple(given)
        self.kinds: dict[Var, Kind] = {}
        variables = (*program.captured, *program.inputs)
        for var, kind in zip(variables, given, strict=True):
            self.kinds[var] = kind
        self._runs_once = donated is not None
        self._donated = {variables[i] for i in donated or ()}
        self._groups: list[_Group] = []
        self._level: dict[Var, int] = {}
        self._elsewhere: dict[tuple[Var, ArrayType], Var] = {}
        self._fence = -1
        self._waiting: dict[Var, WaitingSum] = {}
        self._uses = uses_of(program)
        self._readers: dict[Var, list[Eqn]] = {}
        for eqn in program.eqns:
            for x in eqn.inputs:
                if isinstance(x, Var):
                    self._readers.setdefault(x, []).append(eqn)

    def kind(self, atom: Atom) -> Kind:
        """Return what an operand is."""
        return type(atom.value) if isinstance(atom, Literal) else self.kinds[atom]

    def lowered(self, results: Results, place: Sharding | None) -> Executable:
        """Return the program as steps."""
        for eqn in self.program.eqns:
            if eqn.call is None:
                if not self._sum(eqn):
                    self._row(eqn)
            elif isinstance(eqn.call, ConstraintCall):
                self._constraint(eqn, eqn.call)
            elif isinstance(eqn.call, AlikeCall):
                self._alike(eqn, results)
            elif isinstance(eqn.call, ArrayCall):
                self._number(eqn, eqn.call)
            elif isinstance(eqn.call, NumberCall):
                self._add(_Group(as_python_number), eqn, (int,))
            elif isinstance(eqn.call, MakeCall):
                self._make(eqn, eqn.call, results)
            else:
                self._call(eqn)
        outputs = list(self.program.outputs)
        for number, asked in enumerate(results or ()):
            goal = self._goal(outputs[number], asked, place)
            outputs[number] = self._result(outputs[number], goal)
        return self._joined(outputs)

    # operations

    def _row(self, eqn: Eqn) -> None:
        kinds = [self.kind(x) for x in eqn.inputs]
        made = [not isinstance(k, ArrayType) for k in kinds]
        if not takes_arrays_only(eqn.name) and not all(made):
            made = [False] * len(kinds)
        elif not takes_arrays_only(eqn.name):
            made[1:] = [False] * (len(kinds) - 1)
        kinds = self._made(eqn, kinds, made)
        decision = self._decided(eqn, kinds)
        if isinstance(decision, KernelDecision):
            if any(decision.moves):
                eqn, decision = self._with_moves(eqn, kinds, decision)
                kinds = [
                    self.kind(x) if isinstance(x, Var) else k
                    for x, k in zip(eqn.inputs, kinds, strict=True)
                ]
            weak = any(v.weak is not None for v in eqn.outputs)
            if not weak and not any(made) and self._fused(eqn, decision, kinds):
                return
        self._single(eqn, runner(decision), decision, made)

    def _sum(self, eqn: Eqn) -> bool:
        """Add a step for a sum of what was to be combined one by one; it replaces these steps."""
        waiting = added(eqn, self._waiting, self._uses)
        if waiting is None:
            return False
        for x in eqn.inputs:
            assert isinstance(x, Var)
            self._groups[self._level[x]].clear()
        group = _Group(waiting.runner)
        group.wires = waiting.wires
        self._add(group, eqn, waiting.decisions[0].outputs)
        group.name, group.line = waiting.name, waiting.eqns[0].line
        group.eqns, group.inputs = list(waiting.eqns), list(waiting.inputs)
        self._waiting[eqn.outputs[0]] = waiting
        return True

    def _made(self, eqn: Eqn, kinds: Sequence[Kind], made: Sequence[bool]) -> list[Kind]:
        """Return what operands are, some of which are made arrays."""
        return [
            self._array_of(x, k) if m else k
            for x, k, m in zip(eqn.inputs, kinds, made, strict=True)
        ]

    def _decided(self, eqn: Eqn, kinds: Sequence[Kind]) -> Decision:
        """Return what an operation does: of the ways that are open the one that moves least."""
        best = self._way(eqn, kinds)
        if isinstance(best, MoveDecision):
            return best
        if len(best.outputs) == 1 and isinstance(best.outputs[0].sharding, NamedSharding):
            self.may_gain = True
        guide = self._guide
        if guide is None:
            return best
        preferred = [guide.preferred.get(v) for v in eqn.outputs]
        arrays = [i for i, k in enumerate(kinds) if isinstance(k, ArrayType)]
        return guide.choose(self.world, partial(self._way, eqn, kinds), preferred, arrays)

    def _way(
        self,
        eqn: Eqn,
        kinds: Sequence[Kind],
        preferred: Sequence[Sharding | None] = (),
        leading: int | None = None,
    ) -> Decision:
        """Return one way to run an operation, worked out once for all that are alike."""
        key = eqn.name, exact_key(eqn.params), tuple(kinds), tuple(preferred), leading
        found = self._decisions.get(key)
        if found is None:
            found = self._decisions[key] = decide(
                self.world, eqn.name, kinds, eqn.params, preferred=preferred, leading=leading
            )
        return found

    def _with_moves(
        self, eqn: Eqn, kinds: Sequence[Kind], decision: KernelDecision
    ) -> tuple[Eqn, KernelDecision]:
        """Move operands in steps of their own, so that what is left can be part of a segment."""
        inputs, after = list(eqn.inputs), list(kinds)
        for k, target in enumerate(decision.operands):
            x = inputs[k]
            if decision.moves[k] is not None and isinstance(x, Var) and target is not None:
                inputs[k], after[k] = self._once(eqn, x, target), target
        scattered = decision.combination is not None and decision.combination.scatter is not None
        preferred = [o.sharding if scattered else None for o in decision.outputs]
        now = self._way(eqn, after, preferred)
        if not isinstance(now, KernelDecision):
            return eqn, decision
        if any(now.moves) or now.outputs != decision.outputs:
            return eqn, decision
        return replace(eqn, inputs=tuple(inputs)), now

    def _once(self, eqn: Eqn, x: Var, target: ArrayType) -> Var:
        """Return an operand in another layout, moved there once."""
        key = x, target
        if key not in self._elsewhere:
            output = self._elsewhere[key] = Var(x.aval)
            call = ConstraintCall(target.sharding)
            moved = Eqn(call.name, (), (x,), (output,), eqn.line, call, eqn.purpose)
            self._placed(moved, x, output, target, eqn.name)
        return self._elsewhere[key]

    def _array_of(self, atom: Atom, kind: Kind) -> ArrayType:
        if isinstance(kind, ArrayType):
            return kind
        number = atom.value if isinstance(atom, Literal) else kind(0)
        return unplaced_type(self.world, as_array(number))

    def _single(
        self,
        eqn: Eqn,
        run: Callable[..., Any],
        decision: Decision,
        made: Sequence[bool],
    ) -> None:
        """Add a step of one operation, some of whose operands are made arrays first."""
        weak = [v.weak for v in eqn.outputs]
        plain = not any(made) and not any(w is not None for w in weak)
        waiting = waiting_sum(eqn, decision) if plain else None
        if waiting is not None:
            self._waiting[eqn.outputs[0]] = waiting
        if not plain:
            run = partial(converted, run, tuple(made), tuple(w is not None for w in weak))
        group = _Group(run)
        group.wires = decision.wires
        self._add(group, eqn, decision.outputs)
        if isinstance(decision.row, Op) and decision.row.style != "view":
            self._fence = len(self._groups) - 1

    def _add(self, group: _Group, eqn: Eqn, outputs: Sequence[Kind]) -> None:
        group.eqns.append(eqn)
        group.name, group.line = eqn.name, eqn.line
        group.inputs, group.outputs = list(eqn.inputs), list(eqn.outputs)
        for var, kind in zip(eqn.outputs, outputs, strict=True):
            self._set(var, kind, len(self._groups))
        self._groups.append(group)

    def _set(self, var: Var, kind: Kind, level: int) -> None:
        self.kinds[var] = kind if var.weak is None else var.weak
        self._level[var] = level

    def _fused(self, eqn: Eqn, decision: KernelDecision, kinds: Sequence[Kind]) -> bool:
        """Add an operation to a segment, if it can be part of one."""
        part = piecewise(decision, kinds, dict(eqn.params))
        if part is None:
            return False
        names = [x if isinstance(x, Var) else None for x in eqn.inputs]
        numbers = [x.value if isinstance(x, Literal) else None for x in eqn.inputs]
        # What is computed again is so where the way back needs it, not as soon as it could be.
        earliest = len(self._groups) - 1 if eqn.name == AGAIN else 0
        if self._waits(eqn):
            earliest = self._fence + 1
        level = self._level_of_segment(part, names, earliest)
        if level == len(self._groups):
            self._groups.append(_Group(None, FusedSegment(part)))
            self._groups[level].decision = decision
        group = self._groups[level]
        assert group.segment is not None
        group.segment.add(part, names, numbers, eqn.outputs[0])
        group.eqns.append(eqn)
        group.line = group.line or eqn.line
        self._set(eqn.outputs[0], part.output, level)
        return True

    def _waits(self, eqn: Eqn) -> bool:
        """Whether less is kept, until a result is read, if it is computed late.

        That is so where it is large and its operands are kept for others, as for slopes on the way
        back: then it does not join what ran before the last product, or sum between devices.
        """
        size = _size(eqn.outputs[0])
        read = {x for x in eqn.inputs if isinstance(x, Var)}
        return size >= LARGE and size > sum(_size(x) for x in read if self._ends_with(x, eqn))

    def _ends_with(self, x: Var, eqn: Eqn) -> bool:
        """Whether an operation is the only reader of a value but for those that run with it."""
        level = self._level.get(x)
        readers = self._readers.get(x, ())
        others = [v for e in readers if e.outputs is not eqn.outputs for v in e.outputs]
        return level is not None and all(self._level.get(v) == level for v in others)

    def _level_of_segment(self, part: Piecewise, names: Sequence[Var | None], earliest: int) -> int:
        """Return where the first segment is that an operation can join; the end if none is."""
        reads = [x for x in names if x is not None]
        first = max((self._level.get(x, -1) for x in reads), default=-1)
        for level in range(max(first, earliest, 0), len(self._groups)):
            segment = self._groups[level].segment
            if segment is None or not segment.accepts(part, names):
                continue
            # What another step gives at the same level is not there yet.
            if all(self._level.get(x) != level or x in segment.gives for x in reads):
                return level
        return len(self._groups)

    def _constraint(self, eqn: Eqn, call: ConstraintCall) -> None:
        (x,) = eqn.inputs
        self._placed(eqn, x, eqn.outputs[0], self._laid_out(x, call.sharding))

    def _alike(self, eqn: Eqn, results: Results) -> None:
        x, like = eqn.inputs
        (output,) = eqn.outputs
        kind, other = self._array_of(x, self.kind(x)), self.kind(like)
        wanted: Sharding | None = other.sharding if isinstance(other, ArrayType) else None
        if self._guide is not None and not self._returned_as_it_is(output, results):
            wanted = self._guide.preferred.get(output, wanted)  # nobody sees how it is laid out
        if isinstance(wanted, NamedSharding):
            kind = self.world.type_of(kind.shape, kind.dtype, wanted, True)
        self._placed(eqn, x, output, kind)

    def _returned_as_it_is(self, x: Var, results: Results) -> bool:
        """Whether a value is a result that has the layout that it would have outside."""
        asked = zip(self.program.outputs, results or repeat(None), strict=False)
        return any(r is None for y, r in asked if y is x)

    def _laid_out(self, atom: Atom, sharding: Sharding) -> ArrayType:
        kind = self._array_of(atom, self.kind(atom))
        return self.world.type_of(kind.shape, kind.dtype, settled(sharding, kind), True)

    def _placed(
        self, eqn: Eqn, x: Atom, output: Var, type_: ArrayType, what: str = "sharding_constraint"
    ) -> None:
        source = self.kind(x)
        group = _Group(partial(ensured, type_, what))
        if isinstance(source, ArrayType) and source.layout != type_.layout and not source.unplaced:
            group.wires = wires_between(self.world, source, type_)
        self._add(group, eqn, (type_,))
        group.name = "reshard" if what != eqn.name else what

    def _number(self, eqn: Eqn, call: ArrayCall) -> None:
        (x,) = eqn.inputs
        kind = self._array_of(x, self.kind(x))
        kind = self.world.type_of(kind.shape, call.dtype, kind.sharding, kind.committed)
        group = _Group(partial(as_number_array, call.dtype))
        self._add(group, eqn, (kind,))

    def _make(self, eqn: Eqn, call: MakeCall, results: Results) -> None:
        kinds = [k for k in map(self.kind, eqn.inputs) if isinstance(k, ArrayType)]
        kind = call.beside(kinds)
        (output,) = eqn.outputs
        guide = self._guide
        preferred = None if call.asked or guide is None else guide.preferred.get(output)
        self.may_gain = self.may_gain or not call.asked
        if preferred is not None and not self._returned_as_it_is(output, results):
            devices = set(preferred.device_order)
            if all(set(s.device_order) == devices for s in self._committed()):
                kind = self.world.type_of(kind.shape, kind.dtype, preferred, True)
        self._add(_Group(partial(create, call, kind)), eqn, (kind,))

    def _committed(self) -> Iterator[Sharding]:
        """Yield the shardings of values that other values must meet."""
        for kind in self.given:
            if isinstance(kind, ArrayType) and kind.committed:
                yield kind.sharding
        for eqn in self.program.eqns:
            if isinstance(eqn.call, ConstraintCall):
                yield eqn.call.sharding

    def _call(self, eqn: Eqn) -> None:
        kinds = [self.kind(x) for x in eqn.inputs]
        found = lowered_call(self.world, eqn, kinds, lower)
        group = _Group(found.run)
        group.parts, group.around = found.parts, found.around
        self._add(group, eqn, found.outputs)

    def _goal(
        self, atom: Atom, asked: Kind | Sharding | None, place: Sharding | None
    ) -> Kind | Sharding | None:
        """Return how a result is to be laid out: on ``place`` if nothing committed says where."""
        kind = self.kind(atom)
        free = kind.unplaced if isinstance(kind, ArrayType) else True
        return place if asked is None and free else asked

    def _result(self, atom: Atom, asked: Kind | Sharding | None) -> Atom:
        """Return a result that is laid out as the caller asked."""
        if asked is None or isinstance(asked, type):
            return atom
        kind = asked if isinstance(asked, ArrayType) else self._laid_out(atom, asked)
        if self.kind(atom) is kind:
            return atom
        output = Var(atom.aval if isinstance(atom, Var) else kind)
        made = self._groups[self._level[atom]] if atom in self._level else None
        line, purpose = ("", "") if made is None else (made.line, made.purpose)
        call = ConstraintCall(kind.sharding)
        eqn = Eqn(call.name, (), (atom,), (output,), line, call, purpose)
        self._placed(eqn, atom, output, kind)
        return output

    # slots

    def _joined(self, outputs: Sequence[Atom]) -> Executable:
        """Give every variable a slot and return the steps."""
        program = self.program
        slots = Slots((*program.captured, *program.inputs))
        for group in self._groups:
            group.settle()
        reads = [g.inputs if g.segment is None else g.segment.reads for g in self._groups]
        last = last_uses(reads, outputs)
        steps = [
            self._step(level, group, own, last, slots)
            for level, (group, own) in enumerate(zip(self._groups, reads, strict=True))
            if group.eqns
        ]
        results = slots.all_of(outputs)
        return Executable(
            name=program.name,
            inputs=self.given,
            outputs=tuple(map(self.kind, outputs)),
            steps=tuple(steps),
            template=slots.template,
            results=results,
            listed=partial(self._listed, outputs),
            kinds=self.kinds,
        )

    def _step(
        self,
        level: int,
        group: _Group,
        reads: Sequence[Atom],
        last: Mapping[Var, int],
        slots: Slots,
    ) -> Step:
        """Return a group as a step, which lets go of what nobody reads after it."""
        if group.segment is not None:
            self._finish(group, group.segment, level, last)
        run = group.run
        assert run is not None
        dead: list[Atom] = [x for x in reads if isinstance(x, Var) and last[x] == level]
        dead += [x for x in group.outputs if last.get(x, -1) < level]
        return Step(
            name=group.name,
            line=group.line,
            purpose=group.purpose,
            inputs=tuple(map(self.kind, reads)),
            outputs=tuple([self.kinds[x] for x in group.outputs]),
            reads=slots.all_of(reads),
            writes=slots.all_of(group.outputs),
            dead=tuple(dict.fromkeys(slots.all_of(dead))),
            run=run,
            wires=group.wires,
            around=group.around,
            eqns=tuple(group.eqns),
            parts=group.parts,
            runner=group.runner,
        )

    def _finish(
        self, group: _Group, segment: FusedSegment, level: int, last: Mapping[Var, int]
    ) -> None:
        """Complete a group that is a segment: what it gives, and what runs it."""
        needed = [x for x in segment.gives if last.get(x, -1) > level]
        ending = [x for x in segment.reads if last[x] == level and self._ends(x)]
        many = segment.finished(needed, ending)
        group.runner = runner_of(many)
        group.run = many if len(needed) != 1 else partial(first_of, many)
        group.outputs = needed
        group.name = "+".join([e.name for e in group.eqns])

    def _ends(self, x: Var) -> bool:
        """Whether a value's blocks may be written over by its last reader.

        What a segment gave is in blocks of its own; other steps may give those that they got.
        """
        made = x in self._level and self._groups[self._level[x]].segment is not None
        return x in self._donated or (self._runs_once and made)

    def _listed(self, outputs: Sequence[Atom]) -> Listed:
        """Return what runs as a program to be printed."""
        own = self.program
        eqns = [eqn for group in self._groups for eqn in group.eqns]
        notes, parts = {}, {}
        for group in filter(lambda g: g.eqns, self._groups):
            notes[id(group.eqns[-1])] = crossing_text(group.wires)
            if group.parts:
                parts[id(group.eqns[-1])] = [(n, p.listed()) for n, p, _ in group.parts]
        return Listed(
            Program(own.captured, own.inputs, tuple(eqns), tuple(outputs), own.name),
            {v: layout_text(k) for v, k in self.kinds.items()},
            notes,
            parts,
        )
