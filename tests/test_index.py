import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.algebra.dimmap import DimMap
from meshard.errors import ArgumentError, IndexingError, ShapeError
from meshard.plan.move.assemble import Source, assemble
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from tests.indices import advanced, basic
from tests.lays import DTYPES, calm, fetched, lays, numbered, on_meshes, same, shapes
from tests.worlds import everywhere, in_worlds, put, whole

V = np.arange(48).reshape(8, 6)


def crossing(x, y, maps):
    """Return the elements that must change the device to make ``y`` of ``x``, by these maps."""
    ids = {d.id: d.id for d in x.sharding.device_order}
    parts = [assemble(y.aval.layout, [Source(x.aval.layout, maps)], ids, i) for i in ids]
    return sum(np.prod(c.shape) for p in parts for m in p.receives for c in m.copies)


# basic indices


@calm
@given(st.data(), shapes())
def test_chains_of_basic_indices_are_numpys(data, shape):
    value = expected = numbered(shape)
    lay, chain = data.draw(lays(shape)), []
    for _ in range(data.draw(st.integers(1, 4))):
        chain.append(data.draw(basic(expected.shape)))
        expected = expected[chain[-1]]

    def body():
        x = lay.put(value)
        for index in chain:
            x = x[index]
        return fetched(x)

    same(everywhere(body), expected)


@in_worlds
def test_a_number_or_an_index_without_tuple():
    x = put(V, "i", None)
    assert whole(x[3]).tolist() == V[3].tolist()
    assert whole(x[-8, -1]).shape == ()
    assert int(whole(x[np.int8(2), np.array(4)])) == V[2, 4]
    assert whole(x[1:3]).tolist() == V[1:3].tolist()
    assert whole(x[...]).tolist() == V.tolist()
    assert x[()].shape == (8, 6)
    assert whole(x[mnp.asarray(1), mnp.asarray(-1)]) == V[1, -1]
    assert whole(x[slice(mnp.asarray(1), np.int64(3))]).shape == (2, 6)


@in_worlds
def test_slices_keep_the_cuts():
    x = put(np.arange(20.0), "i")
    assert x[5:].sharding == NamedSharding(x.sharding.mesh, P("i"), uneven=((0, 0, 5, 10, 15),))
    assert x[::3].aval.layout.cuts == ((0, 2, 4, 5, 7),)
    assert x[3:3].aval.layout.cuts == ((0, 0, 0, 0, 0),)
    assert x[5:][5:].aval.layout.cuts == ((0, 0, 0, 5, 10),)
    assert x[::-1].sharding == x.sharding
    y = put(V, "i", "j")
    assert y[3].sharding == NamedSharding(y.sharding.mesh, P("j"))
    assert y[:, None, 1:].sharding.spec == P("i", None, "j")
    assert y[..., 2].sharding.spec == P("i")


def test_a_slice_of_a_million_rows_moves_nothing():
    def body():
        x = put(np.arange(1_000_000, dtype="i4"), ("i", "j"))
        y = x[5000:]
        assert crossing(x, y, (DimMap.slice(1_000_000, 5000),)) == 0
        # Seven blocks are the source's own, the first is a view of what is left of it.
        for old, new in zip(x._live(), y._live(), strict=True):
            if old is not None:
                assert np.shares_memory(old, new)
                assert (new is old) == (new.shape == old.shape)
        rebalanced = meshard.device_put(y, NamedSharding(x.sharding.mesh, P(("i", "j"))))
        assert meshard.plan_reshard(y, rebalanced.sharding).bytes_moved == 4 * 17_500
        return fetched(y)

    same(everywhere(body), np.arange(5000, 1_000_000, dtype="i4"))


