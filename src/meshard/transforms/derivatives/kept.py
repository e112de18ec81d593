"""Calls that keep a function together: its derivative is its own, or it is computed again.

In: a function and its arguments, flat. Out: its results. Where operations are written down, one
call is, which holds the function's program; a derivative is taken as the call says, and everything
else runs the program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import Derivative, Site, Values, shrunk
from meshard.ops.engine.eager import WEAK
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import as_array
from meshard.runtime.world import here
from meshard.transforms.batching.programs import CALLS as BATCHED
from meshard.transforms.batching.programs import every, flat_of
from meshard.transforms.batching.vmap import vmap
from meshard.transforms.body.body import Body
from meshard.transforms.body.branches import abstract_grid
from meshard.transforms.body.mapped_axes import Examples
from meshard.transforms.derivatives.calls import CallRule, Moving, _full, _spread, forth_through
from meshard.transforms.derivatives.levels import LevelRecorder, differentiable
from meshard.transforms.derivatives.reverse import followed_again
from meshard.transforms.derivatives.rules import CALLS
from meshard.transforms.program.calls import KeptCall
from meshard.transforms.program.program import Call, Literal, Program, evaluate
from meshard.transforms.tracing.tracing import recording, sub_program, unplaced_type

Flat = Callable[..., list[Any]]


class Rule(Protocol):
    """What a call's derivative is."""

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results, and what is kept for the way back."""

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Return the cotangents of the arguments."""


class OfProgram:
    """The base of rules that follow from a call's program, so that a mapped call has them too."""

    __slots__ = ()


class BothAtOnce(ABC):
    """The base of rules that give results and tangents together."""

    __slots__ = ()

    @abstractmethod
    def forth(self, values: Values, tangents: Values) -> tuple[list[Any], list[Any]]:
        """Return the results and their tangents."""


def kept_call(
    name: str, f: Flat, rule: Any, values: Sequence[Any], at_once: bool = False
) -> list[Any]:
    """Call a function; where operations are written down or followed, as one call.

    Args:
        name: what listings call it.
        f: the function, from flat values to flat values.
        rule: makes a `Rule` from a function that the call runs.
        values: the arguments.
        at_once: whether the function sees values where operations are only followed.
    """
    recorder = recording()
    if recorder is None or not any(isinstance(x, Traced) for x in values):
        return f(*values)
    if at_once and isinstance(recorder, LevelRecorder):
        call = FollowedCall(f, rule, name)
        if _is_transposed(call, recorder, values):
            return f(*values)
        if recorder.level.body is None:
            return recorder.level.called(call, values)
    given = _operands(values)
    program, captured = sub_program(name, f, given)
    return run_kept(KeptCall(program, rule, name, run_kept), [*captured, *given])


def run_kept(call: KeptCall, operands: Sequence[Any]) -> list[Any]:
    """Run a call; where operations are written down or followed, as one call."""
    recorder, body, program = recording(), innermost(), call.program
    followed = any(isinstance(x, Traced) for x in operands)
    if recorder is None or not followed or _is_transposed(call, recorder, operands):
        captured, own = call.split_operands(operands)
        return evaluate(program, captured, own)
    given = _operands(operands)
    if not isinstance(body, Body):
        return list(recorder.result(call.name, (), given, _types(program), call))
    kinds: list[Any] = [
        body.lift(x.value).kind if isinstance(x, Literal) else x.aval for x in program.outputs
    ]
    found: list[Any] = recorder.made(call, given, [abstract_grid(body, k) for k in kinds])
    return found


def _is_transposed(call: KeptCall | FollowedCall, recorder: Any, operands: Sequence[Any]) -> bool:
    """Whether a call is part of what a rule makes of tangents, which is linear, and is transposed.

    Its own rule for tangents is not asked for then: it may use the same function once more.
    """
    if not isinstance(recorder, LevelRecorder) or not recorder.level.linear:
        return False
    moves = any(map(recorder.level.knows, operands))
    return moves and isinstance(call.rule(call), BothAtOnce)


def _operands(values: Sequence[Any]) -> list[Any]:
    """Return values as operands of a call: arrays, and in a body values of it."""
    body = innermost()
    given = [body.lift(x) if isinstance(body, Body) else x for x in values]
    return [as_array(x) if type(x) in WEAK else x for x in given]


def _types(program: Any) -> list[Any]:
    world = here()
    found = []
    for x in program.outputs:
        kind = getattr(x, "aval", None)
        if kind is None:
            kind = unplaced_type(world, as_array(x.value))
        found.append((kind, None))
    return found


