"""Replays: right plans pass, and every kind of wrong one is found."""

import math
from dataclasses import replace

import numpy as np
import pytest

from meshard.algebra.box import Box
from meshard.algebra.layout import ceil_cuts, layout_of_boxes
from meshard.errors import MeshardError, PlanError
from meshard.plan import plan as replay
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.hops.hop import Hop, Route
from meshard.plan.hops.jobs import Jobs
from meshard.plan.plan import Plan, check_elements, check_jobs, check_route
from tests.plans import PLANS, SMALL, laid


@pytest.mark.parametrize("name", SMALL)
def test_right_plans_pass(name):
    report = SMALL[name]().check()
    assert report.complete
    assert report.hops >= report.routes >= 1
    assert "every element arrives once" in str(report)


def test_of_a_vast_plan_some_devices_are_gone_through():
    report = PLANS["vast"]().check()
    assert not report.complete
    assert 2 <= report.devices <= 32
    assert "a sample of" in str(report)


def test_small_hops_are_followed_element_by_element():
    assert PLANS["striped"]().check().elements == 2
    assert PLANS["model"]().check().elements == 1  # the norm, and no matrix


def test_the_sum_of_nothing():
    report = Plan([]).check()
    assert (report.routes, report.jobs, report.complete) == (0, 0, True)


HOPS = {
    "rows to columns": (laid((8, 6), (4, 1), range(4)), laid((8, 6), (1, 2), range(2))),
    "with replicas": (laid((8, 6), (2, 1), range(4)), laid((8, 6), (1, 3), range(6))),
    "split": (laid((9, 5), (1, 1), [0, 1, 2]), laid((9, 5), (1, 1), [4, 5])),
    "boxes": (
        layout_of_boxes(
            (6, 6), [(0, Box((0, 0), (6, 2))), (2, Box((0, 2), (3, 6))), (5, Box((3, 2), (6, 6)))]
        ),
        laid((6, 6), (2, 1), [0, 2]),
    ),
}


def jobs_like(jobs, **columns):
    return replace(jobs, **{name: np.array(column) for name, column in columns.items()})


def doubled(jobs, row):
    return Jobs(*(np.append(getattr(jobs, f), getattr(jobs, f)[row]) for f in FIELDS))


FIELDS = ("sender", "receiver", "source", "destination", "first", "last", "volume")


def checks(hop, jobs):
    """What both kinds of replay say."""
    said = []
    for check in (check_jobs, check_elements):
        with pytest.raises(PlanError) as error:
            check(hop, jobs, "this plan")
        said.append(str(error.value))
    return said


@pytest.mark.parametrize("name", HOPS)
def test_right_hops_pass_both_ways(name):
    hop = Hop(*HOPS[name])
    check_jobs(hop, hop.jobs())
    check_elements(hop, hop.jobs())


@pytest.mark.parametrize("name", HOPS)
def test_any_lost_job_is_missed(name):
    hop = Hop(*HOPS[name])
    jobs = hop.jobs()
    for row in range(len(jobs)):
        by_box, by_element = checks(hop, jobs.where(np.arange(len(jobs)) != row))
        box, receiver = hop.boxes(jobs, row)[0], jobs.receiver[row]
        assert f"is missing on device {receiver}" in by_box
        assert str(box) in by_box
        assert f"reaches device {receiver} 0 times" in by_element


@pytest.mark.parametrize("name", HOPS)
def test_any_job_that_is_done_twice_is_found(name):
    hop = Hop(*HOPS[name])
    jobs = hop.jobs()
    for row in range(len(jobs)):
        by_box, by_element = checks(hop, doubled(jobs, row))
        receiver = jobs.receiver[row]
        assert f"arrives twice: it reaches device {receiver} again" in by_box
        assert f"reaches device {receiver} 2 times" in by_element


@pytest.mark.parametrize("name", HOPS)
def test_a_job_cut_short_is_found(name):
    hop = Hop(*HOPS[name])
    jobs = hop.jobs()
    last = jobs.last.copy()
    row = int(np.argmax(jobs.elements))
    last[row] -= 1
    by_box, _ = checks(hop, jobs_like(jobs, last=last))
    assert f"is missing on device {jobs.receiver[row]}" in by_box


