"""shard_map of arrays with unequal shards, and halos: each device sees its own local shape."""

from __future__ import annotations

import io
import threading
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard.debug import ledger
from meshard.errors import (
    ArgumentError,
    IndivisibleError,
    ReplicationError,
    ShapeError,
    ShardingError,
    TreeError,
)
from meshard.sharding import NamedSharding, P
from tests.worlds import in_worlds, mesh, put, whole

V = np.arange(30.0).reshape(10, 3)
TILES = P("i", "j")


def over(body: Any, ins: Any = TILES, outs: Any = TILES, **options: Any) -> Any:
    """Return a body mapped over the 4 x 2 mesh."""
    return meshard.shard_map(body, mesh=mesh(), in_specs=ins, out_specs=outs, **options)


def uneven(value: Any = V, *spec: Any, rule: Any = "balanced") -> meshard.Array:
    return put(value, *(spec or ("i", "j")), uneven=rule)


@in_worlds
def test_each_device_sees_its_own_shape() -> None:
    shapes = []
    x = uneven()
    found = over(lambda t: shapes.append(t.shape) or 2 * t)(x)
    assert sorted(shapes) == [(2, 1), (2, 2), (3, 1), (3, 2)]  # once for each local shape
    np.testing.assert_array_equal(whole(found), 2 * V)
    assert found.sharding == x.sharding


@pytest.mark.parametrize("rule", ["balanced", "ceil", ((0, 1, 1, 9, 10), (0, 0, 3))])
def test_any_layout_is_kept(rule: Any) -> None:
    x = uneven(rule=rule)
    found = over(lambda t: t + 1)(x)
    np.testing.assert_array_equal(whole(found), V + 1)
    assert found.sharding == x.sharding


@in_worlds
def test_sums_along_each_axis_need_equal_shapes_only_along_it() -> None:
    x = uneven()
    np.testing.assert_array_equal(
        over(lambda t: lax.psum(t.sum(), ("i", "j")), outs=P())(x), V.sum()
    )
    np.testing.assert_array_equal(
        whole(over(lambda t: lax.psum(t.sum(1), "j"), outs=P("i"))(x)), V.sum(1)
    )
    mean = over(lambda t: t - lax.psum(t.sum(0), "i") / lax.psum(t.shape[0], "i"))
    np.testing.assert_allclose(whole(mean(x)), V - V.mean(0))
    np.testing.assert_array_equal(
        whole(over(lambda t: t + lax.axis_index("i"))(x))[:, 0],
        V[:, 0] + np.repeat(range(4), [3, 3, 2, 2]),
    )


@in_worlds
def test_numbers_that_depend_on_the_shape_are_summed_and_others_stay_numbers() -> None:
    def body(t: Any) -> Any:
        assert lax.psum(1, "i") == 4  # the size of the axis, as a Python number
        return t * 0 + lax.psum(t.shape[0], "i")

    np.testing.assert_array_equal(whole(over(body)(uneven())), np.full(V.shape, 10.0))
    most = over(lambda t: lax.pmax(t.shape[0], ("i", "j")), outs=P())
    assert int(whole(most(uneven()))) == 3


@in_worlds
def test_results_of_other_sizes_are_joined() -> None:
    x = uneven()
    first = over(lambda t: t[:1, :1])(x)
    np.testing.assert_array_equal(whole(first), V[[0, 3, 6, 8]][:, [0, 2]])
    twice = over(lambda t: mnp.concatenate([t, t]))(x)
    rows = np.concatenate([np.r_[a:b, a:b] for a, b in ((0, 3), (3, 6), (6, 8), (8, 10))])
    np.testing.assert_array_equal(whole(twice), V[rows])
    across = over(lambda t: t.T, outs=P("j", "i"))(x)
    np.testing.assert_array_equal(whole(across), V.T)
    assert across.sharding.uneven == "balanced"
    counts = over(lambda t: mnp.full((1, 1), t.size))(x)
    np.testing.assert_array_equal(whole(counts), [[6, 3], [6, 3], [4, 2], [4, 2]])


@in_worlds
def test_even_and_whole_arguments_go_along() -> None:
    even, number = put(np.arange(8.0), "i"), mnp.asarray(2.0)
    found = over(lambda t, e, n, k: t * n + e.sum() + len(k), (TILES, P("i"), P(), None), TILES)(
        uneven(), even, number, "abc"
    )
    sums = np.repeat([1, 5, 9, 13], [3, 3, 2, 2])[:, None]
    np.testing.assert_array_equal(whole(found), 2 * V + sums + 3)


