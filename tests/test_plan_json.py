"""Plans as JSON: what is written is read again, and what is damaged is refused."""

import functools
import json
import subprocess
import sys
import textwrap
from collections import OrderedDict

import numpy as np
import pytest

import meshard
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, even_cuts
from meshard.errors import ArgumentError, DtypeError, PlanError, ShapeError, TreeError
from meshard.plan.figures.choice import Choice, PlanLeaf, figures_of
from meshard.plan.hops.hop import Route
from meshard.plan.plan import Plan
from meshard.plan.views.plan_json import VERSION, _checksum
from meshard.resharding import plan_reshard
from meshard.sharding import AxisType, BoxSharding, Mesh, NamedSharding, P, SingleDeviceSharding
from meshard.testing.virtual import virtual_devices
from tests.plans import PLANS, SMALL, laid
from tests.worlds import alone, everywhere, in_worlds
from tests.worlds import mesh as mesh_of
from tests.worlds import put as put_array
from tests.worlds import whole as whole_array

GRID = np.arange(128.0).reshape(8, 16)


def figures(plan):
    return (
        plan.bytes_moved,
        plan.lower_bound_bytes,
        plan.sent,
        plan.received,
        plan.peak_bytes,
        plan.rounds,
        plan.send_bound_bytes,
        plan.device_count,
    )


@pytest.mark.parametrize("name", PLANS)
def test_what_is_written_is_read(name):
    plan = PLANS[name]()
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert figures(again) == figures(plan)
    assert str(again) == str(plan)


def test_options_and_dead_devices_are_kept():
    a, b = laid((8,), (2,), range(4)), laid((8,), (4,), range(4))
    way = Route("direct", (a, b), "it is short", split=False, alive=(0, 2, 3))
    plan = Plan(
        [PlanLeaf("x", a, b, 4)],
        [Choice(way, figures_of(way, 4), "chosen")],
        max_bytes=7,
        donate=True,
        alive=[3, 2, 0],
        rounds=9,
    )
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert (again.max_bytes, again.donate, again.alive, again.rounds) == (7, True, (0, 2, 3), 9)
    assert again.routes[0].alive == (0, 2, 3)
    assert not again.routes[0].split
    assert Plan.from_json(Plan([]).to_json()) == Plan([])


