"""A program in two halves: what can run at once, and what waits for values that come later.

In: a program that computes a function's results, and from these and later values, such as
cotangents, something else. Out: two programs. The first gives the results and what the second
needs of all that was computed; the second gives the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np

from meshard.runtime.types import ArrayType
from meshard.transforms.body.scope import GridKind
from meshard.transforms.program.program import Atom, Eqn, Program, Var

_VIEWS = {"broadcast_to", "transpose"}
"""Operations that cost nothing and move nothing: done again rather than kept."""


@final
@dataclass(frozen=True, slots=True)
class Halves:
    """Two programs that are one.

    Attributes:
        first: from the early values to the results, and behind them what else is kept.
        second: from what is kept and the late values to the other results.
        kept: what is kept, as numbers among the early values, the results if these may be kept,
            and what the first half returns behind them.
        variables: what is kept, as variables of the whole program.
        early: the captured values that the first half reads, by their numbers.
        late: those that the second reads.
    """

    first: Program
    second: Program
    kept: tuple[int, ...]
    variables: tuple[Var, ...]
    early: tuple[int, ...]
    late: tuple[int, ...]

    @property
    def separate(self) -> bool:
        """Whether the second half reads nothing of the first but what is kept."""
        known = {*self.second.captured, *self.second.inputs}
        for eqn in self.second.eqns:
            if not known.issuperset(_read(eqn.inputs)):
                return False
            known.update(eqn.outputs)
        return known.issuperset(_read(self.second.outputs))


def halved(
    program: Program,
    early: int,
    results: int,
    variables: Sequence[Var] | None = None,
    *,
    returned: bool = True,
) -> Halves:
    """Return a program in two halves.

    What an ``again`` computes anew, as `remat` asks, is left to the second half.

    Args:
        program: the program.
        early: how many of its inputs are there at first.
        results: how many of its outputs the first half gives; they depend on no late input.
        variables: what is kept; None to find out.
        returned: whether the results, as the first half gives them, may be what is kept.
    """
    ends = program.outputs[results:]
    if variables is None:
        variables = _Cut(program, early, results).kept()
    known = (*program.inputs[:early], *program.outputs[:results])
    if not returned:
        known = known[:early]
    more = [v for v in variables if v not in known]
    every = (*known, *more)
    places = {x: i for i, x in reversed(list(enumerate(every))) if isinstance(x, Var)}
    first = _slice(program, (*program.outputs[:results], *more), ())
    second = _slice(program, ends, variables)
    return Halves(
        replace(first, inputs=program.inputs[:early]),
        replace(second, inputs=(*variables, *program.inputs[early:])),
        tuple([places[v] for v in variables]),
        tuple(variables),
        _numbers(program, first),
        _numbers(program, second),
    )


def _numbers(program: Program, part: Program) -> tuple[int, ...]:
    return tuple([i for i, v in enumerate(program.captured) if v in part.captured])


def _slice(program: Program, outputs: Sequence[Atom], known: Collection[Var]) -> Program:
    """Return what computes some values of a program, given others."""
    known = set(known)
    needed = {x for x in outputs if isinstance(x, Var)} - known
    eqns = []
    for eqn in reversed(program.eqns):
        if not needed.isdisjoint(eqn.outputs):
            needed.update(x for x in eqn.inputs if isinstance(x, Var) and x not in known)
            eqns.append(eqn)
    captured = tuple([v for v in program.captured if v in needed])
    return Program(captured, program.inputs, tuple(eqns[::-1]), tuple(outputs), program.name)


@final
class _Cut:
    """Where a program is cut in two, so that as few bytes as possible are kept.

    What the results need is computed first, and what needs late values is computed late. All else,
    such as the slope of each function, may be on either side: the cheapest values that separate the
    two are a minimum cut, and cost as much as can flow. Arguments cost nothing: they are there.

    Args:
        program: the program.
        early: how many of its inputs are there at first.
        results: how many of its outputs the first half gives.
    """

    def __init__(self, program: Program, early: int, results: int) -> None:
        self._program = program
        self._free = {*program.inputs[:early], *program.captured}
        self._late = set(program.inputs[early:])
        self._either: dict[Var, Eqn] = {}
        first = _slice(program, program.outputs[:results], ())
        own = set(map(id, first.eqns))
        read = set(_read(program.outputs[results:]))
        for eqn in program.eqns:
            inputs = _read(eqn.inputs)
            if id(eqn) in own:
                if eqn.call is None and (eqn.name in _VIEWS or _is_number(eqn.outputs[0])):
                    self._either[eqn.outputs[0]] = eqn
            elif eqn.name == "again" or not self._late.isdisjoint(inputs):
                self._late.update(eqn.outputs)
                read.update(inputs)
            else:
                self._either |= dict.fromkeys(eqn.outputs, eqn)
        self._ends = sorted(read - self._late, key=program.numbers.__getitem__)

    def kept(self) -> list[Var]:
        """Return what is kept."""
        # What must be kept costs nothing more where something else could be made of it.
        must = [x for x in self._ends if x not in self._either]
        self._free.update(must)
        self._flow: dict[tuple[_Node, _Node], int] = {}
        ends = [(x, True) for x in self._ends if x not in self._free]
        for end in ends:
            while (path := self._path([end])[0]) is not None:
                steps = list(pairwise(path))
                least = min(self._left(*step) for step in steps)
                for u, v in steps:
                    self._flow[u, v] = self._flow.get((u, v), 0) + least
                    self._flow[v, u] = -self._flow[u, v]
        behind = self._path(ends)[1]
        cut = {x for x, after in behind if after and (x, False) not in behind}
        more = self._needed(cut.union(must))
        kept = cut.union(must, more) - set(self._program.captured)
        return sorted(kept, key=self._program.numbers.__getitem__)

    def _needed(self, known: set[Var]) -> set[Var]:
        """Return the arguments that are read besides by what is computed late."""
        found: set[Var] = set()
        waiting, seen = list(self._ends), set(known)
        while waiting:
            x = waiting.pop()
            if x in seen:
                continue
            seen.add(x)
            if x in self._either:
                waiting += _read(self._either[x].inputs)
            else:
                found.add(x)
        return found

    def _before(self, node: _Node) -> list[_Node]:
        """Return the nodes from which something may flow to a node."""
        x, after = node
        found = [(x, not after)]
        if after:
            return found + self._readers.get(x, [])
        return found + [
            (y, True) for y in _read(self._either[x].inputs if x in self._either else ())
        ]

    def _left(self, u: _Node, v: _Node) -> int:
        """Return how much more may flow from one node to another."""
        onwards = v[1] if u[0] is v[0] else u[1]
        room = 0 if not onwards else _cost(u[0]) if u[0] is v[0] else _MOST
        return room - self._flow.get((u, v), 0)

    def _path(self, ends: list[_Node]) -> tuple[list[_Node] | None, set[_Node]]:
        """Return a way from a source to one of some ends, and the nodes that were looked at."""
        after: dict[_Node, _Node | None] = dict.fromkeys(ends)
        waiting = deque(ends)
        while waiting:
            node = waiting.popleft()
            if not node[1] and node[0] not in self._either:
                path = [node]
                while (at := after[path[-1]]) is not None:
                    path.append(at)
                return path, set(after)
            for u in self._before(node):
                if u not in after and u[0] not in self._free and self._left(u, node) > 0:
                    after[u] = node
                    waiting.append(u)
        return None, set(after)

    @cached_property
    def _readers(self) -> dict[Var, list[_Node]]:
        """For each variable the results of what may be on either side and reads it."""
        found: dict[Var, list[_Node]] = {}
        for y, eqn in self._either.items():
            for x in _read(eqn.inputs):
                found.setdefault(x, []).append((y, False))
        return found


_Node = tuple[Var, bool]
"""A value before, or after, the place where it would be kept."""
_MOST = 1 << 62


def _cost(x: Var) -> int:
    """Return what it costs to keep a value: a Python number cannot be kept."""
    return _MOST if _is_number(x) else max(1, _bytes(x))


def _read(atoms: Iterable[Atom]) -> list[Var]:
    return [x for x in atoms if isinstance(x, Var)]


def _is_number(x: Var) -> bool:
    """Whether a value is a Python number, whose dtype is left open."""
    return (x.aval.weak if isinstance(x.aval, GridKind) else x.weak) is not None


def _bytes(x: Var) -> int:
    type_: ArrayType = x.aval.type if isinstance(x.aval, GridKind) else x.aval
    return int(np.prod(type_.shape, dtype=np.int64)) * type_.dtype.itemsize
