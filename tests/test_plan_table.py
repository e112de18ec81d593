"""Plans as text: golden tables, and the words in them."""

import os
from pathlib import Path

import numpy as np
import pytest

import meshard
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError
from meshard.plan.captions import size_text, size_unit, time_unit
from meshard.plan.figures.choice import Choice, PlanLeaf, figures_of
from meshard.plan.figures.topology import Level, Topology
from meshard.plan.hops.hop import Hop, Route
from meshard.plan.plan import Plan
from meshard.plan.views.plan_text import arrays_table, plan_table, steps_of, why_text
from meshard.plan.views.words import kind_of_hop, layout_text, names_text
from meshard.sharding import Mesh, NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.testing import virtual_devices
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
    first, *_, last = [int(line.split()[0]) for line in text.splitlines() if line[:1].isdigit()]
    assert (first, last) == (40, 17)  # the largest first, by their numbers in the tree
    assert all(len(line) <= 100 for line in text.splitlines())


def test_of_many_reasons_some_are_told():
    leaves, choices = [], []
    for n in range(20):
        a, b = laid((n + 8,), (1,), [0]), laid((n + 8,), (1,), [1])
        way = Route("direct", (a, b))
        leaves.append(PlanLeaf(f"x{n}", a, b, 1))
        choices.append(Choice(way, figures_of(way, 1), f"reason {n}"))
    text = str(Plan(leaves, choices))
    assert "why direct (6): reason 5\nand 14 more reasons; plan.why(20) tells" in text


def test_wide_numbers_are_said_shortly():
    n = 1 << 21
    rows, columns = laid((n, n), (2, 1), [0, 1]), laid((n, n), (1, 2), [2, 3])
    way = Route("through one", (rows, laid((n, n), (1, 1), [4]), columns), "a test")
    text = str(Plan([PlanLeaf("x", rows, columns, 8)], [Choice(way, figures_of(way, 8))]))
    assert "32.0 TiB" in text
    assert "at most, by device 4, 1.50 x the mean of 3 devices" in text
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
    assert "alive     3 devices  0,2,3" in str(plan)
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
        ([f"{c}{i}" for c in "ab" for i in range(9)], "{a,b}{0..8}"),
        ([f"l.{i}.{w}" for i in range(9) for w in ("q", "k", "v")], "l.{0..8}.{q,k,v}"),
        ([f"l.{i}.{w}.b" for w in "abcdefg" for i in (0, 1)], "l.{0,1}.{a,b,c,...}.b"),
        (["head.w", *(f"l.{i}.w" for i in range(9)), "tail"], "l.{0..8}.w and 2 more"),
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


def test_the_numbers_of_a_column_have_one_unit():
    """No cell has a unit of its own; the head says it, and small numbers are not shown as zero."""
    table = arrays_table(PLANS["model"](), 9)
    sizes, moved = (table.head.index(name) for name in ("size MiB", "moved MiB"))
    assert [row[sizes] for row in table.rows] == ["48.00", "24.00", "0.02"]
    assert [row[moved] for row in table.rows] == ["96.00", "48.00", "0.05"]
    unit = size_unit([1 << 40, 1 << 20])
    assert (unit.name, unit.text(1 << 20), unit.text(0)) == ("TiB", "<0.01", "0.00")
    assert time_unit([3e-6, 4e-9]).text(4e-9) == "<0.01"


HOSTS = Topology(
    "hosts of two",
    (Level("host", latency=0.0, bandwidth=10.0, size=2), Level("all", latency=0.0, bandwidth=1.0)),
)


