"""Plans as HTML: whole in themselves, well formed, and with what they should show."""

import re
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import meshard
from meshard.plan.captions import whole_text
from meshard.plan.figures import plan_figures as flows
from meshard.plan.figures.choice import Candidate, Choice, PlanLeaf, figures_of
from meshard.plan.figures.plan_figures import Flow, flow_of, hosts_of, stages
from meshard.plan.figures.topology import Level, Topology
from meshard.plan.hops.hop import Hop, Route
from meshard.plan.plan import Plan
from meshard.plan.show.layout_svg import layout_picture
from meshard.plan.show.page import SHEET
from meshard.plan.views.flow_svg import flow_svg
from meshard.plan.views.plan_page import schematic
from meshard.plan.views.plan_text import arrays_table, plan_table
from meshard.plan.views.words import facts_of
from meshard.sharding import Mesh, NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.testing import virtual_devices
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
    assert not re.search(r"url\((?!#)", text)  # its own patterns only
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
    for words in (whole_text(plan.bytes_moved), "What moves", "Blocks before and after", "Why so"):
        assert words in said
    assert len(text) < 1_000_000


def test_a_page_and_its_drawings_have_one_style_sheet():
    text = PLANS["striped"]().to_html()
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
    said, printed = read(plan._repr_html_()).texts, plan_table(plan, width=200)
    facts = [text for fact in facts_of(plan) for text in fact]
    table = arrays_table(plan, 9)
    for text in (*facts, *table.head, *(cell for row in table.rows for cell in row), *table.notes):
        assert not text or text in said
        if text != "arrays":  # names that are too long have lines of their own
            assert all(word in printed for word in text.split())


def test_the_alternatives_are_in_the_page():
    said = " ".join(read(PLANS["striped"]().to_html()).texts)
    assert "every sender would send its shard four times" in said
    assert "the window is too small for a whole copy" in said
    assert "Its steps, and 2 other routes" in said


def test_a_plan_of_nothing_is_a_page_too():
    assert "0 arrays" in " ".join(read(Plan([]).to_html()).texts)


def test_names_are_escaped():
    a = laid((4,), (2,), [0, 1])
    plan = Plan([PlanLeaf("<b>&\x00\ud800", a, a, 1, "float<8>", "P('<')", 'P("&")')])
    text = plan.to_html()
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
    assert flow.amounts.shape == (50, 50)  # of two devices each
    root, cells = rectangles(flow_svg(flow))
    told = [c.find(f"{SVG}title").text for c in cells]
    assert len(cells) == (flow.amounts > 0).sum() + 50 + 50  # and the sums at the edges
    assert any(re.match(r"0-1 to 2-3: [\d,]+ bytes", text) for text in told)
    assert "neighbouring devices stand together" in "".join(root.itertext())
    inside(root)


def test_of_forty_devices_each_has_its_own_row():
    before, after = laid((40, 40), (40, 1), range(40)), laid((40, 40), (1, 40), range(40))
    root, cells = rectangles(flow_svg(flow_of(Plan([PlanLeaf("x", before, after, 1)]), 0)))
    assert len(cells) == 40 * 39 + 40 + 40
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


HOSTS = Topology(
    "hosts of two",
    (Level("host", latency=0.0, bandwidth=10.0, size=2), Level("all", latency=0.0, bandwidth=1.0)),
)


def test_bytes_between_hosts_are_those_between_their_devices():
    plan = SMALL["model"]().on(HOSTS)
    hosts = hosts_of(plan)
    assert hosts.name == "host"
    each, groups = flow_of(plan, 0), flow_of(plan, 0, places=hosts)
    assert groups.unit == "host"
    assert groups.senders == tuple((n, n) for n in range(8))
    assert groups.receivers == tuple((n, n) for n in range(8, 11))
    expected = each.amounts.reshape(8, 2, 3, 2).sum(axis=(1, 3))
    assert np.array_equal(groups.amounts, expected)


def test_without_a_topology_hosts_are_processes_or_not_known():
    assert hosts_of(SMALL["transpose"]()) is None
    one = Topology("one", (Level("all", latency=0.0, bandwidth=1.0),))
    assert hosts_of(SMALL["transpose"]().on(one)) is None
    rows = NamedSharding(Mesh(virtual_devices(8, devices_per_process=4), "x"), P("x"))
    x = meshard.ShapeDtypeStruct((8, 8), "float32", sharding=rows)
    plan = meshard.plan_reshard(x, NamedSharding(rows.mesh, P(None, "x")))
    assert hosts_of(plan).name == "process"
    assert hosts_of(plan).of(np.array([0, 3, 4, 7])).tolist() == [0, 0, 1, 1]


def large(shapes, topology=None, **options):
    """A tree that moves from 256 devices that train to 128 that serve."""
    devices = np.array(virtual_devices(384, devices_per_process=8))
    train = NamedSharding(Mesh(devices[:256], ("fsdp",)), P("fsdp"))
    serve = Mesh(devices[256:].reshape(16, 8), ("data", "model"))
    tree = {n: meshard.ShapeDtypeStruct(s, "bfloat16", sharding=train) for n, s in shapes.items()}
    places = {n: NamedSharding(serve, P("model")) for n in shapes}
    return meshard.plan_reshard(tree, places, topology=topology, **options)


