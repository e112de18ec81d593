"""Resharding of trees: plan it, or do it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import optree

from meshard.algebra.boxed import BoxSharding
from meshard.algebra.sharding import NamedSharding, Sharding, SingleDeviceSharding
from meshard.errors import ArgumentError, ShapeError
from meshard.plan.assemble import Source, assemble
from meshard.plan.planner import PlanCache, make_plan
from meshard.plan.progress import progress_bar
from meshard.plan.reshard import Leaf, Plan, install_runner
from meshard.plan.route import Route
from meshard.plan.topology import Topology

from .agreeing import agree
from .array import Array
from .donate import SLAB, can_donate, run_part_donating
from .execute import LARGE, Move, run_moves
from .ledger import wired
from .make import prefix_leaves
from .place import (
    as_host,
    as_sharding,
    check_devices_exist,
    home,
    part_between,
    placed,
    spans,
    wires_between,
)
from .profile import timed
from .same_values import check_same_values
from .structs import ShapeDtypeStruct
from .types import ArrayType, Blocks, dtype_name
from .world import RuntimeWorld, here

__all__ = ["plan_cache", "plan_reshard", "reshard"]

Progress = bool | Callable[[int, int], None] | None


def plan_cache() -> PlanCache:
    """Return the plans that this world has made: its statistics, size and contents.

    >>> plan_cache().clear()
    >>> plan_cache().statistics.hits
    0
    """
    world = here()
    found: PlanCache | None = world.plans
    if found is None:
        found = world.plans = PlanCache()
    return found


def reshard(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
) -> Any:
    """Move a tree of arrays to other layouts, all of them together.

    Any layout goes to any other: the same, overlapping or other devices, other meshes, uneven cuts,
    other processes. What a device holds already is not moved.

    Args:
        x: a tree of arrays; other leaves are placed.
        sharding: a tree of shardings, devices, or specs where a mesh is set, that is a prefix of
            ``x``; None leaves a leaf where it is.
        donate: delete the source arrays. Where nobody else holds their memory it is given back as
            it is read, so that the two take little more than one.
        may_alias: accepted as in the reference; blocks are immutable and shared where they can be.
        cache_resharding_plans: accepted as in the reference; plans are always kept and found again.
        max_bytes: the most bytes that may be on their way from and to one process at once, besides
            source and destination; None for no limit. Within one process nothing is on its way.
        progress: called with the bytes that are done and the bytes in all; True shows a bar.

    Returns:
        The tree of moved arrays, committed.

    Raises:
        ShardingError: if a leaf's shape cannot lie as asked.
        UnequalError: if a leaf that is no array is to lie on devices of several processes, which
            give different ones.
        ArgumentError: if ``max_bytes`` does not hold a single row.
        TreeError: if ``sharding`` is no prefix of ``x``.
        DeletedArrayError: if an array was deleted.

    Whatever is refused is refused before anything has moved. After any failure the sources are
    intact, unless they were donated.

    >>> import numpy as np, meshard
    >>> x = reshard(np.arange(4), meshard.devices()[0])
    >>> x.committed
    True
    """
    if donate and may_alias:
        raise ArgumentError(
            "reshard: donate and may_alias are both True; a donated array is deleted, so that "
            "nothing can share its memory. Choose one."
        )
    leaves, structure = optree.tree_flatten(x, none_is_leaf=True)
    given = prefix_leaves(sharding, x, "reshard", "shardings")
    targets = [as_sharding(d, "reshard") for d in given]
    check_same_values(x, leaves, targets, "reshard")
    routes = [None] * len(leaves)
    return optree.tree_unflatten(
        structure, _moved(leaves, targets, routes, donate, max_bytes, progress)
    )


def _moved(
    leaves: Sequence[Any],
    targets: Sequence[Sharding | None],
    routes: Sequence[Route | None],
    donate: bool,
    max_bytes: int | None,
    progress: Progress = None,
) -> list[Any]:
    """Return the leaves, each moved to its target, by its route where one is given."""
    world = here()
    if world.profiles:
        with timed(world, "reshard", "move") as ran_on:
            ran_on([t for t in targets if t is not None])
            return _moved_now(world, leaves, targets, routes, donate, max_bytes, progress)
    return _moved_now(world, leaves, targets, routes, donate, max_bytes, progress)


def _moved_now(
    world: RuntimeWorld,
    leaves: Sequence[Any],
    targets: Sequence[Sharding | None],
    routes: Sequence[Route | None],
    donate: bool,
    max_bytes: int | None,
    progress: Progress,
) -> list[Any]:
    what = "reshard"
    kinds: list[Any] = [
        _kind(world, leaf, target) for leaf, target in zip(leaves, targets, strict=True)
    ]
    results: list[Any] = [None] * len(leaves)
    moving: list[int] = []
    for number, (leaf, target, kind) in enumerate(zip(leaves, targets, kinds, strict=True)):
        if leaf is None:
            continue
        if kind is None:
            results[number] = placed(leaf, target, what=what)
        elif leaf._type.layout == kind.layout:
            results[number] = Array(kind, leaf._live())
        else:
            leaf._live()
            moving.append(number)
    types: list[tuple[ArrayType, Any]] = [(leaves[i]._type, kinds[i]) for i in moving]
    every = [
        t for leaf, kind in zip(leaves, kinds, strict=True) if kind for t in (leaf._type, kind)
    ]
    agree(world, what, (("max_bytes", max_bytes),), tuple(every))
    parts = [part_between(world, source, kind) for source, kind in types]
    if max_bytes is not None:
        _check_window(world, parts, types, max_bytes)
    if world.ledgers:
        wired(world, what, [w for pair in types for w in wires_between(world, *pair)])
    total = sum(k.nbytes for _, k in types)
    with _told(progress, total) as tell:
        together: list[tuple[int, Move]] = []
        for number, part, (_, kind) in zip(moving, parts, types, strict=True):
            route = routes[number]
            if route is not None and len(route.layouts) > 2 and world.process_count > 1:
                found = _by_hops(world, leaves[number], kind, route, max_bytes)
                results[number] = Array(kind, found)
                tell(kind.nbytes)
                continue
            if donate and kind.nbytes >= 2 * SLAB and world.process_count == 1:
                blocks = _given_up(leaves[number])
                if can_donate(part, blocks):
                    found = run_part_donating(world, part, blocks, kind.dtype, max_bytes)
                    results[number] = Array(kind, found)
                    tell(kind.nbytes)
                    continue
                leaves[number]._blocks = blocks
            together.append((number, Move(part, leaves[number]._live(), kind.dtype)))
        for batch in _batches(world, together, kinds, max_bytes):
            told = tell if progress else None
            found_all = run_moves(world, [m for _, m in batch], max_bytes, told)
            for (number, _), found in zip(batch, found_all, strict=True):
                results[number] = Array(kinds[number], found)
    if donate:
        kept = {id(r) for r in results}
        for leaf in leaves:
            if type(leaf) is Array and id(leaf) not in kept:
                leaf._discard("donated to reshard")
    return results


def _by_hops(
    world: RuntimeWorld, x: Array, kind: ArrayType, route: Route, window: int | None
) -> Blocks:
    """Bring an array to its destination hop by hop, as its route says."""
    known = {d.id: d.process_index for d in world.devices}
    blocks = x._live()
    for before, after in pairwise(route.layouts):
        ids = before.device_ids | after.device_ids
        owners = {i: known[i] for i in ids}
        part = assemble(after, [Source(before)], owners, world.process_index, world.sharing)
        (blocks,) = run_moves(world, [Move(part, blocks, kind.dtype)], window)
    return blocks


def _kind(world: RuntimeWorld, leaf: Any, target: Sharding | None) -> ArrayType | None:
    """Return what an array that moves becomes; None for a leaf that is placed."""
    if target is None or type(leaf) is not Array:
        return None
    check_devices_exist(world, target, "reshard")
    if not leaf.committed and spans(world, target):
        return None
    return world.type_of(leaf.shape, leaf.dtype, target, True)


def _given_up(x: Array) -> Blocks:
    """Take an array's blocks away, so that only the caller holds them."""
    blocks = x._live()
    x._discard("donated to reshard")
    return blocks


