"""Serving: a thread that gives the boxes of published versions to whoever asks.

In: versions, put by the program. Out: their elements, over lines, or written straight into the
memory of takers on this host. The thread sends no messages of the job that it serves, so the
program goes on in the meantime; a version is kept as long as somebody takes it.

Changes: the elements of a slab that differ from the version before, and where they are.

In: a slab of two versions. Out: codes and values, smaller than the slab if few elements changed. A
code is a byte: how far it is from one changed element to the next; 255 means 255 further and no
element there. So a change costs little more than a byte and its value.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from meshard.errors import MeshardError, TransportError
from meshard.resilience.feeding.offer import Offer, Wish
from meshard.resilience.feeding.regions import (
    FeedPlan,
    Slab,
    as_bytes,
    checksum,
    gathered,
    in_buckets,
    written,
)
from meshard.resilience.feeding.stage import Door, Opened
from meshard.runtime.lines.connecting import Address, Listener
from meshard.runtime.lines.letters import decode, encode, sent
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.types import Block
from meshard.weights.transfer.exchange import Held, Part

_FAR = 255
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(block: Block) -> npt.NDArray[Any]:
    """Return a C-contiguous block as a flat one whose elements are equal if their bits are."""
    flat = block.reshape(-1)
    size = block.dtype.itemsize
    if size in _UNSIGNED:
        return flat.view(_UNSIGNED[size])
    return flat.view(np.uint8).reshape(len(flat), size)


def changed(old: Block, new: Block) -> npt.NDArray[np.int64]:
    """Return the positions, in C order, of the elements whose bits differ."""
    differ = _bits(old) != _bits(new)
    if differ.ndim > 1:
        differ = differ.any(axis=1)
    return np.flatnonzero(differ)


def encoded(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the codes of ascending positions.

    >>> encoded(np.array([3, 4, 600])).tolist()
    [3, 1, 255, 255, 86]
    """
    gaps = np.diff(positions, prepend=0)
    jumps = gaps // _FAR
    ends = np.cumsum(jumps + 1)
    codes = np.full(int(ends[-1]) if len(ends) else 0, _FAR, np.uint8)
    codes[ends - 1] = gaps % _FAR
    return codes


