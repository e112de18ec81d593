"""Measure the peers of a row: warm-up, then interleaved repetitions in changing order."""

import functools
import gc
import random
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from bench.claims import Claim
from bench.figures import Figure
from bench.limits import NOTHING, Need
from bench.machine import Neighbours


class Peer(Protocol):
    """One way to do the work of a row."""

    def warm_up(self) -> None:
        """Run the work until it is warm; raise if its result is wrong."""

    def sample(self) -> float:
        """Run the work once more; seconds for one call."""


@runtime_checkable
class Ends(Protocol):
    """A peer that holds something until its row is done."""

    def end(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """One line of the table.

    Attributes:
        key: a short name without spaces, for `--only` and the JSON file.
        title: what is measured, for people.
        claims: what meshard promises here.
        need: what no program can do without, from which the machine's limit follows.
        risky: peers that may hang or abort, which run in a process of their own.
        notes: what is to be known of a peer's figure, by peer.
        memory: whether meshard's peak of memory is measured too.
    """

    key: str
    title: str
    claims: Sequence[Claim] = ()
    need: Need = NOTHING
    risky: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    memory: bool = False

    @abstractmethod
    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """A maker for every peer that can do this work; a maker that raises skips its peer."""


@dataclass(frozen=True)
class Budget:
    """How long a row may take: `seconds` of repetitions, but at least and at most so many."""

    seconds: float = 3.0
    at_least: int = 5
    at_most: int = 200


@dataclass
class Outcome:
    """What was measured of a row: a figure or an error for every peer that was tried.

    Attributes:
        row: what was measured.
        figures: by peer.
        errors: one sentence for every peer that was left out.
        others: the part of all cores' time that other processes took meanwhile.
        limit: the seconds below which this machine cannot do the work; None where nobody knows.
        peak: the memory that a first call takes beyond operands and result, in results.
    """

    row: Row
    figures: dict[str, Figure] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    others: float = 0.0
    limit: float | None = None
    peak: float | None = None


@dataclass(frozen=True)
class Work:
    """A peer that runs in this process.

    Attributes:
        fresh: makes new operands, outside the timing: an array that was gathered once keeps its
            host copy in JAX, so that operands used twice would measure a cache.
        call: the timed work; its result is complete when it returns.
        check: raises where the result is wrong.
        batch: how many calls a repetition makes; small ops need many to be told from the clock.
        settle: seconds of rest before a repetition; threads of OpenBLAS spin for some 25 ms
            after a product and would take the core of the next peer.
    """

    fresh: Callable[[], tuple[Any, ...]]
    call: Callable[..., Any]
    check: Callable[[Any], None]
    batch: int = 1
    settle: float = 0.0

    def warm_up(self) -> None:
        """Check the first result, then repeat twice, unmeasured."""
        self.check(self.call(*self.fresh()))
        self.sample()
        self.sample()

    def sample(self) -> float:
        """Mean seconds of the calls of one repetition; results are released after the clock."""
        batches = [self.fresh() for _ in range(self.batch)]
        results: list[Any] = []
        if self.settle:
            time.sleep(self.settle)
        call, keep = self.call, results.append
        gc.disable()
        try:
            start = time.perf_counter()
            for operands in batches:
                keep(call(*operands))
            return (time.perf_counter() - start) / self.batch
        finally:
            gc.enable()


def sentence(error: Exception) -> str:
    """The error and the line it rose at, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    # importlib's own frames say nothing about where an import failed.
    frame = next((f for f in reversed(frames) if not f.filename.startswith("<")), None)
    place = f" [{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}]" if frame else ""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first}{place}"


def measure(row: Row, budget: Budget, apart: Callable[[Row, str], Peer]) -> Outcome:
    """Measure all peers of `row`; a peer that fails is left out, with its error.

    Args:
        row: what is measured.
        budget: for how long.
        apart: makes a risky peer of a row, which runs in a process of its own.
    """
    outcome = Outcome(row)
    peers: dict[str, Peer] = {}
    for name, make in row.peers().items():
        if name in row.risky:
            make = functools.partial(apart, row, name)
        try:
            peers[name] = make()
            peers[name].warm_up()
        except Exception as error:
            peers.pop(name, None)
            outcome.errors[name] = sentence(error)
    gc.collect()
    neighbours = Neighbours()
    samples = _interleave(peers, budget, outcome.errors)
    outcome.others = neighbours.share()
    outcome.figures = {name: Figure.of(times) for name, times in samples.items() if times}
    for peer in peers.values():
        if isinstance(peer, Ends):
            peer.end()
    return outcome


def _interleave(
    peers: dict[str, Peer], budget: Budget, errors: dict[str, str]
) -> dict[str, list[float]]:
    """Samples of all peers, round by round.

    Every round has another order: a peer inherits the caches and the free pages that the one
    before it leaves, so that a mere rotation would give each the same predecessor for ever.
    """
    orders = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in peers}
    end = time.perf_counter() + budget.seconds
    for turn in range(budget.at_most):
        if turn >= budget.at_least and time.perf_counter() >= end:
            break
        for name in orders.sample(list(samples), len(samples)):
            try:
                samples[name].append(peers[name].sample())
            except Exception as error:
                errors[name] = sentence(error)
                del samples[name]
    return samples
