"""Protecting: keeping each box of a tree in the memory of several processes, version after version.

In: a tree, how many copies, and how far apart. Out: a `Protected`, which has a version that is
complete everywhere at any moment. A new version is staged beside it; when all processes have met,
each with its staged boxes, it takes the place of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np

from meshard.algebra.arguments import choice_of, count_of, text_of
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError, DataLoss, TreeError
from meshard.plan.captions import count_text
from meshard.plan.hops.cells import loss_text
from meshard.plan.hops.hop import Hop
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part as MovePart
from meshard.plan.move.wires import Wire
from meshard.resilience.copies.placement import Apart, CopiedArray, ProtectPlan, plan_copies
from meshard.resilience.copies.stocks import (
    Kept,
    KeptTree,
    check_whole,
    gridded,
    kept_tree,
    left,
    own_blocks,
)
from meshard.runtime.agree import agreed, living_ids, missing_boxes
from meshard.runtime.array.array import Array
from meshard.runtime.lines.letters import decode, encode
from meshard.runtime.moving.execute import ArrayMove, run_moves
from meshard.runtime.moving.place import check_devices_exist
from meshard.runtime.trees.trees import unflatten
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import RuntimeWorld, here, memoized

Version: TypeAlias = tuple[int, tuple[int, ...]]
"""A version: its number, and the processes that made it together."""
_KINDS = ("process", "host")


def plan_protect(tree: Any, copies: int = 1, apart: str = "process") -> ProtectPlan:
    """Return what `protect`, and each refresh, would take, without copying anything.

    Args:
        tree: a tree of arrays, or of ShapeDtypeStructs with shardings.
        copies: see `protect`.
        apart: see `protect`.

    Raises:
        ArgumentError: if there are too few processes, or hosts.
        DataLoss: if an array has lost boxes already.
        ShardingError: if a sharding has devices that do not exist.

    >>> import meshard
    >>> from meshard.elastic import plan_protect
    >>> x = meshard.device_put(meshard.numpy.zeros(8), meshard.devices()[0])
    >>> plan_protect({"x": x}).bytes_moved  # there is nobody else to keep a copy
    0
    """
    what = "elastic.plan_protect"
    asked = _Asked.checked(copies, apart, what)
    world = here()
    asked.check(world, what)
    types = _types(world, kept_tree(tree, what), what)
    _check_complete(world, types, what)
    return _way(world, asked, types).plan


def protect(
    tree: Any, copies: int = 1, apart: str = "process", name: str | None = None
) -> Protected:
    """Keep a tree in the memory of several processes, so that it outlives some of them.

    All processes that take part call this together. Each box that has fewer than ``copies`` + 1
    holders apart from each other is copied to neighbours of those that hold it, spread evenly;
    boxes with enough holders are not copied. `plan_protect` says what that takes. A process that is
    alone keeps no copies, and too few processes keep fewer.

    Args:
        tree: a tree of arrays, numbers, strings, and whatever else can be pickled.
        copies: how many more processes keep each box.
        apart: what the holders of a box must not share: ``"process"`` or ``"host"``.
        name: by which processes recognize it; by default its number among those of this process.

    Returns:
        The tree in its first version; ``refresh`` makes the next one, ``tree`` is the latest.

    Raises:
        ArgumentError: if there are too few processes, or hosts, or the name is taken.
        TreeError: if a leaf that is not an array cannot be told to other processes.
        DataLoss: if an array has lost boxes already.

    >>> import meshard
    >>> from meshard.elastic import protect
    >>> from meshard.testing import simulate
    >>> def program():
    ...     rows = meshard.NamedSharding(meshard.make_mesh((3,), "i"), meshard.P("i"))
    ...     x = meshard.device_put(meshard.numpy.arange(6.0), rows)
    ...     guard = protect({"x": x, "step": 0})
    ...     guard.refresh({"x": x + 1, "step": 1})
    ...     return guard.version, guard.tree["step"], guard.plan.largest_memory_bytes
    >>> simulate(3, 1, program)
    [(2, 1, 16), (2, 1, 16), (2, 1, 16)]
    """
    what = "elastic.protect"
    asked = _Asked.checked(copies, apart, what)
    world = here()
    asked.check(world, what)
    given = _name(world, name, what)
    guard = Protected(world, asked, given)
    guard._renew(tree, what)
    world.protected[given] = guard
    return guard


@final
@dataclass(frozen=True)
class _Asked:
    """How many copies, and how far apart."""

    copies: int
    kind: str

    @staticmethod
    def checked(copies: object, apart: object, what: str) -> _Asked:
        """Return the arguments; refuse those that mean nothing."""
        number = count_of(copies, what, "copies", least=1)
        return _Asked(number, choice_of(apart, _KINDS, what, "apart"))

    def apart(self, world: RuntimeWorld) -> Apart:
        """Return the processes that take part, and which of them fail together."""
        return Apart.of(world.devices, self.copies, self.kind, world.hosts.__getitem__)

    def check(self, world: RuntimeWorld, what: str) -> None:
        """Refuse more copies than there are processes, or hosts, for them.

        Raises:
            ArgumentError: if there are too few.
        """
        count, domains = len(world.processes), self.apart(world).domains
        if count > 1 and domains <= self.copies:
            places = "processes" if self.kind == "process" else "hosts"
            hosts = len({world.hosts[p] for p in world.processes})
            raise ArgumentError(
                f"{what}: copies={self.copies} with apart={self.kind!r} needs {self.copies + 1} "
                f"{places}, but {count_text(count, 'process')} on {count_text(hosts, 'host')} take "
                f"part. Keep fewer copies, or start more {places}."
            )


def _name(world: RuntimeWorld, given: object, what: str) -> str:
    if given is None:
        number = len(world.protected)
        while f"protected {number}" in world.protected:
            number += 1
        return f"protected {number}"
    name = text_of(given, what, "name")
    if name in world.protected:
        raise ArgumentError(
            f"{what}: the name {name!r} is taken: something is protected under it already. Refresh "
            "that, close it, or give another name."
        )
    return name


@final
@dataclass(frozen=True)
class _Kept:
    """One version, as far as this process holds it.

    Attributes:
        token: which version it is.
        tree: what is left of it, for a plan.
        arrays: the arrays that this process's devices hold, by the number of their leaf.
        copied: the blocks of copies here, by the number of their leaf.
    """

    token: Version
    tree: KeptTree
    arrays: Mapping[int, Array]
    copied: Mapping[int, Blocks]

    def rebuilt(self) -> Any:
        """Return the tree; its arrays may be given up without harm to these."""
        again = {id(x): x.copy() for x in self.arrays.values()}
        leaves = [
            again[id(self.arrays[i])] if i in self.arrays else _fresh(leaf.value)
            for i, leaf in enumerate(self.tree.leaves)
        ]
        return unflatten(self.tree.structure, leaves)


def _fresh(value: Any) -> Any:
    """Return a value that its receiver may change."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return value if plain else decode(encode(value))


