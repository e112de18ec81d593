"""Positions along a short last dim are NumPy's."""

import numpy as np
import pytest

from meshard.ops.reductions import short_argmax as narrow


@pytest.mark.parametrize("name", ["argmin", "argmax"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i8", "u1", "u4", "f2", "?", "c8"])
def test_positions_are_those_of_numpy(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape in (10_000, 8), (5_000, 2, 3), (20_000, 24), (3_000, 25), (4, 8), (20_000, 1):
        x = (rng.integers(0, 5, shape)).astype(dtype)
        for keepdims in False, True:
            for axis in -1, x.ndim - 1, 0, None:
                found = getattr(narrow, name)(x, axis=axis, keepdims=keepdims)
                expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
                assert np.shape(found) == np.shape(expected)
                np.testing.assert_array_equal(found, expected)
        turned = np.asarray(x.T.copy().T)
        found = getattr(narrow, name)(turned, axis=-1)
        np.testing.assert_array_equal(found, getattr(np, name)(turned, axis=-1))


@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_the_first_nan_counts(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((20_000, 8))
    x[123, 5] = x[123, 3] = x[19_999, 0] = np.nan
    found = getattr(narrow, name)(x, axis=1)
    np.testing.assert_array_equal(found, getattr(np, name)(x, axis=1))
    assert found[123] == 3
