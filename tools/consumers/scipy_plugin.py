"""A pytest plugin that runs SciPy's own tests with meshard as their array library.

All arrays that the tests make are split over a mesh::

    SCIPY_ARRAY_API=1 python -m pytest -p tools.consumers.scipy_plugin --pyargs scipy.differentiate

With ``MESHARD_WHOLE=1`` in the environment they are on one device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

_WHOLE = os.environ.pop("MESHARD_WHOLE", "")

import pytest  # noqa: E402

import meshard  # noqa: E402
import meshard.numpy as mnp  # noqa: E402
from tools.consumers import sharded  # noqa: E402

XP: Any = mnp if _WHOLE else sharded


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: Any) -> None:
    """Let ``xp`` be meshard instead of the libraries that SciPy's tests know."""
    for fixture in metafunc._arg2fixturedefs.get("xp", ()):
        object.__setattr__(fixture, "params", (XP,))
        object.__setattr__(fixture, "ids", ("meshard",))


@pytest.fixture(autouse=True)
def arrays_are_writeable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let tests and SciPy write into arrays, and find the namespace that places them."""
    found = lambda self, *, api_version=None: XP  # noqa: E731
    monkeypatch.setattr(meshard.Array, "__array_namespace__", found)
    with mnp.writeable():
        yield
