"""Traffic: the bytes that each device must receive, from layouts and groups alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Layout, balanced_cuts
from meshard.algebra.sharding import SingleDeviceSharding
from meshard.plan.move.assemble import Source
from meshard.plan.move.wires import (
    Move,
    Wire,
    all_reduced,
    exchanged,
    fold_wire,
    gathered,
    in_turns,
    move_wire,
    moved,
    scattered,
    together,
)
from meshard.plan.show.record import Record, bytes_by_line, lines_table, records_table
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices

DEVICES = virtual_devices(8)
MESH = Mesh(np.array(DEVICES).reshape(4, 2), ("i", "j"))
OTHER = Mesh(np.array(DEVICES).reshape(2, 4), ("i", "j"))


def lines(size, shards, first=0):
    return Layout((size,), (balanced_cuts(size, shards),), first + np.arange(shards)[:, None])


def named(*spec, on=MESH, uneven=None):
    return NamedSharding(on, P(*spec), uneven=uneven)


def move(shape, before, after, itemsize=8):
    source = Source(before.layout(shape))
    return move_wire("x", Move(after, (before,), after.layout(shape), (source,), itemsize))


# what passes between layouts


def test_a_device_receives_what_none_of_its_pieces_gives():
    assert moved(lines(10, 2), [Source(lines(10, 4))], 4) == {0: 8, 1: 16}
    assert moved(lines(10, 4), [Source(lines(10, 4))], 4) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert moved(lines(10, 2, first=8), [Source(lines(10, 4))], 4) == {8: 20, 9: 20}


def test_a_map_says_what_is_read():
    shifted = DimMap(7, 8, [(0, 7, 1, 1)])
    destination = Layout((7,), ((0, 2, 4, 6, 7),), np.arange(4)[:, None])
    assert moved(destination, [Source(lines(8, 4), (shifted,))], 1) == {0: 1, 1: 1, 2: 1, 3: 0}


def test_several_sources_add_up():
    first, second = DimMap(8, 4, [(0, 4, 0, 1)]), DimMap(8, 4, [(4, 4, 0, 1)])
    sources = [Source(lines(4, 2), (first,)), Source(lines(4, 2), (second,))]
    assert moved(lines(8, 2), sources, 2) == {0: 2 * 2, 1: 2 * 2}


def test_any_piece_of_irregular_sources_may_give():
    boxes = {DEVICES[0]: (slice(0, 4),), DEVICES[1]: (slice(2, 6),)}
    source = BoxSharding((6,), boxes).layout((6,))
    whole = Layout((6,), ((0, 6),), np.arange(2)[None])
    assert moved(whole, [Source(source)], 1) == {0: 2, 1: 2}


# collectives


GROUPS = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])


def test_collectives_cost_what_their_optimal_forms_do():
    assert all_reduced(GROUPS, 64) == dict.fromkeys(range(8), 2 * 3 * 64 // 4)
    assert scattered(GROUPS, 64) == dict.fromkeys(range(8), 3 * 64 // 4)
    assert exchanged(GROUPS, 64) == dict.fromkeys(range(8), 3 * 64 // 4)
    assert gathered(GROUPS, 64) == dict.fromkeys(range(8), 3 * 64)


def test_groups_may_have_sizes_of_their_own():
    assert gathered(GROUPS, [1, 5]) == {
        **dict.fromkeys(range(4), 3),
        **dict.fromkeys(range(4, 8), 15),
    }


@given(st.integers(1, 9), st.integers(0, 100))
def test_totals_are_exact(members, nbytes):
    groups = np.arange(members)[None]
    assert sum(all_reduced(groups, nbytes).values()) == 2 * (members - 1) * nbytes
    assert sum(scattered(groups, nbytes).values()) == (members - 1) * nbytes
    assert sum(exchanged(groups, nbytes).values()) == (members - 1) * nbytes
    assert sum(gathered(groups, nbytes).values()) == members * (members - 1) * nbytes
    for law in (all_reduced, scattered, exchanged, gathered):
        assert set(law(groups, nbytes)) == set(range(members))


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    both = {d: n + gathered(GROUPS, 16)[d] for d, n in scattered(GROUPS, 64).items()}
    assert all_reduced(GROUPS, 64) == both


def test_a_fold_reduces_each_piece_among_its_devices():
    tensor = np.arange(8).reshape(4, 2, 1)  # reduced over i, split over j
    fold = fold_wire("x", ("i",), tensor, named("j").layout((6,)), 8, scattered=False)
    assert fold.kind == "all-reduce"
    assert fold.received == dict.fromkeys(range(8), 2 * 3 * (3 * 8) // 4)
    uneven = fold_wire(
        "x", ("i",), tensor, named("j", uneven=((0, 1, 5),)).layout((5,)), 8, scattered=False
    )
    assert uneven.received == {d: 2 * 3 * (4 if d % 2 else 1) * 8 // 4 for d in range(8)}


# what a move is called, and where it leads


ONE = SingleDeviceSharding(DEVICES[0])
NEXT = SingleDeviceSharding(DEVICES[1])


@pytest.mark.parametrize(
    ("before", "after", "kind", "axes"),
    [
        (named("i", "j"), named("j", "i"), "all-to-all", ("i", "j")),
        (named("i"), named(None, "i"), "all-to-all", ("i",)),
        (named("i", "j"), named("i"), "all-gather", ("j",)),
        (named(("i", "j")), named("i"), "all-gather", ("j",)),
        (named("i", "j"), named(), "all-gather", ("i", "j")),
        (named(("i", "j")), named("j"), "reshard", ("i",)),
        (named("i"), named(None, "j"), "reshard", ("i", "j")),
        (named(("i", "j")), named(("j", "i")), "permute", ("i", "j")),
        (named("i"), named("i", uneven=((0, 1, 4, 6, 8), None)), "reshard", ("i",)),
        (named("i"), named("i", on=OTHER), "reshard", ()),
        (named(("i", "j")), named(("i", "j"), on=OTHER), "permute", ()),
        (ONE, named("i"), "scatter", ()),
        (ONE, named(), "broadcast", ()),
        (ONE, NEXT, "permute", ()),
        (named("i"), ONE, "gather", ()),
    ],
)
def test_a_move_is_called_after_the_collective_that_it_is(before, after, kind, axes):
    found = move((8, 8), before, after)
    assert (found.kind, found.axes) == (kind, axes)


def test_axes_of_one_device_have_no_say():
    mesh = Mesh(np.array(DEVICES).reshape(8, 1), ("i", "j"))
    found = move((8, 8), named("i", "j", on=mesh), named(None, "i", on=mesh))
    assert (found.kind, found.axes) == ("all-to-all", ("i",))


def test_a_map_leads_along_the_axes_of_its_dim():
    lies = named("i", "j")
    layout = lies.layout((8, 8))
    maps = (DimMap(8, 8, [(0, 7, 1, 1), (7, 1, 0, 1)]), DimMap(8, 8, [(0, 8, 0, 1)]))
    found = move_wire("x", Move(lies, (lies,), layout, (Source(layout, maps),), 8))
    assert (found.kind, found.axes) == ("move", ("i",))
    assert sum(found.received.values()) == 8 * 8 * 4
    sources = Source(layout), Source(layout, None, ((0, 1), (2, 1)))
    onto = move_wire("x", Move(lies, (lies, lies), layout, sources, 8))
    assert (onto.kind, onto.axes) == ("move", ("j",))


def test_a_flat_source_leads_along_all_its_axes():
    flat = named(("i", "j"))
    lies = named("i", "j")
    source = Source(lies.layout((8, 8)), None, None, flat=True)
    found = move_wire("x", Move(flat, (lies,), flat.layout((64,)), (source,), 8))
    assert (found.kind, found.axes) == ("move", ("i", "j"))


# tables


def record(line, count=8, what="sum", kind="all-reduce", axes=("i",), array="float64[8]"):
    return Record(what, kind, axes, array, {0: count, 1: 2 * count}, line)


def test_alike_records_of_a_line_share_a_row():
    found = [record("/a/x.py:3"), record("/a/x.py:3"), record("/a/x.py:9", 1000, axes=())]
    assert records_table(found).splitlines() == [
        "line    operation  kind        axes  array       count  per device  total",
        "x.py:3  sum        all-reduce  i     float64[8]      2          16     48",
        "x.py:9  sum        all-reduce  -     float64[8]      1       2,000  3,000",
    ]


def test_files_of_one_name_are_told_apart():
    text = records_table([record("/a/b/x.py:3"), record("/c/x.py:3"), record("/a/y.py:1")])
    assert [row.split()[0] for row in text.splitlines()] == [
        "line",
        "b/x.py:3",
        "c/x.py:3",
        "a/y.py:1",
    ]
    text = records_table([record("x.py:3"), record("/a/x.py:3")])
    assert [row.split()[0] for row in text.splitlines()] == ["line", "x.py:3", "a/x.py:3"]


def test_a_table_fits_its_width():
    found = [
        record(f"/a/{'long_' * 12}.py:{n}", 10**12, "w" * 60, axes=tuple("ijkl" * 9))
        for n in (1, 234)
    ]
    rows = records_table(found).splitlines()
    assert all(len(row) <= 100 for row in rows)
    assert "..." in rows[1]
    assert rows[2].split()[0].endswith("_.py:234")


def test_numbers_are_never_cut():
    count = 10**40
    row = records_table([record(f"/a/{'long_' * 12}.py:1", count)]).splitlines()[1]
    assert row.endswith("QiB")
    assert "..." not in row.split("float64")[1]


def test_lines_come_with_the_greatest_first():
    found = [record("x.py:1"), record("x.py:2", 50), record("x.py:1", 1, "slice", "move")]
    assert bytes_by_line(found) == {"x.py:2": 150, "x.py:1": 27}
    assert lines_table(found).splitlines() == [
        "line    operations                      count  total",
        "x.py:2  sum (all-reduce)                    1    150",
        "x.py:1  sum (all-reduce), slice (move)      2     27",
    ]


@pytest.mark.parametrize(
    ("lines_used", "tail"), [(11, "and 1 more line, 3 bytes"), (13, "and 3 more lines, 18 bytes")]
)
def test_a_long_list_of_lines_ends_with_the_rest(lines_used, tail):
    text = lines_table([record(f"x.py:{n}", n) for n in range(1, lines_used + 1)])
    assert len(text.splitlines()) == 12
    assert text.splitlines()[-1] == tail


def test_wires_are_counted_together_or_in_turns():
    rows, columns = named("i"), named(None, "i")
    one = move((8, 8), rows, columns)
    both = together([one, one])
    assert both.at_once
    assert both.received == {d: 2 * n for d, n in one.received.items()}
    turns = in_turns([(one, 3), (one, 2)], "y")
    assert not turns.at_once
    assert turns.array == "y"
    assert turns.total == 5 * one.total
    assert (turns.kind, turns.axes, turns.origins) == (one.kind, one.axes, one.origins)


def test_a_wire_is_counted_when_it_is_first_asked_for():
    def counted():
        raise AssertionError

    wire = Wire("x", "all-gather", ("i",), counted)
    assert (wire.kind, wire.axes, wire.exact) == ("all-gather", ("i",), True)
    with pytest.raises(AssertionError):
        _ = wire.received
