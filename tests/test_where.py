"""Where an array is: ``x.device`` as a value that fits arrays of any shape."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import NamedSharding, P
from meshard.algebra.where import Where
from meshard.debug import ledger
from meshard.errors import IndivisibleError, SpecError
from meshard.sharding import BoxSharding


def mesh() -> Any:
    return meshard.make_mesh((4, 2), ("x", "y"))


def put(shape: tuple[int, ...], *spec: Any, uneven: Any = None) -> Any:
    value = np.arange(math.prod(shape), dtype=float).reshape(shape)
    return meshard.device_put(value, NamedSharding(mesh(), P(*spec), uneven=uneven))


def test_the_device_stands_for_the_sharding():
    x = put((8, 6), "x", "y")
    device = x.device
    assert device == x.sharding
    assert x.sharding == device
    assert device != NamedSharding(mesh(), P("y"))
    assert isinstance(device, NamedSharding)
    assert isinstance(device, meshard.sharding.Sharding)
    assert (device.mesh, device.spec, device.device_set) == (mesh(), P("x", "y"), x.devices())
    assert repr(device) == f"Where({x.sharding!r})"
    again = pickle.loads(pickle.dumps(device))
    assert (type(again), again, again.spec) == (Where, device, P("x", "y"))


def test_devices_are_compared_by_where_they_are():
    x, y, z = put((8, 6), "x", "y"), put((5,)), put((10, 2), "x", uneven="balanced")
    assert x.device == y.device == z.device
    assert len({x.device, y.device, z.device}) == 1
    half = meshard.Mesh(meshard.devices()[:4], "x")
    w = meshard.device_put(np.ones(8), NamedSharding(half, P("x")))
    assert w.device != x.device
    assert x.device != mnp.ones(3).device
    assert x.device != "cpu"
    pinned = x.sharding.with_memory_kind("pinned_host")
    assert meshard.device_put(x, pinned).device != x.device


def test_an_array_on_one_device_has_that_device():
    (first, *_) = meshard.local_devices()
    assert mnp.ones(3).device is first
    one = NamedSharding(meshard.Mesh([first], "x"), P("x"))
    assert meshard.device_put(np.ones(3), one).device == first


FITS: list[tuple[tuple[Any, ...], Any, tuple[int, ...], Any, Any]] = [
    (("x", "y"), None, (8, 6), P("x", "y"), None),
    (("x", "y"), None, (), P(), None),
    (("x", "y"), None, (8,), P("x"), None),
    (("x", "y"), None, (3,), P(), None),
    (("x", "y"), None, (3, 4), P(None, "y"), None),
    (("x", "y"), None, (8, 4, 2), P("x", "y"), None),
    (("x", "y"), None, (0,), P("x"), None),
    ((None, "y"), None, (8,), P(), None),
    ((("x", "y"),), None, (16,), P(("x", "y")), None),
    ((("x", "y"),), None, (12,), P(), None),
    (("x",), "balanced", (101, 3), P("x"), "balanced"),
    (("x",), "balanced", (50,), P("x"), "balanced"),
    ((None, "x"), "balanced", (3,), P(), None),
    (("x",), ((0, 1, 2, 3, 10),), (10, 4), P("x"), ((0, 1, 2, 3, 10),)),
    (("x",), ((0, 1, 2, 3, 10),), (9,), P("x"), "balanced"),
    (("x",), ((0, 1, 2, 3, 10),), (8,), P("x"), None),
    (("x",), ((0, 1, 2, 3, 10),), (3,), P(), None),
]


@pytest.mark.parametrize(("spec", "uneven", "shape", "expected", "cuts"), FITS)
def test_a_new_array_is_split_like_the_old_one_where_it_fits(spec, uneven, shape, expected, cuts):
    device = Where(NamedSharding(mesh(), P(*spec), uneven=uneven))
    found = device.fitting(shape)
    rank = len(shape)
    assert (found.spec.axes(rank), found.uneven) == (expected.axes(rank), cuts)
    for made in (
        mnp.zeros(shape, device=device),
        mnp.asarray(np.ones(shape), device=device),
        mnp.full(shape, 2, device=device),
        mnp.empty_like(mnp.ones(shape), device=device),
    ):
        assert made.sharding == found
        assert made.committed
        assert made.device == device


@given(
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.permutations([None, None, "x", "y"]).map(lambda s: s[:2]),
    st.sampled_from([None, "balanced", "ceil"]),
)
def test_any_shape_fits(shape, spec, uneven):
    device = Where(NamedSharding(mesh(), P(*spec), uneven=uneven))
    found = device.fitting(shape)
    assert Where(found) == device
    value = np.arange(math.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(mnp.asarray(value, device=device), value)


def test_creation_functions_take_it():
    x = put((8, 6), "x", "y")
    for made, spec in (
        (mnp.arange(8, device=x.device), P("x")),
        (mnp.linspace(0, 1, 7, device=x.device), P()),
        (mnp.eye(8, device=x.device), P("x", "y")),
        (mnp.asarray(3.0, device=x.device), P()),
        (mnp.asarray([[1, 2]], device=x.device), P(None, "y")),
        (mnp.astype(mnp.arange(8), "f4", device=x.device), P("x")),
        (mnp.arange(8).astype("f4", device=x.device), P("x")),
        (mnp.from_dlpack(np.ones(8), device=x.device), P("x")),
        (meshard.device_put(np.ones(8), x.device), P("x")),
        (meshard.device_put({"a": np.ones(8), "b": 1.0}, x.device)["a"], P("x")),
    ):
        assert made.sharding.spec == spec
        assert made.device == x.device


def test_a_sharding_is_exact():
    x = put((8, 6), "x", "y")
    with pytest.raises(SpecError, match="is only valid for arrays of rank at least 2"):
        mnp.zeros(8, device=x.sharding)
    with pytest.raises(IndivisibleError, match="should be divisible by 4"):
        mnp.zeros((3, 4), device=x.sharding)
    assert mnp.zeros((8, 2), device=x.sharding).sharding is x.sharding


def test_an_array_that_is_there_stays_as_it_is():
    x, y = put((8, 6), "x"), put((8,), "y")
    with ledger() as log:
        assert mnp.asarray(y, device=x.device) is y
        assert y.to_device(x.device) is y
        assert mnp.array(y, device=x.device).sharding == y.sharding
    assert log.total_bytes == 0
    assert meshard.device_put(y, x.device).sharding.spec == P("x")
    assert y.to_device(x.sharding).sharding == x.sharding
    assert mnp.ones(8).to_device(x.device).sharding.spec == P("x")


def test_it_is_the_sharding_itself_where_one_is_meant():
    x = put((8, 6), "x", "y")
    jitted = meshard.jit(lambda t: t + 1, in_shardings=x.device, out_shardings=x.device)
    assert jitted(np.ones((8, 6))).sharding == x.sharding
    like = meshard.ShapeDtypeStruct((8, 6), "f4", sharding=x.device)
    assert type(like.sharding) is NamedSharding
    made = meshard.make_array_from_callback((8, 6), x.device, lambda i: np.ones((8, 6))[i])
    assert type(made.sharding) is NamedSharding
    inside = meshard.jit(lambda t: mnp.asarray(t, device=x.device) * mnp.ones(6, device=x.device))
    assert inside(x).sharding.spec == P("x", "y")


def test_shardings_of_other_kinds():
    first, second = meshard.devices()[:2]
    boxes = {first: (slice(0, 1),), second: (slice(1, 4),)}
    x = meshard.device_put(np.ones(4), BoxSharding((4,), boxes))
    assert mnp.zeros(4, device=x.device).sharding == x.sharding
    assert mnp.zeros((5, 2), device=x.device).is_fully_replicated
    assert mnp.zeros((5, 2), device=x.device).device == x.device
