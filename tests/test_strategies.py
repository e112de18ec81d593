"""The strategies draw what they say, and all kinds of it."""

import importlib
import subprocess
import sys

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from meshard import testing
from meshard.algebra.sharding import NamedSharding
from meshard.testing.strategies import (
    box_shardings,
    meshes,
    named_shardings,
    placed_shapes,
    shapes,
    specs,
)
from meshard.testing.virtual import virtual_devices


def test_all_that_is_listed_is_there():
    strategies = importlib.import_module("meshard.testing.strategies")
    assert sorted(testing.__all__) == testing.__all__
    drawn = {n for n in testing.__all__ if hasattr(strategies, n)}
    assert {*drawn, "die", "simulate", "virtual_devices"} == {*testing.__all__}
    assert all(callable(getattr(testing, name)) for name in testing.__all__)


def test_nothing_else_is():
    with pytest.raises(AttributeError, match=r"'meshard\.testing' has no attribute 'mashes'"):
        testing.mashes


def test_hypothesis_is_imported_on_use_only():
    code = (
        "import sys, meshard.testing; meshard.testing.virtual_devices(2);"
        "assert 'hypothesis' not in sys.modules; meshard.testing.meshes;"
        "assert 'hypothesis' in sys.modules"
    )
    path = [p for p in sys.path if p]
    code = f"import sys; sys.path[:] = {path!r}; {code}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@given(st.data(), st.integers(1, 4), st.integers(0, 3))
def test_what_is_drawn_fits(data, max_axes, ndim):
    devices = virtual_devices(6)
    mesh = data.draw(meshes(devices, max_axes=max_axes))
    assert 1 <= len(mesh.axis_names) <= max_axes
    assert set(mesh.flat_devices) <= set(devices)
    assert len(data.draw(specs(mesh, ndim))) <= ndim
    sharding = data.draw(named_shardings(ndim, mesh))
    assert sharding.mesh is mesh
    shape = data.draw(shapes(sharding.shards(ndim), min_size=1))
    assert min(sharding.shard_shape(shape), default=1) >= 1


@pytest.mark.parametrize(
    "wanted",
    [
        lambda m: 1 in m.axis_sizes and len(m.axis_names) == 4 and m.size > 4,
        lambda m: m.device_ids.ravel().tolist() != sorted(m.device_ids.ravel().tolist()),
        lambda m: m.axis_names == ("y", "x"),
        lambda m: m.size == 8,
    ],
)
def test_meshes_of_all_kinds_are_drawn(wanted):
    find(meshes(), wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda p: any(isinstance(e, tuple) for e in p[0].spec),
        lambda p: len(p[0].spec) < len(p[1]),
        lambda p: len(p[0].spec) and p[0].spec[-1] is None,
        lambda p: p[0].uneven == "ceil" and not p[0].layout(p[1]).even,
        lambda p: p[0].uneven is None and p[0].layout(p[1]).piece_count > 4,
        lambda p: 0 in p[1],
        lambda p: p[1] == (),
    ],
)
def test_shardings_of_all_kinds_are_drawn(wanted):
    placed = find(placed_shapes(uneven=(None, "ceil")), wanted)
    assert isinstance(placed[0], NamedSharding)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda s: not s.layout((3, 4)).regular,
        lambda s: s.layout((3, 4)).regular and s.num_devices > 3,
        lambda s: s.num_devices == 1,
        lambda s: any(not b.volume for b in s.layout((3, 4)).boxes),
        lambda s: s.layout((3, 4)).replicas > 1,
    ],
)
def test_boxes_of_all_kinds_are_drawn(wanted):
    find(box_shardings((3, 4)), wanted)
