"""Global arrays of what each process holds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard.errors import ArgumentError, CoverageError, DtypeError, ShardingError, TreeError
from meshard.runtime.simulated import simulate
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P, SingleDeviceSharding

from .worlds import alone, whole

make = meshard.make_array_from_process_local_data
GRID = np.arange(64.0).reshape(8, 8)


def on(shape: tuple[int, ...], *spec: Any, uneven: Any = None, order: Any = None) -> NamedSharding:
    devices = np.array(meshard.devices(), object)
    chosen = devices if order is None else devices[list(order)]
    mesh = Mesh(chosen.reshape(shape), tuple("ij"[: len(shape)]))
    return NamedSharding(mesh, P(*spec), uneven=uneven)


def mine(sharding: NamedSharding, value: np.ndarray) -> np.ndarray:
    """What this process's devices hold of a value, joined along each dim."""
    found = value
    for dim in range(value.ndim):
        index = sharding.addressable_devices_indices_map(value.shape).values()
        spans = sorted({i[dim].indices(value.shape[dim])[:2] for i in index})
        places = [p for a, b in spans for p in range(a, b)]
        found = found.take(places, axis=dim)
    return found


PROCESSES = pytest.mark.parametrize("processes", [1, 2, 4])
SPECS = [
    *((), ("i",), (None, "i"), ("i", "j"), ("j", "i"), (("i", "j"),), (("j", "i"), None)),
    (None, ("i", "j")),
]