def decoded(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the positions of codes.

    >>> decoded(np.array([3, 1, 255, 255, 86], np.uint8)).tolist()
    [3, 4, 600]
    """
    found: npt.NDArray[np.int64] = np.cumsum(codes, dtype=np.int64)[codes != _FAR]
    return found


def applied(place: Block, positions: npt.NDArray[np.int64], values: Block) -> None:
    """Put values to positions, in C order, of a block that may be strided."""
    if place.flags.c_contiguous:
        flat = place.reshape(-1)
        flat[positions] = values
    else:
        place[np.unravel_index(positions, place.shape)] = values


MOST_BYTES = 64 << 20
"""Bytes on their way from one process, if the caller sets no limit."""
_IDLE_SECONDS = 0.5
_TRIES = 16
"""Slabs of which none had few changes, after which no more of a pull are compared."""
_MOST_OPENED = 3

Members = Mapping[int, tuple[Address, ...]]
"""Where each process of a job listens."""
Named = tuple[str, int]
"""Which publisher's version it is, and its number."""
NOTHING: Named = ("", 0)


@final
@dataclass(frozen=True)
class Version:
    """A version of a tree, as one process holds it.

    Attributes:
        number: its number.
        offer: what it has, and where.
        origin: which publisher's version it is; numbers of another one mean nothing here.
        structure: the tree as JSON, with its numbers and strings.
        sources: the elements that this process holds.
        members: where each process of the job listens.
        since: when it was published, in seconds since the epoch.
    """

    number: int
    origin: str
    offer: Offer
    structure: Any
    sources: Mapping[str, Held] = field(repr=False)
    members: Members
    since: float

    def part(self, slab: Slab) -> Part:
        """Return the part of a source that a slab is in."""
        return self.sources[slab.region.term.source].disjoint[slab.region.part]


@sent
@final
@dataclass(frozen=True)
class News:
    """What a process says of the newest version.

    Attributes:
        number: its number.
        origin: which publisher's version it is.
        digest: the hash of the offer.
        offer: the offer; None if the asker knows it.
        structure: the tree as JSON.
        members: where each process of the job listens.
        since: when it was published, in seconds since the epoch.
    """

    number: int
    origin: str
    digest: str
    offer: Offer | None = field(repr=False)
    structure: Any = field(repr=False)
    members: Members
    since: float

    @property
    def named(self) -> Named:
        """What tells the version from others."""
        return self.origin, self.number


@sent
@final
@dataclass(frozen=True)
class Ask:
    """What a taker asks for when it begins to take a version.

    Attributes:
        version: its number.
        plan: the hash of the taker's plan.
        base: the version that the taker has; None if changes are not wanted.
        bucket: the most bytes on their way at once.
        door: the memory in which the taker assembles the version; None for lines only.
        places: where each piece begins in it, and its dtype's name, by result and number.
        always: whether changes are sent wherever they are smaller, however often they were not.
    """

    version: int
    plan: str
    base: int | None
    bucket: int
    door: Door | None
    places: Mapping[tuple[str, int], int]
    always: bool


@final
class Server:
    """Gives versions to takers.

    Args:
        token: the secret that takers know.
        process: the number of this process in its job.
        max_bytes: the most bytes on their way from this process at once.
        compares: whether changes are given, to takers that have the version before.

    Attributes:
        addresses: where it listens.
        told: what it is, in words, for takers.
        readers: the jobs that take, with the version that each has said it serves.
        reached: the same, of those too that are no longer connected.
        given: bytes that were given so far, over lines and through memory.
    """

    def __init__(self, token: bytes, process: int, max_bytes: int, *, compares: bool) -> None:
        self.process = process
        self.compares = compares
        self.max_bytes = max_bytes
        self.told = f"process {process}"
        self.readers: dict[int, tuple[str, int]] = {}
        self.reached: dict[str, int] = {}
        self.given = 0
        self.versions: dict[int, Version] = {}
        self._promises: dict[int, int] = {}
        self._lock = threading.Lock()
        self.closing = False
        self._listener = Listener(token)
        self.addresses = self._listener.addresses
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        self._sessions: list[_Session] = []
        self._thread = threading.Thread(target=self._run, name="meshard-feeding", daemon=True)
        self._thread.start()

    @property
    def newest(self) -> Version | None:
        """The newest version."""
        versions = self.versions
        return versions[max(versions)] if versions else None

    @property
    def pulls(self) -> int:
        """How many takers are taking something now."""
        return sum([session.is_busy for session in list(self._sessions)])

    def put(self, version: Version) -> None:
        """Serve a version from now on, besides those before it."""
        with self._lock:
            self.versions = {**self.versions, version.number: version}
        self._alert()

    def promised(self) -> set[int]:
        """Return the versions that takers were told of and have not taken yet."""
        with self._lock:
            return set(self._promises.values())

    def promise(self, taker: int) -> Version | None:
        """Return the newest version, which is kept for a taker until it asks again."""
        with self._lock:
            newest = self.newest
            if newest is not None:
                self._promises[taker] = newest.number
            return newest

    def release(self, taker: int) -> None:
        """Keep nothing for a taker any more."""
        with self._lock:
            self._promises.pop(taker, None)

    def keep(self, newest: int, promised: set[int]) -> None:
        """Let all versions go but some of the newest, and those that takers were told of."""
        with self._lock:
            kept = {*sorted(self.versions)[-newest:], *promised}
            self.versions = {n: v for n, v in self.versions.items() if n in kept}

    def _alert(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._woken, b"!")

    def close(self) -> None:
        """Tell takers that nothing more comes, and end the thread."""
        if not self.closing:
            self.closing = True
            self._alert()
            if threading.current_thread() is not self._thread:
                self._thread.join(5.0)

    def _run(self) -> None:
        try:
            while not self.closing:
                self._turn()
        finally:
            for session in self._sessions:
                session.end()
            self._listener.close()
            os.close(self._wake)
            os.close(self._woken)

    def _turn(self) -> None:
        """Let each session go on; wait if none can."""
        line = self._listener.accept()
        if line is not None:
            self._sessions.append(_Session(self, line))
        went_on = [session.go_on() for session in list(self._sessions)]
        for session in [s for s in self._sessions if s.line.closed]:
            self._sessions.remove(session)
            self.readers.pop(id(session), None)
            self.release(id(session))
        if any(went_on) or line is not None:
            return
        lines = [session.line for session in self._sessions]
        seconds = min([_IDLE_SECONDS, *[s.until - time.monotonic() for s in self._sessions]])
        wait(lines, seconds, [*self._listener.files, self._wake])
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 1 << 10)


