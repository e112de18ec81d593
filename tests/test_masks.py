"""Masks and searches of arrays that span processes: right, and little crosses."""

from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import debug
from meshard.sharding import NamedSharding, P
from tests.lays import fetched, same
from tests.worlds import alone, everywhere, in_processes, put, whole

VALUE = np.random.default_rng(0).integers(-9, 9, 23).astype(float)
CUTS = ((0, 0, 4, 4, 9, 10, 17, 23, 23),)


def _split(value: Any, cuts: Any = CUTS) -> meshard.Array:
    mesh = meshard.make_mesh((8,), ("i",))
    return meshard.device_put(value, NamedSharding(mesh, P("i"), uneven=cuts))


def test_masks_of_four_processes() -> None:
    table = np.stack([VALUE, VALUE * 2], 1)

    def body() -> Any:
        x, rows = _split(VALUE), _split(table)
        found = [x[x > 0], rows[x > 0], rows[rows > 3], rows[x > 99], x[~(x > 99)]]
        return fetched([*found, mnp.nonzero(x > 0)[0], mnp.argwhere(rows > 3)])

    found = in_processes(body, (2, 4))
    expected = [VALUE[VALUE > 0], table[VALUE > 0], table[table > 3], table[:0], VALUE]
    expected += [np.nonzero(VALUE > 0)[0], np.argwhere(table > 3)]
    same(found, expected)


def test_searches_of_four_processes() -> None:
    other = ((0, 5, 5, 5, 6, 11, 19, 20, 23),)
    ordered = np.sort(VALUE)

    def body() -> Any:
        x = _split(ordered)
        return fetched(
            [mnp.searchsorted(x, _split(VALUE, other), side) for side in ("left", "right")]
            + [mnp.searchsorted(x, VALUE[:3]), mnp.searchsorted(ordered, _split(VALUE, other))]
        )

    left, right, some, again = in_processes(body, (2, 4))
    same((left, right), [np.searchsorted(ordered, VALUE, side) for side in ("left", "right")])
    same((some, again), [np.searchsorted(ordered, VALUE[:3]), left])


@pytest.mark.parametrize("by", ["mask", "unique"])
def test_values_that_are_differentiated_stay_where_they_are(by: str) -> None:
    def chosen(x: Any) -> Any:
        return ((x[x > 0] if by == "mask" else mnp.unique(x)) ** 2).sum()

    def body() -> Any:
        return whole(meshard.grad(chosen)(put(VALUE, ("i", "j"), uneven="balanced")))

    first = np.zeros(len(VALUE), bool)
    first[np.unique(VALUE, return_index=True)[1]] = True
    same(everywhere(body), 2 * VALUE * (VALUE > 0 if by == "mask" else first) + 0.0)


def test_a_mask_moves_counts_alone() -> None:
    def body() -> int:
        x = put(np.arange(1 << 12), ("i", "j"))
        mask = x % 3 == 0
        with debug.ledger() as log:
            found = x[mask]
        assert found.shape == (1366,)
        return log.total_bytes

    assert alone(body) <= 2 * 8 * 8 * 8
