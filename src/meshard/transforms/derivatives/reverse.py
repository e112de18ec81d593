"""The way back: cotangents of a function's inputs from those of its results.

In: a function and its arguments, flat. Out: its results, and a function that pulls cotangents back.
What ran is kept on a tape, and gone through from its end.

Gradients laid out like what they are gradients of.

In: a value and its cotangent. Out: the cotangent, in the value's layout; and the wish, while it is
being computed, that it be laid out so where that moves less.

Which operations are linear in what they got of a function's inputs.

In: a tape. Out: the first operation on it that is not.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from meshard.ops.array.create import zeros_like
from meshard.ops.derivatives.kinds import (
    FLAT,
    Derivative,
    Linear,
    Partials,
    Pulls,
    Site,
    Tangents,
    narrowed,
    total,
    varying,
)
from meshard.ops.engine.eager import WEAK, Preferring
from meshard.runtime.array.array import Array
from meshard.runtime.callers import at_line, user_line
from meshard.runtime.doors import innermost, interpreting
from meshard.transforms.body.grid import Grid
from meshard.transforms.derivatives.levels import Dual, Level, differentiable
from meshard.transforms.derivatives.rules import derivative_of, run_call
from meshard.transforms.program.calls import AlikeCall
from meshard.transforms.program.program import Call, short_line

_NOTHING = contextlib.nullcontext()


def laid_like(g: Any, x: Any) -> Any:
    """Return a cotangent laid out like its value, where that is on a mesh."""
    if type(x) in WEAK or isinstance(g, Grid) or isinstance(x, Grid) or g.shape != x.shape:
        return g
    return AlikeCall().run([g, x])[0]


def wished_like(x: Any) -> contextlib.AbstractContextManager[None]:
    """Let what is run at once within a ``with`` statement be laid out with a view to a value.

    Where operations are written down, jit finds out for itself what is wished.
    """
    if type(x) is not Array or x._type.layout.piece_count < 2 or innermost() is not None:
        return _NOTHING
    return interpreting(Preferring(x._type))


Axes = frozenset[str]
_NO_AXES: Axes = frozenset()
_Part = tuple[str, Axes]
"""What parts of a cotangent come from, and the axes over which they are to be summed."""


@final
@dataclass(frozen=True, slots=True)
class Node:
    """One operation on the tape.

    Attributes:
        site: what ran.
        derivative: its derivative.
        inputs: for each operand the number of the value that it was; None for a constant.
        outputs: the same for each result.
        line: where it is written in the user's program.
    """

    site: Site
    derivative: Derivative
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    line: str


@final
class Names:
    """What the values on a tape are called, by their numbers."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, str]] = {}

    def give(self, number: int, name: str, line: str = "") -> None:
        """Name a value after an argument, or after the operation on a line that makes it."""
        self._names[number] = name, line

    def __call__(self, number: int | None) -> str:
        """Return what a value is called; nothing if it has no name."""
        name, line = self._names.get(number or 0, ("", ""))
        return f"{name} at {short_line(line)}" if line else name


