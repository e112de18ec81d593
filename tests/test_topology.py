import contextlib
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
from meshard.algebra.layout import Layout, even_cuts
from meshard.errors import ArgumentError
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.simulate import seconds_of, simulate, simulate_many
from meshard.plan.figures.topology import Level, Topology, presets, topology
from meshard.plan.hops.hop import Hop
from meshard.plan.plan import Plan
from meshard.plan.planner import PlanOptions, make_plan

HOST = Level("host", latency=1e-6, bandwidth=100e9, size=4)
RACK = Level("rack", latency=5e-6, bandwidth=25e9, size=2, capacity=200e9)
ROW = Level("row", latency=9e-6, bandwidth=50e9)


def level(**changes):
    return Level(**{"name": "host", "latency": 0.0, "bandwidth": 1.0, **changes})


def listed(name, *groups):
    return level(name=name, groups=groups)


def refused(sentence):
    return pytest.raises(ArgumentError, match=re.escape(sentence))


def test_where_devices_meet():
    three = Topology("three", (HOST, RACK, ROW))
    assert three.level(0, [0, 1, 3, 4, 7, 8, 800]).tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert three.level([[5], [9]], [4, 8]).tolist() == [[0, 2], [2, 0]]
    assert three.level(3, 2).tolist() == 0
    assert three.level(3, 3).tolist() == -1
    assert [three.group(i, [0, 5, 9]).tolist() for i in range(3)] == [[0, 1, 2], [0, 0, 1], [0] * 3]
    assert three.size is None


def test_groups_of_listed_devices():
    odd = Topology(
        "odd",
        (
            listed("host", [7, 2], [0], [5, 4]),
            level(name="rack", size=2),
            level(name="row"),
        ),
    )
    assert odd.group(0, [0, 2, 4, 5, 7]).tolist() == [1, 0, 2, 2, 0]
    assert odd.group(1, [0, 2, 4, 5, 7]).tolist() == [0, 0, 1, 1, 0]
    assert odd.level([7, 7, 7], [2, 0, 4]).tolist() == [0, 1, 2]
    assert odd.size == 8
    with refused("Device 3 has no place in topology 'odd': its levels list 5 devices, up to 7."):
        odd.level(3, 0)


def test_groups_above_sizes():
    racks = Topology(
        "racks",
        (
            level(size=2),
            listed("rack", [0, 1, 6, 7], [2, 3, 4, 5]),
            listed("row", [0, 1, 2, 3, 4, 5, 6, 7]),
        ),
    )
    assert racks.level(0, [1, 6, 2]).tolist() == [0, 1, 2]
    assert racks.group(2, [7, 0]).tolist() == [0, 0]


def test_devices_beyond_the_last():
    small = Topology("small", (HOST, level(name="rack", size=2)))
    assert small.size == 8
    assert small.level(7, 0).tolist() == 1
    with refused("Device 8 has no place in topology 'small': it has 4 x 2 = 8 devices."):
        small.level(0, [1, 8])
    with refused("Device -1 has no place in topology 'small'"):
        small.group(0, [-1])
    with refused("Device -2 has no place in topology 'open': a device's id is 0 or more."):
        Topology("open", (ROW,)).group(0, [-2])


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(0, 63), min_size=2)
)
def test_meeting_is_symmetric_and_nests(sizes, ids):
    levels = [level(name=f"l{i}", size=n) for i, n in enumerate(sizes)]
    tree = Topology("tree", (*levels, level(name="all")))
    a, b = np.array(ids), np.array(ids[::-1])
    met = tree.level(a, b)
    assert met.tolist() == tree.level(b, a).tolist()
    for one, other, found in zip(a, b, met, strict=True):
        units = [math.prod(sizes[: i + 1]) for i in range(len(sizes))]
        meets = [i for i, n in enumerate(units) if one // n == other // n]
        assert found == (-1 if one == other else (meets or [len(sizes)])[0])


# files


def test_a_file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        """
        name = "our cluster"
        [[levels]]
        name = "host"
        size = 8
        latency = 2e-6
        bandwidth = 450e9
        [[levels]]
        name = "rack"
        latency = 5e-6
        bandwidth = 50_000_000_000
        capacity = 1e12
        """
    )
    found = Topology.load(path)
    assert found.name == "our cluster"
    assert found.levels == (
        Level("host", latency=2e-6, bandwidth=450e9, size=8),
        Level("rack", latency=5e-6, bandwidth=50e9, capacity=1e12),
    )
    assert type(found.levels[1].bandwidth) is float


