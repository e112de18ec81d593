"""Loading: every tree comes back bit for bit, whatever the layouts and numbers of processes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard import checkpoint
from tests.checkpoints import DEVICES, folders, run, watched, watched_transport
from tests.lays import Lay, calm, fetched, lays, numbered, shapes

DTYPES = [
    *("f8", "f4", "f2", "i8", "i4", "u2", "u1", "bool", "c8", "c16"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
]
PROCESSES = st.sampled_from(list(DEVICES))


@st.composite
def leaves(draw: st.DrawFn) -> tuple[np.ndarray, Lay, Lay]:
    """Draw a value, the layout in which it is saved, and the one in which it is wanted."""
    shape = draw(shapes(most=7))
    value = numbered(shape, draw(st.sampled_from(DTYPES)))
    return value, draw(lays(shape)), draw(lays(shape))


def structs(trees: list[tuple[np.ndarray, Lay, Lay]]) -> dict[str, Any]:
    return {f"w.{k}": w.sharding(v.shape) or None for k, (v, _, w) in enumerate(trees)}


@settings(calm, max_examples=60)
@given(st.lists(leaves(), min_size=1, max_size=4), PROCESSES, PROCESSES)
def test_a_tree_comes_back_in_any_layout_bit_for_bit(
    trees: list[tuple[np.ndarray, Lay, Lay]], savers: int, loaders: int
) -> None:
    def save() -> None:
        checkpoint.save(path, {f"w.{k}": lay.put(v) for k, (v, lay, _) in enumerate(trees)})

    def load() -> None:
        wanted = structs(trees)
        with watched_transport(seen):
            plan = checkpoint.plan_load(path, wanted)
            assert not seen.sent[meshard.process_index()]
            found = checkpoint.load(path, wanted)
        assert list(found) == list(wanted)
        for (value, _, lay), (name, x) in zip(trees, found.items(), strict=True):
            sharding = lay.sharding(value.shape)
            if sharding is not None:
                assert x.committed
                assert x.sharding == meshard.device_put(value, sharding).sharding
            found_value = fetched(x)
            assert found_value.dtype == value.dtype
            assert found_value.shape == value.shape
            assert found_value.tobytes() == value.tobytes(), name
        plans.append(plan)

    with folders() as path, watched() as seen:
        plans: list[checkpoint.LoadPlan] = []
        run(savers, save)
        run(loaders, load)
        assert len({p.digest for p in plans}) == 1
        assert sum(seen.read.values()) == sum(v.nbytes for v, *_ in trees)
        assert [seen.read[k] for k in range(loaders)] == list(plans[0].reading.bytes_read)
