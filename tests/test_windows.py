"""Slices of split dims whose place is traced: just their rows are exchanged."""

from typing import Any

import numpy as np
import pytest

import meshard
from meshard import debug, lax
from tests.worlds import alone, everywhere, in_processes, put, whole

VALUE = np.arange(39.0).reshape(13, 3)
NEW = -np.arange(12.0).reshape(4, 3)

CALLS: dict[str, Any] = {
    "slice": lambda lax, x, i: lax.dynamic_slice_in_dim(x, i, 4),
    "slice of two dims": lambda lax, x, i: lax.dynamic_slice(x, (i, i - 4), (5, 2)),
    "not from the end": lambda lax, x, i: lax.dynamic_slice_in_dim(
        x, i, 4, allow_negative_indices=False
    ),
    "one": lambda lax, x, i: lax.dynamic_index_in_dim(x, i, 0),
    "nothing": lambda lax, x, i: lax.dynamic_slice_in_dim(x, i, 0),
    "row": lambda lax, x, i: x[i],
    "update": lambda lax, x, i: lax.dynamic_update_slice_in_dim(x, NEW, i, 0),
    "update of two dims": lambda lax, x, i: lax.dynamic_update_slice(x, NEW[:, :2], (i, 1)),
    "update one": lambda lax, x, i: lax.dynamic_update_index_in_dim(x, NEW[0], i, 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_windows_are_jax_s(name: str, jax: Any) -> None:
    call = CALLS[name]

    def squares(lax: Any) -> Any:
        return lambda x, i: (call(lax, x, i) ** 2).sum()

    places = (0, 7, 12) if name == "row" else (7, 40, -3)

    def body() -> Any:
        sliced = meshard.jit(lambda x, i: call(lax, x, i))
        back = meshard.jit(meshard.grad(squares(lax)))
        found = []
        for spec in (("i",), (("j", "i"),)):
            x = put(VALUE, *spec, uneven="balanced")
            found += [[whole(sliced(x, i)), whole(back(x, i))] for i in places]
        return found

    with jax.enable_x64(True):
        sliced = jax.jit(lambda x, i: call(jax.lax, x, i))
        back = jax.jit(jax.grad(squares(jax.lax)))
        x = jax.numpy.asarray(VALUE)
        expected = [[np.asarray(sliced(x, i)), np.asarray(back(x, i))] for i in places] * 2
    for ours, theirs in zip(everywhere(body), expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b)


def test_four_processes_of_which_some_have_nothing() -> None:
    def body() -> Any:
        x = put(VALUE, ("i", "j"), uneven=((0, 0, 3, 3, 4, 4, 9, 13, 13), None))
        return [
            whole(meshard.jit(lambda x, i: lax.dynamic_slice_in_dim(x, i, 4))(x, 2)),
            whole(meshard.jit(lambda x, i: lax.dynamic_update_slice_in_dim(x, NEW, i, 0))(x, 2)),
        ]

    found, changed = in_processes(body, (2, 4))
    np.testing.assert_array_equal(found, VALUE[2:6])
    np.testing.assert_array_equal(changed[2:6], NEW)


def test_only_the_rows_asked_for_cross() -> None:
    def body() -> list[int]:
        x = put(np.ones((1 << 12, 4)), ("i", "j"))
        found = []
        for call in (
            lambda x, i: lax.dynamic_slice_in_dim(x, i, 64),
            lambda x, i: x[i],
            lambda x, i: lax.dynamic_update_slice_in_dim(x, x[:64] * 2, i, 0),
        ):
            f = meshard.jit(call)
            f(x, 100)
            with debug.ledger() as log:
                f(x, 100)
            found.append(log.total_bytes)
        return found

    rows, one, update = alone(body)
    assert rows <= 64 * 4 * 8
    assert one <= 7 * 4 * 8
    assert update <= 64 * 5 * 8 + 7 * 64 * 8
