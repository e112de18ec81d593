from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, DtypeError, IncompatibleDevicesError, ShapeError
from meshard.ops.engine import eager
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P
from tests.indices import advanced, basic
from tests.lays import Lay, calm, fetched, lays, numbered, on_meshes, same, shapes
from tests.tracing import traced
from tests.worlds import alone, everywhere, in_worlds, put, whole

V = np.arange(48.0).reshape(8, 6)
HOW = {
    "set": None,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "min": np.minimum,
    "max": np.maximum,
}


def reference(value, index, how, update):
    """Return what NumPy makes of a copy; its ``ufunc.at`` does not broadcast, so that we do."""
    result = value.copy()
    if HOW[how] is None:
        result[index] = update
    else:
        HOW[how].at(result, index, np.broadcast_to(update, value[index].shape).copy())
    return result


@calm
@given(st.data(), shapes(), st.sampled_from(sorted(HOW)), st.sampled_from(["f8", "f4", "i4", "c8"]))
def test_updates_are_numpys_on_copies(data, shape, how, dtype):
    if (how, dtype) in {("divide", "i4"), ("min", "c8"), ("max", "c8")}:
        dtype = "f8"
    value, lay = numbered(shape, dtype), data.draw(lays(shape))
    index = data.draw(basic(shape) | advanced(shape))
    try:
        place = value[index].shape
    except IndexError:
        return
    sizes = [n if data.draw(st.integers(0, 3)) else 1 for n in place]
    update = numbered(sizes[data.draw(st.integers(0, len(place))) :], dtype) + 2
    if how == "power":
        update = np.minimum(update.real, 3).astype(dtype)
    spread = data.draw(on_meshes(update.shape, full=True)) if lay.grid else Lay()
    if set(spread.ids) != set(lay.ids):
        spread = Lay()
    with np.errstate(all="ignore"):
        expected = reference(value, index, how, update)

    def body():
        x = lay.put(value)
        with np.errstate(all="ignore"):
            y = getattr(x.at[index], how)(spread.put(update))
        assert y.committed == x.committed
        assert y.sharding == x.sharding
        same(fetched(x), value)
        return fetched(y)

    same(everywhere(body), expected)


@calm
@given(st.data(), shapes())
def test_get_is_indexing_and_apply_is_set_of_a_function(data, shape):
    value, lay = numbered(shape), data.draw(lays(shape))
    index = data.draw(basic(shape))
    expected = value.copy()
    expected[index] = value[index] * 2 + 1

    def body():
        x = lay.put(value)
        return [fetched(x.at[index].get()), fetched(x.at[index].apply(lambda v: v * 2 + 1))]

    same(everywhere(body), [value[index], expected])


@in_worlds
def test_the_result_lies_like_the_array():
    x = put(V, "i", "j")
    heavy = put(np.ones((100, 6)), None, ("i", "j"), uneven="balanced")
    for y in (
        x.at[2:, ::-2].add(1),
        x.at[[0, 0, 5]].multiply(2),
        x.at[np.arange(100) % 8].add(heavy),
        x.at[1].set(put(np.zeros(6), "j")),
        x.at[V > 3].set(0),
    ):
        assert y.sharding == x.sharding
        assert y.dtype == x.dtype
    replicated = put(V)
    assert replicated.at[::2].set(put(V, "i")[::2]).sharding == replicated.sharding
    alone = mnp.asarray(V)
    assert not alone.at[0].set(1).committed


@in_worlds
def test_shards_that_are_not_touched_share_the_block():
    x = put(np.arange(32.0).reshape(8, 4), ("i", "j"))
    for y in (
        x.at[3].set(0.0),
        x.at[3:4, ::-1].set(0.0),
        x.at[[3, 3]].add(1.0),
        x.at[np.arange(8) == 3].set(0.0),
    ):
        for piece, (old, new) in enumerate(zip(x._live(), y._live(), strict=True)):
            assert (old is new) == (piece != 3 or old is None)


