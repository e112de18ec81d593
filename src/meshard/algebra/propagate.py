"""Propagation: from a rule and the operands' placements to everyone's placement.

One generic engine for all operations: operands propose axes for factors; conflicts go to the
larger operand; the required placement of each operand, the placement of each result, and the
factors over which a reduction is left are then read off the factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from meshard.algebra.layout import Cuts, balanced_cuts, even_cuts
from meshard.algebra.rule import BoundRule, Dim


@final
@dataclass(frozen=True, slots=True)
class Split:
    """How one factor or dim is cut: over which axes, and where."""

    axes: tuple[str, ...]
    cuts: Cuts

    @property
    def shards(self) -> int:
        """The number of parts."""
        return len(self.cuts) - 1


Placement = tuple[Split, ...]
"""How an array lies on a mesh: one `Split` per dim."""


@final
@dataclass(frozen=True, slots=True)
class Propagation:
    """What `propagate` finds.

    Attributes:
        factors: each factor that is split, and how.
        inputs: the placement that each operand must have.
        outputs: the placement of each result.
        reduced: the split factors that no result has; a reduction over their axes remains.
    """

    factors: Mapping[str, Split]
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    reduced: tuple[str, ...]


def propagate(
    rule: BoundRule,
    operands: Sequence[Placement | None],
    axis_sizes: Mapping[str, int],
    weights: Sequence[int],
    wanted: Sequence[Placement | None] = (),
) -> Propagation:
    """Choose how each factor is split.

    Args:
        rule: the rule, applied to the operands' shapes.
        operands: each operand's placement on the mesh; None where it has no say.
        axis_sizes: the size of each mesh axis.
        weights: each operand's bytes; on a conflict the heavier one stays where it is.
        wanted: for each result how it had better lie; what the operands leave open follows it.

    >>> from meshard.algebra.rule import OpRule
    >>> rule = OpRule.parse("i k, k j -> i j").bind([(4, 6), (6, 8)])
    >>> row, whole = Split(("x",), (0, 2, 4)), Split((), (0, 6))
    >>> found = propagate(rule, [(row, whole), None], {"x": 2}, [24, 48])
    >>> found.outputs, found.reduced
    (((Split(axes=('x',), cuts=(0, 2, 4)), Split(axes=(), cuts=(0, 8))),), ())
    """
    chosen: dict[str, Split] = {}
    terms = (*rule.inputs, *rule.outputs)
    merged = {f for term in terms for dim in term if len(dim) > 1 for f in dim}
    displaced: list[tuple[tuple[str, ...], int]] = []
    order = sorted(range(len(operands)), key=lambda i: (-weights[i], i))
    for number in order:
        for dim, split in zip(rule.inputs[number], operands[number] or (), strict=False):
            if split.shards > 1 and dim:
                for factor, part in _proposals(dim, split, rule.sizes, axis_sizes):
                    if factor in rule.whole:
                        displaced.append((part.axes, number))
                    elif rule.sizes[factor] != 1 or factor not in merged:
                        _adopt(chosen, factor, part, rule.sizes, axis_sizes)
    for term, wish in zip(rule.outputs, wanted, strict=False):
        for dim, split in zip(term, wish or (), strict=False):
            if split.shards > 1 and dim:
                for factor, part in _proposals(dim, split, rule.sizes, axis_sizes):
                    if factor not in rule.whole and rule.sizes[factor] != 1:
                        _adopt(chosen, factor, part, rule.sizes, axis_sizes)
    for axes, number in displaced:
        _rehome(chosen, axes, rule, number, axis_sizes)
    _legalise(chosen, rule, axis_sizes)
    kept = {f for term in rule.outputs for dim in term for f in dim}
    return Propagation(
        chosen,
        tuple(tuple(_split(dim, chosen, rule.sizes) for dim in term) for term in rule.inputs),
        tuple(tuple(_split(dim, chosen, rule.sizes) for dim in term) for term in rule.outputs),
        tuple(f for f in rule.sizes if f in chosen and f not in kept),
    )


def _count(axes: Sequence[str], axis_sizes: Mapping[str, int]) -> int:
    return math.prod(axis_sizes[a] for a in axes)


def _cut(size: int, shards: int) -> Cuts:
    return even_cuts(size, shards) if size % shards == 0 else balanced_cuts(size, shards)


def _proposals(
    dim: Dim, split: Split, sizes: Mapping[str, int], axis_sizes: Mapping[str, int]
) -> list[tuple[str, Split]]:
    """Divide one dim's split among the factors that it merges, the slowest first."""
    if len(dim) == 1:
        return [(dim[0], split)]
    found: list[tuple[str, Split]] = []
    axes = split.axes
    cuts: Cuts | None = split.cuts
    factors = [f for f in dim if sizes[f] != 1]
    for place, factor in enumerate(factors):
        size, shards = sizes[factor], _count(axes, axis_sizes)
        minor = math.prod(sizes[f] for f in factors[place + 1 :])
        if shards <= size or place == len(factors) - 1:
            if cuts is not None and minor and all(c % minor == 0 for c in cuts):
                return [*found, (factor, Split(axes, tuple([c // minor for c in cuts])))]
            return [*found, (factor, Split(axes, _cut(size, shards)))]
        fit = 0
        while fit < len(axes) and _count(axes[: fit + 1], axis_sizes) <= size:
            fit += 1
        if not fit:
            return [*found, (factor, Split(axes, _cut(size, shards)))]
        taken = _count(axes[:fit], axis_sizes)
        found.append((factor, Split(axes[:fit], _cut(size, taken))))
        if taken != size:
            return found
        axes = axes[fit:]
        cuts = _repeated(cuts, size, minor)
    return found


def _repeated(cuts: Cuts | None, times: int, length: int) -> Cuts | None:
    """Return the cuts of one stretch, if those of so many stretches in a row are alike."""
    if cuts is None or (len(cuts) - 1) % times:
        return None
    shards = (len(cuts) - 1) // times
    one = cuts[: shards + 1]
    alike = all(c == i // shards * length + one[i % shards] for i, c in enumerate(cuts[:-1]))
    return one if alike and one[-1] == length else None


def _adopt(
    chosen: dict[str, Split],
    factor: str,
    part: Split,
    sizes: Mapping[str, int],
    axis_sizes: Mapping[str, int],
) -> None:
    """Let a factor take a proposal, as far as its axes are free and extend what it has."""
    used = {a for f, split in chosen.items() if f != factor for a in split.axes}
    fit = 0
    while fit < len(part.axes) and part.axes[fit] not in used:
        fit += 1
    axes = part.axes[:fit]
    before = chosen.get(factor)
    have = before.axes if before else ()
    shards = _count(axes, axis_sizes)
    if shards <= _count(have, axis_sizes) or axes[: len(have)] != have:
        return
    own = part.cuts if axes == part.axes else _cut(sizes[factor], shards)
    if before is None or set(before.cuts) <= set(own):
        chosen[factor] = Split(axes, own)


def _rehome(
    chosen: dict[str, Split],
    axes: tuple[str, ...],
    rule: BoundRule,
    number: int,
    axis_sizes: Mapping[str, int],
) -> None:
    """Move axes off a factor that must be whole to the best other factor of the same operand.

    A free factor is the best; one that is split already is split further.
    """
    used = {a for split in chosen.values() for a in split.axes}
    if used & set(axes):
        return
    kept = {f for term in rule.outputs for dim in term for f in dim}
    whole = Split((), (0, 0))
    homes: list[tuple[bool, bool, int, str, Split]] = []
    for factor in (f for dim in rule.inputs[number] for f in dim):
        size, both = rule.sizes[factor], chosen.get(factor, whole).axes + axes
        shards = _count(both, axis_sizes)
        if factor not in rule.whole and factor in kept and size >= shards:
            split = Split(both, _cut(size, shards))
            homes.append((factor not in chosen, size % shards == 0, size, factor, split))
    if homes:
        *_, best, split = max(homes, key=lambda home: home[:3])
        chosen[best] = split


def _legalise(chosen: dict[str, Split], rule: BoundRule, axis_sizes: Mapping[str, int]) -> None:
    """Make every merged dim expressible as cuts of that dim.

    A faster factor may be split only where all slower ones are split into single positions; its
    axes otherwise move to the slowest factor, if that is long enough, or are given up. A factor
    that has lost its axes gets none again, so that this ends.
    """
    lost: set[str] = set()
    merged = [dim for term in (*rule.inputs, *rule.outputs) for dim in term if len(dim) > 1]
    changed = True
    while changed:
        changed = False
        for dim in merged:
            factors = [f for f in dim if rule.sizes[f] != 1]
            for place, factor in enumerate(factors):
                slower = factors[:place]
                if factor not in chosen or all(
                    f in chosen and all(b - a == 1 for a, b in pairwise(chosen[f].cuts))
                    for f in slower
                ):
                    continue
                axes = chosen.pop(factor).axes
                lost.add(factor)
                head = factors[0]
                both = (chosen[head].axes if head in chosen else ()) + axes
                size = rule.sizes[head]
                free = head not in rule.whole and head not in lost
                if free and _count(both, axis_sizes) <= size:
                    chosen[head] = Split(both, _cut(size, _count(both, axis_sizes)))
                changed = True


def _split(dim: Dim, chosen: Mapping[str, Split], sizes: Mapping[str, int]) -> Split:
    """Return how a dim is cut when its factors are cut as chosen."""
    axes: tuple[str, ...] = ()
    cuts: Cuts = (0, 1)
    for factor in dim:
        size = sizes[factor]
        if factor in chosen:
            part = chosen[factor]
            axes += part.axes
            cuts = (
                *(m * size + c for m in cuts[:-1] for c in part.cuts[:-1]),
                cuts[-1] * size,
            )
        else:
            cuts = tuple([c * size for c in cuts])
    return Split(axes, cuts)
