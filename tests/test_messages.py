"""Messages: a plan's simulation counts what the transport sends, for trees in batches too."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard.algebra.layout import Layout, even_cuts
from meshard.plan.figures import schedule
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.topology import Level, Topology
from meshard.plan.planner import PlanCache, PlanOptions, make_plan
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding

FLAT = Topology("flat", (Level("all", latency=1.0, bandwidth=1e9),))


def _shardings() -> list[Any]:
    devices = np.array(meshard.devices())
    line, grid = Mesh(devices, ("i",)), Mesh(devices.reshape(2, 2), ("x", "y"))
    some = Mesh(devices[[3, 1]], ("s",))
    return [
        NamedSharding(line, P("i")),
        NamedSharding(line, P(None, "i")),
        NamedSharding(grid, P("x", "y")),
        NamedSharding(grid, P("y")),
        NamedSharding(some, P("s")),
        SingleDeviceSharding(meshard.devices()[2]),
        NamedSharding(line, P()),
    ]


@pytest.mark.parametrize("batch", [1 << 10, 1 << 12, 1 << 23])
@settings(max_examples=5)
@given(data=st.data())
def test_the_simulation_counts_what_is_sent(batch: int, data: st.DataObject) -> None:
    leaf = st.tuples(st.sampled_from([4, 8, 16]), st.integers(0, 6), st.integers(0, 6))
    leaves = data.draw(st.lists(leaf, min_size=1, max_size=12))

    def body() -> tuple[int, int, int]:
        layouts = _shardings()
        tree = [
            meshard.device_put(np.arange(n * 16.0).reshape(n, 16), layouts[a]) for n, a, _ in leaves
        ]
        targets = [layouts[b] for *_, b in leaves]
        here().plans = PlanCache()
        plan = meshard.resharding.plan_reshard(tree, targets, topology=FLAT)
        transport, sent = here().transport, [0]
        exchange = transport.exchange

        def counted(sends: Any, receives: Any) -> None:
            sent[0] += len([peer for peer, blocks in sends if blocks])
            exchange(sends, receives)

        transport.exchange = counted  # type: ignore[method-assign]
        try:
            plan.run(tree)
        finally:
            del transport.exchange  # type: ignore[method-assign]
        return sent[0], plan.simulate(FLAT).messages, len(plan.leaves)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "BATCH", batch)
        results = simulate(4, 1, body, hosts=[0, 1, 2, 3])
    assert len({told for _, told, _ in results}) == 1
    assert sum(sent for sent, *_ in results) == results[0][1]


def test_arrays_that_share_messages_do_without_detours_that_move_more() -> None:
    def laid(grid: tuple[int, int], devices: int) -> Layout:
        ids = np.arange(devices).reshape(*grid, 1)
        return Layout((8192, 8192), tuple([even_cuts(8192, n) for n in grid]), ids)

    before, after = laid((64, 4), 256), laid((16, 8), 128)
    options = PlanOptions(topology="8-gpu hosts")
    plans = [
        make_plan([PlanLeaf(f"x{i}", before, after, 2) for i in range(count)], options)
        for count in (1, 8)
    ]
    # Alone it is worth half as many bytes again to pass fewer messages; among others it is not.
    assert [len(plan.routes[0].layouts) for plan in plans] == [3, 2]
    assert plans[1].bytes_moved == 8 * plans[1].leaves[0].nbytes * 255 // 256
    one = make_plan([PlanLeaf("x", before, after, 2)], PlanOptions())
    alone, eight = one.simulate("8-gpu hosts"), plans[1].simulate("8-gpu hosts")
    assert eight.messages == alone.messages
    assert eight.bytes == 8 * alone.bytes
    assert eight.seconds < 8 * alone.seconds
