"""Functions of which some values are kept for the way back, as a policy says.

In: a function's program, and a policy. Out: its derivative. The way back is itself a program, made
once for each call: it reads the arguments, what is kept and the cotangents, and computes again only
what it needs besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import FLAT, Derivative, Site, Values
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.transforms.derivatives.arguments import strong
from meshard.transforms.derivatives.calls import CallRule
from meshard.transforms.derivatives.kept import Again, OfProgram
from meshard.transforms.derivatives.levels import LevelRecorder, differentiable
from meshard.transforms.derivatives.reverse import cotangents_of, followed_again
from meshard.transforms.derivatives.rules import CALLS, derivative_of
from meshard.transforms.program.calls import KeptCall
from meshard.transforms.program.program import Call, Eqn, Literal, Program, Var, evaluate
from meshard.transforms.program.simplify import simplified
from meshard.transforms.remat.policies import Policy, keeps
from meshard.transforms.tracing.tracing import recording, sub_program


@final
@dataclass(frozen=True, slots=True)
class _Known:
    """An operation whose results are at hand. Operands: its own, then its results.

    Attributes:
        eqn: the operation.
    """

    eqn: Eqn
    name = "known"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The operation."""
        return (("of", self.eqn.name),)

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the results; where operations are followed, as those of the operation."""
        recorder = recording()
        if isinstance(recorder, LevelRecorder):
            return recorder.level.called(self, operands)
        return list(operands[len(self.eqn.inputs) :])

    def site(self, operands: Values) -> Site:
        """Return the operation as one that has run."""
        count, eqn = len(self.eqn.inputs), self.eqn
        params = dict(eqn.params) if eqn.call is None else {"kept": None}
        return Site(eqn.name, params, operands[:count], operands[count:], self.again)

    def again(self, *values: Any) -> list[Any]:
        """Do the operation to other operands."""
        if self.eqn.call is not None:
            return self.eqn.call.run(values)
        found = bind(self.eqn.name, *values, **dict(self.eqn.params))
        return list(found) if isinstance(found, tuple) else [found]


@final
@dataclass(frozen=True, slots=True)
class _KnownDerivative(Derivative):
    call: _Known
    inner: Derivative

    def _rest(self) -> list[None]:
        return [None] * len(self.call.eqn.outputs)

    def push(self, site: Site, tangents: Values) -> list[Any]:
        own = self.call.site(site.operands)
        return self.inner.push(own, tangents[: len(own.operands)])

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        own = self.call.site(site.operands)
        own = replace(own, names=site.names[: len(own.operands)])
        found = cotangents_of(self.inner, own, cotangents, wanted[: len(own.operands)])
        return [*found, *self._rest()]


@final
class _KnownRule(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, _Known)
        inner = derivative_of(call.site([None] * len(call.eqn.inputs)), call.eqn.call)
        return FLAT if inner is FLAT else _KnownDerivative(call, inner)


CALLS[_Known] = _KnownRule()


def saved_eqns(program: Program, policy: Policy) -> list[Eqn]:
    """Return the operations of a program whose results a policy keeps."""
    found = []
    for eqn in program.eqns:
        operands = [type(x.value) if isinstance(x, Literal) else x.aval for x in eqn.inputs]
        if keeps(policy, eqn.name, operands, dict(eqn.params)):
            found.append(eqn)
    return found


def _with_known(program: Program, saved: Sequence[Eqn]) -> Program:
    """Return a program with more arguments: the results of some operations."""
    given: list[Var] = []
    eqns: list[Eqn] = []
    for eqn in program.eqns:
        if any(eqn is one for one in saved):
            own = tuple([Var(v.aval, v.weak) for v in eqn.outputs])
            given += own
            eqn = replace(eqn, params=(), inputs=(*eqn.inputs, *own), call=_Known(eqn))
        eqns.append(eqn)
    return Program(
        program.captured, (*program.inputs, *given), tuple(eqns), program.outputs, program.name
    )


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """The way back of one call.

    Attributes:
        program: from arguments, what is kept and cotangents to the arguments' cotangents.
        captured: the constants that it reads.
        kept: which of the values that the policy keeps it reads.
        moved: which arguments have a cotangent.
    """

    program: Program
    captured: list[Any]
    kept: list[int]
    moved: list[bool]


@final
class Saving:
    """Makes the derivative of calls of one function of which a policy keeps some values."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._plans: dict[int, tuple[Program, _Plan]] = {}

    def __call__(self, call: KeptCall) -> _Saved:
        """Return the derivative of a call."""
        return _Saved(self, call)

    def known(self, call: KeptCall) -> _Plan:
        """Return the way back of a call that has begun."""
        return self._plans[id(call.program)][1]

    def plan(self, call: KeptCall, values: Values, results: Values, known: Values) -> _Plan:
        """Return the way back of a call; of one that is known the same."""
        if id(call.program) not in self._plans:
            made = self._planned(call, values, results, known)
            self._plans[id(call.program)] = call.program, made
        return self.known(call)

    def _planned(self, call: KeptCall, values: Values, results: Values, known: Values) -> _Plan:
        first, second = len(values), len(values) + len(known)
        back = _WayBack(call, self.policy, first, second)
        cotangents = [y for y in results if differentiable(y)]
        whole, captured = sub_program(
            call.name, back, list(map(strong, [*values, *known, *cotangents]))
        )
        short, constants = simplified(whole)
        read = {x for e in short.eqns for x in e.inputs} | set(short.outputs)
        kept = [i for i, v in enumerate(short.inputs[first:second]) if v in read]
        own = [short.inputs[first + i] for i in kept]
        inputs = (*short.inputs[:first], *own, *short.inputs[second:])
        last = Program(short.captured, inputs, short.eqns, short.outputs, short.name)
        return _Plan(last, [captured[i] for i in constants], kept, back.moved)


