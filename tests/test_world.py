import copy
import pickle
import threading

import pytest

from meshard.algebra import world as module
from meshard.algebra.device import Device
from meshard.algebra.world import (
    NUM_DEVICES,
    World,
    count_processes,
    current,
    entered,
    install_world_factory,
    num_devices,
)
from meshard.errors import ArgumentError, ConfigError
from meshard.runtime.settings import DEFAULT_FLOAT
from meshard.settings import SETTINGS, config, set_from


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has done nothing yet."""
    for setting in SETTINGS.values():
        monkeypatch.setattr(setting, "value", setting.usual)
    monkeypatch.setattr(module, "_process", module._Process())


def some_world(devices: int = 3) -> World:
    return World(0, 1, [Device(i) for i in range(devices)])


def test_a_device_says_what_it_is():
    device = Device(3, 1, "cpu", "AMD EPYC")
    assert (device.id, device.process_index, device.platform, device.device_kind) == (
        3,
        1,
        "cpu",
        "AMD EPYC",
    )
    assert repr(device) == "CpuDevice(id=3)"
    assert str(device) == "cpu:3"
    assert repr(Device(4, platform="virtual")) == "VirtualDevice(id=4)"


def test_devices_compare_by_id_process_and_platform():
    assert Device(3, 1) == Device(3, 1, device_kind="other")
    assert hash(Device(3, 1)) == hash(Device(3, 1, device_kind="other"))
    others = [Device(4, 1), Device(3, 0), Device(3, 1, "virtual"), 3]
    assert all(Device(3, 1) != other for other in others)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))]
)
def test_a_copied_device_is_equal_and_keeps_its_kind(again):
    device = Device(3, 1, "virtual", "chip")
    assert again(device) == device
    assert again(device).device_kind == "chip"


def test_a_world_knows_its_own_devices():
    devices = [Device(i, i // 2) for i in range(6)]
    world = World(1, 3, devices)
    assert world.devices == tuple(devices)
    assert world.local_devices == (devices[2], devices[3])


def test_the_current_world_is_the_entered_one():
    outer, inner = some_world(), some_world()
    with entered(outer) as got:
        assert got is outer
        with entered(inner):
            assert current() is inner
        assert current() is outer


def test_the_entered_world_is_left_when_an_error_passes():
    outer = some_world()
    with entered(outer):
        with pytest.raises(KeyError), entered(some_world()):
            raise KeyError
        assert current() is outer


def test_the_default_world_is_made_once(fresh):
    made = []

    def factory() -> World:
        made.append(some_world())
        return made[-1]

    install_world_factory(factory)
    assert current() is current() is made[0]
    assert len(made) == 1


def test_threads_that_come_first_together_get_one_world(fresh):
    together = threading.Barrier(4, timeout=10)
    slow = threading.Event()
    made, seen = [], []

    def factory() -> World:
        slow.wait(0.2)  # long enough for the others to come to the same place
        made.append(some_world())
        return made[-1]

    def first_use() -> None:
        together.wait()
        seen.append(current())

    install_world_factory(factory)
    threads = [threading.Thread(target=first_use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert seen == made * 4


def test_processes_are_counted_before_there_is_a_world(fresh):
    assert count_processes() == 1
    install_world_factory(some_world, lambda: 3)
    assert count_processes() == 3
    config.update("num_devices", 8)  # no world has been made
    with entered(some_world()):
        assert count_processes() == current().process_count
    current()
    assert count_processes() == current().process_count


def test_without_a_runtime_there_is_no_world(fresh):
    with pytest.raises(ConfigError, match="no runtime that can make devices has been imported"):
        current()


def test_settings_have_defaults(fresh, monkeypatch):
    assert DEFAULT_FLOAT.value == "float64"
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda who: {0, 3, 5}, raising=False)
    assert num_devices() == 3
    monkeypatch.delattr(module.os, "sched_getaffinity")
    monkeypatch.setattr(module.os, "cpu_count", lambda: 5)
    assert num_devices() == 5
    monkeypatch.setattr(module.os, "cpu_count", lambda: None)
    assert num_devices() == 1


def test_settings_are_read_from_the_environment(fresh):
    set_from({"MESHARD_NUM_DEVICES": "6", "MESHARD_DEFAULT_FLOAT": "float32"})
    assert (num_devices(), DEFAULT_FLOAT.value) == (6, "float32")
    set_from({"MESHARD_NUM_DEVICES": ""})
    assert (NUM_DEVICES.value, DEFAULT_FLOAT.value) == (None, "float64")
    with pytest.raises(
        ConfigError, match="MESHARD_NUM_DEVICES is set to 'many': num_devices must be an"
    ):
        set_from({"MESHARD_DEFAULT_FLOAT": "float32", "MESHARD_NUM_DEVICES": "many"})
    assert DEFAULT_FLOAT.value == "float64"  # a wrong environment sets nothing


def test_an_update_changes_the_value_and_the_epoch(fresh):
    before = config.epoch
    config.update("default_float", "float32")
    config.update("num_devices", 4)
    assert (DEFAULT_FLOAT.value, num_devices()) == ("float32", 4)
    assert config.epoch == before + 2
    config.update("num_devices", None)
    assert NUM_DEVICES.value is None


@pytest.mark.parametrize("value", [0, -1, 65_537, 10**30, 2.5, "x", True, ""])
def test_a_number_of_devices_that_is_none_is_refused(fresh, value):
    with pytest.raises(ArgumentError, match=rf"from 1 to 65536, not {value!r}\."):
        config.update("num_devices", value)


def test_another_float_is_refused(fresh):
    with pytest.raises(ArgumentError, match="must be 'float32' or 'float64', not 'float16'"):
        config.update("default_float", "float16")


def test_an_unknown_setting_is_refused_with_the_known_ones(fresh):
    with pytest.raises(
        ConfigError, match=r"no setting 'devices'\. .* default_float, .*num_devices"
    ):
        config.update("devices", 3)


def test_a_setting_is_read_by_name(fresh):
    config.update("num_devices", 4)
    assert config.read("num_devices") == 4
    assert config.read("default_float") == "float64"
    with pytest.raises(
        ConfigError, match=r"no setting 'devices'\. .* default_float, .*num_devices"
    ):
        config.read("devices")


def test_the_number_of_devices_comes_before_first_use(fresh):
    install_world_factory(some_world)
    config.update("num_devices", 3)
    current()
    config.update("num_devices", 3)
    epoch = config.epoch
    with pytest.raises(
        ConfigError, match=r"set to 8 after .* \(3 of them\).*MESHARD_NUM_DEVICES=8"
    ):
        config.update("num_devices", 8)
    assert (num_devices(), config.epoch) == (3, epoch)
