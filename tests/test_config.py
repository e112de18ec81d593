"""`meshard.config`, as users see it."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, ConfigError
from meshard.runtime.simulated import simulate
from meshard.settings import SETTINGS, from_environment

UPDATED = [name for name, setting in SETTINGS.items() if not setting.at_start]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {name: meshard.config.read(name) for name in UPDATED if name != "num_devices"}
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


def test_every_setting_is_told_wherever_settings_are():
    for name, setting in SETTINGS.items():
        assert f"``{name}``" in meshard.config.__doc__ or setting.at_start
        assert f"``{setting.variable}``" in meshard.config.__doc__
        meshard.config.read(name)
    known = re.escape(f"the settings are {', '.join(sorted(SETTINGS))}.")
    for use in (meshard.config.read, lambda name: meshard.config.update(name, 1)):
        with pytest.raises(ConfigError, match=f"no setting 'nothing'; {known}"):
            use("nothing")
    with pytest.raises(ConfigError, match="Did you mean 'num_devices'"):
        meshard.config.read("num_device")


def test_what_only_the_environment_sets_is_not_updated():
    for name in set(SETTINGS) - set(UPDATED):
        with pytest.raises(ConfigError, match=f"{name} is read when the program starts; set it by"):
            meshard.config.update(name, SETTINGS[name].usual)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_refuses_what_it_cannot_be(setting):
    """No setting takes these but those whose values are names; each says what it may be."""
    wrong = ["abc", "-1", "0", "nan", "inf", "1e999", "[", "{", "\ud800", "9" * 5000]
    numbers = {name: ["0"] for name in ("parallel_functions_output_gda", "spares", "writeable")}
    names = dict.fromkeys(("job", "join"), wrong[:6])
    expected = {"host": wrong, **names, **numbers}.get(setting.name, [])
    for text in wrong:
        if text in expected:
            from_environment({setting.variable: text})
            continue
        law = re.escape(f"The variable {setting.variable} is set to {text!r}: {setting.name} ")
        with pytest.raises(ConfigError, match=law):
            from_environment({setting.variable: text})
    for given in ([], {}, object(), 1e400, b"x", np.zeros(3)):
        if setting.name == "default_device":  # refused where the devices are known
            continue
        with pytest.raises(ArgumentError, match=r"^config: "):
            setting.checked(given)


def test_misspelt_variables_are_refused_and_others_warned_of(recwarn):
    for wrong, meant in (
        ("MESHARD_TIMOUT", "MESHARD_TIMEOUT"),
        ("MESHARD_NUM_DEVICE", "MESHARD_NUM_DEVICES"),
        ("MESHARD_timeout", "MESHARD_TIMEOUT"),
        ("MESHARD_JIT_COMPILERS", "MESHARD_JIT_COMPILER"),
    ):
        with pytest.raises(ConfigError, match=f"{wrong}, which is not .* Did you mean {meant}\\?"):
            from_environment({wrong: ""})
    with pytest.warns(UserWarning, match="MESHARD_SERVICE_PORT, which is not a setting of meshard"):
        from_environment({"MESHARD_SERVICE_PORT": "80"})
    from_environment(dict.fromkeys(["MESHARD_TEST_ANYTHING", "MESHARD_RANK", "MESHER"], "x"))
    assert not recwarn.list


def test_whether_jit_returns_global_device_arrays_is_true_or_false():
    name = "parallel_functions_output_gda"
    assert meshard.config.read(name) is False
    for given, expected in ((True, True), ("0", False), ("True", True), (False, False)):
        meshard.config.update(name, given)
        assert meshard.config.read(name) is expected
    for wrong in (1, None, "yes", 0.0):
        with pytest.raises(ArgumentError, match=f"{name} must be True or False .*, not {wrong!r}"):
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
    assert (
        "ConfigError: The variable MESHARD_CHECK is set to 'always': check must be 'off', 'hash' "
        "or 'full', not 'always'."
    ) in done.stderr


def test_what_was_inferred_before_a_change_is_inferred_anew():
    x = mnp.arange(4)
    assert meshard.eval_shape(mnp.sin, x).dtype == np.float64
    meshard.config.update("default_float", "float32")
    assert meshard.eval_shape(mnp.sin, x).dtype == np.float32


def test_the_environment_is_read_once_and_before_anything_else():
    """A wrong variable of any floor is refused by the import alone; later changes mean nothing."""
    for variable in (setting.variable for setting in SETTINGS.values()):
        done = run("import meshard.sharding", **{variable: "[" if variable[8:] != "HOST" else " "})
        assert f"ConfigError: The variable {variable} is set to" in done.stderr
    done = run("import meshard.sharding", MESHARD_TIMOUT="3")
    assert "Did you mean MESHARD_TIMEOUT?" in done.stderr
    script = (
        "import os, meshard; os.environ['MESHARD_CHECK'] = 'no'; print(meshard.config.read(%r))"
    )
    done = run(script % "check", MESHARD_CHECK="full")
    assert (done.stdout, done.stderr) == ("full\n", "")


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
    meshard.config.update("default_device", str(last))
    assert meshard.config.read("default_device") is last
    for none in ("cpu", None):
        meshard.config.update("default_device", none)
        assert meshard.config.read("default_device") is None
        assert mnp.ones(3).device == first


@pytest.mark.parametrize("device", [3, "gpu", "cpu:99", meshard.Device(99), object(), np.ones(2)])
def test_a_default_device_that_is_none_is_refused(device):
    with pytest.raises(ArgumentError, match="default_device must be a device of this process"):
        meshard.config.update("default_device", device)
    assert meshard.config.read("default_device") is None


def test_the_default_device_of_one_process_is_not_that_of_another():
    chosen = threading.Event()

    def body() -> None:
        if meshard.process_index() == 1:
            meshard.config.update("default_device", meshard.local_devices()[1])
            chosen.set()
            assert mnp.ones(1).device == meshard.devices()[3]
        else:
            assert chosen.wait(30)
            assert meshard.config.read("default_device") is None
            with pytest.raises(ArgumentError, match="must be a device of this process"):
                meshard.config.update("default_device", meshard.devices()[3])
            assert mnp.ones(1).device == meshard.devices()[0]

    simulate(2, 2, body, deadline=30)


def test_the_default_device_comes_from_the_environment():
    script = "import meshard; print(meshard.numpy.ones(2).device, meshard.config.read('%s'))"
    given = {"MESHARD_NUM_DEVICES": "4", "MESHARD_DEFAULT_DEVICE": "cpu:3"}
    done = run(script % "default_device", **given)
    assert (done.stdout, done.stderr) == ("cpu:3 cpu:3\n", "")
    done = run(script % "check", **{**given, "MESHARD_NUM_DEVICES": "2"})
    assert done.returncode == 1
    assert "not 'cpu:3'; the devices of this process are cpu:0, cpu:1." in done.stderr


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
    assert "default_float must be 'float32' or 'float64', not 'float16'" in done.stderr


def test_settings_are_attributes_too_and_nothing_else_can_be_set():
    for name, setting in SETTINGS.items():
        assert getattr(meshard.config, name) == meshard.config.read(name)
        assert name in dir(meshard.config)
        if setting.at_start:
            with pytest.raises(ConfigError, match="is read when the program starts"):
                setattr(meshard.config, name, setting.value)
    meshard.config.default_float = "float32"
    try:
        assert mnp.ones(2).dtype == np.float32
    finally:
        meshard.config.default_float = "float64"
    with pytest.raises(ConfigError, match=r"'num_device'\. Did you mean 'num_devices'"):
        meshard.config.num_device = 4
    with pytest.raises(AttributeError, match="Did you mean 'num_devices'"):
        print(meshard.config.num_device)
    with pytest.raises(ConfigError, match="there is no setting 'update'"):
        meshard.config.update = print
    assert not hasattr(meshard.config, "nothing")