@final
class _WayBack:
    """From arguments, what is kept and cotangents to cotangents of some arguments.

    Args:
        call: the call.
        policy: what is kept of it.
        first: where what is kept begins among the arguments.
        second: where the cotangents begin.

    Attributes:
        moved: which arguments have a cotangent; known when it has run.
    """

    def __init__(self, call: KeptCall, policy: Policy, first: int, second: int) -> None:
        self._name, self._first, self._second = call.name, first, second
        self._program = _with_known(call.program, saved_eqns(call.program, policy))
        self.moved: list[bool] = []

    def __call__(self, *given: Any) -> list[Any]:
        number, first = next(_recorder().numbers), self._first
        fresh = [
            o.again(x, number=number) if isinstance(x, Traced) and differentiable(x) else x
            for x in given[: self._second]
        ]
        count = len(self._program.captured)

        def flat(*own: Any) -> list[Any]:
            return evaluate(self._program, own[:count], [*own[count:], *fresh[first:]])

        made, pull = followed_again(self._name, flat, fresh[:first])
        rest = iter(given[self._second :])
        found = pull([next(rest) if differentiable(y) else None for y in made])
        self.moved = [g is not None for g in found]
        return [g for g in found if g is not None]


def _recorder() -> Any:
    found = recording()
    assert found is not None
    return found


@final
@dataclass(frozen=True, slots=True)
class _Saved(OfProgram):
    """The derivative of a function of which a policy keeps some values."""

    saving: Saving
    call: KeptCall

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""
        return Again(self.call).push(values, tangents)

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results, and what is kept."""
        program = self.call.program
        saved = [v for e in saved_eqns(program, self.saving.policy) for v in e.outputs]
        count = len(program.captured)
        longer = replace(program, outputs=(*program.outputs, *saved))
        found = evaluate(longer, values[:count], values[count:])
        results, known = found[: len(program.outputs)], found[len(program.outputs) :]
        plan = self.saving.plan(self.call, values, results, known)
        return results, tuple([known[i] for i in plan.kept])

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Go the way back with what is kept."""
        plan = self.saving.known(self.call)
        own = [g for g in cotangents if g is not None]
        found = iter(evaluate(plan.program, plan.captured, [*values, *kept, *own]))
        return [next(found) if moved else None for moved in plan.moved]
