"""A dim that `vmap` has given a name is an axis, of which each example is a device.

So a collective over it gives what it gives over a mesh axis: the function is mapped over a mesh of
two axes, and then over one of these while vmap maps over the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import P, lax
from meshard.errors import ArgumentError, AxisNameError, ConcretizationError, ShapeError
from meshard.transforms.batching.vmap import vmap
from tests.worlds import whole

SIZES = {"d": 2, "i": 4}
BOTH = ("d", "i")
TURNED = ("i", "d")


def values(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=(2, 4, *shape))


Body = Callable[[Any], Any]
COLLECTIVES: dict[str, tuple[Body, tuple[int, ...]]] = {
    "psum": (lambda x: lax.psum(x, "i") * x, (3,)),
    "psum of both": (lambda x: lax.psum(x, BOTH) + x, (3,)),
    "psum of what is shared": (lambda x: lax.psum(mnp.ones(3), TURNED) + x, (3,)),
    "psum over the mesh": (lambda x: lax.psum(x, "d") + x, (3,)),
    "pmean": (lambda x: x - lax.pmean(x, BOTH), (3,)),
    "pmax": (lambda x: lax.pmax(x, TURNED) + x, (3,)),
    "pmin": (lambda x: lax.pmin(x, "i") + x, (3,)),
    "axis_index": (lambda x: x + lax.axis_index("i"), ()),
    "axis_index of both": (lambda x: x + lax.axis_index(BOTH), ()),
    "axis_index turned": (lambda x: x + lax.axis_index(TURNED), ()),
    "axis_size": (lambda x: x * lax.axis_size("i") + lax.axis_size(BOTH), ()),
    "all_gather": (lambda x: lax.all_gather(x, "i", axis=1), (3,)),
    "all_gather of both": (lambda x: lax.all_gather(x, BOTH), (3,)),
    "all_gather turned": (lambda x: lax.all_gather(x, TURNED, axis=1), (3, 2)),
    "all_gather tiled": (lambda x: lax.all_gather(x, TURNED, axis=1, tiled=True), (3, 2)),
    "all_gather of what is shared": (lambda x: x + lax.all_gather(mnp.arange(3), "i")[0], (3,)),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "i"), (4, 3)),
    "psum_scatter of both": (lambda x: lax.psum_scatter(x, BOTH, scatter_dimension=1), (3, 8)),
    "psum_scatter tiled": (lambda x: lax.psum_scatter(x, TURNED, tiled=True), (16, 3)),
    "ppermute": (lambda x: lax.ppermute(x, "i", [(0, 1), (2, 3), (3, 2)]), (3,)),
    "pshuffle": (lambda x: lax.pshuffle(x, "i", [3, 0, 2, 1]), (3,)),
    "pbroadcast": (lambda x: x + lax.pbroadcast(x, "i", 2), (3,)),
    "pbroadcast of both": (lambda x: x + lax.pbroadcast(x, TURNED, 5), (3,)),
    "all_to_all": (lambda x: lax.all_to_all(x, "i", 0, 1), (4, 3)),
    "all_to_all of both": (lambda x: lax.all_to_all(x, BOTH, 1, 0), (3, 8)),
    "all_to_all turned": (lambda x: lax.all_to_all(x, TURNED, 0, 0), (8, 3)),
    "all_to_all tiled": (lambda x: lax.all_to_all(x, BOTH, 0, 1, tiled=True), (16, 3)),
    "all_to_all tiled turned": (lambda x: lax.all_to_all(x, TURNED, 1, 0, tiled=True), (3, 8)),
    "pswapaxes": (lambda x: lax.pswapaxes(x, "i", 1), (3, 4)),
    "pvary": (lambda x: lax.pvary(x, "i") + x, (3,)),
    "scan": (
        lambda x: lax.scan(lambda c, r: (c + lax.psum(r, BOTH), lax.psum(c, "i")), x[0], x)[1],
        (3,),
    ),
    "fori_loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: c + i * lax.psum(x, "i"), x), (3,)),
    "while_loop": (
        lambda x: lax.while_loop(
            lambda c: lax.psum(c[0], BOTH) < 50, lambda c: c + 1 + c * c, abs(x)
        ),
        (3,),
    ),
    "cond": (
        lambda x: lax.cond(lax.psum(x[0], BOTH) > 0, lambda: lax.psum(x, "i"), lambda: x),
        (3,),
    ),
    "jit": (meshard.jit(lambda x: lax.psum(x, BOTH) * x), (3,)),
    "normalised": (
        lambda x: (
            (x - lax.pmean(x, BOTH)) / mnp.sqrt(lax.pmean((x - lax.pmean(x, BOTH)) ** 2, BOTH))
        ),
        (3,),
    ),
}


def on_a_mesh(f: Body) -> Body:
    """Return a function over both axes of a mesh."""
    mesh = meshard.make_mesh(tuple(SIZES.values()), tuple(SIZES))
    return meshard.shard_map(
        lambda x: f(x[0, 0])[None, None],
        mesh=mesh,
        in_specs=P(*SIZES),
        out_specs=P(*SIZES),
        check_vma=False,
    )


def mapped(f: Body) -> Body:
    """Return a function over one axis of a mesh, and of the other's positions as examples."""
    mesh = meshard.make_mesh((2,), ("d",))
    return meshard.shard_map(
        lambda x: vmap(f, axis_name="i")(x[0])[None],
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
        check_vma=False,
    )


