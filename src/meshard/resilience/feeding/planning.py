"""Planning a feed between jobs that need not exist: bytes, senders, and seconds on a topology.

In: arrays or structs with the publisher's shardings, and the takers' shardings, on devices of any
number. Out: a plan that prints. Every element goes directly from a device that holds it to each
that needs it, as feeds move it, cast before if that makes it smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError, KeyMapError, ShardingError
from meshard.plan.captions import time_text, whole_text
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.footprint import checked_window
from meshard.plan.figures.simulate import Simulation, simulate_many
from meshard.plan.figures.topology import Topology, as_topology
from meshard.plan.plan import Plan
from meshard.plan.show.page import Markup
from meshard.plan.show.pictured import Drawn
from meshard.plan.show.summary import Fact, Summary
from meshard.resilience.feeding.offer import Offer, Tensor, Wanted, places_of, plain_build
from meshard.runtime.array.array import Array
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.types import dtype_name
from meshard.weights.checkpoint.sources import made_of
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.maps.recipe import Recipe, Term
from meshard.weights.native.structure import named
from meshard.weights.transfer.exchange import Held

_WHAT = "elastic.plan_publish"


def plan_publish(
    tree: Any,
    shardings: Any,
    *,
    map: KeyMap | None = None,
    dtype: Any = None,
    topology: Topology | str | None = None,
    max_bytes: int | None = None,
) -> PublishPlan:
    """Return what one version would move from a publisher to one that subscribes.

    Args:
        tree: arrays, or ShapeDtypeStructs with shardings, as they are published; devices need not
            exist (`meshard.testing.virtual_devices`).
        shardings: as for `subscribe`, on other devices: those of the two jobs have different ids.
        map: which tensors are made of which.
        dtype: what floats are cast to, or integers if it is an integer dtype.
        topology: what links cost, or the name of a preset, as in ``"8-gpu hosts"``; None to count
            bytes only.
        max_bytes: the most bytes on their way to one device at once; None for no limit, so that
            all that goes from one device to another is one message.

    Raises:
        ArgumentError: if a leaf has no sharding, or the jobs share devices.
        KeyMapError: if the map does not fit, or interleaves elements, which is not planned.
        TreeError: if the shardings are those of another tree.

    >>> import numpy as np
    >>> from meshard import ShapeDtypeStruct
    >>> from meshard.elastic import plan_publish
    >>> from meshard.sharding import Mesh, NamedSharding, P
    >>> from meshard.testing import virtual_devices
    >>> devices = np.array(virtual_devices(6, 1))
    >>> rows = NamedSharding(Mesh(devices[:4], ("fsdp",)), P("fsdp"))
    >>> columns = NamedSharding(Mesh(devices[4:], ("tp",)), P(None, "tp"))
    >>> w = ShapeDtypeStruct((8, 8), "float32", sharding=rows)
    >>> plan = plan_publish({"w": w}, columns, dtype="bfloat16")
    >>> plan.bytes_moved, plan.lower_bound_bytes, plan.most_received
    (128, 128, 64)
    """
    window = checked_window(max_bytes, _WHAT)
    where = None if topology is None else as_topology(topology, _WHAT)
    sources = named(tree, _WHAT)
    offer = Offer({n: _tensor(n, leaf) for n, leaf in sources.arrays.items()}, sources.tied)
    wanted = Wanted.checked(_WHAT, shardings, map, dtype, window)
    made = made_of(offer.tensors, offer.tied, map, wanted.dtype, _WHAT)
    structure = made.structure(sources.structure)
    build = plain_build(structure, _WHAT)
    places = places_of(wanted.shardings, made, structure, build, _WHAT)
    leaves: list[PlanLeaf] = []
    for name, recipe in made.recipes.items():
        place = places[name]
        if place is None:
            raise ArgumentError(f"{_WHAT}: shardings has no sharding for {name!r}.")
        leaves += _leaves(name, recipe, place, sources.arrays)
    return PublishPlan(Plan.direct(leaves), where, window)


def _tensor(name: str, leaf: Any) -> Tensor:
    if not isinstance(leaf, (Array, ShapeDtypeStruct)) or leaf.sharding is None:
        raise ArgumentError(
            f"{_WHAT}: {name!r} has no sharding; give an Array, or a ShapeDtypeStruct with "
            f"sharding=."
        )
    dtype = np.dtype(leaf.dtype)
    return Tensor(tuple(leaf.shape), dtype, Held(dtype, ()))


def _leaves(
    name: str, recipe: Recipe, place: Sharding, arrays: Mapping[str, Any]
) -> Iterator[PlanLeaf]:
    """Yield the moves that make a result: one for each box of a source."""
    whole = _layout(place, recipe.shape, f"shardings of {name!r}")
    for term in recipe.terms:
        source = arrays[term.source]
        order = _order(name, term)
        before = _clipped(
            _layout(source.sharding, source.shape, f"{term.source!r}"), term.source_box, name
        )
        after = _clipped(whole, term.target_box, name)
        wired = min(source.dtype, recipe.dtype, key=lambda dtype: dtype.itemsize)
        shared = set(before.device_ids) & set(after.device_ids)
        if shared:
            raise ArgumentError(
                f"{_WHAT}: device {min(shared)} holds {term.source!r} and is to take {name!r}; the "
                f"two jobs must have devices of different ids. Take "
                f"meshard.testing.virtual_devices for both."
            )
        yield PlanLeaf(
            name if recipe.is_identity else f"{term.source} in {name}",
            _turned(before, order),
            after,
            wired.itemsize,
            dtype_name(wired),
            **_ends(source.sharding, place) if recipe.is_identity else {},
        )


def _ends(source: Sharding, place: Sharding) -> dict[str, Any]:
    """Return what a plan's entry says of an array that keeps its shape."""
    texts = [repr(s.spec) if isinstance(s, NamedSharding) else "" for s in (source, place)]
    return {
        "source_text": texts[0],
        "destination_text": texts[1],
        "source_sharding": source,
        "sharding": place,
    }


