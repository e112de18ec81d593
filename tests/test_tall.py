"""Decompositions of split matrices: the values of NumPy, where results are, and what moves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import debug
from meshard.errors import GatherError, LinAlgError, ShapeError
from meshard.ops.linalg.triangular import solve_triangular
from meshard.sharding import P
from tests.lays import calm, fetched, on_meshes
from tests.worlds import alone, everywhere, in_worlds, put, whole

linalg = mnp.linalg
KINDS = ["f8", "c8"]
EMPTY = ((0, 0, 2, 2, 3, 50, 50, 99, 100), None)


def drawn(*shape: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    value = random.normal(size=shape)
    if dtype[0] == "c":
        value = value + 1j * random.normal(size=shape)
    return value.astype(dtype)


def near(found: Any, expected: Any) -> None:
    """Check values, dtype and shape; signs are those of NumPy too."""
    value, model = whole(found), np.asarray(expected)
    assert (value.dtype, value.shape) == (model.dtype, model.shape)
    tolerance = 1e-10 if model.dtype.itemsize // (1 + (model.dtype.kind == "c")) == 8 else 2e-4
    np.testing.assert_allclose(value, model, rtol=tolerance, atol=tolerance * 10)


def moved(call: Any) -> tuple[Any, debug.Ledger]:
    with debug.ledger() as log:
        found = call()
    return found, log


@pytest.fixture
def in_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshard.ops.linalg.decompose.WHOLE_CHOLESKY", 0)
    monkeypatch.setattr("meshard.ops.linalg.triangular.WHOLE_CHOLESKY", 0)


# qr and svd


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("uneven", ["balanced", "ceil", EMPTY])
@in_worlds
def test_factors_are_those_of_lapack_and_stay_split(dtype: str, uneven: Any) -> None:
    value = drawn(100, 5, dtype=dtype)
    x = put(value, ("i", "j"), uneven=uneven)
    q, r = linalg.qr(x)
    model = np.linalg.qr(value)
    near(q, model.Q)
    near(r, model.R)
    near(linalg.qr(x, "r"), model.R)
    u, s, vh = linalg.svd(x, full_matrices=False)
    for found, expected in zip((u, s, vh), np.linalg.svd(value, False), strict=True):
        near(found, expected)
    near(linalg.svdvals(x), np.linalg.svd(value, compute_uv=False))
    for split in (q, u):
        assert split.sharding.spec == P(("i", "j"))
        assert split.sharding.layout(q.shape).cuts == x.sharding.layout(q.shape).cuts
    assert r.is_fully_replicated
    assert s.is_fully_replicated
    assert vh.is_fully_replicated


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@in_worlds
def test_wide_matrices_stay_split_along_their_columns(dtype: str) -> None:
    value = drawn(4, 60, dtype=dtype)
    x = put(value, None, ("i", "j"), uneven="balanced")
    for mode in ("reduced", "complete"):
        (q, r), model = linalg.qr(x, mode), np.linalg.qr(value, mode)
        near(q, model.Q)
        near(r, model.R)
        assert r.sharding.spec == P(None, ("i", "j"))
    near(linalg.qr(x, "r"), model.R)
    u, s, vh = linalg.svd(x, full_matrices=False)
    for found, expected in zip((u, s, vh), np.linalg.svd(value, False), strict=True):
        near(found, expected)
    assert vh.sharding.spec == P(None, ("i", "j"))


@settings(calm, max_examples=20)
@given(data=st.data())
def test_however_a_matrix_lies_the_factors_are_the_same(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(40, 3), (3, 40), (90, 1), (2, 30, 2), (17, 8), (30, 0)]))
    dtype = data.draw(st.sampled_from(KINDS))
    lay = data.draw(on_meshes(shape))
    value = drawn(*shape, dtype=dtype)

    def body() -> list[Any]:
        x = lay.put(value)
        found = [*linalg.qr(x), linalg.qr(x, "r")]
        return [fetched(f) for f in ([*found, *linalg.svd(x, False)] if x.size else found)]

    found = everywhere(body)  # the same bits in one process and in two
    model = [*np.linalg.qr(value), np.linalg.qr(value, "r")]
    for y, expected in zip(found, [*model, *np.linalg.svd(value, False)], strict=False):
        near(y, expected)


@in_worlds
def test_leading_dims_and_split_columns() -> None:
    value = drawn(2, 48, 3)
    q, r = linalg.qr(put(value, "j", "i"))
    assert q.sharding.spec == P("j", "i")
    assert r.sharding.spec == P("j")
    near(q, np.linalg.qr(value).Q)
    for spec in (("i", "j"), (None, "j")):  # their axes move to the rows
        x = put(drawn(120, 4), *spec)
        for call in (linalg.qr, meshard.jit(linalg.qr)):
            (q, _), log = moved(lambda x=x, call=call: call(x))
            assert q.sharding.spec == P(tuple(a for a in spec if a))
            near(q, np.linalg.qr(drawn(120, 4)).Q)
            assert log.bytes_per_device < x.nbytes // 2
        near(meshard.jit(linalg.svdvals)(x.T), np.linalg.svd(drawn(120, 4), compute_uv=False))


@in_worlds
def test_short_floats_and_integers() -> None:
    value = np.random.default_rng(0).integers(-9, 9, (64, 3))
    q, r = linalg.qr(put(value, "i"))
    near(q, np.linalg.qr(value).Q)
    assert linalg.qr(put(value.astype("f2"), "i")).Q.dtype == np.float16
    near(r, np.linalg.qr(value).R)


@in_worlds
def test_what_cannot_be_settled_is_orthonormal_all_the_same() -> None:
    zeros, twice = np.zeros((64, 3)), np.repeat(drawn(64, 2), 2, axis=1)
    for value in (zeros, twice, np.eye(64, 5), 1e-200 * drawn(64, 4)):
        q, r = linalg.qr(put(value, ("i", "j")))
        near(mnp.matmul(q.T, q), np.eye(value.shape[1]))
        near(mnp.matmul(q, r), value)
    near(linalg.qr(put(np.eye(64, 5), "i")).R, np.eye(5))
    with pytest.raises(LinAlgError, match=r"svd: the matrix of an array of shape \(64, 2\) did"):
        linalg.svd(put(np.full((64, 2), np.nan), "i"), full_matrices=False)


def test_only_the_small_factors_move() -> None:
    def body() -> list[int]:
        x = put(drawn(4096, 64, dtype="f4"), ("i", "j"))
        most = []
        for call in (
            lambda: linalg.qr(x),
            lambda: linalg.svd(x, full_matrices=False),
            lambda: linalg.svdvals(x),
            lambda: linalg.matrix_rank(x),
            lambda: meshard.jit(linalg.qr)(x),
        ):
            _, log = moved(call)
            most.append(log.bytes_per_device)
        return most

    assert alone(body) == [8 * 64 * 64 * 4] * 5  # seven factors and the first rows


def test_an_explanation_tells_what_moves_and_warns_of_nothing() -> None:
    def body() -> tuple[int, int, list[str]]:
        x = put(drawn(800, 4), ("i", "j"))
        told = meshard.explain(lambda x: linalg.qr(x), x)
        _, log = moved(lambda: linalg.qr(x))
        return told.total_bytes, log.total_bytes, list(map(str, told.warnings))

    told, measured, warnings = alone(body)
    assert told == measured == 8 * 4 * 4 * 8 * 9 - 4 * 4 * 8 * 9
    assert warnings == []


def test_long_blocks_are_factored_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshard.ops.linalg.tall.QR_CHUNK", 8 * 3 * 10)

    def body() -> None:
        for rows in (200, 1003):
            for value in (drawn(rows, 3), drawn(2, rows, 3, dtype="c16")):
                lead = (None,) * (value.ndim - 2)
                q, r = linalg.qr(put(value, *lead, "i", uneven="balanced"))
                near(q, np.linalg.qr(value).Q)
                near(r, np.linalg.qr(value).R)

    alone(body)


# what is made of them


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@in_worlds
def test_least_squares_leave_the_rows_where_they_are(dtype: str) -> None:
    a, b = drawn(100, 4, dtype=dtype), drawn(100, 3, dtype=dtype, seed=1)
    a[:, 3] = a[:, 0] * (1 + 1e-6 * np.arange(100))
    x = put(a, ("i", "j"), uneven=EMPTY)
    for right in (b, b[:, 0]):
        for rcond in (None, 1e-3, -1):
            y = put(right, ("i", "j"), uneven=EMPTY[: right.ndim])
            found, log = moved(lambda y=y, rcond=rcond: linalg.lstsq(x, y, rcond))
            model = np.linalg.lstsq(a, right, rcond)
            for one, expected in zip(found, model, strict=True):
                value = np.atleast_1d(expected) if one is found[1] else expected
                np.testing.assert_allclose(whole(one), value, rtol=1e-6)
            assert log.bytes_per_device < a.nbytes // 2
    assert linalg.lstsq(x, y, 1e-3, numpy_resid=False)[1].shape == (1,)
    mixed = linalg.lstsq(put(a.astype("c16"), "i"), put(np.arange(100), "i"))
    np.testing.assert_allclose(
        whole(mixed[0]), np.linalg.lstsq(a.astype("c16"), np.arange(100), None)[0], rtol=1e-6
    )
    empty = linalg.lstsq(mnp.zeros((0, 3)), mnp.zeros(0))
    assert [f.shape for f in empty] == [(3,), (0,), (), (0,)]


@in_worlds
def test_inverses_ranks_and_conditions() -> None:
    a = drawn(100, 4)
    a[:, 3] = a[:, 0] + a[:, 1]
    x = put(a, ("i", "j"), uneven="balanced")
    inverse = linalg.pinv(x)
    assert inverse.sharding.spec == P(None, ("i", "j"))
    near(inverse, np.linalg.pinv(a))
    assert int(linalg.matrix_rank(x)) == 3
    assert int(linalg.matrix_rank(x, tol=1e3)) == 0
    near(linalg.cond(x[:, :3]), np.linalg.cond(a[:, :3]))
    near(linalg.norm(x, 2), np.linalg.norm(a, 2))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@in_worlds
def test_hermitian_matrices(dtype: str) -> None:
    a = drawn(8, 4, 4, dtype=dtype)
    a = a + np.conj(np.swapaxes(a, -1, -2))
    a[0] = np.ones((4, 4))
    x = put(np.tril(a), ("i", "j"))  # only the lower triangle is read
    u, s, vh = linalg.svd(x, hermitian=True)
    near(mnp.matmul(u * mnp.expand_dims(s, -2), vh), a)
    near(s, np.linalg.svd(a, compute_uv=False))
    near(linalg.svd(x, compute_uv=False, hermitian=True), np.linalg.svd(a, compute_uv=False))
    near(linalg.pinv(x, hermitian=True), np.linalg.pinv(a))
    assert whole(linalg.matrix_rank(x, hermitian=True)).tolist() == [1] + [4] * 7
    half = put(2 * np.tril(a, -1) + np.real(a) * np.eye(4), "i")
    near(linalg.eigvalsh(half, symmetrize_input=True), np.linalg.eigvalsh(a))
    near(linalg.eigh(half, symmetrize_input=True).eigenvalues, np.linalg.eigvalsh(a))
    with pytest.raises(ShapeError, match=r"svd: takes square matrices; .* \(3, 2\)"):
        linalg.svd(mnp.ones((3, 2)), hermitian=True)
    with pytest.raises(ShapeError, match=r"svd: takes square matrices"):
        linalg.pinv(mnp.ones((3, 2)), hermitian=True)


# derivatives, examples by the dozen, programs


@in_worlds
def test_gradients_stay_split_and_are_those_of_the_whole_matrix() -> None:
    value, weights = drawn(96, 3), drawn(96, 3, seed=1)

    def loss(x: Any) -> Any:
        q, r = linalg.qr(x)
        u, s, vh = linalg.svd(x, full_matrices=False)
        found = (q * weights).sum() + (r[0] ** 2).sum() + (s**3).sum()
        return found + ((u @ vh) * weights).sum() + linalg.qr(x, "r")[0, 1] + linalg.svdvals(x)[0]

    x = put(value, ("i", "j"))
    expected = meshard.grad(loss)(mnp.asarray(value))
    for gradient in (meshard.grad(loss), meshard.jit(meshard.grad(loss))):
        found, log = moved(lambda gradient=gradient: gradient(x))
        assert found.sharding.spec == P(("i", "j"))
        np.testing.assert_allclose(whole(found), whole(expected), rtol=1e-8, atol=1e-10)
        assert all(e.array != "float64[96,3]" or e.what == "take_whole" for e in log)


@in_worlds
def test_vmap_takes_the_dim_of_examples_as_a_leading_one() -> None:
    value = drawn(3, 48, 2)
    x = put(value, None, "i")
    for call in (meshard.vmap(linalg.qr), meshard.jit(meshard.vmap(linalg.qr))):
        q, r = call(x)
        assert q.sharding.spec == P(None, "i")
        near(q, np.linalg.qr(value).Q)
        near(r, np.linalg.qr(value).R)


# factors of one large matrix


def definite(n: int, dtype: str, *lead: int) -> np.ndarray:
    value = drawn(*lead, n, n, dtype=dtype)
    return value @ np.conj(np.swapaxes(value, -1, -2)) + n * np.eye(n, dtype=dtype)


LAYOUTS: list[tuple[Any, Any]] = [
    (("i", None), "balanced"),
    ((None, ("i", "j")), "balanced"),
    (("i", "j"), "balanced"),
    (("j", "i"), "ceil"),
    ((("i", "j"), None), ((0, 0, 2, 2, 3, 20, 20, 40, 41), None)),
    (("j", "i"), ((0, 30, 41), (0, 0, 7, 41, 41))),
]


@pytest.mark.usefixtures("in_panels")
@pytest.mark.parametrize(("spec", "uneven"), LAYOUTS)
@pytest.mark.parametrize("dtype", ["c16"])
@in_worlds
def test_cholesky_factors_are_split_like_the_matrix(spec: Any, uneven: Any, dtype: str) -> None:
    value = definite(41, dtype)
    other = drawn(41, 41, dtype=dtype)
    for upper in (False, True):
        model = np.linalg.cholesky(value, upper=upper)
        # Only one triangle is read.
        read = np.triu(value) + np.tril(other, -1) if upper else np.tril(value) + np.triu(other, 1)
        x = put(read, *spec, uneven=uneven)
        found = linalg.cholesky(x, upper=upper)
        assert found.sharding.layout((41, 41)).cuts == x.sharding.layout((41, 41)).cuts
        near(found, model)


@pytest.mark.usefixtures("in_panels")
@in_worlds
def test_cholesky_of_stacks_and_failures() -> None:
    value = definite(16, "f8", 3)
    x = put(value, None, "i", "j")
    found = linalg.cholesky(x)
    near(meshard.jit(linalg.cholesky)(x), whole(found))
    assert found.sharding.spec == P(None, "i", "j")
    near(found, np.linalg.cholesky(value))
    half = put(2 * np.tril(value, -1) + value * np.eye(16), None, "i")
    near(linalg.cholesky(half, symmetrize_input=True), np.linalg.cholesky(value))
    value[1, 15, 15] = -1
    with pytest.raises(LinAlgError, match=r"cholesky: the matrix \(1,\) .* is not positive def"):
        linalg.cholesky(put(value, None, ("i", "j")))


@pytest.mark.usefixtures("in_panels")
def test_cholesky_moves_about_half_the_matrix_to_each_device() -> None:
    def body() -> list[float]:
        shares = []
        for spec in ((("i", "j"), None), (None, ("i", "j"))):
            x = put(definite(64, "f8"), *spec)
            _, log = moved(lambda x=x: linalg.cholesky(x))
            shares.append(log.bytes_per_device / x.nbytes)
        return shares

    assert max(alone(body)) < 0.6


@pytest.mark.usefixtures("in_panels")
@in_worlds
def test_gradient_of_a_split_cholesky_factor() -> None:
    value, weights = definite(12, "f8"), drawn(12, 12)
    expected = meshard.grad(lambda a: (linalg.cholesky(a) * weights).sum())(mnp.asarray(value))
    found = meshard.grad(lambda a: (linalg.cholesky(a) * weights).sum())(put(value, "i"))
    near(found, whole(expected))


# triangular systems, of which derivatives of Cholesky factors are made


@pytest.mark.usefixtures("in_panels")
@pytest.mark.parametrize("spec", [("i", None), (None, "j"), ("i", "j"), ()])
@pytest.mark.parametrize("lower", [True, False])
@in_worlds
def test_triangular_systems_are_solved_where_their_rows_are(spec: Any, lower: bool) -> None:
    for dtype, side in (("f8", ("i",)), ("c16", (None, "j"))):
        a = drawn(41, 41, dtype=dtype) + 41 * np.eye(41, dtype=dtype)
        b = drawn(41, 3, dtype=dtype, seed=1)
        triangle = np.tril(a) if lower else np.triu(a)
        x, y = put(a, *spec, uneven="balanced"), put(b, *side, uneven="balanced")
        for solve in (solve_triangular, meshard.jit(solve_triangular, static_argnames="lower")):
            found = solve(x, y, lower=lower)
            near(found, np.linalg.solve(triangle, b))
            if spec:
                axes = tuple(n for d in spec if d for n in ((d,) if isinstance(d, str) else d))
                assert found.sharding.spec in (P(axes), P(axes[0]))
    zero = solve_triangular(
        put(np.zeros((41, 41)), "i", uneven="ceil"), mnp.ones((41, 1)), lower=True
    )
    assert np.isnan(whole(zero)).any()


@pytest.mark.usefixtures("in_panels")
def test_right_sides_move_and_not_the_matrix() -> None:
    def body() -> int:
        x, y = (
            put(np.eye(64) + np.tril(np.ones((64, 64))), ("i", "j")),
            put(drawn(64, 2), ("i", "j")),
        )
        return moved(lambda: solve_triangular(x, y, lower=True))[1].bytes_per_device

    assert alone(body) == 64 * 2 * 8 * 7 // 8


@pytest.mark.usefixtures("in_panels")
@in_worlds
def test_derivatives_of_solutions_of_triangular_systems() -> None:
    a, b, w = drawn(12, 12) + 12 * np.eye(12), drawn(12, 2), drawn(12, 2, seed=1)

    def loss(x: Any, y: Any, lower: bool) -> Any:
        return (solve_triangular(x, y, lower=lower) * w).sum()

    def model(x: Any, y: Any, lower: bool) -> Any:
        return (linalg.solve(mnp.tril(x) if lower else mnp.triu(x), y) * w).sum()

    for lower in (True, False):
        found = meshard.grad(loss, (0, 1))(put(a, "i"), put(b, "i"), lower)
        for one, other in zip(found, meshard.grad(model, (0, 1))(a, b, lower), strict=True):
            near(one, whole(other))
        pushed = meshard.jvp(partial(loss, y=b, lower=lower), (put(a, "i"),), (put(a, "i"),))[1]
        near(pushed, whole(meshard.jvp(partial(model, y=b, lower=lower), (a,), (a,))[1]))
    stack = meshard.vmap(lambda x: solve_triangular(x, mnp.asarray(b), lower=True))
    near(stack(put(np.stack([a, a]), None, "i"))[1], np.linalg.solve(np.tril(a), b))


# whole matrices


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    meshard.config.update("on_gather", "allow")


def made_whole() -> list[tuple[Any, str]]:
    x = put(definite(16, "f8"), "i")
    return [
        (lambda: linalg.eigh(x), "eigh"),
        (lambda: linalg.svd(x), "svd"),
        (lambda: linalg.qr(put(drawn(64, 3), "i"), "complete"), "qr"),
        (lambda: linalg.inv(x), "inv"),
        (lambda: meshard.jit(linalg.eigvalsh)(x), "eigvalsh"),
    ]


@pytest.mark.usefixtures("restored")
@in_worlds
def test_matrices_made_whole_may_be_refused() -> None:
    tall, stack = put(drawn(64, 3), "i"), put(np.ones((8, 1, 1)) * np.eye(4), None, "i")
    meshard.config.update("on_gather", "error")
    for call, name in made_whole():
        told = rf"linalg\.{name}: brings float64\[.*\] together on every device: .* from 4 blocks"
        with pytest.raises(GatherError, match=told + ", and on_gather is 'error'. Split a leading"):
            call()
    linalg.qr(tall)
    linalg.svd(tall, full_matrices=False)
    linalg.eigh(stack)  # its axes move to the leading dim
    linalg.eigh(put(np.eye(3)))
    meshard.vmap(linalg.eigvalsh)(put(np.ones((8, 1, 1)) * np.eye(3), "i"))


@pytest.mark.usefixtures("restored")
def test_matrices_made_whole_may_be_warned_of() -> None:
    def body() -> None:
        meshard.config.update("on_gather", "warn")
        for call, name in made_whole():
            with pytest.warns(UserWarning, match=rf"linalg\.{name}: brings"):
                call()

    alone(body)
