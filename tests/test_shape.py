import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.debug import ledger
from meshard.errors import ArgumentError, ShapeError
from meshard.sharding import NamedSharding, P
from tests.lays import DTYPES, calm, fetched, lays, numbered, on_meshes, same, shapes
from tests.worlds import alone, everywhere, in_worlds, put, whole

V = np.arange(48).reshape(8, 6)


@st.composite
def regrouped(draw, size):
    """Draw a shape with as many elements: factors of the size in any order, and ones between."""
    if not size:
        sizes = draw(st.lists(st.integers(0, 4), max_size=3))
        sizes.insert(draw(st.integers(0, len(sizes))), 0)
        return tuple(sizes)
    sizes = []
    while size > 1 and len(sizes) < 3:
        sizes.append(draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0])))
        size //= sizes[-1]
    sizes += [size] * (size > 1)
    sizes = list(draw(st.permutations(sizes)))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        sizes.insert(draw(st.integers(0, len(sizes))), 1)
    return tuple(sizes)


# reshape


@calm
@given(st.data(), shapes(most=12), st.sampled_from("CCF"), st.sampled_from(DTYPES))
def test_reshape_is_numpys(data, shape, order, dtype):
    value, lay = numbered(shape, dtype), data.draw(lays(shape))
    new, then = list(data.draw(regrouped(value.size))), data.draw(regrouped(value.size))
    if new and 0 not in new and data.draw(st.booleans()):
        new[data.draw(st.integers(0, len(new) - 1))] = -1
    expected = value.reshape(new, order=order)

    def body():
        x = lay.put(value)
        y = mnp.reshape(x, new, order=order)
        return [fetched(y), fetched(y.reshape(*then)), fetched(x.ravel(order)), fetched(x)]

    same(everywhere(body), [expected, expected.reshape(then), value.ravel(order), value])


def lies(x):
    return x.shape, tuple(x.sharding.spec), x.sharding.uneven


@in_worlds
@pytest.mark.parametrize(
    ("shape", "spec", "new", "becomes", "uneven"),
    [
        ((8, 6), ("i",), (48,), ("i",), None),
        ((48,), ("i",), (8, 6), ("i",), None),
        ((8, 6), ("i", "j"), (8, 2, 3), ("i", "j"), None),
        ((8, 6), ("i", "j"), (2, 4, 6), ("i", None, "j"), "balanced"),
        ((4, 2, 3), ("i", "j"), (8, 3), (("i", "j"),), None),
        ((8, 3), (("i", "j"),), (4, 2, 3), ("i", "j"), None),
        ((8, 6), (None, "j"), (8, 1, 6, 1), (None, None, "j"), None),
        ((4, 6), ("i",), (3, 8), ("i",), "balanced"),
        ((8, 6), ("i",), (6, 8), ("i",), "balanced"),
        ((2, 8), (None, "i"), (16,), ("i",), None),
        ((3, 40), (None, ("i", "j")), (120,), (("i", "j"),), None),
        ((3, 40), (None, "i"), (5, 24), ("i",), "balanced"),
    ],
)
def test_what_was_split_stays_split(shape, spec, new, becomes, uneven):
    value = numbered(shape)
    y = put(value, *spec).reshape(new)
    assert lies(y) == (new, becomes, uneven)
    assert whole(y).tolist() == value.reshape(new).tolist()


@in_worlds
def test_reshape_of_uneven_shards_and_back():
    x = put(np.arange(60).reshape(10, 6), "i", uneven="balanced")
    y = x.reshape(60)
    assert lies(y) == ((60,), ("i",), ((0, 18, 36, 48, 60),))
    assert lies(y.reshape(10, 6)) == ((10, 6), ("i",), "balanced")
    for old, flat in zip(x._live(), y._live(), strict=True):
        assert old is None or np.shares_memory(old, flat)


@calm
@given(st.data(), shapes(1, most=12))
def test_a_reshape_of_a_split_array_is_split(data, shape):
    value, lay = numbered(shape), data.draw(on_meshes(shape, full=True))
    new = data.draw(regrouped(value.size))

    def body():
        x = lay.put(value)
        y = x.reshape(new)
        return [sum(b.volume > 0 for b in a.aval.layout.boxes) for a in (x, y)]

    before, after = everywhere(body)
    assert after > 1 or before < 2


