"""Whether all processes run the same operations: the record that each keeps.

In: the operations on arrays that span processes, as tokens. Out: one running hash per set of
processes, which stamps every message, and an account of the recent steps, which shows who diverged
when messages do not match (`divergence`). What a process does with its own arrays is not recorded.

A stamp also says to which step of its set a message belongs, so that a process can distinguish a
message of a step that it has left, which is dropped, from one of a step that it has yet to reach.
Where the processes of a set have diverged, they begin a new epoch of it, with a hash of its own.

Texts of operations: an exact one, equal in all processes that mean the same, and a readable one.

In: names, parameters, types of arrays. Out: texts, and 64 bits of one. Python's own hashes and
addresses differ between processes, and are not used.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from types import CodeType
from typing import Any, NamedTuple, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.runtime.callers import is_ours, line_of, place_text, stated_line
from meshard.runtime.lines.letters import sent
from meshard.runtime.memory.forks import depth, refuse_in_child
from meshard.runtime.settings import CHECK
from meshard.runtime.types import ArrayType, Clock, dtype_name

_LONGEST = 160


def digest(text: str) -> int:
    """Return 64 bits of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def canonical(value: Any) -> str:
    """Return a text of a parameter that is the same in all processes that mean the same."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, list, set, frozenset, Mapping)):
        return _container(value)
    if isinstance(value, slice):
        return f"slice{canonical((value.start, value.stop, value.step))}"
    if isinstance(value, np.dtype):
        return dtype_name(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, np.ndarray):
        bits = np.ascontiguousarray(value).tobytes()
        return f"{dtype_name(value.dtype)}{list(value.shape)}#{digest(bits.hex()):x}"
    if isinstance(value, ArrayType):
        return described(value, exact=True)
    if isinstance(value, Sharding):
        return _lies(value, exact=True)
    if isinstance(value, Layout):
        return _layout(value)
    return _by_fields_or_name(value)


def _by_fields_or_name(value: Any) -> str:
    """Return the text of a value of an unknown class, which never contains its address."""
    if is_dataclass(value) and not isinstance(value, type):
        held = [canonical(getattr(value, f.name)) for f in fields(value)]
        return f"{type(value).__qualname__}({', '.join(held)})"
    if hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    if getattr(type(value), "__repr__", None) is object.__repr__:  # it would contain an address
        return type(value).__qualname__
    return repr(value)


def _container(value: Collection[Any]) -> str:
    """Return the text of a container; an unordered one is sorted by the texts of its items."""
    if isinstance(value, Mapping):
        items = sorted(f"{canonical(k)}: {canonical(v)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    inner = [canonical(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(inner))}}}"
    return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"


def described(type_: ArrayType, *, exact: bool = False) -> str:
    """Return dtype, shape and sharding of an array, in the exact or the readable form."""
    told = type_.str_short()
    if type_.unplaced:  # every process has its own
        return told
    return f"{told} {_lies(type_.sharding, exact=False)}" + (_layout(type_.layout) if exact else "")


def laid_out(
    shape: tuple[int, ...], dtype: np.dtype[Any] | None, sharding: Sharding, *, exact: bool
) -> str:
    """Return what is known about an array before it is made; None for an unknown dtype."""
    sizes = ",".join(map(str, shape))
    told = f"{'' if dtype is None else dtype_name(dtype)}[{sizes}] {_lies(sharding, exact=exact)}"
    return told + (_layout(sharding.layout(shape)) if exact else "")


def _lies(sharding: Sharding, *, exact: bool) -> str:
    """Return the text of a sharding."""
    ids = [d.id for d in sharding.device_order]
    if not isinstance(sharding, NamedSharding):
        return f"on devices {ids}" if exact or len(ids) <= 8 else f"on {len(ids)} devices"
    if not exact:
        return repr(sharding.spec)
    mesh = sharding.mesh
    return f"{sharding.spec!r} uneven={sharding.uneven!r} on {dict(mesh.shape)} {ids}"


def _layout(layout: Layout) -> str:
    holders = [layout.holders(i) for i in range(layout.piece_count)]
    boxes = None if layout.regular else [b.slices for b in layout.boxes]
    return f" {layout.cuts} {holders} {boxes}"


def shortened(text: str) -> str:
    """Return a text that is short enough for a message."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def call_text(name: str, params: Sequence[tuple[str, Any]]) -> str:
    """Return the name of an operation in messages, with its parameters."""
    told = ", ".join([f"{n}={canonical(v)}" for n, v in params if v is not None])
    if len(told) > _LONGEST // 2:
        told = f"{told[: _LONGEST // 2 - 4]} ..."
    return f"`{name}`" + (f" ({told})" if told else "")


