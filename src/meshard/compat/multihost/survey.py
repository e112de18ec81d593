"""The arguments of all processes that make a call together: exchanged, compared, refused alike.

In: a tree, and the processes that call. Out: the arguments of all, or one refusal by all.

Each process reports the types of its tree's leaves, and receives those of the others. So all of
them refuse, or none does, and no process waits for one that has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.errors import ArgumentError, MeshardError, ShapeError, ShardingError, TreeError
from meshard.runtime.agree import meet
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_host
from meshard.runtime.trees.trees import flatten_with_plain_path
from meshard.runtime.types import dtype_name
from meshard.runtime.world import RuntimeWorld


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
