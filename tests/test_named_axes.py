"""Collectives by their names: what they take and refuse, and what the others do not say."""

import re

import numpy as np
import pytest

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard.errors import ArgumentError, AxisNameError, DtypeError, IndexingError, ShapeError
from meshard.sharding import P
from tests.worlds import everywhere, in_worlds, mesh, whole

V = np.arange(64.0).reshape(8, 8)
TILES = P("i", "j")


def local(body, *args, ins=TILES):
    """Return a body's value on each device of the 4 x 2 mesh, stacked by ``i`` and ``j``."""
    mapped = meshard.shard_map(
        lambda *x: mnp.asarray(body(*x))[None, None],
        mesh=mesh(),
        in_specs=ins,
        out_specs=TILES,
        check_vma=False,
    )
    return whole(mapped(*(args or (V,))))


REFUSALS = {
    "a repeated axis": (
        lambda x: lax.psum(x, ("i", "i")),
        ArgumentError,
        r"psum: the axis name 'i' is repeated in \('i', 'i'\)",
    ),
    "an axis of another kind": (
        lambda x: lax.psum(x, 0),
        AxisNameError,
        "psum: axis_name must be a string or a tuple of strings, got 0",
    ),
    "an unbound axis in a tuple": (
        lambda x: lax.all_gather(x, ("i", "q")),
        AxisNameError,
        "all_gather: unbound axis name: 'q'; the axes bound here are 'i', 'j'",
    ),
    "an unbound index": (lambda x: lax.axis_index("q"), AxisNameError, "axis_index: unbound"),
    "an unbound size": (lambda x: lax.axis_size("q"), AxisNameError, "axis_size: unbound"),
    "pmax of complex": (
        lambda x: lax.pmax(x + 1j, "i"),
        ArgumentError,
        "pmax: complex numbers have no order; got complex128",
    ),
    "a source twice": (
        lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]),
        ArgumentError,
        r"sources and destinations must be unique, got \(\(0, 1\), \(0, 2\)\).*pbroadcast",
    ),
    "a destination twice": (
        lambda x: lax.ppermute(x, "i", [(0, 1), (2, 1)]),
        ArgumentError,
        "must be unique",
    ),
    "a position outside": (
        lambda x: lax.ppermute(x, "i", [(0, 4)]),
        IndexingError,
        r"ppermute: position 4 is outside the axis 'i' of size 4; perm is \(\(0, 4\),\)",
    ),
    "a shuffle that is none": (
        lambda x: lax.pshuffle(x, "i", [0, 1, 1, 2]),
        ArgumentError,
        r"perm must list every position from 0 to 3 once, got \[0, 1, 1, 2\]",
    ),
    "a source outside": (
        lambda x: lax.pbroadcast(x, "j", 2),
        IndexingError,
        "pbroadcast: source 2 is outside the axis 'j' of size 2",
    ),
    "a dim outside": (
        lambda x: lax.all_gather(x, "i", axis=2, tiled=True),
        ValueError,
        "all_gather: axis 2 is out of bounds for array of dimension 2",
    ),
    "a new dim outside": (
        lambda x: lax.all_gather(x, "i", axis=-4),
        ValueError,
        "axis -4 is out of bounds for array of dimension 3",
    ),
    "where to gather": (
        lambda x: lax.all_gather(x, "i", to="somewhere"),
        ArgumentError,
        "to must be 'varying', 'reduced' or 'invarying', got 'somewhere'",
    ),
    "a scatter of a wrong size": (
        lambda x: lax.psum_scatter(x, "i"),
        ShapeError,
        r"the size of dim 0 must match the size of the axis 'i', which is 4, but it is 2 of the "
        r"shape \(2, 4\)\. With tiled=True",
    ),
    "a tiled scatter of a wrong size": (
        lambda x: lax.psum_scatter(x, "i", tiled=True),
        ShapeError,
        "with tiled=True the size of dim 0 must be divisible by the size of the axis 'i'",
    ),
    "a scattered scalar": (
        lambda x: lax.psum_scatter(x.sum(), "i"),
        ValueError,
        "scatter_dimension 0 is out of bounds for array of dimension 0",
    ),
    "a split of a wrong size": (
        lambda x: lax.all_to_all(x, "i", 0, 1),
        ShapeError,
        "the size of split_axis 0 must equal the size of the axis 'i', which is 4, but it is 2",
    ),
    "a tiled split of a wrong size": (
        lambda x: lax.all_to_all(x, ("i", "j"), 1, 0, tiled=True),
        ShapeError,
        r"split_axis 1 has to be divisible by the size of the axis \('i', 'j'\), which is 8",
    ),
    "a split dim outside": (
        lambda x: lax.all_to_all(x, "i", 0, 2),
        ValueError,
        "concat_axis 2 is out of bounds",
    ),
    "groups that leave out": (
        lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [2]]),
        ArgumentError,
        r"must cover all indices exactly once: 0 to 3 of the axis 'i', got \[\[0, 1\], \[2\]\]",
    ),
    "uneven groups": (
        lambda x: lax.all_gather(x, "i", axis_index_groups=[[0, 1, 2], [3]]),
        ArgumentError,
        "must all have one size, since the result's shape depends on it",
    ),
    "gathered groups that are the same": (
        lambda x: lax.all_gather(x, "i", axis_index_groups=[[0, 1], [2, 3]], to="invarying"),
        ArgumentError,
        "the result differs between the groups along 'i'",
    ),
    "an empty group": (
        lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1, 2, 3], []]),
        ArgumentError,
        r"must cover all indices exactly once.*\[\[0, 1, 2, 3\], \[\]\]",
    ),
    "no groups": (
        lambda x: lax.psum(x, "i", axis_index_groups=3),
        ArgumentError,
        "a group of axis_index_groups takes integers, got 3",
    ),
    "a dim that is no integer": (
        lambda x: lax.all_gather(x, "i", axis=None),
        ArgumentError,
        "all_gather: axis must be an integer, got None",
    ),
    "a source that is no integer": (
        lambda x: lax.pbroadcast(x, "i", 1.5),
        ArgumentError,
        r"pbroadcast: source must be an integer, got 1\.5",
    ),
    "three in a pair": (
        lambda x: lax.ppermute(x, "i", [(0, 1, 2)]),
        ArgumentError,
        r"ppermute: perm must be a sequence of pairs of integers, got \[\(0, 1, 2\)\]",
    ),
    "no pairs": (
        lambda x: lax.ppermute(x, "i", 3),
        ArgumentError,
        r"perm must be a sequence of pairs of integers, got 3 of type int\. Write the pairs",
    ),
    "half a position": (
        lambda x: lax.pshuffle(x, "i", [0.5, 1, 2, 3]),
        ArgumentError,
        r"pshuffle: perm must be a sequence of integers, got \[0\.5, 1, 2, 3\]",
    ),
    "keys": (
        lambda x: lax.psum(meshard.random.key(0), "i"),
        DtypeError,
        "psum: typed random keys are not numbers",
    ),
    "scattered keys": (
        lambda x: lax.psum_scatter(meshard.random.split(meshard.random.key(0), 4), "i"),
        DtypeError,
        "psum_scatter: typed random keys are not numbers",
    ),
    "a cast to nothing": (
        lambda x: lax.pcast(x, "i", to="same"),
        ArgumentError,
        "pcast: to must be 'varying', got 'same'",
    ),
    "a cast of what varies": (
        lambda x: lax.pcast(x, "i", to="varying"),
        ArgumentError,
        r"float64\[2,4\]\{V:\(i,j\)\} already varies over 'i'",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
@in_worlds
def test_what_is_refused(case):
    body, error, message = REFUSALS[case]
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        local(body)
    assert local(lambda x: x.shape[0]).tolist() == [[2, 2]] * 4


def test_positions_count_in_the_order_of_the_axes_given():
    """Unlike JAX's ppermute, which sorts the devices: axis_index says the same as perm here."""

    def body():
        def send(x):
            one, other = ("i", "j"), ("j", "i")
            return mnp.stack(
                [
                    lax.axis_index(one),
                    lax.axis_index(other),
                    lax.ppermute(lax.axis_index(one), one, [(k, (k + 1) % 8) for k in range(8)]),
                    lax.ppermute(
                        lax.axis_index(other), other, [(k, (k + 1) % 8) for k in range(8)]
                    ),
                    lax.pshuffle(lax.axis_index(other), other, [3, 1, 0, 2, 7, 6, 4, 5]),
                    lax.pbroadcast(lax.axis_index(one), other, 1),
                ]
            )

        return local(send)

    found = everywhere(body).reshape(8, 6).T
    one = np.arange(8)
    other = one.reshape(4, 2).T.ravel().argsort()
    perm = np.array([3, 1, 0, 2, 7, 6, 4, 5])
    np.testing.assert_array_equal(found[0], one)
    np.testing.assert_array_equal(found[1], np.arange(8).reshape(2, 4).T.ravel())
    np.testing.assert_array_equal(found[2], (one - 1) % 8)
    np.testing.assert_array_equal(found[3], (found[1] - 1) % 8)
    np.testing.assert_array_equal(found[4], perm[found[1]])
    assert set(found[5].tolist()) == {2}  # position 1 of ("j", "i") is i = 1, j = 0
    assert sorted(other.tolist()) == list(range(8))


@in_worlds
def test_numbers_stay_numbers():
    def body(x):
        assert lax.psum(1, "i") == 4
        assert type(lax.psum(1, ("i", "j"))) is int
        assert lax.psum(2.5, "j") == 5.0
        assert lax.pmean(3, "i") == 3.0
        assert lax.pmax(3, "i") == 3
        assert lax.axis_size(("j", "i")) == 8
        assert lax.psum(x, ()) is x
        assert lax.all_gather(x, ()) is x
        assert lax.axis_index(()).shape == ()
        return x

    local(body)


@in_worlds
def test_a_broadcast_is_a_masked_sum():
    """JAX documents pbroadcast as this, and has no form of it for CPUs."""
    for axes, source in (("i", 2), ("j", 1), (("i", "j"), 5), (("j", "i"), 5)):
        both = local(
            lambda x, a=axes, s=source: mnp.stack(
                [
                    lax.pbroadcast(x, a, s),
                    lax.psum(mnp.where(lax.axis_index(a) == s, x, mnp.zeros_like(x)), a),
                ]
            )
        )
        np.testing.assert_array_equal(both[:, :, 0], both[:, :, 1])


@in_worlds
def test_negative_dims_count_from_the_end():
    """Also where JAX takes none."""
    x = np.arange(8 * 4 * 2 * 3.0).reshape(8, 4, 2, 3)
    ins = P(("i", "j"))
    for a, b in (
        (
            lambda x: lax.all_to_all(x[0], "i", -3, -1),
            lambda x: lax.all_to_all(x[0], "i", 0, 2),
        ),
        (
            lambda x: lax.psum_scatter(x[0], "j", scatter_dimension=-2),
            lambda x: lax.psum_scatter(x[0], "j", scatter_dimension=1),
        ),
        (lambda x: lax.pswapaxes(x[0], "i", -3), lambda x: lax.pswapaxes(x[0], "i", 0)),
    ):
        np.testing.assert_array_equal(local(a, x, ins=ins), local(b, x, ins=ins))


@in_worlds
def test_sums_of_what_varies_over_some_of_the_axes():
    """JAX refuses it; here each device counts, as for what varies over none."""
    found = local(lambda x: lax.psum(x, ("i", "j")), V, ins=P("i"))
    np.testing.assert_array_equal(found[0, 0], V.reshape(4, 2, 8).sum(0) * 2)
    assert (found == found[0, 0]).all()


def test_dims_of_size_zero():
    """JAX refuses to gather them along themselves."""

    def body():
        x = np.zeros((8, 0, 2))
        ins = P(("i", "j"))
        return [
            local(lambda x: lax.all_gather(x, "i", axis=1, tiled=True), x, ins=ins),
            local(lambda x: lax.all_gather(x, ("j", "i"), axis=1), x, ins=ins),
            local(lambda x: lax.psum(x, "i"), x, ins=ins),
            local(lambda x: lax.all_to_all(x, "j", 2, 1, tiled=True), x, ins=ins),
            local(lambda x: lax.psum_scatter(x, "j", scatter_dimension=2), x, ins=ins),
            local(lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True), x, ins=ins),
            local(lambda x: lax.ppermute(x, "j", [(0, 1)]), x, ins=ins),
        ]

    shapes = [x.shape[2:] for x in everywhere(body)]
    assert shapes == [
        *((1, 0, 2), (1, 8, 0, 2), (1, 0, 2), (1, 0, 1), (1, 0), (1, 0, 2), (1, 0, 2)),
    ]


