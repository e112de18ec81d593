"""Plans as text: golden tables, and the words in them."""

import os
from pathlib import Path

import numpy as np
import pytest

from meshard.algebra.layout import Layout
from meshard.plan.captions import size_text
from meshard.plan.figures.choice import Choice, PlanLeaf, figures_of
from meshard.plan.hops.hop import Hop
from meshard.plan.hops.route import Route
from meshard.plan.plan import Plan
from meshard.plan.show.plan_text import kind_of_hop, layout_text, names_text, steps_of
from tests.plans import PLANS, laid

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", PLANS)
def test_the_table_is_the_golden_one(name):
    text, path = f"{PLANS[name]()}\n", GOLDEN / f"plan_{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert all(len(line) <= 100 for line in text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines())


def test_there_is_no_golden_table_without_a_plan():
    assert {p.stem for p in GOLDEN.glob("plan_*.txt")} == {f"plan_{name}" for name in PLANS}


def test_a_plan_of_nothing():
    assert str(Plan([])) == "Plan: 0 arrays, 0 bytes; nothing moves"


def test_many_kinds_of_arrays_are_added_up_below():
    leaves = [
        PlanLeaf(f"a{'xyz'[n % 3] * n}", laid((n + 8,), (1,), [0]), laid((n + 8,), (1,), [1]), 1)
        for n in range(40)
    ]
    text = str(Plan(leaves))
    assert "and 16 more arrays in 16 groups" in text
    assert "and 16 more steps" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_of_many_reasons_some_are_told():
    leaves, choices = [], []
    for n in range(20):
        a, b = laid((n + 8,), (1,), [0]), laid((n + 8,), (1,), [1])
        way = Route("direct", (a, b))
        leaves.append(PlanLeaf(f"x{n}", a, b, 1))
        choices.append(Choice(way, figures_of(way, 1), f"reason {n}"))
    text = str(Plan(leaves, choices))
    assert "why direct (12): reason 11\nand 8 more reasons" in text


def test_wide_numbers_are_said_shortly():
    n = 1 << 21
    rows, columns = laid((n, n), (2, 1), [0, 1]), laid((n, n), (1, 2), [2, 3])
    way = Route("through one", (rows, laid((n, n), (1, 1), [4]), columns), "a test")
    text = str(Plan([PlanLeaf("x", rows, columns, 8)], [Choice(way, figures_of(way, 8))]))
    assert "32.0 TiB" in text
    assert "the least if direct" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_devices_are_told_for_each_array_where_they_differ():
    a, b, c = (laid((8,), (2,), ids) for ids in ([0, 1], [2, 3], [4, 5]))
    text = str(Plan([PlanLeaf("x", a, b, 4), PlanLeaf("y", a, c, 4, "", "P('i')", "P('j')")]))
    assert "2 on 2,3" in text
    assert "P('j') on 4,5" in text
    assert "from devices" not in text


def test_the_living_are_told():
    a, b = laid((8,), (2,), range(4)), laid((8,), (4,), range(4))
    leaf, way = PlanLeaf("x", a, b, 4), Route("direct", (a, b), alive=(0, 2, 3))
    plan = Plan([leaf], [Choice(way, figures_of(way, 4))], alive=[3, 2, 0])
    assert "devices alive" in str(plan)
    assert "0,2,3" in str(plan)
    assert plan.bytes_moved == plan.lower_bound_bytes == 4 * 2


def test_bytes_that_need_not_move_are_said_to_be_so():
    a = laid((8,), (2,), [0, 1])
    back = Route("there and back", (a, laid((8,), (2,), [2, 3]), a))
    plan = Plan([PlanLeaf("x", a, a, 1)], [Choice(back, figures_of(back, 1))])
    assert "though nothing needs to move" in str(plan)
    assert plan.ratio == float("inf")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["x"], "x"),
        (["a.1", "a.2"], "a.{1,2}"),
        ([f"b{i}.w{j}" for i in range(3) for j in range(2)], "b{0..2}.w{0,1}"),
        (["a", "b"], "a, b"),
        ([f"{c}{i}" for c in "ab" for i in range(9)], "a{0..8} and 9 more"),
        (["layer.07.w", "layer.07.w"], "layer.07.w"),
    ],
)
def test_names_that_differ_in_numbers_are_one(names, text):
    assert names_text(names) == text


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (((8, 1), range(8)), ((8, 1), range(8)), "keep"),
        (((1, 1), range(8)), ((8, 1), range(8)), "slice"),
        (((8, 1), range(8)), ((8, 1), range(7, -1, -1)), "permute"),
        (((4, 1), range(4)), ((4, 1), range(8)), "broadcast"),
        (((8, 1), range(8)), ((1, 1), range(8)), "all-gather"),
        (((8, 1), range(8)), ((4, 1), range(8)), "all-gather"),
        (((8, 1), range(8)), ((4, 1), range(7, -1, -1)), "exchange"),
        (((8, 1), range(8)), ((1, 1), [0]), "gather"),
        (((1, 1), [0]), ((8, 1), range(8)), "scatter"),
        (((8, 1), range(8)), ((1, 8), range(8)), "all-to-all"),
        (((8, 1), range(8)), ((1, 8), range(8, 16)), "exchange"),
    ],
)
def test_hops_are_called_after_their_collective(before, after, kind):
    assert kind_of_hop(Hop(*(laid((8, 8), *x) for x in (before, after)))) == kind


def test_layouts_in_few_words():
    assert layout_text(Layout((), (), np.array([3, 4]))) == "whole, 2 copies on 3,4"
    assert layout_text(laid((8, 8), (4, 2), range(8)), devices=False) == "4x2"
    assert layout_text(PLANS["uneven"]().leaves[1].source) == "3 boxes on 0,2,5"


def test_sizes_as_people_say_them():
    assert [size_text(n) for n in (0, 1, 1 << 20, 1 << 62, 1 << 86, 1 << 120)] == [
        "0 bytes",
        "1 byte",
        "1.0 MiB",
        "4.0 EiB",
        "64.0 YiB",
        "1,048,576.0 QiB",
    ]


def test_steps_count_what_all_arrays_of_a_choice_move():
    plan = PLANS["model"]()
    steps = list(steps_of(plan))
    assert sum(s.bytes_moved for s in steps) == plan.bytes_moved
    assert [s.choice for s in steps] == [0, 1, 2]
    assert sum(s.rounds for s in steps) >= plan.rounds
