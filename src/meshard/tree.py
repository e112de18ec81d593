"""Trees: nested dicts, lists, tuples and registered classes, with arrays as leaves.

Wherever meshard takes a tree, it takes a single array too. The work is done by optree.

>>> import meshard.numpy as mnp
>>> from meshard import tree
>>> params = {"w": mnp.ones((2, 3)), "layers": [mnp.zeros(2), mnp.zeros(4)]}
>>> tree.map(lambda x: x.size, params)
{'w': 6, 'layers': [2, 4]}
>>> len(tree.leaves(params))
3
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.runtime.trees.nodes import (
    static as static,
    register_dataclass as register_dataclass,
    register_pytree_node as register_pytree_node,
    register_pytree_node_class as register_pytree_node_class,
)
from meshard.runtime.trees.trees import (
    all as all,
    broadcast as broadcast,
    flatten as flatten,
    leaves as leaves,
    map as map,
    reduce as reduce,
    reduce_associative as reduce_associative,
    structure as structure,
    transpose as transpose,
    unflatten as unflatten,
)
from meshard.runtime.trees.trees import (
    flatten_with_path as flatten_with_path,
    leaves_with_path as leaves_with_path,
    map_with_path as map_with_path,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
