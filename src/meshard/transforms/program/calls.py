"""Calls: operations of a program that hold programs themselves, or say how a value is laid out.

Each can be run under any interpreter, by the function of the public surface that it came from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.later import AbstractArray
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import current
from meshard.runtime.moving.place import as_array, placed
from meshard.runtime.types import ArrayType
from meshard.transforms.body.constrained import CONSTRAINT, constrained, settled
from meshard.transforms.body.grid import Grid
from meshard.transforms.program.program import Atom, Eqn, Program, Var, evaluate


@final
@dataclass(frozen=True, slots=True)
class ConstraintCall:
    """One operand, laid out as a sharding says.

    Attributes:
        sharding: the sharding.
        what: the function that asked for it.
    """

    sharding: Sharding
    what: str = CONSTRAINT
    name = "sharding_constraint"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The sharding."""
        return (("sharding", self.sharding),)

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the operand laid out so."""
        (x,) = operands
        if type(x) is Grid:
            return [constrained(x.body, x, self.sharding)]
        now = x if isinstance(x, Traced) else as_array(x)
        place = self.sharding if isinstance(x, Traced) else settled(self.sharding, now._type)
        return [placed(now, place, what=CONSTRAINT)]


@final
@dataclass(frozen=True, slots=True)
class AlikeCall:
    """The first of two operands of one shape, laid out like the second, where that is known."""

    name = "laid_like"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the first operand, laid out like the second."""
        x, like = operands
        if isinstance(x, AbstractArray) and type(x) is not AbstractArray:
            found: list[Any] = x.recorder.result(self.name, (), [x, like], [(x._type, None)], self)
            return found
        if type(x) is not Array or type(like) is not Array:
            return [x]
        wanted = like.sharding
        if not isinstance(wanted, NamedSharding) or x.aval.layout == like.aval.layout:
            return [x]
        return [placed(x, wanted, what=self.name)]


@final
@dataclass(frozen=True, slots=True)
class ArrayCall:
    """One operand, a Python number, as an array."""

    dtype: np.dtype[Any]
    name = "asarray"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The dtype."""
        return (("dtype", self.dtype.name),)

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the number as an array."""
        return [as_array(operands[0], self.dtype)]


@final
@dataclass(frozen=True, slots=True)
class NumberCall:
    """One operand, an integer that is the same everywhere, as a Python number."""

    name = "number"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the number; in a body that is only typed a value that stands for one."""
        (x,) = operands
        if type(x) is AbstractArray:
            return [AbstractArray(x._type, int)]
        if isinstance(x, AbstractArray):  # of a program that is being traced
            found: list[Any] = x.recorder.result(self.name, (), [x], [(x._type, int)], self)
            return found
        if type(x) is not Grid:
            return [int(x)]
        known = [cell for cell in x.cells if cell is not None]
        kind = x.body.scope.kind(x.kind.type, x.kind.extent, x.kind.varies, int)
        made = [int(known[0])] if known else [Grid(x.body, kind, (None,) * len(x.cells))]
        recorder = x.body.recorder
        return made if recorder is None else recorder.made(self, [x], made)


@final
@dataclass(frozen=True, slots=True)
class WholeCall:
    """A function of arrays, and what else it is called with.

    Attributes:
        name: what listings call it.
        function: the function.
        params: what it is called with by name.
        several: whether it returns a list.
        values: whether it looks at values; else only at how its operands are laid out.
    """

    name: str
    function: Callable[..., Any]
    params: Mapping[str, Any]
    several: bool
    values: bool

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """What else it is called with."""
        return tuple(self.params.items())

    @property
    def effect(self) -> bool:
        """Whether it is called even if nobody needs its results."""
        return bool(getattr(self.function, "effect", False))

    def at_once(self, operands: Sequence[Any]) -> list[Any]:
        """Call the function, and return its results."""
        found = self.function(*operands, **self.params)
        return list(found) if self.several else [found]

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the results."""
        given = [as_array(x) for x in operands]
        interpreter = current()
        call = interpreter.at_run_time if self.values else interpreter.when_laid_out
        found = call(self.name, self.function, given, self.params)
        return list(found) if self.several else [found]


