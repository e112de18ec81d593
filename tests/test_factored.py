"""scipy.linalg: triangular systems and Cholesky factors, against SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError, ShapeError
from meshard.scipy import linalg
from tests.worlds import in_worlds, put, whole

RANDOM = np.random.default_rng(5)


def positive(n: int, dtype: Any) -> Any:
    random = np.random.default_rng(n)
    a = random.normal(size=(n, n))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * random.normal(size=(n, n))
    return (a @ a.conj().T + n * np.eye(n)).astype(dtype)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small matrices as large ones."""
    for module in ("decompose", "triangular"):
        monkeypatch.setattr(f"meshard.ops.linalg.{module}.WHOLE_CHOLESKY", 0)


LAYOUTS = [("i", "j"), ("i",), (None, "i"), ()]


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("trans", [0, "T", 2])
@pytest.mark.parametrize("lower", [False, True])
def test_triangular_systems_are_scipys(layout: Any, dtype: str, trans: Any, lower: bool) -> None:
    a, b = positive(11, dtype), RANDOM.normal(size=(11, 3)).astype(dtype)
    x = put(a, *layout, uneven="balanced")
    given = {"trans": trans, "lower": lower}
    close = {"rtol": 1e-4, "atol": 1e-6} if dtype == "float32" else {}
    for unit in (False, True):
        scaled = a / 20 if unit else a
        expected = scipy.linalg.solve_triangular(scaled, b, unit_diagonal=unit, **given)
        found = linalg.solve_triangular(x / 20 if unit else x, b, unit_diagonal=unit, **given)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(found), expected, **close)
    expected = scipy.linalg.solve_triangular(a, b[:, 0], **given)
    np.testing.assert_allclose(
        np.asarray(linalg.solve_triangular(x, b[:, 0], **given)), expected, **close
    )


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_factors_solve_systems(dtype: str, lower: bool) -> None:
    a, b = positive(9, dtype), RANDOM.normal(size=9)
    x = put(a, "i", uneven="balanced")
    factor = linalg.cho_factor(x, lower=lower)
    np.testing.assert_allclose(
        np.asarray(factor[0]), scipy.linalg.cholesky(a, lower=lower), atol=1e-12
    )
    for run in (lambda f: f, meshard.jit):
        found = run(lambda x, b: linalg.cho_solve(linalg.cho_factor(x, lower=lower), b))(x, b)
        np.testing.assert_allclose(np.asarray(found), np.linalg.solve(a, b))
    stacked = linalg.cho_solve(linalg.cho_factor(np.stack([a, 2 * a])), np.stack([b, b])[..., None])
    np.testing.assert_allclose(np.asarray(stacked[1, :, 0]), np.linalg.solve(2 * a, b))


@in_worlds
def test_gradients_pass_through_solutions() -> None:
    a, b = positive(8, "float64"), np.arange(8.0)

    def f(x: Any, b: Any) -> Any:
        return (linalg.cho_solve(linalg.cho_factor(x, lower=True), b) ** 2).sum()

    found = meshard.grad(f, 1)(put(a, "i"), mnp.asarray(b))
    expected = 2 * np.linalg.solve(a, np.linalg.solve(a, b))
    np.testing.assert_allclose(whole(found), expected)


def test_what_does_not_fit_is_refused() -> None:
    a = mnp.eye(3)
    with pytest.raises(ShapeError, match=r"right side of shape \(4,\) does not fit"):
        linalg.solve_triangular(a, mnp.ones(4))
    with pytest.raises(ArgumentError, match="trans must be 0, 1, 2, 'N', 'T' or 'C', got 'X'"):
        linalg.solve_triangular(a, mnp.ones(3), trans="X")
    with pytest.raises(ArgumentError, match="pair of a factor and a bool"):
        linalg.cho_solve(a, mnp.ones(3))
    singular = linalg.solve_triangular(mnp.zeros((2, 2)), mnp.ones(2))
    assert np.isnan(np.asarray(singular)).all()
