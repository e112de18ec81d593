"""Plans that several tests look at: small and large, with and without detours."""

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts, even_cuts, layout_of_boxes
from meshard.plan.figures.choice import Candidate, Choice, PlanLeaf, figures_of
from meshard.plan.hops.hop import Route
from meshard.plan.plan import Plan


def laid(shape, shards, ids, cuts=even_cuts):
    """A layout with so many shards along each dim; more ids than shards are replicas."""
    points = tuple(cuts(n, k) if k > 1 else (0, n) for n, k in zip(shape, shards, strict=True))
    return Layout(shape, points, np.asarray(ids, np.int64).reshape(*shards, -1))


def transpose():
    """Rows to columns on eight devices."""
    rows, columns = laid((8, 8), (8, 1), range(8)), laid((8, 8), (1, 8), range(8))
    return Plan([PlanLeaf("x", rows, columns, 4, "float32", "P('x', None)", "P(None, 'x')")])


def striped():
    """Eight shards to four whole copies elsewhere, shared out among the receivers."""
    before = laid((8, 8), (8, 1), range(8))
    between = laid((8, 8), (4, 1), range(8, 12))
    after = laid((8, 8), (1, 1), range(8, 12))
    way = Route("striped", (before, between, after))
    direct = figures_of(Route("direct", (before, after)), 4, donate=True)
    choice = Choice(
        way,
        figures_of(way, 4, donate=True),
        "each receiver gets a quarter and passes it on",
        (
            Candidate("direct", direct, "every sender would send its shard four times"),
            Candidate("chained", None, "the window is too small for a whole copy"),
        ),
    )
    return Plan([PlanLeaf("w", before, after, 4, "float32")], [choice], max_bytes=64, donate=True)


def model():
    """The layers of a model, from 16 devices to 6 others."""
    leaves = []
    for layer in range(12):
        for name, shape in (
            ("attention.query", (1024, 512)),
            ("attention.key", (1024, 512)),
            ("mlp.up", (1024, 2048)),
            ("norm", (1024,)),
        ):
            ones = (1,) * (len(shape) - 1)
            before = laid(shape, (4, *ones), range(16))
            after = laid(shape, (*ones, 3), range(16, 22), balanced_cuts)
            leaves.append(
                PlanLeaf(f"model.layers.{layer}.{name}.weight", before, after, 2, "bfloat16")
            )
    return Plan(leaves, max_bytes=1 << 20)


def uneven():
    """One array that grows, one of boxes, one that stays, and a device that is gone."""
    ten = laid((10,), (4,), range(8), balanced_cuts)
    three = laid((10,), (3,), [0, 2, 5], balanced_cuts)
    boxes = layout_of_boxes(
        (6, 6), [(0, Box((0, 0), (6, 2))), (2, Box((0, 2), (3, 6))), (5, Box((3, 2), (6, 6)))]
    )
    whole = laid((6, 6), (1, 1), [0, 2])
    return Plan(
        [
            PlanLeaf("grows", ten, three, 8),
            PlanLeaf("boxes", boxes, whole, 2, "float16", "boxes", "P()"),
            PlanLeaf("stays", three, three, 8),
        ],
    )


def vast():
    """A transpose on 131,072 devices, whose pairs nobody lists."""
    n = 1 << 17
    before, after = laid((2 * n, 2 * n), (n, 1), range(n)), laid((2 * n, 2 * n), (1, n), range(n))
    return Plan([PlanLeaf("x", before, after, 2, "bfloat16")])


PLANS = {f.__name__: f for f in (transpose, striped, model, uneven, vast)}
SMALL = {name: make for name, make in PLANS.items() if name != "vast"}
