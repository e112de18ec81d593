import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.algebra.dimmap import DimMap
from meshard.errors import ArgumentError, DtypeError, IncompatibleDevicesError, ShapeError
from meshard.plan.move.assemble import Source, assemble
from meshard.sharding import P
from tests.lays import DTYPES, Lay, calm, fetched, lays, numbered, on_meshes, same, shapes
from tests.worlds import everywhere, in_worlds, put, whole

V = np.arange(48).reshape(8, 6)


def check(lay, value, calls):
    """Compare what some calls of NumPy's functions give with what ours give, in both worlds."""
    same(everywhere(lambda: fetched(calls(mnp, lay.put(value)))), calls(np, value))


def axis_of(shape):
    return st.integers(-len(shape), len(shape) - 1)


# side by side


@calm
@given(st.data(), shapes(1), st.sampled_from(DTYPES))
def test_concatenate_and_stack_are_numpys(data, shape, dtype):
    axis, new = data.draw(axis_of(shape)), data.draw(st.integers(-len(shape) - 1, len(shape)))
    value, lay = numbered(shape, dtype), data.draw(lays(shape))
    sizes = list(shape)
    sizes[axis] = data.draw(st.integers(0, 4))
    other = numbered(sizes, "i2")
    spread = data.draw(on_meshes(sizes)) if data.draw(st.booleans()) else Lay()
    if set(spread.ids) != set(lay.ids):
        spread = Lay()

    def calls(np, x):
        y = spread.put(other) if np is mnp else other
        found = [np.concatenate([x, y, x], axis=axis), np.concatenate([y, x], axis=axis)]
        found += [np.concatenate([x, x], axis=None), np.concat((y,), axis=axis)]
        found += [np.stack([x, x], axis=new), np.stack([x, x > 0], axis=new)]
        return [*found, np.hstack([x, x]), np.vstack([x, x, x])]

    check(lay, value, calls)


@calm
@given(st.data(), shapes(1))
def test_split_and_unstack_are_numpys(data, shape):
    value, lay, axis = numbered(shape), data.draw(lays(shape)), data.draw(axis_of(shape))
    n = shape[axis]
    parts = data.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0] or [1]))
    cuts = data.draw(st.lists(st.integers(-n - 2, n + 2), max_size=3))

    def calls(np, x):
        found = np.split(x, parts, axis), np.split(x, cuts, axis), np.unstack(x, axis=axis)
        return [list(f) for f in found]

    check(lay, value, calls)


@in_worlds
def test_how_joined_arrays_lie():
    x, y = put(V, "i"), put(V[:, :3], "i")
    assert mnp.concatenate([x, y], axis=1).sharding == x.sharding
    joined = mnp.concatenate([x, V[:3]])
    assert joined.sharding.spec == P("i")
    assert joined.aval.layout.cuts[0] == (0, 3, 6, 9, 11)
    assert mnp.stack([x, x]).sharding.spec == P(None, "i")
    assert mnp.unstack(x)[3].sharding.is_fully_replicated
    assert [p.sharding.spec for p in mnp.split(x, 2)] == [P("i"), P("i")]
    assert not mnp.concatenate([mnp.asarray(V), V]).committed


def test_dtypes_are_promoted():
    x = mnp.ones(2, dtype="f4")
    assert mnp.concatenate([x, mnp.ones(1, dtype="i2")]).dtype == np.float32
    assert mnp.concatenate([x, [1, 2]]).dtype == np.float64
    assert mnp.concatenate([x, x], dtype="i1", casting="unsafe").dtype == np.int8
    with pytest.raises(TypeError, match="float32 are not converted to int8"):
        mnp.concatenate([x, x], dtype="i1")
    assert mnp.concatenate([x, x], dtype=float).dtype == np.float64
    assert mnp.stack([x, x.astype("bfloat16")]).dtype == np.float32


# flipped, rolled, tiled, repeated


@calm
@given(st.data(), shapes())
def test_flip_and_roll_are_numpys(data, shape):
    rank, value, lay = len(shape), numbered(shape), data.draw(lays(shape))
    far = st.integers(-25, 25)
    axes = data.draw(st.permutations(range(rank)))[: data.draw(st.integers(0, rank))]
    twice = [*axes, *axes[:1]]
    shifts = [data.draw(far) for _ in twice]
    by, other = data.draw(far), data.draw(far)

    def calls(np, x):
        found = [np.flip(x), np.flip(x, tuple(axes)), np.roll(x, by), np.roll(x, (by, other))]
        if axes:
            found += [np.roll(x, shifts, twice), np.roll(x, by, tuple(axes))]
        if rank:
            found += [np.flip(x, -1), np.roll(x, by, -rank), np.roll(x, (by, other), 0)]
        return found

    check(lay, value, calls)


