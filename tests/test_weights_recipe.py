"""Terms: restriction to boxes of either side, and what they show of blocks."""

import itertools
import random

import numpy as np
import pytest

from meshard.algebra.box import Box
from meshard.weights.maps.recipe import Fill, Recipe, Stride, Term, identity
from tests.recipes import made, made_in_pieces, random_box


def random_term(rng: random.Random) -> tuple[Term, tuple[int, ...], tuple[int, ...]]:
    """Return a term with nested steps, and shapes that hold it on both sides."""
    sides = {"source": [0] * rng.randint(1, 3), "target": [0] * rng.randint(1, 3)}
    reach = {side: list(dims) for side, dims in sides.items()}
    strides = []
    for _ in range(rng.randint(0, 4)):
        size = rng.randint(1, 4)
        d, t = (rng.randrange(len(reach[side])) for side in ("source", "target"))
        steps = {}
        for side, dim in (("source", d), ("target", t)):
            steps[side] = reach[side][dim] + 1 + rng.choice([0, 0, 1, 2])
        if rng.random() < 0.2:
            strides.append(Stride(size, None, 0, t, steps["target"]))
        else:
            strides.append(Stride(size, d, steps["source"], t, steps["target"]))
            reach["source"][d] += (size - 1) * steps["source"]
        reach["target"][t] += (size - 1) * steps["target"]
    starts = {side: tuple([rng.randint(0, 2) for _ in dims]) for side, dims in reach.items()}
    shapes = {
        side: tuple(
            [a + n + 1 + rng.randint(0, 2) for a, n in zip(starts[side], dims, strict=True)]
        )
        for side, dims in reach.items()
    }
    strides.sort(key=lambda s: (s.target, -s.target_step))
    term = Term("x", tuple(strides), starts["source"], starts["target"])
    return term, shapes["source"], shapes["target"]


def pairs(term: Term) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the source's index of each of the target's that is filled."""
    found = {}
    for at in itertools.product(*[range(n) for n in term.shape]):
        source, target = list(term.source_start), list(term.target_start)
        for k, s in zip(at, term.strides, strict=True):
            target[s.target] += k * s.target_step
            if s.source is not None:
                source[s.source] += k * s.source_step
        assert tuple(target) not in found
        found[tuple(target)] = tuple(source)
    return found


def holds(box: Box, index: tuple[int, ...]) -> bool:
    return all(a <= i < b for a, i, b in zip(box.starts, index, box.stops, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_the_parts_of_a_term_in_a_box_are_its_elements_there(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        term, source, target = random_term(rng)
        every = pairs(term)
        assert len(every) == term.volume
        for shape, side in ((source, 1), (target, 0)):
            box = random_box(rng, shape)
            parts = term.within_source(box) if side else term.within_target(box)
            expected = {t: s for t, s in every.items() if holds(box, s if side else t)}
            found: dict[tuple[int, ...], tuple[int, ...]] = {}
            for part in parts:
                assert not found.keys() & pairs(part).keys()
                found |= pairs(part)
            assert found == expected


def test_views_show_the_elements_of_a_block_in_the_order_of_the_directions() -> None:
    rng = random.Random(3)
    for _ in range(100):
        term, source, target = random_term(rng)
        block = np.arange(np.prod(source)).reshape(source)
        out = np.full(target, -1)
        term.target_view(out, (0,) * len(target))[...] = term.source_view(block, (0,) * len(source))
        expected = np.full(target, -1)
        for t, s in pairs(term).items():
            expected[t] = block[s]
        np.testing.assert_array_equal(out, expected)
        box = term.source_box
        part = np.ascontiguousarray(block[box.slices])
        np.testing.assert_array_equal(
            term.source_view(part, box.starts), term.source_view(block, (0,) * len(source))
        )


def test_a_view_of_a_block_that_may_not_be_written_may_not_be_written() -> None:
    block = np.zeros((2, 3))
    block.flags.writeable = False
    (term,) = identity("w", (2, 3), block.dtype).terms
    assert not term.source_view(block, (0, 0)).flags.writeable


def test_the_boxes_around_a_term_are_the_smallest() -> None:
    rng = random.Random(5)
    for _ in range(100):
        term, _, _ = random_term(rng)
        for box, indices in (
            (term.source_box, pairs(term).values()),
            (term.target_box, pairs(term).keys()),
        ):
            array = np.array(list(indices))
            assert box.starts == tuple(array.min(0))
            assert box.stops == tuple(array.max(0) + 1)


def test_an_identity_is_told_from_what_moves_elements() -> None:
    f4 = np.dtype("f4")
    whole = identity("w", (2, 3), f4)
    assert whole.is_identity
    assert whole.sources == ("w",)
    (term,) = whole.terms
    turned = tuple([Stride(s.size, 1 - s.target, 1, s.target, 1) for s in term.strides])
    assert not Recipe((2, 3), f4, (Term("w", turned, (0, 0), (0, 0)),)).is_identity
    assert not Recipe((2, 3), f4, (Term("w", term.strides, (1, 0), (0, 0)),)).is_identity
    assert not Recipe((3, 3), f4, (term,), (Fill(Box((2, 0), (3, 3)), 1.0),)).is_identity


def test_an_empty_tensor_has_no_terms() -> None:
    recipe = identity("w", (0, 3), np.dtype("f4"))
    assert recipe.terms == ()
    assert made(recipe, {}).shape == (0, 3)


def test_a_recipe_is_made_of_pieces_as_of_whole_sources() -> None:
    f4 = np.dtype("f4")
    x = np.arange(6, dtype=f4).reshape(2, 3)
    (term,) = identity("w", (2, 3), f4).terms
    recipe = Recipe((3, 3), f4, (term,), (Fill(Box((2, 0), (3, 3)), 7.0),))
    expected = np.concatenate([x, np.full((1, 3), 7, f4)])
    np.testing.assert_array_equal(made(recipe, {"w": x}), expected)
    rng = random.Random(0)
    for _ in range(20):
        box, part = made_in_pieces(recipe, {"w": x}, rng)
        np.testing.assert_array_equal(part, expected[box.slices])
