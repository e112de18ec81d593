"""`meshard.config`, as users see it."""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, ConfigError
from meshard.runtime.simulated import simulate

NAMES = (
    "num_devices",
    "default_float",
    "default_device",
    "jit_compiler",
    "parallel_functions_output_gda",
    "check",
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {name: meshard.config.read(name) for name in NAMES[1:]}
    yield
    for name, value in before.items():
        meshard.config.update(name, value)


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_docstring_lists_every_setting():
    for name in NAMES:
        assert f"``{name}``" in meshard.config.__doc__
        assert f"``MESHARD_{name.upper()}``" in meshard.config.__doc__
    with pytest.raises(ConfigError, match=f"the settings are {', '.join(sorted(NAMES))}"):
        meshard.config.read("nothing")


def test_whether_jit_returns_global_device_arrays_is_true_or_false():
    name = "parallel_functions_output_gda"
    assert meshard.config.read(name) is False
    for given, expected in ((True, True), ("0", False), ("True", True), (False, False)):
        meshard.config.update(name, given)
        assert meshard.config.read(name) is expected
    for wrong in (1, None, "yes", 0.0):
        with pytest.raises(ArgumentError, match=f"{name} is True or False .*, not {wrong!r}"):
            meshard.config.update(name, wrong)


def test_how_processes_are_compared_is_one_of_three():
    assert meshard.config.read("check") == "hash"
    for given in ("off", "full", "hash"):
        meshard.config.update("check", given)
        assert meshard.config.read("check") == given
    for wrong in ("on", None, True, 1):
        with pytest.raises(ArgumentError, match=f"'off', 'hash' or 'full', not {wrong!r}"):
            meshard.config.update("check", wrong)
    done = run("import meshard", MESHARD_CHECK="always")
    assert done.returncode == 1
    assert "config: check is 'off', 'hash' or 'full', not 'always'." in done.stderr


def test_floats_that_nothing_else_decides_take_the_default():
    x = mnp.arange(4)
    assert (mnp.ones(2).dtype, (x / 3).dtype, mnp.asarray(1.5).dtype) == (np.float64,) * 3
    meshard.config.update("default_float", "float32")
    assert (mnp.ones(2).dtype, (x / 3).dtype, mnp.asarray(1.5).dtype) == (np.float32,) * 3
    assert mnp.ones(2, np.float64).dtype == np.float64
    assert mnp.asarray(np.float64(1)).dtype == np.float64
    meshard.config.update("default_float", "float64")
    assert (x / 3).dtype == np.float64  # what was decided before is decided anew


def test_new_arrays_lie_on_the_default_device():
    first, *_, last = meshard.local_devices()
    meshard.config.update("default_device", last)
    assert meshard.config.read("default_device") is last
    assert mnp.ones(3).device == last
    with meshard.default_device(first):
        assert mnp.ones(3).device == first
    for none in ("cpu", None):
        meshard.config.update("default_device", none)
        assert meshard.config.read("default_device") is None
        assert mnp.ones(3).device == first


@pytest.mark.parametrize("device", [3, "gpu", meshard.Device(99), object()])
def test_a_default_device_that_is_none_is_refused(device):
    with pytest.raises(ArgumentError, match="default_device is a device of this process, 'cpu' or"):
        meshard.config.update("default_device", device)
    assert meshard.config.read("default_device") is None


def test_the_default_device_of_one_process_is_not_that_of_another():
    def body() -> None:
        if meshard.process_index() == 1:
            meshard.config.update("default_device", meshard.local_devices()[1])
            assert mnp.ones(1).device == meshard.devices()[3]
        else:
            with pytest.raises(ArgumentError, match="is a device of this process"):
                meshard.config.update("default_device", meshard.devices()[3])
            assert mnp.ones(1).device == meshard.devices()[0]

    simulate(2, 2, body, deadline=5)


def test_the_number_of_devices_is_set_before_first_use():
    done = run(
        "import meshard; meshard.config.update('num_devices', 5); print(len(meshard.devices()))"
    )
    assert (done.stdout, done.stderr) == ("5\n", "")


def test_the_number_of_devices_comes_from_the_environment():
    done = run("import meshard; print(meshard.local_device_count())", MESHARD_NUM_DEVICES="3")
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_by_default_there_is_a_device_per_core():
    done = run("import meshard, os; print(meshard.device_count(), len(os.sched_getaffinity(0)))")
    found, cores = done.stdout.split()
    assert found == cores


def test_the_number_of_devices_does_not_change_later():
    done = run(
        "import meshard; meshard.numpy.ones(2); meshard.config.update('num_devices', 5)",
        MESHARD_NUM_DEVICES="2",
    )
    assert done.returncode == 1
    assert (
        "ConfigError: config: num_devices was set to 5 after the devices had been made (2 of"
        in (done.stderr)
    )


def test_a_wrong_environment_is_refused_at_import():
    done = run("import meshard", MESHARD_DEFAULT_FLOAT="float16")
    assert done.returncode == 1
    assert "default_float is 'float32' or 'float64', not 'float16'" in done.stderr
