"""Values with a picture: one page, one drawing, and what notebooks show, from two methods."""

from xml.etree import ElementTree

import pytest

from meshard.errors import ArgumentError
from meshard.plan.show.page import SHEET, element
from meshard.plan.show.pictured import Drawn, Pictured
from meshard.plan.show.svg import picture, rect

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