def _layout(sharding: Sharding, shape: tuple[int, ...], told: str) -> Layout:
    """Return how an array is laid out; refuse a sharding that does not fit it."""
    try:
        return sharding.layout(shape)
    except ShardingError as error:
        raise type(error)(f"{_WHAT}: {told}: {error}") from error


def _order(name: str, term: Term) -> tuple[int, ...]:
    """Return the source's dim of each of the target's dims.

    Raises:
        KeyMapError: if the term is not a box on both sides.
    """
    found: dict[int, int] = {}
    for s in term.strides:
        if s.source is None or s.source_step != 1 or s.target_step != 1 or s.target in found:
            raise KeyMapError(
                f"{_WHAT}: elements of {term.source!r} are interleaved or repeated in {name!r}; "
                f"only boxes are planned here. `subscribe` moves them all the same."
            )
        found[s.target] = s.source
    dims, left = (
        len(term.target_start),
        [d for d in range(len(term.source_start)) if d not in found.values()],
    )
    if len(left) != dims - len(found):
        raise KeyMapError(
            f"{_WHAT}: {term.source!r} has another rank than {name!r}; only boxes of one rank are "
            f"planned here."
        )
    return tuple([found[d] if d in found else left.pop(0) for d in range(dims)])


def _clipped(layout: Layout, box: Box, name: str) -> Layout:
    """Return how a box of an array is laid out; a device may have nothing of it."""
    if box == Box.whole(layout.shape):
        return layout
    if not layout.regular:
        raise KeyMapError(f"{_WHAT}: {name!r} is mapped and laid out in boxes; it is not planned.")
    cuts = [
        tuple([min(max(c, lo), hi) - lo for c in own])
        for own, lo, hi in zip(layout.cuts, box.starts, box.stops, strict=True)
    ]
    return Layout(box.shape, tuple(cuts), layout.tensor)