def _batches(
    world: RuntimeWorld,
    moves: Sequence[tuple[int, Move]],
    kinds: Sequence[Any],
    window: int | None,
) -> Iterator[list[tuple[int, Move]]]:
    """Yield what moves together: all of it, or as much as is worth a look at the progress.

    Between processes the sizes of whole arrays decide, so that all of them cut alike.
    """
    limit = max(64 * LARGE, window or 0)
    count = world.process_count
    batch: list[tuple[int, Move]] = []
    size = 0
    for number, move in moves:
        batch.append((number, move))
        filled = move.part.elements * move.dtype.itemsize
        size += filled if count == 1 else kinds[number].nbytes // count
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_window(
    world: RuntimeWorld, parts: Sequence[Any], types: Sequence[Any], window: int
) -> None:
    """Refuse a window that does not hold one row of every box that is sent or received."""
    if window < 1:
        raise ArgumentError(f"reshard: max_bytes must be a positive number of bytes, not {window}.")
    quota = window // (2 * max(1, world.process_count - 1))
    for part, (_, kind) in zip(parts, types, strict=True):
        for message in (*part.sends, *part.receives):
            for copy in message.copies:
                row = int(np.prod(copy.shape[1:], dtype=np.int64)) * kind.dtype.itemsize
                if row > quota:
                    raise ArgumentError(
                        f"reshard: max_bytes={window} leaves {quota} bytes for each of "
                        f"{world.process_count - 1} peers in each direction, but one row of a box "
                        f"of {kind.str_short()} takes {row}. Give at least "
                        f"{row * 2 * max(1, world.process_count - 1)}."
                    )