def test_a_plan_is_read_in_a_fresh_process(tmp_path):
    plan, path = PLANS["model"](), tmp_path / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    code = """
        import sys
        from pathlib import Path
        from meshard.plan.plan import Plan
        plan = Plan.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
        plan.check()
        print(plan)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(plan)


@pytest.mark.parametrize("name", SMALL)
def test_another_program_can_do_what_the_transfers_say(name):
    plan = SMALL[name]()
    if plan.nbytes > 1 << 20:
        plan = Plan([leaf for leaf in plan.leaves if len(leaf.shape) == 1])
    whole = json.loads(plan.to_json(transfers=True))
    assert Plan.from_json(json.dumps(whole)) == plan

    # With nothing but the text: a dict of devices' memories, filled by the listed boxes.
    def cells(form):
        if "boxes" in form:
            for (starts, stops), ids in zip(form["boxes"], form["holders"], strict=True):
                for device in ids:
                    yield device, tuple(map(slice, starts, stops))
            return
        cuts = [
            np.cumsum([0] + [n for n, count in runs for _ in range(count)])
            for runs in form["lengths"]
        ]
        ids = form["devices"]
        assert isinstance(ids, list)
        grid = [len(c) - 1 for c in cuts]
        for number, device in enumerate(ids):
            place = np.unravel_index(number // form["replicas"], grid)
            yield device, tuple(slice(c[i], c[i + 1]) for c, i in zip(cuts, place, strict=True))

    for number, choice in enumerate(whole["choices"]):
        forms = [whole["layouts"][i] for i in choice["route"]["layouts"]]
        labels = np.arange(np.prod(forms[0]["shape"])).reshape(forms[0]["shape"])
        memory = {}
        for device, box in cells(forms[0]):
            memory.setdefault(device, np.full(labels.shape, -1))[box] = labels[box]
        moved = 0
        for hop, form in enumerate(forms[1:]):
            new = {}
            for device, box in cells(form):
                new.setdefault(device, np.full(labels.shape, -1))
                if device in memory:
                    new[device][box] = memory[device][box]
            for which, stage, sender, receiver, starts, stops in whole["transfers"]:
                if (which, stage) == (number, hop):
                    box = tuple(map(slice, starts, stops))
                    new[receiver][box] = memory[sender][box]
                    moved += labels[box].size
            for device, box in cells(form):
                assert (new[device][box] == labels[box]).all()
            memory = new
        assert moved * plan.groups[number][0].itemsize == choice["figures"]["bytes_moved"]


def test_transfers_are_boxes_of_the_array():
    found = list(PLANS["striped"]().transfers())
    assert len(found) == 8 + 12
    assert {t.hop for t in found} == {0, 1}
    assert sum(t.box.volume for t in found) == 4 * 16 + 4 * 48
    assert found[0]._fields == ("choice", "hop", "sender", "receiver", "box")


@pytest.mark.parametrize(
    "ids",
    [np.arange(300), np.arange(300)[::-1], np.random.default_rng(0).permutation(300) + (1 << 40)],
)
def test_many_devices_take_little_room(ids):
    layout = Layout((600,), (even_cuts(600, 300),), np.ascontiguousarray(ids).reshape(300, 1))
    plan = Plan([PlanLeaf("x", layout, layout, 1)])
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert len(text) < 3500


# damage


def edited(change, *, signed=True):
    """The JSON of a plan after a change, with or without a new checksum."""
    whole = json.loads(PLANS["striped"]().to_json())
    change(whole)
    if signed:
        whole["checksum"] = _checksum(whole)
    return json.dumps(whole)


def refused(text):
    with pytest.raises(PlanError) as error:
        Plan.from_json(text)
    assert str(error.value).startswith("Plan.from_json: this is not a plan that can be trusted: ")
    return str(error.value)


def test_a_cut_text_is_refused_wherever_it_was_cut():
    text = PLANS["striped"]().to_json()
    for stop in range(0, len(text) - 1, 7):
        said = refused(text[:stop])
        assert "ends too early" in said, said
        assert f"of {stop:,}" in said
    assert "is not JSON" in refused(f"{text[:40]}?{text[40:]}")


def test_an_edited_text_is_refused():
    def more(whole):
        whole["choices"][0]["figures"]["bytes_moved"] += 1

    assert "it was changed after it was written" in refused(edited(more, signed=False))


def test_another_version_is_refused():
    def newer(whole):
        whole["version"] = VERSION + 1

    for signed in (True, False):
        said = refused(edited(newer, signed=signed))
        assert f"of version {VERSION + 1}, and this library reads version {VERSION}" in said


@pytest.mark.parametrize("text", ["[]", "{}", "3", '{"format": "other"}'])
def test_another_format_is_refused(text):
    assert 'is not an object of format "meshard.plan"' in refused(text)


def put(*path, to):
    def change(whole):
        at = whole
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to

    return change


def without(*path):
    def change(whole):
        at = whole
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("layouts"), "has no entry 'layouts'"),
        (without("choices", 0, "route", "why"), "has no entry 'why'"),
        (without("choices", 0), "its 1 arrays need 1 choices, and it has 0"),
        (put("layouts", to=3), "is malformed: expected a list, got 3"),
        (put("options", to=[]), "is malformed: expected an object, got []"),
        (
            put("options", "max_bytes", to=-1),
            "max_bytes must be a positive number of bytes, or None",
        ),
        (put("options", "alive", to=[-1]), "alive must be a collection of devices or their ids"),
        (put("options", "max_bytes", to="x"), "is malformed: expected an integer, got 'x'"),
        (put("leaves", 0, "itemsize", to=-4), "array 0 has -4 bytes per element"),
        (put("layouts", 0, "devices", 0, to=1 << 70), "is malformed"),
        (put("leaves", 0, "source", to=77), "is malformed: list index out of range"),
        (put("choices", 0, "count", to=2), "choice 0 counts 2 arrays, and 1 share it"),
        (
            put("totals", "bytes_moved", to=3),
            "bytes_moved is 3, but by its layouts and routes it is",
        ),
        (put("layouts", 0, "devices", to=[1, 2]), "has 2 devices for 8 shards of 1 replicas"),
        (put("layouts", 0, "devices", 0, to=1), "layout 0 names a device twice"),
        (put("layouts", 0, "devices", 0, to=-1), "or has a negative id"),
        (put("layouts", 0, "lengths", 0, to=[[1, 7]]), "have 7 elements, not 8"),
        (put("layouts", 0, "lengths", 0, to=[[1, 1 << 60]]), "do not fit into a dim of 8"),
        (put("layouts", 0, "lengths", 0, to=[[-1, 2]]), "do not fit into a dim of 8"),
        (put("layouts", 0, "devices", to={"runs": [[0, 1 << 60]]}), "it does not list 8 devices"),
        (put("layouts", 0, "devices", to={"zlib": "?"}), "cannot be unpacked"),
        (put("layouts", 0, "devices", to={"zlib": "AAAA"}), "cannot be unpacked"),
        (put("choices", 0, "route", "layouts", to=[0]), "passes through 1 layouts"),
        (
            put("layouts", 0, to={"shape": [4], "lengths": [[[4, 1]]], "replicas": 1}),
            "has no entry 'devices'",
        ),
        (
            put(
                "layouts",
                0,
                to={"shape": [4], "lengths": [[[4, 1]]], "replicas": 1, "devices": [0]},
            ),
            "array 0 has shape (4,) before and (8, 8) afterwards",
        ),
        (
            put(
                "layouts",
                0,
                to={"shape": [8, 8], "cuts": [[0, 8]] * 2, "boxes": [[[0, 0], [9, 8]]]}
                | {"holders": [[0]]},
            ),
            "the boxes of layout 0 reach beyond its shape (8, 8)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_even_if_it_is_signed(change, words):
    assert words in refused(edited(change))


def test_choices_of_other_shapes_are_refused():
    def change(whole):
        a = {"shape": [4], "lengths": [[[4, 1]]], "replicas": 1, "devices": [0]}
        whole["layouts"].append(a)
        whole["choices"][0]["route"]["layouts"] = [3, 3]

    assert "choice 0 moves shape (4,), and its arrays have (8, 8)" in refused(edited(change))


@pytest.mark.parametrize("odd", [None, 3, 2.5, b"{}", [], {}, Plan([]), np.array("x")])
def test_what_is_no_text_is_refused(odd):
    assert "not the text of a plan" in refused(odd)


def test_texts_that_no_parser_survives_are_refused():
    texts = [
        "[" * 100_000,
        '{"format":' * 50_000,
        "1" * 5000,
        "NaN",
        "\ud800",
        '{"version": 1e999}',
    ]
    for text in texts:
        refused(text)
    refused('{"format": "meshard.plan", "version": 2, "checksum": ' + "[" * 900 + "]" * 900 + "}")


def test_an_older_file_says_what_to_do():
    said = refused(edited(put("version", to=1)))
    assert "of version 1, and this library reads version 2. Make the plan with this library" in said


def places(value, path=()):
    """All places in a JSON value, the value itself included."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


