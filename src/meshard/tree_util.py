"""Trees by JAX's longer names, the keys of paths, and what containers need.

``tree_map`` is `meshard.tree.map`, and so on.

>>> from meshard.tree_util import keystr, tree_flatten_with_path
>>> leaves, structure = tree_flatten_with_path({"layers": [{"w": 1}, {"w": 2}]})
>>> [keystr(path) for path, _ in leaves]
["['layers'][0]['w']", "['layers'][1]['w']"]
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.runtime.trees import trees as _paths
from meshard.runtime.trees import trees as _trees
from meshard.runtime.trees.keys import (
    DictKey as DictKey,
)
from meshard.runtime.trees.keys import (
    FlattenedIndexKey as FlattenedIndexKey,
)
from meshard.runtime.trees.keys import (
    GetAttrKey as GetAttrKey,
)
from meshard.runtime.trees.keys import (
    KeyEntry as KeyEntry,
)
from meshard.runtime.trees.keys import (
    KeyPath as KeyPath,
)
from meshard.runtime.trees.keys import (
    SequenceKey as SequenceKey,
)
from meshard.runtime.trees.keys import (
    keystr as keystr,
)
from meshard.runtime.trees.levels import Partial as Partial
from meshard.runtime.trees.levels import (
    all_leaves as all_leaves,
)
from meshard.runtime.trees.levels import (
    flatten_one_level as flatten_one_level,
)
from meshard.runtime.trees.levels import (
    flatten_one_level_with_keys as flatten_one_level_with_keys,
)
from meshard.runtime.trees.levels import (
    is_tree_node as is_tree_node,
)
from meshard.runtime.trees.levels import (
    treedef_children as treedef_children,
)
from meshard.runtime.trees.levels import (
    treedef_is_leaf as treedef_is_leaf,
)
from meshard.runtime.trees.levels import (
    treedef_tuple as treedef_tuple,
)
from meshard.runtime.trees.nodes import (
    register_dataclass as register_dataclass,
)
from meshard.runtime.trees.nodes import (
    register_pytree_node as register_pytree_node,
)
from meshard.runtime.trees.nodes import (
    register_pytree_node_class as register_pytree_node_class,
)
from meshard.runtime.trees.nodes import (
    register_pytree_with_keys as register_pytree_with_keys,
)
from meshard.runtime.trees.nodes import (
    register_pytree_with_keys_class as register_pytree_with_keys_class,
)
from meshard.runtime.trees.nodes import (
    register_static as register_static,
)

PyTreeDef = _trees.PyTreeSpec
tree_all = _trees.all
tree_broadcast = _trees.broadcast
tree_flatten = _trees.flatten
tree_flatten_with_path = _paths.flatten_with_path
tree_leaves = _trees.leaves
tree_leaves_with_path = _paths.leaves_with_path
tree_map = _trees.map
tree_map_with_path = _paths.map_with_path
tree_reduce = _trees.reduce
tree_reduce_associative = _trees.reduce_associative
tree_structure = _trees.structure
tree_transpose = _trees.transpose
tree_unflatten = _trees.unflatten

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