@final
class Reverse(Level):
    """Keeps a tape of all operations that depend on its inputs.

    Args:
        name: what messages call the function.
        forward: whether tangents are pushed through the tape, rather than cotangents pulled back.

    Attributes:
        tape: the operations, in order.
        told: what the values are called.
        varies: in a body, for each value the axes over which it varies.
    """

    def __init__(self, name: str, forward: bool = False) -> None:
        super().__init__(name)
        self.told = Names()
        self._forward = forward
        self.tape: list[Node] = []
        self.varies: dict[int, Axes] = {}
        self._numbers: dict[int, tuple[Any, int]] = {}
        self._count = 0

    def _new(self, handle: Any) -> int:
        self._count += 1
        self._numbers[id(handle)] = handle, self._count
        if self.body is not None:
            self.varies[self._count] = varying(handle)
        return self._count

    def number(self, handle: Any) -> int | None:
        """Return the number of a value; None for a constant."""
        found = self._numbers.get(id(handle))
        return None if found is None else found[1]

    def knows(self, handle: Any) -> bool:
        """Whether a value depends on the inputs."""
        return id(handle) in self._numbers

    def alias(self, fresh: Grid, old: Grid) -> None:
        """Know a value of a body under a second identity."""
        number = self.number(old)
        if number is not None:
            self._numbers[id(fresh)] = fresh, number

    def input(self, value: Any, name: str) -> Any:
        """Return an argument as a value of this level."""
        if not differentiable(value):
            return value
        handle = self.entered(value)
        self.told.give(self._new(handle), name)
        return handle

    def run_call(
        self, call: Call, values: Sequence[Any], handles: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        """Run a call below; return its results and what is kept for the derivative."""
        numbers = list(map(self.number, handles))
        moving = [n is not None for n in numbers]
        return run_call(call, values, moving, self._forward, list(map(self.told, numbers)))

    def follow(self, site: Site, call: Call | None, handles: Sequence[Any]) -> list[Any]:
        """Put an operation on the tape."""
        derivative = derivative_of(site, call)
        if derivative is FLAT or not any(map(differentiable, site.results)):
            return list(site.results)
        made: list[Any] = []
        outputs: list[int | None] = []
        inputs = tuple(map(self.number, handles))
        line = user_line()
        for result in site.results:
            if differentiable(result):
                handle = result if self.body is not None else Dual(self.recorder, result)
                number = self._new(handle)
                self.told.give(number, site.name, line)
                outputs.append(number)
                made.append(handle)
            else:
                outputs.append(None)
                made.append(result)
        if derivative.kept_alone:
            site = replace(site, operands=(), results=())
        self.tape.append(Node(site, derivative, inputs, tuple(outputs), line))
        return made


def pulled(node: Node, cotangents: Sequence[Any], told: Names, place: at_line) -> list[Any]:
    """Return the cotangents of an operation's operands.

    Args:
        node: the operation.
        cotangents: those of its results; None for zero.
        told: returns what a value is called; nothing if it has no name.
        place: where what is done says what for.
    """
    every = [n is not None for n in node.inputs]
    place.line = node.line
    if not node.derivative.apart or sum(every) < 2:
        place.purpose = lambda: purpose_of([told(n) for n in node.inputs if n])
        return _pulled(node, cotangents, every, told)
    found: list[Any] = [None] * len(every)
    for i, number in enumerate(node.inputs):
        if number is not None:
            place.purpose = lambda number=number: purpose_of([told(number)])
            found[i] = _pulled(node, cotangents, [k == i for k in range(len(every))], told)[i]
    return found


def purpose_of(names: Sequence[str]) -> str:
    """Return what is done for the gradients of some values; nothing if none has a name."""
    told = list(dict.fromkeys(filter(None, names)))
    if len(told) < 2:
        return f"gradient of {told[0]}" if told else ""
    rest = f" and {len(told) - 2} more" if len(told) > 2 else ""
    return f"gradients of {', '.join(told[:2])}{rest}"


def _pulled(
    node: Node, cotangents: Sequence[Any], wanted: Sequence[bool], told: Names
) -> list[Any]:
    """Return the cotangents of some operands."""
    site = node.site
    if node.derivative.kept_alone:
        return node.derivative.pull(site, cotangents, wanted)
    whole = [
        zeros_like(y) if g is None and n is not None else g
        for g, y, n in zip(cotangents, site.results, node.outputs, strict=True)
    ]
    if not node.derivative.apart:  # what it runs says for itself what for
        site = replace(site, names=list(map(told, node.inputs)))
        return cotangents_of(node.derivative, site, whole, wanted)
    with wished_like(site.operands[wanted.index(True)]):
        return cotangents_of(node.derivative, site, whole, wanted)


def cotangents_of(
    derivative: Derivative, site: Site, cotangents: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """Return the cotangents of the operands that are wanted, given those of all results."""
    if isinstance(derivative, Tangents):
        return _transposed_formula(derivative, site, cotangents, wanted)
    return derivative.pull(site, cotangents, wanted)


def _transposed_formula(
    derivative: Tangents, site: Site, cotangents: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    places = [i for i, want in enumerate(wanted) if want]

    def forward(*tangents: Any) -> list[Any]:
        given: list[Any] = [None] * len(site.operands)
        for i, t in zip(places, tangents, strict=True):
            given[i] = t
        return derivative.push(site, given)

    found = transposed(forward, [zeros_like(site.operands[i]) for i in places], cotangents)
    result: list[Any] = [None] * len(site.operands)
    for i, g in zip(places, found, strict=True):
        result[i] = g
    return result


def transposed(
    f: Callable[..., Sequence[Any]], zeros: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Return what the transpose of a linear function makes of cotangents; None for zero.

    Args:
        f: from values to a list of values, of which some may be None.
        zeros: zeros of the types of its arguments.
        cotangents: one for each result; those of results that are None are left out.
    """
    _, back = followed("a linear function", f, zeros)
    return back(cotangents)


@final
@dataclass(frozen=True)
class Recorded:
    """A function that has run, and its tape.

    Attributes:
        results: what it returned.
        tape: the operations.
        inputs: the number of each argument on the tape; None for constants.
        outputs: the same for the results.
        told: what the values are called.
        varies: in a body, for each value the axes over which it varies.
    """

    results: list[Any]
    tape: list[Node]
    inputs: list[int | None]
    outputs: list[int | None]
    told: Names
    varies: Mapping[int, Axes]

    def pull(self, cotangents: Sequence[Any], last: bool = False) -> list[Any]:
        """Return the cotangents of the arguments, given those of the results.

        Args:
            cotangents: those of the results; None for zero.
            last: whether nobody asks again: then each operation is let go of when it is done.
        """
        with at_line("") as place:
            found = _Found(self, place)
            for number, g in zip(self.outputs, cotangents, strict=True):
                found.add(number, g)
            for node in _popped(self.tape) if last else reversed(self.tape):
                own = [found.complete(n) for n in node.outputs]
                if any(g is not None for g in own):
                    made = pulled(node, own, self.told, place)
                    for number, g in zip(node.inputs, made, strict=True):
                        found.add(number, g, node.site.name)
            return [found.complete(n) for n in self.inputs]

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the results, given those of the arguments."""
        found = {
            n: t
            for n, t in zip(self.inputs, tangents, strict=True)
            if n is not None and t is not None
        }
        for node in self.tape:
            given = [None if n is None else found.get(n) for n in node.inputs]
            if all(t is None for t in given):
                continue
            made = node.derivative.push(node.site, given)
            for number, t in zip(node.outputs, made, strict=True):
                if number is not None and t is not None:
                    found[number] = t
        return [None if n is None else found.get(n) for n in self.outputs]


def _popped(tape: list[Node]) -> Iterator[Node]:
    """Yield the operations from the end, which are no longer on the tape."""
    while tape:
        yield tape.pop()


@final
class _Found:
    """The cotangents that are known on the way back, by the numbers of their values.

    A cotangent of several parts is summed up by what these come from: products first with products,
    whose partial sums jit then combines once. In a body a value is widened without a word, and its
    cotangent summed over these axes: once, when all parts are there.

    Args:
        run: what goes back.
        place: where what is done says what for.
    """

    def __init__(self, run: Recorded, place: at_line) -> None:
        self._run, self._place = run, place
        self._first: dict[int, tuple[_Part, str, Any]] = {}
        self._more: dict[int, dict[_Part, tuple[str, Any]]] = {}

    def add(self, number: int | None, g: Any, origin: str = "") -> None:
        """Add to the cotangent of a value.

        Args:
            number: the value's number; None for a constant.
            g: what is added; None for zero.
            origin: the operation that it comes from.
        """
        if number is None or g is None:
            return
        axes = varying(g) - self._run.varies[number] if self._run.varies else _NO_AXES
        key, line = (origin, axes), self._place.line
        if number not in self._first:
            self._first[number] = key, line, g
            return
        parts = self._more.setdefault(number, {})
        if not parts:
            first, *before = self._first[number]
            parts[first] = tuple(before)
        known = parts.get(key)
        parts[key] = line, g if known is None else self._sum(number, [known[1], g])

    def _sum(self, number: int, parts: Sequence[Any]) -> Any:
        self._say(number)
        return total(parts)

    def _say(self, number: int) -> None:
        told = self._run.told  # the purpose must not refer to self, which refers to the place
        self._place.purpose = lambda: purpose_of([told(number)])

    def complete(self, number: int | None) -> Any:
        """Return the cotangent of a value, which nothing is added to any more; None for zero."""
        if number is None or number not in self._first:
            return None
        key, line, g = self._first.pop(number)
        parts = self._more.pop(number, None)
        if parts is None:
            if not key[1]:
                return g
            parts = {key: (line, g)}
        over: dict[Axes, list[Any]] = {}
        for (_, axes), (line, g) in parts.items():
            self._place.line = line
            over.setdefault(axes, []).append(g)
        found = []
        for axes, own in over.items():
            g = own[0] if len(own) == 1 else self._sum(number, own)
            if axes:
                self._say(number)
                g = narrowed(g, axes)
            found.append(g)
        return found[0] if len(found) == 1 else self._sum(number, found)


def recorded(
    name: str,
    f: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    names: Sequence[str] = (),
    *,
    forward: bool = False,
    linear: bool = False,
) -> Recorded:
    """Call a function, and keep what it did.

    Args:
        name: what messages call it.
        f: from flat values to flat values.
        values: arrays and numbers. For those that are not differentiable there is no derivative.
        names: what the values are called, where what is done says what for.
        forward: whether tangents are pushed through it later, rather than cotangents pulled back.
        linear: whether it is a linear function of tangents, which is to be transposed.
    """
    level = Reverse(name, forward)
    level.linear = linear
    with level.active():
        called = itertools.chain(names, itertools.repeat(""))
        handles = [level.input(x, name) for x, name in zip(values, called, strict=False)]
        ends = list(f(*handles))
    return Recorded(
        [level.left(h) for h in ends],
        level.tape,
        [level.number(h) for h in handles],
        [level.number(h) for h in ends],
        level.told,
        level.varies,
    )


def followed(
    name: str,
    f: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    names: Sequence[str] = (),
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Call a function; return its results, and what pulls cotangents back to its arguments."""
    found = recorded(name, f, values, names)
    return found.results, found.pull


def followed_again(
    name: str,
    f: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    names: Sequence[str] = (),
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Do the same as `followed` on the way back, where what runs has run before."""
    with at_line("", "computed again"):
        return followed(name, f, values, names)


_LINEAR = {"negative": ([0],), "multiply": ([0], [1]), "divide": ([0],), "solve": ([1],)}
"""Operations that are linear in some operands while the others stay: which these may be."""


def first_nonlinear(tape: Sequence[Node]) -> str | None:
    """Return the name of the first operation that is not linear; None if all are."""
    return next((node.site.name for node in tape if not _is_linear(node)), None)


def _is_linear(node: Node) -> bool:
    """Whether an operation is linear in what it got of the inputs; calls are taken to be."""
    name, derivative = node.site.name, node.derivative
    moved = [i for i, n in enumerate(node.inputs) if n is not None]
    if isinstance(derivative, Partials):
        constant = not any(callable(derivative.factors[i]) for i in moved)
        return constant or moved in _LINEAR.get(name, ())
    if isinstance(derivative, Linear):
        return derivative.together or len(moved) == 1
    if isinstance(derivative, (Tangents, Pulls)):
        return name in ("astype", "scatter") or moved in _LINEAR.get(name, ())
    return True
