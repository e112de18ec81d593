"""Trees by JAX's longer names, the keys of paths, and what containers need.

``tree_map`` is `meshard.tree.map`, and so on.

>>> from meshard.tree_util import keystr, tree_flatten_with_path
>>> leaves, structure = tree_flatten_with_path({"layers": [{"w": 1}, {"w": 2}]})
>>> [keystr(path) for path, _ in leaves]
["['layers'][0]['w']", "['layers'][1]['w']"]
"""

import typing as _typing

from optree import PyTreeSpec as PyTreeDef

from meshard.algebra.attributes import door as _door
from meshard.runtime.trees import (
    all as tree_all,
    broadcast as tree_broadcast,
    flatten as tree_flatten,
    leaves as tree_leaves,
    map as tree_map,
    reduce as tree_reduce,
    reduce_associative as tree_reduce_associative,
    structure as tree_structure,
    transpose as tree_transpose,
    unflatten as tree_unflatten,
)
from meshard.runtime.trees.keys import (
    DictKey as DictKey,
    FlattenedIndexKey as FlattenedIndexKey,
    GetAttrKey as GetAttrKey,
    KeyEntry as KeyEntry,
    KeyPath as KeyPath,
    SequenceKey as SequenceKey,
    keystr as keystr,
)
from meshard.runtime.trees.levels import (
    all_leaves as all_leaves,
    flatten_one_level as flatten_one_level,
    flatten_one_level_with_keys as flatten_one_level_with_keys,
    is_tree_node as is_tree_node,
    treedef_children as treedef_children,
    treedef_is_leaf as treedef_is_leaf,
    treedef_tuple as treedef_tuple,
)
from meshard.runtime.trees.nodes import (
    register_dataclass as register_dataclass,
    register_pytree_node as register_pytree_node,
    register_pytree_node_class as register_pytree_node_class,
    register_pytree_with_keys as register_pytree_with_keys,
    register_pytree_with_keys_class as register_pytree_with_keys_class,
    register_static as register_static,
)
from meshard.runtime.trees.partial import Partial as Partial
from meshard.runtime.trees.paths import (
    flatten_with_path as tree_flatten_with_path,
    leaves_with_path as tree_leaves_with_path,
    map_with_path as tree_map_with_path,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
