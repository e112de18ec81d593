"""Do all processes run the same operations? What each keeps of its own.

In: the operations on arrays that span processes, as tokens. Out: one running hash per set of
processes, which tags every message, and an account of the recent steps, which tells who diverged
when messages do not meet (`verdict`). What a process does with arrays of its own enters nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from types import CodeType
from typing import Any, NamedTuple, final

import numpy as np

from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding, Sharding
from meshard.algebra.world import config

from .callers import is_ours, line_of, stated_line
from .types import ArrayType, dtype_name

__all__ = [
    "Account",
    "Agreement",
    "Entry",
    "Token",
    "call_text",
    "canonical",
    "crossed",
    "described",
    "digest",
]

KEPT = 1024
"""How many recent steps a process remembers."""
_MULTIPLIER = 0x5851F42D4C957F2D
_MASK = (1 << 64) - 1
_LONGEST = 160

Members = tuple[int, ...]


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
        entries: its recent steps, the last one last; the last one only where that will do.
        steps: for each set of processes that it belongs to, the steps that they have run.
        waits: the processes that it waits for.
        ended: how it has ended; None while it runs.
    """

    index: int
    mode: str
    entries: tuple[Entry, ...]
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
        return Token(running, digest(canon), _short(canon if text is None else text))

    def enter(self, token: Token) -> None:
        """Note that this process runs an operation now.

        Raises:
            AgreementError: if each step is compared, and another process runs another operation.
        """
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
            whole: whether to tell all recent steps, and not only the last of each set.
            ended: how its program has ended.
        """
        ring = [Step(*item) for item in self._ring]
        if not whole:
            last = {item.token.running.members: item for item in ring}
            ring = [item for item in ring if last[item.token.running.members] is item]
        entries = tuple([item.entry() for item in ring])
        steps = {r.members: r.step for r in self._sets.values()}
        return Account(self.index, self.mode, entries, steps, tuple(waits), ended)

    def differs(self, other: Account) -> bool:
        """Whether another process's steps show that it has run other operations than this one."""
        if crossed(self.account(), other) is not None:
            return True
        told = {e.members: e for e in other.entries}
        for token, step, found, *_ in self._ring:
            theirs = told.get(token.running.members)
            if theirs is not None and theirs.step == step and theirs.hash != found:
                return True
        return False


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


def digest(text: str) -> int:
    """Return 64 bits of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def canonical(value: Any) -> str:
    """Return a text of a parameter that is the same in all processes that mean the same."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inner = [canonical(v) for v in value]
        return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(canonical, value)))}}}"
    if isinstance(value, Mapping):
        items = sorted(f"{canonical(k)}: {canonical(v)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
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
    if is_dataclass(value) and not isinstance(value, type):
        held = [canonical(getattr(value, f.name)) for f in fields(value)]
        return f"{type(value).__qualname__}({', '.join(held)})"
    if hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    if getattr(type(value), "__repr__", None) is object.__repr__:  # it would tell an address
        return type(value).__qualname__
    return repr(value)


def described(kind: ArrayType, *, exact: bool = False) -> str:
    """Return dtype, shape and sharding of an array; exactly, or as messages say it."""
    told = kind.str_short()
    if kind.guest:  # every process has one of its own
        return told
    return f"{told} {_lies(kind.sharding, exact=False)}" + (_layout(kind.layout) if exact else "")


def _lies(sharding: Sharding, *, exact: bool) -> str:
    """Return how a sharding is called."""
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


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def call_text(name: str, params: Sequence[tuple[str, Any]]) -> str:
    """Return how messages call an operation: its name, and the parameters that it has."""
    told = ", ".join([f"{n}={canonical(v)}" for n, v in params if v is not None])
    if len(told) > _LONGEST // 2:
        told = f"{told[: _LONGEST // 2 - 4]} ..."
    return f"`{name}`" + (f" ({told})" if told else "")
