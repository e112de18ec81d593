"""What arrays print: as NumPy and JAX do, and only from what is shown."""

import math
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.algebra.device import Device
from meshard.runtime.array import show
from meshard.runtime.array.array import Array
from meshard.runtime.simulated import simulate
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from meshard.testing.strategies import box_shardings, placed_shapes

from .worlds import alone, mesh, put

GRID = np.arange(32.0).reshape(8, 4)


def as_numpy(value: np.ndarray) -> str:
    return np.array2string(value, prefix="Array(", suffix=",", separator=", ", max_line_width=75)


@pytest.mark.parametrize("spec", [(), ("i",), (None, "j"), ("i", "j")])
def test_a_repr_has_all_values_and_the_dtype(spec):
    assert repr(put(GRID, *spec)) == f"Array({as_numpy(GRID)}, dtype=float64)"
    assert str(put(GRID, *spec)) == str(GRID)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array(2.5), "Array(2.5, dtype=float64)"),
        (np.array([True, False]), "Array([ True, False], dtype=bool)"),
        (np.array([1 + 2j]), "Array([1.+2.j], dtype=complex128)"),
        (np.array([1, 2], ml_dtypes.bfloat16), "Array([1, 2], dtype=bfloat16)"),
        (np.zeros((0,), "i4"), "Array([], shape=(0,), dtype=int32)"),
        (np.zeros((3, 0)), "Array([], shape=(3, 0), dtype=float64)"),
        (np.array([-0.0, np.nan, np.inf]), "Array([-0., nan, inf], dtype=float64)"),
    ],
)
def test_reprs(value, text):
    assert repr(mnp.asarray(value)) == text


def test_a_repr_that_grows_too_long_keeps_jaxs_gap():
    with np.printoptions(linewidth=26):
        assert repr(mnp.arange(4)) == "Array([0, 1, 2, 3],      dtype=int64)"
        assert repr(mnp.arange(2)) == "Array([0, 1], dtype=int64)"


@given(st.data(), st.integers(0, 40), st.integers(1, 3))
def test_only_the_edges_are_needed_to_print_what_numpy_prints(data, threshold, edgeitems):
    if data.draw(st.booleans()):
        sharding, shape = data.draw(
            placed_shapes(uneven=(None, "balanced", "ceil"), devices=meshard.devices())
        )
    else:
        shape = tuple(data.draw(st.lists(st.integers(1, 12), max_size=3)))
        sharding = data.draw(box_shardings(shape, meshard.devices()))
    value = np.random.default_rng(0).normal(size=shape) * 10
    x = meshard.device_put(value, sharding)
    with np.printoptions(threshold=threshold, edgeitems=edgeitems):
        assert str(x) == str(value)
        if value.size:
            assert repr(x).startswith(f"Array({as_numpy(value)},")


def huge(*spec: str | None) -> Array:
    """An array of 10^12 elements whose blocks are one number, seen many times."""
    shape = (10**6, 10**6)
    sharding = NamedSharding(mesh(), P(*spec))
    kind = here().type_of(shape, np.dtype("f8"), sharding, True)
    blocks = tuple(
        np.broadcast_to(np.float64(piece), kind.layout.box(piece).shape)
        for piece in range(kind.layout.piece_count)
    )
    return Array(kind, blocks)


@pytest.mark.parametrize("spec", [("i", "j"), (None, "i"), ()])
def test_a_huge_array_prints_without_being_gathered(spec):
    def body() -> None:
        text = repr(huge(*spec))
        assert text.count("\n") == 6
        assert "..." in text
        assert str(huge(*spec)).count("...") == 8 - 1
        assert huge(*spec).item(10**12 - 1) == math.prod(mesh().shape.get(s, 1) for s in spec) - 1

    alone(body)


def test_a_deleted_array_still_has_a_repr():
    x = mnp.ones((2, 3))
    x.delete()
    assert repr(x) == str(x) == f"{x}" == "Array(shape=(2, 3), dtype=float64, deleted)"
    html = x._repr_html_()
    assert "It was deleted by delete() at " in html
    assert "<svg" not in html
    assert "<pre>" not in html


