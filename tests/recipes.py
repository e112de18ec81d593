"""Running recipes by brute force: whole tensors, and boxes of them made of boxes of sources."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshard.algebra.box import Box
from meshard.weights.maps.recipe import Recipe, Term

Array = np.ndarray[Any, Any]


def made(recipe: Recipe, sources: Mapping[str, Array]) -> Array:
    """Return the tensor, and check that each element is filled once."""
    out = np.zeros(recipe.shape, recipe.dtype)
    count = np.zeros(recipe.shape, np.int64)
    origin = (0,) * len(recipe.shape)
    for term in recipe.terms:
        source = sources[term.source]
        view = term.source_view(source, (0,) * source.ndim)
        term.target_view(out, origin)[...] = view.astype(recipe.dtype)
        term.target_view(count, origin)[...] += 1
    for fill in recipe.fills:
        out[fill.box.slices] = fill.value
        count[fill.box.slices] += 1
    assert (count == 1).all(), recipe
    return out


def random_box(rng: random.Random, shape: tuple[int, ...]) -> Box:
    spans = [sorted((rng.randint(0, n), rng.randint(0, n))) for n in shape]
    return Box(tuple([a for a, _ in spans]), tuple([b for _, b in spans]))


def random_pieces(rng: random.Random, shape: tuple[int, ...]) -> list[Box]:
    """Return boxes that hold all elements of a shape, cut at random places along each dim."""
    cuts = []
    for n in shape:
        inner = sorted({rng.randint(0, n) for _ in range(rng.randint(0, 2))} | {0, n})
        cuts.append(list(itertools.pairwise(inner)) or [(0, n)])
    return [
        Box(tuple([a for a, _ in spans]), tuple([b for _, b in spans]))
        for spans in itertools.product(*cuts)
    ]


def made_in_pieces(
    recipe: Recipe, sources: Mapping[str, Array], rng: random.Random
) -> tuple[Box, Array]:
    """Return a random box of the tensor, made of blocks of its sources that hold boxes of them."""
    box = random_box(rng, recipe.shape)
    out = np.zeros(box.shape, recipe.dtype)
    count = np.zeros(box.shape, np.int64)
    pieces = {name: random_pieces(rng, x.shape) for name, x in sources.items()}
    for term in recipe.terms:
        for part in term.within_target(box):
            for piece in pieces[term.source]:
                block = np.ascontiguousarray(sources[term.source][piece.slices])
                for last in part.within_source(piece):
                    fill(last, block, piece, out, box)
                    last.target_view(count, box.starts)[...] += 1
    for each in recipe.fills:
        both = each.box.intersect(box)
        if both.volume:
            out[both.within(box).slices] = each.value
            count[both.within(box).slices] += 1
    assert (count == 1).all(), (recipe, box)
    return box, out


def fill(term: Term, block: Array, piece: Box, out: Array, box: Box) -> None:
    view = term.source_view(block, piece.starts)
    term.target_view(out, box.starts)[...] = view.astype(out.dtype)
