"""Rows of planning: what it takes to know who sends what to whom, from 8 to 131,072 devices."""

import itertools
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
    """A plan, made from layouts or shardings.

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


def new_mesh(sizes: tuple[int, int], first: int = 0) -> Any:
    """A mesh of devices that do not exist, with axes x and y."""
    from meshard.algebra.device import Device
    from meshard.algebra.mesh import Mesh

    devices = np.empty(sizes[0] * sizes[1], object)
    devices[:] = [Device(first + i, i // 8) for i in range(len(devices))]
    return Mesh(devices.reshape(sizes), ("x", "y"))


_MADE = itertools.count()


def unknown(before: Any, after: Any) -> tuple[Any, Any]:
    """An array and the sharding that it is to have, on a mesh that nothing knows yet."""
    from meshard.algebra.sharding import NamedSharding
    from meshard.algebra.spec import PartitionSpec
    from meshard.runtime.moving.plan_reshard import plan_cache
    from meshard.runtime.moving.structs import ShapeDtypeStruct

    plan_cache().clear()
    mesh = new_mesh(grid(131072), next(_MADE) % 2)  # equal meshes would share their layouts
    source, destination = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (before, after))
    return ShapeDtypeStruct((SIDE, SIDE), "bfloat16", sharding=source), destination


def bytes_of(x: Any, sharding: Any) -> int:
    """The bytes that a reshard of a tree would move."""
    from meshard.runtime.moving.plan_reshard import plan_reshard

    return plan_reshard(x, sharding).bytes_moved


def llama() -> tuple[Any, Any]:
    """Llama 3 405B's 1,137 arrays on 16,384 devices, and their shardings on 8,192.

    Each array has shardings of its own, as programs that build trees make them.
    """
    from meshard.algebra.sharding import NamedSharding
    from meshard.algebra.spec import PartitionSpec
    from meshard.runtime.moving.plan_reshard import plan_cache
    from meshard.runtime.moving.structs import ShapeDtypeStruct

    wide, hidden, few, words = 16384, 53248, 1024, 128256
    layer = [(wide, wide), (wide, few), (wide, few), (wide, wide)]
    layer += [(wide, hidden), (wide, hidden), (hidden, wide), (wide,), (wide,)]
    shapes = [(words, wide), (wide, words), (wide,), *layer * 126]
    plan_cache().clear()
    before, after = new_mesh((2048, 8)), new_mesh((512, 16))

    def laid(mesh: Any, shape: tuple[int, ...]) -> Any:
        spec = PartitionSpec("x", "y") if len(shape) == 2 else PartitionSpec()
        return NamedSharding(mesh, spec, uneven="balanced")

    tree = [ShapeDtypeStruct(s, "bfloat16", sharding=laid(before, s)) for s in shapes]
    return tree, [laid(after, s) for s in shapes]


def llama_plan() -> tuple[Any]:
    """The plan of that tree."""
    from meshard.runtime.moving.plan_reshard import plan_reshard

    return (plan_reshard(*llama()),)


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
    *(
        PlanRow(
            key=f"plan-unknown-{key}",
            title=f"plan_reshard {title} and its bytes, 131,072 devices, nothing known",
            claims=[Within(25e-3)],
            operands=lambda ends=ends: unknown(*ends),  # type: ignore[misc]
            work=bytes_of,
        )
        for key, title, ends in (
            ("swap", "P(x,y) -> P(y,x)", (("x", "y"), ("y", "x"))),
            ("columns", "P((x,y)) -> P(None,(x,y))", ((("x", "y"),), (None, ("x", "y")))),
            ("turned", "P((x,y)) -> P((y,x))", ((("x", "y"),), (("y", "x"),))),
        )
    ),
    PlanRow(
        key="plan-llama",
        title="plan of Llama 3 405B, 16,384 to 8,192 devices",
        claims=[Within(1.0)],
        operands=llama,
        work=bytes_of,
    ),
    PlanRow(
        key="plan-llama-print",
        title="the same plan printed",
        claims=[Within(0.5)],
        operands=llama_plan,
        work=str,
    ),
    PlanRow(
        key="plan-llama-html",
        title="the same plan as HTML",
        claims=[Within(2.0)],
        operands=llama_plan,
        work=lambda plan: plan._repr_html_(),
    ),
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
