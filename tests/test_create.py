import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ArgumentError, DtypeError, IndivisibleError, ShapeError, ShardingError
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P
from meshard.testing.virtual import virtual_devices
from tests.lays import DTYPES, calm, fetched, lays, numbered, same, shapes
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

V = np.arange(24).reshape(4, 6)


@pytest.fixture
def single():
    """Python floats are float32 during a test."""
    meshard.config.update("default_float", "float32")
    yield
    meshard.config.update("default_float", "float64")


def warned(body):
    """Return what a body gives, NumPy's warnings of overflow and truncation aside."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return body()


# constants


@calm
@given(st.data(), shapes(), st.sampled_from(DTYPES))
def test_constants_are_numpys_wherever_they_are_made(data, shape, dtype):
    lay = data.draw(lays(shape))
    row = numbered(shape[-1:], dtype)

    def calls(np, **where):
        found = [np.zeros(shape, dtype, **where), np.ones(shape, dtype, **where)]
        found += [np.full(shape, 7, dtype, **where), np.full(shape, row, **where)]
        return found

    def body():
        place = lay.sharding(shape)
        made = calls(mnp, device=place)
        for x in made:
            assert x.committed == (place is not None)
            if isinstance(place, meshard.sharding.Sharding):
                assert x.sharding == place
        return fetched(made)

    same(everywhere(body), calls(np))


@calm
@given(st.data(), shapes(), st.sampled_from(DTYPES))
def test_arrays_like_another_lie_like_it(data, shape, dtype):
    value, lay = numbered(shape, dtype), data.draw(lays(shape))
    row = numbered(shape[-1:], "i2")

    def calls(np, x):
        found = [np.zeros_like(x), np.ones_like(x), np.full_like(x, 3), np.full_like(x, row)]
        return [*found, np.ones_like(x, dtype="i2"), np.zeros_like(x, "f4")]

    def body():
        x = lay.put(value)
        made = calls(mnp, x)
        for y in made:
            assert y.sharding == x.sharding
            assert y.committed == x.committed
        # x itself is returned, too, so that its devices are those of the jitted function.
        jitted = meshard.jit(lambda x: (mnp.full_like(x, 2, shape=(2, 3)), x))
        other = [mnp.full_like(x, 2, shape=(2, 3)), jitted(x)[0]]
        for y in other:
            assert y.sharding.device_set == x.sharding.device_set
            assert y.committed == x.committed
        return fetched(made) + fetched(other)

    known = np.full_like(value, 2, shape=(2, 3))
    same(everywhere(body), [*calls(np, value), known, known])


LIKE = {
    "zeros_like": mnp.zeros_like,
    "ones_like": mnp.ones_like,
    "empty_like": mnp.empty_like,
    "full_like": lambda x, shape: mnp.full_like(x, 2, shape=shape),
    "lax.full_like": lambda x, shape: lax.full_like(x, 2, shape=shape),
}


@pytest.mark.parametrize("name", LIKE)
def test_arrays_like_another_in_another_shape_lie_on_its_devices(name):
    function = LIKE[name]

    def body():
        devices = meshard.devices()
        some = Mesh(devices[4:8], "x")
        for sharding, shape, expected in (
            (NamedSharding(some, P("x")), (16, 4), P("x")),
            (NamedSharding(some, P("x")), (3, 4), P()),
            (NamedSharding(some, P("x")), (8,), P()),
            (NamedSharding(some, P("x"), uneven="balanced"), (3, 1), P("x")),
            (NamedSharding(some, P()), (2, 2, 2), P()),
        ):
            x = meshard.device_put(np.zeros((8, 4), "f4"), sharding)
            for f in (function, meshard.jit(function, static_argnames="shape")):
                y = f(x, shape=shape)
                assert (y.shape, y.dtype, y.committed) == (shape, x.dtype, True)
                assert (y.sharding.mesh, y.sharding.spec) == (some, expected)
        x = meshard.device_put(np.zeros((8, 4)), devices[5])
        assert function(x, shape=(3,)).sharding == x.sharding
        assert not function(mnp.zeros(2), shape=(3,)).committed

    alone(body)


def test_shapes_and_dtypes_of_constants():
    assert mnp.zeros(3).dtype == np.float64
    assert mnp.ones(np.int64(2)).shape == (2,)
    assert mnp.zeros([2, np.int8(3)]).shape == (2, 3)
    assert type(mnp.zeros((np.int64(5),)).shape[0]) is int
    assert mnp.zeros(()).shape == ()
    assert mnp.empty((2, 0)).shape == (2, 0)
    assert mnp.full(2, 7).dtype == np.int64
    assert mnp.full(2, 1j).dtype == np.complex128
    assert mnp.full(2, True).dtype == np.bool_
    assert mnp.full(2, 1, "bfloat16").dtype == ml_dtypes.bfloat16
    assert mnp.full(2, mnp.asarray(1.5)).tolist() == [1.5, 1.5]
    assert mnp.ones(2, dtype=complex).dtype == np.complex128
    assert mnp.full_like([1, 2], 3.7).tolist() == [3, 3]
    assert mnp.zeros_like(3.5).dtype == np.float64
    assert mnp.empty_like(mnp.ones(2)).tolist() == [0, 0]
    minus = np.asarray(mnp.full(2, -0.0))
    assert np.signbit(minus).all() or minus.tolist() == [0, 0]


@in_worlds
def test_pieces_are_made_where_they_lie():
    place = NamedSharding(mesh(), P("i", "j"), uneven="balanced")
    x = mnp.ones((10, 5), device=place)
    assert x.sharding == place
    assert {s.data.shape for s in x.addressable_shards} <= {(3, 3), (3, 2), (2, 3), (2, 2)}
    one = meshard.devices()[1]
    assert mnp.zeros(3, device=one).device == one
    with mesh():
        assert mnp.zeros((4, 2), device=P("i", "j")).sharding.spec == P("i", "j")
    y = mnp.full((8,), np.arange(8), device=NamedSharding(mesh(), P("i")))
    assert whole(y).tolist() == list(range(8))


def test_a_value_for_each_element_is_not_committed_by_itself():
    assert not mnp.full((2, 3), [1, 2, 3]).committed
    assert not mnp.full_like(mnp.zeros((2, 3)), [1, 2, 3]).committed


# counting

NUMBERS = st.integers(-9, 9) | st.floats(-5, 5) | st.floats(-5, 5, width=16)


@calm
@given(
    st.data(),
    NUMBERS,
    NUMBERS,
    NUMBERS.filter(lambda n: abs(n) > 0.05),
    st.sampled_from([None, "f8", "f4", "f2", "i8", "i4", "u1", "c8"]),
)
def test_arange_is_numpys_to_the_bit(data, start, stop, step, dtype):
    try:
        expected = warned(lambda: np.arange(start, stop, step, dtype))
    except (OverflowError, ValueError):
        return
    lay = data.draw(lays(expected.shape))

    def body():
        place = lay.sharding(expected.shape)
        return fetched(warned(lambda: mnp.arange(start, stop, step, dtype, device=place)))

    same(everywhere(body), expected)


@pytest.mark.parametrize(
    "arguments",
    [
        (5,),
        (0,),
        (2, 9, 3),
        (5, 0),
        (5, 0, -2),
        (3, None, 2),
        (1.0, -1.0, -0.3),
        (True,),
        (np.array(3),),
        (np.float32(3),),
        (np.float32(0), np.float32(3), np.float32(1)),
        (np.int8(-100), np.int8(100)),
        (np.uint64(5),),
        (2**62, 2**62 + 3),
        (0, 2**62, 2**61 + 1),
        (0, 4.5, None, "int16"),
        (0, 5, 0.5, int),
        (5, 0, -2, "u1"),
        (2, None, None, bool),
        (3, None, None, "f4"),
        (3, None, None, complex),
        (4, None, None, ml_dtypes.bfloat16),
        (0, -5e-324, -2),
        (-0.0, -1, -1.0),
    ],
)
def test_arange_of_odd_arguments_is_numpys(arguments):
    if arguments == (np.int8(-100), np.int8(100)):  # where NumPy's own subtraction overflows
        same(np.asarray(mnp.arange(*arguments)), np.arange(-100, 100))
        return
    same(np.asarray(mnp.arange(*arguments)), np.arange(*arguments))


@calm
@given(
    st.data(),
    NUMBERS,
    NUMBERS,
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([None, "f8", "f4", "f2", "i8", "i4", "c8"]),
)
def test_linspace_is_numpys_to_the_bit(data, start, stop, num, endpoint, dtype):
    expected = warned(lambda: np.linspace(start, stop, num, endpoint, dtype=dtype))
    lay = data.draw(lays(expected.shape))

    def body():
        place = lay.sharding(expected.shape)
        return fetched(
            warned(lambda: mnp.linspace(start, stop, num, endpoint, dtype=dtype, device=place))
        )

    same(everywhere(body), expected)


def test_linspace_of_arrays_and_its_step():
    for arguments in (
        ([0, 1], [2, 3], 5),
        (np.float32(0), np.float32(1), 3),
        (np.float16(0), 1, 3),
        (0, 1j, 3),
        (2, 2, 4),
        (0, 5e-324, 4),
        (2, 5, 1),
    ):
        same(np.asarray(mnp.linspace(*arguments)), np.linspace(*arguments))
    same(
        np.asarray(mnp.linspace([0, 1], [2, 3], 5, axis=1)), np.linspace([0, 1], [2, 3], 5, axis=1)
    )
    values, step = mnp.linspace(2, 5, 4, retstep=True)
    assert values.tolist() == [2, 3, 4, 5]
    assert step == 1.0
    assert np.isnan(mnp.linspace(2, 5, 1, retstep=True)[1])


# matrices


@calm
@given(st.data(), st.integers(0, 7), st.integers(0, 7), st.integers(-8, 8))
def test_matrices_are_numpys(data, n, m, k):
    values = [numbered(s) for s in ((n, m), (n,), (2, n, m))]
    spread = [data.draw(lays(v.shape)) for v in values]

    def calls(np, x, y, z, **where):
        found = [np.eye(n, m, k, **where), np.tri(n, m, k, **where), np.identity(n)]
        found += [np.tril(x, k), np.triu(x, k), np.tril(z, k), np.triu(z)]
        found += [np.diag(y, k), np.diag(x, k), np.diag(x)]
        found += [*np.meshgrid(y, np.arange(m)), *np.meshgrid(y, np.arange(m), indexing="ij")]
        return [*found, *np.meshgrid(y, 2.5, np.arange(3), sparse=True), *np.meshgrid(y)]

    def body():
        arrays = [lay.put(v) for lay, v in zip(spread, values, strict=True)]
        return fetched(calls(mnp, *arrays, device=spread[0].sharding((n, m))))

    same(everywhere(body), calls(np, *values))


@in_worlds
def test_how_matrices_lie():
    x = put(np.arange(48.0).reshape(8, 6), "i", "j")
    assert mnp.tril(x).sharding == x.sharding
    assert mnp.triu(x, 2).sharding == x.sharding
    line = put(np.arange(8.0), "i")
    assert mnp.diag(line).sharding.spec == P("i")
    assert mnp.diag(line, -3).sharding.spec == P("i")
    a, b = mnp.meshgrid(line, put(np.arange(4), "j"), indexing="ij")
    assert a.sharding.spec[0] == "i"
    assert b.sharding.spec[1] == "j"
    nans = put(np.full((4, 4), np.nan, "f4"), "i")
    assert np.isnan(whole(mnp.tril(nans))).sum() == 10
    assert mnp.tril(put(np.ones((4, 4), bool), "i")).dtype == np.bool_


def test_meshgrid_of_nothing():
    assert mnp.meshgrid() == ()


# from values


@calm
@given(st.data(), shapes(), st.sampled_from(DTYPES), st.integers(0, 4))
def test_array_is_numpys(data, shape, dtype, ndmin):
    value = numbered(shape, dtype)
    wide = (1,) * (ndmin - len(shape)) + tuple(shape)
    lay = data.draw(lays(wide))
    other = data.draw(st.sampled_from([None, "f4", "c8"]))

    def calls(np, **where):
        found = [
            np.array(value, ndmin=ndmin, **where),
            np.array(value.tolist(), dtype, ndmin=ndmin),
        ]
        if value.dtype.kind != "c":
            found.append(np.array(value, other, ndmin=ndmin, **where))
        return found

    expected = [np.array(value, ndmin=ndmin), np.array(value.tolist(), dtype, ndmin=ndmin)]
    same(
        everywhere(lambda: fetched(calls(mnp, device=lay.sharding(wide)))),
        [*expected, *calls(np)[2:]],
    )


def test_values_of_many_kinds():
    for value in (
        3,
        2.5,
        1j,
        True,
        [],
        [1, 2.5],
        [[True], [False]],
        ((1, 2), (3, 4)),
        range(3),
        np.float32(1),
        2**63,
        np.arange(3, dtype=">i4"),
        np.zeros((0, 3)),
    ):
        found, expected = np.asarray(mnp.array(value)), np.array(value)
        assert found.dtype == expected.dtype.newbyteorder("=")
        assert found.tolist() == expected.tolist()


@in_worlds
def test_nested_lists_of_arrays():
    x = put(np.arange(48).reshape(8, 6), "i")
    row = mnp.arange(6)
    assert whole(mnp.array([x, x])).tolist() == [whole(x).tolist()] * 2
    assert mnp.array([x, x]).sharding.spec == P(None, "i")
    assert mnp.array((row, [1] * 6)).tolist() == [list(range(6)), [1] * 6]
    deep = mnp.array([[mnp.asarray(1), 2], [mnp.asarray(3), 4.5]])
    assert deep.tolist() == [[1, 2], [3, 4.5]]
    assert deep.dtype == np.float64
    assert mnp.asarray([row[0], row[5]], dtype="f4").tolist() == [0, 5]


def test_values_are_copied():
    value = np.arange(5)
    x, y = mnp.array(value), mnp.asarray(value)
    value[:] = 0
    assert x.tolist() == y.tolist() == [0, 1, 2, 3, 4]
    shown = np.asarray(x)
    with pytest.raises(ValueError, match="read-only"):
        shown[0] = 9


def test_an_array_is_taken_as_it_is():
    x = mnp.arange(5)
    assert mnp.asarray(x) is x
    assert mnp.array(x, dtype=int, copy=None) is x
    assert mnp.asarray(x, copy=False) is x
    assert mnp.asarray(x, "f4").dtype == np.float32
    y = mnp.copy(x)
    x.delete()
    assert y.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "copied",
    [
        mnp.array,
        lambda x: mnp.array(x, dtype=float, copy=True),
        lambda x: mnp.asarray(x, copy=True),
        lambda x: meshard.device_put(x, may_alias=False),
        lambda x: meshard.device_put(x, x.sharding, may_alias=False),
        lambda x: meshard.device_put([x, None], may_alias=[False, None])[0],
    ],
)
def test_a_copy_outlives_the_donation_of_what_it_was_made_of(copied):
    x = mnp.arange(5.0)
    y = copied(x)
    meshard.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    assert y.tolist() == [0, 1, 2, 3, 4]


@in_worlds
def test_a_value_with_its_place():
    place = NamedSharding(mesh(), P(None, "i"), uneven="balanced")
    x = mnp.array(np.arange(5), ndmin=2, device=place)
    assert x.sharding == place
    assert whole(x).tolist() == [[0, 1, 2, 3, 4]]
    moved = mnp.asarray(x, device=NamedSharding(mesh(), P()))
    assert moved.is_fully_replicated
    assert np.asarray(moved).tolist() == [[0, 1, 2, 3, 4]]


# the default float


def test_python_floats_in_the_default_float(single):
    for x in (
        mnp.zeros(2),
        mnp.array([1.5, 2]),
        mnp.asarray(0.5),
        mnp.full(2, 0.5),
        mnp.arange(0.0, 1.0, 0.25),
        mnp.arange(np.float32(2)),
        mnp.linspace(0, 1, 3),
        mnp.eye(2),
        mnp.tri(2),
        mnp.ones(2, dtype=float),
        mnp.concatenate([mnp.ones(2), [0.5]]),
    ):
        assert x.dtype == np.float32
    assert mnp.array([1j]).dtype == np.complex64
    assert mnp.linspace(0, 1j, 3).dtype == np.complex64
    assert mnp.ones(2, dtype=complex).dtype == np.complex64


def test_the_default_float_leaves_what_has_a_dtype(single):
    for x in (
        mnp.array(np.array([1.5])),
        mnp.array([1.5], dtype="f8"),
        mnp.zeros(2, np.float64),
        mnp.full(2, np.float64(1)),
        mnp.arange(np.float64(2)),
        mnp.zeros_like(np.zeros(2)),
        mnp.linspace(np.float64(0), 1, 3),
    ):
        assert x.dtype == np.float64
    assert mnp.arange(3).dtype == np.int64
    assert mnp.asarray(mnp.linspace(0, 1, 7)).tolist() == np.linspace(0, 1, 7, dtype="f4").tolist()


# refusals


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: mnp.zeros((2, -1)),
            ShapeError,
            r"zeros: \(2, -1\) is not a shape: sizes must be non-negative integers of at",
        ),
        (
            lambda: mnp.ones(2.0),
            ShapeError,
            r"ones: 2\.0 is not a shape: sizes must be non-negative integers of at most 63 bits",
        ),
        (
            lambda: mnp.empty("ab"),
            ShapeError,
            "empty: 'ab' is not a shape: sizes must be non-negative integers of at most 63 bits",
        ),
        (
            lambda: mnp.full(None, 1),
            ShapeError,
            "full: None is not a shape: sizes must be non-negative integers of at most 63 bits",
        ),
        (
            lambda: mnp.eye(-1),
            ShapeError,
            r"eye: \(-1, -1\) is not a shape: sizes must be non-negative integers of at",
        ),
        (lambda: mnp.tri(2.5), ArgumentError, "tri: N must be an integer, got 2.5"),
        (
            lambda: mnp.full((2, 3), [1, 2]),
            ShapeError,
            r"full: values of shape \(2,\) do not broadcast to \(2, 3\)",
        ),
        (lambda: mnp.full_like(V, [1, 2]), ShapeError, r"full_like: values of shape \(2,\)"),
        (lambda: mnp.full(2, 300, "i1"), OverflowError, "300 out of bounds for int8"),
        (lambda: mnp.zeros(2, "nope"), DtypeError, "'nope' is not a dtype"),
        (lambda: mnp.zeros(2, object), DtypeError, "dtype object is not a numeric dtype"),
        (lambda: mnp.zeros(2, "U3"), DtypeError, "dtype <U3 is not a numeric dtype"),
        (lambda: mnp.array("abc"), DtypeError, "array: dtype <U3 is not a numeric dtype"),
        (lambda: mnp.array(b"abc"), DtypeError, "dtype |S3"),
        (lambda: mnp.array([None]), DtypeError, "expected an array, a number or nested lists"),
        (
            lambda: mnp.array({1, 2}),
            DtypeError,
            r"array: expected an array, a number or nested lists of numbers, got \{1, 2\}",
        ),
        (lambda: mnp.array(2**70), OverflowError, "does not fit into integers of 64 bits"),
        (lambda: mnp.array([[1], [2, 3]]), ShapeError, "cannot become an array: setting an array"),
        (lambda: mnp.array([[1], [2, 3]]), ValueError, "inhomogeneous shape"),  # as NumPy has it
        (lambda: mnp.array(np.zeros(2, "M8[D]")), DtypeError, r"dtype datetime64\[D\]"),
        (lambda: mnp.array(np.zeros(2, [("a", int)])), DtypeError, "is not a numeric dtype"),
        (lambda: mnp.array([mnp.zeros(1), mnp.zeros(2)]), ShapeError, r"array 1 has shape \(2,\)"),
        (
            lambda: mnp.asarray([1.0], copy=False),
            ArgumentError,
            r"copy=False, but a copy is needed to make float64\[1\] of a list",
        ),
        (lambda: mnp.asarray(mnp.ones(2), "f4", copy=False), ArgumentError, "of a Array"),
        (lambda: mnp.arange(0, 3, 0), ArgumentError, "arange: the step cannot be zero"),
        (lambda: mnp.arange(float("nan")), ArgumentError, "finite real numbers, got 0, nan and"),
        (lambda: mnp.arange(float("inf")), ArgumentError, "finite real numbers, got 0, inf"),
        (lambda: mnp.arange("a"), DtypeError, "arange: dtype <U1 is not a numeric dtype"),
        (lambda: mnp.arange(1j), ArgumentError, "finite real numbers, got 0, 1j"),
        (lambda: mnp.arange([1, 2]), ArgumentError, r"finite real numbers, got 0, \[1, 2\]"),
        (
            lambda: mnp.arange(3, dtype=bool),
            ArgumentError,
            "arange: 3 different bools were requested, but there are only two",
        ),
        (
            lambda: mnp.linspace(0, 1, -1),
            ArgumentError,
            "linspace: num must be a non-negative integer, got -1",
        ),
        (
            lambda: mnp.linspace(0, 1, 2.5),
            ArgumentError,
            r"linspace: num must be an integer, got 2\.5",
        ),
        (lambda: mnp.tril(V[0]), ShapeError, r"tril: needs at least two dims, got \(6,\)"),
        (lambda: mnp.triu(5), ShapeError, r"triu: needs at least two dims, got \(\)"),
        (lambda: mnp.diag(5), ShapeError, r"diag: takes one or two dims, got shape \(\)"),
        (lambda: mnp.diag(np.zeros((1, 1, 1))), ShapeError, "diag: takes one or two dims"),
        (lambda: mnp.meshgrid(V, indexing="yx"), ArgumentError, "'xy' or 'ij', got 'yx'"),
        (
            lambda: mnp.zeros(2, device="cpu:0"),
            ArgumentError,
            "zeros: expected a Sharding, a Device, a spec or None, got 'cpu:0'",
        ),
        (
            lambda: mnp.zeros(2, device=P("i")),
            ShardingError,
            r"the bare spec P\('i',?\) needs a mesh",
        ),
        (
            lambda: mnp.zeros(5, device=NamedSharding(mesh(), P("i"))),
            IndivisibleError,
            "dimension 0 should be divisible by 4, but it is equal to 5",
        ),
        (
            lambda: mnp.zeros(8, device=NamedSharding(Mesh(virtual_devices(4), "i"), P("i"))),
            ShardingError,
            r"VirtualDevice\(id=0\) .* does not exist here",
        ),
        (
            lambda: mnp.arange(8, device=BoxSharding((4,), {meshard.devices()[0]: (slice(4),)})),
            ShapeError,
            r"of an array of shape \(4,\), and cannot lay out one of shape \(8,\)",
        ),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
