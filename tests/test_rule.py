"""The text of rules: read, printed back, refused with a caret, and applied to shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.rule import BoundRule, OpRule
from meshard.errors import RuleError, ShapeError


def parse(text: str) -> OpRule:
    return OpRule.parse(text)


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        ("i k, k j -> i j", [["i", "k"], ["k", "j"]], [["i", "j"]]),
        ("->", [[]], [[]]),
        ("a ->", [["a"]], [[]]),
        ("-> a", [[]], [["a"]]),
        (", ->", [[], []], [[]]),
        ("a -> a, a, ", [["a"]], [["a"], ["a"], []]),
        ("a,b->a b", [["a"], ["b"]], [["a", "b"]]),
        ("  a1   b_2->b_2", [["a1", "b_2"]], [["b_2"]]),
    ],
)
def test_dims_and_operands(text, inputs, outputs):
    rule = parse(text)
    assert rule.inputs == tuple(tuple((f,) for f in t) for t in inputs)
    assert rule.outputs == tuple(tuple((f,) for f in t) for t in outputs)
    assert rule.whole == frozenset()


def test_merged_dims_dims_of_one_and_whole_factors():
    rule = parse("(a b) 1 !c -> a (b !d) ()")
    assert rule.inputs == ((("a", "b"), (), ("c",)),)
    assert rule.outputs == ((("a",), ("b", "d"), ()),)
    assert rule.whole == {"c", "d"}


def test_a_rule_prints_as_it_was_typed():
    for text in ("i k, k j -> i j", "  a,b->a b ", "(a !b) 1 ... -> ..."):
        assert str(parse(text)) == text
        assert parse(text) is parse(text)
        assert parse(text).text == text


names = st.sampled_from(["a", "b", "c", "head", "x1", "_k"])


@st.composite
def terms(draw: st.DrawFn) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """Draw an operand, as text and as it should be read."""
    left = draw(st.permutations(["a", "b", "c", "head", "x1", "_k"]))
    words: list[str] = []
    dims: list[tuple[str, ...]] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["name", "whole", "one", "group", "dots"]))
        if kind == "one":
            words.append("1")
            dims.append(())
        elif kind == "dots":
            if ("...",) not in dims:
                words.append("...")
                dims.append(("...",))
        elif kind == "group":
            count = draw(st.integers(0, min(2, len(left))))
            group, left = left[:count], left[count:]
            words.append(f"({' '.join(group)})")
            dims.append(tuple(group))
        elif left:
            words.append("!" * (kind == "whole") + left[0])
            dims.append((left[0],))
            left = left[1:]
    gap = draw(st.sampled_from([" ", "  "]))
    return gap.join(words), tuple(dims)


@given(st.lists(terms(), min_size=1, max_size=3), st.lists(terms(), min_size=1, max_size=2))
def test_what_is_written_is_read(inputs, outputs):
    text = f"{', '.join(t for t, _ in inputs)} -> {' , '.join(t for t, _ in outputs)}"
    rule = parse(text)
    assert rule.inputs == tuple(dims for _, dims in inputs)
    assert rule.outputs == tuple(dims for _, dims in outputs)
    assert str(rule) == text
    assert rule.whole == {w.strip("!()") for w in text.replace(",", " ").split() if "!" in w}


@pytest.mark.parametrize(
    ("text", "why", "at"),
    [
        ("i j", "there is no arrow '->'.", 3),
        ("", "there is no arrow '->'.", 0),
        ("i -> j -> k", "there is a second arrow.", 7),
        ("i % -> j", "'%' cannot begin the name of a factor.", 2),
        ("i\t%", "'%' cannot begin the name of a factor.", 2),
        ("i ! -> i", "'!' cannot begin the name of a factor.", 2),
        ("i 2 -> i", "'2' cannot begin the name of a factor.", 2),
        ("i .. -> i", "'.' cannot begin the name of a factor.", 2),
        ("i i -> i", "'i' appears twice in one operand.", 2),
        ("i (j i) -> i", "'i' appears twice in one operand.", 5),
        ("(k k) ->", "'k' appears twice in one operand.", 3),
        ("i -> j j", "'j' appears twice in one operand.", 7),
        ("... i ... -> i", "an operand has a second '...'.", 6),
        ("(a b -> c", "'->' is not allowed inside parentheses.", 5),
        ("(a, b) -> c", "',' is not allowed inside parentheses.", 2),
        ("(a (b)) -> c", "'(' is not allowed inside parentheses.", 3),
        ("(a 1) -> c", "'1' is not allowed inside parentheses.", 3),
        ("(... a) -> c", "'...' is not allowed inside parentheses.", 1),
        ("a) -> c", "this parenthesis was never opened.", 1),
        ("a -> (c", "a parenthesis is not closed.", 7),
        ("a -> (c  ", "a parenthesis is not closed.", 7),
    ],
)
def test_a_caret_stands_under_the_fault(text, why, at):
    with pytest.raises(RuleError) as refused:
        parse(text)
    first, shown, caret = str(refused.value).split("\n")
    assert first == f"The rule cannot be read: {why}"
    assert shown == f"  {text}"
    assert caret == " " * (2 + at) + "^"
    assert isinstance(refused.value, ValueError)


# applied to shapes


def test_sizes():
    bound = parse("i k, k j -> i j").bind([(2, 3), (3, 5)])
    assert isinstance(bound, BoundRule)
    assert bound.sizes == {"i": 2, "k": 3, "j": 5}
    assert bound.output_shape(0) == (2, 5)
    assert bound.inputs == ((("i",), ("k",)), (("k",), ("j",)))


def test_merged_dims_multiply():
    bound = parse("a b c -> (a b) 1 c, (c a)").bind([(2, 3, 5)])
    assert bound.output_shape(0) == (6, 1, 5)
    assert bound.output_shape(1) == (10,)


def test_a_merged_dim_needs_sizes():
    rule = parse("(a b) c -> a (b c)")
    bound = rule.bind([(6, 5)], {"a": 2, "b": 3})
    assert bound.output_shape(0) == (2, 15)
    with pytest.raises(RuleError, match=r"split: the shapes do not give the size of 'a', 'b' in"):
        rule.bind([(6, 5)], op="split")
    with pytest.raises(RuleError, match=r"do not give the size of 'b' in .* Give it in sizes="):
        rule.bind([(6, 5)], {"a": 2})
    with pytest.raises(RuleError, match="the size of 'z'"):
        parse("a -> a z").bind([(6,)])
    with pytest.raises(ShapeError, match="dim 0 of operand 0 is 7, where the others have 6"):
        rule.bind([(7, 5)], {"a": 2, "b": 3})


@pytest.mark.parametrize(
    ("shapes", "out"),
    [
        ([(), ()], ()),
        ([(3,), ()], (3,)),
        ([(2, 1), (3,)], (2, 3)),
        ([(1, 4), (2, 1)], (2, 4)),
        ([(0,), (1,)], (0,)),
        ([(1,), (0,)], (0,)),
        ([(1, 1), (1,)], (1, 1)),
        ([(5, 1, 2), (4, 1)], (5, 4, 2)),
    ],
)
def test_an_ellipsis_broadcasts(shapes, out):
    bound = parse("..., ... -> ...").bind(shapes)
    assert bound.output_shape(0) == out
    for term, shape in zip(bound.inputs, shapes, strict=True):
        for dim, size in zip(term, shape, strict=True):
            assert dim == () or size == bound.sizes[dim[0]]


def test_a_broadcast_dim_has_no_factors():
    bound = parse("..., ... -> ...").bind([(2, 1), (3,)])
    first, second = bound.inputs
    (out,) = bound.outputs
    assert first == (out[0], ())
    assert second == (out[1],)
    assert parse("..., ... -> ...").bind([(1,), (1,)]).inputs[0] == (("_0",),)


def test_an_ellipsis_among_other_dims():
    bound = parse("... i k, k j ... -> ... i j").bind([(7, 2, 3), (3, 5, 7)])
    assert bound.output_shape(0) == (7, 2, 5)
    bound = parse("b ..., ... -> ... b").bind([(8, 2, 3), (3,)])
    assert bound.output_shape(0) == (2, 3, 8)
    assert parse("i -> ... i").bind([(4,)]).output_shape(0) == (4,)


def test_factors_that_must_be_whole_stay_marked():
    assert parse("a !b -> a").bind([(2, 3)]).whole == {"b"}


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (
            "a, a -> a",
            [(2,), (3,)],
            r"op: got incompatible shapes \(2,\), \(3,\): dim 0 of",
        ),
        ("a b, b -> a", [(4, 2), (3,)], r"dim 0 of operand 1 is 3, where the others have 2"),
        ("..., ... -> ...", [(0,), (2,)], r"dim 0 of operand 1 is 2, where the others have 0"),
        ("..., ... -> ...", [(2, 4), (3, 1)], r"dim 0 of operand 1 is 3, where the others have 2"),
        ("a 1 -> a", [(2, 2)], r"dim 1 of operand 0 is 2, where the others have 1"),
        ("a -> a", [(2, 3)], r"op: an operand of rank 1 is needed, got shape \(2, 3\)"),
        ("a b -> a", [(2,)], r"an operand of rank 2 is needed, got shape \(2,\)"),
        ("a b ... -> a", [(2,)], r"an operand of rank at least 2 is needed, got shape \(2,\)"),
        ("a -> a", [(2,), (2,)], r"op: takes 1 operands, got 2"),
    ],
)
def test_shapes_that_do_not_fit(text, shapes, message):
    with pytest.raises(ShapeError, match=message):
        parse(text).bind(shapes, op="op")


@given(
    st.lists(
        st.lists(st.sampled_from([1, 1, 2, 3, 0]), max_size=3).map(tuple), min_size=1, max_size=3
    )
)
def test_broadcasting_is_numpys(shapes):
    text = f"{', '.join(['...'] * len(shapes))} -> ..."
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="incompatible shapes"):
            parse(text).bind(shapes)
    else:
        assert parse(text).bind(shapes).output_shape(0) == expected
