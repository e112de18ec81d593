"""Recovery: from a job that has lost processes to one of those that are left.

In: nothing but a call by all that live. Out: a world in which those take part who live, and those
who have come to join, with all in step again; and what happened.

Blocks of work that a death interrupts, but does not end; and growing.

In: processes that die, and processes that wait to join. Out: a block that says whether it was
interrupted, and whether others take part than in the last one that ended well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, final

from meshard.algebra.arguments import count_of, flag_of, number_of
from meshard.errors import ProcessLostError
from meshard.plan.show.pictured import Printed
from meshard.resilience.copies.protect import held_versions, newest_common, settle
from meshard.runtime.agree import meet
from meshard.runtime.lines.letters import sent
from meshard.runtime.processes.agreement import Members
from meshard.runtime.processes.divergence import numbered
from meshard.runtime.processes.identity import Facts, united
from meshard.runtime.processes.membership import Decision
from meshard.runtime.processes.watchdog import Loss, Watchdog
from meshard.runtime.world import RuntimeWorld, here


@final
@dataclass(frozen=True)
class Recovery(Printed):
    """What a recovery has found and done; the same on all processes, except for the seconds.

    Attributes:
        lost: the processes that were lost, ascending.
        joined: those that have joined.
        processes: those that take part from now on.
        operation: the first operation that needed a lost process; None if none did.
        step: its number among the operations of the same processes.
        line: file and line of the program that ran it.
        seconds: how long this process has taken to recover.
    """

    lost: tuple[int, ...]
    joined: tuple[int, ...]
    processes: tuple[int, ...]
    operation: str | None
    step: int | None
    line: str | None
    seconds: float

    def __str__(self) -> str:
        told = []
        if self.lost:
            told.append(f"{numbered(self.lost)} {_was(self.lost)} lost")
            if self.operation is not None:
                told[-1] += f" in step {self.step}, {self.operation} at {self.line}"
        if self.joined:
            told.append(f"{numbered(self.joined)} {_has(self.joined)} joined")
        told.append(f"{numbered(self.processes)} {_go(self.processes)} on")
        text = "; ".join(told)
        return f"{text[0].upper()}{text[1:]} ({self.seconds:.2f} s)"


def _was(some: tuple[int, ...]) -> str:
    return "was" if len(some) == 1 else "were"


def _has(some: tuple[int, ...]) -> str:
    return "has" if len(some) == 1 else "have"


def _go(some: tuple[int, ...]) -> str:
    return "goes" if len(some) == 1 else "go"


@sent
@final
@dataclass(frozen=True)
class _Told:
    """What a process tells all others when they decide who takes part."""

    epoch: int
    loss: Loss | None
    members: tuple[int, ...]
    over: frozenset[int]
    saves: int
    known: tuple[Facts, ...]
    sharing: tuple[int, ...] | None
    counts: tuple[int, int]
    unfinished: Mapping[Members, int]
    versions: tuple[Any, ...]


def recover(timeout: float | None = None) -> Recovery:
    """Go on without the processes that have died; all that live call this.

    They agree on who lives, and from then on these are the processes that take part:
    ``meshard.devices()`` are theirs, and all count their operations anew. Processes keep their
    numbers, and devices their ids. Arrays stay what they are: one that has devices of a lost
    process says in ``x.missing`` what it has lost, is refused by operations, and comes back by
    `restore`; all others go on unchanged. Jitted functions are traced again for new layouts.

    A process that dies meanwhile is lost too. Where nobody was lost, all meet and go on.

    Args:
        timeout: seconds that a process waits for the others; by default the setting ``timeout``.

    Returns:
        Who was lost, where, and who goes on.

    Raises:
        TransportError: if others that live do not come in time, or have given up this process.
        ArgumentError: if the timeout is not a positive number.

    >>> import meshard
    >>> from meshard.testing import die, simulate
    >>> def program():
    ...     if meshard.process_index() == 0:
    ...         die()
    ...     found = meshard.elastic.recover()
    ...     return found.lost, meshard.device_count()
    >>> simulate(3, 2, program)
    [None, ((0,), 4), ((0,), 4)]
    """
    if timeout is not None:
        timeout = number_of(timeout, "elastic.recover", "timeout", open_below=True)
    return change(here(), timeout=timeout)


def change(
    world: RuntimeWorld,
    *,
    joining: Iterable[int] = (),
    newcomers: Iterable[Facts] = (),
    timeout: float | None = None,
) -> Recovery:
    """Decide with all that live who takes part, and go on with them.

    Args:
        world: this process's world.
        joining: processes that wait to take part.
        newcomers: those that wait, and that the job was not started with.
        timeout: seconds that it waits for the others.

    Raises:
        TransportError: if others that live do not come in time, or have given up this process.
    """
    begun, watchdog = time.monotonic(), world.transport.watchdog
    if watchdog is None or world.waits:
        return Recovery((), (), world.processes, None, None, None, 0.0)
    deadline = watchdog.deadline if timeout is None else timeout
    before = world.processes
    losses: list[Loss] = []
    while True:
        mine = told_by(world, watchdog)
        decision = watchdog.membership.decide(mine, deadline, joining, newcomers)
        losses += _losses(decision)
        try:
            take(world, watchdog, decision)
            break
        except ProcessLostError:
            continue
    return _recovery(world, before, losses, time.monotonic() - begun)


def told_by(world: RuntimeWorld, watchdog: Watchdog) -> _Told:
    """Return what this process tells the others when they decide who takes part."""
    members = () if world.waits else world.processes
    return _Told(
        watchdog.agreement.epoch,
        watchdog.loss,
        members,
        watchdog.over,
        world.saves,
        tuple(world.known.values()),
        world.transport.hosts,
        (world.started_count, world.wanted_count),
        watchdog.unfinished(),
        held_versions(world) if members else (),
    )


def _losses(decision: Decision) -> list[Loss]:
    return [told.loss for told in decision.payloads.values() if told.loss is not None]


def take(world: RuntimeWorld, watchdog: Watchdog, decision: Decision) -> None:
    """Go on with those that were decided on, all in step.

    Raises:
        ProcessLostError: if one of them has died meanwhile.
    """
    members, everything = decision.members, decision.payloads.values()
    _mark_torn(world, watchdog, decision)
    watchdog.renew({p for told in everything for p in (*told.members, *told.over)})
    watchdog.agreement.renew(1 + max(told.epoch for told in everything), watchdog.over)
    _learn(world, watchdog, decision)
    world.take_part(members)
    world.membership = decision.number
    world.saves = max(told.saves for told in everything)
    settle(world, newest_common([told.versions for told in everything]))
    if len(members) > 1:
        meet(world, members, "`recover`")
        world.transport.renew(members)
        world.transport.barrier(members)


def _learn(world: RuntimeWorld, watchdog: Watchdog, decision: Decision) -> None:
    """Learn about the processes that have come from outside, or as one of them about the others."""
    told = decision.payloads.values()
    new = [facts for facts in decision.newcomers if facts.index in decision.members]
    known = united([*[facts for one in told for facts in one.known], *new])
    if not known:
        return
    world.learn(known)
    watchdog.learn(known)
    one = next(one for one in told if one.members)
    world.started_count, world.wanted_count = one.counts
    world.transport.recall(one.sharing)


def _mark_torn(world: RuntimeWorld, watchdog: Watchdog, decision: Decision) -> None:
    """Remember when arrays were made that not all may have, as some did not come as far."""
    agreement = watchdog.agreement
    first, steps = agreement.first_step, {}
    for members in watchdog.unfinished():
        told = [decision.payloads[p].unfinished for p in members if p in decision.payloads]
        steps[members] = min([its.get(members, first) for its in told])
    turn = agreement.turn_of(steps)
    if turn <= agreement.clock.turn:
        world.torn += ((turn, agreement.clock.turn),)
        agreement.clock.turn += 1  # what is made from now on is not among them


def _recovery(
    world: RuntimeWorld, before: tuple[int, ...], losses: list[Loss], seconds: float
) -> Recovery:
    first = min(losses, key=lambda loss: loss.order, default=None)
    error = None if first is None else first.error()
    return Recovery(
        tuple([p for p in before if p not in world.processes]),
        tuple([p for p in world.processes if p not in before]),
        world.processes,
        *((None, None, None) if error is None else (error.operation, error.step, error.line)),
        seconds,
    )


_SOON = 5e-3
"""Seconds between two looks of a waiting process for an invitation."""


@final
class Block:
    """One run through a block of `surviving`.

    Attributes:
        changed: whether the processes that take part have changed since the last block that ended
            well, so that the state must be brought to their devices by `restore`.
        recoveries: the recoveries when it began and in it, in order; empty if there were none.
    """

    def __init__(self) -> None:
        self.changed = False
        self.recoveries: tuple[Recovery, ...] = ()

    @property
    def lost(self) -> tuple[int, ...]:
        """The processes that were lost in the block."""
        return tuple(sorted({p for found in self.recoveries for p in found.lost}))

    @property
    def joined(self) -> tuple[int, ...]:
        """The processes that joined when it began."""
        return tuple(sorted({p for found in self.recoveries for p in found.joined}))

    def __repr__(self) -> str:
        return f"Block(changed={self.changed}, lost={self.lost}, joined={self.joined})"


@final
class Surviving:
    """The context manager of `surviving`."""

    def __init__(self, grows: bool) -> None:
        self._grows = grows
        self._block = Block()

    def __enter__(self) -> Block:
        world = here()
        found = _grown(world, None if self._grows else 0)
        if found.lost or found.joined:
            self._block.recoveries += (found,)
        self._block.changed = world.membership != world.resumed
        return self._block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        world = here()
        if isinstance(error, ProcessLostError):
            self._block.recoveries += (change(world),)
            return True
        if error is None:
            world.resumed = world.membership
        return False


def surviving(*, grow: bool = True) -> Surviving:
    """Run a block of work; if a process dies in it, go on behind it without that process.

    When the block begins, processes that wait to join are taken in (`grow`). If a
    `ProcessLostError` leaves it, all that live recover, and the program goes on behind the block:
    what the block should have done is not done. So a block usually is one round of a loop, whose
    state is kept by `protect` and counts only once it is refreshed:

    >>> import numpy as np
    >>> import meshard
    >>> from meshard import elastic
    >>> from meshard.testing import die, simulate
    >>> def program():
    ...     guard = elastic.protect({"total": meshard.numpy.zeros(4), "step": 0})
    ...     while guard.tree["step"] < 5:
    ...         with elastic.surviving() as block:
    ...             rows = meshard.NamedSharding(elastic.mesh("i"), meshard.P("i"))
    ...             state = elastic.restore(guard, rows) if block.changed else guard.tree
    ...             if state["step"] == 2 and meshard.process_index() == 1:
    ...                 die()
    ...             guard.refresh({"total": state["total"] + 1, "step": state["step"] + 1})
    ...     return float(guard.tree["total"].sum())
    >>> simulate(3, 1, program)
    [20.0, None, 20.0]

    Args:
        grow: whether spares take the place of processes that were lost; the same on all. Those
            that were started by hand are taken in in any case, and a process that waits does so at
            its first block whatever this says.

    Raises:
        TransportError: if others that live do not come in time, or have given up this process.
    """
    return Surviving(flag_of(grow, "elastic.surviving", "grow"))


def grow(spares: int | None = None) -> Recovery:
    """Take in the processes that wait to join; all that take part call this.

    The processes that wait are the spares of ``meshard run --spares`` that have come to their own
    first call of this, or to a block of `surviving`, and those that were started by hand to join
    this job. A process that waits returns from this call when it is taken in, or ends if the job
    ends before.
    Newcomers get what they need by `restore`.

    Args:
        spares: how many spares to take in at most; by default as many as processes were lost.
            Processes that were started by hand are always taken in.

    Returns:
        Who has joined; nobody if none waits.

    Raises:
        TransportError: if others that live do not come in time, or have given up this process.
        ArgumentError: if ``spares`` is not a number of processes.

    >>> import meshard
    >>> from meshard import elastic
    >>> from meshard.testing import simulate
    >>> def program():
    ...     while meshard.process_count() < 3:
    ...         elastic.grow(spares=1)  # the spare waits here until it is taken in
    ...     return meshard.process_count()
    >>> simulate(2, 1, program, spares=1)
    [3, 3, 3]
    """
    if spares is not None:
        spares = count_of(spares, "elastic.grow", "spares")
    return _grown(here(), spares)


def _grown(world: RuntimeWorld, spares: int | None) -> Recovery:
    begun, watchdog = time.monotonic(), world.transport.watchdog
    if watchdog is None:
        return Recovery((), (), world.processes, None, None, None, 0.0)
    before, lost = world.processes, False
    if world.waits:
        before = _join(world, watchdog)
    while watchdog.may_grow() and _has_room(world, spares):
        try:
            waiting, newcomers = _waiting(world, watchdog)
        except ProcessLostError:
            change(world)
            lost = True
            continue
        joining = _chosen(world, waiting, spares)
        if not joining and not newcomers:
            break
        change(world, joining=joining, newcomers=newcomers)
        if spares is not None:
            spares = max(0, spares - len(joining))
    now, seconds = world.processes, time.monotonic() - begun
    gone = tuple([p for p in before if p not in now]) if lost else ()
    new = tuple([p for p in now if p not in before])
    return Recovery(gone, new, now, None, None, None, seconds)


def _has_room(world: RuntimeWorld, spares: int | None) -> bool:
    """Whether any process that waits would be taken in; the same on all."""
    if world.known:  # some may have been started by hand
        return True
    return spares != 0 and (spares is not None or len(world.processes) < world.wanted_count)


def _chosen(world: RuntimeWorld, waiting: set[int], spares: int | None) -> set[int]:
    """Return which of the spares that wait are taken in."""
    room = max(0, world.wanted_count - len(world.processes)) if spares is None else spares
    return set(sorted(waiting)[:room])


def _waiting(world: RuntimeWorld, watchdog: Watchdog) -> tuple[set[int], set[Facts]]:
    """Return the processes that wait, as far as any that takes part has heard of them.

    Returns:
        The spares, and facts of those that the job was not started with.
    """
    mine = watchdog.waiting(), set(watchdog.callers())
    members = world.processes
    if len(members) == 1:
        return mine
    meet(world, members, "`grow`")
    told: list[Any] = world.transport.all_gather(mine, members)
    return set().union(*[spares for spares, _ in told]), set().union(*[new for _, new in told])


def _join(world: RuntimeWorld, watchdog: Watchdog) -> tuple[int, ...]:
    """Wait until the others take this process in; return who has taken part before.

    Raises:
        SystemExit: if the job ends before.
    """
    watchdog.wait_to_join()
    while True:
        candidates = watchdog.invitation()
        if candidates is not None:
            break
        if watchdog.all_gone():
            raise SystemExit(0)
        time.sleep(_SOON)
    decision = watchdog.membership.accept(candidates, told_by(world, watchdog), watchdog.deadline)
    watchdog.works()
    try:
        take(world, watchdog, decision)
    except ProcessLostError:
        change(world)
    return tuple(sorted({p for told in decision.payloads.values() for p in told.members}))
