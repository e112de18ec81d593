"""What ranks tell each other before anything moves, so that all go on or all raise.

One exchange of small objects: whether a rank has refused, and a digest of what it is about to do.
If the digests differ a second one finds the first line that does. Ranks that are all on one host
pass them through memory, others in a collective.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary

from meshard.algebra.arguments import shown
from meshard.algebra.world import known_world
from meshard.errors import (
    AgreementError,
    ArgumentError,
    ConfigError,
    ProcessLostError,
    TransportError,
)
from meshard.interop.tensors.carrying import LostError, memory_of, wire_kind
from meshard.interop.tensors.near import Calling, Near, calling, is_gone
from meshard.interop.tensors.specs import distributed, torch
from meshard.interop.tensors.wanted import digest, group_ranks, shortened
from meshard.mpi.launch import check_joinable, join
from meshard.runtime.lines.letters import decode, encode, sent


@sent
@final
@dataclass(frozen=True)
class Note:
    """What one rank tells the others, if it goes on.

    Attributes:
        digest: what it is about to do; None if it has no tree, and does not know.
        tied: for each tensor the first one of the same memory here; -1 if nothing of it is here.
    """

    digest: bytes | None = None
    tied: tuple[int, ...] = ()


def check_group(what: str, group: Any = None) -> None:
    """Refuse to go on without a process group that has this rank.

    Raises:
        ArgumentError: if ``group`` is not a process group, or this rank is not in it.
        ConfigError: if there is none at all, with what to call.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        raise ConfigError(
            f"{what}: there is no process group. Call torch.distributed.init_process_group first, "
            "in a program started by torchrun."
        )
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError(
            f"{what}: rank {distributed.get_rank()} is not in the process group that was given, "
            "so it must not call. Only the ranks of a group call together."
        )
    if group is not None and not isinstance(group, distributed.ProcessGroup):
        raise ArgumentError(
            f"{what}: group must be a process group, as torch.distributed.new_group returns one, "
            f"or None for that of the whole job, not {shown(group)} of type "
            f"{type(group).__name__}."
        )


def gathered(value: Any, group: Any, what: str) -> list[Any]:
    """Return what every rank of a group gives, in the order of the group.

    What is short passes in one collective of a fixed size; if one rank has more to say, a second
    one has room for it.

    Raises:
        TransportError: if a rank cannot be reached.
    """
    known = _KNOWN.get(_key(group))
    if known is not None and known.near is not None:
        try:
            return known.near.all_gather(value)
        except LostError as error:
            raise lost(what, known, error, error.rank) from error
    count = len(group_ranks(group))
    words = encode(value)
    try:
        letters = _passed(words, _LETTER, count, group)
        longest = max([_length(letter) for letter in letters])
        if longest > _LETTER - _HEAD:
            letters = _passed(words, longest + _HEAD, count, group)
    except (RuntimeError, ValueError) as error:
        told = (str(error).splitlines() or ["no reason was given"])[0]
        raise TransportError(
            f"{what}: the ranks of the process group could not agree: {told}. Nothing has moved."
        ) from error
    return [decode(x[_HEAD : _HEAD + _length(x)]) for x in letters]


_LETTER, _HEAD = 1024, 8


def _length(letter: bytes) -> int:
    return int.from_bytes(letter[:_HEAD], "little")


def _passed(words: bytes, size: int, count: int, group: Any) -> list[bytes]:
    """Return what each rank has said, cut to a size that is the same for all."""
    letter = (len(words).to_bytes(_HEAD, "little") + words)[:size].ljust(size, b"\0")
    device = memory_of(wire_kind(group, ["cuda"] if torch.cuda.is_available() else [])).device
    sent = torch.frombuffer(bytearray(letter), dtype=torch.uint8).to(device)
    found = [torch.empty_like(sent) for _ in range(count)]
    distributed.all_gather(found, sent, group=group)
    return [x.cpu().numpy().tobytes() for x in found]


