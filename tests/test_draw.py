"""Drawings of layouts: golden pictures, and laws that every picture keeps.

After a change that is meant: `UPDATE_GOLDEN=1 python -m pytest tests/test_draw.py`.
"""

import io
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout, layout_of_boxes
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import P
from meshard.errors import ArgumentError, IndivisibleError
from meshard.plan.captions import PALETTE, device_label, headline, ink, layout_summary, wrap
from meshard.plan.show.drawing import Drawing, draw_layout, kept, split_rectangles
from meshard.plan.show.layout_svg import drawing_svg, sharding_svg
from meshard.plan.show.text import drawing_text, visualize_array_sharding, visualize_sharding

GOLDEN = Path(__file__).parent / "golden" / "draw"


def mesh(order: object = None, **axes: int) -> Mesh:
    shape = tuple(axes.values())
    ids = range(int(np.prod(shape))) if order is None else order
    return Mesh(np.array([Device(i) for i in ids]).reshape(shape), tuple(axes))


def boxes(shape: tuple[int, ...], *given: str) -> BoxSharding:
    """A sharding from boxes as people write them: device i holds the i-th, such as "0:4 2:6"."""
    spans = [[tuple(map(int, span.split(":"))) for span in one.split()] for one in given]
    held = [Box(tuple(a for a, _ in one), tuple(b for _, b in one)) for one in spans]
    return BoxSharding(shape, {Device(i): box for i, box in enumerate(held)})


M8, M42, M222 = mesh(x=8), mesh(x=4, y=2), mesh(x=2, y=2, z=2)
M512 = mesh(x=16, y=32)
WINDMILL = boxes((6, 6), "0:4 0:2", "0:2 2:6", "2:6 4:6", "4:6 0:4", "2:4 2:4")

CASES: dict[str, tuple[tuple[int, ...], Sharding]] = {
    "one_dim": ((8,), NamedSharding(M8, P("x"))),
    "one_dim_uneven": ((10,), NamedSharding(M8, P("x"), uneven="balanced")),
    "one_dim_empty_shards": ((10,), NamedSharding(M8, P("x"), uneven="ceil")),
    "one_dim_64": ((64,), NamedSharding(mesh(x=64), P("x"))),
    "two_dims": ((8, 8), NamedSharding(M42, P("x", "y"))),
    "two_dims_wide": ((16, 64), NamedSharding(M42, P("x", "y"))),
    "two_dims_64": ((64, 64), NamedSharding(mesh(x=8, y=8), P("x", "y"))),
    "two_dims_512": ((512, 512), NamedSharding(M512, P("x", "y"))),
    "two_dims_512_replicated": ((512, 512), NamedSharding(M512, P(None, "x"))),
    "rows_64": ((64, 64), NamedSharding(mesh(x=64), P("x"))),
    "vocabulary": ((30522, 384), NamedSharding(mesh(fsdp=8), P("fsdp", None), uneven="balanced")),
    "explicit_cuts": ((20, 9), NamedSharding(mesh(x=4), P("x"), uneven=((0, 1, 4, 12, 20),))),
    "replicated": ((8, 8), NamedSharding(M42, P(None, "y"))),
    "fully_replicated": ((8, 4), NamedSharding(M42, P())),
    "permuted": (
        (8, 8),
        NamedSharding(mesh([3, 1, 0, 2, 7, 5, 4, 6], x=2, y=4), P(("y", "x"))),
    ),
    "three_dims": ((4, 8, 8), NamedSharding(M222, P("x", "y", "z"))),
    "four_dims": ((4, 4, 8, 8), NamedSharding(M222, P("x", "y", None, "z"))),
    "four_dims_64": ((16, 16, 8, 8), NamedSharding(mesh(x=8, y=8), P("x", "y"))),
    "eight_dims": ((2,) * 8, NamedSharding(mesh(x=2, y=2), P("x", *[None] * 6, "y"))),
    "scalar": ((), NamedSharding(M8, P())),
    "no_elements": ((0, 4), NamedSharding(M8, P(None, None))),
    "single_device": ((3, 4), SingleDeviceSharding(Device(2))),
    "irregular": ((6, 6), WINDMILL),
    "overlapping": ((6, 6), boxes((6, 6), "0:4 0:4", "2:6 2:6", "0:6 0:6")),
    "irregular_empty": ((4, 6), boxes((4, 6), "0:4 0:3", "0:2 3:6", "2:4 3:6", "0:0 0:6")),
    "irregular_three_dims": (
        (4, 6, 6),
        boxes((4, 6, 6), "0:1 0:6 0:6", "1:4 0:3 0:6", "1:3 3:6 0:6", "3:4 3:6 0:6"),
    ),
    "narrow": ((12, 12), NamedSharding(mesh(x=12), P(None, "x"))),
}