def mapped_twice(f: Body) -> Body:
    """Return a function of the positions of both axes as examples."""
    return vmap(vmap(f, axis_name="i"), axis_name="d")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_an_example_is_a_device(name: str) -> None:
    f, shape = COLLECTIVES[name]
    x = values(*shape)
    expected = whole(on_a_mesh(f)(x))
    ways = [mapped(f), mapped_twice(f), meshard.jit(mapped(f)), meshard.jit(mapped_twice(f))]
    for way in ways:
        found = whole(way(x))
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, 1e-12, 1e-14)


MOVED = [n for n in COLLECTIVES if n not in ("while_loop", "axis_size") and "axis_index" not in n]


@pytest.mark.parametrize("name", MOVED)
def test_the_transpose_of_a_collective(name: str) -> None:
    """``<g, J t> = <J^T g, t>`` for the function of all examples."""
    f, shape = COLLECTIVES[name]
    x = mnp.asarray(values(*shape))
    rng = np.random.default_rng(1)
    every = mapped_twice(f)
    y, tangent = meshard.jvp(every, (x,), (t := mnp.asarray(rng.normal(size=x.shape)),))
    g = mnp.asarray(rng.normal(size=y.shape))
    for way in (every, meshard.jit(every), mapped(f)):
        (back,) = meshard.vjp(way, x)[1](g)
        assert float(mnp.sum(g * tangent)) == pytest.approx(float(mnp.sum(back * t)), rel=1e-9)


def test_gradients_of_each_example() -> None:
    """As in JAX the transpose of a sum over examples is a sum: each has a result of its own."""
    x = mnp.arange(4.0)
    slope = vmap(meshard.grad(lambda v: lax.psum(v * v, "i")), axis_name="i")(x)
    np.testing.assert_array_equal(whole(slope), 4 * 2 * np.arange(4.0))
    shifted = vmap(
        meshard.grad(lambda v: lax.ppermute(v, "i", [(0, 1), (1, 2)]) ** 2), axis_name="i"
    )
    np.testing.assert_array_equal(whole(shifted(x)), [0, 2, 0, 0])
    columns = vmap(meshard.jacrev(lambda v: lax.psum(v, "i") * v), axis_name="i")(mnp.ones((2, 3)))
    assert columns.shape == (2, 3, 3)


def test_examples_are_summed_where_they_are() -> None:
    """A sum over split examples is one all-reduce; what concerns one example moves nothing."""
    mesh = meshard.make_mesh((8,), ("d",))
    x = meshard.device_put(values(5).reshape(8, 5), meshard.NamedSharding(mesh, P("d")))
    with meshard.debug.ledger() as log:
        found = vmap(lambda v: v - lax.pmean(v, "i"), axis_name="i")(x)
    assert found.sharding.spec == P("d")
    assert [entry.kind for entry in log] == ["all-reduce"]


