"""PyTorch's tensors and DTensors: as arrays over the same memory, and moved between meshes.

Tensors of the host are taken wherever NumPy's arrays are. DTensors become arrays, and arrays
DTensors, without moving a byte. `reshard` moves trees of DTensors between any meshes of a job of
PyTorch's, and `plan` says beforehand what that will do.
"""

from __future__ import annotations

from meshard.algebra.boundary import bound_all
from meshard.interop.tensors.agreeing import initialize
from meshard.interop.tensors.casting import mxn_cast
from meshard.interop.tensors.convert import from_meshard, to_meshard, to_sharding
from meshard.interop.tensors.reshard import plan, redistribute, reshard

__all__ = [
    "from_meshard",
    "initialize",
    "mxn_cast",
    "plan",
    "redistribute",
    "reshard",
    "to_meshard",
    "to_sharding",
]

bound_all(globals()[name] for name in __all__)