def test_unequal_groups_and_means():
    def body():
        groups = [[0, 2, 3], [1]]
        return local(
            lambda x: mnp.stack(
                [
                    lax.psum(x, "i", axis_index_groups=groups),
                    lax.pmean(x, "i", axis_index_groups=groups),
                    lax.pmax(x, "i", axis_index_groups=groups),
                ]
            )
        )

    found = everywhere(body)
    tiles = V.reshape(4, 2, 2, 4).transpose(0, 2, 1, 3)
    for members in ([0, 2, 3], [1]):
        for i in members:
            np.testing.assert_array_equal(found[i, :, 0], tiles[members].sum(0))
            np.testing.assert_allclose(found[i, :, 1], tiles[members].mean(0))
            np.testing.assert_array_equal(found[i, :, 2], tiles[members].max(0))


@in_worlds
def test_trees_are_mapped_over():
    def body(x):
        tree = lax.psum({"a": x, "b": [x * 2, None]}, "i")
        assert tree["b"][1] is None
        return tree["a"] + tree["b"][0]

    np.testing.assert_array_equal(local(body), local(lambda x: lax.psum(x * 3, "i")))


@in_worlds
def test_typed_keys_are_gathered_and_permuted():
    keys = meshard.random.split(meshard.random.key(0), 8)
    whole_keys = whole(meshard.random.key_data(keys))

    def body(k):
        found = lax.all_gather(lax.ppermute(k, "i", [(0, 1), (1, 0)]), ("i", "j"), tiled=True)
        return meshard.random.key_data(found)

    found = local(body, keys, ins=P(("i", "j")))
    expected = np.zeros_like(whole_keys)
    expected[:4] = whole_keys[[2, 3, 0, 1]]
    np.testing.assert_array_equal(found[0, 0], expected)