def test_a_large_tree_has_hosts_first_and_a_small_page():
    shapes = {f"layers.{k}.{n}": (1024 * (1 + n), 512) for k in range(20) for n in range(15)}
    plan = large(shapes, "8-gpu hosts")
    text = plan.to_html()
    assert len(text) < 1_000_000
    reader = read(text)
    said = " ".join(reader.texts)
    where = [said.index(words) for words in ("time", "limit", "Bytes between hosts", "What moves")]
    assert where == sorted(where)
    assert "256 imaginary devices" in said
    assert said.index("Blocks before and after") > where[-1]
    folded = [i for i, (tag, _) in enumerate(reader.tags) if tag == "details"]
    drawn = [i for i, (tag, _) in enumerate(reader.tags) if tag == "svg"]
    assert sum(i < folded[0] for i in drawn) <= 3  # the flows of hops; tilings are folded


def test_a_page_is_small_however_many_groups_there_are():
    """What is shown of a tree has limits: rows, blocks, hosts, reasons, and lengths of names."""

    def plan(count):
        shapes = [(256 * (n + 1), 8) for n in range(count)]
        pairs = [(laid(s, (256, 1), range(256)), laid(s, (64, 1), range(128))) for s in shapes]
        return Plan([PlanLeaf("w" * 300 + f"{n}", *pair, 2) for n, pair in enumerate(pairs)])

    few, many = (plan(count).to_html() for count in (70, 280))
    assert len(many) < 1.1 * len(few) < 1_000_000
    assert "and 220 more arrays in 220 groups" in many


@pytest.mark.parametrize("count", [16, 32, 64, 256])
def test_a_page_is_small_however_many_devices_and_hops_there_are(count):
    """Everything goes to everything, five times over, for reasons that are told at length."""
    hosts = Topology("twos", (Level("host", 0.0, 9.0, size=2), Level("all", 0.0, 1.0)))
    leaves, choices = [], []
    for number in range(5):
        shape, ids = (count * (number + 1), count, 4), range(count)
        grids = ((count, 1, 1), (1, count, 1), (count, 1, 1), (1, count, 1), (count // 2, 2, 1))
        layouts = [laid(shape, grid, ids) for grid in grids]
        way = Route("around", tuple(layouts))
        texts = ("float32", "P('axis', " * 30, "P()")
        leaves.append(PlanLeaf("w" * 400 + f"{number}", layouts[0], layouts[-1], 4, *texts))
        found = figures_of(way, 4)
        others = tuple([Candidate(f"other {n}", found, "because " * 99) for n in range(10)])
        choices.append(Choice(way, found, f"why {number} " * 99, others))
    assert len(Plan(leaves, choices).on(hosts).to_html()) < 1_000_000


def test_a_layout_of_many_blocks_is_a_schematic():
    rows = laid((1024, 8), (256, 1), range(256))
    assert len(schematic(rows, "device").slabs[0].rectangles) == 6
    few = laid((64, 8), (64, 1), range(64))
    assert len(schematic(few, "device").slabs[0].rectangles) == 64
    assert "not all blocks are shown: there are 256" in layout_picture(schematic(rows, "device"))


def test_what_limits_is_framed():
    plan = SMALL["model"]().on(HOSTS)
    limit = plan.simulation.limit
    assert limit.name == "host 8"
    flow = flow_of(plan, 0, places=hosts_of(plan))
    framed = flow_svg(flow, marked=limit.name)
    assert framed.count("stroke:var(--meshard-ink)") == 1
    assert "stroke:var(--meshard-ink)" not in flow_svg(flow, marked="device 3")
    assert "host 8 receives" in framed


def test_a_page_counts_no_flow_twice(monkeypatch):
    """Printing and drawing a plan of many groups costs each hop a few sums, and no group more."""
    listed = Counter()
    real = Hop.jobs

    def counting(hop):
        listed[hop] += 1
        return real(hop)

    plan = SMALL["model"]().on(HOSTS)
    monkeypatch.setattr(Hop, "jobs", counting)
    assert "alone" in str(plan)
    assert set(listed.values()) == {2}  # once for the whole, once by itself
    listed.clear()
    plan.to_html()
    assert max(listed.values()) <= 4  # by itself, for two drawings, and for its messages


def inside(root):
    """Everything that is drawn lies inside the picture."""
    _, _, width, height = map(float, root.get("viewBox").split())
    moved = [g for g in root.findall(f"{SVG}g") if g.get("transform")]
    for group in (root, *moved):
        left, top = map(float, re.findall(r"[\d.]+", group.get("transform", "0 0")))
        apart = {id(one) for g in moved for one in g.iter()} if group is root else ()
        for one in group.iter():
            if one.tag in (f"{SVG}rect", f"{SVG}text") and id(one) not in apart:
                x, y, w, h = (float(one.get(k, 0)) for k in ("x", "y", "width", "height"))
                assert 0 <= left + x <= left + x + w <= width
                assert 0 <= top + y <= top + y + h <= height
