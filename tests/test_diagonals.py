"""Triangles and diagonals: NumPy's, however an array is laid out and wherever the diagonal runs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshard.numpy as mnp
from meshard.ops.array import diagonals
from tests.lays import fetched, lays, same, shapes
from tests.watch import watched
from tests.worlds import everywhere, in_worlds, put, whole


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_they_are_numpy_s(data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagonals, "_ROWS", data.draw(st.sampled_from([1, 2, 128])))
    shape = data.draw(shapes(2))
    value = np.random.default_rng(0).normal(size=shape)
    value.reshape(-1)[::3] = -0.0
    lay, k = data.draw(lays(shape)), data.draw(st.integers(-6, 6))
    dims = data.draw(st.permutations(range(len(shape))))[:2]

    def body() -> Any:
        x = lay.put(value)
        found = [mnp.tril(x, k), mnp.triu(x, k), mnp.diagonal(x, k, *dims)]
        return fetched([*found, *([mnp.diag(x, k)] if len(shape) == 2 else [])])

    found = everywhere(body)
    expected = [np.tril(value, k), np.triu(value, k), np.diagonal(value, k, *dims)]
    for own, theirs in zip(found, expected, strict=False):
        same(own, theirs)
    if len(shape) == 2:
        same(found[-1], np.diag(value, k))


@in_worlds
def test_a_diagonal_moves_no_more_than_itself() -> None:
    value = np.arange(64.0 * 64).reshape(64, 64)
    x = put(value, "i", "j")
    with watched() as seen:
        assert float(whole(mnp.trace(x))) == value.trace()
    assert seen.largest <= 64
