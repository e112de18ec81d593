"""The integer of `fori_loop`: a Python number that also answers as an array does."""

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import P
from meshard.transforms.flow.carries import LoopIndex
from tests.worlds import everywhere, mesh, whole


def test_it_calculates_as_python_does_and_compares_as_numpy_does() -> None:
    i = LoopIndex(5)
    assert type(i + 1) is LoopIndex
    assert type(2 * i) is LoopIndex
    assert type(i % 4) is LoopIndex
    assert i / 2 == 2.5
    assert i // 2 == 2
    assert not ~(i == 5)
    assert bool(~(i == 4))
    assert {5: "five"}[i] == "five"
    assert list(range(i)) == [0, 1, 2, 3, 4]
    assert (i.dtype, i.shape, i.ndim) == (np.int64, (), 0)
    assert repr(i) == "5"
    assert i.item() == 5
    assert i.astype("float32").dtype == np.float32


def test_arrays_keep_their_dtype_beside_it() -> None:
    x = mnp.ones(3, "float32")
    for found in (
        x + LoopIndex(2),
        LoopIndex(2) * x,
        x ** LoopIndex(2),
        mnp.where(LoopIndex(0) == 0, x, 0),
    ):
        assert found.dtype == np.float32
    assert x[LoopIndex(1)].shape == ()
    assert x.at[LoopIndex(2)].set(LoopIndex(7)).tolist() == [1, 1, 7]


def test_a_negated_comparison_is_what_it_says_inside_and_outside_of_shard_map() -> None:
    def turns(x):
        return lax.fori_loop(0, 4, lambda i, c: mnp.where(~(i == 0), c + i, c), x)

    def body():
        inside = meshard.shard_map(turns, mesh(), P("i"), P("i"))(np.zeros(4, np.float32))
        return [whole(inside), whole(turns(mnp.zeros(4, "float32")))]

    for found in everywhere(body):
        assert found.dtype == np.float32
        assert found.tolist() == [6, 6, 6, 6]


def test_it_may_become_the_carry() -> None:
    assert int(lax.fori_loop(0, 4, lambda i, c: i, 0)) == 3
    assert lax.fori_loop(0, 3, lambda i, c: c + i.astype("float64"), 0.5).tolist() == 3.5
    assert meshard.eval_shape(lambda: lax.fori_loop(0, 3, lambda i, c: c * i, 1.0)).shape == ()
