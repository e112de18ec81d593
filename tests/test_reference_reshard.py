"""The reference's rules for an intermediate sharding, one by one, and resharding by way of one."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
from meshard.compat import reference_reshard
from meshard.errors import MeshardError, SpecError, TreeError
from meshard.resharding import (
    NoIntermediateShardingError,
    NoIntermediateShardingNeededError,
    find_intermediate_sharding,
    reshard_with_intermediate_sharding,
)
from meshard.runtime.moving.plan_reshard import Options
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P, SingleDeviceSharding
from meshard.testing.strategies import meshes, specs
from meshard.testing.virtual import virtual_devices

from .lays import fetched
from .ranks import shares
from .worlds import everywhere, in_worlds


def on(sizes: Sequence[int], names: str, *spec: Any, first: int = 0, **more: Any) -> NamedSharding:
    """A sharding on a mesh of virtual devices, the axes named by single letters."""
    count = math.prod(sizes)
    devices = np.array(virtual_devices(first + count)[first:], object).reshape(sizes)
    return NamedSharding(Mesh(devices, tuple(names)), P(*spec), **more)


def refused(source: Any, target: Any) -> str:
    """The message with which there is no intermediate, of the general kind."""
    with pytest.raises(NoIntermediateShardingError) as found:
        find_intermediate_sharding(source, target)
    assert type(found.value) is NoIntermediateShardingError
    return str(found.value)


# what is found


def test_one_axis_becomes_replicas():
    between, replicas = find_intermediate_sharding(
        on((8, 1), "ft", "f", "t"), on((1, 4), "ft", "f", "t", first=8)
    )
    assert replicas == ["f_intermediate_replica"]
    assert between.mesh.axis_names == ("f_intermediate_replica", "f_intermediate_split", "t")
    assert between.mesh.axis_sizes == (8, 1, 1)
    assert between.mesh.flat_devices == tuple(virtual_devices(8))
    assert between.spec == P("f_intermediate_split", "t")


def test_replica_axes_come_first_and_devices_are_reshaped_never_transposed():
    # The candidate is the mesh's last axis: its replicas are nevertheless the slowest.
    source, target = on((2, 4), "ab", None, "b"), on((2,), "x", "x", None, first=8)
    between, replicas = find_intermediate_sharding(source, target)
    assert replicas == ["b_intermediate_replica"]
    assert dict(between.mesh.shape) == {
        "b_intermediate_replica": 4,
        "a": 2,
        "b_intermediate_split": 1,
    }
    assert [d.id for d in between.mesh.flat_devices] == list(range(8))
    assert between.mesh.device_ids[1].tolist() == [[2], [3]]
    assert between.spec == P(None, "b_intermediate_split")


def test_candidates_stand_in_mesh_order_whatever_the_order_of_dims():
    source = on((2, 4, 3), "abc", "b", None, "a", "c")
    between, replicas = find_intermediate_sharding(source, on((3,), "x", None, None, None, None))
    names = ["a_intermediate_replica", "b_intermediate_replica", "c_intermediate_replica"]
    splits = ["a_intermediate_split", "b_intermediate_split", "c_intermediate_split"]
    assert replicas == names
    assert dict(between.mesh.shape) == dict(zip(names + splits, (2, 4, 3, 1, 1, 1), strict=True))
    assert between.spec == P("b_intermediate_split", None, "a_intermediate_split", splits[2])


def test_dims_that_are_no_candidates_keep_their_axes():
    # Dim 1 has fewer shards than in the target, dim 2 a tuple of axes.
    source = on((8, 2, 2, 1), "abcd", "a", "d", ("b", "c"))
    between, replicas = find_intermediate_sharding(source, on((4,), "x", None, "x", None))
    assert replicas == ["a_intermediate_replica"]
    assert between.mesh.axis_sizes == (8, 1, 2, 2, 1)
    assert between.spec == P("a_intermediate_split", "d", ("b", "c"))


def test_an_empty_spec_is_padded_with_none():
    source = on((4, 2), "ab", "a", None)
    padded = find_intermediate_sharding(source, on((2,), "x", None, None))
    assert find_intermediate_sharding(source, on((2,), "x")) == padded
    assert padded[0].mesh.axis_sizes == (4, 1, 2)


def test_a_tuple_of_one_axis_is_a_single_axis():
    source, target = on((4,), "a", ("a",)), on((2,), "x", None)
    assert find_intermediate_sharding(source, target)[1] == ["a_intermediate_replica"]


def test_axes_of_size_one_split_nothing():
    # P("c", "a") to P("y", None): dim 0 has one shard on both sides.
    source, target = on((4, 1), "ac", "c", "a"), on((1, 2), "yz", "y", None)
    between, replicas = find_intermediate_sharding(source, target)
    assert replicas == ["a_intermediate_replica"]
    assert between.spec == P("c", "a_intermediate_split")
    message = refused(on((1, 1), "ac", "a", "c"), on((1,), "x", None, None))
    assert "but has 1 where the target has 1" in message
    # A tuple is no candidate even if all its axes but one have size 1.
    message = refused(on((4, 1), "ac", ("a", "c")), on((2,), "x", None))
    assert "a single mesh axis in in_sharding, not a tuple" in message


def test_memory_kind_axis_types_and_cuts_are_carried():
    kinds = (meshard.sharding.AxisType.Explicit, meshard.sharding.AxisType.Auto)
    devices = np.array(virtual_devices(8), object).reshape(4, 2)
    mesh = Mesh(devices, ("a", "b"), kinds)
    cuts = ((0, 1, 2, 2, 9), (0, 3, 8))
    source = NamedSharding(mesh, P("a", "b"), memory_kind="pinned_host", uneven=cuts)
    between, _ = find_intermediate_sharding(source, on((2,), "x", None, "x").with_spec(P()))
    auto = meshard.sharding.AxisType.Auto
    assert between.mesh.axis_types == (auto, auto, *kinds)
    assert between.memory_kind == "pinned_host"
    assert between.layout((9, 8)).cuts == ((0, 9), (0, 8))
    source = NamedSharding(mesh, P("a", "b"), uneven=((0, 1, 2, 2, 9),))
    target = on((2,), "x", None, "x")
    with pytest.raises(NoIntermediateShardingNeededError):  # gcd of dim 1 is 2
        find_intermediate_sharding(source, target)
    source = NamedSharding(mesh, P("a", ("b",), None), uneven=(None, (0, 3, 8)))
    source = source.with_spec(P(("a", "b"), None))
    assert source.uneven is None
    balanced = NamedSharding(mesh, P("a"), uneven="balanced")
    assert find_intermediate_sharding(balanced, on((2,), "x"))[0].uneven == "balanced"


def test_cuts_of_dims_that_are_no_candidates_stay():
    source = on((4, 2, 1), "abc", "a", ("b", "c"), uneven=((0, 1, 2, 2, 9), (0, 3, 8)))
    between, _ = find_intermediate_sharding(source, on((2,), "x"))
    assert between.layout((9, 8)).cuts == ((0, 9), (0, 3, 8))


# each rule's refusal


def test_both_must_be_named_shardings():
    named, one = on((4,), "a", "a"), SingleDeviceSharding(virtual_devices(1)[0])
    for source, target in ((named, one), (one, named), (one, one)):
        message = refused(source, target)
        assert "both shardings must be NamedSharding (rule 1)" in message
        assert "SingleDeviceSharding" in message
    assert "in_sharding is P('a',) of type PartitionSpec" in refused(P("a"), named)


def test_specs_must_have_one_length():
    message = refused(on((4,), "a", "a"), on((2,), "x", None, None))
    assert "one length (rule 3)" in message
    assert "in_sharding's P('a',) has 1 entries" in message
    assert "out_sharding's P(None, None) has 2. Pad the shorter one" in message


def test_the_most_shards_must_be_a_multiple():
    message = refused(on((4, 3), "ab", "a", "b"), on((3,), "x", "x", None))
    assert "with (4, 3) shards along the dims" in message
    assert "with (3, 1): " in message
    assert "the source, 4, must be a multiple of the most in the target, 3 (rule 4)" in message


@pytest.mark.parametrize(
    ("source", "target"),
    [((4,), (4,)), ((4, 1), (4, 2)), ((4, 2), (2, 4)), ((1, 1), (1, 1))],
)
def test_the_source_must_have_more_shards(source: tuple[int, ...], target: tuple[int, ...]):
    names = "ab"[: len(source)]
    message = refused(on(source, names, *names), on(target, names, *names))
    assert f"has {math.prod(source)} where the target has {math.prod(target)}" in message
    assert "(rule 5)" in message


def test_empty_specs_have_one_shard_each():
    assert "but has 1 where the target has 1" in refused(on((4,), "a"), on((2,), "x"))
    # An empty source is padded as an empty target is.
    message = refused(on((4,), "a"), on((2,), "x", "x"))
    assert "in the source, 1, must be a multiple of the most in the target, 2 (rule 4)" in message


def test_the_number_of_shards_must_be_a_multiple():
    message = refused(on((4, 4), "ab", "a", "b"), on((2, 2, 3), "xyz", ("y", "x"), "z"))
    assert "rule 4" in message or "rule 5" in message
    message = refused(on((6, 2), "ab", "a", "b"), on((3, 3), "xy", "x", "y"))
    assert "the number of the source's shards, 12, must be a multiple of the target's, 9" in message
    assert "(rule 5)" in message


def test_shards_in_common_need_no_intermediate():
    with pytest.raises(NoIntermediateShardingNeededError) as found:
        find_intermediate_sharding(on((8,), "a", "a", None), on((4,), "x", "x", None))
    message = str(found.value)
    assert "greatest common divisors are (4, 1). None is needed" in message
    assert "(rule 6)" in message
    assert isinstance(found.value, NoIntermediateShardingError)


def test_a_candidate_is_split_by_one_axis():
    message = refused(on((2, 4), "ab", ("a", "b"), None), on((2,), "x", None, None))
    assert "no dim can be split (rule 7)" in message
    assert "with (8, 1) shards along the dims" in message


def test_a_candidate_that_the_target_does_not_divide_is_refused_clearly():
    message = refused(on((3, 4), "ab", "a", "b"), on((2,), "x", "x", None))
    assert "with (3, 4) shards along the dims" in message
    assert "3 shards are not a multiple of 2: 1 replicas of 2 shards are not 3 devices" in message


def test_an_axis_with_the_intermediates_name_is_refused():
    mesh = Mesh(np.array(virtual_devices(8)).reshape(4, 2), ("a", "a_intermediate_replica"))
    message = refused(NamedSharding(mesh, P("a")), on((2,), "x"))
    assert "axis 'a_intermediate_replica' is already an axis of in_sharding's" in message


def test_rules_are_read_in_order():
    # Each pair breaks its rule and a later one: the earlier speaks.
    assert "rule 3" in refused(on((3,), "a", "a"), on((2,), "x", "x", None))
    assert "rule 4" in refused(on((3,), "a", "a"), on((4,), "x", "x"))
    assert "rule 5" in refused(on((4,), "a", "a"), on((4,), "x", "x"))
    with pytest.raises(NoIntermediateShardingNeededError, match="rule 6"):
        find_intermediate_sharding(on((2, 2), "ab", ("a", "b")), on((2,), "x", "x"))


def test_unconstrained_dims_are_refused():
    with pytest.raises(SpecError, match="leaves dim 0 unconstrained"):
        find_intermediate_sharding(on((4,), "a", P.UNCONSTRAINED), on((2,), "x", "x"))


def test_errors_are_value_errors_of_one_tree():
    assert issubclass(NoIntermediateShardingNeededError, NoIntermediateShardingError)
    assert issubclass(NoIntermediateShardingError, ValueError)
    assert issubclass(NoIntermediateShardingError, MeshardError)


def by_the_table(source: NamedSharding, target: NamedSharding) -> Any:
    """The rules read once more, naively: the class of the error, or mesh sizes, names and spec."""
    entries, wanted = list(source.spec), list(target.spec)
    if not entries:
        entries = [None] * len(wanted)
    if not wanted:
        wanted = [None] * len(entries)
    if len(entries) != len(wanted):
        return NoIntermediateShardingError

    def count(sharding: NamedSharding, entry: Any) -> int:
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        return math.prod(sharding.mesh.shape[a] for a in names)

    s, d = [count(source, e) for e in entries], [count(target, e) for e in wanted]
    if max([*s, 1]) % max([*d, 1]):
        return NoIntermediateShardingError
    if math.prod(s) <= math.prod(d) or math.prod(s) % math.prod(d):
        return NoIntermediateShardingError
    if math.prod(math.gcd(a, b) for a, b in zip(s, d, strict=True)) != 1:
        return NoIntermediateShardingNeededError
    chosen = {
        e: (a, b)
        for e, a, b in zip(entries, s, d, strict=True)
        if math.gcd(a, b) == 1 and a > b and isinstance(e, str)
    }
    front, names, rest = [], [], []
    for axis, n in source.mesh.shape.items():
        if axis in chosen:
            a, b = chosen[axis]
            front.append((f"{axis}_intermediate_replica", a // b))
            rest.append((f"{axis}_intermediate_split", b))
            names.append(f"{axis}_intermediate_replica")
        else:
            rest.append((axis, n))
    if not chosen or math.prod(n for _, n in front + rest) != source.mesh.size:
        return NoIntermediateShardingError
    spec = P(*[f"{e}_intermediate_split" if e in chosen else e for e in entries])
    return front + rest, names, spec


@given(st.data())
def test_rules_agree_with_the_table(data: st.DataObject):
    ndim = data.draw(st.integers(0, 3))
    pair = []
    for _ in range(2):
        mesh = data.draw(meshes(virtual_devices(24), max_axes=3))
        pair.append(NamedSharding(mesh, data.draw(specs(mesh, ndim))))
    source, target = pair
    expected = by_the_table(source, target)
    if isinstance(expected, type):
        with pytest.raises(NoIntermediateShardingError) as found:
            find_intermediate_sharding(source, target)
        assert type(found.value) is expected
        assert re.search(r"rule \d|no multiple", str(found.value))
        return
    between, replicas = find_intermediate_sharding(source, target)
    assert (list(between.mesh.shape.items()), replicas, between.spec) == expected
    assert between.mesh.flat_devices == source.mesh.flat_devices
    # As the reference has it, what it yields is always full replication of the candidates.
    assert all(n == 1 for a, n in between.mesh.shape.items() if a.endswith("_split"))


# moving by way of it


def real(sizes: Sequence[int], names: str, *spec: Any, first: int = 0) -> NamedSharding:
    """A sharding on devices of the current world."""
    count = math.prod(sizes)
    devices = np.array(meshard.devices()[first : first + count], object).reshape(sizes)
    return NamedSharding(Mesh(devices, tuple(names)), P(*spec))


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shardings that arrays are moved to, in order."""
    seen: list[Any] = []
    through = reference_reshard.resharded

    def recorded(x: Any, sharding: Any, options: Options) -> Any:
        seen.append((sharding, options))
        return through(x, sharding, options)

    monkeypatch.setattr(reference_reshard, "resharded", recorded)
    return seen


