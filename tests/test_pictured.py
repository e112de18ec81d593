"""Values with a picture: one page, one drawing, and what notebooks show, from two methods."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshard.errors import ArgumentError
from meshard.plan.show.page import SHEET, element
from meshard.plan.show.pictured import Drawn, Pictured
from meshard.plan.show.svg import LETTER, SIZE, Panel, Sheet, gap, lettered, picture, rect, steps

SVG = "{http://www.w3.org/2000/svg}"


class Words(Pictured):
    def _title(self):
        return "a < b"

    def _parts(self):
        yield element("p", "c & d")


class Square(Drawn):
    def _title(self):
        return "a < b"

    def _svg(self):
        return picture(40, 30, "told > this", [rect(5, 5, 9, 9, "hot")])


def page_of(text):
    assert text.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(text.partition("\n")[2])


def test_a_value_is_a_page_and_an_element_of_a_notebook():
    page, shown = page_of(Words().to_html()), ElementTree.fromstring(Words()._repr_html_())
    for root in (page.find("body/div"), shown):
        assert root.get("class") == "meshard"
        assert root.findtext("h2") == "a < b"
        assert root.findtext("p") == "c & d"
    assert page.findtext("head/title") == "a < b"


def test_a_drawing_has_one_style_sheet_wherever_it_is():
    assert Square()._repr_html_().count(SHEET) == 1
    assert Square().to_html().count(SHEET) == 1
    alone = ElementTree.fromstring(Square().to_svg())
    assert alone.tag == f"{SVG}svg"
    assert alone.findtext(f"{SVG}title") == "a < b"
    assert alone.findtext(f"{SVG}style") == SHEET
    assert alone.get("aria-label") == "told > this"
    assert len(alone.findall(f"{SVG}rect")) == 2  # the card, and what is on it


def test_what_is_saved_is_what_is_returned(tmp_path):
    for verb, make in (("save_html", "to_html"), ("save_svg", "to_svg")):
        path = tmp_path / verb
        assert getattr(Square(), verb)(str(path)) == path
        assert path.read_text(encoding="utf-8") == getattr(Square(), make)()


def test_a_path_that_is_none_is_refused_before_anything_is_drawn():
    with pytest.raises(ArgumentError, match=r"^Words.save_html: path must be the path of a file"):
        Words().save_html(3)
    with pytest.raises(ArgumentError, match=r"^Square.save_svg: path"):
        Square().save_svg("")
    with pytest.raises(FileNotFoundError):
        Square().save_svg("/nowhere/at/all.svg")


def test_what_is_not_defined_is_said():
    for call in (Pictured().to_html, Drawn().to_svg):
        with pytest.raises(NotImplementedError):
            call()


# The grammar of marks.

SIZES = st.lists(st.integers(1, 9000), min_size=1, max_size=40)


@given(SIZES, SIZES, st.integers(1, 5), st.text("abc", max_size=30), st.integers(0, 2))
def test_what_a_sheet_shows_is_inside_and_no_text_touches_another(
    rows, columns, count, word, names
):
    width, height = 9.0 * len(columns), 8.0 * len(rows)
    ys, xs = steps(rows, height), steps(columns, width)
    panel = Panel(
        [rect(0, 0, width, height, "gap"), rect(width, 0, 30, 5, "hot")],
        width,
        height,
        heading=word,
        names=["down", "right"][2 - names :],
        rows=[(y, str(n)) for n, y in enumerate(ys)],
        columns=[(x, str(100 * n)) for n, x in enumerate(xs)],
        right=30.0,
    )
    sheet = Sheet(*[word] * bool(word), "a line")
    sheet.panels([panel] * count, run=2)
    sheet.legend([("#56b4e9", word), (0.5, "half")])
    sheet.notes([word * 3])
    root = ElementTree.fromstring(sheet.picture("told"))
    wide, high = float(root.get("width")), float(root.get("height"))
    groups = root.findall(f"{SVG}g[@transform]")
    assert len(groups) == count
    spots = [map(float, re.findall(r"[\d.]+", g.get("transform"))) for g in groups]
    for left, top, parts in [
        (0.0, 0.0, root),
        *((*s, g) for s, g in zip(spots, groups, strict=True)),
    ]:
        for one in parts.findall(f"{SVG}rect"):
            x, y, w, h = (float(one.get(k)) for k in ("x", "y", "width", "height"))
            assert 0 <= left + x <= left + x + w <= wide
            assert 0 <= top + y <= top + y + h <= high
        for one in parts.findall(f"{SVG}text"):
            start, long = left + float(one.get("x")), LETTER * SIZE * len(one.text or "")
            share = {"middle": 0.5, "end": 1.0}.get(one.get("text-anchor"), 0.0)
            if one.get("transform") is None and (parts is root or share == 1.0):
                assert -1 <= start - share * long <= start + (1 - share) * long <= wide + 1
            assert 0 <= top + float(one.get("y")) <= high
    texts = [t for t in groups[0].findall(f"{SVG}text") if (t.text or "").isdigit()]
    ticks = [float(t.get("y")) for t in texts if t.get("x") == "-6"]
    assert all(b - a >= SIZE for a, b in pairwise(ticks[:-1]))
    edges = []
    for one in (t for t in texts if t.get("x") != "-6"):
        x, long = float(one.get("x")), LETTER * SIZE * len(one.text)
        start = x - long * {"start": 0.0, "middle": 0.5, "end": 1.0}[one.get("text-anchor")]
        edges.append((start, start + long))
    if len(edges) > 2:
        assert all(a[1] <= b[0] for a, b in pairwise(edges))


def test_a_label_is_as_large_as_its_cell_allows():
    turned = [ElementTree.fromstring(t) for t in lettered((0, 0, 12, 60), "CPU 7", "#003f63")]
    (one,) = turned
    assert one.get("transform").startswith("rotate(-90 ")
    assert one.get("fill") == "#ffffff"
    assert float(one.get("font-size")) <= 13
    assert not list(lettered((0, 0, 12, 9), "CPU 7", "#003f63"))
    assert [t.text for t in map(ElementTree.fromstring, gap((0, 0, 9, 9), down=True))][
        1
    ] == "\u22ee"
