"""Meshes taken apart and put together along an axis: values, references, and refusals."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
from meshard.errors import (
    ArgumentError,
    CoverageError,
    MeshardError,
    ShapeError,
    ShardingError,
    SpecError,
    TreeError,
)
from meshard.resharding import concatenate_by_mesh_axis, split_by_mesh_axis
from meshard.sharding import AxisType, Mesh, NamedSharding, P, SingleDeviceSharding

from .lays import Lay, calm, fetched, numbered, on_meshes, shapes
from .worlds import everywhere, in_worlds, mesh, put

GRID = np.arange(64.0).reshape(8, 8)


def blocks(x: meshard.Array) -> dict[int, np.ndarray]:
    """What this process's devices hold, by device id, without copies."""
    return {s.device.id: s.data._live()[0] for s in x.addressable_shards}


def shares(part: meshard.Array, x: meshard.Array) -> None:
    """Check that each device's shard of a part is the very block that it had before."""
    have, had = blocks(part), blocks(x)
    assert have.keys() <= had.keys()
    for device, block in have.items():
        assert block.__array_interface__["data"] == had[device].__array_interface__["data"]
        assert block.shape == had[device].shape
        if block.size:
            assert np.shares_memory(block, had[device])


# what a part is


def test_one_part_for_each_position_by_default():
    def body() -> list[Any]:
        x = put(GRID, "i", "j")
        parts = split_by_mesh_axis(x, "i")
        assert isinstance(parts, list)
        for k, part in enumerate(parts):
            assert part.sharding == NamedSharding(
                Mesh(mesh().devices[k : k + 1], ("i", "j")), P("i", "j")
            )
            assert part.committed
            shares(part, x)
        assert not x.is_deleted()
        return fetched(parts)

    found = everywhere(body)
    assert [p.tolist() for p in found] == [GRID[a : a + 2].tolist() for a in (0, 2, 4, 6)]


@pytest.mark.parametrize(
    ("given", "cuts"),
    [
        (1, (0, 4)),
        (np.int64(2), (0, 2, 4)),
        (4, (0, 1, 2, 3, 4)),
        ([], (0, 4)),
        ([1], (0, 1, 4)),
        ((1, 3), (0, 1, 3, 4)),
        ([np.int32(2), 3], (0, 2, 3, 4)),
    ],
)
def test_sections_and_cuts_count_positions_of_the_axis(given: Any, cuts: tuple[int, ...]):
    def body() -> list[Any]:
        parts = split_by_mesh_axis(put(GRID, None, "i"), "i", given)
        sizes = [part.sharding.mesh.shape["i"] for part in parts]
        assert sizes == [b - a for a, b in pairwise(cuts)]
        return fetched(parts)

    for value, (a, b) in zip(everywhere(body), pairwise(cuts), strict=True):
        np.testing.assert_array_equal(value, GRID[:, 2 * a : 2 * b])


@in_worlds
def test_a_list_of_cuts_is_left_unchanged():
    cuts = [1, 3]
    split_by_mesh_axis(put(GRID, "i"), "i", cuts)
    assert cuts == [1, 3]


def test_along_a_replicated_axis_each_part_is_the_whole():
    def body() -> list[Any]:
        x = put(GRID, "i")
        parts = split_by_mesh_axis(x, "j")
        for part in parts:
            assert part.shape == x.shape
            assert part.sharding.mesh.axis_sizes == (4, 1)
            shares(part, x)
        return fetched(parts)

    for value in everywhere(body):
        assert value.tobytes() == GRID.tobytes()


def test_along_the_minor_axis_of_a_tuple_a_part_is_no_slice():
    def body() -> list[Any]:
        x = put(np.arange(16), ("i", "j"))
        minor = split_by_mesh_axis(x, "j")
        major = split_by_mesh_axis(x, "i", 2)
        for part in (*minor, *major):
            assert part.sharding.spec == P(("i", "j"))
            shares(part, x)
        return fetched([*minor, *major])

    first, second, front, back = everywhere(body)
    assert first.tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert second.tolist() == [2, 3, 6, 7, 10, 11, 14, 15]
    assert front.tolist() == list(range(8))
    assert back.tolist() == list(range(8, 16))


