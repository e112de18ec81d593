"""Sparse matrices split by rows: products, what passes, derivatives, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import meshard
import meshard.numpy as mnp
from meshard import NamedSharding, P, debug
from meshard.errors import (
    ArgumentError,
    BudgetError,
    DtypeError,
    IncompatibleDevicesError,
    MeshardError,
    ShapeError,
    ShardingError,
)
from meshard.runtime.simulated import simulate
from meshard.scipy.sparse import SparseRows
from meshard.scipy.sparse.linalg import cg
from tests.worlds import alone, everywhere, in_processes, whole

SHAPES = [(23, 23), (3, 3), (17, 30), (40, 9), (5, 0), (0, 5)]
SPECS = [None, P(), P("i"), P("j"), P(("i", "j")), P("i", "j"), P(None, "j"), P("j", "i")]


def square(n: int) -> Any:
    """Return the Laplacian of a square of n times n points."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    one = sp.eye_array(n)
    return (sp.kron(line, one) + sp.kron(one, line)).tocsr()


def drawn(m: int, n: int, dtype: Any = float, density: float = 0.2) -> Any:
    rng = np.random.default_rng(m * 100 + n)
    found = sp.random_array((m, n), density=density, rng=rng, format="csr")
    if np.dtype(dtype).kind == "c":
        found = found + 1j * found.power(2)
    return found.astype(dtype)


def rows_of(shape: tuple[int, ...] = (8,), axes: Any = "i") -> NamedSharding:
    mesh = meshard.make_mesh(shape, ("i", "j")[: len(shape)])
    return NamedSharding(mesh, P(axes), uneven="balanced")