@final
class _Session:
    """One taker, which asks for one thing after the other.

    Attributes:
        line: the line to it.
        until: when it has to be answered, even if nothing happens.
    """

    def __init__(self, server: Server, line: Line) -> None:
        self.line = line
        self.until = math.inf
        self._server = server
        self._work: Iterator[bool] | None = None
        self._plans: dict[str, tuple[FeedPlan, list[Slab], Wish]] = {}
        self._opened: dict[Door, Opened] = {}
        self._answers: dict[str, Callable[[dict[str, Any]], Iterator[bool]]] = {
            "newer": self._newer,
            "plan": self._plan,
            "pull": self._pull,
            "have": self._have,
        }

    @property
    def is_busy(self) -> bool:
        """Whether it is giving something."""
        return self._work is not None

    def go_on(self) -> bool:
        """Do a little, if something can be done. Return whether that was so."""
        line = self.line
        if line.is_sending and not line.push():
            line.look()
            return False
        if self._work is None:
            asked = line.poll()
            if asked is None:
                return False
            self._work = self._answer(asked)
        elif not line.look():
            self._work = None
            return False
        try:
            return next(self._work)
        except StopIteration:
            self._work = None
        except Exception as error:
            self._work = None
            if not line.closed:
                kind = type(error) if isinstance(error, MeshardError) else TransportError
                why = str(error) if isinstance(error, MeshardError) else repr(error)
                self._say("refused", why=why, error=kind)
        return True

    def _answer(self, asked: bytes) -> Iterator[bool]:
        """Yield while what a taker has asked for is being answered."""
        kind, given = decode(asked)
        yield from self._answers[kind](given)

    def end(self) -> None:
        """Tell the taker that nothing more comes."""
        if not self.line.closed and not self.line.is_sending:
            self._say("closed")
        self.line.close()

    def _say(self, kind: str, blocks: Sequence[memoryview] = (), **given: Any) -> None:
        self.line.send(encode((kind, given)), blocks)

    def _tell(self, given: dict[str, Any]) -> Iterator[bool]:
        """Say what is published."""
        newest = self._server.promise(id(self))
        told = None
        if newest is not None:
            known = given.get("offer") == newest.offer.digest
            told = News(
                newest.number,
                newest.origin,
                newest.offer.digest,
                None if known else newest.offer,
                newest.structure,
                newest.members,
                newest.since,
            )
        self._say("told", news=told)
        yield True

    def _newer(self, given: dict[str, Any]) -> Iterator[bool]:
        """Say when there is a version newer than one, or that none has come in time."""
        self._server.release(id(self))
        self.until = time.monotonic() + given["seconds"]
        while time.monotonic() < self.until:
            newest = self._server.newest
            if newest is not None and (newest.origin, newest.number) != given["than"]:
                break
            yield False
        self.until = math.inf
        yield from self._tell(given)

    def _have(self, given: dict[str, Any]) -> Iterator[bool]:
        """Note the version that a taker serves."""
        self._server.release(id(self))
        self._server.readers[id(self)] = given["told"], given["version"]
        self._server.reached[given["told"]] = given["version"]
        yield True

    def _plan(self, given: dict[str, Any]) -> Iterator[bool]:
        """Derive what this process gives to a taker, and say its hash."""
        wish, taker, offer = given["wish"], given["taker"], given["offer"]
        yield from self._until(given["version"])
        versions = self._server.versions.values()
        found = next((v.offer for v in versions if v.offer.digest == offer), None)
        if found is None:
            self._say("gone")
        else:
            plan = FeedPlan(found, wish, taker, wish.recipes(found, "elastic.publish"))
            self._plans[plan.digest] = plan, list(plan.slabs(self._server.process)), wish
            self._say("planned", plan=plan.digest)
        yield True

    def _until(self, version: int) -> Iterator[bool]:
        """Wait for a version: another process of the job may have it already."""
        while not any(number >= version for number in self._server.versions):
            yield False

    def _pull(self, given: dict[str, Any]) -> Iterator[bool]:
        """Give what this process has of a version."""
        ask: Ask = given["ask"]
        server = self._server
        yield from self._until(ask.version)
        version = server.versions.get(ask.version)
        if version is None or ask.plan not in self._plans:
            self._say("gone")
            return
        _, slabs, wish = self._plans[ask.plan]
        base = None if ask.base is None else server.versions.get(ask.base)
        if base is not None and base.offer.digest != version.offer.digest:
            base = None
        base = base if server.compares else None
        into = self._into(ask, wish)
        self._say("begun", memory=into is not None)
        giving = _Giving(version, base, ask.always)
        most = min(ask.bucket, max(wish.slab, server.max_bytes // max(1, server.pulls)))
        for bucket in in_buckets(iter(slabs), most):
            while self.line.is_sending:
                yield False
            if into is not None:
                sums = [giving.put(slab, into(slab)) for slab in bucket]
                self._say("put", sums=sums)
                server.given += sum([slab.nbytes for slab in bucket])
            else:
                payload: list[memoryview] = []
                notes = [giving.pack(slab, payload) for slab in bucket]
                self._say("slabs", payload, notes=notes)
                server.given += sum([piece.nbytes for piece in payload])
            yield True
        self._say("done")

    def _into(self, ask: Ask, wish: Wish) -> Callable[[Slab], tuple[Block, Any]] | None:
        """Return what finds the place of a slab in the taker's memory; None if out of reach."""
        if ask.door is None:
            return None
        opened = self._opened.get(ask.door)
        if opened is None:
            try:
                opened = Opened(ask.door)
            except OSError:
                return None
            self._opened[ask.door] = opened
            for door in list(self._opened)[:-_MOST_OPENED]:
                del self._opened[door]
        boxes = {(name, number): box for name, own in wish.pieces.items() for number, box, _ in own}
        blocks: dict[tuple[str, int], Block] = {}

        def into(slab: Slab) -> tuple[Block, Any]:
            key = slab.region.result, slab.region.piece
            if key not in blocks:
                dtype = slab.region.dtypes[1]
                blocks[key] = opened.block(ask.places[key], boxes[key].shape, dtype)
            return blocks[key], boxes[key]

        return into


@final
class _Giving:
    """How the slabs of a version are given to one taker.

    Args:
        version: what is given.
        base: the version that the taker has, if its changes may be given instead.
        always: whether slabs are compared however often that was in vain.
    """

    def __init__(self, version: Version, base: Version | None, always: bool) -> None:
        self._version = version
        self._base = base
        self._tries = 1 << 62 if always else _TRIES

    def put(self, slab: Slab, where: tuple[Block, Any]) -> int:
        """Write a slab to its place in the taker's memory; return its checksum."""
        return checksum(written(slab, self._version.part(slab), *where))

    def pack(self, slab: Slab, payload: list[memoryview]) -> tuple[int, int, int]:
        """Add what is sent of a slab.

        Returns:
            How many elements changed and the bytes of their codes, or -1 and 0 if all are sent; and
            the checksum.
        """
        part = self._version.part(slab)
        base = None if self._base is None or not self._tries else self._base.part(slab)
        if base is not None and base.block is part.block:
            return 0, 0, 0
        new = gathered(slab, part)
        if base is not None:
            positions = changed(gathered(slab, base), new)
            if len(positions) * (new.itemsize + 1) < new.nbytes // 2:
                codes, values = encoded(positions), new.reshape(-1)[positions]
                payload += [as_bytes(codes), as_bytes(values)]
                return len(positions), codes.nbytes, checksum(codes) ^ checksum(values)
            self._tries -= 1
        payload.append(as_bytes(new))
        return -1, 0, checksum(new)
