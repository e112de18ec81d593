"""Offers: what a job has to give, and what another one asks for.

In: arrays, and layouts. Out: values that go from job to job, from which both derive who gives what
to whom. No element is in them.

Places: how each tensor is to be laid out, of what the caller says.

In: a tree of shardings, or a function, and the tensors. Out: shardings by name.

Wishing: what a job that takes makes of an offer.

In: an offer, shardings, a map, a dtype. Out: the results with their types, what is asked of the
givers, and the tree that the results are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import instance_of
from meshard.algebra.box import Box
from meshard.errors import ArgumentError, ShardingError, TreeError, did_you_mean
from meshard.runtime.array.array import Array
from meshard.runtime.lines.letters import sent
from meshard.runtime.moving.place import (
    as_sharding,
    check_devices_exist,
    dtype_of,
    home,
    is_function,
)
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees.trees import flatten_with_accessors, unflatten
from meshard.runtime.types import dtype_name
from meshard.runtime.world import RuntimeWorld
from meshard.weights.checkpoint.sources import Made, Name, by_prefix, made_of, spread
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.maps.recipe import Recipe
from meshard.weights.native.structure import leaf_values, named, rebuilt
from meshard.weights.transfer.exchange import Held, Part, held
from meshard.weights.transfer.mapped import Result

Pieces = tuple[tuple[int, Box, tuple[int, ...]], ...]
"""Pieces of a tensor: number, box, and the processes that are to hold each."""


@sent
@final
@dataclass(frozen=True)
class Tensor:
    """A tensor as another job sees it.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        held: which processes hold which boxes; without the elements.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    held: Held

    @property
    def told(self) -> str:
        """Shape and dtype in words."""
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]"


