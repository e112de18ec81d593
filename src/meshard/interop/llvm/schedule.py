"""What is stored, where, and in which order: from expressions to phases of loop nests.

In: the values that a program gives. Out: phases, one after the other, each of parts that run a few
rows at a time. A value is stored if somebody needs its elements side by side, or more often than it
is cheap to compute them; all others are computed where they are read. In a part all values have
the same number of rows, and a row needs that row of the others alone, so that what only the part
reads is kept for a few rows and stays in the cache.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from meshard.interop.llvm.nodes import (
    Call,
    Fold,
    Leaf,
    Map,
    Node,
    Number,
    Place,
    Regrouped,
    View,
    in_order,
    operands_of,
)

COMPUTED_AGAIN = 4
"""Operations that are computed again rather than stored, if two readers are apart."""


@final
@dataclass(eq=False, slots=True)
class Nest:
    """Values that one nest of loops computes and stores, all of one shape."""

    nodes: list[Node]


@final
@dataclass(eq=False, slots=True)
class Part:
    """Values that are computed together, a few rows at a time.

    Attributes:
        rows: the number of rows.
        divisible: whether the rows may be shared out between workers.
        steps: nests, and calls and folds by NumPy's loops, in order.
        numbers: for each stored value the number of the step that gives it.
    """

    rows: int
    divisible: bool
    steps: list[Nest | Call | Fold] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class Schedule:
    """A program in the order in which it runs.

    Attributes:
        outputs: the values that it gives.
        phases: parts; those of one phase may run side by side.
        tiled: the values that only their part reads, by identity: stored for a few rows.
        temporaries: the values, besides the outputs, that are stored whole.
    """

    outputs: Sequence[Node]
    phases: Sequence[Sequence[Part]]
    tiled: frozenset[int]
    temporaries: Sequence[Node]


def rows_of(node: Node) -> int:
    """Return the number of rows of a value."""
    return node.shape[0] if node.shape else 1


def scheduled(outputs: Sequence[Node]) -> Schedule:
    """Return the order in which a program runs."""
    return _Scheduling(outputs).schedule()


@final
class _Scheduling:
    """The phases of a program, as far as they are known."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        self._outputs = outputs
        self._order = in_order(outputs)
        self._stored = _stored(self._order, outputs)
        self._parts: dict[tuple[int, int, int], Part] = {}
        self._phase: dict[int, int] = {}
        self._part_of: dict[int, Part] = {}
        self._whole = {id(x) for x in outputs}

    def schedule(self) -> Schedule:
        """Return the order in which the program runs."""
        for node in self._order:
            if id(node) in self._stored and not isinstance(node, (Leaf, Number)):
                self._add(node)
        kept = [x for x in self._order if id(x) in self._part_of]
        given = {id(x) for x in self._outputs}
        levels: defaultdict[int, list[Part]] = defaultdict(list)
        for (number, _, _), part in self._parts.items():
            levels[number].append(part)
        return Schedule(
            self._outputs,
            [levels[k] for k in sorted(levels)],
            frozenset(id(x) for x in kept if id(x) not in self._whole),
            [x for x in kept if id(x) in self._whole and id(x) not in given],
        )

    def _add(self, node: Node) -> None:
        """Give a value a phase, and a part of it.

        What reads rows as they come joins the part that gives them; else these are stored whole,
        and their reader waits for them.
        """
        alone = isinstance(node, Fold) and node.rows  # its rows are taken one after the other
        reads = [
            (x, aligned)
            for x, aligned in _reads(node, self._stored)
            if not isinstance(x, (Leaf, Number))
        ]
        number = 0
        for x, aligned in reads:
            joined = aligned and not alone and self._part_of[id(x)].divisible
            number = max(number, self._phase[id(x)] + (not joined))
        rows = rows_of(node.arg) if isinstance(node, Fold) and alone else rows_of(node)
        key = (number, rows, id(node) if alone else 0)
        part = self._parts.setdefault(key, Part(rows, not alone))
        apart = [x for x, aligned in reads if not aligned or self._part_of[id(x)] is not part]
        self._whole |= set(map(id, apart))
        _join(part, node, self._stored)
        self._phase[id(node)], self._part_of[id(node)] = number, part


