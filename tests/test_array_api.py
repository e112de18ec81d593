"""What libraries for the Array API are told: versions, devices, and copies of their helpers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.array_api import is_meshard_array, is_meshard_namespace, register
from meshard.errors import ArgumentError

from .worlds import alone, put

VENDORED = ("scipy._lib", "sklearn.externals")


@pytest.fixture
def helpers() -> Iterator[list[Any]]:
    """Import fresh copies of the helpers that SciPy and scikit-learn bring, and take them out."""
    for parent in VENDORED:
        pytest.importorskip(parent.partition(".")[0])
    parts = ("array_api_compat", "array_api_extra", "_array_api_compat_vendor")
    names = tuple(f"{parent}.{part}" for parent in VENDORED for part in parts)
    kept = {n: m for n, m in sys.modules.items() if n.startswith(names)}
    for name in kept:
        del sys.modules[name]
    yield [
        (
            importlib.import_module(f"{parent}.array_api_compat"),
            importlib.import_module(f"{parent}.array_api_extra"),
        )
        for parent in VENDORED
    ]
    for name in [n for n in sys.modules if n.startswith(names)]:
        del sys.modules[name]
    sys.modules.update(kept)


def test_the_namespace_is_that_of_every_version():
    x = mnp.ones(2)
    assert mnp.__array_api_version__ == "2025.12"
    for version in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
        assert x.__array_namespace__(api_version=version) is mnp
    with pytest.raises(ArgumentError, match=r"version '2030.12' is not.*2024.12, 2025.12 are"):
        x.__array_namespace__(api_version="2030.12")


def test_what_the_standard_makes_tuples():
    info = mnp.__array_namespace_info__()
    assert info.devices() == tuple(meshard.devices())
    assert type(mnp.meshgrid(mnp.ones(2), mnp.ones(3))) is tuple
    assert type(mnp.meshgrid(mnp.ones(2), mnp.ones(3), sparse=True)) is tuple
    assert type(mnp.broadcast_arrays(mnp.ones(2), 1.0)) is tuple
    for device in info.devices():
        assert mnp.zeros(2, device=device).device == device


def test_arrays_and_values_inside_are_told_apart_from_others():
    def inside(t: Any) -> Any:
        assert is_meshard_array(t)
        assert issubclass(type(t), meshard.Array)
        return t

    meshard.jit(inside)(mnp.ones(2))
    assert is_meshard_array(mnp.ones(2))
    assert issubclass(meshard.Array, meshard.Array)
    assert not issubclass(np.ndarray, meshard.Array)
    assert not any(map(is_meshard_array, (np.ones(2), 1.0, [mnp.ones(2)], None)))
    assert is_meshard_namespace(mnp)
    assert not is_meshard_namespace(np)


def test_registered_helpers_know_arrays(helpers):
    told = register()
    assert len([n for n in told if n.endswith("common._helpers")]) == len(VENDORED)
    assert len([n for n in told if n.endswith("_at")]) == len(VENDORED)
    assert register() == told  # again does no harm

    def body() -> None:
        x = put(np.arange(8.0), "i")
        for compat, extra in helpers:
            assert not compat.is_lazy_array(x)
            assert not compat.is_writeable_array(x)
            with mnp.writeable():
                assert compat.is_writeable_array(x)
            assert compat.array_namespace(x) is mnp
            found = extra.at(x)[2].set(9.0, xp=mnp)
            assert found[:3].tolist() == [0, 1, 9]
            assert found.sharding == x.sharding
            assert extra.at(x)[x > 5].set(1.0, xp=mnp).tolist() == [0, 1, 2, 3, 4, 5, 1, 1]
            np.testing.assert_array_equal(x, np.arange(8.0))
            jitted = meshard.jit(lambda t, at=extra.at: at(t)[2].multiply(10.0, xp=mnp))
            assert jitted(x)[2] == 20
            assert meshard.jit(lambda t, c=compat: t + c.is_lazy_array(t))(x)[0] == 1

    alone(body)


def test_registered_helpers_know_other_arrays_as_before(helpers):
    register()
    for compat, extra in helpers:
        y = np.zeros(3)
        assert compat.is_writeable_array(y)
        assert not compat.is_lazy_array(y)
        assert extra.at(y)[1].set(2.0) is y
        assert compat.array_namespace(y) is compat.array_namespace(np.ones(1))
        y.flags.writeable = False
        assert not compat.is_writeable_array(y)
        assert extra.at(y)[1].set(3.0).tolist() == [0, 3, 0]
