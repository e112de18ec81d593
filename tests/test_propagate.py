"""Propagation: examples of each choice, and the laws that all of them keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshard.algebra.layout import balanced_cuts, even_cuts
from meshard.algebra.propagate import Placement, Propagation, Split, propagate
from meshard.algebra.rule import BoundRule, OpRule

AXES = {"x": 2, "y": 4, "z": 3, "o": 1}


def split(size: int, *axes: str) -> Split:
    """Return an even or balanced split of a dim over axes."""
    shards = math.prod(AXES[a] for a in axes)
    cuts = even_cuts(size, shards) if size % shards == 0 else balanced_cuts(size, shards)
    return Split(axes, cuts)


def placed(shape: Sequence[int], *dims: str) -> Placement:
    """Return a placement from one string of axes per dim, such as ``"xy"``; the rest is whole."""
    given = [*dims, *[""] * (len(shape) - len(dims))]
    return tuple(split(n, *axes) for n, axes in zip(shape, given, strict=True))


def axes_of(placement: Placement) -> list[str]:
    return ["".join(s.axes) for s in placement]


def find(
    text: str,
    *operands: tuple[tuple[int, ...], tuple[str, ...] | None],
    weights: Sequence[int] | None = None,
    sizes: dict[str, int] | None = None,
) -> Propagation:
    """Propagate the placements of operands, given as shape and axes; None has no say."""
    shapes = [shape for shape, _ in operands]
    rule = OpRule.parse(text).bind(shapes, sizes)
    placements = [None if dims is None else placed(shape, *dims) for shape, dims in operands]
    return propagate(rule, placements, AXES, weights or [math.prod(s) for s in shapes])


def test_splits_follow_their_factor():
    found = find("i k, k j -> i j", ((8, 8), ("x",)), ((8, 8), ("", "y")))
    assert [axes_of(p) for p in found.inputs] == [["x", ""], ["", "y"]]
    assert [axes_of(p) for p in found.outputs] == [["x", "y"]]
    assert found.reduced == ()
    assert found.factors == {"i": split(8, "x"), "j": split(8, "y")}


def test_a_contracted_factor_is_left_to_reduce():
    found = find("i k, k j -> i j", ((8, 8), ("", "x")), ((8, 8), ()))
    assert axes_of(found.inputs[1]) == ["x", ""]
    assert axes_of(found.outputs[0]) == ["", ""]
    assert found.reduced == ("k",)


def test_the_heavier_operand_stays():
    light, heavy = ((8, 8), ("x",)), ((8, 8), ("", "x"))
    found = find("a b, a b -> a b", light, heavy, weights=[1, 2])
    assert [axes_of(p) for p in found.inputs] == [["", "x"]] * 2
    found = find("a b, a b -> a b", light, heavy, weights=[2, 1])
    assert [axes_of(p) for p in found.inputs] == [["x", ""]] * 2
    found = find("a b, a b -> a b", light, heavy, weights=[1, 1])
    assert [axes_of(p) for p in found.inputs] == [["x", ""]] * 2


def test_a_longer_tuple_extends_a_shorter_one():
    found = find("a, a -> a", ((8,), ("x",)), ((8,), ("xy",)), weights=[2, 1])
    assert axes_of(found.outputs[0]) == ["xy"]
    found = find("a, a -> a", ((8,), ("y",)), ((8,), ("xy",)), weights=[2, 1])
    assert axes_of(found.outputs[0]) == ["y"]


def test_only_cuts_that_refine_extend():
    rule = OpRule.parse("a, a -> a").bind([(16,), (16,)])
    odd = (Split(("x",), (0, 3, 16)),)
    found = propagate(rule, [odd, placed((16,), "xy")], AXES, [2, 1])
    assert found.outputs == (odd,)
    fine = (Split(("x", "y"), (0, 1, 2, 3, 3, 4, 5, 6, 16)),)
    found = propagate(rule, [odd, fine], AXES, [2, 1])
    assert found.outputs == (fine,)


def test_of_a_tuple_the_free_axes_are_taken():
    found = find("a b, b -> a b", ((8, 24), ("z",)), ((24,), ("xz",)), weights=[2, 1])
    assert axes_of(found.outputs[0]) == ["z", "x"]
    assert found.outputs[0][1].cuts == (0, 12, 24)
    found = find("a b, b -> a b", ((24, 24), ("x",)), ((24,), ("xz",)), weights=[2, 1])
    assert axes_of(found.outputs[0]) == ["x", ""]


def test_an_operand_without_a_say_follows():
    found = find("a b, b -> a b", ((8, 8), None), ((8,), ("x",)))
    assert axes_of(found.inputs[0]) == ["", "x"]
    assert find("a -> a", ((8,), None)).factors == {}


def test_dims_of_size_one_broadcast_whole():
    found = find("..., ... -> ...", ((8, 1), ("x", "")), ((8,), ("y",)))
    assert axes_of(found.outputs[0]) == ["x", "y"]
    assert axes_of(found.inputs[0]) == ["x", ""]
    rule = OpRule.parse("..., ... -> ...").bind([(1,), (8,)])
    strange = (Split(("x",), (0, 0, 1)),)
    assert propagate(rule, [strange, None], AXES, [1, 1]).inputs == (placed((1,)), placed((8,)))


def test_axes_of_size_one_split_nothing():
    found = find("a -> a", ((8,), ("o",)))
    assert found.factors == {}
    assert axes_of(found.outputs[0]) == [""]


def test_a_whole_factor_gives_its_axes_to_the_best_other():
    found = find("a b !c -> a b c", ((6, 8, 8), ("", "", "y")))
    assert axes_of(found.inputs[0]) == ["", "y", ""]
    assert find("a !c -> a c", ((2, 8), ("", "y"))).factors == {}
    found = find("a !c -> c", ((8, 8), ("", "y")))
    assert found.factors == {}, "a factor that is summed is no home"


def test_a_whole_factor_gives_way_to_what_is_taken():
    found = find("a !c, a -> a c", ((8, 8), ("", "y")), ((8,), ("y",)), weights=[1, 2])
    assert axes_of(found.outputs[0]) == ["y", ""]


def test_merged_dims_split_and_join():
    merge = "a b -> (a b)"
    assert axes_of(find(merge, ((8, 6), ("x",))).outputs[0]) == ["x"]
    assert find(merge, ((8, 6), ("x",))).outputs[0][0].cuts == (0, 24, 48)
    # the faster factor cannot stay split: its axes move to the slower one
    found = find(merge, ((8, 6), ("", "x")))
    assert axes_of(found.inputs[0]) == ["x", ""]
    # unless the slower one has one position per part
    found = find(merge, ((4, 6), ("y", "x")))
    assert axes_of(found.inputs[0]) == ["y", "x"]
    assert axes_of(found.outputs[0]) == ["yx"]
    assert found.outputs[0][0].cuts == tuple(range(0, 25, 3))
    # or is of size one
    assert axes_of(find(merge, ((1, 6), ("", "x"))).inputs[0]) == ["", "x"]
    # too short to take over
    assert find(merge, ((2, 6), ("", "y"))).factors == {}

    apart = "(a b) -> a b"
    found = find(apart, ((24,), ("x",)), sizes={"a": 4, "b": 6})
    assert axes_of(found.outputs[0]) == ["x", ""]
    found = find(apart, ((24,), ("yx",)), sizes={"a": 4, "b": 6})
    assert axes_of(found.outputs[0]) == ["y", "x"]
    found = find(apart, ((24,), ("y",)), sizes={"a": 2, "b": 12})
    assert found.inputs[0][0].axes in (("y",), ())


def test_uneven_cuts_of_a_merged_dim_that_fall_between_rows():
    rule = OpRule.parse("(a b) -> a b").bind([(24,)], {"a": 6, "b": 4})
    found = propagate(rule, [(Split(("x",), (0, 8, 24)),)], AXES, [1])
    assert found.outputs[0][0].cuts == (0, 2, 6)
    found = propagate(rule, [(Split(("x",), (0, 9, 24)),)], AXES, [1])
    assert found.outputs[0][0].cuts == (0, 3, 6)
    assert found.inputs[0][0].cuts == (0, 12, 24)


def test_the_cuts_within_a_merged_dim_are_kept():
    rule = OpRule.parse("(a b) -> a b").bind([(12,)], {"a": 3, "b": 4})
    own = Split(("z", "x"), (0, 1, 4, 5, 8, 9, 12))
    found = propagate(rule, [(own,)], AXES, [1])
    assert found.inputs == ((own,),)
    assert [s.cuts for s in found.outputs[0]] == [(0, 1, 2, 3), (0, 1, 4)]
    unlike = Split(("z", "x"), (0, 1, 4, 6, 8, 9, 12))
    found = propagate(rule, [(unlike,)], AXES, [1])
    assert [s.cuts for s in found.outputs[0]] == [(0, 1, 2, 3), (0, 2, 4)]


def test_dims_merged_both_ways_come_to_an_end():
    # Each factor is the faster one somewhere, so that neither may keep the axes.
    for dims in (("x",), ("", "x"), ("y", "x")):
        found = find("a b -> (a b), (b a)", ((4, 6), dims))
        check(found, OpRule.parse("a b -> (a b), (b a)").bind([(4, 6)]))


def test_empty_dims():
    found = find("a b -> (a b)", ((0, 4), ("x",)))
    assert found.outputs[0][0].cuts == (0, 0, 0)
    assert find("a b -> a", ((0, 4), ("", "x"))).reduced == ("b",)


# the laws


def check(found: Propagation, rule: BoundRule) -> None:
    """Check what holds of every propagation."""
    everything = [*zip(rule.inputs, found.inputs, strict=True)]
    everything += zip(rule.outputs, found.outputs, strict=True)
    for term, placement in everything:
        used = [a for s in placement for a in s.axes]
        assert len(set(used)) == len(used), "an axis splits two dims"
        for dim, own in zip(term, placement, strict=True):
            size = math.prod(rule.sizes[f] for f in dim)
            assert own.shards == math.prod(AXES[a] for a in own.axes)
            assert (own.cuts[0], own.cuts[-1]) == (0, size)
            assert all(a <= b for a, b in pairwise(own.cuts))
            assert own.axes == tuple(
                a for f in dim if f in found.factors for a in found.factors[f].axes
            )
            assert _regions(own.cuts) == _product_of(dim, found, rule), "parts are no products"
    taken = [a for s in found.factors.values() for a in s.axes]
    assert len(set(taken)) == len(taken), "an axis splits two factors"
    assert not set(found.factors) & rule.whole, "a whole factor is split"
    kept = {f for term in rule.outputs for dim in term for f in dim}
    assert set(found.reduced) == set(found.factors) - kept
    assert all(s.shards > 1 for s in found.factors.values())


def _regions(cuts: Sequence[int]) -> list[set[int]]:
    return [set(range(a, b)) for a, b in pairwise(cuts)]


def _product_of(dim: Sequence[str], found: Propagation, rule: BoundRule) -> list[set[int]]:
    """Return the positions of a merged dim that each combination of its factors' parts has."""
    parts = []
    for f in dim:
        own = found.factors.get(f)
        whole = [range(rule.sizes[f])]
        parts.append(whole if own is None else [range(a, b) for a, b in pairwise(own.cuts)])
    places = []
    for choice in product(*parts):
        flat = [0]
        for f, positions in zip(dim, choice, strict=True):
            flat = [p * rule.sizes[f] + i for p in flat for i in positions]
        places.append(set(flat))
    return places