def test_uneven_parts_keep_their_cuts():
    def body() -> list[Any]:
        values = np.arange(10)
        found = []
        for uneven in ("balanced", "ceil", ((0, 1, 1, 7, 10),)):
            x = put(values, "i", uneven=uneven)
            parts = split_by_mesh_axis(x, "i", [2])
            lengths = [b - a for a, b in pairwise(x.aval.layout.cuts[0])]
            for part, own in zip(parts, (lengths[:2], lengths[2:]), strict=True):
                assert [b - a for a, b in pairwise(part.aval.layout.cuts[0])] == own
                shares(part, x)
            joined = concatenate_by_mesh_axis(parts, "i")
            assert joined.sharding == x.sharding
            found.append([part.sharding.uneven for part in parts])
            found.append(fetched(parts))
        return found

    rules = everywhere(body)
    assert rules[0] == ["balanced", "balanced"]  # 3, 3 and 2, 2
    assert rules[2] == ["ceil", ((0, 3, 4),)]  # 3, 3 and 3, 1
    assert rules[4] == [((0, 1, 1),), ((0, 6, 9),)]
    assert [v.tolist() for v in rules[3]] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]


@in_worlds
def test_trees_are_split_leaf_by_leaf():
    tree = {"w": [put(GRID, "i", "j"), put(GRID, None, "i")], "b": (put(3.0),), "none": None}
    parts = split_by_mesh_axis(tree, "i", 2)
    assert len(parts) == 2
    for k, part in enumerate(parts):
        assert meshard.tree.structure(part) == meshard.tree.structure(tree)
        np.testing.assert_array_equal(fetched(part["w"][0]), GRID[4 * k : 4 * k + 4])
        np.testing.assert_array_equal(fetched(part["w"][1]), GRID[:, 4 * k : 4 * k + 4])
        assert fetched(part["b"][0]) == 3.0
        assert part["none"] is None


@in_worlds
def test_of_an_empty_tree_there_are_no_parts():
    for tree in ({}, [], (), None, {"a": [], "b": None}):
        assert split_by_mesh_axis(tree, "i") == []
    assert concatenate_by_mesh_axis([{"a": []}, {"a": []}], "i") == {"a": []}


@in_worlds
def test_memory_kind_and_axis_types_are_carried():
    kinds = (AxisType.Auto, AxisType.Explicit)
    laid = NamedSharding(Mesh(mesh().devices, ("i", "j"), kinds), P("i"), memory_kind="pinned_host")
    x = meshard.device_put(GRID, laid)
    parts = split_by_mesh_axis(x, "i", 2)
    for part in parts:
        assert part.sharding.memory_kind == "pinned_host"
        assert part.sharding.mesh.axis_types == kinds
    assert concatenate_by_mesh_axis(parts, "i").sharding == laid


@in_worlds
def test_a_part_is_an_array_like_any_other():
    low, high = split_by_mesh_axis(put(GRID, "i", "j"), "i", 2)
    np.testing.assert_array_equal(fetched(low * 2), GRID[:4] * 2)
    np.testing.assert_array_equal(fetched(high.sum(0)), GRID[4:].sum(0))
    moved = meshard.reshard(high, low.sharding)
    np.testing.assert_array_equal(fetched(low + moved), GRID[:4] + GRID[4:])


@in_worlds
def test_nothing_moves_between_devices():
    x = put(GRID, ("j", "i"))
    with meshard.debug.ledger() as log:
        concatenate_by_mesh_axis(split_by_mesh_axis(x, "i"), "i")
    assert len(log) == 0


# concatenating


