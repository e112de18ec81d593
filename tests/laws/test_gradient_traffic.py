"""What gradients communicate, beside what a person would write, and what JAX compiles.

A table: for each way to lay a model out the collectives of value and gradient, counted by hand as
in the papers of these ways (data parallel; Megatron's tensor and sequence parallel; ZeRO-3, which
is FSDP). `explain` must say so before it runs, and the ledger while it runs, in one process and in
four, where all gradients have the same bits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax, nn
from meshard.debug import budget, ledger
from meshard.errors import BudgetError
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, in_processes, mesh, whole

SMALL = 60
"""Bytes that a number takes to be summed over all devices, and which nobody counts."""


@dataclass
class Door:
    """The functions of meshard or of JAX."""

    np: Any
    nn: Any
    constrained: Callable[..., Any]


Found = Counter[tuple[str, int]]


def all_reduce(n: int, k: int = 4) -> tuple[str, int]:
    return "all-reduce", 2 * n * (k - 1) // k


def all_gather(n: int, k: int = 4) -> tuple[str, int]:
    return "all-gather", n * (k - 1) // k


def scatter(n: int, k: int = 4) -> tuple[str, int]:
    return "reduce-scatter", n * (k - 1) // k


# models


def mlp(door: Door, p: Any, x: Any) -> Any:
    return door.np.mean((door.np.tanh(x @ p["in"]) @ p["out"]) ** 2)


def norm(door: Door, x: Any, scale: Any) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    spread = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / door.np.sqrt(spread + 1e-5) * scale


def attention(door: Door, p: Any, x: Any) -> Any:
    q, k, v = (door.np.einsum("btd,dhk->bhtk", x, p[name]) for name in "qkv")
    scores = door.nn.softmax(door.np.einsum("bhtk,bhsk->bhts", q, k) / 2.0, axis=-1)
    return door.np.einsum("bhtk,hkd->btd", door.np.einsum("bhts,bhsk->bhtk", scores, v), p["o"])


def block(door: Door, p: Any, x: Any) -> Any:
    """A layer of a transformer, behind a product, so that its input has a gradient too."""
    x = x @ p["first"]
    x = x + attention(door, p, norm(door, x, p["g"]))
    hidden = door.np.tanh(door.np.einsum("btd,df->btf", norm(door, x, p["h"]), p["in"]))
    return door.np.mean((x + door.np.einsum("btf,fd->btd", hidden, p["out"])) ** 2)


def sequence(door: Door, p: Any, x: Any) -> Any:
    """Megatron's sequence parallel: positions are split where heads and hidden dims are not."""
    y = (x - x.mean(axis=-1, keepdims=True)) * p["g"]
    hidden = door.np.tanh(door.np.einsum("btd,df->btf", y, p["in"]))
    z = door.constrained(door.np.einsum("btf,fd->btd", hidden, p["out"]), P("i", "j"))
    return door.np.mean((x + z) ** 2)


def norms(door: Door, p: Any, x: Any) -> Any:
    return door.np.mean((norm(door, x, p["g"]) + p["b"]) ** 3)


def stencil(door: Door, p: Any, x: Any) -> Any:
    for _ in range(3):
        x = x + p["k"] * (door.np.roll(x, 1, 0) + door.np.roll(x, -1, 0) - 2 * x)
    return door.np.mean(x**2)


def slices(door: Door, p: Any, x: Any) -> Any:
    for _ in range(2):
        x = x[1:-1] * p["k"] + x[:-2] + x[2:]
    return door.np.mean(x**2)


def experts(door: Door, p: Any, x: Any) -> Any:
    gates = door.nn.softmax(door.np.einsum("btd,de->bte", x, p["g"]), axis=-1)
    hidden = door.np.tanh(door.np.einsum("btd,edf->betf", x, p["in"]))
    made = door.np.einsum("betf,efd->betd", hidden, p["out"])
    return door.np.mean(door.np.einsum("betd,bte->btd", made, gates) ** 2)


def lookup(door: Door, p: Any, ids: Any) -> Any:
    return door.np.mean(p["e"][ids] ** 2)


# the table


@dataclass
class Case:
    """One way to lay a model out.

    Attributes:
        f: the model.
        shapes: of the parameters.
        specs: how they are laid out.
        x: the batch's shape.
        batch: how it is laid out.
        hand: the collectives by hand, with the bytes that each device receives.
        at_once: the same for a gradient that is computed at once, not by jit; None: as by jit.
        most: bytes that no way may exceed, where there is no list by hand.
    """

    f: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]
    specs: dict[str, tuple[Any, ...]]
    x: tuple[int, ...]
    batch: tuple[Any, ...]
    hand: list[tuple[str, int]] = field(default_factory=list)
    at_once: list[tuple[str, int]] | None = None
    most: int | None = None


