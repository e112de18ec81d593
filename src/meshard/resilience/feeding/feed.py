"""Feeds: the versions of a tree that another job publishes, laid out for this one.

In: a name and shardings. Out: the newest version, as a tree of arrays. A version is assembled
beside the one that is served, checked, and takes its place in one step, on all processes or on
none.

Tasks: what a feed does behind the program, in a thread of its own.

In: an action that sends no messages of the job. Out: what it has given, once it is done.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar, final

from meshard.algebra.arguments import choice_of, flag_of, integer_of, number_of, refusal
from meshard.errors import ArgumentError, MeshardError, PlanError, TransportError
from meshard.plan.figures.footprint import checked_window
from meshard.resilience.feeding.offer import FLAT, Fitting, Wanted, offered
from meshard.resilience.feeding.publisher import first, together
from meshard.resilience.feeding.pull import (
    Finder,
    Giver,
    GoneError,
    Place,
    Received,
    Source,
    Taking,
    reader_name,
)
from meshard.resilience.feeding.regions import FeedPlan
from meshard.resilience.feeding.serve import (
    MOST_BYTES,
    NOTHING,
    Ask,
    Members,
    Named,
    Server,
    Version,
)
from meshard.resilience.feeding.stage import Stages
from meshard.runtime.array.array import Array
from meshard.runtime.lines.connecting import new_token
from meshard.runtime.lines.rendezvous import Announcement, Rendezvous, checked_name
from meshard.runtime.settings import TIMEOUT
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.maps.keymap import KeyMap

T = TypeVar("T")


@final
class Task(Generic[T]):
    """An action that runs in a thread, as if it were called here.

    Args:
        action: what is to be done.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._value: Any = None
        self._raised: BaseException | None = None
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="meshard-feeding", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._action()
        except Exception as error:
            self._raised = error

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the end; return what the action gives, or raise what it has raised."""
        self._thread.join()
        if self._raised is not None:
            raise self._raised
        value: T = self._value
        return value

    def drop(self) -> None:
        """Wait for the end, whatever it is."""
        self._thread.join()


_WHAT = "elastic.subscribe"
_ROUND = 0.5
_TRIES = 50
_CONNECTING = 10.0


def subscribe(
    name: str,
    shardings: Any = None,
    *,
    map: KeyMap | None = None,
    dtype: Any = None,
    like: Any = None,
    max_bytes: int | None = None,
    delta: bool | str = "auto",
    source: str = "auto",
    serve: bool = False,
    timeout: float | None = None,
) -> Feed:
    """Take the tree that another job publishes under a name, and later its newer versions.

    All processes of the job call it; it returns when the newest version is here. Each process gets
    only the bytes that it needs, each from a process that holds them. Both jobs derive the same
    plan from the layouts, and compare its hash before anything moves.

    Args:
        name: the name; waited for until there is a publisher.
        shardings: how the arrays are to be laid out: a prefix of the tree, or a function of a name
            and a ShapeDtypeStruct. With ``map`` the tree is a dict of the map's names. None for
            arrays on every device of the job.
        map: which tensors are made of which; it acts on whole tensors, before any cut.
        dtype: what floats are cast to, or integers if it is an integer dtype; on the side where
            elements are smaller.
        like: a tree of arrays or ShapeDtypeStructs that the result must match in names, shapes and
            dtypes; its containers are those of the result.
        max_bytes: the most bytes on their way to one process at once; None for 4 MiB from each
            process that gives.
        delta: whether only changed elements may travel, if the publisher still has the version that
            is served here. ``"auto"``: where that is less, but processes of one host write whole
            boxes into this one's memory; True: on one host too; False: never.
        source: whom to take from. ``"publisher"``; ``"readers"``: other jobs that take the same
            (the same map and dtype, in any layout) and were told to ``serve`` it; ``"auto"``:
            readers that have the newest version, else the publisher.
        serve: whether other jobs may take what is here.
        timeout: the most seconds to wait for the first version, and later for a process that does
            not answer; by default the setting ``timeout``.

    Returns:
        The feed.

    Raises:
        TransportError: if there is no publisher in time, or one of its processes is lost.
        TreeError: if the shardings, or ``like``, are those of another tree.
        KeyMapError: if the map does not fit the tree.
        ShardingError: if a tensor cannot be laid out as asked.
        PlanError: if a process of the other job has derived another plan.

    >>> import numpy as np, meshard
    >>> from meshard.elastic import publish, subscribe
    >>> with publish("doctest-feed", {"w": np.ones(4)}) as publisher:
    ...     with subscribe("doctest-feed", dtype="float32") as feed:
    ...         _ = publisher.publish({"w": np.full(4, 7.0)})
    ...         feed.wait(2), feed.tree["w"]
    (2, Array([7., 7., 7., 7.], dtype=float32))
    """
    checked_name(name, _WHAT)
    choice_of(source, ("auto", "publisher", "readers"), _WHAT, "source")
    if not (delta is True or delta is False or (type(delta) is str and delta == "auto")):
        raise ArgumentError(refusal(_WHAT, "delta", "'auto', True or False", delta))
    window = checked_window(max_bytes, _WHAT)
    wanted = replace(Wanted.checked(_WHAT, shardings, map, dtype, window), like=like)
    options = _Options(source, delta, flag_of(serve, _WHAT, "serve"), _seconds(timeout, _WHAT))
    return Feed(name, wanted, options)


def _seconds(timeout: float | None, what: str) -> float:
    return TIMEOUT.value if timeout is None else number_of(timeout, what, "timeout")


_Looked = tuple[Source | None, str, Named]
"""Who gives the newest version, what is known of it in words, and the version that is here."""


@final
@dataclass(frozen=True)
class _Options:
    """How versions are taken; see `subscribe`."""

    source: str
    delta: bool | str
    serve: bool
    timeout: float


@final
@dataclass(frozen=True)
class _Served:
    """A version as it is here.

    Attributes:
        named: which version it is.
        tree: the tree.
        digest: the hash of the offer that it was taken from.
        blocks: the pieces of this process, by result and number.
        received: what has come to this process.
        plan: what it takes from whom.
        version: what others may take; None if they may not.
    """

    named: Named
    tree: Any = field(repr=False)
    digest: str
    blocks: Mapping[tuple[str, int], Block] = field(repr=False)
    received: Received
    plan: FeedPlan = field(repr=False)
    version: Version | None = field(repr=False)


@final
class Feed:
    """What this job has of another job's versions; see `meshard.elastic.subscribe`.

    Any thread may read. `update` and `wait` are called by all processes of the job. It is a context
    manager that closes itself.

    Attributes:
        name: the name.
    """

    def __init__(self, name: str, wanted: Wanted, options: _Options) -> None:
        self.name = name
        self._wanted = wanted
        self._options = options
        self._served: _Served | None = None
        self._staged: _Served | None = None
        self._watching: Task[_Looked] | None = None
        self._assembling: Task[bool] | None = None
        self._fitting: tuple[str, bool, Fitting, FeedPlan] | None = None
        self._givers: dict[tuple[bytes, int], Giver] = {}
        self._stages = Stages()
        self._server: Server | None = None
        self._members: Members = {}
        world = here()
        own = reader_name(name, f"{os.getpid()}-{secrets.token_hex(4)}")
        identity = f"process {os.getpid()} on {os.uname().nodename} ({own[-8:]})"
        self._finder = Finder(name, wanted.key, options.source, own, identity)
        self._end = weakref.finalize(self, _close, self._finder, self._givers, None, None)
        try:
            if options.serve:
                self._open(world, own)
            self._wait(None, options.timeout, _WHAT)
        except BaseException:
            self.close()
            raise

    def _open(self, world: RuntimeWorld, own: str) -> None:
        """Have a thread serve what is here to others."""
        token = together(world, _WHAT, new_token)[0]
        self._server = server = Server(token, world.process_index, MOST_BYTES, compares=False)
        addresses = together(world, _WHAT, lambda: server.addresses)
        self._members = dict(zip(world.processes, addresses, strict=True))
        announced: Announcement | None = None
        if world.process_index == first(world):
            about = {"kind": "reader", "key": self._wanted.key}
            announced = Rendezvous().announce(own, server.addresses, token, about)
        self._end.detach()
        self._end = weakref.finalize(
            self, _close, self._finder, self._givers, self._server, announced
        )

    # what is here

    @property
    def tree(self) -> Any:
        """The tree of the newest version that is here; immutable, however long it is kept."""
        return self._now.tree

    @property
    def version(self) -> int:
        """The number of the version that is here."""
        return self._now.named[1]

    @property
    def received(self) -> Received:
        """What the last version brought to this process, in bytes and seconds."""
        return self._now.received

    @property
    def plan(self) -> FeedPlan:
        """What this process takes from whom."""
        return self._now.plan

    @property
    def _now(self) -> _Served:
        served = self._served
        if served is None:
            raise TransportError(f"The feed of {self.name!r} is closed.")
        return served

    @contextlib.contextmanager
    def lease(self) -> Iterator[Any]:
        """Give the tree of one version for a block of code, whatever arrives in the meantime.

        >>> import numpy as np
        >>> from meshard.elastic import publish
        >>> with publish("lease", {"w": np.ones(2)}) as publisher, subscribe("lease") as feed:
        ...     with feed.lease() as tree:
        ...         print(tree["w"])
        [1. 1.]
        """
        yield self._now.tree

    # what comes

    def update(self, *, timeout: float | None = None) -> int:
        """Take the newest version, if it is not here; all processes of the job call it.

        Readers go on with the version before until the new one is complete and checked everywhere;
        after any failure they still have it, and the next call tries again.

        Args:
            timeout: the most seconds to wait for a process that does not answer.

        Returns:
            The number of the version that is here.

        Raises:
            TransportError: if the publisher has ended, or a process is lost on the way.
        """
        limit = self._options.timeout if timeout is None else _seconds(timeout, "Feed.update")
        self._advance(0.0, limit, strict=True)
        return self.version

    def wait(self, version: int | None = None, *, timeout: float | None = None) -> int:
        """Wait until a version, or a newer one, is here; all processes of the job call it.

        Args:
            version: its number; by default any that is newer than what is here.
            timeout: the most seconds; by default what `subscribe` was given.

        Returns:
            The number of the version that is here.

        Raises:
            TransportError: if it does not come in time; it names the publisher and its state.
        """
        what = "Feed.wait"
        limit = self._options.timeout if timeout is None else _seconds(timeout, what)
        if version is not None:
            version = integer_of(version, what, "version")
        return self._wait(version, limit, what)

    def _wait(self, version: int | None, limit: float, what: str) -> int:
        """Wait until a version, or a newer one, is here; return its number."""
        before = NOTHING if self._served is None else self._served.named
        deadline, patience, world = time.monotonic() + limit, 0.0, here()

        def is_here() -> bool:
            now = NOTHING if self._served is None else self._served.named
            return now != before if version is None else now[1] >= version

        while not all(together(world, what, is_here)):
            state = self._advance(patience, self._options.timeout, strict=False)
            late = together(world, what, lambda: time.monotonic() >= deadline)
            if late[0] and not all(together(world, what, is_here)):
                newer = "a version" if self._served is None else "a newer version"
                asked = newer if version is None else f"version {version}"
                raise TransportError(
                    f"{what}: {asked} of {self.name!r} has not come in {limit:g} seconds. {state}"
                )
            patience = max(0.0, min(_ROUND, deadline - time.monotonic()))
        return self.version

    def poll(self) -> int:
        """Go on taking the newest version without waiting; all processes of the job call it.

        A thread looks for a newer version and assembles it. A call only asks how far that is, and
        swaps once it is complete on all processes: a server that has one thread calls it between
        two requests.

        Returns:
            The number of the version that is here.

        Raises:
            TransportError: if the publisher has ended, or was lost on the way; the next call tries
                again.

        >>> import numpy as np
        >>> from meshard.elastic import publish
        >>> with publish("poll", {"w": np.ones(2)}) as publisher, subscribe("poll") as feed:
        ...     _ = publisher.publish({"w": np.zeros(2)})
        ...     while feed.poll() == 1:
        ...         pass  # serve
        ...     feed.tree["w"]
        Array([0., 0.], dtype=float64)
        """
        world, assembling = here(), self._assembling
        try:
            if assembling is None:
                source = together(world, "Feed.poll", lambda: self._news(world))[0]
                if source is not None:
                    take = partial(self._taken, world, source, self._options.timeout)
                    self._assembling = Task(take)
                return self.version
            votes = together(
                world,
                "Feed.poll",
                lambda: assembling.result() if assembling.is_done else None,
            )
        except MeshardError as error:
            self._failed(error)
            raise
        if None not in votes:
            if all(votes):
                self._swap(world)
            self._assembling = self._staged = None
        return self.version

    def _news(self, world: RuntimeWorld) -> Source | None:
        """Return who has a newer version, if the thread that looks for it has found one."""
        if not self._end.alive:
            raise TransportError(f"The feed of {self.name!r} is closed.")
        if world.process_index != first(world):
            return None
        if self._watching is None:
            look = partial(self._look, world, _ROUND, self._options.timeout, True)
            self._watching = Task(look)
        if not self._watching.is_done:
            return None
        watching, self._watching = self._watching, None
        source, _, named = watching.result()
        return None if source is None or source.news.named == named else source

    def _failed(self, error: MeshardError) -> None:
        """Give up what was being taken."""
        if self._assembling is not None:
            for giver in list(self._givers.values()):
                giver.close()
        self._settle()
        self._fitting = None  # another process may not have come as far
        if self._served is not None:
            error.add_note(f"Version {self.version} of {self.name!r} is still served here.")

    def _settle(self) -> None:
        """Wait until nothing goes on behind the program, and forget what it has found."""
        for task in (self._watching, self._assembling):
            if task is not None:
                task.drop()
        self._watching = self._assembling = self._staged = None

    def _advance(self, patience: float, timeout: float, *, strict: bool) -> str:
        """Take the newest version, if there is one that is not here on all processes.

        Args:
            patience: how long to wait for one.
            timeout: how long to wait for an answer.
            strict: whether it is refused if there is nobody who gives.

        Returns:
            What is known of the publisher, in words.
        """
        world = here()
        self._settle()
        look = partial(self._look, world, patience, timeout, strict)
        try:
            for _ in range(_TRIES):
                looked = together(world, "Feed.update", look)
                source, state = looked[0][:2]
                if source is None or all(named == source.news.named for *_, named in looked):
                    return state
                take = partial(self._taken, world, source, timeout)
                taken = together(world, "Feed.update", take)
                if all(taken):
                    self._swap(world)
                    return state
            raise TransportError(
                f"Feed.update: {self.name!r} is published faster than it can be taken: "
                f"{_TRIES} versions were gone before they were begun."
            )
        except MeshardError as error:
            self._failed(error)
            raise
        finally:
            self._staged = None

    def _look(self, world: RuntimeWorld, patience: float, timeout: float, strict: bool) -> _Looked:
        """Return who gives the newest version, if this process speaks for the job."""
        if not self._end.alive:
            raise TransportError(f"The feed of {self.name!r} is closed.")
        named = NOTHING if self._served is None else self._served.named
        if world.process_index != first(world):
            return None, "", named
        try:
            source = self._finder.look(named, patience, min(timeout, 30.0))
        except TransportError as error:
            if strict:
                raise
            time.sleep(min(patience, 0.02))
            return None, str(error), named
        news = source.news
        ago = time.time() - news.since
        state = f"{source.told} is alive; its newest version, {news.number}, is {ago:.0f} s old."
        known = self._fitting
        if known is not None and known[:2] == (news.digest, source.is_reader):
            source = replace(source, news=replace(news, offer=None))
        return source, state, named

    def _taken(self, world: RuntimeWorld, source: Source, timeout: float) -> bool:
        """Assemble a version beside the one that is served. Return whether it was there."""
        if self._served is not None and self._served.named == source.news.named:
            self._staged = self._served
            return True
        try:
            self._staged = self._assembled(world, source, timeout)
        except GoneError:
            return False
        return True

    def _fit(self, world: RuntimeWorld, source: Source) -> tuple[Fitting, FeedPlan]:
        """Return what is wanted of an offer, and what this process takes."""
        news = source.news
        if self._fitting is None or self._fitting[:2] != (news.digest, source.is_reader):
            offer = news.offer
            if offer is None:
                raise TransportError(f"{source.told} offers what this process has not heard of.")
            wanted = self._wanted.as_they_are if source.is_reader else self._wanted
            fitting = Fitting(world, offer, news.structure, wanted)
            plan = FeedPlan(offer, fitting.wish, world.process_index, fitting.recipes)
            self._fitting = news.digest, source.is_reader, fitting, plan
        return self._fitting[2:]

    def _connected(
        self, source: Source, fitting: Fitting, plan: FeedPlan, timeout: float
    ) -> dict[int, Giver]:
        """Return lines to those who give, which have derived the same plan."""
        for key in [k for k, g in self._givers.items() if g.line.closed or k[0] != source.token]:
            self._givers.pop(key).close()
        found: dict[int, Giver] = {}
        for number in plan.givers:
            giver = self._givers.get((source.token, number))
            if giver is None:
                addresses = source.news.members.get(number, ())
                told = f"Process {number} of {source.told[0].lower()}{source.told[1:]}"
                giver = Giver(told, addresses, source.token, min(timeout, _CONNECTING))
                self._givers[source.token, number] = giver
            found[number] = giver
        asked = [g for g in found.values() if plan.digest not in g.planned]
        given = {"wish": fitting.wish, "taker": plan.taker, "offer": fitting.offer.digest}
        given["version"] = source.news.number
        for giver in asked:
            giver.send("plan", **given)
        for giver in asked:
            _, answer = giver.answer(timeout)
            if answer["plan"] != plan.digest:
                raise PlanError(
                    f"{giver.told} has derived another plan for what process {plan.taker} takes of "
                    f"{self.name!r}: its hash is {answer['plan']} there and {plan.digest} here. Do "
                    "both jobs run the same version of meshard?"
                )
            giver.planned.add(plan.digest)
        return found

    def _assembled(self, world: RuntimeWorld, source: Source, timeout: float) -> _Served:
        """Take a version into memory of its own."""
        fitting, plan = self._fit(world, source)
        givers = self._connected(source, fitting, plan, timeout)
        news, served = source.news, self._served
        local = [(r, n) for r in fitting.results for n in r.type_.local]
        stage = self._stages.new([(r.type_.layout.box(n).shape, r.type_.dtype) for r, n in local])
        same = served is not None and served.digest == news.digest
        base = served if same and served is not None and self._options.delta is not False else None
        blocks: dict[tuple[str, int], Block] = {}
        places, offsets = {}, {}
        for (result, number), block, offset in zip(local, stage.blocks, stage.offsets, strict=True):
            key, box = (result.name, number), result.type_.layout.box(number)
            blocks[key], offsets[key] = block, offset
            places[key] = Place(block, box, None if base is None else base.blocks[key])
            for fill in result.recipe.fills:
                filled = fill.box.intersect(box)
                if filled.volume:
                    block[filled.within(box).slices] = fill.value
        ask = Ask(
            news.number,
            plan.digest,
            base.named[1] if base is not None and base.named[0] == news.origin else None,
            fitting.bucket,
            None if self._options.delta is True else stage.door,
            offsets,
            self._options.delta is True,
        )
        received = Taking(plan, givers, places).run(ask, timeout)
        stage.keep()
        return self._finished(source, (fitting, plan), blocks, received)

    def _finished(
        self,
        source: Source,
        planned: tuple[Fitting, FeedPlan],
        blocks: Mapping[tuple[str, int], Block],
        received: Received,
    ) -> _Served:
        """Return a version whose blocks are complete."""
        news, (fitting, plan) = source.news, planned
        arrays = {
            r.name: Array(
                r.type_,
                tuple([blocks.get((r.name, n)) for n in range(r.type_.layout.piece_count)]),
            )
            for r in fitting.results
        }
        version = None
        if self._server is not None:
            offer, sources = offered(arrays, fitting.tied)
            structure = FLAT if self._wanted.map is not None else news.structure
            version = Version(
                news.number, news.origin, offer, structure, sources, self._members, news.since
            )
        tree = fitting.tree(news.structure, arrays)
        return _Served(news.named, tree, news.digest, blocks, received, plan, version)

    def _swap(self, world: RuntimeWorld) -> None:
        """Serve the version that was assembled."""
        staged = self._staged
        assert staged is not None
        self._served = staged  # one store: a reader has the one version or the other
        if self._server is not None and staged.version is not None:
            self._server.put(staged.version)
            self._server.keep(1, self._server.promised())
        if world.process_index == first(world):
            self._finder.note(staged.named[1])

    def close(self) -> None:
        """End the feed; trees that were taken from it stay as they are."""
        self._end()
        self._settle()
        _close_lines(self._finder, self._givers)  # what was opened meanwhile
        self._served = None

    def __enter__(self) -> Feed:
        """Return the feed."""
        return self

    def __exit__(self, *raised: object) -> None:
        """End the feed."""
        self.close()

    def __repr__(self) -> str:
        served = self._served
        state = "closed" if served is None else f"version {served.named[1]}"
        return f"Feed({self.name!r}, {state})"


def _close(
    finder: Finder,
    givers: dict[tuple[bytes, int], Giver],
    server: Server | None,
    announced: Announcement | None,
) -> None:
    if announced is not None:
        announced.withdraw()
    if server is not None:
        server.close()
    _close_lines(finder, givers)


def _close_lines(finder: Finder, givers: Mapping[tuple[bytes, int], Giver]) -> None:
    """End the lines to those that give; a thread may be opening more of them."""
    finder.close()
    for giver in list(givers.values()):
        giver.close()
