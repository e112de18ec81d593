"""Trees of containers and leaves, by optree: maps, flattening, structures."""

from meshard.errors import suggesting as _suggesting
from meshard.runtime.tree_nodes import (
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
)
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
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "structure",
    "transpose",
    "unflatten",
]

__getattr__ = _suggesting(__name__, __all__)