@calm
@given(st.data(), shapes(most=5))
def test_tile_and_repeat_are_numpys(data, shape):
    rank, value, lay = len(shape), numbered(shape, "u1"), data.draw(lays(shape))
    few = st.integers(0, 3)
    reps = data.draw(st.lists(few, max_size=4))
    times = data.draw(few)
    each = [data.draw(few) for _ in range(value.size)]
    axis = data.draw(axis_of(shape)) if rank else None
    along = [data.draw(few) for _ in range(shape[axis] if rank else 1)]

    def calls(np, x):
        found = [np.tile(x, times), np.tile(x, reps), np.repeat(x, times), np.repeat(x, [times])]
        return [*found, np.repeat(x, each), np.repeat(x, along, axis), np.repeat(x, times, axis)]

    check(lay, value, calls)


@in_worlds
def test_a_position_repeated_in_place_of_the_others():
    # As long as the source, so that its shape alone does not tell that it is another array.
    x = put(np.arange(3), None)
    assert whole(mnp.repeat(x, [0, 3, 0])).tolist() == [1, 1, 1]
    y = put(np.arange(12.0).reshape(4, 3), "i")
    assert (
        whole(mnp.repeat(y, [3, 0, 0], axis=1)).tolist()
        == np.repeat(np.arange(12.0).reshape(4, 3), [3, 0, 0], axis=1).tolist()
    )


# padded


@calm
@given(st.data(), shapes(), st.sampled_from(["i8", "f4", "u1"]))
def test_pad_with_constants_is_numpys(data, shape, dtype):
    rank, value, lay = len(shape), numbered(shape, dtype), data.draw(lays(shape))
    few = st.integers(0, 3)
    each = [(data.draw(few), data.draw(few)) for _ in range(rank)]
    values = [(data.draw(few), data.draw(few)) for _ in range(rank)]

    def calls(np, x):
        found = [np.pad(x, 1), np.pad(x, each) if rank else x, np.pad(x, 0)]
        found += [np.pad(x, (1, 2), constant_values=7), np.pad(x, ((2,),), constant_values=(3, 4))]
        if rank:
            found += [np.pad(x, each, constant_values=values), np.pad(x, 2, constant_values=1.7)]
        return found

    check(lay, value, calls)


@calm
@given(st.data(), shapes(), st.sampled_from(["edge", "wrap", "reflect", "symmetric"]))
def test_pad_with_the_arrays_own_elements_is_numpys(data, shape, mode):
    rank, value, lay = len(shape), numbered(shape), data.draw(lays(shape))
    wide = st.integers(0, 11)
    each = [(data.draw(wide), data.draw(wide)) if n else (0, 0) for n in shape]
    check(lay, value, lambda np, x: [np.pad(x, each if rank else 0, mode=mode)])


def test_pad_keeps_large_integers_and_nans():
    big = mnp.asarray(np.array([2**62 + 1]))
    assert mnp.pad(big, 1, constant_values=5).tolist() == [5, 2**62 + 1, 5]
    bits = np.array([0xFFF0000000000BAD], "u8").view("f8")
    padded = np.asarray(mnp.pad(bits, 1, constant_values=np.nan))
    assert padded.view("u8")[1] == 0xFFF0000000000BAD
    assert np.isnan(padded).all()
    assert mnp.pad(mnp.ones(2, dtype="bfloat16"), 1, constant_values=2).astype("f4").tolist() == [
        2,
        1,
        1,
        2,
    ]
    assert mnp.pad(mnp.ones(2), 1, mode="empty").shape == (4,)


# what moves


def crossing(x, y, maps):
    """Return the elements that must change the device to make ``y`` of ``x``, by these maps."""
    ids = {d.id: d.id for d in x.sharding.device_order}
    parts = [assemble(y.aval.layout, [Source(x.aval.layout, maps)], ids, i) for i in ids]
    return sum(np.prod(c.shape) for p in parts for m in p.receives for c in m.copies)


@calm
@given(st.data(), shapes(1))
def test_padding_moves_nothing(data, shape):
    lay, few = data.draw(on_meshes(shape)), st.integers(0, 4)
    each = [(data.draw(few), data.draw(few)) for _ in shape]

    def body():
        x = lay.put(numbered(shape))
        y = mnp.pad(x, each)
        return crossing(x, y, tuple(DimMap.pad(n, *p) for n, p in zip(shape, each, strict=True)))

    assert everywhere(body) == 0


