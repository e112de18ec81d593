"""Taking: a process of one job asks those of another for the boxes that it needs.

In: where they listen, and a plan. Out: blocks, filled and checked. All waits are one loop with a
deadline, in the thread that asks.

Finding: the job that gives the versions of a name, or another one that has them.

In: a name. Out: what its first process says of the newest version. Only the process that speaks for
the taking job looks, the others are told.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import MeshardError, TransportError
from meshard.resilience.feeding.offer import Offer
from meshard.resilience.feeding.regions import FeedPlan, Slab, as_bytes, checksum
from meshard.resilience.feeding.serve import NOTHING, Ask, Named, News, applied, decoded
from meshard.runtime.lines.connecting import Address, connect
from meshard.runtime.lines.letters import decode, encode, sent
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.lines.rendezvous import Entry, Rendezvous
from meshard.runtime.types import Block
from meshard.weights.maps.recipe import copy_cast
from meshard.weights.transfer.exchange import repeated_view, target_view, unique_view

_LOOK = 0.2
Answer = tuple[str, dict[str, Any]]


class GoneError(TransportError):
    """A version that is no longer there: a newer one has taken its place."""


@final
class Giver:
    """One process of the job that gives.

    Args:
        told: what it is, in words.
        addresses: where it listens.
        token: the secret.
        timeout: the most seconds for connecting.

    Raises:
        TransportError: if it cannot be reached.
    """

    def __init__(
        self, told: str, addresses: Sequence[Address], token: bytes, timeout: float
    ) -> None:
        self.told = told
        self.planned: set[str] = set()
        try:
            self.line: Line = connect(addresses, token, timeout)
        except TransportError as error:
            raise TransportError(f"{told} cannot be reached: {error}") from error

    def send(self, kind: str, **given: Any) -> None:
        """Ask for something.

        Raises:
            TransportError: if the connection has ended.
        """
        try:
            self.line.send(encode((kind, given)))
        except TransportError as error:
            raise self.lost() from error

    def heard(self) -> Answer | None:
        """Return the next answer, if it has arrived.

        Raises:
            TransportError: if the connection has ended, or the giver refuses.
        """
        self.line.push()
        header = self.line.poll()
        if header is None:
            if self.line.closed:
                raise self.lost()
            return None
        kind, given = decode(header)
        if kind == "refused":
            raise given["error"](f"{self.told} refuses: {given['why']}")
        if kind == "closed":
            self.line.close()
            raise TransportError(f"{self.told} has stopped publishing.")
        if kind == "gone":
            raise GoneError(f"{self.told} does not have this version any more.")
        answer: Answer = kind, given
        return answer

    def ask(self, kind: str, timeout: float, **given: Any) -> Answer:
        """Ask for something and wait for the answer.

        Raises:
            TransportError: if none comes in time.
        """
        self.send(kind, **given)
        return self.answer(timeout)

    def answer(self, timeout: float) -> Answer:
        """Wait for the answer to what was asked last."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.heard()
            if found is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                self.close()
                raise TransportError(f"{self.told} has not answered for {timeout:g} seconds.")
            wait([self.line], min(_LOOK, left))

    def lost(self) -> TransportError:
        """Return the error that says that the connection has ended."""
        return TransportError(f"{self.told} is lost: {self.line.reason}.")

    def close(self) -> None:
        """End the connection, and with it whatever was asked."""
        self.line.close()


@final
@dataclass(frozen=True)
class Place:
    """A piece that is being filled.

    Attributes:
        block: where it goes.
        box: its box.
        old: the same piece of the version before; None if there is none.
    """

    block: Block
    box: Box
    old: Block | None


Places = Mapping[tuple[str, int], Place]


@final
@dataclass(frozen=True)
class Received:
    """What one update has brought to this process.

    Attributes:
        version: the version.
        nbytes: the bytes of elements that were received, or written here by others.
        by_giver: the same for each process that gave something.
        lines: bytes that came over sockets.
        seconds: how long it took.
        changed: the elements that came as changes; None if whole slabs came.
    """

    version: int
    nbytes: int
    by_giver: Mapping[int, int]
    lines: int
    seconds: float
    changed: int | None