@pytest.mark.parametrize(
    ("shape", "new"),
    [((4, 3), (5, 2)), ((4, 3), (5, -1)), ((4, 3), (-1, -1)), ((0, 3), (0, -1)), ((4,), (-2, -2))],
)
def test_refused_reshapes(shape, new):
    with pytest.raises(ShapeError, match=r"reshape: cannot reshape an array of shape .* into"):
        mnp.zeros(shape).reshape(new)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: x.reshape(48, order="K"), ArgumentError, "order must be 'C' or 'F', got 'K'"),
        (
            lambda x: x.reshape("48"),
            ShapeError,
            "reshape: '48' is not a shape: sizes must be integers of at most 63 bits",
        ),
        (
            lambda x: x.reshape(4.0, 12),
            ShapeError,
            r"reshape: \(4\.0, 12\) is not a shape: sizes must be integers of at most 63 bits",
        ),
        (
            lambda x: mnp.transpose(x, (0, 0)),
            ArgumentError,
            r"transpose: axes \(0, 0\) is not a permutation of the 2 dims",
        ),
        (
            lambda x: mnp.transpose(x, (0, 2)),
            ArgumentError,
            r"transpose: axes \(0, 2\) is not a permutation of the 2 dims",
        ),
        (lambda x: mnp.swapaxes(x, 0, 2), ArgumentError, "swapaxes: axis 2 is out of bounds"),
        (lambda x: mnp.moveaxis(x, 0, (0, 1)), ArgumentError, "have different lengths"),
        (lambda x: mnp.moveaxis(x, (0, 0), (0, 1)), ArgumentError, "names a dim twice"),
        (lambda x: mnp.expand_dims(x, (0, 0)), ArgumentError, "names a dim twice"),
        (lambda x: mnp.expand_dims(x, 4), ArgumentError, "expand_dims: axis 4 is out of bounds"),
        (lambda x: mnp.squeeze(x, 1), ShapeError, r"dim 1 of \(8, 6\) has size 6, not one"),
        (lambda x: mnp.broadcast_to(x, (6, 8)), ShapeError, r"\(8, 6\) does not broadcast to"),
        (
            lambda x: mnp.broadcast_to(x, 6),
            ShapeError,
            r"broadcast_to: shape \(8, 6\) does not broadcast to \(6,\)",
        ),
        (
            lambda x: mnp.broadcast_to(x, (-1, 8, 6)),
            ShapeError,
            r"broadcast_to: \(-1, 8, 6\) is not a shape: sizes must be non-negative",
        ),
        (lambda x: mnp.broadcast_arrays(x, np.ones(5)), ShapeError, "do not broadcast"),
        (lambda x: mnp.matrix_transpose(x[0]), ShapeError, r"at least two dims, got shape \(6,\)"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call(mnp.asarray(V))


# dims put in another order, added and taken away


def signed(draw, dims, rank):
    return tuple(d - rank if draw(st.booleans()) else d for d in dims)


@calm
@given(st.data(), shapes())
def test_orders_of_dims_are_numpys(data, shape):
    rank, value, lay = len(shape), numbered(shape), data.draw(lays(shape))
    order = signed(data.draw, data.draw(st.permutations(range(rank))), rank)
    count = data.draw(st.integers(0, rank))
    old, new = (
        signed(data.draw, data.draw(st.permutations(range(rank)))[:count], rank) for _ in range(2)
    )

    def calls(np, x):
        found = [np.transpose(x), np.transpose(x, order), np.moveaxis(x, old, new), x.T]
        if rank:
            found += [np.swapaxes(x, order[0], order[-1]), np.moveaxis(x, order[0], -1)]
            found += [x.transpose(*order), x.transpose(order), x.transpose(None)]
        if rank > 1:
            found += [np.matrix_transpose(x), x.mT]
        return found

    same(everywhere(lambda: fetched(calls(mnp, lay.put(value)))), calls(np, value))


@calm
@given(st.data(), shapes())
def test_dims_of_size_one_are_numpys(data, shape):
    rank, value, lay = len(shape), numbered(shape), data.draw(lays(shape))
    count = data.draw(st.integers(1, 2))
    axes = data.draw(st.permutations(range(rank + count)))[:count]
    axes = signed(data.draw, axes, rank + count)
    ones = tuple(d for d in range(rank) if shape[d] == 1)
    lead = data.draw(st.lists(st.integers(0, 3), max_size=2))
    wide = (*lead, *(data.draw(st.integers(0, 4)) if n == 1 else n for n in shape))

    def calls(np, x):
        found = [np.expand_dims(x, axes), np.expand_dims(x, 0)]
        found += [np.squeeze(x), np.squeeze(x, ones), np.broadcast_to(x, wide)]
        found += [np.atleast_1d(x), np.atleast_2d(x), np.squeeze(np.expand_dims(x, axes), axes)]
        return found

    same(everywhere(lambda: fetched(calls(mnp, lay.put(value)))), calls(np, value))


@in_worlds
def test_a_transpose_moves_nothing():
    x = put(V, "i", "j")
    y = x.T
    assert y.sharding.spec == P("j", "i")
    for old, new in zip(x._live(), sorted_like(x, y), strict=True):
        assert old is None or np.shares_memory(old, new)


def sorted_like(x, y):
    """Return the blocks of ``y``, the transpose of ``x``, in the order of those of ``x``."""
    grid = np.empty(y.aval.layout.grid, object)
    grid.reshape(-1)[:] = y._live()
    return grid.T.reshape(-1)


@in_worlds
def test_how_new_and_broadcast_dims_lie():
    x = put(np.arange(60).reshape(10, 6), "i", "j", uneven="balanced")
    assert lies(mnp.expand_dims(x, (0, 2))) == ((1, 10, 1, 6), (None, "i", None, "j"), "balanced")
    assert lies(mnp.squeeze(put(V[:1], None, "j"))) == ((6,), ("j",), None)
    y = mnp.broadcast_to(put(V[:, :1], "i"), (3, 8, 6))
    assert lies(y) == ((3, 8, 6), (None, "i"), None)
    for block in y._live():
        assert block is None or block.strides[0] == block.strides[2] == 0


def test_broadcast_shapes_and_arrays():
    assert mnp.broadcast_shapes((3, 1), (4,), ()) == (3, 4)
    with pytest.raises(
        ShapeError, match=r"broadcast_shapes: the shapes \(3,\), \(4,\) do not broadcast"
    ):
        mnp.broadcast_shapes((3,), (4,))
    a, b = mnp.broadcast_arrays(np.ones((3, 1)), np.arange(4))
    assert a.shape == b.shape == (3, 4)
    assert a.tolist() == np.ones((3, 4)).tolist()
    assert mnp.broadcast_arrays() == ()


def test_what_changes_nothing_is_the_same_array():
    x = mnp.asarray(V)
    assert x.reshape(8, 6) is x
    assert mnp.broadcast_to(x, (8, 6)) is x
    assert mnp.atleast_1d(x) is x
    assert mnp.atleast_2d(x) is x
    assert isinstance(mnp.asarray(5).reshape(()), meshard.Array)


@in_worlds
def test_an_array_on_one_device_stays_there():
    one = meshard.devices()[5]
    x = meshard.device_put(V, one)
    for y in (x.reshape(6, 8), x.T, mnp.expand_dims(x, 0), x.ravel()):
        assert y.device == one
        assert y.committed
    spread = NamedSharding(meshard.make_mesh((8,), ("a",)), P("a"))
    assert meshard.device_put(x.T.T, spread).addressable_shards[0].data.shape == (1, 6)


@pytest.mark.parametrize("spec", [("i",), (None, "j"), ("j", "i"), (("i", "j"),)])
@pytest.mark.parametrize("reps", [(24, 1), (40,), (1, 17), (2, 17, 3), (0, 20)])
def test_many_repetitions_are_one_step(spec, reps):
    value = np.arange(48.0).reshape(8, 6)

    def body():
        x = put(value, *spec, uneven="balanced")
        found = [mnp.tile(x, reps), meshard.jit(lambda x: mnp.tile(x, reps))(x)]
        grown = meshard.grad(lambda x: (mnp.tile(x, reps) ** 2).sum())(x)
        return [whole(f) for f in found], whole(grown)

    (eager, jitted), grown = everywhere(body)
    expected = np.tile(value, reps)
    assert eager.tobytes() == jitted.tobytes() == expected.tobytes()
    assert np.array_equal(grown, 2 * value * np.prod(reps))


def test_as_many_repetitions_as_there_are_elements_cost_as_little():
    def body():
        x = put(np.arange(8.0), ("i", "j"))
        with ledger() as log:
            found = mnp.tile(x, 800_000)
        assert found.sharding.spec == P(("i", "j"))
        assert log.total_bytes == 7 * 8 * 8
        assert float(found[12_345]) == 12_345 % 8

    alone(body)