def _shown(value: Any) -> str:
    """Return what can be compared of a leaf that is not an array: equal values, equal texts."""
    plain = value is None or isinstance(value, (bool, int, float, complex, str, bytes))
    return repr(value) if plain else type(value).__qualname__


def _given(blocks: Blocks) -> Sequence[Block | None]:
    return blocks


@final
class Protected:
    """A tree that is kept in the memory of several processes; `protect` makes it.

    At any moment all processes that live have one version that is complete. Arrays of ``tree`` may
    be donated: what is kept stays.

    Attributes:
        name: the name by which processes recognize it.
        plan: what the latest refresh has copied to whom; None once it is closed.

    >>> import meshard
    >>> from meshard import elastic
    >>> guard = elastic.protect({"w": meshard.numpy.zeros(4), "step": 0})
    >>> guard.refresh({"w": guard.tree["w"] + 1, "step": 1})
    >>> guard.version, guard.tree["step"]
    (2, 1)
    >>> guard.close()
    """

    def __init__(self, world: RuntimeWorld, asked: _Asked, name: str) -> None:
        self.name = name
        self.plan: ProtectPlan | None = None
        self._world = world
        self._asked = asked
        self._number = 0
        self._now: _Kept | None = None
        self._staged: _Kept | None = None
        self._superseded = False
        self._closed = False

    @property
    def tree(self) -> Any:
        """The latest version that is complete on all processes: the same on all of them.

        On a process that has joined late, and has restored nothing yet, it is its own first one.
        """
        self._check_open("tree")
        assert self._now is not None
        return self._now.rebuilt()

    @property
    def version(self) -> int:
        """The number of the latest version, from 1."""
        return self._number

    @property
    def nbytes(self) -> int:
        """The bytes that this process keeps for it: its own boxes, and copies of others'."""
        seen: dict[int, int] = {}
        for kept in (self._now, self._staged):
            if kept is not None:
                blocks = [b for x in kept.arrays.values() for b in x._live()]
                blocks += [b for copied in kept.copied.values() for b in copied]
                seen |= {id(b): b.nbytes for b in blocks if b is not None}
        return sum(seen.values())

    def refresh(self, tree: Any) -> None:
        """Make a tree the next version; all processes that take part call this together.

        The boxes that need it are copied to neighbours, then all processes meet, and then it takes
        the place of the old version, which was kept until then: if this fails at any moment, all
        that live still have one version that is complete, and agree on it when they recover.

        Args:
            tree: a tree of the same structure. Its arrays may be laid out in any way.

        Raises:
            TreeError: if it has another structure.
            AgreementError: if the processes give different numbers or texts.
            DataLoss: if an array has lost boxes; `restore` it first.
            DeletedArrayError: if an array was deleted.
            ProcessLostError: if a process has died.
        """
        self._check_open("refresh")
        self._renew(tree, "Protected.refresh")

    def close(self) -> None:
        """Free what this process keeps."""
        self._world.protected.pop(self.name, None)
        self._now = self._staged = self.plan = None
        self._closed = True

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"version {self._number}, {self.nbytes:,} bytes here"
        return f"Protected({self.name!r}, {state})"

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise ArgumentError(f"Protected.{what}: {self.name!r} has been closed.")

    def _renew(self, tree: Any, what: str) -> None:
        world, self._staged = self._world, None
        held = _held(world, kept_tree(tree, what), what)
        self._check_structure(held.tree, what)
        check_whole(world, held.tree, what)
        _check_complete(world, held.types, what)
        way = _way(world, self._asked, held.types)
        plan, number = way.plan, self._number + 1
        values = tuple([_shown(leaf.value) for leaf in held.tree.leaves if leaf.array is None])
        key = (what, self.name, number, plan.digest, values)
        agreed(world, world.processes, key, f"`{what}` of {self.name}, version {number}")
        own = {id(x): x.copy() for x in held.arrays.values()}
        arrays = {i: own[id(x)] for i, x in held.arrays.items()}
        if world.ledgers:
            wired(world, what, [_wire(a) for a in plan.arrays if a.copies is not None])
        copied = way.run(world, held.numbers, arrays)
        token = number, world.processes
        left = _with_copies(held, way, arrays, copied)
        self._staged = _Kept(token, left, arrays, copied)
        world.transport.barrier(world.processes)
        self._commit(self._staged)
        self.plan = plan

    def _check_structure(self, new: KeptTree, what: str) -> None:
        if self._now is None:
            return
        names, known = ([leaf.name for leaf in x.leaves] for x in (new, self._now.tree))
        if names != known:
            more = [n for n in names if n not in known] + [n for n in known if n not in names]
            where = (
                f"{more[0]!r} is in one of them only"
                if more
                else "its leaves come in another order"
            )
            raise TreeError(
                f"{what}: the tree is not that of {self.name!r}, which has {len(known)} leaves: "
                f"{where}. A version has the structure of the one before."
            )

    def _commit(self, kept: _Kept) -> None:
        self._now, self._staged = kept, None
        self._number, self._superseded = kept.token[0], False

    # what recovery and restoring ask

    @property
    def complete(self) -> dict[Version, _Kept]:
        """The versions that this process holds completely, as far as they are its own to hold."""
        found = [] if self._superseded or self._closed else [self._now, self._staged]
        return {kept.token: kept for kept in found if kept is not None}

    def settle(self, token: Version) -> None:
        """Go on with a version that all have agreed on; without it, hold nothing."""
        kept = self.complete.get(token)
        if kept is not None:
            self._commit(kept)
        else:
            self._staged, self._superseded = None, True

    def follow(self, token: Version) -> None:
        """Count on from a version that others hold."""
        self._number = token[0]