def test_joining_in_another_order_joins_values_and_devices_so():
    def body() -> Any:
        low, high = split_by_mesh_axis(put(GRID, "i", "j"), "i", 2)
        joined = concatenate_by_mesh_axis([high, low], "i")
        devices = mesh().devices
        assert joined.sharding.mesh == Mesh(np.concatenate([devices[2:], devices[:2]]), ("i", "j"))
        for part in (low, high):
            shares(part, joined)
        return fetched(joined)

    np.testing.assert_array_equal(everywhere(body), np.concatenate([GRID[4:], GRID[:4]]))


def test_parts_of_different_lengths_are_joined():
    def body() -> Any:
        devices = np.array(meshard.devices(), object).reshape(4, 2)
        wide, narrow = Mesh(devices[:3], ("i", "j")), Mesh(devices[3:], ("i", "j"))
        x = meshard.device_put(GRID[:6], NamedSharding(wide, P("i", "j")))
        y = meshard.device_put(GRID[6:7], NamedSharding(narrow, P("i", "j")))
        joined = concatenate_by_mesh_axis((x, y), "i")
        assert joined.sharding == NamedSharding(mesh(), P("i", "j"), uneven="balanced")
        shares(x, joined)
        shares(y, joined)
        tall = meshard.device_put(GRID[:, :7], NamedSharding(narrow, P("i")))
        flat = meshard.device_put(GRID[:3, :7], NamedSharding(wide, P("i")))
        odd = concatenate_by_mesh_axis([flat, tall], "i")
        assert odd.sharding.uneven == ((0, 1, 2, 3, 11),)
        return fetched([joined, odd])

    joined, odd = everywhere(body)
    np.testing.assert_array_equal(joined, GRID[:7])
    np.testing.assert_array_equal(odd, np.concatenate([GRID[:3, :7], GRID[:, :7]]))


@in_worlds
def test_specs_that_say_the_same_may_be_joined():
    low, high = split_by_mesh_axis(put(GRID, "i"), "i", 2)
    longer = meshard.device_put(high, NamedSharding(high.sharding.mesh, P("i", None)))
    joined = concatenate_by_mesh_axis([low, longer], "i")
    assert joined.sharding.spec == P("i")
    np.testing.assert_array_equal(fetched(joined), GRID)


@dataclass(frozen=True)
class Case:
    """Arrays that lie on one mesh, an axis, and where to cut it."""

    lays: tuple[Lay, ...]
    shapes: tuple[tuple[int, ...], ...]
    axis: str
    cuts: Any


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = draw(shapes())
    first = draw(on_meshes(shape))
    lays, found = [first], [shape]
    for _ in range(draw(st.integers(0, 2))):
        shape = draw(shapes())
        other = draw(on_meshes(shape).filter(lambda lay: lay.grid == first.grid))
        lays.append(Lay(first.ids, first.grid, other.spec, other.uneven))
        found.append(shape)
    place = draw(st.integers(0, len(first.grid) - 1))
    size = first.grid[place]
    cut_lists = st.sets(st.integers(1, size - 1)).map(sorted) if size > 1 else st.just([])
    divisors = st.sampled_from([n for n in range(1, size + 1) if size % n == 0])
    cuts = draw(st.one_of(st.none(), divisors, cut_lists))
    return Case(tuple(lays), tuple(found), "ijk"[place], cuts)


def joined_shards(
    lay: Lay, value: np.ndarray, x: meshard.Array, axis: str, start: int, stop: int
) -> np.ndarray:
    """A part's value read from the definition: the shards of its positions, in mesh order."""
    size = dict(zip("ijk", lay.grid, strict=False))
    for dim, entry in enumerate(lay.spec):
        cuts = x.aval.layout.cuts[dim]
        names = entry or ()
        kept = []
        for n, place in enumerate(product(*[range(size[a]) for a in names])):
            if axis not in names or start <= place[names.index(axis)] < stop:
                kept += range(cuts[n], cuts[n + 1])
        value = value.take(np.array(kept, np.int64), axis=dim)
    return value


