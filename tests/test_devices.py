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
        with pytest.raises(ArgumentError, match="there is no process 3; there are 3"):
            meshard.local_devices(3)

    simulate(3, 2, body, deadline=5)


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
    with pytest.raises(ConfigError, match="there is no backend 'gpu'; it is 'cpu'"):
        ask("gpu")