ODD = [None, -1, 7, 10**30, 2.5, True, "x", [], {}, [[]], [None, "x", -3], {"runs": [[0, -5]]}]


@pytest.mark.parametrize("name", ["named", "boxes"])
def test_a_signed_text_with_odd_values_is_refused_or_a_plan(name):
    """At every place of the text, one after the other."""
    text = placed_plans()[name].to_json()
    whole = json.loads(text)
    spots = [path for path in places(whole) if path and path != ("checksum",)]
    assert len(spots) > 60
    taken = 0
    for number, path in enumerate(spots):
        for odd in (ODD[number % len(ODD)], ODD[(number * 5 + 3) % len(ODD)]):
            whole = json.loads(text)
            put(*path, to=odd)(whole)
            whole["checksum"] = _checksum(whole)
            try:
                plan = Plan.from_json(json.dumps(whole))
            except PlanError:
                continue
            assert Plan.from_json(plan.to_json()) == plan
            taken += 1
    assert taken < len(spots)  # texts, names and the like may be anything


# where arrays lie


def placed_plans():
    """Plans of trees on meshes and devices of every kind."""
    devices = virtual_devices(8, devices_per_process=4)
    grid = np.empty(8, object)
    grid[:] = devices
    mesh = Mesh(grid.reshape(4, 2), ("x", "y"), (AxisType.Auto, AxisType.Explicit))
    turned = Mesh(grid[::-1].reshape(2, 4), ("a", "b"))
    one = SingleDeviceSharding(devices[3], memory_kind="pinned_host")
    boxes = BoxSharding((6, 4), {devices[5]: Box((0, 0), (6, 3)), devices[0]: Box((0, 2), (6, 4))})

    def struct(shape, dtype, sharding):
        return meshard.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    named = functools.partial(NamedSharding, mesh)
    trees = {
        "named": (
            {"wq": struct((8, 8), "float32", named(P("x"))), 3: [None, struct((), "int8", one)]},
            {"wq": NamedSharding(turned, P("a", "b")), 3: [None, named(P())]},
        ),
        "uneven": (
            [
                struct((7, 6), "bfloat16", named(P(("x", "y")), uneven="balanced")),
                struct((9,), "complex64", named(P("x"), uneven="ceil")),
                struct((9, 1), "bool", named(P("y"), uneven=((0, 2, 9),))),
            ],
            named(P(), memory_kind="unpinned_host"),
        ),
        "boxes": (
            {"a": struct((6, 4), "float64", boxes), "b": struct((6, 4), "float64", one)},
            {"a": None, "b": boxes},
        ),
        "huge": (struct((1 << 40, 1 << 40), "float64", named(P("x", "y"))), named(P("y"))),
    }
    return {name: plan_reshard(x, to, max_bytes=1 << 20) for name, (x, to) in trees.items()}


