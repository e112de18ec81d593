"""Wishing: what a job that takes makes of an offer.

In: an offer, shardings, a map, a dtype. Out: the results with their types, what is asked of the
givers, and the tree that the results are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import instance_of
from meshard.errors import ArgumentError, ShardingError
from meshard.resilience.feeding.offer import Offer, Wish, check_same_tree, offered_structs
from meshard.resilience.feeding.places import places_of, plain_build
from meshard.runtime.moving.place import check_devices_exist, dtype_of, home
from meshard.runtime.trees.trees import flatten_with_accessors, unflatten
from meshard.runtime.world import RuntimeWorld
from meshard.weights.checkpoint.sources import made_of, spread
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.native.structure import leaf_values, named
from meshard.weights.transfer.mapped import Result

_SLAB = 1 << 20
_BUCKET = 1 << 22
_LEAST = 64
FLAT = {"flat": True}
"""The structure of a dict of arrays by name."""


@final
@dataclass(frozen=True)
class Wanted:
    """What the caller of `subscribe` asks for; see there."""

    shardings: Any
    map: KeyMap | None
    dtype: np.dtype[Any] | None
    like: Any
    max_bytes: int | None

    @classmethod
    def checked(
        cls, what: str, shardings: Any, map_: Any, dtype: Any, max_bytes: int | None
    ) -> Wanted:
        """Return it, checked as far as it can be without the offer, for a function."""
        if map_ is not None:
            instance_of(map_, KeyMap, what, "map")
        wanted = None if dtype is None else dtype_of(dtype, what)
        return cls(shardings, map_, wanted, None, max_bytes)

    @property
    def key(self) -> str:
        """What becomes of the tensors, as far as others can compare it."""
        return repr((None if self.map is None else str(self.map), str(self.dtype)))

    @property
    def as_they_are(self) -> Wanted:
        """The same for an offer of a job that has made the results already."""
        return Wanted(self.shardings, None, None, self.like, self.max_bytes)


@final
class Fitting:
    """What a job wants of one offer.

    Args:
        world: this process's world.
        offer: what there is.
        structure: the tree of the offer, as JSON.
        wanted: what is wanted.

    Attributes:
        offer: the offer.
        recipes: how the results are made.
        results: the results, with their types.
        tied: other names of results.
        wish: what is asked of the givers.
        bucket: the most bytes from one giver at once.

    Raises:
        TreeError: if the shardings, or ``like``, are those of another tree.
        KeyMapError: if the map does not fit.
        ShardingError: if a tensor cannot be laid out as asked.
        ArgumentError: if ``max_bytes`` is too small.
    """

    def __init__(self, world: RuntimeWorld, offer: Offer, structure: Any, wanted: Wanted) -> None:
        self._what = what = "elastic.subscribe"
        self._wanted = wanted
        self.offer = offer
        made = made_of(offer.tensors, offer.tied, wanted.map, wanted.dtype, what)
        self._made, self.recipes, self.tied = made, made.recipes, made.tied
        if wanted.like is not None:
            self._check_like(wanted.like)
        shardings = self._shardings(world, structure)
        made.check(shardings)
        self.results = []
        for name, recipe in made.recipes.items():
            try:
                type_ = world.type_of(recipe.shape, recipe.dtype, shardings[name], True)
            except ShardingError as error:
                raise type(error)(f"{what}: tensor {name!r}: {error}") from error
            self.results.append(Result(name, recipe, type_))
        givers = max(1, len(offer.processes))
        self.bucket = _BUCKET
        if wanted.max_bytes is not None:
            self.bucket = min(_BUCKET, wanted.max_bytes // (2 * givers))
            if self.bucket < _LEAST:
                raise ArgumentError(
                    f"{what}: max_bytes={wanted.max_bytes} allows {self.bucket} bytes at a time "
                    f"from each of {givers} processes. Give at least {2 * givers * _LEAST}."
                )
        pieces = {result.name: result.pieces for result in self.results}
        self.wish = Wish(wanted.map, wanted.dtype, pieces, min(_SLAB, self.bucket))

    def _check_like(self, like: Any) -> None:
        """Refuse an offer whose tensors differ from those of a tree."""
        tree = named(like, self._what)
        expected = offered_structs(tree.arrays)
        found = offered_structs(self.recipes)
        check_same_tree(expected, found, self._what, ("like=", "what is published"))

    def _shardings(self, world: RuntimeWorld, structure: Any) -> dict[str, Sharding]:
        """Return how each result is to be laid out."""
        structure = self._made.structure(structure)
        build = partial(self._tree, structure)
        found = places_of(self._wanted.shardings, self._made, structure, build, self._what)
        usual = home(world) if world.process_count == 1 else spread(world)
        places = {name: place or usual for name, place in found.items()}
        for place in places.values():
            check_devices_exist(world, place, self._what)
        return places

    def tree(self, structure: Any, arrays: Mapping[str, Any]) -> Any:
        """Return the tree that arrays are, with the numbers and strings of a structure."""
        leaves = {**arrays, **{a: arrays[n] for a, n in self.tied.items()}}
        return self._tree(self._made.structure(structure), leaves)

    def _tree(self, structure: Any, leaves: Mapping[str, Any]) -> Any:
        if structure == FLAT:
            return dict(leaves)
        if self._wanted.like is not None:
            accessors, _, treedef = flatten_with_accessors(self._wanted.like, none_is_leaf=False)
            names = [".".join(map(str, a.path)) if a.path else "x" for a in accessors]
            values = leaf_values(structure)
            return unflatten(treedef, [leaves[n] if n in leaves else values[n] for n in names])
        return plain_build(structure, self._what)(leaves)