def test_a_spanning_array_shows_its_local_values_without_a_message():
    def body() -> str | None:
        x = put(GRID, "i")
        if meshard.process_index():
            return None  # who prints is alone in it
        assert str(x) == f"{x}" == f"{x:}" == repr(x)
        return repr(x)

    text, _ = simulate(2, 4, body, deadline=5)
    assert text.splitlines()[0] == (
        "Array(shape=(8, 4), dtype=float64, sharding=NamedSharding(mesh=Mesh('i': 4, 'j': 2), "
        "spec=P('i',), memory_kind=device))"
    )
    assert "  [0:2, 0:4] on devices 0, 1:\n  [[0. 1. 2. 3.]\n   [4. 5. 6. 7.]]" in text
    assert "  [2:4, 0:4] on devices 2, 3:" in text
    assert "[4:6" not in text


def test_of_many_local_pieces_some_are_shown():
    def body() -> str:
        flat = meshard.make_mesh((32,), ("i",))
        return repr(put(np.arange(64), "i", on=flat))

    text, _ = simulate(2, 16, body, deadline=5)
    assert text.count(" on device ") == 8
    assert text.endswith("\n  and 8 more pieces of this process")


def test_where_nothing_is_local_the_repr_says_so():
    def body() -> str:
        return repr(meshard.device_put(np.arange(3), meshard.devices()[-1]))

    first, second = simulate(2, 1, body, deadline=5)
    assert first.endswith("\n  no piece is on this process")
    assert second == "Array([0, 1, 2], dtype=int64)"


def shown(x):
    """What a notebook shows: the headline, the facts, the tags in order, the values."""
    root = ElementTree.fromstring(x._repr_html_())
    tags = [child.tag.partition("}")[2] or child.tag for child in root.iter()]
    order = [t for t in tags if t in ("h2", "p", "svg", "details", "pre")]
    return root.findtext("h2"), root.findtext("p"), order, root.findtext(".//pre")


@pytest.mark.parametrize("shape", [(), (8,), (8, 4), (8, 4, 2), (0, 4), (8, 2, 2, 2)])
def test_notebooks_get_facts_a_picture_and_the_values(shape):
    x = put(np.zeros(shape), *["i"][: len(shape)])
    head, facts, order, values = shown(x)
    assert head == f"{x._type.str_short()} · {x.sharding.spec!r} over {x.sharding.mesh!r}"
    assert facts.startswith(f"{x.nbytes:,} bytes")
    if not x.size:
        assert order == ["h2", "p"]
    elif x.size <= 8:
        assert order == ["h2", "p", "pre", "svg"]
    else:
        assert order == ["h2", "p", "svg", "details", "pre"]
    if x.ndim < 3:
        assert values == (str(np.zeros(shape)) if x.size else None)


def test_facts_say_what_each_device_has():
    facts = shown(put(np.zeros((8, 4)), "i"))[1]
    assert facts == (
        "256 bytes · 64 bytes on each device · 512 bytes with all copies · 4 blocks of [2,4], each "
        "on 2 devices"
    )
    uneven = meshard.device_put(np.arange(10), NamedSharding(mesh(), P("i"), uneven="balanced"))
    assert "at most 24 bytes on each device" in shown(uneven)[1]
    head, facts, order, _ = shown(mnp.ones(20))
    assert head.startswith("float64[20] · SingleDeviceSharding on CPU ")
    assert facts == "160 bytes · whole on 1 device · uncommitted: it moves to where it is used"
    assert order == ["h2", "p", "details", "pre"]


def test_a_huge_array_shows_its_edges_in_a_notebook():
    def body() -> None:
        for spec in (("i", "j"), (None, "i"), ()):
            values = shown(huge(*spec))[3]
            assert values.count("\n") == 6
            assert "..." in values
        assert len(huge("i", "j")._repr_html_()) < 10_000

    alone(body)


def test_of_many_dims_few_elements_are_shown():
    values = shown(put(np.zeros((4, *[3] * 6)), "i"))[3].split("\n")
    assert values[-1].startswith("… and ")
    assert len(values) == 41


def test_a_donated_array_says_where_it_went():
    x = put(GRID, "i")
    meshard.jit(lambda a: a + 1, donate_argnums=0)(x)
    assert shown(x)[1].startswith("It was donated to ")