KEPT = 1024
"""How many recent steps a process remembers."""
_BRIEF = 32
"""How many of them it tells while nothing is known to be wrong."""
# An odd factor that spreads bits (Knuth's, of his 64-bit generator): multiplying by it loses
# nothing, so that two hashes that have become different stay so while the same operations follow.
_MULTIPLIER = 0x5851F42D4C957F2D
_MASK = (1 << 64) - 1

Members = tuple[int, ...]
Key = tuple[Members, int, int]
"""A step: the set of processes, its number, and the hash of all up to it."""
Stamp = tuple[int, int, int]
"""What marks a message: the set of processes, the number of its step, and the hash up to it."""
NOWHERE: Stamp = (0, 0, 0)
"""The stamp of what is sent before any step."""
# Step 3 of epoch 2 is 2 << 40 | 3. So every step of a later epoch is ahead of all steps of an
# earlier one, and functions that compare steps (`arrival`, `is_within`) need not know of epochs. A
# million operations a second fill 40 bits in twelve days; no job is known to run that many.
_EPOCH = 40
"""Bits of a step's number below its epoch."""


class Arrival(Enum):
    """Where a message belongs, as seen by the process that received it."""

    NOW = "the step that this process is in"
    OVER = "a step that it has left"
    AHEAD = "a step that it has not reached"
    APART = "a step that it ran differently"


@final
class RunningSteps:
    """The steps of one set of processes, as one of them counts them.

    Attributes:
        members: the processes, in ascending order.
        key: their key in stamps.
        step: the number of the last operation that was run, the epoch in its upper bits.
        hash: of all operations of this epoch, in order.
        turn: when it was run, counted over all sets; 0 before the first.
    """

    __slots__ = ("hash", "key", "members", "step", "turn")

    def __init__(self, members: Members) -> None:
        self.members = members
        self.key = self.hash = digest(repr(members))
        self.step = self.turn = 0

    @property
    def epoch(self) -> int:
        """How often these processes have diverged and started again."""
        return self.step >> _EPOCH

    def begin(self, epoch: int) -> None:
        """Begin a later epoch."""
        self.step = epoch << _EPOCH
        self.hash = digest(f"{self.members!r} {epoch}")


@final
class Token:
    """One kind of operation on arrays that span some processes.

    Attributes:
        running: the steps of these processes.
        number: the number that enters the running hash.
        text: its name in messages.
    """

    __slots__ = ("number", "running", "text")

    def __init__(self, running: RunningSteps, number: int, text: str) -> None:
        self.running = running
        self.number = number
        self.text = text