def test_with_a_topology_the_time_and_what_limits_it_come_first():
    plan = PLANS["transpose"]().on(HOSTS)
    title, _, time, limit, *_ = str(plan).splitlines()
    assert title == "Plan: 1 array, 256 bytes, on 8 devices, 0-7"
    # Each host of two has 2 rows of 8 elements of 4 bytes and keeps 2 columns of them.
    assert time.split() == ["time", "48", "s", "on", "hosts", "of", "two"]
    assert limit == "limit     host 0     sends 48 bytes, 1.00 x the mean of 4 hosts"
    assert "alone" not in str(plan)
    several = str(PLANS["model"]().on(HOSTS)).splitlines()
    assert any(line.endswith("alone s") for line in several)
    assert str(plan.on(None)) == str(PLANS["transpose"]())
    assert plan == PLANS["transpose"]()
    with pytest.raises(ArgumentError, match=r"Plan\.on: topology must be a Topology or the name"):
        plan.on(3)


def test_an_uneven_load_is_said_to_be_so():
    """Three of four blocks are needed elsewhere: device 0 sends three times the mean."""
    before, after = laid((8, 4), (1, 1), [0]), laid((8, 4), (4, 1), range(4))
    text = str(Plan([PlanLeaf("x", before, after, 4)]))
    assert "sent      96 bytes   at most, by device 0, alone; 1.000 x the least" in text
    assert "received  32 bytes   at most, by device 1, 1.00 x the mean of 3 devices" in text
    twice = laid((8, 4), (2, 1), [0, 1]), laid((8, 4), (1, 1), [2])
    found = Plan([PlanLeaf("x", before, after, 4), PlanLeaf("y", *twice, 4)])
    assert "at most, by device 0, 1.43 x the mean of 2 devices" in str(found)


def test_devices_that_do_not_exist_are_called_imaginary():
    ids = virtual_devices(6)
    mesh = NamedSharding(Mesh(ids[:4], "x"), P("x"))
    x = meshard.ShapeDtypeStruct((8,), "float32", sharding=mesh)
    plan = meshard.plan_reshard(x, NamedSharding(Mesh(ids[4:], "x"), P("x")))
    told = "from 4 imaginary devices, 0-3, to 2 others, 4,5"
    assert str(plan).startswith(f"Plan: 1 array, 32 bytes, {told}\n")
    assert told in plan.to_html()
    real = meshard.plan_reshard(np.arange(4), meshard.devices()[0])
    assert str(real).startswith("Plan: 1 array, 32 bytes, on 1 device, 0\n")


def test_why_tells_the_steps_and_the_other_routes():
    plan = PLANS["striped"]()
    text = plan.why("w")
    assert text == plan.why() == plan.why(1)
    assert text.startswith("Group 1: w\n")
    for words in (
        "striped  each receiver gets a quarter and passes it on",
        "to whole, 4 copies, from 8 devices, 0-7, to 4 others, 8-11",
        "all-gather  the end",
        "1  direct: every sender would send its shard four times",
        "2  chained: the window is too small for a whole copy",
    ):
        assert words in text, words
    assert all(len(line) <= 100 for line in text.splitlines())
    lines = text.splitlines()
    (head,) = [n for n, line in enumerate(lines) if line.startswith("#")]
    assert lines[head + 2].split()[:3] == ["1", "direct", "1,024"]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (0, "Plan.why: group must be a number from 1 to 3, or the name of an array, not 0."),
        (4, "not 4"),
        (True, "not True"),
        (None, "not None"),
        ("model.layers.0.nrm.weight", "Did you mean 'model.layers.0.norm.weight' or "),
    ],
)
def test_why_refuses_what_is_not_a_group(group, message):
    with pytest.raises(ArgumentError) as caught:
        PLANS["model"]().why(group)
    assert message in str(caught.value)


def test_of_a_plan_of_nothing_there_is_no_why():
    with pytest.raises(ArgumentError, match="none, since nothing moves"):
        Plan([]).why()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_width(width):
    for make in PLANS.values():
        plan = make()
        assert all(len(line) <= width for line in plan_table(plan, width=width).splitlines())
        for number in range(len(plan.choices)):
            assert all(len(x) <= width for x in why_text(plan, number, width).splitlines())
