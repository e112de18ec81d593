"""Blocks of work that a death interrupts, but does not end; and growing.

In: processes that die, and processes that wait to join. Out: a block that says whether it was
interrupted, and whether others take part than in the last one that ended well.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, final

from meshard.algebra.arguments import count_of, flag_of
from meshard.errors import ProcessLostError
from meshard.resilience.joining.recover import Recovery, change, take, told_by
from meshard.runtime.agree import meet
from meshard.runtime.processes.facts import Facts
from meshard.runtime.processes.watchdog import Watchdog
from meshard.runtime.world import RuntimeWorld, here

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
