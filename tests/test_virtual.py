import pytest

from meshard.errors import ArgumentError
from meshard.testing.virtual import virtual_devices


def test_virtual_devices_are_numbered_from_zero():
    devices = virtual_devices(5, devices_per_process=2)
    assert [d.id for d in devices] == [0, 1, 2, 3, 4]
    assert [d.process_index for d in devices] == [0, 0, 1, 1, 2]
    assert {d.platform for d in devices} == {d.device_kind for d in devices} == {"virtual"}
    assert {d.process_index for d in virtual_devices(5)} == {0}


@pytest.mark.parametrize("count", [0, -1])
def test_there_is_at_least_one(count):
    with pytest.raises(ArgumentError, match=rf"virtual_devices: count must be .* got {count} of"):
        virtual_devices(count)


def test_a_process_has_at_least_one():
    with pytest.raises(
        ArgumentError, match="devices_per_process must be an integer of at least 1, got 0"
    ):
        virtual_devices(4, devices_per_process=0)
