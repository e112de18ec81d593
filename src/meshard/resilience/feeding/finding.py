"""Finding: the job that gives the versions of a name, or another one that has them.

In: a name. Out: what its first process says of the newest version. Only the process that speaks for
the taking job looks, the others are told.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import final

from meshard.errors import MeshardError, TransportError
from meshard.resilience.feeding.offer import Offer
from meshard.resilience.feeding.pull import Giver
from meshard.resilience.feeding.serve import NOTHING, Named, News
from meshard.runtime.lines.letters import sent
from meshard.runtime.lines.rendezvous import Entry, Rendezvous

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
