"""Forms: whatever is done to them, their recipes are what NumPy does."""

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from meshard.errors import KeyMapError
from meshard.weights.maps.form import (
    MAX_TERMS,
    Form,
    composed,
    form_of,
    joined,
    source_form,
)
from tests.recipes import Array, made, made_in_pieces

Pair = tuple[Form, Array]
Step = Callable[[random.Random, Form, Array], Pair]


def turn(rng: random.Random, f: Form, x: Array) -> Pair:
    perm = rng.sample(range(x.ndim), x.ndim)
    return f.transposed(perm), x.transpose(perm)


def take(rng: random.Random, f: Form, x: Array) -> Pair:
    d = rng.randrange(x.ndim)
    a, b = sorted((rng.randint(0, x.shape[d]), rng.randint(0, x.shape[d])))
    step = rng.choice([1, 1, 2, 3])
    return f.sliced(d, a, b, step), x[(slice(None),) * d + (slice(a, b, step),)]


def reshape(rng: random.Random, f: Form, x: Array) -> Pair:
    left, shape = x.size, []
    while left > 1 and len(shape) < 5:
        n = rng.choice([k for k in range(2, left + 1) if left % k == 0])
        shape.append(n)
        left //= n
    if rng.random() < 0.3 or left != 1:
        shape.insert(rng.randint(0, len(shape)), left)
    return f.reshaped(shape), x.reshape(shape)


def pad(rng: random.Random, f: Form, x: Array) -> Pair:
    d = rng.randrange(x.ndim)
    width = [(0, 0)] * x.ndim
    width[d] = (rng.randint(0, 2), rng.randint(0, 2))
    value = rng.randint(0, 3)
    return f.padded(d, *width[d], value), np.pad(x, width, constant_values=value)


def widen(rng: random.Random, f: Form, x: Array) -> Pair:
    d, n = rng.randint(0, x.ndim), rng.choice([1, 2, 3])
    return f.expanded(d, n), np.repeat(np.expand_dims(x, d), n, d)


def swap(rng: random.Random, f: Form, x: Array) -> Pair:
    d = rng.randrange(x.ndim)
    n = x.shape[d]
    k = rng.randint(0, n)
    parts, blocks = [f.sliced(d, 0, k), f.sliced(d, k, n)], np.split(x, [k], d)
    order = rng.choice([(0, 1), (1, 0)])
    return joined([parts[i] for i in order], d), np.concatenate([blocks[i] for i in order], d)


def unstack(rng: random.Random, f: Form, x: Array) -> Pair:
    d = rng.randrange(x.ndim)
    if not x.shape[d]:
        return f, x
    k = rng.randrange(x.shape[d])
    return f.unbound(d)[k], np.take(x, k, d)


STEPS: list[Step] = [turn, take, reshape, reshape, pad, widen, swap, unstack]


def program(seed: int) -> tuple[Form, Array, dict[str, Array]]:
    """Return a form after random steps, the array after the same ones, and the source."""
    rng = random.Random(seed)
    shape = tuple([rng.choice([1, 2, 3, 4, 6, 8, 12]) for _ in range(rng.randint(1, 3))])
    first = x = np.arange(10, 10 + np.prod(shape), dtype="i4").reshape(shape)
    form = source_form("x", shape, x.dtype)
    for _ in range(rng.randint(1, 7)):
        if not x.ndim or not x.size or x.size > 2000:
            break
        form, x = rng.choice(STEPS)(rng, form, x)
    return form, x, {"x": first}


@pytest.mark.parametrize("chunk", range(4))
def test_a_program_of_moves_is_what_numpy_does(chunk: int) -> None:
    for seed in range(chunk * 150, (chunk + 1) * 150):
        form, x, sources = program(seed)
        recipe = form.recipe()
        assert (recipe.shape, recipe.dtype) == (x.shape, x.dtype)
        np.testing.assert_array_equal(made(recipe, sources), x)
        box, part = made_in_pieces(recipe, sources, random.Random(seed))
        np.testing.assert_array_equal(part, x[box.slices])


