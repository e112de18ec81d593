"""Forms for notebooks: of every public value that has one, well formed, in one piece, bounded."""

import inspect
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import meshard
import meshard.checkpoint
import meshard.elastic
import meshard.numpy as mnp
from meshard import lax
from meshard.algebra.pictured import HasDrawing, HasPage
from meshard.debug import Ledger, Profile
from meshard.plan.captions import PALETTE, ink
from meshard.plan.show.page import DARK, LIGHT, SHEET
from meshard.plan.show.record import Record
from meshard.runtime.watching.run_pictures import Lane, lanes_svg
from meshard.runtime.watching.trace_file import Event
from meshard.sharding import NamedSharding, P

from .worlds import mesh, put

SVG = "{http://www.w3.org/2000/svg}"
ODD = '<x&">'


def model(x, w):
    h = mnp.tanh(x @ w)
    return {"sorted": mnp.sort(h, axis=0), ODD: (h * h).sum()}


def loop(x):
    return lax.fori_loop(0, 10, lambda i, c: c @ c.T @ c, x)


def moved():
    """A ledger and a profile of a run, and the function that ran."""
    step = meshard.jit(model)
    x, w = put(np.ones((8, 8)), "i", "j"), put(np.ones((8, 8)), None, "j")
    with meshard.debug.ledger() as log, meshard.debug.profile() as seen:
        step(x, w)
        mnp.sort(x, axis=0)
    return step, x, w, log, seen


def donated():
    x = put(np.ones((8, 4)), "i")
    meshard.jit(lambda a: a + 1, donate_argnums=0)(x)
    return x


def odd_ledger():
    log = Ledger()
    log._add(Record(ODD, ODD, (ODD,), ODD, {0: 5, 3: 7}, f"/tmp/{ODD}.py:3"))
    return log


def forms():
    step, x, w, log, seen = moved()
    lowered = step.lower(x, w)
    return {
        "array": x,
        "scalar": mnp.asarray(2.5),
        "donated": donated(),
        "shard": x.addressable_shards[1],
        "struct": meshard.ShapeDtypeStruct((8, 4), "f4", sharding=x.sharding),
        "mesh": mesh(),
        "odd mesh": meshard.make_mesh((2,), (ODD,)),
        "sharding": x.sharding,
        "odd sharding": NamedSharding(meshard.make_mesh((2,), (ODD,)), P(ODD)),
        "ledger": log,
        "empty ledger": Ledger(),
        "odd ledger": odd_ledger(),
        "budget": Ledger(100, 50),
        "profile": seen,
        "empty profile": Profile(),
        "jitted": step,
        "not called": meshard.jit(loop),
        "builtin": meshard.jit(np.sin),
        "traced": step.trace(x, w),
        "lowered": lowered,
        "compiled": lowered.compile(),
        "explanation": meshard.explain(model, x, w),
        "loop": meshard.explain(loop, put(np.ones((8, 8)), "i", "j")),
    }


@pytest.fixture(scope="module")
def made():
    return forms()


NAMES = [
    *("array", "scalar", "donated", "shard", "struct", "mesh", "odd mesh", "sharding"),
    *("odd sharding", "ledger", "empty ledger", "odd ledger", "budget", "profile"),
    *("empty profile", "jitted", "not called", "builtin", "traced", "lowered", "compiled"),
    *("explanation", "loop"),
]


