"""Tables as values, and the elements that pages and drawings are made of."""

import os
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshard.plan.show import terminal
from meshard.plan.show.page import Markup, element, fragment, number_text, whole_page, xml_text
from meshard.plan.show.report import Table
from meshard.plan.show.svg import label, picture, rect

WORDS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=40)
NUMBERS = st.integers(0, 10**12).map("{:,}".format)
LABELS = st.text("abc./[](), ", max_size=40).map(str.strip)
ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=20)


@st.composite
def tables(draw):
    align = draw(st.lists(st.sampled_from("<>"), min_size=1, max_size=5))
    row = st.tuples(*[WORDS if side == "<" else NUMBERS for side in align])
    rows = draw(st.lists(row, min_size=1, max_size=4))
    head = draw(st.one_of(st.just(()), row))
    notes = draw(st.lists(WORDS, max_size=2))
    return Table(head, rows, "".join(align), notes, draw(st.integers(0, 2)))


def lines_of(table, width):
    """The lines of a table, each as long as all of it again."""
    text = table.text(width).split("\n")
    count = len(table.rows) + bool(table.head)
    if width is None:
        assert text[count:] == list(table.notes)
    return text[:count]


@given(tables())
def test_with_room_nothing_is_cut_and_columns_stand_below_each_other(table):
    given_rows = [table.head] * bool(table.head) + list(table.rows)
    for line, row in zip(lines_of(table, None), given_rows, strict=True):
        assert line == line.rstrip()
        line, place = line.ljust(table.width), 0
        for cell, wide, side in zip(row, table.widths, table.align, strict=True):
            own = line[place : place + wide]
            assert own == (cell.ljust(wide) if side == "<" else cell.rjust(wide))
            place += wide + 2


@given(tables(), st.integers(20, 120))
@example(Table((), [("1" * 30,)], ">"), 20)
def test_words_are_cut_where_that_helps_and_numbers_never(table, width):
    lines = lines_of(table, width)
    # Words are cut to seven characters at most; what is still too wide is left as it is.
    least = sum(
        min(w, 7) if s == "<" else w for w, s in zip(table.widths, table.align, strict=True)
    )
    room = max(width, least + 2 * (len(table.align) - 1))
    assert max(map(len, lines)) <= room
    if table.width <= width:
        assert table.text(width) == table.text(None)
    for line, row in zip(lines[bool(table.head) :], table.rows, strict=True):
        for cell, side in zip(row, table.align, strict=True):
            assert side == "<" or cell in line


@given(tables())
def test_a_page_has_all_of_a_table(table):
    root = ElementTree.fromstring(element("div", table.html()))
    found = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    given_rows = [table.head] * bool(table.head) + list(table.rows)
    assert found == [[cell.replace("  ", "\u2003") for cell in row] for row in given_rows]
    rows = root.findall(".//tbody/tr")
    assert [row.get("class") for row in rows] == [
        "chosen" if i < table.marked else None for i in range(len(rows))
    ]
    for row in rows:
        assert [c.get("class") == "n" for c in row] == [side == ">" for side in table.align]
    assert [p.text for p in root.iter("p")] == [note for note in table.notes if note]


@given(ANY_TEXT, ANY_TEXT)
def test_text_is_escaped_wherever_it_enters(text, value):
    made = element("a", element("b", text), text, title=value)
    root = ElementTree.fromstring(made)
    (inner,) = root
    kept = "".join(c if c >= " " and not "\ud800" <= c <= "\udfff" else "\ufffd" for c in text)
    assert (inner.text or "") == (inner.tail or "") == kept
    assert len(root.get("title")) == len(value)
    made.encode("utf-8")


def test_what_is_markup_is_not_escaped_again():
    assert xml_text(xml_text("<")) == "&lt;"
    assert element("p", Markup("<b/>"), "<b/>") == "<p><b/>&lt;b/&gt;</p>"
    assert element("p", "") == "<p></p>"


@given(st.floats(-1e6, 1e6))
def test_numbers_are_short_and_near(value):
    text = number_text(value)
    assert abs(float(text) - value) <= 0.00051
    assert len(text.partition(".")[2]) <= 3
    assert not text.endswith((".", ".0"))


def test_a_picture_says_colours_without_a_style_sheet_too():
    shapes = [rect(0, 0, 1, 1, kind) for kind in ("card", "gap", "hot", "outline", "#010203")]
    root = ElementTree.fromstring(picture(9.4, 9.6, "a & b", [*shapes, label(1, 2, "x", "ink")]))
    assert root.get("aria-label") == "a & b"
    assert (root.get("width"), root.get("height")) == ("9", "10")
    assert all(one.get("fill") for one in root)
    assert root[0].get("stroke")
    assert root.find("{*}style") is None


