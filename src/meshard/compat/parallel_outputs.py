"""`jit` that can give global device arrays: with ``parallel_functions_output_gda`` all its results.

In: the results of a jitted function. Out: each as a `GlobalDeviceArray`, without copying.
"""

from __future__ import annotations

from meshard.algebra.mesh import Mesh, ambient_mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.compat.gda import GlobalDeviceArray
from meshard.runtime.array.array import Array
from meshard.runtime.doors import install_function
from meshard.runtime.moving.place import placed
from meshard.runtime.world import here
from meshard.transforms.jit.jit import jit as jit
from meshard.transforms.jit.jit import pjit as pjit


def global_device_array(x: Array) -> GlobalDeviceArray:
    """Return a result of a jitted function as a global device array.

    What lies on no mesh is replicated: over the mesh that is set, if it may lie anywhere; else on
    the devices where it is.

    Raises:
        ShardingError: if its shards differ in shape.
    """
    if not isinstance(x.sharding, NamedSharding):
        if x.committed:
            mesh = Mesh(list(x.sharding.device_order), "device")
        else:
            mesh = ambient_mesh() or Mesh(list(here().devices), "device")
        x = placed(x, NamedSharding(mesh, PartitionSpec()), what="jit")
    return GlobalDeviceArray.from_array(x)


install_function("global_device_array", global_device_array)