def held_versions(world: RuntimeWorld) -> tuple[tuple[str, tuple[Version, ...]], ...]:
    """Return the name of each thing protected, in order of creation, and what is complete here."""
    return tuple([(name, tuple(guard.complete)) for name, guard in world.protected.items()])


def newest_common(
    held: Iterable[tuple[tuple[str, tuple[Version, ...]], ...]],
) -> dict[str, Version]:
    """Return for each name the newest version that all of some processes hold.

    Args:
        held: what `held_versions` has returned on each of them. Those that hold nothing, since they
            have joined late, do not count.

    >>> one, two = (1, (0, 1)), (2, (0, 1))
    >>> newest_common([(("w", (one, two)),), (("w", (one,)),)])
    {'w': (1, (0, 1))}
    """
    told = [dict(each) for each in held]
    found = {}
    for name in dict.fromkeys(name for each in told for name in each):
        holding = [set(each[name]) for each in told if each.get(name)]
        common = set.intersection(*holding) if holding else set()
        if common:
            found[name] = max(common)
    return found


def settle(world: RuntimeWorld, decided: Mapping[str, Version]) -> None:
    """Go on with the versions that all have agreed on; who does not have one holds nothing."""
    for name, guard in world.protected.items():
        if name in decided:
            guard.settle(decided[name])


