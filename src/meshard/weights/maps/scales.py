"""The rule of block scales: which tensors are the scales of which others.

In: patterns of names, and the size of a block. Out: scales that follow their tensors through the
rules of a stage.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import Layout
from meshard.errors import KeyMapError
from meshard.weights.maps import fields
from meshard.weights.maps.blocks import Scale, blocks_of
from meshard.weights.maps.fields import exactly, parse
from meshard.weights.maps.recipe import Recipe
from meshard.weights.maps.rules import Rule, check_same_places
from meshard.weights.maps.tree import Change, Tree, scale_name


@dataclass(frozen=True)
class Scales(Rule):
    """Says that tensors are the block scales of others, and follow them until the stage ends.

    Attributes:
        source: the pattern of the tensors that have scales.
        by: the pattern of the scales.
        block: how many elements share a scale, along each dim.
        to: the patterns of both names at the end of the stage, if they are other ones.
    """

    key = "scales"
    source: str = fields.one_pattern()
    by: str = fields.one_pattern()
    block: tuple[int, ...] | None = fields.integers(1)
    to: tuple[str, ...] | None = fields.patterns_or_none()

    def check(self) -> None:
        """Refuse names that do not tell which scales belong to what."""
        check_same_places(self, [self.source, self.by])
        if self.block is None:
            raise KeyMapError("scales: give block, how many elements share a scale in each dim.")
        if self.to is not None and len(self.to) != 2:
            raise KeyMapError(
                "scales: to is two patterns, of the tensors' names and of their scales' names."
            )
        check_same_places(self, self.to or (self.source,))

    def apply(self, tree: Tree, label: str) -> list[Change]:
        """Take the scales out of the tree, and give them to their tensors."""
        source, names = parse(self.source), self.to or (self.source, self.by)
        for name, filling in tree.matches(label, parse(self.by), optional=self.optional):
            own = source.expand(filling)
            node, scales = tree.nodes.get(own), tree.nodes[name].form
            if node is None:
                raise KeyMapError(f"{label}: {name!r} is there, but {own!r}, its tensor, is not.")
            if own in tree.touched or name in tree.touched or node.scale is not None:
                raise KeyMapError(
                    f"{label}: {own!r} and its scales {name!r} were changed by rules before. "
                    "Declare scales first, so that all rules know of them."
                )
            shape = node.form.shape
            block = self.block or ()
            expected = blocks_of(shape, block) if len(shape) == len(block) else None
            if scales.shape != expected:
                raise KeyMapError(
                    f"{label}: tensor {own!r} of shape {shape} has blocks of "
                    f"{' x '.join(map(str, block))} elements, so that its scales {name!r} "
                    f"have the shape {expected or 'of as many dims'}; found {scales.shape}."
                )
            scale = Scale(scales, block, (names[0], names[1]), (self.source, self.by))
            scaled = dataclasses.replace(node, scale=scale)
            for each in (own, *tree.tied_to([own])):
                tree.put(each, scaled)
            tree.remove(name)
            tree.taken[name] = label
        return []

    def inverse(self, changes: Sequence[Change], after: Mapping[str, object]) -> list[Rule]:
        """Return nothing: `scales_after` declares the scales of what has been made."""
        return []


def scales_after(tree: Tree) -> list[Rule]:
    """Return the rules that declare the scales that tensors have at the end of a stage."""
    scaled = {n: v.scale for n, v in tree.nodes.items() if v.scale is not None}
    others = {scale_name(name, scale): name for name, scale in scaled.items()}
    groups: dict[tuple[Any, ...], list[str]] = {}
    for other, name in others.items():
        scale = scaled[name]
        groups.setdefault((scale.block, scale.names, scale.before), []).append(other)
    found: list[Rule] = []
    for (block, (own, by), before), group in groups.items():
        matched = {n for n, _ in parse(by).matches({**tree.nodes, **others})}
        if matched == set(group) and all(parse(own).match(others[n]) is not None for n in group):
            found.append(Scales(own, by, block, before))
        else:
            found += [Scales(exactly(others[n]), exactly(n), block, before) for n in group]
    return found


def check_cuts(
    recipes: Mapping[str, Recipe],
    scaled: Mapping[str, tuple[str, tuple[int, ...]]],
    shardings: Mapping[str, Sharding],
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return where scales are to be cut, so that each device has those of its elements.

    Args:
        recipes: how tensors are made.
        scaled: those that have scales, with the scales' name and the sizes of a block.
        shardings: how tensors are to be laid out, by name.

    Raises:
        KeyMapError: if a tensor is cut within a block.
    """
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    seen: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, ...], ...]] = {}
    for name, (other, block) in scaled.items():
        sharding = shardings.get(name)
        if sharding is None:
            continue
        shape = recipes[name].shape
        key = (id(sharding), shape)
        if key not in seen:
            seen[key] = _cut_points(sharding.layout(shape))
        found[other] = tuple(
            [
                _block_cuts(name, (dim, points, n, size))
                for dim, (points, n, size) in enumerate(zip(seen[key], shape, block, strict=True))
            ]
        )
    return found


def _cut_points(layout: Layout) -> tuple[tuple[int, ...], ...]:
    cuts = layout.cuts
    if math.prod([len(c) - 1 for c in cuts]) != layout.piece_count:
        ends = [(*b.starts, *b.stops) for b in layout.boxes]
        cuts = tuple([tuple(e) for e in np.reshape(ends, (-1, layout.ndim)).T.tolist()])
    return tuple([tuple(sorted(set(c))) for c in cuts])


def _block_cuts(name: str, cut: tuple[int, tuple[int, ...], int, int]) -> tuple[int, ...]:
    dim, points, n, size = cut
    inside = [p for p in points if p % size and p != n]
    if inside:
        raise KeyMapError(
            f"check_shardings: tensor {name!r} is cut at {inside[0]} along dim {dim}, within a "
            f"block of {size} elements that has one scale. Cut it on borders of blocks: "
            f"uneven= takes cut points, for instance {_nearest(points, n, size)}."
        )
    return tuple(dict.fromkeys([-(-p // size) for p in points]))


def _nearest(points: Sequence[int], n: int, size: int) -> tuple[int, ...]:
    return tuple([n if p == n else min(round(p / size) * size, n) for p in points])