def picture(name: str) -> str:
    shape, sharding = CASES[name]
    text = drawing_text(sharding.layout(shape))
    return "\n".join([*wrap(headline(shape, sharding), 80), text, ""])


@pytest.mark.parametrize("name", CASES)
def test_the_picture_is_the_golden_one(name: str) -> None:
    path, text = GOLDEN / f"{name}.txt", picture(name)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no {path.name} yet; make it with UPDATE_GOLDEN=1, and look at it"
    assert text == path.read_text(encoding="utf-8")


def test_there_is_no_golden_picture_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


# Layouts of all kinds, for the laws below.


@st.composite
def cuts(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    inner = draw(st.lists(st.integers(0, size), max_size=3))
    return (0, *sorted(inner), size)


@st.composite
def regular_layouts(draw: st.DrawFn) -> Layout:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    lines = tuple(draw(cuts(n)) for n in shape)
    grid = tuple(len(c) - 1 for c in lines)
    replicas = draw(st.integers(1, 3))
    count = int(np.prod(grid)) * replicas
    ids = np.array(draw(st.permutations(range(count))), np.int64)
    return Layout(shape, lines, ids.reshape(*grid, replicas))


def split(draw: st.DrawFn, box: Box, depth: int) -> list[Box]:
    """Cut a box in two, and each half again, at places of its own."""
    dims = [i for i, n in enumerate(box.shape) if n > 1]
    if not depth or not dims:
        return [box]
    dim = draw(st.sampled_from(dims))
    at = draw(st.integers(box.starts[dim] + 1, box.stops[dim] - 1))
    low = Box(box.starts, (*box.stops[:dim], at, *box.stops[dim + 1 :]))
    high = Box((*box.starts[:dim], at, *box.starts[dim + 1 :]), box.stops)
    return [*split(draw, low, depth - 1), *split(draw, high, depth - 1)]


@st.composite
def irregular_layouts(draw: st.DrawFn) -> Layout:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    found = split(draw, Box.whole(shape), draw(st.integers(0, 3)))
    for _ in range(draw(st.integers(0, 2))):
        ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
        found.append(Box(tuple(a for a, _ in ends), tuple(b for _, b in ends)))
    ids = draw(st.permutations(range(len(found))))
    return layout_of_boxes(shape, list(zip(ids, found, strict=True)))


LAYOUTS = st.one_of(regular_layouts(), irregular_layouts())


def devices_of_elements(drawing: Drawing) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """For each element, the devices of every cell of the drawing that holds it."""
    rank = len(drawing.layout.shape)
    held: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for slab in drawing.slabs:
        leading = [range(a, b) for a, b in zip(*slab.leading, strict=True)]
        for row, down in zip(slab.areas, pairwise(slab.rows), strict=True):
            for area, across in zip(row, pairwise(slab.columns), strict=True):
                devices = tuple(sorted(drawing.devices(area)))
                for place in product(*leading, range(*down), range(*across)):
                    index = place if rank >= 2 else place[2 - rank :]
                    held.setdefault(index, []).append(devices)
    return held


@given(LAYOUTS)
def test_each_element_is_drawn_once_with_the_devices_that_hold_it(layout: Layout) -> None:
    drawing = draw_layout(layout, max_slabs=10_000)
    held: dict[tuple[int, ...], list[int]] = {i: [] for i in np.ndindex(layout.shape)}
    empty = []
    for piece in range(layout.piece_count):
        box = layout.box(piece)
        empty += [] if box.volume else layout.holders(piece)
        for index in product(*map(range, box.starts, box.stops)):
            held[index] += layout.holders(piece)
    assert devices_of_elements(drawing) == {i: [tuple(sorted(ids))] for i, ids in held.items()}
    assert drawing.empty == tuple(sorted(empty))
    assert drawing.slab_count == len(drawing.slabs)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_rectangles_hold_each_cell_once_and_label_each_island_once(
    rows: int, columns: int, data: st.DataObject
) -> None:
    cell = st.integers(0, 2)
    areas = [[data.draw(cell) for _ in range(columns)] for _ in range(rows)]
    found = split_rectangles(areas, [1] * rows, [1] * columns)
    covered = Counter(
        (i, j) for one in found for i in range(*one.rows) for j in range(*one.columns)
    )
    assert covered == dict.fromkeys(product(range(rows), range(columns)), 1)
    for one in found:
        assert {areas[i][j] for i in range(*one.rows) for j in range(*one.columns)} == {one.area}
    islands, seen = 0, set()
    for start in product(range(rows), range(columns)):
        islands += start not in seen
        stack = [start]
        while stack:
            i, j = stack.pop()
            if (i, j) in seen:
                continue
            seen.add((i, j))
            near = [(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)]
            stack += [
                (k, m)
                for k, m in near
                if 0 <= k < rows and 0 <= m < columns and areas[k][m] == areas[i][j]
            ]
    assert sum(one.labelled for one in found) == islands


@given(LAYOUTS)
def test_each_area_is_labelled_once_in_text(layout: Layout) -> None:
    text = drawing_text(layout, rulers=False, max_width=400)
    picture = [line for line in text.splitlines() if not line.startswith(("[", "empty", "and "))]
    shown = Counter(re.findall(r"CPU \d[\d,\-]*", "\n".join(picture)))
    drawing = draw_layout(layout)
    expected: Counter[str] = Counter()
    for slab in drawing.slabs:
        down = [b - a for a, b in pairwise(slab.rows)]
        across = [b - a for a, b in pairwise(slab.columns)]
        for one in split_rectangles(slab.areas, down, across):
            expected[device_label(drawing.devices(one.area), "CPU")] += one.labelled
    assert shown == expected


@given(LAYOUTS, st.integers(30, 90), st.booleans(), st.sampled_from([0.5, 1.0, 3.0]))
def test_no_line_is_wider_than_asked(
    layout: Layout, width: int, rulers: bool, scale: float
) -> None:
    text = drawing_text(layout, max_width=width, rulers=rulers, scale=scale)
    lines = [line for line in text.splitlines() if re.search("[│┌├└]", line)]
    assert lines
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in text.splitlines())


