import copy
import pickle

import pytest

from meshard.algebra.spec import P, PartitionSpec
from meshard.errors import SpecError


def test_p_is_partition_spec():
    assert P is PartitionSpec


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (P(), "P()"),
        (P("x"), "P('x',)"),
        (P(None, ("x", "y")), "P(None, ('x', 'y'))"),
        (P(P.UNCONSTRAINED, "x"), "P(UNCONSTRAINED, 'x')"),
        (P(["x", "y"], ["z"], [], ()), "P(('x', 'y'), 'z', None, None)"),
    ],
)
def test_a_spec_prints_in_its_normal_form(spec, shown):
    assert repr(spec) == str(spec) == shown


def test_equality_is_that_of_the_normal_form():
    assert P(("x",)) == P("x")
    assert hash(P(("x",))) == hash(P("x"))
    assert P("x", None) != P("x")
    assert P(("x", "y")) != P(("y", "x"))
    assert P("x") != ("x",)
    assert P("x") != "x"
    assert len({P("x"), P(["x"]), P("x", ())}) == 2


def test_a_spec_is_a_sequence_of_its_entries():
    spec = P("x", ("y", "z"), None, None)
    assert spec.partitions == ("x", ("y", "z"), None, None)
    assert list(spec) == [*spec.partitions]
    assert list(reversed(spec)) == [*reversed(spec.partitions)]
    assert len(spec) == 4
    assert spec[0] == "x"
    assert spec[-3:] == (("y", "z"), None, None)
    assert "x" in spec
    assert "y" not in spec
    assert spec.index(["y", "z"]) == 1
    assert spec.index(("x",)) == 0
    assert spec.count(None) == 2
    assert spec.count("y") == 0
    with pytest.raises(IndexError):
        spec[4]


def test_an_entry_that_is_not_there_has_no_index():
    with pytest.raises(SpecError, match=r"index: 'y' is not an entry of P\('x',\)"):
        P("x").index("y")


def test_specs_and_tuples_are_joined():
    assert P("x") + P(("y",), None) == P("x", "y", None)
    assert P("x") + tuple("y") == P("x", "y")
    assert tuple("yz") + P("x") == P("y", "z", "x")


@pytest.mark.parametrize("other", ["yz", ["y"], None, 3])
def test_nothing_else_can_be_joined(other):
    with pytest.raises(TypeError, match=r"unsupported operand|can only concatenate"):
        P("x") + other
    with pytest.raises(TypeError, match=r"unsupported operand|can only concatenate"):
        other + P("x")


def test_axes_are_given_dim_by_dim():
    spec = P("x", None, ("y", "z"), P.UNCONSTRAINED)
    assert spec.axes(5) == (("x",), (), ("y", "z"), (), ())
    assert spec.axes(2) == (("x",), (), ("y", "z"), ())


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
@pytest.mark.parametrize("spec", [P(), P("x", ("y", "z"), None), P(P.UNCONSTRAINED, "x")])
def test_a_copy_is_equal(spec, again):
    assert again(spec) == spec
    assert hash(again(spec)) == hash(spec)


def test_there_is_one_unconstrained():
    assert copy.deepcopy(P.UNCONSTRAINED) is P.UNCONSTRAINED
    assert pickle.loads(pickle.dumps(P.UNCONSTRAINED)) is P.UNCONSTRAINED


@pytest.mark.parametrize("entry", [1, 2.5, {"x"}, b"x"])
def test_an_entry_of_another_kind_is_refused(entry):
    with pytest.raises(
        SpecError, match="each entry must be None, an axis name or a tuple"
    ) as refused:
        P("x", entry)
    assert f"{entry!r} of type {type(entry).__name__}" in str(refused.value)


@pytest.mark.parametrize("name", [1, None, ("x",), P.UNCONSTRAINED])
def test_a_tuple_entry_holds_names_only(name):
    with pytest.raises(SpecError, match="a tuple entry must hold axis names, but") as refused:
        P(("y", name))
    assert f"holds {name!r}" in str(refused.value)