@final
@dataclass(frozen=True, slots=True)
class FollowedCall:
    """A function that is kept together, for its derivative, and that runs when it is called.

    Attributes:
        f: the function, from flat values to flat values.
        rule: from this call to what its derivative is.
        name: what listings call it.
    """

    f: Flat
    rule: Callable[[Any], Any]
    name: str
    captures: ClassVar[int] = 0

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Run it."""
        return kept_call(self.name, self.f, self.rule, operands, True)


@final
@dataclass(frozen=True, slots=True)
class _Kept(Derivative):
    call: KeptCall | FollowedCall

    def _rule(self) -> Rule:
        made: Rule = self.call.rule(self.call)
        return made

    def push(self, site: Site, tangents: Values) -> list[Any]:
        return self._rule().push(site.operands, tangents)

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        kept = site.params["kept"]
        if kept is None:
            kept = self._rule().begin(site.operands)[1]
        return self._rule().pull(site.operands, kept, cotangents, site.names)


@final
class _Kepts(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, (KeptCall, FollowedCall))
        return _Kept(call)

    def run(
        self, call: Call, values: Values, moving: Moving, forward: bool, names: Sequence[str]
    ) -> tuple[list[Any], Any]:
        assert isinstance(call, (KeptCall, FollowedCall))
        rule: Rule = call.rule(call)
        return rule.begin(values)

    def forth(
        self, call: Call, values: Values, tangents: Values
    ) -> tuple[list[Any], list[Any] | None]:
        assert isinstance(call, (KeptCall, FollowedCall))
        rule = call.rule(call)
        return (
            rule.forth(values, tangents)
            if isinstance(rule, BothAtOnce)
            else (call.run(values), None)
        )


CALLS[KeptCall] = CALLS[FollowedCall] = _Kepts()


# computed again


@final
@dataclass(frozen=True, slots=True)
class Again(OfProgram):
    """A function whose values are not kept for the way back, but computed again there."""

    call: KeptCall

    def _flat(self, *values: Any) -> list[Any]:
        count = len(self.call.program.captured)
        return evaluate(self.call.program, values[:count], values[count:])

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""
        given = _full(tangents, values)
        results, found = forth_through(self.call.name, self._flat, values, given)
        return _spread(found, results)

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results; nothing is kept."""
        return self._flat(*values), ()

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Compute the values again, and go back through them."""
        recorder = recording()  # its numbers are the same in all processes
        number = 0 if recorder is None else next(recorder.numbers)
        fresh = [
            o.again(x, number=number) if isinstance(x, Traced) and differentiable(x) else x
            for x in values
        ]
        _, back = followed_again(self.call.name, self._flat, fresh, names)
        return back(cotangents)


# mapped


@final
@dataclass(frozen=True, slots=True)
class _MappedRule:
    """The derivative of a call of many examples: that of one, mapped.

    Attributes:
        rule: that of one.
        flags: which of the operands differ between examples.
        size: the number of examples.
    """

    rule: Rule
    flags: tuple[bool, ...]
    size: Examples

    def _mapped(self, f: Callable[..., Any], *values: Any, shared: int) -> Any:
        axes = [0 if has else None for has in self.flags[:shared]]
        name = None if self.size.axis is None else self.size.axis.name
        every_one = (axes, *[0] * (len(values) - 1))
        return vmap(f, in_axes=every_one, axis_name=name, axis_size=self.size)(*values)

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""
        count = len(values)
        moves = every(_full(tangents, values), *self._spread_flags(values))
        results: list[Any] = []

        def one(own: list[Any], t: list[Any]) -> list[Any]:
            found, _ = self.rule.begin(own)
            results[:] = found
            return _full(self.rule.push(own, _spread(t, own)), found)

        found = self._mapped(one, list(values), moves, shared=count)
        return _spread(found, results)

    def _spread_flags(self, values: Values) -> tuple[list[bool], int]:
        pairs = zip(values, self.flags, strict=True)
        return [has for x, has in pairs if differentiable(x)], self.size

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results, and what is kept."""
        found, kept = self._mapped(
            lambda own: self.rule.begin(own), list(values), shared=len(values)
        )
        return list(found), kept

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Return the cotangents of the arguments."""

        def one(own: list[Any], saved: Any, g: list[Any]) -> list[Any]:
            return _full(self.rule.pull(own, saved, g, names), own)

        found = self._mapped(one, list(values), kept, list(cotangents), shared=len(values))
        return [
            None if g is None else shrunk(g, x)
            for g, x in zip(_spread(found, values), values, strict=True)
        ]


def _batched(call: Any, operands: list[Any], flags: list[bool], size: int) -> Any:
    run = flat_of(call.program, size, flags)
    inner = call.rule(call)
    rule = _MappedRule(inner, tuple(flags), size if isinstance(size, Examples) else Examples(size))
    if isinstance(inner, OfProgram):
        found = kept_call(call.name, run, call.rule, operands)
    else:
        found = kept_call(call.name, run, lambda made: _Beyond(rule, made), operands)
    return found, [True] * len(found)


@final
@dataclass(frozen=True, slots=True)
class _Beyond:
    """A rule of a call that captures values besides those that the rule is about."""

    rule: _MappedRule
    call: KeptCall

    def _own(self, values: Values) -> list[Any]:
        return list(values)[self.call.captures :]

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""
        return self.rule.push(self._own(values), self._own(tangents))

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the results, and what is kept."""
        return self.rule.begin(self._own(values))

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Return the cotangents of the arguments."""
        found = self.rule.pull(self._own(values), kept, cotangents, self._own(names))
        return [None] * (len(values) - len(found)) + found


BATCHED[KeptCall] = _batched