@given(LAYOUTS)
def test_ascii_is_the_same_picture_in_other_characters(layout: Layout) -> None:
    fine, plain = drawing_text(layout), drawing_text(layout, ascii_only=True)
    assert plain.isascii()
    assert [*map(len, plain.splitlines())] == [*map(len, fine.splitlines())]


@given(LAYOUTS, st.integers(9, 40))
def test_even_blocks_are_drawn_alike(layout: Layout, min_width: int) -> None:
    if len(layout.shape) != 1 or not layout.regular or not layout.even or not layout.shape[0]:
        return
    line = drawing_text(layout, rulers=False, min_width=min_width, max_width=300).splitlines()[0]
    assert len({len(part) for part in re.split("[┌┬┐]", line)[1:-1]}) == 1


def test_blocks_are_proportional() -> None:
    uneven = Layout((12,), ((0, 2, 6, 12),), np.arange(3).reshape(3, 1))
    top = drawing_text(uneven, rulers=False).splitlines()[0]
    assert [len(part) + 2 for part in re.split("[┌┬┐]", top)[1:-1]] == [9, 18, 27]


def test_a_label_without_room_is_left_out_and_that_is_said() -> None:
    lines = tuple(range(4))
    ids = np.arange(3 * 200)[::-1].reshape(1, 3, 200) * 1_000_003
    text = drawing_text(Layout((3, 3), ((0, 3), lines), ids), max_width=30)
    assert "labels that find no room are left out" in text


def test_many_slabs_are_counted() -> None:
    assert "and 58 more slabs like these, 64 in all" in picture("four_dims_64")
    shape, sharding = CASES["four_dims_64"]
    assert "and 46 more slabs like these, 64 in all" in drawing_svg(sharding.layout(shape))


