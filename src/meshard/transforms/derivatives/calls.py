"""Derivatives of calls: loops, branches, `shard_map`, and what is laid out or put off.

In: a call that has run, and tangents or cotangents. Out: calls of the same kind on more values, so
that a scan's way back is a scan, and that of a `shard_map` a `shard_map`. Loops keep their carries
and compute their bodies again on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from meshard.errors import DerivativeError
from meshard.ops.array.create import arange, zeros_like
from meshard.ops.derivatives.kinds import (
    FLAT,
    Derivative,
    Site,
    Values,
    converted,
    dtype_of,
    shrunk,
    tangent_like,
    varying,
)
from meshard.ops.engine.later import at_run_time, when_laid_out
from meshard.runtime.array.array import Array
from meshard.runtime.callers import user_line
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, placed
from meshard.transforms.derivatives.forward import pushed
from meshard.transforms.derivatives.levels import Dual, differentiable
from meshard.transforms.derivatives.reverse import followed_again
from meshard.transforms.derivatives.rules import CALLS
from meshard.transforms.flow.control_flow import scan, while_loop
from meshard.transforms.program.calls import (
    AlikeCall,
    Around,
    ArrayCall,
    ConstraintCall,
    ForCall,
    MakeCall,
    NumberCall,
    ScanCall,
    SwitchCall,
    WhileCall,
    WholeCall,
)
from meshard.transforms.program.program import Call, Program, evaluate

Flat = Callable[..., list[Any]]
Moving = tuple[bool, ...]


class CallRule:
    """The derivative of one kind of call."""

    def of(self, call: Call) -> Derivative:
        """Return the derivative of a call."""
        raise NotImplementedError

    def run(
        self, call: Call, values: Values, moving: Moving, forward: bool, names: Sequence[str]
    ) -> tuple[list[Any], Any]:
        """Run a call; return its results and what is kept for its derivative.

        Args:
            call: the call.
            values: its operands.
            moving: which of them depend on the inputs.
            forward: whether tangents are pushed later, rather than cotangents pulled.
            names: what the operands are called; empty strings for those without a name.
        """
        return call.run(values), None

    def forth(
        self, call: Call, values: Values, tangents: Values
    ) -> tuple[list[Any], list[Any] | None]:
        """Run a call; return its results and their tangents, None if `push` finds these."""
        return call.run(values), None


# values: cotangents and tangents where all must be there


def _full(found: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Return values with zeros for those that are None, none for what cannot change."""
    return [
        zeros_like(x) if g is None else g
        for g, x in zip(found, like, strict=True)
        if differentiable(x)
    ]


