"""Shares of holders: the largest sender is as small as it can be, counted by linear programming."""

import random

import numpy as np
import pytest
from scipy.optimize import linprog

from meshard.algebra.layout import Layout
from meshard.plan.hops.hop import Hop
from meshard.plan.hops.shares import level_borders


def least_largest(holders, wanted):
    """Return the least that the largest sender can send, if elements can be divided."""
    pairs = [(c, u) for c, row in enumerate(holders) for u in row if u >= 0]
    units = sorted({u for _, u in pairs})
    cost = np.zeros(len(pairs) + 1)
    cost[-1] = 1
    whole = np.zeros((len(holders), len(pairs) + 1))
    most = np.zeros((len(units), len(pairs) + 1))
    most[:, -1] = -1
    for i, (c, u) in enumerate(pairs):
        whole[c, i] = 1
        most[units.index(u), i] = 1
    return linprog(cost, most, np.zeros(len(units)), whole, wanted).fun


@pytest.mark.parametrize("seed", range(60))
def test_the_largest_sender_is_as_small_as_it_can_be(seed):
    pick = random.Random(seed)
    units, width = pick.randint(1, 7), pick.randint(1, 4)
    rows = []
    for _ in range(pick.randint(1, 9)):
        some = pick.sample(range(units), pick.randint(1, min(units, width)))
        rows.append(some + [-1] * (width - len(some)))
    holders, wanted = np.array(rows), np.array([pick.randint(0, 10_000) for _ in rows])
    borders = level_borders(holders, wanted)
    assert (borders[:, 0] == 0).all()
    assert (borders[:, -1] == wanted).all()
    parts = np.diff(borders, axis=1)
    assert (parts >= 0).all()
    assert not parts[holders < 0].any()
    sent = np.bincount(holders[holders >= 0], parts[holders >= 0], units)
    assert sent.max() <= 1.02 * least_largest(rows, wanted) + len(rows)


@pytest.mark.parametrize("seed", range(30))
def test_a_hop_from_those_that_are_alive_is_complete_and_level(seed):
    pick = random.Random(seed)
    cuts = (0, 3, 7, 16), (0, 6, 10)
    tensor = np.array(pick.sample(range(24), 24)).reshape(3, 2, 4)
    source = Layout((16, 10), cuts, tensor)
    alive = sorted(
        {*pick.sample(range(24), 14), *tensor[..., pick.randrange(4)].reshape(-1).tolist()}
    )
    after = Layout(
        (16, 10), ((0, 16), (0, 5, 10)), np.array(pick.sample(range(24, 36), 8)).reshape(1, 2, 4)
    )
    hop = Hop(source, after, alive=alive)
    jobs = hop.jobs()
    counts = {d: np.zeros((16, 10), int) for d in after.device_ids}
    sent = dict.fromkeys(hop.sent.as_dict(), 0)
    for row, (sender, receiver) in enumerate(
        zip(jobs.sender.tolist(), jobs.receiver.tolist(), strict=True)
    ):
        assert sender in alive
        sent[sender] += int(jobs.elements[row])
        for box in hop.boxes(jobs, row):
            counts[receiver][box.slices] += 1
    for device, piece in after.piece_of.items():
        expected = np.zeros((16, 10), int)
        expected[after.box(piece).slices] = 1
        assert np.array_equal(counts[device], expected)
    assert sent == hop.sent.as_dict()
    one = alive[0]
    assert len(hop.sends([one])) == int((jobs.sender == one).sum())
    some = hop.receives([24, 30])
    assert len(some) == int(np.isin(jobs.receiver, [24, 30]).sum())
    holders, wanted = hop.before.holders.tolist(), hop.wanted
    assert hop.sent.most <= 1.02 * least_largest(holders, wanted) + 6