class Around(ABC):
    """A function that a `WholeCall` is put off for, and that does something with another one.

    Attributes:
        call: that one.
    """

    call: WholeCall

    @abstractmethod
    def of(self, call: WholeCall) -> Around:
        """Return what does the same with another one."""

    @abstractmethod
    def __call__(self, *operands: Any) -> Any:
        """Return a list of results."""


@final
@dataclass(frozen=True, slots=True)
class MakeCall:
    """An array that is made piece by piece, of nothing or of a key.

    Attributes:
        name: what listings call it.
        type_: its type, with the layout that it has if nobody prefers another.
        make: from its type, with any layout, and the operands to the array.
        asked: whether its sharding was asked for.
        place: from the first operand's type to its own, where that follows it.
    """

    name: str
    type_: ArrayType
    make: Callable[..., Any]
    asked: bool
    place: Callable[[ArrayType], ArrayType] | None

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """None."""
        return ()

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def beside(self, kinds: Sequence[ArrayType]) -> ArrayType:
        """Return its type, given its operands'."""
        return self.place(kinds[0]) if kinds and self.place is not None else self.type_

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the array."""
        given = [as_array(x) for x in operands]
        type_ = self.beside([x._type for x in given])
        return [current().make_later(self.name, type_, self.make, given, self.asked, self.place)]


def _in_runs(operands: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Return operands in runs of given lengths, and what is left."""
    cuts = [*accumulate(counts, initial=0), len(operands)]
    return [list(operands[a:b]) for a, b in pairwise(cuts)]


@final
@dataclass(frozen=True, slots=True)
class WhileCall:
    """A loop. Operands: what the condition captures, what the body captures, the first carry."""

    loop: Callable[..., Any]
    cond: Program
    body: Program
    name = "while_loop"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The condition and the body."""
        return (("cond", self.cond), ("body", self.body))

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def split_operands(self, operands: Sequence[Any]) -> list[list[Any]]:
        """Return the operands in three lists."""
        return _in_runs(operands, (len(self.cond.captured), len(self.body.captured)))

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the last carry."""
        first, second, init = self.split_operands(operands)
        found: list[Any] = self.loop(
            lambda carry: evaluate(self.cond, first, carry)[0],
            lambda carry: evaluate(self.body, second, carry),
            init,
        )
        return found


@final
@dataclass(frozen=True, slots=True)
class ForCall:
    """A counted loop. Operands: both bounds, what the body captures, the first carry."""

    loop: Callable[..., Any]
    body: Program
    name = "fori_loop"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The body, from the integer and the carry."""
        return (("body", self.body),)

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def split_operands(self, operands: Sequence[Any]) -> list[list[Any]]:
        """Return the operands in three lists: bounds, captured, carry."""
        return _in_runs(operands, (2, len(self.body.captured)))

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the last carry."""
        (lower, upper), captured, init = self.split_operands(operands)
        found: list[Any] = self.loop(
            lower, upper, lambda i, carry: evaluate(self.body, captured, [i, *carry]), init
        )
        return found


