import asyncio
import copy
import pickle
import threading
from contextvars import copy_context

import numpy as np
import pytest

from meshard.algebra.device import Device
from meshard.algebra.mesh import (
    AxisType,
    Mesh,
    ambient_mesh,
    entered_mesh,
    make_mesh,
    set_mesh,
)
from meshard.algebra.world import World, entered
from meshard.errors import ArgumentError, ShardingError
from meshard.testing.virtual import virtual_devices

DEVICES = virtual_devices(8)
MESH = Mesh(np.array(DEVICES).reshape(4, 2), ("x", "y"))


def grid(owners: object) -> Mesh:
    """A mesh whose devices belong to the given processes."""
    process = np.array(owners)
    devices = np.array([Device(i, int(p)) for i, p in enumerate(process.flat)], object)
    return Mesh(devices.reshape(process.shape), ("x", "y", "z")[: process.ndim])


def test_a_mesh_says_its_axes_and_devices():
    assert MESH.axis_names == ("x", "y")
    assert MESH.axis_sizes == (4, 2)
    assert dict(MESH.shape) == {"x": 4, "y": 2}
    assert MESH.shape_tuple == (("x", 4), ("y", 2))
    assert MESH.size == 8
    assert MESH.flat_devices == tuple(DEVICES)
    assert MESH.devices.shape == (4, 2)
    assert MESH.device_ids.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert repr(MESH) == "Mesh('x': 4, 'y': 2)"
    assert not MESH.empty


def test_a_mesh_is_made_of_lists_and_one_name():
    assert Mesh(DEVICES, "x") == Mesh(np.array(DEVICES), ("x",)) == Mesh(tuple(DEVICES), ["x"])
    assert Mesh([DEVICES[:2], DEVICES[2:4]], ("x", "y")).axis_sizes == (2, 2)


def test_the_devices_cannot_be_written():
    given = np.array(DEVICES)
    mesh = Mesh(given, "x")
    given[0] = given[1]
    assert mesh.devices[0] == DEVICES[0]
    with pytest.raises(ValueError, match="read-only"):
        mesh.devices[0] = DEVICES[1]


def test_a_mesh_without_axes_holds_one_device():
    mesh = Mesh(np.array(DEVICES[0]), ())
    assert (mesh.size, mesh.empty, dict(mesh.shape)) == (1, False, {})


def test_a_mesh_without_devices_is_empty():
    assert Mesh(np.empty((0,), object), "x").empty


def test_equality_is_by_devices_order_and_names():
    assert Mesh(DEVICES, "x") == Mesh(DEVICES, "x")
    assert hash(Mesh(DEVICES, "x")) == hash(Mesh(DEVICES, "x"))
    for other in (
        Mesh(DEVICES, "y"),
        Mesh(DEVICES[::-1], "x"),
        Mesh([DEVICES], ("x", "y")),
        Mesh(DEVICES[:4], "x"),
        DEVICES,
    ):
        assert Mesh(DEVICES, "x") != other


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_a_copy_is_equal(again):
    mesh = Mesh(np.array(DEVICES[::-1]).reshape(2, 4), ("a", "b"), (AxisType.Auto, AxisType.Manual))
    assert again(mesh) == mesh
    assert hash(again(mesh)) == hash(mesh)
    assert again(mesh).axis_types == mesh.axis_types
    assert not again(mesh).devices.flags.writeable


