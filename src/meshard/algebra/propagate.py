"""Propagation: from a rule and the operands' placements to everyone's placement.

One generic engine for all operations: operands propose axes for factors; conflicts go to the
larger operand; the required placement of each operand, the placement of each result, and the
factors over which a reduction is left are then read off the factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from meshard.algebra.layout import Cuts, balanced_cuts
from meshard.algebra.rule import BoundRule, Dim, Term


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
"""How an array is laid out on a mesh: one `Split` per dim."""


@final
@dataclass(frozen=True, slots=True, eq=False)  # those that are kept are known by identity
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
        operands: each operand's placement on the mesh; None for one that decides nothing.
        axis_sizes: the size of each mesh axis.
        weights: each operand's bytes; on a conflict the heavier one stays where it is.
        wanted: for each result its preferred placement, which decides what the operands leave open.

    >>> from meshard.algebra.rule import OpRule
    >>> rule = OpRule.parse("i k, k j -> i j").bind([(4, 6), (6, 8)])
    >>> row, whole = Split(("x",), (0, 2, 4)), Split((), (0, 6))
    >>> found = propagate(rule, [(row, whole), None], {"x": 2}, [24, 48])
    >>> found.outputs, found.reduced
    (((Split(axes=('x',), cuts=(0, 2, 4)), Split(axes=(), cuts=(0, 8))),), ())
    """
    choice = _Choice(rule, axis_sizes)
    displaced: list[tuple[tuple[str, ...], int]] = []
    for number in sorted(range(len(operands)), key=lambda i: (-weights[i], i)):
        for factor, part in choice.proposals(rule.inputs[number], operands[number]):
            if factor in rule.whole:
                displaced.append((part.axes, number))
            elif rule.sizes[factor] != 1 or factor not in choice.merged:
                choice.adopt(factor, part)
    choice.follow(wanted)
    # What must be whole gives its axes to another factor, once all others have had their say.
    for axes, number in displaced:
        choice.rehome(axes, number)
    choice.legalise()
    kept = rule.kept
    return Propagation(
        choice.chosen,
        tuple(tuple(map(choice.of_dim, term)) for term in rule.inputs),
        tuple(tuple(map(choice.of_dim, term)) for term in rule.outputs),
        tuple(f for f in rule.sizes if f in choice.chosen and f not in kept),
    )