def test_plain_arrays_are_taken_where_that_is_asked_for() -> None:
    with pytest.raises(IndivisibleError, match="pass uneven=True, so that each device sees its"):
        over(lambda t: t)(V)
    found = over(lambda t: t + 1, uneven=True)(V)
    np.testing.assert_array_equal(whole(found), V + 1)
    assert found.sharding == uneven().sharding


@in_worlds
def test_under_jit_it_runs_as_it_does_outside() -> None:
    def body(t: Any) -> Any:
        return t + lax.psum(t.sum(), ("i", "j"))

    f = over(body, uneven=True)
    program = meshard.jit(lambda x: f(x + 1) * 2)
    expected = (V + 1 + (V + 1).sum()) * 2
    for _ in range(2):
        np.testing.assert_array_equal(whole(program(uneven())), expected)
    assert meshard.eval_shape(f, uneven()).shape == V.shape


@in_worlds
def test_branches_and_loops_know_no_shapes_of_others() -> None:
    def body(t: Any) -> Any:
        t = lax.cond(lax.axis_index("i") > 1, lambda: 2 * t, lambda: t)
        return lax.fori_loop(0, 2, lambda _, c: c + t.shape[0], t)

    counts = np.repeat([3, 3, 2, 2], [3, 3, 2, 2])[:, None]
    expected = V * np.where(counts == 2, 2, 1) + 2 * counts
    np.testing.assert_array_equal(whole(over(body)(uneven())), expected)


def test_two_local_shapes_cost_the_bytes_of_one() -> None:
    x, y = uneven(np.arange(13.0), "i"), put(np.arange(12.0), "i")
    bytes_of = []
    for value in (x, y):
        with ledger() as log:
            over(lambda t: t + lax.psum(t.sum(), "i"), P("i"), P("i"))(value)
        bytes_of.append(log.total_bytes)
    assert bytes_of[0] == bytes_of[1] > 0


