"""The devices and processes of a world."""

import pytest

import meshard
from meshard.errors import ArgumentError, ConfigError
from meshard.runtime.simulated import simulate

from .worlds import alone


def test_alone_all_devices_are_local():
    def body() -> None:
        found = meshard.devices()
        assert [d.id for d in found] == list(range(8))
        assert (
            found == meshard.local_devices() == meshard.local_devices(0) == meshard.devices("cpu")
        )
        assert (meshard.device_count(), meshard.local_device_count()) == (8, 8)
        assert (meshard.process_index(), meshard.process_count()) == (0, 1)
        found.clear()
        assert len(meshard.devices()) == 8

    alone(body)


def test_devices_are_grouped_by_process():
    def body() -> None:
        me = meshard.process_index()
        assert [d.process_index for d in meshard.devices()] == [0, 0, 1, 1, 2, 2]
        assert [d.id for d in meshard.local_devices()] == [2 * me, 2 * me + 1]
        for p in range(3):
            assert meshard.local_devices(process_index=p) == meshard.devices()[2 * p : 2 * p + 2]
        assert (meshard.device_count(), meshard.local_device_count()) == (6, 2)
        assert meshard.process_count() == 3
        with pytest.raises(
            ArgumentError, match="there is no process 3; the numbers of processes are 0 to 2"
        ):
            meshard.local_devices(3)

    simulate(3, 2, body, deadline=5)


def test_meshes_keep_neighbours_on_one_host():
    def body() -> None:
        on = {d: (0, 1, 0, 2)[d.process_index] for d in meshard.devices()}
        assert [d.id for d in meshard.devices()] == list(range(8))  # grouped by process
        ids = meshard.make_mesh((4, 2), ("i", "j")).device_ids.tolist()
        assert ids == [[0, 1], [4, 5], [2, 3], [6, 7]]
        rows = meshard.make_mesh((2, 4), ("i", "j")).devices
        assert [on[d] for d in rows[0]] == [0, 0, 0, 0]
        assert [on[d] for d in rows[1]] == [1, 1, 2, 2]
        assert meshard.make_mesh((4,), "i").flat_devices == tuple(rows[0])
        # Devices that were asked for stay in their order.
        given = meshard.make_mesh((8,), "i", devices=meshard.devices())
        assert given.flat_devices == tuple(meshard.devices())
        grid = meshard.experimental.mesh_utils.create_device_mesh((2, 4))
        assert grid.tolist() == rows.tolist()

    simulate(4, 2, body, deadline=5, hosts=(0, 1, 0, 2))


def test_devices_say_what_they_are():
    def body() -> None:
        for device in meshard.devices():
            assert device.process_index == device.id // 2
            assert (device.platform, device.device_kind) == ("cpu", "cpu")
            assert str(device) == f"cpu:{device.id}"
            assert repr(device) == f"CpuDevice(id={device.id})"

    simulate(2, 2, body, deadline=5)


@pytest.mark.parametrize(
    "ask",
    [
        meshard.devices,
        lambda b: meshard.local_devices(backend=b),
        meshard.device_count,
        meshard.local_device_count,
        meshard.process_index,
        meshard.process_count,
    ],
)
def test_there_are_cpus_only(ask):
    assert ask("cpu") == ask(None)
    with pytest.raises(ConfigError, match="there is no backend 'gpu'; use 'cpu'"):
        ask("gpu")