def operands(n: int, dtype: Any = float) -> list[Any]:
    rng = np.random.default_rng(n)
    found = [rng.normal(size=n), rng.normal(size=(n, 3)), rng.normal(size=(n, 4))]
    return [(x + 1j * x**2 if np.dtype(dtype).kind == "c" else x).astype(dtype) for x in found]


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_products_have_the_bits_of_scipys_however_operands_are_laid_out(m: int, n: int) -> None:
    matrix = drawn(m, n)

    def body() -> list[Any]:
        own = rows_of((4, 2))
        A = SparseRows.from_scipy(matrix, own)
        found = []
        for x in operands(n):
            for spec in SPECS:
                if spec is not None and len(spec) > x.ndim:
                    continue
                place = None if spec is None else NamedSharding(own.mesh, spec, uneven="balanced")
                given = mnp.asarray(x) if place is None else meshard.device_put(x, place)
                found += [whole(A @ given), whole(meshard.jit(lambda v: A @ v)(given))]
        return found

    wanted = [matrix @ x for x in operands(n)]
    for value in in_processes(body, (2, 4)):
        assert any(np.array_equal(value, w) for w in wanted if w.shape == value.shape)


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("dtype", [float, "complex64", int])
def test_transposes_multiply_too(m: int, n: int, dtype: Any) -> None:
    matrix = (drawn(m, n) * 10).astype(dtype) if dtype is int else drawn(m, n, dtype)

    def body() -> list[Any]:
        A = SparseRows.from_scipy(matrix, rows_of((4, 2)))
        assert (A.T.shape, A.T.T.shape, A.T.nnz) == ((n, m), (m, n), A.nnz)
        found = []
        for z in operands(m, dtype):
            y = meshard.device_put(z, NamedSharding(A.sharding.mesh, P("i"), uneven="balanced"))
            found += [A.T @ y, A.rmatvec(y), y.T @ A]
        return [whole(x) for x in found]

    found = everywhere(body)
    for z, three in zip(operands(m, dtype), zip(*[iter(found)] * 3, strict=True), strict=True):
        wanted = [matrix.T @ z, matrix.conj().T @ z, z.T @ matrix]
        for own, other in zip(three, wanted, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def test_a_grid_needs_the_lines_beside_each_block_and_nothing_else() -> None:
    """What passes is the floor: one line of points over each cut, in both directions."""
    n = 24

    def body() -> list[int]:
        A = SparseRows.from_scipy(square(n), rows_of())
        x = meshard.device_put(np.arange(n * n * 1.0), A.sharding)
        totals = []
        for product in (lambda: A @ x, lambda: A.T @ x, lambda: A @ mnp.stack([x, x], 1)):
            with debug.ledger() as log:
                product()
            totals.append(log.total_bytes)
        explained = meshard.explain(lambda v: A @ v, x)
        assert A.halo.nbytes()[0] == n * 8
        assert "336 entries pass, at most 48 to a device" in repr(A.halo)
        with debug.ledger() as log:
            A @ meshard.device_put(x, NamedSharding(A.sharding.mesh, P()))
        return [*totals, sum(A.halo.nbytes().values()), explained.total_bytes]

    floor = 7 * 2 * n * 8
    assert in_processes(body, (2, 4)) == [floor, floor, 2 * floor, floor, floor]


def test_nothing_passes_where_each_device_has_the_vector_or_needs_its_own_part() -> None:
    def body() -> list[int]:
        own = rows_of()
        A, one = (SparseRows.from_scipy(m, own) for m in (square(6), sp.eye_array(36)))
        everywhere_ = meshard.device_put(np.ones(36), NamedSharding(own.mesh, P()))
        totals = []
        for product in (
            lambda: A @ everywhere_,
            lambda: A @ np.ones(36),
            lambda: one @ (A @ np.ones(36)),
        ):
            with debug.ledger() as log:
                product()
            totals.append(log.total_bytes)
        return totals

    assert everywhere(body) == [0, 0, 0]


def test_a_callback_makes_only_the_blocks_of_a_process() -> None:
    matrix = drawn(23, 23)

    def body() -> Any:
        asked: list[tuple[int, int]] = []

        def block(rows: slice) -> Any:
            asked.append((rows.start, rows.stop))
            return matrix[rows].tocoo()

        A = SparseRows.from_callback((23, 23), rows_of(), block)
        return asked, (A @ np.ones(23)).sharding.spec, A.nnz

    every = [(0, 3), (3, 6), (6, 9), (9, 12), (12, 15), (15, 18), (18, 21), (21, 23)]
    assert alone(body)[0] == every
    found = simulate(4, 2, body)
    assert [asked for asked, *_ in found] == [every[i : i + 2] for i in (0, 2, 4, 6)]
    assert {nnz for *_, nnz in found} == {matrix.nnz}


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_what_is_in_a_matrix(m: int, n: int) -> None:
    matrix = drawn(m, n, density=0.5)

    def body() -> Any:
        A = SparseRows.from_scipy(matrix.tocoo(), rows_of((4, 2)))
        back, turned = A.to_scipy(), A.T.to_scipy()
        assert np.array_equal(back.toarray(), matrix.toarray())
        assert np.array_equal(turned.toarray(), matrix.T.toarray())
        assert np.array_equal((2 * A / 4).to_scipy().toarray(), matrix.toarray() / 2)
        assert np.array_equal(
            (-A.astype("f4")).to_scipy().toarray(), -matrix.astype("f4").toarray()
        )
        assert (A.dtype, A.ndim, A.nnz) == (matrix.dtype, 2, matrix.nnz)
        return whole(A.diagonal()), whole(A.data), repr(A.T)

    diagonal, data, text = everywhere(body)
    assert np.array_equal(diagonal, matrix.diagonal())
    assert np.array_equal(data, matrix.data)
    told = f"SparseRows(shape=({n}, {m}), nnz={matrix.nnz}, dtype=float64, columns over i: 4 parts)"
    assert text == told


def test_values_in_one_place_are_added_up_and_the_users_matrix_stays() -> None:
    given = sp.coo_array(([1.0, 2.0, 4.0], ([0, 0, 2], [1, 1, 0])), shape=(3, 3)).tocsr()
    twice = sp.csr_array(([1.0, 2.0, 4.0], [1, 1, 0], [0, 2, 2, 3]), shape=(3, 3))

    def body() -> Any:
        A = SparseRows.from_scipy(twice, rows_of())
        return A.nnz, A.to_scipy().toarray().tolist()

    assert everywhere(body) == (2, given.toarray().tolist())
    assert twice.data.tolist() == [1.0, 2.0, 4.0]


def test_vectors_may_be_cut_elsewhere_than_rows() -> None:
    matrix = drawn(16, 10)

    def body() -> Any:
        own = rows_of()
        cuts = (0, 0, 4, 4, 4, 9, 10, 10, 10)
        columns = NamedSharding(own.mesh, P("i"), uneven=(cuts,))
        A = SparseRows.from_scipy(matrix, own, column_sharding=columns)
        assert A.halo.columns == cuts
        return whole(A @ np.arange(10.0)), whole(A.T @ np.arange(16.0))

    found, back = everywhere(body)
    assert np.array_equal(found, matrix @ np.arange(10.0))
    np.testing.assert_allclose(back, matrix.T @ np.arange(16.0))


@pytest.mark.parametrize("jitted", [False, True])
def test_derivatives_by_values_and_by_vectors(jitted: bool) -> None:
    matrix = drawn(17, 30)
    x, z = np.linspace(-1, 1, 30), np.linspace(1, 2, 17)
    rows, columns = matrix.nonzero()

    def body() -> list[Any]:
        A = SparseRows.from_scipy(matrix, rows_of((4, 2)))
        found: list[Any] = []
        for f, v in (
            (lambda A, v: ((A @ v) ** 2).sum(), x),
            (lambda A, v: ((A.T @ v) ** 2).sum(), z),
        ):
            slope = meshard.grad(f, (0, 1))
            by_matrix, by_vector = (meshard.jit(slope) if jitted else slope)(A, mnp.asarray(v))
            assert isinstance(by_matrix, SparseRows)
            found += [whole(by_matrix.data), whole(by_vector)]
        tangent = meshard.jvp(lambda A, v: A @ v, (A, mnp.asarray(x)), (2 * A, mnp.asarray(x)))[1]
        second = meshard.hessian(lambda v: ((A @ v) ** 3).sum())(mnp.asarray(x))
        return [*found, whole(tangent), whole(second)]

    a, b, c, d, tangent, second = everywhere(body)
    y, w = matrix @ x, matrix.T @ z
    np.testing.assert_allclose(a, np.outer(2 * y, x)[rows, columns])
    np.testing.assert_allclose(b, matrix.T @ (2 * y))
    np.testing.assert_allclose(c, np.outer(z, 2 * w)[rows, columns])
    np.testing.assert_allclose(d, matrix @ (2 * w))
    np.testing.assert_allclose(tangent, 3 * y)
    np.testing.assert_allclose(second, matrix.T @ np.diag(6 * y) @ matrix.toarray(), atol=1e-12)


def test_many_vectors_are_one_product() -> None:
    matrix = drawn(17, 30)
    many = np.random.default_rng(0).normal(size=(3, 30))

    def body() -> list[Any]:
        A = SparseRows.from_scipy(matrix, rows_of())
        with debug.ledger() as log:
            found = meshard.vmap(lambda v: A @ v)(mnp.asarray(many))
        assert len(log.records) <= 1
        scaled = meshard.vmap(lambda s: (A * s) @ mnp.asarray(many[0]))(mnp.arange(3.0))
        return [whole(found), whole(scaled)]

    found, scaled = everywhere(body)
    np.testing.assert_allclose(found, (matrix @ many.T).T)
    np.testing.assert_allclose(scaled, np.outer(np.arange(3.0), matrix @ many[0]))


def test_a_system_is_solved_without_gathering_a_vector() -> None:
    n = 12

    def body() -> Any:
        A = SparseRows.from_scipy(square(n), rows_of())
        b = meshard.device_put(np.ones(n * n), A.sharding)
        with debug.ledger() as log:
            x, _ = cg(A, b, tol=1e-10, M=lambda r: r / A.diagonal())
        products = [r for r in log.records if r.what == "sparse_times"]
        rest = log.total_bytes - sum(sum(r.received.values()) for r in products)
        # Besides the products only numbers pass, three to each device in an iteration.
        assert rest <= len(products) * 3 * 8 * 2 * 8
        return whole(x)

    x = everywhere(body)
    np.testing.assert_allclose(square(n) @ x, np.ones(n * n), rtol=1e-8)


def refusals() -> dict[str, tuple[Callable[[], Any], type[MeshardError], str]]:
    own = rows_of()
    A = SparseRows.from_scipy(square(4), own)
    wide = NamedSharding(own.mesh, P(None, "i"))
    other = NamedSharding(rows_of((4, 2)).mesh, P("j"))
    half = sp.csr_array(np.ones((2, 2), np.longdouble))
    half = half.astype(np.float32)
    return {
        "no matrix": (
            lambda: SparseRows.from_scipy(np.ones((2, 2)), own),
            ArgumentError,
            "csr_array",
        ),
        "no constructor": (SparseRows, ArgumentError, "from_scipy"),
        "columns": (lambda: SparseRows.from_scipy(square(4), wide), ShardingError, "split by rows"),
        "no mesh": (
            lambda: SparseRows.from_scipy(square(4), meshard.devices()[0]),
            ShardingError,
            "must be a NamedSharding",
        ),
        "other mesh": (
            lambda: SparseRows.from_scipy(square(4), own, column_sharding=other),
            ShardingError,
            "the same axes of one mesh",
        ),
        "block": (
            lambda: SparseRows.from_callback((16, 16), own, lambda rows: half),
            ShapeError,
            r"rows 0 to 2 has the shape \(2, 2\), but it must be \(2, 16\)",
        ),
        "dense block": (
            lambda: SparseRows.from_callback((16, 16), own, lambda rows: np.ones((2, 16))),
            ArgumentError,
            "the block of rows 0 to 2 must be a sparse array",
        ),
        "three dims": (
            lambda: SparseRows.from_callback((2, 2, 2), own, lambda rows: half),
            ShapeError,
            "a matrix has two dims",
        ),
        "lost digits": (
            lambda: SparseRows.from_callback(
                (16, 16), own, lambda rows: sp.csr_array((2, 16), dtype=complex), dtype=float
            ),
            DtypeError,
            "without loss",
        ),
        "shape": (lambda: A @ np.ones(3), ShapeError, "vectors of 16 elements"),
        "dims": (
            lambda: A @ np.ones((16, 2, 2)),
            ShapeError,
            r"got an array of shape \(16, 2, 2\)",
        ),
        "short floats": (
            lambda: A.astype("f4").with_data(mnp.ones(A.nnz, "bfloat16")),
            DtypeError,
            "no sparse products of bfloat16",
        ),
        "data": (lambda: A.with_data(np.ones(3)), ShapeError, "data must have the shape"),
        "two": (lambda: A @ A, ArgumentError, r"A @ \(B @ x\)"),
        "body": (
            lambda: meshard.shard_map(lambda v: A @ v, mesh=own.mesh, in_specs=P(), out_specs=P())(
                mnp.ones(16)
            ),
            ArgumentError,
            "outside of the body",
        ),
        "solver": (lambda: cg(square(4), np.ones(16)), ArgumentError, "SparseRows.from_scipy"),
    }


def test_refusals_say_what_to_do() -> None:
    def body() -> None:
        for call, kind, text in refusals().values():
            with pytest.raises(kind, match=text):
                call()

    alone(body)


def test_a_callback_that_fails_on_one_process_fails_on_all() -> None:
    def block(rows: slice) -> Any:
        if rows.start == 6:
            raise KeyError("no such block")
        return sp.eye_array(rows.stop - rows.start, 8, k=rows.start)

    def body() -> str:
        with pytest.raises((KeyError, ArgumentError)) as caught:
            SparseRows.from_callback((8, 8), rows_of((4,)), block)
        A = SparseRows.from_callback((8, 8), rows_of((4,)), lambda rows: sp.csr_array((2, 8)))
        assert A.nnz == 0
        return str(caught.value)

    found = simulate(4, 1, body)
    assert all("process 3 could not make its blocks" in text for text in found[:3])
    assert "no such block" in found[3]


def test_processes_without_devices_of_it_are_told_so() -> None:
    matrix = drawn(9, 9)

    def body() -> Any:
        mesh = meshard.sharding.Mesh(meshard.devices()[:4], "i")
        some = NamedSharding(mesh, P("i"), uneven="balanced")
        if meshard.process_index() > 1:
            with pytest.raises(ArgumentError, match=r"on processes \[0, 1\] only"):
                SparseRows.from_scipy(matrix, some)
            return None
        x = meshard.device_put(np.arange(9.0), some)
        y = SparseRows.from_scipy(matrix, some) @ x
        return [np.asarray(shard.data) for shard in y.addressable_shards]

    found = simulate(4, 2, body)
    own = np.concatenate([piece for part in found[:2] for piece in part])
    assert np.array_equal(own, matrix @ np.arange(9.0))


def test_explanations_and_budgets_know_what_a_product_passes() -> None:
    def body() -> str:
        A = SparseRows.from_scipy(square(8), rows_of())
        x = meshard.device_put(np.ones(64), A.sharding)
        told = meshard.explain(lambda v: A @ (A @ v), x)
        assert "sparse_times" in str(meshard.explain(lambda v: cg(A, v)[0], x))
        with pytest.raises(BudgetError), debug.budget(100):
            A @ x
        return str(told)

    assert "halo" in everywhere(body)


def test_devices_must_be_those_of_the_matrix() -> None:
    def body() -> None:
        A = SparseRows.from_scipy(square(4), rows_of())
        mesh = meshard.sharding.Mesh(meshard.devices()[:4], "i")
        x = meshard.device_put(np.ones(16), NamedSharding(mesh, P("i")))
        with pytest.raises(IncompatibleDevicesError, match="sparse_times"):
            A @ x

    alone(body)


@pytest.mark.no_job
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.timeout(120)
def test_the_example_prints_the_same_in_one_process_and_in_four(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "examples" / "sparse_poisson.py"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
    for job, count in (([], 1), (["-m", "meshard", "run", "-n", "4", "--timeout", "90"], 4)):
        said = subprocess.run(
            [sys.executable, *job, program],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=110,
            check=True,
        ).stdout
        for line in ("iterations: 127\n", "bytes in a product: 3,584\n", "each time: 57,344\n"):
            assert said.count(line) == count
        assert said.count("over each cut: 3,584\n") == count


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ArgumentError, match="pip install scipy"):
        SparseRows.from_callback((8, 8), rows_of(), lambda rows: None)