LATER = lambda: lax.axis_index("i") > 1  # noqa: E731
REFUSED = {
    "gather": (
        lambda t: lax.all_gather(t, "i"),
        P(),
        ShapeError,
        r"all_gather along 'i' needs equal local shapes.*float64\[2,1\]",
    ),
    "other": (
        lambda t: (lax.psum if len(t) == 3 else lax.pmax)(t.sum(), "i"),
        P("j"),
        ShapeError,
        "came to pmax.*another came to psum",
    ),
    "ended": (
        lambda t: t + lax.psum(t.sum(), "i") if len(t) == 3 else t,
        TILES,
        ShapeError,
        "ended, while that for another came to psum",
    ),
    "claim": (
        lambda t: mnp.asarray(len(t)),
        P(),
        ReplicationError,
        "with the local shape. Name the mesh axes 'i'",
    ),
    "tree": (
        lambda t: (t,) if len(t) == 3 else [t],
        TILES,
        TreeError,
        "returns trees of different structures",
    ),
    "rank": (lambda t: t if len(t) == 3 else t[0], TILES, ShapeError, "only its sizes may differ"),
    "raises": (
        lambda t: 1 / 0 if len(t) == 2 else lax.psum(t.sum(), "i"),
        P("j"),
        ZeroDivisionError,
        "zero",
    ),
    "branch": (
        lambda t: lax.cond(LATER(), lambda: lax.psum(t.sum(), "i"), lambda: t.sum()),
        P(),
        ArgumentError,
        "under a condition",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_joint_is_refused_and_leaves_nothing_behind(name: str) -> None:
    body, outs, error, message = REFUSED[name]
    before = threading.active_count()
    x = uneven()
    with pytest.raises(error, match=message):
        over(body, outs=outs)(x)
    assert threading.active_count() == before
    np.testing.assert_array_equal(whole(over(lambda t: t)(x)), V)


def test_a_size_that_its_spec_does_not_account_for_is_refused() -> None:
    f = over(lambda t: t.sum(0), outs=P("i"), check_vma=False)
    with pytest.raises(ShapeError, match=r"dim 0 of a result is of sizes \[1, 2\] on different"):
        f(uneven())


def test_what_is_not_there_yet_is_said() -> None:
    f = over(lambda t: 2 * t, uneven=True)
    with pytest.raises(ArgumentError, match="not differentiated, or mapped by vmap"):
        meshard.grad(lambda x: f(x).sum())(uneven())
    part = meshard.shard_map(
        lambda t: t, mesh=mesh(), in_specs=P("i"), out_specs=P("i"), axis_names={"i"}, uneven=True
    )
    with pytest.raises(ShardingError, match="'j' stays automatic"):
        part(np.arange(10.0))


# halos

BOUNDARIES = ("wrap", "edge", "reflect", "symmetric", 0, 1.5)


def padded(value: Any, dim: int, width: tuple[int, int], boundary: Any) -> Any:
    pads = [(0, 0)] * value.ndim
    pads[dim] = width
    if isinstance(boundary, str):
        return np.pad(value, pads, mode=boundary)
    return np.pad(value, pads, constant_values=boundary)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("rows", "dim"), [(16, 0), (14, 0), (14, 1)])
def test_halos_are_slices_of_the_padded_array_and_have_a_transpose(
    rows: int, dim: int, boundary: Any
) -> None:
    random = np.random.default_rng(rows + dim)
    value = random.normal(size=(rows, 3) if dim == 0 else (3, rows))
    spec = P("i") if dim == 0 else P(None, "i")
    x = meshard.device_put(value, NamedSharding(mesh(), spec, uneven="balanced"))
    cuts = x.sharding.dim_cuts(value.shape)[dim]
    for width in (1, 2, (0, 2), (2, 1), (0, 0)):
        before, behind = both = width if isinstance(width, tuple) else (width, width)
        whole_one = padded(value, dim, both, boundary)
        ranges = [range(a, b + before + behind) for a, b in pairwise(cuts)]
        expected = np.concatenate([whole_one.take(r, dim) for r in ranges], dim)
        wide = over(lambda t, w=width: lax.halo(t, "i", dim, w, boundary=boundary), spec, spec)(x)
        np.testing.assert_array_equal(whole(wide), expected)
        g = meshard.device_put(random.normal(size=expected.shape), wide.sharding)
        back = over(lambda t, w=width: lax.halo_add(t, "i", dim, w, boundary=boundary), spec, spec)(
            g
        )
        constant = padded(0 * value, dim, both, boundary)
        constant = np.concatenate([constant.take(r, dim) for r in ranges], dim)
        forth = ((expected - constant) * whole(g)).sum()
        np.testing.assert_allclose(forth, (value * whole(back)).sum())


@in_worlds
def test_a_stencil_by_halos_is_the_stencil_of_the_array() -> None:
    value = np.random.default_rng(0).normal(size=(11, 7))

    def heat(tile: Any) -> Any:
        wide = lax.halo(lax.halo(tile, "i", 0, boundary="edge"), "j", 1, boundary="edge")
        return wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * tile

    wide = np.pad(value, 1, mode="edge")
    expected = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * value
    np.testing.assert_allclose(whole(over(heat)(uneven(value))), expected)
    np.testing.assert_allclose(whole(meshard.jit(over(heat, uneven=True))(uneven(value))), expected)


def test_the_gradient_of_a_halo_is_its_opposite() -> None:
    x = put(np.arange(16.0), "i")

    def loss(x: Any) -> Any:
        wide = over(lambda t: lax.halo(t, "i", 0, 2, boundary="reflect"), P("i"), P("i"))(x)
        return (wide * mnp.arange(32.0)).sum()

    found = meshard.grad(loss)(x)
    g = put(np.arange(32.0), "i")
    back = over(lambda t: lax.halo_add(t, "i", 0, 2, boundary="reflect"), P("i"), P("i"))(g)
    np.testing.assert_array_equal(whole(found), whole(back))


def test_only_edges_move() -> None:
    x = put(np.zeros((64, 10)), "i")
    with ledger() as log:
        over(lambda t: lax.halo(t, "i", 0, (2, 1)), P("i"), P("i"))(x)
    assert log.total_bytes == 3 * (2 + 1) * 10 * 8 * 2  # for both columns of devices


def test_odd_halos_are_refused() -> None:
    x = put(np.arange(8.0), "i")

    def halo(*args: Any, **options: Any) -> Any:
        return over(lambda t: lax.halo(t, *args, **options), P("i"), P("i"))(x)

    with pytest.raises(ShapeError, match=r"tile of shape \(2,\) has 2 rows.*needs 3"):
        halo("i", 0, 3)
    with pytest.raises(ShapeError, match=r"boundary='reflect' needs 3"):
        halo("i", 0, 2, boundary="reflect")
    with pytest.raises(ArgumentError, match="boundary='mirror' is none of 'wrap', 'edge'"):
        halo("i", boundary="mirror")
    with pytest.raises(ArgumentError, match="width must be a non-negative integer, got -1"):
        halo("i", 0, (-1, 1))


def test_a_body_prints_once_for_each_shape() -> None:
    said = io.StringIO()
    with redirect_stdout(said):
        over(lambda t: print(t.shape) or t, P("i"), P("i"))(uneven(np.arange(5.0), "i"))
    assert said.getvalue().split("\n") == ["(1,)", "(2,)", ""]
