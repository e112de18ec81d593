"""meshard: one logical array over a mesh of devices.

The tower; imports point down only::

    doors         numpy lax random nn sharding resharding debug tree config experimental
    cli testing   the roof
    transforms    interpreters of operations: shard_map, control flow
    ops           operations as rows, and the engine that runs them on blocks
    ----------    two doors between floors: `bind` (up) and `Transport` (sideways)
    runtime       devices, blocks, pages, workers, Array, placement, executor
    plan          pure: layouts -> what moves, bounds, drawings
    algebra       pure: World, Mesh, PartitionSpec, Sharding, Layout, DimMap, OpRule
    settings      what each floor lets the environment and `config` set
    errors        every refusal, as one tree
"""

from typing import TYPE_CHECKING, Any

from meshard import config, distributed, errors, nn, numpy, sharding, tree
from meshard._version import __version__
from meshard.algebra.attributes import absent as _absent
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh, make_mesh, set_mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import P
from meshard.ops import install as _install  # noqa: F401  (it fills the doors below)
from meshard.runtime.array.array import Array, Shard, live_arrays
from meshard.runtime.devices import (
    device_count,
    devices,
    local_device_count,
    local_devices,
    process_count,
    process_index,
)
from meshard.runtime.moving.make import (
    block_until_ready,
    device_get,
    device_put,
    make_array_from_callback,
    make_array_from_single_device_arrays,
)
from meshard.runtime.moving.place import default_device
from meshard.runtime.moving.process_local import make_array_from_process_local_data
from meshard.runtime.moving.structs import ShapeDtypeStruct, typeof

if TYPE_CHECKING:
    from meshard import debug, experimental, gda, lax, multihost_utils, random, resharding
    from meshard.runtime.moving.plan_reshard import plan_reshard
    from meshard.runtime.moving.reshard import reshard
    from meshard.transforms.jit.explain import explain
    from meshard.transforms.jit.jit import jit, pjit
    from meshard.transforms.shard_map import shard_map
    from meshard.transforms.tracing.abstract import eval_shape

# Loaded when they are first asked for: a module, and the name in it, or None for the module.
_LATE: dict[str, tuple[str, str | None]] = {
    "debug": ("meshard.debug", None),
    "eval_shape": ("meshard.transforms.tracing.abstract", "eval_shape"),
    "experimental": ("meshard.experimental", None),
    "explain": ("meshard.transforms.jit.explain", "explain"),
    "gda": ("meshard.gda", None),
    "jit": ("meshard.compat.gda.jit_results", "jit"),
    "lax": ("meshard.lax", None),
    "multihost_utils": ("meshard.multihost_utils", None),
    "pjit": ("meshard.compat.gda.jit_results", "pjit"),
    "plan_reshard": ("meshard.runtime.moving.plan_reshard", "plan_reshard"),
    "random": ("meshard.random", None),
    "reshard": ("meshard.runtime.moving.reshard", "reshard"),
    "resharding": ("meshard.resharding", None),
    "shard_map": ("meshard.transforms.shard_map", "shard_map"),
    "testing": ("meshard.testing", None),
}

__all__ = [
    "Array",
    "Device",
    "Mesh",
    "NamedSharding",
    "P",
    "ShapeDtypeStruct",
    "Shard",
    "__version__",
    "block_until_ready",
    "config",
    "debug",
    "default_device",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "distributed",
    "errors",
    "eval_shape",
    "experimental",
    "explain",
    "gda",
    "jit",
    "lax",
    "live_arrays",
    "local_device_count",
    "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_mesh",
    "multihost_utils",
    "nn",
    "numpy",
    "pjit",
    "plan_reshard",
    "process_count",
    "process_index",
    "random",
    "reshard",
    "resharding",
    "set_mesh",
    "shard_map",
    "sharding",
    "testing",
    "tree",
    "typeof",
]

# Where a name is looked for that is not here.
_DOORS = ("sharding", "numpy", "lax", "random", "nn", "resharding", "debug", "multihost_utils")

# What people look for and will not find, and what to do instead.
_NO_DERIVATIVES = (
    "there is no automatic differentiation. Write the derivative out, as examples/regression.py "
    "does, or take it in JAX: meshard.interop.jax passes arrays both ways"
)
_ONE_TYPE = "there is one type, Array; its sharding says the rest"
_ABSENT: dict[str, str] = {
    "grad": _NO_DERIVATIVES,
    "value_and_grad": _NO_DERIVATIVES,
    "vjp": _NO_DERIVATIVES,
    "jvp": _NO_DERIVATIVES,
    "jacfwd": _NO_DERIVATIVES,
    "jacrev": _NO_DERIVATIVES,
    "hessian": _NO_DERIVATIVES,
    "vmap": "use operations on arrays with one more dim, or lax.map",
    "pmap": "use shard_map, over a mesh with one axis",
    "DeviceArray": _ONE_TYPE,
    "ShardedDeviceArray": _ONE_TYPE,
    "GlobalDeviceArray": "it is meshard.gda.GlobalDeviceArray",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LATE:
        if name not in _ABSENT and not name.startswith("_"):
            for door in _DOORS:
                importlib.import_module(f"meshard.{door}")  # where the name may be
        return _absent(__name__, _ABSENT)(name)
    module, inside = _LATE[name]
    found = importlib.import_module(module)
    if inside is not None:
        found = getattr(found, inside)
    globals()[name] = found
    return found