@calm
@given(st.data(), shapes(1), st.integers(1, 3))
def test_slices_move_nothing_that_keeps_its_order(data, shape, step):
    lay = data.draw(on_meshes(shape))
    ends = [tuple(sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in shape]

    def body():
        x = lay.put(numbered(shape))
        y = x[tuple(slice(a, b, step) for a, b in ends)]
        maps = tuple(DimMap.slice(n, a, b, step) for n, (a, b) in zip(shape, ends, strict=True))
        return crossing(x, y, maps)

    assert everywhere(body) == 0


@in_worlds
def test_repeated_halving_lets_go_of_the_first_block():
    x = mnp.arange(1 << 16, dtype="f8")
    for _ in range(12):
        x = x[: len(x) // 2]
    block = x._live()[0]
    assert np.asarray(x).tolist() == list(range(16))
    assert (block if block.base is None else block.base).nbytes < 1 << 16


# arrays of positions and masks


@calm
@given(st.data(), shapes(1), st.sampled_from(DTYPES), st.booleans())
def test_indices_with_arrays_are_numpys(data, shape, dtype, ours):
    value, lay, index = numbered(shape, dtype), data.draw(lays(shape)), data.draw(advanced(shape))
    try:
        expected = value[index]
    except IndexError:  # masks with more hits than the other arrays are long
        return

    def body():
        entries = [mnp.asarray(e) if ours and isinstance(e, np.ndarray) else e for e in index]
        return fetched(lay.put(value)[tuple(entries)])

    same(everywhere(body), expected)


@calm
@given(st.data(), st.integers(1, 12), st.integers(1, 9))
def test_positions_may_be_spread_too(data, n, count):
    value = numbered((n, 3))
    places = np.array(data.draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count)))
    mask = numbered((n,)) % data.draw(st.integers(1, 4)) == 0
    lay = data.draw(on_meshes((n, 3), full=True))

    def body():
        x = lay.put(value)
        mesh = x.sharding.mesh
        axis = NamedSharding(mesh, P(mesh.axis_names[0]), uneven="balanced")
        spread = meshard.device_put(places, axis)
        hit = meshard.device_put(mask, axis)
        return [fetched(x[spread]), fetched(x[hit]), fetched(mnp.take(x, spread, 0, mode="wrap"))]

    same(everywhere(body), [value[places], value[mask], np.take(value, places, 0, mode="wrap")])


@pytest.mark.parametrize(
    "index",
    [
        True,
        False,
        np.True_,
        np.array(False),
        (True, [0, 1]),
        (slice(None), True),
        (None, True),
        (True, slice(None), [1, 2]),
        (..., np.arange(6) % 2 == 0),
        (..., V % 5 == 0),
        ((0, 1),),
        [],
        [[]],
        ([0, 7], [[0], [1]]),
        range(3),
        [True, False] * 4,
        (0, None, [1, 2]),
        (slice(None), [0], ..., None),
        (None, [0], ..., [1]),
        np.array([1, 2], np.uint64),
        np.zeros((8, 6), bool),
        (np.array(1), slice(2)),
        (slice(6, None, -2), [5, -6]),
    ],
)
def test_numpys_rules_of_odd_indices(index):
    same(everywhere(lambda: whole(put(V, "i", "j")[index])), V[index])


def test_foreign_arrays_are_taken():
    class Foreign:
        dtype, shape = np.dtype(int), (2,)

        def __array__(self, dtype=None, copy=None):
            return np.array([5, 0], dtype)

    assert mnp.asarray(V)[Foreign()].tolist() == V[[5, 0]].tolist()
    assert mnp.take(V, Foreign()).tolist() == [5, 0]


def test_what_lies_on_a_device_of_another_process_can_be_looked_up():
    def body():
        there = meshard.devices()[6]
        x, places = (meshard.device_put(v, there) for v in (V, np.array([7, -8])))
        return [fetched(x[places]), fetched(x[:, 2][places])]

    same(everywhere(body), [V[[7, 0]], V[[7, 0], 2]])


@in_worlds
def test_short_integers_can_index_long_dims():
    value = np.arange(1000)
    x = put(value, "i")
    for places in (np.array([3, 255], np.uint8), np.array([-3, -128, 127], np.int8)):
        assert whole(x[places]).tolist() == value[places].tolist()
        assert whole(x[mnp.asarray(places)]).tolist() == value[places].tolist()
        for mode in ("clip", "wrap"):
            found = whole(mnp.take(x, places, mode=mode))
            assert found.tolist() == np.take(value, places, mode=mode).tolist()


