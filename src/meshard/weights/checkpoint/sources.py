"""What a save writes: the tree's arrays, where they are, and how the tensors are made of them.

In: a tree, and a map or dtypes. Out: tensors with recipes and layouts, and their sources in memory.

Prefixes: shardings given as a tree, matched with the arrays of another tree by name.

In: a tree of shardings, and a tree with a `Name` for each array. Out: the sharding of each name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import instance_of
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.runtime.agree import check_living
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import as_host, dtype_of, home, placed
from meshard.runtime.moving.same_values import check_same_values
from meshard.runtime.trees.trees import flatten_with_accessors
from meshard.runtime.world import RuntimeWorld
from meshard.weights.maps.keymap import KeyMap, Mapped, Shaped
from meshard.weights.maps.recipe import Recipe, identity
from meshard.weights.native.manifest import Entry
from meshard.weights.native.structure import Named
from meshard.weights.transfer.exchange import Held, held


@final
@dataclass(frozen=True)
class Source:
    """A tensor to be written: how it is made, and the layout in which it is written."""

    entry: Entry
    recipe: Recipe


def held_arrays(
    world: RuntimeWorld, tree: Named, what: str, *, copied: bool = False
) -> tuple[dict[str, Held], dict[str, Sharding]]:
    """Return where the arrays of a tree are, and their shardings; see `placed_arrays`."""
    arrays = placed_arrays(world, tree, what, copied=copied)
    return {n: held(a) for n, a in arrays.items()}, {n: a.sharding for n, a in arrays.items()}


def placed_arrays(
    world: RuntimeWorld, tree: Named, what: str, *, copied: bool = False
) -> dict[str, Array]:
    """Return the arrays of a tree, those too that no device held.

    Values that no device holds, and arrays that are on each process's own device, must be the same
    on all processes.

    Args:
        world: this process's world.
        tree: the tree.
        what: the function that was called, for messages.
        copied: whether NumPy's arrays, which may change later, are copied.

    Raises:
        UnequalError: if the processes give different values.
        DeletedArrayError: if an array was deleted.
        DataLoss: if an array has lost elements.
        IncompatibleDevicesError: if some of its devices are gone.
    """
    given: dict[str, Any] = {
        n: x if type(x) is Array else as_host(x, what) for n, x in tree.arrays.items()
    }
    for name, x in given.items():
        if _is_committed(x):
            check_living(world, f"{what}: {name!r}", x._type)
    if world.process_count == 1:
        return {n: _wrapped(world, x, copied=copied) for n, x in given.items()}
    loose = [x for x in given.values() if not _is_committed(x)]
    everywhere = spread(world)
    check_same_values(loose, loose, [everywhere] * len(loose), what)
    return {
        n: x if _is_committed(x) else placed(x, everywhere, what=what) for n, x in given.items()
    }


def _wrapped(world: RuntimeWorld, value: Any, *, copied: bool) -> Array:
    """Return a value as an array of this process, without copying it unless asked to."""
    if type(value) is Array:
        return value
    type_ = world.type_of(value.shape, value.dtype, home(world), True)
    return Array(type_, (value.copy() if copied else value,))


def _is_committed(x: Any) -> bool:
    return type(x) is Array and x.committed


def spread(world: RuntimeWorld) -> NamedSharding:
    """Return the sharding in which every device holds the whole of an array."""
    return NamedSharding(_mesh(world), PartitionSpec())


def _mesh(world: RuntimeWorld) -> Mesh:
    grid = np.empty(len(world.devices), object)
    grid[:] = world.devices
    return Mesh(grid, ("all",))


def rows(world: RuntimeWorld, shape: tuple[int, ...]) -> Sharding:
    """Return the sharding in which the devices hold about equally many rows of an array."""
    if world.process_count == 1 or not shape:
        return home(world) if world.process_count == 1 else spread(world)
    dim = 0 if shape[0] >= len(world.devices) else max(range(len(shape)), key=shape.__getitem__)
    spec = PartitionSpec(*[None] * dim, "all")
    return NamedSharding(_mesh(world), spec, uneven="balanced")


def storable(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    """Return a sharding as a manifest can tell it: one of a user's own class as its boxes."""
    if isinstance(sharding, (NamedSharding, SingleDeviceSharding, BoxSharding)):
        return sharding
    indices = sharding.devices_indices_map(shape).items()
    return BoxSharding(shape, {device: index for device, index in indices if index is not None})