@calm
@given(cases())
def test_concatenating_inverts_splitting(case: Case):
    values = [numbered(shape) for shape in case.shapes]
    size = dict(zip("ijk", case.lays[0].grid, strict=False))[case.axis]

    def body() -> Any:
        arrays = [lay.put(v) for lay, v in zip(case.lays, values, strict=True)]
        tree = {"first": arrays[0], "more": tuple(arrays[1:])}
        parts = split_by_mesh_axis(tree, case.axis, case.cuts)
        start = 0
        found = []
        for part in parts:
            leaves = [part["first"], *part["more"]]
            stop = start + leaves[0].sharding.mesh.shape[case.axis]
            for leaf, x, lay, value in zip(leaves, arrays, case.lays, values, strict=True):
                shares(leaf, x)
                assert leaf.sharding.spec == x.sharding.spec
                wanted = joined_shards(lay, value, x, case.axis, start, stop)
                got = fetched(leaf)
                assert got.shape == wanted.shape
                assert got.tobytes() == wanted.tobytes()
                found.append(got)
            start = stop
        assert start == size
        joined = concatenate_by_mesh_axis(parts, case.axis)
        for leaf, x in zip([joined["first"], *joined["more"]], arrays, strict=True):
            assert leaf.sharding == x.sharding
            assert leaf.aval.layout == x.aval.layout
            shares(leaf, x)
            found.append(fetched(leaf))
        return found

    for got, value in zip(everywhere(body)[-len(values) :], values, strict=True):
        assert got.tobytes() == value.tobytes()


def test_all_bits_are_kept():
    floats = np.array([0.0, -0.0, np.nan, np.inf], np.float64)
    floats.view(np.uint64)[2] |= 0xBEEF

    def body() -> list[Any]:
        found = []
        for value in (floats, np.array([True, False, True, True])):
            x = put(value, "i")
            found.append(fetched(concatenate_by_mesh_axis(split_by_mesh_axis(x, "i"), "i")))
        return found

    bits, flags = everywhere(body)
    assert bits.tobytes() == floats.tobytes()
    assert flags.tolist() == [True, False, True, True]


# donating


@in_worlds
def test_donated_arrays_are_deleted_and_their_blocks_live_on():
    x, y = put(GRID, "i"), put(GRID, "j")
    had = {**blocks(x)}
    parts = split_by_mesh_axis([x, y], "i", 2, donate=True)
    assert x.is_deleted()
    assert y.is_deleted()
    for part in parts:
        for device, block in blocks(part[0]).items():
            assert block is had[device]
    with pytest.raises(RuntimeError, match="donated to split_by_mesh_axis"):
        x + 1
    with pytest.raises(RuntimeError, match="donated to split_by_mesh_axis"):
        split_by_mesh_axis(x, "i")
    joined = concatenate_by_mesh_axis(parts, "i", donate=True)
    assert all(leaf.is_deleted() for part in parts for leaf in part)
    np.testing.assert_array_equal(fetched(joined[0]), GRID)
    np.testing.assert_array_equal(fetched(joined[1]), GRID)
    with pytest.raises(RuntimeError, match="donated to concatenate_by_mesh_axis"):
        concatenate_by_mesh_axis(parts, "i")


@in_worlds
def test_nothing_is_deleted_when_it_is_refused():
    x, y = put(GRID, "i"), put(GRID, "i")
    y.delete()
    for arrays, axis in (([x, y], "i"), (x, "k"), ([x, GRID], "i")):
        with pytest.raises(MeshardError):
            split_by_mesh_axis(arrays, axis, donate=True)
    with pytest.raises(MeshardError):
        concatenate_by_mesh_axis([x, x], "i", donate=True)
    np.testing.assert_array_equal(fetched(x), GRID)


# refusals