def checked_by_all(check: Callable[[], Any], group: Any, what: str) -> list[Any]:
    """Return what a check returns on each rank, or raise on all ranks if it raises on one.

    It is the first thing that ranks tell each other in each function. So a rank that has refused a
    call before the others could learn of it, and is in another function now, is found out.

    Raises:
        AgreementError: on ranks on which it has returned; it names those on which it has not, or
            those that have called another function.
    """
    own: BaseException | None = None
    value = refusal = None
    try:
        value = check()
    except Exception as error:  # told to the other ranks, and raised when they know
        own, refusal = error, f"{type(error).__name__}: {error}"
    every = gathered((what, refusal, value), group, what)
    if own is not None:
        raise own
    ranks = group_ranks(group)
    for rank, (called, *_) in zip(ranks, every, strict=True):
        if called != what:
            raise AgreementError(
                f"{what}: rank {distributed.get_rank()} has called {what}, but rank {rank} "
                f"{called}. All ranks of a process group call the same function; one may have "
                "refused the call before this one. Nothing has moved: call again, on all ranks."
            )
    refusing = [(r, why) for r, (_, why, _) in zip(ranks, every, strict=True) if why is not None]
    if refusing:
        rank, why = refusing[0]
        why = why if why.endswith((".", "!", "?")) else why + "."
        more = f" So did ranks {[r for r, _ in refusing[1:]]}." if refusing[1:] else ""
        raise AgreementError(f"{what}: rank {rank} refused: {why}{more} Nothing has moved.")
    return [value for *_, value in every]


def same(notes: Sequence[Note], told: Sequence[str], group: Any, what: str) -> None:
    """Raise on all ranks if they are about to do different things.

    Raises:
        AgreementError: with the first line that differs.
    """
    if len({note.digest for note in notes}) == 1:
        return
    every = gathered(tuple(told), group, what)
    ranks, first = group_ranks(group), every[0]
    for rank, lines in zip(ranks, every, strict=True):
        found = shortened(first, lines)
        if found or len(lines) != len(first):
            a, b = found or (f"tensors: {len(first) - 1}", f"tensors: {len(lines) - 1}")
            raise AgreementError(
                f"{what}: the ranks were called with different arguments. Rank {ranks[0]} has "
                f"[{a}], rank {rank} has [{b}]. Pass the same tree and targets on all ranks of the "
                "process group. Nothing has moved."
            )


def note_of(told: Sequence[str], tied: Sequence[int]) -> Note:
    """Return the note of a rank that goes on."""
    return Note(digest(told), tuple(tied))


# who the ranks are


_PATIENCE = 0.5
"""Seconds between two looks at who is still there."""