def test_shardings_paths_and_dtypes_come_back():
    for name, plan in placed_plans().items():
        again = Plan.from_json(plan.to_json())
        assert again == plan, name
        assert str(again) == str(plan)
        assert again._repr_html_() == plan._repr_html_()
        assert figures(again) == figures(plan)
        assert again.process_of == plan.process_of
        for a, b in zip(again.leaves, plan.leaves, strict=True):
            assert (a.path, a.dtype) == (b.path, b.dtype)
            for mine, theirs in ((a.sharding, b.sharding), (a.source_sharding, b.source_sharding)):
                assert mine == theirs
                assert repr(mine) == repr(theirs)
                assert mine.memory_kind == theirs.memory_kind
                assert mine.device_order == theirs.device_order
                assert [d.process_index for d in mine.device_order] == [
                    d.process_index for d in theirs.device_order
                ]
                if isinstance(mine, NamedSharding):
                    assert mine.mesh.axis_types == theirs.mesh.axis_types
    assert {leaf.path for leaf in placed_plans()["named"].leaves} == {"['wq']", "[3][1]"}
    assert placed_plans()["huge"].leaves[0].path == ""


def test_a_mesh_is_written_once():
    grid = np.empty(1 << 12, object)
    grid[:] = virtual_devices(1 << 12, devices_per_process=8)
    mesh = Mesh(grid.reshape(64, 64), ("x", "y"))
    x = meshard.ShapeDtypeStruct((1 << 12, 4), "f4", sharding=NamedSharding(mesh, P("x")))
    plan = plan_reshard([x] * 50, [NamedSharding(mesh, P("y", spec)) for spec in (None,) * 50])
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    whole = json.loads(text)
    assert len(whole["meshes"]) == 1
    assert len(whole["shardings"]) == 2
    assert len(text) < 50_000


