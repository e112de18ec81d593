"""Plans as HTML: whole in themselves, well formed, and with what they should show."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from meshard.plan.figures import flow as flows
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.flow import Flow, flow_of, stages
from meshard.plan.plan import Plan
from meshard.plan.show.page import SHEET
from meshard.plan.show.plan_page import flow_svg, page
from meshard.plan.show.plan_text import arrays_table, steps_table, totals_table
from tests.plans import PLANS, SMALL, laid

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta"}


class Reader(HTMLParser):
    """Reads HTML strictly: whatever is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", PLANS)
def test_a_page_is_well_formed_and_needs_nothing_else(name, tmp_path):
    plan, path = PLANS[name](), tmp_path / "plan.html"
    plan.save_html(path)
    text = path.read_text(encoding="utf-8")
    reader = read(text)
    assert {"script", "link", "img", "iframe"}.isdisjoint(tag for tag, _ in reader.tags)
    assert all({"src", "href"}.isdisjoint(attributes) for _, attributes in reader.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"' <]+", text)) == {"http://www.w3.org/2000/svg"}
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert drawings
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    element = plan._repr_html_()
    ElementTree.fromstring(element)
    assert element in text
    said = " ".join(reader.texts)
    for words in (f"{plan.bytes_moved:,}", "Before and after", "Bytes between devices", "Why so"):
        assert words in said


def test_a_page_and_its_drawings_have_one_style_sheet():
    text = page(PLANS["striped"]())
    assert text.count("<style>") == 2  # that of the page's ground, and that of all in it
    blocks = [
        dict(re.findall(r"(--[a-z-]+):([^;}]+)", b)) for b in re.findall(r"{([^{}]+)}", SHEET)
    ]
    light, dark, said_light, said_dark = (b for b in blocks if b)
    assert light == said_light
    assert dark == said_dark
    assert light.keys() == dark.keys()
    assert set(re.findall(r"var\((.*?)\)", SHEET)) <= light.keys()
    drawn = {c for _, kept in read(text).tags for c in kept.get("class", "").split()}
    classes = {name[1:] for name in re.findall(r"\.meshard[a-z-]*", SHEET)}
    assert {c for c in drawn if c.startswith("meshard")} <= {*classes, "meshard-page"}
    # Sizes of texts are said by the drawing, and a rule for its class would override them.
    sheet = re.search("<style>(.*?)</style><h2>", text)[1]
    rules = re.findall(r"([^{}]+){([^{}]+)}", sheet)
    assert all("--" in rule for selector, rule in rules if "meshard-drawing" in selector)


@pytest.mark.parametrize("name", ["model", "striped", "uneven"])
def test_the_page_and_the_print_have_the_same_tables(name):
    plan = PLANS[name]()
    said, printed = read(plan._repr_html_()).texts, str(plan)
    for table in (totals_table(plan), arrays_table(plan, 9), steps_table(plan, 9)):
        for text in (*table.head, *(cell for row in table.rows for cell in row), *table.notes):
            assert not text or text in said
            assert text in printed


def test_the_alternatives_are_in_the_page():
    said = " ".join(read(page(PLANS["striped"]())).texts)
    assert "every sender would send its shard four times" in said
    assert "no way" in said
    assert "hop 2 of 2" in said


def test_a_plan_of_nothing_is_a_page_too():
    assert "0 arrays" in " ".join(read(page(Plan([]))).texts)


def test_names_are_escaped():
    a = laid((4,), (2,), [0, 1])
    plan = Plan([PlanLeaf("<b>&\x00\ud800", a, a, 1, "float<8>", "P('<')", 'P("&")')])
    text = page(plan)
    assert "<b>" not in text
    text.encode("utf-8")
    ElementTree.fromstring(plan._repr_html_())


