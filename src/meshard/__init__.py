"""Sharded NumPy arrays: one logical array over a mesh of devices.

Ask for devices, arrange them in a mesh, and lay arrays out over it. Operations run where the data
is, and a ledger tells what moved:

>>> import meshard, meshard.numpy as mnp
>>> from meshard import NamedSharding, P
>>> meshard.config.update("num_devices", 8)
>>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
>>> x = meshard.device_put(mnp.ones((8, 4)), NamedSharding(mesh, P("x", "y")))
>>> with meshard.debug.ledger() as log:
...     y = mnp.tanh(x)
...     total = y.sum(axis=0)
>>> y.sharding.spec, total.sharding.spec, log.total_bytes
(P('x', 'y'), P('y',), 192)

Arrays are made by `device_put`, ``make_array_from_*`` and the functions of ``meshard.numpy``;
programs by `jit` and `shard_map`; `reshard` moves arrays, `plan_reshard` and `explain` say
beforehand what moves. The modules are ``numpy``, ``lax``, ``random``, ``nn``, ``optim``,
``sharding``, ``resharding``, ``checkpoint``, ``elastic``, ``debug``, ``tree``, ``multihost_utils``,
``config`` and ``testing``.

The source is a tower, in which imports point down only::

    doors         numpy lax random nn optim sharding resharding checkpoint elastic debug tree
                  typing config experimental
    cli testing   the roof
    compat        other systems' names and rules
    interop       JAX's arrays, XLA as a compiler
    resilience    processes lost and joining, arrays brought back, other jobs fed
    weights       arrays in files
    transforms    interpreters of operations: shard_map, jit, control flow
    mpi           processes joined by MPI
    ops           operations as rows, and the engine that runs them on blocks
    ----------    two doors between floors: `bind` (up) and `Transport` (sideways)
    runtime       devices, blocks, pages, workers, Array, placing and moving
    plan          pure: layouts -> what moves, bounds, drawings
    algebra       pure: World, Mesh, PartitionSpec, Sharding, Layout, DimMap, OpRule
    settings      what each floor lets the environment and `config` set
    tuning        thresholds, with what was measured
    errors        every refusal, as one tree
"""

import typing as _typing