@final
class Taking:
    """One version being taken.

    Args:
        plan: what is taken from whom.
        givers: the processes that give, by number.
        places: the pieces that are filled.
    """

    def __init__(self, plan: FeedPlan, givers: Mapping[int, Giver], places: Places) -> None:
        self._plan = plan
        self._givers = givers
        self._places = places
        self._bytes = dict.fromkeys(plan.givers, 0)
        self._changed: int | None = None

    def run(self, ask: Ask, timeout: float) -> Received:
        """Take everything.

        Args:
            ask: what is asked of each giver.
            timeout: the most seconds in which nothing arrives from any of them.

        Raises:
            GoneError: if a giver has only newer versions.
            TransportError: if a giver is lost or silent, or its elements arrive changed.
        """
        begun, before = time.monotonic(), self._received()
        for number in self._plan.givers:
            self._givers[number].send("pull", ask=ask)
        streams = {number: self._stream(number) for number in self._plan.givers}
        try:
            self._turns(streams, timeout)
        except BaseException:
            # What the givers still send belongs to nothing: end it, and connect again next time.
            for number in self._plan.givers:
                if number in streams:
                    self._givers[number].close()
            raise
        return Received(
            ask.version,
            sum(self._bytes.values()),
            dict(self._bytes),
            self._received() - before,
            time.monotonic() - begun,
            self._changed,
        )

    def _received(self) -> int:
        return sum([self._givers[number].line.received for number in self._plan.givers])

    def _turns(self, streams: dict[int, Iterator[None]], timeout: float) -> None:
        """Let each stream go on until all are done."""
        arrived, last = -1, time.monotonic()
        while True:
            for number, stream in list(streams.items()):
                if next(stream, self) is self:
                    del streams[number]
            if not streams:
                return
            now, total = time.monotonic(), self._received()
            if total != arrived:
                arrived, last = total, now
                continue
            if now - last > timeout:
                silent = ", ".join([self._givers[n].told for n in streams])
                raise TransportError(f"{silent} has sent nothing for {timeout:g} seconds.")
            wait([self._givers[n].line for n in streams], _LOOK)

    def _stream(self, number: int) -> Iterator[None]:
        """Take what one process gives; yield where it has to be waited for."""
        giver, slabs = self._givers[number], self._plan.slabs(number)
        while True:
            answer = giver.heard()
            if answer is None:
                yield
                continue
            kind, given = answer
            if kind == "done":
                break
            if kind == "put":
                for total in given["sums"]:
                    self._check_put(next(slabs), total, number)
            elif kind == "slabs":
                for note in given["notes"]:
                    yield from self._slab(next(slabs), note, number)
        if next(slabs, None) is not None:
            raise TransportError(f"{giver.told} has sent less than the plan says.")

    def _place(self, slab: Slab) -> tuple[Block, Block | None]:
        """Return the place of a slab, and what is there in the version before."""
        place = self._places[slab.region.result, slab.region.piece]
        old = None if place.old is None else target_view(slab.term, place.old, place.box)
        return target_view(slab.term, place.block, place.box), old

    def _check_put(self, slab: Slab, total: int, number: int) -> None:
        """Check a slab that a process of this host has written to its place."""
        if checksum(self._place(slab)[0]) != total:
            raise _changed_on_its_way(slab, self._givers[number])
        self._bytes[number] += slab.nbytes

    def _slab(self, slab: Slab, note: tuple[int, int, int], number: int) -> Iterator[None]:
        """Take a slab that comes over a line."""
        (count, code_bytes, total), giver = note, self._givers[number]
        place, old = self._place(slab)
        if count >= 0:
            codes = np.empty(code_bytes, np.uint8)
            values = np.empty(count, slab.region.wired)
            yield from _taken(giver, codes)
            yield from _taken(giver, values)
            if count and checksum(codes) ^ checksum(values) != total:
                raise _changed_on_its_way(slab, giver)
            assert old is not None
            self._apply(slab, place, old, (codes, values))
            self._changed = (self._changed or 0) + count
            self._bytes[number] += codes.nbytes + values.nbytes
            return
        wired = slab.region.wired
        straight = place.flags.c_contiguous and place.dtype == wired and place.shape == slab.shape
        arriving = place if straight else np.empty(slab.shape, wired)
        yield from _taken(giver, arriving)
        if checksum(arriving) != total:
            raise _changed_on_its_way(slab, giver)
        if not straight:
            copy_cast(place, repeated_view(slab.term, arriving))
        self._bytes[number] += arriving.nbytes

    def _apply(self, slab: Slab, place: Block, old: Block, change: tuple[Block, Block]) -> None:
        """Fill a place with what was there, changed."""
        codes, values = change
        once = np.array(unique_view(slab.term, old), order="C")
        if len(values):
            cast = np.empty(len(values), once.dtype)
            copy_cast(cast, values)
            applied(once, decoded(codes), cast)
        copy_cast(place, repeated_view(slab.term, once))


def _taken(giver: Giver, block: Block) -> Iterator[None]:
    """Fill a C-contiguous block with the next bytes of a message."""
    if not block.nbytes:
        return
    room = as_bytes(block)
    while not giver.line.take(room):
        if giver.line.closed:
            raise giver.lost()
        yield


def _changed_on_its_way(slab: Slab, giver: Giver) -> TransportError:
    return TransportError(
        f"{slab.term.target_box} of {slab.region.result!r} was changed on its way from "
        f"{giver.told}: its checksum is another one."
    )


_CONNECTING = 10.0
_READERS = "/reader/"


@sent
@final
@dataclass(frozen=True)
class Source:
    """A job that gives.

    Attributes:
        told: what it is, in words.
        token: the secret of its lines.
        is_reader: whether it is a job that takes itself, and has made the results already.
        news: what it says of its newest version.
    """

    told: str
    token: bytes
    is_reader: bool
    news: News