def test_a_layout_of_131072_devices_is_drawn() -> None:
    even = NamedSharding(mesh(x=512, y=256), P("x", "y"))
    layout = even.layout((65536, 65536))
    text = drawing_text(layout)
    assert "not all blocks are shown: there are 131072, on CPU 0-131071" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 60
    picture = drawing_svg(layout)
    assert "not all blocks are shown: there are 131072, on CPU 0-131071" in picture
    assert len(picture) < 600_000


# The words.


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([0], "CPU 0"),
        ([2, 1, 0], "CPU 0,1,2"),
        (range(4), "CPU 0-3"),
        ([0, 2, 4, 6], "CPU 0,2,4,6"),
        ([0, 1, 2, 3, 9, 10, 11, 12], "CPU 0-3,9-12"),
        (range(0, 32, 2), "CPU 0,2..30 (16)"),
        ([*range(0, 12, 2), *range(20, 30)], "CPU 0,2..29 (16)"),
    ],
)
def test_device_label(ids: list[int], expected: str) -> None:
    assert device_label(ids, "CPU") == expected


def test_device_label_of_one_part_keeps_its_first_and_last_id() -> None:
    assert device_label(range(0, 64, 2), most=1) == "0..62 (32)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one_dim", "8 blocks of [1]"),
        ("one_dim_uneven", "uneven: 2 x 2 + 1 x 6 elements"),
        ("vocabulary", "uneven: 3816 x 2 + 3815 x 6 rows"),
        ("replicated", "2 blocks of [8,4], each on 4 devices"),
        ("scalar", "whole on each of 8 devices"),
        ("single_device", "whole on 1 device"),
        ("irregular", "irregular: 5 boxes"),
    ],
)
def test_layout_summary(name: str, expected: str) -> None:
    shape, sharding = CASES[name]
    assert layout_summary(sharding.layout(shape)) == expected


def test_layout_summary_of_many_sizes_and_dims() -> None:
    ids = np.arange(10).reshape(1, 1, 5, 2, 1)
    lines = ((0, 4), (0, 4), (0, 1, 3, 6, 10, 15), (0, 1, 3))
    assert layout_summary(Layout((4, 4, 15, 3), lines, ids)) == (
        "uneven: 1 to 5 along dim 2, 1 x 1 + 2 x 1 along dim 3"
    )


def test_the_headline_names_processes() -> None:
    devices = [Device(i, process_index=i // 2) for i in range(4)]
    sharding = NamedSharding(Mesh(devices, "x"), P("x"))
    assert headline((8,), sharding, "float32") == (
        "float32[8]",
        "P('x',) over Mesh('x': 4)",
        "4 blocks of [2]",
        "process 0: 0,1; process 1: 2,3",
    )


def test_kept_shows_both_ends() -> None:
    assert kept(100, 7) == (0, 1, 2, None, 97, 98, 99)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("color", PALETTE)
def test_labels_can_be_read_on_every_colour(color: str) -> None:
    light, dark = sorted((luminance(color), luminance(ink(color))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_no_colour_stands_twice() -> None:
    assert len(set(PALETTE)) == len(PALETTE)


# The terminal.


@pytest.fixture
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def colorful_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("plain_terminal")
def test_visualize_prints_header_and_picture(capsys: pytest.CaptureFixture[str]) -> None:
    for name, (shape, sharding) in CASES.items():
        visualize_sharding(shape, sharding)
        assert capsys.readouterr().out == picture(name)


@pytest.mark.usefixtures("plain_terminal")
@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8,), ("x",)),
        ((8,), (("x", "y"),)),
        ((8, 8), ("x", "y")),
        ((8, 8), ("x",)),
        ((8, 8), (None, "y")),
        ((8, 8), ("y", "x")),
        ((8, 2), ("x", "y")),
        ((16, 8), (("x", "y"),)),
    ],
)
def test_the_boxes_are_those_of_jax(
    jax: ModuleType, capsys: pytest.CaptureFixture[str], shape: tuple[int, ...], spec: tuple[object]
) -> None:
    devices = np.array(jax.devices()).reshape(4, 2)
    theirs = jax.sharding.NamedSharding(
        jax.sharding.Mesh(devices, ("x", "y")), jax.sharding.PartitionSpec(*spec)
    )
    jax.debug.visualize_sharding(shape, theirs)
    expected = capsys.readouterr().out
    visualize_sharding(shape, NamedSharding(M42, P(*spec)), header=False, rulers=False)
    assert capsys.readouterr().out == expected


