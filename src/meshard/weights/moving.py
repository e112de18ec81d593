"""`reshard` with casts and key maps.

In: a tree, shardings, and what is to become of the elements on the way. Out: the tree, moved. A
cast happens on the side of the wire where elements are smaller; a map acts on whole arrays, before
any cut.

Moving and loading leaf by leaf, so that a tree larger than memory passes through.

In: a tree or files, and how the leaves are to be laid out. Out: the leaves, one after the other, in
the order that is cheapest to read; what the caller no longer refers to is freed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar, final, overload

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import flag_of, instance_of
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError
from meshard.plan.figures.footprint import checked_window
from meshard.plan.move.wires import Wire
from meshard.plan.show.progress import Progress, adding, checked_progress, telling
from meshard.runtime.agree import agree, alive_ids, alive_part
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.moved import leaf_names
from meshard.runtime.moving.place import as_sharding, check_devices_exist, is_function
from meshard.runtime.moving.plan_reshard import Options, resharded
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees.trees import flatten_with_accessors, flatten_with_none, unflatten
from meshard.runtime.types import ArrayLike
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.checkpoint.sources import cast_to, made_of, placed_arrays
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.native.structure import named
from meshard.weights.transfer.exchange import held
from meshard.weights.transfer.mapped import Result, move, received

T = TypeVar("T")


@overload
def reshard(
    x: ArrayLike,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
    alive: Collection[Any] | None = None,
    dtype: Any = None,
    map: None = None,
) -> Array: ...
@overload
def reshard(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
    alive: Collection[Any] | None = None,
    dtype: Any = None,
    map: KeyMap,
) -> dict[str, Array]: ...
@overload
def reshard(
    x: T,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
    alive: Collection[Any] | None = None,
    dtype: Any = None,
    map: None = None,
) -> T: ...
def reshard(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
    alive: Collection[Any] | None = None,
    dtype: Any = None,
    map: KeyMap | None = None,
) -> Any:
    """Move a tree of arrays to other layouts, all of them together.

    Any layout can become any other: on the same, overlapping or other devices, other meshes, uneven
    cuts, other processes. Elements that a device already holds are not moved.

    Args:
        x: a tree of arrays; other leaves are placed.
        sharding: a tree of shardings, devices, or specs where a mesh is set, that is a prefix of
            ``x``; None leaves a leaf where it is. With ``map`` it is a prefix of the result, a dict
            of the map's names, or a function of a name and a ShapeDtypeStruct.
        donate: delete the source arrays. Each is freed as soon as it has arrived, and a large one
            while it moves, so that source and destination together take little more than the
            larger; `plan_reshard` says how much. Memory that is referred to elsewhere stays. With
            ``map`` all are deleted at the end.
        may_alias: accepted as in the reference; blocks are immutable and shared where they can be.
        cache_resharding_plans: accepted as in the reference; plans are always kept and reused.
        max_bytes: the most bytes in flight from and to one process at once, besides source and
            destination; None for no limit. Within one process nothing is in flight.
        progress: called with the bytes that have arrived in this process, and the bytes that will;
            True shows a bar on process 0, False none, and None one on a terminal if large arrays
            take longer than a second to arrive. An exception that it raises is raised when nothing
            is half moved; in a program of several processes when all has arrived, since the others
            take part.
        alive: the devices, or their ids, that still hold their data; by default those of the
            processes that take part. What others hold comes from its replicas.
        dtype: what floats are cast to, or integers if it is an integer dtype; on the side where
            elements are smaller, so that a cast to half the size halves the bytes that move.
        map: which tensors are made of which arrays; each element moves once, to where it is needed.

    Returns:
        The tree of moved arrays, committed; with ``map`` a dict of arrays by name. An array that is
        in two places of ``x``, as tied weights are, is moved once, and the result is in both.

    Raises:
        ShardingError: if a leaf's shape cannot be laid out as asked.
        UnequalError: if a leaf that is not an array is to be laid out on devices of several
            processes, and these give different values.
        ArgumentError: if ``max_bytes`` is not a positive integer, or does not hold one element to
            and from each other process.
        KeyMapError: if the map does not fit the tree.
        TreeError: if ``sharding`` is not a prefix of ``x``.
        DeletedArrayError: if an array was deleted.
        DataLoss: if no living device holds some boxes of an array; it lists them.
        AllocationError: if the system has no memory for a result.

    A refusal comes before anything has moved. After any later failure, or an interrupt, the sources
    are intact; if they were donated, the exception's attribute ``partial`` is the tree as it is
    then, with each array moved or where it was, and a note says which.
    Only a large donated array that was on its way when another process failed is lost.

    >>> import numpy as np, meshard
    >>> from meshard import NamedSharding, P
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
    >>> x = meshard.device_put(np.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("x")))
    >>> y = meshard.reshard(x, NamedSharding(mesh, P(None, "y")))
    >>> y.sharding.spec, y.addressable_data(0).shape, bool((x == y).all())
    (P(None, 'y'), (8, 4), True)
    >>> meshard.reshard({"w": x}, NamedSharding(mesh, P("y")), dtype="bfloat16")["w"].dtype
    dtype(bfloat16)
    """
    options = Options(donate, may_alias, cache_resharding_plans, max_bytes, progress, alive)
    if map is not None:
        instance_of(map, KeyMap, "reshard", "map")
        return MappedMove(x, sharding, map, options, dtype).run()
    return reshard_tree(x, sharding, options, dtype)


def reshard_tree(x: Any, sharding: Any, options: Options, dtype: Any) -> Any:
    """Return a tree in other layouts, its leaves cast; see `reshard`."""
    if dtype is None:
        return resharded(x, sharding, options)
    return _Casting(dtype).run(x, sharding, options)


@final
class _Casting:
    """A move of a tree whose leaves are cast before or after, where they are smaller."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._before: dict[int, tuple[Any, Any]] = {}
        self._after: dict[int, tuple[Any, Any]] = {}

    def run(self, x: Any, sharding: Any, options: Options) -> Any:
        """Return the tree, moved and cast."""
        leaves, structure = flatten_with_none(x)
        wanted = [None if leaf is None else self._wanted(leaf) for leaf in leaves]
        sent = [self._sent(leaf, new) for leaf, new in zip(leaves, wanted, strict=True)]
        arrived = resharded(unflatten(structure, sent), sharding, options)
        found, _ = flatten_with_none(arrived)
        results = [_once(self._after, one, new) for one, new in zip(found, wanted, strict=True)]
        if options.donate:  # what was cast has not been moved itself
            for leaf, _ in self._before.values():
                if type(leaf) is Array and not leaf.is_deleted():
                    leaf.delete()
        return unflatten(structure, results)

    def _wanted(self, leaf: Any) -> Any:
        return cast_to(self._dtype, _dtype(leaf), "reshard")

    def _sent(self, leaf: Any, new: Any) -> Any:
        """Return what is moved for a leaf: it, or its cast if that is smaller."""
        if leaf is None or new.itemsize >= _dtype(leaf).itemsize:
            return leaf
        return _once(self._before, leaf, new)