# one version


@final
@dataclass(frozen=True)
class _Held:
    """A tree to be protected: its leaves, and the arrays among them, each distinct one once."""

    tree: KeptTree
    arrays: Mapping[int, Array]
    numbers: tuple[int, ...]

    @property
    def types(self) -> tuple[tuple[str, ArrayType], ...]:
        """The name and the type of each distinct array."""
        return tuple([(self.tree.leaves[i].name, self.arrays[i]._type) for i in self.numbers])


def _held(world: RuntimeWorld, given: KeptTree, what: str) -> _Held:
    """Return a tree whose arrays are all told by who holds them.

    An array that no sharding was given for is the same on all processes, each of which has it.
    """
    arrays: dict[int, Array] = {}
    leaves, first = [], dict[object, int]()
    for number, leaf in enumerate(given.leaves):
        array = leaf.source if leaf.array is not None else leaf.value
        if type(array) is Array:
            arrays[number] = array
            leaf = leaf if leaf.array is not None else _everywhere(world, leaf.name, array)
            leaves.append(replace(leaf, tie=first.setdefault(id(array), number)))
            continue
        if leaf.array is not None:
            raise ArgumentError(f"{what}: {leaf.name} is not an array, but {leaf.source!r}.")
        leaves.append(replace(leaf, value=_told(leaf, what)))
    tree = KeptTree(tuple(leaves), given.structure)
    return _Held(tree, arrays, tuple(first.values()))


def _everywhere(world: RuntimeWorld, name: str, array: Array) -> Kept:
    """Return an array that each process has by itself, as one that all of them hold."""
    own = _own_grid(world, array._type)
    blocks = (partial(own_blocks, array),)
    return Kept(name, None, (array.shape, array.dtype), own, None, blocks, _firsts(world))


def _told(leaf: Kept, what: str) -> Any:
    """Return a copy of a leaf that is not an array, as other processes would get it.

    Raises:
        TreeError: if it cannot be told to them.
    """
    try:
        return _fresh(leaf.value)
    except ArgumentError as error:
        raise TreeError(
            f"{what}: the leaf {leaf.name!r} is a {type(leaf.value).__name__}, which cannot be "
            f"told to other processes. {error}"
        ) from error


def _types(world: RuntimeWorld, tree: KeptTree, what: str) -> tuple[tuple[str, ArrayType], ...]:
    """Return the name and the type of each distinct array of a tree, or of what stands for one."""
    found: dict[object, tuple[str, ArrayType]] = {}
    for leaf in tree.leaves:
        x = leaf.value if leaf.array is None else leaf.source
        if type(x) is Array:
            found.setdefault(id(x), (leaf.name, x._type))
        elif leaf.array is not None:
            check_devices_exist(world, x.sharding, what)
            found[leaf.name] = leaf.name, world.type_of(*leaf.array, x.sharding, True)
    return tuple(found.values())


def _check_complete(world: RuntimeWorld, types: Iterable[tuple[str, ArrayType]], what: str) -> None:
    """Refuse arrays that have lost boxes.

    Raises:
        DataLoss: with the boxes.
    """
    lost = {}
    for name, type_ in types:
        boxes = missing_boxes(world, type_)
        if boxes:
            lost[name] = type_.shape, boxes
    if lost:
        told = " ".join([f"{n}: {loss_text(s, b)}" for n, (s, b) in list(lost.items())[:8]])
        raise DataLoss(
            f"{what}: {told} Nothing was copied. Bring the tree back with elastic.restore first.",
            [box for _, boxes in lost.values() for box in boxes],
            {name: boxes for name, (_, boxes) in lost.items()},
        )