GRID = np.arange(64.0).reshape(8, 8)


def runs() -> int:
    """Return how often a body has run in this process: in a job, alone in the first one only."""
    if shares.processes() is None:
        return 3
    return 2 if here().process_index == 0 else 1


def test_arrays_go_by_the_intermediate_where_it_helps(routes: list[Any]):
    def body() -> np.ndarray:
        source, target = real((8, 1), "ft", "f", "t"), real((1, 4), "ft", "f", "t", first=2)
        x = meshard.device_put(GRID, source)
        y = reshard_with_intermediate_sharding(x, source, target)
        assert y.sharding == target
        assert y.committed
        assert not x.is_deleted()
        np.testing.assert_array_equal(fetched(x), GRID)
        return fetched(y)

    assert everywhere(body).tobytes() == GRID.tobytes()
    assert len(routes) == 2 * runs()  # to the intermediate, to the target
    ((between,), _), ((target,), _) = routes[:2]
    assert between.mesh.axis_names[0] == "f_intermediate_replica"
    assert between.replicated_axes >= {"f_intermediate_replica"}
    assert target.mesh.axis_names == ("f", "t")


def test_arrays_go_directly_where_it_does_not(routes: list[Any]):
    def body() -> list[np.ndarray]:
        source = real((4, 2), "ab", "a", "b")
        x = meshard.device_put(GRID, source)
        values = []
        for target in (
            real((4,), "x", "x", None, first=2),  # none needed
            real((8,), "x", None, "x"),  # none there
            real((4, 2), "ab", "a"),  # another length
            SingleDeviceSharding(meshard.devices()[5]),
        ):
            y = reshard_with_intermediate_sharding(x, source, target)
            assert y.sharding == target
            values.append(fetched(y))
        return values

    for value in everywhere(body):
        assert value.tobytes() == GRID.tobytes()
    assert len(routes) == 4 * runs()