def test_keys_and_small_dtypes_are_shown():
    keys = meshard.random.split(meshard.random.key(0), 16)
    assert shown(keys)[0].startswith("key<philox>[16] · ")
    assert len(shown(keys)[3].split("\n")) == 16
    assert shown(mnp.ones(3, ml_dtypes.bfloat16))[3] == "[1 1 1]"


def test_many_devices_have_a_schematic():
    flat = meshard.make_mesh((512,), ("i",), devices=[Device(i) for i in range(512)])
    like = meshard.ShapeDtypeStruct((1024, 8), "f4", sharding=NamedSharding(flat, P("i")))
    head, facts, order, _ = shown(like)
    assert head == "float32[1024,8] · P('i',) over Mesh('i': 512)"
    assert "512 blocks of [2,8]" in facts
    assert order == ["h2", "p", "svg"]
    assert "not all blocks are shown: there are 512" in like._repr_html_()
    assert len(like.to_svg()) < 20_000
    assert shown(meshard.ShapeDtypeStruct((4,), "f4"))[1] == "no values, 16 bytes, no sharding"


def test_a_shape_that_does_not_divide_says_so_instead_of_failing():
    like = meshard.ShapeDtypeStruct((10, 3), "f4", sharding=NamedSharding(mesh(), P("i", "j")))
    head, facts, order, _ = shown(like)
    assert head == "float32[10,3] · P('i', 'j') over Mesh('i': 4, 'j': 2)"
    assert "should be divisible by 4, but it is equal to 10" in facts
    assert order == ["h2", "p"]
    with pytest.raises(meshard.errors.IndivisibleError):
        like.to_svg()


def test_a_shard_shows_its_part():
    shard = put(GRID, "i", "j").addressable_shards[3]
    head, _, _, values = shown(shard)
    assert head == f"Shard [2:4, 2:4] on {shard.device}, replica 0"
    assert values == str(GRID[2:4, 2:4])
    whole = put(GRID).addressable_shards[1]
    assert shown(whole)[0] == f"Shard [:, :] on {whole.device}, replica 1"


def test_html_is_escaped(monkeypatch):
    monkeypatch.setattr(show, "array_str", lambda kind, blocks: "<script>\n&")
    assert "<pre>&lt;script&gt;\n&amp;</pre>" in mnp.ones(1)._repr_html_()


def test_a_spanning_array_shows_its_own_part_and_says_so():
    def body() -> str:
        return put(GRID, "i")._repr_html_()

    for html in simulate(2, 4, body, deadline=5):
        assert "<svg" in html
        assert "<summary>values of 2 of 4 blocks: those here</summary>" in html
        assert " on devices" in html
        assert "process 0: 0-3; process 1: 4-7" in html

    def other() -> str:
        x = meshard.device_put(np.arange(3), meshard.devices()[-1])
        return meshard.process_index() or x.global_shards[0]._repr_html_()

    first, _ = simulate(2, 1, other, deadline=5)
    assert "process 1 holds it" in first


@given(st.data())
def test_any_array_is_shown(data):
    if data.draw(st.booleans()):
        sharding, shape = data.draw(
            placed_shapes(uneven=(None, "balanced", "ceil"), devices=meshard.devices())
        )
    else:
        shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=4)))
        sharding = data.draw(box_shardings(shape, meshard.devices()))
    x = meshard.device_put(np.zeros(shape, data.draw(st.sampled_from(["f4", "?", "i1"]))), sharding)
    head, facts, order, values = shown(x)
    assert head.startswith(f"{x._type.str_short()} · ")
    assert facts
    assert ("svg" in order) == (sharding.num_devices > 1 and x.size > 0)
    assert (values is None) == (x.size == 0)
    ElementTree.fromstring(x.to_svg())


def test_an_array_with_lost_parts_says_which(monkeypatch):
    x = put(GRID, "i")
    monkeypatch.setattr(show, "missing_boxes", lambda world, kind: kind.layout.boxes)
    facts = shown(x)[1]
    assert facts.startswith(
        "missing: [0:2, 0:4], [2:4, 0:4], [4:6, 0:4] and 1 more, which nobody holds · 256 bytes"
    )