def cast_to(dtype: Any, before: np.dtype[Any], what: str) -> np.dtype[Any]:
    """Return what a leaf of a dtype becomes: another dtype of its own kind of numbers.

    Integers and booleans stay as they are if a dtype for floats is given, and the other way round.
    """
    if dtype is None:
        return before
    wanted = dtype_of(dtype, what)
    return wanted if _kind(wanted) == _kind(before) else before


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "V" and dtype.fields is None:  # ml_dtypes
        return "i" if "int" in dtype.name else "f"
    return {"u": "i"}.get(dtype.kind, dtype.kind)


@final
@dataclass(frozen=True)
class Made:
    """What becomes of some tensors.

    Attributes:
        recipes: how each is made, in the dtype that it is to have.
        tied: other names of them.
        mapped: what a map says about them; None without a map.
    """

    recipes: dict[str, Recipe]
    tied: dict[str, str]
    mapped: Mapped | None

    def structure(self, before: Any) -> Any:
        """Return the structure of the tree: that from before, or with a map a dict by name."""
        return before if self.mapped is None else {"flat": True}

    def check(self, shardings: Mapping[str, Sharding]) -> None:
        """Refuse layouts that cut a tensor where its block scales cannot be cut.

        Raises:
            KeyMapError: if one does.
        """
        if self.mapped is not None and self.mapped.scales:
            self.mapped.check_shardings(shardings)


def made_of(
    tensors: Mapping[str, Shaped],
    tied: Mapping[str, str],
    map_: KeyMap | None,
    dtype: Any,
    what: str,
) -> Made:
    """Return what becomes of tensors by a map and a cast.

    Tensors that have block scales keep their dtype, as the scales do.

    Args:
        tensors: the tensors by name.
        tied: other names of them.
        map_: which tensors are made of which; None for none.
        dtype: what they are cast to; see `cast_to`.
        what: the function that was called, for messages.

    Raises:
        KeyMapError: if the map does not fit the tensors.
    """
    kept: set[str] = set()
    mapped = None
    if map_ is None:
        recipes = {n: identity(n, tuple(t.shape), t.dtype) for n, t in tensors.items()}
    else:
        instance_of(map_, KeyMap, what, "map")
        mapped = map_.apply(tensors, tied=tied)
        recipes, tied = dict(mapped.recipes), mapped.tied
        kept = {n for weight, (scale, _) in mapped.scales.items() for n in (weight, scale)}
    cast = {
        n: r if n in kept else replace(r, dtype=cast_to(dtype, r.dtype, what))
        for n, r in recipes.items()
    }
    return Made(cast, dict(tied), mapped)


def sources_of(
    world: RuntimeWorld, tree: Named, shardings: Mapping[str, Sharding], made: Made
) -> tuple[list[Source], Named]:
    """Return the tensors that are written, and the tree that they are.

    Args:
        world: this process's world.
        tree: the tree of the arrays.
        shardings: how each array is laid out.
        made: what becomes of the arrays.
    """
    found = []
    for name, recipe in made.recipes.items():
        like = shardings[recipe.sources[0]] if recipe.is_identity else rows(world, recipe.shape)
        found.append(Source(Entry(name, recipe.shape, recipe.dtype, like), recipe))
    if made.mapped is None:
        return found, tree
    return found, Named(dict.fromkeys(made.recipes), made.tied, {"flat": True})


@final
class Name:
    """Stands for an array in a tree that is matched with one of shardings."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def by_prefix(given: Any, tree: Any, what: str) -> dict[str, Any]:
    """Return the sharding of each name, of a tree of shardings that is a prefix of theirs.

    A dict of shardings needs no key for numbers and strings.

    Raises:
        TreeError: if it is not a prefix.
    """
    tree = _without_values(given, tree)
    _, leaves, _ = flatten_with_accessors(tree)
    prefixes = prefix_leaves(given, tree, what, "shardings")
    return {
        leaf.text: sharding
        for leaf, sharding in zip(leaves, prefixes, strict=True)
        if isinstance(leaf, Name)
    }


def _without_values(given: Any, tree: Any) -> Any:
    """Return a tree without the numbers and strings for which a dict of shardings has no key."""
    if type(given) is not dict or type(tree) is not dict:
        return tree
    plain = (bool, int, float, str)
    return {
        key: _without_values(given.get(key), node)
        for key, node in tree.items()
        if key in given or not isinstance(node, plain)
    }