@sent
@final
@dataclass(frozen=True)
class StepReport:
    """One step, as it is reported to others.

    Attributes:
        members: the set of processes whose step it is.
        step: its number, the epoch in its upper bits.
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


@sent
@final
@dataclass(frozen=True)
class Account:
    """What a process reports about itself.

    Attributes:
        index: the process.
        mode: its setting ``check``.
        entries: its recent steps, the last one last.
        before: how many steps it has run before those.
        steps: for each set of processes that it belongs to, the number of their last step.
        waits: the processes that it waits for.
        ended: how it has ended; None while it runs.
    """

    index: int
    mode: str
    entries: tuple[StepReport, ...]
    before: int
    steps: Mapping[Members, int]
    waits: tuple[int, ...]
    ended: str | None = None

    @property
    def last(self) -> StepReport | None:
        """The step that the process is in, or that it ran last."""
        return self.entries[-1] if self.entries else None


Remembered = tuple[Token, int, int, CodeType | str, int]


@final
class RememberedStep(NamedTuple):
    """One step, as it is remembered, in the form that is cheapest to record.

    Attributes:
        token: the operation.
        step: its number.
        hash: of all steps up to it.
        code: the user's function that ran it, or file and line.
        place: where in that function.
    """

    token: Token
    step: int
    hash: int
    code: CodeType | str
    place: int

    def report(self) -> StepReport:
        """Return the step as it is reported to others."""
        token, line = self.token, self.code
        if not isinstance(line, str):
            line = place_text(line.co_filename, line_of(line, self.place))
        return StepReport(
            token.running.members, self.step, self.hash, token.number, token.text, line
        )


@final
class Agreement:
    """The record that one process keeps of the operations that it runs together with others.

    Args:
        index: this process.
        count: how many processes there are.
        meet: waits until all of some processes have arrived; used if each step is compared.
    """

    def __init__(self, index: int, count: int, meet: Callable[[Members], None]) -> None:
        self.index = index
        self.count = count
        self._meet = meet
        self._sets: dict[Members, RunningSteps] = {}
        self._keys: dict[int, RunningSteps] = {}
        self.clock = Clock()
        self._with: dict[int, tuple[RunningSteps, ...]] = {}
        self._first = 0
        self._ring: deque[Remembered] = deque(maxlen=KEPT)
        self._ours: dict[str, bool] = {}
        self._born = depth()

    @property
    def mode(self) -> str:
        """The setting ``check``: ``"off"``, ``"hash"`` or ``"full"``."""
        return CHECK.value

    def members(self, shardings: Iterable[Sharding]) -> Members | None:
        """Return the processes that shardings span; None if no other process is involved."""
        found = {d.process_index for s in shardings for d in s.device_order}
        return tuple(sorted(found)) if len(found) > 1 and self.index in found else None

    def token(self, members: Iterable[int], canon: str, text: str | None = None) -> Token | None:
        """Return the token of an operation; None if nothing is to be checked.

        Args:
            members: the processes that run it.
            canon: a text that must be exactly the same on all of them.
            text: its name in messages.
        """
        ordered = tuple(sorted(set(members)))
        if self.mode == "off" or len(ordered) < 2 or self.index not in ordered:
            return None
        number = digest(canon)
        return Token(self._running(ordered), number, shortened(canon if text is None else text))

    def _running(self, members: Members) -> RunningSteps:
        """Return the steps of a set of processes that this one belongs to."""
        running = self._sets.get(members)
        if running is None:
            running = self._sets[members] = RunningSteps(members)
            self._keys[running.key] = running
            if self._first:
                running.begin(self._first)
            for p in members:
                self._with[p] = (*self._with.get(p, ()), running)
        return running

    def enter(self, token: Token) -> None:
        """Record that this process runs an operation now.

        Raises:
            AgreementError: if each step is compared, and another process runs another operation.
            TransportError: in a forked child, which does not belong to the job.
        """
        refuse_in_child(self._born)
        running = token.running
        running.step = step = running.step + 1
        clock = self.clock
        running.turn = clock.turn = clock.turn + 1
        running.hash = found = (running.hash * _MULTIPLIER + token.number) & _MASK
        # The user's line is the first frame outside of this package; which files are ours is asked
        # once. The frame's code and place are kept instead of a line, which takes long to find.
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
        if CHECK.value == "full":
            self._meet(running.members)

    @property
    def latest(self) -> Remembered | None:
        """The step that this process is in, or ran last: what makes a `RememberedStep`."""
        return self._ring[-1] if self._ring else None

    def stamp(self, peer: int) -> Stamp:
        """Return the stamp of messages to and from a process at this place in the program.

        It is the last step of those that both of them run.
        """
        shared = self._with.get(peer)
        if not shared:
            return NOWHERE
        last = shared[0] if len(shared) == 1 else max(shared, key=_turn)
        return (last.key, last.step, last.hash) if last.turn else NOWHERE

    def arrival(self, peer: int, stamp: Stamp) -> Arrival:
        """Return where a message of another process belongs."""
        now = self.stamp(peer)
        if stamp == now:
            return Arrival.NOW
        # An unknown set, or one whose first step is still to come, is ahead like a later step. The
        # same step with another hash is the proof that the two have diverged.
        key, step, found = stamp
        if step >> _EPOCH < self._first:
            return Arrival.OVER
        running = self._keys.get(key)
        if running is None or step > running.step or not running.turn:
            return Arrival.AHEAD
        return Arrival.APART if step == running.step and found != running.hash else Arrival.OVER

    def is_within(self, steps: Mapping[Members, int], stamp: Stamp) -> bool:
        """Whether a message belongs to one of some steps, or to an earlier one."""
        running = self._keys.get(stamp[0])
        return running is not None and stamp[1] <= steps.get(running.members, -1)

    def apart(self, stamp: Stamp) -> dict[Members, int]:
        """Return the set of a stamp, and the epoch that it begins if its processes diverged."""
        running = self._keys[stamp[0]]
        return {running.members: running.epoch + 1}

    def is_news(self, epochs: Mapping[Members, int]) -> bool:
        """Whether some of these epochs have yet to be begun by this process."""
        return any(
            self.index in members and self._running(members).epoch < epoch
            for members, epoch in epochs.items()
        )

    def begin(self, epochs: Mapping[Members, int]) -> None:
        """Begin new epochs: earlier steps of these sets of processes are no longer compared."""
        for members, epoch in epochs.items():
            if self.index not in members:
                continue
            running = self._running(members)
            if running.epoch < epoch:
                running.begin(epoch)
                # Steps of other sets stay, since those have not diverged.
                kept = [item for item in self._ring if item[0].running is not running]
                self._ring = deque(kept, maxlen=KEPT)

    def unfinished(self, left: Mapping[Members, int]) -> dict[Members, int]:
        """Return the first step of each set of processes that this one has not come through.

        Args:
            left: the steps that it has left early.
        """
        return {m: left.get(m, r.step + 1) for m, r in self._sets.items()}

    @property
    def first_step(self) -> int:
        """The number of the first step of a set of processes that is met now."""
        return (self._first << _EPOCH) + 1

    def turn_of(self, steps: Mapping[Members, int]) -> int:
        """Return when this process entered the first of some steps, or one behind it, of any set.

        It is a turn that is still to come if it has entered none.
        """
        found = self.clock.turn + 1
        for at, (token, step, *_) in enumerate(reversed(self._ring)):
            members = token.running.members
            if step >= steps.get(members, step + 1):
                found = self.clock.turn - at
        return found

    @property
    def epoch(self) -> int:
        """The latest epoch that any set of processes has begun."""
        return max([self._first, *[r.epoch for r in self._sets.values()]])

    def renew(self, epoch: int, gone: Collection[int] = ()) -> None:
        """Begin an epoch of all sets of processes, also of those that have yet to be met.

        All messages of earlier epochs are over: the processes that take part have changed.

        Args:
            epoch: the epoch.
            gone: processes whose sets meet no more.
        """
        self._first = epoch
        over = [r for r in self._sets.values() if not set(gone).isdisjoint(r.members)]
        for running in over:
            del self._sets[running.members], self._keys[running.key]
            for p in running.members:
                self._with[p] = tuple([r for r in self._with[p] if r is not running])
        for running in self._sets.values():
            running.begin(epoch)
            running.turn = 0
        self._ring.clear()

    def account(
        self, waits: Iterable[int] = (), *, whole: bool = False, ended: str | None = None
    ) -> Account:
        """Return what this process reports to others about itself.

        Args:
            waits: the processes that it waits for.
            whole: whether to report all steps that it remembers, and not only the last ones.
            ended: how its program has ended.
        """
        ring = list(self._ring)[0 if whole else -_BRIEF :]
        entries = tuple([RememberedStep(*item).report() for item in ring])
        steps = {r.members: r.step for r in self._sets.values()}
        before = self._count() - len(entries)
        return Account(self.index, self.mode, entries, before, steps, tuple(waits), ended)

    def _count(self) -> int:
        """Return how many steps were run in the present epochs."""
        return sum(counted(r.step) for r in self._sets.values())

    def contradictions(self, other: Account) -> dict[Members, int]:
        """Return the sets of processes in which another process has run different operations.

        Returns:
            The sets, and for each the epoch that it is to begin; empty if nothing shows that they
            have diverged.
        """
        steps = {r.members: r.step for r in self._sets.values()}
        mine = Account(self.index, CHECK.value, (), self._count() - len(self._ring), steps, ())
        # Without lines, which take long to find: this is called for every letter.
        ring = [(t.running.members, step, found) for t, step, found, _, _ in self._ring]
        there = [(e.members, e.step, e.hash) for e in other.entries]
        return {m: (steps.get(m, 0) >> _EPOCH) + 1 for m in _contradicted(mine, ring, other, there)}


def _turn(running: RunningSteps) -> int:
    return running.turn


def counted(step: int) -> int:
    """Return the number of a step within its epoch."""
    return step & ((1 << _EPOCH) - 1)


def crossed(one: Account, other: Account) -> tuple[Members, Members] | None:
    """Return two sets of processes: one account is ahead in the first, the other in the second.

    Of two processes that run the same program, one is at a later place, and behind in no set. So
    there are no such sets while both run the same operations.
    """
    ahead, behind = _ahead(one, other)
    return (ahead[0], behind[0]) if ahead and behind else None


def _ahead(one: Account, other: Account) -> tuple[list[Members], list[Members]]:
    """Return the sets in which one account is ahead, and those in which the other is."""
    ahead: list[Members] = []
    behind: list[Members] = []
    for members in sorted({*one.steps, *other.steps}):
        if one.index in members and other.index in members:
            mine, theirs = one.steps.get(members, 0), other.steps.get(members, 0)
            if mine != theirs and mine >> _EPOCH == theirs >> _EPOCH:
                (ahead if mine > theirs else behind).append(members)
    return ahead, behind


def _contradicted(
    one: Account, mine: Sequence[Key], other: Account, theirs: Sequence[Key]
) -> set[Members]:
    """Return the sets of processes about which two accounts contradict each other.

    Args:
        one: an account, without its entries.
        mine: its entries.
        other: another.
        theirs: its entries.
    """
    # Two kinds of proof: each is ahead of the other in some set, or hashes of one step differ.
    ahead, behind = _ahead(one, other)
    found = {*ahead, *behind} if ahead and behind else set()
    shared = _comparable(one, other)
    mine = [key for key in mine if key[0] in shared]
    theirs = [key for key in theirs if key[0] in shared]
    at = _parting(mine, theirs, from_start=not (one.before or other.before))
    if at is not None:
        # All steps since they parted are in doubt, unless both have the same hash now.
        last_mine, last_theirs = ({m: (s, h) for m, s, h in keys} for keys in (mine, theirs))
        for members, _, _ in (*mine[at[0] :], *theirs[at[1] :]):
            if last_mine.get(members) != last_theirs.get(members):
                found.add(members)
    return found


def _comparable(one: Account, other: Account) -> set[Members]:
    """Return the sets that both processes belong to and know in the same epoch."""
    return {
        m
        for m in (*one.steps, *other.steps)
        if one.index in m
        and other.index in m
        and one.steps.get(m, 0) >> _EPOCH == other.steps.get(m, 0) >> _EPOCH
    }


def parted(one: Account, other: Account) -> tuple[StepReport, StepReport] | None:
    """Return the first step that differs between two processes that should both run it, or None.

    One process may be ahead of the other and remember less; the steps known to both are in one
    order.
    """
    shared = _comparable(one, other)
    mine = [e for e in one.entries if e.members in shared]
    theirs = [e for e in other.entries if e.members in shared]
    found = _parting(
        [(e.members, e.step, e.hash) for e in mine],
        [(e.members, e.step, e.hash) for e in theirs],
        from_start=not (one.before or other.before),
    )
    return None if found is None else (mine[found[0]], theirs[found[1]])


def _parting(
    mine: Sequence[Key], theirs: Sequence[Key], from_start: bool
) -> tuple[int, int] | None:
    """Return where two sequences of steps first differ; None if they are not known to."""
    # Both have forgotten their oldest steps, but not equally many: begin at the oldest that both
    # remember. From there on each runs the shared sets' steps in the same order, or they have
    # diverged.
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