def refusal(error: type[Exception], call: Callable[..., Any], *args: Any, **more: Any) -> str:
    """The message with which a call is refused, which is always a ValueError too."""
    with pytest.raises(error) as found:
        call(*args, **more)
    assert isinstance(found.value, ValueError)
    return str(found.value)


@in_worlds
def test_an_unknown_axis_is_refused():
    x = put(GRID, "i")
    for axis in ("k", 0, ["i"]):
        message = refusal(SpecError, split_by_mesh_axis, x, axis)
        assert f"mesh_axis {axis!r} is not found in mesh Mesh('i': 4, 'j': 2)" in message
        assert "its axes are ('i', 'j')" in message
        message = refusal(SpecError, concatenate_by_mesh_axis, [x], axis)
        assert f"concatenate_by_mesh_axis: mesh_axis {axis!r} is not found" in message


@in_worlds
@pytest.mark.parametrize("sections", [3, 0, -2, 5, 8])
def test_sections_must_divide_the_axis(sections: int):
    message = refusal(ArgumentError, split_by_mesh_axis, put(GRID, "i"), "i", sections)
    assert f"{sections} equal parts of axis 'i' of size 4; their number" in message
    assert "must be a positive divisor of 4. Give one, or a list of cuts" in message


@in_worlds
@pytest.mark.parametrize("cuts", [[0], [4], [2, 2], (3, 1), [-1], [1, 5], [0, 4]])
def test_cuts_must_rise_inside_the_axis(cuts: Any):
    message = refusal(ArgumentError, split_by_mesh_axis, put(GRID, "i"), "i", cuts)
    assert f"indices_or_sections {cuts!r} must be strictly increasing numbers" in message
    assert "between 0 and 4, both excluded" in message


@in_worlds
@pytest.mark.parametrize("given", [2.0, "2", True, [1.5], [True], {1, 2}, np.array([1, 2]), [[1]]])
def test_sections_are_whole_numbers(given: Any):
    message = refusal(ArgumentError, split_by_mesh_axis, put(GRID, "i"), "i", given)
    assert "must be None, an integer, or a list or tuple of integers" in message


@in_worlds
def test_leaves_must_be_arrays_with_named_shardings_on_one_mesh():
    x = put(GRID, "i")
    for bad in (GRID, 3.0, meshard.ShapeDtypeStruct((8,), "f4"), P("i")):
        message = refusal(ArgumentError, split_by_mesh_axis, {"w": [x, bad]}, "i")
        assert f"but arrays.w.1 is of type {type(bad).__name__}" in message
        message = refusal(ArgumentError, concatenate_by_mesh_axis, [{"w": x}, {"w": bad}], "i")
        assert f"but arrays[1].w is of type {type(bad).__name__}" in message
    alone = meshard.device_put(GRID, SingleDeviceSharding(meshard.devices()[0]))
    message = refusal(ShardingError, split_by_mesh_axis, alone, "i")
    assert "but arrays has SingleDeviceSharding" in message
    assert "Move it with meshard.reshard(x, NamedSharding(mesh, spec))" in message
    other = put(GRID, "i", on=mesh((2, 4)))
    message = refusal(ShardingError, split_by_mesh_axis, [x, other], "i")
    assert "one mesh, but arrays.0 is on Mesh('i': 4, 'j': 2) of devices [0, 1, 2, 3" in message
    assert "and arrays.1 on Mesh('i': 2, 'j': 4) of devices" in message
    message = refusal(ShardingError, concatenate_by_mesh_axis, [[x, other]], "i")
    assert "one mesh, but arrays[0].0 is on" in message


@in_worlds
def test_trees_to_join_are_given_in_a_list_that_may_be_empty():
    for none in ([], ()):
        assert concatenate_by_mesh_axis(none, "i") == []
    message = refusal(ArgumentError, concatenate_by_mesh_axis, put(GRID, "i"), "i")
    assert "arrays is of type Array; give a list or tuple of trees" in message
    low, high = split_by_mesh_axis(put(GRID, "i"), "i", 2)
    message = refusal(TreeError, concatenate_by_mesh_axis, [{"a": low}, {"b": high}], "i")
    assert "arrays[0] has" in message
    assert "arrays[1] has" in message


