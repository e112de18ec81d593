"""`jit` for programs: its results are global device arrays if the setting says so.

In: a function, and the options of jit. Out: the jitted function, and the wrapper of its
results: with ``parallel_functions_output_gda`` each becomes a `GlobalDeviceArray`, without copying.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshard.algebra.boundary import bounded
from meshard.algebra.mesh import Mesh, ambient_mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.compat.global_device_array import GlobalDeviceArray
from meshard.compat.settings import PARALLEL_FUNCTIONS_OUTPUT_GDA
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import placed
from meshard.runtime.world import here
from meshard.transforms.jit import jit as core
from meshard.transforms.jit.stages import ResultWrapper

if TYPE_CHECKING:  # for type checkers, which see each option
    from meshard.transforms.jit.jit import jit as jit
else:
    # Also at run time it has the signature and the text of that one, but is pickled as this one.
    @functools.wraps(core.jit, assigned=("__doc__", "__name__", "__qualname__"))
    def jit(f: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Call jit of the floor below with the wrapper of its results."""
        make = core.jit(**options)

        def decorated(f: Callable[..., Any]) -> Any:
            return make(f).wrap_results(_wrapper)

        return bounded(decorated) if f is None else decorated(f)


pjit = jit


def _wrapper() -> ResultWrapper | None:
    return global_device_array if PARALLEL_FUNCTIONS_OUTPUT_GDA.value else None


def global_device_array(x: Array) -> GlobalDeviceArray:
    """Return a result of a jitted function as a global device array.

    A result without a mesh is replicated: over the mesh that is set, if nothing committed it to
    devices, or else over the devices that it is on.

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