RULES = [
    "a -> a",
    "..., ... -> ...",
    "..., ..., ... -> ...",
    "a b, b c -> a c",
    "n a b, n b c -> n a c",
    "a b c -> a",
    "a !b -> a b",
    "a !b c, c !b -> a c",
    "a b -> (a b)",
    "a b c -> (a b) c",
    "a b c -> a (b c)",
    "a b c -> (a b c), a",
    "(a b) c -> a (b c)",
    "(a b), b -> a b",
    "(a b) -> (b a)",
    "a b -> (a b), (b a)",
    "(a !b) c -> a b c",
    "(a b c), (c b) -> (b c a)",
    "a, b -> a b, (b a)",
    "!a b -> b",
]


@st.composite
def propagations(draw: st.DrawFn) -> tuple[BoundRule, list[Any], list[int]]:
    """Draw a rule on shapes, placements with even, uneven and empty parts, and weights."""
    text = draw(st.sampled_from(RULES))
    parsed = OpRule.parse(text)
    names = sorted({f for t in (*parsed.inputs, *parsed.outputs) for dim in t for f in dim})
    sizes = {f: draw(st.sampled_from([4, 1, 2, 3, 6, 8, 0])) for f in names if f != "..."}
    lead = draw(st.lists(st.sampled_from([4, 3, 8, 1]), max_size=3))
    shapes = []
    for term in parsed.inputs:
        shape: list[int] = []
        for dim in term:
            if dim == ("...",):
                own = lead[draw(st.integers(0, len(lead))) :]
                shape += [n if draw(st.integers(0, 3)) else 1 for n in own]
            else:
                shape.append(math.prod(sizes[f] for f in dim))
        shapes.append(tuple(shape))
    placements: list[Any] = []
    for shape in shapes:
        if draw(st.integers(0, 5)) == 0:
            placements.append(None)
            continue
        dims: list[list[str]] = [[] for _ in shape]
        for axis in draw(st.permutations(list(AXES))):
            place = draw(st.integers(-1, len(shape) - 1))
            if place >= 0:
                dims[place].append(axis)
        own = []
        for size, axes in zip(shape, dims, strict=True):
            n = math.prod(AXES[a] for a in axes)
            cuts = split(size, *axes).cuts
            if draw(st.booleans()):
                inner = draw(st.lists(st.integers(0, size), min_size=n - 1, max_size=n - 1))
                cuts = (0, *sorted(inner), size)
            own.append(Split(tuple(axes), cuts))
        placements.append(tuple(own))
    weights = draw(st.lists(st.integers(0, 3), min_size=len(shapes), max_size=len(shapes)))
    return parsed.bind(shapes, sizes), placements, weights


