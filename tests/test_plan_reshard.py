"""Plans of reshards, and the two functions that make and run them."""

import numpy as np
import optree
import pytest

import meshard
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts, layout_of_boxes
from meshard.errors import (
    ArgumentError,
    DeletedArrayError,
    IndivisibleError,
    MeshardError,
    ShapeError,
    TreeError,
)
from meshard.plan import plan as plans
from meshard.plan.figures import schedule
from meshard.plan.figures.choice import PlanLeaf, figures_of
from meshard.plan.figures.footprint import traffic_of
from meshard.plan.figures.topology import Level, Topology
from meshard.plan.hops.hop import Route
from meshard.plan.plan import Plan, install_runner
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices
from tests.worlds import everywhere, in_worlds, mesh, put, whole

V = np.arange(48).reshape(8, 6)


def lines(size, shards, first=0):
    return Layout((size,), (balanced_cuts(size, shards),), first + np.arange(shards)[:, None])


# plans as values


def test_a_leaf_counts_what_each_device_receives():
    leaf = PlanLeaf("x", lines(10, 4), lines(10, 2), 4)
    assert leaf.nbytes == 40
    assert leaf.received() == {0: 8, 1: 20 - 4}
    elsewhere = PlanLeaf("x", lines(10, 4), lines(10, 2, first=8), 4)
    assert elsewhere.received() == {8: 20, 9: 20}
    assert PlanLeaf("x", lines(10, 2), lines(10, 2), 8).received() == {0: 0, 1: 0}


def test_a_plan_adds_up_its_leaves():
    plan = Plan(
        [PlanLeaf("a", lines(10, 4), lines(10, 2), 4), PlanLeaf("b", lines(4, 1), lines(4, 2), 8)]
    )
    assert plan.received == {0: 8, 1: 16 + 16}
    assert plan.bytes_moved == plan.lower_bound_bytes == 40
    assert plan.nbytes == 40 + 32
    nothing = Plan([])
    assert nothing.bytes_moved == nothing.lower_bound_bytes == nothing.peak_bytes == 0
    assert nothing.sent == nothing.received == {}
    assert nothing.device_count == nothing.send_bound_bytes == 0


def test_a_plan_prints_as_a_table():
    plan = Plan([PlanLeaf("x", lines(12_000, 4), lines(12_000, 3), 8)])
    each = "1.50 x the mean of 3 devices"
    assert str(plan).splitlines()[2:5] == [
        "moved     48,000 bytes  1.000 x the least possible",
        f"received  24,000 bytes  at most, by device 2, {each}",
        f"sent      24,000 bytes  at most, by device 3, {each}; 1.000 x the least",
    ]
    assert repr(plan) == "Plan(1 array, 48000 bytes moved)"
    assert plan.ratio == Plan([]).ratio == 1.0


def test_plans_are_values():
    leaves = [
        PlanLeaf("x", lines(12, 4), lines(12, 3), 8),
        PlanLeaf("y", lines(12, 4), lines(12, 3), 8),
    ]
    plan = Plan.direct(leaves)
    assert plan == Plan(leaves)
    assert hash(plan) == hash(Plan(leaves))
    assert plan != Plan(leaves, donate=True)
    assert plan != Plan(leaves[:1])
    with pytest.raises(AttributeError):
        plan.donate = True
    assert [c.count for c in plan.choices] == [2]
    assert plan.choice_of == (0, 0)
    assert plan.groups == (tuple(leaves),)


def test_senders_and_receivers():
    a, b = lines(12, 4), lines(12, 2, first=8)
    plan = Plan([PlanLeaf("x", a, b, 4), PlanLeaf("y", a, b, 4), PlanLeaf("z", b, a, 2)])
    assert plan.sent == {0: 24, 1: 24, 2: 24, 3: 24, 8: 12, 9: 12}
    assert plan.received == {0: 6, 1: 6, 2: 6, 3: 6, 8: 48, 9: 48}
    assert (plan.most_sent, plan.most_received) == (24, 48)
    assert plan.send_bound_bytes == 24
    assert plan.device_count == 6
    assert plan.alternatives == ()


