"""The watchdog: while a process waits, it finds out who is missing and what each process does.

In: letters that processes send each other beside the messages that they wait for. Out: an error on
every process that can still raise one, as soon as it is known which process has diverged, ended or
died, and at the latest when the deadline has passed.

A failure belongs to a step: a process that leaves a step before its end tells the others which step
it was, and they give up that step, but none that comes later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, final

from meshard.errors import AgreementError, ProcessLostError, TransportError
from meshard.runtime.lines.letters import sent
from meshard.runtime.processes.agreement import (
    Account,
    Agreement,
    Arrival,
    Members,
    Remembered,
    RememberedStep,
    Stamp,
    StepReport,
    counted,
)
from meshard.runtime.processes.divergence import divergence, doing, modes, numbered
from meshard.runtime.processes.identity import Facts
from meshard.runtime.processes.membership import Membership

_PATIENCE = 0.4
"""Seconds of a wait after which a process asks those for which it waits."""
_FATE = 0.1
"""Seconds of a wait between two questions to the system whether they live."""
_SELDOM = 0.02
"""Seconds between two checks of the letters."""
_GRACE = 2.0
"""Seconds that the others have to report what they know, once something is wrong."""
_SETTLED = 0.5
"""Seconds after which no message of a process that has ended its program, or has left the step, can
still be in flight."""
_AT_ONCE = 0.05
"""The same, if it has left the step because of a death."""
_SETTLE = 0.25
"""Seconds that the others have to report that they miss a process that has died, too."""
_NOTICE = 30.0
"""Seconds of a wait, or half the deadline, after which the user is told about it."""
_TOLD = 4
ENDED = "has ended its program"
"""What a process that has come to the end of its program reports about itself."""


def given_up(index: int, by: str) -> str:
    """Return what a process says that others have given up."""
    return (
        f"Process {index} was given up by {by}, which could not reach it: it takes part no more. A "
        "process that was stopped, or cut off, starts anew to join again."
    )


_OF_MEMBERS = frozenset({"proposes", "decided", "withdraws", "waits", "works"})
"""The letters in which processes decide who takes part."""


class SideChannel(Protocol):
    """The side channel: small objects, sent and received without waiting."""

    def post(self, peer: int, letter: object) -> None:
        """Send a letter."""

    def collect(self) -> list[Any]:
        """Return the letters that have arrived since the last call."""

    def fate(self, peer: int) -> tuple[str, bool] | None:
        """Return what is wrong with a process, seen from outside, and whether to give it up.

        None if nothing is wrong, or nothing can be seen.
        """

    def seen(self, peer: int) -> str | None:
        """Return how a process was lost, as any thread may ask: nothing is sent or received."""

    def notice(self, text: str) -> None:
        """Show the user a message while the wait goes on."""

    def is_open(self) -> bool:
        """Whether processes may join that the job was not started with; the same on all."""

    def callers(self) -> list[Facts]:
        """Return such processes that wait at this process."""

    def admit(self, newcomers: Iterable[Facts]) -> None:
        """Reach processes that are to take part, so that letters get to them."""

    def learn(self, known: Mapping[int, Facts], members: Collection[int]) -> None:
        """Learn about the processes of the job, and who of them takes part now."""

    def is_expected(self) -> bool:
        """Whether processes that this one does not know may still take it in."""

    def dismiss(self, peer: int) -> None:
        """Tell a process that lives that it was given up; one that is stopped learns it later."""

    def dismissed(self, how: str) -> NoReturn:
        """End this process, which others have given up, and none but this one.

        Raises:
            TransportError: if this process cannot be ended alone.
        """


class Closed:
    """The part of a side channel by which none joins that the job was not started with."""

    def dismiss(self, peer: int) -> None:
        """Do nothing: a letter tells it too."""

    def dismissed(self, how: str) -> NoReturn:
        """Raise an error.

        Raises:
            TransportError: always.
        """
        raise TransportError(how)

    def is_open(self) -> bool:
        """Return False."""
        return False

    def callers(self) -> list[Facts]:
        """Return none."""
        return []

    def admit(self, newcomers: Iterable[Facts]) -> None:
        """Do nothing: there are none."""

    def learn(self, known: Mapping[int, Facts], members: Collection[int]) -> None:
        """Do nothing: all that is known was known before."""

    def is_expected(self) -> bool:
        """Return False."""
        return False


@sent
@final
@dataclass(frozen=True)
class Departure:
    """What a process reports about a step that it has left before its end.

    Attributes:
        account: its account.
        steps: for each set of processes that it belongs to, the last step that it left early.
        lost: the processes that it waited for.
        why: what has happened.
        died: the processes whose death is the reason.
    """

    account: Account
    steps: Mapping[Members, int]
    lost: tuple[int, ...]
    why: str
    died: tuple[int, ...] = ()


@sent
@final
@dataclass(frozen=True)
class Loss:
    """What a process reports when it misses one that has died.

    Attributes:
        index: the process.
        processes: those that have died.
        how: what is known about each of them.
        place: how many operations it had run.
        missing: the processes that it waited for.
        last: the operation that it was in.
        when: seconds since the epoch.
    """

    index: int
    processes: tuple[int, ...]
    how: Mapping[int, str]
    place: int
    missing: tuple[int, ...]
    last: StepReport | None
    when: float

    @property
    def order(self) -> tuple[int, int]:
        """The first of several losses is the one that all report."""
        return self.place, self.index

    def error(self) -> ProcessLostError:
        """Return the error that all living processes raise."""
        told = " ".join([self.how[p] for p in self.processes])
        where = f", in {doing(self.last)}" if self.last is not None else ""
        waited = f"Process {self.index} waited for {numbered(self.missing)}{where}"
        last = self.last
        return ProcessLostError(
            f"{told} {waited}. meshard.elastic.recover() goes on without "
            f"{'it' if len(self.processes) == 1 else 'them'}.",
            self.processes,
            operation=None if last is None else last.text,
            step=None if last is None else counted(last.step),
            line=None if last is None else last.line,
            when=self.when,
        )


@final
class Watchdog:
    """What one process knows about the others while it waits.

    Args:
        agreement: the record of its own steps.
        channel: the way to send letters.
        deadline: seconds that it waits.
        first: the processes that it knows of at first; by default all that there are.

    Attributes:
        membership: who takes part.
        loss: the last loss that this process has raised an error for; None if it has recovered.
        over: the processes that have taken part and do so no more.
        known: all processes that it knows of.
    """

    def __init__(
        self,
        agreement: Agreement,
        channel: SideChannel,
        deadline: float,
        first: Iterable[int] | None = None,
    ) -> None:
        self.agreement = agreement
        self.deadline = deadline
        self.stamp = agreement.stamp
        self._channel = channel
        self._heard: dict[int, Account] = {}
        self._whole: dict[int, Account] = {}
        self._ended: dict[int, float] = {}
        self._met: dict[int, Remembered | None] = {}
        self._left: dict[int, Departure] = {}
        self._gone_on: dict[int, float] = {}
        self._claiming: set[int] = set()
        self._reported: set[int] = set()
        self._unsure = False
        self._end: str | None = None
        self._epochs: dict[Members, int] = {}
        self._noticed = False
        self._missing: tuple[int, ...] = ()
        self._here: tuple[Members, int] | None = None
        self._losses: dict[int, Loss] = {}
        self._given_up: set[int] = set()
        self.over: frozenset[int] = frozenset()
        self.loss: Loss | None = None
        self.known = frozenset(range(agreement.count) if first is None else first)
        self.membership = Membership(agreement.index, self.known, _Eyes(self))
        self._next_fate = 0.0
        self._begun = self._next_look = self._next_ask = self._next_notice = 0.0

    def check(self, peers: Sequence[int]) -> None:
        """Refuse to wait for processes that are gone, or for messages of unknown operations.

        Raises:
            TransportError: if one of them takes part no more, or an operation has failed while
                operations were not compared.
        """
        if self.over and not self.over.isdisjoint(peers):
            gone = sorted(self.over.intersection(peers))
            raise TransportError(
                f"{numbered(gone, capital=True)} {'takes' if len(gone) == 1 else 'take'} part no "
                "more: an array or a mesh still has devices of theirs. meshard.elastic.restore "
                "brings arrays to devices that are left, and meshard.elastic.mesh makes a mesh of "
                "these."
            )
        if self._unsure and peers:
            raise TransportError(
                f"Process {self.agreement.index} cannot communicate with {numbered(peers)}: an "
                "operation has failed before, and while the setting check (MESHARD_CHECK) is "
                "'off', its messages cannot be distinguished from those of other operations. To go "
                "on after a failure, set check to 'hash'."
            )

    def lost_of(self, peers: Iterable[int]) -> dict[int, str]:
        """Return which of some processes are lost, and how, without sending: any thread may ask."""
        over = dict.fromkeys(self.over, "takes part no more")
        found = {p: self._channel.seen(p) or over.get(p) for p in peers}
        return {p: how for p, how in found.items() if how is not None}

    def begin(self) -> None:
        """Record that a wait has begun to last."""
        now = time.monotonic()
        self._begun = now
        self._next_look = now + _SELDOM
        self._next_ask = now + min(_PATIENCE, self.deadline / 4)
        self._next_fate = now + min(_FATE, self.deadline / 4)
        self._next_notice = now + min(_NOTICE, self.deadline / 2)
        self._missing = ()
        self._noticed = False
        latest = self.agreement.latest
        self._here = None if latest is None else (latest[0].running.members, latest[1])
        self._gone_on = {}
        for peer in (*self._heard, *self._left):
            self._compare(peer, now)

    def end(self) -> None:
        """Record that the wait is over."""
        self._missing = ()

    def met(self, peers: Iterable[int]) -> None:
        """Record that messages of processes have arrived: they have reached the present step."""
        latest = self.agreement.latest
        for peer in peers:
            self._met[peer] = latest

    def look(self, missing: Callable[[], Sequence[int]]) -> bool:
        """Check on the other processes, if it is time to.

        Args:
            missing: returns the processes that have not arrived yet.

        Returns:
            Whether it was time to.

        Raises:
            AgreementError: if processes have diverged.
            TransportError: if a missing process has ended or died, or the deadline has passed.
        """
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _SELDOM
        late = now - self._begun >= self.deadline
        asks = late or now >= self._next_ask
        checks = asks or now >= self._next_fate
        if checks or not self._missing or self._ended or self._gone_on:
            self._missing = tuple(missing())
            if not self._missing:
                return True
        self._hear()
        if self._epochs:
            self._conclude()
        if asks:
            self._next_ask = now + max(_PATIENCE, min(_NOTICE, (now - self._begun) / 2))
            self._ask(self._missing)
        if late:
            law = "MESHARD_TIMEOUT sets how many seconds a process waits for another."
            self._give_up(f"has waited {self.deadline:g} s", law=law)
        if checks:
            self._next_fate = now + _FATE
        self._judge(now, asks=asks, checks=checks)
        return True

    def _judge(self, now: float, *, asks: bool, checks: bool) -> None:
        """Give up if a missing process will never arrive; tell the user about a long wait.

        Args:
            now: the time.
            asks: whether it was time to ask the others.
            checks: whether it is time to ask the system too, which takes longer than checking the
                letters.

        Raises:
            TransportError: if a missing process has ended or died.
        """
        if any(self._is_lost(p, now) for p in self._missing) or (
            checks and any(map(self._is_gone, self._missing))
        ):
            self._give_up("waits")
        if now >= self._next_notice or (asks and not self._noticed and self._is_odd()):
            self._next_notice, self._noticed = now + self.deadline, True
            self._channel.notice(self._sentence(f"has waited {now - self._begun:.1f} s"))

    def saw(self, peer: int, stamp: Stamp) -> None:
        """Record the stamp of a message of another step, while one of this step is waited for.

        Raises:
            AgreementError: if the process has run a different operation instead.
        """
        arrival = self.agreement.arrival(peer, stamp)
        if arrival is Arrival.APART:
            self.suspect((peer,), stamp)
        elif arrival is Arrival.AHEAD and peer not in self._gone_on:
            self._gone_on[peer] = time.monotonic() + _GRACE
            self._ask((peer,))

    def last_look(self, missing: Sequence[int]) -> None:
        """Check on the other processes for the last time, when nothing more will arrive.

        Raises:
            AgreementError: if processes have diverged.
            TransportError: if a missing process has ended.
        """
        self._missing = tuple(missing)
        self._hear()
        if self._epochs:
            self._conclude()
        if any(p in self._ended or p in self._gone_on for p in missing):
            self._give_up("waits")

    def suspect(self, peers: Sequence[int], stamp: Stamp) -> None:
        """Find out which process has diverged, after a message of ``peers`` with another stamp.

        Raises:
            AgreementError: always, since two hashes of one step are a proof.
        """
        self._missing = tuple(peers)
        self._raise_alarm(self.agreement.apart(stamp))
        self._conclude()

    def failed(self, missing: Sequence[int], why: str) -> NoReturn:
        """Raise the error for failed messages with some processes.

        Raises:
            AgreementError: if processes have diverged.
            TransportError: otherwise.
        """
        self._missing = tuple(missing)
        self._hear()
        try:
            if self._epochs:
                self._conclude()
            self._give_up("waits", f"{why}.")
        except TransportError as error:
            self.leave(missing, error)
            raise

    def unfinished(self) -> dict[Members, int]:
        """Return the first step of each set of processes that this one has not come through."""
        left = self._left.get(self.agreement.index)
        return self.agreement.unfinished({} if left is None else left.steps)

    def leave(self, missing: Sequence[int], error: BaseException) -> None:
        """Tell the others that this process leaves its step before its end.

        Args:
            missing: the processes that it waited for.
            error: what has happened.
        """
        self._missing = ()
        self._unsure |= self.agreement.mode == "off"
        if self._here is None:
            return
        died = error.processes if isinstance(error, ProcessLostError) else ()
        if isinstance(error, TransportError):
            why = f"gave up waiting for {numbered(missing)}"
        else:
            why = f"was ended by {type(error).__name__}"
        before = self._left.get(self.agreement.index)
        steps = {**(before.steps if before is not None else {}), self._here[0]: self._here[1]}
        departure = Departure(self.agreement.account(), steps, tuple(missing), why, died)
        self._left[self.agreement.index] = departure
        self._tell_all(("left", departure))

    def is_over(self, peer: int, stamp: Stamp) -> bool:
        """Whether a message of a process belongs to a step that this process has left."""
        left = self._left.get(self.agreement.index)
        if self._unsure or (left is not None and self.agreement.is_within(left.steps, stamp)):
            return True
        return self.agreement.arrival(peer, stamp) is Arrival.OVER

    def goodbye(self, account: Account | None = None) -> None:
        """Tell all others that this process has ended its program, and its last steps."""
        if account is None:
            account = self.agreement.account(whole=True, ended=ENDED)
        self._end = account.ended
        self._tell_all(("bye", account))

    def claim(self) -> None:
        """Tell all others that this process is about to report what several have found."""
        self._tell_all(("claims", self.agreement.index))

    def report(self) -> None:
        """Tell all others that this process ends because of the fault that it has found."""
        self._tell_all(("reported", self.agreement.index))

    def all_reported(self) -> bool:
        """Whether all others that can report have reported what is wrong."""
        self._hear()
        known = self._reported | self._ended.keys()
        return all(p in known or self._is_gone(p) for p in self._others())

    def first_to_report(self) -> bool | None:
        """Whether this process is the first that claims to report; None if not yet known."""
        self._hear()
        before = [p for p in self._others() if p < self.agreement.index]
        if any(p in self._claiming for p in before):
            return False
        return True if all(p in self._ended or self._is_gone(p) for p in before) else None

    def all_ended(self) -> bool:
        """Whether all others have ended their programs."""
        self._hear()
        return all(p in self._ended for p in self._others())

    def any_ended(self) -> bool:
        """Whether another has ended its program, without an error."""
        return any(self._heard[p].ended == ENDED for p in self._ended)

    def any_failed(self) -> bool:
        """Whether another has died, or ends because of an error."""
        self._hear()
        failed = any(self._heard[p].ended != ENDED for p in self._ended)
        return bool(failed or self._reported or any(map(self._is_gone, self._others())))

    def any_died(self) -> bool:
        """Whether another of the first processes has died, and yet this process lives."""
        first = range(self.agreement.count)
        return any(p in self.over or self._is_gone(p) for p in first)

    def give_up_the_stopped(self) -> None:
        """Tell those that are seen to be gone and yet live that this process ends without them."""
        self._dismiss(filter(self._is_gone, self._others()))

    def hear(self) -> None:
        """Read the letters that have arrived; one of them may say that this process must end."""
        self._hear()

    def _others(self) -> list[int]:
        return [p for p in self.membership.members if p != self.agreement.index]

    def renew(self, lost: Iterable[int]) -> None:
        """Go on after a change of those who take part; what was known of steps is over.

        Args:
            lost: processes that have taken part; those that do so still are among them.
        """
        members = set(self.membership.members)
        self.over = (self.over | set(lost)) - members
        self.known |= self.over | members
        self._here, self.loss, self._missing, self._unsure = None, None, (), False
        tables: tuple[dict[int, Any], ...] = (self._left, self._met, self._gone_on, self._losses)
        for table in tables:
            table.clear()
        self._heard = {p: a for p, a in self._heard.items() if p in self._ended}
        self._whole.clear()
        self._epochs.clear()

    def interrupted(self) -> str | None:
        """Return where this process waits, in case it is ended from outside; else None."""
        if self._missing:
            self._hear()
        return self._sentence("waited") if self._missing else None

    # joining

    def may_grow(self) -> bool:
        """Whether there are processes that could join, now or later; the same on all."""
        known = self.known - self.over
        return len(known) > len(self.membership.members) or self._channel.is_open()

    def waiting(self) -> set[int]:
        """Return the processes that are known to wait."""
        self._hear()
        return {p for p in self.membership.waiting if not self._is_gone(p)}

    def callers(self) -> list[Facts]:
        """Return the processes that have come from outside to join, and wait at this process."""
        self._hear()
        return self._channel.callers()

    def learn(self, known: Mapping[int, Facts]) -> None:
        """Learn about the processes of the job, once it is decided who takes part."""
        self._channel.learn(known, self.membership.members)

    def wait_to_join(self) -> None:
        """Tell all others that this process waits to join them."""
        self._tell_all(("waits", self.agreement.index))

    def works(self) -> None:
        """Tell all others that this process waits no more."""
        self._tell_all(("works", self.agreement.index))

    def invitation(self) -> frozenset[int] | None:
        """Return who would take part with this process, which waits; None if none has asked."""
        self._hear()
        return self.membership.invitation()

    def all_gone(self) -> bool:
        """Whether no other process is left that could take this one in."""
        waiting = {*self.membership.waiting, self.agreement.index}
        others = self.known - waiting
        return not self._channel.is_expected() and all(
            p in self._ended or self._is_gone(p) for p in others
        )

    # letters

    def _tell_all(self, letter: object) -> None:
        for peer in sorted(self.known - self.over):
            if peer != self.agreement.index:
                self._channel.post(peer, letter)

    def _ask(self, peers: Iterable[int]) -> None:
        told = self.agreement.account(self._missing)
        for peer in peers:
            if peer not in self._ended:
                self._channel.post(peer, ("ask", told))

    def _hear(self) -> None:
        now = time.monotonic()
        for topic, letter in self._channel.collect():
            if topic in ("claims", "reported"):
                (self._claiming if topic == "claims" else self._reported).add(letter)
            elif topic in _OF_MEMBERS:
                self.membership.hear(topic, letter)
                if topic == "proposes" and letter.number > self.membership.number:
                    self._learn_who_is_given_up(letter.index, letter.lost)
            elif topic == "lost":
                self._losses[letter.index] = letter
                self._learn_who_is_given_up(letter.index, letter.processes)
            elif topic == "dismisses":
                self._learn_who_is_given_up(letter, (self.agreement.index,))
            else:
                self._hear_account(topic, letter, now)

    def _learn_who_is_given_up(self, teller: int, processes: Iterable[int]) -> None:
        """Give up whom another process has given up: all that live go on without the same."""
        me = self.agreement.index
        if me in processes:
            if teller not in self._given_up and self._end != ENDED:
                self._channel.dismissed(given_up(me, f"process {teller}"))
            return
        self._dismiss(processes)

    def _dismiss(self, processes: Iterable[int]) -> None:
        """Tell processes that live that they were given up, so that they do not go on alone."""
        for peer in set(processes) - self._given_up - self._ended.keys():
            self._given_up.add(peer)
            self._channel.post(peer, ("dismisses", self.agreement.index))
            self._channel.dismiss(peer)

    def _hear_account(self, topic: str, letter: Any, now: float) -> None:
        """Learn from a letter that holds an account of its sender."""
        account: Account = letter
        if topic == "left":
            account = letter.account
            self._left[account.index] = letter
        elif topic == "alarm":
            account, epochs = letter
            if self.agreement.is_news(epochs):
                self._raise_alarm(epochs)
            elif not self._epochs:  # it waits for what this process knows
                mine = self.agreement.account(self._missing, whole=True)
                self._channel.post(account.index, ("told", mine))
        if topic == "ask" and account.index not in self._ended:
            mine = self.agreement.account(self._missing, ended=self._end)
            self._channel.post(account.index, ("answer", mine))
        elif topic in ("alarm", "told"):
            self._whole[account.index] = account
        elif topic == "bye":
            self._ended[account.index] = now
            if not (self._epochs and account.index in self._whole):  # it told more in the alarm
                self._whole[account.index] = account
        self._heard[account.index] = account
        self._compare(account.index, now)
        found = self.agreement.contradictions(account)
        if self.agreement.is_news(found):
            self._raise_alarm(found)

    def _compare(self, peer: int, now: float) -> None:
        """Record that a process has left the step that this one is in."""
        if self._here is None:
            return
        members, step = self._here
        account, left = self._heard.get(peer), self._left.get(peer)
        gone: set[int] = set()
        if account is not None and account.steps.get(members, 0) > step:
            gone.add(peer)
        if left is not None and left.steps.get(members, 0) >= step:
            gone |= {peer, *(left.lost if left.steps[members] == step else ())}
        for one in gone:
            self._gone_on[one] = min(self._gone_on.get(one, now), now)

    def _raise_alarm(self, epochs: Mapping[Members, int]) -> None:
        """Send all others the whole account; they do the same."""
        new = {m: e for m, e in epochs.items() if self._epochs.get(m, 0) < e}
        if not new:
            return
        if not self._epochs:  # a report from before another alarm is not about this one
            self._whole = {p: a for p, a in self._whole.items() if p in self._ended}
        self._epochs.update(new)
        mine = self.agreement.account(self._missing, whole=True)
        self._whole[mine.index] = mine
        self._tell_all(("alarm", (mine, dict(self._epochs))))

    def _conclude(self) -> NoReturn:
        """Wait until all have reported, or for the grace period, and say who has diverged."""
        until = time.monotonic() + _GRACE
        while True:
            self._hear()
            everybody = self.membership.members
            silent = [p for p in everybody if p not in self._whole]
            if all(map(self._is_gone, silent)) or time.monotonic() > until:
                break
            time.sleep(1e-3)
        told = divergence(self._whole) or (
            f"{numbered(sorted({p for m in self._epochs for p in m}), capital=True)} have run "
            "different operations, further back than they remember."
        )
        self.agreement.begin(self._epochs)
        self._epochs.clear()
        quiet = f" There is no report of {numbered(silent)} yet." if silent else ""
        raise AgreementError(told + quiet)

    # missing processes

    def _is_gone(self, peer: int) -> bool:
        """Whether a process is given up: once it is, it stays so, even if it is seen to live."""
        if peer in self._given_up:
            return True
        fate = self._channel.fate(peer)
        return fate is not None and fate[1]

    def _is_lost(self, peer: int, now: float) -> bool:
        """Whether nothing of this step will arrive from a process, running or ended."""
        settled = min(_SETTLED, self.deadline / 4)
        left = self._left.get(peer)
        if left is not None and left.died and self._has_left(left):
            settled = min(settled, _AT_ONCE)
        since = min(self._ended.get(peer, now), self._gone_on.get(peer, now))
        return now - since >= settled or self.membership.has_left(peer)

    def _dead(self) -> tuple[int, ...]:
        """Return the processes whose death is why this one waits in vain."""
        missing = set(self._missing)
        for peer in self._missing:
            left = self._left.get(peer)
            if left is not None and self._has_left(left):
                missing |= {*left.died, *left.lost}
            if self.membership.has_left(peer):
                missing |= self.membership.accused
        return tuple(sorted([p for p in missing if self._is_gone(p)]))

    def _report_loss(self, dead: tuple[int, ...]) -> NoReturn:
        """Raise the error that all living processes raise that miss the dead.

        Raises:
            ProcessLostError: always.
        """
        mine = self.agreement.account()
        how = {p: self._known(p) for p in dead}
        place = mine.before + len(mine.entries)
        loss = Loss(mine.index, dead, how, place, self._missing, mine.last, time.time())
        self._losses[mine.index] = loss
        self._tell_all(("lost", loss))
        self._dismiss(dead)
        until = time.monotonic() + _SETTLE
        living = [p for p in self._others() if p not in dead]
        while time.monotonic() < until and any(p not in self._losses for p in living):
            self._hear()
            time.sleep(1e-3)
        self.loss = min(self._losses.values(), key=lambda found: found.order)
        raise self.loss.error()

    def _is_odd(self) -> bool:
        """Whether something can be seen to be wrong with a missing process."""
        return any(self._channel.fate(p) is not None for p in self._missing)

    def _give_up(self, waited: str, why: str = "", law: str = "") -> NoReturn:
        """Stop waiting.

        Args:
            waited: how long this process has waited.
            why: the reason, if it is known.
            law: what limits the wait.
        """
        dead = self._dead()
        if dead:
            self._report_loss(dead)
        mine = self.agreement.account(self._missing)
        found = why or modes({**self._heard, mine.index: mine})
        if found is None and not any(p in self._gone_on or self._is_gone(p) for p in self._missing):
            found = "Do all processes run the same operations?"
        raise TransportError(" ".join(filter(None, (self._sentence(waited), found, law))))

    def _sentence(self, waited: str) -> str:
        """Return who waits for whom, where, and what is known about them and others."""
        mine = self.agreement.account()
        where = "" if mine.last is None else f", in {doing(mine.last)}"
        told = [f"Process {mine.index} {waited} for {numbered(self._missing)}{where}."]
        told_of = {p for m in self._missing if m in self._gone_on for p in self._lost_by(m)}
        peers = dict.fromkeys((*self._missing[:_TOLD], *sorted(told_of)[:_TOLD]))
        others = [p for p in sorted(self._heard) if p not in peers][:_TOLD]
        told += [self._known(p) for p in (*peers, *others) if p != mine.index]
        return " ".join(told)

    def _lost_by(self, peer: int) -> tuple[int, ...]:
        """Return the processes that another one waited for in vain in this step."""
        left = self._left.get(peer)
        return left.lost if left is not None and self._has_left(left) else ()

    def _has_left(self, left: Departure) -> bool:
        return self._here is not None and left.steps.get(self._here[0], 0) >= self._here[1]

    def _known(self, peer: int) -> str:
        """Return what is known about a process."""
        account, fate, met = self._heard.get(peer), self._channel.fate(peer), self._met.get(peer)
        left = self._left.get(peer)
        if left is not None and self._has_left(left):
            return f"Process {peer} has left this step: it {left.why}."
        if account is not None and account.ended is not None:
            told = account.ended
        elif fate is not None:
            told = fate[0]
        elif account is None:
            told = "has not answered"
        elif account.waits:
            return f"Process {peer} waits for {numbered(account.waits)}, in {doing(account.last)}."
        else:
            told = "is running"
        if account is not None and account.last is not None:
            return f"Process {peer} {told}; it was last heard of in {doing(account.last)}."
        if met is not None:
            return (
                f"Process {peer} {told}; it came as far as {doing(RememberedStep(*met).report())}."
            )
        return f"Process {peer} {told}."


@final
class _Eyes:
    """How the watchdog sees the others while they decide who takes part."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def hear(self) -> None:
        self._watchdog._hear()

    def post(self, peer: int, letter: object) -> None:
        self._watchdog._channel.post(peer, letter)

    def admit(self, newcomers: Iterable[Facts]) -> None:
        self._watchdog._channel.admit(newcomers)

    def is_gone(self, peer: int) -> bool:
        return peer in self._watchdog._ended or self._watchdog._is_gone(peer)

    def dismiss(self, peers: Iterable[int]) -> None:
        self._watchdog._dismiss(peers)