@settings(max_examples=500)
@given(propagations())
def test_the_laws_of_propagation(case):
    rule, placements, weights = case
    found = propagate(rule, placements, AXES, weights)
    check(found, rule)
    again = propagate(rule, placements, AXES, weights)
    for field in fields(Propagation):
        assert getattr(again, field.name) == getattr(found, field.name)


def plain(placement: Placement) -> Placement:
    """Return a placement without the axes of size one, which say nothing."""
    return tuple(Split(tuple(a for a in s.axes if AXES[a] > 1), s.cuts) for s in placement)


@settings(max_examples=200)
@given(propagations())
def test_what_has_settled_stays(case):
    # Operands that lie as was asked are asked for nothing else.
    rule, placements, weights = case
    found = propagate(rule, placements, AXES, weights)
    again = propagate(rule, list(found.inputs), AXES, weights)
    assert [*map(plain, again.inputs)] == [*map(plain, found.inputs)]
    assert [*map(plain, again.outputs)] == [*map(plain, found.outputs)]


@settings(max_examples=200)
@given(propagations())
def test_the_heaviest_operand_of_plain_dims_never_moves(case):
    rule, placements, weights = case
    number = max(range(len(weights)), key=lambda i: (weights[i], -i))
    own = placements[number]
    merged = any(len(dim) > 1 for t in (*rule.inputs, *rule.outputs) for dim in t)
    if own is None or merged or rule.whole:
        return
    found = propagate(rule, placements, AXES, weights)
    for dim, before, after in zip(rule.inputs[number], own, found.inputs[number], strict=True):
        if dim and before.shards > 1:
            assert set(before.cuts) <= set(after.cuts)
            (one,), (other,) = plain((before,)), plain((after,))
            assert other.axes[: len(one.axes)] == one.axes


@pytest.mark.parametrize("text", RULES)
def test_nothing_is_split_where_nothing_was(text):
    parsed = OpRule.parse(text)
    sizes = {f: 4 for t in (*parsed.inputs, *parsed.outputs) for dim in t for f in dim}
    sizes.pop("...", None)
    shapes = [
        tuple(math.prod(sizes[f] for f in dim) for dim in t if dim != ("...",))
        for t in parsed.inputs
    ]
    found = propagate(
        parsed.bind(shapes, sizes), [placed(s) for s in shapes], AXES, [1] * len(shapes)
    )
    assert found.factors == {}
    assert found.reduced == ()