def _once(made: dict[int, tuple[Any, Any]], leaf: Any, new: Any) -> Any:
    """Return a leaf in a dtype: one result for each leaf, so that tied ones stay tied."""
    if leaf is None or leaf.dtype == new:
        return leaf
    if id(leaf) not in made:
        made[id(leaf)] = leaf, _cast(leaf, new)
    return made[id(leaf)][1]


def _cast(leaf: Any, new: np.dtype[Any]) -> Any:
    """Return a leaf in another dtype, laid out as it is; operations need not keep all layouts."""
    if type(leaf) is not Array:
        with np.errstate(all="ignore"):
            return leaf.astype(new)
    type_ = leaf._type
    cast = here().type_of(type_.shape, new, type_.sharding, type_.committed)
    with np.errstate(all="ignore"):
        blocks = [None if block is None else block.astype(new) for block in leaf._live()]
    return Array(cast, tuple(blocks))


def _dtype(leaf: Any) -> Any:
    found = getattr(leaf, "dtype", None)
    if found is None:
        raise ArgumentError(
            f"reshard: dtype= casts arrays, but a leaf is a {type(leaf).__name__}; make an array "
            "of it first."
        )
    return found


@final
class MappedMove:
    """A move by a map. When it is made everything is checked; nothing is communicated yet.

    Args:
        x: see `reshard`.
        sharding: see `reshard`.
        map_: see `reshard`.
        options: the other arguments.
        dtype: see `reshard`.
    """

    def __init__(self, x: Any, sharding: Any, map_: KeyMap, options: Options, dtype: Any) -> None:
        self._what = what = "reshard"
        self._world = here()
        self._tree = tree = named(x, what)
        self._made = made_of(tree.arrays, tree.tied, map_, dtype, what)
        self._recipes, self._tied = self._made.recipes, self._made.tied
        self._donate = flag_of(options.donate, what, "donate")
        self._window = checked_window(options.max_bytes, what)
        self._alive = alive_ids(options.alive, what)
        self._progress = checked_progress(options.progress, what)
        self._places = self._laid(sharding)
        self._made.check(self._places)

    def run(self) -> dict[str, Array]:
        """Return the arrays by name."""
        what, world, places = self._what, self._world, self._places
        arrays = placed_arrays(world, self._tree, what)
        sources = {n: held(a, alive_part(world, a._type, self._alive)) for n, a in arrays.items()}
        results = [
            Result(n, r, world.type_of(r.shape, r.dtype, places[n], True))
            for n, r in self._recipes.items()
        ]
        types = [a._type for a in arrays.values()]
        agree(
            world, what, (("map", str(self._made.mapped)),), (*types, *[r.type_ for r in results])
        )
        if world.ledgers:
            self._note(world, results, arrays)
        total = sum([b.volume * r.recipe.dtype.itemsize for r in results for b in _mine(world, r)])
        patient = world.process_count > 1
        with telling(self._progress, "resharding", world=world, patient=patient) as tell:
            made = move(world, results, sources, self._window, adding(tell, total))
        found = {r.name: a for r, a in zip(results, made, strict=True)}
        if self._donate:
            for leaf in self._tree.arrays.values():
                if type(leaf) is Array:
                    leaf.delete()
        return found | {alias: found[name] for alias, name in self._tied.items()}

    def _laid(self, sharding: Any) -> dict[str, Sharding]:
        """Return how each result is to be laid out."""
        what, names = self._what, [*self._recipes, *self._tied]
        if is_function(sharding):
            structs = {n: self._recipes[self._tied.get(n, n)] for n in names}
            given = {n: sharding(n, ShapeDtypeStruct(r.shape, r.dtype)) for n, r in structs.items()}
        else:
            tree = dict.fromkeys(sorted(names), 0)
            leaves = prefix_leaves(sharding, tree, what, "shardings")
            given = dict(zip(sorted(names), leaves, strict=True))
        found = {n: as_sharding(g, what) for n, g in given.items()}
        for name, place in found.items():
            if place is None:
                raise ArgumentError(
                    f"{what}: with a map each array needs a sharding; {name!r} has none."
                )
            check_devices_exist(self._world, place, what)
        return {n: s for n, s in found.items() if s is not None}

    def _note(
        self, world: RuntimeWorld, results: list[Result], arrays: Mapping[str, Array]
    ) -> None:
        """Record in the ledgers what each device takes from others."""
        counts = received(results, arrays)
        wires = [
            Wire(r.type_.str_short(), "map", (), lambda got=got: got)  # type: ignore[misc]
            for r, got in zip(results, counts, strict=True)
        ]
        wired(world, self._what, wires)