def _stored(order: Sequence[Node], outputs: Sequence[Node]) -> set[int]:
    """Return the values that are stored, by identity; leaves and numbers are anyway."""
    stored = {id(x) for x in outputs}
    stored |= {id(x) for x in order if isinstance(x, (Leaf, Number, Call, Fold, Place))}
    for node in order:
        side_by_side = isinstance(node, (Call, Regrouped)) or (
            isinstance(node, Fold) and not node.rows
        )
        moved = isinstance(node, Place) and not _is_simple(node.arg)
        if side_by_side or moved:
            stored |= set(map(id, operands_of(node)))
    stored |= _read_in_several_places(order, stored)
    return stored | _read_by_several(order, stored)


def _read_by_several(order: Sequence[Node], stored: set[int]) -> set[int]:
    """Return the values that several stored ones are computed from, if that takes long."""
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for node in order:
        if id(node) in stored:
            for x in _inside(node, stored):
                readers[id(x)].add(id(node))
    found: set[int] = set()
    for node in order:
        if len(readers[id(node)]) > 1 and _cost(node, stored | found) > COMPUTED_AGAIN:
            found.add(id(node))
    return found


def _read_in_several_places(order: Sequence[Node], stored: set[int]) -> set[int]:
    """Return the values of which views would compute an element more than once."""
    views: Counter[int] = Counter()
    others: Counter[int] = Counter()
    for node in order:
        count = views if isinstance(node, View) else others
        count.update(map(id, operands_of(node)))
    return {
        id(x)
        for x in order
        if views[id(x)] and views[id(x)] + others[id(x)] > 1 and _cost(x, stored) > 1
    }


def _is_simple(node: Node) -> bool:
    """Whether a value is computed from others without a view that moves elements."""
    if isinstance(node, (Leaf, Number, Call, Fold, Place)):
        return True
    if isinstance(node, View):
        (_, dims), *others = node.parts
        whole = all(d is None or (not isinstance(m, int) and m.is_identity) for d, m in dims)
        if others or not whole:
            return False
    return not isinstance(node, Regrouped) and all(map(_is_simple, operands_of(node)))


def _inside(node: Node, stored: set[int]) -> Iterator[Node]:
    """Yield the values that are computed where a stored one is."""
    seen: set[int] = set()
    stack = list(operands_of(node))
    while stack:
        x = stack.pop()
        if id(x) in stored or id(x) in seen:
            continue
        seen.add(id(x))
        yield x
        stack += operands_of(x)


def _cost(node: Node, stored: set[int]) -> int:
    """Return the elementwise operations that computing a value again takes."""
    if isinstance(node, (Leaf, Number)):
        return 0
    return isinstance(node, Map) + sum(isinstance(x, Map) for x in _inside(node, stored))


def _reads(node: Node, stored: set[int]) -> Iterator[tuple[Node, bool]]:
    """Yield the stored values that one is computed from, and whether row by row."""
    rows = rows_of(node)
    own = not isinstance(node, Fold) or not node.rows
    stack = [(x, own and _keeps_rows(node, k, rows)) for k, x in enumerate(operands_of(node))]
    seen: set[tuple[int, bool]] = set()
    while stack:
        x, aligned = stack.pop()
        if (id(x), aligned) in seen:
            continue
        seen.add((id(x), aligned))
        if id(x) in stored or isinstance(x, (Leaf, Number)):
            yield x, aligned
        else:
            stack += [
                (y, aligned and _keeps_rows(x, k, rows)) for k, y in enumerate(operands_of(x))
            ]


