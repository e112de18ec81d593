"""`cg`, `bicgstab` and `gmres` beside JAX's, step for step; what passes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as scipy_linalg

import meshard
import meshard.numpy as mnp
from meshard import NamedSharding, P, debug
from meshard.errors import ArgumentError, DtypeError, MeshardError, ShapeError, TreeError
from meshard.scipy.sparse import SparseRows, linalg
from tests.worlds import alone, everywhere, in_processes, whole

N = 9
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "cg": ("cg", {}),
    "bicgstab": ("bicgstab", {}),
    "gmres": ("gmres", {"restart": 7}),
    "incremental": ("gmres", {"restart": 7, "solve_method": "incremental"}),
}


def system(name: str, dtype: Any = float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a matrix, a right-hand side, a first guess and a preconditioner."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(N, N))
    b, x0 = rng.normal(size=(2, N))
    if np.dtype(dtype).kind == "c":
        a, b = a + 1j * rng.normal(size=(N, N)), b + 1j * x0
    a = a @ a.conj().T + N * np.eye(N) if name == "cg" else a + 8 * np.eye(N)
    return tuple(v.astype(dtype) for v in (a, b, x0, np.diag(1 / np.diag(a))))  # type: ignore[return-value]


def rows(*spec: Any) -> NamedSharding:
    mesh = meshard.make_mesh((8,), ("i",))
    return NamedSharding(mesh, P(*(spec or ("i",))), uneven="balanced")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("cg", complex), ("bicgstab", float), ("gmres", complex), ("incremental", float)],
)
def test_each_step_is_that_of_jax(name: str, dtype: Any) -> None:
    jax = pytest.importorskip("jax")
    from jax.scipy.sparse import linalg as theirs

    function, more = METHODS[name]
    a, b, x0, M = system(name, dtype)
    with jax.enable_x64(True):
        for most, given in ((2, None), (9, M)):
            options = {**more, "maxiter": most, "tol": 1e-9}
            wanted, info = getattr(theirs, function)(a, b, x0, M=given, **options)
            found = getattr(linalg, function)(
                mnp.asarray(a), mnp.asarray(b), mnp.asarray(x0), M=given, **options
            )
            np.testing.assert_allclose(whole(found[0]), wanted, rtol=1e-8, atol=1e-10)
            assert (info is None and found[1] is None) or int(found[1]) == int(info)


@pytest.mark.parametrize("name", METHODS)
def test_uneven_rows_are_solved_at_once_and_under_jit(name: str) -> None:
    function, more = METHODS[name]
    a, b, *_ = system(name)
    solve = getattr(linalg, function)

    def body() -> list[Any]:
        A, v = (meshard.device_put(x, rows()) for x in (a, b))
        x, _ = solve(A, v, tol=1e-10, **more)
        assert x.sharding == v.sharding
        again, _ = meshard.jit(lambda A, v: solve(A, v, tol=1e-10, **more))(A, v)
        own, _ = solve(SparseRows.from_scipy(sp.csr_array(a), rows()), v, tol=1e-10, **more)
        return [whole(y) for y in (x, again, own)]

    for found in in_processes(body, () if function == "gmres" else (4,)):
        np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_derivatives_are_those_of_the_solution(name: str) -> None:
    function, more = METHODS[name]
    a, b, *_ = system(name)
    solve = getattr(linalg, function)

    def loss(A: Any, v: Any, start: Any) -> Any:
        x, _ = solve(A, v, start * v, tol=1e-10, M=lambda r: r * start / start, **more)
        return (x**2).sum()

    def body() -> list[Any]:
        A, v = (meshard.device_put(x, rows()) for x in (a, b))
        slope = meshard.grad(loss, (0, 1, 2))
        jitted = meshard.jit(slope) if function != "gmres" else slope
        found = [*slope(A, v, mnp.asarray(0.5)), *jitted(A, v, mnp.asarray(0.5))]
        by_matrix = slope(SparseRows.from_scipy(sp.csr_array(a), rows()), v, mnp.asarray(0.5))[0]
        turned = meshard.jvp(lambda v: loss(A, v, 1.0), (v,), (v,))[1]
        return [*map(whole, found), whole(by_matrix.data), whole(turned)]

    # Of small operations, which take long between simulated processes, one world is enough.
    *found, by_values, turned = (alone if function == "gmres" else everywhere)(body)
    x = np.linalg.solve(a, b)
    back = np.linalg.solve(a.T, 2 * x)
    for by_matrix, by_right, by_start in (found[:3], found[3:]):
        np.testing.assert_allclose(by_matrix, -np.outer(back, x), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(by_right, back, rtol=1e-6, atol=1e-9)
        assert by_start == 0
    np.testing.assert_allclose(by_values, -np.outer(back, x).reshape(-1), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(turned, back @ b, rtol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_vector_may_be_a_tree_of_arrays_of_any_shapes(name: str) -> None:
    jax = pytest.importorskip("jax")
    from jax.scipy.sparse import linalg as theirs

    function, more = METHODS[name]
    b = {"x": np.arange(3.0), "y": [np.ones((4, 2)), np.asarray(2.0)]}

    def times(v: Any) -> Any:
        total = v["x"].sum() + v["y"][0].sum() + v["y"][1]
        return {"x": 3 * v["x"] + total, "y": [2 * v["y"][0] + total, v["y"][1] * 4 + total]}

    def body() -> list[Any]:
        given = {**b, "y": [meshard.device_put(b["y"][0], rows(None, "i")), b["y"][1]]}
        x, _ = getattr(linalg, function)(times, given, tol=1e-10, **more)
        return [whole(leaf) for leaf in meshard.tree.leaves(x)]

    with jax.enable_x64(True):
        wanted, _ = getattr(theirs, function)(times, jax.tree.map(np.asarray, b), tol=1e-10, **more)
        found = (alone if function == "gmres" else everywhere)(body)
        for own, other in zip(found, jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-7, atol=1e-9)


def test_only_numbers_pass_besides_what_the_operator_passes() -> None:
    def body() -> list[int]:
        b = meshard.device_put(np.linspace(1, 2, 64), rows())
        totals = []
        for solve, options in (
            (linalg.cg, {"maxiter": 10}),
            (linalg.bicgstab, {"maxiter": 10}),
            (linalg.gmres, {"maxiter": 1, "restart": 10}),
        ):
            with debug.ledger() as log:
                solve(lambda v: v * mnp.linspace(1, 2, 64), b, tol=0.0, **options)
            totals.append(log.total_bytes)
        return totals

    number = 2 * 7 * 8  # bytes of the sum of a number over 8 devices
    cg, bicgstab, gmres = everywhere(body)
    assert cg <= number * (2 * 10 + 2)
    assert bicgstab <= number * (6 * 10 + 3)
    assert gmres <= number * (10 * (2 * 11 + 2) + 6)


@pytest.mark.parametrize("name", METHODS)
def test_solved_systems_small_floats_and_integers(name: str) -> None:
    function, more = METHODS[name]
    a, b, *_ = system(name)
    solve = getattr(linalg, function)

    def body() -> None:
        x, _ = solve(mnp.asarray(a), mnp.zeros(N), **more)
        assert x.tolist() == [0.0] * N
        x, _ = solve(mnp.asarray(a), mnp.asarray(b), np.linalg.solve(a, b), maxiter=0, **more)
        np.testing.assert_allclose(whole(x), np.linalg.solve(a, b))
        x, _ = solve(mnp.asarray(a, dtype="f4"), mnp.asarray(b, dtype="f4"), tol=1e-4, **more)
        assert x.dtype == np.float32
        x, _ = solve(2 * np.eye(2), mnp.asarray([2, 4]), **more)
        np.testing.assert_allclose(whole(x), [1, 2])
        x, _ = solve(lambda v: 4 * v, 2.0, **more)
        assert float(x) == 0.5

    alone(body)


def test_many_systems_are_solved_together() -> None:
    a, *_ = system("cg")
    many = np.random.default_rng(1).normal(size=(3, N))

    def body() -> Any:
        solve = meshard.vmap(lambda b: linalg.cg(mnp.asarray(a), b, tol=1e-12)[0])
        return whole(solve(mnp.asarray(many)))

    np.testing.assert_allclose(alone(body), np.linalg.solve(a, many.T).T, rtol=1e-8)


def test_a_breakdown_leaves_finite_values() -> None:
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    x, _ = linalg.bicgstab(mnp.asarray(turn), mnp.asarray([1.0, 0.0]))
    assert np.isfinite(whole(x)).all()


def test_iterations_are_those_of_scipy() -> None:
    line = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(50, 50)).tocsr()
    b = np.linspace(-1, 1, 50)
    for most in (1, 3, 8):
        wanted, _ = scipy_linalg.cg(line, b, rtol=0, atol=0, maxiter=most)
        A = SparseRows.from_scipy(line, rows())
        found, _ = linalg.cg(A, b, tol=0.0, maxiter=most)
        np.testing.assert_allclose(whole(found), wanted, rtol=1e-12)


REFUSALS: dict[str, tuple[Callable[[], Any], type[MeshardError], str]] = {
    "operator": (lambda: linalg.cg(3, np.ones(2)), ArgumentError, "A must be a function"),
    "preconditioner": (
        lambda: linalg.cg(np.eye(2), np.ones(2), M="x"),
        ArgumentError,
        "cg: M must be a function",
    ),
    "not square": (lambda: linalg.gmres(np.ones((2, 3)), np.ones(3)), ShapeError, r"\(2, 3\)"),
    "scipy": (
        lambda: linalg.cg(scipy_linalg.aslinearoperator(np.eye(2)), np.ones(2)),
        ArgumentError,
        "would gather each vector",
    ),
    "trees": (
        lambda: linalg.cg(lambda v: v, [np.ones(2)], np.ones(2)),
        TreeError,
        "x0 has the tree",
    ),
    "shapes": (
        lambda: linalg.bicgstab(lambda v: v, np.ones(2), np.ones(3)),
        ShapeError,
        r"\[\(3,\)\], those of b \[\(2,\)\]",
    ),
    "nothing": (lambda: linalg.cg(lambda v: v, []), TreeError, "a tree without arrays"),
    "dtype": (
        lambda: linalg.cg(np.eye(2), mnp.ones(2, "f4")),
        DtypeError,
        r"what matvec returned is float64\[2\], but it must be float32",
    ),
    "method": (
        lambda: linalg.gmres(np.eye(2), np.ones(2), solve_method="best"),
        ArgumentError,
        "solve_method must be",
    ),
    "restart": (lambda: linalg.gmres(np.eye(2), np.ones(2), restart=0), ArgumentError, "restart"),
    "maxiter": (lambda: linalg.cg(np.eye(2), np.ones(2), maxiter=-1), ArgumentError, "maxiter"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, kind, text = REFUSALS[name]
    with pytest.raises(kind, match=text):
        call()