@in_worlds
def test_a_plan_that_was_read_runs_as_the_one_that_was_written():
    x = {"wq": put_array(GRID, "i"), "wk": put_array(GRID, "j"), "n": None}
    target = NamedSharding(mesh_of(), P("j", "i"), uneven="balanced")
    plan = Plan.from_json(plan_reshard(x, target).to_json())
    moved = plan.run(x)
    assert moved["n"] is None
    for name in ("wq", "wk"):
        assert moved[name].sharding == target
        assert isinstance(moved[name].sharding, NamedSharding)
        assert (whole_array(moved[name]) == GRID).all()
    assert list(plan.run(OrderedDict([("wq", x["wq"]), ("wk", x["wk"])]))) == ["wq", "wk"]


@in_worlds
def test_a_plan_is_for_the_arrays_that_were_planned_alone():
    """Whatever is exchanged, renamed, or of another dtype or shape is refused by its name."""
    x = {"wq": put_array(GRID, "i"), "wk": put_array(GRID, "j")}
    target = NamedSharding(mesh_of(), P("j", "i"))
    plan = Plan.from_json(plan_reshard(x, target).to_json())
    refusals = [
        ({"wq": x["wk"], "wk": x["wq"]}, ArgumentError, "wk is not laid out as planned"),
        ({"wq": x["wq"], "wv": x["wk"]}, TreeError, r"no leaf \['wk'\], and the plan has no leaf"),
        ({"wq": x["wq"]}, TreeError, r"it has no leaf \['wk'\]\. Make a plan"),
        ({"wq": x["wq"], "wk": {"a": x["wk"]}}, TreeError, r"the plan has no leaf \['wk'\]\['a'\]"),
        (list(x.values()), TreeError, r"the plan has no leaf \[0\], \[1\]"),
        (
            {"wq": x["wq"], "wk": put_array(GRID.astype(np.complex128), "j")},
            DtypeError,
            "wk of float64, but the array has complex128",
        ),
        (
            {"wq": x["wq"], "wk": put_array(GRID.view(np.int64), "j")},
            DtypeError,
            "wk of float64, but the array has int64",
        ),
        (
            {"wq": x["wq"], "wk": put_array(GRID.T.copy(), "j")},
            ShapeError,
            r"wk of shape \(8, 16\), but the array has shape \(16, 8\)",
        ),
    ]
    for tree, error, words in refusals:
        with pytest.raises(error, match=words):
            plan.run(tree)
    assert all(not a.is_deleted() for a in x.values())
    far = plan_reshard(x, NamedSharding(Mesh(virtual_devices(99)[90:], "z"), P()))
    with pytest.raises(ArgumentError, match="planned for device 90, which does not exist here"):
        Plan.from_json(far.to_json()).run(x)


def test_a_plan_runs_where_its_devices_belong_to_other_processes():
    """Written in one process of eight devices, read in two of four."""

    def write():
        x = put_array(GRID, "i")
        return plan_reshard([x], NamedSharding(mesh_of(), P("j", "i"))).to_json()

    text = alone(write)

    def body():
        (y,) = Plan.from_json(text).run([put_array(GRID, "i")])
        assert y.sharding == NamedSharding(mesh_of(), P("j", "i"))
        return whole_array(y)

    assert (everywhere(body) == GRID).all()