def test_a_recipe_over_a_recipe_is_the_recipe_of_both_programs() -> None:
    for seed in range(300):
        inner, x, sources = program(seed)
        rng = random.Random(-seed - 1)
        outer, y = source_form("y", x.shape, x.dtype), x
        for _ in range(3):
            if not y.ndim or not y.size or y.size > 2000:
                break
            outer, y = rng.choice(STEPS)(rng, outer, y)
        both = composed(outer.recipe(), {"y": form_of(inner.recipe())}).recipe()
        np.testing.assert_array_equal(made(both, sources), y)


def test_what_is_cut_and_joined_again_is_one_term() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        shape = tuple([rng.choice([2, 4, 6, 12]) for _ in range(rng.randint(1, 3))])
        form = source_form("x", shape, np.dtype("f4"))
        for _ in range(4):
            d = rng.randrange(len(shape))
            cuts = sorted({0, shape[d], *[rng.randint(0, shape[d]) for _ in range(3)]})
            parts = [form.sliced(d, a, b) for a, b in itertools.pairwise(cuts)]
            form = joined(parts, d)
        assert form.recipe().is_identity
        d = rng.randrange(len(shape))
        odd, even = (form.sliced(d, k, shape[d], 2).expanded(d + 1) for k in (1, 0))
        again = joined([even, odd], d + 1).merged(d, d + 1)
        assert again.recipe().is_identity


def test_there_and_back_by_shapes_and_permutations_is_the_identity() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        shape = tuple([rng.choice([2, 3, 4, 6]) for _ in range(3)])
        form = source_form("x", shape, np.dtype("f4"))
        perm = rng.sample(range(3), 3)
        there = form.transposed(perm).reshaped((-1,))
        back = there.reshaped([shape[d] for d in perm]).transposed(np.argsort(perm).tolist())
        assert back.recipe().is_identity


def test_columns_of_a_reshaped_vector_stay_few_terms() -> None:
    vector = source_form("x", (4096 * 8,), np.dtype("f4"))
    assert len(vector.reshaped((4096, 8)).sliced(1, 2, 5).recipe().terms) == 1
    part = vector.sliced(0, 3, 8 * 100 + 3).reshaped((100, 8))
    assert len(part.recipe().terms) <= 3


def test_values_that_were_rounded_are_not_cast_again() -> None:
    form = source_form("x", (4,), np.dtype("f4"))
    half = form.cast(np.dtype("f2"))
    assert half.recipe().dtype == np.dtype("f2")
    with pytest.raises(KeyMapError, match="a cast has rounded its elements to float16 before"):
        half.cast(np.dtype("f4"))
    double = form.cast(np.dtype("f8"))
    assert double.cast(np.dtype("f4")).recipe().is_identity
    with pytest.raises(KeyMapError, match="has rounded"):
        composed(source_form("y", (4,), np.dtype("f2")).cast(np.dtype("f4")).recipe(), {"y": half})


def test_padding_is_cast_as_its_tensor_is() -> None:
    form = source_form("x", (2,), np.dtype("f4")).padded(0, 0, 1, 1.7)
    (fill,) = form.cast(np.dtype("i4")).recipe().fills
    assert fill.value == 1.0


def test_shapes_of_another_size_are_refused() -> None:
    form = source_form("x", (2, 3), np.dtype("f4"))
    with pytest.raises(KeyMapError, match=r"shape \(2, 3\) has 6 elements"):
        form.reshaped((4, 2))
    with pytest.raises(KeyMapError, match="6 elements"):
        form.reshaped((-1, 4))
    with pytest.raises(KeyMapError, match="names each of them once"):
        form.transposed((0, 0))
    assert form.reshaped((-1,)).shape == (6,)


def test_a_tensor_of_very_many_regions_is_refused() -> None:
    n = MAX_TERMS + 1
    parts = [source_form("x", (1,), np.dtype("f4"))] * n
    with pytest.raises(KeyMapError, match="more than 65,536 strided regions"):
        joined(parts, 0)