@in_worlds
def test_a_gather_keeps_the_bits_of_nans():
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000BAD, 0x8000000000000000] * 4, "u8")
    x = put(bits.view("f8"), "i")
    assert whole(x[[1, 4, 11, -1]]).view("u8").tolist() == bits[[1, 4, 11, -1]].tolist()


@in_worlds
def test_how_gathers_lie():
    x = put(V, "i", "j")
    assert x[[1, 2]].sharding.spec == P(None, "j")
    assert x[:, [1, 2]].sharding.spec == P("i", "j")  # two positions for two devices
    assert x[:, [1]].sharding.spec == P("i")
    assert put(V, "i")[put(np.arange(4), "j")].sharding.spec == P("j")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (8, "Index 8 is out of bounds for dim 0 with size 8"),
        ((0, -7), "Index -7 is out of bounds for dim 1 with size 6"),
        ([0, 9], "Index 9 is out of bounds for dim 0 with size 8"),
        ((slice(None), np.array([-7, 0])), "Index -7 is out of bounds for dim 1 with size 6"),
        ((1, 2, 3), "Too many indices: the array has 2 dims, the index has 3"),
        ((..., ...), "at most one ellipsis"),
        (1.5, "An index must be made of integers.*got 1.5 of type float"),
        (np.array(1.5), "got array.1.5. of type ndarray"),
        ({}, "got {} of type dict"),
        ("rows", "cannot be indexed by a string; got 'rows'"),
        ([0.5], "must hold integers or bools, not float64"),
        (slice(1.0, 2), "made of integers; got slice.1.0, 2, None."),
        (slice(None, None, 0), "step of a slice cannot be zero"),
        (np.ones(3, bool), r"shape \(3,\) does not fit the dims from 0 on of an array of shape"),
        (np.ones((8, 6, 1), bool), "the index has 3"),
        (([0, 1], [0, 1, 2]), r"Index arrays of shapes \(2,\), \(3,\) do not broadcast"),
    ],
)
def test_refused_indices(index, words):
    x = mnp.asarray(V)
    with pytest.raises(IndexingError, match=words):
        x[index]
    with pytest.raises(IndexError):
        x.at[index].set(0)
    with pytest.raises(TypeError):  # what JAX raises for an index of a wrong kind
        x[index]


@in_worlds
def test_positions_out_of_bounds_are_seen_by_every_process():
    x = put(V, "i")
    with pytest.raises(IndexingError, match="Index 8 is out of bounds for dim 0 with size 8"):
        x[put(np.array([0, 8, 1, 2]), "i")]
    with pytest.raises(IndexingError, match="Index -9"):
        mnp.take(x, put(np.array([0, -9]), "j"), axis=0)


# take, take_along_axis, nonzero, where


@calm
@given(st.data(), shapes(1), st.sampled_from([None, "raise", "clip", "wrap"]))
def test_take_is_numpys(data, shape, mode):
    value, lay = numbered(shape), data.draw(lays(shape))
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    n = value.size if axis is None else shape[axis]
    low, high = (-n, n - 1) if mode in (None, "raise") else (-3 * n - 5, 3 * n + 5)
    at = st.integers(low, high) if n else st.nothing()
    places = np.array(data.draw(st.lists(at, max_size=6 if n else 0)), "i8")
    if not data.draw(st.integers(0, 3)) and places.size:
        places = places[0]
    expected = np.take(value, places, axis, mode=mode or "raise")

    def body():
        return fetched(mnp.take(lay.put(value), mnp.asarray(places), axis, mode=mode))

    same(everywhere(body), expected)


