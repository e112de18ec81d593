"""Settings of every test run; the environment is set before anything of ours or JAX's loads."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tests.ranks import shares

os.environ["MESHARD_NUM_DEVICES"] = str(shares.mine())
# Whoever runs these tests works on meshard: failures show its own frames (tests/test_boundary.py
# looks at what users see).
os.environ.setdefault("MESHARD_TRACEBACK", "full")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
# Half of the time of the tests with JAX was compiling: JAX optimises less, and keeps what it has
# compiled for the next run (`make clean` removes it). What meshard compiles with XLA is optimised,
# as for users (tests/test_segment.py).
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / "build" / "jax")
os.environ["MESHARD_CACHE_DIR"] = str(Path(__file__).parents[1] / "build" / "llvm")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# OpenBLAS's threads spin for some 25 ms after each product, and when NumPy is imported: on two
# cores that is time that other tests need.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
# Tests say themselves how wide a text is and whether it has colours.
os.environ |= dict.fromkeys(("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"), "")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from meshard.runtime.types import ArrayType, Blocks

RANKS = shares.processes()

# No deadline: the first example pays for imports and caches, and CI machines stall. Each run draws
# other examples; `thorough` draws far more.
settings.register_profile("default", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
# In a job all processes must draw the same, however fast they are.
settings.register_profile(
    "ranks",
    settings.get_profile("ci"),
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("ranks" if RANKS else os.environ.get("HYPOTHESIS_PROFILE", "default"))

if RANKS:
    from meshard.runtime import simulated

    simulated.simulate = shares.simulate_by_job  # before the tests' modules import it


@pytest.fixture(scope="session", autouse=True)
def blocks_are_as_their_type_says() -> Iterator[None]:
    """Check in every test that arrays are made of blocks of the shape and dtype of their pieces.

    Whatever makes an array passes here, so that a kernel whose results do not have the shape that
    its rule says is found by any test that runs it.
    """
    from meshard.runtime.array.array import Array

    made = Array.__init__

    def checked(self: Array, type: ArrayType, blocks: Blocks) -> None:
        made(self, type, blocks)
        shapes, dtype = type.layout.shapes, type.dtype
        for piece, block in enumerate(blocks):
            if block is not None:
                assert isinstance(block, np.ndarray), (type, block)
                assert block.shape == shapes[piece], (type, piece, block)
                assert block.dtype == dtype, (type, piece, block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Array, "__init__", checked)
        yield


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Check after each file of tests that the working folder holds what it held before."""
    before = {*os.listdir()}
    yield
    left = {*os.listdir()} - before - {"build"}
    assert not {name for name in left if not name.startswith(".")}, "files that tests left behind"


@pytest.fixture(scope="session")
def jax() -> ModuleType:
    """JAX on 8 CPU devices, to compare with; the test skips where JAX has no wheel."""
    module = pytest.importorskip(
        "jax", reason="no JAX wheel for this Python: what compares with JAX is skipped"
    )
    leave_to_the_end()
    return module


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also where a shell runs the tests in its background."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("interrupts come to the main thread only")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


MOST_COMPILED_BYTES = 1 << 28
"""What JAX may keep: tests that draw their programs add some in every run."""


def pytest_configure(config: pytest.Config) -> None:
    """Begin anew with what JAX has compiled, where that has become large."""
    compiled = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    if RANKS or hasattr(config, "workerinput") or not compiled.is_dir():
        return
    if sum(entry.stat().st_size for entry in os.scandir(compiled)) > MOST_COMPILED_BYTES:
        shutil.rmtree(compiled, ignore_errors=True)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what the tests import: to look for doctests in it would import it again."""
    helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if helper else None


def leave_to_the_end() -> None:
    """Hide all that is alive from the garbage collector: it lives for the whole run.

    Modules, JAX and the collected tests are hundreds of thousands of objects. Walking them again
    and again took a third of the run.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    gc.disable()
    try:
        return (yield)
    finally:
        leave_to_the_end()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


FIRST = (
    "tests/ranks/test_hosts.py",
    "tests/ranks/test_ranks.py",
    "tests/ranks/test_recovery_ranks.py",
    "tests/ranks/test_agreement_ranks.py",
    "tests/test_demo.py",
    "tests/ranks/test_failures.py",
    "tests/test_examples.py",
    "tests/ranks/",
    "tests/laws/",
)
"""Where the tests are that take longest. They start first, so that no worker is left with them at
the end; those that mostly wait alternate with those that compute."""


def long_files_first(items: list[pytest.Item]) -> None:
    """Order the files: those that take long, then those with many tests.

    A worker runs a file from its first test to its last (`make test` says ``--dist loadfile``).
    """
    tests = Counter(item.nodeid.partition("::")[0] for item in items)

    def order(item: pytest.Item) -> tuple[int, int, str]:
        file = item.nodeid.partition("::")[0]
        place = next((i for i, start in enumerate(FIRST) if file.startswith(start)), len(FIRST))
        return place, -tests[file], file

    items.sort(key=order)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long_files_first(items)
    for item in items:
        if "jax" in getattr(item, "fixturenames", ()):
            item.add_marker("oracle")
    if RANKS:
        kept = [item for item in items if shares.meant_for_jobs(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
