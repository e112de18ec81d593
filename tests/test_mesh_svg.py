"""Pictures of meshes and shardings: every device is there, and a large mesh has a small picture."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh, make_mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import P
from meshard.plan.captions import PALETTE

SVG = "{http://www.w3.org/2000/svg}"


def mesh_of(shape, names, each=None):
    count = math.prod(shape)
    owners = [0 if each is None else i // each for i in range(count)]
    return make_mesh(shape, names, devices=[Device(i, p) for i, p in enumerate(owners)])


def cells(svg):
    """The devices that are drawn: the tooltip of each, and the text and colour of its cell."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        for one in group.iter(f"{SVG}rect"):
            title = one.findtext(f"{SVG}title")
            if title:
                found[title] = one.get("fill")
    return found


def inside(svg):
    """Everything is within the picture."""
    root = ElementTree.fromstring(svg)
    wide, high = float(root.get("width")), float(root.get("height"))
    for group in (root, *root.iter(f"{SVG}g")):
        x, y = map(float, re.findall(r"[\d.]+", group.get("transform", "0 0")))
        for one in group.findall(f"{SVG}rect"):
            assert x + float(one.get("x")) + float(one.get("width")) <= wide
            assert y + float(one.get("y")) + float(one.get("height")) <= high
        for one in group.findall(f"{SVG}text"):
            assert 0 <= x + float(one.get("x")) <= wide
            assert 0 <= y + float(one.get("y")) <= high


@given(st.lists(st.integers(1, 4), max_size=4), st.integers(1, 9))
def test_a_mesh_that_fits_shows_each_device_once(shape, each):
    names = [f"a{n}" for n in range(len(shape))]
    mesh = mesh_of(shape, names, each)
    svg = mesh.to_svg()
    inside(svg)
    found = cells(svg)
    if mesh.size > 64:
        assert len(found) < mesh.size
        return
    want = {}
    for place, device in np.ndenumerate(mesh.devices):
        spot = ", ".join(f"{a}={i}" for a, i in zip(names, place, strict=True))
        want[f"CPU {device.id}, process {device.process_index}: {spot}"] = device.process_index
    assert found.keys() == want.keys()
    # One colour for each process, another for each other as long as there are colours.
    pairs = {(process, found[title]) for title, process in want.items()}
    assert len(pairs) == len({p for p, _ in pairs})
    assert len({c for _, c in pairs}) == min(len(pairs), len(PALETTE))


@pytest.mark.parametrize(
    "shape", [(10_000,), (100, 100), (16, 16), (25, 5, 80), (10, 10, 10, 10), (1, 10_000)]
)
def test_a_large_mesh_has_a_small_picture(shape):
    names = [f"a{n}" for n in range(len(shape))]
    mesh = mesh_of(shape, names, 8)
    html = mesh.to_html()
    assert len(html) < 100_000
    assert f"of {mesh.size:,} devices are shown" in html
    assert f"and {len(mesh.processes) - 8:,} more processes" in html
    svg = mesh.to_svg()
    inside(svg)
    # The first and the last are among those that are drawn.
    for number in (0, mesh.size - 1):
        assert any(title.startswith(f"CPU {number}, ") for title in cells(svg))


def test_processes_are_marked_by_more_than_colour():
    words = list(ElementTree.fromstring(mesh_of((2, 4), ["x", "y"], 4).to_svg()).itertext())
    assert words.count("p0") == words.count("p1") == 4
    assert "process 1: 4-7" in words
    alone = list(ElementTree.fromstring(mesh_of((2, 4), ["x", "y"]).to_svg()).itertext())
    assert not any("process" in w for w in alone if not w.startswith("CPU"))


def test_a_mesh_without_axes_or_devices_is_shown():
    assert cells(Mesh(np.array(Device(3)), ()).to_svg()) == {"CPU 3, process 0: ": "#56b4e9"}
    empty = Mesh(np.empty((0, 2), object), ("x", "y"))
    assert cells(empty.to_svg()) == {}
    assert "no devices" in empty.to_html()
    assert "no devices" in NamedSharding(empty, P("x")).to_html()


