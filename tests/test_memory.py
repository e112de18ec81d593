"""All blocks that the runtime and the engine make come from the world's memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.runtime.array.array import Array
from meshard.runtime.memory.memory import Memory
from meshard.runtime.memory.pages import Pages
from meshard.runtime.types import Block
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from tests.worlds import alone

ROWS = 1 << 8


@final
class Recording(Memory):
    """Pages that keep what they are asked for.

    Attributes:
        made: the blocks that were allocated.
        brought: the values that came from the host, and the blocks that were shown to it.
    """

    def __init__(self) -> None:
        self.pages = Pages()
        self.made: list[Block] = []
        self.brought: list[Block] = []

    def allocate(self, shape: Sequence[int], dtype: Any, *, filled_in: int | None = None) -> Block:
        self.made.append(self.pages.allocate(shape, dtype, filled_in=filled_in))
        return self.made[-1]

    def reachable(self, shape: Sequence[int], dtype: Any) -> Block:
        self.made.append(self.pages.reachable(shape, dtype))
        return self.made[-1]

    def zeros(self, shape: Sequence[int], dtype: Any) -> Block:
        self.made.append(self.pages.zeros(shape, dtype))
        return self.made[-1]

    def copy(self, target: Block, origin: Block) -> None:
        self.pages.copy(target, origin)

    def from_host(self, target: Block, value: Block) -> None:
        self.brought.append(value)
        self.pages.from_host(target, value)

    def to_host(self, block: Block) -> Block:
        self.brought.append(block)
        return self.pages.to_host(block)

    def trim(self, most: int = 0) -> None:
        self.pages.trim(most)

    def close(self) -> None:
        self.pages.close()

    def has(self, block: Block) -> bool:
        """Whether a block is, or is a view of, one of those made here."""
        return any(np.may_share_memory(block, made) for made in self.made)


def put(value: np.ndarray, *spec: Any) -> Array:
    return meshard.device_put(value, NamedSharding(meshard.make_mesh((8,), ("i",)), P(*spec)))


def gathered(x: Array) -> Array:
    return meshard.reshard(x, NamedSharding(x.sharding.mesh, P()))


def in_body(body: Callable[[Any], Any]) -> Callable[[Array], Array]:
    return lambda x: meshard.shard_map(
        body, mesh=x.sharding.mesh, in_specs=P("i"), out_specs=P("i")
    )(x)


def host(x: Array) -> np.ndarray:
    return np.full(x.shape, 3.0)


MAKERS: dict[str, Callable[[Array], Any]] = {
    "asarray": lambda x: mnp.asarray(host(x)),
    "device_put": lambda x: put(host(x), None, "i"),
    "make_array_from_callback": lambda x: meshard.make_array_from_callback(
        x.shape, x.sharding, lambda index: host(x)[index][::1]
    ),
    "unpickled": lambda x: pickle.loads(pickle.dumps(x)),
    "zeros": lambda x: mnp.zeros(x.shape, device=x.sharding),
    "full": lambda x: mnp.full(x.shape, 7.0, device=x.sharding),
    "full_like": lambda x: mnp.full_like(x, 7.0),
    "random": lambda x: meshard.random.normal(meshard.random.key(0), x.shape),
    "reshard": lambda x: meshard.reshard(x, NamedSharding(x.sharding.mesh, P(None, "i"))),
    "donated": lambda x: meshard.reshard(
        x + 0, NamedSharding(x.sharding.mesh, P(None, "i")), donate=True
    ),
    "gathered": gathered,
    "concatenate": lambda x: mnp.concatenate([x, x], axis=0),
    "roll": lambda x: mnp.roll(x, 3, axis=0),
    "reshape": lambda x: mnp.reshape(x.T, (-1,)),
    "pad": lambda x: mnp.pad(x, ((1, 1), (0, 0))),
    "jit": lambda x: meshard.jit(lambda x: mnp.concatenate([x, x], axis=1))(gathered(x)),
    "scan": lambda x: meshard.jit(lambda x: lax.scan(lambda c, r: (c, r + c), 1.0, x)[1])(x),
    "all_gather": in_body(lambda x: lax.all_gather(x, "i", tiled=True)),
    "ppermute": in_body(lambda x: lax.ppermute(x, "i", [(0, 1)])),
}
LARGE_ONLY: dict[str, Callable[[Array], Any]] = {
    "add": lambda x: x + x,
    "matmul": lambda x: gathered(x) @ gathered(x).T,
    "sqrt": mnp.sqrt,
    "fused": in_body(lambda x: (x + 1) * x - 2),
}
"""Operations whose small results NumPy's kernels make themselves."""


def blocks_of(x: Array) -> list[Block]:
    return [b for b in x._live() if b is not None]


def check(operation: Callable[[Array], Any], columns: int) -> None:
    world = here()
    value = np.arange(ROWS * columns, dtype=float).reshape(ROWS, columns)
    x = put(value, "i")
    memory = world.memory = Recording()
    given = blocks_of(x)
    assert not any(map(memory.has, given))
    made = blocks_of(operation(x))
    assert all(memory.has(b) or any(np.may_share_memory(b, g) for g in given) for b in made)
    assert any(map(memory.has, made))


@pytest.mark.parametrize("columns", [8, 1 << 12], ids=["small", "large"])
@pytest.mark.parametrize("name", MAKERS)
def test_what_makes_blocks_asks_the_memory(name: str, columns: int):
    alone(lambda: check(MAKERS[name], columns))


@pytest.mark.parametrize("name", LARGE_ONLY)
def test_large_results_are_written_into_blocks_of_the_memory(name: str):
    alone(lambda: check(LARGE_ONLY[name], 1 << 12))


def test_values_come_from_the_host_and_go_there_through_the_memory():
    def body() -> None:
        value = np.arange(64.0).reshape(8, 8)
        memory = here().memory = Recording()
        x = put(value, "i")
        assert sum(b.nbytes for b in memory.brought) == value.nbytes
        for whole in (x, meshard.device_put(value)):
            memory.brought.clear()
            assert (np.asarray(whole) == value).all()
            (shown,) = memory.brought
            assert (shown == value).all()

    alone(body)