def test_the_send_bound_adds_up_what_the_same_devices_hold():
    whole = Layout((12,), ((0, 12),), np.array([[0, 1]]))
    rows, far = lines(12, 2), lines(12, 1, first=9)
    plan = Plan(
        [PlanLeaf("x", whole, far, 2), PlanLeaf("y", rows, far, 4), PlanLeaf("z", whole, far, 4)]
    )
    assert plan.send_bound_bytes == max(12 * 2 // 2 + 12 * 4 // 2, 6 * 4)
    assert plan.most_sent == 12 + 24 + 24


def test_peak_memory_follows_the_arrays(monkeypatch):
    a, b = lines(12, 2), lines(12, 2, first=2)
    leaves = [PlanLeaf("x", a, b, 1), PlanLeaf("y", a, b, 1)]
    assert Plan(leaves).peak_tally.as_dict() == {0: 12, 1: 12, 2: 12, 3: 12}
    assert Plan(leaves, donate=True).peak_tally.as_dict() == {0: 12, 1: 12, 2: 12, 3: 12}
    turned = lines(12, 2)
    turned = Layout((12,), turned.cuts, np.array([[1], [0]]))
    there = PlanLeaf("x", a, turned, 1)
    assert Plan([there, there]).peak_bytes == 24
    # Small arrays go together, and are freed together.
    assert Plan([there, there], donate=True).peak_bytes == 24
    # What lies on a device already is a view there, or a small copy.
    assert Plan([PlanLeaf("x", a, a, 1)]).peak_bytes == 6
    assert Plan([PlanLeaf("x", lines(12, 1), a, 1)]).peak_tally.as_dict() == {0: 12, 1: 6}
    assert Plan([PlanLeaf("x", lines(12, 1), lines(12, 4), 1)]).peak_tally[0] == 12 + 3
    # What makes room goes first.
    monkeypatch.setattr(schedule, "GRADUAL", 13)
    far = lines(12, 1, first=9)
    grow, shrink = PlanLeaf("g", a, far, 1), PlanLeaf("s", far, a, 1)
    assert schedule.batches([grow, shrink], donate=True) == [(1,), (0,)]
    assert schedule.batches([grow, shrink], donate=False) == [(0, 1)]
    assert Plan([grow, shrink], donate=True).peak_tally[9] == 12  # and not 24
    assert Plan([there, there], donate=True).peak_bytes == 12 + 6
    assert Plan([there, there]).peak_bytes == 24
    # A large one goes while it moves.
    monkeypatch.setattr(schedule, "GRADUAL", 12)
    assert Plan([there, there], donate=True).peak_bytes == 12


def test_the_peak_of_a_detour_counts_what_lies_between():
    a, m, b = lines(12, 2), lines(12, 3, first=0), lines(12, 2, first=1)
    way = Route("around", (a, m, b))
    assert figures_of(way, 1).peak_bytes == 6 + 4 + 6
    assert figures_of(way, 1, donate=True).peak_bytes == 6 + 4 + 6
    assert figures_of(way, 1).hops == 2


def test_rounds_follow_from_the_window():
    leaf = PlanLeaf("x", lines(12, 2), lines(12, 2, first=2), 1)
    assert Plan([leaf]).rounds == 1
    assert Plan([leaf], max_bytes=4).rounds == 2
    assert Plan([leaf, leaf], max_bytes=4).rounds == 3
    assert Plan([leaf], max_bytes=4, rounds=5).rounds == 5
    assert Plan([PlanLeaf("x", lines(12, 2), lines(12, 2), 1)], max_bytes=4).rounds == 0
    assert Plan([]).rounds == 0


@pytest.mark.parametrize("ids", [(0, 1, 2), (4, 5, 6)])
@pytest.mark.parametrize("copies", [1, 2])
def test_messages_are_counted_with_and_without_a_list(ids, copies):
    before = Layout((12,), (balanced_cuts(12, 4),), np.arange(4 * copies).reshape(4, copies))
    after = Layout((12,), (balanced_cuts(12, 3),), np.array(ids)[:, None])
    hop = Route("direct", (before, after)).hops[0]
    jobs = hop.jobs()
    counted = traffic_of(hop)
    pairs = set(zip(jobs.sender.tolist(), jobs.receiver.tolist(), strict=True))
    assert counted.messages == len(pairs)
    assert counted.exact
    assert counted.peers_exact
    told = traffic_of(hop, most_jobs=0)
    assert told.exact == (copies == 1)
    assert told.messages == counted.messages if told.exact else told.messages >= counted.messages
    assert told.peers >= counted.peers


def test_messages_of_uneven_replicas_are_no_more_than_said():
    boxes = layout_of_boxes(
        (9,), [(0, Box((0,), (6,))), (1, Box((3,), (9,))), (2, Box((6,), (9,)))]
    )
    hop = Route("direct", (lines(9, 3, first=5), boxes)).hops[0]
    assert traffic_of(hop, most_jobs=0).messages >= traffic_of(hop).messages
    away = Route("direct", (boxes, lines(9, 3, first=5)))
    assert "at most" in str(figures_of(away, 1, most_jobs=0))


def test_a_plan_simulates_itself():
    level = Level("all", latency=0.5, bandwidth=10.0)
    plan = Plan([PlanLeaf("x", lines(12, 2), lines(12, 2, first=2), 1)] * 2)
    found = plan.simulate(Topology("flat", (level,)))
    assert found.bytes == plan.bytes_moved
    assert found.seconds > 1.2


def test_a_plan_runs_what_is_installed(monkeypatch):
    plan = Plan([])
    monkeypatch.setattr(plans._INSTALLED, "runner", None)
    with pytest.raises(MeshardError, match=r"Plan\.run: nothing is installed.*import meshard"):
        plan.run([])
    install_runner(lambda this, x: (this, x))
    assert plan.run("tree") == (plan, "tree")


# planning


def test_devices_need_not_exist():
    devices = virtual_devices(4096)
    grid = np.empty(4096, object)
    grid[:] = devices
    wide = Mesh(grid.reshape(64, 64), ("x", "y"))
    x = meshard.ShapeDtypeStruct((8192, 64), "f4", sharding=NamedSharding(wide, P("x")))
    plan = meshard.plan_reshard(x, NamedSharding(wide, P(("x", "y"))))
    assert plan.bytes_moved == plan.lower_bound_bytes == 0
    far = meshard.plan_reshard(x, NamedSharding(Mesh(virtual_devices(8), "z"), P()))
    assert far.bytes_moved == far.lower_bound_bytes == 8 * (8192 - 128) * 64 * 4


@in_worlds
def test_a_tree_is_planned_leaf_by_leaf():
    a, b = put(V, "i"), put(V[0], "j")
    rows, both = (NamedSharding(mesh(), s) for s in (P("i"), P("i", "j")))
    tree = {"a": a, "b": {"c": b, "d": np.float32(1)}}
    plan = meshard.plan_reshard(tree, {"a": both, "b": NamedSharding(mesh(), P())})
    assert [leaf.name for leaf in plan.leaves] == ["a", "b.c", "b.d"]
    assert plan.leaves[0].destination == both.layout((8, 6))
    assert plan.bytes_moved == plan.lower_bound_bytes == 8 * (8 * 3) + 7 * 4
    assert meshard.plan_reshard(a, rows).bytes_moved == 0
    assert meshard.plan_reshard(V, meshard.local_devices()[0]).leaves[0].name == "x"


@in_worlds
def test_none_is_planned_as_it_is_moved():
    """A leaf that is None is skipped, and a target that is None leaves its leaf where it is."""
    a = put(V, "i")
    rows, everywhere_ = NamedSharding(mesh(), P("j")), NamedSharding(mesh(), P())
    trees = [
        ({"a": a, "b": None, "c": {"d": None}}, rows),
        ({"a": a, "b": None, "c": a}, {"a": None, "b": rows, "c": everywhere_}),
        ([a, 3.5, None], None),
        (None, rows),
        ({"a": None}, None),
    ]
    for x, to in trees:
        plan = meshard.plan_reshard(x, to)
        moved, expected = plan.run(x), meshard.reshard(x, to)
        assert optree.tree_structure(moved) == optree.tree_structure(expected)
        pairs = list(zip(optree.tree_leaves(moved), optree.tree_leaves(expected), strict=True))
        assert len(pairs) == len(plan.leaves)
        for mine, theirs in pairs:
            assert mine.sharding == theirs.sharding
            assert whole(mine).tolist() == whole(theirs).tolist()
    assert plan.bytes_moved == 0
    assert [leaf.name for leaf in meshard.plan_reshard(*trees[2]).leaves] == ["0", "1"]
    assert meshard.plan_reshard(*trees[2]).bytes_moved == 0


@pytest.mark.parametrize(
    ("x", "to", "error", "words"),
    [
        (
            {"a": meshard.ShapeDtypeStruct((4,), "f4")},
            lambda: meshard.devices()[0],
            ArgumentError,
            r"plan_reshard: a is ShapeDtypeStruct\(shape=\(4,\).* which has no sharding",
        ),
        (V, lambda: "there", ArgumentError, "plan_reshard: expected a Sharding.*got 'there'"),
        ([V], lambda: (meshard.devices()[0],), TreeError, "plan_reshard: the tree of devices"),
        (
            np.zeros(5),
            lambda: NamedSharding(mesh(), P("i")),
            IndivisibleError,
            "dimension 0 should be divisible by 4, but it is equal to 5",
        ),
    ],
)
def test_refused_plans(x, to, error, words):
    with pytest.raises(error, match=words):
        meshard.plan_reshard(x, to())


# doing it


def test_a_tree_goes_where_a_prefix_of_it_says():
    def body():
        a, b = put(V, "i"), put(V[0], "j")
        rows, all_of_it = NamedSharding(mesh(), P(None, "j")), NamedSharding(mesh(), P())
        found = meshard.reshard({"a": a, "b": [b, 2.5]}, {"a": rows, "b": all_of_it})
        assert found["a"].sharding == rows
        assert found["b"][0].sharding == found["b"][1].sharding == all_of_it
        assert not a.is_deleted()
        return [whole(found["a"]), whole(found["b"][0]), whole(found["b"][1])]

    found = everywhere(body)
    assert found[0].tolist() == V.tolist()
    assert found[1].tolist() == V[0].tolist()
    assert found[2] == 2.5


@in_worlds
def test_donated_arrays_say_so():
    x = put(V, "i")
    y = meshard.reshard(x, NamedSharding(mesh(), P("j")), donate=True)
    assert whole(y).tolist() == V.tolist()
    assert x.is_deleted()
    with pytest.raises(DeletedArrayError, match="donated to reshard"):
        x + 1


@in_worlds
def test_a_donated_array_that_stays_where_it_is():
    x = put(V, "i")
    y = meshard.reshard(x, x.sharding, donate=True)
    assert not y.is_deleted()
    assert whole(y).tolist() == V.tolist()


@in_worlds
def test_a_leaf_without_a_place_is_left_alone():
    x, y = put(V, "i"), put(V, "i")
    found = meshard.reshard(
        {"x": x, "y": y}, {"x": None, "y": NamedSharding(mesh(), P())}, donate=True
    )
    assert found["x"] is x
    assert not x.is_deleted()
    assert y.is_deleted()


@in_worlds
def test_nothing_is_deleted_when_a_leaf_is_refused():
    x, y = put(V, "i"), put(np.arange(4), "i")
    odd = np.zeros(5)
    with pytest.raises(IndivisibleError):
        meshard.reshard([x, odd, y], NamedSharding(mesh(), P("j")), donate=True)
    assert not x.is_deleted()
    assert not y.is_deleted()


@in_worlds
def test_a_replicated_array_is_one_block_per_process():
    x = meshard.reshard(put(V, "i", "j"), NamedSharding(mesh(), P()))
    blocks = {id(np.asarray(s.data._live()[0])) for s in x.addressable_shards}
    assert len(blocks) == 1
    pairs = meshard.reshard(x, NamedSharding(mesh(), P("i")))
    for shard in pairs.addressable_shards:
        twin = next(s for s in pairs.addressable_shards if s.index == shard.index)
        assert shard.data._live()[0] is twin.data._live()[0]


@pytest.mark.halves
@in_worlds
def test_views_where_they_are_worth_it():
    x = put(np.arange(1 << 14))
    y = meshard.reshard(x, NamedSharding(mesh(), P(("i", "j"))))
    (block,) = x._live()
    for new in y._live():
        assert new is None or np.shares_memory(block, new)
    first = meshard.devices()[0]
    few = meshard.reshard(
        x,
        BoxSharding(
            (1 << 14,), {first: (slice(0, 99),), meshard.devices()[-1]: (slice(99, None),)}
        ),
    )
    for piece, new in zip((99, (1 << 14) - 99), few._live(), strict=True):
        # One process sees all of the block, so that both views are worth keeping it.
        small = meshard.process_count() > 1 and piece == 99
        assert new is None or np.shares_memory(block, new) != small


@in_worlds
def test_a_permutation_of_devices_moves_references():
    x = put(np.arange(64), "d", on=mesh((8,), ("d",)))
    turned = Mesh(list(reversed(meshard.devices())), "d")
    y = meshard.reshard(x, NamedSharding(turned, P("d")))
    plan = meshard.plan_reshard(x, y.sharding)
    assert plan.bytes_moved == 64 * 8
    if meshard.process_count() == 1:
        assert all(a is b for a, b in zip(x._live(), y._live(), strict=True))


def test_odd_arguments_of_plans_are_refused_by_name():
    a, b = lines(12, 2), lines(12, 2, first=2)
    odd = [3, 2.5, "x", [None], [[]], {"a": 1}, [-1], [10**30], float("nan"), object()]
    for value in odd:
        for name, ask in (
            ("leaves", lambda value=value: Plan(value)),
            ("leaves", lambda value=value: Plan.direct(value)),
            ("choices", lambda value=value: Plan([PlanLeaf("x", a, b, 1)], value)),
            ("max_bytes", lambda value=value: Plan([], max_bytes=value)),
            ("alive", lambda value=value: Plan([], alive=value)),
            ("alive", lambda value=value: meshard.plan_reshard(V, None, alive=value)),
        ):
            if value == 3 and name == "max_bytes":
                continue
            with pytest.raises(ArgumentError, match=rf"{name} must be"):
                ask()
    for ask in (
        lambda: Plan([], alive=np.array(0)),
        lambda: meshard.plan_reshard(V, None, alive=np.array(0)),
    ):
        with pytest.raises(ArgumentError, match="alive must be"):
            ask()
    ids = [meshard.devices()[0], np.int64(1), *range(2, 8)]
    assert meshard.plan_reshard(V, None, alive=ids).alive == tuple(range(8))
    with pytest.raises(ArgumentError, match=r"1 distinct triples .* the choices are for \[\]"):
        Plan([PlanLeaf("x", a, b, 1)], [])
    with pytest.raises(ShapeError, match=r"is not a shape: sizes must be non-negative integers"):
        meshard.ShapeDtypeStruct((1 << 70,), "f4", sharding=NamedSharding(mesh(), P()))
