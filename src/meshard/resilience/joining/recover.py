"""Recovery: from a job that has lost processes to one of those that are left.

In: nothing but a call by all that live. Out: a world in which those take part who live, and those
who have come to join, with all in step again; and what happened.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.arguments import number_of
from meshard.errors import ProcessLostError
from meshard.plan.show.pictured import Printed
from meshard.resilience.copies.protect import held_versions, newest_common, settle
from meshard.runtime.agree import meet
from meshard.runtime.lines.letters import sent
from meshard.runtime.processes.agreement import Members
from meshard.runtime.processes.divergence import numbered
from meshard.runtime.processes.facts import Facts, united
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