@in_worlds
def test_an_index_that_names_an_element_twice():
    x = put(np.arange(8.0), "i")
    twice = np.array([1, 5, 1, 1])
    assert whole(x.at[twice].add([1.0, 2.0, 4.0, 8.0])).tolist() == [0, 14, 2, 3, 4, 7, 6, 7]
    assert whole(x.at[twice].set([1.0, 2.0, 4.0, 8.0]))[[1, 5]].tolist() == [8, 2]
    assert whole(x.at[twice].multiply(2))[[1, 5]].tolist() == [8, 10]
    assert whole(x.at[twice].mul(2))[[1, 5]].tolist() == [8, 10]
    assert whole(x.at[twice].apply(lambda v: v + 10))[[1, 5]].tolist() == [31, 15]
    assert whole(x.at[twice].min([5.0, 3.0, 0.5, 4.0]))[[1, 5]].tolist() == [0.5, 3]


def test_apply_to_elements_named_twice_is_jax(jax):
    value, places = np.arange(6.0, dtype="f4"), np.array([1, 5, 1, -1, 2])
    theirs = jax.numpy.asarray(value).at[places].apply(lambda v: v * 3 + 1)
    assert mnp.asarray(value).at[places].apply(lambda v: v * 3 + 1).tolist() == theirs.tolist()


@in_worlds
def test_strides_and_directions():
    value = np.arange(1000)
    x = put(value, "i", uneven="balanced")
    for index in (
        slice(None, None, 3),
        slice(990, 10, -7),
        slice(5, -5),
        slice(7, 8, 2),
        slice(9, 3),
    ):
        new = np.arange(len(value[index])) + 5000
        expected = value.copy()
        expected[index] = new
        assert whole(x.at[index].set(new)).tolist() == expected.tolist()


def test_a_strided_update_of_many_elements_is_a_few_copies(monkeypatch):
    # One copy per piece, not one per element: counted, since a test asserts no times.
    seen = []
    run = eager.run_part

    def counted(world, part, *rest):
        seen.append(sum(len(r.copies) for r in part.recipes if r is not None))
        return run(world, part, *rest)

    monkeypatch.setattr(eager, "run_part", counted)

    def body():
        x = put(np.zeros(100_000), ("i", "j"))
        seen.clear()
        x.at[::2].set(1.0)
        return sum(seen)

    assert alone(body) == 16


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ((None, [0, 1]), (1, 2, 6)),
        ((slice(None), None, [0, 1]), (8, 1, 2)),
        (([0, 1], None, [1, 2]), (2, 1)),
        (([0, 1], slice(None, None, 2), None), (2, 3, 1)),
        ((slice(1, 7, 2), [0, 1]), (3, 2)),
        ((True, [0, 1]), (2, 6)),
        (True, (1, 8, 6)),
        (False, (0, 8, 6)),
        (V > 20, (27,)),
        ((3, [0, 5]), (2,)),
    ],
)
def test_values_of_the_shape_that_the_index_selects(index, shape):
    update = -np.arange(1.0, np.prod(shape) + 1).reshape(shape)
    expected = V.copy()
    expected[index] = update
    assert V[index].shape == shape
    same(everywhere(lambda: whole(put(V, "i", "j").at[index].set(update))), expected)


def test_values_take_the_arrays_dtype():
    x = mnp.arange(4, dtype="i2")
    assert x.at[0].set(2.9).tolist() == [2, 1, 2, 3]
    assert x.at[1].add(1.5).dtype == np.int16
    assert x.at[[1, 2]].add([1.5, 2.5]).tolist() == [0, 2, 4, 3]
    assert x.at[3].max(7.0).tolist() == [0, 1, 2, 7]
    small = mnp.ones(3, dtype="bfloat16")
    assert small.at[1].add(1).dtype == small.dtype
    assert small.at[[1, 1]].add(1).astype("f4").tolist() == [1, 3, 1]
    assert mnp.zeros(3, dtype=bool).at[[0, 2]].set(True).tolist() == [True, False, True]


def test_division_makes_floats_of_whole_numbers_as_in_jax(jax):
    for index in (1, slice(1, 3), np.array([1, 1])):
        theirs = jax.numpy.arange(4).at[index].divide(4)
        ours = mnp.arange(4).at[index].divide(4)
        assert ours.tolist() == theirs.tolist()
        assert ours.dtype == np.float64


