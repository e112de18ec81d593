"""What loads, saves and conversions hold beside the arrays; `tests.holding` measures 1.1 GB."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec

import pytest

from tests import dying, holding

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux counts the pages of a process"
)
BUDGET = 6
"""MiB, in a tree of 136 with a tensor of 64."""


def test_one_process_keeps_its_budget() -> None:
    with tempfile.TemporaryDirectory(dir=dying.quick_folder()) as folder:
        holding.stage(1, folder, 8, "prepare", 0)
        for name in ("save safetensors", "load", "load and cast", "convert"):
            found = holding.stage(1, folder, 8, name, BUDGET)
            assert found.extra <= found.allowed, found


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_several_processes_keep_their_budgets() -> None:
    with tempfile.TemporaryDirectory(dir=dying.quick_folder()) as folder:
        holding.stage(4, folder, 8, "prepare", 0)
        for name in ("load safetensors", "convert"):
            found = holding.stage(4, folder, 8, name, BUDGET)
            assert found.extra <= found.allowed, found
