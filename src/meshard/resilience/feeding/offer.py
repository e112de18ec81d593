"""Offers: what a job has to give, and what another one asks for.

In: arrays, and layouts. Out: values that go from job to job, from which both derive who gives what
to whom. No element is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.errors import TreeError, did_you_mean
from meshard.runtime.array.array import Array
from meshard.runtime.lines.letters import sent
from meshard.runtime.types import dtype_name
from meshard.weights.checkpoint.sources import made_of
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.maps.recipe import Recipe
from meshard.weights.transfer.exchange import Held, Part, held

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
