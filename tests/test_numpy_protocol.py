"""NumPy's functions on arrays are those of ``meshard.numpy``, wherever it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import meshard
import meshard.numpy as mnp
from meshard import NamedSharding, P
from meshard.debug import ledger
from meshard.errors import ArgumentError
from meshard.runtime.simulated import simulate

from .numpys import unheard_of
from .worlds import alone, put

GRID = np.arange(32.0).reshape(8, 4) + 1

CALLS: dict[str, Callable[[Any], Any]] = {
    "sin": np.sin,
    "modf": np.modf,
    "array + x": lambda x: GRID + x,
    "array @ x": lambda x: GRID.T @ x,
    "array == x": lambda x: x == GRID,
    "scalar * x": lambda x: np.float32(2) * x,
    "divmod": lambda x: divmod(GRID, x),
    "dtype=": lambda x: np.add(x, x, dtype="f4"),
    "usual arguments": lambda x: np.add(x, x, where=True, casting="same_kind", order="K"),
    "add.reduce": np.add.reduce,
    "maximum.reduce": lambda x: np.maximum.reduce(x, axis=1, keepdims=True),
    "logical_and.reduce": lambda x: np.logical_and.reduce(x > 3, axis=None),
    "add.accumulate": lambda x: np.add.accumulate(x, axis=1),
    "multiply.outer": lambda x: np.multiply.outer(x[:, 0], x[0]),
    "concatenate": lambda x: np.concatenate([x, GRID, x], 1),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "where": lambda x: np.where(x > 3, x, 0),
    "sum by place": lambda x: np.sum(x, 0, None, None, True),
    "mean of rows": lambda x: np.mean(x, 1, dtype="f4"),
    "std": lambda x: np.std(x, ddof=1),
    "clip by place": lambda x: np.clip(x, 2, 5),
    "clip by name": lambda x: np.clip(x, a_min=2, a_max=5),
    "reshape": lambda x: np.reshape(x, (4, 8)),
    "linalg.norm": lambda x: np.linalg.norm(x, axis=1),
    "linalg.solve": lambda x: np.linalg.solve(x.T @ x + np.eye(4), GRID[0]),
    "fft.fft": lambda x: np.fft.fft(x, axis=1),
    "sort": lambda x: np.sort(x, 0),
    "percentile": lambda x: np.percentile(x, 30, axis=0),
    "unique": np.unique,
    "zeros_like": np.zeros_like,
    "trapezoid": np.trapezoid,
}


def _leaves(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


@pytest.mark.parametrize("name", CALLS)
def test_results_are_arrays_and_numpys(name):
    def body() -> None:
        function = CALLS[name]
        x = put(GRID, "i", "j")
        with ledger() as log:
            found = _leaves(function(x))
        assert not log.to_host
        for own, known in zip(found, _leaves(function(GRID)), strict=True):
            assert type(own) is meshard.Array
            assert own.dtype == known.dtype
            np.testing.assert_allclose(own, known, rtol=1e-6)

    alone(body)


def test_all_processes_call_them_as_they_do_meshards() -> None:
    def body() -> None:
        x = put(GRID, "i", "j")
        assert np.sin(x).sharding == x.sharding
        assert float(np.sum(x)) == GRID.sum()

    simulate(2, 4, body, deadline=5)


IN_PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "sin": lambda x: np.sin(x) * GRID,
    "array + x": lambda x: GRID + x,
    "sum": lambda x: np.sum(np.exp(x / 100), axis=1),
    "concatenate": lambda x: np.concatenate([x, np.cos(x)]),
    "where": lambda x: np.where(x > 3.5, x, 0),
    "norm": lambda x: np.linalg.norm(x, axis=1),
}


@pytest.mark.parametrize("name", IN_PROGRAMS)
def test_values_inside_transformations_too(name):
    def body() -> None:
        function = IN_PROGRAMS[name]
        x = put(GRID, "i", "j")
        known = function(GRID)
        np.testing.assert_allclose(meshard.jit(function)(x), known)
        assert meshard.eval_shape(function, x).shape == known.shape
        derived = meshard.grad(lambda t: np.sum(function(t)))(x)
        around = (function(GRID + 1e-6).sum() - function(GRID - 1e-6).sum()) / 2e-6
        np.testing.assert_allclose(np.sum(derived), around, rtol=1e-5)
        rows = meshard.vmap(lambda row: np.sin(row).sum())(x)
        np.testing.assert_allclose(rows, np.sin(GRID).sum(1))

    alone(body)


def test_values_in_bodies_too() -> None:
    def body() -> None:
        x = put(GRID, "i")
        local = meshard.shard_map(
            lambda t: np.concatenate([np.sin(t), np.float64(2) * t], axis=1),
            mesh=x.sharding.mesh,
            in_specs=P("i"),
            out_specs=P("i"),
        )
        np.testing.assert_allclose(local(x), np.concatenate([np.sin(GRID), 2 * GRID], 1))

    alone(body)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a function that is missing": (
        unheard_of,
        r"numpy.unheard_of: meshard.numpy has no such function, and float64\[8,4\] is spread "
        r"over 8 blocks, .* pass np.asarray\(x\)",
    ),
    "a ufunc that is missing": (scipy.special.j0, "j0: meshard.numpy has no such function"),
    "a method that is missing": (scipy.special.agm.reduce, "agm.reduce: meshard.numpy has no"),
    "into an array": (
        lambda x: np.add(GRID, GRID, out=x),
        "numpy.add: out= is an array of meshard, and these are immutable",
    ),
    "a sum into an array": (lambda x: np.sum(GRID, axis=0, out=x[0]), "out= is an array of mesh"),
    "at": (lambda x: np.add.at(x, 0, 1), r"numpy.add.at: .* write x = x.at\[index\].add"),
    "where=": (
        lambda x: np.add(x, x, where=GRID > 3),
        r"numpy.add: meshard.numpy.add does not take where=; it takes x1, x2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_is_refused_instead_of_put_together(name):
    function, words = REFUSED[name]

    def body() -> None:
        x = put(GRID, "i", "j")
        with ledger() as log, pytest.raises(ArgumentError, match=words):
            function(x)
        assert not log.to_host

    alone(body)


def test_what_is_missing_is_numpys_where_nothing_is_put_together() -> None:
    x = mnp.asarray(GRID)
    assert unheard_of(x) == GRID.sum()
    np.testing.assert_array_equal(scipy.special.j0(x), scipy.special.j0(GRID))
    assert scipy.special.xlogy.outer(x[0], 2.0).tolist() == (GRID[0] * np.log(2.0)).tolist()


def test_results_go_into_numpys_arrays() -> None:
    def body() -> None:
        x = put(GRID, "i", "j")
        out = np.empty((8, 4))
        assert np.multiply(x, 2, out=out) is out
        np.testing.assert_array_equal(out, 2 * GRID)
        sums = np.empty(4, "f4")
        assert np.sum(x, axis=0, out=sums) is sums
        np.testing.assert_array_equal(sums, GRID.sum(0))
        with pytest.raises(TypeError, match="Cannot cast"):
            np.sum(x, axis=0, out=np.empty(4, int))
        np.add.at(out, 0, x[0])
        np.testing.assert_array_equal(out[0], 3 * GRID[0])

    alone(body)


def test_files_and_texts_are_about_the_host(tmp_path: Any) -> None:
    def body() -> None:
        x = put(GRID, "i", "j")
        with ledger() as log:
            np.save(tmp_path / "x.npy", x)
        assert [(r.array, r.nbytes) for r in log.to_host] == [("float64[8,4]", 256)]
        np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), GRID)
        assert np.array2string(x) == np.array2string(GRID)

    alone(body)


def test_other_classes_have_their_say() -> None:
    class Other:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> str:
            return f"{ufunc.__name__} of the other"

    x = put(GRID, "i")
    assert np.add(x, Other()) == "add of the other"
    assert isinstance(np.zeros(3, like=x), meshard.Array)
    assert np.sin(meshard.device_put(GRID, NamedSharding(x.sharding.mesh, P()))).is_fully_replicated