@final
@dataclass(frozen=True)
class Ranks:
    """The processes of a group.

    Attributes:
        ranks: their ranks.
        callings: what each has told of itself.
        near: the memory that they share; None if they do not.
    """

    ranks: tuple[int, ...]
    callings: tuple[Calling, ...]
    near: Near | None

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Be in a call, as all of them are; they learn of it if this rank leaves by an error."""
        if self.near is None:
            yield
            return
        self.near.enter()
        try:
            yield
        except BaseException as error:
            first = error.processes if isinstance(error, ProcessLostError) else ()
            self.near.leave(first[0] if first else None)
            raise


_KNOWN: WeakKeyDictionary[Any, Ranks] = WeakKeyDictionary()


def _key(group: Any) -> Any:
    return distributed.group.WORLD if group is None else group


def known_ranks(group: Any, what: str) -> Ranks:
    """Return who the ranks of a group are, and the memory that they share, if they do.

    All ranks of the group find out together, once; all get the same answer.
    """
    key = _key(group)
    if key not in _KNOWN:
        ranks, rank = group_ranks(group), distributed.get_rank()
        every = gathered(calling(), group, what)
        near = None
        if every[0].host and all(x.host == every[0].host for x in every):
            seconds = _timeout(key)
            near = Near(ranks, rank, every, lambda value: gathered(value, group, what), seconds)
        reached = near is not None and near.reached
        _KNOWN[key] = Ranks(ranks, tuple(every), near if reached else None)
    return _KNOWN[key]


def _timeout(group: Any) -> float:
    """Return the seconds after which a collective of a group fails."""
    try:
        backend = group._get_backend(torch.device("cpu"))
        found: float = backend.options._timeout.total_seconds()
    except (AttributeError, RuntimeError):
        return float(distributed.default_pg_timeout.total_seconds())
    return found


def gone_ranks(known: Ranks) -> list[int]:
    """Return the ranks on this host whose processes have ended."""
    return [r for r, c in zip(known.ranks, known.callings, strict=True) if is_gone(c)]


def wait_for(work: Any, known: Ranks) -> None:
    """Wait until a collective has ended, but not for processes that have.

    PyTorch itself notices the end of direct partners only, and for others waits for its timeout.

    Raises:
        ProcessLookupError: if a process of this host has ended meanwhile.
    """
    begun = asked = time.monotonic()
    while not work.is_completed():
        now = time.monotonic()
        if now - asked > _PATIENCE:
            gone, asked = gone_ranks(known), now
            if gone:
                raise ProcessLookupError("it did not come to where all meet")
        time.sleep(min(max(2e-5, (now - begun) / 10), 5e-3))


def lost(what: str, known: Ranks, error: object, peer: int | None = None) -> ProcessLostError:
    """Return the error of an exchange that failed, which names the ranks that have ended.

    Args:
        what: the function that was called.
        known: who the ranks are.
        error: what PyTorch, or the kernel, says.
        peer: the rank with which it failed; None if it was one with all.
    """
    gone = gone_ranks(known)
    if not gone:
        time.sleep(_PATIENCE)  # its sockets are closed before it has ended
        gone = gone_ranks(known)
    named = gone or ([] if peer is None else [peer])
    who = f"rank {named[0]}" if len(named) == 1 else f"ranks {named}" if named else "other ranks"
    why = " has ended" if len(gone) == 1 else " have ended" if gone else ""
    told = (str(error).splitlines() or ["no reason was given"])[0]
    return ProcessLostError(
        f"{what}: the exchange with {who} failed{', which' + why if why else ''}: {told}. Tensors "
        "that were not donated are as they were.",
        named,
        operation=what,
    )


# one job of meshard's


def initialize(group: Any = None) -> None:
    """Join the processes of a job of PyTorch's, so that arrays span them; MPI is not needed.

    All ranks call it, after ``init_process_group`` and before their first use of meshard. Each rank
    is the process of its number. `to_meshard` and `from_meshard` need this; `reshard` does not.

    Args:
        group: a process group of all ranks, over which they meet; None for the job's own.

    Raises:
        ArgumentError: if ``group`` is not a process group, or does not have this rank.
        ConfigError: if there is no process group, the group lacks some ranks, or meshard was used
            before this call and has other processes.
        AgreementError: on all other ranks if one of them refuses; it names the rank.
        ProcessLostError: if a rank fails on the way; it names the rank.

    >>> initialize()
    Traceback (most recent call last):
        ...
    meshard.errors.ConfigError: initialize: there is no process group. Call torch.distributed...
    """
    what = "initialize"
    check_group(what, group)
    rank, count = distributed.get_rank(), distributed.get_world_size()
    if group_ranks(group) != tuple(range(count)):
        raise ConfigError(
            f"{what}: the group has the ranks {list(group_ranks(group))}, but the job has {count}. "
            "Pass a group of all ranks, or None."
        )
    world = known_world()
    if world is not None and (world.process_index, len(world.processes)) == (rank, count):
        return
    if count == 1:
        if world is not None:
            check_joinable()
        return
    with known_ranks(group, what).call():  # where all others meet, too
        checked_by_all(check_joinable, group, what)
        join(rank, count, lambda value: gathered(value, group, what))