@in_worlds
def test_joining_along_a_whole_dim_moves_nothing():
    x = put(np.arange(60).reshape(10, 6), "i", uneven="balanced")
    y = mnp.concatenate([x, x], axis=1)
    assert y.aval.layout.cuts[0] == x.aval.layout.cuts[0]
    for at in (0, 6):
        assert crossing(x, y, (DimMap.identity(10), DimMap.place(6, 12, at))) == 0


@in_worlds
def test_what_changes_nothing_shares_the_blocks():
    x = put(V, "i", "j")
    for y in (mnp.roll(x, 8, 0), mnp.tile(x, 1), mnp.pad(x, 0), mnp.concatenate([x]), x[:8]):
        for old, new in zip(x._live(), y._live(), strict=True):
            assert old is new


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: mnp.concatenate([]), ShapeError, "concatenate: needs at least one array"),
        (
            lambda x: mnp.concatenate([x, x[:, :2]]),
            ShapeError,
            r"array 1 has shape \(8, 2\), array 0 \(8, 6\); they may differ along dim 0 only",
        ),
        (lambda x: mnp.concatenate([x, x[0]]), ShapeError, r"array 1 has shape \(6,\)"),
        (lambda x: mnp.concatenate([x], axis=2), ArgumentError, "concatenate: axis 2 is out of"),
        (lambda x: mnp.concatenate([x[0, 0]]), ArgumentError, "for an array with 0 dims"),
        (lambda x: mnp.concatenate([x], dtype="U3"), DtypeError, "dtype <U3"),
        (lambda x: mnp.stack([]), ShapeError, "stack: needs at least one array"),
        (
            lambda x: mnp.stack([x, x[:2]]),
            ShapeError,
            r"stack: array 1 has shape \(2, 6\), array 0",
        ),
        (
            lambda x: mnp.split(x, 3),
            ShapeError,
            "split: dim 0 of size 8 cannot be split into 3 equal parts",
        ),
        (
            lambda x: mnp.split(x, 0),
            ShapeError,
            "split: dim 0 of size 8 cannot be split into 0 equal parts",
        ),
        (lambda x: mnp.flip(x, 2), ArgumentError, "flip: axis 2 is out of bounds"),
        (lambda x: mnp.roll(x, (1, 2), (0, 1, 0)), ArgumentError, r"roll: shift \(1, 2\) and axis"),
        (
            lambda x: mnp.roll(x, 1.5, 0),
            ArgumentError,
            r"roll: shift must be an integer or a sequence of integers, got 1\.5",
        ),
        (lambda x: mnp.roll(x, 1, 5), ArgumentError, "roll: axis 5 is out of bounds"),
        (lambda x: mnp.pad(x, -1), ArgumentError, "pad: pad_width must not be negative, got -1"),
        (lambda x: mnp.pad(x, 1.5), ArgumentError, r"pad: pad_width must be integers, got 1\.5"),
        (
            lambda x: mnp.pad(x, (1, 2, 3)),
            ArgumentError,
            r"pad: pad_width must be a number, a pair, or a pair for each of the 2 dims,",
        ),
        (lambda x: mnp.pad(x, 1, constant_values=[1, 2, 3]), ArgumentError, "pad: constant_values"),
        (lambda x: mnp.pad(x, 1, mode="mirror"), ArgumentError, "'minimum', got 'mirror'"),
        (lambda x: mnp.pad(x[:0], 1, mode="edge"), ArgumentError, "dim 0 has no elements that"),
        (lambda x: mnp.tile(x, -1), ArgumentError, "tile: reps must not be negative, got -1"),
        (
            lambda x: mnp.tile(x, 1.5),
            ArgumentError,
            r"tile: reps must be an integer or a list of integers, got 1\.5",
        ),
        (
            lambda x: mnp.repeat(x, -1),
            ArgumentError,
            "repeat: repeats must not be negative, got -1",
        ),
        (
            lambda x: mnp.repeat(x, [1, 2], axis=0),
            ArgumentError,
            "repeat: dim 0 has 8 positions, and repeats gives 2 numbers",
        ),
        (
            lambda x: mnp.concatenate(
                [meshard.device_put(x, d) for d in meshard.devices()[:2]], axis=1
            ),
            IncompatibleDevicesError,
            r"concatenate: received incompatible devices.*devices \[0\], and operand 1",
        ),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call(mnp.asarray(V))