def test_axis_types_are_kept():
    assert MESH.axis_types == (AxisType.Auto,) * 2
    assert Mesh([DEVICES], ("x", "y"), AxisType.Manual).axis_types == (AxisType.Manual,) * 2
    assert Mesh(DEVICES, "x", [AxisType.Explicit]).axis_types == (AxisType.Explicit,)
    assert repr(AxisType.Auto) == "Auto"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((DEVICES, ("x", "y")), r"devices has 1 dims \(8,\), but axis_names \('x', 'y'\) names 2"),
        (([DEVICES], ("x", "x")), r"the axis name 'x' appears twice in \('x', 'x'\)"),
        ((DEVICES, (None,)), r"must hold axis names, which are strings, but \(None,\) holds None"),
        ((DEVICES, (3,)), r"must hold axis names, which are strings, but \(3,\) holds 3"),
        (([0, 1], "x"), "devices holds 0 of type int, which is not a Device"),
        (
            ([DEVICES[:1], DEVICES[:2]], "x"),
            r"devices holds \[.*\] of type list, which is not a Device",
        ),
        (([*DEVICES, DEVICES[3]], "x"), r"VirtualDevice\(id=3\) appears twice among the devices"),
        (([Device(0, 0), Device(0, 1)], "x"), "appears twice among the devices"),
        ((DEVICES, "x", ("Auto",)), "axis_types holds 'Auto', which is not an AxisType"),
        (
            (DEVICES, "x", (AxisType.Auto, AxisType.Auto)),
            r"axis_types has 2 entries, but there are 1 axes \('x',\)",
        ),
    ],
)
def test_a_mesh_that_means_nothing_is_refused(arguments, message):
    with pytest.raises((ShardingError, ArgumentError), match=message) as refused:
        Mesh(*arguments)
    assert isinstance(refused.value, ValueError)


def test_processes_and_local_devices():
    mesh = grid([[0, 0], [1, 1]])
    assert mesh.is_multi_process
    assert mesh.processes == (0, 1)
    assert not MESH.is_multi_process
    with entered(World(1, 2, mesh.flat_devices)):
        assert [d.id for d in mesh.local_devices] == [2, 3]


@pytest.mark.parametrize(
    ("owners", "ids"),
    [
        ([0, 0, 1, 1], [2, 3]),
        ([[0, 1], [0, 1]], [[1], [3]]),
        ([[0, 0, 0], [0, 1, 1], [0, 1, 1]], [[4, 5], [7, 8]]),
        ([[[1, 0], [0, 0]]], [[[0]]]),
        ([1, 1], [0, 1]),
    ],
)
def test_the_local_mesh_is_the_block_of_local_devices(owners, ids):
    mesh = grid(owners)
    with entered(World(1, 2, mesh.flat_devices)):
        local = mesh.local_mesh
    assert local.device_ids.tolist() == ids
    assert local.axis_names == mesh.axis_names
    assert (local is mesh) == (local.size == mesh.size)


@pytest.mark.parametrize(
    "owners", [[1, 0, 1], [[0, 1], [1, 0]], [[0, 1], [1, 1]], [[1, 0, 1], [1, 0, 1]]]
)
def test_local_devices_that_are_no_block_have_no_mesh(owners):
    mesh = grid(owners)
    with (
        entered(World(1, 2, mesh.flat_devices)),
        pytest.raises(
            ShardingError, match=r"of process 1 do not form a contiguous block of Mesh\("
        ),
    ):
        mesh.local_mesh


def test_a_process_without_devices_has_no_local_mesh():
    mesh = grid([0, 0])
    with (
        entered(World(1, 2, mesh.flat_devices)),
        pytest.raises(ShardingError, match="has no devices of process 1"),
    ):
        mesh.local_mesh


def test_with_mesh_nests():
    other = Mesh(DEVICES, "x")
    assert ambient_mesh() is None
    with MESH as got:
        assert got is MESH
        with other:
            with MESH:
                assert ambient_mesh() is MESH
            assert ambient_mesh() is other
        assert ambient_mesh() is MESH
        with entered_mesh(None):
            assert ambient_mesh() is None
        assert ambient_mesh() is MESH
    assert ambient_mesh() is None


def test_with_mesh_is_left_when_an_error_passes():
    with pytest.raises(KeyError), MESH:
        raise KeyError
    assert ambient_mesh() is None


def test_a_mesh_decorates_functions():
    @MESH
    def inside() -> Mesh | None:
        return ambient_mesh()

    assert inside() is inside() is MESH
    assert ambient_mesh() is None


