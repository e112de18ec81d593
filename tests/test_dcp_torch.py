"""Folders of distributed checkpoints between meshard and torch, in thirty layouts both ways."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import meshard
from meshard import checkpoint
from tests.checkpoints import DEVICES, folders, run
from tests.dcp_job import values
from tests.lays import Lay, calm, fetched, lays, same

pytest.importorskip("torch", reason="torch is not installed")
LAYOUTS = 30
VALUES = meshard.tree.leaves(values())
LAYS = st.tuples(*[lays(x.shape) for x in VALUES])


def drawn() -> list[tuple[tuple[Lay, ...], int]]:
    """Return thirty layouts of the arrays, each with a number of processes."""
    found: list[tuple[tuple[Lay, ...], int]] = []

    @settings(calm, max_examples=LAYOUTS, derandomize=True, phases=[Phase.generate])
    @given(LAYS, st.sampled_from(list(DEVICES)))
    def draw(given_lays: tuple[Lay, ...], processes: int) -> None:
        found.append((given_lays, processes))

    draw()
    while len(found) < LAYOUTS:
        found += found
    return found[:LAYOUTS]


def tree_of(make: Any) -> Any:
    return meshard.tree.unflatten(meshard.tree.structure(values()), make)


@pytest.mark.timeout(240)
def test_thirty_layouts_are_the_same_bits_in_torch_and_back() -> None:
    layouts = drawn()
    with folders() as folder:
        for number, (chosen, processes) in enumerate(layouts):

            def save(number: int = number, chosen: tuple[Lay, ...] = chosen) -> None:
                tree = tree_of([y.put(x) for x, y in zip(VALUES, chosen, strict=True)])
                checkpoint.save(folder / f"m{number}", tree, format="dcp")

            run(processes, save)
            run(1, lambda n=number: check(folder / f"m{n}", None))
        job = Path(__file__).with_name("dcp_job.py")
        done = subprocess.run(
            [sys.executable, job, folder, str(LAYOUTS)], capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout == f"{LAYOUTS} folders, 0 ranks failed\n"
        for number, (chosen, processes) in enumerate(layouts):
            run(processes, lambda n=number, c=chosen: check(folder / f"t{n}", c))
            assert checkpoint.metadata(folder / f"t{number}").pickled == ("epoch",)


def check(path: Path, chosen: tuple[Lay, ...] | None) -> None:
    """Load a folder in some layout, and compare its arrays bit for bit."""
    asked = None
    if chosen is not None:
        places = [y.sharding(x.shape) for x, y in zip(VALUES, chosen, strict=True)]
        asked = tree_of([p or meshard.devices()[0] for p in places])
    found = checkpoint.load(path, asked)
    assert meshard.tree.structure(found) == meshard.tree.structure(values())
    for x, y in zip(VALUES, meshard.tree.leaves(found), strict=True):
        assert y.dtype == x.dtype
        same(fetched(y), np.asarray(x))