def _mine(world: RuntimeWorld, result: Result) -> list[Any]:
    return [box for _, box, holders in result.pieces if world.process_index in holders]


_TOGETHER = 64 << 20
"""Bytes of leaves that are moved together if memory is not limited."""


def reshard_iter(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    max_bytes: int | None = None,
    alive: Collection[Any] | None = None,
    dtype: Any = None,
) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a tree in other layouts, one after the other.

    All processes of a job take all of them, in the same order. Small arrays are moved together.

    Args:
        x: a tree of arrays; other leaves are placed.
        sharding: see `reshard`.
        donate: delete each source array when it has been moved. An array that is in two places is
            deleted after the last.
        max_bytes: the most bytes of arrays that are moved before the first of them is yielded, and
            in flight; a larger array is moved alone.
        alive: see `reshard`.
        dtype: see `reshard`.

    Yields:
        Path and array, the path's keys joined by dots.

    Raises:
        ShardingError, UnequalError, ArgumentError, TreeError, DeletedArrayError, DataLoss: see
            `reshard`.

    >>> import numpy as np, meshard
    >>> from meshard.resharding import reshard_iter
    >>> tree = {"a": np.arange(4), "b": np.ones(3)}
    >>> [(name, y.shape) for name, y in reshard_iter(tree, meshard.devices()[0])]
    [('a', (4,)), ('b', (3,))]
    """
    what = "reshard_iter"
    donate = flag_of(donate, what, "donate")
    window = checked_window(max_bytes, what)
    accessors, leaves, _ = flatten_with_accessors(x)
    targets = prefix_leaves(sharding, x, what, "shardings")
    names = leaf_names(accessors)
    known = [k for k, leaf in enumerate(leaves) if leaf is not None]
    options = Options(False, max_bytes=max_bytes, alive=alive)
    last = {id(leaves[k]): k for k in known}

    def moved() -> Iterator[tuple[str, Array]]:
        for batch in _batches(leaves, known, window or _TOGETHER):
            given, places = [leaves[k] for k in batch], [targets[k] for k in batch]
            found = reshard_tree(given, places, options, dtype)
            for k in batch:
                leaf = leaves[k]
                kept = any(leaf is one for one in found)
                if donate and last[id(leaf)] == k and type(leaf) is Array and not kept:
                    leaf.delete()
            given.clear()
            while found:
                yield names[batch[len(batch) - len(found)]], found.pop(0)

    return bounded(moved)()


def _batches(leaves: list[Any], numbers: list[int], most: int) -> Iterator[list[int]]:
    """Yield the numbers of leaves that are moved together."""
    batch: list[int] = []
    size = 0
    for k in numbers:
        nbytes = int(getattr(leaves[k], "nbytes", 8))
        if batch and size + nbytes > most:
            yield batch
            batch, size = [], 0
        batch.append(k)
        size += nbytes
    if batch:
        yield batch
