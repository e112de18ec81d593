"""Fetching: elements of an array, from its blocks to NumPy.

In: a type and the blocks that this process holds. Out: NumPy arrays. Nothing is sent here, so
elements that another process holds cannot be fetched.

Arrays that leave their devices: what is put together on the host is told, warned of, or refused.

In: the type of an array that is spread over several blocks, and who asks for all of it. Out: a
record in each open ledger, and what the setting ``on_gather`` says.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from meshard.algebra.arguments import integer_of
from meshard.errors import ArgumentError, GatherError, IndexingError
from meshard.plan.captions import bytes_text
from meshard.plan.show.record import HostRecord
from meshard.runtime.callers import frames_below_user, user_line
from meshard.runtime.settings import ON_GATHER
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.world import RuntimeWorld, here
from meshard.tuning import LARGE, STACKED_CELLS


def gathered(world: RuntimeWorld, kind: ArrayType, blocks: Blocks) -> Block:
    """Copy all pieces into one fresh array."""
    memory = world.memory
    value = memory.allocate(kind.shape, kind.dtype)
    many = len(blocks) >= STACKED_CELLS and 0 < value.nbytes < LARGE
    view = kind.layout.by_piece(value) if many else None
    if view is not None:
        memory.copy(view, np.array(blocks).reshape(view.shape))
        return memory.to_host(value)
    tasks = []
    for box, block in zip(kind.layout.boxes, blocks, strict=True):
        assert block is not None
        target: tuple[Any, ...] = (*box.slices, ...)
        tasks.append(partial(memory.copy, value[target], block))
    if value.nbytes >= LARGE:
        world.workers.run(tasks)
    else:
        for task in tasks:
            task()
    return memory.to_host(value)


def picked(kind: ArrayType, blocks: Blocks, places: Sequence[Sequence[int]]) -> Block:
    """Return a fresh array of the elements at given ascending positions along each dim."""
    value = np.empty([len(p) for p in places], kind.dtype)
    for box, block in zip(kind.layout.boxes, blocks, strict=True):
        spans = [
            range(bisect_left(p, a), bisect_left(p, b))
            for p, a, b in zip(places, box.starts, box.stops, strict=True)
        ]
        if not all(spans):
            continue
        assert block is not None
        local = [
            [p[i] - a for i in span] for p, a, span in zip(places, box.starts, spans, strict=True)
        ]
        target: tuple[Any, ...] = (*(slice(s.start, s.stop) for s in spans), ...)
        value[target] = block[np.ix_(*local)] if local else block
    return value


def element_place(shape: tuple[int, ...], args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the index of the element that the arguments of ``item`` select.

    Raises:
        ArgumentError: if there are no arguments and the array does not have exactly one
            element, or their number is neither 1 nor the rank.
        IndexingError: if an index is out of bounds.
    """
    size = int(np.prod(shape, dtype=np.int64))
    if len(args) == 1 and isinstance(args[0], tuple):
        args = args[0]
    if not args:
        if size != 1:
            raise ArgumentError(
                f"item(): only an array of size 1 becomes a Python scalar; the shape is "
                f"{shape}. Say which element: x.item(0), or x.item(i, j, ...)."
            )
        return (0,) * len(shape)
    if len(args) not in (1, len(shape)):
        raise ArgumentError(
            f"item{args}: {len(args)} indices for an array of shape {shape}; give one index into "
            f"the flattened array, or one for each of its {len(shape)} dims."
        )
    flat = len(args) == 1 and len(shape) != 1
    found = []
    for dim, (at, n) in enumerate(zip(args, (size,) if flat else shape, strict=True)):
        number = integer_of(at, "item", "index")
        if not -n <= number < n:
            where = "the flattened array" if flat else f"dim {dim}"
            raise IndexingError(f"item: index {number} is out of bounds for {where} with size {n}.")
        found.append(number % n)
    return tuple(int(i) for i in np.unravel_index(found[0], shape)) if flat else tuple(found)


def gather_law() -> str:
    """Return what the setting ``on_gather`` says: ``"allow"``, ``"warn"`` or ``"error"``."""
    return ON_GATHER.value


def gather(kind: ArrayType, what: str) -> None:
    """Say that all of an array is about to be brought to every device.

    Args:
        kind: the array's type.
        what: who needs it, as in ``"linalg.eigh"``.

    Raises:
        GatherError: if the setting ``on_gather`` is ``"error"``.
    """
    told = (
        f"{what}: brings {kind.str_short()} together on every device: {bytes_text(kind.nbytes)} "
        f"from {kind.layout.piece_count} blocks"
    )
    _say(
        told,
        "Split a leading dim of a stack of matrices instead, or decompose a smaller one, such as "
        "x.T @ x of a tall matrix.",
    )


def leave(kind: ArrayType, what: str) -> None:
    """Tell that a process is about to put an array together on the host.

    Args:
        kind: the array's type; an array of one block is never put together.
        what: who asks, as in ``"np.asarray"``.

    Raises:
        GatherError: if the setting ``on_gather`` is ``"error"``.
    """
    world = here()
    if ON_GATHER.value == "allow" and not world.ledgers:
        return
    told = (
        f"{what}: puts {kind.str_short()} together on the host: {bytes_text(kind.nbytes)} from "
        f"{kind.layout.piece_count} blocks"
    )
    _say(
        told,
        "Use functions of meshard.numpy, which work on the blocks where they are, or reduce the "
        "array first.",
    )
    record = HostRecord(what, kind.str_short(), kind.nbytes, user_line())
    for log in world.ledgers:
        log._gathered(record)


def _say(told: str, instead: str) -> None:
    """Refuse, or warn of, what brings an array together, as the setting says."""
    law = ON_GATHER.value
    if law == "error":
        raise GatherError(
            f"{told}, and on_gather is 'error'. {instead} To allow it again: "
            "meshard.config.update('on_gather', 'allow')."
        )
    if law == "warn":
        warnings.warn(
            f"{told}. on_gather='warn' says so.", UserWarning, stacklevel=frames_below_user()
        )