@pytest.mark.parametrize("name", presets())
def test_presets_survive_a_file(name):
    found = topology(name)
    assert found.name == name
    assert Topology.from_toml(found.to_toml()) == found
    assert hash(Topology.from_toml(found.to_toml())) == hash(found)
    assert found.level(0, 7).tolist() == 0


def test_groups_and_names_survive_a_file():
    levels = (listed('a "b" \\ ü', [3, 1], [2]), level(name="all"))
    found = Topology("it's", levels)
    assert Topology.from_toml(found.to_toml()) == found
    assert found.levels[0].groups == ((3, 1), (2,))


def test_an_unknown_preset():
    with refused("There is no topology named 'moon'. Those with names are"):
        topology("moon")


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_bytes(b"\xff\xfe")
    with refused("cluster.toml is not a topology file: it is not UTF-8 text."):
        Topology.load(path)
    with pytest.raises(OSError, match="missing"):
        Topology.load(tmp_path / "missing.toml")


HEAD = 'name = "t"\n[[levels]]\nname = "host"\nlatency = 0\nbandwidth = 1\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name =", "The topology is not TOML:"),
        ('name = "t"', "A topology needs the key 'levels'."),
        ("levels = []", "A topology needs the key 'name'."),
        ('name = "t"\nlevels = []', "Topology 't' has no levels; it needs at least one"),
        ('name = "t"\nlevels = [3]', "The levels of a topology must be tables, [[levels]] in TOML"),
        ('name = "t"\nlevels = 3', "The levels of a topology must be tables, [[levels]] in TOML"),
        (
            'name = 3\nlevels = [{name="a", latency=0, bandwidth=1}]',
            "name must be a string of one line",
        ),
        ("speed = 3\n" + HEAD, "A topology has an unknown key 'speed'; the keys are name, levels."),
        (HEAD + "width = 3", "Level 'host' of a topology has an unknown key 'width'; the keys"),
        ('name = "t"\n[[levels]]\nlatency = 0', "Level 0 of a topology needs the key 'name'."),
        (HEAD.replace("latency = 0", ""), "Level 'host' of a topology needs the key 'latency'."),
        (HEAD.replace("latency = 0", "latency = -1"), "The latency of level 'host' must be 0 or"),
        (HEAD.replace("bandwidth = 1", "bandwidth = 0"), "bandwidth of level 'host' must be more"),
        (
            HEAD.replace("bandwidth = 1", "bandwidth = inf"),
            "level 'host' must be more than 0, not i",
        ),
        (
            HEAD.replace("bandwidth = 1", 'bandwidth = "fast"'),
            "The bandwidth of level 'host' must be a number, more than 0, not 'fast'.",
        ),
        (
            HEAD + "capacity = true",
            "The capacity of level 'host' must be a number, more than 0, not T",
        ),
        (
            HEAD + "size = 0",
            "size of level 'host' must be a positive integer of at most 63 bits, not 0.",
        ),
        (
            HEAD + "size = 2.5",
            "size of level 'host' must be a positive integer of at most 63 bits, not 2.5.",
        ),
        (HEAD + "size = 2\ngroups = [[0]]", "Level 'host' has both size = 2 and groups"),
        (HEAD + "groups = 3", "The groups of level 'host' must be lists of device ids, one list"),
        (HEAD + "groups = [[0], []]", "each with one id or more; group 1 is []"),
        (
            HEAD + "groups = [[0], [-1]]",
            "which are non-negative integers; group 1 has -1.",
        ),
        (HEAD + "groups = [[0], [1, 0]]", "Device 0 is in groups 0 and 1 of level 'host'"),
        (HEAD + "groups = [[0], [1]]", "The last level, 'host', has 2 groups; it must have one"),
    ],
)
def test_what_is_no_topology(text, sentence):
    with refused(sentence):
        Topology.from_toml(text)


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        ((level(), level(name="all")), "Level 'host' of topology 't' needs a size or groups; only"),
        ((HOST, HOST), "Topology 't' has two levels named 'host'; each level must have"),
        (
            (level(size=2), listed("rack", [0], [1, 2, 3]), level(name="all")),
            "Devices 0 and 1 share a group of level 'host' but not of level 'rack' above it",
        ),
        (
            (listed("host", [0, 1], [2]), listed("rack", [0, 1, 2, 9])),
            "Device 9 is in a group of level 'rack' and in none of level 'host'",
        ),
        (
            (listed("host", [0, 1], [2]), listed("rack", [0, 1])),
            "Device 2 is in a group of level 'host' and in none of level 'rack'",
        ),
        (
            (listed("host", [0], [1], [2]), level(name="rack", size=2)),
            "The last level, 'rack', has 2 groups; it must have one, which holds all devices.",
        ),
    ],
)
def test_levels_that_do_not_nest(levels, sentence):
    with refused(sentence):
        Topology("t", levels)