@pytest.mark.usefixtures("colorful_terminal")
@pytest.mark.parametrize("name", CASES)
def test_colour_gives_each_set_of_devices_its_background(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shape, sharding = CASES[name]
    visualize_sharding(shape, sharding)
    out = capsys.readouterr().out
    backgrounds = set(re.findall(r"48;2;(\d+;\d+;\d+)", out))
    if not name.endswith(("64", "512", "512_replicated")):
        drawing = draw_layout(sharding.layout(shape))
        areas = {area for slab in drawing.slabs for row in slab.areas for area in row}
        assert len(backgrounds) == len(areas)
        assert out.count("CPU") >= len(areas) or "numbers are CPU ids" in out
    if name != "no_elements":
        assert not re.search("[│┌├└]", out)
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in out.splitlines()) <= 80


@pytest.mark.usefixtures("colorful_terminal")
def test_colour_can_be_declined_or_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    shape, sharding = CASES["one_dim"]
    visualize_sharding(shape, sharding, use_color=False)
    assert "48;2;" not in capsys.readouterr().out
    visualize_sharding(shape, sharding, color_map=lambda share: (share, 0.0, 0.0, 1.0))
    assert "48;2;255;0;0" in capsys.readouterr().out
    visualize_sharding(shape, sharding, color_map=lambda share: "#010203", rulers=False)
    assert "48;2;1;2;3" in capsys.readouterr().out


@pytest.mark.usefixtures("colorful_terminal")
def test_the_picture_is_not_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    visualize_sharding(*CASES["two_dims_64"], use_color=False, header=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, (line for line in lines if "─" in line))) <= 40


@pytest.mark.usefixtures("plain_terminal")
def test_a_terminal_without_box_characters_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    visualize_sharding(*CASES["one_dim"])
    stream.flush()
    assert b"| CPU 0 | CPU 1 |" in buffer.getvalue()


class Laid:
    """An array, as far as drawings look at it."""

    def __init__(self, shape: tuple[int, ...], sharding: object) -> None:
        self.shape = shape
        self.dtype = np.dtype("float32")
        self.sharding = sharding


@pytest.mark.usefixtures("plain_terminal")
def test_an_array_is_drawn_with_its_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    visualize_array_sharding(Laid(*CASES["vocabulary"]))
    out = capsys.readouterr().out
    assert out.startswith("float32[30522,384]  P('fsdp', None) over Mesh('fsdp': 8)")
    visualize_array_sharding(Laid(*CASES["vocabulary"]), header=False)
    assert "float32" not in capsys.readouterr().out


def test_what_lies_on_no_devices_is_refused() -> None:
    for draw in (visualize_sharding, sharding_svg):
        with pytest.raises(
            ArgumentError, match=f"{draw.__name__}: sharding must be a Sharding, got 'x'"
        ):
            draw((8,), "x")
    with pytest.raises(ArgumentError, match="arr is a ndarray, which is not laid out over devices"):
        visualize_array_sharding(np.zeros(3))  # type: ignore[arg-type]


def test_a_shape_that_does_not_divide_is_refused() -> None:
    with pytest.raises(IndivisibleError, match="should be divisible by 8"):
        visualize_sharding((10,), NamedSharding(M8, P("x")))


# SVG.

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