MLP = {"in": (32, 64), "out": (64, 32)}
W = 32 * 64 * 8
HIDDEN = 64 * 32 * 8
"""Bytes of what the second product of the MLP gives, for the whole batch."""
HEADS = {"q": (16, 4, 8), "k": (16, 4, 8), "v": (16, 4, 8), "o": (4, 8, 16)}
LAYER = {**HEADS, "first": (16, 16), "g": (16,), "h": (16,), "in": (16, 32), "out": (32, 16)}
SIZES = {k: int(np.prod(s)) * 8 for k, s in LAYER.items()}
ROWS = 8 * 12 * 16 * 8
"""Bytes of what the layer passes on, for the whole batch."""
TENSOR: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("q", "k", "v", "in"), (None, "j")),
    **dict.fromkeys(("o", "out"), ("j",)),
    **dict.fromkeys(("first", "g", "h"), ()),
}
LOCAL = {k: SIZES[k] // (2 if TENSOR[k] else 1) for k in LAYER}
BOTH: dict[str, tuple[Any, ...]] = {
    **{k: ("i", *spec[1:]) for k, spec in TENSOR.items()},
    "o": ("j", None, "i"),
    "out": ("j", "i"),
}
"""Tensor parallel, and the rest of each parameter split over the data's axis."""


def whole_ones(shapes: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(shapes, ())


CASES = {
    "data parallel": Case(
        mlp, MLP, whole_ones(MLP), (64, 32), ("i",), [all_reduce(W), all_reduce(W)]
    ),
    "tensor parallel": Case(
        mlp, MLP, {"in": (None, "j"), "out": ("j",)}, (64, 32), (), [all_reduce(HIDDEN, 2)]
    ),
    "data and tensor parallel": Case(
        mlp,
        MLP,
        {"in": (None, "j"), "out": ("j",)},
        (64, 32),
        ("i",),
        [all_reduce(HIDDEN // 4, 2), all_reduce(W // 2), all_reduce(W // 2)],
    ),
    "fully sharded": Case(
        mlp,
        MLP,
        {"in": ("i",), "out": ("i",)},
        (64, 32),
        ("i",),
        [all_gather(W), all_gather(W), scatter(W), scatter(W)],
        # As ZeRO-3 does, the second weight is brought again for the way back.
        [all_gather(W), all_gather(W), all_gather(W), scatter(W), scatter(W)],
    ),
    "fully sharded along the other dim": Case(
        mlp,
        MLP,
        {"in": (None, "i"), "out": (None, "i")},
        (64, 32),
        ("i",),
        [all_gather(W), all_gather(W), scatter(W), scatter(W)],
        [all_gather(W), all_gather(W), all_gather(W), scatter(W), scatter(W)],
    ),
    "fully sharded, in two replicas": Case(
        mlp,
        MLP,
        {"in": ("i",), "out": ("i",)},
        (64, 32),
        (("i", "j"),),
        [*[all_gather(W)] * 2, *[scatter(W)] * 2, *[all_reduce(W // 4, 2)] * 2],
        [*[all_gather(W)] * 3, *[scatter(W)] * 2, *[all_reduce(W // 4, 2)] * 2],
    ),
    "fully sharded, tensor parallel": Case(
        mlp,
        MLP,
        {"in": ("i", "j"), "out": ("j", "i")},
        (64, 32),
        ("i",),
        [
            *[all_gather(W // 2), all_gather(W // 2), scatter(W // 2), scatter(W // 2)],
            all_reduce(HIDDEN // 4, 2),
        ],
        [
            *[all_gather(W // 2), all_gather(W // 2), all_gather(W // 2)],
            *[scatter(W // 2), scatter(W // 2), all_reduce(HIDDEN // 4, 2)],
        ],
    ),
    "layer, data parallel": Case(
        block,
        LAYER,
        whole_ones(LAYER),
        (8, 12, 16),
        ("i",),
        [all_reduce(SIZES[k]) for k in LAYER],
    ),
    "layer, tensor parallel": Case(
        block,
        LAYER,
        TENSOR,
        (8, 12, 16),
        (),
        [all_reduce(ROWS, 2)] * 4,  # two on the way there, two back
        [all_reduce(ROWS, 2)] * 6,  # for queries, keys and values one each
    ),
    "layer, data and tensor parallel": Case(
        block,
        LAYER,
        TENSOR,
        (8, 12, 16),
        ("i",),
        [*[all_reduce(ROWS // 4, 2)] * 4, *[all_reduce(n) for n in LOCAL.values()]],
        [*[all_reduce(ROWS // 4, 2)] * 6, *[all_reduce(n) for n in LOCAL.values()]],
    ),
    "layer, fully sharded": Case(
        block,
        LAYER,
        dict.fromkeys(LAYER, ("i",)),
        (8, 12, 16),
        ("i",),
        [f(SIZES[k]) for k in LAYER for f in (all_gather, scatter)],
        [
            *[f(SIZES[k]) for k in LAYER for f in (all_gather, scatter)],
            *[all_gather(SIZES[k]) for k in LAYER if k != "first"],
        ],
    ),
    "layer, fully sharded, tensor parallel": Case(
        block,
        LAYER,
        BOTH,
        (8, 12, 16),
        ("i",),
        [
            *[all_reduce(ROWS // 4, 2)] * 4,
            *[f(LOCAL[k]) for k in LAYER for f in (all_gather, scatter)],
        ],
        [
            *[all_reduce(ROWS // 4, 2)] * 6,
            *[f(LOCAL[k]) for k in LAYER for f in (all_gather, scatter)],
            *[all_gather(LOCAL[k]) for k in LAYER if k != "first"],
        ],
    ),
    "sequence parallel": Case(
        sequence,
        {"g": (16,), "in": (16, 32), "out": (32, 16)},
        {"g": (), "in": (None, "j"), "out": ("j",)},
        (8, 12, 16),
        ("i", "j"),
        [
            *[all_gather(ROWS // 4, 2), scatter(ROWS // 4, 2)] * 2,
            *[all_reduce(SIZES["in"] // 2), all_reduce(SIZES["out"] // 2), all_reduce(128, 8)],
        ],
        most=20_000,
    ),
    "layer norm": Case(
        norms,
        {"g": (16,), "b": (16,)},
        whole_ones({"g": 0, "b": 0}),
        (8, 12, 16),
        ("i",),
        [all_reduce(128), all_reduce(128)],
    ),
    "stencil": Case(
        stencil,
        {"k": (8,)},
        {"k": ()},
        (64, 8),
        ("i",),
        [*[("move", 64)] * 10, all_reduce(64)],  # three steps there, two back, both neighbours
        [*[("move", 64)] * 10, *[all_reduce(64)] * 3],
    ),
    "slices": Case(
        slices,
        {"k": (8,)},
        {"k": ()},
        (64, 8),
        ("i",),
        [*[("move", 64)] * 2, *[("reshard", 64)] * 4, all_reduce(64)],
        [*[("move", 64)] * 2, *[("reshard", 64)] * 4, *[all_reduce(64)] * 2],
    ),
    "experts on another axis": Case(
        experts,
        {"g": (16, 4), "in": (4, 16, 32), "out": (4, 32, 16)},
        {"g": (), "in": ("j",), "out": ("j",)},
        (8, 12, 16),
        ("i",),
        # a sum of the experts' results; gradients; gates' gradients from all experts
        most=all_reduce(ROWS // 4, 2)[1] + 2 * all_reduce(8192)[1] + all_reduce(512)[1] + 400,
    ),
    "experts on the axis of the data": Case(
        experts,
        {"g": (16, 4), "in": (4, 16, 32), "out": (4, 32, 16)},
        {"g": (), "in": ("i",), "out": ("i",)},
        (8, 12, 16),
        ("i",),
        # rows to experts and back, there and on the way back; the gates, and their gradients
        most=60_000,
    ),
    "table of vectors": Case(
        lookup, {"e": (64, 16)}, {"e": ()}, (16, 8), ("i",), most=all_reduce(64 * 16 * 8)[1]
    ),
    "table of vectors, their dims split": Case(
        lookup, {"e": (64, 16)}, {"e": (None, "j")}, (16, 8), ("i",), most=all_reduce(64 * 64)[1]
    ),
}


def values(case: Case) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(0)
    p = {k: rng.normal(size=s) for k, s in case.shapes.items()}
    x = rng.integers(0, 64, case.x) if case.f is lookup else rng.normal(size=case.x)
    return p, x


def placed(case: Case, put: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    p, x = values(case)
    return {k: put(v, case.specs[k]) for k, v in p.items()}, put(x, case.batch)


def ours(case: Case) -> tuple[Callable[..., Any], dict[str, Any], Any]:
    on = mesh()

    def put(value: Any, spec: tuple[Any, ...]) -> Any:
        return meshard.device_put(value, NamedSharding(on, P(*spec)))

    def constrained(x: Any, spec: P) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(on, spec))

    door = Door(mnp, nn, constrained)
    return meshard.grad(lambda p, x: case.f(door, p, x)), *placed(case, put)


def large(moves: Iterator[tuple[str, int]]) -> Found:
    return Counter([(kind, n) for kind, n in moves if n > SMALL])


def measured(case: Case) -> dict[str, Any]:
    f, p, x = ours(case)
    told = meshard.explain(f, p, x)
    found: dict[str, Any] = {
        "told": large((c.kind, c.bytes_per_device) for s in told.steps for c in s.communications),
        "told bytes": told.total_bytes,
        "told received": {d: n for d, n in told.received.items() if n},
    }
    for name, g in ("jit", meshard.jit(f)), ("at once", f):
        g(p, x)
        with ledger() as log:
            made = g(p, x)
        found[name] = large((r.kind, r.bytes_per_device) for r in log)
        found[f"{name} bytes"] = log.total_bytes
        found[f"{name} received"] = log.received
        found[f"{name} gradients"] = {k: whole(v) for k, v in made.items()}
        assert all(v.sharding == p[k].sharding for k, v in made.items())
        with budget(log.total_bytes):
            g(p, x)
        with pytest.raises(BudgetError), budget(log.total_bytes - 1):
            g(p, x)
    return found


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_one_would_write_by_hand(name):
    case = CASES[name]
    # A layer takes each of the four processes seconds to lower, on one core.
    found = in_processes(lambda: measured(case), () if case.f in (block, experts) else (4,))
    assert found["told bytes"] == found["jit bytes"]
    assert found["told received"] == found["jit received"]
    assert found["told"] == found["jit"]
    if case.hand:
        assert found["jit"] == Counter(case.hand)
    if case.most is not None:
        assert max(found["jit received"].values()) <= case.most
    elif case.at_once is not None:
        assert found["at once"] == Counter(case.at_once)
    else:
        assert found["at once"] == Counter(case.hand)
    for k, g in found["jit gradients"].items():
        np.testing.assert_allclose(g, found["at once gradients"][k], rtol=1e-10, atol=1e-12)


# JAX

_SIZES = {"f64": 8, "f32": 4, "s64": 8, "s32": 4, "pred": 1, "u32": 4}
_COLLECTIVE = re.compile(
    r"= (\(?.*?\)?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\("
)


def compiled_bytes(text: str) -> float:
    """Return the bytes that a device receives in a program of XLA, each collective at its best."""
    found = 0.0
    for line in text.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        n = 0
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", match[1]):
            n += _SIZES[dtype] * int(np.prod([int(s) for s in shape.split(",") if s]))
        groups = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", line)
        k = 8 if groups is None else int(groups[2] or len(groups[1].split(",")))
        share = (k - 1) / k
        found += {
            "all-reduce": 2 * n * share,
            "all-gather": n * share,
            "reduce-scatter": n * (k - 1),
            "all-to-all": n * share,
            "collective-permute": n,
        }[match[2]]
    return found


@pytest.mark.parametrize("name", CASES)
def test_it_is_at_most_what_jax_compiles(name):
    jax = pytest.importorskip("jax")
    case = CASES[name]
    auto = (jax.sharding.AxisType.Auto,) * 2
    on = jax.make_mesh((4, 2), ("i", "j"), axis_types=auto)

    def lay(spec: Any) -> Any:
        return jax.sharding.NamedSharding(on, jax.sharding.PartitionSpec(*spec))

    door = Door(
        jax.numpy, jax.nn, lambda x, spec: jax.lax.with_sharding_constraint(x, lay(tuple(spec)))
    )
    with jax.enable_x64(True):
        p, x = placed(case, lambda v, spec: jax.device_put(v, lay(spec)))
        f = jax.jit(
            jax.grad(lambda p, x: case.f(door, p, x)),
            out_shardings={k: v.sharding for k, v in p.items()},
        )
        theirs = compiled_bytes(f.lower(p, x).compile().as_text())

    # The seed of the way back is made like the value, so that the value is summed up for it.
    assert alone(lambda: meshard.explain(*ours(case)).bytes_per_device) <= theirs + SMALL