SPECS = [P(), P("x"), P(None, "x"), P(("x", "y")), P("y", "x"), P("x", None, "y"), P("x", None)]


@pytest.mark.parametrize("spec", SPECS)
def test_a_sharding_shows_which_axes_split_which_dims(spec):
    sharding = NamedSharding(mesh_of((4, 2), ["x", "y"]), spec)
    root = ElementTree.fromstring(sharding._repr_html_())
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")][1:]
    for dim, axes in enumerate(spec.axes(len(spec))):
        count = math.prod({"x": 4, "y": 2}[a] for a in axes)
        assert rows[dim] == [f"dim {dim}", ", ".join(axes) or "-", f"{count}" if axes else "whole"]
    rest = [a for a in "xy" if a in sharding.replicated_axes]
    copies = math.prod({"x": 4, "y": 2}[a] for a in rest)
    assert rows[len(spec) :] == [["copies", ", ".join(rest), str(copies)]] * bool(rest)
    words = " ".join(ElementTree.fromstring(sharding.to_svg()).itertext())
    shards = math.prod(sharding.shards(len(spec)))
    assert f"{shards} block{'s' * (shards > 1)}" in words
    for dim, axes in enumerate(spec.axes(len(spec))[-2:], max(0, len(spec) - 2)):
        assert (
            f"dim {dim} over {', '.join(axes)}" in words if axes else f"dim {dim}, whole" in words
        )


def test_shardings_that_are_odd_are_shown_too():
    mesh = mesh_of((4,), "x")
    free = NamedSharding(mesh, P("x", P.UNCONSTRAINED)).to_html()
    assert "a dim is free" in free
    cut = NamedSharding(
        mesh, P(None, "x"), uneven=(None, (0, 1, 3, 6, 10)), memory_kind="pinned_host"
    )
    assert "uneven cuts" in cut.to_html()
    assert "pinned_host" in cut.to_html()
    assert "[0:1, 6:10] on CPU 3" in cut.to_svg()
    for other in (
        SingleDeviceSharding(Device(2)),
        BoxSharding((4,), {Device(0): (slice(0, 1),), Device(5, 1): (slice(1, 4),)}),
    ):
        assert type(other).__name__ in other.to_html()
    assert "2 devices, CPU 0,5" in other._repr_html_()
    assert "process 0: 0; process 1: 5" in other._repr_html_()


def test_a_layout_shows_its_blocks():
    layout = NamedSharding(mesh_of((4,), "x"), P("x"), uneven="balanced").layout((10,))
    assert "Layout of [10]: uneven: 3 x 2 + 2 x 2 elements" in layout._repr_html_()
    assert "[0:3] on CPU 0: 3 elements" in layout.to_svg()


def test_cuts_that_fit_no_array_are_said():
    wrong = NamedSharding(mesh_of((4,), "x"), P("x"), uneven=((0, 3, 2, 9, 12),))
    told = "".join(ElementTree.fromstring(wrong.to_svg()).itertext())
    assert "cut" in told
    assert wrong._repr_html_()


def test_names_are_escaped():
    mesh = mesh_of((2,), ('<x&">',))
    for text in (mesh._repr_html_(), NamedSharding(mesh, P('<x&">')).to_svg(), mesh.to_svg()):
        ElementTree.fromstring(text)
        assert "<x&" not in text


def test_saving_returns_the_path(tmp_path):
    mesh = mesh_of((2,), "x")
    for value in (mesh, NamedSharding(mesh, P("x"))):
        assert value.save_svg(tmp_path / "a.svg").read_text(encoding="utf-8") == value.to_svg()
        assert value.save_html(tmp_path / "a.html").read_text(encoding="utf-8") == value.to_html()
