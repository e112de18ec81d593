"""Rows of planning: what it takes to know who sends what to whom, from 8 to 131,072 devices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.claims import MESHARD, Within
from bench.harness import Peer, Row, Work

SIDE = 1 << 18
LEAVES = 1000


@dataclass(frozen=True, kw_only=True)
class PlanRow(Row):
    """A plan, made from layouts that are known.

    Attributes:
        operands: makes new operands, outside the timing.
        work: what is measured.
        batch: calls per repetition.
    """

    operands: Callable[[], tuple[Any, ...]]
    work: Callable[..., Any]
    batch: int = 1

    def peers(self) -> Mapping[str, Callable[[], Peer]]:
        """Only meshard can do this."""
        return {MESHARD: lambda: Work(self.operands, self.work, lambda _: None, self.batch)}


def grid(devices: int) -> tuple[int, int]:
    """The sides of a mesh that is as square as powers of two allow."""
    first = 1 << ((devices.bit_length()) // 2)
    return first, devices // first


def layouts(devices: int, before: Any, after: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """New layouts on one mesh of so many devices, with axes x and y."""
    from meshard.algebra.layout import Layout, even_cuts
    from meshard.algebra.sharding import device_tensor

    ids = np.arange(devices).reshape(grid(devices))

    def layout(axes: Any) -> Layout:
        tensor = device_tensor(ids, ("x", "y"), axes)
        cuts = tuple(even_cuts(n, g) for n, g in zip(shape, tensor.shape[:-1], strict=True))
        return Layout(shape, cuts, tensor)

    return layout(before), layout(after)


TILES = (("x",), ("y",))
SWAPPED = (("y",), ("x",))
ROWS_X = (("x",), ())
COLUMNS_X = ((), ("x",))


def one_part(source: Any, destination: Any) -> Any:
    """Bounds, the choice of senders, and what one device sends and receives."""
    from meshard.plan.hops.hop import Hop

    hop = Hop(source, destination)
    figures = hop.moved, hop.sent.most, hop.received.most
    return figures, hop.sends([1]), hop.receives([1])


def curve(devices: int, seconds: float | None) -> PlanRow:
    """One point of the growth curve."""
    return PlanRow(
        key=f"plan-{devices}",
        title=f"plan P(x,y) -> P(y,x), {devices:,} devices, one device's part",
        claims=[] if seconds is None else [Within(seconds)],
        operands=lambda: layouts(devices, TILES, SWAPPED, (SIDE, SIDE)),
        work=one_part,
    )


def tree(devices: int) -> tuple[Any]:
    """The leaves of a tree with four kinds of layouts."""
    from meshard.plan.figures.choice import PlanLeaf

    pairs = [
        layouts(devices, *ends, shape)
        for ends in ((TILES, SWAPPED), (ROWS_X, COLUMNS_X))
        for shape in ((SIDE, SIDE), (SIDE, SIDE // 2))
    ]
    return ([PlanLeaf(f"layer {k}", *pairs[k % 4], 2, "bfloat16") for k in range(LEAVES)],)


def planned(leaves: Any) -> Any:
    """One joint plan, with its figures."""
    from meshard.plan.planner import make_plan

    plan = make_plan(leaves)
    return plan.bytes_moved, plan.most_sent


def cached() -> tuple[Any, Any, Any]:
    """A leaf, a cache that knows its plan, and the options that it was made with."""
    from meshard.plan.figures.choice import PlanLeaf
    from meshard.plan.planner import PlanCache, PlanOptions, make_plan

    leaf = PlanLeaf("w", *layouts(131072, TILES, SWAPPED, (SIDE, SIDE)), 2, "bfloat16")
    cache = PlanCache()
    make_plan([leaf], PlanOptions(), cache=cache)
    return leaf, cache, PlanOptions()


_KNOWN: list[tuple[Any, Any, Any]] = []


def known() -> tuple[Any, Any, Any]:
    """The same leaf, cache and options every time."""
    if not _KNOWN:
        _KNOWN.append(cached())
    return _KNOWN[0]


def hit(leaf: Any, cache: Any, options: Any) -> Any:
    """Find a plan that is known."""
    return cache.find(leaf, options, lambda: None)


ROWS: tuple[Row, ...] = (
    *(curve(n, None) for n in (8, 64, 512)),
    curve(4096, 2e-3),
    curve(32768, None),
    curve(131072, 60e-3),
    PlanRow(
        key="plan-tree",
        title=f"plan of {LEAVES} leaves, 4,096 devices",
        claims=[Within(60e-3)],
        operands=lambda: tree(4096),
        work=planned,
    ),
    PlanRow(
        key="plan-cached",
        title="plan that is known, 131,072 devices",
        claims=[Within(10e-6)],
        operands=known,
        work=hit,
        batch=100,
    ),
)
