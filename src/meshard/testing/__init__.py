"""Tools for tests of sharded programs.

`simulate` runs a program in several processes that are threads of this one. `virtual_devices` makes
devices that do not exist, for meshes of any size. The rest are Hypothesis strategies, which draw
meshes, specs, shapes and shardings; Hypothesis is imported when one is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshard.algebra.attributes import absent as _absent
from meshard.runtime.simulated import die, simulate
from meshard.testing.virtual import virtual_devices

if TYPE_CHECKING:
    from meshard.testing.strategies import (
        box_shardings,
        meshes,
        named_shardings,
        placed_shapes,
        shapes,
        specs,
    )

__all__ = [
    "box_shardings",
    "die",
    "meshes",
    "named_shardings",
    "placed_shapes",
    "shapes",
    "simulate",
    "specs",
    "virtual_devices",
]

_STRATEGIES = frozenset(__all__) - {"die", "simulate", "virtual_devices"}


def __getattr__(name: str) -> Any:
    if name not in _STRATEGIES:
        return _absent(__name__)(name)
    return getattr(import_module(".strategies", __name__), name)
