"""The recorder: writes down the operations of a function that is being traced.

In: operations on values without data. Out: a `Program`, and the values of the code around it that
it uses. Recorders are nested as the functions are: that of a loop's body is inside the recorder of
the code around the loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshard.algebra.boundary import bounded
from meshard.errors import ConcretizationError
from meshard.ops.engine.eager import WEAK
from meshard.ops.engine.later import AbstractArray, Weak, weak_of
from meshard.runtime.array.array import Array
from meshard.runtime.callers import stated_purpose, user_line
from meshard.runtime.doors import Params
from meshard.runtime.types import ArrayType
from meshard.transforms.body.constrained import CONSTRAINT
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import GridKind
from meshard.transforms.program.calls import ConstraintCall
from meshard.transforms.program.program import Atom, Call, Eqn, Literal, Program, Var

_STANDS_FOR = {
    "jit": "every value that the program will be run with",
    "vmap": "the values of all examples",
}
_OTHERWISE = {
    "jit": "that rarely changes, name it in static_argnums or static_argnames",
    "vmap": "that all examples share, give it None in in_axes",
}
"""By the transformation: what a value without data is, and what to do about an argument."""


@bounded
class Tracer(AbstractArray):
    """An array inside a function that is being traced.

    Attributes:
        recorder: writes down what becomes of it.
        origin: what it is, for messages: an argument, or the result of an operation at a line.
    """

    __slots__ = ("origin", "recorder")

    def __init__(self, recorder: Recorder, type: ArrayType, weak: Weak, origin: str) -> None:
        super().__init__(type, weak)
        self.recorder = recorder
        self.origin = origin

    def _told(self) -> str:
        return self._type.str_short() if self.weak is None else f"{self.weak.__name__}"

    def _concrete(self, what: str) -> Any:
        if self.recorder.closed:
            raise ConcretizationError(self._stray())
        traced = self.recorder.traced
        raise ConcretizationError(
            f"{what} needs the value of {self._told()}, which is traced by {traced.by} of "
            f"{traced.name!r} and has none yet: it is {self.origin}, and stands for "
            f"{_STANDS_FOR[traced.by]}. The value is asked for at "
            f"{user_line()}. Choose between values with meshard.numpy.where, lax.cond or "
            "lax.switch, loop with lax.while_loop or lax.fori_loop; or, if it is an argument "
            f"{_OTHERWISE[traced.by]}."
        )

    def _placed(self, sharding: Any, what: str) -> Any:
        return self.recorder.placed(self, sharding, what)

    def _stray(self) -> str:
        return (
            f"{self._told()} is a value that {self.recorder.traced.by} of "
            f"{self.recorder.traced.name!r} traced, and that "
            f"has ended: it is {self.origin}, and was kept, as in a global, an attribute or a list "
            f"from outside. It is used at {user_line()}. Return it from the function instead."
        )

    def __repr__(self) -> str:
        return f"Traced<{self._told()}>"

    __str__ = __repr__


class Recorder:
    """Writes down operations.

    Args:
        name: the function that is traced.
        parent: the recorder of the code around it; None at the top.
        by: what messages call the transformation.

    Attributes:
        closed: whether the function has returned.
        nested: for each jitted function that is part of this one its traces that hold only here.
        numbers: numbers for what must be told apart in the outermost function.
        follows: whether it follows code that runs, rather than writing it down.
    """

    follows = False

    def __init__(self, name: str, parent: Recorder | None = None, by: str = "jit") -> None:
        self.name = name
        self.by = by
        self.parent = parent
        self.closed = False
        self.nested: dict[Any, dict[Any, Any]] = {}
        self._inputs: list[Var] = []
        self._eqns: list[Eqn] = []
        # By identity: values have no other. They are kept, so that no identity is used twice.
        self._vars: dict[int, tuple[Any, Var]] = {}
        self._captures: dict[int, tuple[Any, Var]] = {}
        self._origins: dict[int, tuple[Any, Any]] = {} if parent is None else parent._origins
        self.numbers: Iterator[int] = itertools.count() if parent is None else parent.numbers

    @property
    def runs(self) -> bool:
        """Whether what it writes down runs afterwards, on arrays, operation by operation."""
        return self.by == "vmap" and (self.parent is None or self.parent.runs)

    @property
    def traced(self) -> Recorder:
        """That of the outermost function that is traced, around this one."""
        around = self.parent
        return self if around is None or around.follows else around.traced

    @property
    def root(self) -> Recorder:
        """The outermost recorder."""
        return self if self.parent is None else self.parent.root

    def input(self, value: Any) -> None:
        """Make a value without data an argument."""
        var = Var(_aval(value), weak_of(value))
        self._inputs.append(var)
        self._vars[id(value)] = value, var

    def argument(self, type: ArrayType, weak: Weak, origin: str) -> Tracer:
        """Return a new argument of a type."""
        tracer = Tracer(self, type, weak, origin)
        self.input(tracer)
        return tracer

    def alias(self, fresh: Grid, old: Grid) -> None:
        """Say that a value of a shard_map body is another one under a second identity."""
        var = self.atom(old)
        assert isinstance(var, Var)
        self._vars[id(fresh)] = fresh, var

    def made(self, call: Call, operands: Sequence[Any], results: list[Any]) -> list[Any]:
        """Write down a call of a body, and return its results, which have no data."""
        self.write(call.name, (), operands, results, call)
        return results

    def lifted(self, value: Grid, outer: Any) -> None:
        """Say that a value of a shard_map body stands for one of the code around the body."""
        self._origins[id(value)] = value, outer

    def atom(self, value: Any) -> Atom:
        """Return the variable, or literal, that a value is here."""
        if type(value) in WEAK:
            return Literal(value)
        if isinstance(value, int):  # a Python number of a kind of its own
            return Literal(int(value))
        known = self._vars.get(id(value)) or self._captures.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._origins:
            return self.atom(self._origins[id(value)][1])
        if isinstance(value, Tracer) and not self.encloses(value.recorder):
            raise ConcretizationError(value._stray())
        var = Var(_aval(value), weak_of(value))
        self._captures[id(value)] = value, var
        return var

    def encloses(self, other: Recorder) -> bool:
        """Whether another recorder is this one or one around it, and still at work."""
        at: Recorder | None = self
        while at is not None:
            if at is other:
                return not at.closed
            at = at.parent
        return False

    def write(
        self,
        name: str,
        params: Params,
        operands: Sequence[Any],
        results: Sequence[Any],
        call: Call | None = None,
    ) -> None:
        """Write down an operation whose results, values without data, are known."""
        inputs = tuple(map(self.atom, operands))
        outputs = []
        for value in results:
            var = Var(_aval(value), weak_of(value))
            self._vars[id(value)] = value, var
            outputs.append(var)
        place = user_line(), call, stated_purpose()
        self._eqns.append(Eqn(name, params, inputs, tuple(outputs), *place))

    def result(
        self,
        name: str,
        params: Params,
        operands: Sequence[Any],
        types: Sequence[tuple[ArrayType, Weak]],
        call: Call | None = None,
    ) -> list[Tracer]:
        """Write down an operation and return its results."""
        origin = f"the result of {name} at {user_line()}"
        made = [Tracer(self, t, w, origin) for t, w in types]
        self.write(name, params, operands, made, call)
        return made

    def copied(self, program: Program, operands: Sequence[Any]) -> list[Any]:
        """Write down the operations of a program, and return its results.

        Args:
            program: the program.
            operands: the values that it captures, then its arguments.
        """
        given = dict(zip((*program.captured, *program.inputs), operands, strict=True))
        atoms: dict[Atom, Atom] = {v: self.atom(x) for v, x in given.items()}
        origins: dict[Var, str] = {}
        for eqn in program.eqns:
            outputs = tuple([Var(v.aval, v.weak) for v in eqn.outputs])
            inputs = tuple([atoms.get(x, x) for x in eqn.inputs])
            atoms.update(zip(eqn.outputs, outputs, strict=True))
            origins |= dict.fromkeys(eqn.outputs, f"the result of {eqn.name} at {eqn.line}")
            own = eqn.purpose or stated_purpose()
            self._eqns.append(replace(eqn, inputs=inputs, outputs=outputs, purpose=own))
        results: list[Any] = []
        for atom in program.outputs:
            if isinstance(atom, Literal):
                results.append(atom.value)
                continue
            if atom not in given:
                var = atoms[atom]
                assert isinstance(var, Var)
                given[atom] = self._value_of(var, origins[atom], operands)
                self._vars[id(given[atom])] = given[atom], var
            results.append(given[atom])
        return results

    def _value_of(self, var: Var, origin: str, beside: Sequence[Any]) -> Any:
        """Return a value without data that a variable stands for."""
        if not isinstance(var.aval, GridKind):
            return Tracer(self, var.aval, var.weak, origin)
        body = next(x.body for x in beside if type(x) is Grid)
        return Grid(body, var.aval, (None,) * body.scope.count(var.aval.extent))

    def placed(self, x: Tracer, sharding: Any, what: str) -> Tracer:
        """Write down that a value is laid out as a sharding says."""
        if what != CONSTRAINT:  # whose dims may be left open; it has been checked
            sharding.layout(x.shape)  # refuses what cannot be laid out so
        call = ConstraintCall(sharding, what)
        return self.result(call.name, (), [x], [(x._type, None)], call)[0]

    def close(self) -> None:
        """Let go of all values: what still has one of them asks in vain from now on."""
        self.closed = True
        for known in (self._vars, self._captures, self.nested):
            known.clear()
        if self.parent is None:
            self._origins.clear()

    def finish(self, results: Sequence[Any]) -> tuple[Program, list[Any]]:
        """Return the program, and the values from around it that it captures."""
        outputs = tuple(map(self.atom, results))
        self.closed = True
        program = Program(
            tuple([v for _, v in self._captures.values()]),
            tuple(self._inputs),
            tuple(self._eqns),
            outputs,
            self.name,
        )
        captured = [value for value, _ in self._captures.values()]
        return program, captured


def _aval(value: Any) -> ArrayType | GridKind:
    if type(value) is Grid:
        return value.kind
    assert isinstance(value, (Array, AbstractArray)), value
    return value._type