@final
@dataclass(frozen=True)
class _Way:
    """How arrays of some types are copied, worked out once.

    Attributes:
        plan: which boxes go to whom.
        parts: for each array what this process does; None if it has enough holders.
        owners: the process of each device that gets a copy of it.
    """

    plan: ProtectPlan
    parts: tuple[MovePart | None, ...]
    owners: tuple[Mapping[int, int], ...]

    def run(
        self, world: RuntimeWorld, numbers: Sequence[int], arrays: Mapping[int, Array]
    ) -> dict[int, Blocks]:
        """Copy the boxes that need it to their neighbours; return the blocks that arrive here."""
        going = [(i, p) for i, p in zip(numbers, self.parts, strict=True) if p is not None]
        moves = [ArrayMove(p, tuple(own_blocks(arrays[i])), arrays[i].dtype) for i, p in going]
        return dict(zip([i for i, _ in going], run_moves(world, moves), strict=True))


@memoized(most=64)
def _way(world: RuntimeWorld, asked: _Asked, arrays: tuple[tuple[str, ArrayType], ...]) -> _Way:
    """Return how arrays of some names and types are copied."""
    found = []
    for name, type_ in arrays:
        living = living_ids(world, type_.sharding)
        own = _own_grid(world, type_)
        own = own if living is None else left(own, living)
        found.append((name, type_.str_short(), type_.dtype.itemsize, own))
    plan = plan_copies(found, asked.apart(world), asked.kind)
    process_of = {d.id: d.process_index for d in world.everything} | {-1: -1}
    parts: list[MovePart | None] = []
    owners: list[Mapping[int, int]] = []
    known: dict[tuple[Layout, Layout], MovePart] = {}
    for array in plan.arrays:
        grid = array.copies
        if grid is None:
            parts.append(None)
            owners.append({})
            continue
        ends = array.own, grid
        if ends not in known:
            source = Source(array.own, alive=array.alive)
            known[ends] = assemble(grid, [source], process_of, world.process_index)
        parts.append(known[ends])
        owners.append({d: process_of[d] for d in np.unique(grid.tensor).tolist() if d >= 0})
    return _Way(plan, tuple(parts), tuple(owners))


def _own_grid(world: RuntimeWorld, type_: ArrayType) -> Layout:
    """Return who holds an array by itself: all processes, if no sharding was given for it."""
    if not type_.unplaced:
        return gridded(type_.layout)
    shape = type_.shape
    tensor = np.array(list(_firsts(world)), np.int64).reshape(*[1] * len(shape), -1)
    return Layout(shape, tuple([(0, n) for n in shape]), tensor)


def _firsts(world: RuntimeWorld) -> dict[int, int]:
    """Return the first device of each process that takes part, and the process."""
    found: dict[int, int] = {}
    for device in world.devices:
        if device.process_index not in found.values():
            found[device.id] = device.process_index
    return found


def _with_copies(
    held: _Held, way: _Way, arrays: Mapping[int, Array], copied: Mapping[int, Blocks]
) -> KeptTree:
    """Return what is left of a tree, with the copies and the blocks that are here."""
    place = {number: i for i, number in enumerate(held.numbers)}
    leaves = []
    for number, leaf in enumerate(held.tree.leaves):
        if leaf.array is None:
            leaves.append(leaf)
            continue
        first = leaf.tie
        assert isinstance(first, int)
        grid, blocks = way.plan.arrays[place[first]].copies, [partial(own_blocks, arrays[number])]
        if grid is not None:
            blocks.append(partial(_given, copied[first]))
        owners = {**(leaf.process_of or {}), **way.owners[place[first]]}
        new = Kept(leaf.name, None, leaf.array, leaf.own, grid, tuple(blocks), owners, first)
        leaves.append(new)
    return KeptTree(tuple(leaves), held.tree.structure)


def _wire(array: CopiedArray) -> Wire:
    def received() -> dict[int, int]:
        assert array.copies is not None
        hop = Hop(array.own, array.copies, alive=array.alive)
        return {d: n * array.itemsize for d, n in hop.received.as_dict().items()}

    return Wire(array.text, "copy", (), received)