def _spread(found: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Return the values of `_full` at the places of those that can change; None elsewhere."""
    rest = iter(found)
    return [next(rest) if differentiable(x) else None for x in like]


def _moving(values: Sequence[Any]) -> list[Any]:
    return [x for x in values if differentiable(x)]


def _rejoined(values: Sequence[Any], moving: Sequence[Any]) -> list[Any]:
    """Return values with those that can change replaced."""
    rest = iter(moving)
    return [next(rest) if differentiable(x) else x for x in values]


def back_through(
    name: str,
    f: Flat,
    values: Sequence[Any],
    cotangents: Sequence[Any],
    names: Sequence[str] = (),
) -> list[Any]:
    """Run a function again and pull cotangents back; return those of arguments that can change.

    Args:
        name: what messages call it.
        f: the function.
        values: its arguments.
        cotangents: those of the results that can change.
        names: what the arguments are called.
    """
    results, back = followed_again(name, f, values, names)
    given = _spread(cotangents, results)
    return _full(back(given), values)


def forth_through(
    name: str, f: Flat, values: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Run a function with tangents; return its results and the tangents of those that can change.

    Args:
        name: what messages call it.
        f: the function.
        values: its arguments.
        tangents: those of the arguments that can change.
    """
    results, found = pushed(name, f, values, _spread(tangents, values))
    return results, _full(found, results)


# what is laid out, made, or put off


@final
class _Constraint(CallRule, Derivative):
    def of(self, call: Call) -> Derivative:
        return self

    def push(self, site: Site, tangents: Values) -> list[Any]:
        return site.again(tangents[0])

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        came, went = _devices(site.x), _devices(site.y)
        if came is None or went is None or came.device_set == went.device_set:
            return site.again(cotangents[0])
        return [placed(cotangents[0], came)]


def _devices(x: Any) -> Any:
    """Return how an array is laid out, or the one that a level follows; None if that is open."""
    while type(x) is Dual:
        x = x.value
    return x.sharding if type(x) is Array and x.committed else None


@final
class _Number(CallRule, Derivative):
    def of(self, call: Call) -> Derivative:
        return self

    def push(self, site: Site, tangents: Values) -> list[Any]:
        return [tangent_like(tangents[0], site.y)]

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        return [converted(cotangents[0], dtype_of(site.x))]


@final
class _Alike(CallRule, Derivative):
    def of(self, call: Call) -> Derivative:
        return self

    def push(self, site: Site, tangents: Values) -> list[Any]:
        t = tangents[0]
        return [None] if t is None else site.again(t, site.operands[1])

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        return [cotangents[0] if wanted[0] else None, None]


@final
class _Made(CallRule):
    def of(self, call: Call) -> Derivative:
        return FLAT


@final
@dataclass(frozen=True, slots=True)
class _Whole(Derivative):
    call: WholeCall

    def _late(self, name: str, f: Flat, *operands: Any) -> list[Any]:
        call = at_run_time if self.call.values else when_laid_out
        found: list[Any] = call(f"{self.call.name} ({name})", f, *operands)
        return found

    def push(self, site: Site, tangents: Values) -> list[Any]:
        given = [as_array(x) for x in site.operands]
        forth = _Through(self.call, len(given), True)
        found = self._late("tangents", forth, *given, *_full(tangents, given))
        return _spread(found, site.results)

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        given = [as_array(x) for x in site.operands]
        back = _Through(self.call, len(given), False, tuple(site.names))
        found = self._late("back", back, *given, *_full(cotangents, site.results))
        return _spread(found, given)


@final
@dataclass(frozen=True, slots=True)
class _Through(Around):
    """What pushes tangents through a function, or pulls cotangents back.

    Attributes:
        call: the function.
        count: how many of the operands are its own.
        forward: whether the others are tangents.
        names: what its own are called.
    """

    call: WholeCall
    count: int
    forward: bool
    names: tuple[str, ...] = ()

    def of(self, call: WholeCall) -> Around:
        return replace(self, call=call)

    def __call__(self, *given: Any) -> list[Any]:
        own, moved = given[: self.count], given[self.count :]

        def flat(*values: Any) -> list[Any]:
            return self.call.at_once(values)

        if self.forward:
            return forth_through(self.call.name, flat, own, moved)[1]
        return back_through(self.call.name, flat, own, moved, self.names)


@final
class _Wholes(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, WholeCall)
        return _Whole(call)


# loops


def _added(totals: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    return [bind("add", a, b) for a, b in zip(totals, more, strict=True)]


@final
@dataclass(frozen=True, slots=True)
class _Turns:
    """A loop over positions: what a turn does.

    Attributes:
        name: what messages call it.
        turn: from ``(captured, carry, x)`` to the next carry and the results of a position.
        captured: the values of the code around it.
        carry: the first carry.
        xs: the arrays, one position of which each turn gets.
        length: the number of positions.
        reverse: whether it begins with the last.
    """

    name: str
    turn: Callable[[Values, Values, Values], tuple[list[Any], list[Any]]]
    captured: list[Any]
    carry: list[Any]
    xs: list[Any]
    length: int
    reverse: bool

    def flat(self, *values: Any) -> list[Any]:
        """Return the next carry and the results, given all that a turn reads."""
        a, b = len(self.captured), len(self.captured) + len(self.carry)
        after, results = self.turn(values[:a], values[a:b], values[b:])
        return [*after, *results]

    def saved(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Run it; return the last carry, the results, and the carries that the turns began with."""

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
            after, results = self.turn(self.captured, carry, x)
            return after, (results, carry)

        last, (results, carries) = self._scan(step, self.carry, self.xs, self.reverse)
        return last, results, carries

    def _scan(self, step: Any, carry: Any, xs: Any, reverse: bool) -> Any:
        return scan(step, carry, xs, length=self.length, reverse=reverse)

    def forth(self, tangents: Values) -> list[Any]:
        """Return the tangents of the last carry and of the results, that can change."""
        captured, carry = len(self.captured), len(self.carry)
        moved = list(tangents)
        own = moved[:captured]
        first = _full(moved[captured : captured + carry], self.carry)
        rows = _full(moved[captured + carry :], self.xs)
        own = _full(own, self.captured)

        def step(state: Any, x: Any) -> Any:
            values, t = state
            given, t_x = x
            every = [*self.captured, *values, *given]
            found, moved = forth_through(self.name, self.flat, every, [*own, *t, *t_x])
            after, results = found[:carry], found[carry:]
            count = len(_moving(after))
            return (after, moved[:count]), (results, moved[count:])

        (_, last), (_, results) = self._scan(
            step, (self.carry, first), (self.xs, rows), self.reverse
        )
        return [*last, *results]

    def back(self, carries: list[Any], cotangents: Values, names: Sequence[str]) -> list[Any]:
        """Return the cotangents of what is captured, of the first carry and of the arrays.

        Args:
            carries: those that the turns began with.
            cotangents: those of the last carry and of the results.
            names: what is captured is called so, and the first carry and the arrays.
        """
        told = list(names)
        told[len(self.captured) : len(self.captured) + len(self.carry)] = ["the carry"] * len(
            self.carry
        )
        count = len(_moving(self.carry))
        last, results = list(cotangents[:count]), list(cotangents[count:])
        totals = [zeros_like(x) for x in _moving(self.captured)]

        def step(state: Any, x: Any) -> Any:
            own, g = state
            carry, given, g_y = x
            every = [*self.captured, *carry, *given]
            found = back_through(self.name, self.flat, every, [*g, *g_y], told)
            a, b = len(own), len(own) + len(g)
            return (_added(own, found[:a]), found[a:b]), found[b:]

        (totals, first), rows = self._scan(
            step, (totals, last), (carries, self.xs, results), not self.reverse
        )
        return [*totals, *first, *rows]


@final
@dataclass(frozen=True, slots=True)
class _Loop(Derivative):
    """The derivative of a loop with a known number of turns.

    Attributes:
        turns: what it does.
        head: how many operands come before those that its turns read.
    """

    turns: Callable[[Site], _Turns]
    head: int = 0

    def push(self, site: Site, tangents: Values) -> list[Any]:
        turns = self.turns(site)
        own = list(tangents)[self.head :]
        count = len(turns.captured) + len(turns.carry) + len(turns.xs)
        found = turns.forth([*own, *[None] * (count - len(own))])
        return _spread(found, site.results)

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        turns, carries = self.turns(site), site.params["kept"]
        if carries is None:  # it ran as it is: in a body whose operations are only followed
            carries = turns.saved()[2]
        given = _full(cotangents, site.results)
        found = turns.back(carries, given, site.names[self.head :])
        return [None] * self.head + _spread(found, site.operands[self.head :])


@final
class _Scans(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, ScanCall)
        return _Loop(lambda site: self._turns(call, site.operands))

    @staticmethod
    def _turns(call: ScanCall, operands: Values) -> _Turns:
        captured, carry, xs = call.split_operands(operands)

        def turn(own: Values, now: Values, x: Values) -> tuple[list[Any], list[Any]]:
            found = evaluate(call.body, own, [*now, *x])
            return found[: call.carried], found[call.carried :]

        return _Turns(call.name, turn, captured, carry, xs, call.length, call.reverse)

    def run(
        self, call: Call, values: Values, moving: Moving, forward: bool, names: Sequence[str]
    ) -> tuple[list[Any], Any]:
        assert isinstance(call, ScanCall)
        last, results, carries = self._turns(call, values).saved()
        return [*last, *results], carries


@final
class _Fors(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, ForCall)
        return _Loop(lambda site: self._turns(call, site.operands), 2)

    @staticmethod
    def _turns(call: ForCall, operands: Values) -> _Turns:
        (lower, upper), captured, carry = call.split_operands(operands)
        if not (isinstance(lower, int) and isinstance(upper, int)):
            raise DerivativeError(_UNKNOWN.format("fori_loop", user_line()))
        length = max(0, upper - lower)

        def turn(own: Values, now: Values, x: Values) -> tuple[list[Any], list[Any]]:
            return evaluate(call.body, own, [*NumberCall().run([x[0]]), *now]), []

        return _Turns(
            call.name, turn, captured, carry, [arange(lower, lower + length)], length, False
        )

    def run(
        self, call: Call, values: Values, moving: Moving, forward: bool, names: Sequence[str]
    ) -> tuple[list[Any], Any]:
        assert isinstance(call, ForCall)
        bounds = call.split_operands(values)[0]
        if not all(isinstance(x, int) for x in bounds):
            raise DerivativeError(_UNKNOWN.format("fori_loop", user_line()))
        last, _, carries = self._turns(call, values).saved()
        return last, carries


_UNKNOWN = (
    "{0} at {1} cannot be differentiated backwards: how many turns it takes is only known when it "
    "runs, and each must be kept. Use lax.scan, or lax.fori_loop with Python integers for bounds; "
    "jvp and jacfwd take such a loop."
)


@final
@dataclass(frozen=True, slots=True)
class _While(Derivative):
    call: WhileCall

    def push(self, site: Site, tangents: Values) -> list[Any]:
        first, own, init = self.call.split_operands(site.operands)
        _, t_own, t_init = self.call.split_operands(list(tangents))
        own_moves, moves = _full(t_own, own), _full(t_init, init)

        def holds(state: Any) -> Any:
            return evaluate(self.call.cond, first, state[0])[0]

        def turn(state: Any) -> Any:
            carry, t = state
            return forth_through(
                self.call.name,
                lambda *given: evaluate(self.call.body, given[: len(own)], given[len(own) :]),
                [*own, *carry],
                [*own_moves, *t],
            )

        _, found = while_loop(holds, turn, (init, moves))
        return _spread(found, site.results)

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        raise DerivativeError(_UNKNOWN.format("while_loop", user_line()))


@final
class _Whiles(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, WhileCall)
        return _While(call)


# branches


@final
@dataclass(frozen=True, slots=True)
class _Switch(Derivative):
    call: SwitchCall

    def _branches(self, make: Callable[[Flat, int], Flat], counts: Sequence[int]) -> list[Flat]:
        found = []
        for k, program in enumerate(self.call.branches):
            start = sum(counts[:k])

            def flat(
                *given: Any, program: Program = program, start: int = start, own: int = counts[k]
            ) -> list[Any]:
                every = sum(counts)
                return evaluate(program, given[start : start + own], given[every:])

            found.append(make(flat, k))
        return found

    def push(self, site: Site, tangents: Values) -> list[Any]:
        number, captured, args = self.call.split_operands(site.operands)
        values = [*[x for own in captured for x in own], *args]
        moves = _full(list(tangents)[1:], values)

        def make(flat: Flat, k: int) -> Flat:
            def branch(*given: Any) -> list[Any]:
                own, moved = given[: len(values)], given[len(values) :]
                return forth_through(self.call.name, flat, own, moved)[1]

            return branch

        branches = self._branches(make, [len(own) for own in captured])
        found = self.call.choose(number, branches, *values, *moves)
        return _spread(found, site.results)

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        number, captured, args = self.call.split_operands(site.operands)
        # Where devices choose differently, none can wait in a branch for the sum over all of them:
        # it is taken behind it, of values that vary as the choice does.
        values = [_varying_with(x, number) for x in (*[x for own in captured for x in own], *args)]

        def make(flat: Flat, k: int) -> Flat:
            def branch(*given: Any) -> list[Any]:
                own, g = given[: len(values)], given[len(values) :]
                return back_through(self.call.name, flat, own, g, site.names[1:])

            return branch

        branches = self._branches(make, [len(own) for own in captured])
        given = _full(cotangents, site.results)
        found = _spread(self.call.choose(number, branches, *values, *given), values)
        return [
            None,
            *[
                None if g is None else shrunk(g, x)
                for g, x in zip(found, site.operands[1:], strict=True)
            ],
        ]


def _varying_with(x: Any, other: Any) -> Any:
    """Return a value that varies over the axes over which another does."""
    axes = varying(other) - varying(x)
    return bind("pcast", x, axes=tuple(sorted(axes))) if axes and differentiable(x) else x


@final
class _Switches(CallRule):
    def of(self, call: Call) -> Derivative:
        assert isinstance(call, SwitchCall)
        return _Switch(call)


CALLS.update(
    {
        AlikeCall: _Alike(),
        ConstraintCall: _Constraint(),
        ArrayCall: _Number(),
        MakeCall: _Made(),
        NumberCall: _Made(),
        WholeCall: _Wholes(),
        ScanCall: _Scans(),
        ForCall: _Fors(),
        WhileCall: _Whiles(),
        SwitchCall: _Switches(),
    }
)