def _turned(layout: Layout, order: Sequence[int]) -> Layout:
    """Return a layout with its dims in another order."""
    if tuple(order) == tuple(range(layout.ndim)):
        return layout
    if not layout.regular:
        raise KeyMapError(f"{_WHAT}: an array laid out in boxes is transposed; it is not planned.")
    tensor = layout.tensor.transpose(*order, layout.ndim)
    shape = tuple([layout.shape[d] for d in order])
    cuts = tuple([layout.cuts[d] for d in order])
    return Layout(shape, cuts, np.ascontiguousarray(tensor))


@final
@dataclass(frozen=True)
class PublishPlan(Drawn):
    """What one version of a tree moves from job to job; prints as tables.

    Attributes:
        plan: the moves, each of them direct.
        topology: what links cost; None if it was not said.
        max_bytes: the most bytes on their way to one device at once; None for no limit.
    """

    plan: Plan
    topology: Topology | None
    max_bytes: int | None

    @property
    def bytes_moved(self) -> int:
        """The bytes that travel."""
        return self.plan.bytes_moved

    @property
    def lower_bound_bytes(self) -> int:
        """The bytes that the takers need: for each the union of its elements."""
        return self.plan.lower_bound_bytes

    @property
    def most_sent(self) -> int:
        """The most bytes that one device gives."""
        return self.plan.most_sent

    @property
    def most_received(self) -> int:
        """The most bytes that one device takes."""
        return self.plan.most_received

    @cached_property
    def simulation(self) -> Simulation:
        """The time on the topology.

        Raises:
            ArgumentError: if there is no topology, or a device has no place in it.
        """
        return self._simulated(self._where)

    @property
    def _where(self) -> Topology:
        if self.topology is None:
            raise ArgumentError(f"{_WHAT}: seconds need a topology; give topology=.")
        return self.topology

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.simulation.seconds

    @cached_property
    def bound_seconds(self) -> float:
        """The time of the busiest port, if messages cost nothing."""
        where = self._where
        levels = tuple([replace(level, latency=0.0) for level in where.levels])
        return self._simulated(Topology(where.name, levels)).seconds

    def _simulated(self, topology: Topology) -> Simulation:
        """Return the time if all that goes from one device to another shares messages."""
        plan = self.plan
        pairs = zip(plan.choices, plan.groups, strict=True)
        moves = [(c.route, group[0].itemsize, c.count) for c, group in pairs]
        batches = 1
        if self.max_bytes is not None:
            batches = max(1, -(-plan.most_received // self.max_bytes))
        return simulate_many(moves, topology, together={frozenset(range(len(moves))): batches})

    def _svg(self) -> Markup:
        return self.plan._svg()

    @property
    def _facts(self) -> Iterator[Fact]:
        """Yield the time, if there is a topology, beside that of the busiest port."""
        if self.topology is None:
            return
        time, limit = self.simulation.facts
        yield time
        yield limit
        bound = self.bound_seconds
        beside = f"; the time is {self.seconds / bound:.2f} x that" * bool(bound)
        yield Fact("port bound", time_text(bound), f"if messages cost nothing{beside}")

    def _title(self) -> str:
        told = f"Publish: {whole_text(self.bytes_moved)} for each version"
        if self.topology is None:
            return told
        return f"{told}, {time_text(self.seconds)} on {self.topology.name}"

    def _parts(self) -> Iterator[Markup]:
        yield from Summary("", list(self._facts)).parts()
        yield from self.plan._parts()

    def __str__(self) -> str:
        return f"{Summary(self._title(), list(self._facts)).text()}\n\n{self.plan}"

    def __repr__(self) -> str:
        return f"PublishPlan({len(self.plan.leaves)} moves, {self.bytes_moved} bytes)"
