"""Whether a value is the same on all processes. In: values to place. Out: a refusal, or nothing.

A value that is put on devices of several processes is the whole array on each of them, and each
keeps its own part. If the values differed, each process would hold parts of a different array. So
digests are compared, in one small message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.errors import UnequalError
from meshard.runtime.agree import meet
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_host, check_devices_exist
from meshard.runtime.moving.readers import FileSource, file_source
from meshard.runtime.trees.trees import flatten_with_plain_path
from meshard.runtime.types import Block, dtype_name
from meshard.runtime.world import RuntimeWorld, here

_WORDS = 4096
"""The width of the grid of 8-byte words whose row and column sums stand for a large block."""

_PADDED = (np.longdouble, np.clongdouble)
Digests = tuple[tuple[str, bytes], ...]


def check_same_values(
    tree: Any, leaves: Sequence[Any], targets: Sequence[Sharding | None], what: str
) -> None:
    """Refuse values that are to be laid out over several processes and differ between them.

    Arrays that have been placed already are known to all and are not compared.

    Args:
        tree: what the user gave, in which the message names the leaf.
        leaves: its leaves, None included.
        targets: the sharding that each is to have.
        what: the function that was called.

    Raises:
        UnequalError: if a value differs. All processes of its target raise it.
        ShardingError: if a device does not exist.
        DtypeError: if a value does not hold numbers.
    """
    world = here()
    if world.process_count == 1:
        return
    for peers, numbers in _together(world, leaves, targets, what).items():
        mine = tuple(_told(leaves[i], what) for i in numbers)
        meet(world, peers, f"`{what}`")
        told: list[Any] = world.transport.all_gather(mine, peers)
        if any(one != mine for one in told):
            paths = [".".join(map(str, path)) for path, _ in flatten_with_plain_path(tree)[0]]
            given = [i for i, leaf in enumerate(leaves) if leaf is not None]
            names = [paths[given.index(i)] or "the value" for i in numbers]
            raise UnequalError(_refusal(what, names, peers, told))


def _together(
    world: RuntimeWorld, leaves: Sequence[Any], targets: Sequence[Sharding | None], what: str
) -> dict[tuple[int, ...], list[int]]:
    """Return the numbers of the values that this process and others give, by those processes."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, (leaf, target) in enumerate(zip(leaves, targets, strict=True)):
        known = leaf is None or isinstance(leaf, Traced)
        if known or target is None or (type(leaf) is Array and leaf.committed):
            continue
        check_devices_exist(world, target, what)
        peers = tuple(sorted({d.process_index for d in target.device_order}))
        if len(peers) > 1 and world.process_index in peers:
            found.setdefault(peers, []).append(number)
    return found


def _told(leaf: Any, what: str) -> tuple[str, bytes]:
    """Return what is compared: an array in a file is known by the file, and is not read."""
    file = file_source(leaf)
    value = as_host(leaf, what) if file is None else file
    kind = f"{dtype_name(value.dtype)}[{','.join(map(str, value.shape))}]"
    if isinstance(value, FileSource):
        return f"{kind} of {value.place}", b""
    return kind, digest(value)


def digest(value: Block) -> bytes:
    """Return sixteen bytes that stand for a block's elements, bit for bit.

    For a large block, the sums of the rows and columns of a grid of its words are digested, which
    costs little more than reading the block.
    """
    found = hashlib.blake2b(digest_size=16)
    if value.dtype.itemsize == 1 and value.dtype.type.__module__ == "ml_dtypes":
        value = value.astype(np.float32)  # the smallest floats use only some bits of a byte
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if value.dtype.type in _PADDED and np.finfo(np.longdouble).nmant == 63:
        part = np.dtype(np.longdouble).itemsize  # ten of its bytes are the number
        flat = np.ascontiguousarray(flat.reshape(-1, part)[:, :10]).reshape(-1)
    words = flat.nbytes // 8 // _WORDS * _WORDS
    if words > _WORDS:
        grid = flat[: 8 * words].view(np.uint64).reshape(-1, _WORDS)
        found.update(grid.sum(axis=0))
        found.update(grid.sum(axis=1))
        flat = flat[8 * words :]
    found.update(flat.data)
    return found.digest()


def _refusal(what: str, names: Sequence[str], peers: Sequence[int], told: Sequence[Digests]) -> str:
    """Return the message that says which value differs first, and between which processes."""
    start = f"{what}: the processes give different "
    end = (
        " A value that is put on devices of several processes is the whole array, and must be the "
        "same on each of them. If each process has a part of its own, make one array of the parts "
        "with meshard.make_array_from_process_local_data or "
        "multihost_utils.host_local_array_to_global_array; if one process has the right value, "
        "send it to all with multihost_utils.broadcast_one_to_all."
    )
    if len({len(one) for one in told}) > 1:
        counts = ", ".join(f"{len(one)} on process {p}" for p, one in zip(peers, told, strict=True))
        return f"{start}numbers of values: {counts}.{end}"
    number = next(i for i in range(len(names)) if len({one[i] for one in told}) > 1)
    kinds = [one[number][0] for one in told]
    if len(set(kinds)) > 1:
        listed = ", ".join(f"{kind} on process {p}" for p, kind in zip(peers, kinds, strict=True))
        return f"{start}values: {names[number]} is {listed}.{end}"
    groups: dict[bytes, list[int]] = {}
    for peer, one in zip(peers, told, strict=True):
        groups.setdefault(one[number][1], []).append(peer)
    most, *others = sorted(groups.values(), key=len, reverse=True)
    wrong = ", ".join(map(str, sorted(p for group in others for p in group)))
    right = ", ".join(map(str, most))
    return (
        f"{start}values: {names[number]} is {kinds[0]} on all of them, but with other elements on "
        f"process {wrong} than on process {right}.{end}"
    )
