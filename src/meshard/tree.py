"""Trees of containers and leaves, by optree: maps, flattening, structures."""

from meshard.runtime.trees import (
    all,
    broadcast,
    flatten,
    flatten_with_path,
    leaves,
    leaves_with_path,
    map,
    map_with_path,
    reduce,
    structure,
    transpose,
    unflatten,
)

__all__ = [
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "structure",
    "transpose",
    "unflatten",
]
