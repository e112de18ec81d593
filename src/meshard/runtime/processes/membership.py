"""Membership: which processes take part, decided alike by all that live.

In: letters of the side channel, and what the system says of processes. Out: a `Decision`, the same
on all processes that it names.

Each process proposes whom it can reach, and proposes again when it learns more: of processes that
have died, or that others cannot reach. When all that it would go on with propose the same, this is
decided, and it tells them; one that has been told takes the decision over, unless it has given up
the teller before. So two processes that live and are in each other's decisions have made the same
one, however many die meanwhile: a proposal only shrinks, and a process proposes nothing more once
it has decided (flooding consensus with a failure detector that accuses only the dead; Charron-Bost
and Schiper 2004). Those who come to join are invited by a proposal that contains them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

from meshard.errors import TransportError
from meshard.runtime.lines.letters import sent
from meshard.runtime.processes.divergence import numbered
from meshard.runtime.processes.identity import Facts

_SOON = 1e-3
"""Seconds between two looks at the letters."""
_CHECK = 0.02
"""Seconds between two questions to the system whether a process lives."""


@sent
@final
@dataclass(frozen=True)
class Proposal:
    """Whom a process would go on with.

    Attributes:
        number: how many decisions there will be with this one.
        index: the process that proposes.
        candidates: those who may take part.
        lost: those of them that it cannot reach.
        payload: what it tells all who take part.
        newcomers: facts of those candidates that the job was not started with.
    """

    number: int
    index: int
    candidates: frozenset[int]
    lost: frozenset[int]
    payload: Any
    newcomers: frozenset[Facts] = frozenset()

    @property
    def members(self) -> frozenset[int]:
        """Whom it would go on with."""
        return self.candidates - self.lost


@sent
@final
@dataclass(frozen=True)
class Decision:
    """Who takes part.

    Attributes:
        number: how many decisions there are with this one.
        members: the processes, ascending.
        payloads: what each of them has told.
        newcomers: facts of those that the job was not started with.
    """

    number: int
    members: tuple[int, ...]
    payloads: Mapping[int, Any]
    newcomers: frozenset[Facts] = frozenset()


class Eyes(Protocol):
    """How a process sees the others while they decide."""

    def hear(self) -> None:
        """Read the letters that have arrived."""

    def post(self, peer: int, letter: object) -> None:
        """Send a letter."""

    def admit(self, newcomers: Iterable[Facts]) -> None:
        """Reach processes that are to take part, so that letters get to them."""

    def is_gone(self, peer: int) -> bool:
        """Whether a process has died, was given up, or has ended its program."""

    def dismiss(self, peers: Iterable[int]) -> None:
        """Tell processes that live that the others go on without them."""


@final
class Membership:
    """Who takes part, as one process knows it.

    Args:
        index: this process.
        members: those who take part at first.
        eyes: how it sees the others.

    Attributes:
        number: how many decisions there have been.
        members: the processes that take part, ascending.
        waiting: processes that have come to join.
    """

    def __init__(self, index: int, members: Iterable[int], eyes: Eyes) -> None:
        self.index = index
        self.number = 0
        self.members = tuple(sorted(members))
        self.waiting: set[int] = set()
        self._eyes = eyes
        self._heard: dict[int, Proposal] = {}
        self._decided: dict[int, Decision] = {}

    def hear(self, topic: str, letter: Any) -> None:
        """Record a letter of another process."""
        if topic == "waits":
            self.waiting.add(letter)
        elif topic == "works":
            self.waiting.discard(letter)
        elif topic == "withdraws":
            index, number = letter
            if index in self._heard and self._heard[index].number == number:
                del self._heard[index]
        elif topic == "decided":
            index, decision = letter
            if decision.number > self.number:  # else it is over: all tell what all have decided
                self._decided[index] = decision
        elif letter.number > self.number:
            self._heard[letter.index] = letter

    def has_left(self, peer: int) -> bool:
        """Whether a process has left its work to decide who takes part, since one has died."""
        found = self._heard.get(peer)
        return found is not None and found.number > self.number and bool(self.accused)

    @property
    def accused(self) -> frozenset[int]:
        """The processes that others, which live, cannot reach."""
        return frozenset[int]().union(
            *[found.lost for found in self._heard.values() if found.number > self.number]
        )

    def decide(
        self,
        payload: object,
        deadline: float,
        joining: Iterable[int] = (),
        newcomers: Iterable[Facts] = (),
    ) -> Decision:
        """Decide with all who live who takes part.

        Args:
            payload: what the others get to know of this process.
            deadline: seconds that it waits for them.
            joining: processes that are to take part, too.
            newcomers: those that are to take part, and that the job was not started with.

        Raises:
            TransportError: if others have given up this process, or do not come in time.
        """
        new = frozenset(newcomers)
        candidates = frozenset({*self.members, *joining, *[f.index for f in new], self.index})
        mine = Proposal(self.number + 1, self.index, candidates, frozenset(), payload, new)
        return self._decide(mine, deadline)

    def invitation(self) -> frozenset[int] | None:
        """Return who would take part with this process, which waits; None if none has asked."""
        for found in self._heard.values():
            if self.index in found.candidates and found.number > self.number:
                self.number = found.number - 1
                return found.candidates
        return None

    def accept(self, candidates: frozenset[int], payload: object, deadline: float) -> Decision:
        """Take part from now on; see `decide`."""
        mine = Proposal(self.number + 1, self.index, candidates, frozenset(), payload)
        return self._decide(mine, deadline)

    def _decide(self, mine: Proposal, deadline: float) -> Decision:
        until, next_check = time.monotonic() + deadline, 0.0
        told: Proposal | None = None
        while True:
            self._eyes.hear()
            now = time.monotonic()
            lost = set(mine.lost)
            if now >= next_check:
                next_check = now + _CHECK
                lost |= set(filter(self._eyes.is_gone, mine.members - {self.index}))
            adopted = self._adopted(mine.number, lost)
            if adopted is not None:
                return self._take(adopted)
            mine = self._widened(mine, lost)
            if mine != told:
                self._eyes.admit(mine.newcomers)
                self._eyes.dismiss(mine.lost)
                told = mine
                self._tell(("proposes", mine), mine.members)
            agreeing = self._agreeing(mine)
            if agreeing.keys() == mine.members:
                return self._take(
                    Decision(mine.number, tuple(sorted(agreeing)), agreeing, mine.newcomers)
                )
            if now >= until:
                self._tell(("withdraws", (self.index, mine.number)), mine.members)
                raise TransportError(
                    f"Process {self.index} has waited {deadline:g} s for "
                    f"{numbered(sorted(mine.members - agreeing.keys()))} to decide who takes part. "
                    "All that live must come: each calls elastic.recover(), or is in a block of "
                    "elastic.surviving()."
                )
            time.sleep(_SOON)

    def _agreeing(self, mine: Proposal) -> dict[int, Any]:
        """Return what those tell, this process included, that propose the same."""
        found = {self.index: mine.payload}
        for peer in mine.members:
            its = self._heard.get(peer)
            if its is not None and (its.number, its.members) == (mine.number, mine.members):
                found[peer] = its.payload
        return found

    def _adopted(self, number: int, lost: Iterable[int]) -> Decision | None:
        """Return what another process has decided that this one has not given up."""
        for teller, decision in self._decided.items():
            if decision.number == number and teller not in lost and self.index in decision.members:
                return decision
        return None

    def _widened(self, mine: Proposal, lost: Iterable[int]) -> Proposal:
        """Return the proposal with what the others know, as far as they have not been given up.

        Raises:
            TransportError: if one of them has given up this process.
        """
        candidates, gone, new = set(mine.candidates), set(lost), set(mine.newcomers)
        for found in self._heard.values():
            if found.number == mine.number and found.index not in gone:
                if self.index in found.lost:
                    raise TransportError(
                        f"Process {self.index} was given up by process {found.index}, which could "
                        "not reach it: it takes part no more. A process that was stopped, or cut "
                        "off, starts anew to join again."
                    )
                candidates |= found.candidates
                gone |= found.lost
                new |= found.newcomers
        if candidates == mine.candidates and gone == mine.lost and new == mine.newcomers:
            return mine
        return replace(
            mine, candidates=frozenset(candidates), lost=frozenset(gone), newcomers=frozenset(new)
        )

    def _take(self, decision: Decision) -> Decision:
        """Make a decision this process's own, and tell the others."""
        self._eyes.admit(decision.newcomers)  # it may be another's, and they new to this one
        self.number, self.members = decision.number, decision.members
        self._tell(("decided", (self.index, decision)), decision.members)
        self.waiting -= set(decision.members)
        self._heard = {p: f for p, f in self._heard.items() if f.number > self.number}
        self._decided = {p: d for p, d in self._decided.items() if d.number > self.number}
        return decision

    def _tell(self, letter: object, peers: Iterable[int]) -> None:
        for peer in sorted(peers):
            if peer != self.index:
                self._eyes.post(peer, letter)
