"""The arguments of all processes that make a call together: exchanged, compared, refused alike.

In: a tree, and the processes that call. Out: the arguments of all, or one refusal by all.

Each process reports the types of its tree's leaves, and receives those of the others. So all of
them refuse, or none does, and no process waits for one that has stopped.

Do all processes have the same, and are they at the same place?

In: a tree of values, or the name of a place. Out: nothing, or one refusal by all processes.
Digests are compared, not values, so that what a check sends does not grow with the values.

What all processes have, on all of them or on one: `process_allgather` and its like.

In: a tree of global arrays, or of values of which each process has its own. Out: NumPy arrays. All
processes call these functions together, in the same order. Each first reports its arguments
(`survey`), so that a call that cannot succeed is refused on all of them, before anything moves.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import flag_of, shown, text_of
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import (
    ArgumentError,
    MeshardError,
    ShapeError,
    ShardingError,
    TreeError,
    UnequalError,
)
from meshard.runtime.agree import meet
from meshard.runtime.array.array import Array, to_numpy
from meshard.runtime.moving.place import as_host, placed
from meshard.runtime.moving.same_values import digest
from meshard.runtime.trees.trees import flatten_with_plain_path, unflatten
from meshard.runtime.types import KEY, Block, dtype_name
from meshard.runtime.world import RuntimeWorld, here


@final
@dataclass(frozen=True)
class Leaf:
    """One leaf of this process's tree.

    Attributes:
        name: its name in messages.
        value: an `Array`, or a NumPy array made from any other value.
        given: whether it was an `Array`.
        processes: those that hold parts of it; only this one for other values.
    """

    name: str
    value: Any
    given: bool
    processes: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Dtype and shape, as in messages."""
        return _kind(dtype_name(self.value.dtype), self.value.shape)


@final
@dataclass(frozen=True)
class Brought:
    """The arguments of all processes.

    Attributes:
        leaves: this process's leaves.
        structure: the tree without its leaves.
        shapes: for each leaf its shape on each process, in the order of the peers.
        whole: for each leaf whether it is one array of several processes, and not one of each.
        answers: the further value of each process.
    """

    leaves: list[Leaf]
    structure: Any
    shapes: list[list[tuple[int, ...]]]
    whole: list[bool]
    answers: list[Any]


def surveyed(
    world: RuntimeWorld,
    what: str,
    tree: Any,
    peers: Sequence[int],
    *,
    said: Hashable = None,
    one_shape: bool = True,
) -> Brought:
    """Report the types of this process's tree to the peers, and receive theirs.

    Args:
        world: this process's world.
        what: the function that was called.
        tree: the tree.
        peers: the processes that call it, this one included.
        said: a further value for the others.
        one_shape: whether a leaf must have one shape on all processes, and not only one rank.

    Raises:
        ArgumentError: if the processes have called different functions.
        TreeError: if their trees differ.
        ShapeError: if a leaf's shape or dtype differs.
        ShardingError: if a leaf is one array of several processes here and a local one there.
    """
    pairs, structure = flatten_with_plain_path(tree)
    leaves = [_leaf(world, what, path_name(path), value) for path, value in pairs]
    mine = (
        what,
        [leaf.name for leaf in leaves],
        [(dtype_name(x.value.dtype), tuple(x.value.shape), x.processes) for x in leaves],
        said,
    )
    told = all_told(world, what, mine, peers)
    check_calls(what, peers, [one[0] for one in told], ArgumentError)
    start = f"{what}: the trees of the processes differ; their leaves are"
    end = ". All processes must give the same tree."
    names = [one[1] for one in told]
    check_same(peers, names, start, end, TreeError, lambda one: f"[{', '.join(one)}]")
    shapes, whole = [], []
    for number, leaf in enumerate(leaves):
        types = [one[2][number] for one in told]
        _check_types(what, leaf.name, peers, types, one_shape)
        shapes.append([shape for _, shape, _ in types])
        whole.append(_is_whole(what, leaf.name, peers, [on for *_, on in types]))
    return Brought(leaves, structure, shapes, whole, [one[3] for one in told])


def _check_types(
    what: str, name: str, peers: Sequence[int], types: Sequence[Any], one_shape: bool
) -> None:
    """Refuse a leaf whose dtype, and shape or rank, differ between processes."""
    if len({(dtype, shape if one_shape else len(shape)) for dtype, shape, _ in types}) > 1:
        law = "shape and dtype" if one_shape else "rank and dtype"
        raise ShapeError(
            f"{what}: {name} must have one {law} on all processes; it is "
            f"{listed(peers, [_kind(dtype, shape) for dtype, shape, _ in types])}."
        )


def all_told(world: RuntimeWorld, what: str, value: Hashable, peers: Sequence[int]) -> list[Any]:
    """Return a small value from every process that makes a call."""
    if list(peers) == [world.process_index]:
        return [value]
    meet(world, peers, what)
    return world.transport.all_gather(value, peers)