@sent
@final
@dataclass(frozen=True)
class Offer:
    """The tensors of one version of a tree, and where they are.

    Attributes:
        tensors: the tensors by name.
        tied: other names of them.
    """

    tensors: Mapping[str, Tensor]
    tied: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """A hash of all of it: two offers with one hash give the same plans."""
        told = [
            (n, t.shape, t.dtype.str, dtype_name(t.dtype), t.held.overlap, *_parts(t.held))
            for n, t in self.tensors.items()
        ]
        return xxhash.xxh3_128_hexdigest(repr((told, sorted(self.tied.items()))).encode())

    @cached_property
    def nbytes(self) -> int:
        """The bytes of all tensors, each counted once."""
        sizes = [Box.whole(t.shape).volume * t.dtype.itemsize for t in self.tensors.values()]
        return sum(sizes)

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The processes that hold something."""
        found = {p for t in self.tensors.values() for part in t.held.parts for p in part.holders}
        return tuple(sorted(found))


def _parts(own: Held) -> list[tuple[Any, ...]]:
    return [(part.box.starts, part.box.stops, part.holders) for part in own.parts]


def offered(arrays: Mapping[str, Array], tied: Mapping[str, str]) -> tuple[Offer, dict[str, Held]]:
    """Return what arrays offer, and where their elements are in this process."""
    here = {name: held(array) for name, array in arrays.items()}
    tensors = {}
    for name, own in here.items():
        parts = tuple([Part(p.box, p.holders, None) for p in own.parts])
        shape = arrays[name].shape
        tensors[name] = Tensor(shape, own.dtype, Held(own.dtype, parts, own.overlap))
    return Offer(tensors, dict(tied)), here


@sent
@final
@dataclass(frozen=True)
class Wish:
    """What a job asks for: how tensors are made of those offered, and where each box is to be.

    Attributes:
        map: which tensors are made of which; None for those offered.
        dtype: what floats, or integers, are cast to; None for no cast.
        pieces: for each result that is wanted, its pieces.
        slab: the most bytes of a region that are moved at a time.
    """

    map: KeyMap | None
    dtype: np.dtype[Any] | None
    pieces: Mapping[str, Pieces]
    slab: int

    @cached_property
    def digest(self) -> str:
        """A hash of all of it."""
        boxes = [
            (name, [(number, box.starts, box.stops, holders) for number, box, holders in pieces])
            for name, pieces in self.pieces.items()
        ]
        dtype = None if self.dtype is None else dtype_name(self.dtype)
        told = repr((None if self.map is None else str(self.map), dtype, boxes, self.slab))
        return xxhash.xxh3_128_hexdigest(told.encode())

    def recipes(self, offer: Offer, what: str) -> dict[str, Recipe]:
        """Return how the results are made of what is offered.

        Raises:
            KeyMapError: if the map does not fit it.
            TreeError: if a result is asked for that cannot be made.
        """
        made = made_of(offer.tensors, offer.tied, self.map, self.dtype, what)
        unknown = sorted(self.pieces.keys() - made.recipes.keys())
        if unknown:
            raise TreeError(
                f"{what}: {unknown[0]!r} is asked for, but what is published has "
                f"{some(made.recipes)}.{did_you_mean(unknown[0], made.recipes)}"
            )
        return {name: made.recipes[name] for name in self.pieces}


def some(names: Iterable[str], most: int = 4) -> str:
    """Return a few names for a message."""
    listed = list(names)
    more = f" and {len(listed) - most} others" if len(listed) > most else ""
    return ", ".join(map(repr, listed[:most])) + more if listed else "no tensors"


def check_same_tree(expected: Offer, found: Offer, what: str, told: tuple[str, str]) -> None:
    """Refuse a tree whose names, shapes or dtypes differ from those of another.

    Args:
        expected: the one tree.
        found: the other one.
        what: the function that was called, for the message.
        told: what the trees are called in the message.

    Raises:
        TreeError: if they differ; with the first tensor that does.
    """
    one, other = told
    missing = [n for n in expected.tensors if n not in found.tensors]
    surplus = [n for n in found.tensors if n not in expected.tensors]
    if missing or surplus:
        lacks = f" lacks {some(missing)}" if missing else ""
        has = f" has {some(surplus)} besides" if surplus else ""
        raise TreeError(
            f"{what}: {other}{lacks}{' and' if lacks and has else ''}{has}; {one} "
            f"has {len(expected.tensors)} tensors: {some(expected.tensors)}."
        )
    for name, tensor in expected.tensors.items():
        if tensor.told != found.tensors[name].told:
            raise TreeError(
                f"{what}: {name!r} is {found.tensors[name].told} in {other}, but {tensor.told} in "
                f"{one}."
            )
    if dict(expected.tied) != dict(found.tied):
        raise TreeError(
            f"{what}: other names are tied in {other}, {some(found.tied)}, than in {one}, "
            f"{some(expected.tied)}."
        )


def offered_structs(shaped: Mapping[str, Any]) -> Offer:
    """Return what names, shapes and dtypes alone say, to be compared with others."""
    return Offer(
        {
            name: Tensor(tuple(x.shape), np.dtype(x.dtype), Held(np.dtype(x.dtype), ()))
            for name, x in shaped.items()
        },
        {},
    )


Build = Callable[[Mapping[str, Any]], Any]


def plain_build(structure: Any, what: str) -> Build:
    """Return what makes a tree of leaves by name, as its structure says."""

    def build(leaves: Mapping[str, Any]) -> Any:
        find: Callable[[str], Any] = leaves.__getitem__
        return rebuilt(structure, find, sorted(leaves), what)

    return build


def places_of(given: Any, made: Made, structure: Any, build: Build, what: str) -> Any:
    """Return the sharding of each tensor; None where none is given.

    Args:
        given: a prefix of the tree, or a function of a name and a ShapeDtypeStruct.
        made: the tensors.
        structure: the tree as JSON.
        build: makes the tree of leaves by name.
        what: the function that was called, for messages.

    Raises:
        TreeError: if the shardings are those of another tree.
    """
    names = [*made.recipes, *made.tied]
    if is_function(given):
        structs = {n: made.recipes[made.tied.get(n, n)] for n in names}
        found = {n: given(n, ShapeDtypeStruct(r.shape, r.dtype)) for n, r in structs.items()}
    else:
        if isinstance(given, Mapping) and structure == {"flat": True}:
            _check_names(given, names, what)
        found = by_prefix(given, build({n: Name(n) for n in names}), what)
    return {n: as_sharding(found.get(n), f"{what}: tensor {n!r}") for n in made.recipes}


def _check_names(given: Mapping[Any, Any], names: list[str], what: str) -> None:
    """Refuse shardings by name that are not those of the tensors."""
    unknown = [n for n in given if n not in names]
    missing = [n for n in names if n not in given]
    if unknown or missing:
        told = f"a sharding for {some(unknown)}, which is not in the tree that is published"
        if not unknown:
            told = f"no sharding for {some(missing)}"
        meant = did_you_mean(unknown[0], names) if unknown else ""
        raise TreeError(f"{what}: shardings has {told}. The tensors are {some(names)}.{meant}")


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