def test_take_of_lists():
    x = mnp.asarray(V)
    assert mnp.take(x, [1, 7]).tolist() == [1, 7]
    assert mnp.take(x, []).shape == (0,)
    assert x.take([[0, -1]], axis=np.int64(1)).shape == (8, 1, 2)
    assert mnp.take(mnp.zeros((0, 3)), [], axis=0, mode="wrap").shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: mnp.take(x, [99]), IndexingError, "Index 99 is out of bounds for dim 0"),
        (
            lambda x: mnp.take(x, [0.5]),
            IndexingError,
            "take: positions must be integers, not float64",
        ),
        (
            lambda x: mnp.take(x, [True]),
            IndexingError,
            "take: positions must be integers, not bool",
        ),
        (lambda x: mnp.take(x, 0, axis=2), ArgumentError, "take: axis 2 is out of bounds"),
        (lambda x: mnp.take(x, 0, mode="drop"), ArgumentError, "'wrap' or 'fill', got 'drop'"),
        (lambda x: mnp.take(x[:0], [0], mode="clip"), IndexingError, "dim 0 has no elements"),
        (
            lambda x: mnp.take_along_axis(x, np.array([0]), 0),
            ShapeError,
            r"indices of shape \(1,\) for an array of shape \(8, 6\)",
        ),
        (
            lambda x: mnp.take_along_axis(x, np.array([[0, 1, 2]]), 0),
            ShapeError,
            r"take_along_axis: got incompatible shapes \(8, 6\), \(1, 3\)",
        ),
        (
            lambda x: mnp.take_along_axis(x, np.array([[6]]), 1),
            IndexingError,
            "Index 6 is out of bounds for dim 1 with size 6",
        ),
        (
            lambda x: mnp.take_along_axis(x, np.array([[True]]), 1),
            IndexingError,
            "positions must be integers, not bool",
        ),
        (lambda x: mnp.take_along_axis(x, x, 4), ArgumentError, "axis 4 is out of bounds"),
        (lambda x: mnp.nonzero(x[0, 0]), ShapeError, "an array without dims has no positions"),
    ],
)
def test_refused_lookups(call, error, words):
    with pytest.raises(error, match=words):
        call(mnp.asarray(V))


@calm
@given(st.data(), shapes(1))
def test_take_along_axis_is_numpys(data, shape):
    value, lay = numbered(shape, "f4"), data.draw(lays(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    n = shape[axis]
    sizes = [1 if data.draw(st.integers(0, 4)) == 0 else m for m in shape]
    sizes[axis] = data.draw(st.integers(0, 4)) if n else 0
    count = int(np.prod(sizes))
    at = st.integers(-n, max(n - 1, 0))
    places = np.array(data.draw(st.lists(at, min_size=count, max_size=count)), "i8").reshape(sizes)
    expected = np.take_along_axis(value, places, axis)
    flat = places.reshape(-1)[: max(1, value.size)] if value.size else np.zeros(0, "i8")

    def body():
        x = lay.put(value)
        return [
            fetched(mnp.take_along_axis(x, places, axis)),
            fetched(mnp.take_along_axis(x, flat, None)),
        ]

    same(everywhere(body), [expected, np.take_along_axis(value, flat, None)])


@in_worlds
def test_take_along_another_axis_stays_split():
    x = put(V, "i", None)
    found = mnp.take_along_axis(x, np.argsort(-V, axis=1)[:, :2], 1)
    assert found.sharding.spec == P("i")
    assert whole(found).tolist() == (-np.sort(-V, axis=1))[:, :2].tolist()


@calm
@given(st.data(), shapes(1), st.sampled_from(DTYPES))
def test_nonzero_and_where_are_numpys(data, shape, dtype):
    value = (numbered(shape, "i8") % data.draw(st.integers(1, 5))).astype(dtype)
    lay = data.draw(on_meshes(shape, full=True))  # the positions are needed in every process

    def body():
        x = lay.put(value)
        return [fetched(list(mnp.nonzero(x))), fetched(list(mnp.where(x))), fetched(x[x != 0])]

    expected = list(np.nonzero(value))
    same(everywhere(body), [expected, expected, value[value != 0]])


@pytest.mark.halves
def test_nonzero_of_boxes_that_span_processes():
    def body():
        a, b = meshard.devices()[1], meshard.devices()[6]
        boxes = meshard.sharding.BoxSharding((4,), {a: (slice(0, 3),), b: (slice(2, 4),)})
        return fetched(list(mnp.nonzero(meshard.device_put(np.array([0, 1, 0, 2]), boxes))))

    same(everywhere(body), [np.array([1, 3])])


def test_a_second_index_is_looked_up():
    x = mnp.asarray(V)
    x[1:3]
    before = [dict(table) for table in here().tables]
    x[1:3]
    assert [dict(table) for table in here().tables] == before