def check_same(
    peers: Sequence[int],
    answers: Sequence[Any],
    start: str,
    end: str = ".",
    error: type[MeshardError] = ArgumentError,
    show: Callable[[Any], str] = str,
) -> None:
    """Refuse answers that differ; the message lists them between ``start`` and ``end``."""
    if any(answer != answers[0] for answer in answers):
        raise error(f"{start} {listed(peers, list(map(show, answers)))}{end}")


def check_calls(
    start: str, peers: Sequence[int], calls: Sequence[str], error: type[MeshardError]
) -> None:
    """Refuse processes that wait for each other in different functions."""
    check_same(peers, calls, f"{start}: the processes call different functions:", ".", error)


def check_argument(what: str, name: str, peers: Sequence[int], said: Sequence[object]) -> None:
    """Refuse an argument that differs between processes."""
    check_same(peers, said, f"{what}: {name} must be the same on all processes; it is")


def path_name(path: Sequence[object]) -> str:
    """Return the name in messages of the leaf at a path of a tree."""
    return ".".join(map(str, path)) or "the value"


def _leaf(world: RuntimeWorld, what: str, name: str, value: Any) -> Leaf:
    if type(value) is Array:
        value._live()
        processes = sorted({d.process_index for d in value.sharding.device_order})
        return Leaf(name, value, True, tuple(processes))
    return Leaf(name, as_host(value, what), False, (world.process_index,))


