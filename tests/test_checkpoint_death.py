"""Saves that are killed at some of their calls; `python -m tests.dying` kills them at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import dying


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=dying.quick_folder()) as name:
        yield Path(name)


def check(found: list[dying.Found] | None, programs: int) -> None:
    if found is None:
        pytest.skip("there is no C compiler, which the library that kills processes needs")
    assert len(found) == programs
    for one in found:
        assert not one.faults, f"{one.name}: {one.faults[0]}"
        assert one.calls > 10
        assert one.points > 0
        assert one.slowest < dying.PATIENCE


def test_what_was_complete_stays_whichever_call_is_the_last(folder: Path) -> None:
    check(dying.campaign(9, folder), len(dying.PROGRAMS))


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("how", ["wait, keep=None", "behind"])
def test_a_job_of_which_a_process_dies_ends_and_leaves_what_was_complete(
    folder: Path, how: str
) -> None:
    check(dying.campaign(2, folder, f"steps, {how}", "job"), 1)
