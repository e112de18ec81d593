"""Windows: one meaning of ``max_bytes``, for plans and for what runs, measured on the way."""

import contextlib
import inspect
from pathlib import Path

import numpy as np
import pytest

import meshard
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError
from meshard.plan.figures.choice import Choice, PlanLeaf, figures_of
from meshard.plan.figures.footprint import between, checked_window, quota
from meshard.plan.hops.hop import Route, unit_map
from meshard.plan.plan import Plan
from meshard.plan.planner import PlanOptions, make_plan
from meshard.plan.routes.relay import striped
from meshard.resharding import plan_reshard, reshard
from meshard.runtime.memory.memory import slabs
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices
from tests.worlds import whole

MEANING = "the most bytes in flight from and to one process at once, besides source and destination"
VALUES = np.arange(24.0 * 5 * 8).reshape(24, 5, 8)


def test_max_bytes_is_explained_in_the_same_words_everywhere():
    texts = {
        "reshard": reshard.__doc__,
        "plan_reshard": plan_reshard.__doc__,
        "Plan": Plan.__doc__,
        "PlanOptions": PlanOptions.__doc__,
        "guide": (Path(__file__).parents[1] / "docs" / "resharding.md").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        assert MEANING in " ".join(inspect.cleandoc(text).split()), name


@contextlib.contextmanager
def on_their_way():
    """The bytes that leave and enter this process at once, to and from each peer, by round."""
    seen, transport = [], here().transport
    exchange = transport.exchange

    def counted(sends, receives):
        seen.append([sum(b.nbytes for b in some) for way in (sends, receives) for _, some in way])
        exchange(sends, receives)

    transport.exchange = counted
    try:
        yield seen
    finally:
        del transport.exchange


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_no_more_is_on_its_way_than_was_said(processes):
    """From one element to and from each peer on, whatever the rows are."""
    least = 2 * (processes - 1) * VALUES.itemsize

    def body():
        mesh = Mesh(np.array(meshard.devices()).reshape(4, 2), ("x", "y"))
        x = meshard.device_put(VALUES, NamedSharding(mesh, P("x", None, "y")))
        target = NamedSharding(mesh, P("y", None, "x"))
        for window in (least, least + 9, 3 * least, 1 << 12):
            plan = plan_reshard(x, target, max_bytes=window)
            for move in (lambda w=window: reshard(x, target, max_bytes=w), lambda p=plan: p.run(x)):
                with on_their_way() as seen:
                    y = move()
                assert max(map(sum, seen)) <= window
                assert len(seen) >= plan.rounds > 0
                assert (whole(y) == VALUES).all()
        for ask in (reshard, plan_reshard):
            with pytest.raises(ArgumentError, match=rf"max_bytes={least - 1} allows .* {least}\."):
                ask(x, target, max_bytes=least - 1)
        return True

    assert all(simulate(processes, 8 // processes, body, deadline=60))


def test_what_lies_between_two_hops_is_on_its_way_too():
    def body():
        left, right = Mesh(meshard.devices()[:4], "f"), Mesh(meshard.devices()[4:], "t")
        x = meshard.device_put(VALUES, NamedSharding(left, P("f")))
        target = NamedSharding(right, P())
        (leaf,) = plan_reshard(x, target).leaves
        route = striped(leaf.source, leaf.destination)
        units = unit_map({d.id: d.process_index for d in meshard.devices()})
        kept = between(route, 8, units)
        assert kept == VALUES.nbytes // 4
        window = 2 * kept
        plan = Plan([leaf], [Choice(route, figures_of(route, 8))], max_bytes=window)
        with on_their_way() as seen:
            y = plan.run(x)
        assert max(map(sum, seen)) <= window - kept
        assert max(map(max, filter(None, seen))) <= quota(window - kept, 8)
        return (whole(reshard(y, NamedSharding(left, P()))) == VALUES).all()

    assert all(simulate(8, 1, body, deadline=60))


def lined(ids, shards=None):
    ids = np.asarray(ids)
    cuts = tuple(range(0, 97, 96 // (shards or len(ids))))
    return Layout((96,), (cuts,), ids.reshape(shards or len(ids), -1))


def test_a_plan_takes_no_detour_that_does_not_fit_between_its_hops():
    rows, copies = lined(range(8)), lined(range(8, 16), 1)
    leaf = PlanLeaf("x", rows, copies, 8)
    free = make_plan([leaf])
    assert len(free.routes[0].layouts) > 2
    kept = between(free.routes[0], 8, lambda ids: ids)
    enough = PlanOptions(max_bytes=2 * kept)
    assert make_plan([leaf], enough).routes[0].layouts == free.routes[0].layouts
    tight = make_plan([leaf], PlanOptions(max_bytes=2 * kept - 1))
    assert len(tight.routes[0].layouts) == 2 or between(tight.routes[0], 8, lambda ids: ids) < kept
    for window in (1, 8, kept, 2 * kept, 100 * kept):
        (route,) = make_plan([leaf], PlanOptions(max_bytes=window)).routes
        assert len(route.layouts) == 2 or between(route, 8, lambda ids: ids) <= window // 2


def test_the_processes_of_devices_decide_even_where_there_are_none():
    """The same layouts on 8 devices of one, four and eight processes that exist nowhere."""
    found = {}
    for each in (8, 2, 1):
        mesh = Mesh(virtual_devices(8, devices_per_process=each), "x")
        x = meshard.ShapeDtypeStruct((64, 64), "float64", sharding=NamedSharding(mesh, P("x")))
        target = NamedSharding(mesh, P(None, "x"))
        plan = plan_reshard(x, target, max_bytes=4096)
        assert plan.process_of == {d: d // each for d in range(8)}
        least = 2 * (8 // each - 1) * 8
        plan_reshard(x, target, max_bytes=max(1, least))
        if least:
            with pytest.raises(ArgumentError, match=rf"^plan_reshard: max_bytes.*least {least}\."):
                plan_reshard(x, target, max_bytes=least - 1)
        found[each] = plan.rounds
        assert f"  {plan.rounds}" in str(plan)
        assert Plan.from_json(plan.to_json()).rounds == plan.rounds
    assert found == {8: 1, 2: -(-16 * 48 * 8 // 4096), 1: 1}


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (1, 4, 6), (2, 1, 0, 3)])
def test_slabs_are_the_box_in_order(shape):
    box = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    for most in (1, 4, 9, 24, 1000):
        found = list(slabs(box, most))
        assert np.concatenate([s.reshape(-1) for s in found]).tolist() == box.reshape(-1).tolist()
        assert all(s.nbytes <= max(most, 4) for s in found)


def test_windows_are_positive_integers():
    assert checked_window(None, "f") is None
    assert checked_window(np.int64(9), "f") == 9
    assert (quota(600, 4), quota(600, 1)) == (100, 300)
    for odd in (0, -1, 1.0, "1", True, [1], float("nan")):
        for ask in (lambda w: checked_window(w, "f"), lambda w: PlanOptions(max_bytes=w)):
            with pytest.raises(ArgumentError, match="max_bytes must be a positive number of bytes"):
                ask(odd)


def test_a_route_of_three_hops_holds_two_layouts_at_once():
    a, b, c, d = (lined([k], 1) for k in (0, 1, 1, 3))
    assert between(Route("around", (a, b, c, d)), 8, lambda ids: ids) == 2 * 96 * 8
    assert between(Route("direct", (a, d)), 8, lambda ids: ids) == 0