def test_set_mesh_as_context_manager():
    other = Mesh(DEVICES, "x")
    with set_mesh(MESH) as got:
        assert got is ambient_mesh() is MESH
        with set_mesh(other):
            assert ambient_mesh() is other
        assert ambient_mesh() is MESH
    assert ambient_mesh() is None


def test_set_mesh_as_statement():
    def program() -> Mesh | None:
        set_mesh(MESH)
        with Mesh(DEVICES, "x"):
            set_mesh(Mesh(DEVICES, "y"))
        return ambient_mesh()

    assert copy_context().run(program) is MESH
    assert ambient_mesh() is None


def test_set_mesh_takes_a_mesh_only():
    with pytest.raises(ArgumentError, match="set_mesh: mesh must be a Mesh, got 'x' of type str"):
        set_mesh("x")


def test_another_thread_has_its_own_ambient_mesh():
    seen: list[Mesh | None] = []
    with MESH:
        thread = threading.Thread(target=lambda: seen.append(ambient_mesh()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_threads_enter_one_mesh_in_any_order():
    """Simulated processes do this: one mesh, entered and left crosswise, in copied contexts."""
    entered_first, entered_second, left_first = (threading.Event() for _ in range(3))
    errors: list[BaseException] = []
    outer = Mesh(DEVICES, "x")

    def first() -> None:
        with MESH:
            entered_first.set()
            entered_second.wait(10)
        assert ambient_mesh() is outer
        left_first.set()

    def second() -> None:
        entered_first.wait(10)
        with MESH:
            entered_second.set()
            left_first.wait(10)
            assert ambient_mesh() is MESH
        assert ambient_mesh() is outer

    def run(body: object) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    with outer:
        threads = [
            threading.Thread(target=copy_context().run, args=(run, body))
            for body in (first, second)
        ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_tasks_enter_one_mesh_in_any_order():
    async def body(first: float, then: float) -> None:
        await asyncio.sleep(first)
        with MESH:
            await asyncio.sleep(then)
            assert ambient_mesh() is MESH
        assert ambient_mesh() is None

    async def both() -> None:
        await asyncio.gather(body(0, 0.01), body(0.005, 0.01))

    asyncio.run(both())


def test_make_mesh_takes_the_first_devices():
    mesh = make_mesh((2, 3), ("x", "y"), devices=DEVICES)
    assert mesh == Mesh(np.array(DEVICES[:6]).reshape(2, 3), ("x", "y"))
    assert make_mesh((2,), "x", AxisType.Auto, devices=DEVICES).axis_types == (AxisType.Auto,)
    assert make_mesh((), (), devices=DEVICES).size == 1
    with entered(World(0, 1, DEVICES[3:])):
        assert make_mesh((1, 4), ("x", "y")).device_ids.tolist() == [[3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("sizes", "names", "message"),
    [
        ((2,), ("x", "y"), r"axis_shapes \(2,\) has 1 entries, axis_names \('x', 'y'\) has 2"),
        ((0,), ("x",), r"axis_shapes \(0,\) must be integers of at least 1"),
        (
            (-1, 8),
            ("x", "y"),
            r"axis_shapes: \(-1, 8\) is not a shape",
        ),
        (8, ("x",), r"axis_shapes is 8; give a tuple, with one size per axis, such as \(8,\)"),
        ("8", ("x",), "axis_shapes: '8' is not a shape"),
        ((3, 3), ("x", "y"), r"\(3, 3\) needs 9 devices, but there are 8.*MESHARD_NUM_DEVICES=9"),
        ((2, 2), ("x", "x"), "'x' appears twice"),
        ((2,), ("x",), "axis_types has 2 entries"),
    ],
)
def test_make_mesh_refuses(sizes, names, message):
    types = (AxisType.Auto,) * 2 if message.startswith("axis_types") else None
    with pytest.raises(ValueError, match=message):
        make_mesh(sizes, names, types, devices=DEVICES)
