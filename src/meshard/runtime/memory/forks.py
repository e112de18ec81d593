"""Forks: what is still shared between this process and the children that it has forked.

A forked child has a copy of its parent's private memory, page by page, and continues to compute.
Memory files differ: parent and child see the same pages. So a parent does not overwrite or give
away a chunk that a living child may still see. Each fork has a pipe whose writing end
only the child keeps; the parent finds it closed when the child has ended, or runs another program.
"""

from __future__ import annotations

import os
from typing import Protocol, final
from weakref import WeakSet

from meshard.errors import TransportError


class Renewed(Protocol):
    """An object with locks or threads that are useless in a forked child."""

    def renew(self) -> None:
        """Replace them, in a child that has just been forked."""


@final
class _Fork:
    """One fork, as the parent knows it.

    Attributes:
        number: how many forks there had been, this one included.
        here: the end of the pipe that the parent reads.
        there: the end that the child keeps open.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        try:
            self.here, self.there = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except (AttributeError, OSError):  # the child's end cannot be observed
            self.here = self.there = -1

    def over(self) -> bool:
        """Whether the child has ended, or runs another program."""
        try:
            return self.here >= 0 and not os.read(self.here, 1)
        except OSError:  # it would block: the child lives
            return False


_guarded: WeakSet[object] = WeakSet()
_renewed: WeakSet[Renewed] = WeakSet()
_alive: list[_Fork] = []
_begun: list[_Fork | None] = []
_forks, _depth = 0, 0


def guard(memory: object) -> None:
    """Count forks while an object lives: it is memory that children would see."""
    _guarded.add(memory)


def renew_in_children(one: Renewed) -> None:
    """Renew an object in every child that is forked while it lives."""
    _renewed.add(one)


def number_of_forks() -> int:
    """Return how many children were forked while there was memory that they would see."""
    return _forks


def depth() -> int:
    """Return how many times this program has forked on the way to this process."""
    return _depth


def refuse_in_child(born: int) -> None:
    """Refuse to communicate, in a forked child of a process that belongs to the job.

    Args:
        born: the `depth` of that process.

    Raises:
        TransportError: in a child.
    """
    if born != _depth:
        raise TransportError(
            f"This process (pid {os.getpid()}) was forked from a process of a job of several, and "
            "does not take part in that job: it cannot compute with arrays that span processes, "
            "or move them. It can use arrays that are on the parent's own devices. Fetch what else "
            "it needs before the fork (multihost_utils.process_allgather), or do the operation in "
            "the parent."
        )


def latest_alive() -> int:
    """Return the number of the last fork whose child still lives; 0 if none does."""
    for fork in list(_alive):
        if fork.over() and fork in _alive:
            _alive.remove(fork)
            os.close(fork.here)
    return max([fork.number for fork in _alive], default=0)


def _before() -> None:
    global _forks
    if _guarded:
        _forks += 1
        _begun.append(_Fork(_forks))
    else:
        _begun.append(None)


def _in_parent() -> None:
    fork = _begun.pop()
    if fork is not None:
        if fork.there >= 0:
            os.close(fork.there)
        _alive.append(fork)


def _in_child() -> None:
    """Keep the pipes of the forks that were begun, for as long as this process lives."""
    global _depth
    _depth += 1
    _begun.clear()
    for fork in _alive:
        if fork.here >= 0:
            os.close(fork.here)
    _alive.clear()
    for one in list(_renewed):
        one.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
