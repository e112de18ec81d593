"""Pictures of plans: before, flow, after; whole in themselves, and true to the plan."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from meshard.errors import ArgumentError
from meshard.plan.captions import PALETTE
from meshard.plan.figures.choice import Choice, PlanLeaf, figures_of
from meshard.plan.figures.topology import Level, Topology
from meshard.plan.hops.hop import Route
from meshard.plan.plan import Plan
from tests.plans import SMALL, laid

SVG = "{http://www.w3.org/2000/svg}"
MATRIX = (16, 16)


def read(plan):
    """The root of a picture, which is well formed and has all in itself."""
    text = plan.to_svg()
    root = ElementTree.fromstring(text)
    assert not re.search(r"url\((?!#)|<script|<image|href=", text)
    for name in re.findall(r"url\(#([^)]+)\)", text):
        assert f'id="{name}"' in text
    return root


def bands(root):
    """Each band: its tooltip, its width and its colour."""
    found = [(p, p.find(f"{SVG}title")) for p in root.iter(f"{SVG}path") if p.get("stroke-width")]
    return [
        (title.text, float(p.get("stroke-width")), p.get("stroke"))
        for p, title in found
        if title is not None  # lines between cells have none
    ]


def told_bytes(text):
    return int(re.search(r"([\d,]+) bytes$", text)[1].replace(",", ""))


@pytest.mark.parametrize("name", SMALL)
def test_a_picture_is_whole_and_all_of_it_is_inside(name):
    root = read(SMALL[name]())
    _, _, width, height = map(float, root.get("viewBox").split())
    assert 300 < width < 1400
    assert 200 < height < 500
    for text in root.iter(f"{SVG}text"):
        assert text.text
    said = "".join(root.itertext())
    assert "before" in said
    assert "after" in said


@pytest.mark.parametrize("name", SMALL)
def test_bands_are_the_bytes_that_move_and_those_that_stay(name):
    plan = SMALL[name]()
    drawn = bands(read(plan))
    moved = [told_bytes(text) for text, _, _ in drawn if " to " in text]
    assert sum(moved) == plan.bytes_moved
    kept = sum(told_bytes(text) for text, _, _ in drawn if "keeps" in text)
    stays = sum(
        int(hop.stays[-1].sum()) * weight
        for route, weight in zip(plan.routes, plan.weights, strict=True)
        for hop in route.hops
    )
    assert kept == stays


def test_bands_are_as_wide_as_their_bytes_and_have_the_colour_of_the_sender():
    rows, columns = laid(MATRIX, (4, 1), range(4)), laid(MATRIX, (1, 4), range(4))
    drawn = bands(read(Plan([PlanLeaf("x", rows, columns, 4)])))
    assert len(drawn) == 16
    ratios = [wide / told_bytes(text) for text, wide, _ in drawn]
    assert max(ratios) / min(ratios) < 1.01
    for text, _, color in drawn:
        sender = int(re.search(r"device (\d+)", text)[1])
        assert color == PALETTE[sender]


def test_a_block_has_the_colour_of_its_device_on_both_sides():
    rows, turned = laid(MATRIX, (4, 1), range(4)), laid(MATRIX, (4, 1), [3, 2, 1, 0])
    root = read(Plan([PlanLeaf("x", rows, turned, 4)]))
    blocks = {}
    for r in root.iter(f"{SVG}rect"):
        title = r.find(f"{SVG}title")
        if title is not None and " on device " in title.text:
            blocks.setdefault(title.text.rpartition(" ")[2], set()).add(r.get("fill"))
    assert blocks == {str(n): {PALETTE[n]} for n in range(4)}


def test_a_replicated_block_is_striped_in_the_colours_of_its_holders():
    rows, whole = laid(MATRIX, (2, 1), [0, 1]), laid(MATRIX, (1, 1), [0, 1])
    root = read(Plan([PlanLeaf("x", rows, whole, 4)]))
    (pattern,) = root.iter(f"{SVG}pattern")
    assert [r.get("fill") for r in pattern.iter(f"{SVG}rect")] == [*PALETTE[:2]]


def test_of_many_devices_neighbours_are_drawn_as_one():
    before, after = laid((600, 600), (100, 1), range(100)), laid((600, 600), (1, 100), range(100))
    root = read(Plan([PlanLeaf("x", before, after, 1)]))
    assert len(bands(root)) <= 2 * 16 * 16
    said = list(root.itertext())
    assert "0-6" in said
    assert "100 blocks" in said
    hosts = Topology(
        "tens", (Level("host", latency=0.0, bandwidth=9.0, size=10), Level("all", 0.0, 1.0))
    )
    plan = Plan([PlanLeaf("x", before, after, 1)]).on(hosts)
    texts = list(read(plan).itertext())
    assert texts.count("host") == 2
    assert "9" in texts
    assert "10" not in texts  # there are ten of them
    assert any(" s" in text and "bytes in" in text for text in texts)


def test_hops_follow_each_other_and_of_many_some_are_drawn():
    layouts = [laid(MATRIX, (4, 1), np.roll(range(4), n)) for n in range(6)]
    way = Route("around", tuple(layouts))
    leaf = PlanLeaf("x", layouts[0], layouts[-1], 4)
    plan = Plan([leaf], [Choice(way, figures_of(way, 4))])
    root = read(plan)
    said = list(root.itertext())
    assert said.count("device") == 2  # above the first and the last ones
    assert any(text.endswith("; 2 more hops") for text in said)
    places = [float(t.get("x")) for t in root.iter(f"{SVG}text") if "bytes move" in t.text]
    assert len(places) == 3
    assert places == sorted(places)


def test_a_plan_of_nothing_and_one_that_moves_nothing():
    assert "nothing moves" in "".join(read(Plan([])).itertext())
    still = laid(MATRIX, (4, 1), range(4))
    drawn = read(Plan([PlanLeaf("x", still, still, 4)]))
    assert "every device has its part" in "".join(drawn.itertext())
    assert all("keeps" in text for text, _, _ in bands(drawn))


@pytest.mark.parametrize("shape", [(), (16,), (4, 4, 4), (2, 4, 4, 4), (0, 4)])
def test_arrays_of_any_rank_are_drawn(shape):
    grid = tuple(2 if n >= 2 else 1 for n in shape)
    count = int(np.prod(grid, initial=1))
    source, target = laid(shape, grid, range(count)), laid(shape, (1,) * len(shape), [0])
    read(Plan([PlanLeaf("x", source, target, 4)]))


def test_a_picture_is_light_or_dark_or_as_the_system_of_the_reader():
    plan = SMALL["transpose"]()
    by_system, light, dark = (plan.to_svg(theme=theme) for theme in (None, "light", "dark"))
    assert "prefers-color-scheme" in by_system
    assert len({by_system, light, dark}) == 3
    for text, color in ((light, "#ffffff"), (dark, "#15181d")):
        rules = re.findall(r"--meshard-card:(#[0-9a-f]+)", text)
        assert rules[-1] == color  # the last rule decides
        ElementTree.fromstring(text)
    with pytest.raises(ArgumentError, match=r"Plan.to_svg: theme must be"):
        plan.to_svg(theme="blue")


def test_a_picture_is_saved(tmp_path):
    plan = SMALL["transpose"]()
    path = plan.save_svg(tmp_path / "plan.svg", theme="dark")
    assert path == tmp_path / "plan.svg"
    assert path.read_text(encoding="utf-8") == plan.to_svg(theme="dark")
