"""`with_sharding_constraint`, outside of bodies and along their automatic axes."""

import numpy as np
import pytest

import meshard
from meshard import lax
from meshard.errors import ShardingError, SpecError
from meshard.sharding import NamedSharding, P
from tests.worlds import everywhere, in_worlds, mesh, put, whole

GRID = np.arange(64.0).reshape(8, 8)


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