@final
@dataclass(frozen=True, slots=True)
class ScanCall:
    """A scan. Operands: what the body captures, the first carry, the arrays."""

    loop: Callable[..., Any]
    body: Program
    carried: int
    length: int
    reverse: bool
    name = "scan"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The body, from the carry and one position of the arrays to carry and results."""
        return (("body", self.body),)

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The number of positions, and the direction."""
        return (("length", self.length), *((("reverse", True),) if self.reverse else ()))

    def split_operands(self, operands: Sequence[Any]) -> list[list[Any]]:
        """Return the operands in three lists: captured, carry, arrays."""
        return _in_runs(operands, (len(self.body.captured), self.carried))

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the last carry and the stacked results."""
        captured, init, xs = self.split_operands(operands)

        def step(carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            found = evaluate(self.body, captured, [*carry, *x])
            return found[: self.carried], found[self.carried :]

        carry, stacked = self.loop(step, init, xs, length=self.length, reverse=self.reverse)
        return [*carry, *stacked]


@final
@dataclass(frozen=True, slots=True)
class SwitchCall:
    """A choice. Operands: the number, what each branch captures, the arguments of all."""

    choose: Callable[..., Any]
    branches: tuple[Program, ...]
    name: str = "switch"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The branches."""
        return tuple([(b.name, b) for b in self.branches])

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def split_operands(self, operands: Sequence[Any]) -> tuple[Any, list[list[Any]], list[Any]]:
        """Return the number, what each branch captures, and the arguments."""
        number, *rest = operands
        *captured, args = _in_runs(rest, [len(b.captured) for b in self.branches])
        return number, captured, args

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return what the chosen branch returns."""
        number, captured, args = self.split_operands(operands)

        def branch(program: Program, own: list[Any]) -> Callable[..., list[Any]]:
            return lambda *given: evaluate(program, own, given)

        branches = [branch(p, c) for p, c in zip(self.branches, captured, strict=True)]
        found: list[Any] = self.choose(number, branches, *args)
        return found


@final
@dataclass(frozen=True, slots=True)
class ShardMapCall:
    """A program for each device. Operands: what the body captures, the arguments."""

    remapped: Callable[..., Callable[..., Any]]
    body: Program
    mesh: Mesh
    manual: tuple[str, ...]
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]
    name = "shard_map"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The body."""
        return (("body", self.body),)

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """The axes and specs."""
        axes = tuple([a for a in self.mesh.axis_names if a in self.manual])
        return (("axes", axes), ("in_specs", self.in_specs), ("out_specs", self.out_specs))

    def mapped(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return another function of the same arguments, mapped over the same axes."""
        return self.remapped(self.in_specs, list(self.out_specs), f)

    def split_operands(self, operands: Sequence[Any]) -> list[list[Any]]:
        """Return the operands in two lists: captured, arguments."""
        return _in_runs(operands, (len(self.body.captured),))

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return the joined results."""
        captured, given = self.split_operands(operands)
        found: list[Any] = self.mapped(lambda *cells: evaluate(self.body, captured, cells))(*given)
        return found


@final
@dataclass(frozen=True, slots=True)
class KeptCall:
    """A function that is kept together, for its derivative. Operands: captured, arguments.

    Attributes:
        program: what it does.
        rule: from this call to what its derivative is.
        name: what listings call it.
        again: runs it, as one call where operations are written down or followed.
    """

    program: Program
    rule: Callable[[Any], Any]
    name: str
    again: Callable[[KeptCall, Sequence[Any]], list[Any]]

    @property
    def captures(self) -> int:
        """How many values it captures."""
        return len(self.program.captured)

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """What it does."""
        return (("body", self.program),)

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def split_operands(self, operands: Sequence[Any]) -> list[list[Any]]:
        """Return the operands in two lists: captured, arguments."""
        return _in_runs(operands, (len(self.program.captured),))

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Run it."""
        return self.again(self, operands)


def _is_stop(eqn: Eqn) -> bool:
    return eqn.call is None and eqn.name == "stop_gradient" and isinstance(eqn.inputs[0], Var)


def opened(program: Program) -> Program:
    """Return a program in which what only derivatives look at is gone.

    Calls that keep a function together are what that does, and a stopped gradient is the value.
    """
    if not any(isinstance(e.call, KeptCall) or _is_stop(e) for e in program.eqns):
        return program
    known: dict[Var, Atom] = {}
    eqns: list[Eqn] = []

    def now(atom: Atom) -> Atom:
        return known.get(atom, atom) if isinstance(atom, Var) else atom

    for eqn in program.eqns:
        inputs = tuple(map(now, eqn.inputs))
        if _is_stop(eqn):
            known[eqn.outputs[0]] = inputs[0]
            continue
        if not isinstance(eqn.call, KeptCall):
            eqns.append(replace(eqn, inputs=inputs))
            continue
        inner = opened(eqn.call.program)
        own: dict[Var, Atom] = dict(zip((*inner.captured, *inner.inputs), inputs, strict=True))
        for one in inner.eqns:
            outputs = tuple([Var(v.aval, v.weak) for v in one.outputs])
            given = tuple([own.get(x, x) if isinstance(x, Var) else x for x in one.inputs])
            eqns.append(replace(one, inputs=given, outputs=outputs))
            own.update(zip(one.outputs, outputs, strict=True))
        for var, atom in zip(eqn.outputs, inner.outputs, strict=True):
            known[var] = own.get(atom, atom) if isinstance(atom, Var) else atom
    return replace(program, eqns=tuple(eqns), outputs=tuple([now(x) for x in program.outputs]))
