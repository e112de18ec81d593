"""Gradients laid out like what they are gradients of.

In: a value and its cotangent. Out: the cotangent, in the value's layout.
"""

from __future__ import annotations

from typing import Any

from meshard.algebra.sharding import NamedSharding
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import placed


def laid_like(g: Any, x: Any) -> Any:
    """Return a cotangent laid out like its value, where that is on a mesh."""
    if type(x) is Array and type(g) is Array and isinstance(x.sharding, NamedSharding):
        return g if g.aval.layout == x.aval.layout else placed(g, x.sharding, what="grad")
    return g
