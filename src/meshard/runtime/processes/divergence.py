"""Which process has diverged, in which operation and at which line, as a sentence.

In: the recent steps that some processes reported. Out: one sentence, the same on all processes that
have the same accounts; None if the accounts agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from meshard.runtime.processes.agreement import (
    Account,
    Members,
    StepReport,
    counted,
    crossed,
    parted,
)

_LAW = (
    "All processes must run the same operations, in the same order, on arrays that they share; "
    "what a process does with arrays of its own is its own affair."
)
Steps = Mapping[int, Mapping[int, StepReport]]


def divergence(accounts: Mapping[int, Account]) -> str | None:
    """Return which processes have diverged and how; None if none is known to."""
    return _first_difference(accounts) or _parted(accounts)


def _first_difference(accounts: Mapping[int, Account]) -> str | None:
    sets: dict[Members, dict[int, dict[int, StepReport]]] = {}
    for process, account in sorted(accounts.items()):
        for entry in account.entries:
            sets.setdefault(entry.members, {}).setdefault(process, {})[entry.step] = entry
    differing: list[tuple[int, Members, int]] = []
    for members, steps in sets.items():
        step = _where(steps)
        if step is not None:
            # If there are several, take the one that some process ran before the others.
            first = min(_place(accounts[p], steps[p][step]) for p in steps if step in steps[p])
            differing.append((first, members, step))
    if not differing:
        return None
    _, members, step = min(differing)
    return _difference(members, step, sets[members])


def _place(account: Account, entry: StepReport) -> int:
    """Return a number that is the smaller, the longer ago a process ran a step."""
    return account.entries.index(entry) - len(account.entries)


def _where(steps: Steps) -> int | None:
    """Return the first step whose hashes differ."""
    for step in sorted({s for own in steps.values() for s in own}):
        if len({own[step].hash for own in steps.values() if step in own}) > 1:
            return step
    return None


def _difference(members: Members, step: int, steps: Steps) -> str:
    at = {p: own[step] for p, own in sorted(steps.items()) if step in own}
    groups: dict[int, list[int]] = {}
    for process, entry in at.items():
        groups.setdefault(entry.number, []).append(process)
    parties = sorted(groups.values(), key=lambda g: (-len(g), g[0]))
    where = f"step {counted(step)} of {numbered(members)}"
    if len(parties) == 1:
        return (
            f"{numbered(list(at), capital=True)} have diverged before {where}, further back than "
            f"they remember; they are now in {_ran(at, parties[0])}. {_LAW} MESHARD_CHECK=full "
            "compares each step at once."
        )
    most, *others = parties
    if len(most) == len(others[0]):
        told = "; ".join(f"{numbered(g)} ran {_ran(at, g)}" for g in parties)
        return f"{numbered(list(at), capital=True)} disagree in {where}: {told}. {_LAW}"
    told = "; ".join(
        f"{numbered(g, capital=i == 0)} {_has(g)} diverged in {where}: ran {_ran(at, g)}"
        for i, g in enumerate(others)
    )
    rest = "the others" if len(most) + 1 == len(members) else numbered(most)
    hint = "".join(_hint(steps, step, g, most) for g in others)
    return f"{told}, where {rest} ran {_ran(at, most)}.{hint} {_LAW}"


def _hint(steps: Steps, step: int, wrong: Sequence[int], most: Sequence[int]) -> str:
    """Return the likely cause: a call left out, or one too many."""
    here, there = steps[wrong[0]], steps[most[0]]
    mine, theirs = here[step], there[step]
    if step + 1 in there and there[step + 1].number == mine.number:
        return (
            f" It looks as if {numbered(wrong)} left out the call at {theirs.line}: what "
            f"{'they' if len(wrong) > 1 else 'it'} ran is what the others ran next."
        )
    if step + 1 in here and here[step + 1].number == theirs.number:
        return f" It looks as if only {numbered(wrong)} made the call at {mine.line}."
    return ""


def _ran(at: Mapping[int, StepReport], group: Sequence[int]) -> str:
    """Return an operation and the lines where a group ran it."""
    lines = _grouped([(p, at[p].line) for p in group])
    return f"{at[group[0]].text} at {lines}"


def _grouped(told: Sequence[tuple[int, str]]) -> str:
    """Return ``A`` if all agree, else ``A on processes 0, 1; B on process 2``."""
    groups: dict[str, list[int]] = {}
    for process, text in told:
        groups.setdefault(text, []).append(process)
    if len(groups) == 1:
        return told[0][1]
    return ", ".join(f"{text} on {numbered(group)}" for text, group in groups.items())


def _parted(accounts: Mapping[int, Account]) -> str | None:
    """Return two processes that have run different operations, or with different processes."""
    for p, q in combinations(sorted(accounts), 2):
        one, other = accounts[p], accounts[q]
        found: tuple[StepReport | None, StepReport | None] | None = parted(one, other)
        if found is None and crossed(one, other) is not None:
            found = one.last, other.last
        if found is None:
            continue
        for_one, for_other = _support(accounts, found[0], p), _support(accounts, found[1], q)
        if for_one == for_other:
            return (
                f"Processes {p} and {q} run different operations: process {p} ran "
                f"{doing(found[0])}; process {q} ran {doing(found[1])}. {_LAW}"
            )
        wrong, right, steps = (q, p, found[::-1]) if for_one > for_other else (p, q, found)
        return (
            f"Process {wrong} has diverged: it ran {doing(steps[0])}, where process {right} ran "
            f"{doing(steps[1])}. {_LAW}"
        )
    return None


def _support(accounts: Mapping[int, Account], entry: StepReport | None, besides: int) -> int:
    """Return how many other processes have run a step too."""
    if entry is None:
        return 0
    key = entry.members, entry.hash
    return sum(
        any((e.members, e.hash) == key for e in account.entries)
        for p, account in accounts.items()
        if p != besides
    )


def modes(accounts: Mapping[int, Account]) -> str | None:
    """Return how the processes differ in their setting ``check``; None if they do not."""
    told = [(p, repr(a.mode)) for p, a in sorted(accounts.items())]
    if len({mode for _, mode in told}) == 1:
        return None
    return (
        f"The setting check (MESHARD_CHECK) is {_grouped(told)}: it must be the same on all "
        "processes, and must be changed at the same place in the program."
    )


def doing(entry: StepReport | None) -> str:
    """Return a step as messages describe it."""
    if entry is None:
        return "no step yet"
    return f"step {counted(entry.step)} of {numbered(entry.members)}, {entry.text} at {entry.line}"


def numbered(processes: Sequence[int], *, capital: bool = False) -> str:
    """Return ``process 2``, ``processes 0 and 1``, or ``processes 0, 1, 2``."""
    word = "Process" if capital else "process"
    if len(processes) == 1:
        return f"{word} {processes[0]}"
    told = list(map(str, processes))
    if len(told) == 2:
        return f"{word}es {told[0]} and {told[1]}"
    if len(told) > 8 and list(processes) == list(range(processes[0], processes[-1] + 1)):
        return f"{word}es {told[0]} to {told[-1]}"
    return f"{word}es {', '.join(told)}"


def _has(group: Sequence[int]) -> str:
    return "has" if len(group) == 1 else "have"