def parts_of(text):
    """What a page consists of, once it is known to be in one piece."""
    page = ElementTree.fromstring(text.partition("\n")[2])
    tags = {one.tag for one in page.iter()}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", f"{SVG}image"})
    for one in page.iter():
        assert {"src", "href", "onclick", "onload"}.isdisjoint(one.keys())
    assert set(re.findall(r"https?://[^\"' <]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert "@import" not in text
    return page


@pytest.mark.parametrize("name", NAMES)
def test_a_form_is_well_formed_and_in_one_piece(made, name):
    value = made[name]
    assert isinstance(value, HasPage)
    shown, page = value._repr_html_(), value.to_html()
    root = ElementTree.fromstring(shown)
    assert root.get("class") == "meshard"
    assert root.findtext("h2")
    assert len(root.findall(".//style")) == 1
    assert parts_of(page).findtext("head/title") == root.findtext("h2")
    assert ODD not in page
    assert value._repr_html_() == shown
    for drawing in root.iter(f"{SVG}svg"):
        assert drawing.get("role") == "img"
        assert drawing.get("aria-label")
        inside(drawing)
    if isinstance(value, HasDrawing):
        svg = value.to_svg()
        inside(ElementTree.fromstring(svg))
        assert svg == value.to_svg()
    # Styles apply to the whole notebook: each rule must be about what is ours.
    for selectors in re.findall(r"([^{}]+)\{", root.findtext(".//style")):
        if not selectors.startswith("@media") and ":is(.meshard," not in selectors:
            apart = re.sub(r"\([^)]*\)", "()", selectors).split(",")
            assert all(one.startswith(".meshard") for one in apart), selectors


def inside(drawing):
    """Nothing is drawn outside of the picture."""
    wide, high = float(drawing.get("width")), float(drawing.get("height"))
    for group in (drawing, *drawing.iter(f"{SVG}g")):
        x, y = map(float, re.findall(r"[\d.]+", group.get("transform", "0 0")))
        for one in group.findall(f"{SVG}rect"):
            assert 0 <= x + float(one.get("x")) <= wide - float(one.get("width")) + 0.01
            assert 0 <= y + float(one.get("y")) <= high - float(one.get("height")) + 0.01
        for one in group.findall(f"{SVG}text"):
            assert 0 <= x + float(one.get("x")) <= wide
            assert 0 <= y + float(one.get("y")) <= high


def test_every_form_of_the_list_is_tried(made):
    assert list(made) == NAMES
    tried = {type(value) for value in made.values()}
    for door in (meshard, meshard.debug, meshard.sharding):
        for name in dir(door):
            found = getattr(door, name)
            if (
                inspect.isclass(found)
                and issubclass(found, HasPage)
                and not inspect.isabstract(found)
            ):
                assert any(issubclass(kind, found) for kind in tried) or name in (
                    "SingleDeviceSharding",
                    "AbstractMesh",
                    "BoxSharding",
                ), name


def test_a_ledger_of_many_records_and_lines_and_devices_is_bounded():
    log = Ledger()
    for number in range(20_000):
        received = {number % 3000: number + 1}
        log._add(Record("sort", "move", ("i",), "f4[8]", received, f"/tmp/a{number}.py:{number}"))
    text = log.to_html()
    assert len(text) < 250_000
    assert "and 19,900 more rows" in text
    assert "and 19,988 more lines" in text
    assert "each column is 94 neighbouring devices" in text
    assert len(log.to_svg()) < 200_000


def test_the_heat_map_has_what_each_device_receives():
    _, _, _, log, _ = moved()
    root = ElementTree.fromstring(log.to_svg())
    told = [t.text for t in root.iter(f"{SVG}title")]
    found = {}
    for text in told:
        match = re.fullmatch(r"all lines, device (\d+): ([\d,]+) bytes", text)
        if match:
            found[int(match[1])] = int(match[2].replace(",", ""))
    assert found == {d: n for d, n in log.received.items() if n}
    words = ElementTree.fromstring(log._repr_html_()).findall("p")[0].text
    assert words.startswith(f"{log.total_bytes:,} bytes over all devices")


def event(name, start, stop, category="step", devices=()):
    found = Event(name, category, "model.py:1", 0, start)
    found.stop, found.devices = stop, devices
    return found


def test_a_timeline_has_a_box_for_each_event_where_it_was():
    outer, inner = event("outer", 100, 900), event("inner", 110, 210, "move")
    root = ElementTree.fromstring(lanes_svg([Lane("thread 0", [inner, outer])], 0, 1000))
    boxes = {
        one.findtext(f"{SVG}title").partition(" ")[0]: one
        for one in root.iter(f"{SVG}rect")
        if one.find(f"{SVG}title") is not None
    }
    width = {name: float(box.get("width")) for name, box in boxes.items()}
    assert width["outer"] == pytest.approx(8 * width["inner"])
    first, second = (float(boxes[n].get("x")) for n in ("outer", "inner"))
    assert second - first == pytest.approx(width["inner"] / 10)
    assert float(boxes["inner"].get("height")) < float(boxes["outer"].get("height"))
    # The outer's name would stand below the inner box.
    assert "outer" not in [t.text for t in root.iter(f"{SVG}text")]


def test_a_timeline_of_many_events_is_bounded():
    events = [event("e", 10 * n, 10 * n + 1 + n % 7) for n in range(50_000)]
    text = lanes_svg([Lane("thread 0", events), Lane("cpu:0", events)], 0, 500_000)
    assert len(text) < 200_000
    assert "of each lane the 200 longest; 99,600 not drawn" in text


def test_a_jitted_function_shows_the_programs_that_it_keeps():
    step = meshard.jit(model)
    assert "no program yet" in step._repr_html_()
    x, w = put(np.ones((8, 8)), "i", "j"), put(np.ones((8, 8)), None, "j")
    step(x, w)
    step(x, x)
    root = ElementTree.fromstring(step._repr_html_())
    assert root.findtext("h2") == "jit of model(x, w)"
    assert root.findtext("p") == "2 programs, one for each kind of arguments"
    rows = [[cell.text for cell in row] for row in root.iter("tr")][1:]
    assert [row[0] for row in rows] == ["x: float64[8,8], w: float64[8,8]"] * 2
    assert rows[0][1] == "float64[], float64[8,8]"


def test_a_function_with_many_arguments_and_programs_is_bounded():
    many = meshard.jit(lambda *a: sum(a))
    for count in range(3, 30):
        many(*[mnp.ones(2)] * count)
    text = many._repr_html_()
    assert "and 7 older programs" in text
    wide = many.lower(*[mnp.ones(2)] * 300)
    assert "and 240 more" in wide._repr_html_()
    assert len(wide._repr_html_()) < 250_000


def test_a_stage_shows_costs_arguments_results_and_steps(made):
    words = " ".join(ElementTree.fromstring(made["compiled"]._repr_html_()).itertext())
    assert "model, compiled: " in words
    for text in ("operations on numbers", "P('i', 'j')", "result['sorted']", "Steps", "all-"):
        assert text in words
    assert "model, traced: " in made["traced"]._repr_html_()
    assert "tanh" in made["traced"]._repr_html_()


def test_explanations_are_written_where_asked(made, tmp_path):
    told, path = made["explanation"], tmp_path / "told.html"
    assert told.to_html(path) == told.to_html() == path.read_text(encoding="utf-8")
    assert told.save_html(path) == path
    assert "<svg" in told.save_svg(tmp_path / "told.svg").read_text(encoding="utf-8")


def test_what_prints_as_a_table_is_shown_as_one(tmp_path):
    meshard.checkpoint.save(tmp_path / "a", {ODD: put(np.ones((8, 4)), "i"), "w": mnp.ones(3)})
    found = meshard.checkpoint.metadata(tmp_path / "a")
    root = ElementTree.fromstring(found._repr_html_())
    assert root.findtext("h2").endswith(": 2 tensors, 280 bytes")
    assert [row[0].text for row in root.iter("tr")][1:] == list(found.tensors)
    rules = meshard.checkpoint.KeyMap().rename("a<{i}>", "b.{i}")
    root = ElementTree.fromstring(rules._repr_html_())
    assert root.findtext("pre") == str(rules)
    back = meshard.elastic.Recovery((1,), (), (0, 2), "psum", 3, "In[2]:4", 0.5)
    assert ElementTree.fromstring(back._repr_html_()).findtext("pre") == str(back)


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_texts_can_be_read(theme):
    # What the Web Content Accessibility Guidelines ask for small text.
    for text in ("ink", "faint"):
        assert contrast(theme[text], theme["card"]) >= 4.5
    assert contrast(theme["faint"], theme["gap"]) >= 4.5
    for color in PALETTE:
        assert contrast(ink(color), color) >= 4.5


def test_a_form_that_is_put_into_another_page_takes_its_theme_from_it():
    for said in (
        "[data-theme=dark]",  # Furo, PyData
        "[data-jp-theme-light=false]",  # JupyterLab, Notebook 7, nbconvert
        ".vscode-dark",
        "html[theme=dark]",  # Colab
    ):
        assert said in SHEET
        rule = SHEET[SHEET.index(said) :]
        assert rule[: rule.index("}")].endswith(f"--meshard-hot:{DARK['hot']}")
