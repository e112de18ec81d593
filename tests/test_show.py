"""What arrays print: as NumPy and JAX do, and only from what is shown."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
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
    assert x._repr_html_() == "<pre>Array(shape=(2, 3), dtype=float64, deleted)</pre>"


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


@pytest.mark.parametrize("shape", [(), (8,), (8, 4), (8, 4, 2), (0, 4), (8, 2, 2, 2)])
def test_notebooks_get_the_values_and_a_picture(shape):
    value = np.zeros(shape)
    html = put(value, *["i"][: len(shape)])._repr_html_()
    assert html.startswith("<pre>Array(")
    assert "<svg" in html
    assert f"float64[{','.join(map(str, shape))}]" in html


def test_html_is_escaped(monkeypatch):
    monkeypatch.setattr(show, "array_repr", lambda kind, blocks: "<script>")
    assert mnp.ones(1)._repr_html_().startswith("<pre>&lt;script&gt;</pre>")


def test_a_spanning_array_has_a_picture():
    def body() -> str:
        return put(GRID, "i")._repr_html_()

    for html in simulate(2, 4, body, deadline=5):
        assert "<svg" in html
        assert "on devices" in html