def test_names() -> None:
    x = mnp.asarray(values(3)[0])
    inner = vmap(vmap(lambda v: lax.psum(v, "i"), axis_name="i"), axis_name="i")
    np.testing.assert_allclose(whole(inner(x)), np.repeat(whole(x).sum(1)[:, None], 3, 1))
    numbered = vmap(lambda v: lax.axis_index(7) + v, axis_name=7)
    np.testing.assert_allclose(whole(numbered(x)), whole(x) + np.arange(4)[:, None])
    mesh = meshard.make_mesh((2,), ("d",))
    hidden = meshard.shard_map(
        vmap(lambda v: lax.psum(v, "d"), axis_name="d"),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
    )
    np.testing.assert_allclose(whole(hidden(x))[0], whole(x)[:2].sum(0))
    within = vmap(
        lambda v: meshard.shard_map(
            lambda w: lax.psum(w, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()
        )(v),
        axis_name="d",
    )
    np.testing.assert_allclose(whole(within(x[:, :2])), whole(x)[:, :2].sum(1)[:, None])
    assert vmap(lambda: lax.axis_index("i"), axis_size=3, axis_name="i")().tolist() == [0, 1, 2]
    shared = vmap(lambda v: lax.psum(v, "i"), axis_name="i", out_axes=None)(x)
    np.testing.assert_allclose(whole(shared), whole(x).sum(0))
    times = vmap(meshard.jit(lambda v: v * lax.axis_size("i")), axis_name="i")
    assert [times(mnp.ones(n)).tolist() for n in (2, 3)] == [[2, 2], [3, 3, 3]]


def test_examples_are_split_where_specs_are_written() -> None:
    mesh = meshard.make_mesh((4, 2), ("d", "m"))
    x = mnp.asarray(values(6).reshape(8, 6))

    def inner(v: Any) -> Any:
        f = meshard.shard_map(
            lambda w: w * lax.psum(1, "d"), mesh=mesh, in_specs=P("m"), out_specs=P("m")
        )
        return f(v)

    found = vmap(inner, spmd_axis_name="d")(x)
    assert found.sharding.spec == P("d", "m")
    np.testing.assert_array_equal(whole(found), 4 * whole(x))
    on = meshard.NamedSharding(mesh, P("m"))
    laid = vmap(lambda v: lax.with_sharding_constraint(v, on), spmd_axis_name=("d",))(x)
    assert laid.sharding.spec == P("d", "m")
    slope = meshard.grad(lambda u: mnp.sum(vmap(inner, spmd_axis_name="d")(u) ** 2))(x)
    np.testing.assert_allclose(whole(slope), 32 * whole(x))
    with pytest.raises(meshard.errors.IndivisibleError, match="6 examples over 4 devices"):
        vmap(inner, spmd_axis_name="d")(x[:6])
    with pytest.raises(ArgumentError, match="spmd_axis_name"):
        vmap(inner, spmd_axis_name=["d"])
    named = meshard.shard_map(
        lambda w: lax.psum(w, "i"), mesh=mesh, in_specs=P("m"), out_specs=P("m")
    )
    with pytest.raises(ArgumentError, match="cannot be over axis_name='i'"):
        vmap(named, axis_name="i", spmd_axis_name="d")(x)


def test_custom_rules_know_the_name() -> None:
    @meshard.custom_vjp
    def total(x: Any) -> Any:
        return lax.psum(x, "i")

    total.defvjp(lambda x: (lax.psum(x, "i"), x), lambda x, g: (lax.psum(g * x, "i"),))
    x = mnp.arange(1.0, 4.0)
    slope = meshard.grad(lambda v: mnp.sum(vmap(total, axis_name="i")(v)))(x)
    np.testing.assert_array_equal(whole(slope), [6.0, 6.0, 6.0])
    again = meshard.grad(
        lambda v: mnp.sum(vmap(meshard.remat(lambda u: lax.psum(u * u, "i")), axis_name="i")(v))
    )
    np.testing.assert_array_equal(whole(again(x)), 6 * whole(x))


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "unknown": (
        lambda x: vmap(lambda v: lax.psum(v, "j"), axis_name="i")(x),
        AxisNameError,
        "bound here are 'i'",
    ),
    "none": (lambda x: vmap(lambda v: lax.psum(v, "j"))(x), AxisNameError, "no axis is bound"),
    "over": (
        lambda x: (vmap(lambda v: v, axis_name="i")(x), lax.psum(x, "i")),
        AxisNameError,
        "no axis",
    ),
    "twice": (
        lambda x: vmap(lambda v: lax.psum(v, ("i", "i")), axis_name="i")(x),
        ArgumentError,
        "repeated",
    ),
    "groups": (
        lambda x: vmap(
            lambda v: lax.psum(v, "i", axis_index_groups=[[0, 1], [2, 3]]), axis_name="i"
        )(x),
        ArgumentError,
        "axis_index_groups are not supported over 'i', which vmap has bound",
    ),
    "permutation": (
        lambda x: vmap(
            vmap(lambda v: lax.ppermute(v, ("i", "j"), [(0, 1)]), axis_name="j"), axis_name="i"
        )(x),
        ArgumentError,
        "a permutation of several axes is not supported",
    ),
    "ragged": (
        lambda x: vmap(
            lambda v: lax.ragged_all_to_all(v, v, *[mnp.zeros(4, int)] * 4, axis_name="i"),
            axis_name="i",
        )(x),
        ArgumentError,
        "ragged_all_to_all: it is not supported over 'i', which vmap has bound",
    ),
    "the same everywhere": (
        lambda x: mapped(lambda v: lax.all_gather_invariant(v, BOTH))(values(3)),
        ArgumentError,
        "some of which are mesh axes and some bound by vmap. Gather over one after another",
    ),
    "outside": (
        lambda x: vmap(lambda v: lax.axis_index("i"), axis_name="i", out_axes=None)(x),
        ShapeError,
        "None",
    ),
    "unhashable": (lambda x: vmap(lambda v: v, axis_name=["i"])(x), ArgumentError, "axis_name"),
    "a value": (
        lambda x: vmap(lambda v: float(lax.psum(v[0], "i")), axis_name="i")(x),
        ConcretizationError,
        "float",
    ),
    "size": (
        lambda x: vmap(lambda v: lax.psum_scatter(v, "i"), axis_name="i")(x),
        ShapeError,
        "'i', which is 4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    f, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        f(mnp.asarray(values(3)[0]))