@pytest.mark.parametrize("name", SMALL)
def test_what_flows_is_what_moves(name):
    plan = SMALL[name]()
    found = [flow_of(plan, stage) for stage in range(stages(plan))]
    assert sum(int(f.amounts.sum()) for f in found) == plan.bytes_moved
    assert not any(f.estimated for f in found)
    sent = {}
    for f in found:
        for (device, last), amount in zip(f.senders, f.amounts.sum(axis=1), strict=True):
            assert device == last
            sent[device] = sent.get(device, 0) + int(amount)
    assert {d: n for d, n in sent.items() if n} == {d: n for d, n in plan.sent.items() if n}


def test_of_a_vast_plan_the_flow_is_estimated():
    plan = PLANS["vast"]()
    flow = flow_of(plan, 0, most_jobs=1 << 19)
    assert flow.estimated
    assert flow.amounts.shape == (64, 64)
    some = flow.amounts[:, flow.amounts.sum(axis=0) > 0]
    assert abs(some.mean() / (plan.bytes_moved / 64**2) - 1) < 0.01


def rectangles(svg):
    root = ElementTree.fromstring(svg)
    return root, [r for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]


def test_few_devices_have_a_band_each_as_wide_as_its_bytes():
    root, _ = rectangles(flow_svg(flow_of(SMALL["uneven"](), 0)))
    bands = list(root.iter(f"{SVG}path"))
    widths = [float(b.get("stroke-width")) for b in bands]
    amounts = [
        int(re.search(r": ([\d,]+) bytes", b.find(f"{SVG}title").text)[1].replace(",", ""))
        for b in bands
    ]
    assert sum(amounts) == SMALL["uneven"]().bytes_moved
    assert np.allclose(np.array(widths) / np.array(amounts), widths[0] / amounts[0], rtol=0.02)
    inside(root)


def test_many_devices_have_a_heat_map():
    before, after = laid((600, 600), (100, 1), range(100)), laid((600, 600), (1, 100), range(100))
    flow = flow_of(Plan([PlanLeaf("x", before, after, 1)]), 0)
    assert flow.amounts.shape == (64, 64)
    root, cells = rectangles(flow_svg(flow))
    told = [c.find(f"{SVG}title").text for c in cells]
    assert len(cells) == (flow.amounts > 0).sum()
    assert any(re.match(r"0-1 to 2-3: [\d,]+ bytes", text) for text in told)
    assert "neighbouring devices stand together" in "".join(root.itertext())
    inside(root)


def test_of_forty_devices_each_has_its_own_row():
    before, after = laid((40, 40), (40, 1), range(40)), laid((40, 40), (1, 40), range(40))
    root, cells = rectangles(flow_svg(flow_of(Plan([PlanLeaf("x", before, after, 1)]), 0)))
    assert len(cells) == 40 * 39
    assert "neighbouring" not in "".join(root.itertext())


def test_nothing_flows():
    nothing = Flow((), (), np.zeros((0, 0)), estimated=False)
    ElementTree.fromstring(flow_svg(nothing))
    still = laid((64, 2), (64, 1), range(64))
    ElementTree.fromstring(flow_svg(flow_of(Plan([PlanLeaf("x", still, still, 1)]), 0)))
    assert flow_of(Plan([]), 0).amounts.size == 0
    assert stages(Plan([])) == 0


def test_an_estimate_says_so(monkeypatch):
    before, after = laid((40, 40), (40, 1), range(40)), laid((40, 40), (1, 40), range(40))
    plan = Plan([PlanLeaf("x", before, after, 1)])
    few = flow_of(plan, 0, most_jobs=200)
    assert few.estimated
    assert "estimated from some of the receivers" in flow_svg(few)
    assert flows.flow_of(plan, 0, most_jobs=1600).estimated is False


def inside(root):
    """Everything that is drawn lies inside the picture."""
    _, _, width, height = map(float, root.get("viewBox").split())
    for r in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(r.get(k)) for k in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    for t in root.iter(f"{SVG}text"):
        assert 0 <= float(t.get("x")) <= width
        assert 0 <= float(t.get("y")) <= height