def _keeps_rows(node: Node, operand: int, rows: int) -> bool:
    """Whether a row of a value needs that row of an operand alone."""
    x = operands_of(node)[operand]
    if rows_of(x) != rows or rows_of(node) != rows:
        return False
    if rows == 1:
        return True
    if isinstance(node, View):
        (dim, how), *rest = node.parts[operand][1]
        whole = not isinstance(how, int) and how.is_identity
        return dim == 0 and whole and all(d != 0 for d, _ in rest)
    return not isinstance(node, (Map, Call)) or len(x.shape) == len(node.shape)


def _join(part: Part, node: Node, stored: set[int]) -> None:
    """Add a value to a part: to a nest that is there, if it can be computed in it."""
    own = part.numbers
    before = [own[id(x)] for x, _ in _reads(node, stored) if id(x) in own]
    first = max(before, default=-1)
    if isinstance(node, (Call, Fold)):
        part.steps.append(node)
        own[id(node)] = len(part.steps) - 1
        return
    for k in range(max(first, 0), len(part.steps)):
        step = part.steps[k]
        if isinstance(step, Nest) and step.nodes[0].shape == node.shape:
            inside = {id(x) for x in step.nodes}
            if k > first or _in_place(node, inside, stored):
                step.nodes.append(node)
                own[id(node)] = k
                return
    part.steps.append(Nest([node]))
    own[id(node)] = len(part.steps) - 1


def _in_place(node: Node, inside: set[int], stored: set[int]) -> bool:
    """Whether a value reads those of its nest at its own position only, through maps."""
    stack = [node]
    while stack:
        x = stack.pop()
        for y in operands_of(x):
            if id(y) in inside:
                if not isinstance(x, Map) or y.shape != node.shape:
                    return False
            elif id(y) not in stored:
                if isinstance(x, (View, Regrouped, Place)) or y.shape != node.shape:
                    if any(id(z) in inside for z in (*_inside(y, set()), y)):
                        return False
                else:
                    stack.append(y)
    return True


def row_bytes(node: Node) -> int:
    """Return the bytes of one row of a value."""
    return max(1, math.prod(node.shape[1:])) * node.dtype.itemsize


def replaceable(schedule: Schedule) -> list[tuple[int, int]]:
    """Return which outputs may be written over which inputs, by their numbers.

    An input's elements must be read for the last time when those of the output are written: row by
    row in steps before, and in the same step each at its own place.
    """
    parts = [p for phase in schedule.phases for p in phase]
    if len(parts) != 1:
        return []
    (part,) = parts
    last = _last_reads(part)
    found: list[tuple[int, int]] = []
    for k, x in enumerate(schedule.outputs):
        for leaf, step in last.items():
            alike = (leaf.shape, leaf.dtype, leaf.strides) == (x.shape, x.dtype, None)
            taken = any(r == leaf.number for _, r in found)
            if alike and not taken and step <= part.numbers[id(x)]:
                found.append((k, leaf.number))
                break
    return found


def _last_reads(part: Part) -> dict[Leaf, int]:
    """Return for each input the last step of a part for which it must be as it came."""
    last: dict[Leaf, int] = {}
    for number, step in enumerate(part.steps):
        for node in step.nodes if isinstance(step, Nest) else [step]:
            for leaf, in_place in _leaves(node):
                row = isinstance(step, Fold) and not step.rows and leaf is step.arg
                until = number if in_place or row else len(part.steps)
                last[leaf] = max(last.get(leaf, 0), until)
    return last


def _leaves(node: Node) -> Iterator[tuple[Leaf, bool]]:
    """Yield the inputs that are read for a stored value, and whether each at its own place."""
    stack: list[tuple[Node, bool]] = [(node, True)]
    seen: set[tuple[int, bool]] = set()
    while stack:
        x, in_place = stack.pop()
        if (id(x), in_place) in seen:
            continue
        seen.add((id(x), in_place))
        for y in operands_of(x):
            own = in_place and isinstance(x, (Map, Call)) and y.shape == node.shape
            if isinstance(y, Leaf):
                yield y, own
            stack.append((y, own))
