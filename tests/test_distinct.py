"""Distinct elements and rows: right however an array lies, and only what is distinct crosses."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import debug
from meshard.errors import ArgumentError
from meshard.ops.reductions import distinct
from meshard.sharding import NamedSharding, P
from tests.lays import Lay, fetched, in_boxes, on_meshes
from tests.worlds import alone, everywhere, in_processes, in_worlds, put, whole

KINDS = ["f8", "f4", "i4", "i8", "u1", "bool", "c8", "bfloat16"]


@pytest.fixture(params=[True, False], ids=["gathered", "spread"])
def gathered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all devices find what is distinct among little, or pass it on as if it were much."""
    if not request.param:
        monkeypatch.setattr(distinct, "GATHERED_SORT", -1)


def _value(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    found = random.integers(-1, 2, shape).astype("f8")
    if kind in ("u1", "bool"):
        found = abs(found)
    if kind == "c8":
        found = found + 1j * random.integers(0, 2, shape)
    return found.astype(getattr(ml_dtypes, kind, kind))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_slices_are_numpy_s(gathered: None, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    value = _value(shape, data.draw(st.sampled_from(KINDS)), sum(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    lay = data.draw(st.one_of(on_meshes(shape), st.just(Lay())))
    if lay.grid and len(lay.ids) < 8:  # a process without a device of the mesh cannot know them
        lay = Lay((*range(8),), (8,), ("i",), "balanced")

    def body() -> Any:
        return fetched(list(mnp.unique(lay.put(value), True, True, True, axis)))

    kept = value.astype("f4") if value.dtype == ml_dtypes.bfloat16 else value
    expected = np.unique(kept, True, True, True, axis)
    for a, b in zip(everywhere(body), expected, strict=True):
        np.testing.assert_array_equal(a.astype(b.dtype), b)
        assert a.shape == b.shape


@settings(max_examples=15)
@given(data=st.data())
def test_boxes(data: st.DataObject) -> None:
    value = _value((5, 2), "f4", 0)
    lay = data.draw(in_boxes(value.shape))
    for axis in (None, 0):
        found = alone(
            lambda axis=axis: fetched(list(mnp.unique(lay.put(value), True, True, True, axis)))
        )
        for a, b in zip(found, np.unique(value, True, True, True, axis), strict=True):
            np.testing.assert_array_equal(a, b)


NAN = np.nan
GAPS = np.array([[1, NAN], [NAN, 0], [1, NAN], [0, 1], [NAN, 0], [0, 1], [1, -0.0], [1, 0.0]])


@pytest.mark.parametrize("equal_nan", [True, False])
def test_rows_with_nan_are_alike_if_asked(gathered: None, equal_nan: bool, jax: Any) -> None:
    def body() -> Any:
        x = put(GAPS, ("i", "j"))
        return fetched(list(mnp.unique(x, True, True, True, 0, equal_nan=equal_nan)))

    expected = jax.numpy.unique(GAPS.astype("f4"), True, True, True, 0, equal_nan=equal_nan)
    for a, b in zip(everywhere(body), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@in_worlds
def test_nan_of_several_dims_keep_their_order() -> None:
    value = np.where(np.arange(16).reshape(4, 4) % 3 == 0, NAN, 1.0)
    found = mnp.unique(put(value, "i", "j"), True, True, True, equal_nan=False)
    for a, b in zip(found, np.unique(value, True, True, True, equal_nan=False), strict=True):
        np.testing.assert_array_equal(whole(a), b)


@pytest.mark.parametrize("fill", [None, 7])
@pytest.mark.parametrize("size", [0, 2, 9])
def test_a_known_number_of_rows_is_jax_s(gathered: None, size: int, fill: Any, jax: Any) -> None:
    value = _value((8, 2), "i4", 3)

    def rows(xp: Any, x: Any) -> Any:
        return xp.unique(x, True, True, True, 0, size=size, fill_value=fill)

    def body() -> Any:
        x = put(value, "i")
        told = [rows(mnp, x), meshard.jit(lambda v: rows(mnp, v))(x)]
        return [fetched(list(found)) for found in told]

    expected = rows(jax.numpy, value)
    for found in everywhere(body):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_rows_of_many_examples(jax: Any) -> None:
    value = _value((3, 5, 2), "i4", 4)
    found = alone(
        lambda: np.asarray(
            meshard.vmap(lambda v: mnp.unique(v, axis=0, size=4, fill_value=9))(
                put(value, "j", uneven="balanced")
            )
        )
    )
    for one, rows in zip(value, found, strict=True):
        expected = jax.numpy.unique(one, axis=0, size=4, fill_value=9)
        np.testing.assert_array_equal(rows, expected)


def test_gradients_go_to_the_first_of_each(jax: Any) -> None:
    value = np.array([[2.0, 1.0], [0.0, 3.0], [2.0, 1.0], [0.0, 2.0]])

    def sized(xp: Any, x: Any) -> Any:
        return (xp.unique(x, axis=0, size=3) * np.arange(6.0).reshape(3, 2)).sum()

    def known(x: Any) -> Any:
        return (mnp.unique(x, axis=0) * np.arange(6.0).reshape(3, 2)).sum()

    expected = jax.grad(lambda v: sized(jax.numpy, v))(value)
    for f in (known, lambda v: sized(mnp, v)):
        found = everywhere(lambda f=f: whole(meshard.grad(f)(put(value, "i"))))
        np.testing.assert_array_equal(found, expected)


def _bytes(f: Any) -> int:
    with debug.ledger() as log:
        f()
    return log.total_bytes


def test_only_what_is_distinct_crosses() -> None:
    value = np.random.default_rng(0).integers(0, 50, 1 << 16)
    table = np.stack([value, value % 7], 1)

    def body() -> list[int]:
        x, rows, many = (
            put(value, ("i", "j")),
            put(table, ("i", "j")),
            put(np.random.default_rng(1).permutation(1 << 16), ("i", "j")),
        )
        return [
            _bytes(lambda: mnp.unique(x, True, True, True)),
            _bytes(lambda: mnp.unique(rows, True, True, True, 0)),
            _bytes(lambda: mnp.unique(many)),
            _bytes(lambda: mnp.unique(many, return_inverse=True)),
        ]

    few, rows, distinct_ones, inverse = alone(body)
    assert few < 8 * 8 * 50 * 3 * 8
    assert rows < 8 * 8 * 50 * 4 * 8
    assert distinct_ones < 1.0 * value.nbytes
    assert inverse < 1.5 * value.nbytes  # the values, and then their places in 32 bits


def test_rows_that_are_split_along_their_elements_are_put_together_once() -> None:
    value = _value((1 << 14, 16), "f4", 0)

    def body() -> int:
        x = put(value, None, ("i", "j"))
        return _bytes(lambda: mnp.unique(x, axis=0))

    assert alone(body) < 2 * value.nbytes  # once to be whole rows, and once to their like


def test_four_processes_of_which_some_have_nothing() -> None:
    value = np.array([5, 5, 2, 9, 2])

    def body() -> Any:
        mesh = meshard.make_mesh((8,), ("i",))
        uneven = ((0, 0, 3, 3, 4, 4, 4, 5, 5),)
        x = meshard.device_put(value, NamedSharding(mesh, P("i"), uneven=uneven))
        found = mnp.unique(x, True, True, True)
        assert found[2].sharding == x.sharding
        return fetched(list(found))

    expected = np.unique(value, True, True, True)
    for a, b in zip(in_processes(body, (2, 4)), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: mnp.unique(x, axis=2), r"unique: axis 2 is out of bounds .* 2 dims"),
        (lambda x: mnp.unique(x, axis=0, size=-1), "size must not be negative, got -1"),
        (
            lambda x: mnp.unique(x[:0], axis=0, size=2),
            "unique: size=2 of dim 0 without elements: there is no slice to fill the",
        ),
    ],
)
def test_refused(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        alone(lambda: call(mnp.ones((4, 2))))
