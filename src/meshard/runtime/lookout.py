"""Looking around while waiting: who has not come, and what does each process do?

In: letters that processes send each other beside the messages that they wait for. Out: an error on
every process that can still tell one, as soon as it is known who has diverged, ended or died, and
at the latest when the deadline has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, final

from meshard.errors import AgreementError, TransportError

from .agreement import Account, Agreement, Remembered, Step
from .verdict import doing, modes, numbered, verdict

__all__ = ["Letters", "Lookout"]

_PATIENCE = 0.4
"""Seconds of a wait after which a process asks those that it waits for."""
_SELDOM = 0.02
"""Seconds between two looks at the letters."""
_GRACE = 2.0
"""Seconds that the others have to tell what they know, once something is wrong."""
_SETTLED = 0.5
"""Seconds after which no message of a process that has ended can still be on its way."""
_NOTICE = 30.0
"""Seconds of a wait, or half the deadline, after which the user is told of it."""
_TOLD = 4


class Letters(Protocol):
    """The side channel: small objects, sent and received without waiting."""

    def post(self, peer: int, letter: object) -> None:
        """Send a letter."""

    def collect(self) -> list[Any]:
        """Return the letters that have come since."""

    def fate(self, peer: int) -> tuple[str, bool] | None:
        """Return what is the matter with a process, seen from outside, and whether it is its end.

        None if nothing is, or nothing can be seen.
        """

    def notice(self, text: str) -> None:
        """Tell the user something while the wait goes on."""


@final
class Lookout:
    """What one process knows of the others while it waits.

    Args:
        agreement: what it keeps of its own steps.
        letters: how to ask.
        deadline: seconds that it waits.
    """

    def __init__(self, agreement: Agreement, letters: Letters, deadline: float) -> None:
        self.agreement = agreement
        self.deadline = deadline
        self._letters = letters
        self._heard: dict[int, Account] = {}
        self._whole: dict[int, Account] = {}
        self._ended: dict[int, float] = {}
        self._met: dict[int, Remembered | None] = {}
        self._over: set[int] = set()
        self._reported: set[int] = set()
        self._alarmed = self._noticed = False
        self._missing: tuple[int, ...] = ()
        self._begun = self._next_look = self._next_ask = self._next_notice = 0.0

    def begin(self) -> None:
        """Note that a wait begins to last."""
        now = time.monotonic()
        self._begun = now
        self._next_look = now + _SELDOM
        self._next_ask = now + min(_PATIENCE, self.deadline / 4)
        self._next_notice = now + min(_NOTICE, self.deadline / 2)
        self._missing = ()
        self._noticed = False

    def end(self) -> None:
        """Note that nothing is waited for any more."""
        self._missing = ()

    def met(self, peers: Iterable[int]) -> None:
        """Note that messages of processes have come: they have reached the step that this is."""
        latest = self.agreement.latest
        for peer in peers:
            self._met[peer] = latest

    def look(self, missing: Callable[[], Sequence[int]]) -> None:
        """Look around, if it is time to.

        Args:
            missing: says which processes have not come yet.

        Raises:
            AgreementError: if processes have diverged.
            TransportError: if one that has not come has ended or died, or the deadline has passed.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _SELDOM
        late = now - self._begun >= self.deadline
        asks = late or now >= self._next_ask
        if asks or not self._missing or self._ended or self._over:
            self._missing = tuple(missing())
            if not self._missing:
                return
        self._hear()
        if self._alarmed:
            self._conclude()
        if asks:
            self._next_ask = now + max(_PATIENCE, min(_NOTICE, (now - self._begun) / 2))
            told = self.agreement.account(self._missing)
            for peer in self._missing:
                if peer not in self._ended:
                    self._letters.post(peer, ("ask", told))
        if late:
            law = "MESHARD_TIMEOUT sets the seconds that one waits for another."
            self._give_up(f"has waited {self.deadline:g} s", law=law)
        settled = min(_SETTLED, self.deadline / 4)
        if (
            any(p in self._ended and now - self._ended[p] >= settled for p in self._missing)
            or (asks and any(map(self._is_gone, self._missing)))
            or self._over
        ):
            self._give_up("waits")
        if now >= self._next_notice or (asks and not self._noticed and self._is_odd()):
            self._next_notice, self._noticed = now + self.deadline, True
            self._letters.notice(self._sentence(f"has waited {now - self._begun:.1f} s"))

    def last_look(self, missing: Sequence[int]) -> None:
        """Look around for the last time, where it is known that nothing more will come.

        Raises:
            AgreementError: if processes have diverged.
            TransportError: if one that has not come has ended.
        """
        self._missing = tuple(missing)
        self._hear()
        if self._alarmed:
            self._conclude()
        if any(p in self._ended for p in missing) or self._over:
            self._give_up("waits")

    def suspect(self, peers: Sequence[int]) -> None:
        """Find out who has diverged, after a message of ``peers`` that does not fit.

        Raises:
            AgreementError: if the processes' accounts show it.
        """
        self._missing = tuple(peers)
        self._raise_alarm()
        self._conclude()

    def failed(self, missing: Sequence[int], why: str) -> NoReturn:
        """Say that the messages with some processes have failed.

        Raises:
            AgreementError: if processes have diverged.
            TransportError: else.
        """
        self._missing = tuple(missing)
        self._hear()
        if self._alarmed:
            self._conclude()
        self._give_up("waits", f"MPI reports: {why}.")

    def goodbye(self, account: Account | None = None) -> None:
        """Tell all others that this process has ended its program, and its last steps."""
        if account is None:
            account = self.agreement.account(whole=True, ended="has ended its program")
        self._tell_all(("bye", account))

    def report(self) -> None:
        """Tell all others that this process has said what is wrong."""
        self._tell_all(("reported", self.agreement.index))

    def all_reported(self) -> bool:
        """Whether all others that can have said what is wrong."""
        self._hear()
        known = self._reported | self._ended.keys() | self._over | {self.agreement.index}
        return all(p in known or self._is_gone(p) for p in range(self.agreement.count))

    def interrupted(self) -> str | None:
        """Return where this process waits, for when it is ended from outside; None if it is not."""
        return self._sentence("waited") if self._missing else None

    # letters

    def _tell_all(self, letter: object) -> None:
        for peer in range(self.agreement.count):
            if peer != self.agreement.index:
                self._letters.post(peer, letter)

    def _hear(self) -> None:
        for kind, letter in self._letters.collect():
            if kind == "reported":
                self._reported.add(letter)
                continue
            account: Account = letter[0] if kind == "over" else letter
            if kind == "ask" and account.index not in self._ended:
                mine = self.agreement.account(self._missing)
                self._letters.post(account.index, ("answer", mine))
            elif kind == "alarm":
                self._whole[account.index] = account
                self._raise_alarm("told")
            elif kind == "told":
                self._whole[account.index] = account
            elif kind == "bye":
                self._ended[account.index] = time.monotonic()
                self._whole[account.index] = account
            elif kind == "over":
                self._over.update(letter[1])
            self._heard[account.index] = account
            if self.agreement.differs(account):
                self._raise_alarm()

    def _raise_alarm(self, kind: str = "alarm") -> None:
        """Tell all others everything; they do the same."""
        if self._alarmed:
            return
        self._alarmed = True
        mine = self.agreement.account(self._missing, whole=True)
        self._whole[mine.index] = mine
        self._tell_all((kind, mine))

    def _conclude(self) -> None:
        """Wait until all have told everything, or for the grace, and say who has diverged."""
        until = time.monotonic() + _GRACE
        while True:
            self._hear()
            silent = [p for p in range(self.agreement.count) if p not in self._whole]
            if all(map(self._is_gone, silent)) or time.monotonic() > until:
                break
            time.sleep(1e-3)
        self._alarmed = False
        told = verdict(self._whole)
        if told is not None:
            quiet = f" {numbered(silent, capital=True)} said nothing yet." if silent else ""
            raise AgreementError(told + quiet)

    # those who do not come

    def _is_gone(self, peer: int) -> bool:
        fate = self._letters.fate(peer)
        return fate is not None and fate[1]

    def _is_odd(self) -> bool:
        """Whether something can be seen to be the matter with one that has not come."""
        return any(self._letters.fate(p) is not None for p in self._missing)

    def _give_up(self, waited: str, why: str = "", law: str = "") -> NoReturn:
        """Stop waiting, and let the others know that it is in vain.

        Args:
            waited: how long this process has waited.
            why: the reason, if it is known.
            law: what sets an end to the wait.
        """
        mine = self.agreement.account(self._missing)
        lost = self._over | set(self._missing)
        if not lost <= self._over:
            self._over = lost
            self._tell_all(("over", (mine, tuple(sorted(lost)))))
        found = why or modes({**self._heard, mine.index: mine})
        if found is None and not any(map(self._is_gone, lost)):
            found = "Do all processes run the same operations?"
        raise TransportError(" ".join(filter(None, (self._sentence(waited), found, law))))

    def _sentence(self, waited: str) -> str:
        """Return who waits for whom, where, and what is known of them and of others."""
        mine = self.agreement.account()
        where = "" if mine.last is None else f", in {doing(mine.last)}"
        told = [f"Process {mine.index} {waited} for {numbered(self._missing)}{where}."]
        peers = dict.fromkeys((*self._missing[:_TOLD], *sorted(self._over)[:_TOLD]))
        others = [p for p in sorted(self._heard) if p not in peers][:_TOLD]
        told += [self._known(p) for p in (*peers, *others) if p != mine.index]
        return " ".join(told)

    def _known(self, peer: int) -> str:
        """Return what is known of a process."""
        account, fate, met = self._heard.get(peer), self._letters.fate(peer), self._met.get(peer)
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
            return f"Process {peer} {told}; it came as far as {doing(Step(*met).entry())}."
        return f"Process {peer} {told}."