@given(LAYOUTS)
def test_areas_of_svg_are_proportional_to_elements(layout: Layout) -> None:
    drawing = draw_layout(layout, max_slabs=36)
    root = ElementTree.fromstring(drawing_svg(layout))
    groups = [g for g in root.findall("s:g", NAMESPACE) if "transform" in g.attrib]
    assert len(groups) == max(1, len(drawing.slabs))  # of no elements there is a box that says so
    for group, slab in zip(groups, drawing.slabs, strict=bool(drawing.slabs)):
        drawn: Counter[int] = Counter()
        for one in group.iterfind(".//s:rect[@data-area]", NAMESPACE):
            drawn[int(one.get("data-area", ""))] += float(one.get("width", "")) * float(
                one.get("height", "")
            )
        elements: Counter[int] = Counter()
        for row, (top, bottom) in zip(slab.areas, pairwise(slab.rows), strict=True):
            for area, (left, right) in zip(row, pairwise(slab.columns), strict=True):
                elements[area] += (bottom - top) * (right - left)
        assert drawn.keys() == elements.keys()
        scale = sum(drawn.values()) / sum(elements.values())
        for area, count in elements.items():
            assert drawn[area] == pytest.approx(count * scale, rel=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_svg_is_self_contained_and_inside_its_card(name: str) -> None:
    text = sharding_svg(*CASES[name], dtype="float32")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label", "").startswith("float32[")
    assert not re.search(r"<script|<image|<foreignObject|href|url\(|@import|\son\w+=", text)
    wide, high = (float(root.get(side, "")) for side in ("width", "height"))
    for group in root.findall("s:g", NAMESPACE):
        moved = re.findall(r"[\d.]+", group.get("transform", ""))
        x, y = map(float, moved)
        for one in group.iterfind(".//s:rect", NAMESPACE):
            assert 0 <= x + float(one.get("x", "")) <= wide - float(one.get("width", ""))
            assert 0 <= y + float(one.get("y", "")) <= high - float(one.get("height", ""))


def test_svg_says_boxes_and_devices_when_pointed_at() -> None:
    titles = re.findall("<title>(.*?)</title>", sharding_svg(*CASES["replicated"]))
    assert titles == [
        "[0:8, 0:4] on CPU 0,2,4,6: 8 x 4 = 32 elements",
        "[0:8, 4:8] on CPU 1,3,5,7: 8 x 4 = 32 elements",
    ]
    assert "[0:4, 0:4] and [0:6, 0:6] overlap" in sharding_svg(*CASES["overlapping"])
    assert "<title>a scalar on CPU 0-7</title>" in sharding_svg(*CASES["scalar"])
    assert "<title>[0:1] on CPU 0: 1 element</title>" in sharding_svg(*CASES["one_dim"])


def test_svg_names_the_axes_that_split_a_dim() -> None:
    text = sharding_svg(*CASES["permuted"])
    assert "dim 0 over y, x" in text
    assert "dim 1 →" in text


def test_svg_escapes_what_it_is_given() -> None:
    shape, sharding = CASES["two_dims"]
    title = "<b>&\"'</b>\x00\nsecond"
    root = ElementTree.fromstring(
        drawing_svg(sharding.layout(shape), title=title, platform="<GPU>", dim_names=["<&>"])
    )
    texts = [one.text for one in root.iter() if one.text]
    assert "<b>&\"'</b>\ufffd" in texts
    assert "second" in texts
    assert "<GPU> 0" in texts
    assert "← <&>" in texts


def test_svg_without_room_for_labels_says_where_they_are() -> None:
    ids = np.arange(2000).reshape(1, 2000, 1)
    layout = Layout((2000, 2000), ((0, 2000), tuple(range(2001))), ids)
    text = drawing_svg(layout)
    assert "not all blocks are shown: there are 2000, on CPU 0-1999" in text
    thin = Layout((1000, 1), ((0, 1, 1000), (0, 1)), np.arange(2).reshape(2, 1, 1))
    assert "point at a block to read its devices" in drawing_svg(thin)


def test_drawings_do_not_load_rich_until_they_print() -> None:
    script = (
        "import sys, meshard.plan.show.text, meshard.plan.show.layout_svg;"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


@pytest.mark.usefixtures("colorful_terminal")
@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"FORCE_COLOR": "0"}])
def test_without_colours_lines_frame_the_blocks(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name, (shape, sharding) in CASES.items():
        visualize_sharding(shape, sharding)
        assert capsys.readouterr().out == picture(name)


@pytest.mark.usefixtures("plain_terminal")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "cp1252"])
@pytest.mark.parametrize("color", ["", "1"])
def test_names_of_axes_that_cannot_be_printed_become_escapes(
    monkeypatch: pytest.MonkeyPatch, encoding: str, color: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", color)
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    mesh = Mesh(M42.devices, ("größe", "行"))
    visualize_sharding((8, 8), NamedSharding(mesh, P("größe", "行")))
    visualize_sharding((64, 64, 640), NamedSharding(mesh, P(None, "größe", "行")), max_width=30)
    stream.flush()
    text = buffer.getvalue().decode(encoding)
    assert "\\u884c" in text
    assert "?" not in text