@in_worlds
def test_meshes_that_do_not_fit_are_refused():
    devices = np.array(meshard.devices(), object)

    def on(names: tuple[str, ...], where: np.ndarray) -> meshard.Array:
        return meshard.device_put(GRID, NamedSharding(Mesh(where, names), P("i")))

    low, join = on(("i", "j"), devices[:4].reshape(2, 2)), concatenate_by_mesh_axis
    message = refusal(ShardingError, join, [low, on(("j", "i"), devices[4:].reshape(2, 2))], "i")
    assert "arrays[0] has ('i', 'j') and that of arrays[1] has ('j', 'i')" in message
    message = refusal(ShardingError, join, [low, on(("i", "j"), devices[4:].reshape(1, 4))], "i")
    assert "'j' has size 2 in the mesh of arrays[0] and 4 in that of arrays[1]" in message
    message = refusal(ShardingError, join, [low, on(("i", "j"), devices[3:7].reshape(2, 2))], "i")
    assert f"{devices[3]!r} is in those of arrays[0] and arrays[1]" in message
    assert "no device in common" in refusal(ShardingError, join, [low, low], "i")


@in_worlds
def test_arrays_that_are_no_parts_of_one_are_refused():
    devices, join = np.array(meshard.devices(), object).reshape(4, 2), concatenate_by_mesh_axis
    halves = [Mesh(devices[:2], ("i", "j")), Mesh(devices[2:], ("i", "j"))]

    def on(half: int, value: Any, *spec: Any, **more: Any) -> dict[str, meshard.Array]:
        laid = NamedSharding(halves[half], P(*spec), **more)
        return {"w": meshard.device_put(value, laid)}

    low = on(0, GRID, "i", "j")
    message = refusal(ArgumentError, join, [low, on(1, GRID.astype("f4"), "i", "j")], "i")
    assert "the parts of w must have one dtype, but arrays[0] has float64" in message
    message = refusal(ShapeError, join, [low, on(1, GRID[None], None, "i", "j")], "i")
    assert "one rank, but arrays[0] has shape (8, 8) and arrays[1] has (1, 8, 8)" in message
    message = refusal(SpecError, join, [low, on(1, GRID, "j", "i")], "i")
    assert "one spec, but arrays[0] has P('i', 'j') and arrays[1] has P('j', 'i')" in message
    pinned = on(1, GRID, "i", "j", memory_kind="pinned_host")
    message = refusal(ShardingError, join, [low, pinned], "i")
    assert "arrays[0] is in 'device' and arrays[1] in 'pinned_host'" in message
    message = refusal(ShapeError, join, [low, on(1, GRID[:, :6], "i", "j")], "i")
    assert "dim 1 of w is not split over 'i' and must have one size" in message
    assert "size 8 in arrays[0] and 6 in arrays[1]" in message
    cut = on(1, GRID, "i", "j", uneven=(None, (0, 3, 8)))
    message = refusal(CoverageError, join, [low, cut], "i")
    assert "its cut points are (0, 4, 8) in arrays[0] and (0, 3, 8) in arrays[1]" in message
    # Along an axis that splits nothing all dims must be the same.
    message = refusal(ShapeError, join, [on(0, GRID, None, "j"), on(1, GRID[:4], None, "j")], "i")
    assert "dim 0 of w is not split over 'i'" in message


def test_shapes_of_parts_add_up_without_devices_in_common():
    def body() -> list[Any]:
        x = put(np.zeros((0, 4)), "i", "j")
        parts = split_by_mesh_axis(x, "i")
        assert math.prod(parts[0].shape) == 0
        joined = concatenate_by_mesh_axis(parts, "i")
        assert joined.sharding == x.sharding
        return [part.shape for part in parts]

    assert everywhere(body) == [(0, 4)] * 4