def test_a_box_from_one_who_has_it_not():
    hop = Hop(*HOPS["rows to columns"])
    jobs = hop.jobs()
    sender = jobs.sender.copy()
    sender[0] = 3 if sender[0] != 3 else 2
    by_box, by_element = checks(hop, jobs_like(jobs, sender=sender))
    assert f"is to be sent by device {sender[0]}, which does not hold it" in by_box
    assert by_box.startswith("this plan: the box [")
    assert "of an array of shape (8, 6)" in by_box
    assert "0 times" not in by_element


def test_a_box_to_one_who_needs_it_not():
    hop = Hop(*HOPS["rows to columns"])
    jobs = hop.jobs()
    receiver = jobs.receiver.copy()
    receiver[0] = 3
    by_box, by_element = checks(hop, jobs_like(jobs, receiver=receiver))
    assert "is sent to device 3, which does not need it" in by_box
    assert "one of the two takes no part in the move" in by_element


def test_a_box_to_one_who_has_it():
    hop = Hop(laid((4,), (2,), [0, 1]), laid((4,), (1,), [0, 1]))
    jobs = hop.jobs()
    own = Jobs(*(np.array([n]) for n in (0, 0, 0, 0, 0, 2, 2)))
    by_box, by_element = checks(hop, jobs.beside(own))
    assert "device 0 already holds it" in by_box
    assert "reaches device 0 2 times" in by_element


def test_a_box_beyond_its_cell():
    hop = Hop(laid((4,), (2,), [0, 1]), laid((4,), (2,), [1, 0]))
    jobs = hop.jobs()
    with pytest.raises(PlanError, match="reaches beyond what both cells share"):
        check_jobs(hop, jobs_like(jobs, last=jobs.last + 1))


def test_all_needed_and_nothing_sent():
    hop = Hop(laid((4,), (2,), [0, 1]), laid((4,), (2,), [1, 0]))
    with pytest.raises(PlanError, match=r"box \[0:2\].* missing on device 1.*device 0 holds it"):
        check_jobs(hop, hop.jobs().where(np.zeros(2, bool)))


def test_nothing_needed_and_something_sent():
    a = laid((4,), (2,), [0, 1])
    jobs = Jobs(*(np.array([n]) for n in (0, 1, 0, 0, 0, 2, 2)))
    with pytest.raises(PlanError, match="is sent to device 1, which does not need it"):
        check_jobs(Hop(a, a), jobs)


def test_the_error_says_which_hop(monkeypatch):
    plan = PLANS["striped"]()
    broken = plan.routes[0].hops[1]
    right = broken.jobs()
    monkeypatch.setattr(broken, "jobs", lambda: right.where(np.arange(len(right)) > 0))
    with pytest.raises(PlanError, match="striped, hop 2 of 2: the box"):
        plan.check()


def test_a_sample_looks_at_both_ends(monkeypatch):
    monkeypatch.setattr(replay, "TABLE_JOBS", 16)
    route = Route("direct", (laid((8, 8), (8, 1), range(8)), laid((8, 8), (1, 8), range(8))))
    report = check_route(route)
    assert not report.complete
    hop = route.hops[0]
    right = hop.sends
    monkeypatch.setattr(hop, "sends", lambda units: right(units).where(np.zeros(7, bool)))
    with pytest.raises(PlanError, match=r"device \d would send 0 boxes"):
        check_route(route)


def test_it_is_one_of_ours():
    assert issubclass(PlanError, MeshardError)
    assert issubclass(PlanError, ValueError)


@pytest.mark.parametrize(("shape", "shards"), [((), ()), ((0, 4), (1, 2)), ((3,), (8,))])
def test_scalars_and_arrays_without_elements_are_replayed(shape, shards):
    before = laid(shape, (1,) * len(shape), [0])
    after = laid(shape, shards, range(1, math.prod(shards) + 1), ceil_cuts)
    assert Plan([PlanLeaf("x", before, after, 4)]).check().complete
