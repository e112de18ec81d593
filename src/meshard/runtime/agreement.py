"""Do all processes run the same operations? What each keeps of its own.

In: the operations on arrays that span processes, as tokens. Out: one running hash per set of
processes, which tags every message, and an account of the recent steps, which tells who diverged
when messages do not meet (`verdict`). What a process does with arrays of its own enters nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple, final

from meshard.algebra.sharding import Sharding
from meshard.algebra.world import config

from .callers import is_ours, line_of, stated_line
from .canonical import digest, shortened
from .forks import depth, refuse_in_child

__all__ = [
    "Account",
    "Agreement",
    "Entry",
    "Token",
    "crossed",
    "parted",
]

KEPT = 1024
"""How many recent steps a process remembers."""
_BRIEF = 32
"""How many of them it tells while nothing is known to be wrong."""
_MULTIPLIER = 0x5851F42D4C957F2D
_MASK = (1 << 64) - 1

Members = tuple[int, ...]
Key = tuple[Members, int, int]
"""A step: the set of processes, its number, and the hash of all up to it."""


@final
class Running:
    """The steps of one set of processes, as one of them counts them.

    Attributes:
        members: the processes, in ascending order.
        step: how many operations have been run.
        hash: of all of them, in order.
    """

    __slots__ = ("hash", "members", "step")

    def __init__(self, members: Members) -> None:
        self.members = members
        self.step = 0
        self.hash = digest(repr(members))


@final
class Token:
    """One kind of operation on arrays that span some processes.

    Attributes:
        running: the steps of these processes.
        number: what enters the running hash.
        text: how messages call it.
    """

    __slots__ = ("number", "running", "text")

    def __init__(self, running: Running, number: int, text: str) -> None:
        self.running = running
        self.number = number
        self.text = text


@final
@dataclass(frozen=True)
class Entry:
    """One step, as it is told to others.

    Attributes:
        members: the set of processes whose step it is.
        step: its number, from 1 on.
        hash: of all steps up to it.
        number: of the operation alone.
        text: the operation.
        line: file and line of the user's program.
    """

    members: Members
    step: int
    hash: int
    number: int
    text: str
    line: str


@final
@dataclass(frozen=True)
class Account:
    """What a process tells of itself.

    Attributes:
        index: the process.
        mode: its setting ``check``.
        entries: its recent steps, the last one last.
        before: how many steps it has run before those.
        steps: for each set of processes that it belongs to, the steps that they have run.
        waits: the processes that it waits for.
        ended: how it has ended; None while it runs.
    """

    index: int
    mode: str
    entries: tuple[Entry, ...]
    before: int
    steps: Mapping[Members, int]
    waits: tuple[int, ...]
    ended: str | None = None

    @property
    def last(self) -> Entry | None:
        """The step that it is in, or that it ran last."""
        return self.entries[-1] if self.entries else None


Remembered = tuple[Token, int, int, CodeType | str, int]


@final
class Step(NamedTuple):
    """One step, as it is remembered: what it costs least to take down.

    Attributes:
        token: the operation.
        step: its number.
        hash: of all steps up to it.
        code: the function of the user's that ran it, or file and line.
        place: where in that function.
    """

    token: Token
    step: int
    hash: int
    code: CodeType | str
    place: int

    def entry(self) -> Entry:
        """Return the step as it is told to others."""
        token, line = self.token, self.code
        if not isinstance(line, str):
            line = f"{line.co_filename}:{line_of(line, self.place)}"
        return Entry(token.running.members, self.step, self.hash, token.number, token.text, line)


@final
class Agreement:
    """What one process keeps of the operations that it runs together with others.

    Args:
        index: this process.
        count: how many processes there are.
        meet: waits until all of some processes have come; used where each step is compared.
    """

    def __init__(self, index: int, count: int, meet: Callable[[Members], None]) -> None:
        self.index = index
        self.count = count
        self._meet = meet
        self._sets: dict[Members, Running] = {}
        self._with: list[tuple[Running, ...]] = [()] * count
        self._ring: deque[Remembered] = deque(maxlen=KEPT)
        self._ours: dict[str, bool] = {}
        self._epoch = -1
        self._mode = "hash"
        self._born = depth()

    @property
    def mode(self) -> str:
        """The setting ``check``: ``"off"``, ``"hash"`` or ``"full"``."""
        if self._epoch != config.epoch:
            self._mode, self._epoch = config.check, config.epoch
        return self._mode

    def members(self, shardings: Iterable[Sharding]) -> Members | None:
        """Return the processes that shardings span; None if others have nothing to do with it."""
        found = {d.process_index for s in shardings for d in s.device_order}
        return tuple(sorted(found)) if len(found) > 1 and self.index in found else None

    def token(self, members: Iterable[int], canon: str, text: str | None = None) -> Token | None:
        """Return the token of an operation; None where nothing is to be checked.

        Args:
            members: the processes that run it.
            canon: what must be the same on all of them, to the letter.
            text: how messages call it.
        """
        ordered = tuple(sorted(set(members)))
        if self.mode == "off" or len(ordered) < 2 or self.index not in ordered:
            return None
        running = self._sets.get(ordered)
        if running is None:
            running = self._sets[ordered] = Running(ordered)
            for p in ordered:
                self._with[p] = (*self._with[p], running)
        return Token(running, digest(canon), shortened(canon if text is None else text))

    def enter(self, token: Token) -> None:
        """Note that this process runs an operation now.

        Raises:
            AgreementError: if each step is compared, and another process runs another operation.
            TransportError: in a forked child, which is not one of these processes.
        """
        refuse_in_child(self._born)
        running = token.running
        running.step = step = running.step + 1
        running.hash = found = (running.hash * _MULTIPLIER + token.number) & _MASK
        frame, ours = sys._getframe(1), self._ours
        stated = stated_line()
        while stated is None:
            known = ours.get(frame.f_code.co_filename)
            if known is None:
                known = is_ours(frame.f_globals.get("__name__", ""))
                ours[frame.f_code.co_filename] = known
            if not known or frame.f_back is None:
                break
            frame = frame.f_back
        self._ring.append((token, step, found, stated or frame.f_code, frame.f_lasti))
        if self._mode == "full":  # whoever made the token has looked at the setting
            self._meet(running.members)

    @property
    def latest(self) -> Remembered | None:
        """The step that this process is in, or ran last: what makes a `Step`."""
        return self._ring[-1] if self._ring else None

    def stamp(self, peer: int) -> int:
        """Return what tags the messages to and from a process at this place of the program."""
        shared = self._with[peer]
        if len(shared) == 1:
            return shared[0].hash if shared[0].step else 0
        return sum([r.hash for r in shared if r.step]) & _MASK

    def account(
        self, waits: Iterable[int] = (), *, whole: bool = False, ended: str | None = None
    ) -> Account:
        """Return what this process tells others of itself.

        Args:
            waits: the processes that it waits for.
            whole: whether to tell all steps that it remembers, and not only the last ones.
            ended: how its program has ended.
        """
        ring = list(self._ring)[0 if whole else -_BRIEF :]
        entries = tuple([Step(*item).entry() for item in ring])
        steps = {r.members: r.step for r in self._sets.values()}
        before = sum(steps.values()) - len(entries)
        return Account(self.index, self.mode, entries, before, steps, tuple(waits), ended)

    def differs(self, other: Account) -> bool:
        """Whether another process's steps show that it has run other operations than this one."""
        steps = {r.members: r.step for r in self._sets.values()}
        before = sum(steps.values()) - len(self._ring)
        mine = Account(self.index, self._mode, (), before, steps, ())
        if crossed(mine, other) is not None:
            return True
        # Without lines, which take long to find, for this is asked of every letter.
        ring = [(t.running.members, step, found) for t, step, found, _, _ in self._ring]
        there = [(e.members, e.step, e.hash) for e in other.entries]
        found = _parting(
            [key for key in ring if other.index in key[0]],
            [key for key in there if self.index in key[0]],
            from_start=not (before or other.before),
        )
        return found is not None


