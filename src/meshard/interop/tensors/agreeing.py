"""What ranks tell each other before anything moves, so that all go on or all raise.

One exchange of small objects: whether a rank has refused, a digest of what it is about to do, and
where its tensors are. If the digests differ a second one finds the first line that does.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary

from meshard.algebra.arguments import shown
from meshard.errors import (
    AgreementError,
    ArgumentError,
    ConfigError,
    ProcessLostError,
    TransportError,
)
from meshard.interop.tensors.loading import distributed, torch
from meshard.interop.tensors.memory import memory_of, wire_kind
from meshard.interop.tensors.near import Calling, Whereabouts, calling, is_gone, is_readable
from meshard.interop.tensors.wanted import digest, group_ranks, shortened


@final
@dataclass(frozen=True)
class Note:
    """What one rank tells the others.

    Attributes:
        refusal: why it does not go on; None if it does.
        digest: what it is about to do; None if it has no tree, and does not know.
        tied: for each tensor the first one of the same memory here; -1 if nothing of it is here.
        places: where its tensors are; None for those that are not here.
    """

    refusal: str | None
    digest: bytes | None
    tied: tuple[int, ...] = ()
    places: tuple[Whereabouts | None, ...] = ()


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
    count = len(group_ranks(group))
    words = pickle.dumps(value)
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
    return [pickle.loads(x[_HEAD : _HEAD + _length(x)]) for x in letters]


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


def agreed(notes: Sequence[Note], own: BaseException | None, group: Any, what: str) -> None:
    """Raise on all ranks if one of them has refused.

    Raises:
        AgreementError: naming the ranks; on these, what they have refused with.
    """
    if own is not None:
        raise own
    ranks = group_ranks(group)
    refusing = [(r, n.refusal) for r, n in zip(ranks, notes, strict=True) if n.refusal is not None]
    if refusing:
        rank, why = refusing[0]
        why = why if why.endswith((".", "!", "?")) else why + "."
        more = f" So did ranks {[r for r, _ in refusing[1:]]}." if refusing[1:] else ""
        raise AgreementError(f"{what}: rank {rank} refused: {why}{more} Nothing has moved.")


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


def note_of(told: Sequence[str], tied: Sequence[int], places: Any) -> Note:
    """Return the note of a rank that goes on."""
    return Note(None, digest(told), tuple(tied), tuple(places))


# who the ranks are


_PATIENCE = 0.5
"""Seconds between two looks at who is still there."""


@final
@dataclass(frozen=True)
class Neighbours:
    """The processes of a group.

    Attributes:
        ranks: their ranks.
        callings: what each has told of itself.
        readable: whether all can read each other's memory.
    """

    ranks: tuple[int, ...]
    callings: tuple[Calling, ...]
    readable: bool


_NEAR: WeakKeyDictionary[Any, Neighbours] = WeakKeyDictionary()


def neighbours(group: Any, what: str) -> Neighbours:
    """Return who the ranks of a group are, and whether they can read each other's memory.

    All ranks of the group find out together, once; all get the same answer.
    """
    key = distributed.group.WORLD if group is None else group
    if key not in _NEAR:
        every = gathered(calling(), group, what)
        can = gathered(all(map(is_readable, every)), group, what)
        _NEAR[key] = Neighbours(group_ranks(group), tuple(every), all(can))
    return _NEAR[key]


def gone_ranks(known: Neighbours) -> list[int]:
    """Return the ranks on this host whose processes have ended."""
    return [r for r, c in zip(known.ranks, known.callings, strict=True) if is_gone(c)]


def wait_for(work: Any, known: Neighbours) -> None:
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


def lost(what: str, known: Neighbours, error: object, peer: int | None = None) -> ProcessLostError:
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
