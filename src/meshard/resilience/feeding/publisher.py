"""Publishing: versions of a tree that other jobs take while the program goes on.

In: trees of arrays. Out: versions that a thread of each process serves. Arrays are immutable, so a
version is kept by reference; nothing is copied until somebody takes it.

Acting together: what the processes of a job do alike, or not at all.

In: an action of each process. Out: what all of them gave; or, on all of them, the error that one
has raised.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

from meshard.algebra.arguments import count_of, integer_of, number_of, refusal
from meshard.errors import AgreementError, ArgumentError, TransportError
from meshard.plan.figures.footprint import checked_window
from meshard.resilience.feeding.offer import Offer, check_same_tree, offered
from meshard.resilience.feeding.serve import MOST_BYTES, Server, Version
from meshard.runtime.agree import meet
from meshard.runtime.lines.connecting import Address, new_token
from meshard.runtime.lines.letters import sent
from meshard.runtime.lines.rendezvous import Announcement, Rendezvous, checked_name
from meshard.runtime.settings import TIMEOUT
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.checkpoint.sources import placed_arrays
from meshard.weights.native.structure import Named, named

T = TypeVar("T")


def together(world: RuntimeWorld, what: str, action: Callable[[], T]) -> list[T]:
    """Return what an action gives on each process that takes part, in their order.

    Args:
        world: this process's world.
        what: the function that was called, for messages.
        action: called on each process; it does not meet others.

    Raises:
        Exception: on all processes, if the action has raised on one of them; the same error.
        TransportError: if a process is lost.
    """
    value: Any = None
    raised: Exception | None = None
    try:
        value = action()
    except Exception as error:
        if len(world.processes) == 1:
            raise
        raised = error
    if len(world.processes) == 1:
        return [value]
    meet(world, world.processes, f"`{what}`")
    mine = None if raised is None else (type(raised), str(raised))
    found: list[Any] = world.transport.all_gather((mine, value), world.processes)
    for process, (told, _) in zip(world.processes, found, strict=True):
        if told is not None and process == world.process_index and raised is not None:
            raised.add_note(f"All {len(world.processes)} processes of the job raise it.")
            raise raised
        if told is not None:
            kind, text = told
            raise _again(kind, text, process) from raised
    return [value for _, value in found]


def _again(kind: type[Exception], text: str, process: int) -> Exception:
    """Return another process's error."""
    try:
        error = kind(text)
    except TypeError:
        error = TransportError(text)
    error.add_note(f"Process {process} of the job has raised it.")
    return error


def first(world: RuntimeWorld) -> int:
    """Return the process that speaks for the job."""
    return world.processes[0]


_ROUND = 0.25


def publish(
    name: str,
    tree: Any,
    *,
    version: int | None = None,
    delta: bool | str = "auto",
    max_bytes: int | None = None,
) -> Publisher:
    """Publish a tree of arrays under a name, so that other jobs can take it.

    All processes of the job call it. It returns at once: a thread of each process gives boxes to
    those that ask, while the program goes on. Jobs find each other in the folder
    ``MESHARD_RENDEZVOUS`` (by default one of the user on this machine).

    Args:
        name: the name, of which there is one publisher at a time.
        tree: arrays, in any layout; numbers and strings travel along. NumPy's arrays are copied.
        version: the number of this version; by default 1.
        delta: whether the version before is kept in memory as well, so that only changed elements
            need to travel to takers that ask for that: ``"auto"`` or True; False if not.
        max_bytes: the most bytes on their way from one process at once; None for 64 MiB.

    Returns:
        The publisher; its `publish` publishes further versions.

    Raises:
        ArgumentError: if a living process has published the name.
        CheckpointError: if a leaf is not an array, a number or a string.
        StorageError: if the folder cannot be used.

    >>> import numpy as np
    >>> from meshard.elastic import publish
    >>> with publish("doctest", {"w": np.zeros(4)}) as publisher:
    ...     publisher.publish({"w": np.ones(4)})
    2
    """
    return Publisher(name, tree, version, _delta(delta, "elastic.publish"), max_bytes)


def _delta(given: object, what: str) -> bool | str:
    if given is True or given is False or (type(given) is str and given == "auto"):
        return given
    raise ArgumentError(refusal(what, "delta", "'auto', True or False", given))


@sent
@final
@dataclass(frozen=True)
class _Mine:
    """What a process brings when its job publishes."""

    offer: str
    number: int
    addresses: tuple[Address, ...]
    is_announced: bool


