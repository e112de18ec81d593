"""Rows of JAX's own arrays: resharded by meshard between their buffers, and by JAX."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import foundation_by_hand as by_hand
from bench.claims import BY_HAND, JAX_EAGER, JAX_JIT, MESHARD, Faster
from bench.harness import Peer, Row, Work
from bench.libraries import Spec, load
from bench.limits import NOTHING, Need
from bench.row import ByHand
from bench.rows_foundation import COPIED, normal
from bench.verify import check_layout, check_value

SIDE = 4096
Place = tuple[range, dict[str, int], Spec]
"""Device ids, the mesh's axes with their sizes, and the spec."""

ALL: Place = (range(8), {"i": 4, "j": 2}, ("i", "j"))
SWAPPED: Place = (range(8), {"i": 4, "j": 2}, ("j", "i"))
WHOLE: Place = (range(8), {"i": 4, "j": 2}, ())
FIRST: Place = (range(4), {"i": 2, "j": 2}, ("i", "j"))
OTHERS: Place = (range(4, 8), {"t": 4}, (None, "t"))


def sharding_of(place: Place) -> Any:
    """The JAX sharding of a place."""
    library = load("jax")
    ids, axes, spec = place
    grid = np.array([library.root.devices()[i] for i in ids]).reshape(tuple(axes.values()))
    mesh = library.placing.Mesh(grid, tuple(axes))
    return library.placing.NamedSharding(mesh, library.placing.PartitionSpec(*spec))


@dataclass(frozen=True, kw_only=True)
class InteropRow(Row):
    """A reshard of JAX arrays.

    Attributes:
        source: how the arrays lie.
        target: how they shall lie.
        by_hand: the copies between kept buffers.
    """

    source: Place
    target: Place
    by_hand: Callable[..., ByHand]
    need: Need = COPIED

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Makers of meshard, JAX's device_put, where it can be its jit, and by hand."""
        makers: dict[str, Callable[[], Peer]] = {
            MESHARD: lambda: self._work(importlib.import_module("meshard.interop.jax").reshard),
            JAX_EAGER: lambda: self._work(load("jax").root.device_put),
            JAX_JIT: lambda: self._work(self._jit()),
            BY_HAND: self._handmade,
        }
        if self.source[0] != self.target[0]:
            del makers[JAX_JIT]  # refuses other devices than its arguments'
        return makers

    def _jit(self) -> Callable[[Any, Any], Any]:
        jitted = load("jax").root.jit(lambda x: x, out_shardings=sharding_of(self.target))
        return lambda x, _: jitted(x)

    def _work(self, move: Callable[[Any, Any], Any]) -> Work:
        root, source, target = load("jax").root, sharding_of(self.source), sharding_of(self.target)
        values = normal(SIDE, SIDE)

        def fresh() -> tuple[Any, ...]:
            return (root.block_until_ready(root.device_put(values, source)),)

        def check(result: Any) -> None:
            check_layout(result, values, target, 0.0)
            check_value(result, values, 0.0)

        return Work(fresh, lambda x: root.block_until_ready(move(x, target)), check)

    def _handmade(self) -> Work:
        hand = self.by_hand(normal(SIDE, SIDE))

        def fresh() -> tuple[Any, ...]:
            hand.load()
            return ()

        return Work(
            fresh, hand.call, lambda made: check_value(hand.fetch(made), normal(SIDE, SIDE), 0.0)
        )


ROWS: tuple[Row, ...] = (
    InteropRow(
        key="jax-swap",
        title="JAX array 4096x4096 P(i,j) -> P(j,i)",
        claims=[Faster(5, than=JAX_EAGER)],
        source=ALL,
        target=SWAPPED,
        by_hand=by_hand.reshard((2, 4)),
    ),
    InteropRow(
        key="jax-move",
        title="JAX array 4096x4096 P(i,j) -> 4 other devices",
        claims=[Faster(5, than=JAX_EAGER)],
        source=FIRST,
        target=OTHERS,
        by_hand=by_hand.reshard((1, 4)),
    ),
    InteropRow(
        key="jax-replicate",
        title="JAX array 4096x4096 P(i,j) -> P()",
        claims=[Faster(15, than=JAX_EAGER)],
        source=ALL,
        target=WHOLE,
        by_hand=by_hand.reshard((1, 1)),
    ),
    InteropRow(
        key="jax-slice",
        title="JAX array 4096x4096 P() -> P((i,j))",
        claims=[Faster(1, than=JAX_EAGER)],
        source=WHOLE,
        target=(range(8), {"i": 4, "j": 2}, (("i", "j"),)),
        need=NOTHING,  # a slice is a view
        by_hand=by_hand.reshard((8, 1)),
    ),
)