@PROCESSES
@pytest.mark.parametrize("spec", SPECS)
def test_local_parts_become_one_array(processes, spec):
    def body() -> None:
        for grid in ((4, 2), (2, 4), (8, 1)):
            sharding = on(grid, *spec)
            local = mine(sharding, GRID)
            for shape in (None, (8, 8), [8, 8]):
                x = make(sharding, local, shape)
                assert (x.shape, x.sharding, x.dtype) == ((8, 8), sharding, np.dtype("f8"))
                np.testing.assert_array_equal(whole(x), GRID)
            # Whole dims may be given whole, whatever is held of them.
            np.testing.assert_array_equal(whole(make(sharding, GRID, (8, 8))), GRID)

    simulate(processes, 8 // processes, body, deadline=20)


@PROCESSES
def test_one_dim_may_be_given_whole_and_the_other_in_part(processes):
    def body() -> None:
        sharding = on((2, 4), "i", "j")
        rows = mine(on((2, 4), "i"), GRID)
        np.testing.assert_array_equal(whole(make(sharding, rows, (8, 8))), GRID)
        columns = mine(on((2, 4), None, "j"), GRID)
        np.testing.assert_array_equal(whole(make(sharding, columns, (8, 8))), GRID)

    simulate(processes, 8 // processes, body, deadline=20)


@PROCESSES
@pytest.mark.parametrize("uneven", ["balanced", "ceil", ((0, 1, 1, 2, 3, 5, 8, 9, 11),)])
def test_uneven_parts_join_with_and_without_the_shape(processes, uneven):
    value = np.arange(22).reshape(11, 2)

    def body() -> None:
        sharding = on((8,), "i", uneven=uneven)
        local = mine(sharding, value)
        for shape in (None, (11, 2)):
            x = make(sharding, local, shape)
            assert x.shape == (11, 2)
            np.testing.assert_array_equal(whole(x), value)

    simulate(processes, 8 // processes, body, deadline=20)


@settings(max_examples=25)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([(8,), (4, 2), (2, 4)]),
    st.permutations(range(8)),
    st.sampled_from(SPECS),
)
def test_what_each_process_holds_joins_to_the_value_or_is_refused_by_all(
    processes, grid, order, spec
):
    if "j" in str(spec) and len(grid) == 1:
        spec = ("i",)

    def body() -> str:
        sharding = on(grid, *spec, order=order)
        local = mine(sharding, GRID)
        np.testing.assert_array_equal(whole(make(sharding, local, (8, 8))), GRID)
        try:
            x = make(sharding, local)
        except CoverageError as error:
            return str(error)
        assert x.shape == (8, 8)
        np.testing.assert_array_equal(whole(x), GRID)
        return "made"

    (answer,) = set(simulate(processes, 8 // processes, body, deadline=20))
    assert answer == "made" or "pass global_shape=" in answer


def test_scattered_shards_are_joined_in_order():
    def body() -> np.ndarray:
        # Process 0 holds rows 0 and 2 of four, process 1 rows 1 and 3.
        sharding = on((4,), "i", order=[0, 2, 1, 3])
        local = np.array([[0, 0], [2, 2]]) + meshard.process_index()
        return whole(make(sharding, local))

    for found in simulate(2, 2, body, deadline=10):
        np.testing.assert_array_equal(found[:, 0], [0, 1, 2, 3])


def test_trees_have_trees_of_shardings_and_shapes():
    def body() -> None:
        sharding, other = on((8,), "i"), on((8,))
        local = mine(sharding, GRID)
        made = make({"a": sharding, "b": other}, {"a": [local, None], "b": (GRID, 3.0)})
        assert made["a"][1] is None
        assert [x.shape for x in (made["a"][0], *made["b"])] == [(8, 8), (8, 8), ()]
        made = make(sharding, [local, local], [(8, 8), None])
        assert [x.shape for x in made] == [(8, 8), (8, 8)]
        made = make(sharding, [local, local], (8, 8))
        np.testing.assert_array_equal(whole(made[1]), GRID)
        with sharding.mesh:
            assert make(P("i"), local).sharding == sharding
        with pytest.raises(TreeError, match="tree of shardings must be a prefix"):
            make({"a": sharding}, {"a": local, "b": local})
        with pytest.raises(TreeError, match="tree of global shapes must be a prefix"):
            make(sharding, {"a": local, "b": local}, {"a": (8, 8)})

    simulate(2, 4, body, deadline=10)


def test_later_changes_of_the_local_data_do_not_show():
    def body() -> None:
        local = np.ones((4, 2))
        x = make(on((8,), "i"), local)
        local[:] = 7
        assert whole(x).tolist() == [[1, 1]] * 8

    simulate(2, 4, body, deadline=10)


def refusals(body: Any, processes: int = 2, devices: int = 4) -> set[str]:
    """Run a body that every process refuses; return what the processes say."""

    def caught() -> str:
        with pytest.raises(ShardingError) as error:
            body()
        return str(error.value)

    return set(simulate(processes, devices, caught, deadline=10))


def test_data_that_fills_neither_the_dim_nor_the_shards_is_refused():
    said = refusals(lambda: make(on((8,), "i"), np.ones((5, 2)), (8, 2)))
    assert len(said) == 2
    for text in said:
        assert "has shape (5, 2). Along dim 0 it must have all 8 elements" in text
        assert "or the 4 of this process's shards" in text
    assert any("0:1, 1:2, 2:3, 3:4; it has 5" in text for text in said)


def test_a_gap_in_the_parts_is_refused_by_all_processes():
    # Process 1 has one row less than its devices hold.
    (said,) = refusals(lambda: make(on((8,), "i"), np.ones((4 - meshard.process_index(), 2))))
    assert "divisible by 8, but it is equal to 7" in said
    (said,) = refusals(lambda: make(on((8,), "i"), np.ones((5 - 2 * meshard.process_index(), 2))))
    assert "join to the global shape (8, 2), of which process 0 holds (4, 2)" in said
    assert "its data has shape (5, 2)" in said


def test_parts_that_an_uneven_sharding_cuts_otherwise_are_refused_by_all():
    rows = (3, 4)
    (said,) = refusals(
        lambda: make(on((8,), "i", uneven="balanced"), np.ones((rows[meshard.process_index()], 2)))
    )
    assert "join to the global shape (7, 2), of which process 0 holds (4, 2)" in said
    assert "its data has shape (3, 2). Pass global_shape=" in said


def test_replicas_of_other_sizes_are_refused_by_all():
    (said,) = refusals(lambda: make(on((8,)), np.ones(2 + meshard.process_index())))
    assert "processes 0 and 1 hold the same shards of dim 0, but their data has 2 and 3" in said


def test_parts_of_other_ranks_or_dtypes_are_refused_by_all():
    (said,) = refusals(lambda: make(on((8,), "i"), np.ones((4,) * (1 + meshard.process_index()))))
    assert "differ in rank or dtype: float64(4,) on process 0, float64(4, 4) on process 1" in said
    kinds = ("f4", "f8")
    (said,) = refusals(lambda: make(on((8,), "i"), np.ones(4, kinds[meshard.process_index()])))
    assert "float32(4,) on process 0, float64(4,) on process 1" in said


def test_shards_that_are_shared_in_part_need_the_global_shape():
    # On a mesh of 3 x 2, process 0 holds columns 0 and 1, process 1 column 0 twice.
    (said,) = refusals(
        lambda: make(on((3, 2), "i", "j", order=[0, 1, 2, 3, 4, 5]), np.ones((2, 2))), 2, 3
    )
    assert "along dim 0 processes share some of their shards but not all" in said


def test_overlapping_boxes_must_be_given_whole():
    def body() -> None:
        a, b = meshard.devices()
        boxes = BoxSharding((6,), {a: (slice(0, 4),), b: (slice(2, 6),)})
        x = make(boxes, np.arange(6.0), (6,))
        np.testing.assert_array_equal(x, np.arange(6.0))
        with pytest.raises(CoverageError, match=r"must have all 6 elements .* or the 8"):
            make(boxes, np.arange(7.0), (6,))
        with pytest.raises(CoverageError, match=r"overlap along dim 0: 0:4, 2:6"):
            make(boxes, np.arange(8.0), (6,))
        np.testing.assert_array_equal(make(boxes, np.arange(6.0)), np.arange(6.0))

    alone(body, 2)


def test_boxes_over_processes_need_the_global_shape():
    def body() -> np.ndarray:
        a, b = meshard.devices()
        boxes = BoxSharding((5,), {a: (slice(0, 3),), b: (slice(3, 5),)})
        local = [np.arange(3), np.arange(3, 5)][meshard.process_index()]
        with pytest.raises(CoverageError, match="sharding without a mesh, pass global_shape="):
            make(boxes, local)
        return whole(make(boxes, local, (5,)))

    for found in simulate(2, 1, body, deadline=10):
        np.testing.assert_array_equal(found, np.arange(5))


def test_a_process_without_devices_says_the_shape():
    def body() -> tuple[int, ...]:
        there = SingleDeviceSharding(meshard.devices()[-1])
        if meshard.process_index() == 0:
            with pytest.raises(CoverageError, match=r"process 0 has no device of .*global_shape="):
                make(there, np.ones(3))
            return make(there, np.ones(0), (3,)).shape
        return make(there, np.ones(3)).shape

    assert simulate(2, 1, body, deadline=10) == [(3,), (3,)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda s: (s, np.ones(8), (8, 1)), CoverageError, r"rank 1, and the global .* rank 2"),
        (lambda s: (s, np.ones(8), (16,)), CoverageError, "must have all 16 .* or the 16"),
        (lambda s: (None, np.ones(8)), ArgumentError, "a sharding is needed"),
        (lambda s: (P("i"), np.ones(8)), ShardingError, "mesh"),
        (lambda s: (s, np.array(["a"])), DtypeError, "not a numeric dtype"),
        (lambda s: (s, np.ones(6)), ShardingError, "divisible by 8"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    def body() -> None:
        with pytest.raises(error, match=message):
            make(*arguments(on((8,), "i")))

    alone(body)
