"""What a process that runs tests in a job knows before meshard is imported."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import pytest

__all__ = ["meant_for_jobs", "mine", "processes", "rank", "simulate_by_job"]

_MOST_EXAMPLES = 8
_BODIES = frozenset({"everywhere", "in_processes", "simulate"})


def processes() -> int | None:
    """Return how many processes run these tests together; None if this one is alone."""
    shares = _shares()
    return len(shares) if shares else None


def _shares() -> list[int]:
    """Return how many of the eight devices each process has; none if this one is alone."""
    return [int(n) for n in os.environ.get("MESHARD_TEST_RANKS", "").split(",") if n]


def rank() -> int:
    """Return this process's number in the job, as Open MPI or MPICH tells it."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit("MESHARD_TEST_RANKS is set, but mpiexec has not started this process.")


def mine() -> int:
    """Return how many of the eight devices are this process's."""
    return _shares()[rank()] if _shares() else 8


def meant_for_jobs(item: Any) -> bool:
    """Return whether a test runs a body in several processes, and so in a job.

    Others see one process only. Fewer examples are drawn, since every process compares.
    """
    function = getattr(item, "obj", None)
    if item.get_closest_marker("no_job") is not None:
        return False
    if _shares() != [4, 4] and item.get_closest_marker("halves") is not None:
        return False
    if "world_kind" in getattr(getattr(item, "callspec", None), "params", ()):
        return True
    handle = getattr(function, "hypothesis", None)
    if handle is not None:
        from hypothesis import settings

        own = function._hypothesis_internal_use_settings
        function._hypothesis_internal_use_settings = settings(
            own, max_examples=min(own.max_examples, _MOST_EXAMPLES), derandomize=True, database=None
        )
        function = handle.inner_test
    return function is not None and _reaches(function, set())


def _reaches(function: Any, seen: set[Any]) -> bool:
    """Return whether a function, or one of its module that it names, runs bodies in processes."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None or code in seen:
        return False
    seen.add(code)
    names = set(_names(code))
    if names & _BODIES:
        return True
    space = function.__globals__
    near = [space[n] for n in names if n in space]
    return any(_reaches(f, seen) for f in near if getattr(f, "__module__", "").startswith("tests"))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def simulate_by_job(
    processes: int,
    devices: int,
    program: Callable[[], Any],
    deadline: float = 0,
    hosts: Sequence[int] | None = None,
    table: object = None,
) -> list[Any]:
    """Stand in for `simulate` in a job: its processes run the program, if they are as asked for."""
    from meshard.runtime.world import here

    world = here()
    everybody = range(world.process_count)
    if (
        hosts is not None
        or table is not None
        or [d.process_index for d in world.devices]
        != [p for p in range(processes) for _ in range(devices)]
    ):
        pytest.skip(f"the job is not one of {processes} processes with {devices} devices each")
    # What a test returns is its own affair; letters of the library hold data only.
    found = world.transport.all_gather(pickle.dumps(program()), everybody)
    return list(map(pickle.loads, found))
