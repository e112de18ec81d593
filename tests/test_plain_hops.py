"""Figures of many devices, which are counted without lists of them, beside the slow way."""

import numpy as np
import pytest

from meshard.algebra.layout import Layout, balanced_cuts, ceil_cuts, cut_points
from meshard.plan.figures.choice import figures_of
from meshard.plan.figures.footprint import added, footprint, most_alike, peak_elements, traffic_of
from meshard.plan.hops.hop import Hop, Route


def every(ids):
    """Devices as units, as a function that nobody knows: hops then take the general way."""
    return ids


def random_layout(rng, shape, ids, rule):
    """A layout with random numbers of parts, its devices in some order."""
    parts, left = [], len(ids)
    for _ in shape:
        parts.append(int(rng.choice([n for n in (1, 2, 3, 4, 6) if left % n == 0])))
        left //= parts[-1]
    grid = ids.reshape(*parts, left)
    if rng.random() < 0.5:
        grid = rng.permutation(ids).reshape(grid.shape)
    return Layout(shape, tuple(map(rule, shape, parts)), np.ascontiguousarray(grid))


def random_pair(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.choice([1, 5, 7, 12, 24], rng.integers(1, 4)).tolist())
    ids = np.arange(12) if rng.random() < 0.7 else np.sort(rng.choice(200, 12, replace=False))
    rule = balanced_cuts if rng.random() < 0.6 else ceil_cuts
    source = random_layout(rng, shape, ids, rule)
    other = ids if rng.random() < 0.7 else ids[: rng.choice([4, 6])] + rng.integers(0, 3)
    return source, random_layout(rng, shape, other, rule)


@pytest.mark.parametrize("seed", range(150))
def test_hops_of_devices_count_as_hops_of_any_units(seed):
    source, destination = random_pair(seed)
    fast, slow = Hop(source, destination), Hop(source, destination, every)
    for mine, theirs in zip(fast.stays, slow.stays, strict=True):
        assert mine.tolist() == theirs.tolist()
    assert fast.moved == slow.moved
    for way in ("received", "sent"):
        mine, theirs = getattr(fast, way), getattr(slow, way)
        assert (mine.most, mine.total) == (theirs.most, theirs.total)
        assert mine.as_dict() == theirs.as_dict()
        twice = added([(mine, 2), (getattr(Hop(source, source), way), 3), (mine, 1)])
        plain = added([(theirs, 2), (getattr(Hop(source, source, every), way), 3), (theirs, 1)])
        assert (twice.most, twice.total, twice.as_dict()) == (
            plain.most,
            plain.total,
            plain.as_dict(),
        )


@pytest.mark.parametrize("seed", range(150))
def test_messages_and_peers_are_those_of_the_jobs(seed):
    source, destination = random_pair(seed)
    hop = Hop(source, destination)
    jobs = hop.jobs()
    columns = jobs.sender.tolist(), jobs.receiver.tolist(), jobs.elements.tolist()
    pairs = {(a, b) for a, b, n in zip(*columns, strict=True) if n}
    ends = zip(*pairs, strict=True) if pairs else ((), ())
    told = traffic_of(hop)
    assert told.exact
    assert told.peers_exact
    assert told.messages == len(pairs)
    assert told.peers == max([list(end).count(u) for end in map(list, ends) for u in end] or [0])
    bound = traffic_of(hop, most_jobs=0)
    assert bound.messages >= told.messages
    assert bound.peers >= told.peers
    assert not bound.exact or bound.messages == told.messages
    assert not bound.peers_exact or bound.peers == told.peers


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("donate", [False, True])
def test_the_peak_is_that_of_the_footprint(seed, donate):
    source, destination = random_pair(seed)
    middle = random_pair(seed + 1000)[0]
    layouts = [source, destination]
    if middle.shape == source.shape:
        layouts.insert(1, middle)
    route = Route("some", tuple(layouts))
    for itemsize in (1, 1 << 24):  # small arrays, and such as move gradually
        found = peak_elements(route, donate=donate, itemsize=itemsize)
        assert found == footprint(route, donate=donate, itemsize=itemsize).most


def test_the_peak_is_one_copy_where_all_have_views():
    ids = np.arange(4).reshape(4, 1)
    rows = Layout((8,), ((0, 2, 4, 6, 8),), ids)
    again = Layout((8,), ((0, 2, 4, 6, 8),), ids.copy())
    assert figures_of(Route("direct", (rows, again)), 4).peak_bytes == 8


@pytest.mark.parametrize("size", [0, 1, 255, 256, 1000, 4096])
@pytest.mark.parametrize("shards", [255, 256, 257, 1000])
@pytest.mark.parametrize("rule", [balanced_cuts, ceil_cuts])
def test_many_cut_points_are_those_of_the_rule(rule, size, shards):
    assert tuple(map(int, cut_points(rule, size, shards))) == rule(size, shards)


def test_equal_layouts_are_equal_however_their_cuts_are_given():
    ids = np.arange(1000).reshape(1000, 1)
    cuts = balanced_cuts(1200, 1000)
    listed, array = Layout((1200,), (cuts,), ids), Layout((1200,), (np.array(cuts),), ids.copy())
    assert listed == array
    assert hash(listed) == hash(array)
    assert array.cuts == (cuts,)
    ids = ids[::-1].copy()
    ids[[1, 2]] = ids[[2, 1]]  # of so many devices the hash looks at some only
    assert Layout((1200,), (cuts,), ids[::-1].copy()) != listed


def test_most_alike_counts_the_most_frequent_value():
    assert most_alike(np.array([], np.int64)) == 0
