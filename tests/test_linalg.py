"""Linear algebra: right, batch dims stay split, failures are told by every process."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, LinAlgError, MeshardError, ShapeError
from meshard.runtime.simulated import simulate
from meshard.sharding import Mesh, NamedSharding, P
from tests.lays import fetched, lays
from tests.watch import watched
from tests.worlds import everywhere, in_worlds, put, whole

linalg = mnp.linalg
RANDOM = np.random.default_rng(2)
SQUARE = RANDOM.normal(size=(8, 3, 3)) + 2 * np.eye(3)
DEFINITE = SQUARE @ SQUARE.transpose(0, 2, 1)
TALL = RANDOM.normal(size=(8, 5, 3))

ONE_RESULT = {
    "cholesky": DEFINITE,
    "det": SQUARE,
    "eigvalsh": DEFINITE,
    "inv": SQUARE,
    "pinv": TALL,
    "svdvals": TALL,
    "matrix_rank": TALL,
    "cond": SQUARE,
}


@pytest.mark.parametrize("name", ONE_RESULT)
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@in_worlds
def test_leading_dims_stay_split(name: str, dtype: str) -> None:
    value = ONE_RESULT[name].astype(dtype)
    x = put(value, ("i", "j"))
    with watched() as seen:
        found = getattr(linalg, name)(x)
    assert found.sharding.spec[0] == ("i", "j")
    assert seen.sent < 200  # whether any matrix has failed, of each cell
    expected = getattr(np.linalg, name)(value)
    assert found.dtype == expected.dtype
    tolerance = 1e-10 if dtype != "f4" else 1e-3
    np.testing.assert_allclose(whole(found), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=40)
@given(data=st.data())
def test_inverses_however_matrices_lie(data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from([(), (4,), (8,), (2, 3), (0,), (1, 5)]))
    value = np.random.default_rng(0).normal(size=(*batch, 3, 3)) + 3 * np.eye(3)
    lay = data.draw(lays(value.shape))
    found = everywhere(lambda: fetched(linalg.inv(lay.put(value))))
    np.testing.assert_allclose(found, np.linalg.inv(value), rtol=1e-9)


@in_worlds
def test_axes_of_a_split_matrix_move_to_leading_dims() -> None:
    value = np.random.default_rng(0).normal(size=(16, 8, 8))
    with watched() as seen:
        found = linalg.inv(put(value, None, "i", "j"))
    assert found.sharding.spec in (P(("i", "j")), P(("j", "i")))
    assert seen.largest == value.size // 8
    np.testing.assert_allclose(whole(found), np.linalg.inv(value), rtol=1e-8)
    # A leading dim that is split already is split further.
    found = linalg.inv(put(value, "i", "j"))
    assert found.sharding.spec == P(("i", "j"))


@in_worlds
def test_columns_of_a_right_side_stay_split() -> None:
    a, b = SQUARE[0], np.random.default_rng(0).normal(size=(3, 16))
    found = linalg.solve(put(a), put(b, None, ("i", "j")))
    assert found.sharding.spec == P(None, ("i", "j"))
    np.testing.assert_allclose(whole(found), np.linalg.solve(a, b), rtol=1e-10)


@in_worlds
def test_decompositions_multiply_back() -> None:
    x = put(TALL, ("i", "j"))
    q, r = linalg.qr(x)
    np.testing.assert_allclose(whole(mnp.matmul(q, r)), TALL, atol=1e-12)
    full = linalg.qr(x, "complete")
    assert full.Q.shape == (8, 5, 5)
    np.testing.assert_allclose(whole(mnp.matmul(full.Q, full.R)), TALL, atol=1e-12)
    np.testing.assert_allclose(abs(whole(linalg.qr(x, "r"))), abs(whole(r)), atol=1e-12)
    for full_matrices in (False, True):
        u, s, vh = linalg.svd(x, full_matrices=full_matrices)
        rank = 5 if full_matrices else 3
        assert u.shape == (8, 5, rank)
        product = mnp.matmul(u[..., :3] * mnp.expand_dims(s, -2), vh)
        np.testing.assert_allclose(whole(product), TALL, atol=1e-12)
    values, vectors = linalg.eigh(put(DEFINITE, "i"))
    product = mnp.matmul(vectors * mnp.expand_dims(values, -2), mnp.matrix_transpose(vectors))
    np.testing.assert_allclose(whole(product), DEFINITE, atol=1e-10)
    upper = put(np.triu(DEFINITE), "i")
    np.testing.assert_allclose(whole(linalg.eigvalsh(upper, "U")), whole(values), rtol=1e-10)


@in_worlds
def test_eigenvalues_are_always_complex() -> None:
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    stack = np.stack([turn, np.diag([2.0, 3.0])] * 4)
    values, vectors = linalg.eig(put(stack, ("i", "j")))
    assert values.dtype == vectors.dtype == np.complex128
    product = mnp.matmul(put(stack, ("i", "j")), vectors)
    expected = whole(vectors) * whole(values)[:, None]
    np.testing.assert_allclose(whole(product), expected, atol=1e-12)
    found = linalg.eigvals(put(stack.astype("f4"), "i"))
    assert found.dtype == np.complex64
    np.testing.assert_allclose(np.sort(whole(found)[1]), [2, 3], rtol=1e-6)


@in_worlds
def test_dtypes() -> None:
    whole_numbers = put(np.array([[2, 0], [0, 4]] * 4).reshape(4, 2, 2), "i")
    assert linalg.inv(whole_numbers).dtype == np.float64
    small = put(SQUARE.astype(ml_dtypes.bfloat16), "i")
    assert linalg.inv(small).dtype == ml_dtypes.bfloat16
    assert linalg.svdvals(put(SQUARE.astype("c8"), "i")).dtype == np.float32
    assert linalg.slogdet(put(SQUARE.astype("c8"), "i")).logabsdet.dtype == np.float32
    assert linalg.matrix_norm(put(SQUARE.astype("f2"), "i")).dtype == np.float16
    assert linalg.vector_norm(put(np.arange(4), "i")).dtype == np.float64


def test_the_default_float_is_obeyed() -> None:
    before = meshard.config.read("default_float")
    meshard.config.update("default_float", "float32")
    try:
        assert linalg.inv(mnp.asarray([[2, 0], [0, 4]])).dtype == np.float32
    finally:
        meshard.config.update("default_float", before)


@in_worlds
def test_norms() -> None:
    value = TABLE
    x = put(value, "i", "j")
    with watched() as seen:
        for ord in (None, "fro", 1, -1, np.inf, -np.inf):
            found = linalg.norm(x, ord)
            np.testing.assert_allclose(float(found), np.linalg.norm(value, ord), rtol=1e-12)
    assert seen.largest <= 8 * 64  # partial results only, at most of each row
    for ord in ("nuc", 2, -2):
        found = linalg.norm(x, ord)
        np.testing.assert_allclose(float(found), np.linalg.norm(value, ord), rtol=1e-10)
    for options in (
        {"axis": 0},
        {"axis": 1, "ord": 3, "keepdims": True},
        {"axis": (1, 0), "ord": 1},
        {"axis": (0, 1), "keepdims": True},
    ):
        found = linalg.norm(x, **options)
        expected = np.linalg.norm(value, **options)
        assert found.shape == expected.shape
        np.testing.assert_allclose(whole(found), expected, rtol=1e-12)


TABLE = np.random.default_rng(4).normal(size=(64, 32))


@in_worlds
def test_diagonals_are_looked_up_where_they_lie() -> None:
    value = np.arange(4096).reshape(64, 64)
    x = put(value, "i", "j")
    with watched() as seen:
        for offset in (-70, -3, 0, 5, 64):
            assert whole(mnp.diagonal(x, offset)).tolist() == np.diagonal(value, offset).tolist()
            assert int(whole(mnp.trace(x, offset))) == np.trace(value, offset)
    assert seen.largest <= 8 * 64  # the parts that each cell gives
    cube = put(np.arange(60).reshape(3, 4, 5), None, "i")
    expected = np.diagonal(np.arange(60).reshape(3, 4, 5), 1, 2, 0)
    assert whole(cube.diagonal(1, 2, 0)).tolist() == expected.tolist()
    assert (
        whole(cube.trace(0, 1, 2)).tolist()
        == np.trace(np.arange(60).reshape(3, 4, 5), 0, 1, 2).tolist()
    )


@in_worlds
def test_products_of_several_matrices() -> None:
    random = np.random.default_rng(0)  # one of its own: each process draws the same
    a, b, c = (random.normal(size=s) for s in ((8, 3), (3, 8), (8, 2)))
    found = linalg.multi_dot([put(a, "i"), put(b, None, "j"), put(c)])
    np.testing.assert_allclose(whole(found), a @ b @ c, rtol=1e-9)
    found = linalg.multi_dot([put(a[:, 0], "i"), put(a), put(b[:, 0])])
    np.testing.assert_allclose(whole(found), a[:, 0] @ a @ b[:, 0], rtol=1e-9)
    stack = put(SQUARE, "i", "j", uneven="balanced")
    found = linalg.matrix_power(stack, 3)
    np.testing.assert_allclose(whole(found), np.linalg.matrix_power(SQUARE, 3), rtol=1e-9)
    zero = linalg.matrix_power(put(SQUARE, "i"), 0)
    assert zero.sharding.spec == P("i")
    assert (whole(zero) == np.eye(3)).all()


@pytest.mark.parametrize("deficient", [False, True])
@in_worlds
def test_least_squares(deficient: bool) -> None:
    a = np.random.default_rng(0).normal(size=(16, 4))
    if deficient:
        a[:, 3] = a[:, 0] + a[:, 1]
    for b in (np.arange(16.0), np.random.default_rng(1).normal(size=(16, 3))):
        found = linalg.lstsq(put(a, "i"), put(b, "i"))
        expected = np.linalg.lstsq(a, b, rcond=None)
        for x, y in zip(found, expected, strict=True):
            value = whole(x)
            if x is found[1] and b.ndim == 1:
                y = np.atleast_1d(y)
            np.testing.assert_allclose(value, y, rtol=1e-8, atol=1e-10)


def test_a_failure_is_told_by_every_process() -> None:
    value = SQUARE.copy()
    value[5] = 0.0
    value[7] = 0.0

    def body() -> str:
        x = put(value, ("i", "j"))
        with pytest.raises(LinAlgError) as caught:
            linalg.inv(x)
        # All are in step: what follows works.
        assert float(x.sum()) == pytest.approx(value.sum())
        return str(caught.value)

    message = everywhere(body)
    assert message == (
        "inv: the matrix (5,) of an array of shape (8, 3, 3) is singular, and 1 more."
    )


@in_worlds
def test_failures() -> None:
    with pytest.raises(LinAlgError, match=r"solve: the matrix of an array of shape \(2, 2\) is s"):
        linalg.solve(mnp.zeros((2, 2)), mnp.ones(2))
    with pytest.raises(LinAlgError, match=r"cholesky: .* is not positive definite"):
        linalg.cholesky(put(-DEFINITE, "i"))
    with pytest.raises(LinAlgError, match=r"eigvals: .* did not converge; look for NaN"):
        linalg.eigvals(put(np.full((8, 2, 2), np.nan), "i"))
    assert issubclass(LinAlgError, np.linalg.LinAlgError)
    assert issubclass(LinAlgError, MeshardError)
    assert linalg.LinAlgError is LinAlgError


def test_a_process_without_devices_of_the_mesh_has_nothing_to_do() -> None:
    def body() -> tuple[int, ...]:
        own = Mesh(meshard.devices()[:4], ("x",))
        x = meshard.device_put(SQUARE, NamedSharding(own, P("x")))
        return linalg.inv(x).shape

    assert simulate(2, 4, body) == [(8, 3, 3), (8, 3, 3)]


@in_worlds
def test_refusals() -> None:
    x = put(TALL, "i")
    cases: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: linalg.inv(x),
            ShapeError,
            r"inv: takes square .* \(8, 5, 3\) are 5 and",
        ),
        (lambda: linalg.det(mnp.ones(3)), ShapeError, r"det: takes matrices, .* got shape \(3,\)"),
        (lambda: linalg.qr(x, "raw"), ArgumentError, "qr: mode must be 'reduced', .* got 'raw'"),
        (
            lambda: linalg.eigh(x[:, :3], "X"),
            ArgumentError,
            "eigh: UPLO must be 'L' or 'U', not 'X'",
        ),
        (
            lambda: linalg.solve(put(SQUARE, "i"), mnp.ones(4)),
            ShapeError,
            r"solve: the right side of shape \(4,\) .* it must have 3 rows",
        ),
        (lambda: linalg.norm(x, 3), ArgumentError, r"norm: takes one dim .* names 3"),
        (
            lambda: linalg.matrix_norm(x, ord=3),
            ArgumentError,
            "matrix_norm: ord must be .* not 3",
        ),
        (
            lambda: linalg.vector_norm(x, ord="fro"),
            ArgumentError,
            "vector_norm: ord must be a real number, got 'fro'",
        ),
        (
            lambda: linalg.matrix_norm(mnp.ones(3)),
            ShapeError,
            r"matrix_norm: .* shape \(3,\)",
        ),
        (lambda: linalg.cross(x, x, axis=1), ShapeError, r"cross: .* dim 1 .* has 5"),
        (lambda: linalg.outer(x, x), ShapeError, r"outer: takes arrays of one dim, got shapes"),
        (
            lambda: linalg.matrix_power(put(SQUARE, "i"), 0.5),
            ArgumentError,
            r"matrix_power: n must be an integer, got 0\.5",
        ),
        (lambda: linalg.matrix_power(x, 2), ShapeError, "matrix_power: takes square matrices"),
        (
            lambda: linalg.matrix_rank(x, 1, rtol=1),
            ArgumentError,
            "matrix_rank: both tol and rtol were given",
        ),
        (lambda: linalg.lstsq(x, x), ShapeError, r"lstsq: takes a matrix .* \(8, 5, 3\)"),
        (lambda: linalg.multi_dot([x]), ShapeError, "multi_dot: takes two or more matrices, got 1"),
        (lambda: mnp.diagonal(mnp.ones(3)), ShapeError, "diagonal: needs at least two dims, got 1"),
        (lambda: mnp.trace(x, 0, 1, 1), ArgumentError, "diagonal: axis1 and axis2 are both dim 1"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