@pytest.mark.parametrize("name", ["", " ", "a\nb", 3])
def test_names_are_words(name):
    with refused("A level's name must be a word such as 'host'"):
        level(name=name)
    with refused("A topology's name must be a string of one line"):
        Topology(name, (ROW,))


def test_long_names_of_levels():
    with refused("can have at most 24 characters"):
        level(name="x" * 25)


ODD = [None, 3, 2.5, True, b"x", {}, [[]], float("nan"), 10**30, 10**400, 10**5000, "no such"]


def test_odd_values_are_refused_by_name_wherever_a_topology_takes_one():
    """Every field of a level and of a topology, and every function that reads one."""
    kept = {"name": "t", "latency": 1.0, "bandwidth": 1.0}
    inside = [1]
    inside.append(inside)
    for odd in [*ODD, inside]:
        for key in ("name", "latency", "bandwidth", "size", "groups", "capacity"):
            with contextlib.suppress(ArgumentError):
                Topology("t", (Level(**kept | {key: odd}),)).level([0], [1])
        for make in (
            lambda odd=odd: Topology("t", odd),
            lambda odd=odd: Topology("t", [odd]),
            lambda odd=odd: Topology.from_toml(odd),
            lambda odd=odd: topology(odd),
            lambda odd=odd: simulate_many([], odd),
            lambda odd=odd: seconds_of([], odd),
            lambda odd=odd: Plan([]).simulate(odd),
            lambda odd=odd: PlanOptions(topology=odd if odd is not None else 0),
            lambda odd=odd: meshard.explain(
                meshard.numpy.negative, 1.0, topology=odd if odd is not None else 0
            ),
        ):
            with pytest.raises(ArgumentError):
                make()
        if not isinstance(odd, str):
            with pytest.raises(ArgumentError):
                Topology.load(odd)


def test_texts_that_are_no_topology_are_refused():
    deep = "[" * 100_000
    for text in ("", deep, f"a = {deep}", "a = " + "9" * 5000, "\x00", 'name = "t"\nlevels = [[]]'):
        with pytest.raises(ArgumentError):
            Topology.from_toml(text)


def test_a_preset_is_taken_by_its_name_wherever_a_topology_is():
    given, name = topology("8-gpu hosts"), "8-gpu hosts"
    ids = np.arange(16)
    rows = Layout((64,), (even_cuts(64, 16),), ids.reshape(16, 1))
    whole = Layout((64,), ((0, 64),), ids.reshape(1, 16))
    hop, leaf = Hop(rows, whole), PlanLeaf("x", rows, whole, 4)
    assert simulate(hop, 4, name) == simulate(hop, 4, given)
    assert simulate_many([(hop, 4, 2)], name) == simulate_many([(hop, 4, 2)], given)
    asked = [PlanOptions(topology=where) for where in (name, given)]
    assert make_plan([leaf], asked[0]) == make_plan([leaf], asked[1])
    plan = Plan([leaf])
    assert plan.simulate(name) == plan.simulate(given)
    x = meshard.device_put(np.arange(8), meshard.devices()[0])
    target = meshard.devices()[0]
    assert meshard.plan_reshard(x, target, topology=name) == meshard.plan_reshard(
        x, target, topology=given
    )
    for ask in (plan.simulate, lambda name: meshard.plan_reshard(x, target, topology=name)):
        with refused("There is no topology named '8-gpu host'. Did you mean '8-gpu hosts'? Those"):
            ask("8-gpu host")