@final
class Publisher:
    """Versions of a tree that other jobs can take; see `meshard.elastic.publish`.

    It is a context manager that closes itself.

    Attributes:
        name: the name.
        version: the number of the newest version.
    """

    def __init__(
        self, name: str, tree: Any, version: int | None, delta: bool | str, max_bytes: int | None
    ) -> None:
        what = "elastic.publish"
        self.name = checked_name(name, what)
        self.version = 0
        self._keep = 1 if delta is False else 2
        self._offer: Offer | None = None
        world = here()
        found = together(world, what, lambda: (new_token(), secrets.token_hex(8)))
        self._token, self._origin = found[0]
        window = checked_window(max_bytes, what) or MOST_BYTES
        self._server = Server(self._token, world.process_index, window, compares=self._keep > 1)
        self._announced: Announcement | None = None
        self._end = weakref.finalize(self, _end, self._server, [])
        try:
            together(world, what, lambda: self._announce(world))
            self.publish(tree, version=version)
        except BaseException:
            self.close()
            raise

    def _announce(self, world: RuntimeWorld) -> None:
        """Have the name stand for this job, if this process speaks for it."""
        if world.process_index != first(world) or self._announced is not None:
            return
        self._announced = Rendezvous().announce(
            self.name, self._server.addresses, self._token, {"kind": "publisher"}
        )
        self._end.detach()
        self._end = weakref.finalize(self, _end, self._server, [self._announced])

    def publish(self, tree: Any, *, version: int | None = None) -> int:
        """Publish another version of the tree; all processes of the job call it.

        It does not wait for those that take it. Those that take the version before still get it.

        Args:
            tree: the arrays; names, shapes and dtypes are those of the first version; layouts and
                devices may differ.
            version: its number, larger than the last one; by default the next.

        Returns:
            Its number.

        Raises:
            TreeError: if it is another tree.
            ArgumentError: if the number is not larger than the last one.
            ProcessLostError: if a process of the job has died; what was published last stays so.
            DataLoss: if an array has lost boxes with a process.
            IncompatibleDevicesError: if an array has devices that take part no more.
            TransportError: if the publisher is closed.
        """
        what, world = "elastic.publish", here()
        own = together(world, what, lambda: self._named(tree, what).structure)[0]
        arrays = placed_arrays(world, self._tree, what, copied=True)
        offer, sources = offered(arrays, self._tree.tied)
        found = together(world, what, lambda: self._mine(offer, version))
        self._check_alike(world, found, what)
        number = max([mine.number for mine in found])
        members = dict(zip(world.processes, [mine.addresses for mine in found], strict=True))
        if not found[0].is_announced:  # the process that spoke for the job has died
            together(world, what, lambda: self._announce(world))
        server = self._server
        server.put(Version(number, self._origin, offer, own, sources, members, time.time()))
        # Takers are told of this version from here on; who was told of another still gets that.
        promised = together(world, what, server.promised)[0]
        server.keep(self._keep, promised)
        self._offer, self.version = offer, number
        return number

    def _named(self, tree: Any, what: str) -> Named:
        """Return the arrays of a tree by name, and check what one process can check."""
        if self._server.closing:
            raise TransportError(f"{what}: the publisher of {self.name!r} is closed.")
        self._tree = named(tree, what)
        if not self._tree.arrays:
            raise ArgumentError(f"{what}: the tree has no arrays.")
        return self._tree

    def _mine(self, offer: Offer, version: int | None) -> _Mine:
        what = "elastic.publish"
        if self._offer is not None:
            told = f"version {self.version} of {self.name!r}", "the tree"
            check_same_tree(self._offer, offer, what, told)
        number = self.version + 1
        if version is not None:
            number = integer_of(version, what, "version")
            if number <= self.version:
                raise ArgumentError(
                    f"{what}: version={number} of {self.name!r} is not larger than the last one, "
                    f"{self.version}."
                )
        addresses = self._server.addresses
        return _Mine(offer.digest, number, addresses, self._announced is not None)

    def _check_alike(self, world: RuntimeWorld, found: Sequence[_Mine], what: str) -> None:
        """Refuse versions that the processes of the job do not publish alike."""
        mine = found[0]
        for process, other in zip(world.processes, found, strict=True):
            if (other.offer, other.number) != (mine.offer, mine.number):
                which = "trees" if other.offer != mine.offer else "numbers"
                raise AgreementError(
                    f"{what}: processes {world.processes[0]} and {process} publish versions of "
                    f"{self.name!r} with different {which} ({mine.number} and {other.number}). "
                    f"All processes of a job must publish the same."
                )

    @property
    def readers(self) -> dict[str, int]:
        """The jobs that take versions, and the version that each serves.

        The first process of this job knows them; on others it is empty.
        """
        return dict(list(self._server.readers.values()))

    @property
    def bytes_given(self) -> int:
        """The bytes of elements that this process has given so far."""
        return self._server.given

    def wait(
        self, version: int | None = None, *, readers: int = 1, timeout: float | None = None
    ) -> None:
        """Wait until other jobs have taken a version; all processes of the job call it.

        Args:
            version: the version, or a newer one; by default the newest.
            readers: how many jobs.
            timeout: the most seconds; by default the setting ``timeout``.

        Raises:
            TransportError: if they do not in time; it says who serves what.
        """
        what, world = "Publisher.wait", here()
        wanted = self.version if version is None else integer_of(version, what, "version")
        readers = count_of(readers, what, "readers")
        limit = TIMEOUT.value if timeout is None else number_of(timeout, what, "timeout")
        deadline = time.monotonic() + limit

        def look() -> tuple[int, str, bool]:
            until = min(deadline, time.monotonic() + _ROUND)
            while world.process_index == first(world):
                found = self.readers
                count = sum([v >= wanted for v in list(self._server.reached.values())])
                if count >= readers or time.monotonic() >= until:
                    late = time.monotonic() >= deadline
                    return count, ", ".join([f"{n}: {v}" for n, v in found.items()]), late
                time.sleep(1e-3)
            return 0, "", False

        while True:
            count, told, late = together(world, what, look)[0]
            if count >= readers:
                return
            if late:
                raise TransportError(
                    f"{what}: after {limit:g} seconds {count} of {readers} jobs have taken "
                    f"version {wanted} of {self.name!r}. Those that are connected serve: "
                    f"{told or 'none'}."
                )

    def close(self) -> None:
        """Stop publishing: the name is free, and takers are told. They go on with what they have.

        A job that is taking a version at that moment loses it; call `wait` first.
        """
        self._end()

    def __enter__(self) -> Publisher:
        """Return the publisher."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop publishing."""
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._server.closing else f"version {self.version}"
        return f"Publisher({self.name!r}, {state})"


def _end(server: Server, announced: list[Announcement]) -> None:
    for one in announced:
        one.withdraw()
    server.close()