def _kind(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _is_whole(
    what: str, name: str, peers: Sequence[int], processes: Sequence[tuple[int, ...]]
) -> bool:
    """Whether all processes have one array together, and not each its own."""
    if all(on == (p,) for p, on in zip(peers, processes, strict=True)):
        return False
    if all(on == processes[0] for on in processes):
        return True
    texts = [
        "its own" if on == (p,) else f"one on processes {on}"
        for p, on in zip(peers, processes, strict=True)
    ]
    raise ShardingError(
        f"{what}: {name} is a host-local array of some processes where others pass a global one: "
        f"{listed(peers, texts)}. All must pass the same global array, or each its own local one."
    )


def by_answer(peers: Sequence[int], answers: Sequence[Hashable]) -> list[list[int]]:
    """Return the processes grouped by their answers, the largest group first.

    Of equally large groups, that with the lowest process is first.
    """
    groups: dict[Hashable, list[int]] = {}
    for peer, answer in zip(peers, answers, strict=True):
        groups.setdefault(answer, []).append(peer)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def listed(peers: Sequence[int], texts: Sequence[str]) -> str:
    """Return ``A on processes 0, 1; B on process 2``."""
    said = dict(zip(peers, texts, strict=True))
    return "; ".join(
        f"{said[group[0]]} on process{'es' if len(group) > 1 else ''} {', '.join(map(str, group))}"
        for group in by_answer(peers, texts)
    )


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


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Return on every process the values of all processes, as NumPy arrays.

    For an array that spans processes the result is the whole array. For other values, of which each
    process has its own, it is all of them, in the order of the processes.

    Args:
        in_tree: a tree of arrays, NumPy arrays and numbers; each leaf must have one shape and dtype
            on all processes.
        tiled: how to combine leaves of which each process has its own: False stacks them along a
            new first dim, whose size is the number of processes; True joins them along the first
            dim. Numbers are always stacked, except in a program of one process, which gets them
            back, as in JAX.

    Returns:
        The tree of read-only NumPy arrays.

    Raises:
        TreeError: if the trees of the processes differ.
        ShapeError: if a leaf's shape or dtype differs between processes.
        ShardingError: if a leaf is global on some processes and local on others.
        DtypeError: if a leaf does not hold numbers.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import process_allgather
    >>> process_allgather(np.arange(3)).shape == (meshard.process_count(), 3)
    True
    """
    what, world = "process_allgather", here()
    peers = world.processes
    tiled = flag_of(tiled, what, "tiled")
    brought = surveyed(world, what, in_tree, peers, said=tiled)
    check_argument(what, "tiled", peers, brought.answers)
    results = [
        _fetched(world, leaf.value, what) if whole else _stacked(world, leaf, tiled, what)
        for leaf, whole in zip(brought.leaves, brought.whole, strict=True)
    ]
    return unflatten(brought.structure, results)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Return on every process the values of one process.

    Args:
        in_tree: a tree of arrays, NumPy arrays and numbers; each leaf must have one shape and dtype
            on all processes, but only the source's values count.
        is_source: whether this process is the source; exactly one must be. By default process 0
            is. A program of one process is always its own source.

    Returns:
        The tree of read-only NumPy arrays, the same bits on all processes.

    Raises:
        ArgumentError: if no process is the source, or several are.
        TreeError: if the trees of the processes differ.
        ShapeError: if a leaf's shape or dtype differs between processes.
        ShardingError: if a leaf spans processes, as it is then already the same on all of them.

    >>> from meshard.multihost_utils import broadcast_one_to_all
    >>> broadcast_one_to_all({"seed": 7})
    {'seed': array(7)}
    """
    what, world = "broadcast_one_to_all", here()
    peers = world.processes
    chosen = world.process_index == world.first
    if is_source is not None:
        chosen = flag_of(is_source, what, "is_source")
    brought = surveyed(world, what, in_tree, peers, said=chosen)
    for leaf, whole in zip(brought.leaves, brought.whole, strict=True):
        if whole:
            raise ShardingError(
                f"{what}: {leaf.name}, {leaf.kind}, is one array of processes {leaf.processes}, "
                "and no process has another value of it. Fetch it with process_allgather."
            )
    sources = [p for p, yes in zip(peers, brought.answers, strict=True) if yes]
    if world.process_count == 1:
        return unflatten(brought.structure, [_alone(leaf) for leaf in brought.leaves])
    if len(sources) != 1:
        said = f"processes {sources} all say" if sources else "no process says"
        raise ArgumentError(
            f"{what}: {said} is_source=True, but exactly one of the {len(peers)} "
            "processes must be the source."
        )
    origin = _one_of_each(world)[peers.index(sources[0])]
    results = []
    for leaf in brought.leaves:
        shape, dtype = leaf.value.shape, leaf.value.dtype
        kind = world.type_of(shape, dtype, SingleDeviceSharding(origin), True)
        mine = _alone(leaf) if chosen else None
        results.append(_fetched(world, Array(kind, (mine,)), what))
    return unflatten(brought.structure, results)


def gather(x: Any, root: int = 0) -> Any:
    """Return a global array as NumPy on one process; the others get None and receive nothing.

    Args:
        x: an array, or a tree of them. In a program of one process, any values.
        root: the process that gets the whole, the same number on all.

    Returns:
        On the root the tree of read-only NumPy arrays; elsewhere the tree with None for each leaf.

    Raises:
        ArgumentError: if there is no such process, or the processes name different ones.
        ShardingError: if a leaf is a value of which each process has its own.
        TreeError: if the trees of the processes differ.

    >>> import numpy as np, meshard
    >>> from meshard import NamedSharding
    >>> from meshard.multihost_utils import gather
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = meshard.device_put(np.arange(mesh.size), NamedSharding(mesh, meshard.P("x")))
    >>> value = gather(x)
    >>> value is None or value.shape == x.shape
    True
    """
    what, world = "gather", here()
    try:
        target = operator.index(root)
    except TypeError:
        target = -1
    peers = world.processes
    brought = surveyed(world, what, x, peers, said=target)
    check_argument(what, "root", peers, brought.answers)
    if target not in peers:
        raise ArgumentError(
            f"{what}: root={shown(root)} is not the number of a process; there are "
            f"{len(peers)}, from {peers[0]} to {peers[-1]}."
        )
    for leaf, whole in zip(brought.leaves, brought.whole, strict=True):
        if not whole and world.process_count > 1:
            raise ShardingError(
                f"{what}: {leaf.name}, {leaf.kind}, is host-local: each process has its own, but "
                "a global array is needed. process_allgather(x) stacks them; "
                "host_local_array_to_global_array makes them one array."
            )
    if world.process_count == 1:
        return unflatten(brought.structure, [_alone(leaf) for leaf in brought.leaves])
    results: list[Block | None] = []
    for leaf in brought.leaves:
        array: Array = leaf.value
        device = _one_of_each(world, array.sharding.device_order)[peers.index(target)]
        moved = placed(array, SingleDeviceSharding(device), what=what)
        results.append(
            to_numpy(moved, "process_allgather") if target == world.process_index else None
        )
    return unflatten(brought.structure, results)


def _one_of_each(world: RuntimeWorld, preferred: Sequence[Device] = ()) -> list[Device]:
    """Return a device of each process: its first preferred one, or its first one."""
    first = {d.process_index: d for d in reversed((*preferred, *world.devices))}
    return [first[p] for p in world.processes]


def _fetched(world: RuntimeWorld, x: Array, what: str) -> Block:
    """Return the whole of an array on every process."""
    if x._type.layout.replicated and set(world.processes) == {
        d.process_index for d in x.sharding.device_order
    }:
        return to_numpy(x, "process_allgather")
    # One device of each process, since a process keeps replicas once; if possible one that has a
    # part of the array already.
    mesh = Mesh(_one_of_each(world, x.sharding.device_order), "processes")
    return to_numpy(placed(x, NamedSharding(mesh, PartitionSpec()), what=what), what)


def _stacked(world: RuntimeWorld, leaf: Leaf, tiled: bool, what: str) -> Block:
    """Return all processes' values of a leaf."""
    value = _alone(leaf)
    count = len(world.processes)
    if world.process_count == 1:
        return value if tiled else value[None]
    mesh = Mesh(_one_of_each(world), "processes")
    kind = world.type_of(
        (count, *value.shape), value.dtype, NamedSharding(mesh, PartitionSpec("processes")), True
    )
    blocks: list[Block | None] = [None] * count
    blocks[world.place] = value[None]
    found = _fetched(world, Array(kind, tuple(blocks)), what)
    if not tiled or not value.ndim:
        return found
    return found.reshape(count * value.shape[0], *value.shape[1:])


def _alone(leaf: Leaf) -> Block:
    """Return a value of this process alone, read-only, in memory that nothing else writes to."""
    if leaf.given:
        return to_numpy(leaf.value, "process_allgather")
    value = np.array(leaf.value)
    value.flags.writeable = False
    return value
