"""`with_sharding_constraint`, outside of bodies and along their automatic axes."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ArgumentError, IndivisibleError, ShardingError, SpecError
from meshard.sharding import NamedSharding, P
from tests.worlds import everywhere, in_worlds, mesh, put, whole

GRID = np.arange(64.0).reshape(8, 8)
FREE = P.UNCONSTRAINED


def test_arrays_get_the_sharding_that_is_asked_for() -> None:
    def body():
        tree = {"a": put(GRID, "i", "j"), "b": [GRID[0]]}
        found = lax.with_sharding_constraint(tree, NamedSharding(mesh(), P("j")))
        assert found["a"].sharding == found["b"][0].sharding == NamedSharding(mesh(), P("j"))
        with mesh():
            again = lax.with_sharding_constraint(found["a"], P(None, "i"))
        assert again.sharding.spec == P(None, "i")
        return whole(again)

    assert (everywhere(body) == GRID).all()


def test_in_a_body_it_lays_cells_out_along_automatic_axes() -> None:
    def body():
        def work(x):
            y = lax.with_sharding_constraint(x * 2, P(None, "j"))
            return lax.psum(y, "i")

        found = meshard.shard_map(work, mesh(), P("i"), P(), axis_names={"i"})(put(GRID, "i"))
        assert found.sharding.spec == P(None, "j")
        return whole(found)

    assert (everywhere(body) == 2 * GRID.reshape(4, 2, 8).sum(0)).all()


@in_worlds
def test_refusals() -> None:
    with pytest.raises(ShardingError, match="needs a mesh"):
        lax.with_sharding_constraint(GRID, P("i"))

    def names_its_own(x):
        return lax.with_sharding_constraint(x, P("i"))

    with pytest.raises(SpecError, match="names 'i', along which this shard_map body runs"):
        meshard.shard_map(names_its_own, mesh(), P("i"), P("i"))(GRID)
    with pytest.raises(ShardingError, match="give a PartitionSpec or NamedSharding"):
        meshard.shard_map(
            lambda x: lax.with_sharding_constraint(x, meshard.devices()[0]), mesh(), P("i"), P("i")
        )(GRID)


# dims that are left open

OPEN = [
    (P("i"), P(FREE, "j")),
    (P("i"), P("j", FREE)),
    (P("i"), P(None, FREE)),
    (P("i"), P(FREE, "i")),
    (P("i"), P(FREE)),
    (P("i", "j"), P(FREE, FREE)),
]


@pytest.mark.parametrize(("spec", "wanted"), OPEN)
def test_what_is_left_open_stays_as_in_jax(spec: P, wanted: P, jax: ModuleType) -> None:
    there = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(4, 2), ("i", "j"))

    def theirs(p: P) -> Any:
        free = jax.sharding.PartitionSpec.UNCONSTRAINED
        entries = [free if e is FREE else e for e in p]
        return jax.sharding.NamedSharding(there, jax.sharding.PartitionSpec(*entries))

    x = jax.device_put(GRID, theirs(spec))
    place = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, theirs(wanted)))(x).sharding
    expected = [(i.indices(8)[:2], j.indices(8)[:2])
                for i, j in place.devices_indices_map((8, 8)).values()]  # fmt: skip

    def body() -> Any:
        x, target = put(GRID, *spec), NamedSharding(mesh(), wanted)
        found = [
            lax.with_sharding_constraint(x, target),
            meshard.jit(lambda x: lax.with_sharding_constraint(x, target))(x),
            meshard.jit(lambda x: lax.with_sharding_constraint(x * 1, target) + 0)(x),
        ]
        for y in found:
            np.testing.assert_array_equal(whole(y), GRID)
        indices = [y.sharding.devices_indices_map((8, 8)).values() for y in found]
        return [[(i.indices(8)[:2], j.indices(8)[:2]) for i, j in v] for v in indices]

    assert everywhere(body) == [expected] * 3


@in_worlds
def test_what_is_left_open_keeps_its_cuts_and_follows_its_readers() -> None:
    x = put(GRID[:7], "i", uneven=((0, 1, 2, 3, 7),))
    target = NamedSharding(mesh(), P(FREE, "j"))
    for found in (
        lax.with_sharding_constraint(x, target),
        meshard.jit(lambda x: lax.with_sharding_constraint(x, target))(x),
    ):
        assert found.sharding.layout((7, 8)).cuts == ((0, 1, 2, 3, 7), (0, 4, 8))
        np.testing.assert_array_equal(whole(found), GRID[:7])
    rest = lax.with_sharding_constraint(
        put(GRID, None, ("j", "i")), NamedSharding(mesh(), P("j", FREE))
    )
    assert rest.sharding.spec == P("j", "i")  # all that the other dim leaves
    free = lax.with_sharding_constraint(GRID, target)  # nothing says how it lies
    assert free.sharding.spec == P(None, "j")
    f = meshard.jit(
        lambda x: lax.with_sharding_constraint(x * 2, target), out_shardings=put(GRID, "i").sharding
    )
    np.testing.assert_array_equal(whole(f(GRID)), GRID * 2)
    twice = meshard.jit(
        lambda x: lax.with_sharding_constraint(
            lax.with_sharding_constraint(x, NamedSharding(mesh(), P("i"))), target
        )
    )(put(GRID, None, "i"))
    assert twice.sharding.spec == P("i", "j")
    assert meshard.eval_shape(lambda x: lax.with_sharding_constraint(x, target), x).shape == (7, 8)


@in_worlds
def test_dims_of_cells_that_are_left_open_stay() -> None:
    def work(x: Any) -> Any:
        y = lax.with_sharding_constraint(x * 2, P(None, "j"))
        return lax.with_sharding_constraint(y, P(None, FREE))

    mapped = meshard.shard_map(work, mesh(), P("i"), P("i"), axis_names={"i"})
    for f in mapped, meshard.jit(mapped):
        found = f(put(GRID, "i"))
        assert found.sharding.spec == P("i", "j")
        np.testing.assert_array_equal(whole(found), GRID * 2)


SENSELESS: dict[str, Callable[[NamedSharding], Any]] = {
    "device_put": lambda s: meshard.device_put(GRID, s),
    "device_put in jit": lambda s: meshard.jit(lambda x: meshard.device_put(x, s))(GRID),
    "reshard": lambda s: meshard.reshard(put(GRID, "i"), s),
    "plan_reshard": lambda s: meshard.resharding.plan_reshard(put(GRID, "i"), s),
    "make_array_from_callback": lambda s: meshard.make_array_from_callback(
        (8, 8), s, lambda index: GRID[index]
    ),
    "device=": lambda s: mnp.zeros((8, 8), device=s),
    "shard_shape": lambda s: s.shard_shape((8, 8)),
    "devices_indices_map": lambda s: s.devices_indices_map((8, 8)),
    "in_shardings": lambda s: meshard.jit(lambda x: x, in_shardings=(s,))(GRID),
    "out_shardings": lambda s: meshard.jit(lambda x: x, out_shardings=s)(GRID),
    "in_shardings inside": lambda s: meshard.jit(meshard.jit(lambda x: x, in_shardings=(s,)))(GRID),
    "an argument's struct": lambda s: meshard.jit(lambda x: x).lower(
        meshard.ShapeDtypeStruct((8, 8), "f4", sharding=s)
    ),
    "find_intermediate_sharding": lambda s: meshard.resharding.find_intermediate_sharding(
        s, put(GRID, "i", None).sharding
    ),
    "shard_map": lambda s: meshard.shard_map(lambda x: x, s.mesh, s.spec, P())(GRID),
}


@pytest.mark.parametrize("name", SENSELESS)
@in_worlds
def test_nothing_else_leaves_dims_open(name: str) -> None:
    sharding = NamedSharding(mesh(), P(FREE, "j"))
    assert not sharding.is_fully_replicated
    assert not sharding.is_equivalent_to(NamedSharding(mesh(), P(None, "j")), 2)
    with pytest.raises(SpecError, match=r"UNCONSTRAINED.*(unconstrained|left free)"):
        SENSELESS[name](sharding)


# dims that do not divide


@in_worlds
def test_a_constraint_cuts_what_does_not_divide_into_nearly_equal_parts() -> None:
    odd, target = GRID[:7, :3], NamedSharding(mesh(), P("i", "j"))
    constrain = lambda x: lax.with_sharding_constraint(x, target)  # noqa: E731
    for found in (
        constrain(odd),
        constrain(put(odd)),
        meshard.jit(lambda x: constrain(x * 2) / 2)(odd),
        meshard.jit(lambda x: lax.fori_loop(0, 2, lambda i, c: constrain(c), x))(put(odd)),
    ):
        assert found.sharding.layout((7, 3)).cuts == ((0, 2, 4, 6, 7), (0, 2, 3))
        np.testing.assert_array_equal(whole(found), odd)
    total = meshard.jit(lambda x: constrain(x).sum(axis=0))(odd)
    np.testing.assert_array_equal(whole(total), odd.sum(axis=0))
    some = NamedSharding(mesh(), P("i", "j"), uneven=((0, 1, 2, 3, 7),))
    found = lax.with_sharding_constraint(odd, some)
    assert found.sharding.layout((7, 3)).cuts == ((0, 1, 2, 3, 7), (0, 2, 3))


@in_worlds
def test_in_shardings_and_out_shardings_do_not() -> None:
    target = NamedSharding(mesh(), P("i"))
    inner = meshard.jit(lambda x: x, in_shardings=(target,))
    outer = meshard.jit(lambda x: x * 2, out_shardings=target)
    for f in inner, outer, meshard.jit(lambda x: inner(x)), meshard.jit(lambda x: outer(x)):
        with pytest.raises(IndivisibleError, match=r"dimension 0 .*divisible by 4.* 7"):
            f(np.ones(7))


@in_worlds
def test_none_constrains_nothing_and_is_refused() -> None:
    for given in None, {"a": None, "b": NamedSharding(mesh(), P())}:
        tree = {"a": GRID, "b": GRID}
        with pytest.raises(ArgumentError, match="one of the shardings is None"):
            lax.with_sharding_constraint(tree, given)
        with pytest.raises(ArgumentError, match="one of the shardings is None"):
            meshard.jit(lambda x: lax.with_sharding_constraint(x, given))(tree)  # noqa: B023
    with pytest.raises(ArgumentError, match="one of the shardings is None"):
        meshard.shard_map(lambda x: lax.with_sharding_constraint(x, None), mesh(), P("i"), P("i"))(
            GRID
        )
    kept = lax.with_sharding_constraint({"a": GRID, "b": None}, NamedSharding(mesh(), P()))
    assert kept["b"] is None
