"""Bodies that devices of unequal shards run: once for each local shape, meeting in collectives.

In: a function, the devices that have each local shape, and what runs a collective for all. Out:
what the function returned for each shape. The runs take turns, in threads of which one goes on at a
time, always in the same order, so that all processes do the same. A run stops where it comes to a
collective along axes over which the shapes differ, until all others have come to it; then the
collective is run once, on the cells of all.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from meshard.errors import ShapeError
from meshard.runtime.doors import Params, innermost, interpreting
from meshard.transforms.body.body import COLLECTIVES, Body
from meshard.transforms.body.branches import merged
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import Extent, Mask, Scope


def _differing(scope: Scope, grid: Any) -> Extent:
    """Return the axes along which values over all manual axes differ."""
    axes = enumerate(scope.manual)
    return tuple([a for i, a in axes if (grid != grid.take([0], axis=i)).any()])


@final
class Shares:
    """Which devices have which of several local shapes.

    Attributes:
        chosen: the number of the local shape, over all manual axes.
        axes: the axes along which it differs.
        count: how many there are.
    """

    def __init__(self, scope: Scope, chosen: Any, count: int) -> None:
        self.chosen = chosen
        self.count = count
        self.axes = _differing(scope, chosen)

    def mask(self, number: int) -> Mask:
        """Return the mask of the devices that have a local shape."""
        return Mask(self.axes, frozenset(self.axes), self.chosen == number)


class _Abandoned(BaseException):
    """Ends a run whose fellows have failed."""


@final
class _Asked:
    """A collective that a run has come to."""

    def __init__(self, name: str, values: Sequence[Any], params: Params) -> None:
        self.name, self.values, self.params = name, values, params


@final
class _Member:
    """One run of the function, for the devices of one local shape.

    Attributes:
        body: the interpreter of its code.
        asked: the collective that it waits for; None if it has ended.
        result: what the function returned.
        error: what it raised.
    """

    def __init__(self, body: Body, function: Callable[[], Any]) -> None:
        self.body = body
        self.asked: _Asked | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self._answer: Any = None
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        self._function = function
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="meshard shard_map", daemon=True
        )
        self._abandoned = False

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if not self._abandoned:
                with interpreting(self.body):
                    self.result = self._function()
        except _Abandoned:
            pass
        except BaseException as error:  # told by the thread that waits
            self.error = error
        self.asked = None
        self._others.release()

    def start(self) -> None:
        """Start the thread; it waits for its first turn."""
        self._thread.start()

    def go_on(self, answer: Any = None) -> None:
        """Let the run go on until it comes to a collective, or ends."""
        self._answer = answer
        self._mine.release()
        self._others.acquire()

    def ask(self, name: str, values: Sequence[Any], params: Params) -> Any:
        """Stop at a collective, and return its result."""
        self.asked = _Asked(name, values, params)
        self._others.release()
        self._mine.acquire()
        if self._abandoned:
            raise _Abandoned
        return self._answer

    def abandon(self) -> None:
        """End the run where it is."""
        self._abandoned = True
        if self._thread.ident is None:
            return
        while self._thread.is_alive() and self.asked is not None:
            self.go_on()
        self._thread.join()


@final
class Meeting:
    """The runs of one body, and where they meet.

    Args:
        body: the interpreter for all devices.
        shares: which devices have which local shape.
        told: the function, for messages.
    """

    def __init__(self, body: Body, shares: Shares, told: str) -> None:
        self.body = body
        self.shares = shares
        self._told = told
        self.bodies = [Body(body.scope, body.outer, body.typed) for _ in range(shares.count)]
        for number, each in enumerate(self.bodies):
            if not body.typed:
                each.mask = shares.mask(number)
            each.meeting = self
        self._masks = {id(each): each.mask for each in self.bodies}
        self._members: list[_Member] = []

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Call a function for each local shape, and return what they return.

        Raises:
            ShapeError: if they do not come to the same collectives, or come with unequal shapes.
        """
        self._members = [
            _Member(body, function) for body, function in zip(self.bodies, functions, strict=True)
        ]
        try:
            for member in self._members:
                member.start()
                self._turn(member)
            while any(member.asked is not None for member in self._members):
                for member, answer in zip(self._members, self._answers(), strict=True):
                    self._turn(member, answer)
        finally:
            for member in self._members:
                member.abandon()
        return [member.result for member in self._members]

    def _turn(self, member: _Member, answer: Any = None) -> None:
        member.go_on(answer)
        if member.error is not None:
            raise member.error

    def meets(self, body: Body, name: str, params: Params) -> bool:
        """Return whether a run waits at an operation for the others.

        It does where that is a collective along axes over which the local shapes differ; under a
        condition it goes on, and the collective is refused.
        """
        if name not in COLLECTIVES or name in _STAYING or body.mask is not self._masks[id(body)]:
            return False
        return any(a in self.shares.axes for a in _axes(params))

    def ask(self, body: Body, name: str, values: Sequence[Any], params: Params) -> Any:
        """Come to a collective, and return its result as a value of this run's."""
        member = next(m for m in self._members if m.body is body)
        return member.ask(name, values, params)

    def _answers(self) -> list[Any]:
        """Run the collective that all have come to, and return the result as each one's value."""
        asked = [member.asked for member in self._members]
        self._agree(asked)
        answers: list[Any] = [None] * len(asked)
        for numbers in self._alike([a for a in asked if a is not None]):
            for number, answer in zip(numbers, self._joint(numbers), strict=True):
                answers[number] = answer
        return answers

    def _agree(self, asked: Sequence[_Asked | None]) -> None:
        """Refuse runs that have come to different collectives, or ended where others have not."""
        told = [
            "ended" if a is None else f"came to {a.name} with {dict(a.params)!r}" for a in asked
        ]
        for other in told[1:]:
            if other != told[0]:
                raise ShapeError(
                    f"{self._told}: its arguments are uneven, and the run for one local shape "
                    f"{told[0]}, while that for another {other}. All devices must come to the same "
                    "collectives in the same order, whatever their local shape is."
                )

    def _alike(self, asked: Sequence[_Asked]) -> list[list[int]]:
        """Return the runs in groups whose operands have the same shapes.

        Raises:
            ShapeError: if devices that take part in the collective together are in two groups.
        """
        groups: dict[Any, list[int]] = {}
        for number, each in enumerate(asked):
            types = tuple([x._type if type(x) is Grid else type(x) for x in each.values])
            groups.setdefault(types, []).append(number)
        along = _axes(asked[0].params)
        for numbers in groups.values():
            crossed = [a for a in self._axes_of(numbers) if a in along]
            if crossed:
                (x, *_), (y, *_) = (
                    [v for v in asked[n[0]].values if type(v) is Grid]
                    for n in (*groups.values(),)[:2]
                )
                raise ShapeError(
                    f"{self._told}: {asked[0].name} along {crossed[0]!r} needs equal local shapes, "
                    f"but its operand is {x.kind.type.str_short()} on some devices and "
                    f"{y.kind.type.str_short()} on others, because the arguments are uneven. Give "
                    "it what has the same shape everywhere along that axis, such as a sum or an "
                    "edge of the tile; or pad the arguments."
                )
        return list(groups.values())

    def _axes_of(self, numbers: Sequence[int]) -> Extent:
        """Return the axes along which it differs whether a device belongs to one of some runs."""
        return _differing(self.body.scope, np.isin(self.shares.chosen, numbers))

    def _joint(self, numbers: Sequence[int]) -> list[Any]:
        """Run a collective for the devices of some runs, and return its result as their values."""
        body, members = self.body, [self._members[n] for n in numbers]
        asked = [m.asked for m in members if m.asked is not None]
        if asked[0].name == _NUMBER:
            return [len({a.values for a in asked}) == 1] * len(asked)
        mask = None
        if len(numbers) < self.shares.count and not body.typed:
            axes = self._axes_of(numbers)
            mask = Mask(axes, frozenset(axes), np.isin(self.shares.chosen, numbers))
        joined = [
            self.merged([a.values[i] for a in asked], numbers) if type(x) is Grid else x
            for i, x in enumerate(asked[0].values)
        ]
        with body.under(mask if mask is not None else body.mask):
            found = body.run(asked[0].name, tuple(joined), asked[0].params)
        return [self._as_of(m.body, found) for m in members]

    def merged(self, values: Sequence[Grid], numbers: Sequence[int] | None = None) -> Grid:
        """Return values of some runs, or of all, as one value of the joint body."""
        body, shares = self.body, self.shares
        by = body.scope.kind(values[0].kind.type, shares.axes, frozenset(shares.axes))
        if not body.typed:
            chosen = shares.chosen
            if numbers is not None:
                places = np.full(shares.count, -1)
                places[list(numbers)] = range(len(numbers))
                chosen = places[chosen]
            return merged(body, values, chosen, by, shares.axes)
        axes = [*shares.axes, *(a for x in values for a in x.kind.extent)]
        extent = body.scope.extent(axes)
        varies = by.varies.union(*(x.kind.varies for x in values))
        kind = body.scope.kind(by.type, extent, varies, values[0].kind.weak)
        return Grid(body, kind, (None,) * body.scope.count(extent))

    def _as_of(self, body: Body, found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple([self._as_of(body, x) for x in found])
        return Grid(body, found.kind, found.cells)


def _axes(params: Params) -> Any:
    """Return the mesh axes that a collective is along."""
    return dict(params).get("axes", ())


_STAYING = frozenset({"axis_index", "pcast"})
_NUMBER = "a Python number"


def same_number(value: Any, axes: Extent) -> bool:
    """Return whether a Python number is the same on all devices along axes.

    It is not where it depends on the local shape, and that differs: all runs tell theirs.
    """
    body = innermost()
    if not isinstance(body, Body) or body.meeting is None:
        return True
    params = (("axes", axes),)
    if not body.meeting.meets(body, "psum", params):
        return True
    return bool(body.meeting.ask(body, _NUMBER, (value,), params))
