"""Kernels in pieces: the same elements, whatever the shapes, strides and sizes of blocks are."""

from typing import Any

import numpy as np
import pytest

from meshard.ops.array import formulas


@pytest.mark.parametrize("nbytes", [8, 64, 1 << 20])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (37,), (5, 7), (3, 1, 4)])
def test_pieces_are_the_whole(shape: tuple[int, ...], nbytes: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(formulas, "KERNEL_PIECE", nbytes)
    sizes: list[int] = []

    def kernel(x: Any, y: Any, *, more: float) -> Any:
        sizes.append(max(np.size(x), np.size(y)) * 8)
        return x * y + more

    whole = formulas.in_pieces(kernel)
    random = np.random.default_rng(0)
    x = random.normal(size=shape)
    turned = random.normal(size=shape[::-1]).T
    others = [x[..., :1], x[:1], random.normal(size=shape[1:])] if shape else []
    for y in (x, turned, 3.0, np.float64(3), *others):
        expected = np.broadcast_to(x * y + 2.0, shape)
        for out in (np.empty(shape), np.empty(shape[::-1]).T):
            sizes.clear()
            assert whole(x, y, out=out, more=2.0) is out
            np.testing.assert_array_equal(out, expected)
            row = 8 * int(np.prod(shape[1:], dtype=int))
            assert max(sizes, default=0) <= max(nbytes, row, 8)
        np.testing.assert_array_equal(whole(x, y, more=2.0), x * y + 2.0)
    own = x.copy()
    np.testing.assert_array_equal(whole(own, own, out=own, more=1.0), x * x + 1.0)