def test_trees_move_with_prefixes_and_other_leaves_are_placed(routes: list[Any]):
    def body() -> Any:
        source, target = real((8,), "f", "f"), real((4,), "t", first=4)
        other = real((2, 4), "ab", "a", "b")
        tree = {
            "moved": [meshard.device_put(GRID, source), meshard.device_put(GRID[:, 0], source)],
            "elsewhere": meshard.device_put(GRID, other),
            "none": None,
            "plain": (np.arange(4), 3.5),
        }
        moved = reshard_with_intermediate_sharding(
            tree,
            {"moved": source, "elsewhere": source, "none": None, "plain": source},
            target,
        )
        assert meshard.tree.structure(moved) == meshard.tree.structure(tree)
        assert moved["none"] is None
        assert moved["moved"][1].sharding == moved["plain"][0].sharding == target
        leaves = meshard.tree.leaves(moved)
        return [fetched(leaf) for leaf in leaves]

    elsewhere, first, second, plain, number = everywhere(body)
    assert elsewhere.tobytes() == first.tobytes() == GRID.tobytes()
    assert second.tolist() == GRID[:, 0].tolist()
    assert plain.tolist() == [0, 1, 2, 3]
    assert number == 3.5
    staged, _ = routes[0]
    assert len(staged) == 2  # the two that lie as in_sharding says, moved together
    assert len(routes) == 2 * runs()