def test_a_page_is_a_frame_around_a_fragment():
    inside = fragment("a < b", element("p", "c"))
    text = whole_page("a < b", inside)
    assert text.startswith("<!DOCTYPE html>\n<html")
    page = ElementTree.fromstring(text.partition("\n")[2])
    assert page.findtext("head/title") == page.findtext("body/div/h2") == "a < b"
    assert inside in text


@st.composite
def narrow_tables(draw):
    sides = draw(st.text("<~>", min_size=1, max_size=7))
    cell = {"<": LABELS, "~": LABELS, ">": st.integers(0, 10**9).map(str)}
    rows = draw(st.lists(st.tuples(*[cell[s] for s in sides]), min_size=1, max_size=5))
    head = tuple(f"t{i}" for i in range(len(sides)))
    spare = draw(st.lists(st.sampled_from(head), unique=True, max_size=len(head) - 1))
    return Table(head, rows, sides, ["a note of several words"], spare=spare)


def row_texts(table, width):
    lines, notes = table.lines(width)
    return ["  ".join(shown for _, shown in line) for line in lines], notes


@given(narrow_tables(), st.integers(40, 120))
def test_a_table_is_as_wide_as_it_may_and_loses_only_what_it_says(table, width):
    lines, notes = table.lines(width)
    texts, _ = row_texts(table, width)
    assert len(set(map(len, texts))) == 1
    told = " ".join(map(str.strip, notes)).partition("not shown for lack of width: ")[2]
    gone = told.split(", ") if told else []
    assert set(gone) <= set(table.spare)
    if table.width <= width:
        assert not gone
        assert len(texts) == len(table.rows) + 1
    kept = [i for i, name in enumerate(table.head) if name not in gone]
    for number, i in enumerate(kept):
        column = [line[number] for line in lines[1:]]
        if table.align[i] == ">":
            shown = [text.strip() for _, text in column if text.strip()]
            assert shown == [row[i] for row in table.rows]
        if table.align[i] == "~":  # sentences are there, whatever their lines
            shown = "".join(text for _, text in column).replace(" ", "")
            assert shown == "".join(row[i] for row in table.rows).replace(" ", "")
    if gone != list(table.spare) or table.least_width(7) <= width:
        assert max(map(len, texts)) <= width
    full, _ = row_texts(table, None)
    assert all(cell in "\n".join(full) for row in table.rows for cell in row)


def test_the_beginning_and_the_end_of_words_stay():
    table = Table(("name",), [("model.layers.12.attention.wq",)], "<")
    assert table.text(12).splitlines() == ["name", "mod...ion.wq"]


def test_columns_are_left_out_in_order_and_named():
    row = ("a" * 14, "b" * 14, "c" * 14, "123456789")
    table = Table(("one", "two", "three", "four"), [row], "<<<>", spare=("three", "four", "two"))
    assert table.text(80).splitlines()[0].split() == ["one", "two", "three", "four"]
    lines = table.text(45).splitlines()
    assert lines[0].split() == ["one", "two", "four"]
    assert lines[-1] == "not shown for lack of width: three"
    lines = table.text(30).splitlines()
    assert lines[0].split() == ["one", "two"]
    assert lines[-2:] == ["not shown for lack of width:", "  three, four"]


def test_a_table_is_printed_as_wide_as_the_terminal_is(monkeypatch):
    table = Table(("a", "b"), [("x" * 80, "y" * 80)], "<<")

    def width():
        return max(map(len, table.text().splitlines()))

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(terminal, "is_console", lambda stream: True)
    for asked, found in ((60, 60), (120, 120), (200, 162), (10, 40)):
        size = SimpleNamespace(columns=asked)
        monkeypatch.setattr(os, "get_terminal_size", lambda fd, size=size: size)
        monkeypatch.setattr(terminal.sys, "stdout", SimpleNamespace(fileno=lambda: 1))
        assert width() == found
    monkeypatch.setattr(terminal, "is_console", lambda stream: False)
    assert width() == 100
    monkeypatch.setenv("COLUMNS", "70")
    assert width() == 70


@pytest.mark.parametrize("width", [60, 100])
def test_notes_are_wrapped(width):
    table = Table((), [("a", "1")], "<>", ["word " * 40])
    assert max(map(len, table.text(width).splitlines())) <= width