from meshard import (
    config as config,
    distributed as distributed,
    errors as errors,
    sharding as sharding,
    tree as tree,
)
from meshard._version import __version__ as __version__
from meshard.algebra.attributes import door as _door
from meshard.algebra.device import Device as Device
from meshard.algebra.mesh import Mesh as Mesh, make_mesh as make_mesh, set_mesh as set_mesh
from meshard.algebra.sharding import NamedSharding as NamedSharding
from meshard.algebra.spec import P as P
from meshard.ops import install as _install  # noqa: F401  (it fills the doors below)
from meshard.runtime.array.array import Array as Array, Shard as Shard, live_arrays as live_arrays
from meshard.runtime.callers import named_call as named_call, named_scope as named_scope
from meshard.runtime.devices import (
    default_backend as default_backend,
    device_count as device_count,
    devices as devices,
    local_device_count as local_device_count,
    local_devices as local_devices,
    process_count as process_count,
    process_index as process_index,
    process_indices as process_indices,
)
from meshard.runtime.doors import install_namespace as _install_namespace
from meshard.runtime.moving.make import (
    block_until_ready as block_until_ready,
    device_get as device_get,
    device_put as device_put,
    make_array_from_callback as make_array_from_callback,
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from meshard.runtime.moving.place import default_device as default_device
from meshard.runtime.moving.process_local import (
    make_array_from_process_local_data as make_array_from_process_local_data,
)
from meshard.runtime.moving.structs import ShapeDtypeStruct as ShapeDtypeStruct, typeof as typeof

# Names that users may look for but that do not exist, and what to use instead.
_ONE_TYPE = "there is one type, Array; its sharding says the rest"
_ABSENT: dict[str, str] = {
    "pmap": "use shard_map, over a mesh with one axis",
    "tree_map": "it is meshard.tree.map",
    "DeviceArray": _ONE_TYPE,
    "ShardedDeviceArray": _ONE_TYPE,
    "enable_x64": "arrays of 64 bits are always there; config.update('default_float', 'float32') "
    "makes Python's floats shorter",
    "GlobalDeviceArray": "it is meshard.gda.GlobalDeviceArray",
}

_install_namespace("meshard.numpy")

if _typing.TYPE_CHECKING:  # names that are loaded on first use, for editors
    from meshard import (
        ad_checkpoint as ad_checkpoint,
        array_api as array_api,
        checkpoint as checkpoint,
        checkpoint_policies as checkpoint_policies,
        debug as debug,
        elastic as elastic,
        experimental as experimental,
        dtypes as dtypes,
        flatten_util as flatten_util,
        gda as gda,
        lax as lax,
        multihost_utils as multihost_utils,
        nn as nn,
        numpy as numpy,
        optim as optim,
        random as random,
        resharding as resharding,
        scipy as scipy,
        tree_util as tree_util,
        typing as typing,
    )
    from meshard.runtime.moving.plan_reshard import plan_reshard as plan_reshard
    from meshard.runtime.watching.timer import print0 as print0
    from meshard.weights.checkpoint.one_array import load as load, save as save
    from meshard.weights.moving import reshard as reshard
    from meshard.transforms.jit.jit import explain as explain
    from meshard.transforms.jit.jit import jit as jit, pjit as pjit
    from meshard.transforms.jit.jit import (
        clear_caches as clear_caches,
        disable_jit as disable_jit,
        ensure_compile_time_eval as ensure_compile_time_eval,
        make_jaxpr as make_jaxpr,
    )
    from meshard.transforms.shard_map import shard_map as shard_map
    from meshard.transforms.batching.vmap import vmap as vmap
    from meshard.transforms.callbacks.printing import pure_callback as pure_callback
    from meshard.transforms.derivatives.arguments import float0 as float0
    from meshard.transforms.remat.remat import remat as remat
    from meshard.transforms.custom.custom import (
        closure_convert as closure_convert,
        custom_gradient as custom_gradient,
    )
    from meshard.transforms.custom.custom import (
        custom_jvp as custom_jvp,
        custom_vjp as custom_vjp,
    )
    from meshard.transforms.derivatives.functions import (
        grad as grad,
        jvp as jvp,
        value_and_grad as value_and_grad,
        vjp as vjp,
    )
    from meshard.transforms.derivatives.jacobians import (
        hessian as hessian,
        jacfwd as jacfwd,
        jacobian as jacobian,
        jacrev as jacrev,
        linear_transpose as linear_transpose,
        linearize as linearize,
    )
    from meshard.transforms.tracing.abstract import eval_shape as eval_shape
else:
    __all__, __dir__, __getattr__ = _door(
        __name__,
        "__version__",
        late=(
            "meshard.compat.jit_results:jit",
            "meshard.compat.jit_results:pjit",
            "meshard.ad_checkpoint",
            "meshard.array_api",
            "meshard.checkpoint",
            "meshard.checkpoint_policies",
            "meshard.debug",
            "meshard.elastic",
            "meshard.experimental",
            "meshard.dtypes",
            "meshard.flatten_util",
            "meshard.gda",
            "meshard.lax",
            "meshard.multihost_utils",
            "meshard.nn",
            "meshard.numpy",
            "meshard.optim",
            "meshard.random",
            "meshard.resharding",
            "meshard.scipy",
            "meshard.runtime.moving.plan_reshard:plan_reshard",
            "meshard.runtime.watching.timer:print0",
            "meshard.weights.checkpoint.one_array:load",
            "meshard.weights.checkpoint.one_array:save",
            "meshard.weights.moving:reshard",
            "meshard.testing",
            "meshard.transforms.jit.jit:explain",
            "meshard.transforms.shard_map:shard_map",
            "meshard.transforms.batching.vmap:vmap",
            "meshard.transforms.callbacks.printing:pure_callback",
            "meshard.transforms.derivatives.arguments:float0",
            "meshard.transforms.remat.remat:remat",
            "meshard.transforms.custom.custom:closure_convert",
            "meshard.transforms.custom.custom:custom_gradient",
            "meshard.transforms.custom.custom:custom_jvp",
            "meshard.transforms.custom.custom:custom_vjp",
            "meshard.transforms.derivatives.functions:grad",
            "meshard.transforms.derivatives.functions:jvp",
            "meshard.transforms.derivatives.functions:value_and_grad",
            "meshard.transforms.derivatives.functions:vjp",
            "meshard.transforms.derivatives.jacobians:hessian",
            "meshard.transforms.derivatives.jacobians:jacfwd",
            "meshard.transforms.derivatives.jacobians:jacobian",
            "meshard.transforms.derivatives.jacobians:jacrev",
            "meshard.transforms.jit.jit:clear_caches",
            "meshard.transforms.jit.jit:disable_jit",
            "meshard.transforms.jit.jit:ensure_compile_time_eval",
            "meshard.transforms.jit.jit:make_jaxpr",
            "meshard.transforms.derivatives.jacobians:linear_transpose",
            "meshard.transforms.derivatives.jacobians:linearize",
            "meshard.transforms.tracing.abstract:eval_shape",
            "meshard.tree_util",
            "meshard.typing",
        ),
        advice=_ABSENT,
    )
