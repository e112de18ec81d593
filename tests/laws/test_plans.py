"""The laws of plans as values: for any layouts a plan arrives, reads back, and adds up."""

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshard.plan.figures.choice import Choice, PlanLeaf, figures_of
from meshard.plan.figures.plan_figures import flow_of, stages
from meshard.plan.figures.schedule import batches
from meshard.plan.hops.hop import Route
from meshard.plan.plan import Plan
from meshard.testing.virtual import virtual_devices
from tests.laws.test_resharding import DRAWN, SHAPES, SLOW, shardings


@st.composite
def planned(draw):
    """Draw a plan for one to three arrays, some of which take a detour."""
    shape, devices = draw(SHAPES), virtual_devices(8)
    leaves, choices = [], {}
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(2, 3))
        layouts = [draw(shardings(shape, devices)).layout(shape) for _ in range(count)]
        leaf = PlanLeaf(f"x{number}", layouts[0], layouts[-1], draw(st.sampled_from([1, 4])))
        key = (leaf.source, leaf.destination, leaf.itemsize)
        if key in choices:
            continue
        way = Route("detour", tuple(layouts), split=draw(st.booleans()))
        leaves.append(leaf)
        choices[key] = Choice(way, figures_of(way, leaf.itemsize))
    donate, window = draw(st.booleans()), draw(st.none() | st.integers(1, 64))
    return Plan(leaves, tuple(choices.values()), donate=donate, max_bytes=window)


@settings(max_examples=DRAWN, suppress_health_check=SLOW)
@given(planned())
def test_any_plan_arrives_reads_back_and_adds_up(plan):
    assert plan.check().complete
    assert Plan.from_json(plan.to_json()) == plan
    moved = 0
    for transfer in plan.transfers():
        assert transfer.sender != transfer.receiver
        moved += transfer.box.volume * plan.groups[transfer.choice][0].itemsize
    flows = [flow_of(plan, stage) for stage in range(stages(plan))]
    assert plan.bytes_moved == moved == sum(plan.sent.values()) == sum(plan.received.values())
    assert moved == sum(int(f.amounts.sum()) for f in flows)
    assert plan.most_sent == max(plan.sent.values(), default=0)
    assert plan.bytes_moved >= plan.lower_bound_bytes
    assert (plan.rounds == 0) == (plan.bytes_moved == 0)
    assert all(len(line) <= 100 for line in str(plan).splitlines())


@settings(max_examples=DRAWN, suppress_health_check=SLOW)
@given(planned())
def test_peak_memory_is_what_a_walk_through_the_arrays_counts(plan):
    def size(layout, device):
        if device not in layout.piece_of:
            return 0
        return layout.box(layout.piece_of[device]).volume

    for device in range(8):
        live = [size(leaf.source, device) * leaf.itemsize for leaf in plan.leaves]
        most = sum(live)
        for batch in batches(plan.leaves, donate=plan.donate):
            during, after = list(live), list(live)
            for number in batch:
                choice, width = plan.choices[number], plan.leaves[number].itemsize
                steps = [size(x, device) for x in choice.route.layouts]
                view = len(steps) == 2 and 2 * steps[1] >= steps[0]
                if view and math.isclose(choice.route.hops[0].received[device], 0):
                    continue
                pairs = [a + b for a, b in pairwise(steps[1:])]
                during[number] = (steps[0] + max([steps[-1], *pairs])) * width
                after[number] = (steps[-1] + (0 if plan.donate else steps[0])) * width
            most, live = max(most, sum(during)), after
        assert plan.peak_tally[device] == most


@settings(max_examples=DRAWN, suppress_health_check=SLOW)
@given(st.data(), SHAPES)
def test_messages_are_no_more_than_said(data, shape):
    a, b = (data.draw(shardings(shape, virtual_devices(8))).layout(shape) for _ in range(2))
    way = Route("direct", (a, b))
    counted, quick = figures_of(way, 1), figures_of(way, 1, most_jobs=0)
    jobs = way.hops[0].jobs()
    assert counted.messages_exact
    assert counted.messages == len(np.unique(jobs.sender * 8 + jobs.receiver))
    assert quick.messages >= counted.messages
    assert quick.messages == counted.messages or not quick.messages_exact