@in_worlds
def test_arrays_in_boxes_are_updated_in_place_of_their_own():
    devices = meshard.devices()
    boxes = BoxSharding(
        (6,), {devices[6]: (slice(0, 4),), devices[1]: (slice(3, 6),), devices[4]: (slice(2, 5),)}
    )
    x = meshard.device_put(np.arange(6), boxes)
    update = meshard.device_put(
        np.array([7, 8, 9]),
        NamedSharding(Mesh([devices[1], devices[4], devices[6]], "d"), P("d")),
    )
    for y in (x.at[1:4].set(update), x.at[[3, 2, 1]].set(update[::-1])):
        assert y.sharding == boxes
        assert fetched(y).tolist() == [0, 7, 8, 9, 4, 5]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda x: x.at[0].set(np.ones(5)),
            ShapeError,
            r"set: values of shape \(5,\) do not broadcast to their place.*shape is \(6,\)",
        ),
        (lambda x: x.at[[0, 1]].add(np.ones((3, 1))), ShapeError, r"add: values of shape \(3, 1\)"),
        (lambda x: x.at[0].set(np.ones((1, 6))), ShapeError, r"\(1, 6\) do not broadcast"),
        (
            lambda x: x.at[0].set(1, mood="bright"),
            ArgumentError,
            r"no option 'mood'; .* Did you mean 'mode'",
        ),
        (
            lambda x: x.at[0].apply(abs, colour=1),
            ArgumentError,
            r"no option 'colour'; the options are",
        ),
        (lambda x: x.at[0].get(sort=1), ArgumentError, r"no option 'sort'; the options are"),
        (
            lambda x: (x > 3).at[0].subtract(True),
            DtypeError,
            "for an array of bool this is not possible",
        ),
        (
            lambda x: (x > 3).at[[0]].power(True),
            DtypeError,
            "for an array of bool this would make it int8; convert it first",
        ),
        (lambda x: x.astype(complex).at[0].set("a"), DtypeError, "not a numeric dtype"),
        (
            lambda x: (
                meshard.device_put(x, meshard.devices()[1])
                .at[0]
                .set(meshard.device_put(1.0, meshard.devices()[2]))
            ),
            IncompatibleDevicesError,
            "overlay: received incompatible devices",
        ),
    ],
)
def test_refused_updates(call, error, words):
    with pytest.raises(error, match=words):
        call(mnp.asarray(V))


def test_accepted_options_and_looks():
    x = mnp.arange(4)
    assert x.at[[0, 1]].add(1, indices_are_sorted=True, unique_indices=True).tolist() == [
        1,
        2,
        2,
        3,
    ]
    assert x.at[0].get(mode="clip", fill_value=0).tolist() == 0
    assert repr(x.at) == "At(Array([0, 1, 2, 3], dtype=int64))"
    with pytest.raises(TypeError, match=r"x.at\[index\].set\(y\)"):
        x[0] = 1


MODES: list[Any] = [
    lambda x, i: x.at[i].get(mode="fill"),
    lambda x, i: x.at[i].get(mode="fill", fill_value=-1),
    lambda x, i: x.at[:, i].get(mode="fill", fill_value=7),
    lambda x, i: x.at[i, i].get(mode="fill"),
    lambda x, i: x.at[i[:, None], 2:4].get(mode="clip"),
    lambda x, i: x.at[20].get(mode="fill", fill_value=0),
    lambda x, i: x.at[2, -20].get(mode="clip"),
    lambda x, i: x.at[i].set(9, mode="drop"),
    lambda x, i: x.at[:, i].add(1, mode="clip"),
    lambda x, i: x.at[30].multiply(2, mode="drop"),
    lambda x, i: x.at[30].multiply(2, mode="clip"),
    lambda x, i: x.at[i, 1].max(20, mode="fill"),
]


@pytest.mark.parametrize("number", range(len(MODES)))
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_positions_outside_may_be_dropped_filled_or_moved_inside(number, dtype, jax):
    x, places = np.arange(48, dtype=dtype).reshape(8, 6), np.array([1, 9, -2, -10])
    with jax.enable_x64(True):
        expected = np.asarray(MODES[number](jax.numpy.asarray(x), places))

    def body() -> Any:
        given = put(x, "i", "j")
        found = [MODES[number](given, places), MODES[number](given, put(places, "j"))]
        return [whole(y) for y in found]

    for found in everywhere(body):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    for found in alone(lambda: traced(lambda t: [MODES[number](t(x), t(places))]), 1):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "wrap"}, "mode must be 'clip', 'drop', 'fill' .* got 'wrap'"),
        ({"wrap_negative_indices": False}, "wrap_negative_indices=False is not supported"),
    ],
)
def test_refused_modes(options, words):
    with pytest.raises(ArgumentError, match=words):
        mnp.arange(3).at[0].set(1, **options)
