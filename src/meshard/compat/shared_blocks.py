"""Arrays that share the blocks of other arrays, device by device, without copying or moving.

In: arrays, and the type of another. Out: the array of that type, in which each device has the block
that it already has.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshard.runtime.array.array import Array
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import here


def local_blocks(x: Array) -> dict[int, Block | None]:
    """Return the block of an array that each of this process's devices holds, by device id.

    Raises:
        DeletedArrayError: if it was deleted.
    """
    me, blocks, piece_of = here().process_index, x._live(), x._type.layout.piece_of
    local = [d.id for d in x.sharding.device_order if d.process_index == me]
    return {d: blocks[piece_of[d]] for d in local}


def of_blocks(kind: ArrayType, held: Mapping[int, Block | None]) -> Array:
    """Return an array of a type; replicas should be equal, and it has the first of them."""
    layout = kind.layout
    blocks: list[Block | None] = [None] * layout.piece_count
    for device in reversed(kind.sharding.device_order):
        if device.id in held:
            blocks[layout.piece_of[device.id]] = held[device.id]
    return Array(kind, tuple(blocks))