def test_the_sharding_that_each_leaf_has_is_taken_for_none(routes: list[Any]):
    def body() -> np.ndarray:
        source, target = real((8,), "f", "f"), real((4,), "t", None, first=4)
        x = meshard.device_put(GRID, source)
        return fetched(reshard_with_intermediate_sharding(x, None, target))

    assert everywhere(body).tobytes() == GRID.tobytes()
    assert len(routes) == 2 * runs()


@in_worlds
def test_bare_specs_mean_the_mesh_that_is_set():
    mesh = meshard.make_mesh((8,), ("f",))
    with mesh:
        x = meshard.device_put(GRID, P("f"))
        y = reshard_with_intermediate_sharding(x, P("f"), P())
    assert y.sharding == NamedSharding(mesh, P())
    np.testing.assert_array_equal(fetched(y), GRID)


@in_worlds
def test_donating_deletes_the_source_and_nothing_else():
    source, target = real((8,), "f", "f"), real((4,), "t", None, first=4)
    direct = real((4, 2), "ab", "a", "b")
    x, y = meshard.device_put(GRID, source), meshard.device_put(GRID, direct)
    kept = meshard.device_put(GRID, source)
    moved = reshard_with_intermediate_sharding([x, y], [source, direct], target, donate=True)
    assert x.is_deleted()
    assert y.is_deleted()
    assert not kept.is_deleted()
    for leaf in moved:
        assert not leaf.is_deleted()
        np.testing.assert_array_equal(fetched(leaf), GRID)
    with pytest.raises(RuntimeError, match="donated to reshard_with_intermediate_sharding"):
        x + 1


