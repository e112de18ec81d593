"""Restoring: bringing a tree to devices of the living, from all that is left of it.

In: a tree of arrays that have lost boxes, or a `Protected` one; shardings; a checkpoint. Out: the
tree, complete, or `DataLoss` before anything moves. One plan names all sources: what the arrays'
own devices hold, copies kept on purpose, and of a checkpoint only the boxes that nobody has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.device import device_ids_of
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError, DataLoss, ShardingError
from meshard.plan.captions import count_text
from meshard.plan.figures.footprint import check_window, checked_window
from meshard.plan.hops.cells import loss_text
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Wire
from meshard.resilience.copies.protect import Protected
from meshard.resilience.copies.restore_plan import (
    RestoredArray,
    RestorePlan,
    Wanted,
    check_tree,
    checkpoint_of,
    plan_arrays,
    read_stock,
)
from meshard.resilience.copies.stocks import KeptTree, Stock, blocks_of, check_whole, kept_tree
from meshard.runtime.agree import agreed, meet
from meshard.runtime.array.array import Array
from meshard.runtime.moving.execute import ArrayMove, run_moves
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import as_sharding, check_devices_exist, placed
from meshard.runtime.trees.trees import unflatten
from meshard.runtime.types import Block
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.catalogue.stored import Catalogue


def plan_restore(
    tree: Any,
    shardings: Any,
    checkpoint: str | Path | None = None,
    *,
    alive: Collection[Any] | None = None,
) -> RestorePlan:
    """Return what `restore` would do, without moving or reading anything.

    Args:
        tree: a tree of arrays, or of ShapeDtypeStructs with shardings, whose devices need not
            exist.
        shardings: see `restore`.
        checkpoint: see `restore`.
        alive: the devices, or their ids, whose memory is still there; by default those of the
            processes that take part, of devices that do not exist all.

    Returns:
        The plan; ``plan.lost`` names the boxes that nobody has, for which `restore` would raise.

    Raises:
        CheckpointError, TreeError, ShardingError: see `restore`.

    >>> import meshard
    >>> from meshard.elastic import plan_restore
    >>> from meshard.testing import virtual_devices
    >>> devices = virtual_devices(4, devices_per_process=1)
    >>> rows, fewer = (
    ...     meshard.NamedSharding(meshard.Mesh(some, ("x",)), meshard.P("x"), uneven="balanced")
    ...     for some in (devices, devices[:3])
    ... )
    >>> w = meshard.ShapeDtypeStruct((12,), "float32", sharding=rows)
    >>> plan = plan_restore({"w": w}, fewer, alive=devices[:3])
    >>> plan.lost, plan.bytes_moved
    ({'w': (Box(starts=(9,), stops=(12,)),)}, 12)
    """
    what = "elastic.plan_restore"
    kept = _own_version(tree, what) if isinstance(tree, Protected) else kept_tree(tree, what)
    with checkpoint_of(checkpoint, what) as files:
        return _Restoring(kept, shardings, files, what).plan(alive)


def restore(
    tree: Any,
    shardings: Any,
    checkpoint: str | Path | None = None,
    *,
    max_bytes: int | None = None,
) -> Any:
    """Bring a tree to devices of the processes that take part, complete again.

    All of them call this together. Boxes come from where they are cheapest: from the arrays' own
    devices, from copies that were kept on purpose, and from a checkpoint, of which only boxes that
    nobody has in memory are read. Those who hold the same boxes share the sending evenly.
    What a process holds already does not move.

    Args:
        tree: a tree of arrays; other leaves are returned as they are.
        shardings: a tree of shardings, devices, or specs where a mesh is set, that is a prefix of
            the tree. It needs no entry for numbers and strings.
        checkpoint: the folder of a checkpoint of the same tree, or of a run's steps, of which the
            newest is taken. It should be of the same step as the tree: what it holds is not
            compared with what is in memory.
        max_bytes: the most bytes in flight from and to one process at once; None for no limit.

    Returns:
        The tree, with committed arrays.

    Raises:
        DataLoss: if nobody has some boxes; ``by_name`` lists them by the name of the array. Nothing
            has moved then.
        CheckpointError: if the checkpoint is that of another tree; nothing was read then.
        TreeError: if ``shardings`` is not a prefix of the tree.
        ShardingError: if an array cannot be laid out as asked, or not on these devices.
        DeletedArrayError: if an array was deleted.

    >>> import meshard
    >>> from meshard.elastic import restore
    >>> x = meshard.device_put(meshard.numpy.arange(4), meshard.devices()[0])
    >>> restore({"x": x, "step": 3}, meshard.devices()[0])["step"]
    3
    """
    what = "elastic.restore"
    window, world = checked_window(max_bytes, what), here()
    holders: tuple[int, ...] | None = None
    if isinstance(tree, Protected):
        kept, holders = _common_version(world, tree, what)
    else:
        kept = kept_tree(tree, what)
    with checkpoint_of(checkpoint, what) as files:
        return _Restoring(kept, shardings, files, what, holders).run(world, window)


def plan_kept(
    kept: KeptTree, shardings: Any, owners: Mapping[int, int], alive: Collection[int], what: str
) -> RestorePlan:
    """Return the plan of a restore of what would be left of a tree.

    Args:
        kept: the tree.
        shardings: where it is to be.
        owners: the process of each device.
        alive: the ids of the devices that are left.
        what: the function that was called, for messages.
    """
    return _Restoring(kept, shardings, None, what).plan(alive, owners)


def _own_version(guard: Protected, what: str) -> KeptTree:
    """Return the version of something protected that this process holds.

    Raises:
        ArgumentError: if it holds none.
    """
    versions = guard.complete
    if not versions:
        raise ArgumentError(
            f"{what}: this process holds nothing of {guard.name!r} yet; elastic.restore brings it."
        )
    return versions[min(versions)].tree


def _common_version(
    world: RuntimeWorld, guard: Protected, what: str
) -> tuple[KeptTree, tuple[int, ...]]:
    """Return the newest version of something protected, and the processes that hold it.

    Processes that hold nothing, since they have joined late, are told its structure, its values and
    who holds what.

    Raises:
        DataLoss: if nobody holds any version.
    """
    members = world.processes
    meet(world, members, f"`{what}` of {guard.name}")
    own = guard.complete
    told: list[Any] = world.transport.all_gather(tuple(own), members)
    every = [token for tokens in told for token in tokens]
    if not every:
        raise DataLoss(f"{what}: no process that takes part holds a version of {guard.name!r}.")
    common = [t for t in every if all(t in tokens for tokens in told if tokens)]
    token = max(common or every)
    holders = tuple([p for p, tokens in zip(members, told, strict=True) if token in tokens])
    if holders == members:
        return own[token].tree, holders
    letter = None
    if world.process_index == holders[0]:
        letter = own[token].tree
    letters: list[Any] = world.transport.all_gather(letter, members)
    if token in own:
        return own[token].tree, holders
    guard.follow(token)
    found: KeptTree = letters[members.index(holders[0])]
    return found, holders


@final
class _Restoring:
    """One restore: what is left, where it goes, and what a checkpoint holds."""

    def __init__(
        self,
        kept: KeptTree,
        shardings: Any,
        files: Catalogue | None,
        what: str,
        holders: Collection[int] | None = None,
    ) -> None:
        self._kept = kept
        self._holders = holders
        self._parts: dict[tuple[Layout, Layout], Part] = {}
        self._files = files
        self._what = what
        tree = kept.tree
        given = prefix_leaves(_with_values(shardings, tree), tree, what, "shardings")
        self._targets = [
            as_sharding(place, f"{what}: shardings of {leaf.name}")
            for leaf, place in zip(kept.leaves, given, strict=True)
        ]
        # An array that is in two places of the tree goes to each of its layouts once.
        self._first: dict[tuple[object, Sharding], int] = {}
        for number, (leaf, target) in enumerate(zip(kept.leaves, self._targets, strict=True)):
            if leaf.array is not None:
                if target is None:
                    raise ArgumentError(
                        f"{what}: {leaf.name} has no sharding. Say in shardings where it is to be."
                    )
                self._first.setdefault((leaf.tie, target), number)
        if files is not None:
            arrays = {leaf.name: leaf.array for leaf in kept.leaves if leaf.array is not None}
            check_tree(files, arrays, what)

    def plan(
        self, alive: Collection[Any] | None = None, known: Mapping[int, int] | None = None
    ) -> RestorePlan:
        """Return what is to be done.

        Args:
            alive: the devices whose memory is there; by default those of all that take part.
            known: the process of devices that are in no sharding.
        """
        owners: dict[int, int] = dict(known or {})
        wanted = []
        for (_, target), number in self._first.items():
            leaf = self._kept.leaves[number]
            assert leaf.array is not None
            assert leaf.own is not None
            shape, dtype = leaf.array
            owners |= leaf.process_of or {}
            owners |= {d.id: d.process_index for d in target.device_order}
            try:
                layout = target.layout(shape)
            except ShardingError as error:
                raise type(error)(f"{self._what}: {leaf.name}: {error}") from error
            size = dtype.itemsize
            wanted.append(Wanted(leaf.name, leaf.text, size, leaf.own, leaf.copies, layout))
        if alive is not None:
            living = frozenset(device_ids_of(alive, self._what, "alive"))
        else:
            living = self._living(owners)
        path = None if self._files is None else self._files.path
        several = len(set(owners.values())) > 1 or here().process_count > 1
        unit = "process" if several else "device"
        return plan_arrays(wanted, living, owners, path, unit, self._hosts(owners))

    def _hosts(self, owners: Mapping[int, int]) -> dict[int, int] | None:
        """Return the host of each process; None if all are on one, or nothing is known of them."""
        hosts = here().hosts
        found = {p: hosts[p] for p in owners.values() if p < len(hosts)}
        known = len(set(found.values())) > 1 and len(found) == len(set(owners.values()))
        return found if known else None

    def run(self, world: RuntimeWorld, window: int | None) -> Any:
        """Do it."""
        for target in self._targets:
            if target is not None:
                check_devices_exist(world, target, self._what)
        plan = self.plan()
        if self._holders is None:  # versions of what is protected are complete
            check_whole(world, self._kept, self._what)
        told = f"`{self._what}` of {count_text(len(plan.arrays), 'array')}"
        agreed(world, world.processes, (self._what, plan.digest, window), told)
        held = {
            number: [blocks() for blocks in self._kept.leaves[number].blocks]
            for number in self._numbers
        }
        self._check(plan, world, window)
        if world.ledgers:
            wired(world, self._what, [_wire(a) for a in plan.arrays])
        moves = [
            self._move(world, a, n, held[n])
            for a, n in zip(plan.arrays, self._numbers, strict=True)
        ]
        arrays: dict[int, Array] = {}
        for number, found in zip(self._numbers, run_moves(world, moves, window), strict=True):
            arrays[number] = Array(self._type(world, number), found)
        return unflatten(self._kept.structure, self._leaves(arrays))

    def _living(self, owners: Mapping[int, int]) -> frozenset[int]:
        """Return the devices whose memory is there: those of processes that take part."""
        world = here()
        there = frozenset(world.everything)
        plans = [k.source for k in self._kept.leaves if k.array is not None and not k.blocks]
        if not all(there.issuperset(x.sharding.device_order) for x in plans):
            return frozenset(owners)  # a plan for devices that do not exist
        holders = world.processes if self._holders is None else self._holders
        return frozenset([d for d, p in owners.items() if p in holders])

    @property
    def _numbers(self) -> list[int]:
        return list(self._first.values())

    def _check(self, plan: RestorePlan, world: RuntimeWorld, window: int | None) -> None:
        """Refuse what cannot be restored, before anything is read or moved."""
        if plan.lost:
            shapes = {a.wanted.name: a.whole.shape for a in plan.arrays}
            parts = [f"{n}: {loss_text(shapes[n], b)}" for n, b in list(plan.lost.items())[:8]]
            raise DataLoss(
                f"{self._what}: {' '.join(parts)} Nothing has moved. A checkpoint of this tree "
                "would provide them (checkpoint=), and elastic.protect keeps copies.",
                [box for boxes in plan.lost.values() for box in boxes],
                plan.lost,
            )
        for array in plan.arrays:
            wanted = array.wanted
            check_window(window, len(world.processes), wanted.itemsize, wanted.name, self._what)

    def _move(
        self,
        world: RuntimeWorld,
        array: RestoredArray,
        number: int,
        held: Sequence[Sequence[Block | None]],
    ) -> ArrayMove:
        """Return what this process does for one array; what it must read of it is read now."""
        leaf = self._kept.leaves[number]
        assert leaf.array is not None
        mine = [d.id for d in world.local_devices]
        grids = [grid for grid in (leaf.own, leaf.copies) if grid is not None]
        stocks = [Stock(grid, blocks) for grid, blocks in zip(grids, held, strict=True)]
        dtype = leaf.array[1]
        if array.cells is not None:
            assert self._files is not None
            stocks.append(read_stock(world, self._files, array.cells, leaf.name, dtype, mine))
        part = self._part(world, array)
        return ArrayMove(part, tuple(blocks_of(array.whole, stocks, mine)), dtype)

    def _part(self, world: RuntimeWorld, array: RestoredArray) -> Part:
        """Return what this process does for all arrays that are laid out alike."""
        ends = array.whole, array.wanted.destination
        found = self._parts.get(ends)
        if found is None:
            processes = dict(array.process_of) if world.process_count > 1 else None
            source = Source(array.whole, alive=array.alive, near=array.near, load=array.load)
            me, hosts = world.process_index, world.sharing
            found = self._parts[ends] = assemble(ends[1], [source], processes, me, hosts)
        return found

    def _type(self, world: RuntimeWorld, number: int) -> Any:
        leaf, target = self._kept.leaves[number], self._targets[number]
        assert leaf.array is not None
        assert target is not None
        return world.type_of(*leaf.array, target, True)

    def _leaves(self, arrays: Mapping[int, Array]) -> list[Any]:
        found = []
        for leaf, target in zip(self._kept.leaves, self._targets, strict=True):
            if leaf.array is None:
                movable = target is not None and hasattr(leaf.value, "dtype")
                found.append(placed(leaf.value, target, what=self._what) if movable else leaf.value)
            else:
                assert target is not None
                found.append(arrays[self._first[leaf.tie, target]])
        return found


def _with_values(given: Any, tree: Any) -> Any:
    """Return a tree of shardings with None for the numbers and strings that it does not name."""
    if type(given) is not dict or type(tree) is not dict:
        return given
    plain = (bool, int, float, str)
    found = {k: _with_values(v, tree.get(k)) for k, v in given.items()}
    return found | {k: None for k, v in tree.items() if k not in given and isinstance(v, plain)}


def _wire(array: RestoredArray) -> Wire:
    def received() -> dict[int, int]:
        return array.received

    return Wire(array.wanted.text, "restore", (), received)