def _coarser(cuts: Cuts | None, minor: int) -> Cuts | None:
    """Return cuts counted in stretches of ``minor`` positions, if each cut falls between two."""
    if cuts is None or not minor or any(c % minor for c in cuts):
        return None
    return tuple([c // minor for c in cuts])


def _repeated(cuts: Cuts | None, times: int, length: int) -> Cuts | None:
    """Return the cuts of one stretch, if those of that many stretches in a row are alike."""
    if cuts is None or (len(cuts) - 1) % times:
        return None
    shards = (len(cuts) - 1) // times
    one = cuts[: shards + 1]
    alike = all(c == i // shards * length + one[i % shards] for i, c in enumerate(cuts[:-1]))
    return one if alike and one[-1] == length else None


@final
class _Choice:
    """How the factors of a rule are split, as far as that is chosen."""

    def __init__(self, rule: BoundRule, axis_sizes: Mapping[str, int]) -> None:
        self.chosen: dict[str, Split] = {}
        terms = (*rule.inputs, *rule.outputs)
        self._merged_dims = [dim for term in terms for dim in term if len(dim) > 1]
        self.merged = {f for dim in self._merged_dims for f in dim}
        self._rule = rule
        self._sizes = rule.sizes
        self._axis_sizes = axis_sizes

    def _count(self, axes: Sequence[str]) -> int:
        return math.prod(self._axis_sizes[a] for a in axes)

    def proposals(self, term: Term, placement: Placement | None) -> Iterator[tuple[str, Split]]:
        """Yield how an array that is placed so would have its factors split."""
        for dim, split in zip(term, placement or (), strict=False):
            if split.shards > 1 and dim:
                yield from [(dim[0], split)] if len(dim) == 1 else self._divided(dim, split)

    def _divided(self, dim: Dim, split: Split) -> list[tuple[str, Split]]:
        """Divide one dim's split among the factors that it merges, the slowest first.

        The slowest factor takes the axes that it has room for. Only if these cut it into single
        positions can the next factor be cut as well: otherwise a shard of the dim would not be one
        stretch of positions.
        """
        found: list[tuple[str, Split]] = []
        axes = split.axes
        cuts: Cuts | None = split.cuts
        factors = [f for f in dim if self._sizes[f] != 1]
        for place, factor in enumerate(factors):
            size, shards = self._sizes[factor], self._count(axes)
            minor = math.prod(self._sizes[f] for f in factors[place + 1 :])
            takes_all = shards <= size or place == len(factors) - 1
            fit = self._fitting(axes, size)
            if takes_all or not fit:
                own = _coarser(cuts, minor) if takes_all else None
                return [*found, (factor, Split(axes, own or balanced_cuts(size, shards)))]
            taken = self._count(axes[:fit])
            found.append((factor, Split(axes[:fit], balanced_cuts(size, taken))))
            if taken != size:
                return found
            axes = axes[fit:]
            cuts = _repeated(cuts, size, minor)
        return found

    def _fitting(self, axes: Sequence[str], size: int) -> int:
        """Return how many of the axes, from the first on, a factor has positions for."""
        fit = 0
        while fit < len(axes) and self._count(axes[: fit + 1]) <= size:
            fit += 1
        return fit

    def adopt(self, factor: str, part: Split) -> None:
        """Let a factor take a proposal, as far as its axes are free and extend what it has."""
        used = {a for f, split in self.chosen.items() if f != factor for a in split.axes}
        fit = 0
        while fit < len(part.axes) and part.axes[fit] not in used:
            fit += 1
        axes = part.axes[:fit]
        before = self.chosen.get(factor)
        have = before.axes if before else ()
        shards = self._count(axes)
        if shards <= self._count(have) or axes[: len(have)] != have:
            return
        own = part.cuts if axes == part.axes else balanced_cuts(self._sizes[factor], shards)
        if before is None or set(before.cuts) <= set(own):
            self.chosen[factor] = Split(axes, own)

    def follow(self, wanted: Sequence[Placement | None]) -> None:
        """Split what the operands leave open as the results' preferred placements say."""
        for term, wish in zip(self._rule.outputs, wanted, strict=False):
            for factor, part in self.proposals(term, wish):
                if factor not in self._rule.whole and self._sizes[factor] != 1:
                    self.adopt(factor, part)

    def rehome(self, axes: tuple[str, ...], number: int) -> None:
        """Move axes off a factor that must be whole to the best other factor of an operand.

        A free factor is the best; one that is split already is split further.
        """
        used = {a for split in self.chosen.values() for a in split.axes}
        if used & set(axes):
            return
        kept, whole = self._rule.kept, Split((), (0, 0))
        homes: list[tuple[bool, bool, int, str, Split]] = []
        for factor in (f for dim in self._rule.inputs[number] for f in dim):
            size, both = self._sizes[factor], self.chosen.get(factor, whole).axes + axes
            shards = self._count(both)
            if factor not in self._rule.whole and factor in kept and size >= shards:
                split = Split(both, balanced_cuts(size, shards))
                homes.append((factor not in self.chosen, size % shards == 0, size, factor, split))
        if homes:
            *_, best, split = max(homes, key=lambda home: home[:3])
            self.chosen[best] = split

    def legalise(self) -> None:
        """Make every merged dim expressible as cuts of that dim.

        In ``(a b)`` the positions of b follow one another for each position of a. A shard of b
        alone would be one stretch for each position of a, which no cuts of the dim can say. So a
        faster factor may be split only where all slower ones are split into single positions.
        """
        lost: set[str] = set()
        # One factor may be part of several merged dims, so that a change for one dim can make
        # another wrong. A factor that has lost its axes gets none again, so that this ends.
        while sum(self._legalise_dim(dim, lost) for dim in self._merged_dims):
            pass

    def _legalise_dim(self, dim: Dim, lost: set[str]) -> bool:
        """Move or drop the axes of factors that may not be split, and say if there were any."""
        changed = False
        factors = [f for f in dim if self._sizes[f] != 1]
        for place, factor in enumerate(factors):
            if factor not in self.chosen or all(map(self._single, factors[:place])):
                continue
            axes = self.chosen.pop(factor).axes
            lost.add(factor)
            changed = True
            head = factors[0]
            both = (self.chosen[head].axes if head in self.chosen else ()) + axes
            size, shards = self._sizes[head], self._count(both)
            if head not in self._rule.whole and head not in lost and shards <= size:
                self.chosen[head] = Split(both, balanced_cuts(size, shards))
        return changed

    def _single(self, factor: str) -> bool:
        """Whether a factor is split into single positions."""
        return factor in self.chosen and all(
            b - a == 1 for a, b in pairwise(self.chosen[factor].cuts)
        )

    def of_dim(self, dim: Dim) -> Split:
        """Return how a dim is cut when its factors are cut as chosen."""
        if len(dim) == 1 and dim[0] in self.chosen:
            return Split(self.chosen[dim[0]].axes, self.chosen[dim[0]].cuts)
        axes: tuple[str, ...] = ()
        cuts: Cuts = (0, 1)
        for factor in dim:
            size = self._sizes[factor]
            if factor in self.chosen:
                part = self.chosen[factor]
                axes += part.axes
                starts = [m * size + c for m in cuts[:-1] for c in part.cuts[:-1]]
                cuts = (*starts, cuts[-1] * size)
            else:
                cuts = tuple([c * size for c in cuts])
        return Split(axes, cuts)