def crossed(one: Account, other: Account) -> tuple[Members, Members] | None:
    """Return two sets of processes, of which one account has run more steps of the first.

    And the other more of the second. Of two looks at one program, at whatever time and in whatever
    process, one is the earlier, so that this is never so where both run the same operations.
    """
    ahead: list[Members] = []
    behind: list[Members] = []
    for members in sorted({*one.steps, *other.steps}):
        if one.index in members and other.index in members:
            more = one.steps.get(members, 0) - other.steps.get(members, 0)
            if more:
                (ahead if more > 0 else behind).append(members)
    return (ahead[0], behind[0]) if ahead and behind else None


def parted(one: Account, other: Account) -> tuple[Entry, Entry] | None:
    """Return the first step that differs, of those that two processes should both run; else None.

    One process may be further than the other, and remember less; what both know of is in one order.
    """
    mine = [e for e in one.entries if other.index in e.members]
    theirs = [e for e in other.entries if one.index in e.members]
    found = _parting(
        [(e.members, e.step, e.hash) for e in mine],
        [(e.members, e.step, e.hash) for e in theirs],
        from_start=not (one.before or other.before),
    )
    return None if found is None else (mine[found[0]], theirs[found[1]])


def _parting(
    mine: Sequence[Key], theirs: Sequence[Key], from_start: bool
) -> tuple[int, int] | None:
    """Return where two sequences of steps differ first; None if they do not, as far as is known."""
    i, j = 0, 0
    if not from_start:
        places = {(members, step): at for at, (members, step, _) in enumerate(theirs)}
        i = next((at for at, (m, step, _) in enumerate(mine) if (m, step) in places), len(mine))
        if i < len(mine):
            j = places[mine[i][0], mine[i][1]]
    while i < len(mine) and j < len(theirs):
        if mine[i] != theirs[j]:
            return i, j
        i, j = i + 1, j + 1
    return None
