"""Trees of containers and leaves, by optree: maps, flattening, structures."""

from meshard.runtime.trees import (
    all,
    flatten,
    leaves,
    map,
    map_with_path,
    reduce,
    structure,
    transpose,
    unflatten,
)

__all__ = [
    "all",
    "flatten",
    "leaves",
    "map",
    "map_with_path",
    "reduce",
    "structure",
    "transpose",
    "unflatten",
]
