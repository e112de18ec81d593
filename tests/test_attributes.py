"""Attributes that do not exist: nothing has them, and the error names what does exist."""

import copy
import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.algebra.attributes import door
from meshard.runtime.array.methods import INSTEAD
from tests.test_api import public_modules


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nditr", "NumPy has numpy.nditer, but meshard.numpy does not"),
        ("nditer", "NumPy has numpy.nditer, but meshard.numpy does not"),
        ("concatenat", "Did you mean 'concatenate'"),
        ("relu", "Use meshard.nn.relu"),
        ("xyzzy", "'meshard.numpy' has no attribute 'xyzzy'$"),
    ],
)
def test_a_module_names_the_nearest_or_the_place(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(mnp, name)


def test_every_public_module_names_the_nearest() -> None:
    for module in public_modules():
        if not module.__all__ or module.__name__.endswith((".shard_map", ".pjit", "_array")):
            continue
        if module.__name__ == "meshard.experimental":
            continue
        name = max(module.__all__, key=len)
        assert not hasattr(module, f"{name}x")
        with pytest.raises(AttributeError, match=f"Did you mean .*'{name}'"):
            getattr(module, f"{name}x")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("numpy", r"use np\.asarray\(x\)"),
        ("reshard", r"use meshard\.reshard\(x, sharding\)"),
        ("exp", r"it is a function, meshard\.numpy\.exp\(x\)"),
        ("relu", r"it is a function, meshard\.nn\.relu\(x\)"),
    ],
)
def test_an_array_says_what_to_do_instead(name: str, advice: str) -> None:
    x = mnp.ones(3)
    told = []

    def body(y: object) -> object:
        with pytest.raises(AttributeError, match=advice) as caught:
            getattr(y, name)
        told.append(str(caught.value))
        return y

    body(x)
    meshard.jit(body)(x)
    assert told[0] == told[1].replace("Tracer", "Array")


def test_what_arrays_do_not_have_is_seen_by_nobody() -> None:
    x = mnp.ones(3)
    for name in INSTEAD:
        assert not hasattr(x, name)
        assert not hasattr(meshard.Array, name)
        assert name not in dir(x)
    assert "__getattr__" not in {n for c in meshard.Array.__mro__ for n in vars(c)}, (
        "__getattr__ on Array slows down each protocol that NumPy asks an array for"
    )
    for made in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        np.testing.assert_array_equal(made, x)


def test_every_function_that_an_array_names_exists() -> None:
    for text in INSTEAD.values():
        door, _, rest = text.removeprefix("it is a function, meshard.").partition(".")
        if text.startswith("it is a function"):
            assert hasattr(getattr(meshard, door), rest.removesuffix("(x)")), text


def test_the_error_can_be_pickled() -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(mnp, "concatenat")  # noqa: B009
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_doors_that_nobody_asked_for_are_listed_and_not_loaded() -> None:
    code = """
import sys
import numpy as np
import meshard

late = ["numpy", "lax", "nn", "random", "debug", "gda", "resharding"]

def loaded():
    return [name for name in late if f"meshard.{name}" in sys.modules]

assert {"lax", "nn", "jit", "__version__"} <= {*dir(meshard)} & {*meshard.__all__}
assert not {"algebra", "runtime", "tuning"} & {*meshard.__all__}
assert not hasattr(meshard, "psum"), "it is a name of lax"
assert not loaded(), loaded()
try:
    meshard.psum
except AttributeError as error:
    assert str(error).endswith("Use meshard.lax.psum."), error
x = meshard.device_put(np.array([3.0, 4.0]))
assert x.__array_namespace__() is meshard.numpy
assert {"fft", "linalg"} <= {*dir(meshard.numpy)} & {*meshard.numpy.__all__}
assert "meshard.numpy.linalg" not in sys.modules
assert meshard.numpy.linalg.norm(x) == 5
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_renamed_function_works_and_warns_at_the_users_line() -> None:
    module = types.ModuleType("meshard.some_door")
    module.__dict__["brief"] = len
    sys.modules[module.__name__] = module
    try:
        listed, names, load = door(module.__name__, renamed={"long_winded": ("brief", "0.3")})
        module.__dict__["__getattr__"] = load
        text = r"^meshard.some_door.long_winded is now meshard.some_door.brief; meshard 0.3 removes"
        with pytest.warns(DeprecationWarning, match=text) as told:
            assert module.long_winded is len
        assert [one.filename for one in told] == [__file__]
        with pytest.warns(DeprecationWarning, match=text) as told:
            from meshard.some_door import long_winded  # type: ignore[import-not-found]
        assert {one.filename for one in told} == {__file__}
        assert long_winded is len
        assert "long_winded" not in {*listed, *names()}
        with pytest.raises(AttributeError, match="has no attribute 'short'"):
            module.short
    finally:
        del sys.modules[module.__name__]
