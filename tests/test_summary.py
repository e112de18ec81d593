"""Summaries: the result first, in text and on a page; and all plans that are told by one."""

from xml.etree import ElementTree

import numpy as np
import pytest

import meshard
from meshard import checkpoint, elastic, resharding
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summary
from meshard.sharding import Mesh, NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.testing import virtual_devices

FACTS = [
    Fact("read", "64 bytes", "each byte once, " + "by one of many processes, " * 4),
    Fact("x", "1"),
]
TABLE = Table(("array", "bytes"), [("a", "8"), ("b", "16")], "<>")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_summary_fits_the_width(width):
    nested = Summary("A part", [Fact("part", "1")], [TABLE])
    found = Summary("A long headline of " + "many words " * 9, FACTS, [TABLE], [nested])
    lines = found.text(width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("A long headline")
    assert lines.index("A part") > lines.index("array  bytes")
    assert "read  64 bytes  each byte once" in found.text(width)


def test_a_page_has_all_that_the_text_has():
    nested = Summary("A part", [Fact("part", "1")], [TABLE])
    text = "".join(Summary("Read <all>", FACTS, [TABLE], [nested]).parts())
    root = ElementTree.fromstring(f"<div>{text}</div>")
    said = "".join(root.itertext())
    for words in ("64 bytes", "each byte once", "A part", "16"):
        assert words in said
    assert "Read" not in said  # the headline is the page's


def struct(devices, shape=(64, 16), spec=P("x")):  # noqa: B008  (it is immutable)
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), spec, uneven="balanced")
    return meshard.ShapeDtypeStruct(shape, "float32", sharding=sharding)


def plans(folder):
    """A plan of each kind, and how its first line begins: with the result."""
    devices = virtual_devices(6, devices_per_process=1)
    place = NamedSharding(Mesh(np.array(devices[4:]), ("x",)), P())
    w = struct(devices[:4])
    checkpoint.save(folder, {"w": np.zeros((64, 16), "f4")})
    bounds = resharding.bounds_of(w.sharding.layout(w.shape), place.layout(w.shape))
    plan = meshard.plan_reshard(w, place)

    def alive(some):
        return struct(some).sharding

    return {
        "Plan: 1 array, 4.0 KiB, from 4 imaginary devices": plan,
        "6.01 us on 8-gpu hosts for 8,192 bytes": plan.simulate("8-gpu hosts"),
        "At least 2,048 elements must move": bounds,
        "Load 1 array, 4,096 bytes, from ": checkpoint.plan_load(folder, place),
        "Save 1 array, 4,096 bytes, by 4 processes": checkpoint.plan_save({"w": w}),
        "Publish: 8,192 bytes for each version": elastic.plan_publish({"w": w}, place),
        "Safe: 1 array can be restored": elastic.plan_restore(
            {"w": struct(devices, spec=P())}, alive(devices[:3]), alive=devices[:3]
        ),
        "Not safe: 1,024 bytes of 1 array are lost": elastic.plan_restore(
            {"w": w}, alive(devices[1:3]), alive=devices[1:4]
        ),
        "Not safe: 1 of 4 processes die, and 1,024 bytes are lost": elastic.simulate_loss(
            {"w": w}, alive, [0]
        ),
        "Safe: 1 of 4 processes die, and nothing is lost; it is back in ": elastic.simulate_loss(
            {"w": w}, alive, [0], copies=1, topology="8-gpu hosts"
        ),
        "Protect 1 array, 1 copy apart by process, in 4 processes: 4,096 bytes of copies": (
            elastic.simulate_loss({"w": w}, alive, [0], copies=1).protected
        ),
    }


def test_the_first_line_says_the_result(tmp_path):
    for begin, plan in plans(tmp_path / "w").items():
        text, page = str(plan), plan.to_html()
        assert " ".join(text.split()).startswith(begin.strip()), text
        assert text.isascii()
        assert all(len(line) <= 100 for line in text.splitlines())
        first = " ".join(begin.split()[:4])
        assert first in page
        ElementTree.fromstring(plan._repr_html_())
        path = plan.save_html(tmp_path / "plan.html")
        assert path.read_text(encoding="utf-8") == page
