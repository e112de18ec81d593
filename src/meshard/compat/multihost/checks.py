"""Do all processes have the same, and are they at the same place?

In: a tree of values, or the name of a place. Out: nothing, or one refusal by all processes.
Digests are compared, not values, so that what a check sends does not grow with the values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import text_of
from meshard.compat.multihost.survey import (
    all_told,
    by_answer,
    check_calls,
    check_same,
    listed,
    path_name,
)
from meshard.errors import UnequalError
from meshard.runtime.array.array import Array, to_numpy
from meshard.runtime.moving.place import as_host
from meshard.runtime.moving.same_values import digest
from meshard.runtime.trees.trees import flatten_with_plain_path
from meshard.runtime.types import KEY, Block, dtype_name
from meshard.runtime.world import RuntimeWorld, here

Answer = tuple[str, tuple[tuple[int, str], ...]]

_SHOWN = 160
"""How many characters of a value that differs are shown."""

_NAN = "nan"


def sync_global_devices(name: str) -> None:
    """Wait until all processes have come here.

    Args:
        name: what this place is called; the same on all processes.

    Raises:
        UnequalError: if the processes wait at places of different names.
        ArgumentError: if the name is not a string.

    >>> from meshard.multihost_utils import sync_global_devices
    >>> sync_global_devices("the data is loaded")
    """
    what, world = "sync_global_devices", here()
    text_of(name, what, "name")
    peers = world.processes
    told = all_told(world, what, (what, name), peers)
    start = f"{what} name mismatch ({name!r}): the processes wait at different places,"
    check_same(
        peers, told, start, ".", UnequalError, lambda x: repr(x[1]) if x[0] == what else x[0]
    )


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes have the same tree of values.

    Of an array that spans processes, the pieces that several of them hold are compared. NaN equals
    nothing, itself included, and -0.0 equals 0.0, as in NumPy and JAX.

    Args:
        in_tree: a tree of arrays, NumPy arrays, numbers and strings.
        fail_message: what the refusal begins with.

    Raises:
        UnequalError: if a leaf or the structure differs. It is also an AssertionError; all
            processes raise it, and it names the leaf and the processes that differ from most.
        DtypeError: if a leaf holds neither numbers nor strings.

    >>> import numpy as np
    >>> from meshard.multihost_utils import assert_equal
    >>> assert_equal({"step": 3, "rates": np.full(2, 0.1)}, "the states have diverged")
    """
    what, world = "assert_equal", here()
    text_of(fail_message, what, "fail_message")
    peers = world.processes
    pairs, structure = flatten_with_plain_path(in_tree)
    names = tuple([path_name(path) for path, _ in pairs])
    mine = [_digests(world, leaf) for _, leaf in pairs]
    told = all_told(world, what, (what, (str(structure), names), tuple(mine)), peers)
    start = f"{fail_message}. {what}" if fail_message else what
    check_calls(start, peers, [one[0] for one in told], UnequalError)
    trees = [f"{one[1][0]} with leaves {list(one[1][1])}" for one in told]
    check_same(peers, trees, f"{start}: the trees differ:", ".", UnequalError)
    for number, name in enumerate(names):
        answers = _answers([one[2][number] for one in told])
        wrong = _differing(peers, answers)
        if wrong is None:
            continue
        shown = [kind for kind, _ in answers]
        if len(set(shown)) == 1:
            # All have heard the same digests, so that all come here for the same leaf.
            shown = all_told(world, what, _text(pairs[number][1]), peers)
        raise UnequalError(f"{start}: {name} {wrong}. It is {listed(peers, shown)}.")


def _digests(world: RuntimeWorld, leaf: Any) -> tuple[Answer | None, Answer | None]:
    """Return what a leaf is as one array of all, and as this process's own value.

    Each says what it is, and gives a digest of each piece that this process holds. What is on
    this process alone is either: the others' answers tell which.
    """
    whole, own = None, None
    if type(leaf) is Array:
        kind, blocks = leaf._type, leaf._live()
        held = []
        for piece in kind.local:
            block = blocks[piece]
            assert block is not None
            held.append((piece, _digest(block)))
        whole = f"{kind.str_short()} with {kind.sharding!r}", tuple(held)
    if type(leaf) is not Array or leaf.is_fully_addressable:
        value = _host(leaf)
        own = f"{_name(value)}{list(value.shape)}", ((-1, _digest(value)),)
    return whole, own


def _answers(told: Sequence[tuple[Answer | None, Answer | None]]) -> list[Answer]:
    """Return what all say of a leaf: of one array of all, if it is not each one's own."""
    if all(whole is not None for whole, _ in told) and any(own is None for _, own in told):
        return [whole for whole, _ in told if whole is not None]
    found = [own or whole for whole, own in told]
    return [one for one in found if one is not None]


def _host(leaf: Any) -> Block:
    if isinstance(leaf, (str, bytes, np.str_, np.bytes_)):
        return np.asarray(leaf)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "US":
        return leaf
    return to_numpy(leaf, "assert_equal") if type(leaf) is Array else as_host(leaf, "assert_equal")


def _name(value: Block) -> str:
    return "string" if value.dtype.kind in "US" else dtype_name(value.dtype)


def _digest(value: Block) -> str:
    """Return a text that is the same for equal values; `_NAN` if there is one among them."""
    if value.dtype != KEY and value.dtype.kind not in "biuUS":
        if np.isnan(value).any():
            return _NAN
        value = value + value.dtype.type(0)  # -0.0 becomes 0.0
    if value.dtype.kind in "US":
        return hashlib.blake2b(repr(value.tolist()).encode(), digest_size=16).hexdigest()
    return digest(value).hex()


def _differing(peers: Sequence[int], answers: Sequence[Answer]) -> str | None:
    """Return how the processes' values of a leaf differ; None if they do not."""
    pieces: dict[int, dict[int, str]] = {}
    if len({kind for kind, _ in answers}) > 1:
        pieces[0] = {peer: kind for peer, (kind, _) in zip(peers, answers, strict=True)}
    else:
        for peer, (_, held) in zip(peers, answers, strict=True):
            for piece, told in held:
                pieces.setdefault(piece, {})[peer] = told
    for holders in pieces.values():
        bad = [p for p, told in holders.items() if told == _NAN]
        if bad:
            return f"holds NaN, which equals nothing, on {_processes(bad)}"
        most, *others = by_answer(list(holders), list(holders.values()))
        if others:
            wrong = sorted(p for group in others for p in group)
            return f"of {_processes(wrong)} differs from that of {_processes(most)}"
    return None


def _processes(numbers: Sequence[int]) -> str:
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _text(leaf: Any) -> str:
    """Return a value as a message shows it."""
    if type(leaf) is Array and not leaf.is_fully_addressable:
        first = leaf.addressable_shards
        value = to_numpy(first[0].data, "assert_equal") if first else np.empty(0, leaf.dtype)
        text = f"{leaf.aval.str_short()}, here {_elements(value)}"
    else:
        value = _host(leaf)
        text = f"{_name(value)}{list(value.shape)} {_elements(value)}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def _elements(value: Block) -> str:
    return str(value.reshape(-1)[:_SHOWN].tolist()) if value.ndim else repr(value.item())
