"""Decisions about rows that positions name, where the rows are split over devices.

In: a row with a law of `Positions`, the operands' types. Out: a `ExchangeDecision`. The dims of the
positions are laid out like the positions, all others like the first operand; both may be split over
the same axes, since rows pass between devices in any case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import balanced_cuts
from meshard.algebra.propagate import Placement, Split, propagate
from meshard.algebra.rule import BoundRule, Dim, OpRule, Term
from meshard.algebra.sharding import NamedSharding
from meshard.ops.dtypes.laws import result_dtypes
from meshard.ops.engine.decision import ExchangeDecision
from meshard.ops.engine.operand_mesh import OperandMesh, way_to
from meshard.ops.exchange.deliver import Deliver
from meshard.ops.exchange.fetch import Fetch
from meshard.ops.exchange.lookups import Lookups, Parties, Searched, Setting
from meshard.ops.row import Op, Params, Positions
from meshard.runtime.moving.place import home
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld

Type = ArrayType | type[Any]
WHOLE = Split((), (0, 0))
"""That a factor is not split."""


def decide_exchange(
    world: RuntimeWorld,
    op: Op,
    types: Sequence[Type],
    params: Params,
    preferred: Sequence[Sharding | None],
    leading: int | None,
) -> ExchangeDecision | None:
    """Work out what passes between devices; None if no row is on a device of its own.

    Args:
        world: whose devices are used.
        op: the operation.
        types: the operands' types.
        params: the parameters.
        preferred: for the result how it is best laid out, as far as the operands leave it open.
        leading: the operand that stays where it is if operands disagree; None for the heaviest.
    """
    law = op.positions
    assert law is not None
    arrays = [t if isinstance(t, ArrayType) else _number(world, t) for t in types]
    meets = OperandMesh(op.name, arrays)
    own, dims = meets.placement(arrays[0]), law.dims(params)
    if own is None or meets.single is not None or not any(own[d].shards > 1 for d in dims):
        return None
    operands = [(t.shape, t.dtype) for t in arrays]
    (dtype,), _ = result_dtypes(op, operands, params)
    text = op.rule if isinstance(op.rule, str) else op.rule(operands, params)
    assert isinstance(text, str)
    rule = OpRule.parse(text.replace("!", "")).bind([t.shape for t in arrays], None, op.name)
    found = _Operands(world, law, rule, meets, arrays)
    if leading is not None:  # heavier than all others together
        found.weights[leading] = sum(found.weights) + 1
    wish = meets.preferred(preferred[0], rule.output_shape(0)) if preferred else None
    return found.decision(op, params, dtype, wish)


def _number(world: RuntimeWorld, kind: type[Any]) -> ArrayType:
    """Return the type of the array that a Python number becomes."""
    return world.type_of((), np.asarray(kind(0)).dtype, home(world), False)


@final
class _Operands:
    """The decision about rows, part by part."""

    def __init__(
        self,
        world: RuntimeWorld,
        law: Positions,
        rule: BoundRule,
        meets: OperandMesh,
        arrays: Sequence[ArrayType],
    ) -> None:
        self.world, self.law, self.rule, self.meets = world, law, rule, meets
        self.arrays, self.weights = arrays, [t.nbytes for t in arrays]
        own = {f for dim in rule.inputs[0] for f in dim}
        self.places = [f for f in rule.sizes if f not in own]
        self.placements = [meets.placement(t) for t in arrays]

    def decision(
        self, op: Op, params: Params, dtype: Any, wish: Placement | None
    ) -> ExchangeDecision | None:
        """All parts together; None if the rows are whole where they are read."""
        world, meets = self.world, self.meets
        dims = self.law.dims(params)
        self._choose({f for d in dims for f in self.rule.inputs[0][d]}, wish)
        if not any(s.shards > 1 for s in self.split.values()):
            return None
        self._spread(wish)
        read = [self._read(i) for i in range(len(self.arrays))]
        ways = [way_to(world, meets, t, p) for t, p in zip(self.arrays, read, strict=True)]
        kinds = tuple(
            t if part is None else world.type_of(t.shape, t.dtype, meets.sharding(p), True)
            for t, (part, _), p in zip(self.arrays, ways, read, strict=True)
        )
        output = self._output(dtype, read)
        exchange = self._exchange(op, params, kinds, read, output)
        return ExchangeDecision(
            row=op,
            operands=kinds,
            moves=tuple([part for part, _ in ways]),
            moved=tuple([wire for _, wire in ways if wire is not None]),
            exchange=exchange,
            estimated=exchange.wires,
            outputs=(output,),
        )

    # how factors are split, and operands are read

    def _choose(self, named: set[str], wish: Placement | None) -> None:
        """Choose how the rows are split, and then all else, which may be split over the same axes.

        Where dims of the array are in conflict the heavier operand stays where it is; the
        positions give way to the array's other dims.
        """
        weights = [*self.weights]
        first = self._propagated(dict.fromkeys(self.places, WHOLE), weights, wish)
        self.split = {f: s for f, s in first.items() if f in named}
        rest = {f: first.get(f, WHOLE) for f in self.rule.sizes if f not in self.places}
        rest.update(dict.fromkeys(named, WHOLE))
        weights[0] += 2 * sum(weights)
        second = self._propagated(rest, weights, wish)
        self.factors = {f: s for f, s in second.items() if f not in named}

    def _propagated(
        self, given: Mapping[str, Split], weights: Sequence[int], wish: Placement | None
    ) -> dict[str, Split]:
        """Return how factors are split where some of them are given."""
        terms = (*self.rule.inputs, self.rule.outputs[0])
        *found, wanted = [
            p and tuple([_part(s, dim, given) for dim, s in zip(t, p, strict=True)])
            for t, p in zip(terms, (*self.placements, wish), strict=True)
        ]
        sizes = self.meets.mesh.shape
        return dict(propagate(self.rule, found, sizes, weights, [wanted]).factors)

    def _spread(self, wish: Placement | None) -> None:
        """Split the result along the positions like the rows, where these do not say how."""
        asked = wish is not None or any(f in self.factors for f in self.places)
        if asked or self.law.updates:
            return
        used = {a for s in self.factors.values() for a in s.axes}
        free = tuple(a for s in self.split.values() for a in s.axes if a not in used)
        count = math.prod(map(self.meets.mesh.shape.__getitem__, free))
        sizes = self.rule.sizes
        f = next((f for f in self.places if sizes[f] >= count > 1), None)
        if f is not None:
            own = next(iter(self.split.values()))
            alike = own.axes == free and own.cuts[-1] == sizes[f]
            self.factors[f] = own if alike else Split(free, balanced_cuts(sizes[f], count))

    def _read(self, number: int) -> Placement:
        """Return how an operand is laid out when it is read.

        Where every device has all positions they stay as they are: nobody needs to ask.
        """
        term, shape = self.rule.inputs[number], self.arrays[number].shape
        if not number:
            return self._placement(term, {**self.factors, **self.split}, shape)
        values = self.law.updates and number == 1
        others = range(1, len(self.arrays)) if values else [number]
        own = self.factors
        if all(map(self._is_known, others)):
            own = {f: s for f, s in own.items() if f not in self.places}
        if self._is_replicated(number) and not values:
            own = {}
        return self._placement(term, own, shape)

    def _is_replicated(self, number: int) -> bool:
        """Whether every device has all of an operand."""
        placement = self.placements[number]
        return self.arrays[number].unplaced or (
            placement is not None and all(s.shards == 1 for s in placement)
        )

    def _is_known(self, number: int) -> bool:
        """Whether every device has of an operand all that it needs, whatever positions it gets."""
        placement, term = self.placements[number], self.rule.inputs[number]
        if self._is_replicated(number) or placement is None:
            return self._is_replicated(number)
        splits = [(dim, s) for dim, s in zip(term, placement, strict=True) if s.shards > 1 and dim]
        return all(dim[0] not in self.places and self.factors.get(dim[0]) == s for dim, s in splits)

    def _placement(self, term: Term, factors: dict[str, Split], shape: Sequence[int]) -> Placement:
        return tuple(
            factors[dim[0]] if dim and dim[0] in factors else Split((), (0, n))
            for dim, n in zip(term, shape, strict=True)
        )

    # results

    def _output(self, dtype: Any, read: Sequence[Placement]) -> ArrayType:
        """Return the result's type; with an operand's own sharding where it is laid out alike."""
        meets, shape = self.meets, self.rule.output_shape(0)
        placement = read[0]
        if not self.law.updates:
            placement = self._placement(self.rule.outputs[0], self.factors, shape)
        sharding = meets.sharding(placement)
        for array, own in zip(self.arrays, self.placements, strict=True):
            named = isinstance(array.sharding, NamedSharding)
            if named and array.shape == shape and own is not None and _same(own, placement):
                sharding = array.sharding
        return self.world.type_of(shape, dtype, sharding, meets.committed)

    def _exchange(
        self,
        op: Op,
        params: Params,
        kinds: Sequence[ArrayType],
        read: Sequence[Placement],
        output: ArrayType,
    ) -> Fetch | Deliver:
        """Return what brings the rows together."""
        meets, law = self.meets, self.law
        layouts = [
            meets.sharding(p).layout(t.shape) for t, p in zip(self.arrays, read, strict=True)
        ]
        dims, first = tuple(law.dims(params)), 2 if law.updates else 1
        target = layouts[1] if law.updates else output.layout
        at = 0 if law.updates else params.get("at", dims[0])
        lookups = Lookups(layouts[0], tuple(layouts[first:]), target, dims, at, law.along)
        if law.by_value:
            lookups = Searched(layouts[0], layouts[1], kinds[1].dtype, params["side"])
        return (Deliver if law.updates else Fetch)(
            op,
            params,
            Setting(
                names=tuple([t.str_short() for t in kinds]),
                axes=self._axes(),
                lookups=lookups,
                parties=Parties({d.id: d.process_index for d in meets.mesh.flat_devices}),
                dtype=kinds[1].dtype if law.updates else output.dtype,
            ),
        )

    def _axes(self) -> tuple[str, ...]:
        """Return the axes along which rows pass."""
        splits = [*self.split.values()]
        splits += [s for f, s in self.factors.items() if self.law.updates and f in self.places]
        joined = {a for s in splits for a in s.axes}
        return tuple(a for a in self.meets.mesh.axis_names if a in joined)


def _part(split: Split, dim: Dim, given: Mapping[str, Split]) -> Split:
    """Return how a dim is split where its factor's split may be given."""
    own = WHOLE if not dim else given.get(dim[0], split)
    return Split((), (0, split.cuts[-1])) if own is WHOLE else own


def _same(a: Placement, b: Placement) -> bool:
    return all(
        s.cuts == t.cuts and (s.axes == t.axes or s.shards == 1) for s, t in zip(a, b, strict=True)
    )