def reader_name(name: str, identity: str) -> str:
    """Return the name under which a job that takes can be found by others that take the same."""
    return f"{name}{_READERS}{identity}"


@final
class Finder:
    """Looks for those that give a name.

    Args:
        name: the name.
        key: what becomes of the tensors; readers with another key are of no use.
        source: ``"publisher"``, ``"readers"`` or ``"auto"``.
        own: the name of this job among the readers.
        identity: this job in words, which the publisher notes.
    """

    def __init__(self, name: str, key: str, source: str, own: str, identity: str) -> None:
        self._name = name
        self._key = key
        self._source = source
        self._own = own
        self._identity = identity
        self._lines: dict[bytes, tuple[Entry, Giver]] = {}
        self._offers: dict[bytes, Offer] = {}
        self._rendezvous = Rendezvous()
        self._seen: Entry | None = None
        self._closed = False

    def look(self, than: Named, patience: float, timeout: float) -> Source:
        """Return who gives the newest version.

        Args:
            than: the version that is served here.
            patience: how long to wait for a newer one.
            timeout: how long to wait for an answer.

        Raises:
            TransportError: if nobody gives the name.
        """
        entry = self._rendezvous.find(self._name)
        self._seen = entry or self._seen
        publisher, lost = None, None
        if entry is not None and self._source != "readers":
            try:
                publisher = self._heard(entry, than, patience, timeout)
            except TransportError as error:
                lost = error
        is_new = publisher is None or publisher.news.named != than
        if self._source != "publisher" and is_new:
            reader = self._reader(publisher, timeout)
            if reader is not None:
                return reader
        if publisher is None:
            raise lost or self._nobody()
        return publisher

    def _heard(self, entry: Entry, than: Named, patience: float, timeout: float) -> Source:
        """Return what a job says of its newest version, waiting a little for a newer one."""
        giver = self._giver(entry, timeout)
        known = self._offers.get(entry.token)
        digest = None if known is None else known.digest
        _, answer = giver.ask(
            "newer", timeout + patience, offer=digest, than=than, seconds=patience
        )
        news: News | None = answer["news"]
        if news is None:
            raise TransportError(f"{giver.told} has not published a version yet.")
        if news.offer is None:
            news = replace(news, offer=known)
        assert news.offer is not None
        self._offers[entry.token] = news.offer
        is_reader = entry.about.get("kind") == "reader"
        return Source(giver.told, entry.token, is_reader, news)

    def _giver(self, entry: Entry, timeout: float) -> Giver:
        """Return the line to the first process of a job."""
        _, giver = self._lines.get(entry.token, (entry, None))
        if giver is None or giver.line.closed:
            for token, (_, other) in list(self._lines.items()):
                if other.line.closed:
                    del self._lines[token]
            role = "reader" if entry.about.get("kind") == "reader" else "publisher"
            told = f"The {role} of {self._name!r} ({entry.told})"
            self._offers.pop(entry.token, None)
            giver = Giver(told, entry.addresses, entry.token, min(timeout, _CONNECTING))
            self._lines[entry.token] = entry, giver
            if self._closed:  # while this thread connected
                giver.close()
                raise TransportError(f"The feed of {self._name!r} is closed.")
        return giver

    def _reader(self, publisher: Source | None, timeout: float) -> Source | None:
        """Return a job that takes the same and has the newest version."""
        best: Source | None = None
        for name in self._rendezvous.names():
            if not name.startswith(f"{self._name}{_READERS}") or name == self._own:
                continue
            entry = self._rendezvous.find(name)
            if entry is None or entry.about.get("key") != self._key:
                continue
            with contextlib.suppress(MeshardError):
                found = self._heard(entry, NOTHING, 0.0, timeout)
                if publisher is not None and publisher.news.named == found.news.named:
                    return found
                if best is None or found.news.number > best.news.number:
                    best = found
        return best if publisher is None else None

    def _nobody(self) -> TransportError:
        """Return the error that says that nobody gives the name."""
        last = self._rendezvous.last(self._name) or self._seen
        state = "No process has published it"
        if self._source == "readers":
            state = "No job that takes the same serves it to others"
        elif last is not None:
            ended = "has ended" if last.process.has_ended else "has stopped publishing it"
            began = time.time() - last.since
            state = f"Its publisher, {last.told}, began {began:.0f} seconds ago and {ended}"
        names = [n for n in self._rendezvous.names() if _READERS not in n]
        others = f"; the names there are {', '.join(map(repr, names))}" if names else ""
        return TransportError(
            f"There is no publisher of {self._name!r} in {self._rendezvous.folder}. "
            f"{state}{others}."
        )

    def note(self, version: int) -> None:
        """Tell the publisher which version is served here; it does not answer."""
        for entry, giver in list(self._lines.values()):
            if entry.name == self._name and not giver.line.closed:
                with contextlib.suppress(TransportError):
                    giver.send("have", told=self._identity, version=version)

    def close(self) -> None:
        """End the lines, and those that a thread is still opening."""
        self._closed = True
        for _, giver in list(self._lines.values()):
            giver.close()