@contextlib.contextmanager
def _told(progress: Progress, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function that is called with the bytes of each step."""
    if progress is None or progress is False:
        yield lambda nbytes: None
        return
    with contextlib.ExitStack() as stack:
        tell = stack.enter_context(progress_bar(total)) if progress is True else progress
        done = 0

        def step(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            tell(min(done, total), total)

        yield step


def plan_reshard(
    x: Any,
    sharding: Any,
    *,
    max_bytes: int | None = None,
    donate: bool = False,
    alive: Collection[Any] | None = None,
    topology: Topology | None = None,
    split: bool = True,
) -> Plan:
    """Return what moving a tree to other layouts would do, without moving anything.

    Args:
        x: a tree of arrays, values, or ShapeDtypeStructs that carry shardings.
        sharding: a tree of shardings that is a prefix of ``x``; devices need not exist.
        max_bytes: the most extra memory on any device, in bytes; None for no limit.
        donate: whether the sources are given up as they are read.
        alive: the devices, or their ids, that still hold what they held; None for all.
        topology: what links cost; by default all devices are equally far from each other.
        split: whether a box may be cut between two senders.

    Raises:
        ArgumentError: if a ShapeDtypeStruct carries no sharding, or the target is None.
        DataLoss: if no living device holds a part that is needed; it lists the boxes.

    >>> import numpy as np, meshard
    >>> plan_reshard(np.arange(4), meshard.devices()[0]).bytes_moved
    0
    """
    paths, leaves, _ = optree.tree_flatten_with_path(x)
    targets = prefix_leaves(sharding, x, "plan_reshard")
    found = []
    for path, leaf, given in zip(paths, leaves, targets, strict=True):
        target = as_sharding(given, "plan_reshard")
        name = ".".join(map(str, path)) or "x"
        if target is None:
            raise ArgumentError(f"plan_reshard: no sharding is given for {name}.")
        shape, dtype, source = _described(leaf, name)
        found.append(
            Leaf(
                name,
                source.layout(shape),
                target.layout(shape),
                dtype.itemsize,
                dtype_name(dtype),
                _written(source),
                _written(target),
                target,
            )
        )
    living = None if alive is None else sorted({d if isinstance(d, int) else d.id for d in alive})
    return make_plan(
        found,
        cache=plan_cache(),
        max_bytes=max_bytes,
        donate=donate,
        alive=living,
        topology=topology,
        split=split,
    )


def _written(sharding: Sharding) -> str:
    """Return how a table calls a sharding; nothing where only the layout says it."""
    if isinstance(sharding, NamedSharding):
        return repr(sharding.spec)
    if isinstance(sharding, SingleDeviceSharding):
        return f"device {sharding.device.id}"
    return ""


def _described(leaf: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], Sharding]:
    if type(leaf) in (Array, ShapeDtypeStruct):
        source = leaf.sharding
        if source is None:
            raise ArgumentError(f"plan_reshard: {name} is a {leaf!r} that carries no sharding.")
        return leaf.shape, leaf.dtype, source
    value = as_host(leaf, "plan_reshard")
    alone: SingleDeviceSharding = home(here())
    return value.shape, value.dtype, alone


def _run(plan: Plan, x: Any) -> Any:
    """Move the arrays of a tree as a plan says."""
    world = here()
    by_id = {d.id: d for d in world.devices}
    leaves, structure = optree.tree_flatten(x)
    if len(leaves) != len(plan.leaves):
        raise ArgumentError(
            f"plan.run: the plan is for {len(plan.leaves)} arrays, but the tree has {len(leaves)}."
        )
    targets = []
    for leaf, value in zip(plan.leaves, leaves, strict=True):
        shape = tuple(np.shape(value)) if type(value) is not Array else value.shape
        if shape != leaf.source.shape:
            raise ShapeError(
                f"plan.run: the plan is for {leaf.name} of shape {leaf.source.shape}, but the "
                f"array has shape {shape}."
            )
        if type(value) is Array and value._type.layout != leaf.source:
            raise ArgumentError(
                f"plan.run: {leaf.name} does not lie as the plan says: it is {value.sharding!r}. "
                "Make a plan for how it lies, with plan_reshard."
            )
        layout = leaf.destination
        missing = sorted(layout.device_ids - by_id.keys())
        if missing:
            raise ArgumentError(
                f"plan.run: {leaf.name} is to lie on device {missing[0]}, which does not exist "
                f"here; there are {len(by_id)} devices."
            )
        if isinstance(leaf.sharding, Sharding):
            targets.append(leaf.sharding)
        else:
            order = [(d, i) for i in range(layout.piece_count) for d in layout.holders(i)]
            targets.append(BoxSharding(shape, {by_id[d]: layout.box(i) for d, i in order}))
    routes = [plan.routes[n] for n in plan.choice_of]
    moved = _moved(leaves, targets, routes, plan.donate, plan.max_bytes)
    return optree.tree_unflatten(structure, moved)


install_runner(_run)
