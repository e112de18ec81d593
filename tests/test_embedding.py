"""Gradients of tables that tokens look up: tables are added up, or values sent, which is less."""

from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import debug
from tests.worlds import alone, everywhere, in_processes, put, whole

TOKENS = np.random.default_rng(0).integers(0, 6, size=(13, 5))
TABLE = np.random.default_rng(1).integers(-4, 5, size=(6, 4)).astype(float)


def _loss(table: Any, tokens: Any) -> Any:
    return (table[tokens] ** 2 * np.arange(4.0)).sum()


@pytest.mark.parametrize("spec", [(None, "j"), (), ("i",), (None, "i"), ("j", None)])
@pytest.mark.parametrize("tokens", [("i",), (None, "i"), (("i", "j"),), ("i", "j")])
def test_gradients_are_those_of_one_device(spec: Any, tokens: Any, jax: Any) -> None:
    def body() -> Any:
        table = put(TABLE, *spec, uneven="balanced")
        own = put(TOKENS, *tokens, uneven="balanced")
        found = [meshard.grad(_loss)(table, own), meshard.jit(meshard.grad(_loss))(table, own)]
        assert all(g.aval.layout == table.aval.layout for g in found)
        return [whole(g) for g in found]

    expected = jax.grad(_loss)(TABLE, TOKENS)
    for found in everywhere(body):
        np.testing.assert_allclose(found, expected)


def test_four_processes() -> None:
    def body() -> Any:
        own = put(TOKENS, "i", uneven=((0, 0, 9, 9, 13), None))
        return whole(meshard.grad(_loss)(put(TABLE, None, "j"), own))

    in_processes(body, (4,))


def test_derivatives_of_derivatives_and_many_examples(jax: Any) -> None:
    def twice(grad: Any) -> Any:
        return lambda table, own: (grad(_loss)(table, own) ** 3).sum()

    def body() -> Any:
        table, own = put(TABLE, None, "j"), put(TOKENS, "i", uneven="balanced")
        many = mnp.stack([own, own[::-1]])
        return (
            whole(meshard.grad(twice(meshard.grad))(table, own)),
            whole(meshard.vmap(meshard.grad(_loss), in_axes=(None, 0))(table, many)),
        )

    found, many = alone(body)
    np.testing.assert_allclose(found, jax.grad(twice(jax.grad))(TABLE, TOKENS), rtol=1e-5)
    np.testing.assert_allclose(many, np.stack([jax.grad(_loss)(TABLE, TOKENS)] * 2))


def _bytes(rows: int, jitted: bool) -> tuple[int, int, int]:
    table = put(np.ones((rows, 8)), None, "j")
    tokens = put(np.arange(512).reshape(128, 4) % rows, "i")
    derivative = meshard.grad(lambda t, own: (t[own] ** 2).sum())
    if jitted:
        derivative = meshard.jit(derivative)
        derivative(table, tokens)
    with debug.ledger() as log:
        derivative(table, tokens)
    return log.total_bytes, table.nbytes, 512 * 8 * 8


@pytest.mark.parametrize("jitted", [False, True])
def test_a_small_table_is_added_up(jitted: bool) -> None:
    moved, table, _ = alone(lambda: _bytes(16, jitted))
    assert moved <= 2 * 3 * table + 1000  # an all-reduce over four devices of each half


@pytest.mark.parametrize("jitted", [False, True])
def test_of_a_large_table_values_are_sent(jitted: bool) -> None:
    moved, table, values = alone(lambda: _bytes(1 << 12, jitted))
    assert moved < 3 * values + 3 * table + 4 * 8 * 8 * 512