@in_worlds
def test_a_failure_leaves_donated_sources_alone():
    source, target = real((8,), "f", "f"), real((4,), "t", None, first=4)
    x = meshard.device_put(GRID, source)
    indivisible = NamedSharding(target.mesh, P("t"))
    pair = [x, meshard.device_put(np.arange(3), SingleDeviceSharding(meshard.devices()[0]))]
    with pytest.raises(ValueError, match="divisible by 4"):
        reshard_with_intermediate_sharding(pair, source, [target, indivisible], donate=True)
    np.testing.assert_array_equal(fetched(x), GRID)
    with pytest.raises(TreeError, match="tree of in_sharding must be a prefix"):
        reshard_with_intermediate_sharding(pair, [source], target)
    with pytest.raises(TreeError, match="tree of out_sharding must be a prefix"):
        reshard_with_intermediate_sharding(pair, source, [target])


def test_the_other_arguments_are_passed_on(routes: list[Any]):
    def body() -> None:
        source, target = real((8,), "f", "f"), real((4,), "t", None, first=4)
        x = meshard.device_put(GRID, source)
        reshard_with_intermediate_sharding(
            x, source, target, may_alias=True, cache_resharding_plans=True
        )

    everywhere(body)
    assert all(m.may_alias and m.cache_resharding_plans for _, m in routes)
    assert [m.donate for _, m in routes] == [False] * (2 * runs())


@given(st.data())
def test_values_are_right_between_any_shardings(data: st.DataObject):
    shape = data.draw(st.tuples(*[st.integers(0, 9)] * data.draw(st.integers(0, 3))))
    pair = []
    for _ in range(2):
        mesh = data.draw(meshes(max_axes=3))
        ids = [d.id for d in mesh.flat_devices]
        spec = data.draw(specs(mesh, len(shape)))
        pair.append((ids, mesh.axis_sizes, mesh.axis_names, spec))
    value = np.arange(math.prod(shape)).reshape(shape)

    def body() -> np.ndarray:
        every = meshard.devices()
        source, target = (
            NamedSharding(
                Mesh(np.array([every[i] for i in ids], object).reshape(sizes), names),
                spec,
                uneven="balanced",
            )
            for ids, sizes, names, spec in pair
        )
        x = meshard.device_put(value, source)
        moved = reshard_with_intermediate_sharding(x, source, target, donate=True)
        assert moved.sharding == target
        return fetched(moved)

    assert everywhere(body).tobytes() == value.tobytes()
