"""Global device arrays in `jit`: as arguments always, as results where the setting says so."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import DeletedArrayError, ShardingError
from meshard.experimental.pjit import pjit as experimental_pjit
from meshard.gda import GlobalDeviceArray
from meshard.sharding import NamedSharding, P, SingleDeviceSharding
from meshard.transforms.jit import jit as core
from meshard.transforms.tracing.signature import ArrayHolder
from tests.worlds import alone, in_worlds, mesh, whole

GRID = np.arange(64.0).reshape(8, 8)


def given(*axes: Any) -> GlobalDeviceArray:
    return GlobalDeviceArray.from_callback((8, 8), mesh(), P(*axes), lambda index: GRID[index])


@contextmanager
def outputs() -> Iterator[None]:
    name = "parallel_functions_output_gda"
    meshard.config.update(name, True)
    try:
        yield
    finally:
        meshard.config.update(name, False)


@in_worlds
def test_arguments_are_taken_as_they_lie() -> None:
    f = meshard.jit(lambda t, n: (t["a"] * n, t["a"] @ t["b"]))
    tree = {"a": given("i"), "b": given(None, "j")}
    for call in (f, f.lower(tree, 2).compile()):
        found, product = call(tree, 2)
        assert type(found) is meshard.Array
        assert found.sharding.is_equivalent_to(NamedSharding(mesh(), P("i")), 2)
        assert product.sharding.is_equivalent_to(NamedSharding(mesh(), P("i", "j")), 2)
        assert whole(found).tolist() == (GRID * 2).tolist()
    assert f.eval_shape({"a": GRID, "b": GRID}, 2)[0].shape == (8, 8)
    broken = given("i")
    for buffer in broken.addressable_shards:
        buffer.data.delete()
    with pytest.raises(DeletedArrayError, match="deleted"):
        f({"a": broken, "b": given()}, 2)


def test_results_are_global_device_arrays_where_the_setting_says_so() -> None:
    def body() -> None:
        f = meshard.jit(lambda x: {"double": x * 2, "sum": x.sum(), "number": 3, "none": None})
        assert type(f(given("i", "j"))["double"]) is meshard.Array
        with outputs():
            found = f(given("i", "j"))
            ahead = f.lower(given("i", "j")).compile()(given("i", "j"))
            for one in found, ahead:
                assert type(one["double"]) is GlobalDeviceArray
                assert one["double"].mesh_axes == P("i", "j")
                assert one["double"].mesh == mesh()
                assert np.asarray(one["double"].to_array()).tolist() == (GRID * 2).tolist()
                assert one["sum"].is_fully_replicated
                assert one["none"] is None
            assert found["number"].local_data(0).item() == 3
            assert f(found["double"])["double"].shape == (8, 8)
            with mesh():
                made = meshard.jit(lambda: mnp.arange(4))()
                assert made.mesh == mesh()
            device = meshard.devices()[2]
            placed = meshard.jit(lambda: mnp.arange(4), out_shardings=SingleDeviceSharding(device))
            assert list(placed().mesh.devices.flat) == [device]
            ten = meshard.device_put(
                np.arange(10.0), NamedSharding(mesh(), P("i"), uneven="balanced")
            )
            with pytest.raises(ShardingError, match="shards of a GlobalDeviceArray have one shape"):
                meshard.jit(lambda x: x + 1)(ten)
        assert type(f(given("i", "j"))["double"]) is meshard.Array

    alone(body)


def test_jit_of_the_floor_below_knows_nothing_of_them() -> None:
    def body() -> None:
        x = given("i").to_array()
        with outputs():
            assert type(core.jit(lambda x: x + 1)(x)) is meshard.Array
            assert type(meshard.jit(core.jit(lambda x: x + 1))(x)) is GlobalDeviceArray
            assert type(core.jit(meshard.jit(lambda x: x + 1))(x)) is meshard.Array

    alone(body)


def test_the_public_jit_is_that_of_the_floor_below_to_readers() -> None:
    assert meshard.jit is meshard.pjit is experimental_pjit
    assert inspect.signature(meshard.jit) == inspect.signature(core.jit)
    assert meshard.jit.__doc__ == core.jit.__doc__
    assert pickle.loads(pickle.dumps(meshard.jit)) is meshard.jit
    assert meshard.jit(static_argnums=1)(lambda x, n: x * n)(2, 3) == 6
    for call in (lambda: meshard.jit(bogus=1), lambda: meshard.jit(lambda x: x, bogus=1)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'bogus'"):
            call()


class Boxed(ArrayHolder):
    """Another kind of array than those that there are."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def to_array(self) -> meshard.Array:
        return meshard.numpy.asarray(self.value)


@in_worlds
def test_whatever_holds_an_array_is_an_argument() -> None:
    f = meshard.jit(lambda x, y: x * y)
    assert f(Boxed(3), 2) == 6
    assert meshard.jit(lambda y: f(Boxed(3), y))(2) == 6
    assert meshard.jit(lambda: f(Boxed(3), 2))() == 6
    assert f.lower(Boxed(3), 2).compile()(Boxed(4), 2) == 8


@pytest.mark.parametrize("door", ["jit", "pjit", "experimental.pjit.pjit"])
def test_the_environment_says_so_too(door: str) -> None:
    program = f"import meshard; print(type(meshard.{door}(lambda x: x + 1)(1.0)).__name__)"
    settings = {**os.environ, "MESHARD_PARALLEL_FUNCTIONS_OUTPUT_GDA": "1"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "GlobalDeviceArray"
